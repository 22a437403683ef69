"""Doors open one way: which package may import which, that architectures are data, not branches; and what both
doors, the command line and Python, call things. Each scan of the source is one test, which lists all that is wrong."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

import isomerge
from isomerge.archs import spec_texts
from isomerge.errors import IN_PYTHON, OPTION, IsomergeError
from sources import FILES, ROOT, nodes, relative_name

ORDER = [
    {"arithmetic", "doors", "errors", "lock", "loops", "pieces", "progress", "records"},
    {"files", "passes", "plug_ins"},
    {"remembered", "config"},
    {"options", "symmetry", "checkpoint"},
    {"archs", "matching"},
    {"models"},
    {"observe"},
    {"fusion"},
    {"solve"},
    {"evidence"},
    {"run"},
    {"merging"},
    {"quotient", "discovery", "research", "tuning"},
    {"commands"},
    {"api"},
    {"cli"},
    {"__main__"},
]
"""Packages and modules from the ground up: each imports from the floors below it, at any time, and from no other of
its own floor."""


def package(path: Path) -> str:
    """The package (or top module) of a file."""
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imports(tree: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """What of isomerge the nodes of a tree import: package and line."""
    for node in tree:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "isomerge" and len(parts) > 1 and not parts[1].startswith("__"):
                yield parts[1], node.lineno


def at_once(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that run when a module is imported: in no function, and not for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        typing = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not (typing or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))):
            yield child
            yield from at_once(child)


def parsed(code: str) -> list[ast.AST]:
    """The nodes of some code."""
    return list(ast.walk(ast.parse(code)))


def against_the_order(room: str, tree: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and words of every import of a package's file that does not lead downwards."""
    floor = {name: number for number, names in enumerate(ORDER) for name in names}
    for target, line in imports(tree):
        if target != room and floor[target] >= floor[room]:
            yield line, f"imports isomerge.{target}"


def test_imports_follow_the_order() -> None:
    """No package imports one that is built on it, not even inside a function or for a type checker."""
    wrong = [
        f"{relative_name(path)}:{line} {words}"
        for path in FILES
        if package(path) != "__init__"
        for line, words in against_the_order(package(path), nodes(path))
    ]
    assert wrong == []
    upwards = parsed("def late():\n    from isomerge.cli import app\nfrom isomerge.errors import IsomergeError")
    assert list(against_the_order("solve", upwards)) == [(2, "imports isomerge.cli")]


def test_the_order_names_every_package() -> None:
    """Each once."""
    named = [name for names in ORDER for name in names]
    assert len(named) == len(set(named))
    assert {package(p) for p in FILES} == {*named, "__init__"}


def in_circles(modules: Mapping[str, Iterable[ast.AST]]) -> list[str]:
    """The modules that import themselves over others, and those that import such; of their nodes by dotted names."""
    graph: dict[str, set[str]] = {}
    for name, tree in modules.items():
        statements = [n for n in tree if isinstance(n, ast.ImportFrom) and n.module]
        dotted = [(f"{n.module}.{alias.name}", n.module or "") for n in statements for alias in n.names]
        graph[name] = {whole if whole in modules else module for whole, module in dotted} & modules.keys() - {name}
    while ends := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in ends}
    return sorted(graph)


def test_files_form_no_circles() -> None:
    """No file imports, over any way, one that imports it, inside functions and for type checkers included; nor does one
    of the benchmarks."""
    top = Path(__file__).parents[1]
    trees = {path: nodes(path) for path in FILES if path != ROOT / "__init__.py"}
    trees |= {path: tuple(parsed(path.read_text())) for path in (top / "benchmarks").rglob("*.py")}
    modules = {
        ".".join(path.relative_to(ROOT.parent if ROOT in path.parents else top).with_suffix("").parts): tree
        for path, tree in trees.items()
    }
    assert in_circles({name.removesuffix(".__init__"): tree for name, tree in modules.items()}) == []
    late = {"a": "def f():\n    from b import x", "b": "from a import y", "c": "from a import b"}
    assert in_circles({name: parsed(code) for name, code in late.items()}) == ["a", "b", "c"]


BY_NAME = {
    "cli/relating.py": "the command `relational` says what reads its output",
    "commands/relating.py": "the command `relational`",
    "doors.py": "the command `relational` has no function of Python's door",
    "solve/match_names.py": "--match names a published way",
}
"""Where the core names `research`, and why."""


def names_research(tree: Sequence[ast.AST]) -> bool:
    """Whether nodes import `isomerge.research`, or a string of theirs that is no docstring names it."""
    texts = [
        n
        for n in tree
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and "isomerge.research" in n.value
    ]
    docstrings = {id(n.value) for n in tree if isinstance(n, ast.Expr)} if texts else set[int]()
    return any(id(n) not in docstrings for n in texts) or any(target == "research" for target, _ in imports(tree))


def private(tree: Sequence[ast.AST], own: Collection[str]) -> Iterator[tuple[int, str]]:
    """Line and name of what nodes import or take from elsewhere that begins with an underscore and is not their
    ``own``."""
    for node in tree:
        if isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        else:
            names = [node.attr] if isinstance(node, ast.Attribute) else []
        yield from (
            (node.lineno, name)  # type: ignore[attr-defined]
            for name in names
            if name.startswith("_") and not name.endswith("__") and name not in own
        )


def defined(tree: Iterable[ast.AST]) -> Iterator[str]:
    """The names that nodes define: functions, classes, variables and attributes of ``self`` or ``cls``."""
    for node in tree:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            yield node.attr


def test_research_is_built_on_public_names() -> None:
    """The core does without `research` but where that is named (`BY_NAME`), and `research` with the core's public
    names."""
    files = [path for path in FILES if package(path) != "research"]
    assert {relative_name(path) for path in files if names_research(nodes(path))} == {
        relative_name(ROOT / name) for name in BY_NAME
    }
    trees = {path: nodes(path) for path in FILES if package(path) == "research"}
    own = {name for tree in trees.values() for name in defined(tree)}
    assert [
        f"{relative_name(path)}:{line} {name}" for path in trees for line, name in private(trees[path], own)
    ] == []


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("def late():\n    from isomerge.research.optim import Quotient", True),
        ("import_module('isomerge.research.baselines')", True),
        ("HOME = f'isomerge.research.{name}'", True),
        ("def f():\n    'See `isomerge.research.optim`.'", False),
        ("from isomerge.quotient import canonical", False),
    ],
)
def test_names_of_research_are_seen(code: str, named: bool) -> None:
    """Imported at any time, or as texts."""
    assert names_research(parsed(code)) == named


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        ("from isomerge.solve.pairs.pair import _moved", ["_moved"]),
        ("from isomerge.solve._pairs import moved", ["_pairs"]),
        ("solver._given_moved(x)", ["_given_moved"]),
        ("class A:\n    def _own(self): return self._own, self.__dict__", []),
    ],
)
def test_private_names_are_seen(code: str, taken: list[str]) -> None:
    """In imports, and as attributes of what others define."""
    tree = parsed(code)
    assert [name for _, name in private(tree, {n for n in defined(tree) if n != "_given_moved"})] == taken


def test_the_root_imports_lazily() -> None:
    """``isomerge/__init__.py`` imports nothing of its own outside type checking but the door of functions, which
    imports the list of commands alone."""
    root, door, listed = (nodes(ROOT / name) for name in ("__init__.py", "api/__init__.py", "doors.py"))
    assert len(list(imports(root))) > 1
    assert [package for package, *_ in imports(at_once(root[0]))] == ["api"]
    assert [package for package, *_ in imports(at_once(door[0]))] == ["doors"]
    assert list(imports(at_once(listed[0]))) == []


@cache
def architectures() -> frozenset[str]:
    """Every known model_type."""
    return frozenset(spec_texts())


def literals(node: ast.AST) -> set[str]:
    """The strings written in an expression."""
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def about_model_type(node: ast.AST) -> bool:
    """Whether an expression is somebody's model_type: ``x.model_type``, ``x["model_type"]``,
    ``x.get("model_type")``."""
    for n in ast.walk(node):
        key = n.slice if isinstance(n, ast.Subscript) else n.args[0] if isinstance(n, ast.Call) and n.args else None
        if isinstance(key, ast.Constant) and key.value == "model_type":
            return True
        if (n.attr if isinstance(n, ast.Attribute) else n.id if isinstance(n, ast.Name) else "") == "model_type":
            return True
    return False


def branches(tree: Iterable[ast.AST]) -> Iterator[int]:
    """The lines that compare a model_type with a name, name an architecture in a comparison, or cut a model_type.

    Comparing the model_type of two things with each other, as a patch file does with its model, is no branch.
    """
    for node in tree:
        if isinstance(node, (ast.Compare, ast.Match)):
            names = literals(node)
            if names & architectures() or (names - {"model_type"} and about_model_type(node)):
                yield node.lineno
        cuts = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("startswith", "endswith"))
        if cuts and about_model_type(node):
            yield node.lineno


def test_no_branches_on_architecture() -> None:
    """Nothing outside archs/ asks for the architecture."""
    files = [path for path in FILES if package(path) != "archs"]
    assert [f"{relative_name(path)}:{line}" for path in files for line in branches(nodes(path))] == []


@pytest.mark.parametrize(
    ("code", "branch"),
    [
        ("config.model_type == 'no such'", True),
        ("config['model_type'] in ('no such', other)", True),
        ("kind == 'gpt2'", True),
        ("config.get('model_type').startswith(prefix)", True),
        ("match kind:\n    case 'bert':\n        pass", True),
        ("one.model_type == other.model_type", False),
        ("one['model_type'] != other['model_type']", False),
        ("kind == 'no such'", False),
        ("name.startswith('gpt2')", False),
    ],
)
def test_branches_are_seen(code: str, branch: bool) -> None:
    """In all that they are written as, and in nothing else."""
    assert list(branches(parsed(code))) == [1] * branch


@cache
def arguments() -> frozenset[str]:
    """What Python's functions call their arguments."""
    public = [getattr(isomerge, name) for name in isomerge.__all__]
    return frozenset(n for f in public if inspect.isfunction(f) for n in inspect.signature(f).parameters)


def unknown_options(tree: Sequence[ast.AST]) -> set[str]:
    """What the strings of a tree, but its docstrings, call an option that Python has no argument and no words for."""
    docstrings = {id(n.value) for n in tree if isinstance(n, ast.Expr)}
    texts = [
        n.value
        for n in tree
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docstrings
    ]
    words = {match["word"] for text in texts for match in OPTION.finditer(text)}
    return {word for word in words if word.replace("-", "_") not in arguments() and word not in IN_PYTHON}


def test_what_messages_call_an_option_is_known_in_python() -> None:
    """An option has the name of the argument, or a line in `IN_PYTHON`."""
    # `options` declares them: its help is the command line's
    files = [path for path in FILES if package(path) not in ("cli", "options")]
    unknown = {relative_name(path): unknown_options(nodes(path)) for path in files}
    assert {name: words for name, words in unknown.items() if words} == {}
    assert unknown_options(parsed('"--help"\nsay(f"pass --zzz {x}, or --spaces")')) == {"zzz"}


def test_python_users_are_told_their_words() -> None:
    """Once, however deep a sentence is quoted; the command line prints its own."""
    inner = IsomergeError("out exists; choose another folder, or pass --overwrite to replace it, not --spaces")
    outer = IsomergeError(f"recipe.yml: {inner}")
    assert str(outer) == f"recipe.yml: {inner.sentence} (in Python: overwrite=True)"
    assert "Python" not in outer.sentence
    assert str(IsomergeError("--spaces is empty")) == "--spaces is empty"
    assert {word.partition("=")[0] for word in IN_PYTHON.values() if "=True" in word} <= arguments()

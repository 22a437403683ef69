"""Doors open one way: which package may import which, that architectures are data, not branches; and what both
doors, the command line and Python, call things."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import isomerge
from isomerge.errors import IN_PYTHON, OPTION, IsomergeError

ROOT = Path(isomerge.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ORDER = [
    {"arithmetic", "errors", "lock", "pieces", "progress"},
    {"files", "plug_ins"},
    {"remembered", "config"},
    {"options", "symmetry", "checkpoint"},
    {"archs", "matching"},
    {"models", "relational"},
    {"observe"},
    {"fusion"},
    {"solve"},
    {"evidence"},
    {"run"},
    {"merging"},
    {"quotient", "discovery", "federated", "tuning"},
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


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """What of isomerge a file imports: package, line, and whether only inside functions or for type checkers."""
    tree = ast.parse(path.read_text())

    def walk(node: ast.AST, late: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            names = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                names = [f"{child.module}.{alias.name}" for alias in child.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "isomerge" and len(parts) > 1 and not parts[1].startswith("__"):
                    yield parts[1], child.lineno, late
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from walk(child, late or function or typing)

    yield from walk(tree, False)


def violations() -> list[str]:
    """Every import against the order."""
    floor = {name: number for number, names in enumerate(ORDER) for name in names}
    wrong = []
    for path in FILES:
        here = package(path)
        if here == "__init__":
            continue
        for target, line, _ in imports(path):
            if target != here and floor[target] >= floor[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports isomerge.{target}")
    return wrong


def test_imports_follow_the_order() -> None:
    """No package imports one that is built on it, not even inside a function or for a type checker."""
    assert violations() == []


def test_the_order_names_every_package() -> None:
    """Each once."""
    named = [name for names in ORDER for name in names]
    assert len(named) == len(set(named))
    assert {package(p) for p in FILES} == {*named, "__init__"}


def test_files_form_no_circles() -> None:
    """No file imports, over any way, one that imports it, inside functions and for type checkers included."""
    names = {".".join(p.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}
    graph: dict[Path, set[Path]] = {}
    for path in FILES:
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
        dotted = [(f"{n.module}.{alias.name}", n.module or "") for n in nodes for alias in n.names]
        targets = {names.get(whole) or names.get(module) for whole, module in dotted}
        graph[path] = {target for target in targets if target not in (None, path, ROOT / "__init__.py")}  # type: ignore[misc]
    while ends := {path for path, targets in graph.items() if not targets & graph.keys()}:
        graph = {path: targets for path, targets in graph.items() if path not in ends}
    assert sorted(str(path.relative_to(ROOT)) for path in graph) == []


def test_the_root_imports_lazily() -> None:
    """``isomerge/__init__.py`` imports nothing of its own outside type checking."""
    assert [found for found in imports(ROOT / "__init__.py") if not found[2]] == []


def architectures() -> set[str]:
    """Every known model_type."""
    from isomerge.archs import spec_texts

    return set(spec_texts())


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


@pytest.mark.parametrize(
    "path", [p for p in FILES if package(p) != "archs"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_branches_on_architecture(path: Path) -> None:
    """Nothing outside archs/ compares model_type with a name, or names an architecture in a comparison.

    Comparing the model_type of two things with each other, as a patch file does with its model, is no branch.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Compare, ast.Match)):
            names = literals(node)
            assert not (about_model_type(node) and names - {"model_type"}), f"{path}:{node.lineno}"
            assert not (names & architectures()), f"{path}:{node.lineno}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("startswith", "endswith")):
            assert not about_model_type(node), f"{path}:{node.lineno}"


def arguments() -> set[str]:
    """What Python's functions call their arguments."""
    public = [getattr(isomerge, name) for name in isomerge.__all__]
    return {n for f in public if inspect.isfunction(f) for n in inspect.signature(f).parameters}


def written(path: Path) -> Iterator[str]:
    """The strings of a file but its docstrings; of f-strings what is written."""
    tree = ast.parse(path.read_text())
    told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    yield from (
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in told
    )


# `options` declares them: its help is the command line's
@pytest.mark.parametrize(
    "path", [p for p in FILES if package(p) not in ("cli", "options")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_what_messages_call_an_option_is_known_in_python(path: Path) -> None:
    """An option has the name of the argument, or a line in `IN_PYTHON`."""
    named = {word for text in written(path) for word in OPTION.findall(text)}
    assert {word for word in named if word.replace("-", "_") not in arguments() and word not in IN_PYTHON} == set()


def test_python_users_are_told_their_words() -> None:
    """Once, however deep a sentence is quoted; the command line prints its own."""
    inner = IsomergeError("out exists; choose another folder, or pass --overwrite to replace it, not --spaces")
    outer = IsomergeError(f"recipe.yml: {inner}")
    assert str(outer) == f"recipe.yml: {inner.sentence} (in Python: overwrite=True)"
    assert "Python" not in outer.sentence
    assert str(IsomergeError("--spaces is empty")) == "--spaces is empty"
    assert {word.partition("=")[0] for word in IN_PYTHON.values() if "=True" in word} <= arguments()

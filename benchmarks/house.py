"""The shape of the source in figures: files, functions, imports, options, specs. docs/lab/house.md shows them
before and after.

python -m benchmarks.house                          # this checkout -> results/house.json, "after", and the table of the page
python -m benchmarks.house --as before --root DIR   # another checkout, such as a worktree of an older commit
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "house.json"
PAGE = ROOT / "docs" / "lab" / "house.md"
MARKS = "<!-- house: begin -->\n", "<!-- house: end -->"
COLUMNS = 116
SAMPLE = ("input_metric", "learn_effort", "base_model", "evidence", "max_memory")
"""Options that old and new checkouts have under one name."""
COMMANDS = {
    "merge": ["merge", "m0", "m1", "-o", "out", "-q"],
    "align": ["align", "m1", "--onto", "m0", "-o", "out", "-q"],
}

ROWS = {
    "files": "Python files",
    "lines": "lines of Python",
    "option_files": f"files that spell an option, mean of {len(SAMPLE)} ({', '.join(SAMPLE)})",
    "against": "imports against the order of layers (`LATE`)",
    "circles": "circles of files (files in them)",
    "inner_imports": "imports inside functions",
    "merge_modules": "modules of isomerge that `merge` loads",
    "align_modules": "modules of isomerge that `align` loads",
    "model_type_conditions": "conditions on `model_type` in specs",
    "specs": "spec texts",
    "spec_lines": "lines of specs",
    "spec_median": "lines of a spec, median",
    "spec_largest": "lines of a spec, largest",
    "spec_llama": "lines of Llama's spec",
    "many_parameters": "functions with more than 8 parameters",
    "over_40": "functions over 40 lines",
    "over_60": "functions over 60 lines",
    "wide_lines": f"lines over {COLUMNS} columns (src, tests, benchmarks)",
    "duplicate_names": "file names that occur twice or more",
    "named_found": "`found` as a name",
}


def functions(trees: dict[Path, ast.Module]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method."""
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a function has, without `self` and `cls`."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def edges(path: Path, tree: ast.Module, modules: dict[str, Path]) -> Iterator[tuple[Path, bool]]:
    """The files of isomerge that a file imports, at its top or inside functions; for type checkers alone: not
    counted."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                continue
            if isinstance(child, ast.ImportFrom) and child.module:
                yield from ((f"{child.module}.{alias.name}", inside) for alias in child.names)
            elif isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from walk(child, inside or function)

    for name, inside in walk(tree, False):
        target = modules.get(name) or modules.get(name.rpartition(".")[0])
        if target is not None and target != path:
            yield target, inside


def circles(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """Strongly connected sets of more than one file."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    files = list(graph)
    number = {path: n for n, path in enumerate(files)}
    pairs = [(number[a], number[b]) for a, targets in graph.items() for b in targets]
    rows, columns = zip(*pairs, strict=True)
    matrix = csr_array(([1] * len(pairs), (rows, columns)), shape=(len(files), len(files)))
    _, labels = connected_components(matrix, directed=True, connection="strong")
    sets = Counter(labels.tolist())
    return [[f for f, label in zip(files, labels, strict=True) if label == one] for one in sets if sets[one] > 1]


def run_at(root: Path, script: str, folder: str | None = None) -> str:
    """What a script prints that imports isomerge from a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def against_the_order(root: Path) -> int:
    """Imports that tests/test_doors.py of that checkout licenses in `LATE`, or that break its order."""
    path = str(root / "tests" / "test_doors.py")
    script = f"""
import runpy
names = runpy.run_path({path!r})
names["violations"].__globals__.update(LATE={{}})
print(len(names["violations"]()))
"""
    return int(run_at(root, script))


def loaded_modules(root: Path, command: str) -> int:
    """How many modules of isomerge a command has loaded when it ends; a pair of tiny Llamas."""
    script = f"""
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=67, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=40)
for n in (0, 1):
    torch.manual_seed(n)
    LlamaForCausalLM(config).save_pretrained(f"m{{n}}")
from isomerge.cli.app import main
sys.argv = ["isomerge", *{COMMANDS[command]!r}]
try:
    assert main() in (0, None)
except SystemExit as end:
    assert end.code in (0, None)
print("loaded", sum(name.split(".")[0] == "isomerge" for name in sys.modules))
"""
    with tempfile.TemporaryDirectory() as folder:
        return int(run_at(root, script, folder).rsplit("loaded", 1)[1])


def named(word: str, sources: dict[Path, str]) -> int:
    """How often a word is a name in the code, not in comments or strings."""
    return sum(
        token.type == tokenize.NAME and token.string == word
        for text in sources.values()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def specs(root: Path) -> dict[str, Any]:
    """Figures of the texts of architectures."""
    texts = {path.stem: path.read_text() for path in (root / "src/isomerge/archs").rglob("*.spec")}
    lengths = {name: text.count("\n") for name, text in texts.items()}
    condition = re.compile(r"^(?!#).*\bif\b.*\bmodel_type\b", re.MULTILINE)
    return {
        "model_type_conditions": sum(len(condition.findall(text)) for text in texts.values()),
        "specs": len(texts),
        "spec_lines": sum(lengths.values()),
        "spec_median": round(statistics.median(lengths.values())),
        "spec_largest": max(lengths.values()),
        "spec_llama": lengths["llama"],
    }


def measured(root: Path) -> dict[str, Any]:
    """All figures of one checkout."""
    package = root / "src" / "isomerge"
    sources = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    modules = {
        ".".join(path.relative_to(root / "src").with_suffix("").parts).removesuffix(".__init__"): path
        for path in trees
    }
    targets_of = {path: list(edges(path, tree, modules)) for path, tree in trees.items()}
    rings = circles({path: {target for target, _ in targets} for path, targets in targets_of.items()})
    inner = sum(
        isinstance(node, (ast.Import, ast.ImportFrom))
        for function in functions(trees)
        for node in ast.walk(function)
    )
    everywhere = [p for part in ("src", "tests", "benchmarks") for p in (root / part).rglob("*.py")]
    spelled = [re.compile(rf"\b{name}\b|--{name.replace('_', '-')}\b") for name in SAMPLE]
    return {
        "files": len(sources),
        "lines": sum(text.count("\n") for text in sources.values()),
        "option_files": round(
            statistics.mean(sum(bool(option.search(text)) for text in sources.values()) for option in spelled), 1
        ),
        "against": against_the_order(root),
        "circles": f"{len(rings)} ({sum(map(len, rings))})",
        "inner_imports": inner,
        "merge_modules": loaded_modules(root, "merge"),
        "align_modules": loaded_modules(root, "align"),
        **specs(root),
        "many_parameters": sum(parameters(f) > 8 for f in functions(trees)),
        "over_40": sum(length(f) > 40 for f in functions(trees)),
        "over_60": sum(length(f) > 60 for f in functions(trees)),
        "wide_lines": sum(len(line) > COLUMNS for path in everywhere for line in path.read_text().splitlines()),
        "duplicate_names": sum(
            n > 1 for n in Counter(path.name for path in sources if path.name != "__init__.py").values()
        ),
        "named_found": named("found", sources),
    }


def write_page(results: dict[str, dict[str, Any]]) -> None:
    """The table of docs/lab/house.md."""
    begin, end = MARKS
    before, after = results.get("before", {}), results.get("after", {})

    def shown(figure: Any) -> str:
        return f"{figure:,}" if isinstance(figure, int) else str(figure)

    rows = [
        f"| {text} | {shown(before.get(key, ''))} | {shown(after.get(key, ''))} |" for key, text in ROWS.items()
    ]
    table = "\n".join(["| | before | after |", "|---|---:|---:|", *rows, ""])
    head, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(f"{head}{begin}{table}{end}{rest.partition(end)[2]}")


def main() -> None:
    """Measure one checkout, and write results and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as", dest="name", choices=("before", "after"), default="after")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[options.name] = measured(options.root.resolve())
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if PAGE.exists():
        write_page(results)
    print(json.dumps(results[options.name], indent=1))


if __name__ == "__main__":
    main()

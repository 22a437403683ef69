"""The shape of the source in figures: files, functions, imports, specs, what commands load.

    python -m benchmarks.house                     # this checkout, "after"
    python -m benchmarks.house --root /tmp/before  # another one, "before": git worktree add /tmp/before COMMIT

Writes the table of docs/lab/house.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA, ROOT, Benchmark, Cells, Section

COLUMNS = 116
COMMANDS = {
    "merge": ["merge", "m0", "m1", "-o", "out", "-q"],
    "merge --no-align": ["merge", "m0", "m1", "-o", "out-plain", "-q", "--no-align"],
    "align": ["align", "m1", "--onto", "m0", "-o", "out-aligned", "-q"],
    "methods": ["methods"],
    "--help": ["--help"],
}
PARTS = ("src", "tests", "benchmarks")


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a function has, without `self` and `cls`."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def run_at(root: Path, script: str, folder: str | None = None) -> str:
    """What a script prints that imports isomerge from a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def commands(root: Path) -> dict[str, str]:
    """Modules of isomerge that a command has loaded when it ends, and its processor seconds; two tiny Llamas."""
    script = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=67, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=40)
for n in (0, 1):
    torch.manual_seed(n)
    LlamaForCausalLM(config).save_pretrained(f"m{n}")
"""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        run_at(root, script, folder)
        for name, words in COMMANDS.items():
            printed = run_at(
                root,
                f"""
import sys, time
from isomerge.cli.app import main
sys.argv = ["isomerge", *{words!r}]
try:
    assert main() in (0, None)
except SystemExit as end:
    assert end.code in (0, None)
print("loaded", sum(name.split(".")[0] == "isomerge" for name in sys.modules), round(time.process_time(), 2))
""",
                folder,
            )
            modules, seconds = printed.rsplit("loaded", 1)[1].split()
            measured[f"`isomerge {name}`: modules of isomerge loaded, processor seconds"] = f"{modules}, {seconds}"
    return measured


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
        "spec texts": len(texts),
        "lines of specs": sum(lengths.values()),
        "lines of a spec, median": round(statistics.median(lengths.values())),
        "lines of Llama's spec": lengths["llama"],
        "conditions on `model_type` in specs": sum(len(condition.findall(text)) for text in texts.values()),
    }


def measure(root: Path) -> dict[str, Any]:
    files = {part: [p for p in sorted((root / part).rglob("*.py")) if DATA not in p.parents] for part in PARTS}
    every = {part: {path: path.read_text() for path in paths} for part, paths in files.items()}
    sources = every["src"]
    functions = [
        node
        for text in sources.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    inner = sum(isinstance(n, (ast.Import, ast.ImportFrom)) for function in functions for n in ast.walk(function))
    wide = sum(
        len(line) > COLUMNS for texts in every.values() for text in texts.values() for line in text.splitlines()
    )
    names = Counter(path.name for path in sources if path.name != "__init__.py")
    return {
        **{
            f"Python files, lines: {part}": f"{len(texts):,}, {sum(text.count(chr(10)) for text in texts.values()):,}"
            for part, texts in every.items()
        },
        "imports inside functions": inner,
        **commands(root),
        **specs(root),
        "functions with more than 8 parameters": sum(parameters_of(f) > 8 for f in functions),
        "functions over 60 lines": sum(lines_of(f) > 60 for f in functions),
        f"lines over {COLUMNS} columns (src, tests, benchmarks)": wide,
        "file names that occur twice or more": sum(count > 1 for count in names.values()),
        "`found` as a name in src": named("found", sources),
    }


def table(cells: dict[str, Any]) -> str:
    figures = {key: None for column in cells.values() for key in column}

    def shown(column: str, key: str) -> str:
        figure = cells.get(column, {}).get(key, "")
        return f"{figure:,}" if isinstance(figure, int) else str(figure)

    rows = [f"| {key} | {shown('before', key)} | {shown('after', key)} |" for key in figures]
    return "\n".join(["| | before | after |", "|---|---:|---:|", *rows])


def cells(asked: argparse.Namespace) -> Cells:
    root = asked.root.resolve()
    return {"after" if root == ROOT else "before": {"root": root}}


BENCHMARK = Benchmark(
    "house", cells, measure, inside="", sections=(Section("lab/house.md", "house", table),),
    complete=lambda column, settings: False,
    options=lambda parser: parser.add_argument("--root", type=Path, default=ROOT, help="another checkout"),
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()

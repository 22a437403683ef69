"""Heavy packages are imported when a command runs, not before; and every module stands on its own."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import isomerge
from depth import thorough
from sources import FILES, ROOT, nodes

HEAVY = ["torch", "transformers", "numpy", "scipy", "matplotlib", "sklearn", "safetensors", "huggingface_hub"]
LIGHT = (
    "__init__", "__main__", "errors", "files", "lock", "progress", "arithmetic", "pieces", "checkpoint", "config",
    "options", "cli", "api.opening", "run.arguments", "observe.data.examples",
)  # fmt: skip
"""What a command line loads before its command runs, and what opens a checkpoint: they import torch where they use
it. All others import at the top what is theirs."""
LATE = {
    "transformers", "huggingface_hub", "tokenizers", "peft", "diffusers", "datasets", "scipy", "ot", "sklearn", "ray", "flwr",
    "matplotlib", "PIL", "rich", "IPython", "pyarrow", "jinja2", "markupsafe", "tqdm",
}  # fmt: skip
"""Packages that take long to load, or that not everybody has: imported where they are used."""
SHOW = f"import json, sys; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"


def modules() -> list[str]:
    """Every module of the package."""
    return ["isomerge", *(m.name for m in pkgutil.walk_packages(isomerge.__path__, "isomerge."))]


def run(code: str) -> str:
    """The standard output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    """``import isomerge`` alone."""
    assert json.loads(run(f"import isomerge; {SHOW}")) == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["merge", "--help"], []])
def test_help_is_light(arguments: list[str]) -> None:
    """The command line, until a command runs."""
    code = f"""
import sys
sys.argv = ["isomerge", *{arguments!r}]
from isomerge.cli.app import main
try:
    main()
except SystemExit:
    pass
{SHOW}
"""
    assert json.loads(run(code).splitlines()[-1]) == []


def test_headers_are_light(tmp_path: Path) -> None:
    """Opening and inspecting a checkpoint needs neither torch nor transformers."""
    tensor = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"x": tensor}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (tmp_path / "config.json").write_text("{}")
    heavy = json.loads(run(f"import isomerge; isomerge.open({str(tmp_path)!r}); {SHOW}"))
    assert {"torch", "transformers"}.isdisjoint(heavy)


@thorough
def test_every_module_imports_alone() -> None:
    """In any order: each with nothing of isomerge imported before."""
    code = f"""
import importlib, sys
for name in {modules()!r}:
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "isomerge"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""
    run(code)


def is_light(name: str) -> bool:
    """Whether a module's name, or that of a package it is in, is in `LIGHT`."""
    inner = name.partition(".")[2] or "__init__"
    return any(inner == light or inner.startswith(f"{light}.") for light in LIGHT)


def test_light_modules_load_no_torch() -> None:
    """The modules of the command line and of opening, all of them together."""
    light = [name for name in modules() if is_light(name)]
    assert len(light) > 80
    code = "import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in light)
    assert {"torch", "transformers", "numpy"}.isdisjoint(json.loads(run(code + SHOW)))


def test_no_module_loads_what_is_late() -> None:
    """Whatever module of isomerge is imported, transformers and matplotlib wait until they are used."""
    code = "import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in modules())
    assert {"transformers", "matplotlib", "sklearn", "huggingface_hub"}.isdisjoint(json.loads(run(code + SHOW)))


def imported_inside_functions(path: Path) -> set[str]:
    """The packages that the functions of a file import."""
    inside = [
        node
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    ]
    names = [alias.name for node in inside if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in inside if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_functions_import_only_what_is_late() -> None:
    """Everywhere but in light modules, imports stand at the top."""
    inside = {}
    for path in FILES:
        name = ".".join(("isomerge", *path.relative_to(ROOT).with_suffix("").parts))
        if not is_light(name.removesuffix(".__init__")) and path.name != "__init__.py":
            inside[name] = imported_inside_functions(path) - LATE
    assert len(inside) > 300
    assert {name: packages for name, packages in inside.items() if packages} == {}


def test_public_names() -> None:
    """Every public name is there, listed, documented; an unknown one is an AttributeError."""
    assert set(isomerge.__all__) <= set(dir(isomerge))
    for name in isomerge.__all__:
        assert getattr(isomerge, name).__doc__
    with pytest.raises(AttributeError, match="nothing"):
        _ = isomerge.nothing

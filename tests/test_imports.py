"""Heavy packages are imported when a command runs, not before; and every module stands on its own."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import isomerge
from depth import thorough

HEAVY = ["torch", "transformers", "numpy", "scipy", "matplotlib", "sklearn", "safetensors", "huggingface_hub"]
# classes of torch cannot be defined without it: these are imported by who uses them alone
NETWORKS = (
    "isomerge.relational.",
    "isomerge.quotient.optim.wrapper",
    "isomerge.quotient.optim.invariant",
    "isomerge.models.assembled",
)
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


def test_only_light_modules_at_the_top() -> None:
    """No module of isomerge imports torch or transformers before it is used, but those that define torch's
    classes."""
    light = [name for name in modules() if not name.startswith(NETWORKS)]
    code = "import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in light)
    assert {"torch", "transformers"}.isdisjoint(json.loads(run(code + SHOW)))


def test_public_names() -> None:
    """Every public name is there, listed, documented; an unknown one is an AttributeError."""
    assert set(isomerge.__all__) <= set(dir(isomerge))
    for name in isomerge.__all__:
        assert getattr(isomerge, name).__doc__
    with pytest.raises(AttributeError, match="nothing"):
        _ = isomerge.nothing

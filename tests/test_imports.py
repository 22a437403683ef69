"""Heavy packages are imported when a command runs, not before; and every module stands on its own."""

from __future__ import annotations

import ast
import json
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from depth import thorough
from isomerge.doors import COMMANDS
from isomerge.fusion import registry
from sources import FILES, ROOT, nodes
from toys import save_toy

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
MOST = 259
"""Modules of isomerge that a merge of two related models loads, its page included, where nothing is aligned."""
ON_DEMAND = {
    "isomerge.checkpoint.pushing": "the output goes to the hub",
    "isomerge.checkpoint.tokenizer": "a tokenizer is of an older form",
    "isomerge.commands.experts": "a recipe makes experts",
    "isomerge.commands.experts_asked": "a recipe makes experts",
    "isomerge.commands.layershuffle": "layers are drawn",
    "isomerge.commands.layer_selection": "layers are selected",
    "isomerge.commands.pipeline_runs": "models are pipelines",
    "isomerge.commands.language_merges": "models are of two kinds",
    "isomerge.discovery": "a text of the user's own is proven",
    "isomerge.evidence.report.contents": "a notebook shows a report",
    "isomerge.evidence.report.figure": "a notebook shows a report",
    "isomerge.evidence.report.loss_figures": "a notebook shows a report",
    "isomerge.evidence.report.page": "a notebook shows a report",
    "isomerge.fusion.plug_in_calls": "a plug-in's method is called",
    "isomerge.loops": "weights are looked at",
    "isomerge.matching.local": "units are matched",
    "isomerge.matching.products": "units are matched",
    "isomerge.merging.forward_fusion": "a method runs the models",
    "isomerge.merging.fusion_statistics": "a method asks for statistics",
    "isomerge.merging.matched_models": "models are matched",
    "isomerge.merging.measured": "there are data",
    "isomerge.merging.recipe.recipe_modules": "there is a recipe",
    "isomerge.merging.recipe.recipe_components": "there is a recipe",
    "isomerge.merging.recipe.recipe_request": "there is a recipe",
    "isomerge.merging.recipe.schema": "there is a recipe, or one that is kept says how models are aligned",
    "isomerge.merging.transplant": "task vectors are moved to another base",
    "isomerge.models.conversions": "it is asked anew what transformers reads",
    "isomerge.models.fused_on_disk": "tensors are stored as no spec knows them, or otherwise than another model's",
    "isomerge.models.input_channels": "models of images are merged",
    "isomerge.models.language_part": "the language model in another is meant",
    "isomerge.models.layers": "layers are stacked",
    "isomerge.models.lora": "an adapter is merged in",
    "isomerge.models.lora_layers": "a pipeline takes a LoRA",
    "isomerge.models.onto_anchor": "a text says where constants may stand that several layers share",
    "isomerge.models.vocabulary_views": "vocabularies are brought together",
    "isomerge.observe.data.images": "models make their data",
    "isomerge.observe.data.live_data": "there are data",
    "isomerge.observe.data.opening_data": "there are data",
    "isomerge.observe.data.plug_in_readers": "there are data",
    "isomerge.observe.data.rows": "there are data",
    "isomerge.observe.live.generated": "models make their data, or a verdict advises it",
    "isomerge.observe.live.modules": "models make their data, or one is a module of Python",
    "isomerge.observe.stats.statistics": "there are files of statistics",
    "isomerge.quotient.kinship": "models are in different bases",
    "isomerge.run.cluster.ray_engine": "--engine names Ray",
    "isomerge.solve.many.mean_solver": "there is no anchor",
    "isomerge.solve.pairs.written_gains": "streams were turned",
}
"""What of isomerge's own is imported inside functions, and when it is needed: the doors of parts that a plain merge
does without. A part has few of them; inside of it imports stand at the top."""
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


def test_loops_that_are_kept_are_loaded_without_a_compiler() -> None:
    """Half of numba, and of scipy what numba looks for, serve to compile; numba's own cache loads all of that."""
    code = f"""
import json, sys
import numpy as np
from isomerge.loops import compiled, count_high

compiled(count_high)(np.ones(3, np.float32), np.zeros(3, np.float32), np.zeros(2**16, np.int64))
{SHOW.replace(repr(HEAVY), repr(["numba.np.arraymath", "scipy.linalg"]))}
"""
    run(code)  # compiled, unless that was done
    assert json.loads(run(code)) == []


def test_no_module_loads_what_is_late() -> None:
    """Whatever module of isomerge is imported, transformers and matplotlib wait until they are used."""
    code = "import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in modules())
    assert {"transformers", "matplotlib", "sklearn", "huggingface_hub"}.isdisjoint(json.loads(run(code + SHOW)))


def imported_inside_functions(path: Path) -> set[str]:
    """The packages that the functions of a file import, of isomerge's own the modules."""
    inside = [
        node
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    ]
    names = [alias.name for node in inside if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in inside if isinstance(node, ast.ImportFrom)]
    return {name if name.startswith("isomerge.") else name.partition(".")[0] for name in names}


def on_demand(name: str) -> set[str]:
    """The doors of `ON_DEMAND` that an import goes through."""
    return {door for door in ON_DEMAND if name == door or name.startswith(f"{door}.")}


def test_functions_import_only_what_is_late() -> None:
    """Everywhere but in light modules, imports stand at the top, but for what is late or loaded on demand."""
    inside, doors = {}, set()
    for path in FILES:
        name = ".".join(("isomerge", *path.relative_to(ROOT).with_suffix("").parts))
        if not is_light(name.removesuffix(".__init__")) and path.name != "__init__.py":
            names = imported_inside_functions(path) - LATE
            doors |= {door for imported in names for door in on_demand(imported)}
            inside[name] = {imported for imported in names if not on_demand(imported)}
    assert len(inside) > 300
    assert {name: packages for name, packages in inside.items() if packages} == {}
    assert doors == ON_DEMAND.keys()


PLAIN_MERGE = """
import json, sys
from isomerge.cli.app import main
from isomerge.symmetry.language import expansion

expanded, statements = set(), expansion.statements
expansion.statements = lambda text, origin: expanded.add(origin) or statements(text, origin)
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
with open("loaded.json", "w") as file:
    json.dump({"modules": sorted(sys.modules), "texts": sorted(expanded)}, file)
"""


def loaded_by(folder: Path, *arguments: str) -> tuple[set[str], list[str]]:
    """What a command in a folder has loaded when it ends, and the spec texts that it has expanded."""
    command = [sys.executable, "-c", PLAIN_MERGE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "loaded.json").read_text())
    return set(report["modules"]), report["texts"]


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, one trained on, and a stranger."""
    folder = tmp_path_factory.mktemp("llamas")
    save_toy("llama", folder / "first", seed=0)
    save_toy("llama", folder / "strangers", seed=1)
    shutil.copytree(folder / "first", folder / "relatives")
    file = folder / "relatives" / "model.safetensors"
    tensors = {name: tensor + 1e-4 * torch.randn_like(tensor) for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("models", ["relatives", "strangers"])
def test_a_plain_merge_loads_what_it_needs(models: str, llamas: Path, tmp_path: Path) -> None:
    """Of isomerge a part of the modules, of methods and commands those that are named, of spec texts the models' own;
    and whether models have a common base is asked of strangers. The page on a merge needs few modules more."""
    merge = ["merge", str(llamas / "first"), str(llamas / models), "-o", "out", "--no-align"]
    merge += ["--no-report"] if models == "strangers" else []
    modules, texts = loaded_by(tmp_path, *merge)
    own = {name.removeprefix("isomerge.") for name in modules if name.startswith("isomerge.")}
    assert 100 < len(own) <= MOST
    parts = (
        "discovery",
        "research",
        "solve.many",
        "tuning",
        "run.cluster",
        "api",
    )
    parts = parts if models == "strangers" else (*parts, "quotient")
    behind = own - {"api"}  # the door itself is light
    assert sorted(name for name in behind for part in parts if f"{name}.".startswith(f"{part}.")) == []
    assert "solve.learn.learner" not in own
    assert {"ray", "matplotlib", "scipy.optimize", "transformers"}.isdisjoint(modules)
    methods = {f"fusion.{registry.FILES.get(name, name)}" for name in registry.methods()}
    assert methods & own == {"fusion.linear"}
    themes = {theme for theme, _ in COMMANDS.values()}
    doors = {f"{door}.{theme}" for theme in themes for door in ("cli", "options.requests")}
    assert doors & own <= {"cli.merging", "options.requests.merging"}
    assert texts == ["llama.spec"]


def test_public_names() -> None:
    """Every public name is there, listed, documented; an unknown one is an AttributeError."""
    assert set(isomerge.__all__) <= set(dir(isomerge))
    for name in isomerge.__all__:
        assert getattr(isomerge, name).__doc__
    with pytest.raises(AttributeError, match="nothing"):
        _ = isomerge.nothing

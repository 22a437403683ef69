"""`--import` and `imports=`: modules and files that register methods, readers and architectures, and what is said of
them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import isomerge as library
from depth import more
from imported import METHOD, forgotten
from isomerge.cli.program import app
from isomerge.errors import IsomergeError
from toys import tensors

READER = """
import torch
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.plug_in_readers import data_reader

@data_reader
def counted(ref, folder, limit, length, config):
    rows = min(int(ref.partition(":")[2]), limit or 4)
    return Examples({"input_ids": torch.arange(rows * length).reshape(rows, length) % config["vocab_size"]}, labelled=True)
"""


@pytest.fixture
def place(stored: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with two models and a file that registers a method and a reader."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 0), ("b", 5)):
        (tmp_path / name).symlink_to(stored("gpt2", seed))
    (tmp_path / "scratch_own.py").write_text(METHOD + READER)
    with forgotten():
        yield tmp_path


def pulled_by(pull: float, place: Path, out: Path) -> bool:
    """Whether an output is the method's of the two models."""
    first, last, merged = (tensors(place / name) for name in ("a", "b", out))
    wanted = {key: value + pull * (last[key] - value) for key, value in first.items()}
    return all((merged[key] - value).abs().max() < 1e-6 for key, value in wanted.items())


MERGE = ("merge", "a", "b", "--no-align", "--method", "pulled", "-p", "pull=0.25")


@pytest.mark.parametrize("name", ["scratch_own", "./scratch_own.py", *more("scratch_own.py")])
def test_a_method(name: str, place: Path, isomerge: Callable) -> None:
    """By a module's name or a file's path; the report, the card, the page and the recipe name the file."""
    file = str(place / "scratch_own.py")
    said = isomerge(*MERGE, "--import", name, "-o", "out", "--report", "--json", "r.json")
    assert said.code == 0, said.err
    assert pulled_by(0.25, place, place / "out")
    assert f"note: method pulled from {file}" in said.err
    row = {"kind": "method", "name": "pulled", "source": file}
    for report in (Path("r.json"), Path("out/isomerge.json")):
        assert json.loads(report.read_text())["plug_ins"] == [row]
    wanted = file if name.endswith(".py") else name
    assert json.loads(Path("r.json").read_text())["imports"] == [wanted]
    card = Path("out/README.md").read_text()
    assert f"Plug-ins: method pulled from {file}." in card
    assert f"`isomerge merge isomerge_recipe.yml OUT --import {wanted}` makes this checkpoint again." in card
    page = Path("out/report.html").read_text()
    assert f"method pulled from {file}" in page
    assert f"OUT --import {wanted}" in page
    assert f"import: [{wanted}]" in Path("out/isomerge_recipe.yml").read_text()
    quiet = isomerge(*MERGE, "--import", name, "-o", "quiet", "-q")
    assert (quiet.code, quiet.out, "note" in quiet.err) == (0, "", False)


def test_without_it_there_is_no_such_method(place: Path, isomerge: Callable) -> None:
    """Nothing of the current folder is imported by itself."""
    said = isomerge(*MERGE, "-o", "out")
    assert (said.code, "no such merge method" in said.err) == (2, True)


def test_methods_lists_it(place: Path, isomerge: Callable) -> None:
    """With the file; and isomerge's own as before."""
    said = isomerge("methods", "--import", "scratch_own.py", "--json", "m.json")
    rows = {row["method"]: row["source"] for row in json.loads(Path("m.json").read_text())["methods"]}
    assert rows["pulled"] == str(place / "scratch_own.py")
    assert rows["linear"] == "isomerge"
    assert f"from {place / 'scratch_own.py'}" in said.out


def test_a_recipe_runs_no_code(place: Path, isomerge: Callable, refuses: Callable) -> None:
    """What it names is imported only where whoever runs it names it as well, under whatever path."""
    (place / "recipe.yml").write_text(
        "import: scratch_own.py\nmodels: [{model: a}, {model: b}]\nmerge_method: pulled\nparameters: {pull: 0.25}\n"
    )
    with (place / "scratch_own.py").open("a") as code:
        code.write("\nopen('run', 'w').close()\n")
    refuses(
        "merge", "recipe.yml", "out", words=["recipe.yml", "`import`", "runs no code", "--import scratch_own.py"]
    )
    refuses("merge", "recipe.yml", "out", "--import", "json", words=["--import scratch_own.py"])
    with pytest.raises(IsomergeError, match=r"imports=\[\.\.\.\]"):
        library.merge("recipe.yml", out="out")
    assert not Path("run").exists()
    said = isomerge("merge", "recipe.yml", "out", "--import", place / ".." / place.name / "scratch_own.py")
    assert said.code == 0, said.err
    assert Path("run").exists()
    assert pulled_by(0.25, place, place / "out")
    assert isomerge("merge", "out/isomerge_recipe.yml", "again").code == 2
    library.merge("out/isomerge_recipe.yml", out="again", imports="scratch_own.py")
    assert Path("again/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()


BAD: dict[str, tuple[str, list[str]]] = {
    "raise RuntimeError('no such thing')": ("scratch_bad.py", ["RuntimeError: no such thing"]),
    "import sys; sys.exit(3)": ("scratch_bad.py", ["SystemExit: 3"]),
    "def f(:": ("scratch_bad.py", ["SyntaxError"]),
    "import scratch_absent": ("scratch_bad", ["ModuleNotFoundError", "scratch_absent"]),
    METHOD.replace("pulled", "linear"): ("scratch_bad.py", ["linear", "isomerge itself", "scratch_bad.py"]),
    "x = 1": ("scratch_absent", ["no module scratch_absent"]),
    "x = 2": ("scratch_absent.py", ["no such file"]),
    "x = 3": ("scratch_bad.txt.d/x", ["no such file"]),
    "x = 4": ("not-a-name", ["no module's name"]),
    "x = 5": ("", ["--import is empty"]),
    "from isomerge.archs import register_specs; register_specs('nowhere')": (
        "scratch_bad.py",
        ["nowhere", "*.spec"],
    ),
}


@pytest.mark.parametrize("code", BAD)
def test_refusals(code: str, place: Path, refuses: Callable) -> None:
    """One sentence, exit code 2, and nothing is registered."""
    name, words = BAD[code]
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        (place / "scratch_bad.py").write_text(code)
        refuses(*MERGE, "--import", name, "-o", "out", words=["--import", *words])
    finally:
        sys.dont_write_bytecode = before
    with pytest.raises(IsomergeError):
        library.merge(["a", "b"], out="out", imports=[name])
    library.merge(["a", "b"], out="out", align=False)


def test_python(place: Path) -> None:
    """A path alone; a file whose text changes is run anew, and every door takes the argument."""
    how: dict[str, Any] = {"align": False, "method": "pulled", "parameters": {"pull": 0.25}}
    report = library.merge(["a", "b"], out="one", imports=Path("scratch_own.py"), **how)
    assert report["plug_ins"][0]["name"] == "pulled"
    assert pulled_by(0.25, place, place / "one")
    (place / "scratch_own.py").write_text(METHOD.replace("pull *", "2 * pull *"))
    library.merge(["a", "b"], out="two", imports="scratch_own.py", **how)
    assert pulled_by(0.5, place, place / "two")
    module = library.merge(["a", "b"], imports=["scratch_own.py"], **how)
    assert module.isomerge_report["plug_ins"] == report["plug_ins"]
    assert "plug_ins" not in library.merge(["a", "b"], out="three", align=False)


def test_one_file_by_three_ways(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Python's own import, as a module, and as a file: one method, and one reader."""
    monkeypatch.syspath_prepend(str(place))
    importlib.import_module("scratch_own")
    for number, name in enumerate(["scratch_own.py", "scratch_own"]):
        library.merge(["a", "b"], out=f"out{number}", align=False, method="pulled", imports=name)
        assert pulled_by(0.5, place, place / f"out{number}")


def test_a_reader(place: Path, isomerge: Callable) -> None:
    """Named in the report as methods are; refused where two files have one of that name."""
    words = ("a", "b", "--data", "counted:3", "--length", "8")
    said = isomerge("barrier", *words, "--import", "scratch_own.py", "--json", "r.json")
    assert said.code == 0, said.err
    wanted = [{"kind": "reader", "name": "counted", "source": str(place / "scratch_own.py")}]
    assert json.loads(Path("r.json").read_text())["plug_ins"] == wanted
    (place / "scratch_other.py").write_text(READER)
    said = isomerge("eval", *words, "--import", "scratch_own", "--import", "scratch_other.py")
    assert (said.code, "both register that name" in said.err) == (2, True)


def test_commands_that_look_something_up_have_it() -> None:
    """All but those that open no model by a spec, read no data and merge by no method that could be added."""
    commands: Any = typer.main.get_command(app)
    without = {
        name for name, command in commands.commands.items() if "imports" not in {p.name for p in command.params}
    }
    assert without == {"demo", "discover", "merge-lora", "relational"}


def test_architectures_lists_them(place: Path, isomerge: Callable) -> None:
    """Isomerge's own, and those of a folder that a file registers, with the file."""
    (place / "specs").mkdir()
    (place / "specs" / "scratch.spec").write_text("like gpt2\nmodel scratch_gpt scratch_gpt2\n")
    register = "from isomerge.archs import register_specs\nregister_specs('specs')\n"
    (place / "scratch_specs.py").write_text(register)
    said = isomerge("architectures", "--import", "scratch_specs.py", "--json", "r.json")
    assert said.code == 0, said.err
    report = json.loads(Path("r.json").read_text())
    rows = {row["model_type"]: row for row in report["architectures"]}
    source = str(place / "scratch_specs.py")
    assert rows["scratch_gpt"] == {
        "model_type": "scratch_gpt",
        "spec": str(place / "specs" / "scratch.spec"),
        "source": source,
    }
    assert rows["gpt2"] == {"model_type": "gpt2", "spec": "gpt2.spec", "source": "isomerge"}
    assert report["problems"] == []
    assert f"scratch.spec from {source}" in said.out
    (place / "scratch_other.py").write_text(register)
    (place / "specs" / "scratch.spec").write_text("like gpt2\nmodel gpt2\n")
    said = isomerge("architectures", "--import", "scratch_other.py")
    assert (said.code, "model type gpt2: isomerge itself (gpt2.spec)" in said.err) == (2, True)


ARCHITECTURE = """
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from isomerge.archs import register_specs


class ScratchConfig(GPT2Config):
    model_type = "scratch_gpt"


class ScratchLMHeadModel(GPT2LMHeadModel):
    config_class = ScratchConfig


AutoConfig.register("scratch_gpt", ScratchConfig)
AutoModelForCausalLM.register(ScratchConfig, ScratchLMHeadModel)
register_specs(Path(__file__).parent / "specs")
"""


def test_an_architecture(place: Path, stored: Callable, refuses: Callable) -> None:
    """A file that registers classes and their spec: it is proven once, aligned by, and named."""
    (place / "specs").mkdir()
    (place / "specs" / "scratch.spec").write_text("like gpt2\nmodel scratch_gpt\n")
    (place / "scratch_arch.py").write_text(ARCHITECTURE)
    for name, seed in (("c", 0), ("d", 5)):
        folder = place / name
        folder.mkdir()
        (folder / "model.safetensors").symlink_to(stored("gpt2", seed) / "model.safetensors")
        config = json.loads((stored("gpt2", seed) / "config.json").read_text())
        more = {"model_type": "scratch_gpt", "architectures": ["ScratchLMHeadModel"]}
        (folder / "config.json").write_text(json.dumps({**config, **more}))
    paths = os.pathsep.join([str(Path(library.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "isomerge", *words]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)

    refuses("merge", "c", "d", "-o", "out", words=["no spec for model_type 'scratch_gpt'"])
    said = run("merge", "c", "d", "-o", "out", "--align", "--import", "scratch_arch.py", "--json", "r.json")
    assert said.returncode == 0, said.stderr
    report = json.loads(Path("r.json").read_text())
    source = str(place / "scratch_arch.py")
    assert report["plug_ins"] == [{"kind": "architecture", "name": "scratch_gpt", "source": source}]
    assert report["distance"]["after"] < report["distance"]["before"]
    assert f"architecture scratch_gpt from {source}" in Path("out/README.md").read_text()
    said = run("prove", "c", "--import", "scratch_arch.py")
    assert "Verdict: proven." in said.stdout, said.stderr

"""What a run leaves behind means the same from every folder: records, recipes and adapters hold full paths."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import isomerge as library
from isomerge.archs import spec_texts
from isomerge.errors import IsomergeError
from isomerge.run.absolute_names import absolute_data, absolute_path, absolute_ref

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

TEXTS = '{"input_ids": [1, 2, 3, 4]}\n{"input_ids": [4, 3, 2, 1]}\n'
RUNS: dict[str, list[str]] = {
    "models": ["a", "./x/../b"],
    "as stored": ["a", "b", "--no-align"],
    "a base": ["b", "link", "--method", "task_arithmetic", "--base-model", "a", "--weights", "1,0.5"],
    "an adapter over a model": ["a+lora", "b"],
    "an adapter alone": ["lora", "b"],
    "data": ["a", "b", "--data", "x/texts.jsonl", "--rows", "8", "--steps", "2"],
    "repair": ["a", "b", "--repair", "x/texts.jsonl", "--spaces", "none"],
    "files of a match": ["a", "b", "--stats-anchor", "a.safetensors", "--stats-src", "b.safetensors"],
    "files of a method": ["a", "b", "--method", "regmean", "--stats", "a.safetensors", "--stats", "b.safetensors"],
    "a spec": ["a", "b", "--spec", "x/my.spec"],
    "an anchor": ["a", "b", "--onto", "b"],
}


@pytest.fixture
def here(copies: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models, an adapter, data, statistics and a spec below the current folder."""
    copies("gpt2")
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    Path("x/texts.jsonl").write_text(TEXTS)
    Path("x/my.spec").write_text(spec_texts()["gpt2"][1])
    Path("link").symlink_to("b")
    Path("elsewhere").mkdir()
    library.extract_lora("b", "a", out="lora", rank=2)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_replayed_from_elsewhere(
    name: str, here: Path, isomerge: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded recipe gives the same bytes from another folder, and `fsck` finds every input."""
    for model in ("a", "b") if "files" in name else ():
        library.stats(model, data="x/texts.jsonl", out=f"{model}.safetensors", rows=8)
    told = isomerge("merge", *RUNS[name], "-o", "out", "-q")
    assert told.code == 0, told.err
    monkeypatch.chdir(here / "elsewhere")
    told = isomerge("merge", "../out/isomerge_recipe.yml", "again", "-q")
    assert told.code == 0, told.err
    assert Path("again/model.safetensors").read_bytes() == Path("../out/model.safetensors").read_bytes()
    recipes = [Path(folder, "isomerge_recipe.yml").read_text() for folder in ("../out", "again")]
    assert yaml.safe_load(recipes[0]) == yaml.safe_load(recipes[1])
    for folder in ("../out", "again"):
        found = library.fsck(folder)
        assert found["sound"]
        assert {row["state"] for row in found["inputs"]} == {"unchanged"}


def test_an_aligned_model_knows_its_inputs_from_elsewhere(
    here: Path, isomerge: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commands that write a checkpoint; and inputs that moved with the output are found in their new place."""
    library.align("b", onto="a", out="moved/aligned")
    library.canon("a", out="moved/canon")
    library.apply("moved/aligned/alignment.safetensors", "b", out="moved/applied")
    shutil.move("a", "moved/a")
    shutil.move("b", "moved/b")
    monkeypatch.chdir(here / "elsewhere")
    for parent in ("moved", "there"):
        for name in ("aligned", "canon", "applied"):
            found = library.fsck(here / parent / name)["inputs"]
            assert {row["state"] for row in found} == {"unchanged"}, (parent, name)
        if parent == "moved":
            shutil.move(here / "moved", here / "there")
    (here / "there" / "a" / "config.json").write_text("{}")
    found = library.fsck(here / "there" / "canon")["inputs"]
    assert {row["state"] for row in found if row["file"] == "config.json"} == {"absent"}


def test_an_adapter_names_its_base_for_every_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As peft opens it, from wherever it is run."""
    monkeypatch.chdir(here / "elsewhere")
    assert json.loads((here / "lora" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        here / "a"
    )
    assert library.diff(here / "lora", here / "b")["distance"]["before"] >= 0


def test_names_that_are_no_paths_stay(here: Path) -> None:
    """Hub ids with their revisions, data sets, functions; a path with dots behind a link is what is there."""
    for ref in ("org/name", "org/name@1f2e", "org/name@v1+org/lora@v2", "in memory"):
        assert absolute_ref(ref) == ref
    assert absolute_ref("a+org/lora@v2") == f"{here / 'a'}+org/lora@v2"
    assert absolute_ref(Path("a")) == str(here / "a")
    assert absolute_ref("lora") == f"{here / 'a'}+{here / 'lora'}"
    assert absolute_data("imdb:test") == "imdb:test"
    assert absolute_data("x/texts.jsonl") == str(here / "x" / "texts.jsonl")
    os.makedirs("far/deep")
    Path("way").symlink_to("far/deep")
    assert absolute_path("way/../deep") == str(here / "far" / "deep")
    assert absolute_path("link") == str(here / "link")


def test_a_folder_that_holds_a_model_and_an_adapter_is_refused(here: Path, isomerge: Callable) -> None:
    """transformers reads the adapter over its base there, and not the weights beside it: none is taken in
    silence."""
    for file in Path("lora").iterdir():
        shutil.copy(file, "a")
    told = isomerge("inspect", "a")
    assert told.code == 2
    assert "holds a model (model.safetensors) and an adapter (adapter_config.json)" in told.err
    os.remove("a/model.safetensors")  # as trainers leave it: an adapter with the config of its model
    Path("a/adapter_config.json").write_text(json.dumps({**json.loads(Path("a/adapter_config.json").read_text()), "base_model_name_or_path": "b"}))  # fmt: skip
    assert library.inspect("a")["model"].startswith("b+")


def test_a_repository_of_the_hubs_cache_names_its_snapshots(here: Path) -> None:
    """Its models are deeper in it."""
    repo = Path("hub/models--org--name")
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    shutil.copytree("a", repo / "snapshots" / "abc")
    with pytest.raises(
        IsomergeError, match=r"name the model as org/name, or the folder of one revision, .*snapshots/abc"
    ):
        library.inspect(repo)
    assert library.inspect(repo / "snapshots" / "abc")

"""The model card and the recipe of a merge, as the Hub and other people read them."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

import isomerge as library
from isomerge.errors import IsomergeError

COMMITS = {"org/one": "1" * 40, "org/two": "2" * 40}


@pytest.fixture
def cache(stored: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with two models, ``org/one`` and ``org/two``, each with its card."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for (name, commit), seed, more in zip(COMMITS.items(), (0, 5), ("", "language: no\n"), strict=True):
        repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        shutil.copytree(stored("gpt2", seed), repository / "snapshots" / commit)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
        card = f"---\nlicense: apache-2.0\npipeline_tag: text-generation\n{more}---\n# {name}\n"
        (repository / "snapshots" / commit / "README.md").write_text(card)
    return tmp_path / "hub"


def card_of(out: Path) -> Any:
    """The front matter of an output's card, as the Hub's library reads it."""
    return ModelCard.load(out / "README.md").data


def test_parents_of_the_hub(cache: Path, tmp_path: Path) -> None:
    """A model is known by its id whether it is named by it, or by the folder of the cache that holds it."""
    folder = cache / "models--org--two" / "snapshots" / COMMITS["org/two"]
    for number, second in enumerate(("org/two", "org/two@main", folder)):
        out = tmp_path / f"out-{number}"
        library.merge(
            ["org/one", second], out=out, method="slerp", parameters={"t": 0.5}, base_model="org/one", align=False
        )
        data = card_of(out)
        assert data.base_model == ["org/one", "org/two"]
        assert data.base_model_relation == "merge"
        assert data.tags == ["isomerge", "merge", "slerp"]
        assert (data.library_name, data.license, data.pipeline_tag) == (
            "transformers",
            "apache-2.0",
            "text-generation",
        )
        assert data.language is None
        assert data.eval_results is None
        assert str(tmp_path) not in (out / "README.md").read_text().split("---")[1]


def test_parents_in_folders(copies: Callable, tmp_path: Path) -> None:
    """A folder is known by what its config says that it was loaded from, then by its card; a path on some machine is
    no id."""
    a, b = copies("gpt2")
    for name_or_path, card, wanted in (
        ("org/loaded", "base_model: org/base", ["org/loaded"]),
        ("/home/me/x", "base_model: org/base", ["org/base"]),
        ("outputs/last", "base_model: [org/base, ./x, org/other]", ["org/base", "org/other"]),
        ("me/checkpoint-500", "base_model: gpt2", None),
    ):
        config = json.loads((b / "config.json").read_text())
        (b / "config.json").write_text(json.dumps({**config, "_name_or_path": name_or_path}))
        (b / "README.md").write_text(f"---\n{card}\n---\n")
        library.merge([a, b], out=tmp_path / "out", align=False, overwrite=True)
        data = card_of(tmp_path / "out")
        assert data.base_model == wanted
        assert data.license is None
        assert "Not known of `" in (tmp_path / "out" / "README.md").read_text()


def test_an_adapter_is_a_parent(copies: Callable, tmp_path: Path) -> None:
    """Its license counts, and so does where it comes from."""
    a, b = copies("gpt2")
    lora = tmp_path / "lora"
    library.extract_lora(b, a, out=lora, rank=2)
    for folder, text in ((a, "license: mit"), (b, "license: mit"), (lora, "license: gpl\nbase_model: org/a")):
        (folder / "README.md").write_text(f"---\n{text}\n---\n")
    library.merge([f"{a}+{lora}", b], out=tmp_path / "out", align=False)
    data = card_of(tmp_path / "out")
    assert (data.license, data.license_name) == ("other", "gpl-and-mit")
    assert data.base_model == ["org/a"]
    assert "- `lora`: gpl" in (tmp_path / "out" / "README.md").read_text()


def test_cards_name_no_folders_of_this_machine(copies: Callable, tmp_path: Path) -> None:
    """In prose, recipe and licenses, for models and adapters, by whatever path they were given; the recipe's own file has what replays
    it. Models of one last part are told apart by the part before it. Fails where `_without_folders` returns its text."""
    a, b = copies("gpt2")
    lora = tmp_path / "lora"
    library.extract_lora(b, a, out=lora, rank=2)
    for folder in ("one", "two"):
        shutil.copytree(a, tmp_path / folder / "model")
    models = [f"{a}+{lora}", str(tmp_path / "one" / "model"), str(tmp_path / "two" / "model")]
    library.merge(models, out=tmp_path / "out", align=True)
    card = (tmp_path / "out" / "README.md").read_text()
    assert str(tmp_path) not in card
    assert str(a.parent) not in card
    for name in (f"{a.name}+lora", "one/model", "two/model"):
        assert f"`{name}`" in card
        assert f"model: {name}" in card
    assert str(tmp_path / "one" / "model") in (tmp_path / "out" / "isomerge_recipe.yml").read_text()


def test_measures_stand_in_the_card(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Those of the report, for the output by its name."""
    rng = torch.Generator().manual_seed(0)
    data = {"pixel_values": torch.randn(12, 3, 8, 8, generator=rng), "labels": torch.arange(12) % 5}
    save_file(data, tmp_path / "seen.safetensors")
    out = tmp_path / "out"
    said = isomerge(
        "merge", stored("vit", 0), stored("vit", 5), "-o", out, "--data", tmp_path / "seen.safetensors",
        "--steps", 2,
    )  # fmt: skip
    assert said.code == 0, said.err
    measured = json.loads((out / "isomerge.json").read_text())["measured"]
    card = card_of(out)
    assert card.model_name == "linear merge of vit-0, vit-5"
    values = {result.metric_type: result.metric_value for result in card.eval_results}
    assert values == {key: pytest.approx(measured["merged"][key]) for key in ("loss", "accuracy")}
    assert {result.dataset_name for result in card.eval_results} == {"seen.safetensors"}
    assert {result.task_type for result in card.eval_results} == {"image-classification"}


def merged_far_away(tmp_path: Path, copies: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A merge by relative paths, made in one folder; the current folder is another one afterwards."""
    copies("gpt2")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    library.merge(["a", "b"], out="out")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "out" / "isomerge_recipe.yml"


def test_a_recipe_tells_the_models_it_was_made_with(
    copies: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksums are those of the weights files, as any tool tells them; models that are moved are the same,
    others are told in a warning and in the JSON."""
    recipe = merged_far_away(tmp_path, copies, monkeypatch)
    content = yaml.safe_load(recipe.read_text())
    wanted = [f"crc32:{zlib.crc32((tmp_path / name / 'model.safetensors').read_bytes()):08x}" for name in "ab"]
    assert content["checksums"] == wanted
    shutil.move(tmp_path / "a", "moved")
    shutil.copytree(tmp_path / "b", "other")
    weights = load_file("other/model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] + 1e-3}, "other/model.safetensors", {"format": "pt"})
    for second, same in ((str(tmp_path / "b"), True), ("other", False)):
        content["models"] = [{"model": "moved"}, {"model": second}]
        Path("r.yml").write_text(yaml.safe_dump(content))
        said = isomerge("merge", "r.yml", "again", "--overwrite", "--json", "x.json")
        assert said.code == 0, said.err
        told = "warning: other is not the model that the recipe was made with: its weights files have the checksum"
        assert (told in said.err) != same
        assert told.removeprefix("warning: ") not in said.out
        report = json.loads(Path("x.json").read_text())
        assert ["in_recipe" in row for row in report["checksums"]] == [False, not same]
        assert any("is not the model that the recipe" in note for note in report["notes"]) != same
        equal = Path("again/model.safetensors").read_bytes() == (recipe.parent / "model.safetensors").read_bytes()
        assert equal == same


def test_a_recipe_names_the_commits_of_the_hub(cache: Path, tmp_path: Path) -> None:
    """Of models of the hub, whatever their branches are later: by id and commit, wherever their cache is."""
    folder = cache / "models--org--two" / "snapshots" / COMMITS["org/two"]
    one, two = (f"{name}@{commit}" for name, commit in COMMITS.items())
    for second in ("org/two", "org/two@main", two, folder):
        library.merge(["org/one", second], out=tmp_path / "out", onto=second, overwrite=True)
        content = yaml.safe_load((tmp_path / "out" / "isomerge_recipe.yml").read_text())
        assert [entry["model"] for entry in content["models"]] == [one, two]
        assert content["align"]["onto"] == two
    first = (tmp_path / "out" / "model.safetensors").read_bytes()
    (cache / "models--org--one" / "refs" / "main").write_text("3" * 40)  # a new commit, which is not here
    library.merge(tmp_path / "out" / "isomerge_recipe.yml", out=tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == first


def test_checksums_of_live_modules(stored: Callable, tmp_path: Path) -> None:
    """Each has its own, though they have one name; tensors in memory have none."""
    from transformers import GPT2LMHeadModel

    modules = [GPT2LMHeadModel.from_pretrained(stored("gpt2", seed)) for seed in (0, 5)]
    report = library.merge(modules, out=tmp_path / "out", align=False)
    one, two = (row["checksum"] for row in report["checksums"])
    assert None not in (one, two)
    assert one != two
    memory = (modules[0].state_dict(), modules[0].config)
    report = library.merge([stored("gpt2", 0), memory], out=tmp_path / "memory", align=False)
    assert report["checksums"][1]["checksum"] is None
    content = yaml.safe_load((tmp_path / "memory" / "isomerge_recipe.yml").read_text())
    assert [checksum is None for checksum in content["checksums"]] == [False, True]


@pytest.mark.parametrize(
    ("checksums", "words"),
    [
        (["crc32:00000000"], "`checksums` has 1 entries for 2 models"),
        (["00000000", None], "`checksums`: write crc32: and eight hexadecimal digits"),
        ("crc32:00000000", "`checksums`"),
    ],
)
def test_wrong_checksums(checksums: object, words: str, stored: Callable, tmp_path: Path) -> None:
    """As every other key of a recipe."""
    models = [{"model": str(stored("gpt2", seed))} for seed in (0, 5)]
    content = {"models": models, "merge_method": "linear", "checksums": checksums}
    (tmp_path / "r.yml").write_text(yaml.safe_dump(content))
    with pytest.raises(IsomergeError) as error:
        library.merge(tmp_path / "r.yml", out=tmp_path / "out")
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()

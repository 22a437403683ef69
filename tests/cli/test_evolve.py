"""`isomerge tune` of mergekit-evolve's documents: what is merged with the values found is what the recipe that mergekit-evolve would
write of them gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import isomerge as library
from isomerge.merging.recipe.searched import searched_recipe

DEPTH = 4


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with an untied head, two fine-tunes of it, and texts."""
    folder, rng = tmp_path_factory.mktemp("family"), torch.Generator().manual_seed(0)
    kind: Any = LlamaConfig
    config = kind(
        hidden_size=8, intermediate_size=12, num_hidden_layers=DEPTH, num_attention_heads=2, vocab_size=16, max_position_embeddings=16,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    base = LlamaForCausalLM(config).eval()
    base.save_pretrained(folder / "base")
    for name in ("code", "math"):
        tuned = LlamaForCausalLM(config)
        tuned.load_state_dict(base.state_dict())
        with torch.no_grad():
            for x in tuned.parameters():
                x.add_(0.2 * torch.randn(x.shape, generator=rng))
        tuned.save_pretrained(folder / name)
    ids = torch.randint(0, 16, (8, 6), generator=rng)
    save_file({"input_ids": ids, "labels": ids.clone()}, folder / "data.safetensors")
    return folder


@pytest.fixture
def here(family: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models and data, to write in."""
    for path in family.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def genome(**more: Any) -> dict[str, Any]:
    return {"models": ["code", "math"], "merge_method": "ties", "base_model": "base", **more}


def written(genome: dict[str, Any], **more: Any) -> Path:
    Path("evolve.yml").write_text(yaml.safe_dump({"genome": genome, **more}))
    return Path("evolve.yml")


def as_mergekit_evolve(genome: dict[str, Any], values: dict[str, Any], normalize: bool) -> dict[str, Any]:
    """The slices that it would write of the values found, whose names are `models.K.NAME[.FILTER][.layers.A-B]`."""
    step, filters = genome.get("layer_granularity") or DEPTH, genome.get("filters") or []
    names = dict.fromkeys(n for value in values for n in ("weight", "density") if f".{n}" in value)

    def value(k: int, name: str, j: int, first: int) -> float:
        of_filter = f".{j}" if filters else ""
        group = f".layers.{first}-{first + step - 1}" if step > 1 else f".layer.{first}"
        return values[f"models.{k}.{name}{of_filter}{'' if step >= DEPTH else group}"]

    def setting(k: int, name: str, first: int) -> Any:
        if not filters:
            return value(k, name, 0, first)
        return [
            {"filter": part, "value": value(k, name, j, first)} if part else {"value": value(k, name, j, first)}
            for j, part in enumerate([*filters, None])
        ]

    slices = []
    for first in range(0, DEPTH, step):
        of = {"layer_range": [first, first + step]}
        sources: list[dict[str, Any]] = [
            {"model": model, **of, "parameters": {name: setting(k, name, first) for name in names}}
            for k, model in enumerate(genome["models"])
        ]
        slices.append({"sources": [*sources, {"model": genome["base_model"], **of}]})
    common = {"merge_method": genome["merge_method"], "base_model": genome["base_model"]}
    return {**common, "slices": slices, "parameters": {"normalize": normalize}}


GENOMES: dict[str, tuple[dict[str, Any], bool]] = {
    "one group": (genome(), True),
    "groups of layers": (genome(layer_granularity=2), True),
    "every layer, not normalized": (genome(layer_granularity=1, normalize=False), False),
    "filters": (genome(filters=["self_attn", "mlp"]), True),
    "groups and filters": (
        genome(layer_granularity=2, filters=["self_attn", "norm"], merge_method="dare_ties"),
        True,
    ),
    "negative weights": (
        genome(layer_granularity=2, merge_method="task_arithmetic", allow_negative_weights=True),
        False,
    ),
}


@pytest.mark.parametrize("case", GENOMES)
def test_the_merge_is_that_of_mergekit_evolve(here: Path, case: str) -> None:
    """Of every group, also before and after the layers: the embeddings have the first group's values, the head and the last norm the
    last group's. Without filters for what lies after the layers the head has the first group's."""
    document, normalize = GENOMES[case]
    words: dict[str, Any] = {"data": "data.safetensors", "trials": 2, "sampler": "random"}
    report = library.tune(written(document), out="out", **words)
    values = report["tune"]["trials"][1]["values"]
    assert len(set(values.values())) == len(values)
    weights = [d for d in report["tune"]["searched"] if ".weight" in d["name"]]
    assert all(d["search"] == [-2 if "allow_negative_weights" in document else 0, 2] for d in weights)
    assert all(d["start"] == 0.5 for d in weights)
    assert all(d["start"] == 1 for d in report["tune"]["searched"] if d not in weights)
    best = report["tune"]["best"]["values"]
    Path("theirs.yml").write_text(yaml.safe_dump(as_mergekit_evolve(document, best, normalize)))
    library.merge("theirs.yml", out="theirs")
    ours, theirs = (load_file(f"{folder}/model.safetensors") for folder in ("out", "theirs"))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_smooth_groups_are_a_gradient(here: Path) -> None:
    """As mergekit-evolve's `smooth` is."""
    report = library.tune(
        written(genome(layer_granularity=2, smooth=True)), out="out", data="data.safetensors", trials=1, sampler="random"
    )  # fmt: skip
    assert list(report["tune"]["best"]["values"])[:2] == ["models.0.weight.0", "models.0.weight.1"]
    made = yaml.safe_load(Path("out/isomerge_recipe.yml").read_text())
    assert [len(entry["parameters"]["weight"]) for entry in made["models"] if "parameters" in entry] == [2, 2]


def test_slerp_searches_t(here: Path) -> None:
    """From the first model to the second, in groups."""
    words: dict[str, Any] = {"data": "data.safetensors", "trials": 1, "sampler": "random"}
    document = {"models": ["code", "math"], "merge_method": "slerp", "layer_granularity": 2}
    report = library.tune(written(document), out="out", **words)
    assert [d["name"] for d in report["tune"]["searched"]] == ["t.layers.0-1", "t.layers.2-3"]
    assert report["tune"]["start"]["values"]["t.layers.0-1"] == 0.5


def test_a_recipe_says_every_as_well(here: Path) -> None:
    """And the last group has the layers that are left."""
    Path("r.yml").write_text(
        "merge_method: linear\nmodels: [{model: base}, {model: code, parameters: {weight: {search: [0, 1], every: 3}}}]\n"
    )
    report = library.tune("r.yml", out="out", data="data.safetensors", trials=1, sampler="random")
    assert list(report["tune"]["best"]["values"]) == ["models.1.weight.layers.0-2", "models.1.weight.layer.3"]


TASKS = {"tasks": ["arc_easy", {"name": "gsm8k", "metric": "exact_match,strict-match", "weight": 0.5}], "limit": 20}


def test_its_tasks_are_searched_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its limit, where neither --data nor --task says something else."""
    from isomerge.commands import tuning

    asked: list[Any] = []

    class AskedError(Exception):
        pass

    def split(wanted: Any, checkpoint: Any, **how: Any) -> Any:
        asked.append(([one.document() for one in wanted], how["limit"]))
        raise AskedError

    monkeypatch.setattr(tuning, "split_tasks", split)
    file = written(genome(), **TASKS)
    others: list[dict[str, Any]] = [{}, {"limit": 3}, {"tasks": ["piqa"]}]
    for more in others:
        with pytest.raises(AskedError):
            library.tune(file, out="out", **more)
    metrics = [("arc_easy", "acc,none", 1.0), ("gsm8k", "exact_match,strict-match", 0.5)]
    own = [{"name": name, "metric": metric, "weight": weight} for name, metric, weight in metrics]
    piqa = [{"name": "piqa", "metric": "acc,none", "weight": 1.0}]
    assert asked == [(own, 20), (own, 3), (piqa, None)]
    library.tune(file, out="out", data="data.safetensors", trials=1, sampler="random")


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "no harness": (genome(), TASKS, ["pip install 'lm-eval[hf]'", "--data DATA"]),
    "no tasks": (genome(), {}, ["--data DATA, or --task TASK"]),
    "a misspelt key": (genome(layer_granularty=2), TASKS, ["`genome.layer_granularty`", "did you mean `layer_granularity`"]),
    "a key of the document": (genome(), {"task": []}, ["unknown key `task`", "did you mean `tasks`"]),
    "a task without a name": (genome(), {"tasks": [{"weight": 1}]}, ["`tasks.0.name`", "it is missing"]),
    "no model": (genome(models=[]), TASKS, ["`genome.models`", "at least 1"]),
    "a method without weights": (genome(merge_method="model_stock"), TASKS, ["model_stock", "none of `weight`, `density` and `t`"]),
    "slerp of three": (genome(models=["base", "code", "math"], merge_method="slerp"), TASKS, ["names 3 models", "merges two"]),
    "no such method": (genome(merge_method="tie"), TASKS, ["tie"]),
    "a recipe beside it": (genome(), {"merge_method": "ties"}, ["unknown key `merge_method`"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(here: Path, refuses: Callable, case: str) -> None:
    """In one sentence, and nothing is written."""
    document, more, said = REFUSED[case]
    refuses(
        "tune", written(document, **more), "-o", "out", words=["evolve.yml", *said] if case[:2] != "no" else said
    )


def test_other_commands_name_tune(here: Path, refuses: Callable) -> None:
    refuses(
        "merge",
        written(genome()),
        "-o",
        "out",
        words=["a genome of mergekit-evolve", "isomerge tune evolve.yml -o OUT"],
    )


def test_what_is_asked_otherwise_is_told(here: Path) -> None:
    """Of tasks; what says what is done anyway is not."""
    evolved = searched_recipe(written(genome(), tasks=["a"], num_fewshot=5, shuffle=False)).evolved
    assert evolved is not None
    assert evolved.not_done == ["num_fewshot", "apply_chat_template"]
    evolved = searched_recipe(written(genome(), tasks=["a"], apply_chat_template=False)).evolved
    assert evolved is not None
    assert evolved.not_done == []
    assert json.dumps(evolved.wanted) == '[{"name": "a", "weight": 1.0, "metric": "acc,none"}]'

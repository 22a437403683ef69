"""What a merge records is what happened: which models were fused, with which weight, and what the others gave; by
every door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import isomerge
from isomerge.errors import IsomergeError
from solve.disguises import single

METHODS: dict[str, dict[str, Any]] = {
    "linear": {},
    "karcher": {},
    "circuits": {},
    "multislerp": {},
    "nuslerp": {"weights": [0.3, 0.7]},
    "task_arithmetic": {"weights": [0.3, 0.7]},
    "ties": {"weights": [0.3, 0.7], "parameters": {"density": 0.5}},
}
NEEDS = ("task_arithmetic", "ties")
"""Those that have no merge without a base."""
TAKES = (*NEEDS, "multislerp", "nuslerp")
"""Those that know a base."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three toys of one architecture, each with a key in its config that tells it."""
    root = tmp_path_factory.mktemp("models")
    found = {}
    for seed, name in enumerate(("a", "b", "base")):
        folder = found[name] = single("gpt2", root / name, seed)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "told_by": name}))
    return found


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def recipe_of(models: list[Path], method: str, how: dict[str, Any], **more: Any) -> str:
    """The same merge in mergekit's words."""
    entries: list[dict[str, Any]] = [{"model": str(model)} for model in models]
    for entry, weight in zip(entries, how.get("weights", []), strict=False):
        entry["parameters"] = {"weight": weight}
    content = {"models": entries, "merge_method": method, "parameters": how.get("parameters", {}), **more}
    return yaml.safe_dump(content)


def cases() -> list[tuple[str, str]]:
    return [(m, base) for m in METHODS for base in ("none", "apart", "listed", "alone")
            if not (base == "none" and m in NEEDS) and not (base == "alone" and m in TAKES)]  # fmt: skip


@pytest.mark.parametrize(("method", "base"), cases())
def test_doors_and_records_agree(method: str, base: str, models: dict[str, Path], tmp_path: Path) -> None:
    """Python and a recipe of the same keys give the same bytes, and so does the recorded recipe; roles are what
    happened."""
    a, b, c = models.values()
    how, merged = METHODS[method], [a, b]
    named = {} if base == "none" else {"base_model": c}
    listed = [a, b, c] if base == "listed" else merged
    given = {k: [*v, 0.5] if base == "listed" and k == "weights" else v for k, v in how.items()}
    alone = {"merge_base": False} if base == "alone" else {}
    report = isomerge.merge(listed, out=tmp_path / "out", method=method, align=False, **given, **named, **alone)
    more = {**{k: str(v) for k, v in named.items()}, **({"align": {"enabled": False, **alone}} if alone else {})}
    (tmp_path / "r.yml").write_text(recipe_of(listed, method, given, **more))
    isomerge.merge(tmp_path / "r.yml", out=tmp_path / "recipe")
    isomerge.merge(tmp_path / "out" / "isomerge_recipe.yml", out=tmp_path / "again")
    found = {tag: (tmp_path / tag / "model.safetensors").read_bytes() for tag in ("out", "recipe", "again")}
    assert found["out"] == found["recipe"] == found["again"]
    roles = {row["model"]: row["roles"] for row in report["roles"]}
    fused = {str(a), str(b)} | ({str(c)} if base in ("apart", "listed") and method not in TAKES else set())
    assert {model for model, given in roles.items() if "merged" in given} == fused
    assert {model for model, given in roles.items() if "base" in given} == (
        {str(c)} if named and method in TAKES else set()
    )
    donor = json.loads((tmp_path / "out" / "config.json").read_text())["told_by"]
    assert roles[str(models[donor])].count("config") == 1
    assert sum("config" in given for given in roles.values()) == 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert all((f"`{models[name].name}`: merged" in card) == (str(models[name]) in fused) for name in models)


@pytest.mark.parametrize("onto", [None, "b"])
def test_weights_are_those_that_were_fused(onto: str | None, models: dict[str, Path], tmp_path: Path) -> None:
    """The output is the sum that the record tells, whatever was aligned onto what; a base has no weight."""
    a, b, c = models.values()
    how = {"method": "task_arithmetic", "weights": [0.3, 0.7], "spaces": "none"}
    report = isomerge.merge([a, b], out=tmp_path / "out", base_model=c, onto=models.get(onto or ""), **how)
    told = {row["model"]: row["weight"] for row in report["roles"]}
    assert told == {str(c): None, str(a): 0.3, str(b): 0.7}
    assert {row["model"] for row in report["roles"] if "anchor" in row["roles"]} == {str(models[onto or "base"])}
    fused = [model for model in report["models"] if told[model] is not None]
    assert report["weights"] == [told[model] for model in fused]
    out, base = weights_of(tmp_path / "out"), weights_of(c)
    parts = {model: weights_of(Path(model)) for model in fused}
    for name, tensor in out.items():
        if tensor.is_floating_point():
            wanted = base[name] + sum(told[model] * (part[name] - base[name]) for model, part in parts.items())
            torch.testing.assert_close(tensor, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "common", "told"),
    [
        ("[0, 1]", "1", "", ["by layer", None]),
        ("0.6", "[{filter: mlp, value: 0.5}, {value: 0.2}]", "", [None, "by tensor"]),
        ("[{filter: mlp, value: [0, 1]}, {value: 0.2}]", "[1, 1]", "", ["by layer and by tensor", None]),
        ("[{filter: mlp, value: 0.2}]", "0.2", "0.2", [None, None]),  # what no filter fits has the recipe's own
        ("[{filter: mlp, value: 0.2}]", "0.2", "0.3", ["by tensor", None]),
    ],
)
def test_weights_that_differ_are_told_of_each_model(
    first: str, second: str, common: str, told: list[str | None], models: dict[str, Path], tmp_path: Path
) -> None:
    """One number would not be what was fused; and of a model that has one, nothing else is said, whatever another
    has."""
    a, b, _ = models.values()
    text = f"models:\n- {{model: {a}, parameters: {{weight: {first}}}}}\n"
    text += f"- {{model: {b}, parameters: {{weight: {second}}}}}\nmerge_method: linear\n"
    text += f"parameters: {{weight: {common}}}\n" if common else ""
    (tmp_path / "r.yml").write_text(text)
    report = isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    assert [row.get("varies") for row in report["roles"]] == told
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.count("with a weight that differs by ") == sum(each is not None for each in told)
    assert card.count("merged, with weight ") == sum(each is None for each in told)


REFUSED: dict[str, Callable[[dict[str, Path]], Any]] = {
    "weights": lambda m: ([m["a"], m["b"]], {"weights": [0.5, 0.5]}),
    "a parameter of every model": lambda m: ([m["a"], m["b"]], {"parameters": {"weight": [0.5, 0.5]}}),
    "statistics": lambda m: ([m["a"], m["b"]], {"method": "regmean", "stats": ["x", "y"]}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_share_is_not_guessed(case: str, models: dict[str, Path], tmp_path: Path) -> None:
    """A base that is merged where all others have a value of their own, and mergekit refuses it."""
    listed, how = REFUSED[case](models)
    with pytest.raises(IsomergeError, match=r"base_model=.* merges it as one of the models.*merge_base=False"):
        isomerge.merge(listed, out=tmp_path / "out", base_model=models["base"], **how)
    assert not (tmp_path / "out").exists()


def test_a_recipe_does_not_guess_a_share(models: dict[str, Path], tmp_path: Path) -> None:
    """As mergekit, which finds no weight for it; one for all models is the base's as well."""
    a, b, c = models.values()
    how = {"weights": [0.5, 0.5]}
    (tmp_path / "r.yml").write_text(recipe_of([a, b], "linear", how, base_model=str(c)))
    with pytest.raises(
        IsomergeError, match=r"r\.yml: `base_model` .*has no `parameters\.weight` for it: list it under"
    ):
        isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    (tmp_path / "r.yml").write_text(recipe_of([a, b], "linear", {"parameters": {"weight": 0.5}}, base_model=str(c)))
    report = isomerge.merge(tmp_path / "r.yml", out=tmp_path / "out")
    assert [row["weight"] for row in report["roles"]] == [0.5] * 3

"""The language model in a model of images, with language models like it: named alone, merged, and put back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import isomerge as package
from isomerge.checkpoint.single_file import LANGUAGE
from isomerge.errors import IsomergeError
from isomerge.models.references import open_model_ref
from raw_files import one_sentence
from toys import outputs, overwrite, save_toy, tensors

KINDS = {"llava": "llama", "gemma3": "gemma3_text", "qwen2_vl": "qwen2", "idefics3": "llama"}
"""Toys whose language models are stored under ``language_model.model.``, without a head of their own, under ``model.``
beside the tower of images, and under ``model.text_model.``; and what a language model like theirs calls itself."""


def tuned(vl: Path, out: Path, kind: str, noise: float = 0.01) -> Path:
    """A language model like the one inside, and what training moved."""
    inside, rng = open_model_ref(f"{vl}{LANGUAGE}"), torch.Generator().manual_seed(5)
    out.mkdir()
    (out / "config.json").write_text(json.dumps({**inside.config, "model_type": kind}))
    overwrite(
        out,
        {
            n: (x := inside.read(n)) + noise * torch.randn(x.shape, generator=rng, dtype=x.dtype)
            for n in inside.tensors
        },
    )
    return out


def mean(vl: Path, text: Path) -> dict[str, torch.Tensor]:
    """Of the two language models."""
    one, two = open_model_ref(f"{vl}{LANGUAGE}"), tensors(text)
    return {name: (one.read(name) + x) / 2 for name, x in two.items()}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], apart: float = 1e-12) -> bool:
    """Whether two checkpoints have one set of tensors."""
    return found.keys() == wanted.keys() and all(
        float((x - found[n]).abs().max()) < apart for n, x in wanted.items()
    )


@pytest.mark.parametrize("name", KINDS)
def test_both_ways(name: str, tmp_path: Path) -> None:
    """Merged into the model of images, all else of it is bit for bit what it was, and it runs; merged as language
    models, the result is one. With a tensor of the tower taken for one of words, or one of words left out, this fails."""
    vl = save_toy(name, tmp_path / "vl")
    text = tuned(vl, tmp_path / "text", KINDS[name])
    report = package.merge([vl, text], out=tmp_path / "whole")
    stored, before = tensors(tmp_path / "whole"), tensors(vl)
    after = open_model_ref(f"{tmp_path / 'whole'}{LANGUAGE}")
    assert same({n: after.read(n) for n in after.tensors}, mean(vl, text))
    changed = {n for n, x in before.items() if not torch.equal(x, stored[n])}
    assert stored.keys() == before.keys()
    assert len(changed) == len(tensors(text))
    assert not any("vision" in n or "visual" in n or "projector" in n for n in changed)
    assert bool(outputs(tmp_path / "whole").isfinite().all())
    assert (tmp_path / "whole" / "reports" / "language_model" / "isomerge.json").is_file()
    assert report["notes"] == [f"language_model: merged with {text}, and all else of {vl} is kept."]
    package.merge([text, f"{vl}{LANGUAGE}"], out=tmp_path / "words")
    assert same(tensors(tmp_path / "words"), mean(vl, text))


def test_it_is_aligned_onto_the_one_inside(tmp_path: Path) -> None:
    """Also where task vectors are taken from a third: all else was made for the one inside, which stays."""
    vl = save_toy("llava", tmp_path / "vl")
    text = tuned(vl, tmp_path / "text", "llama")
    moved, order = tensors(text), torch.randperm(40, generator=torch.Generator().manual_seed(1))
    for n, x in moved.items():
        if "mlp" in n:
            moved[n] = x[:, order] if "down" in n else x[order]
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((text / "config.json").read_text())
    overwrite(other, moved)
    package.merge([vl, other], out=tmp_path / "out", align=True, spaces="ff")
    after = open_model_ref(f"{tmp_path / 'out'}{LANGUAGE}")
    assert same({n: after.read(n) for n in after.tensors}, mean(vl, text))
    package.merge(
        [vl, other],
        out=tmp_path / "third",
        base_model=other,
        method="task_arithmetic",
        align=True,
        spaces="ff",
        parameters={"weight": 0.5},
    )
    after = open_model_ref(f"{tmp_path / 'third'}{LANGUAGE}")
    assert same({n: after.read(n) for n in after.tensors}, mean(vl, text))


def test_a_recipe(tmp_path: Path) -> None:
    """It says the same; what the recipe says is kept with the language model."""
    vl = save_toy("llava", tmp_path / "vl")
    text = tuned(vl, tmp_path / "text", "llama")
    recipe = tmp_path / "r.yml"
    recipe.write_text(
        f"merge_method: linear\nmodels:\n  - model: {vl}\n  - model: {text}\nparameters: {{weight: 0.5}}\n"
    )
    package.merge(recipe, out=tmp_path / "out")
    after = open_model_ref(f"{tmp_path / 'out'}{LANGUAGE}")
    assert same({n: after.read(n) for n in after.tensors}, mean(vl, text))
    assert (
        f"{vl}{LANGUAGE}" in (tmp_path / "out" / "reports" / "language_model" / "isomerge_recipe.yml").read_text()
    )


def test_refusals(tmp_path: Path) -> None:
    """Each with the way that there is."""
    vl = save_toy("llava", tmp_path / "vl")
    text = tuned(vl, tmp_path / "text", "llama")
    cases = [
        ([text, vl], {}, [f"{vl}{LANGUAGE}", f"or {vl} first"]),
        ([vl, text], {"anchor": "none"}, ["anchor", f"{vl}{LANGUAGE}"]),
        ([f"{text}{LANGUAGE}", text], {}, ["no language model inside"]),
    ]
    for models, more, words in cases:
        with pytest.raises(IsomergeError) as error:
            package.merge(models, out=tmp_path / "out", **more)
        one_sentence(error.value, *words)
    assert not (tmp_path / "out").exists()

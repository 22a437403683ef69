"""Heads whose hidden neurons stand in another order, with other signs or factors, are the same function everywhere.

What lies between a pooler (or a head's first layer) and what alone reads it is no part of the stream: permutations, and
what the activation lets through, act there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as tf

import isomerge
from depth import more
from toy_models import made
from toy_settings import BODY
from toys import Toy, outputs, randomise, relative, tensors, write_toy

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

# toy: the head's first layer, what reads it, and whether tanh lets signs (-1) or ReLU factors (2) through
HEADS = {
    "xlm-roberta": ("classifier.dense", "classifier.out_proj", -1.0),
    "deberta-unshared": ("pooler.dense", "classifier", 1.0),
    "electra-wide": ("discriminator_predictions.dense", "discriminator_predictions.dense_prediction", 2.0),
}


def twin(model: Toy, out: Path, *, undone: bool = True) -> Path:
    """The toy with its head's hidden neurons in another order, every second one with a factor; a near-twin where the
    reader's factors are not undone."""
    first, reader, factor = HEADS[model.name]
    new = {n: t.clone() for n, t in model.stored.items()}
    size = len(new[f"{first}.bias"])
    order = torch.randperm(size, generator=torch.Generator().manual_seed(3))
    factors = torch.ones(size, dtype=torch.float64)
    factors[::2] = factor
    new[f"{first}.weight"] = (new[f"{first}.weight"][order] * factors[:, None]).contiguous()
    new[f"{first}.bias"] = (new[f"{first}.bias"][order] * factors).contiguous()
    back = 1 / factors if undone else torch.ones(size, dtype=torch.float64)
    new[f"{reader}.weight"] = (
        new[f"{reader}.weight"][:, order if undone else torch.arange(size)] * back
    ).contiguous()
    return write_toy(model, new, out)


@pytest.mark.parametrize("name", HEADS)
def test_a_twin_in_another_order_of_the_head(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """The same function: verified, brought to distance zero, and merged into itself; as stored the average is not."""
    model = toy(name)
    other = twin(model, tmp_path / "twin")
    assert relative(outputs(other), model.reference) < model.tolerance
    assert isomerge.verify(model.folder, other)["same"] is True
    isomerge.merge([model.folder, other], out=tmp_path / "merged")
    assert relative(outputs(tmp_path / "merged"), model.reference) < 1e-5
    isomerge.merge([model.folder, other], out=tmp_path / "averaged", align=False)
    assert relative(outputs(tmp_path / "averaged"), model.reference) > 1e-2


@pytest.mark.parametrize("name", HEADS)
def test_a_near_twin_is_another_function(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """The same move, not undone where it is read."""
    model = toy(name)
    other = twin(model, tmp_path / "near", undone=False)
    assert relative(outputs(other), model.reference) > 1e-3
    assert isomerge.verify(model.folder, other)["same"] is False


def test_one_form(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Canonical forms of twins are equal."""
    model = toy("xlm-roberta")
    folders = [model.folder, twin(model, tmp_path / "twin")]
    for n, folder in enumerate(folders):
        isomerge.canon(folder, out=tmp_path / f"form-{n}")
    one, two = (tensors(tmp_path / f"form-{n}") for n in range(2))
    assert max(float((one[n].double() - two[n].double()).abs().max()) for n in one) < 1e-5


PLANTED = {
    "bert-relu": (["pooled", "ps"], "classifier.weight"),
    "arcee": (["ff", "u"], "layers.0.mlp.down_proj.weight"),
    "gemma3_text": (["t"], "layers.0.self_attn.k_norm.weight"),
    "afmoe": (["ov", "os"], "layers.0.self_attn.o_proj.weight"),
    "qwen3_next": (["t", "rs", "rt", "os"], "layers.1.self_attn.o_proj.weight"),
}
"""By toy: what is moved by random elements, and a tensor that a near-twin keeps as it was."""


@pytest.mark.parametrize("name", ["bert-relu", "arcee", *more("gemma3_text", "afmoe", "qwen3_next")])
def test_a_planted_element(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A twin is the same, comes back to distance zero, merges into itself, and has the same form and fingerprint."""
    model = toy(name)
    spaces, _ = PLANTED[name]
    other = write_toy(model, model.drawn(spaces), tmp_path / "twin")
    assert relative(outputs(other), model.reference) < model.tolerance
    assert isomerge.verify(model.folder, other)["same"] is True
    _, report = isomerge.align(other, onto=model.folder, align=True)
    assert report["distance"]["before"] > 1e-2
    assert report["distance"]["after"] < 1e-4 * report["distance"]["before"]
    assert isomerge.fingerprint(model.folder).hash == isomerge.fingerprint(other).hash
    for n, folder in enumerate([model.folder, other]):
        isomerge.canon(folder, out=tmp_path / f"form-{n}")
    one, two = (tensors(tmp_path / f"form-{n}") for n in range(2))
    assert max(float((one[n].double() - two[n].double()).abs().max()) for n in one) < 1e-5


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_near_twin(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """The same element, of which one tensor knows nothing."""
    model = toy(name)
    spaces, kept = PLANTED[name]
    moved = model.drawn(spaces)
    (left,) = (n for n in moved if n.endswith(kept))
    other = write_toy(model, {**moved, left: model.stored[left]}, tmp_path / "near")
    assert isomerge.verify(model.folder, other)["same"] is False


def test_a_base_model_keeps_its_pooler(tmp_path: Path) -> None:
    """What a classifier's head reads is an output of the base model: beside one, a pooler's neurons stay where they
    are, and both keep their functions."""
    folders = []
    for n, kind in enumerate(("ForSequenceClassification", "Model")):
        model = made("Bert", kind, **BODY)().double().eval()
        randomise(model, n)
        model.save_pretrained(tmp_path / kind)
        folders.append(tmp_path / kind)
    head, base = folders
    given = {"input_ids": torch.arange(12).reshape(2, 6)}

    def pooled(folder: Path) -> torch.Tensor:
        model = tf.BertModel.from_pretrained(folder, dtype=torch.float64).eval()
        with torch.no_grad():
            return model(**given).pooler_output

    for one, two in ((head, base), (base, head)):
        isomerge.align(two, onto=one, align=True, out=tmp_path / f"moved-{two.name}")
    assert relative(pooled(tmp_path / f"moved-{base.name}"), pooled(base)) < 1e-9
    assert relative(pooled(tmp_path / f"moved-{head.name}"), pooled(head)) < 1e-9

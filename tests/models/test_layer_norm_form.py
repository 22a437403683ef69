"""What LayerNorm takes away by itself: one function in many weights, which verify knows.

Every kind is planted through disk as a twin, and as a near-twin: the same move done slightly wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import isomerge
from depth import more
from isomerge.models.layer_norm_form import forming, layer_norm_form
from isomerge.models.recognised import recognise
from toys import Toy, outputs, relative, write_toy

ToyMaker = Callable[..., Toy]
Move = Callable[[dict[str, Tensor], float], None]
FORMED = [
    "gpt2",
    "vit",
    "bert",
    "dinov2",
    "gpt_neox",
    "tapas-cells",
    "nomic_bert",
    "xlnet",
    *more(
        "gpt2-untied",
        "deit",
        "opt",
        "phi",
        "clip",
        "whisper",
        "starcoder2",
        "stablelm",
        "gptj",
        "mpt",
        "falcon",
        "cohere",
        "roberta",
        "mpnet",
    ),
]
GPT2, VIT = "transformer.h.1.", "vit.encoder.layer.1."


def drawn(*shape: int) -> Tensor:
    """Normal numbers, float64, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def written_along_the_ones(new: dict[str, Tensor], wrong: float) -> None:
    """The MLP of GPT-2 writes what the next norm takes away."""
    name = f"{GPT2}mlp.c_proj.weight"
    new[name] = new[name] + drawn(len(new[name]), 1)
    new[name][0, 0] += wrong


def bias_in_the_readers(new: dict[str, Tensor], wrong: float) -> None:
    """The bias of GPT-2's norm moves into those of its readers."""
    bias, reader = f"{GPT2}ln_1.bias", f"{GPT2}attn.c_attn"
    carried = new[bias] @ new[f"{reader}.weight"]
    new[f"{reader}.bias"] = new[f"{reader}.bias"] + carried * (1 + wrong)
    new[bias] = torch.zeros_like(new[bias])


def read_against_the_ones(new: dict[str, Tensor], wrong: float) -> None:
    """GPT-2's neurons read what the norm leaves at zero."""
    gain, bias, reader = (new[f"{GPT2}{n}"] for n in ("ln_2.weight", "ln_2.bias", "mlp.c_fc.weight"))
    c = drawn(reader.shape[1])
    new[f"{GPT2}mlp.c_fc.weight"] = reader + (1 / gain)[:, None] * c
    new[f"{GPT2}mlp.c_fc.bias"] = new[f"{GPT2}mlp.c_fc.bias"] - c * (bias / gain).sum() * (1 + wrong)


def of_a_vision_transformer(new: dict[str, Tensor], wrong: float) -> None:
    """The same three of a ViT, whose matrices are stored the other way round."""
    first = f"{VIT}layernorm_after" if f"{VIT}layernorm_after.bias" in new else "vit.layers.1.layernorm_after"
    inner = next(n for n in new if ".1." in n and n.endswith(("intermediate.dense.weight", "mlp.fc1.weight")))
    outer = next(
        n
        for n in new
        if ".1." in n and n.endswith((".output.dense.weight", "mlp.fc2.weight")) and "attention" not in n
    )
    carried = new[inner] @ new[f"{first}.bias"]
    new[inner.replace("weight", "bias")] = new[inner.replace("weight", "bias")] + carried * (1 + wrong)
    new[f"{first}.bias"] = torch.zeros_like(new[f"{first}.bias"])
    new[outer] = new[outer] + drawn(1, new[outer].shape[1])


def behind_a_layer_scale(new: dict[str, Tensor], wrong: float) -> None:
    """What DINOv2's MLP writes along the ones behind its layer scale."""
    scale = next(n for n in new if ".1." in n and n.endswith("layer_scale2.lambda1"))
    name = scale.replace("layer_scale2.lambda1", "mlp.fc2.weight")
    new[name] = new[name] + drawn(1, new[name].shape[1]) / new[scale][:, None]
    new[name][0, 0] += wrong / new[scale].abs().min()


KINDS: list[tuple[str, Move]] = [
    ("dinov2", behind_a_layer_scale),
    ("gpt2", written_along_the_ones),
    ("gpt2", bias_in_the_readers),
    ("gpt2", read_against_the_ones),
    ("vit", of_a_vision_transformer),
]


@pytest.mark.parametrize(("name", "move"), KINDS, ids=lambda x: getattr(x, "__name__", x))
def test_twins_are_one_function(name: str, move: Move, toy: ToyMaker, tmp_path: Path) -> None:
    """Equal outputs, other weights: verified; a near-twin is told apart."""
    model = toy(name)
    for wrong in (0.0, 0.05):
        new = {n: t.clone() for n, t in model.stored.items()}
        move(new, wrong)
        assert model.change(new) > 1e-2
        folder = write_toy(model, {n: t.contiguous() for n, t in new.items()}, tmp_path / f"other-{wrong}")
        assert (relative(outputs(folder), model.reference) < 1e-9) == (wrong == 0)
        assert isomerge.verify(model.folder, folder)["same"] is (wrong == 0)


@pytest.mark.parametrize("name", FORMED)
def test_the_form_is_the_same_function(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Read in the form, through disk; the element that leads there does the same; and the form of that is itself."""
    model = toy(name)
    found = recognise(model.folder)
    form = layer_norm_form(found)
    assert form
    formed = found.seen(form)
    new = dict(model.stored)
    for block in found.blocks:
        for canonical, tensor in block.split(formed.assemble(block, torch.float64)):
            new[found.names[canonical]] = tensor.clone().contiguous()
    assert model.change(new) > 1e-2
    moved = forming(found).applied({block: found.assemble(block, torch.float64) for block in found.blocks})
    for block in found.blocks:
        assert torch.allclose(moved[block].double(), formed.assemble(block, torch.float64).double(), atol=1e-10)
    folder = write_toy(model, new, tmp_path / "formed")
    assert relative(outputs(folder), model.reference) < model.tolerance
    again = recognise(folder)
    again = again.seen(layer_norm_form(again))
    for block in again.blocks:
        for canonical, tensor in block.split(again.assemble(block, torch.float64)):
            assert float((tensor - new[again.names[canonical]]).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["llama", "t5-gated"])
def test_no_form_without_a_stream_under_layer_norm_alone(name: str, toy: ToyMaker) -> None:
    """RMSNorm takes no mean away."""
    assert not layer_norm_form(recognise(toy(name).folder))

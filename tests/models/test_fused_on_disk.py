"""Checkpoints stored as transformers 5 holds a model in memory are read as its files are."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightConverter

import isomerge
from depth import more
from families import TOYS
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Derived, Rounded
from isomerge.models.recognised import recognise
from toys import outputs, randomise, tensors

Files = Callable[[dict[str, Tensor]], None]
CONVERTED = [
    name
    for name in TOYS
    if not name.endswith(("-ahead", "-published"))
    and any(isinstance(x, WeightConverter) for x in get_checkpoint_conversion_mapping(name.split("-")[0]) or ())
]
"""Toys whose tensors transformers puts together, or takes apart; but for those that write more than their class has."""
EXPERTS = "model.layers.1.mlp.experts."


def saved(name: str, folder: Path, *, seed: int = 0) -> tuple[Path, Path]:
    """A toy as its files are, and as it is in memory."""
    model = TOYS[name][0]().to(torch.float64).eval()
    randomise(model, seed)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    model.save_pretrained(folder / f"files{seed}")
    model.save_pretrained(folder / f"memory{seed}", save_original_format=False)
    return folder / f"files{seed}", folder / f"memory{seed}"


def rewritten(folder: Path, change: Files) -> None:
    """Change what a folder stores."""
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file({k: v.contiguous() for k, v in stored.items()}, folder / "model.safetensors", {"format": "pt"})


def test_there_are_many() -> None:
    """Those of which the next test is about are found by program."""
    assert len(CONVERTED) > 30


@pytest.mark.parametrize("name", CONVERTED)
def test_every_tensor_is_what_its_file_has(name: str, tmp_path: Path) -> None:
    """Whatever is fused, chunked, transposed or renamed."""
    files, memory = saved(name, tmp_path)
    model = recognise(files)
    other = recognise(memory, as_files=model.names.keys() != recognise(memory).names.keys())
    assert other.names.keys() == model.names.keys()
    for canonical, stored in model.names.items():
        assert torch.equal(model.checkpoint.read(stored), other.checkpoint.read(other.names[canonical])), canonical


def gates_for_ups(stored: dict[str, Tensor]) -> None:
    """A mutant."""
    fused = stored[EXPERTS + "gate_up_proj"]
    stored[EXPERTS + "gate_up_proj"] = torch.cat(fused.chunk(2, 1)[::-1], 1)


def experts_exchanged(stored: dict[str, Tensor]) -> None:
    """A mutant: without their rows of the router."""
    for name in ("gate_up_proj", "down_proj"):
        stored[EXPERTS + name] = stored[EXPERTS + name][[1, 0, 2, 3]]


def experts_and_router_exchanged(stored: dict[str, Tensor]) -> None:
    """The same function."""
    experts_exchanged(stored)
    stored["model.layers.1.mlp.gate.weight"] = stored["model.layers.1.mlp.gate.weight"][[1, 0, 2, 3]]


@pytest.mark.parametrize(
    ("change", "same"), [(gates_for_ups, False), (experts_exchanged, False), (experts_and_router_exchanged, True)]
)
def test_verdicts(change: Files, same: bool, tmp_path: Path) -> None:
    """A model against itself stored otherwise, with experts that are others or stand elsewhere."""
    files, memory = saved("mixtral", tmp_path)
    assert isomerge.verify(files, memory)["same"] is True
    rewritten(memory, change)
    assert isomerge.verify(files, memory)["same"] is same


@pytest.mark.parametrize("name", ["mixtral", "qwen3_5_moe_text"])
def test_merge_of_both_layouts(name: str, tmp_path: Path) -> None:
    """Its outputs are those of the merge of two that are stored alike; the layout of files is written."""
    (one, _), (two, fused) = saved(name, tmp_path), saved(name, tmp_path, seed=1)
    isomerge.merge([one, two], out=tmp_path / "alike")
    isomerge.merge([one, fused], out=tmp_path / "mixed")
    assert tensors(tmp_path / "mixed").keys() == tensors(one).keys()
    assert torch.equal(outputs(tmp_path / "mixed"), outputs(tmp_path / "alike"))


@pytest.mark.parametrize("name", ["qwen3_5_moe_text", *more("qwen3_5_moe")])
def test_the_layout_decides_no_match(name: str, tmp_path: Path) -> None:
    """Strangers, streams turned: of an architecture that is read as it is stored, gates and ups count as much in one
    tensor as in two. Weighed as one they counted less, and another basis was found."""
    (one, fused_one), (two, fused_two) = saved(name, tmp_path), saved(name, tmp_path, seed=1)
    assert recognise(one).names.keys() != recognise(fused_one).names.keys()
    isomerge.merge([one, two], out=tmp_path / "apart", spaces="all")
    isomerge.merge([fused_one, fused_two], out=tmp_path / "fused", spaces="all")
    assert torch.equal(outputs(tmp_path / "apart"), outputs(tmp_path / "fused"))


def test_layers_stored_either_way(tmp_path: Path) -> None:
    """One layer's experts are fused, the others' are not."""
    files, memory = saved("mixtral", tmp_path)
    own = load_file(memory / "model.safetensors")

    def mix(stored: dict[str, Tensor]) -> None:
        for name in [n for n in stored if n.startswith("model.layers.1.block_sparse_moe")]:
            del stored[name]
        stored |= {n: x for n, x in own.items() if n.startswith("model.layers.1.mlp")}

    (tmp_path / "mixed").mkdir()
    for file in files.iterdir():
        (tmp_path / "mixed" / file.name).write_bytes(file.read_bytes())
    rewritten(tmp_path / "mixed", mix)
    assert isomerge.verify(files, tmp_path / "mixed")["same"] is True


def test_what_is_computed_is_not_rounded_on_the_way(tmp_path: Path) -> None:
    """Experts of a view that has them more finely than they are stored: in pieces of a tensor, and put together."""
    for name in ("mixtral", "dinov2-swiglu"):
        stored = open_checkpoint(saved(name, tmp_path / name)[1])
        fine = {n: stored.read(n) for n in stored.tensors}  # float64
        half = partial(Tensor.to, dtype=torch.bfloat16)
        derived = {
            n: Derived(replace(stored.tensors[n], dtype="BF16"), Rounded(x.clone, half)) for n, x in fine.items()
        }
        finer, own = recognise(stored.derive(derived, origin="finer")), recognise(stored)
        turned = [n for n in own.matches if n in own.checkpoint.recipes]
        assert turned
        for n in turned:
            assert torch.equal(finer.read(n, torch.float64), own.read(n, torch.float64))
            assert torch.equal(finer.read(n, None), own.read(n, None).to(torch.bfloat16))


def test_what_is_read_travels(tmp_path: Path) -> None:
    """Other processes read the same."""
    for name in ("mixtral", "dinov2-swiglu"):  # pieces of a tensor, and tensors that are put together
        checkpoint = recognise(saved(name, tmp_path / name)[1]).checkpoint
        copy = pickle.loads(pickle.dumps(checkpoint))
        assert checkpoint.recipes
        assert all(torch.equal(copy.read(x), checkpoint.read(x)) for x in checkpoint.recipes)

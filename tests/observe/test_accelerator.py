"""Matching on a device: on a pretended one byte for byte what the processor finds, on a real one within
rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

import isomerge
from depth import EVERY
from isomerge.errors import IsomergeError
from isomerge.matching import neuron_scale, sketch
from isomerge.solve.many import mean_solver
from isomerge.solve.pairs import stream_descent as streams
from observe.pretended_device import NAME, pretended
from solve.disguises import disguise, files_of, perturb, single
from toys import outputs, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

RUNS: dict[str, dict[str, Any]] = {
    "llama": {"spaces": "qk,residual"},
    "t5-gated": {},
    "bert": {"spaces": "paper"},
    "vit": {"anchor": "none", "spaces": "ov,residual"},
}


@pytest.fixture(autouse=True)
def few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a number is computed is seen in one pass; nothing here needs to settle."""
    monkeypatch.setattr(streams, "SWEEPS", 1)
    monkeypatch.setattr(mean_solver, "ROUNDS_PER_PASS", 1)


def pair(name: str, folder: Path) -> tuple[Path, Path]:
    """A model, and a disguised relative."""
    a = single(name, folder / "a")
    return a, disguise(name, perturb(a, folder / "near", 0.2), folder / "b", 3)


def weights_of(folder: Path) -> dict[str, bytes]:
    """What a run writes, but for its report, which names where it was computed."""
    return {name: data for name, data in files_of(folder).items() if name.endswith(".safetensors")}


@pytest.mark.parametrize("name", [n for n in RUNS if EVERY or n in ("llama", "bert")])
def test_a_device_finds_what_the_processor_finds(name: str, tmp_path: Path) -> None:
    """Nothing stays behind, nothing is mixed, and the work is done there: the same weights as without a device, from
    elements that are equal but for the last digits of sums."""
    a, b = pair(name, tmp_path)
    isomerge.merge([a, b], out=tmp_path / "here", **RUNS[name])
    with pretended() as done:
        isomerge.merge([a, b], out=tmp_path / "there", device=NAME, **RUNS[name])
    there, here = weights_of(tmp_path / "there"), weights_of(tmp_path / "here")
    assert there.pop("model.safetensors") == here.pop("model.safetensors")
    assert there.keys() == here.keys()
    for file in here:
        torch.testing.assert_close(load(there[file]), load(here[file]), rtol=1e-9, atol=1e-12)
    assert done["linalg_eigh"] + done["_linalg_eigh"] + done["_linalg_svd"] > 0, done
    assert done["mm"] + done["bmm"] + done["addmm_"] > 0, done


LEARNING: dict[str, dict[str, Any]] = {
    "llama": {"spaces": "default", "functional": False, "gradient_checkpointing": True, "precision": "bfloat16"},
    "gpt2": {"untie": True},
}


@pytest.mark.parametrize("name", [n for n in LEARNING if EVERY or n != "gpt2"])
def test_a_device_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models, what they are moved by and the assignments that are proven without all pairs: nothing stays behind."""
    for module in (sketch, neuron_scale):
        monkeypatch.setattr(module, "SMALLEST", 4)
    a, b = pair(name, tmp_path)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"input_ids": [k, k + 1, 2 * k, 3]}) + "\n" for k in range(8)))
    how = {"learn": str(data), "steps": 1, "batch_size": 4, "length": 4, "seed": 0, **LEARNING[name]}
    with pretended() as done:
        _, report = isomerge.align(b, onto=a, out=tmp_path / "there", align=True, device=NAME, **how)
    assert report["streams"][0]["learned"]["history"]
    assert done["mm"] + done["bmm"] > 0, done


def test_the_pretended_device_has_the_rules_of_a_real_one() -> None:
    """It refuses what a graphics card refuses: both memories in one operation, and numpy."""
    with pretended():
        x = torch.ones(3, 3, dtype=torch.float64, device=NAME)
        assert float((x @ x).sum()) == 27
        with pytest.raises(RuntimeError, match="same device"):
            _ = x + torch.ones(3, 3)
        with pytest.raises(RuntimeError):
            x.numpy()


def test_too_little_memory_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device, what was matched there, and two ways out."""
    a, b = pair("gpt2", tmp_path)

    def lacking(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("isomerge.matching.local.move_unit", lacking)
    with (
        pretended(),
        pytest.raises(
            IsomergeError, match=r"device='meta'.*: the device has too little memory to match .*device='cpu'"
        ),
    ):
        isomerge.merge([a, b], out=tmp_path / "out", device=NAME)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("name", RUNS)
def test_cuda_agrees_within_rounding(name: str, tmp_path: Path) -> None:
    """Sums in another order: the function is kept, and the tensors are those of the processor to 1e-5."""
    a, b = pair(name, tmp_path)
    isomerge.align(b, onto=a, out=tmp_path / "aligned", device="cuda", spaces=RUNS[name].get("spaces", "default"))
    assert relative(outputs(tmp_path / "aligned"), outputs(b)) <= 1e-5
    isomerge.merge([a, b], out=tmp_path / "here", **RUNS[name])
    isomerge.merge([a, b], out=tmp_path / "there", device="cuda", **RUNS[name])
    here, there = tensors(tmp_path / "here"), tensors(tmp_path / "there")
    assert max(float((there[k] - x).norm() / x.norm()) for k, x in here.items() if float(x.norm())) <= 1e-5

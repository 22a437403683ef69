"""Representation surgery: the learned correction, what of it a head can take, and the adapter that has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.merging.adapter.surgery import Correction, bias_of, head_of, learn
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import logits_of
from isomerge.observe.stats.taps import run_until
from observe.test_statistics import examples_for
from solve.disguises import perturb, single


def planted(rectified: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Representations, and the same with a bias of rank two taken away."""
    rng = torch.Generator().manual_seed(0)
    rows, down, up = (torch.randn(shape, generator=rng) for shape in ((400, 12), (2, 12), (12, 2)))
    true = Correction(down / 12**0.5, up / 2, None if rectified else torch.full((12,), 0.3), rectified)
    return rows, true(rows)


@pytest.mark.parametrize("rectified", [False, True])
def test_a_planted_bias_is_found(rectified: bool) -> None:
    """With the publication's relu and without; in another unit the same; equal seeds give equal numbers."""
    rows, wanted = planted(rectified)
    how: dict[str, Any] = {"steps": 600, "rate": 3e-2, "rectified": rectified, "constant": not rectified}
    found = learn(rows[:300], wanted[:300], rank=6, **how)
    before, after = bias_of(rows[300:], wanted[300:]), bias_of(found(rows[300:]), wanted[300:])
    assert after < 0.15 * before
    how["steps"] = 30
    few, again = (learn(rows[:300], wanted[:300], rank=6, **how) for _ in range(2))
    assert torch.equal(few.up, again.up)
    scaled = learn(100 * rows[:300], 100 * wanted[:300], rank=6, **how)
    torch.testing.assert_close(scaled(100 * rows), 100 * few(rows), rtol=1e-3, atol=1e-2)


def test_the_formula_and_its_steps() -> None:
    """``z - B relu(A z)``, the mean absolute difference, Adam: a loop of the test's own gives the same."""
    rows, wanted = planted(rectified=True)
    wanted = wanted / wanted.square().mean().sqrt()  # of unit size, in which the steps are taken
    found = learn(rows, wanted, rank=3, steps=5, rate=1e-2, seed=4, rectified=True, constant=False, batch=50)
    rng = torch.Generator().manual_seed(4)
    down = torch.empty(3, 12).uniform_(-(12**-0.5), 12**-0.5, generator=rng).requires_grad_(True)
    up = torch.zeros(12, 3, requires_grad=True)
    optimizer = torch.optim.Adam([down, up])
    for step in range(5):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / 5)
        chosen = torch.randint(400, (50,), generator=rng)
        z = rows[chosen]
        loss = torch.nn.functional.l1_loss(z - torch.relu(z @ down.T) @ up.T, wanted[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(found.down, down.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.up, up.detach(), rtol=1e-4, atol=1e-6)
    assert float(up.detach().abs().max()) > 1e-3


def test_what_a_head_takes() -> None:
    """The folded head gives on representations what the head gives on corrected ones; a relu has no such form."""
    rng = torch.Generator().manual_seed(1)
    down, up, shift, weight, bias, z = (
        torch.randn(shape, generator=rng, dtype=torch.float64)
        for shape in ((2, 8), (8, 2), (8,), (5, 8), (5,), (7, 8))
    )
    found = Correction(down, up, shift)
    head, constant = found.folded(weight, bias)
    assert constant is not None
    torch.testing.assert_close(z @ head.T + constant, found(z) @ weight.T + bias)
    head, none = Correction(down, up, None).folded(weight, None)
    assert none is None
    torch.testing.assert_close(z @ head.T, (z - z @ down.T @ up.T) @ weight.T)
    for wrong in (Correction(down, up, None, True), found):
        with pytest.raises(ValueError, match="affine"):
            wrong.folded(weight, None)


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama", "bert"])
def test_a_task_gets_its_head(name: str, tmp_path: Path) -> None:
    """Merged, operated on, and through disk: predictions come nearer to the task's own; heads with biases and
    without, tied and not; and the corrected head reads what the report says."""
    base = single(name, tmp_path / "base")
    one, two = (perturb(base, tmp_path / f"{k}", 0.5, seed=k) for k in (1, 2))
    isomerge.merge([one, two], out=tmp_path / "merged", method="linear", align=False)
    merged, data = tmp_path / "merged", examples_for(base, 48)
    report = isomerge.surgery(merged, one, data=data, out=tmp_path / "task", steps=300)
    assert report["after"] < report["before"], report
    assert report["notes"] == []
    whole = tmp_path / "whole"
    isomerge.merge([f"{merged}+{tmp_path / 'task'}"], out=whole, method="passthrough", align=False)
    own, mixed, mended = (load_module(folder) for folder in (one, merged, whole))
    batch = next(data.without_padding(48))
    with torch.no_grad():
        there, before, after = (logits_of(m, batch) for m in (own, mixed, mended))
    assert float((after - there).abs().mean()) < float((before - there).abs().mean())
    # nothing but the head has changed
    head = head_of(mixed, data)
    assert head == report["head"]
    reads = [run_until(m, batch, {(head, "in"): 1})[(head, "in")][0] for m in (mixed, mended)]
    torch.testing.assert_close(*reads)


def test_an_adapter_of_a_head_alone(tmp_path: Path) -> None:
    """In peft's format, a head whole and nothing else; two runs write the same bytes; labels are not used."""
    base = single("vit", tmp_path / "base")
    one = perturb(base, tmp_path / "one", 0.5, seed=1)
    data = dict(examples_for(base, 24).tensors)
    for number in (0, 1):
        data["labels"] = torch.full((24,), number)
        save_file(data, tmp_path / f"{number}.safetensors")
        isomerge.surgery(
            base, one, data=tmp_path / f"{number}.safetensors", out=tmp_path / f"out{number}", steps=20
        )
    files = [tmp_path / f"out{number}" / "adapter_model.safetensors" for number in (0, 1)]
    assert files[0].read_bytes() == files[1].read_bytes()
    tensors = load_file(files[0])
    assert set(tensors) == {"base_model.model.classifier.weight", "base_model.model.classifier.bias"}
    config = json.loads((tmp_path / "out0" / "adapter_config.json").read_text())
    assert (config["modules_to_save"], config["peft_type"]) == (["classifier"], "LORA")
    assert config["target_modules"] == "dummy-target-modules"  # peft refuses an empty list


def test_doubts_and_refusals(tmp_path: Path) -> None:
    """What gains nothing is told; what does not fit is refused in a sentence, and nothing is written."""
    base = single("vit", tmp_path / "base")
    one, body = perturb(base, tmp_path / "one", 0.5, seed=1), single("llama", tmp_path / "llama")
    data = examples_for(base, 24)
    same = isomerge.surgery(one, one, data=data, out=tmp_path / "same", steps=5, rate=1.0)
    assert "no nearer" in same["notes"][0]
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (one, {"rank": 0}, "rank=0"),
        (one, {"rate": 0.0}, "rate=0"),
        (one, {"judge_share": 1.0}, "judge_share=1"),
        (one, {"steps": 0}, "steps=0"),
        (body, {}, "reads input_ids"),
        (one, {"data": data.head(1)}, "cannot be split"),
    ]
    for task, how, words in wrong:
        with pytest.raises(IsomergeError, match=words):
            isomerge.surgery(base, task, **{"data": data, **how}, out=tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(IsomergeError, match="exists"):
        isomerge.surgery(base, one, data=data, out=tmp_path / "same")

"""Buffers that are stored and trained take part wherever weights do: on lines and planes, in averages, under
learning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.evidence.plane import loss_plane
from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.live.module_state import average, state_of
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.parameter_places import put_mean, weights_of
from isomerge.observe.losses import evaluate, outputs_of
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.learn.simplex import MatchedLine
from isomerge.solve.pairs.midpoint import Midpoint
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.pairs.stream_descent import StreamSolver
from observe.aligned import aligned_module
from toys import TOYS, overwrite, randomise, save_toy, tensors

STORED = {"deepseek_v3": "correction_bias", "marian": "final_logits_bias", "gemma4_text": "layer_scalar"}


def made(name: str, folder: Path, seed: int) -> Path:
    """A toy whose buffers are numbers of its own."""
    model = TOYS[name][0]().float().eval()
    randomise(model, seed)
    rng = torch.Generator().manual_seed(seed)
    for key, buffer in model.named_buffers():
        if STORED[name] in key:
            buffer.copy_(torch.randn(buffer.shape, generator=rng) * 0.5 + 1)
    model.tie_weights()
    model.save_pretrained(folder)
    return folder


def data(name: str, path: Path) -> Path:
    """Token ids, and what is to be written where a decoder writes."""
    rng = torch.Generator().manual_seed(5)
    rows = [{"input_ids": torch.randint(4, 60, (8,), generator=rng).tolist()} for _ in range(8)]
    if name == "marian":
        rows = [{**row, "labels": torch.randint(4, 60, (5,), generator=rng).tolist()} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", STORED)
def test_barrier_is_that_of_the_files(name: str, tmp_path: Path) -> None:
    """The end B has B's loss, the middle that of the average on disk; on the plane likewise."""
    a, b, c = (made(name, tmp_path / str(seed), seed) for seed in range(3))
    file = data(name, tmp_path / "data.jsonl")
    isomerge.merge([a, b], out=tmp_path / "average", align=False)
    examples = open_data(str(file), a, config=recognise(a).config)
    wanted = [evaluate(load_module(folder), examples).loss for folder in (a, tmp_path / "average", b)]
    (line,) = isomerge.barrier(a, b, data=str(file), points=3, spaces=["none"])["lines"]
    assert line["losses"] == pytest.approx(wanted, rel=1e-5)

    def run(module: torch.nn.Module) -> tuple[float, float]:
        return evaluate(module, examples).loss, 0.0

    plane = loss_plane(load_module(a), load_module(b), load_module(c), run, 2)
    assert plane.corner_losses == pytest.approx([*wanted[::2], run(load_module(c))[0]], rel=1e-5)


@pytest.mark.parametrize("name", STORED)
def test_averages_and_soups(name: str, tmp_path: Path) -> None:
    """They are what averaging the files gives, buffers among them; the modules stay."""
    a, b = (made(name, tmp_path / str(seed), seed) for seed in range(2))
    isomerge.merge([a, b], out=tmp_path / "average", align=False)
    wanted, modules = weights_of(load_module(tmp_path / "average")), [load_module(folder) for folder in (a, b)]
    assert any(STORED[name] in key for key in wanted)
    old = {key: x.clone() for key, x in weights_of(modules[1]).items()}
    put_mean(soup := load_module(a), [weights_of(module) for module in modules], [0.5, 0.5])
    for found in (weights_of(average(modules, [0.5, 0.5])), weights_of(soup)):
        assert all(torch.allclose(found[key], x, atol=1e-6) for key, x in wanted.items())
    assert all(torch.equal(x, old[key]) for key, x in weights_of(modules[1]).items())


@pytest.mark.parametrize("name", ["marian", "gemma4_text"])
def test_matched_lines_have_the_source_at_their_end(name: str, tmp_path: Path) -> None:
    """As weights that are put in, as a midpoint that is moved, and as a module of its own."""
    a, b = (recognise(made(name, tmp_path / str(seed), seed)) for seed in range(2))
    examples = open_data(str(data(name, tmp_path / "data.jsonl")), tmp_path / "0", config=a.config)
    batch = next(examples.batches(8))
    solver = StreamSolver(PairSolver(a, b, make_plan(b, [a], "all"), torch.float32, guard=False), lambda *_: None)
    solver.solve()
    line, middle = MatchedLine(solver, LearnSettings()), Midpoint(solver)
    middle.at(1.0)
    with torch.no_grad():
        wanted = outputs_of(load_module(b), batch).logits
        with line.standing_at([0.0, 1.0], None):
            found = [line.logits(batch)]
        found += [outputs_of(module, batch).logits for module in (middle.module, aligned_module(b))]
    for logits in found:
        assert float((logits - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())
    if name != "marian":  # its sinusoids are computed, so that no file has them
        assert any(STORED[name] in key for key in state_of(load_module(b), b))


def test_masks_of_truth_values_are_compared(tmp_path: Path) -> None:
    """Causal masks that older files carry do not stand in the way of a verdict."""
    one = save_toy("gpt2", tmp_path / "one")
    stored = tensors(one)
    overwrite(one, {**stored, "transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()})
    assert isomerge.verify(one, one)["same"]

"""Losses: against transformers' own, against arithmetic, and independent of batches and padding."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isomerge.errors import IsomergeError
from isomerge.evidence.barrier import ensemble
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import divergence, evaluate, logits_of, targets_of
from isomerge.observe.predictions import CLASSES, prediction_of


class Fixed(nn.Module):
    """A module that answers with the logits it was made of."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        """The rows that the first token of every example names."""
        return SimpleNamespace(logits=self.logits[input_ids[:, 0]])


def batch_loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int, int | None]:
    """The sum of a batch's losses, how many predictions it is summed over, and how many of them are right."""
    kind, logits = prediction_of(module, batch.get("labels")), logits_of(module, batch)
    return kind.loss(logits, targets_of(batch, logits, kind))


IDS = torch.arange(1, 31).reshape(3, 10)
MASKED = torch.where(torch.arange(10) % 3 == 0, IDS, -100)
CASES = {
    "bert-relu": {"input_ids": IDS, "labels": torch.tensor([0, 1, 1])},
    "vit": {"pixel_values": torch.linspace(-1, 1, 3 * 192).reshape(3, 3, 8, 8), "labels": torch.tensor([0, 4, 2])},
    "gpt2": {"input_ids": IDS},
    "llama": {"input_ids": IDS},
    "bert": {"input_ids": IDS, "labels": MASKED},
}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_transformers(name: str, toy: Callable) -> None:
    """The mean of our sums is the loss that the module computes itself."""
    batch = CASES[name]
    module = load_module(toy(name).folder)
    theirs = module(**batch, **({} if "labels" in batch else {"labels": batch["input_ids"]})).loss
    loss, count, _ = batch_loss(module, batch)
    assert count == {"gpt2": 27, "llama": 27, "bert": 12}.get(name, 3)
    assert loss.requires_grad
    assert (loss / count).item() == pytest.approx(theirs.item(), rel=1e-5)
    found = evaluate(module, Examples(batch, True), 2)
    assert found.loss == pytest.approx(theirs.item(), rel=1e-5)
    assert found.examples == 3
    language = module(**{k: v for k, v in batch.items() if k != "labels"}).logits.ndim == 3
    assert found.perplexity == (pytest.approx(exp(found.loss)) if language else None)


def test_encoder_decoder(toy: Callable) -> None:
    """What the decoder reads is given; -100 is not predicted."""
    module = load_module(toy("t5-relu").folder)
    module.config.decoder_start_token_id = 0
    labels = torch.where(torch.arange(10) < 7, IDS, -100)
    shifted = torch.cat([torch.zeros(3, 1, dtype=torch.int64), labels[:, :-1].clamp_min(0)], 1)
    batch = {"input_ids": IDS, "decoder_input_ids": shifted, "labels": labels}
    loss, count, _ = batch_loss(module, batch)
    assert count == 21
    assert (loss / count).item() == pytest.approx(module(input_ids=IDS, labels=labels).loss.item(), rel=1e-5)


@settings(max_examples=15)
@given(cut=st.integers(2, 9), size=st.integers(1, 4))
def test_padding_and_batches_change_nothing(cut: int, size: int, toy: Callable) -> None:
    """A causal loss on padded rows is that of the rows without padding, in batches of any size."""
    module = load_cached(toy("llama").folder)
    mask = torch.ones_like(IDS)
    mask[1, cut:] = 0
    padded = Examples({"input_ids": IDS * mask, "attention_mask": mask}, True)
    alone = [batch_loss(module, {"input_ids": row[None]}) for row in (IDS[0], IDS[1, :cut], IDS[2])]
    wanted = sum(x[0].item() for x in alone) / sum(x[1] for x in alone)
    found = evaluate(module, padded, size)
    assert found.loss == pytest.approx(wanted, rel=1e-5)
    assert found.accuracy == pytest.approx(sum(x[2] for x in alone) / sum(x[1] for x in alone))


LOADED: dict[Path, nn.Module] = {}


def load_cached(folder: Path) -> nn.Module:
    """One module for all of Hypothesis's examples."""
    return LOADED.setdefault(folder, load_module(folder))


def test_by_hand() -> None:
    """Two classes, four examples."""
    logits = torch.tensor([[log(3), 0.0], [0.0, log(3)], [0.0, 0.0], [log(9), 0.0]])
    batch = {"input_ids": torch.arange(4)[:, None], "labels": torch.tensor([0, 0, 1, 0])}
    found = evaluate(Fixed(logits), Examples(batch, True), 3)
    assert found.loss == pytest.approx((log(4 / 3) + log(4) + log(2) + log(10 / 9)) / 4)
    assert found.accuracy == 0.5
    assert found.perplexity is None


def test_ensemble() -> None:
    """The mean of probabilities, not of logits or losses."""
    one = Fixed(torch.tensor([[log(3), 0.0], [log(9), 0.0]]))  # 3/4, 9/10 for the first class
    two = Fixed(torch.tensor([[0.0, log(3)], [0.0, 0.0]]))  # 1/4, 1/2
    examples = Examples({"input_ids": torch.arange(2)[:, None], "labels": torch.tensor([0, 0])}, True)
    found = ensemble([one, two], examples, 1)
    assert found.loss == pytest.approx(-(log(1 / 2) + log(7 / 10)) / 2)
    assert found.chance == pytest.approx(log(2))
    same = ensemble([one, one], examples)
    assert same.loss == pytest.approx(evaluate(one, examples).loss)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=3, max_size=3))
def test_divergence(rows: list[list[float]]) -> None:
    """Never negative, zero for the mixture itself, and the sum that defines it."""
    a, b, c = (torch.tensor(row, dtype=torch.float64)[None] for row in rows)
    found = divergence([a, b], c)
    p = (a.softmax(-1) + b.softmax(-1)) / 2
    assert torch.allclose(found, (p * (p.log() - c.softmax(-1).log())).sum(-1), atol=1e-12)
    assert float(found) >= -1e-12
    assert float(divergence([a, b], CLASSES.mean([a, b]))) == pytest.approx(0, abs=1e-12)


def test_divergence_of_tokens() -> None:
    """The mean over the positions that count, with gradients."""
    rng = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(2, 3, 5, generator=rng, dtype=torch.float64) for _ in range(3))
    kept = torch.tensor([[True, True, False], [True, False, False]])
    each = [[float(divergence([a[n, k][None], b[n, k][None]], c[n, k][None])) for k in range(3)] for n in range(2)]
    found = divergence([a, b], c.requires_grad_(), kept)
    assert found.tolist() == pytest.approx([(each[0][0] + each[0][1]) / 2, each[1][0]])
    found.sum().backward()
    assert c.grad is not None
    assert bool((c.grad[~kept] == 0).all())
    assert bool((c.grad[kept] != 0).any())


def test_refusals(toy: Callable) -> None:
    """No labels, labels of another shape, inputs that a module does not know, nothing to predict, no numbers."""
    ids = torch.arange(2)[:, None]
    module = Fixed(torch.zeros(2, 3))
    cases = [
        (module, {"input_ids": ids}, "no labels"),
        (module, {"input_ids": ids, "labels": ids}, "do not fit"),
        (
            module,
            {"input_ids": ids, "labels": torch.tensor([1, 3])},
            r"label 3 is none of the 3 classes .*\(0 to 2\)",
        ),
        (module, {"input_ids": ids, "labels": torch.tensor([-1, -100])}, "label -1 is none of the 3 classes"),
        (module, {"pixel_values": ids}, "cannot read these examples"),
        (module, {"input_ids": ids, "labels": torch.tensor([-100, -100])}, "nothing to predict"),
        (Fixed(torch.full((2, 3), float("nan"))), {"input_ids": ids, "labels": torch.tensor([0, 1])}, "no numbers"),
        (load_cached(toy("gpt2").folder), {"input_ids": torch.tensor([[70, 2]])}, "cannot read these examples"),
    ]
    for one, batch, words in cases:
        with pytest.raises(IsomergeError, match=words):
            evaluate(one, Examples(batch, True))


def test_half_precision_is_widened() -> None:
    """Logits of half precision are summed in float32; labels are not given to the module."""
    module = Fixed(torch.zeros(2, 3, dtype=torch.bfloat16))
    batch = {"input_ids": torch.arange(2)[:, None], "labels": torch.tensor([0, 1])}
    logits = logits_of(module, batch)
    assert logits.dtype == torch.float32
    assert targets_of(batch, logits).tolist() == [0, 1]

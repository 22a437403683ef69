"""Kinds of prediction: their losses against transformers' own, their means and differences by their definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import isomerge
from evidence.heads import IDS, REPLACED, REWARDS, SEVERAL, head
from isomerge.errors import IsomergeError
from isomerge.evidence.barrier import ensemble
from isomerge.evidence.report.loss_facts import losses_of
from isomerge.evidence.report.loss_figures import loss_figure
from isomerge.fusion.regression import output_error
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import divergence, evaluate, logits_of
from isomerge.observe.predictions import CLASSES, LABELS, VALUES, prediction_of

MULTI = "multi_label_classification"
CASES = {
    "one output": ({"num_labels": 1}, REWARDS, VALUES, "squared units"),
    "several values": ({"num_labels": 3, "problem_type": "regression"}, SEVERAL * 2.5, VALUES, "squared units"),
    "several labels": ({"num_labels": 3, "problem_type": MULTI}, SEVERAL, LABELS, "nats per label"),
    "floats": ({"num_labels": 3}, SEVERAL, LABELS, "nats per label"),
    "classes": ({"num_labels": 3}, torch.arange(12) % 3, CLASSES, "nats"),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    """Of every ``problem_type``, and of those that transformers chooses itself."""
    config, labels, kind, unit = CASES[case]
    module = load_module(head(tmp_path / "m", 0, **config))
    examples = Examples({"input_ids": IDS, "labels": labels}, True)
    assert prediction_of(module, labels) is kind
    found = evaluate(module, examples, 5)
    assert found.unit == unit
    assert found.perplexity is None
    with torch.no_grad():
        theirs = module(input_ids=IDS, labels=labels)
    assert found.loss == pytest.approx(theirs.loss.item(), rel=1e-5)
    if kind is VALUES:
        assert found.accuracy is None
    elif kind is LABELS:
        assert found.accuracy == pytest.approx(float(((theirs.logits > 0) == (labels > 0.5)).float().mean()))


def test_replaced_tokens(tmp_path: Path) -> None:
    """An ELECTRA discriminator: binary per token, padding left out, as transformers has it."""
    module = load_module(head(tmp_path / "m", 0, "ElectraForPreTraining"))
    mask = torch.ones_like(IDS)
    mask[::2, 4:] = 0
    batch = {"input_ids": IDS * mask, "attention_mask": mask, "labels": REPLACED}
    found = evaluate(module, Examples(batch, True), 5)
    with torch.no_grad():
        theirs = module(**batch)
    assert found.loss == pytest.approx(theirs.loss.item(), rel=1e-5)
    right = ((theirs.logits > 0) == (REPLACED == 1))[mask == 1]
    assert found.accuracy == pytest.approx(float(right.float().mean()))
    assert (found.unit, found.perplexity) == ("nats per token", None)


def test_means_and_differences() -> None:
    """The mean of models: of probabilities, or of values; a difference is zero for the mean itself, and positive
    else."""
    rng = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(4, 3, generator=rng, dtype=torch.float64) for _ in range(3))
    for kind in (CLASSES, LABELS, VALUES):
        mean, probable = kind.mean([a, b]), (kind.outcome(a) + kind.outcome(b)) / 2
        assert torch.allclose(kind.outcome(mean), probable)
        assert torch.allclose(divergence([a, b], mean, kind=kind), torch.zeros(4, dtype=torch.float64), atol=1e-12)
        assert bool((divergence([a, b], c, kind=kind) > 0).all())
        entropy = kind.gap(mean, probable)  # the gap is the difference, and what the mean itself has
        assert torch.allclose(kind.gap(c, probable), kind.divergence(mean, c) + entropy)
    assert torch.allclose(LABELS.gap(a, SEVERAL[:4].double()), binary_cross_entropy_with_logits(
        a, SEVERAL[:4].double(), reduction="none").mean(-1))  # fmt: skip


@pytest.mark.parametrize("case", ["one output", "several labels"])
def test_what_lies_between(case: str, tmp_path: Path) -> None:
    """The loss rises, the ensemble is the mean of predictions, and what has no accuracy says so."""
    config, labels, kind, unit = CASES[case]
    folders = [head(tmp_path / str(seed), seed, **config) for seed in (0, 1)]
    examples = Examples({"input_ids": IDS, "labels": labels}, True)
    found = isomerge.barrier(*folders, data=examples, points=3, spaces="none", png=tmp_path / "x.png")
    (line,) = found["lines"]
    assert found["unit"] == unit
    assert len({round(x, 6) for x in line["losses"]}) == 3
    assert (tmp_path / "x.png").is_file()
    modules = [load_module(folder) for folder in folders]
    with torch.no_grad():
        outcome = sum(kind.outcome(logits_of(m, {"input_ids": IDS})) for m in modules) / 2
    shaped = labels.reshape(outcome.shape)
    wanted = (
        (outcome - shaped).square() if kind is VALUES else -(outcome * shaped + (1 - outcome) * (1 - shaped)).log()
    )
    assert ensemble(modules, examples).loss == pytest.approx(float(wanted.mean()), rel=1e-5)
    told = [line["midpoint"]["accuracy"], line["accuracies"], line["accuracy_drop"], found["ensemble"]["accuracy"]]
    assert all((x is None) == (kind is VALUES) for x in told)
    figure = loss_figure(losses_of(found))
    assert len(figure.plots) == (1 if kind is VALUES else 2)
    assert unit in figure.plots[0][0]
    assert (figure.table.rows[0][2] == "–") == (kind is VALUES)


def test_a_plane_of_values(tmp_path: Path) -> None:
    """Accuracies are None there as well."""
    folders = [head(tmp_path / str(seed), seed, num_labels=1) for seed in (0, 1, 2)]
    examples = Examples({"input_ids": IDS, "labels": REWARDS}, True)
    (plane,) = isomerge.barrier(*folders, data=examples, grid=2, spaces="none")["planes"]
    assert plane["accuracies"] is None
    assert plane["centroid"]["accuracy"] is None


@pytest.mark.parametrize("case", ["one output", "several labels"])
def test_learning_and_searching(case: str, tmp_path: Path) -> None:
    """Both learn and search from the models' predictions: what they lower is not zero before, and moves."""
    config, labels, kind, _ = CASES[case]
    a, b = (head(tmp_path / str(seed), seed, **config) for seed in (0, 1))
    for target in ("distill", "labels"):
        examples = Examples({"input_ids": IDS, "labels": labels}, True)
        options: Any = {"learn": examples, "steps": 6, "learn_target": target, "seed": 1}
        _, report = isomerge.align(b, onto=a, out=tmp_path / target, **options)
        learned = report["streams"][0]["learned"]
        assert learned["unit"] == kind.measure
        assert len({h["midpoint"] for h in learned["history"]}) > 2
    plain = Examples({"input_ids": IDS}, False)
    _, report = isomerge.align(b, onto=a, out=tmp_path / "searched", data=plain, search=1)
    found = report["streams"][0]["search"]
    assert found["unit"] == kind.measure
    assert found["divergence"]["search"][0] > 0
    error = output_error(load_module(a), [load_module(a), load_module(b)], [0.5, 0.5], plain)
    assert error["divergence"] > 0


def test_replaced_tokens_are_learned_without_padding(tmp_path: Path) -> None:
    """What stands in padding changes nothing."""
    a, b = (head(tmp_path / str(seed), seed, "ElectraForPreTraining") for seed in (0, 1))
    mask = torch.ones_like(IDS)
    mask[:, 5:] = 0
    found = []
    for fill in (0, 9):
        ids = torch.where(mask == 1, IDS, fill)
        examples = Examples({"input_ids": ids, "attention_mask": mask}, False)
        _, report = isomerge.align(b, onto=a, out=tmp_path / f"out{fill}", learn=examples, steps=2)
        found.append([h["midpoint"] for h in report["streams"][0]["learned"]["history"]])
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    with pytest.raises(IsomergeError, match="no labels"):
        evaluate(load_module(a), examples)


def test_fisher_information_is_of_distributions(tmp_path: Path) -> None:
    """Several labels at once are refused, as one output is."""
    folder = head(tmp_path / "m", 0, num_labels=3, problem_type=MULTI)
    examples = Examples({"input_ids": IDS, "labels": SEVERAL}, True)
    with pytest.raises(IsomergeError, match="several labels at once"):
        isomerge.stats(folder, data=examples, out=tmp_path / "x.safetensors", kinds="fisher")


def test_questions_have_no_loss_here(tmp_path: Path) -> None:
    """A head is there, of a kind that has no loss here: not that the model predicts nothing."""
    a, b = (head(tmp_path / str(seed), seed, "BertForQuestionAnswering") for seed in (0, 1))
    examples = Examples({"input_ids": IDS}, False)
    with pytest.raises(IsomergeError, match="BertForQuestionAnswering tells where an answer starts and ends"):
        isomerge.align(b, onto=a, out=tmp_path / "out", learn=examples, steps=1)
    isomerge.align(b, onto=a, out=tmp_path / "out", data=examples)

"""What lies between models, on data: the line between two, the plane through three, and the ends' ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from isomerge.evidence.line import Line
from isomerge.evidence.plane import Plane
from isomerge.observe.data.examples import Examples
from isomerge.observe.losses import Measure, Tally, evaluate, logits_of
from isomerge.observe.predictions import prediction_of
from isomerge.records import Change, Record, inline, optional


def evaluator(examples: Examples, batch_size: int = 32) -> Callable[[nn.Module], tuple[float, float]]:
    """A function from a module to its loss and accuracy (0..1; NaN where nothing is right or wrong) on labelled
    examples."""

    def run(module: nn.Module) -> tuple[float, float]:
        measure = evaluate(module, examples, batch_size)
        return measure.loss, float("nan") if measure.accuracy is None else measure.accuracy

    return run


def ensemble(modules: Sequence[nn.Module], examples: Examples, batch_size: int = 32) -> Measure:
    """The mean of several modules' predictions (probabilities, or values): what a merge could reach that kept what
    each of them knows.

    Costs a run of every module, where a merge costs one. It has the loss of a mere guess beside it.

    Raises:
        IsomergeError: examples without labels, or modules that cannot read them.
    """
    kind = prediction_of(modules[0], examples.tensors.get("labels"))
    tally, guess = Tally(kind), Tally(kind)
    with torch.no_grad():
        for batch in examples.batches(batch_size):
            logits = [logits_of(module, batch) for module in modules]
            mean = kind.mean([x.to(logits[0].device) for x in logits])
            tally.add(mean, batch)
            if tally.right and not guess.count:
                guess.add(torch.zeros_like(mean), batch)
    chance = guess.total / guess.count if guess.count else None
    return replace(tally.measure(len(examples)), chance=chance)


class LineReport(Record):
    """The figures of one line."""

    name: str
    line: Line = inline()
    distances: Sequence[Change] | None = optional()
    """Of the models that were aligned for it, to the first."""


class PlaneReport(Record):
    """The figures of one plane."""

    name: str
    plane: Plane = inline()
    distances: Sequence[Change] | None = optional()
    """As of `LineReport`."""

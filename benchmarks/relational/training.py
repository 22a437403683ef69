"""One run of the comparison: a fresh model, a number of steps at one peak learning rate, and what is remembered of
it."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from benchmarks.relational.arms import Arm, Optimizer
from benchmarks.relational.data import Task, cross_entropy, score
from benchmarks.relational.models import count_parameters
from benchmarks.relational.orbits import Wander

STEPS = 600
WARMUP = 60
MEASURED_EVERY = 20
PIECES = 20
"""Of so many pieces of the run, the mean training loss is kept."""


def learning_rate(peak: float, step: int, steps: int, warmup: int) -> float:
    """The learning rate of a step, counted from 0: a linear rise, then a cosine down to zero (which no step
    has)."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


@dataclass
class Clock:
    """Processor seconds of this process, one thread, by what they were spent on; other work on the machine does
    not count."""

    gradient: list[float] = field(default_factory=list)
    """Forward and backward, of each step."""
    update: list[float] = field(default_factory=list)
    """The optimiser, of each step."""

    def report(self) -> dict[str, float]:
        """Medians over steps, in milliseconds."""
        return {
            "gradient": 1000 * statistics.median(self.gradient),
            "update": 1000 * statistics.median(self.update),
        }


def gradient(model: torch.nn.Module, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """The loss on a batch in nats; leaves its gradients."""
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    return loss.item()


def fit(arm: Arm, task: Task, model: Any, seed: int, peak: float, steps: int, warmup: int) -> dict[str, Any]:
    """Train a model in place; stops where the loss is not finite.

    Returns:
        ``losses``: mean training loss in nats of each twentieth of the steps that were made; ``milliseconds``: see
        `Clock`; ``orbit``: see `Wander.report`, None without a gauge or where a loss was not finite; ``finite``:
        whether every loss was.
    """
    optimizer, groups = arm.optimizer(model.model)
    orbit = arm.orbit(model.model)
    wander = Wander(orbit, MEASURED_EVERY) if orbit.pairs() else None
    clock, losses = Clock(), []
    model.train()
    for step, (x, y) in enumerate(task.batches(seed, steps)):
        for group in groups:
            group["lr"] = learning_rate(peak, step, steps, warmup)
        began = time.process_time()
        losses.append(gradient(model, optimizer, x, y))
        clock.gradient.append(time.process_time() - began)
        if not math.isfinite(losses[-1]):
            break
        measured = wander is not None and wander.stepping(step)
        began = time.process_time()
        optimizer.step()
        clock.update.append(time.process_time() - began)
        if wander is not None and measured:
            wander.stepped()
    finite = math.isfinite(losses[-1])
    kept = torch.tensor(losses[: len(losses) if finite else -1]).tensor_split(PIECES)
    return {
        "finite": finite,
        "losses": [round(float(part.mean()), 4) for part in kept if len(part)],
        "milliseconds": clock.report() if clock.update else None,
        "orbit": wander.report() if wander and finite else None,
    }


def run(arm: Arm, task: Task, seed: int, peak: float, steps: int = STEPS, warmup: int = WARMUP) -> dict[str, Any]:
    """Train and test a fresh model.

    Args:
        arm: model and optimiser.
        task: the data.
        seed: of the initialisation and of the order of the examples.
        peak: the highest learning rate.
        steps: how many batches.
        warmup: over how many of them the learning rate rises.

    Returns:
        A JSON object: what `fit` returns; ``parameters``; ``validation`` and ``test``: loss (nats) and accuracy,
        or None where they are not finite; ``seconds`` of wall clock and ``processor_seconds``, tests and
        measurements included.
    """
    began, spent = time.perf_counter(), time.process_time()
    model = arm.model(task.name, seed)
    found = fit(arm, task, model, seed, peak, steps, warmup)
    model.eval()
    for part in ("validation", "test"):
        scores = asdict(score(model, *task.part(part))) if found["finite"] else {"loss": math.inf}
        found[part] = scores if math.isfinite(scores["loss"]) else None
    return {
        "parameters": count_parameters(model),
        **found,
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - spent, 1),
    }

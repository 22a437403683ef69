"""Learned matching: all continuous spaces at once, by gradient on the loss between the models.

The simplex (of two models, a line) lies between the first model and the others as they are moved, all in the
canonical frame (gains folded, gauges balanced) of the first one's own architecture. A step draws a point of it,
every second one the point that will be written, and a batch, and moves all models but the first along their orbits
so that the loss there falls: labels where there are some, else the mean of the models' predictions. What is kept is
the step whose worst judged point is lowest, on examples that are held out: one point alone can be bought by moving
the barrier elsewhere. The result is an exact symmetry, whatever was learned.

Sources: Theus et al. 2025 (learned matching of residual streams), Ainsworth et al. 2023 and Pena et al. 2023
(straight-through and Sinkhorn permutations), Becigneul and Ganea 2019 (Riemannian Adam).

Several models are learned one after the other onto the mean of those before it, then all together. In the middle
of many models that nothing has brought together yet, the loss says little about any one of them: learned all at
once, five digits ViTs ended at 69 % (docs/guide/many-models.md). The mean of those that are together already is a
model that works, and on the line to it the next one finds its place as one of two does. What is then learned
together is little, at low rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.smooth import RiemannianAdam, SmoothElements
from isomerge.observe.data.examples import Examples
from isomerge.observe.losses import check_own_loss, targets_of
from isomerge.observe.predictions import prediction_of
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.solve.learn.settings import (
    LearnSettings,
    backward,
    batch_size_of,
    counted,
    held_out,
    shifted,
    softened,
)
from isomerge.solve.learn.simplex import MatchedSimplex
from isomerge.solve.unfinished_run import load_parts, save_parts
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import Stage

# Seconds between two saved states.
SAVE_EVERY = 20.0
LOOKS = (5, 7, 8, 9)
"""Tenths of the steps at which a path is judged, beside its start and its end: before, it is far from what it will
be."""
GENTLY = 0.1
"""The rates of what is learned together, as parts of the usual ones: at these, three models were torn apart
again."""


@dataclass
class Learned:
    """What was learned: elements that act after the solver's, and the record of the run."""

    elements: list[dict[str, Tensor]]
    """Of every model but the first."""
    report: Json = field(default_factory=dict)


class Learner:
    """Learns the elements that lower the loss inside a simplex or along a line.

    Args:
        simplex: what to start from.
        examples: what it is learned from; a part is held out to judge.
        state: where the state is kept for a run that is interrupted.
        observer: told of steps done and of the current loss.

    Raises:
        IsomergeError: nothing continuous is matched, or the examples are too few, or without the labels asked for.
    """

    def __init__(self, simplex: MatchedSimplex, examples: Examples, state: Path, observer: Observer) -> None:
        self.simplex, self.observer, self.state, self.settings = simplex, observer, state, simplex.settings
        self.prepare(examples)
        self.elements = LearnedElements(*simplex.learnable(), len(simplex.shares) - 1, self.settings)

    def prepare(self, examples: Examples) -> None:
        """Decide what is learned from, how it is judged, and how many examples a step takes.

        Raises:
            IsomergeError: labels are asked for and not there, or there are too few examples.
        """
        settings = self.settings
        self.kind = prediction_of(self.simplex.module, examples.tensors.get("labels"))
        self.target = settings.target
        if self.target == "auto":  # hard labels of a few images are learned by heart: predictions say more
            own_text = examples.labelled and "labels" not in examples.tensors
            self.target = "labels" if own_text else "distill"
        if self.target == "labels" and not examples.labelled:
            raise IsomergeError("the data have no labels: learn with --learn-target distill")
        if self.target == "labels":
            with self.simplex.standing_at(self._corners()[0], None):
                check_own_loss(self.simplex.module, next(examples.batches(1)), self.kind)
        if len(examples) < 2:
            raise IsomergeError(
                "--learn: a single example is too few, as one is held out to judge by: give more data"
            )
        self.held, self.examples = held_out(examples, settings)
        self.batch_size = settings.batch_size or batch_size_of(examples)
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.history: list[dict[str, float]] = []

    # -------------------------------------------------------------------- loss

    def loss(self, batch: Mapping[str, Tensor], wanted: Tensor | None, temperature: float = 1.0) -> Tensor:
        """The mean loss of the weights that are substituted now: in nats, or in squared units of values.

        Args:
            batch: inputs, with labels where they are the target.
            wanted: of `wanted`, at the same temperature; None for labels, which have none.
            temperature: what logits of whole examples are divided by.
        """
        logits = self.simplex.logits(batch)
        if wanted is None:
            total, count, _ = self.kind.loss(logits, targets_of(batch, logits, self.kind))
            return total / max(count, 1)
        kept = self.kind.gap(softened(logits, temperature), wanted)[counted(batch, logits)]
        return kept.sum() / max(kept.numel(), 1)

    def wanted(self, batch: Mapping[str, Tensor], temperature: float = 1.0) -> Tensor | None:
        """The mean of the models' predictions, where these are the target; of examples softened by a
        temperature."""
        if self.target == "labels":
            return None
        total: Tensor | None = None
        with torch.no_grad():
            for corner, share in zip(self._corners(), self.simplex.shares, strict=True):
                with self.simplex.standing_at(corner, None):
                    part = share * self.kind.outcome(softened(self.simplex.logits(batch), temperature))
                total = part if total is None else total + part
        return total

    def _corners(self) -> list[list[float]]:
        """The models themselves, as points."""
        count = len(self.simplex.shares)
        return [[float(k == m) for k in range(count)] for m in range(count)]

    def judge(self) -> Json:
        """The held-out loss at the judged points in excess of the models' own, its maximum, and it where is
        written."""
        points = self.simplex.points()
        with torch.no_grad():
            stages = self.elements.stages()
            excess = []
            for point in points:
                chord = sum(w * end for w, end in zip(point, self.ends, strict=True))
                excess.append(self._loss_at(point, stages) - chord)
        return {"excess": excess, "barrier": max(excess), "midpoint": excess[points.index(self.simplex.shares)]}

    @cached_property
    def ends(self) -> list[float]:
        """The held-out losses of the models themselves, which nothing that is learned changes."""
        return [self._loss_at(corner, None) for corner in self._corners()]

    def _loss_at(self, point: Sequence[float], stages: Sequence[Stage] | None) -> float:
        total, count = 0.0, 0
        with self.simplex.standing_at(point, stages):
            for batch, wanted in self.judged:
                n = len(next(iter(batch.values())))
                total, count = total + float(self.loss(batch, wanted)) * n, count + n
        return total / count

    @cached_property
    def judged(self) -> list[tuple[dict[str, Tensor], Tensor | None]]:
        """The held-out batches with their targets; images are shifted as those that are learned from."""
        judged_batches = []
        for number, batch in enumerate(self.held.batches(max(self.batch_size, 32))):
            inputs = {name: x.to(self.settings.device) for name, x in batch.items()}
            if self.settings.shifts:
                inputs = shifted(inputs, torch.Generator().manual_seed(number))
            judged_batches.append((inputs, self.wanted(inputs)))
        return judged_batches

    # --------------------------------------------------------------------- run

    def run(self) -> Learned:
        """Learn; an interrupted run goes on where its state was saved."""
        self._resume()
        steps, saved = self.settings.steps, monotonic()
        looks = {0, steps, *(steps * k // 10 for k in LOOKS)}
        for batch in self._batches(self.elements.steps_taken):
            number = self.elements.steps_taken
            if number in looks:
                self._keep_if_better(number)
            if number >= steps:
                break
            if not self._step(number, batch):
                self._check_gained(number)
                break
            if monotonic() - saved > SAVE_EVERY:
                self._save()
                saved = monotonic()
        assert self.best is not None
        self.elements.load(self.best[1])
        report = {
            "target": self.target,
            **({"temperature": self.settings.temperature} if self._is_softened() else {}),
            "unit": self.kind.measure,
            "steps": steps,
            "batch_size": self.batch_size,
            "examples": len(self.examples),
            "held_out": len(self.held),
            "barrier": self.best[0],
            "history": self.history,
            **({"diverged": self.elements.steps_taken} if self.elements.steps_taken < steps else {}),
        }
        return Learned(self.elements.solution(), report)

    def _is_softened(self) -> bool:
        """Whether the targets are predictions of whole examples."""
        wanted = self.judged[0][1]
        return wanted is not None and wanted.ndim == 2

    def _step(self, number: int, batch: Mapping[str, Tensor]) -> bool:
        """One step; returns whether its loss and gradients are finite, without which nothing is changed."""
        rng = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        point = self.simplex.shares if number % 2 == 0 else self.simplex.drawn(rng)
        if self.settings.shifts:
            batch = shifted(batch, rng)
        heat = self.settings.temperature
        wanted = self.wanted(batch, heat)
        with self.simplex.standing_at(point, self.elements.stages()):
            loss = self.loss(batch, wanted, heat)
            if not bool(loss.isfinite()):
                return False
            backward(loss)
        if not self.elements.have_finite_gradients():
            return False
        self.elements.step()
        self.observer(f"learning, loss {float(loss.detach()):.3f}", number + 1, self.settings.steps)
        return True

    def _check_gained(self, number: int) -> None:
        """After a step that diverged what was best before it is kept.

        Raises:
            IsomergeError: nothing was better than the start.
        """
        if self.best is None or self.best[0] >= self.history[0]["barrier"]:
            raise IsomergeError(
                f"learning diverged at step {number} (its loss or a gradient is not a finite number): learn with "
                "--precision float32 or fewer --steps, or give other data with --learn"
            )

    def _batches(self, first: int) -> Iterator[dict[str, Tensor]]:
        """Batches from step ``first`` on, an epoch after the other, each in an order of its own."""
        size = min(self.batch_size, len(self.examples))
        per_epoch = max(len(self.examples) // size, 1)
        epoch, skip = divmod(first, per_epoch)
        while True:
            seed = self.settings.seed * 7919 + epoch
            for k, batch in enumerate(self.examples.batches(size, shuffle_seed=seed, drop_last=True)):
                if k >= skip:
                    yield {name: x.to(self.settings.device) for name, x in batch.items()}
            epoch, skip = epoch + 1, 0

    def _keep_if_better(self, number: int) -> None:
        if self.history and self.history[-1]["step"] >= number:
            return  # a resumed run has judged this step already
        losses = self.judge()
        self.history.append({"step": number, "barrier": losses["barrier"], "midpoint": losses["midpoint"]})
        if self.best is None or losses["barrier"] < self.best[0]:
            self.best = (losses["barrier"], self.elements.state())
        self._save()

    # ------------------------------------------------------------------- state

    def _save(self) -> None:
        parts = {"now": self.elements.state(), "optimiser": self.elements.optimiser_state()}
        if self.best is not None:
            parts["best"] = self.best[1]
        best = None if self.best is None else self.best[0]
        save_parts(self.state, parts, {"history": self.history, "best": best})

    def _resume(self) -> None:
        kept = load_parts(self.state)
        if kept is None:
            return
        parts, about = kept
        self.elements.load(parts["now"], parts["optimiser"])
        self.history = about["history"]
        if "best" in parts:
            self.best = (about["best"], parts["best"])


def learn_together(
    simplex: MatchedSimplex, examples: Examples, blob: Callable[[str], Path], observer: Observer
) -> Learned:
    """What is learned of every model but the first; as many steps for each that joins as for all together.

    Args:
        simplex: between the models as they are matched, in the order in which they join.
        examples: what it is learned from.
        blob: where a state of some name is kept for a run that is interrupted.
        observer: told of the steps done of all.

    Raises:
        IsomergeError: see `Learner`.
    """
    count, steps = len(simplex.shares), simplex.settings.steps
    if count == 2:
        learned = Learner(simplex, examples, blob("learning-all.safetensors"), observer).run()
        learned.report["points"] = simplex.points()
        return learned
    joined: list[LearnedElements] = []
    reports = []
    for m in range(1, count):
        line = simplex.joining(m, [elements.stages()[0] for elements in joined])
        tell = partial(_tell, observer, f"model {m + 1} of {count}: ", steps * (m - 1), steps * count)
        learner = Learner(line, examples, blob(f"learning-{m}.safetensors"), tell)
        reports.append(learner.run().report)
        joined.append(learner.elements)
    tell = partial(_tell, observer, "all together: ", steps * (count - 1), steps * count)
    learner = Learner(simplex.gently(GENTLY), examples, blob("learning-all.safetensors"), tell)
    learner.elements.join([elements.state() for elements in joined])
    learned = learner.run()
    learned.report |= {"points": simplex.points(), "joining": reports}
    return learned


def _tell(observer: Observer, what: str, before: int, total: int, text: str, done: int, _: int) -> None:
    observer(what + text, before + done, total)


class LearnedElements:
    """The learnable elements of every model but the first, identities to begin with, and their optimisers.

    Args:
        spec: of all spaces that are matched.
        keys: of elements; those of continuous spaces are learned.
        count: of models that are moved.
        settings: device, rates and steps.

    Raises:
        IsomergeError: no space is continuous.
    """

    def __init__(self, spec: Spec, keys: Sequence[str], count: int, settings: LearnSettings) -> None:
        self.parts = [
            SmoothElements(spec, keys, settings.device, permutations=settings.permutations) for _ in range(count)
        ]
        if not self.parts[0].parameters():
            raise IsomergeError("nothing can be learned: no continuous space is chosen; add some with --spaces")
        rates = (settings.rotation_rate, settings.gauge_rate, settings.steps, min(20, settings.steps))
        self.optimisers = [RiemannianAdam(part, *rates) for part in self.parts]

    def stages(self) -> list[Stage]:
        """The elements as they act now, with gradients."""
        return [Stage(part.acting, part.elements()) for part in self.parts]

    def solution(self) -> list[dict[str, Tensor]]:
        """The elements in float64, exactly in their groups."""
        return [part.solution() for part in self.parts]

    @property
    def steps_taken(self) -> int:
        """Steps taken, of all models alike."""
        return self.optimisers[0].step_number

    def have_finite_gradients(self) -> bool:
        """Whether every gradient is: a step along any other would leave numbers that no element has."""
        every = (x.grad for part in self.parts for x in part.parameters().values())
        return all(bool(grad.isfinite().all()) for grad in every if grad is not None)

    def step(self) -> None:
        """One step of every model; gradients are cleared."""
        for optimiser in self.optimisers:
            optimiser.step()

    # ------------------------------------------------------------------- state

    def state(self) -> dict[str, Tensor]:
        """All parameters, for a file."""
        return _numbered([part.state() for part in self.parts])

    def optimiser_state(self) -> dict[str, Tensor]:
        """All moments, for a file."""
        return _numbered([optimiser.state() for optimiser in self.optimisers])

    def load(self, state: Mapping[str, Tensor], optimiser_state: Mapping[str, Tensor] | None = None) -> None:
        """Take parameters back from `state`, and moments from `optimiser_state`."""
        for part, own in zip(self.parts, self._split(state), strict=True):
            part.load(own)
        if optimiser_state is not None:
            for optimiser, own in zip(self.optimisers, self._split(optimiser_state), strict=True):
                optimiser.load(own)

    def join(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take every model's parameters from a `state` of its own."""
        for part, state in zip(self.parts, states, strict=True):
            part.load(state)

    def _split(self, state: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        every: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for name, x in state.items():
            number, _, key = name.rpartition("|")
            every[int(number or 0)][key] = x
        return every


def _numbered(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One mapping of several; keys begin with the number of their model where there are more than one."""
    if len(states) == 1:
        return dict(states[0])
    return {f"{k}|{key}": x for k, state in enumerate(states) for key, x in state.items()}

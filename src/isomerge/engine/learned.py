"""Learned matching: all continuous spaces at once, by gradient on the loss between the models.

The line runs from the anchor to the moved source, both in the canonical frame (gains folded, gauges balanced) of the
anchor's own architecture. A step draws a point of the line and a batch, and moves the source along its orbit so that the
loss there falls: labels where there are some, else the mean of the endpoints' predictions. What is kept is the step
whose maximum over the whole path is lowest, on examples that are held out: a midpoint alone can be bought by moving
the barrier elsewhere. The result is an exact symmetry, whatever was learned.

Sources: Theus et al. 2025 (learned matching of residual streams), Ainsworth et al. 2023 and Pena et al. 2023
(straight-through and Sinkhorn permutations), Becigneul and Ganea 2019 (Riemannian Adam).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from isomerge.engine.learning import backward, batch_size_of, counted, shifted
from isomerge.engine.matched_line import MatchedLine, substituted
from isomerge.errors import IsomergeError
from isomerge.matching.smooth import RiemannianAdam, SmoothElements
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.stage import Stage

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.data.examples import Examples

# The points at which a path is judged: its maximum is what counts.
PATH = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Seconds between two saved states.
SAVE_EVERY = 20.0


@dataclass
class Learned:
    """What was learned: elements that act after the solver's, and the record of the run."""

    elements: dict[str, Tensor]
    report: dict[str, Any] = field(default_factory=dict)


class Learner:
    """Learns the elements that lower the loss along a line.

    Args:
        line: the line to start from.
        examples: what it is learned from; a part is held out to judge.
        state: where the state is kept for a run that is interrupted.
        observer: told of steps done and of the current loss.
    """

    def __init__(
        self, line: MatchedLine, examples: Examples, state: Path, observer: Callable[[str, int, int], None]
    ) -> None:
        settings = line.settings
        self.line, self.observer, self.state, self.settings = line, observer, state, settings
        self.prepare(examples)
        solver = line.solver
        keys = [k for unit in solver.pair.plan.units if solver.is_matched(unit) for k in unit.elements]
        keys = [*dict.fromkeys(k for k in keys if not k.startswith("shift."))]
        full = Alignment(solver.frame) @ Alignment(solver.local)
        self.elements = SmoothElements(
            full.spec, [*solver.frame.streams, *keys], settings.device, permutations=settings.permutations
        )
        if not self.elements.parameters():
            raise IsomergeError("nothing can be learned: no continuous space is chosen; add some with --spaces")
        self.optimiser = RiemannianAdam(
            self.elements, settings.rotation_rate, settings.gauge_rate, settings.steps, min(20, settings.steps)
        )

    def prepare(self, examples: Examples) -> None:
        """Decide what is learned from, how it is judged, and how many examples a step takes.

        Raises:
            IsomergeError: labels are asked for and not there, or there are too few examples.
        """
        settings = self.settings
        self.target = settings.target
        if self.target == "auto":  # hard labels of a few images are learned by heart: predictions say more
            own_text = examples.labelled and "labels" not in examples.tensors
            self.target = "labels" if own_text else "distill"
        if self.target == "labels" and not examples.labelled:
            raise IsomergeError("the data have no labels: learn with --learn-target distill")
        if len(examples) < 2:
            raise IsomergeError(
                "--learn: a single example is too few, as one is held out to judge by: give more data"
            )
        held, self.examples = examples.split(max(settings.held_out, 0.6 / len(examples)), seed=settings.seed)
        self.held = held.head(settings.judged)
        self.batch_size = settings.batch_size or batch_size_of(examples)
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.history: list[dict[str, float]] = []

    def stage(self) -> Stage:
        """The learned elements as they act now."""
        return Stage(self.elements.acting, self.elements.elements())

    # -------------------------------------------------------------------- loss

    def loss(self, batch: Mapping[str, Tensor], wanted: Tensor | None) -> Tensor:
        """The mean loss in nats of the substituted weights."""
        import torch

        from isomerge.evidence.losses import loss_of_logits, targets_of

        logits = self.line.logits(batch)
        if wanted is None:
            total, count, _ = loss_of_logits(logits, targets_of(batch, logits))
            return total / max(count, 1)
        gap = -(wanted * torch.log_softmax(logits, -1)).sum(-1)
        kept = gap[counted(batch, logits)]
        return kept.sum() / max(kept.numel(), 1)

    def wanted(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """The mean of the endpoints' predictions, where these are the target."""
        import torch

        if self.target == "labels":
            return None
        with torch.no_grad():
            parts = []
            for t in (0.0, 1.0):
                with substituted(self.line.module, self.line.point(t, None)):
                    parts.append(self.line.logits(batch).softmax(-1))
        return (parts[0] + parts[1]) / 2

    def judge(self) -> dict[str, Any]:
        """The path on the held-out examples: excess loss over the straight line between the endpoints', and its maximum."""
        import torch

        with torch.no_grad():
            stage = Stage(self.elements.acting, self.elements.elements())
            ends = [self._held_loss(t, stage) for t in (0.0, 1.0)]
            excess = [self._held_loss(t, stage) - ((1 - t) * ends[0] + t * ends[1]) for t in PATH]
        return {"excess": excess, "barrier": max(excess), "midpoint": excess[len(PATH) // 2]}

    def _held_loss(self, t: float, stage: Stage) -> float:
        total, count = 0.0, 0
        with substituted(self.line.module, self.line.point(t, stage)):
            for batch, wanted in self.judged:
                n = len(next(iter(batch.values())))
                total, count = total + float(self.loss(batch, wanted)) * n, count + n
        return total / count

    @cached_property
    def judged(self) -> list[tuple[dict[str, Tensor], Tensor | None]]:
        """The held-out batches with their targets; images are shifted as those that are learned from."""
        import torch

        found = []
        for number, batch in enumerate(self.held.batches(max(self.batch_size, 32))):
            here = {name: x.to(self.settings.device) for name, x in batch.items()}
            if self.settings.shifts:
                here = shifted(here, torch.Generator().manual_seed(number))
            found.append((here, self.wanted(here)))
        return found

    # --------------------------------------------------------------------- run

    def run(self) -> Learned:
        """Learn; an interrupted run goes on where its state was saved."""
        self._resume()
        steps, saved = self.settings.steps, monotonic()
        looks = {0, steps, *(steps * k // 10 for k in range(4, 10))}
        for batch in self._batches(self.optimiser.step_number):
            number = self.optimiser.step_number
            if number in looks:
                self._keep_if_better(number)
            if number >= steps:
                break
            self._step(number, batch)
            if monotonic() - saved > SAVE_EVERY:
                self._save()
                saved = monotonic()
        assert self.best is not None
        self.elements.load(self.best[1])
        report = {
            "target": self.target,
            "steps": steps,
            "batch_size": self.batch_size,
            "examples": len(self.examples),
            "held_out": len(self.held),
            "barrier": self.best[0],
            "history": self.history,
        }
        return Learned(self.elements.solution(), report)

    def _step(self, number: int, batch: Mapping[str, Tensor]) -> None:
        import torch

        rng = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        t = 0.5 if number % 2 == 0 else float(torch.rand((), generator=rng)) * 0.5 + 0.25
        if self.settings.shifts:
            batch = shifted(batch, rng)
        wanted = self.wanted(batch)
        with substituted(self.line.module, self.line.point(t, self.stage())):
            loss = self.loss(batch, wanted)
            if not bool(loss.isfinite()):
                raise IsomergeError(
                    f"learning diverged at step {number} (loss {float(loss.detach())}): learn with --precision float32, or give other data with --learn"
                )
            backward(loss)
        self.optimiser.step()
        self.observer(f"learning, loss {float(loss.detach()):.3f}", number + 1, self.settings.steps)

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
        found = self.judge()
        self.history.append({"step": number, "barrier": found["barrier"], "midpoint": found["midpoint"]})
        if self.best is None or found["barrier"] < self.best[0]:
            self.best = (found["barrier"], self.elements.state())
        self._save()

    # ------------------------------------------------------------------- state

    def _save(self) -> None:
        import json
        import os

        from safetensors.torch import save_file

        parts = {"now": self.elements.state(), "optimiser": self.optimiser.state()}
        if self.best is not None:
            parts["best"] = self.best[1]
        tensors = {f"{part}/{k}": v.contiguous() for part, d in parts.items() for k, v in d.items()}
        about = {"history": self.history, "best": None if self.best is None else self.best[0]}
        beside = self.state.with_suffix(".new")
        save_file(tensors, str(beside), metadata={"isomerge": json.dumps(about)})
        os.replace(beside, self.state)

    def _resume(self) -> None:
        import json

        from safetensors import safe_open

        if not self.state.exists():
            return
        parts: dict[str, dict[str, Tensor]] = {}
        with safe_open(str(self.state), "pt") as file:
            about = json.loads((file.metadata() or {})["isomerge"])
            for name in file.keys():  # noqa: SIM118
                part, _, key = name.partition("/")
                parts.setdefault(part, {})[key] = file.get_tensor(name)
        self.elements.load(parts["now"])
        self.optimiser.load(parts["optimiser"])
        self.history = about["history"]
        if "best" in parts:
            self.best = (about["best"], parts["best"])

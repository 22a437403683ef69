"""The midpoint of a matched line as a live module, cheap to change unit by unit, and how far it is from its
parents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isomerge.observe.data.examples import Examples
from isomerge.observe.live.parameter_places import every_weight, places_of
from isomerge.observe.live.substitution import untied_module
from isomerge.observe.losses import divergence, logits_of
from isomerge.observe.predictions import Prediction, prediction_of
from isomerge.observe.stats.taps import SeenEnough, listening, spread_rows
from isomerge.solve.canonical.canonical_units import weights_of
from isomerge.solve.learn.settings import batch_size_of, counted
from isomerge.solve.pairs.stream_descent import StreamSolver, UnitPair
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block

# Images in one batch.
IMAGES = 64
# No more than so many examples are judged by, and so many numbers of targets kept: half a gigabyte of float32.
JUDGED, LARGEST = 256, 1 << 27
# So many batches serve the functional cost.
FUNCTIONAL = 4
# A change that is worse by this factor on the first batches is not judged on the others.
SLACK = 1.01


@dataclass(frozen=True)
class Judged:
    """Examples in batches with the mean of the parents' predictions on them."""

    batches: list[dict[str, Tensor]]
    targets: list[Tensor]
    """Logits of the mean prediction, per batch."""
    unpadded: list[dict[str, Tensor]]
    """The first `FUNCTIONAL` batches without padding, to read activations from."""
    count: int
    kind: Prediction


def batches_of(examples: Examples) -> list[dict[str, Tensor]]:
    """Examples in batches of a size that one core likes."""
    return list(examples.batches(batch_size_of(examples, IMAGES)))


def unpadded_batches(examples: Examples) -> list[dict[str, Tensor]]:
    """The same without padding, to read activations from."""
    return list(examples.without_padding(batch_size_of(examples, IMAGES)))


class Midpoint:
    """The mean of the anchor and of the source as the solver has placed it, both in the anchor's canonical frame.

    Args:
        solver: a solver after its descent; its state is read, and followed when it is told (`replace`, `rebuild`).
        device: where the module runs.
    """

    def __init__(self, solver: StreamSolver, device: str = "cpu") -> None:
        anchor = solver.pair.anchor
        self.solver, self.device = solver, device
        self.module: nn.Module = untied_module(anchor, device).requires_grad_(False)
        self.places, self.weights = places_of(self.module, anchor), every_weight(self.module)
        self.units = {unit.key: unit for unit in solver.pair.plan.units}
        self.t = 0.5
        self.placed: dict[str, UnitPair] = {}
        self.rebuild()
        for block in anchor.blocks:
            if block not in self.shared and block.canonical[0] in self.places:
                self._write(block, solver.units.folded(0, block))

    @property
    def shared(self) -> set[Block]:
        """The blocks that both models have."""
        return {block for unit in self.units.values() for block in unit.blocks}

    def rebuild(self, keys: Iterable[str] | None = None) -> None:
        """Take units from the solver as it stands, all of them by default."""
        for key in self.units if keys is None else keys:  # one by one: two of each would be another model
            self.placed[key] = self.solver.placed_unit(self.units[key]).without_taps()
            self.write([key])

    def replace(self, placed: Mapping[str, UnitPair]) -> None:
        """Put other units in the place of some."""
        self.placed |= placed
        self.write(placed)

    def turned(self, step: Alignment) -> dict[str, UnitPair]:
        """Every unit with the source moved by elements of the streams."""
        return {key: unit.moved(step) for key, unit in self.placed.items()}

    def write(self, keys: Iterable[str]) -> None:
        """Bring the module's weights of some units to the point ``t`` of the line."""

        for key in keys:
            unit = self.placed[key]
            for block, a in weights_of(unit.anchor).items():
                b = unit.source[block]
                self._write(block, torch.lerp(a, b, self.t) if self.t < 1 else b)

    def _write(self, block: Block, tensor: Tensor) -> None:
        for name, part in block.split(tensor):
            self.places.write(self.weights, name, part)

    def at(self, t: float) -> None:
        """Move the whole module to another point of the line: 0 is the anchor, 1 the source."""
        if t != self.t:
            self.t = t
            self.write(self.units)

    # ---------------------------------------------------------------- judging

    def judged(self, examples: Examples) -> Judged:
        """The first examples with their targets, from both ends of the line; as many as is affordable."""

        numbers = logits_of(self.module, next(examples.batches(1))).numel()
        examples = examples.head(max(1, min(len(examples), JUDGED, LARGEST // numbers)))
        batches = batches_of(examples)
        ends: list[list[Tensor]] = []
        for t in (0.0, 1.0):
            self.at(t)
            ends.append([logits_of(self.module, batch) for batch in batches])
        self.at(0.5)
        kind = prediction_of(self.module, examples.tensors.get("labels"))
        first = examples.head(min(len(examples), FUNCTIONAL * len(next(iter(batches[0].values())))))
        targets = [kind.mean(pair) for pair in zip(*ends, strict=True)]
        return Judged(batches, targets, unpadded_batches(first), len(examples), kind)

    def divergence(self, judged: Judged, known: Sequence[float] | None = None) -> list[float]:
        """KL(mean of the parents || midpoint) in nats, or the squared difference of values, summed over the
        examples of every batch.

        With ``known``, what it was before: stops after a batch where it is clearly above that, and returns the
        batches up to there.
        """

        sums: list[float] = []
        for batch, target in zip(judged.batches, judged.targets, strict=True):
            logits = logits_of(self.module, batch)
            sums.append(float(divergence([target], logits, counted(batch, logits), judged.kind).sum()))
            if known is not None and not sum(sums) <= sum(known[: len(sums)]) * SLACK:
                break
        return sums

    # ----------------------------------------------------------------- inputs

    def inputs(self, paths: Sequence[str], batches: Sequence[Mapping[str, Tensor]], rows: int) -> dict[str, Tensor]:
        """What submodules are given, [n, width] float32, up to ``rows`` rows each, spread evenly over the
        batches."""

        share = -(-rows // len(batches))
        rows_of: dict[str, list[Tensor]] = {path: [] for path in paths}
        for number, batch in enumerate(batches, 1):
            mask = batch.get("attention_mask")

            def keep(path: str, x: Tensor, mask: Tensor | None = mask, number: int = number) -> None:
                rows_of[path].append(spread_rows(x, mask, share))
                if all(len(parts) >= number for parts in rows_of.values()):
                    raise SeenEnough  # layers behind the last one that is asked for need not run

            with listening(self.module, [(path, path, "in") for path in paths], keep), suppress(SeenEnough):
                logits_of(self.module, batch)
        return {path: torch.cat(parts)[:rows] for path, parts in rows_of.items() if parts}

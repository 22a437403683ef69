"""Distances between two checkpoints: in all, per space and per layer, and what they mean in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import hypot, sqrt

from isomerge.matching.distances import BlockResidual, TensorGap
from isomerge.records import Json, Record, as_json, optional

FIXED = "fixed"
"""The tensors on which no space acts."""
SAME = {"F64": 1e-9, "F32": 1e-4, "F16": 5e-3, "BF16": 3e-2}
"""The largest relative residual that the rounding of a stored dtype explains, after a change of basis of condition
100: machine epsilon (1e-16, 6e-8, 5e-4, 4e-3) with room for sums over a layer. Half precisions have room for a
condition of about 30 only: more would hide real changes."""
ROUNDOFF = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
"""The largest relative error of one number that is rounded to a stored dtype."""


class Gap(Record):
    """Frobenius distances to the anchor, and the anchor's norm, over some tensors."""

    before: float
    after: float
    norm: float

    @property
    def share(self) -> tuple[float, float] | None:
        """Both distances in parts of the norm; None where there is nothing to compare with."""
        if self.norm == 0:
            return (0.0, 0.0) if self.before == self.after == 0 else None
        return self.before / self.norm, self.after / self.norm


class Spread(Record):
    """How far two models are apart, before and after alignment: in all, per space, per layer, and per layer and
    space."""

    total: Gap
    spaces: Mapping[str, Gap]
    layers: Mapping[str, Gap]
    cells: Mapping[str, Mapping[str, Gap]]
    """By layer, then by space; empty in reports of versions that did not tell."""
    parts: Mapping[str, Gap] | None = None
    """By what people call the spaces, each over the tensors on which a space of that name acts."""
    matrices: Gap | None = optional()
    """Over the matrices among `movable`: gains, most of which are about one, make strangers alike."""

    def document(self) -> Json:
        """The figures over all tensors, and the same under ``parts``, ``spaces`` and ``layers``."""
        more = {"parts": self.parts, "matrices": self.matrices}
        more = {key: as_json(value) for key, value in more.items() if value is not None}
        layers = {
            name: {**gap.document(), "spaces": as_json(self.cells[name])} for name, gap in self.layers.items()
        }
        return {**self.total.document(), **more, "spaces": as_json(self.spaces), "layers": layers}

    @property
    def movable(self) -> Gap:
        """Over the tensors that some space acts on; over all where none does. ``fixed`` are exactly the others.

        Where those are so large that nothing is left of the difference, the spaces, which overlap, say between what
        it lies.
        """
        fixed = self.spaces.get(FIXED)
        if fixed is None or set(self.spaces) == {FIXED}:
            return self.total
        whole, rest = (
            (self.total.before, self.total.after, self.total.norm),
            (fixed.before, fixed.after, fixed.norm),
        )
        moved = [(gap.before, gap.after, gap.norm) for name, gap in self.spaces.items() if name != FIXED]
        least, most = map(max, zip(*moved, strict=True)), map(hypot, *moved)
        return Gap(
            *(
                min(max(x * x - y * y, low * low), high * high) ** 0.5
                for x, y, low, high in zip(whole, rest, least, most, strict=True)
            )
        )

    def share_within(self, tolerance: float) -> tuple[float, float] | None:
        """Of the movable tensors, what `Gap.share` says; where it says that nothing is left but rounding, and a
        space is further apart than that, for the norm of another hides it: the share of that space. ``tolerance``
        is what rounding explains."""
        share = self.movable.share
        if share is None or share[1] > tolerance:
            return share
        each = [gap.share for name, gap in self.spaces.items() if name != FIXED]
        apart = [s for s in each if s is not None and s[1] > tolerance]
        return max(apart, key=lambda s: s[1], default=share)


def summarise(gaps: Iterable[TensorGap], names: Mapping[str, str] | None = None) -> Spread:
    """How far two models are apart, tensors together.

    Args:
        gaps: of the tensors.
        names: what people call the spaces (`isomerge.evidence.report.spaces.plain_names`), for ``parts``.
    """
    spaces, layers, parts = (defaultdict[str, list[TensorGap]](list) for _ in range(3))
    cells = defaultdict[str, dict[str, list[TensorGap]]](dict)
    every = list(gaps)
    for gap in every:
        layer, acting = "outside" if gap.layer is None else str(gap.layer), gap.spaces or [FIXED]
        layers[layer].append(gap)
        for space in acting:
            spaces[space].append(gap)
            cells[layer].setdefault(space, []).append(gap)
        for part in dict.fromkeys((names or {}).get(space, space) for space in acting):
            parts[part].append(gap)
    return Spread(
        _over(every),
        _each(spaces),
        _each(layers),
        {layer: _each(cells[layer]) for layer in layers},
        None if names is None else _each(parts),
        matrices=_over(matrices) if (matrices := [gap for gap in every if gap.matrix and gap.spaces]) else None,
    )


def _each(groups: Mapping[str, Iterable[TensorGap]]) -> dict[str, Gap]:
    return {name: _over(gaps) for name, gaps in groups.items()}


def _over(gaps: Iterable[TensorGap]) -> Gap:
    """Over all of some tensors; their squares are added one after the other."""
    before = after = norm = 0.0
    for gap in gaps:
        before, after, norm = before + gap.before, after + gap.after, norm + gap.norm
    return Gap(sqrt(before), sqrt(after), sqrt(norm))


RISEN = 1e-6
"""A distance that rises by less than this fraction is told by no line: rounding."""


def risen_note(distance: Gap, why: str, whose: str = "") -> list[str]:
    """A sentence that says that a distance rose, and why; none where it did not.

    Args:
        distance: of one source.
        why: what was lowered instead.
        whose: of several sources, the one that is meant.
    """
    before, after = distance.before, distance.after
    if after <= before * (1 + RISEN):
        return []
    return [f"the distance{whose and f' of {whose}'} rose from {before:.5g} to {after:.5g}: {why}"]


def why_risen(streams: Iterable[Json] = (), match: str = "") -> str:
    """What a match lowers where the distance may rise.

    Args:
        streams: what is said of passes over whole models.
        match: the published way that matched, where none of ours did.
    """
    streams = list(streams)
    if match:
        return f"--match {match} lowers what it was published for, and no distance"
    if any({"learned", "search", "functional", "input_metric"} & stream.keys() for stream in streams):
        return "what was learned or searched lowers the loss between the models, and no distance"
    if any("objective" in stream for stream in streams):
        return (
            "what is lowered is the objective between models with their gains folded and their heads and neurons "
            "balanced, where no gauge counts, and distances are those of the weights as they are written"
        )
    return (
        "a merge matches between balanced models, so that it does not depend on the gauges in which they are "
        "stored, and distances are those of the weights as they are written"
    )


def relative_residuals(rows: Sequence[BlockResidual]) -> tuple[float, str]:
    """The largest relative residual of any tensor of a unit, and which.

    Two measures, the larger counts: Frobenius norms, and the largest entry of the difference against the largest
    of the tensor, which a single exchanged row cannot hide from. A tensor far smaller than its fellows (a zero
    bias) is measured against a thousandth of their root mean square.
    """
    mean = sum(row.norm for row in rows) / max(len(rows), 1)
    residuals = [(0.0, "")]
    for row in rows:
        floor = max(1e-6 * mean, 1e-300)
        whole = sqrt(row.residual / max(row.norm, floor))
        local = row.peak_residual / max(row.peak, sqrt(floor / row.size))
        residuals.append((max(whole, local), row.tensor))
    return max(residuals)

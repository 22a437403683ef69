"""Distances between two checkpoints: in all, per space and per layer, and what they mean in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any

SAME = {"F64": 1e-9, "F32": 1e-4, "F16": 5e-3, "BF16": 3e-2}
"""The largest relative residual that the rounding of a stored dtype explains, after a change of basis of condition
100: machine epsilon (1e-16, 6e-8, 5e-4, 4e-3) with room for sums over a layer. Half precisions have room for a
condition of about 30 only: more would hide real changes."""
ROUNDOFF = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
"""The largest relative error of one number that is rounded to a stored dtype."""


def summarise(rows: Iterable[dict[str, Any]], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Figures for a report from per-tensor rows (squared ``before``, ``after``, ``norm``; ``spaces``, ``layer``).

    Args:
        rows: of the tensors.
        names: what people call the spaces (`isomerge.evidence.report.spaces.plain_names`): with it the same figures
            are given under ``parts``, each over the tensors on which a space of that name acts.

    Returns:
        ``before``, ``after``, ``norm`` (Frobenius over all tensors), and the same under ``spaces`` (over the
        tensors that a space acts on, so spaces overlap; ``fixed`` is the rest) and ``layers``, each of which has
        its ``spaces``; under ``matrices`` over all matrices that a space acts on, where rows say ``matrix``.
    """
    total: dict[str, float] = {"before": 0.0, "after": 0.0, "norm": 0.0}
    matrices: dict[str, float] = {}
    spaces: dict[str, dict[str, float]] = {}
    layers: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, float]] = {}
    cells: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        layer = "outside" if row.get("layer") is None else str(row["layer"])
        cell = cells.setdefault(layer, {})
        places = [total, layers.setdefault(layer, dict.fromkeys(total, 0.0))]
        for name in row["spaces"] or ["fixed"]:
            places += [group.setdefault(name, dict.fromkeys(total, 0.0)) for group in (spaces, cell)]
        for part in dict.fromkeys((names or {}).get(name, name) for name in row["spaces"] or ["fixed"]):
            places.append(parts.setdefault(part, dict.fromkeys(total, 0.0)))
        if row.get("matrix") and row["spaces"]:
            matrices = matrices or dict.fromkeys(total, 0.0)
            places.append(matrices)
        for place in places:
            for key in total:
                place[key] += row[key]

    def roots(figures: dict[str, float]) -> dict[str, float]:
        return {key: sqrt(value) for key, value in figures.items()}

    def by_space(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        return {name: roots(f) for name, f in figures.items()}

    return {
        **roots(total),
        **({"matrices": roots(matrices)} if matrices else {}),
        **({} if names is None else {"parts": by_space(parts)}),
        "spaces": by_space(spaces),
        "layers": {name: {**roots(f), "spaces": by_space(cells[name])} for name, f in layers.items()},
    }


RISEN = 1e-6
"""A distance that rises by less than this fraction is told by no line: rounding."""


def risen_note(distance: Mapping[str, Any], why: str, whose: str = "") -> list[str]:
    """A sentence that says that a distance rose, and why; none where it did not.

    Args:
        distance: the figures of one source, see `summarise`.
        why: what was lowered instead.
        whose: of several sources, the one that is meant.
    """
    before, after = distance["before"], distance["after"]
    if after <= before * (1 + RISEN):
        return []
    return [f"the distance{whose and f' of {whose}'} rose from {before:.5g} to {after:.5g}: {why}"]


def why_risen(report: Mapping[str, Any]) -> str:
    """What a match lowers where the distance may rise.

    Args:
        report: of a run, with what it says of its streams and options so far.
    """
    streams = [*report.get("streams", ()), report.get("mean") or {}]
    if "match" in report:
        return f"--match {report['match']['name']} lowers what it was published for, and no distance"
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


def relative_residuals(rows: list[dict[str, Any]]) -> tuple[float, str]:
    """The largest relative residual of any tensor of a unit, and which.

    Two measures, the larger counts: Frobenius norms, and the largest entry of the difference against the largest
    of the tensor, which a single exchanged row cannot hide from. A tensor far smaller than its fellows (a zero
    bias) is measured against a thousandth of their root mean square.
    """
    mean = sum(row["norm"] for row in rows) / max(len(rows), 1)
    residuals = [(0.0, "")]
    for row in rows:
        floor = max(1e-6 * mean, 1e-300)
        whole = sqrt(row["residual"] / max(row["norm"], floor))
        local = row["peak_residual"] / max(row["peak"], sqrt(floor / row["size"]))
        residuals.append((max(whole, local), row["tensor"]))
    return max(residuals)

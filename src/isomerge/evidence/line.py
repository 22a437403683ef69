"""The loss along the line between two models, and its barrier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Line:
    """Loss and accuracy at ``(1 - t) A + t B``."""

    points: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]

    @property
    def barrier(self) -> float:
        """``max_t L(t) - [(1 - t) L(0) + t L(1)]`` in nats (Entezari et al. 2022; Theus et al. 2025)."""
        first, last = self.losses[0], self.losses[-1]
        gaps = (loss - ((1 - t) * first + t * last) for t, loss in zip(self.points, self.losses, strict=True))
        return max(gaps)


def loss_line(
    a: nn.Module, b: nn.Module, evaluate: Callable[[nn.Module], tuple[float, float]], points: int = 21
) -> Line:
    """Evaluate models on the line from ``a`` to ``b``.

    Args:
        a, b: modules of one architecture; not changed.
        evaluate: returns (loss in nats, accuracy in 0..1) of a module.
        points: how many, both ends included.
    """
    import copy

    import torch

    middle = copy.deepcopy(a)
    found = []
    at = tuple(k / (points - 1) for k in range(points))
    with torch.no_grad():
        for t in at:
            pairs = zip(middle.parameters(), a.parameters(), b.parameters(), strict=True)
            for p, x, y in pairs:
                p.copy_(torch.lerp(x, y, t))
            found.append(evaluate(middle))
    return Line(at, tuple(loss for loss, _ in found), tuple(acc for _, acc in found))


def draw_lines(lines: Sequence[tuple[str, Line]], ends: tuple[str, str], path: Path, title: str) -> None:
    """A PNG of losses (left) and accuracies (right) along several lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    styles: list[dict[str, Any]] = [
        {"color": "#9a9a9a", "linestyle": "--"}, {"color": "#d1772e", "linestyle": "-."}, {"color": "#1f6fb4"}, {"color": "#2a8c4a"},
    ]  # fmt: skip
    for (name, line), style in zip(lines, styles, strict=False):
        left.plot(line.points, line.losses, label=f"{name} (barrier {line.barrier:.2f})", linewidth=2, **style)
        right.plot(line.points, [100 * a for a in line.accuracies], linewidth=2, **style)
    left.set_ylabel("test cross-entropy (nats)")
    left.legend(frameon=False, loc="upper left", fontsize=8)
    left.set_ylim(0, max(max(line.losses) for _, line in lines) * 1.35)
    right.set_ylabel("test accuracy (%)")
    right.set_ylim(0, 101)
    for axes in (left, right):
        axes.set_xlabel("position on the line between the models")
        axes.set_xticks([0, 0.5, 1], [ends[0], "midpoint", ends[1]])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

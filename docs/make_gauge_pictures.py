"""Draw the pictures of docs/lab/gauge.md: ``python docs/make_gauge_pictures.py``; everything in them is computed here.

The toy is the smallest model with a symmetry: f(x) = a b x with target 1, so that the loss is (a b - 1)^2 / 2 and (a, b) and
(g a, b / g) are one function. The last picture is a real layer: a digits ViT of the demo and a disguise of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

IMAGES = Path(__file__).with_name("images")
DIGITS = Path(__file__).parents[1] / "examples" / "digits"
INK, RED, BLUE, GREY = "#26323a", "#b3462c", "#1f5fa8", "#8c8c8c"


def _figure(width: float, height: float, columns: int) -> tuple[Figure, list]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def _save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})


def _plane(axes, title: str) -> None:
    """Loss of the toy in grey, orbits as lines, the balanced points on the diagonal."""
    t = np.linspace(0.05, 3.2, 300)
    a, b = np.meshgrid(t, t)
    axes.contourf(a, b, np.log10((a * b - 1) ** 2 / 2 + 1e-3), levels=12, cmap="Greys_r", alpha=0.45)
    for level in (0.4, 1.0, 2.2):
        axes.plot(t, level / t, color=GREY, lw=1)
    axes.set(xlim=(0.05, 3), ylim=(0.05, 3), xlabel="a", ylabel="b", title=title, aspect="equal")


def orbits() -> None:
    """One function is a curve: averaging leaves it, balancing chooses one point of it."""
    figure, (left, right) = _figure(8.4, 4.2, 2)
    _plane(left, "one function, many weights")
    one, two = np.array([0.4, 2.5]), np.array([2.5, 0.4])
    mean = (one + two) / 2
    left.plot(*zip(one, two, strict=True), color=RED, lw=1.2, ls="--")
    left.plot(*one, "o", color=BLUE)
    left.plot(*two, "o", color=BLUE)
    left.plot(*mean, "X", color=RED, ms=9)
    left.annotate("A", one, (0.5, 2.5), color=BLUE)
    left.annotate("g A: the same model", two, (1.7, 0.14), color=BLUE)
    left.annotate(f"their average:\nab = {mean.prod():.2f}, not 1", mean, (1.55, 1.6), color=RED)
    _plane(right, "a representative of every orbit")
    right.plot([0, 3], [0, 3], color=INK, lw=1)
    for level in (0.4, 1.0, 2.2):
        right.plot(level**0.5, level**0.5, "o", color=INK)
        for g in (0.45, 2.2):
            start = np.array([g * level**0.5, level**0.5 / g])
            if start.max() < 3:
                path = np.geomspace(g, 1, 30)
                right.plot(path * level**0.5, level**0.5 / path, color=BLUE, lw=2)
                right.plot(*start, "o", color=BLUE)
    right.annotate("balanced: |a| = |b|", (2.2, 2.2), (1.3, 2.65), color=INK)
    _save(figure, "gauge-orbits")


def directions() -> None:
    """A step splits into a part that changes the function and one that does not; gradients have none of the second."""
    figure, (left, right) = _figure(8.4, 4.2, 2)
    _plane(left, "two kinds of motion")
    at = np.array([0.6, 2.4])
    vertical, horizontal = np.array([at[0], -at[1]]), np.array([at[1], at[0]])
    for way, colour, name, where in (
        (0.35 * vertical, RED, "along the orbit:\nnothing changes", (0.9, 1.5)),
        (0.35 * horizontal, BLUE, "across: the gradient\nis always here", (1.5, 2.4)),
    ):
        left.annotate("", at + way, at, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2})
        left.annotate(name, at + way, where, color=colour, fontsize=9)
    left.plot(*at, "o", color=INK)
    for name, colour in (("SGD", BLUE), ("Adam", RED)):
        for start in ((0.1, 1.0), (2.6, 0.1), (1.4, 2.6)):
            path = np.array(_train(name, start))
            right.plot(path[:, 0], path[:, 1], color=colour, lw=1.6, label=name if start == (0.1, 1.0) else None)
            right.plot(*path[0], "o", color=INK, ms=4)
    _plane(right, "gradient flow keeps a² − b², Adam does not")
    right.legend(frameon=False, loc="center right")
    _save(figure, "gauge-directions")


def _train(name: str, start: tuple[float, float]) -> list[tuple[float, float]]:
    """The path of an optimiser on the toy."""
    weights = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([weights], 0.01) if name == "SGD" else torch.optim.Adam([weights], 0.01)
    path = [tuple(weights.tolist())]
    for _ in range(1500):
        optimiser.zero_grad()
        ((weights.prod() - 1) ** 2 / 2).backward()
        optimiser.step()
        path.append(tuple(weights.tolist()))
    return path


def relations() -> None:
    """A query matrix of a real model and of its disguise, and what the layer's heads relate."""
    from isomerge.evidence.law import random_turn, with_streams
    from isomerge.models.recognised import Model, recognise
    from isomerge.quotient.fingerprint import fingerprint

    def moved(model: Model) -> Model:
        from isomerge.checkpoint.in_memory import in_memory

        blocks = {block: model.assemble(block, torch.float64) for block in model.blocks}
        spec = with_streams(model.spec, "largest")
        turn = random_turn(spec, model.blocks, lambda b: blocks[b], torch.Generator().manual_seed(0), gains=True)
        turn.act(blocks)
        parts = {model.names[c]: part.float() for block, t in blocks.items() for c, part in block.split(t)}
        return recognise(in_memory(parts, model.config))

    model = recognise(DIGITS / "vit-a")
    figure, axes = _figure(10.5, 2.9, 4)
    for column, (who, found) in enumerate((("a model", model), ("its disguise", moved(model)))):
        block = next(
            b for b in found.blocks if b.at("l") == 1 and b.line.axes and "query" in b.key and "weight" in b.key
        )
        weights = found.assemble(block, torch.float32)
        relation = next(r for r in fingerprint(found).relations if r.layer == 1 and r.kind == "qk:rr").data
        for at, picture, name in ((column, weights, "W_Q"), (column + 2, relation, "Z W_Qᵀ W_K Zᵀ")):
            bound = float(picture.abs().flatten().sort().values[int(0.98 * picture.numel())])
            axes[at].imshow(picture, cmap="RdBu", vmin=-bound, vmax=bound, interpolation="nearest")
            axes[at].set(xticks=[], yticks=[])
            axes[at].set_title(f"{name} of {who}", fontsize=10)
    _save(figure, "gauge-relations")


if __name__ == "__main__":
    orbits()
    directions()
    relations()

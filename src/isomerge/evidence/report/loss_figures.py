"""The figures of loss: on a line, on a plane, while a match was learned, and of the trials of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isomerge.evidence.report import line_plot
from isomerge.evidence.report.facts import Search, Taught, short_names
from isomerge.evidence.report.figure import Figure, Table
from isomerge.evidence.report.heatmap import plane_map, scale_bar
from isomerge.evidence.report.line_plot import Curve, Frame, Level, ends_of
from isomerge.evidence.report.loss_facts import STORED, Losses, LossLine, Point
from isomerge.evidence.report.numerals import count, figure, nats, percent

SAID = 6
"""Parameters of a trial that are written out."""


def loss_figure(losses: Losses) -> Figure:
    """Loss and accuracy on the line between two models, as stored and aligned."""
    ends = short_names(losses.models)
    shown = [("loss", f"Loss ({losses.unit})")]
    if all(line.accuracies is not None for line in losses.lines):
        shown.append(("accuracy", "Accuracy"))
    curves = {kind: [] for kind, _ in shown}
    style = 1
    for line in losses.lines:
        number = 0 if line.name == STORED else style
        style += line.name != STORED
        for kind in curves:
            curves[kind].append(_curve(line, number, kind))
    places = ((0.0, ends[0]), (0.5, "middle"), (1.0, ends[1]))
    plots = []
    for kind, caption in shown:
        levels = _levels(losses, kind)
        values = [y for c in curves[kind] for _, y in c.points] + [level.value for level in levels]
        low, high = ends_of(values)
        if kind == "accuracy":
            low, high = max(0.0, min(low, high - 0.1)), min(1.0, high)
        frame = Frame(low, high, places, percent_tick if kind == "accuracy" else figure)
        words = f"{caption} on the line from {ends[0]} to {ends[1]}. " + " ".join(
            f"{line.name}: {_course(line, kind)}." for line in losses.lines
        )
        plots.append((caption, line_plot.line_plot(curves[kind], frame, words, levels)))
    legend = line_plot.legend(curves["loss"], _levels(losses, "loss"))
    lead = (
        f"What {count(losses.examples)} examples say of the models on the straight line from {ends[0]} to "
        f"{ends[1]}; the middle is their average. A merge works where the curve stays as low as its ends."
    )
    return Figure("Loss along the line", lead, tuple(plots), tuple(legend), _line_table(losses, ends), wide=True)


def share(point: Point) -> str:
    """The accuracy of a point; a dash where there is none."""
    return "–" if point.accuracy is None else percent(point.accuracy)


def percent_tick(x: float) -> str:
    """An accuracy on an axis."""
    return f"{100 * x:.3g} %"


def _curve(line: LossLine, style: int, kind: str) -> Curve:
    rights = line.accuracies or ()
    tips = tuple(
        f"{line.name}, at {at:.2f}: loss {nats(loss)}" + (f", accuracy {percent(rights[k])}" if rights else "")
        for k, (at, loss) in enumerate(zip(line.at, line.losses, strict=True))
    )
    return Curve(
        line.name, tuple(zip(line.at, line.losses if kind == "loss" else rights, strict=True)), tips, style
    )


def _levels(losses: Losses, kind: str) -> list[Level]:
    levels = []
    for name, point, at in (
        ("ensemble of the models", losses.ensemble, None),
        ("the merged model", losses.merged, 0.5),
    ):
        if point is None or (kind == "accuracy" and point.accuracy is None):
            continue
        right = "" if point.accuracy is None else f", accuracy {percent(point.accuracy)}"
        value = point.loss if kind == "loss" else point.accuracy or 0.0
        levels.append(Level(name, value, f"{name}: loss {nats(point.loss)}{right}", at))
    return levels


def _course(line: LossLine, kind: str) -> str:
    first, last = line.ends
    if kind == "loss":
        return (
            f"{nats(first.loss)}, in the middle {nats(line.midpoint.loss)}, {nats(last.loss)}; barrier "
            f"{nats(line.barrier)}"
        )
    return f"{share(first)}, in the middle {share(line.midpoint)}, {share(last)}"


def _line_table(losses: Losses, ends: Sequence[str]) -> Table:
    """The ends, the middle and the barrier of every line; the output and the ensemble."""
    rows = [
        (name, nats(point.loss), share(point), "–") for name, point in zip(ends, losses.lines[0].ends, strict=True)
    ]
    for line in losses.lines:
        middle = line.midpoint
        rows.append((f"average, {line.name}", nats(middle.loss), share(middle), nats(line.barrier)))
    for name, point in (("the merged model", losses.merged), ("ensemble of the models", losses.ensemble)):
        if point is not None:
            rows.append((name, nats(point.loss), share(point), "–"))
    head = ("model", f"loss ({losses.unit})", "accuracy", "barrier of the line")
    return Table("Loss and accuracy", head, tuple(rows))


def plane_figure(losses: Losses) -> Figure:
    """The loss on the plane through three models."""
    names = short_names(losses.models)
    low = min(min(min(row) for row in plane.losses) for plane in losses.planes)
    top = max(max(point.loss for _, _, point in plane.corners) for plane in losses.planes)
    highest = max(max(max(row) for row in plane.losses) for plane in losses.planes)
    top = min(highest, max(3 * (top - low) + low, *(plane.centroid.loss for plane in losses.planes)))
    plots = [(plane.name.capitalize(), plane_map(plane, names, losses.unit, top, low)) for plane in losses.planes]
    plots.append(("", scale_bar(top, capped=highest > top, low=low, unit=losses.unit)))
    rows = []
    for plane in losses.planes:
        corners = [nats(point.loss) for _, _, point in plane.corners]
        rows.append((plane.name, *corners, nats(plane.centroid.loss), nats(min(min(r) for r in plane.losses))))
    head = ("plane", *names, "average", "lowest")
    lead = (
        f"What {count(losses.examples)} examples say of the models on the plane through {', '.join(names)} "
        f"({', '.join('ABC'[: len(names)])}). One valley of low loss that holds all of them is a merge that works."
    )
    return Figure(
        "Loss on the plane", lead, tuple(plots), (), Table(f"Loss ({losses.unit})", head, tuple(rows)), wide=True
    )


def learning_figure(taught: Sequence[Taught], names: Sequence[str]) -> Figure | None:
    """The barrier on held-out examples while the match was learned."""
    shown = [(name, t) for name, t in zip(names, taught, strict=False) if len(t.steps) > 1]
    if not shown:
        return None
    curves, unit = [], shown[0][1].unit
    for number, (name, t) in enumerate(shown):
        tips = tuple(f"{name}, step {s}: {nats(b)} {unit}" for s, b in zip(t.steps, t.barriers, strict=True))
        points = tuple((float(s), b) for s, b in zip(t.steps, t.barriers, strict=True))
        curves.append(Curve(name, points, tips, number + 1))
    last = float(max(t.steps[-1] for _, t in shown))
    low, high = ends_of([0.0, *(b for _, t in shown for b in t.barriers)])
    frame = Frame(low, high, ((0.0, "step 0"), (last, f"step {last:.0f}")), high_x=last)
    words = " ".join(
        f"{n}: from {nats(t.barriers[0])} to {nats(t.kept)} {unit} in {t.steps[-1]} steps." for n, t in shown
    )
    plot = line_plot.line_plot(curves, frame, f"Barrier on held-out examples while the match is learned. {words}")
    held, seen = shown[0][1].held_out, shown[0][1].examples
    lead = (
        f"The highest loss between the models in excess of their own, in {unit}, on {count(held)} examples that "
        f"were held out of the {count(seen + held)} given. The best of these states was kept."
    )
    rows = tuple((n, str(s), nats(b)) for n, t in shown for s, b in zip(t.steps, t.barriers, strict=True))
    table = Table("Barrier by step", ("model", "step", f"barrier ({unit})"), rows)
    legend = line_plot.legend(curves, ()) if len(curves) > 1 else []
    pictures, brief = (("", plot),), len(rows) < 13
    return Figure("While the match was learned", lead, pictures, tuple(legend), table, wide=True, open_table=brief)


def search_figure(search: Search | None) -> Figure | None:
    """What the trials of a search measured, in their order, and the best so far."""
    if search is None or not any(x is not None for x in search.figures[1:]):
        return None
    own = "the recipe's own values"
    rows = tuple(
        (f"trial {k}" if k else own, _values(values), "refused" if x is None else f"{x:.4g}")
        for k, (values, x) in enumerate(zip(search.values, search.figures, strict=True))
    )
    tips, made, gains = [f"{name}, {values}: {x}" for name, values, x in rows], search.measured, search.gains
    last, (best, reached) = len(rows) - 1, gains[-1]
    steps = tuple((k, x, tips[k]) for k, x in gains) + ((last, reached, tips[best]),) * (best < last)
    curves = (
        Curve("trials", tuple(made[1:]), tuple(tips[k] for k, _ in made[1:]), 0, joined=""),
        Curve("best so far", tuple((k, x) for k, x, _ in steps), tuple(tip for *_, tip in steps), 1, joined="H"),
    )
    levels = [Level(own, made[0][1], tips[0])]
    # far worse ones would leave no room for the others
    worse = sorted(abs(x - reached) for _, x in made)
    usual = 4 * worse[3 * len(made) // 4] or worse[-1]
    low, high = ends_of([x for _, x in made if abs(x - reached) <= usual])
    edge = " Marks at the edge lie beyond it." if worse[-1] > usual else ""
    frame = Frame(low, high, ((0.0, "start"), (last, f"trial {last}")), lambda x: f"{x:.3g}", high_x=last)
    label, read = f"{search.label[0].upper()}{search.label[1:]}", "documents" if search.scored else "examples"
    plot = line_plot.line_plot(curves, frame, f"{label} by trial; best: {tips[best]}", levels)
    lead = (
        f"{label} of {count(len(made) - 1)} trials on the {count(search.read)} {read} of the search; "
        f"{'more' if search.scored else 'less'} is better. {search.sentence}{edge}"
    )
    table, legend = Table("What was tried", ("", "values", search.label), rows), line_plot.legend(curves, levels)
    return Figure("The search", lead, ((f"{label} by trial", plot),), tuple(legend), table, wide=True)


def _values(values: Mapping[str, Any]) -> str:
    """The first of a trial's parameters."""
    said = [f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in values.items()]
    return ", ".join([*said[:SAID], *([f"and {len(said) - SAID} more"] if len(said) > SAID else [])])

"""The figures of distance: by space, and by layer and space."""

from __future__ import annotations

from collections.abc import Sequence

from isomerge.evidence.distance import FIXED, Gap
from isomerge.evidence.report.distance_plot import Move, distance_plot
from isomerge.evidence.report.distance_plot import legend as distance_legend
from isomerge.evidence.report.figure import Figure, Table
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.heatmap import Grid, heat_map, scale_bar
from isomerge.evidence.report.numerals import figure, ratio
from isomerge.evidence.report.svg import round_up

TALL = 12
"""Layers: with more of them, maps stand beside each other, and not below."""
SHOWN_LIMIT = 1.5
"""Distances in parts of the norm beyond this are coloured alike: matrices of strangers are 1.41 apart."""


def distance_figure(written: Written) -> Figure | None:
    """Distances in all and per space; None where there is nothing to compare with."""
    facts = written.matched
    spread, moved = facts.distance, facts.moved
    names = written.wording.ordered(spread.spaces)
    gaps = [("all tensors", spread.total)] + [
        (written.wording.words(n).label, spread.spaces[n]) for n in names if set(names) != {FIXED}
    ]
    moves = [Move(label, *share) for label, gap in gaps if (share := gap.share) is not None]
    if not moves:
        return None
    first, rest = facts.names[0], " and ".join(facts.names[1:]) if len(facts.names) < 4 else "the others"
    said = "; ".join(_said(m, moved) for m in moves)
    plot = distance_plot(moves, f"Distance of {rest} to {first} in parts of the norm. {said}.", moved=moved)
    lead = (
        f"How far {rest} {'is' if len(facts.names) == 2 else 'are'} from {first}: Frobenius distance in parts of "
        f"{first}'s norm, over all tensors and over those that each space of symmetries acts on. Spaces overlap."
    )
    rows = [(label, *_row(gap, moved)) for label, gap in gaps]
    groups = ["", *(written.wording.words(n).group for n in names if set(names) != {FIXED})]
    if any(groups):
        rows = [(label, group, *rest) for (label, *rest), group in zip(rows, groups, strict=True)]
    columns = ("distance before", "after", "norm", "before / norm", "after / norm") if moved else (
        "distance", "norm", "distance / norm",
    )  # fmt: skip
    head = ("tensors", *(("group",) if any(groups) else ()), *columns)
    table = Table("Distances by space", head, tuple(map(tuple, rows)))
    alone = len(spread.layers) > TALL or len(rows) < 3
    return Figure(
        "Distance by space", lead, (("", plot),), tuple(distance_legend(moves, moved)), table, alone, alone
    )


def _said(m: Move, moved: bool) -> str:
    return f"{m.label} {ratio(m.before)}" + (f" before and {ratio(m.after)} after alignment" if moved else "")


def _row(gap: Gap, moved: bool) -> list[str]:
    share = gap.share
    figures = [gap.before, gap.after, gap.norm] if moved else [gap.before, gap.norm]
    shares = ["–"] * 2 if share is None else [ratio(x) for x in share]
    return [*(figure(x, 4) for x in figures), *(shares if moved else shares[:1])]


def layer_figure(written: Written) -> Figure | None:
    """Distances by layer and space, or by layer where nothing more is known; None where no layer was compared."""
    facts = written.matched
    spread = facts.distance
    layers = sorted(spread.layers, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))
    if not layers:
        return None
    cells = {name: dict(spread.cells.get(name, {})) for name in layers}
    spaces = written.wording.ordered({space for row in cells.values() for space in row})
    whole = set(spaces) <= {FIXED}
    if whole:
        spaces, cells = [FIXED], {name: {FIXED: spread.layers[name]} for name in layers}
    shares = [s for row in cells.values() for gap in row.values() if (s := gap.share) is not None]
    values = sorted(x for before, after in shares for x in (before, after))
    top = min(round_up(values[int(0.95 * (len(values) - 1))]) if values else 1.0, SHOWN_LIMIT)
    kinds = [("Before alignment", 0), ("After alignment", 1)] if facts.moved else [("", 0)]
    labels = {s: "all tensors" if whole else written.wording.words(s).label for s in spaces}
    plots = []
    for caption, which in kinds:
        grid = _grid(layers, spaces, cells, labels, which, caption.lower())
        words = _words_of(grid, caption or "Distance")
        plots.append((caption, heat_map(grid.transposed() if whole else grid, top, words)))
    plots.append(("", scale_bar(top, capped=bool(values) and values[-1] > top, unit="In parts of the norm.")))
    what = "layer" if whole else "layer and space"
    lead = f"The distance in every {what}, in parts of the norm of its tensors. 0: equal there."
    table = _layer_table(layers, spaces, cells, labels, facts.moved)
    return Figure("Layer by layer", lead, tuple(plots), (), table, len(layers) > TALL or whole)


def _grid(
    layers: Sequence[str],
    spaces: Sequence[str],
    cells: dict[str, dict[str, Gap]],
    labels: dict[str, str],
    which: int,
    when: str,
) -> Grid:
    values, tips = [], []
    for layer in layers:
        row, said = [], []
        for space in spaces:
            gap = cells[layer].get(space)
            share = gap.share if gap is not None else None
            row.append(None if share is None else share[which])
            shown = "nothing to compare" if share is None else f"{ratio(share[which])} {when}".rstrip()
            said.append(f"{_layer(layer)}, {labels[space]}: {shown}")
        values.append(tuple(row))
        tips.append(tuple(said))
    columns = tuple("all" if len(spaces) == 1 else "rest" if s == FIXED else s for s in spaces)
    return Grid(tuple(layers), columns, tuple(values), tuple(tips))


def _layer(name: str) -> str:
    return f"layer {name}" if name.isdigit() else f"{name} the layers"


def _words_of(grid: Grid, caption: str) -> str:
    """The text alternative of a heat map: its size and its extremes."""
    cells = [
        (value, tip)
        for values, tips in zip(grid.values, grid.tips, strict=True)
        for value, tip in zip(values, tips, strict=True)
        if value is not None
    ]
    size = f"{caption}: heat map of {len(grid.rows)} layers by {len(grid.columns)} spaces"
    if not cells:
        return f"{size}; nothing to compare."
    return f"{size}. Closest: {min(cells)[1]}. Furthest: {max(cells)[1]}."


def _layer_table(
    layers: Sequence[str],
    spaces: Sequence[str],
    cells: dict[str, dict[str, Gap]],
    labels: dict[str, str],
    moved: bool,
) -> Table:
    rows = []
    for layer in layers:
        row = [_layer(layer)]
        for space in spaces:
            gap = cells[layer].get(space)
            share = gap.share if gap is not None else None
            if share is None:
                row.append("–")
            else:
                row.append(f"{ratio(share[0])} → {ratio(share[1])}" if moved else ratio(share[0]))
        rows.append(tuple(row))
    caption = "Distance in parts of the norm" + (", before → after alignment" if moved else "")
    return Table(caption, ("", *(labels[s] for s in spaces)), tuple(rows))

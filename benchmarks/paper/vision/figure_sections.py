"""The page's sections of Figures 3 to 6. Every sentence is computed."""

from __future__ import annotations

from benchmarks.paper.results import mean_spread
from benchmarks.paper.sentences import best, difference, duration, listed, markdown, spent, value
from benchmarks.paper.vision import ablation, deep, distances, layers, lines
from benchmarks.paper.vision.drawing import LABELS, ROW_LABELS
from benchmarks.paper.vision.endpoints import PAIRS
from benchmarks.paper.vision.fusions import PAPER_ROWS

OURS = ("all", "activations", "learned")
IMAGES = "../../benchmarks/results/paper"


def image(name: str, text: str) -> list[str]:
    """A figure by a relative link, with what it shows in words."""
    return [f"![{text}]({IMAGES}/{name}.png)", ""]


def figure3() -> list[str]:
    """Figure 3 and the reviewers' table."""
    if not ablation.cells().cells:
        return []
    names = (*ablation.PAPER, *ablation.OURS)
    rows = [[LABELS[name], *(value(ablation.accuracies(row, name)) for row in PAPER_ROWS)] for name in names]
    text = [
        "## Figure 3 and the reviewers' table: what each part adds",
        "",
        "Accuracy in percent of merges whose matching lacks a part; the same models. “w/o attention” matches "
        "FFNs alone (the "
        "reviewers' FFN-only), “w/o FFN” attention alone. Of ours, with activations, the residual stream is "
        "matched in all but “w/o residual "
        f"stream”. Measured in {duration(spent(ablation.cells().cells))}.",
        "",
        *markdown(["", *(ROW_LABELS[row] for row in PAPER_ROWS)], rows),
        *image(
            "figure3",
            "Bars: test accuracy of six ways to merge, for matchings that lack attention, FFNs or rescaling; "
            "the table above has the numbers",
        ),
    ]
    whole = {row: ablation.accuracies(row, "paper") for row in PAPER_ROWS}
    parts = {
        name: {r: ablation.accuracies(r, name) for r in PAPER_ROWS} for name in ("paper-ffn", "paper-attention")
    }
    if any(len(v) != len(PAIRS) for v in [*whole.values(), *(v for part in parts.values() for v in part.values())]):
        return text
    attention = [
        r for r in PAPER_ROWS if mean_spread(parts["paper-attention"][r])[0] > mean_spread(parts["paper-ffn"][r])[0]
    ]
    decided = [r for r in PAPER_ROWS if difference(parts["paper-attention"][r], parts["paper-ffn"][r]).counts]
    text += [
        "The paper finds that attention matters more for Fisher and RegMean, FFNs more for transport. Here "
        "attention alone is better than "
        f"FFNs alone for {listed([ROW_LABELS[r] for r in attention]) if attention else 'no row'}; the "
        f"difference is larger than its spread for "
        f"{listed([ROW_LABELS[r] for r in decided]) if decided else 'no row'}.",
        "",
    ]  # fmt: skip
    same = [r for r in PAPER_ROWS if ablation.accuracies(r, "paper-ffn") == ablation.accuracies(r, "none")]
    if same:
        text += [
            f"{listed([ROW_LABELS[r] for r in same])} give the very same accuracy with FFNs matched and "
            f"without: they permute neurons themselves, so that "
            "the order in which they find them does not matter. So it is in the reviewers' table.",
            "",
        ]
    stream = {
        r: (ablation.accuracies(r, "activations"), ablation.accuracies(r, "activations-inside")) for r in PAPER_ROWS
    }
    if all(len(a) == len(b) == len(PAIRS) for a, b in stream.values()):
        gains = [difference(a, b) for a, b in stream.values()]
        text += [
            f"Of ours, the residual stream carries "
            f"{listed([f'{d.text()} ({ROW_LABELS[r]})' for r, d in zip(stream, gains, strict=True)])} points: "
            "the paper does not match it.",
            "",
        ]
    return text


def figure4() -> list[str]:
    """Figure 4."""
    names = [name for name in distances.SHOWN if len(distances.distances(name)) == len(PAIRS)]
    if "paper" not in names:
        return []
    rows = [[LABELS[n], value(distances.distances(n)), value(distances.losses(n), 3)] for n in names]
    text = [
        "## Figure 4: distances",
        "",
        "Euclidean distance between the anchor and the matched model, over all weights as stored, and the loss "
        "of their mean.",
        "",
        *markdown(["matching", "distance", "loss of the mean"], rows),
        *image(
            "figure4",
            "Bars: Euclidean distance of all weights after every matching; the table above has the numbers",
        ),
    ]
    closer = [n for n in ("git-rebasin", "git-rebasin-inside", "otfusion", "otfusion-ffn") if n in names]
    sides: dict[bool, list[str]] = {True: [], False: []}
    for name in closer:
        gap = difference(distances.distances("paper"), distances.distances(name))
        sides[gap.mean < 0].append(f"{LABELS[name]} ({gap.text()})")
    if sides[True]:
        text.append(f"The paper's matching comes closer than {listed(sides[True])}. ")
    if sides[False]:
        text.append(
            f"**It does not come closer than {listed(sides[False])}**; the paper's does not move the residual "
            f"stream. "
        )
    ours = {n: distances.distances(n) for n in OURS if n in names}
    if ours:
        first = best(ours, low=True)
        gap = difference(ours[first], distances.distances("paper"))
        text.append(f"“{LABELS[first]}” is {gap.text()} from the paper's.")
    text += ["", *distance_and_loss()]
    return text


def distance_and_loss() -> list[str]:
    """A reviewer's question: is nearer better?"""
    found, count = distances.rank_correlation()
    names = [n for n in distances.SHOWN if len(distances.distances(n)) == len(distances.losses(n)) == len(PAIRS)]
    nearest = best({n: distances.distances(n) for n in names}, low=True)
    lowest = best({n: distances.losses(n) for n in names}, low=True)
    end = (
        "The nearest is also the best."
        if nearest == lowest
        else f"But the nearest (“{LABELS[nearest]}”) is not the best: “{LABELS[lowest]}” has the lowest loss at a distance of "
        f"{value(distances.distances(lowest))}. Distance is a guide, not the goal."
    )
    return [
        "A reviewer asked whether nearer models merge better. Over these "
        f"{count} matchings, Spearman's correlation of distance and loss is {found:.2f} (mean over pairs). {end}",
        "",
        *image("distance-and-loss", "Points: loss of the mean against distance, one per matching and pair"),
    ]


def figure5() -> list[str]:
    """Figure 5."""
    names = [n for n in (*lines.PAPER, *lines.OURS) if len(lines.barriers(n)) == len(PAIRS)]
    if "none" not in names:
        return []
    rows = [[LABELS[n], value(lines.barriers(n), 3), value(lines.barriers(n, "range"), 3)] for n in names]
    text = [
        "## Figure 5: the line between the models",
        "",
        f"Loss at {lines.POINTS} points of the line from the anchor to the matched model, on {lines.LIMIT} test "
        f"images, and the barrier: the "
        "largest excess over the straight line between the losses of the ends; the paper's own definition is "
        "the range. Measured in "
        f"{duration(spent(lines.cells().cells))}.",
        "",
        *markdown(["matching", "barrier (nats)", "range (nats)"], rows),
        *image(
            "figure5",
            "Curves: test loss along the line between two ViTs, by matching; barriers are in the table above",
        ),
    ]
    if all(n in names for n in lines.PAPER):
        lowest = best({n: lines.barriers(n) for n in lines.PAPER}, low=True)
        effect = difference(lines.barriers("paper"), lines.barriers("none"))
        text.append(
            f"The paper's complete matching changes the barrier by {effect.text(3)} nats"
            + (". " if effect.counts and effect.mean < 0 else "; **its effect does not show** over these pairs. ")
            + f"The lowest of its four settings is “{LABELS[lowest]}”."
        )
    if "learned" in names:
        share = mean_spread(lines.barriers("learned"))[0] / mean_spread(lines.barriers("none"))[0]
        text.append(f"Learning leaves {100 * share:.0f} % of the unmatched barrier.")
    return [*text, ""]


def figure6() -> list[str]:
    """Figure 6."""
    names = [n for n in layers.NAMES if layers.complete(n)]
    if not names:
        return []
    text = [
        "## Figure 6: matching a part of the layers",
        "",
        "Loss of the mean when one layer alone, the last ones or the first ones are matched. Of ours, the "
        "residual stream is matched "
        f"everywhere, and only what acts inside layers is left out. Measured in "
        f"{duration(spent(layers.cells().cells))}.",
        "",
        *image(
            "figure6", "Three panels: test loss of the mean when one, the last, or the first layers are matched"
        ),
    ]
    for name in names:
        head, tail = layers.halves(name, "head"), layers.halves(name, "tail")
        gap = difference(head, tail)
        word = "lower" if gap.mean < 0 else "higher"
        text.append(
            f"{LABELS[name].capitalize()}: with the first two layers the loss is {value(head, 3)}, with the "
            f"last two {value(tail, 3)}, {word} by the "
            f"first ({gap.text(3)}" + (")." if gap.counts else ", within the spread).")
        )
    return [*text, "", *deep.section()]

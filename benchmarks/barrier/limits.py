"""The rest of docs/lab/measured-barriers.md: what is left and why, more than two models, and other data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.barrier.cost_table import slope
from benchmarks.barrier.measurements import LEARNED_APART

PARTS = ("all", "mlp", "attention", "embeddings and head")
SEVERAL = (
    "average",
    "anchor 0, all",
    "mean, all",
    "mean, activations",
    "anchor 0, learned",
    "sequence, learned",
    "mean, learned",
)
DATA = {
    "digits": "ViTs of which one saw the digits 0 to 4, the other 5 to 9",
    "texts": "Llama-like models of which one read a novel, the other speeches",
}
AGAIN = [
    "## How to measure again",
    "",
    "`python -m benchmarks.barrier` (`make barrier`) trains and measures what is missing in the results, and goes on where it was stopped; a file of "
    "results that was removed is measured whole. `--list` names every file with its commands and hours: about sixteen on one thread in all, and as many for training.",
]  # fmt: skip


def sections(results: Path, named: Callable[[str], str]) -> list[str]:
    """All of them.

    Args:
        results: the folder of the results.
        named: what a family is called.
    """
    read = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    return [
        *left(read["diagnosis"], read["neurons"], named),
        *sides(read["two-sided"], named),
        *larger([read[name] for name in ("llama", "llama-width-256", "llama-width-512")], results.parent),
        *several(read["many"], read["simplex"]),
        *other_data(read["other-data"]),
        *AGAIN,
    ]


def left(diagnosis: dict[str, Any], neurons: dict[str, Any], named: Callable[[str], str]) -> list[str]:
    """What limits a learned barrier."""
    lines = [
        "## What is left, and why",
        "",
        "Only one part is averaged, all else is the anchor's, and the symmetries are learned anew for just that (150 steps, pair 0-1, `diagnose.py`): excess of the "
        "midpoint over the ends, in nats, on training examples that were held out (the models have seen them, so an excess of images may be negative). Parts do not add up.",
        "",
        f"| models | {' | '.join(PARTS)} |",
        f"|---|{'---|' * len(PARTS)}",
    ]  # fmt: skip
    for pair, parts in diagnosis.items():
        cells = [f"{parts[part]['before_learning']:.2f} → {parts[part]['midpoint']:.3f}" for part in PARTS]
        lines.append(f"| {named(pair.partition(' ')[0])} | {' | '.join(cells)} |")
    lines += [
        "",
        "So it sits in the MLPs. Is it neurons without a partner? A share of the pairs that lie farthest apart is given neurons of its own in a wider MLP (the same two functions, exactly; "
        "`neurons.py --learn`), and everything but the order of neurons is learned in 300 steps: barrier on test data, pairs of seeds.",
        "",
    ]  # fmt: skip
    learned = {  # by family, the rows of its pairs
        name.partition(",")[0]: [one[LEARNED_APART] for one in pairs.values()]
        for name, pairs in neurons.items()
        if all(LEARNED_APART in one for one in pairs.values())
    }
    shares = sorted(next(iter(learned.values()))[0], key=float)
    lines += [
        f"| models | {' | '.join(f'{100 * float(s):g} % apart' for s in shares)} |",
        f"|---|{'---|' * len(shares)}",
    ]
    told = []
    for family, pairs in learned.items():
        barriers = {share: [rows[share]["barrier"] for rows in pairs] for share in shares}
        cells = " | ".join(spread(barriers[share]) for share in shares)
        lines.append(f"| {named(family)}, {len(pairs)} pair{'s' * (len(pairs) > 1)} | {cells} |")
        before, after = (fmean(barriers[share]) for share in (shares[0], shares[-1]))
        told.append(f"{before:.3f} nats become {after:.3f} ({named(family)})")
    return [*lines, "", LIMIT.format(told=" and ".join(told)), ""]


LIMIT = (
    "Hardly: where no neuron is averaged with another, in an MLP of twice the width, {told}. Beside attention's share, what is left is then "
    "the mean of what two MLPs make of one and the same stream, which neither was trained on: that limit is of functions, and neither another "
    "basis nor better partners for neurons move it. "
    "Longer learning takes a little of it, and width the most (the table above: Llama-like models of "
    "width 128, 256 and 512 after 300 steps). What else was tried without gain: permutations that are learned (straight-through over a Sinkhorn "
    "relaxation), orthogonalised momentum and other steps, more data ([experiments](experiments.md#matching-models-from-different-seeds-what-was-tried))."
)
"""What the figures of neurons apart say."""


def sides(found: dict[str, Any], named: Callable[[str], str]) -> list[str]:
    """One model moved, or both."""
    told = []
    for family, ways in found.items():
        one, both = ([row["excess"] for row in ways[name].values()] for name in ("one", "both"))
        seeds = f", {len(one)} seeds of learning" if len(one) > 1 else ""
        told.append(f"{spread(one)} by one and {spread(both)} by both ({named(family)}{seeds})")
    return [
        "Moving both models reaches nothing that moving one does not, as symmetries act linearly on weights. In 300 steps from the same start "
        f"and at the same rates (`two_sided.py`), the midpoint's excess on test examples ends at {', and '.join(told)}. What both have in common moves nothing and can only disturb the steps.",
        "",
    ]  # fmt: skip


def larger(families: Sequence[dict[str, Any]], results: Path) -> list[str]:
    """How the barrier falls with width, and what is known of larger models."""
    widths = [128, 256, 512]
    barriers = [found["summary"]["distilled-quick"]["barrier"] for found in families]
    points = [(math.log(w), math.log(b)) for w, b in zip(widths, barriers, strict=True)]
    power, middle = slope(points), [fmean(part) for part in zip(*points, strict=True)]
    told = ", ".join(f"{b:.3f}" for b in barriers)
    beyond = math.exp(middle[1] + power * (math.log(2048) - middle[0]))
    apart = json.loads((results / "gpu_apart.json").read_text())["0.04b"]["rows"]["stored"]
    memory = json.loads((results / "gpu.json").read_text())["cpu"]["1b"]
    return [
        "## Larger models",
        "",
        f"Llama-like models of width 128, 256 and 512 have {told} nats left after 300 steps: about width^{power:.1f}. If that went on, which three widths cannot show, "
        f"width 2048 would have {beyond:.2f}. The largest pair that was trained apart here has 38 million parameters (ends {apart['ends'][0]:.3f} and {apart['ends'][1]:.3f}, barrier as stored "
        f"{apart['barrier']['entezari']:.2f} nats); the time on a GPU ended before it was learned. In memory a pair of {memory['parameters'] / 1e9:.2f} billion parameters is learned "
        f"in {memory['peak anonymous bytes'] / 1e9:.1f} GB on a CPU ([how](../guide/learned.md)).",
        "",
    ]  # fmt: skip


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean, and deviation where there are several."""
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ± {stdev(values):.{digits}f}" if len(values) > 1 else mean


def several(many: dict[str, Any], simplex: dict[str, Any]) -> list[str]:
    """Three and five models."""
    lines = [
        "## More than two models",
        "",
        "Digits ViTs of width 64, merged with equal weights: accuracy in % and loss on test images (learned rows from before predictions were softened).",
        "",
        "| merged how | 3 seeds | 5 seeds |",
        "|---|---|---|",
    ]
    for row in SEVERAL:
        cells = [
            f"{100 * many[n]['rows'][row]['accuracy']:.1f}, {many[n]['rows'][row]['loss']:.3f}" for n in ("3", "5")
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    lines += [
        "",
        "What is good in the middle need not be good elsewhere: the loss over the whole simplex in excess of what lies between its corners, in nats (`simplex.py`; 40 random points inside).",
        "",
        "| models | matched | barycentre, accuracy | random points, mean | worst point inside | worst middle of an edge |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for count, by_steps in simplex.items():
        for steps, rows in by_steps.items():
            for row, found in sorted(rows.items(), reverse=True):  # matched, then learned
                told = row + (f", {steps} steps" if row == "learned" else "")
                middle, inside = found["barycentre"], found["inside"]
                lines.append(
                    f"| {count} | {told} | {middle['excess']:.3f}, {100 * middle['accuracy']:.1f} % | {inside['mean']:.3f} | "
                    f"{inside['worst']:.3f} | {found['edges']['worst']:.3f} |"
                )
    most = max(simplex, key=int)
    learned = next(iter(simplex[most].values()))["learned"]
    told = (
        f"So what is learned is the middle, which a merge writes: of {most} models it has {learned['barycentre']['excess']:.3f} nats, and the worst edge between two "
        f"of them {learned['edges']['worst']:.2f}. Other weights than those that were learned for want a match of their own (`--weights` before learning)."
    )
    return [*lines, "", told, ""]


def other_data(found: dict[str, Any]) -> list[str]:
    """Models that have learned different things."""
    lines = ["## Models of different data", ""]
    for case, seeds in found.items():
        every = [rows for rows in seeds.values() if rows]
        names = [name for name in ORDER if all(name in rows for rows in every)]
        tasks = list(dict.fromkeys(key.rpartition(", ")[0] for key in every[0][names[0]] if ", " in key))
        lines += [
            f"{DATA[case]}, width 64, {len(every)} seed{'s' * (len(every) > 1)} (`other_data.py`), on test examples of both.",
            "",
            f"| model | {' | '.join(f'{task}, accuracy' for task in tasks)} | both, accuracy | both, loss |",
            f"|---|{'---|' * (len(tasks) + 2)}",
        ]
        for name in names:
            per = [spread([100 * rows[name][f"{task}, accuracy"] for rows in every], 1) for task in tasks]
            both = spread([100 * rows[name]["accuracy"] for rows in every], 1)
            lines.append(
                f"| {name} | {' | '.join(per)} | {both} | {spread([rows[name]['loss'] for rows in every])} |"
            )
        lines += ["", _lesson(every), ""]
    return lines


FROM_MERGE = "300 steps onto labels, from the learned merge"
FROM_FIRST = "300 steps onto labels, from the first model"
ORDER = (
    "the first model", "the second model", "ensemble", "one model of both", "as stored", "matched by weights", "matched with activations", "learned",
    "learned with labels", "learned, activations re-normalised", "learned with labels, activations re-normalised", "regression on what was learned",
    FROM_MERGE, FROM_FIRST,
    "300 steps onto the ensemble, from the learned merge", "300 steps onto the ensemble, from the first model",
)  # fmt: skip


def _lesson(every: Sequence[dict[str, Any]]) -> str:
    """What the rows of one case say."""
    learned = max(
        ("learned", "learned with labels"),
        key=lambda row: fmean(one.get(row, {"accuracy": 0})["accuracy"] for one in every),
    )
    gains = [one[FROM_FIRST]["loss"] - one[FROM_MERGE]["loss"] for one in every]
    loss = {
        row: fmean(one[row]["loss"] for one in every)
        for row in (learned, "ensemble", "the first model", "the second model")
    }
    beside = "below" if loss[learned] < loss["ensemble"] else "above"
    better = "below" if loss[learned] < min(loss["the first model"], loss["the second model"]) else "not below"
    return (
        f"The merge that was learned has a loss of {loss[learned]:.3f}, {better} that of both models and {beside} their ensemble's ({loss['ensemble']:.3f}). "
        f"As a start for 300 steps with labels it is worth {fmean(gains):+.3f} nats against the first model alone "
        f"({', '.join(f'{gain:+.3f}' for gain in gains)} by seed; more is better)."
    )

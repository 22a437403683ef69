"""Write docs/lab/measured-paper.md from the results: `page.md`, whose every number is computed here.

    python -m benchmarks.paper --page      # draws the figures as well

A heading of `page.md` has a function here that gives what stands in braces below it; where a cell of its is not
measured, the heading is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import DOCS, RESULTS, markdown, mean_spread, table_rows, write_whole
from benchmarks.paper import figures, others, runtimes, table1_page, trained, vits
from benchmarks.paper.figures import LABELS, PAPER, ROW_LABELS, cells, over
from benchmarks.paper.sentences import Difference, best, difference, duration, listed, shown, spent
from benchmarks.paper.vits import PAIRS, PAPER_ROWS

TEMPLATE = Path(__file__).with_name("page.md")
PAGE = DOCS / "lab" / "measured-paper.md"
OURS = ("all", "activations", "learned")
Words = Mapping[str, Any]


def rows_of(names: Sequence[str]) -> str:
    """Rows of Table 2 in a sentence."""
    return listed([ROW_LABELS[name] for name in names]) if names else "no row"


# ------------------------------------------------------------------------------------------------ Table 2, Figures 3, 4


def table2() -> Words:
    ends = [end for pair in PAIRS for end in cells("table2")[f"endpoints/{pair}"]]
    head = ["", *(LABELS[name] for name in vits.COLUMNS), "in the paper: none, w/o rescaling, whole"]
    tables = {}
    for figure, digits in (("accuracy", 2), ("loss", 3)):
        rows = []
        for row in vits.ROWS:
            values = [shown(over("table2", f"{row}/{name}", figure), digits) for name in vits.COLUMNS]
            printed = vits.ROWS[row].printed if figure == "accuracy" else ()
            rows.append([ROW_LABELS[row], *values, ", ".join(f"{x:.2f}" for x in printed) if printed else "–"])
        tables[figure] = markdown(head, rows)
    lost = {
        r: difference(figures.accuracies(r, "learned"), figures.accuracies("simple", "learned")) for r in PAPER_ROWS
    }
    alone, ours = figures.accuracies("regression", "none"), {n: figures.accuracies("regression", n) for n in OURS}
    return {
        "pairs": listed(PAIRS),
        "ends": shown([100 * end["accuracy"] for end in ends]),
        "end_losses": shown([end["loss"] for end in ends], 3),
        "ensemble": shown(over("table2", "ensemble")),
        "ensemble_losses": shown(over("table2", "ensemble", "loss"), 3),
        "took": duration(spent(cells("table2"))),
        "accuracies": tables["accuracy"],
        "losses": tables["loss"],
        **what_matching_adds(),
        "given_up": listed(
            [f"{ROW_LABELS[row]} ({d.text()})" for row, d in lost.items() if d.word == "lower"] or ["none"]
        ),
        "regression": shown(alone),
        "regression_gains": listed(
            [f"{difference(ours[name], alone).text()} points with “{LABELS[name]}”" for name in OURS]
        ),
    }


def what_matching_adds() -> Words:
    """Where the paper's effect shows, and how each of our columns stands to the paper's and to the models
    themselves, in a table and in words. No column is chosen by what it reaches."""
    rows, effects, scale = [], {}, []
    leads: dict[str, list[Difference]] = {name: [] for name in OURS}
    lost: dict[str, list[Difference]] = {name: [] for name in OURS}
    ends = [100 * mean_spread(end["accuracy"] for end in cells("table2")[f"endpoints/{p}"])[0] for p in PAIRS]
    for row in PAPER_ROWS:
        columns = {name: figures.accuracies(row, name) for name in vits.COLUMNS}
        effects[row] = difference(columns["paper"], columns["none"])
        scale.append(difference(columns["paper"], columns["paper-no-rescale"]))
        for name in OURS:
            leads[name].append(difference(columns[name], columns["paper"]))
            lost[name].append(difference(columns[name], ends))
        printed = f"{PAPER_ROWS[row].printed[2] - PAPER_ROWS[row].printed[0]:+.2f}"
        ours = [f"{leads[name][-1].text()}{'' if leads[name][-1].counts else ' (not decided)'}" for name in OURS]
        rows.append([ROW_LABELS[row], printed, effects[row].text(), scale[-1].text(), *ours])
    said = {
        "higher": "The paper's matching raises the accuracy of {}.",
        "not decided": "**The paper's effect does not show here** for {}: the intervals include nought.",
        "lower": "**It lowers the accuracy** of {}.",
    }
    sentences = []
    for word, sentence in said.items():
        if names := [row for row, d in effects.items() if d.word == word]:
            sentences.append(sentence.format(rows_of(names)))
    sentences.append(
        f"Rescaling changes it by at most {max(abs(d.mean) for d in scale):.2f} points, and raises it beyond chance in "
        f"{sum(d.word == 'higher' for d in scale)} of {len(scale)} rows."
    )
    for name in OURS:
        words = [d.word for d in leads[name]]
        behind = f", and behind in {words.count('lower')}" if "lower" in words else ""
        sentences.append(
            f"“{LABELS[name]}” is ahead of the paper's in {words.count('higher')} of {len(words)} rows{behind}."
        )
    of_each = [f"“{LABELS[name]}” {max(d.mean for d in lost[name]):+.2f} at best" for name in OURS]
    sentences.append(
        f"Against the models themselves, either of which may be kept instead of a merge ({shown(ends)} by pairs), "
        f"over these rows: {listed(of_each)}."
    )
    return {"gains": table_rows(rows), "verdicts": " ".join(sentences)}


def figure3() -> Words:
    names = (*vits.ABLATED, *vits.ABLATED_OURS)
    columns = {name: {row: figures.accuracies(row, name) for row in PAPER_ROWS} for name in names}
    attention, ffn = columns["paper-attention"], columns["paper-ffn"]
    same = [row for row in PAPER_ROWS if ffn[row] == columns["none"][row]]
    stream = {r: difference(columns["activations"][r], columns["activations-inside"][r]) for r in PAPER_ROWS}
    rows = [[LABELS[name], *(shown(values) for values in by_row.values())] for name, by_row in columns.items()]
    return {
        "took": duration(spent(cells("ablation"))),
        "accuracies": markdown(["", *(ROW_LABELS[row] for row in PAPER_ROWS)], rows),
        "attention": rows_of(
            [row for row in PAPER_ROWS if mean_spread(attention[row])[0] > mean_spread(ffn[row])[0]]
        ),
        "decided": rows_of([row for row in PAPER_ROWS if difference(attention[row], ffn[row]).counts]),
        "same": rows_of(same),
        "stream": listed([f"{d.text()} ({ROW_LABELS[row]})" for row, d in stream.items()]),
    }


def figure4() -> Words:
    from scipy.stats import spearmanr

    near, low = ({name: of(name) for name in vits.DISTANT} for of in (figures.distances, figures.losses))
    sides: dict[bool, list[str]] = {True: [], False: []}
    for name in ("git-rebasin", "git-rebasin-inside", "otfusion", "otfusion-ffn"):
        gap = difference(near["paper"], near[name])
        sides[gap.mean < 0].append(f"{LABELS[name]} ({gap.text()})")
    sentences = []
    if sides[True]:
        sentences.append(f"The paper's matching comes closer than {listed(sides[True])}.")
    if sides[False]:
        stays = "the paper's does not move the residual stream"
        sentences.append(f"**It does not come closer than {listed(sides[False])}**; {stays}.")
    first = best({name: near[name] for name in OURS}, low=True)
    sentences.append(f"“{LABELS[first]}” is {difference(near[first], near['paper']).text()} from the paper's.")
    by_pair = [[[figure[name][k] for name in vits.DISTANT] for figure in (near, low)] for k in range(len(PAIRS))]
    correlations = [float(spearmanr(*pair).statistic) for pair in by_pair]  # pyright: ignore
    nearest, lowest = best(near, low=True), best(low, low=True)
    return {
        "distances": table_rows([LABELS[n], shown(near[n]), shown(low[n], 3)] for n in vits.DISTANT),
        "closer": "\n".join(sentences),
        "count": len(vits.DISTANT),
        "correlation": f"{mean_spread(correlations)[0]:.2f}",
        "nearest": "The nearest is also the best."
        if nearest == lowest
        else f"But the nearest (“{LABELS[nearest]}”) is not the best: “{LABELS[lowest]}” has the lowest loss at a "
        f"distance of {shown(near[lowest])}. Distance is a guide, not the goal.",
    }


# ------------------------------------------------------------------------------------------- Figures 5, 6 and Table 3


def figure5() -> Words:
    names = (*vits.LINES, *vits.LINES_OURS)
    effect = difference(figures.barriers("paper"), figures.barriers("none"))
    shows = effect.word == "lower"
    rows = [[LABELS[n], shown(figures.barriers(n), 3), shown(figures.barriers(n, "range"), 3)] for n in names]
    left = mean_spread(figures.barriers("learned"))[0] / mean_spread(figures.barriers("none"))[0]
    return {
        "points": vits.POINTS,
        "images": vits.LINE_IMAGES,
        "took": duration(spent(cells("lines"))),
        "barriers": table_rows(rows),
        "effect": f"{effect.text(3)} nats{'' if shows else '; **its effect does not show** over these pairs'}",
        "lowest": LABELS[best({name: figures.barriers(name) for name in vits.LINES}, low=True)],
        "share": 100 * left,
    }


def figure6() -> Words:
    lines = []
    for name in vits.PARTLY:
        head, tail = (figures.partly(name, vits.CHOICES[kind][vits.DEPTH // 2]) for kind in ("head", "tail"))
        gap = difference(head, tail)
        lines.append(
            f"{LABELS[name].capitalize()}: with the first two layers the loss is {shown(head, 3)}, with the last two "
            f"{shown(tail, 3)}, {'lower' if gap.mean < 0 else 'higher'} by the first ({gap.text(3)}"
            f"{')' if gap.counts else ', not decided)'}."
        )
    return {"took": duration(spent(cells("layers"))), "halves": "\n".join(lines)}


def figure6_deep() -> Words:
    counts = [len(layers) for layers in others.DEEP_CHOICES["head"]]
    head = ["matched", *(f"first {n}" if n else "none" for n in counts), *(f"last {n}" for n in counts[1:-1])]
    rows, shares = [], []
    for name in vits.PARTLY:
        first, last, single = (figures.deep(name, kind) for kind in ("head", "tail", "single"))
        lowest = min(range(len(single)), key=single.__getitem__)
        losses = [f"{loss:.3f}" for loss in (*first, *last[1:-1])]
        rows.append([LABELS[name], *losses, f"{lowest}: {single[lowest]:.3f}"])
        shares.append(f"{LABELS[name]} {100 * (first[0] - single[0]) / (first[0] - first[-1]):.0f} %")
    return {
        "depth": trained.DEPTH,
        "width": trained.WIDTH,
        "ends": " and ".join(f"{cells('deep-layers')[f'end {seed}']['loss']:.3f}" for seed in (0, 1)),
        "losses": markdown([*head, "best single layer"], rows),
        "first": ", ".join(shares),
    }


def table3() -> Words:
    """Run times. What matching by learning took is in the cells of the matchings; of MiniLM, in those of Table 1,
    sentiment, where merges are of unmatched models."""
    took: dict[tuple[str, str], list[float]] = {}  # by stage and family
    walls: dict[str, list[float]] = {}
    for key, cell in cells("runtimes").items():
        stage, family, _ = key.split("/")
        took.setdefault((stage, family), []).append(cell["processor_seconds"])
        if stage == "training":
            walls.setdefault(family, []).append(cell["recorded_wall_seconds"])
    families = list(dict.fromkeys(family for _, family in took))
    took["matching, learned", "vit-fashion"] = over("matching", "learned", "processor_seconds")
    for key, cell in cells("table1").items():
        task, *_, method, column = key.split("/")
        if task != "vader" or "distances" not in cell:
            continue
        seconds = cell["seconds"]
        if column == "none":
            took.setdefault((f"merging, {method}", "minilm"), []).append(seconds["statistics"] + seconds["merging"])
        elif method == "simple":
            name = {"ours": "default", "published": "paper-attention"}.get(column, column)
            took.setdefault((f"matching, {name}", "minilm"), []).append(seconds["matching"])
    stages = dict.fromkeys(stage for stage, _ in took)
    rows = []
    for stage in sorted(stages, key=lambda s: ("training", "matching", "merging").index(s.partition(",")[0])):
        kind, _, name = stage.partition(", ")
        label = (LABELS if kind == "matching" else ROW_LABELS).get(name, "")
        label = "Training (extrapolated)" if kind == "training" else f"{kind.capitalize()}: {label}"
        rows.append([label, *(clocked(took.get((stage, family), [])) for family in families)])
    paper, fisher, regmean = (
        mean_spread(took[stage, "vit-fashion"])[0]
        for stage in ("matching, paper", "merging, fisher", "merging, regmean")
    )
    return {
        "steps": runtimes.STEPS,
        "recorded": "; ".join(f"{family} {clocked(seconds)}" for family, seconds in walls.items()),
        "times": markdown(["", *families], rows),
        "of_fisher": 100 * paper / fisher,
        "of_regmean": 100 * paper / regmean,
    }


def clocked(seconds: list[float]) -> str:
    """Seconds with as many digits as they have meaning."""
    return shown(seconds, 2 if seconds and mean_spread(seconds)[0] < 10 else 0)


# ------------------------------------------------------------------------------------------- the reviewers' questions

BARRIER_ROWS = {
    "stored": "no matching",
    "paper": "the paper",
    "default": "ours, inside layers",
    "all": "ours, data-free",
    "activations": "ours, activations",
    "learned-quick": "ours, learned (300 steps)",
    "learned": "ours, learned",
    "distilled": "ours, learned without labels",
}
FAMILIES = {
    "gpt2": "GPT-2 (bytes)",
    "llama": "Llama-like (bytes)",
    "vit-digits": "ViT (digits)",
    "vit-fashion": "ViT (Fashion-MNIST)",
}


def stored(path: str) -> Any:
    """Results of another benchmark.

    Raises:
        KeyError: there are none.
    """
    file = RESULTS / path
    if not file.is_file():
        raise KeyError(path)
    return json.loads(file.read_text())


def many() -> Words:
    parts = []
    for count, part in stored("barrier/many.json").items():
        if count not in ("3", "5"):
            continue
        rows = part["rows"]
        anchored = [row for key, row in rows.items() if key.startswith("anchor") and key.endswith("all")]
        chosen = {
            "no matching": [rows["average"]],
            "onto one anchor, data-free (mean over anchors)": anchored,
            "one after the other, data-free": [rows["sequence, all"]],
            "onto their common mean, data-free": [rows["mean, all"]],
            "onto their common mean, activations": [rows["mean, activations"]],
            "onto their common mean, learned": [rows["mean, learned"]],
        }
        scores = {k: ([100 * row["accuracy"] for row in v], [row["loss"] for row in v]) for k, v in chosen.items()}
        lines = [[name, shown(accuracy), shown(loss, 3)] for name, (accuracy, loss) in scores.items()]
        spread = scores["onto one anchor, data-free (mean over anchors)"][0]
        parts.append(
            f"{count} digit ViTs (the models: {shown([100 * end['accuracy'] for end in part['ends']])} %):\n\n"
            f"{markdown(['matched how', 'accuracy (%)', 'loss (nats)'], lines)}\n\n"
            f"The choice of the anchor changes the accuracy by {max(spread) - min(spread):.2f} points (the paper's "
            "limitation); the common mean has no anchor."
        )
    return {"many": "\n\n".join(parts)}


def classifier() -> Words:
    columns = {
        (heads, name): over("reviewers", f"classifier/{heads}/{name}")
        for heads in vits.HEADS
        for name in vits.HEADS_MATCHED
    }
    rows = [[LABELS[name], *(shown(columns[heads, name]) for heads in vits.HEADS)] for name in vits.HEADS_MATCHED]
    changes = [
        difference(columns[heads, name], columns["average", name])
        for heads in ("copy", "keep:2")
        for name in vits.HEADS_MATCHED
    ]
    return {
        "accuracies": markdown(["matching", *(f"head {word}" for word in vits.HEADS.values())], rows),
        "largest": max(changes, key=lambda change: abs(change.mean)).text(),
    }


def architectures() -> Words:
    """Barriers of other architectures, from the barrier benchmark, and of T5."""
    every = []  # architecture, matching, barriers of the pairs, and those of the same pairs as stored
    for name, title in FAMILIES.items():
        pairs = [pair["rows"] for pair in stored(f"barrier/{name}.json")["pairs"].values() if "rows" in pair]
        for row, label in BARRIER_ROWS.items():
            if measured := [pair for pair in pairs if row in pair]:
                barriers = ([pair[r]["barrier"]["entezari"] for pair in measured] for r in (row, "stored"))
                every.append((title, label, *barriers))
    t5 = {name: [cells("t5")[name]["barrier"]["entezari"]] for name in others.T5_MATCHINGS}
    every += [("T5 (bytes)", LABELS[name], barriers, t5["none"]) for name, barriers in t5.items()]
    rows = [
        [title, label, str(len(barriers)), shown(barriers, 3), f"{100 * sum(barriers) / sum(whole):.0f} %"]
        for title, label, barriers, whole in every
    ]
    return {"steps": trained.T5_STEPS, "barriers": table_rows(rows)}


def optimum() -> Words:
    apart = {name: figures.distances(name) for name in vits.OPTIMA}
    accuracy, loss = (
        {name: over("reviewers", f"optimum/{name}", figure) for name in vits.OPTIMA}
        for figure in ("accuracy", "loss")
    )
    rows = [[label, shown(apart[n], 3), shown(accuracy[n]), shown(loss[n], 3)] for n, label in vits.OPTIMA.items()]
    joint = difference(apart["joint-attention"], apart["paper-attention"])
    little = abs(joint.mean) < 1e-3 * mean_spread(apart["none"])[0]
    gain = difference(accuracy["linear"], accuracy["joint-attention"])
    heads = [row for row in stored("optima.json")["joint"] if row["n"] == 64]
    return {
        "optima": table_rows(rows),
        "joint": joint.text(4) + (": the paper's order loses next to nothing on these models" if little else ""),
        "linear": difference(apart["linear"], apart["joint-attention"]).text(3),
        "accuracy": f"{gain.text()} points{'' if gain.counts else ', not decided'}",
        "random": listed([f"{100 * row['gain']['mean']:.2g} % ({row['heads']})" for row in heads]),
    }


def real() -> Words:
    every, rows = cells("families"), []
    for pair in others.FAMILIES:
        parts = [every[f"distance/{spaces}/{'+'.join(pair)}"] for spaces in ("paper", "default", "all")]
        off = [f"{100 * (1 - c['after'] / c['before']):.3f} %" if "after" in c else "refused" for c in parts]
        first = next((c for c in parts if "after" in c), None)
        words = (f"{first['before'] / first['norm']:.4f}", *off, first["verdict"]) if first else ("–", *off, "–")
        rows.append([" + ".join(pair), *words])
    masked = {pair: {s: every[f"masked/{s}/{'+'.join(pair)}"] for s in others.MASKED} for pair in others.WITH_HEAD}
    filled = [[" + ".join(pair), *map(scored, row.values())] for pair, row in masked.items()]
    whole = [row for row in masked.values() if not any("refused" in c for c in row.values())]
    gap = 100 * max((abs(row["default"]["accuracy"] - row["none"]["accuracy"]) for row in whole), default=0)
    tokens = whole[0]["none"]["tokens"] if whole else 1
    cosines = {s: every[f"cosine/{s}/{'+'.join(others.FAMILIES[0])}"] for s in others.SPACES}
    names = {"none": "as stored", "paper": "the paper", "default": "ours, inside layers"}
    nothing = ": fine-tunes of one base share its coordinates, and there is next to nothing to match"
    return {
        "took": duration(spent(every)),
        "refused": "".join(
            f" Refused: {s}." for s in sorted({c["refused"] for c in every.values() if "refused" in c})
        ),
        "distances": table_rows(rows),
        "reactions": len(others.REACTIONS),
        "tokens": tokens,
        "token": 100 / tokens,
        "masked": table_rows(filled),
        "gap": gap,
        "share": nothing if gap < 1 else "",
        "sentences": others.SENTENCES,
        "parents": cosines["none"]["parents"],
        "nearest": names[best({s: [c["first"]] for s, c in cosines.items()})],
        "cosines": table_rows([names[s], f"{c['first']:.5f}", f"{c['second']:.5f}"] for s, c in cosines.items()),
    }


def scored(cell: Mapping[str, Any]) -> str:
    """Accuracy and loss of one model, or that it could not be made."""
    return "refused" if "refused" in cell else f"{100 * cell['accuracy']:.1f} (loss {cell['loss']:.3f})"


# ----------------------------------------------------------------------------------------------------------- the page


def provenance() -> Words:
    rows = []
    for path in sorted(PAPER.glob("*.json")):
        whole = json.loads(path.read_text())
        if "cells" in whole:
            known = [f"{k} {v}" for k, v in whole["versions"].items() if k in ("python", "torch", "transformers")]
            link = f"[{path.name}](../../benchmarks/results/paper/{path.name})"
            rows.append([link, str(len(whole["cells"])), ", ".join(known)])
    return {"results": table_rows(rows)}


SECTIONS: dict[str, Callable[[], Words]] = {
    "Table 1: text": lambda: {"table1": table1_page.page("table1")},
    "Table 1: text, at full size": lambda: {"table1_gpu": table1_page.page("table1-gpu")},
    "Table 2: merging two ViTs": table2,
    "Figure 3 and the reviewers' table: what each part adds": figure3,
    "Figure 4: distances": figure4,
    "Figure 5: the line between the models": figure5,
    "Table 3: run time": table3,
    "Figure 6: matching a part of the layers": figure6,
    "At 24 layers": figure6_deep,
    "More than two models": many,
    "The classifier": classifier,
    "Other architectures": architectures,
    "One after the other, or together; rotations, or any invertible maps": optimum,
    "Checkpoints that others have trained": real,
    "What it was measured with": provenance,
}


def page() -> str:
    """The page's text: all headings of which everything was measured."""
    parts = []
    for part in re.split(r"^(?=#+ )", TEMPLATE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        words = SECTIONS.get(part.partition("\n")[0].lstrip("# "), dict)
        try:
            parts.append(part.format_map(words()))
        except KeyError as missing:
            print(f"{part.partition(chr(10))[0]} is left out: {missing} was not measured", flush=True)
    return "".join(parts)


def write() -> None:
    """Draw the figures of which everything was measured, and write the page."""
    cells.cache_clear()
    for draw in figures.FIGURES:
        try:
            draw()
        except KeyError as missing:
            print(f"{draw.__name__} is not drawn: {missing} was not measured", flush=True)
    write_whole(PAGE, page())

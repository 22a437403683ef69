"""Write table1.md from table1.json: the text half of the paper's Table 1, with a few sentences that are computed.

python -m benchmarks.paper.text.page [--preset gpu]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from benchmarks.paper.results import Results, mean_spread
from benchmarks.paper.sentences import best, difference, value
from benchmarks.paper.text import data
from benchmarks.paper.text.merges import COLUMNS, METHODS
from benchmarks.paper.text.settings import PRESETS, Preset
from benchmarks.paper.text.summary import Section, differences, ends, ensemble, merged, sections, seeds_done
from benchmarks.paper.text.table1 import cell, open_results

HEADS = {
    "none": "without matching",
    "paper": "the paper's matching",
    "ours": "ours, data-free",
    "activations": "ours, with activations",
}
ROWS = {"simple": "Simple", "fisher": "Fisher", "regmean": "RegMean"}
F1 = ("macro", "micro")


def both(one: Callable[[int, str], float], seeds: Sequence[int]) -> str:
    """Macro / micro F1, each with its spread over seeds."""
    return " / ".join(value([one(seed, kind) for seed in seeds]) for kind in F1)


def before(results: Results, section: Section, seeds: Sequence[int], upper: str) -> list[str]:
    """The rows of what is merged, and of its ensemble; no matching changes them."""
    rows = {
        upper: both(lambda s, kind: ends(results, section, s, kind)[0], seeds),
        "members, on average": both(lambda s, kind: ends(results, section, s, kind)[1], seeds),
        "ensemble of the members": both(lambda s, kind: ensemble(results, section, s, kind), seeds),
    }
    return [f"| {name} | {cells} |{' |' * (len(HEADS) - 1)}" for name, cells in rows.items()]


def table(results: Results, section: Section, seeds: Sequence[int], head: str, above: Sequence[str]) -> list[str]:
    """A table of merges, macro / micro, with rows above."""
    lines = [f"| | {' | '.join(HEADS.values())} |", f"|---|{'---|' * len(HEADS)}", *above]
    for method, row in ROWS.items():
        cells = [
            both(lambda s, kind, m=method, c=column: merged(results, section, s, m, c, kind, head), seeds)
            for column in HEADS
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def outcome(results: Results, section: Section, seeds: Sequence[int]) -> str:
    """What matching changed, and how much nearer it brought the models."""
    said = []
    for column in list(HEADS)[1:]:
        changes = {row: mean_spread(differences(results, section, seeds, m, column)) for m, row in ROWS.items()}
        parts = ", ".join(f"{row} {mean:+.2f} ± {spread:.2f}" for row, (mean, spread) in changes.items())
        near = [
            100 * (after / before - 1)
            for seed in seeds
            for group in section.groups()
            for before, after in results.get(cell(section.task.name, seed, group.name, "simple", column))[
                "distances"
            ]
        ]
        said.append(f"{HEADS[column]}: {parts} (distance {mean_spread(near)[0]:+.2f} %)")
    return (
        f"Change of {section.main} F1 by matching, mean and spread over seeds: {'; '.join(said)}. "
        f"{verdict(results, section, seeds)}"
    )


def verdict(results: Results, section: Section, seeds: Sequence[int]) -> str:
    """Which changes are more than chance: whose 95 % interval over seeds (Student) leaves nought out."""
    if len(seeds) < 2:
        return "One seed says nothing of chance."
    from scipy.stats import t

    ahead, behind = [], []
    for method, row in ROWS.items():
        for column in list(HEADS)[1:]:
            mean, spread = mean_spread(differences(results, section, seeds, method, column))
            if abs(mean) > t.ppf(0.975, len(seeds) - 1) * spread / len(seeds) ** 0.5:
                (ahead if mean > 0 else behind).append(f"{row} with {HEADS[column]}")
    found = [f"better: {', '.join(ahead)}"] * bool(ahead) + [f"worse: {', '.join(behind)}"] * bool(behind)
    if not found:
        return "The 95 % intervals over seeds (Student) all include nought."
    return f"Where the 95 % interval over seeds (Student) leaves nought out, {'; '.join(found)}."


def against_paper(results: Results, section: Section, seeds: Sequence[int]) -> str:
    """Row by row, our better column against the paper's; and why there is nothing to be ahead by."""
    said, ties = [], 0
    for method, row in ROWS.items():
        columns = {c: differences(results, section, seeds, method, c) for c in HEADS if c != "none"}
        ours = best({c: columns[c] for c in ("ours", "activations")})
        ahead = difference(columns[ours], columns["paper"])
        ties += not (ahead.counts and ahead.mean > 0)
        said.append(f"{row} {ahead.text()} ({HEADS[ours]}{'' if ahead.counts else '; within its spread'})")
    why = (
        " Where it is not ahead: distances say why. As stored, the models are within a fraction of a percent "
        "of the nearest point "
        "of their orbits, so no matching has anything to find."
    )
    return f"Our better column less the paper's: {', '.join(said)}.{why if ties else ''}"


def seconds(results: Results, section: Section, seeds: Sequence[int]) -> str:
    """The mean seconds of the stages, per merge."""
    took: dict[str, list[float]] = {}
    for seed in seeds:
        for group in section.groups():
            for method in METHODS:
                for column in COLUMNS:
                    stages = results.get(cell(section.task.name, seed, group.name, method, column))["seconds"]
                    if column != "none":
                        took.setdefault(f"matching ({HEADS[column]})", []).append(stages["matching"])
                    if stages["statistics"]:
                        took.setdefault(f"statistics of {ROWS[method]}", []).append(stages["statistics"])
                    took.setdefault("merging", []).append(stages["merging"])
    return ", ".join(f"{name} {mean_spread(values)[0]:.0f}" for name, values in sorted(took.items()))


def section_lines(results: Results, section: Section, preset: Preset) -> list[str]:
    """One section of the page."""
    seeds = seeds_done(results, section, preset)
    lines = [f"## {section.title}", ""]
    if not seeds:
        return [*lines, "Not measured yet.", ""]
    count = len(section.groups())
    inside = section.chosen(section.groups()[0]) == section.groups()[0].inside
    upper = "model tuned on the domain" if inside else "better member, by these very tests"
    lines += [
        f"Seeds {', '.join(map(str, seeds))}; macro / micro F1 in %, mean ± spread over seeds of the mean over "
        f"{count} {'pairs' if count > 1 else 'group'} of models. The ensemble is the mean of the members' "
        f"probabilities.",
        "",
        *table(results, section, seeds, "scores", before(results, section, seeds, upper)),
        "",
    ]
    if inside:
        lines += ["With the classifier of the model tuned on the domain tested, as in the paper:", ""]
        lines += [*table(results, section, seeds, "own_head", []), ""]
    lines += [
        outcome(results, section, seeds),
        "",
        against_paper(results, section, seeds),
        "",
        f"{'Processor seconds' if preset.device == 'cpu' else 'Seconds'} per merge: "
        f"{seconds(results, section, seeds)}.",
        "",
    ]
    return lines


def page(results: Results, preset: Preset) -> str:
    """The whole table as Markdown."""
    brown, vader = data.TASKS["brown"], data.TASKS["vader"]
    lines = [
        "<!-- written by python -m benchmarks.paper.text.page from table1.json -->",
        "",
        "# Table 1: text",
        "",
        f"MiniLM (BERT, 6 layers, width 384), tuned on up to {preset.train} sentences per domain (AdamW at "
        f"{preset.lr:g}, "
        f"passes: {preset.epochs}), one model per domain and seed, all of one base and, within a seed, one "
        f"initial classifier. "
        f"Sentiment: {', '.join(vader.domains)} of VADER in three classes (human rating below -{data.NEUTRAL}, "
        f"within, "
        f"above). Parts of speech: {', '.join(brown.domains)} of the Brown corpus, {', '.join(brown.held_out)} "
        f"held out, "
        f"{len(brown.labels)} universal tags. {preset.scored} test sentences per domain. The paper reports "
        f"macro F1 for "
        "classes of sentences and micro F1 for tags.",
        "",
        "Fine-tunes of one base lie in its coordinates already, so there is little for a matching to find: "
        "this is the "
        "paper's own setting for text.",
        "",
    ]
    for section in sections():
        lines += section_lines(results, section, preset)
    return "\n".join(lines)


def write(preset: Preset) -> None:
    """Write the page of a preset beside its results."""
    results = open_results(preset)
    target = results.path.with_suffix(".md")
    target.write_text(page(results, preset))
    print(f"{target}: written")


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    write(PRESETS[parser.parse_args().preset])


if __name__ == "__main__":
    main()

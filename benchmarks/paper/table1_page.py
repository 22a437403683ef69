"""Table 1 on the page: macro and micro F1 by matching and method, what matching changes, and what it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import markdown, mean_spread
from benchmarks.paper import table1, text
from benchmarks.paper.figures import ROW_LABELS, cells
from benchmarks.paper.sentences import best, difference, value

LABELS = {
    "none": "without matching",
    "paper": "the paper's matching",
    "ours": "ours, data-free",
    "activations": "ours, with activations",
}
MATCHED = tuple(LABELS)[1:]
F1 = ("macro", "micro")
Rows = Mapping[tuple[str, ...], Mapping[str, list[float]]]
"""F1 by seed, by its sort, of each row: one of `UNMERGED`, or (method, column, classifier)."""
UNMERGED = {
    "fitting": "model tuned on the domain",
    "average": "members, on average",
    "ensemble": "ensemble of the members",
}
PAGE = """\
MiniLM (BERT, 6 layers, width 384), tuned on up to {preset.train} sentences per domain (AdamW at {preset.lr:g}, passes: {preset.epochs}), one model per domain and seed, all of one base and, within a seed, one initial classifier. Sentiment: {domains} of VADER in three classes (human rating below -{neutral}, within, above). Parts of speech: {genres} of the Brown corpus, {held_out} held out, {tags} universal tags. {preset.scored} test sentences per domain. The paper reports macro F1 for classes of sentences and micro F1 for tags.

Fine-tunes of one base lie in its coordinates already, so there is little for a matching to find: this is the paper's own setting for text.

{sections}"""
SECTION = """\
### {title}

Seeds {seeds}; macro / micro F1 in %, mean ± spread over seeds of the mean over {groups} of models. The ensemble is the mean of the members' probabilities.

{scores}

Change of {main} F1 by matching, mean and spread over seeds: {changes}. {verdict}

Our better column less the paper's: {ahead}

{clock} per merge: {seconds}."""
OWN_HEAD = "With the classifier of the model tuned on the domain tested, as in the paper:"
WHY = """\
Where it is not ahead: distances say why. As stored, the models are within a fraction of a percent of the nearest point of their orbits, so no matching has anything to find."""


def page(name: str) -> str:
    """Table 1 of a preset."""
    preset, (vader, brown) = table1.PRESETS[name], text.TASKS.values()
    sections = (
        (vader, "inside", "macro", "Sentiment, in domain: pairs, tested on both domains"),
        (vader, "outside", "macro", "Sentiment, out of domain: pairs, on the domains that neither saw"),
        (brown, "inside", "micro", "Parts of speech, in domain: pairs, tested on both genres"),
        (brown, "outside", "micro", "Parts of speech, out of domain: all merged, on held-out genres"),
    )
    return PAGE.format(
        preset=preset,
        neutral=text.NEUTRAL,
        domains=", ".join(vader.domains),
        genres=", ".join(brown.domains),
        held_out=", ".join(brown.held_out),
        tags=len(brown.labels),
        sections="\n\n".join(section(cells(name), preset, *about) for about in sections),
    )


def section(
    stored: Mapping[str, Any], preset: table1.Preset, task: text.Task, where: str, main: str, title: str
) -> str:
    """A column of the paper's Table 1: groups of a task, merged, and tested inside their domains or outside."""
    tested = {group: domains for group in text.groups(task) if (domains := getattr(group, where))}
    rows = means(stored, preset, task, tested)
    gains = {
        (method, column): [
            after - before
            for after, before in zip(
                rows[method, column, "scores"][main], rows[method, "none", "scores"][main], strict=True
            )
        ]
        for method in table1.METHODS
        for column in MATCHED
    }
    return SECTION.format(
        title=title,
        seeds=", ".join(map(str, preset.seeds)),
        groups=f"{len(tested)} {'pairs' if len(tested) > 1 else 'group'}",
        scores=scores(rows, where == "inside"),
        main=main,
        changes=changes(gains, distances(stored, preset, task, tested)),
        verdict=verdict(gains),
        ahead=ahead(gains),
        clock="Processor seconds" if preset.device == "cpu" else "Seconds",
        seconds=seconds(stored, preset, task, tested),
    )


def means(
    stored: Mapping[str, Any], preset: table1.Preset, task: text.Task, tested: Mapping[text.Group, Sequence[str]]
) -> Rows:
    """The mean F1 of every row and seed over groups and the domains that they are tested on.

    Of the members, the one that fits is the one tuned on the domain, out of domain the best one.
    """
    rows: Any = defaultdict(lambda: {sort: [] for sort in F1})
    for seed in preset.seeds:
        every: Any = defaultdict(list)
        for group, domains in tested.items():
            ends = {member: stored[table1.key(task, seed, "end", member)] for member in group.members}
            together = stored[table1.key(task, seed, "ensemble", group.name)]
            merges = {
                (method, column): stored[table1.key(task, seed, group.name, method, column)]
                for method in table1.METHODS
                for column in LABELS
            }
            for domain in domains:
                for sort in F1:
                    members = {member: end[domain][sort] for member, end in ends.items()}
                    every[("fitting",), sort].append(members.get(domain, max(members.values())))
                    every[("average",), sort].append(mean_spread(members.values())[0])
                    every[("ensemble",), sort].append(together[domain][sort])
                    for key, merge in merges.items():
                        for head in ("scores", "own_head") if domain in group.inside else ("scores",):
                            every[(*key, head), sort].append(merge[head][domain][sort])
        for (row, sort), values in every.items():
            rows[row][sort].append(mean_spread(values)[0])
    return rows


def scores(rows: Rows, inside: bool) -> str:
    """The tables of merges: with the merged classifier, and in domain with the members' own."""

    def both(*row: str) -> str:
        return " / ".join(value(rows[row][sort]) for sort in F1)

    def merged(head: str) -> list[list[str]]:
        return [
            [ROW_LABELS[method], *(both(method, column, head) for column in LABELS)] for method in table1.METHODS
        ]

    names = UNMERGED if inside else UNMERGED | {"fitting": "better member, by these very tests"}
    above = [[label, both(row), *[""] * len(MATCHED)] for row, label in names.items()]
    head = ["", *LABELS.values()]
    lines = markdown(head, [*above, *merged("scores")])
    if inside:
        lines += [OWN_HEAD, "", *markdown(head, merged("own_head"))]
    return "\n".join(lines).rstrip()


def distances(
    stored: Mapping[str, Any], preset: table1.Preset, task: text.Task, tested: Mapping[text.Group, Sequence[str]]
) -> dict[str, float]:
    """How much nearer a matching brought the models, in percent."""
    pairs = {
        column: [
            pair
            for seed in preset.seeds
            for group in tested
            for pair in stored[table1.key(task, seed, group.name, "simple", column)]["distances"]
        ]
        for column in MATCHED
    }
    return {c: mean_spread(100 * (after / before - 1) for before, after in p)[0] for c, p in pairs.items()}


def changes(gains: Mapping[tuple[str, str], list[float]], near: Mapping[str, float]) -> str:
    """What matching changed."""
    parts = []
    for column in MATCHED:
        steps = {method: mean_spread(gains[method, column]) for method in table1.METHODS}
        words = ", ".join(f"{ROW_LABELS[m]} {mean:+.2f} ± {spread:.2f}" for m, (mean, spread) in steps.items())
        parts.append(f"{LABELS[column]}: {words} (distance {near[column]:+.2f} %)")
    return "; ".join(parts)


def verdict(gains: Mapping[tuple[str, str], list[float]]) -> str:
    """Which changes are more than chance: whose 95 % interval over seeds (Student) leaves nought out."""
    from scipy.stats import t

    sides: dict[str, list[str]] = {"better": [], "worse": []}
    for (method, column), steps in gains.items():
        if len(steps) < 2:
            return "One seed says nothing of chance."
        mean, spread = mean_spread(steps)
        if abs(mean) > t.ppf(0.975, len(steps) - 1) * spread / len(steps) ** 0.5:
            sides["better" if mean > 0 else "worse"].append(f"{ROW_LABELS[method]} with {LABELS[column]}")
    parts = [f"{word}: {', '.join(names)}" for word, names in sides.items() if names]
    if not parts:
        return "The 95 % intervals over seeds (Student) all include nought."
    return f"Where the 95 % interval over seeds (Student) leaves nought out, {'; '.join(parts)}."


def ahead(gains: Mapping[tuple[str, str], list[float]]) -> str:
    """Row by row, our better column against the paper's; and why there is nothing to be ahead by."""
    parts, every = [], True
    for method in table1.METHODS:
        ours = best({column: gains[method, column] for column in ("ours", "activations")})
        lead = difference(gains[method, ours], gains[method, "paper"])
        every &= lead.word == "higher"
        parts.append(
            f"{ROW_LABELS[method]} {lead.text()} ({LABELS[ours]}{'' if lead.counts else '; within its spread'})"
        )
    return f"{', '.join(parts)}.{'' if every else f' {WHY}'}"


def seconds(
    stored: Mapping[str, Any], preset: table1.Preset, task: text.Task, tested: Mapping[text.Group, Sequence[str]]
) -> str:
    """The mean seconds of the stages, per merge."""
    took: dict[str, list[float]] = defaultdict(list)
    for seed in preset.seeds:
        for group in tested:
            for method in table1.METHODS:
                for column in LABELS:
                    stages = stored[table1.key(task, seed, group.name, method, column)]["seconds"]
                    took["merging"].append(stages["merging"])
                    if column != "none":
                        took[f"matching ({LABELS[column]})"].append(stages["matching"])
                    if stages["statistics"]:
                        took[f"statistics of {ROW_LABELS[method]}"].append(stages["statistics"])
    return ", ".join(f"{name} {mean_spread(values)[0]:.0f}" for name, values in sorted(took.items()))

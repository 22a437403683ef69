"""Table 1 on the page: macro and micro F1 by matching and method, what matching changes, and what it took."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import markdown, mean_spread
from benchmarks.paper import table1, text
from benchmarks.paper.figures import PAPER, ROW_LABELS, cells
from benchmarks.paper.sentences import difference, duration, listed, shown

LABELS = {
    "none": "without matching",
    "published": "the paper's, attention alone",
    "paper": "the paper's matching",
    "ours": "ours, data-free",
    "activations": "ours, with activations",
}
F1 = ("macro", "micro")
Score = Callable[[int, text.Group, str, str], float]
"""F1 of a seed, a group of models, a domain and a sort of F1."""
Gains = Mapping[tuple[str, str], list[float]]
"""What matching adds, by method and column: one number a seed."""
PRINTED = {
    ("vader", "inside"): (
        "Emotion",
        {
            "simple": ((35.87, 35.87), (2.99, 2.99)),
            "fisher": ((44.02, 44.05), (35.95, 35.98)),
            "regmean": ((35.87, 39.95), (2.99, 2.99)),
        },
    ),
    ("brown", "inside"): (
        "NER",
        {
            "simple": ((60.88, 60.88), (27.54, 31.31)),
            "fisher": ((54.55, 54.58), (33.20, 33.83)),
            "regmean": ((60.88, 60.88), (27.54, 31.31)),
        },
    ),
    ("brown", "outside"): (
        "NER-CoNLL",
        {
            "simple": ((26.86, 26.87), (10.80, 23.30)),
            "fisher": ((23.06, 23.05), (12.53, 18.33)),
            "regmean": ((26.86, 26.87), (10.80, 14.06)),
        },
    ),
}
"""The paper's Table 1 by the section that is made like it: its data, and F1 in percent of RoBERTa-base and
DeBERTa-v3-large by method, without matching and with it."""
ADDED = ("published",)
"""Columns that came after the others were measured: what of them is missing is told of, and the rest shown."""
PAGE, SECTION, OWN_HEAD, WHY, MISSING = (
    Path(__file__).with_name("table1.md").read_text(encoding="utf-8").removesuffix("\n").split("\n<!-- -->\n")
)
"""The page, a section of it, what stands above the members' own heads, and what is said where nothing is ahead, or not
measured."""


def page(name: str) -> str:
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
        sections="\n\n".join(Section(cells(name), preset, *about).text() for about in sections),
    )


@dataclass(frozen=True)
class Section:
    """A column of the paper's Table 1: groups of a task, merged, and tested inside their domains or outside."""

    stored: Mapping[str, Any]
    preset: table1.Preset
    task: text.Task
    where: str
    main: str
    """The sort of F1 that the paper reports."""
    title: str

    def text(self) -> str:
        """Its part of the page.

        Raises:
            KeyError: a cell is not measured.
        """
        gains, count = self.gains(), len(self.tested)
        return SECTION.format(
            title=self.title,
            seeds=", ".join(map(str, self.preset.seeds)),
            groups=f"{count} {'pairs' if count > 1 else 'group'}",
            scores=self.scores(),
            main=self.main,
            classifier=", the classifier copied" if self.where == "inside" else "",
            changes=self.changes(gains),
            verdict=verdict(gains),
            missing=self.missing(),
            ahead=ahead(gains),
            clock="Processor seconds" if self.preset.device == "cpu" else "Seconds",
            seconds=self.seconds(),
        )

    @property
    def tested(self) -> dict[text.Group, tuple[str, ...]]:
        """The groups and the domains that they are tested on."""
        return {group: domains for group in text.groups(self.task) if (domains := getattr(group, self.where))}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are measured, every cell of them."""
        keys = {
            column: [
                table1.key(self.task, seed, group.name, method, column)
                for seed, group, method in product(self.preset.seeds, self.tested, table1.METHODS)
            ]
            for column in LABELS
        }
        return tuple(column for column in LABELS if column not in ADDED or self.stored.keys() >= set(keys[column]))

    def missing(self) -> str:
        """Which columns are not measured, and what would measure them."""
        names = [LABELS[column] for column in LABELS if column not in self.columns]
        tuned = json.loads((PAPER / "steps.json").read_text())["fine-tune MiniLM"]
        count = len(self.preset.seeds) * sum(len(task.domains) for task in text.TASKS.values())
        return MISSING.format(columns=listed(names), models=count, tuned=duration(tuned)) if names else ""

    def cell(self, seed: int, *rest: str) -> Any:
        return self.stored[table1.key(self.task, seed, *rest)]

    def merges(self, method: str, column: str) -> list[Any]:
        return [self.cell(seed, group.name, method, column) for seed in self.preset.seeds for group in self.tested]

    def by_seed(self, score: Score, sort: str) -> list[float]:
        """Means over the groups and their domains."""
        return [
            mean_spread(score(seed, group, d, sort) for group, domains in self.tested.items() for d in domains)[0]
            for seed in self.preset.seeds
        ]

    def merged(self, method: str, column: str, head: str = "scores") -> Score:
        """Of a merge, with the merged classifier or the members' own."""
        return lambda seed, group, domain, sort: self.cell(seed, group.name, method, column)[head][domain][sort]

    def members(self, seed: int, group: text.Group, domain: str, sort: str) -> dict[str, float]:
        """F1 of the members of a group themselves."""
        return {member: self.cell(seed, "end", member)[domain][sort] for member in group.members}

    def fitting(self, seed: int, group: text.Group, domain: str, sort: str) -> float:
        """F1 of the member that was tuned on the domain tested; out of domain, of the best one."""
        members = self.members(seed, group, domain, sort)
        return members.get(domain, max(members.values()))

    def scores(self) -> str:
        """The tables of merges: with the merged classifier, and in domain with the members' own."""
        unmerged: dict[str, Score] = {
            "model tuned on the domain"
            if self.where == "inside"
            else "better member, by these very tests": self.fitting,
            "members, on average": lambda *tested: mean_spread(self.members(*tested).values())[0],
            "ensemble of the members": lambda seed, group, d, sort: self.cell(seed, "ensemble", group.name)[d][
                sort
            ],
        }

        def both(score: Score) -> str:
            return " / ".join(shown(self.by_seed(score, sort)) for sort in F1)

        def table(head: str, above: Mapping[str, Score]) -> str:
            data, printed = PRINTED.get((self.task.name, self.where), ("", {})) if head == self.head else ("", {})
            names = [
                *(LABELS[c] for c in self.columns),
                *([f"in the paper, {data}: RoBERTa; DeBERTa"] * bool(printed)),
            ]
            rows = [[label, both(score), *[""] * (len(names) - 1)] for label, score in above.items()]
            for method in table1.METHODS:
                scores = [both(self.merged(method, column, head)) for column in self.columns]
                pairs = (f"{before:.2f} → {after:.2f}" for before, after in printed.get(method, ()))
                rows.append([ROW_LABELS[method], *scores, *(["; ".join(pairs)] * bool(printed))])
            return markdown(["", *names], rows)

        tables = [table("scores", unmerged)]
        if self.where == "inside":
            tables += [OWN_HEAD, table("own_head", {})]
        return "\n\n".join(tables)

    @property
    def head(self) -> str:
        """With which classifiers the paper tests: the members' own, or out of domain, where there are none, the
        merged one."""
        return "own_head" if self.where == "inside" else "scores"

    def gains(self) -> Gains:
        """What matching adds to the main F1."""
        every = {
            (m, c): self.by_seed(self.merged(m, c, self.head), self.main)
            for m in table1.METHODS
            for c in self.columns
        }
        return {
            (m, c): [after - before for after, before in zip(every[m, c], every[m, "none"], strict=True)]
            for m in table1.METHODS
            for c in self.columns[1:]
        }

    def changes(self, gains: Gains) -> str:
        """What matching changed, and how much nearer it brought the models."""
        parts = []
        for column in self.columns[1:]:
            steps = {method: mean_spread(gains[method, column]) for method in table1.METHODS}
            words = ", ".join(f"{ROW_LABELS[m]} {mean:+.2f} ± {spread:.2f}" for m, (mean, spread) in steps.items())
            pairs = [pair for merge in self.merges("simple", column) for pair in merge["distances"]]
            near, _ = mean_spread(100 * (after / before - 1) for before, after in pairs)
            parts.append(f"{LABELS[column]}: {words} (distance {near:+.2f} %)")
        return "; ".join(parts)

    def seconds(self) -> str:
        """The mean seconds of the stages, per merge."""
        took: dict[str, list[float]] = {}
        for method in table1.METHODS:
            for column in self.columns:
                names = {"merging": "merging", "statistics": f"statistics of {ROW_LABELS[method]}"}
                names |= {"matching": f"matching ({LABELS[column]})"} if column != "none" else {}
                for merge in self.merges(method, column):
                    for stage, name in names.items():
                        took.setdefault(name, []).append(merge["seconds"][stage])
        means = {name: mean_spread(seconds)[0] for name, seconds in sorted(took.items())}
        return ", ".join(f"{name} {mean:.0f}" for name, mean in means.items() if mean)


def verdict(gains: Gains) -> str:
    """Which changes are more than chance: whose 95 % interval over seeds leaves nought out."""
    sides: dict[str, list[str]] = {"better": [], "worse": []}
    for (method, column), steps in gains.items():
        change = difference(steps, [0.0] * len(steps))
        if change.count < 2:
            return "One seed says nothing of chance."
        if change.counts:
            sides["better" if change.mean > 0 else "worse"].append(f"{ROW_LABELS[method]} with {LABELS[column]}")
    parts = [f"{word}: {', '.join(names)}" for word, names in sides.items() if names]
    if not parts:
        return "The 95 % intervals over seeds (Student) all include nought."
    return f"Where the 95 % interval over seeds (Student) leaves nought out, {'; '.join(parts)}."


def ahead(gains: Gains) -> str:
    """Row by row, each of our columns against the paper's; and why there is nothing to be ahead by."""
    parts, every = [], True
    for method, column in product(table1.METHODS, ("ours", "activations")):
        lead = difference(gains[method, column], gains[method, "paper"])
        every &= lead.word == "higher"
        parts.append(
            f"{ROW_LABELS[method]} {lead.text()} ({LABELS[column]}{'' if lead.counts else '; not decided'})"
        )
    return f"{', '.join(parts)}.{'' if every else f' {WHY}'}"

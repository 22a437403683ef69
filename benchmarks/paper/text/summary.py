"""The numbers of Table 1, text, from its cells: per section and seed, means over groups of models and their
tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.paper.results import Results
from benchmarks.paper.text import data
from benchmarks.paper.text.groups import Group, groups
from benchmarks.paper.text.merges import COLUMNS, METHODS
from benchmarks.paper.text.settings import Preset
from benchmarks.paper.text.table1 import cell


@dataclass(frozen=True)
class Section:
    """One column of the paper's table: groups of a task, tested on some domains."""

    title: str
    task: data.Task
    chosen: Callable[[Group], Sequence[str]]
    """The domains of a group that count."""
    main: str
    """The F1 that the paper reports for such a task."""

    def groups(self) -> list[Group]:
        """The groups that are tested on something."""
        return [group for group in groups(self.task) if self.chosen(group)]


def sections() -> list[Section]:
    """The columns of the table."""
    vader, brown = data.TASKS["vader"], data.TASKS["brown"]
    return [
        Section("Sentiment, in domain: pairs, tested on both domains", vader, lambda g: g.inside, "macro"),
        Section(
            "Sentiment, out of domain: pairs, on the domains that neither saw", vader, lambda g: g.outside, "macro"
        ),
        Section("Parts of speech, in domain: pairs, tested on both genres", brown, lambda g: g.inside, "micro"),
        Section(
            "Parts of speech, out of domain: all merged, on held-out genres", brown, lambda g: g.outside, "micro"
        ),
    ]


def seeds_done(results: Results, section: Section, preset: Preset) -> list[int]:
    """The seeds of which every cell of a section is there."""

    def done(seed: int) -> bool:
        names = [group.name for group in section.groups()]
        keys = [cell(section.task.name, seed, n, m, c) for n in names for m in METHODS for c in COLUMNS]
        keys += [cell(section.task.name, seed, "ensemble", n) for n in names]
        keys += [cell(section.task.name, seed, "end", d) for d in section.task.domains]
        return all(results.has(key) for key in keys)

    return [seed for seed in preset.seeds if done(seed)]


def merged(results: Results, section: Section, seed: int, method: str, column: str, kind: str, head: str) -> float:
    """The mean F1 of a seed over groups and their domains."""
    found = [
        results.get(cell(section.task.name, seed, group.name, method, column))[head][domain][kind]
        for group in section.groups()
        for domain in section.chosen(group)
    ]
    return sum(found) / len(found)


def ends(results: Results, section: Section, seed: int, kind: str) -> tuple[float, float]:
    """The mean F1 of the members of the groups, on the same domains: the member that fits best, and all members.

    In domain, the member that fits is the one tuned on the domain tested.
    """
    own, every = [], []
    for group in section.groups():
        for domain in section.chosen(group):
            member = {m: results.get(cell(section.task.name, seed, "end", m))[domain][kind] for m in group.members}
            own.append(member.get(domain, max(member.values())))
            every.append(sum(member.values()) / len(member))
    return sum(own) / len(own), sum(every) / len(every)


def ensemble(results: Results, section: Section, seed: int, kind: str) -> float:
    """The mean F1 of the ensembles of the groups."""
    found = [
        results.get(cell(section.task.name, seed, "ensemble", group.name))[domain][kind]
        for group in section.groups()
        for domain in section.chosen(group)
    ]
    return sum(found) / len(found)


def differences(results: Results, section: Section, seeds: Sequence[int], method: str, column: str) -> list[float]:
    """What matching adds to the section's main F1, by seed."""
    kind = section.main
    with_it, without = (
        [merged(results, section, s, method, c, kind, "scores") for s in seeds] for c in (column, "none")
    )
    return [a - b for a, b in zip(with_it, without, strict=True)]

"""Which models are merged, and where the result is tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from benchmarks.paper.text.data import Task


@dataclass(frozen=True)
class Group:
    """Models of one seed that are merged; the first is the anchor.

    In domain are the domains of its members; out of domain, those that none of them was tuned on.
    """

    task: Task
    members: tuple[str, ...]
    inside: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def name(self) -> str:
        """As in the keys of results."""
        return "+".join(self.members)


def groups(task: Task) -> Iterator[Group]:
    """The groups of a task, as in the paper's Table 1.

    Pairs of domains, tested on both. Where a task has held-out domains, all models merged are tested on those;
    where it has none, pairs are tested on the domains of the others.
    """
    for pair in combinations(task.domains, 2):
        others = () if task.held_out else tuple(d for d in task.domains if d not in pair)
        yield Group(task, pair, pair, others)
    if task.held_out:
        yield Group(task, task.domains, (), task.held_out)

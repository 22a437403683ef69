"""What a run's report says, as plain values: the JSON of `isomerge merge`, `align` or `diff`, of this version or an
older one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import PurePath
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.evidence.distance import Gap, Spread
from isomerge.evidence.pictures import all_left
from isomerge.evidence.report.svg import clipped
from isomerge.plug_ins.command import sentences

NAME = 48
"""Characters of a model's short name."""


@dataclass(frozen=True)
class Taught:
    """What a match that was learned on examples reached, judged on examples that were held out."""

    steps: tuple[int, ...]
    barriers: tuple[float, ...]
    """By step looked at: the excess of the loss over the models' own, its maximum on the line."""
    kept: float
    examples: int
    held_out: int
    target: str
    unit: str = "nats"
    """Of the barriers: ``nats``, or ``squared units`` of values."""

    @property
    def start(self) -> float | None:
        """The barrier before anything was learned; None in reports that do not tell."""
        return self.barriers[0] if self.barriers else None

    @property
    def helped(self) -> bool:
        """Whether it is known that learning lowered the barrier."""
        return self.start is not None and self.kept < self.start


@dataclass(frozen=True)
class Search:
    """What a search for the parameters of a merge measured: of the recipe's own values, then of every trial."""

    values: tuple[Mapping[str, Any], ...]
    """Of the parameters, by name."""
    figures: tuple[float | None, ...]
    """Losses, or scores of tasks; None of trials that were refused."""
    scored: bool
    """Whether they are scores, more of which is better."""
    label: str
    """What they are, with their unit."""
    read: int
    """On how many examples, or documents of tasks."""
    sentence: str
    """What those say that were held out."""

    @property
    def measured(self) -> list[tuple[int, float]]:
        """Numbers and figures of all that were not refused, the recipe's own values as number 0."""
        return [(number, x) for number, x in enumerate(self.figures) if x is not None]

    @property
    def gains(self) -> list[tuple[int, float]]:
        """Those that were better than all before them."""
        better: list[tuple[int, float]] = []
        for number, x in self.measured:
            if not better or (x > better[-1][1] if self.scored else x < better[-1][1]):
                better.append((number, x))
        return better


@dataclass(frozen=True)
class Facts:
    """A run."""

    command: str
    """``merge``, ``align`` or ``diff``."""
    models: tuple[str, ...]
    """The anchor first."""
    distance: Spread
    paths: tuple[str, ...] = ()
    """Where the models were, whatever the current folder; as ``models`` in reports of earlier versions."""
    sources: tuple[tuple[str, Spread], ...] = ()
    """Where several models were brought to the anchor: each."""
    architecture: str = ""
    aligned: bool = True
    spaces: str = ""
    layers: str = ""
    method: str = ""
    weights: tuple[float, ...] = ()
    varies: Mapping[str, str] = field(default_factory=dict)
    """By models whose weight is not one number, by what it differs."""
    parameters: Mapping[str, Any] | None = None
    base: bool = False
    """Whether the first model is the base of task vectors, and not merged itself."""
    common_mean: bool = False
    """Whether all models were matched onto their mean, and not onto the first."""
    common_gains: bool = False
    """Whether all models, the first among them, were given gains that they have in common."""
    match: str = ""
    """The matcher, where it is a published baseline."""
    exact: bool = True
    """Whether the match preserves every model's function."""
    streams: bool = False
    """Whether residual streams were matched."""
    looked_at: tuple[str, ...] = ()
    """What the match looked at beside the weights."""
    taught: tuple[Taught, ...] = ()
    learns: bool = True
    """False where learning was tried, and these models could not."""
    relation: str = ""
    """The code of the run's own verdict (`isomerge.evidence.relation.CODES`), of the models furthest apart; reports
    of older versions have none."""
    level: str = ""
    """Of that verdict (`isomerge.evidence.relation.LEVELS`)."""
    sentence: str = ""
    """In words."""
    left_alone: tuple[str, ...] = ()
    """The models that were left as they are, being aligned already."""
    left: bool = False
    """Whether these are all of them."""
    notes: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    """The modules and files that were imported for the run."""
    spec: str = ""
    """The spec file that was given."""
    plug_ins: tuple[str, ...] = ()
    """What was used of others, in words."""
    kept_from_first: tuple[str, ...] = ()
    head_folders: tuple[str, ...] = ()
    heads: str = ""
    dead_blocks: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    search: Search | None = None
    """Where the parameters were searched for."""

    @property
    def moved(self) -> bool:
        """Whether anything was matched."""
        return self.aligned and not self.left

    @property
    def names(self) -> list[str]:
        """Short names of the models, each different."""
        return short_names(self.models)


def short_names(refs: Iterable[str]) -> list[str]:
    """The last part of every reference, with as many before it as tell them apart; without the middles of those
    that fill a line."""
    names = last_parts(refs)
    shorter = [clipped(name, NAME) for name in names]
    return shorter if len(set(shorter)) == len(names) else [f"{name} ({k})" for k, name in enumerate(shorter, 1)]


def last_parts(refs: Iterable[str]) -> list[str]:
    """The last part of every reference, with as many before it as tell it from the others."""
    refs = list(refs)
    pieces = [[ref] if os.path.exists(ref) else ref.split("+") for ref in refs]  # a model and its adapters
    parts = [[[p for p in PurePath(x).parts if p not in ("/", "")] or [x] for x in own] for own in pieces]
    names = []
    for own in parts:
        most = max(map(len, own))
        alike = [sum(_ends(other, take) == _ends(own, take) for other in parts) for take in range(1, most + 1)]
        names.append(_ends(own, 1 + alike.index(1) if 1 in alike else most))
    if len(set(names)) == len(names):
        return names
    return [f"{name} ({k})" for k, name in enumerate(refs, 1)]  # a model merged with itself


def _ends(parts: Sequence[Sequence[str]], take: int) -> str:
    """The last parts of a model's path and of its adapters'."""
    return "+".join("/".join(own[-take:]) for own in parts)


def facts_of(report: Mapping[str, Any], *, file: str = "the report") -> Facts:
    """The facts in a report.

    Args:
        report: what `isomerge.merge`, `align` or `distance` returned, or the ``isomerge.json`` that they wrote.
        file: what errors call it.

    Raises:
        IsomergeError: it is the report of another command, or damaged.
    """
    command = report.get("command") if isinstance(report, Mapping) else None
    if command == "merge" and report.get("experts"):
        raise IsomergeError(
            f"{file} is of a mixture of experts, of which there is no page: README.md and isomerge.json have all "
            f"that is known of it"
        )
    if command not in ("merge", "align", "diff"):
        raise IsomergeError(f"{file} is of isomerge {command}: a report is made of what merge or align wrote")
    try:
        return _facts(str(command), report)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise IsomergeError(
            f"{file} is damaged ({type(error).__name__}: {error}): run isomerge {command} again"
        ) from None


def _facts(command: str, report: Mapping[str, Any]) -> Facts:
    match = report.get("match") or {}
    mean = report.get("mean") or {}
    solved = [
        dict(match_of) for match_of in [*(report.get("streams") or []), *match.get("sources", []), mean] if match_of
    ]
    distance = spread_of(report["distance"])
    verdict = report.get("verdict")
    verdict = verdict if isinstance(verdict, Mapping) else {}
    pairs = list(verdict.get("pairs") or [])
    return Facts(
        command=command,
        models=tuple(map(str, report["models"])),
        paths=tuple(map(str, report.get("paths") or report["models"])),
        distance=distance,
        sources=tuple((str(s["model"]), spread_of(s["distance"])) for s in report.get("sources") or []),
        architecture=str(report.get("architecture") or ""),
        aligned=bool(report.get("align", True)) and report.get("spaces") != "none",
        spaces=str(report.get("spaces") or ""),
        layers=str(report.get("layers") or ""),
        method=str(report.get("method") or ""),
        weights=tuple(map(float, report.get("weights") or ())),
        varies={str(row["model"]): str(row["varies"]) for row in report.get("roles") or () if row.get("varies")},
        parameters=dict(report.get("parameters") or {}),
        base=bool(report.get("base")),
        common_mean=report.get("anchor") == "none",
        common_gains=bool(report.get("gains")),
        match=str(match.get("name") or ""),
        exact=all(match_of.get("preserves_function", True) for match_of in match.get("sources", [])),
        streams=bool(match) or any(match_of.get("groups") for match_of in solved),
        looked_at=tuple(
            k
            for k in ("input_metric", "functional", "search", "learned")
            if any(match_of.get(k) for match_of in solved)
        ),
        taught=tuple(_taught(match_of["learned"]) for match_of in solved if match_of.get("learned")),
        learns=not any(match_of.get("not_learned") for match_of in solved),
        relation=str(verdict.get("code") or ""),
        level=str(verdict.get("level") or ""),
        sentence=str(verdict.get("sentence") or "").removesuffix("."),
        left_alone=tuple(str(pair["model"]) for pair in pairs if pair["left_as_it_is"]),
        left=all_left(pairs),
        notes=tuple(map(str, [*filter(None, [report.get("vocabulary")]), *(report.get("notes") or ())])),
        imports=tuple(map(str, report.get("imports") or ())),
        spec=str(report.get("spec") or ""),
        plug_ins=tuple(map(str, sentences(report.get("plug_ins") or ()))),
        kept_from_first=tuple(map(str, report.get("kept_from_first") or ())),
        head_folders=tuple(map(str, report.get("head_folders") or ())),
        heads=str(report.get("heads") or ""),
        dead_blocks=len(report.get("dead_blocks") or ()),
        versions=tuple(sorted((str(k), str(v)) for k, v in (report.get("versions") or {}).items())),
        search=search_of(report["tune"]) if report.get("tune") else None,
    )


def spread_of(distance: Mapping[str, Any]) -> Spread:
    """The distances of a report (see `isomerge.evidence.distance.summarise`)."""
    layers = distance.get("layers") or {}
    return Spread(
        _gap(distance),
        {str(name): _gap(d) for name, d in (distance.get("spaces") or {}).items()},
        {str(name): _gap(d) for name, d in layers.items()},
        {
            str(layer): {str(name): _gap(cell) for name, cell in d["spaces"].items()}
            for layer, d in layers.items()
            if "spaces" in d
        },
        matrices=_gap(distance["matrices"]) if "matrices" in distance else None,
    )


def _gap(figures: Mapping[str, Any]) -> Gap:
    numbers = [float(figures[key]) for key in ("before", "after", "norm")]
    gap = Gap(*numbers)
    if not all(isfinite(x) and x >= 0 for x in (*numbers, *(gap.share or ()))):
        raise ValueError(f"a distance is {numbers}")
    return gap


def _taught(learned: Mapping[str, Any]) -> Taught:
    history = [(int(h["step"]), float(h["barrier"])) for h in learned.get("history") or []]
    return Taught(
        tuple(step for step, _ in history),
        tuple(barrier for _, barrier in history),
        float(learned["barrier"]),
        int(learned.get("examples", 0)),
        int(learned.get("held_out", 0)),
        str(learned.get("target", "")),
        str(learned.get("unit", "nats")),
    )


def search_of(tune: Mapping[str, Any]) -> Search:
    """What `isomerge.tune` reports as ``tune``."""
    scored, start = tune["objective"] == "tasks", tune["start"]
    figures = [start["search"], *(row["score" if scored else "loss"] for row in tune["trials"])]
    if not all(x is None or isfinite(x) for x in figures) or start["search"] is None:
        raise ValueError(f"what was measured of trials is {figures}")
    return Search(
        tuple(dict(row["values"]) for row in (start, *tune["trials"])),
        tuple(figures),
        scored,
        "score" if scored else f"loss ({tune['search_unit']})",
        int(tune["data"]["search"]["examples"]),
        str(tune["sentence"]),
    )

"""Two pipelines, or single files, compared part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from isomerge.archs import without_spec
from isomerge.checkpoint.pipeline import Component
from isomerge.errors import IsomergeError
from isomerge.models.references import is_assembled, open_assembled
from isomerge.options.requests.comparing import Diff, Verify
from isomerge.records import Record, optional

Asked = TypeVar("Asked", Diff, Verify)


class PairReport(Record):
    """How two models compare."""

    @property
    def same(self) -> bool | None:
        """Whether they are one function; None: it cannot be told."""
        raise NotImplementedError


R = TypeVar("R", bound=PairReport)


class PartReport(Record, Generic[R]):
    """How two parts compare."""

    said: str
    same: bool | None
    """None: it cannot be told."""
    report: R | None = optional()


class PartsReport(Record, Generic[R]):
    """How two pipelines compare, part by part."""

    command: str
    models: Sequence[str]
    parts: Mapping[str, PartReport[R]]
    same: bool | None
    reason: str | None
    """Why it cannot be told."""


def by_parts(command: str, asked: Asked, compare: Callable[[Asked], R]) -> R | PartsReport[R]:
    """The report on two models; of two pipelines on all of their parts.

    Args:
        command: its name.
        asked: what is compared.
        compare: compares two models; its report.

    Raises:
        IsomergeError: only one is a pipeline, or two parts do not fit together.
    """
    given = [ref for ref in (asked.one, asked.two) if isinstance(ref, str | Path) and is_assembled(ref)]
    if not given:
        return compare(asked)
    if len(given) == 1:
        other = asked.two if given[0] is asked.one else asked.one
        raise IsomergeError(f"{given[0]} is a pipeline and {other} none: compare two pipelines, or two models")
    first, second = map(open_assembled, given)
    parts: dict[str, PartReport[R]] = {}
    for name in dict.fromkeys((*first.components, *second.components)):
        mine, theirs = first.components.get(name), second.components.get(name)
        if mine is None or theirs is None:
            only = f"only {first.ref if theirs is None else second.ref} has it"
            parts[name] = PartReport(only, False)
        elif (unlike := _unlike(mine, theirs)) is not None:
            parts[name] = unlike
        else:
            report = compare(replace(asked, one=mine.ref, two=theirs.ref))
            parts[name] = PartReport("compared", report.same, report=report)
    verdicts = {part.same for part in parts.values()}
    verdict = False if False in verdicts else None if None in verdicts else True
    reason = "; ".join(f"{name}: {part.said}" for name, part in parts.items() if part.same is None)
    return PartsReport(command, [first.ref, second.ref], parts, verdict, reason if verdict is None else None)


def _unlike(mine: Component, theirs: Component) -> PartReport[Any] | None:
    """What can be said of a part without its tensors; None where these must be compared."""
    if mine.kind != theirs.kind:
        return PartReport(f"a {mine.kind} and a {theirs.kind}", False)
    if mine.equals(theirs):
        return PartReport("the same bytes", True)
    if not mine.has_weights:
        return PartReport("files that differ, which are not compared", None)
    if without_spec(mine.config()):
        return PartReport("weights that differ as they are stored, and there is no spec for the class", None)
    return None

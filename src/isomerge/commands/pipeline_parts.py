"""Two pipelines, or single files, compared part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from isomerge.archs import without_spec
from isomerge.checkpoint.pipeline import Component
from isomerge.errors import IsomergeError
from isomerge.models.references import is_assembled, open_assembled
from isomerge.records import Record, optional

R = TypeVar("R", bound=Record)


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


def by_parts(
    command: str, left: Any, right: Any, compare: Callable[[str, str], R], same: Callable[[R], bool | None]
) -> PartsReport[R] | None:
    """The report on two pipelines; None where neither is one.

    Args:
        command: its name.
        left, right: what is compared.
        compare: compares two models; its report.
        same: what a report says.

    Raises:
        IsomergeError: only one is a pipeline, or two parts do not fit together.
    """
    given = [ref for ref in (left, right) if isinstance(ref, str | Path) and is_assembled(ref)]
    if not given:
        return None
    if len(given) == 1:
        other = right if given[0] is left else left
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
            report = compare(mine.ref, theirs.ref)
            parts[name] = PartReport("compared", same(report), report=report)
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

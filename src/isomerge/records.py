"""Records that JSON has by their fields: what a command finds out, and what is kept between its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

Json = dict[str, Any]
"""An object of JSON or YAML: what a record is written as, what a file says before anybody has looked at it."""
Config = Mapping[str, Any]
"""What a ``config.json`` says."""


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen dataclass that becomes JSON by one rule: every field by its name."""

    also: ClassVar[tuple[str, ...]] = ()
    """Properties that JSON has as well."""

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=kw_only)(cls)

    def document(self) -> Json:
        """The record as JSON has it."""
        document: Json = {name: as_json(getattr(self, name)) for name in self.also}
        for each in fields(self):  # pyright: ignore[reportArgumentType]
            value, about = getattr(self, each.name), each.metadata
            if about.get("hidden"):
                continue
            if about.get("inline"):
                document |= {} if value is None else as_json(value)
            elif value is not None or not about.get("optional"):
                document[about.get("key", each.name)] = as_json(value)
        return document


def optional() -> Any:
    """A field that is left out of the JSON where it is None, which it is by default."""
    return field(default=None, kw_only=True, metadata={"optional": True})


def inline(default: Any = MISSING) -> Any:
    """A field whose record has no key of its own: its fields stand among those of what has it."""
    return field(default=default, kw_only=True, metadata={"inline": True})


def named(key: str, default: Any = MISSING) -> Any:
    """A field that JSON calls otherwise than Python can."""
    return field(default=default, kw_only=True, metadata={"key": key})


def hidden(default: Any = MISSING) -> Any:
    """A field that JSON does not have."""
    return field(default=default, metadata={"hidden": True})


A = TypeVar("A", bound=Record)


class OfModels(Record, Generic[A]):
    """What a command found out about models."""

    command: str
    models: Sequence[str]
    about: A = inline()


class Change(Record):
    """A figure before and after."""

    before: Any
    after: Any


def as_json(value: Any) -> Any:
    """A value with its records, wherever they are in it, as JSON has them; tuples are lists."""
    if hasattr(value, "document"):
        return value.document()
    if isinstance(value, Mapping):
        return {key: as_json(part) for key, part in value.items()}
    return [*map(as_json, value)] if isinstance(value, (list, tuple)) else value

"""One option, declared once: every door (command line, Python, recipes, reference pages, messages) is made from it.

A group of options is a frozen dataclass whose fields are declared by `option`. To add an option is to add a field.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

FIRST = "What most runs need"
"""The panel of the command line's help that comes first."""


@dataclass(frozen=True)
class Option:
    """What the doors know of an option beside its name, kind and default."""

    help: str
    """One or two sentences for people; options are named as the command line writes them."""
    names: tuple[str, ...] = ()
    """How the command line writes it, where that is not its name with dashes."""
    kind: Any = None
    """What the command line takes, where Python takes more; else the field's annotation."""
    python: str = ""
    """What Python takes, where that names what stands above this floor: then the field's annotation is `Any`."""
    read: Callable[[Any], Any] | None = None
    """From what the command line was given to Python's value."""
    default: Any = ...
    """The command line's default, where it is not Python's."""
    panel: str | None = None
    """Under which heading the command line's help lists it."""
    least: int | None = None
    """The smallest number that is taken."""
    shown: bool = True
    """Whether the help shows the default."""
    callback: Callable[[Any], Any] | None = None
    """What the command line checks before the command runs."""
    recipe: bool = False
    """Whether the block `align` of a recipe has it as a key."""


def option(default: Any, words: str, /, *names: str, **more: Any) -> Any:
    """A field of a group: its default, its help, and further keywords of `Option`."""
    return field(default=default, metadata={"option": Option(words, names, **more)})


@dataclass(frozen=True)
class Options:
    """A group of options."""

    @classmethod
    def declared(cls) -> dict[str, tuple[dataclasses.Field[Any], Option]]:
        """The options of the group by their names, in order."""
        return {f.name: (f, f.metadata["option"]) for f in dataclasses.fields(cls)}

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """The group with those of some arguments that are its own."""
        return cls(**{f.name: arguments[f.name] for f in dataclasses.fields(cls) if f.name in arguments})

    def given(self) -> dict[str, Any]:
        """All values by name, as they are (unlike `dataclasses.asdict`, which copies)."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def kind_of(group: type[Options], name: str) -> Any:
    """What the command line takes for an option."""
    declared, about = group.declared()[name]
    if about.kind is not None:
        return about.kind
    names = {**vars(sys.modules[group.__module__]), "Path": Path}
    return eval(str(declared.type), names)


def spelled(name: str, about: Option) -> str:
    """The long name by which the command line writes an option."""
    long = [part for word in about.names for part in word.split("/") if part.startswith("--")]
    return long[0] if long else f"--{name.replace('_', '-')}"


def switches() -> dict[str, str]:
    """How Python writes what the command line switches: on, of every declared option that is false by default; off,
    of those that have a word for it."""
    words: dict[str, str] = {}
    groups = Options.__subclasses__()
    while groups:
        group = groups.pop()
        groups += group.__subclasses__()
        for name, (declared, about) in group.declared().items():
            if declared.default is False and name not in COMMAND_LINE:
                words[spelled(name, about).removeprefix("--")] = f"{name}=True"
            off = (part for word in about.names for part in word.split("/") if part.startswith("--no-"))
            words |= {word.removeprefix("--"): f"{name}=False" for word in off}
    return dict(sorted(words.items()))


COMMAND_LINE = ("dry_run", "quiet", "verbose")
"""Switches that Python does not have."""

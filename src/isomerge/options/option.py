"""One option, declared once: every door (command line, Python, recipes, reference pages, messages) is made from it.

A group of options is a frozen dataclass whose fields are declared by `option`, or by `group` where another group
stands within it. To add an option is to add a field. A `Request` is all that a command is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

FIRST = "What most runs need"
"""The panel of the command line's help that comes first."""
ALWAYS = "always"
"""An option acts in every run, or it allows or bounds something, or says how to tell what was done."""
REFUSED = "refused"
"""Where it cannot act, whoever reads it refuses it."""
LATE = "late"
"""What the models or data are decides: `isomerge.options.unused.note` is called where that is known."""
PYTHON, COMMAND_LINE = "Python", "the command line"
"""The doors, for what one of them alone has."""
FILE, FOLDER = "file", "folder"
"""What is written to the place that an option names."""


class Asked:
    """The arguments of a command, by Python's names; what it does not have is None."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._given = arguments

    def __getattr__(self, name: str) -> Any:
        return self._given.get(name)


@dataclass(frozen=True)
class Key:
    """A key of a recipe's ``align``, by the name of the option that it says."""

    kind: Any = None
    """What it takes, where that is not what the command line takes."""
    aligns: bool = True
    """Whether it says how models are aligned, so that a block of it alone aligns them."""
    experts: bool = True
    """Whether it has a place where experts are made, each of which is brought to the base's frame."""


Acts = Callable[[Asked], str | None]
"""Why an option does nothing; None where it acts."""


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
    required: bool = False
    """Whether the command line must be told, where Python need not be."""
    panel: str | None = None
    """Under which heading the command line's help lists it."""
    least: int | None = None
    """The smallest number that is taken."""
    shown: bool = True
    """Whether the help shows the default."""
    callback: Callable[[Any], Any] | None = None
    """What the command line checks before the command runs."""
    acts: Acts | str = ALWAYS
    """When it acts: `ALWAYS`, `REFUSED`, `LATE`, or a function of all arguments that says why it does not."""
    door: str | None = None
    """The only door that has it."""
    positional: bool = False
    """Whether it is given by its place, not by its name."""
    reads: bool = False
    """Whether it names models, files or folders that are read."""
    writes: str | None = None
    """What is written to the place that it names: `FILE` or `FOLDER`."""
    recipe: Key | None = None
    """What says it in a recipe, which a match's options need not tell: they all are such keys."""
    metavar: str | None = None
    """How the command line's help writes its value, where that is not its kind."""


def option(default: Any, words: str, /, *names: str, **more: Any) -> Any:
    """A field of a group: its default, its help, and further keywords of `Option`."""
    return field(default=default, metadata={"option": Option(words, names, **more)})


def needed(words: str, /, *names: str, **more: Any) -> Any:
    """A field that has no default."""
    return field(metadata={"option": Option(words, names, **more)})


def argument(
    words: str, name: str = "", /, default: Any = dataclasses.MISSING, kind: Any = str, **more: Any
) -> Any:
    """A field that is given by its place: its help, what the command line calls it where that is not its name, and
    further keywords of `Option`. It is read, unless that is said otherwise."""
    more = {"kind": kind, "positional": True, "reads": True, **more}
    return field(default=default, metadata={"option": Option(words, (name,) if name else (), **more)})


Group = TypeVar("Group", bound="Options")


def group(kind: type[Group], **acts: Acts | str) -> Group:
    """A field for a group of options; ``acts``: when some of them act, where that is not as elsewhere."""
    return field(default_factory=kind, metadata={"group": kind, "acts": acts})


Given = dict[str, Any]
"""Values by the names that Python has for options."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True)
class Options:
    """A group of options: every group is a frozen dataclass, and is made by keywords."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def declared(cls) -> dict[str, tuple[dataclasses.Field[Any], Option]]:
        """The options of the group and of those within it, by their names, in order."""
        rows: dict[str, tuple[dataclasses.Field[Any], Option]] = {}
        for each in dataclasses.fields(cls):
            if "option" in each.metadata:
                rows[each.name] = each, each.metadata["option"]
            if "group" not in each.metadata:
                continue
            within, acts = each.metadata["group"].declared(), each.metadata["acts"]
            rows |= {n: (f, replace(about, acts=acts.get(n, about.acts))) for n, (f, about) in within.items()}
        return rows

    @classmethod
    def recipe_keys(cls) -> dict[str, Key]:
        """The keys of a recipe's ``align`` that the options tell, by name."""
        return {name: about.recipe for name, (_, about) in cls.declared().items() if about.recipe is not None}

    @classmethod
    def defaults(cls) -> Given:
        """The defaults of options that have some, by name."""
        return {n: f.default for n, (f, _) in cls.declared().items() if f.default is not dataclasses.MISSING}

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """The group with those of some arguments that are its own."""
        own = {}
        for each in dataclasses.fields(cls):
            if "group" in each.metadata:
                own[each.name] = each.metadata["group"].of(arguments)
            elif each.name in arguments:
                own[each.name] = arguments[each.name]
        return cls(**own)

    def given(self) -> Given:
        """All values by name, as they are (unlike `dataclasses.asdict`, which copies)."""
        values: Given = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if "group" in each.metadata:
                values |= value.given()
            elif "option" in each.metadata:
                values[each.name] = value
        return values


class Request(Options):
    """What a command is asked for: the one declaration of its arguments, options and groups, of which both doors
    are made. Its docstring is the command line's help."""

    progress: ClassVar[str] = ""
    """What the progress bar says; without it none is shown, and Python's function takes no observer."""
    settled: ClassVar[bool] = True
    """Whether the arguments are all that is asked for, so that those which do nothing are noted at the door; else
    whoever plans the command does that."""
    said: frozenset[str] = frozenset()
    """The arguments that were given, whatever their values."""


NAMES = {"Any": Any, "Callable": Callable, "Mapping": Mapping, "Path": Path, "Sequence": Sequence}
"""What the annotations of options name."""


def listed(given: Sequence[Any] | None) -> list[Any]:
    """What the command line was given of an option that may be repeated (`Option.read`)."""
    return list(given or ())


def texts_of(paths: Sequence[Path] | None) -> list[str]:
    """Paths that the command line was given, as Python takes them (`Option.read`)."""
    return [str(path) for path in paths or ()]


def kind_of(declared: dataclasses.Field[Any], about: Option) -> Any:
    """What the command line takes for an option."""
    return about.kind if about.kind is not None else eval(str(declared.type), NAMES)


def required(declared: dataclasses.Field[Any], about: Option) -> bool:
    """Whether the command line must be given an option."""
    return about.required or (declared.default is dataclasses.MISSING and about.default is ...)


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
            if declared.default is False and about.door != COMMAND_LINE:
                words[spelled(name, about).removeprefix("--")] = f"{name}=True"
            off = (part for word in about.names for part in word.split("/") if part.startswith("--no-"))
            words |= {word.removeprefix("--"): f"{name}=False" for word in off}
    return dict(sorted(words.items()))

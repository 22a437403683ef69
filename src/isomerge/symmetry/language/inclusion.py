"""Specs inside specs: models that are made of others, such as a vision tower, a projector and a language model.

``include GROUP [or whole] [as NAME] [at PREFIX] [of MODEL] [with KEY=E, ...] [without SPACE ...] [if E]`` reads the
spec of the model that the keys under ``GROUP`` of ``config.json`` describe, and takes all of it in:

* ``include GROUP or whole``: where there is no such group, the keys of the config itself describe the part
  (Qwen2-VL's config is flat in its published checkpoints);

* the model is the group's own ``model_type``; ``of MODEL`` says which where the group names none;
* ``as NAME``: spaces, sizes, free axes and shifts are called ``NAME_...`` here, so that two parts do not clash.
  Roles (``--spaces ov``) stay. Without it they keep their names: right for the one part that has the vocabulary;
* ``at PREFIX``: what its tensors' names begin with here, in the language of names: ``at (language_model.|)`` may be
  lacking. The prefixes of the included text itself may be there or not, behind it;
* ``with KEY=E``: a key of the part's config beside its own, such as which of several like parts it is;
* ``without SPACE``: a symmetry of the part alone that the whole does not have, because something else reads what it
  moves.

The part's own expressions know the keys of the whole as ``whole``, which is missing where the part is a model by
itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.records import Json
from isomerge.symmetry.axes import renamed
from isomerge.symmetry.language.expansion import Form
from isomerge.symmetry.language.spec import Line, Shift, Space, Spec
from isomerge.symmetry.language.statements import Holder, Normed, Part

_INCLUDE = Form(
    "include",
    re.compile(
        r"(\w+)(\s+or\s+whole)?(?:\s+as\s+(\w+))?(?:\s+at\s+(\S+))?(?:\s+of\s+(\S+))?(?:\s+with\s+(\w+=.+?))?(?:\s+without\s+(\w+(?:\s+\w+)*))?$"
    ),
    "GROUP [as NAME] [at PREFIX] [of MODEL] [with KEY=EXPR, ...] [without SPACE ...] [if E]",
)

OF_STREAMS = ("prenorm", "normed_out", "within", "again", "plain", "postnorm")
"""What specs say by the names of streams."""
OF_LINES = ("shifts", "tied_trades", "carries", "probes", "lengths", "reaches", "mutes", "bases", "head_norms")
"""What they say in statements that name lines."""
NAMES_OF_LINES = {
    Part: ("name",),
    Normed: ("name",),
    Holder: ("name", "via"),
    Shift: ("bias", "into", "via", "against", "beside"),
}
"""Which names in those are of lines; all others are of axes, or the statement's own."""


@dataclass(frozen=True)
class Inclusion:
    """One ``include`` statement."""

    group: str
    """The key of ``config.json`` whose keys describe the part."""
    name: str | None = None
    at: str = ""
    model: str | None = None
    without: tuple[str, ...] = ()
    or_whole: bool = False
    """Whether the keys of the config itself stand in for the group."""
    more: tuple[tuple[str, str], ...] = ()
    """Keys of the part's config beside its own, and what they come to in the whole's expressions."""

    def stands_in(self, whole: Mapping[str, Any]) -> bool:
        """Whether the keys of the config itself describe the part."""
        return self.or_whole and whole.get(self.group) is None

    def config(self, whole: Mapping[str, Any], value: Callable[[str], Any]) -> Json:
        """The part's own config, with a ``model_type``, the keys that it is given, and the config of the whole as
        ``whole``; ``value`` is what an expression comes to.

        Raises:
            IsomergeError: there is no such group of keys, or it does not say which model it describes.
        """
        own = whole.get(self.group)
        if own is not None and not isinstance(own, Mapping):
            raise IsomergeError(f"config.json: {self.group} is {own!r}, not a group of keys")
        if self.stands_in(whole):
            own = {key: value for key, value in whole.items() if key != "model_type"}
        kind = (own or {}).get("model_type") or self.model
        if kind is None:
            raise IsomergeError(
                f"config.json: {self.group} has no model_type, so its spec cannot be included: add it, or write "
                f"`include {self.group} of MODEL` in the spec"
            )
        more = {key: value(expression) for key, expression in self.more}
        return {**(own or {}), **more, "model_type": kind, "whole": whole}

    def text(self, config: Mapping[str, Any], texts: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
        """The file name and the text of the part's spec.

        Raises:
            IsomergeError: there is none for its ``model_type``.
        """
        kind = str(config["model_type"])
        if kind not in texts:
            raise IsomergeError(
                f"config.json: {self.group} is a {kind!r}, for which there is no spec to include: it is none of "
                f"the {len(texts)} that isomerge architectures lists"
            )
        return texts[kind]

    def stored(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The stored tensors' shapes by the names that they have in the part, whichever alternative of ``at`` they
        begin with."""
        starts = self.at[1:-1].split("|") if self.at.startswith("(") and self.at.endswith(")") else [self.at]
        return {
            name[len(start) :]: shape
            for start in starts
            for name, shape in shapes.items()
            if name.startswith(start)
        }

    def called(self, name: str) -> str:
        """What a name of the part is called in the whole."""
        return name if self.name is None or name.isdigit() else f"{self.name}_{name}"


def read_inclusion(rest: str) -> Inclusion:
    """Read what follows the word ``include``.

    Raises:
        IsomergeError: it is not understood.
    """
    group, whole, name, at, model, assigned, without = _INCLUDE.read(rest).groups()
    keys = re.split(r",\s+(?=\w+=[^=])", assigned) if assigned else []
    more = tuple((key, expression) for key, _, expression in (key_value.partition("=") for key_value in keys))
    return Inclusion(group, name, at or "", model, tuple((without or "").split()), bool(whole), more)


def included(inclusion: Inclusion, part: Spec) -> Spec:
    """The spec of a part under the names that it has in the whole; lines keep their order.

    Raises:
        IsomergeError: ``without`` names no space of the part.
    """
    for name in inclusion.without:
        if name not in part.sizes:
            raise IsomergeError(f"include {inclusion.group} without {name}: {part.origin} has no space {name}")
    line, own = partial(_name, inclusion, part), inclusion.called

    def kept(names: Iterable[str]) -> tuple[str, ...]:
        """Those of streams that the whole has."""
        return tuple(own(name) for name in names if name not in inclusion.without)

    spaces = (
        _space(inclusion, part, space) for name, space in part.spaces.items() if name not in inclusion.without
    )
    return replace(
        part,
        prefixes=(),
        sizes={own(name): size for name, size in part.sizes.items()},
        spaces={space.name: space for space in spaces},
        lines=tuple(_line(inclusion, part, each) for each in part.lines),
        biased=tuple((line(weight), number, line(bias)) for weight, number, bias in part.biased),
        config_keys=tuple(f"{inclusion.group}.{key}" for key in part.config_keys),
        fixed=tuple(replace(each, beginnings=tuple(map(line, each.beginnings))) for each in part.fixed),
        beside=tuple((own(s), word, name) for s, word, name in part.beside if s not in inclusion.without),
        seen_raw=tuple(map(own, part.seen_raw)),
        together=tuple(tuple(map(line, stacks)) for stacks in part.together),
        depths={line(stack): depth for stack, depth in part.depths.items()},
        numbered={f"{reason} ({inclusion.group})": values for reason, values in part.numbered.items()},
        **{name: kept(getattr(part, name)) for name in OF_STREAMS},
        **{name: _renamed(getattr(part, name), own, line) for name in OF_LINES},
    )


def _renamed(said: Any, own: Callable[[str], str], line: Callable[[str], str]) -> Any:
    """What statements say under the names that it has in the whole: those of lines, and those of axes and statements."""
    if isinstance(said, str):
        return own(said)
    if isinstance(said, tuple | frozenset):
        return type(said)(_renamed(each, own, line) for each in said)
    if not is_dataclass(said) or isinstance(said, type):
        return said
    values = {field.name: getattr(said, field.name) for field in fields(said)}
    lines = NAMES_OF_LINES.get(type(said), ())
    return replace(
        said, **{name: _renamed(value, line if name in lines else own, line) for name, value in values.items()}
    )


def check_apart(inclusion: Inclusion, part: Spec, sizes: Mapping[str, int]) -> None:
    """Refuse a part whose names mean something else in the whole already.

    Raises:
        IsomergeError: a size or a layer's index would be taken for another one.
    """
    scopes = {i for line in part.lines for i in line.indices if i not in part.sizes}
    if both := sorted((part.sizes.keys() | scopes) & sizes.keys()):
        raise IsomergeError(
            f"include {inclusion.group}: {both[0]} is declared already: include it `as NAME`, so that its names "
            "begin with NAME_"
        )


def _space(inclusion: Inclusion, part: Spec, space: Space) -> Space:
    index = tuple(inclusion.called(i) if i in part.sizes else i for i in space.index)
    return replace(space, name=inclusion.called(space.name), index=index)


def _name(inclusion: Inclusion, part: Spec, name: str) -> str:
    """A line's name in the whole: an index that is an axis is called as the axis is."""
    own = f"({'|'.join(['', *part.prefixes])})" if part.prefixes else ""

    def called(word: re.Match[str]) -> str:
        return inclusion.called(word[0]) if word[0] in part.sizes else word[0]

    index = re.sub(r"\{[^}]*\}", lambda number: re.sub(r"[A-Za-z_]\w*", called, number[0]), name)
    return f"{inclusion.at}{own}{index}"


def _line(inclusion: Inclusion, part: Spec, line: Line) -> Line:
    axes = None if line.axes is None else tuple(renamed(axis, inclusion.called) for axis in line.axes)
    tied = line.tied and Line(_name(inclusion, part, line.tied), None).canonical({})
    return replace(line, name=_name(inclusion, part, line.name), axes=axes, tied=tied)

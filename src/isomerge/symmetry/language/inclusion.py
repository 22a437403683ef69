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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from isomerge.errors import IsomergeError
from isomerge.records import Json
from isomerge.symmetry.axes import renamed
from isomerge.symmetry.language.spec import Line, Spec
from isomerge.symmetry.language.words import WORDS

Names = Mapping[str, Callable[[Any], Any]]
"""From what names are of (`isomerge.symmetry.language.names`) to what gives them those of the whole."""
_LEFT_OUT = object()
"""Stands for a name that the whole leaves out."""


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
    group, whole, name, at, model, assigned, without = WORDS["include"].apart(rest)
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
    names: Names = {
        "line": line,
        "tied": lambda name: Line(line(name), None).canonical({}),
        "own": own,
        "index": lambda name: own(name) if name in part.sizes else name,
        "space": lambda name: _LEFT_OUT if name in inclusion.without else own(name),
        "axis": lambda axis: renamed(axis, own),
        "key": lambda name: f"{inclusion.group}.{name}",
        "reason": lambda name: f"{name} ({inclusion.group})",
        "alone": lambda said: said,
    }
    return _renamed(part, Spec, names)


def _renamed(said: Any, kind: Any, names: Names) -> Any:
    """What is said under the names that it has in the whole, by what its type says that they are of."""
    if said is None or not _has_names(kind):
        return said
    if get_origin(kind) is Annotated:
        return names[kind.__metadata__[0]](said)
    if is_dataclass(kind):
        return replace(said, **{n: _renamed(getattr(said, n), each, names) for n, each in _types(kind).items()})
    parts = get_args(kind)
    if NoneType in parts:
        return _renamed(said, parts[0], names)
    if isinstance(said, dict):
        pairs = [(_renamed(key, parts[0], names), _renamed(value, parts[1], names)) for key, value in said.items()]
        return {key: value for key, value in pairs if key is not _LEFT_OUT}
    if get_origin(kind) is tuple and parts[-1] is not ...:
        row = tuple(_renamed(each, part, names) for each, part in zip(said, parts, strict=True))
        return _LEFT_OUT if _LEFT_OUT in row else row
    every = (_renamed(each, parts[0], names) for each in said)
    return type(said)(each for each in every if each is not _LEFT_OUT)


@cache
def _types(record: Any) -> dict[str, Any]:
    """The types of those fields of a record that have names."""
    return {name: kind for name, kind in get_type_hints(record, include_extras=True).items() if _has_names(kind)}


@cache
def _has_names(kind: Any) -> bool:
    if is_dataclass(kind):
        return bool(_types(kind))
    return get_origin(kind) is Annotated or any(map(_has_names, get_args(kind)))


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


def _name(inclusion: Inclusion, part: Spec, name: str) -> str:
    """A line's name in the whole: an index that is an axis is called as the axis is."""
    own = f"({'|'.join(['', *part.prefixes])})" if part.prefixes else ""

    def called(word: re.Match[str]) -> str:
        return inclusion.called(word[0]) if word[0] in part.sizes else word[0]

    index = re.sub(r"\{[^}]*\}", lambda number: re.sub(r"[A-Za-z_]\w*", called, number[0]), name)
    return f"{inclusion.at}{own}{index}"

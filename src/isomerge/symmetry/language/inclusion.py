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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import renamed
from isomerge.symmetry.language.carries import Carry, Holder
from isomerge.symmetry.language.spec import Line, Shift, Space, Spec

_INCLUDE = re.compile(
    r"(\w+)(\s+or\s+whole)?(?:\s+as\s+(\w+))?(?:\s+at\s+(\S+))?(?:\s+of\s+(\S+))?(?:\s+with\s+(\w+=.+?))?(?:\s+without\s+(\w+(?:\s+\w+)*))?$"
)


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

    def config(self, whole: Mapping[str, Any], value: Callable[[str], Any]) -> dict[str, Any]:
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
    match = _INCLUDE.match(rest)
    if not match:
        raise IsomergeError(
            f"include {rest!r} is not understood: write GROUP [as NAME] [at PREFIX] [of MODEL] [with KEY=EXPR, ...] "
            f"[without SPACE ...] [if E]"
        )
    group, whole, name, at, model, assigned, without = match.groups()
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
    spaces = [
        _space(inclusion, part, space) for name, space in part.spaces.items() if name not in inclusion.without
    ]
    return replace(
        part,
        prefixes=(),
        sizes={inclusion.called(name): size for name, size in part.sizes.items()},
        spaces={space.name: space for space in spaces},
        lines=tuple(_line(inclusion, part, line) for line in part.lines),
        shifts=tuple(_shift(inclusion, part, shift) for shift in part.shifts),
        tied_trades=tuple(_shift(inclusion, part, shift) for shift in part.tied_trades),
        biased=tuple(
            (_name(inclusion, part, line), number, _name(inclusion, part, bias))
            for line, number, bias in part.biased
        ),
        carries=tuple(_carry(inclusion, part, carry) for carry in part.carries),
        probes=tuple(
            probe.renamed(inclusion.called(probe.name), partial(_name, inclusion, part), inclusion.called)
            for probe in part.probes
        ),
        lengths=tuple(
            length.renamed(inclusion.called(length.name), partial(_name, inclusion, part), inclusion.called)
            for length in part.lengths
        ),
        reaches=tuple(
            reach.renamed(inclusion.called(reach.name), partial(_name, inclusion, part)) for reach in part.reaches
        ),
        mutes=tuple(
            mute.renamed(inclusion.called(mute.name), partial(_name, inclusion, part)) for mute in part.mutes
        ),
        bases=tuple(
            statement.renamed(inclusion.called(statement.name), partial(_name, inclusion, part), inclusion.called)
            for statement in part.bases
        ),
        head_norms=tuple(
            statement.renamed(inclusion.called(statement.name), partial(_name, inclusion, part), inclusion.called)
            for statement in part.head_norms
        ),
        config_keys=tuple(f"{inclusion.group}.{key}" for key in part.config_keys),
        fixed=tuple(statement.renamed(lambda name: _name(inclusion, part, name)) for statement in part.fixed),
        prenorm=tuple(inclusion.called(name) for name in part.prenorm if name not in inclusion.without),
        normed_out=tuple(inclusion.called(name) for name in part.normed_out if name not in inclusion.without),
        beside=tuple((inclusion.called(s), w, name) for s, w, name in part.beside if s not in inclusion.without),
        seen_raw=tuple(inclusion.called(name) for name in part.seen_raw),
        within=tuple(inclusion.called(name) for name in part.within if name not in inclusion.without),
        again=tuple(inclusion.called(name) for name in part.again if name not in inclusion.without),
        plain=tuple(inclusion.called(name) for name in part.plain if name not in inclusion.without),
        postnorm=tuple(inclusion.called(name) for name in part.postnorm if name not in inclusion.without),
        together=tuple(tuple(_name(inclusion, part, stack) for stack in stacks) for stacks in part.together),
        depths={_name(inclusion, part, stack): depth for stack, depth in part.depths.items()},
        numbered={f"{reason} ({inclusion.group})": values for reason, values in part.numbered.items()},
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


def _carry(inclusion: Inclusion, part: Spec, carry: Carry) -> Carry:
    def renamed(holder: Holder) -> Holder:
        return holder.renamed(lambda name: _name(inclusion, part, name), inclusion.called)

    return Carry(inclusion.called(carry.name), renamed(carry.first), tuple(map(renamed, carry.others)))


def _shift(inclusion: Inclusion, part: Spec, shift: Shift) -> Shift:
    names = (shift.bias, shift.into, shift.via, shift.against, shift.beside)
    bias, into, via, against, beside = (None if name is None else _name(inclusion, part, name) for name in names)
    assert bias is not None
    along, into_along = (
        None if axis is None else inclusion.called(axis) for axis in (shift.along, shift.into_along)
    )
    name = inclusion.called(shift.name)
    lines = {"bias": bias, "into": into, "via": via, "against": against, "beside": beside}
    return replace(shift, name=name, along=along, into_along=into_along, **lines)

"""Specs that say what nothing executes, or what is not true of their lines, are refused when they are read."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import singledispatch
from math import prod

from isomerge.errors import IsomergeError
from isomerge.symmetry.groups import SCALES
from isomerge.symmetry.language.spec import Shift, Spec
from isomerge.symmetry.language.statements import (
    Carry,
    FixedPart,
    HeadNorm,
    Length,
    Mute,
    Part,
    Probe,
    Reach,
    TableBasis,
)
from isomerge.symmetry.stage import shift_atoms


def check_legality(spec: Spec) -> None:
    """Refuse declarations that nothing executes or that cannot act.

    Raises:
        IsomergeError: a space that no line uses, an index that a line does not offer or offers twice, another group
            than a scale over a residual stream, a factor over a stream that turns which is no gain, a statement of
            unknown lines or of axes that do not fit, a depth of no lines, a fixed part that a space moves.
    """
    used: set[str] = set()
    for line in spec.lines:
        offered = line.names | set(line.indices)
        for name in sorted(offered & spec.spaces.keys()):
            if line.infinite:
                raise IsomergeError(
                    f"{spec.origin}: line {line.name} may be infinite, but space {name} moves it: leave one out"
                )
            used.add(name)
            lacking = [i for i in spec.spaces[name].index if i not in offered and i not in line.indices]
            if lacking:
                raise IsomergeError(
                    f"{spec.origin}: line {line.name} uses space {name}, but has no index {lacking[0]}"
                )
        for leaf in line.parts:
            names = [a.name for a in leaf]
            for name in (n for n in names if n in spec.spaces):
                if twice := [i for i in spec.spaces[name].index if names.count(i) > 1]:
                    raise IsomergeError(
                        f"{spec.origin}: line {line.name} has {twice[0]} twice, so that it is not clear which of "
                        f"them {name} lies over: leave {name} out of this line, and of all others"
                    )
    for space in spec.spaces.values():
        stream = next((i for i in space.index if i in spec.streams), None)
        if stream is not None and space.group_name not in SCALES:
            raise IsomergeError(
                f"{spec.origin}: space {space.name} is {space.group_name} over {stream}, but over a residual "
                f"stream only scales are matched; leave {space.name} out, or give {stream} a larger group of its "
                "own (SignedPerm)"
            )
        if stream is not None and not space.residual and spec.spaces[stream].folded:
            raise IsomergeError(
                f"{spec.origin}: space {space.name} lies over {stream}, which turns once gains are folded, and a "
                f"turned stream has no channels: declare `residual {space.name}` where it is of a norm's gains"
            )
    if unused := [name for name in spec.spaces if name not in used]:
        raise IsomergeError(f"{spec.origin}: space {unused[0]} is declared, but no line uses it")
    for field in fields(spec):
        said = getattr(spec, field.name)
        for statement in said if isinstance(said, tuple) else ():
            _check(statement, spec)
    names = {line.name for line in spec.lines}
    for weight, _, bias in spec.biased:
        if strange := [name for name in (weight, bias) if name not in names]:
            raise IsomergeError(f"{spec.origin}: biased names {strange[0]}, which is no line of the spec")
    stacks = {line.stack for line in spec.lines if line.indices}
    if strange := [stack for stack in spec.depths if stack not in stacks]:
        raise IsomergeError(f"{spec.origin}: depth {strange[0]}: no line's name begins with it and a number")
    if strange := [stack for each in spec.together for stack in each if stack not in stacks]:
        raise IsomergeError(f"{spec.origin}: together {strange[0]}: no line's name begins with it and a number")


@singledispatch
def _check(statement: object, spec: Spec) -> None:
    """Refuse a statement that is not true of the lines; of most there is nothing to look at."""


@_check.register
def _(shift: Shift, spec: Spec) -> None:
    names = {line.name for line in spec.lines}
    for part in (shift.bias, shift.into, shift.via, shift.against, shift.beside):
        if part is not None and part not in names:
            raise IsomergeError(f"{spec.origin}: shift {shift.name} names {part}, which is no line of the spec")
    if shift.along is not None and [a.name for a in shift_atoms(spec, shift)].count(shift.along) != 1:
        raise IsomergeError(
            f"{spec.origin}: shift {shift.name} is along {shift.along}, which is no one axis of {shift.bias}"
        )
    if shift.trades:
        _check_trade(spec, shift)
    if shift.via is not None and shift.along is not None:
        _check_paid(spec, shift)
    others = {a.name for a in shift_atoms(spec, shift)} - {shift.along, *spec.sizes}
    if shift.along is not None and (free := sorted(name for name in others if not name.isdigit())):
        raise IsomergeError(f"{spec.origin}: shift {shift.name} moves axis {free[0]}, whose size is not known")


@_check.register
def _(part: FixedPart, spec: Spec) -> None:
    lines = [line for line in spec.lines if part.has(line.name)]
    if not lines:
        raise IsomergeError(f"{spec.origin}: fixed {part.beginnings[0]}: no line begins with this name")
    for line in lines:
        names = line.names | set(line.indices)
        if moving := sorted(names & spec.spaces.keys() - spec.residual_names):
            raise IsomergeError(
                f"{spec.origin}: line {line.name} is of a fixed part, but space {moving[0]} moves it: take it "
                "out of the `fixed` statement, or the space out of the line"
            )


@_check.register
def _(carry: Carry, spec: Spec) -> None:
    known = {plain(line.name) for line in spec.lines}
    names = [name for holder in (carry.first, *carry.others) for name in (holder.name, holder.via) if name]
    if strange := [name for name in names if plain(name) not in known]:
        raise IsomergeError(f"{spec.origin}: carry {carry.name} names {strange[0]}, which is no line of the spec")
    _check_coordinates(spec, carry)


def _check_coordinates(spec: Spec, carry: Carry) -> None:
    """Where a vector is held by some coordinates of a longer axis, these are as many as it has."""
    line = next(line for line in spec.lines if plain(line.name) == plain(carry.first.name))
    own = [a.name for a in line.atoms if a.name not in (carry.first.along, "1")]
    long = prod(spec.sizes.get(name, 0) for name in own)
    for holder in carry.others:
        if holder.over is None or holder.coordinates is None:
            continue
        held = len(range(spec.sizes.get(holder.over, 0))[slice(*holder.coordinates)])
        if held != long:
            raise IsomergeError(
                f"{spec.origin}: carry {carry.name} is over {held} coordinates of {holder.over} in {holder.name}, "
                f"but its vector has {long} ({' '.join(own) or 'a number'})"
            )


def _check_paid(spec: Spec, shift: Shift) -> None:
    """Every part of the weight that a bias pays for reads what the table holds."""
    line = next(line for line in spec.lines if line.name == shift.via)
    parts = [{a.name for a in part} for part in line.parts]
    held = {a.name for a in shift_atoms(spec, shift)} - {shift.along}
    for part in shift.reads:
        if part >= len(parts) or not held <= parts[part]:
            raise IsomergeError(
                f"{spec.origin}: shift {shift.name} is read by part {part} of {shift.via}, which is no part of it "
                f"that has {' '.join(sorted(held))}: name the parts that read {shift.bias}"
            )


def _check_trade(spec: Spec, shift: Shift) -> None:
    """Both tensors of a trade have the same axes beside those along which it is constant."""
    mine, theirs = (
        sorted(a.name for a in shift_atoms(spec, side) if a.name not in (side.along, "1"))
        for side in (shift, shift.swapped())
    )
    if mine != theirs:
        raise IsomergeError(
            f"{spec.origin}: shift {shift.name} moves {' '.join(mine) or 'a number'} of {shift.bias}, but "
            f"{' '.join(theirs) or 'a number'} of {shift.into}: say along which axis each is constant"
        )


def plain(name: str) -> str:
    """What a line is called without the layers that it is of."""
    return re.sub(r"[=!][\d|]*", "", name)


def _axes(spec: Spec, what: str, part: Part, but: frozenset[str] = frozenset()) -> frozenset[str]:
    """The axes of a part of a line."""
    leaf = _leaf(spec, part.name)
    if part.number >= len(leaf):
        raise IsomergeError(
            f"{spec.origin}: {what} names {part.shown}, which is no line of the spec, or no part of it"
        )
    return leaf[part.number] - but


def _leaf(spec: Spec, name: str) -> list[frozenset[str]]:
    """The axes of all parts of a line; none of a line that there is not."""
    lines = [line for line in spec.lines if plain(line.name) == plain(name)]
    leaf = lines[0].parts if lines else []
    return [frozenset(a.name for a in each if not a.name.isdigit()) for each in leaf]


@_check.register
def _(probe: Probe, spec: Spec) -> None:
    what = f"probe {probe.name}"
    read = _axes(spec, what, probe.token)
    sides = [_axes(spec, what, part, read) for part in (*probe.query.parts, *probe.key.parts)]
    if len({*sides}) > 1 or probe.along not in sides[0]:
        raise IsomergeError(f"{spec.origin}: {what} is along {probe.along}, but its tensors have other axes")
    if probe.along not in spec.spaces or spec.spaces[probe.along].group_name != "GL":
        raise IsomergeError(
            f"{spec.origin}: {what} is along {probe.along}, where queries and keys must meet in any basis: "
            f"declare it as a space of GL"
        )


@_check.register
def _(length: Length, spec: Spec) -> None:
    what = f"length {length.name}"
    if length.along is None:
        names = _axes(spec, what, length.weight)
        loose = sorted(n for n in names & spec.spaces.keys() if not spec.spaces[n].keeps_lengths)
        if loose:
            raise IsomergeError(
                f"{spec.origin}: {what} leaves all of {length.weight.name} free, which space {loose[0]} stretches: "
                f"take one of them out"
            )
    elif (
        any(length.along not in _axes(spec, what, part) for part in length.parts) or length.along not in spec.sizes
    ):
        raise IsomergeError(
            f"{spec.origin}: {what} is along {length.along}, which is no axis of both tensors whose size is known"
        )


@_check.register
def _(reach: Reach, spec: Spec) -> None:
    what = f"reached {reach.name}"
    read = _axes(spec, what, reach.bias)
    narrow = _axes(spec, what, reach.through, read)
    gain = narrow if reach.gain is None else _axes(spec, what, reach.gain)
    sides = [[_axes(spec, what, part, read) for part in reader.parts] for reader in reach.readers]
    then = read if reach.then is None else _axes(spec, what, reach.then)
    if gain != narrow or then != read or any(weight != bias for weight, bias in sides):
        raise IsomergeError(f"{spec.origin}: the tensors of {what} have axes that do not fit each other")


@_check.register
def _(mute: Mute, spec: Spec) -> None:
    what = f"unheard {mute.name}"
    out = _axes(spec, what, mute.out)
    if mute.gain is not None:
        gain = _axes(spec, what, mute.gain)
    else:
        gain = _axes(spec, what, mute.values.weight) & {*spec.streams}
    values = _axes(spec, what, mute.values.weight, gain)
    bias = _axes(spec, what, mute.values.bias) if _leaf(spec, mute.values.bias.name) else values  # some store none
    if bias != values or not values < out or len(gain & out) != 1:
        raise IsomergeError(f"{spec.origin}: the tensors of {what} have axes that do not fit each other")


@_check.register
def _(basis: TableBasis, spec: Spec) -> None:
    what, parts = f"basis {basis.name}", (basis.table, *basis.readers)
    if any(basis.along not in _axes(spec, what, part) for part in parts):
        raise IsomergeError(f"{spec.origin}: {what} is along {basis.along}, but not all its tensors are")
    named = {plain(part.name) for part in parts}
    along = [line for line in spec.lines if basis.along in line.names]
    strange = [line.name for line in along if plain(line.name) not in named]
    strange += ["a space"] if basis.along in spec.spaces else []
    if strange:
        raise IsomergeError(f"{spec.origin}: {what} is along {basis.along}, where {strange[0]} stands as well")


@_check.register
def _(norm: HeadNorm, spec: Spec) -> None:
    what = f"centred {norm.name}"
    for line in norm.lines:
        _axes(spec, what, Part(line.name, line.parts[0]))
        leaf = _leaf(spec, line.name)
        parts = [leaf[part] for part in line.parts if part < len(leaf)]  # a part of length zero is left out
        if any(not names & norm.over for names in parts) or len({names - norm.over for names in parts}) > 1:
            raise IsomergeError(
                f"{spec.origin}: {what} is over {' '.join(sorted(norm.over))}, but {line.name} has other axes"
            )

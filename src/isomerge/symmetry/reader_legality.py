"""Whether what a spec says of few readers is of lines that there are, with axes that fit."""

from __future__ import annotations

import re

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.bases import TableBasis
from isomerge.symmetry.language.levels import HeadNorm
from isomerge.symmetry.language.reaches import Length, Mute, Part, Probe, Reach
from isomerge.symmetry.language.spec import Spec


def check_readers(spec: Spec) -> None:
    """Refuse what does not fit.

    Raises:
        IsomergeError: naming the statement.
    """
    for probe in spec.probes:
        _check_probe(spec, probe)
    for length in spec.lengths:
        _check_length(spec, length)
    for reach in spec.reaches:
        _check_reach(spec, reach)
    for mute in spec.mutes:
        _check_mute(spec, mute)
    for basis in spec.bases:
        _check_basis(spec, basis)
    for norm in spec.head_norms:
        _check_head_norm(spec, norm)


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


def _check_probe(spec: Spec, probe: Probe) -> None:
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


def _check_length(spec: Spec, length: Length) -> None:
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


def _check_reach(spec: Spec, reach: Reach) -> None:
    what = f"reached {reach.name}"
    read = _axes(spec, what, reach.bias)
    narrow = _axes(spec, what, reach.through, read)
    gain = narrow if reach.gain is None else _axes(spec, what, reach.gain)
    sides = [[_axes(spec, what, part, read) for part in one.parts] for one in reach.readers]
    then = read if reach.then is None else _axes(spec, what, reach.then)
    if gain != narrow or then != read or any(weight != bias for weight, bias in sides):
        raise IsomergeError(f"{spec.origin}: the tensors of {what} have axes that do not fit each other")


def _check_mute(spec: Spec, mute: Mute) -> None:
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


def _check_basis(spec: Spec, basis: TableBasis) -> None:
    what, parts = f"basis {basis.name}", (basis.table, *basis.readers)
    if any(basis.along not in _axes(spec, what, part) for part in parts):
        raise IsomergeError(f"{spec.origin}: {what} is along {basis.along}, but not all its tensors are")
    named = {plain(part.name) for part in parts}
    here = [line for line in spec.lines if basis.along in line.names]
    strange = [line.name for line in here if plain(line.name) not in named]
    strange += ["a space"] if basis.along in spec.spaces else []
    if strange:
        raise IsomergeError(f"{spec.origin}: {what} is along {basis.along}, where {strange[0]} stands as well")


def _check_head_norm(spec: Spec, norm: HeadNorm) -> None:
    what = f"centred {norm.name}"
    for line in norm.lines:
        _axes(spec, what, Part(line.name, line.parts[0]))
        leaf = _leaf(spec, line.name)
        parts = [leaf[part] for part in line.parts if part < len(leaf)]  # a part of length zero is left out
        if any(not here & norm.over for here in parts) or len({here - norm.over for here in parts}) > 1:
            raise IsomergeError(
                f"{spec.origin}: {what} is over {' '.join(sorted(norm.over))}, but {line.name} has other axes"
            )

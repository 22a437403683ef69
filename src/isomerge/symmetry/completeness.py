"""Tensors that are missing from a checkpoint by itself: what no other model need be compared with to notice.

A layer that lacks the query of its key, a gain that nothing reads, or a bias without its weight, where other layers
have both, is no architecture but a lost tensor: symmetries that act on one side alone would change the function.
What all layers lack alike is taken for an architecture without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.spec import Line, Match, Space, Spec

Scope = tuple[tuple[str, int], ...]
"""The layer (or whatever numbers a line's tensors) by index name."""
Places = Mapping[Line, set[Scope]]
"""Where every line has tensors."""


def check_complete(spec: Spec, matches: Mapping[str, Match]) -> None:
    """Refuse checkpoints of which tensors are missing, or layers that ``config.json`` counts.

    Raises:
        IsomergeError: naming the first tensor that is missing, or the layers that are too many or too few.
    """
    places: dict[Line, set[Scope]] = {}
    for match in matches.values():
        places.setdefault(match.line, set()).add(_scope(spec, match))
    _check_depths(spec, places)
    for space in spec.spaces.values():
        lines = [line for line in spec.lines if _has(line, space.name)]
        if space.name in spec.gains:
            gains = [line for line in lines if any(a.diag and a.name == space.name for a in line.atoms)]
            readers = [line for line in lines if line not in gains]
            _check_gain(spec, space, [line for line in gains if not line.optional], readers, places)
        elif spec.scope(space):
            _check_sides(spec, [line for line in lines if line in places and not line.optional], places)
    _check_biases(spec, places)


def _check_depths(spec: Spec, places: Places) -> None:
    """Every stack has the layers that the config counts; a stack that is not there at all is a part that was left
    out."""
    stacks: dict[str, set[int]] = {}
    for line, scopes in places.items():
        stacks.setdefault(line.stack, set()).update(scope[0][1] for scope in scopes if scope)
    for stack, (least, most) in spec.depths.items():
        stored = stacks.get(stack)
        if stored and (lost := sorted(set(range(least)) - stored)):
            raise IsomergeError(
                f"config.json says that there are {least} layers ({stack}), but layer {lost[0]} is missing: is "
                f"a shard lost?"
            )
        if stored and max(stored) >= most:
            raise IsomergeError(
                f"config.json says that there are {most} layers ({stack}), but layer {max(stored)} is stored: "
                "correct the number in config.json, or remove the layers that nothing runs"
            )


def _check_sides(spec: Spec, lines: list[Line], places: Places) -> None:
    """Where one line of a layer's symmetry is, all are that other layers have."""
    everywhere: dict[tuple[str, ...], dict[Scope, None]] = {}
    for line in lines:
        everywhere.setdefault(_numbered(places, line), {}).update(dict.fromkeys(sorted(places[line])))
    for line in lines:
        for scope in everywhere[_numbered(places, line)]:
            if scope not in places[line] and (name := _admitted(spec, line, scope)):
                raise _missing(name)


def _check_gain(spec: Spec, space: Space, gains: list[Line], readers: list[Line], places: Places) -> None:
    """A layer's gain has readers, and they have a gain, unless no layer has; what follows all layers that are there
    has a gain."""
    normed, read = ({s for line in lines for s in places.get(line, ())} for lines in (gains, readers))
    if not spec.scope(space):
        if read and gains and not normed and not _left_out(spec, gains[0], places):
            raise _missing(gains[0].canonical(dict.fromkeys(gains[0].indices, 0)))
    elif normed and read:
        for lines, lost in ((gains, read - normed), (readers, normed - read)):
            stored = [line for line in lines if line in places]
            for name in (_admitted(spec, line, scope) for scope in sorted(lost) for line in stored):
                if name is not None:
                    raise _missing(name)


def _left_out(spec: Spec, line: Line, places: Places) -> bool:
    """Whether a line is of a part with layers, such as ``encoder.``, of which nothing is there: a decoder that was
    saved alone."""
    part, dot, _ = line.name.partition(".")
    lines = [other for other in spec.lines if other.name.startswith(part + dot)]
    return any(other.indices for other in lines) and not any(other in places for other in lines)


def _check_biases(spec: Spec, places: Places) -> None:
    """Where some weights of a kind have a bias, all have that may have one, and no bias is without its weight."""
    kinds: dict[tuple[str, str], set[Scope]] = {}
    for line, scopes in places.items():
        half = _half(line)
        if half[1] in ("weight", "bias") and line.indices and not line.optional:
            kinds.setdefault(half, set()).update(scopes)  # several lines: layers in other shapes
    kin: dict[tuple[str, str], list[Line]] = {}
    for line in spec.lines:
        if not line.optional and all(n.listed or not n.axis for n in line.numbers):  # empty lists: no layer
            kin.setdefault(_half(line), []).append(line)
    for (stem, what), scopes in kinds.items():
        others = kinds.get((stem, "weight" if what == "bias" else "bias"), scopes)
        for scope, line in product(sorted(others - scopes), kin.get((stem, what), ())):
            if name := _admitted(spec, line, scope):  # layers of another kind may never have it
                raise _missing(name)


def _half(line: Line) -> tuple[str, str]:
    """What a line's tensors are called but for the layer, and which half of a map they are (weight, bias)."""
    stem, _, what = line.canonical(dict.fromkeys(line.indices, 0)).rpartition(".")
    return stem, what


def _scope(spec: Spec, match: Match) -> Scope:
    return tuple((i, v) for i, v in match.binding.items() if i not in spec.sizes)


def _has(line: Line, space: str) -> bool:
    return space in line.indices or space in line.names


def _numbered(places: Places, line: Line) -> tuple[str, ...]:
    """The indices that number a line's tensors."""
    return tuple(i for i, _ in next(iter(places[line])))


def _admitted(spec: Spec, line: Line, scope: Scope) -> str | None:
    """The canonical name of a line's first tensor at a scope; None where the line is not of that scope
    (``{l!0}``)."""
    if {i for i, _ in scope} - set(line.indices):
        return None
    name = line.canonical(dict.fromkeys(line.indices, 0) | dict(scope))
    try:
        match = spec.match(name)
    except IsomergeError:
        return None
    # where layers are along an axis, the name may be of a tensor of another layer
    return name if match.line is line and _scope(spec, match) == scope else None


def _missing(name: str) -> IsomergeError:
    return IsomergeError(f"tensor {name} is missing, but others of its kind are there: is a shard lost?")

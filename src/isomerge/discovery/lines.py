"""The lines of a spec, from the names and shapes of two specimens: what is an index, what an axis is long.

An integer in a name is an index when there are more of it in the larger specimen; it numbers experts when the
config says so, and layers otherwise. All other integers are part of the name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from isomerge.discovery.shrinking import kind_of
from isomerge.discovery.specimen import Specimen

SCOPES = ("l", "m", "n")
EXPERT = "e"


@dataclass(frozen=True)
class LineFound:
    """One line: its pattern, and the tensors that it stands for in the two specimens."""

    name: str
    """Without the prefix of the base model."""
    samples: tuple[str, str]
    """The stored names of the last tensor in each specimen: first layers often lack or add a part."""
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    stack: str
    """The part of the name up to the last number that numbers layers or parts of a layer."""
    out: int | None
    """Which axis of a matrix is written: 0 of a Linear, 1 of a Conv1D or an Embedding; None where nothing is
    known."""
    names: tuple[str, ...] = ()
    """The stored names of all its tensors in the first specimen."""
    uniform: bool = True
    """Whether all tensors of the line have one shape."""

    @property
    def layered(self) -> bool:
        """Whether the line has an index that numbers layers."""
        return any(f"{{{i}}}" in self.name for i in SCOPES)

    @property
    def indices(self) -> tuple[str, ...]:
        """The indices that number layers."""
        return tuple(i for i in SCOPES if f"{{{i}}}" in self.name)

    @property
    def expert(self) -> bool:
        """Whether the name numbers experts."""
        return f"{{{EXPERT}}}" in self.name

    @property
    def module(self) -> str:
        """The name of the module that owns the tensor."""
        return self.name.rpartition(".")[0]

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def lengths(self, axis: int) -> tuple[int, int]:
        """How long an axis is in the two specimens."""
        return self.shapes[0][axis], self.shapes[1][axis]


Place = tuple[LineFound, int]
"""One axis of one line."""


def find_lines(first: Specimen, second: Specimen, used: Collection[str] = ()) -> list[LineFound]:
    """The lines of two specimens of one class, in the order of the first one's tensors.

    Args:
        first, second: the specimens.
        used: stored names in the first one that outputs depend on; layers without any are no samples.
    """
    alive = {scope for name in used or first.stored for scope in _scopes(name)}
    patterns = [_patterns(s, (first, second)) for s in (first, second)]
    lines = []
    owners = module_kinds(first)
    for pattern, names in patterns[0].items():
        others = patterns[1].get(pattern)
        if others is None:
            continue
        lively = [name for name in names if alive.issuperset(_scopes(name))]
        samples = (max(lively or names, key=_order), max(others, key=_order))
        shapes = (tuple(first.stored[samples[0]].shape), tuple(second.stored[samples[1]].shape))
        uniform = all(
            tuple(s.stored[n].shape) == shape
            for s, group, shape in zip((first, second), (names, others), shapes, strict=True)
            for n in group
        )
        out = _written_axis(samples[0], shapes[0], owners)
        name = pattern.removeprefix(first.prefix)
        lines.append(LineFound(name, samples, shapes, _stack(name), out, tuple(names), uniform))
    return lines


def _scopes(name: str) -> list[str]:
    """What a name begins with up to each of its numbers: its layer, its expert."""
    parts = name.split(".")
    return [".".join(parts[: at + 1]) for at, part in enumerate(parts) if part.isdigit()]


def module_kinds(specimen: Specimen) -> dict[str, str]:
    """The class of the module behind every parameter's stored name."""
    kinds = {name: type(module).__name__ for name, module in specimen.module.named_modules()}
    return {name: kinds.get(own.rpartition(".")[0], "") for name, own in specimen.origins.items()}


def _written_axis(name: str, shape: tuple[int, ...], owners: Mapping[str, str]) -> int | None:
    if len(shape) < 2:
        return 0
    kind = owners.get(name, "")
    if kind in ("Conv1D", "Embedding") or "Embedding" in kind:
        return len(shape) - 1
    if len(shape) == 2 or "Conv" in kind:
        return 0
    return None


def _order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _patterns(specimen: Specimen, pair: tuple[Specimen, Specimen]) -> dict[str, list[str]]:
    counts = [_children(list(s.stored)) for s in pair]
    experts = _expert_counts(pair)
    patterns: dict[str, list[str]] = {}
    for name in specimen.stored:
        patterns.setdefault(_abstract(name, counts, experts), []).append(name)
    return patterns


def _expert_counts(pair: tuple[Specimen, Specimen]) -> set[tuple[int, int]]:
    first, second = (s.keys for s in pair)
    return {
        (first[k], second[k]) for k in first if kind_of(k, first) == "experts" and isinstance(second.get(k), int)
    }


def _children(names: Iterable[str]) -> dict[tuple[str, ...], set[int]]:
    """The numbers that follow every prefix, earlier numbers not told apart."""
    children: dict[tuple[str, ...], set[int]] = {}
    for name in names:
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part.isdigit():
                prefix = tuple("#" if p.isdigit() else p for p in parts[:at])
                children.setdefault(prefix, set()).add(int(part))
    return children


def _abstract(name: str, counts: list[dict[tuple[str, ...], set[int]]], experts: set[tuple[int, int]]) -> str:
    parts = name.split(".")
    free = list(SCOPES)
    made = []
    for at, part in enumerate(parts):
        prefix = tuple("#" if p.isdigit() else p for p in parts[:at])
        sizes = tuple(len(c.get(prefix, ())) for c in counts)
        if not part.isdigit() or sizes[0] == sizes[1]:
            made.append(part)
        elif sizes in experts and "expert" in "".join(parts[:at]):
            made.append(f"{{{EXPERT}}}")
        else:
            made.append(f"{{{free.pop(0)}}}")
    return ".".join(made)


def _stack(name: str) -> str:
    """Up to the last index of layers, or the last number below which there is more than one tensor's name."""
    parts = name.split(".")
    end = 0
    for at, part in enumerate(parts):
        scope = part.strip("{}") in SCOPES and part.startswith("{")
        if scope or (part.isdigit() and len(parts) - at > 2):
            end = at + 1
    return ".".join(parts[:end])


def size_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The keys whose whole numbers differ between two specimens, those of known kinds first."""
    keys = [
        k
        for k, v in first.items()
        if isinstance(v, int) and not isinstance(v, bool) and isinstance(second.get(k), int)
    ]
    changed = [k for k in keys if first[k] != second[k] and first[k] > 0]
    order = ("width", "heads", "shared", "head", "neurons", "experts", "embedding", "vocabulary")
    return sorted(
        (k for k in changed if kind_of(k, first) not in ("layers", "positions")),
        key=lambda k: order.index(kind_of(k, first)) if kind_of(k, first) in order else len(order),
    )


def expression(lengths: tuple[int, int], first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """How a config says a length: a key, a multiple or a part of one, or a product of two; None where it does not.

    Args:
        lengths: the length in the two specimens; both must come out.
        first, second: their configs.
    """
    keys = size_keys(first, second)

    def says(values: Iterable[Any]) -> bool:
        return tuple(values) == lengths

    for key in keys:
        if says((first[key], second[key])):
            return key
    for factor in (2, 3, 4, 6, 8):
        for key in keys:
            if says((factor * first[key], factor * second[key])):
                return f"{factor} * {key}"
    for parts in (2, 4):
        for key in keys:
            if says((first[key] / parts, second[key] / parts)):
                return f"{key} // {parts}"
    for a in keys:
        for b in keys:
            if says(c[a] // c[b] if c[b] and c[a] % c[b] == 0 else None for c in (first, second)):
                return f"{a} // {b}"
            if a < b and says(prod((c[a], c[b])) for c in (first, second)):
                return f"{a} * {b}"
    for factor in [k for k, v in first.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]:
        if factor in keys or first[factor] != second.get(factor):
            continue
        for key in keys:
            if first[factor] and says(int(c[key] * c[factor]) for c in (first, second)):
                return f"{key} * {factor}"
    return None

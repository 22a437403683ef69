"""Which norm every tensor reads where norms stand *after* what they normalise, as in BERT.

There a stream is what the last norm gave: the next layer reads it, and adds to it. So the order of lines in a spec
says which norm is read (``postnorm STREAM``): every line reads the last norm before it, in its own layer, in the
layer before or before all layers; what follows all layers reads the last norm of theirs. A line that reads the
stream and writes it stands in a head of its own: the norm behind it is read once, by the next line.

The same order says which norm is read where norms stand *before* what they normalise and their gains have no scale
(``prenorm STREAM``): one that one layer lacks (ModernBERT), or before a head that writes the stream's axes (ESM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.names import MOST_LAYERS
from isomerge.symmetry.language.spec import Line, Spec

GAINS = ("weight", "gamma")
"""What gains of norms are called."""


@dataclass(frozen=True)
class Place:
    """A line, seen from another one of the same stack of layers or from outside of all."""

    line: Line
    back: int | None = 0
    """How many layers before; None: the last layer."""

    def earlier(self) -> Place:
        """Seen from one layer later."""
        return self if self.back is None or not self.line.indices else replace(self, back=self.back + 1)

    def key(self, depth: int | None, layer: int | None) -> str | None:
        """The key of the line's block, as `Block.key`; None where no layer is that one."""
        if not self.line.indices:
            return self.line.canonical({})
        at = None if depth is None else depth - 1
        if self.back is not None:
            at = None if layer is None else layer - self.back
        return None if at is None or at < 0 else self.line.canonical(dict.fromkeys(self.line.indices, at))


@dataclass
class Order:
    """What stands before and behind every norm of a stream, line by line.

    Keys are a line and whether it is of the first layer: this reads what stands before the layers.
    """

    reads: dict[tuple[str, bool], Place] = field(default_factory=dict)
    """From a reader to the gain of its norm."""
    writes: set[tuple[str, bool]] = field(default_factory=set)
    """The writers that nothing but a norm reads."""
    carries: dict[tuple[str, bool], Place] = field(default_factory=dict)
    """From a writer's bias to the gain of the norm that it is added to: first after it."""
    adds: dict[tuple[str, bool], Place] = field(default_factory=dict)
    """From a writer that is no vector to the gain of the norm that it is added to."""
    heads: set[str] = field(default_factory=set)
    """The gains of norms in heads: no stream goes on from them."""
    before: bool = False
    """Whether norms stand before what they normalise."""
    begins: set[str] = field(default_factory=set)
    """The gains of norms that a stream begins with, where norms stand before."""
    lasts: set[str] = field(default_factory=set)
    """The gains of norms that stand behind all layers, where norms stand before."""
    raw: bool = False
    """Whether a line reads the stream without a norm, where norms stand before, or through one over several vectors
    of it."""
    read_elsewhere: bool = False
    """Whether what reads the last norm is not all known: what stands in another stack of layers."""
    seen: dict[tuple[str, bool], Place] = field(default_factory=dict)
    """From a line without the stream's axes to the gain of the norm that it reads: what that gives stays."""
    ends: dict[str, str] = field(default_factory=dict)
    """From a stack of layers to the gain of its last norm, by its `generic` name."""

    def kept(self, depth_of: Callable[[Line], int | None]) -> set[str]:
        """The keys of the gains of norms of which what they give stays, as lines see it otherwise than whole.

        Args:
            depth_of: how many layers a line's stack has, where that is known.
        """
        keys: set[str | None] = set()
        for (_, first), place in self.seen.items():
            depth = depth_of(place.line)
            layers = [0] if first else range(1, MOST_LAYERS if depth is None else depth)
            keys |= {place.key(depth, layer) for layer in layers}
        return {key for key in keys if key is not None}


def order_of(spec: Spec, stream: str) -> Order:
    """The order of a stream's norms, by the lines of a spec."""

    def stack_of(line: Line) -> str:
        return spec.stack_of(line) if {*line.indices} - spec.sizes.keys() else ""

    walk = (_Walk if stream in spec.postnorm else _WalkBefore)(spec, stream)
    lines = [line for line in spec.lines if walk.is_of(line) and not spec.says("without", line, stream)]
    for stack, part in groupby(lines, stack_of):
        if stack:
            walk.layers(stack, list(part))
        else:
            walk.outside(part)
    walk.order.before = stream not in spec.postnorm
    walk.order.raw |= any(_is_over_several(spec, stream, line) for line in lines)
    if not walk.order.before and walk.norm is not None and not walk.norm.line.indices and not walk.pending:
        walk.order.heads.add(walk.norm.line.name)  # a stream that no layer goes on
    return walk.order


class _Walk:
    """Goes through the lines in the order in which they act."""

    def __init__(self, spec: Spec, stream: str) -> None:
        self.spec, self.stream, self.order = spec, stream, Order()
        self.others = {*spec.streams} - {stream}
        self.norm: Place | None = None
        """The last norm's gain."""
        self.head: Place | None = None
        """The gain of a head's own norm, until it is read."""
        self.pending: list[tuple[str, bool]] = []
        """Writers since the last norm."""
        self.carried = False
        """Whether a bias was added since the last norm."""
        self.turns: set[str] = set()
        """The modules that read the stream and write another thing of its axes."""
        self.behind = False
        """Whether the layers were passed."""
        self.before: Place | None = None
        """The last norm of the stack of layers before."""

    def is_of(self, line: Line) -> bool:
        """Whether a line has the stream's axes, or reads what a norm gives without them."""
        spec, stream = self.spec, self.stream
        return stream in line.names or spec.says("seen", line, stream) or spec.says("sliced", line, stream)

    def outside(self, lines: Iterable[Line]) -> None:
        """Lines before or behind layers."""
        for line in lines:
            self.step(line, True)

    def layers(self, stack: str, lines: list[Line]) -> None:
        """One stack of layers: the first layer, and any other one after it."""
        if self.behind:  # another stack has a stream of its own, whose start is not known here
            self.start_anew()
        for first in (True, False):
            for line in (line for line in lines if not first or _in_first_layer(line)):
                self.step(line, first)
            if self.norm is not None:
                self.norm = self.norm.earlier()
        if self.norm is not None and self.norm.line in lines:
            self.order.ends[stack] = generic(self.norm.line)
            self.norm = Place(self.norm.line, None)
        self.behind, self.before = True, self.norm

    def start_anew(self) -> None:
        self.norm, self.pending, self.carried = None, [], False

    def step(self, line: Line, first: bool) -> None:
        """One line."""
        at = (line.name, first)
        mine = [a for a in line.atoms if a.name == self.stream]
        stem, _, last = line.name.rpartition(".")
        norms = {place.line.name.rpartition(".")[0] for place in (self.norm, self.head) if place is not None}
        if self.spec.says("seen", line, self.stream):
            self._see(at)
        elif self.spec.says("sliced", line, self.stream):
            self._read(at)
        elif self.spec.says("across", line, self.stream):
            if self.before is not None:
                self.order.reads[at] = self.before
        elif any(a.dual for a in mine) and not all(a.dual for a in mine):
            self._read(at)
            if line.indices:
                self.pending.append(at)  # what stands in a layer writes the stream
            else:
                self.turns.add(stem)
        elif not line.indices and any(a.dual and a.name in self.others for a in line.atoms):
            self.turns.add(stem)  # what lies between two streams may not be linear
        elif all(a.dual for a in mine):
            self._read(at)
        elif _is_vector(line, self.stream) and any(name in last for name in GAINS):
            self._norm(line)
        elif _is_vector(line, self.stream) and stem in norms:
            return
        elif stem not in self.turns:
            self._write(line, at)

    def _read(self, at: tuple[str, bool]) -> None:
        if self.pending:  # read without a norm
            self.start_anew()
        place, self.head = self.head or self.norm, None
        if place is not None:
            self.order.reads[at] = place
        else:
            self.order.read_elsewhere |= bool(self.order.ends)

    def _see(self, at: tuple[str, bool]) -> None:
        if self.pending:  # seen without a norm
            self.start_anew()
        if self.norm is not None:
            self.order.seen[at] = self.norm

    def _norm(self, line: Line) -> None:
        if self.turns and not self.pending and not line.indices:
            self.head = Place(line)
            self.order.heads.add(line.name)
            return
        self.order.writes.update(self.pending)
        self.norm, self.pending, self.carried = Place(line), [], False

    def _write(self, line: Line, at: tuple[str, bool]) -> None:
        if self.behind and not line.indices:
            self.start_anew()
            self.behind = False
        self.pending.append(at)
        if self.norm is not None and not _is_vector(line, self.stream):
            self.order.adds[at] = self.norm
        elif self.norm is not None and not self.carried:
            self.order.carries[at] = self.norm
            self.carried = True


class _WalkBefore(_Walk):
    """The same where norms stand before what they normalise: what is written goes on beside them."""

    def _read(self, at: tuple[str, bool]) -> None:
        place, self.head = self.head or self.norm, None
        if place is None or (self.pending and place == self.norm):
            self.order.raw = True
        else:
            self.order.reads[at] = place

    def _norm(self, line: Line) -> None:
        super()._norm(line)
        if not line.indices and line.name not in self.order.heads:
            (self.order.lasts if self.behind else self.order.begins).add(line.name)

    def _see(self, at: tuple[str, bool]) -> None:
        if self.norm is not None:
            self.order.seen[at] = self.norm

    def _write(self, line: Line, at: tuple[str, bool]) -> None:
        self.order.writes.add(at)
        self.pending.append(at)


def _in_first_layer(line: Line) -> bool:
    """Whether the first layer may have a line's tensor."""
    return all((0 in n.values) == (n.sign == "=") for n in line.numbers if n.sign)


def _is_vector(line: Line, stream: str) -> bool:
    return len(line.axes or ()) == 1 and stream in line.names


def _is_over_several(spec: Spec, stream: str, line: Line) -> bool:
    """Whether a line's axis has several of a stream's vectors, such as neighbouring patches that are normed as one:
    what a writer has along the ones that norm does not take away."""
    beside = line.names - {stream, *spec.gains}
    return _is_vector(line, stream) and any(spec.sizes.get(name, 0) != 1 for name in beside)


def depth_of(spec: Spec, line: Line) -> int | None:
    """How many layers a line's stack has, where the config says so: one that runs again and again is one."""
    if not line.names.isdisjoint(spec.again):
        return 1
    least, most = spec.depths.get(spec.stack_of(line), (None, None))
    return least if least == most else None


def is_last(spec: Spec, order: Order, gain: Block) -> bool:
    """Whether no stream goes on from a norm: the last one of all layers, or one in a head."""
    if not gain.layers:
        return gain.line.name in order.heads | order.lasts
    ends = order.ends.get(spec.stack_of(gain.line)) == generic(gain.line)
    return ends and gain.layers[0] + 1 == depth_of(spec, gain.line)


def generic(line: Line) -> str:
    """What a line's tensors are called in the first layer: equal for lines of several layers of one stack."""
    return line.canonical(dict.fromkeys(line.indices, 0))

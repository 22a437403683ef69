"""What a narrower map reaches of a stream, in the blocks of a model: what is free of those that read nothing else.

Of a stream that begins as ``P e + c``, of fewer e than it is wide, those that read nothing else may be
``W + N (1 - Q)``, Q being the projection onto what P reaches, with ``b - N (1 - Q) c``. Behind a norm
``e = g n + d``, of which n has the mean zero, P reaches ``P g n``, and c is ``P d + c``. Where all else that reads
the stream is a norm, which takes away what lies along the ones, ``(1 + 1 t^T) P`` is read by ``W (1 - 1 t^T)`` with
``b + W 1 (t c)``, t having the mean zero: P may write along the ones what it likes. Of P only what n reaches moves,
and ``P d + c`` stays.

Layers that run again and again, whose first run reads what no norm gave, in the blocks of a model (ALBERT).

Of a stream that begins as ``P e + c``, and that every later run reads as ``g n + d``, n having the mean zero,
readers may be ``W (1 + a 1 u^T)`` with ``b - a W 1 (u d)``, u being 1 / g: of the norm, ``u (g n + d)`` is the
constant ``u d``. For the first run the stream begins as ``(1 - t 1 u^T) P`` and ``c + t 1 (u d - u c)``, with
``t = a / (1 + a sum(u))``, which undoes it: but for something along the ones, which the next norm takes away. So
one number is free, the factor ``f = 1 + a sum(u)`` by which readers have more of the ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from isomerge.symmetry.axes import atoms
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.centred import CENTRED, OFFSET, centred_in
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Line, Spec
from isomerge.symmetry.language.statements import Part, Probe, Reach
from isomerge.symmetry.lengths import LENGTH, lengths_in
from isomerge.symmetry.probed import DROP, KEYS, QUERY, TOKEN, TURN, Probed
from isomerge.symmetry.stated import Moves, Named, Reader, Rows, Statement
from isomerge.symmetry.unheard import UNHEARD, unheard_in, unheard_shape
from isomerge.symmetry.unstored_biases import bias_of

LEVELS, REACH = "norm.level.", "norm.reach."
"""What the keys of their elements begin with."""
REACHES = (LENGTH, TURN, TOKEN, QUERY, KEYS, LEVELS, REACH, UNHEARD, CENTRED, OFFSET, DROP)
LEVEL = 1e-9
"""The least part of the largest direction of a map that is one; of a rerun the least part of the reciprocals of
gains that must lie along the ones, and of what the first run reads along them."""
ALIKE = 0.5
"""The least squared cosine between what two models' maps give along ``u`` for one to be brought to the other's."""


@dataclass(frozen=True)
class Rerun(Statement):
    """What a stream begins with, the norm that it is read through in every later run, and who reads it."""

    reach: Reach
    bias: Block
    through: Block
    gain: Block | None
    """Of the norm before the map."""
    norm: Block
    """The gain of the norm that later runs read."""
    shift: Block | None
    """Its bias."""
    readers: tuple[Reader, ...]

    @property
    def blocks(self) -> list[Block]:
        own = [block for block in (self.gain, self.norm, self.shift) if block is not None]
        return list(dict.fromkeys([*own, *self.changed]))

    @property
    def changed(self) -> list[Block]:
        readers = (block for reader in self.readers for block in (reader.weight.block, reader.bias.block))
        return list(dict.fromkeys([self.bias, self.through, *readers]))

    @property
    def element_keys(self) -> list[str]:
        """Of its one element, the factor [1, 1]."""
        return [TURN + self.reach.name]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        u, factor = self._along(tensors), element.double().reshape(())
        more = (factor - 1) / u.sum()
        level = torch.zeros_like(more) if self.shift is None else u @ tensors[self.shift].double()
        through, bias = tensors[self.through], tensors[self.bias]
        less, moved = more / factor, dict(tensors)
        moved[self.through] = (through.double() - less * (u @ through.double())).to(through)
        moved[self.bias] = (bias.double() + less * (level - u @ bias.double())).to(bias)
        for reader in self.readers:
            read = more * reader.weight.of(tensors).sum(-1, keepdim=True)
            moved[reader.weight.block] = reader.weight.plus(moved, read * u)
            moved[reader.bias.block] = reader.bias.plus(moved, -read * level)
        return {block: moved[block] for block in self.changed}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings the map along u nearest to a target's, where they are alike; None: to the size that it has on
        average across the ones, its largest number positive."""
        seen = self._seen(tensors)
        if target is None:
            wide = self._across(tensors).square().mean().sqrt() * self._along(tensors).norm()
            size = wide * seen.numel() ** 0.5 / seen.norm()
            return {self.element_keys[0]: (1 / (size * seen[seen.abs().argmax()].sign())).reshape(1, 1)}
        theirs = self._seen(target)
        if not _are_alike(seen, theirs):
            return {self.element_keys[0]: torch.ones(1, 1, dtype=seen.dtype)}
        return {self.element_keys[0]: (seen.square().sum() / (seen @ theirs)).reshape(1, 1)}

    def is_identifiable(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether the norm's gains leave something along the ones, and the first run reads something along u."""
        u, across = self._along(tensors), self._across(tensors)
        if not bool(u.isfinite().all()) or float(u.sum().abs()) <= LEVEL * float(u.abs().sum()):
            return False
        return float(self._seen(tensors).norm()) > LEVEL * float(u.norm() * across.norm()) > 0

    def shape(self, key: str) -> tuple[int, ...]:
        return (1, 1)

    def dimension(self, slack: bool) -> int:
        return 1

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """How far the map along u is from a target's that is alike, squared and relative to it."""
        mine, theirs = self._seen(tensors), self._seen(target)
        if not _are_alike(mine, theirs):
            return 0.0
        return float((mine - theirs).square().sum() / theirs.square().sum())

    def _along(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """The reciprocals u of the norm's gains [width]; float64."""
        return (tensors[self.norm].double() + self.norm.line.less).reciprocal()

    def _reached(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What the map makes of what the norm before it gives, of mean zero [width, narrow]; float64."""
        through = tensors[self.through].double()
        if self.gain is None:
            return through
        through = through * (tensors[self.gain].double() + self.gain.line.less)
        return through - through.mean(1, keepdim=True)

    def _seen(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What of it lies along u [narrow]."""
        return self._along(tensors) @ self._reached(tensors)

    def _across(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What of it no factor changes: all but what lies along the ones [width, narrow]."""
        reached = self._reached(tensors)
        return reached - reached.mean(0)


def _are_alike(mine: Tensor, theirs: Tensor) -> bool:
    """Whether two vectors lie along one line, more or less."""
    return float((mine @ theirs).square()) > ALIKE * float(mine.square().sum() * theirs.square().sum())


@dataclass(frozen=True)
class Reached(Statement):
    """What a narrower map reaches of a stream, and who reads nothing else, in the blocks of one model."""

    reach: Reach
    bias: Block
    through: Block
    gain: Block | None
    shift: Block | None
    """The bias of the norm of the gain."""
    readers: tuple[Reader, ...]
    levels: bool
    """Whether norms are all else that reads the stream."""

    @property
    def blocks(self) -> list[Block]:
        own = [block for block in (self.bias, self.through, self.gain, self.shift) if block is not None]
        return list(dict.fromkeys([*own, *self.changed]))

    @property
    def changed(self) -> list[Block]:
        own = [self.bias, self.through] if self.levels else []
        return [*own, *(block for reader in self.readers for block in (reader.weight.block, reader.bias.block))]

    @property
    def element_keys(self) -> list[str]:
        return [*([LEVELS + self.reach.name] if self.levels else []), *(reader.key for reader in self.readers)]

    def directions(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What is reached from the constant, [width, directions]; float64."""
        through = tensors[self.through].double()
        if self.gain is None:
            return through
        gain = tensors[self.gain].double() + self.gain.line.less
        return through * gain @ _beside_ones(len(gain)).to(through)

    def constant(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """A vector that is reached, [width]; float64."""
        bias = tensors[self.bias].double()
        return bias if self.shift is None else bias + tensors[self.through].double() @ tensors[self.shift].double()

    def beyond(self, x: Tensor, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What of some rows [..., width] lies across all that is reached."""
        reached = self.directions(tensors)
        inside = torch.linalg.solve(reached.mT @ reached, reached.mT @ x.flatten(0, -2).mT)
        return x - (reached @ inside).mT.reshape(x.shape)

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        if key.startswith(LEVELS):
            return self._levelled(element.double() - element.double().mean(), tensors)
        moved, reader = dict(tensors), next(reader for reader in self.readers if reader.key == key)
        more = self.beyond(element.double(), tensors)
        moved[reader.weight.block] = reader.weight.plus(moved, more)
        moved[reader.bias.block] = reader.bias.plus(moved, -(more @ self.constant(tensors)))
        return {block: moved[block] for block in (reader.weight.block, reader.bias.block)}

    def _levelled(self, t: Tensor, tensors: Blocks) -> Blocks:
        """The blocks where what is reached has ``t x`` more along the ones."""
        moved, through = dict(tensors), tensors[self.through]
        more, constant = t @ self.directions(tensors), t @ self.constant(tensors)
        if self.gain is not None:
            gain = tensors[self.gain].double() + self.gain.line.less
            more = _beside_ones(len(gain)).to(more) @ more / gain
        if self.shift is not None:
            away = tensors[self.bias].double() - more @ tensors[self.shift].double()
            moved[self.bias] = away.to(tensors[self.bias])
        moved[self.through] = through + more.to(through)
        for reader in self.readers:
            read = reader.weight.of(tensors).sum(-1, keepdim=True)
            moved[reader.weight.block] = reader.weight.plus(moved, -read * t)
            moved[reader.bias.block] = reader.bias.plus(moved, read * constant)
        return {block: moved[block] for block in self.changed}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings the map along the ones to a target's, and its readers nearest to its; None: to nothing along
        the ones, and across what is reached."""
        elements, moved = {}, dict(tensors)
        if self.levels:
            key, reached = LEVELS + self.reach.name, self.directions(tensors)
            mean = reached.mean(0)
            away, flat = -mean if target is None else self.directions(target).mean(0) - mean, reached - mean
            elements[key] = flat @ torch.linalg.solve(flat.mT @ flat, away)
            moved |= self.moved(key, elements[key], moved)
        for reader in self.readers:
            gap = -reader.weight.of(moved)
            elements[reader.key] = self.beyond(gap if target is None else gap + reader.weight.of(target), moved)
        return elements

    def is_identifiable(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether no direction of the map is lost."""
        reached = self.directions(tensors)
        sizes = torch.linalg.svdvals(reached - reached.mean(0) if self.levels else reached)
        return bool(sizes[-1] > LEVEL * sizes[0])

    def shape(self, key: str) -> tuple[int, ...]:
        sizes = [reader.weight.sizes for reader in self.readers if reader.key == key]
        return sizes[0] if sizes else (self.readers[0].weight.sizes[2],)

    def slack(self, free: Collection[Block]) -> bool:
        """Whether a reader is among those that may take what they like against the ones: none reads a norm."""
        return any(reader.weight.block in free for reader in self.readers)

    def dimension(self, slack: bool) -> int:
        assert not slack
        width, narrow = _map_sizes(self.readers[0].weight.spec, self.through, self.gain is not None)
        across = sum(prod(reader.weight.sizes[:2]) for reader in self.readers) * (width - narrow)
        return across + narrow * self.levels

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """How far readers are from a target's across what is reached, squared and relative to what they are; or the
        map along the ones."""
        gaps = [g for key, g in self.onto(tensors, target).items() if not key.startswith(LEVELS)]
        size = sum(float(reader.weight.of(target).square().sum()) for reader in self.readers)
        across = sum(float(gap.square().sum()) for gap in gaps) / max(size, 1e-300)
        if not self.levels:
            return across
        mine, theirs = (self.directions(each).mean(0) for each in (tensors, target))
        wide = float(self.directions(target).square().sum()) / len(tensors[self.bias])
        return max(across, float((mine - theirs).square().sum()) / max(wide, 1e-300))


def reached_in(spec: Spec, blocks: Sequence[Block], *, states: bool = False) -> list[Statement]:
    """What is free so among some blocks, and what of values is unheard: where all tensors of a statement are there.

    Args:
        spec: whose statements are read.
        blocks: of a model, or of one unit.
        states: whether a model gives out what a stream begins with.
    """
    named = Named(blocks)
    statements: list[Statement] = [*lengths_in(spec, named), *unheard_in(spec, named), *centred_in(spec, named)]
    for probe in spec.probes:
        if all(named.at(part) is not None for part in probe.parts):
            statements.append(_probed(spec, probe, named))
    for reach in spec.reaches:
        if all(named.at(part) is not None for part in reach.parts):
            reached = _reached(spec, reach, named, states)
            width, narrow = _map_sizes(spec, reached.through, reached.gain is not None)
            free = not states if isinstance(reached, Rerun) else narrow < width
            statements += [reached] if free else []
    return statements


def element_shape(spec: Spec, key: str) -> tuple[int, ...] | None:
    """The shape of an element by the spec alone; None where no statement has it."""
    blocks = [_alone(line) for line in spec.lines if line.axes is not None]
    if key.startswith(UNHEARD):
        return unheard_shape(spec, key, blocks)
    for statement in reached_in(spec, blocks):
        if ElementKey.of(key).name in {ElementKey.of(each).name for each in statement.element_keys}:
            return statement.shape(key)
    return None


def _alone(line: Line) -> Block:
    """A line's block in its first layer."""
    first = {index: (number.values or (0,))[0] for number in line.numbers for index in (number.index,)}
    name = line.canonical(dict.fromkeys(line.indices, 0) | first)
    return Block(name, line, (), line.axes, (name,), ())


def _probed(spec: Spec, probe: Probe, named: Named) -> Probed:
    token = named.at(probe.token)
    assert token is not None
    maps = (*probe.query.parts, *probe.key.parts)
    weight, bias, keys, dropped = (_rows(spec, part, named, token.names, probe.along) for part in maps)
    return Probed(probe, token, weight, bias, keys, dropped)


def _reached(spec: Spec, reach: Reach, named: Named, states: bool) -> Reached | Rerun:
    bias, through, gain, norm = map(named.at, (reach.bias, reach.through, reach.gain, reach.then))
    assert bias is not None
    assert through is not None
    read = bias.names
    readers = tuple(
        Reader(f"{REACH}{reach.name}.{k}", *(_rows(spec, part, named, read) for part in reader.parts))
        for k, reader in enumerate(reach.readers)
    )
    shift, then = (None if each is None else named.get(bias_of(each.canonical[0])) for each in (gain, norm))
    if norm is not None:
        return Rerun(reach, bias, through, gain, norm, then, readers)
    levels = not states and not read.isdisjoint(spec.postnorm)
    return Reached(reach, bias, through, gain, shift, readers, levels)


def _rows(spec: Spec, part: Part, named: Named, read: frozenset[str], along: str = "") -> Rows:
    block = named.at(part)
    assert block is not None
    return Rows(block, part.number, spec, read, along)


def _map_sizes(spec: Spec, through: Block, normed: bool) -> tuple[int, int]:
    """How wide a stream is, and how many directions of it a map reaches."""
    width, narrow = (
        prod(spec.sizes[a.name] for a in atoms((axis,)) if not a.name.isdigit()) for axis in through.axes or ()
    )
    return width, narrow - normed


def _beside_ones(width: int) -> Tensor:
    """An orthonormal basis of what has the mean zero, [width, width - 1]; float64."""
    basis = -torch.ones(width, width - 1, dtype=torch.float64).tril(-1)
    for k in range(width - 1):
        basis[k, k] = width - 1 - k
    return basis / basis.norm(dim=0)

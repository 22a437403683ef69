"""LayerNorms and who reads them: what `isomerge.symmetry.layer_norms` finds in some blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from isomerge.symmetry.axes import Atom, length
from isomerge.symmetry.bases import Basis
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import Carried
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stated import Statement
from isomerge.symmetry.unheard import Unheard
from isomerge.symmetry.unstored_biases import UnstoredBias

LEVEL = 1e-9
"""The part of a norm's bias along the ones, of all of it, up to which nothing can be read from it."""


@dataclass(frozen=True)
class TiedTrade:
    """What a table of embeddings that is the head as well may trade with another table: c / g, the gains being
    those of the norm that the head reads. That norm gives x * g + b, and x has the mean zero, so that every logit
    gets c sum(b / g) more, which the head's bias loses."""

    table: Block
    partner: Block
    bias: Block
    """Of the head."""
    rows: tuple[int, int | None]
    partner_rows: tuple[int, int | None]

    def add(self, c: Tensor, along: Tensor, paid: Tensor, tensors: Mapping[Block, Tensor]) -> None:
        """Trade so much, in place.

        Args:
            c: a number.
            along: the reciprocals of the norm's gains [width].
            paid: what the norm's bias makes of them, a number.
            tensors: with the three blocks.
        """
        table, partner, bias = (tensors[block] for block in (self.table, self.partner, self.bias))
        rows, partner_rows = slice(*self.rows), slice(*self.partner_rows)
        table[rows] += (c * along).to(table)
        partner[partner_rows] -= (c * along).to(partner)
        bias[rows] -= (c * paid).to(bias)


@dataclass
class Norm:
    """One LayerNorm: its gain, its bias, and who reads it, by block and axis."""

    gain: Block | None = None
    bias: Block | None = None
    readers: dict[Block, int] = field(default_factory=dict)
    sliced: dict[Block, int] = field(default_factory=dict)
    """Readers in groups, such as convolutions of width one, by their axis along a slice: the rows of each group
    read its slice of what the norm gives."""
    reader_biases: dict[Block, Block] = field(default_factory=dict)
    """From a reader's bias to the reader."""
    shares: dict[Block, Tensor] = field(default_factory=dict)
    """By bias: the rows of its reader that it is added to, in flat order, where these are not all."""
    bare: dict[Block, Tensor] = field(default_factory=dict)
    """By reader of which some rows have a bias: whether each of them has none; bool [rows]."""
    apart: dict[Block, Tensor] = field(default_factory=dict)
    """By reader of which some rows read another thing: whether each of them does; bool [rows]."""
    tiled: set[Block] = field(default_factory=set)
    """Readers that are convolutions whose windows tile what the norm gives: a bias pays for all of a window."""
    sealed: bool = False
    """Whether something reads it that has no tensor of its own, such as a head tied to the embeddings."""
    bound: set[Block] = field(default_factory=set)
    """Readers that are another thing as well, such as a table of embeddings that is the head: they stay."""
    carried: Block | None = None
    """The bias of a writer that a stream adds to what the norm gives, where the stream goes on from there."""
    through: Unheard | None = None
    """The values that such a writer reads, where it has no bias: their constant takes up what is carried on."""
    onward: Block | None = None
    """A writer that the stream adds to what the norm gives, before another norm, where nothing takes the bias up:
    what that has along the ones is free."""
    ends: bool = False
    """Whether no stream goes on from it, and no scale of the spec is of its gains."""
    plain: bool = False
    """Whether it has no tensors at all: its gains are one."""
    unstored: list[UnstoredBias] = field(default_factory=list)
    """The free biases of readers that have none."""
    tied_trades: list[TiedTrade] = field(default_factory=list)
    """What a table that is a reader's weight trades with others; all of one table, in the order of the spec."""

    def add_slices(self, reader: Block, bias: Block | None) -> None:
        """Know a map in groups: rows, a slice, and ones behind. One that is wider, as zeros may stand beside what
        it reads, or has no bias, needs this norm's."""
        narrow = all(isinstance(axis, Atom) and axis.name == "1" for axis in (reader.axes or ())[2:])
        if bias is None or not narrow or reader.lead or len(bias.axes or ()) != 1:
            self.sealed = True
            return
        self.sliced[reader] = 1
        self.reader_biases[bias] = reader

    def made_of(self, reader: Block, weight: Tensor, vector: Tensor) -> Tensor:
        """What a reader makes of a vector [width]: float64, of the shape of a bias of its own."""
        if (axis := self.sliced.get(reader)) is None:
            return weight.double().movedim(self.readers[reader], -1) @ vector.double()
        rows = weight.double().movedim(axis, -1)
        slices = vector.double().reshape(-1, 1, rows.shape[-1])
        return (rows.reshape(len(slices), -1, rows.shape[-1]) * slices).sum(-1).flatten()

    @property
    def biased(self) -> set[Block]:
        """The readers that have a bias, in all rows."""
        return {*self.reader_biases.values()} - self.bare.keys()

    def paid(self, bias: Block, values: Tensor) -> Tensor:
        """What a bias is to have of values for the rows of its reader, over all of its window."""
        reader = self.reader_biases[bias]
        rows, values = self.shares.get(bias), self.of_rows(reader, values)
        if reader in self.tiled:
            own = len(bias.axes or ())
            values = values.flatten(own).sum(own)
        return values if rows is None else values.flatten()[rows.to(values.device)]

    def of_rows(self, reader: Block, values: Tensor, *, biased: bool | None = None) -> Tensor:
        """Values for the rows of a reader, zero where they read another thing, and but for those that have a bias,
        or that have none.

        Where all rows are alike they are the given ones.
        """
        bare = self.bare.get(reader) if biased is not None else None
        gone = [~bare if not biased else bare] if bare is not None else []
        gone += [self.apart[reader]] if reader in self.apart else []
        for rows in gone:
            kept = (~rows).to(values.device).reshape(values.shape)
            values = torch.where(kept, values, torch.zeros_like(values))
        return values

    @property
    def folds(self) -> bool:
        """Whether every reader can take what the norm's bias loses: in a bias, or against the ones."""
        read = bool(self.readers or self.sliced)
        return self.bias is not None and read and self.bound <= self.biased and not self.sealed

    def carry_on(self, through: Unheard | None, *, last: bool) -> None:
        """Know what takes up what the stream carries on: a writer's bias, or values, or else the next norm."""
        self.through = through if self.carried is None and not last else None
        self.onward = self.onward if self.carried is None and self.through is None and not last else None

    @property
    def goes_on(self) -> bool:
        """Whether what the stream carries on of its bias is taken up, or of what that has along the ones."""
        return any(block is not None for block in (self.carried, self.through, self.onward))

    @property
    def level(self) -> bool:
        """Whether what its bias has along the ones alone is free."""
        return self.onward is not None

    def foldable(self, delta: Tensor) -> Tensor:
        """What of a vector [width] the norm's bias may have more."""
        return delta.mean().expand_as(delta) if self.level else delta

    @property
    def opened(self) -> dict[Block, int]:
        """The readers without a bias, in some rows, of a norm that folds: W b stays, and they take against the ones
        what that asks for."""
        return {block: k for block, k in self.readers.items() if block not in self.biased} if self.folds else {}

    @property
    def made(self) -> list[UnstoredBias]:
        """What opened readers make of the norm's bias, where it may be anything."""
        return [bias for bias in self.unstored if bias.reader in self.opened]

    @property
    def trades(self) -> list[TiedTrade]:
        """What its tied reader trades, of a norm that folds."""
        return self.tied_trades if self.folds else []

    @property
    def scales(self) -> bool:
        """Whether its readers can take its gains."""
        return self.ends and self.gain is not None and not (self.sealed or self.bound or self.sliced)

    @property
    def slack(self) -> dict[Block, int]:
        """The readers that may take what they like against the ones: nothing is added to it, or they have a bias
        that it is taken off again."""
        if self.gain is None and not self.plain:
            return {}
        free = {block: k for block, k in self.readers.items() if block not in self.bound}
        some = {*self.reader_biases.values()} | (set() if self.folds else self.unheard)
        return free if self.bias is None else {block: k for block, k in free.items() if block in some}

    @property
    def unheard(self) -> set[Block]:
        """The readers that may make of a bias which the norm keeps what they like, such as keys without biases:
        softmax drops what is added to all of them."""
        free = {bias.reader: bias.part for bias in self.unstored if bias.into is None}
        return {reader for reader in free if len(reader.parts) == 1}

    def is_invertible(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether no gain is zero, of those in some tensors."""
        return self.gain is None or bool((tensors[self.gain].double() + self.gain.line.less != 0).all())

    def identifiable(self, tensors: Mapping[Block, Tensor]) -> Norm | None:
        """What of it some tensors identify: nothing where a gain is zero. A bias that has no part along the
        ones behind the gain, such as one of zeros, stays where a reader has none."""
        if not self.is_invertible(tensors):
            return None
        if self.through is not None and not self.through.is_identifiable(tensors):
            return replace(self, sealed=True)
        if not self.opened or self.bias is None or self.gain is None:
            return self
        gain = gain_along(self, tensors[self.gain], 1, 0)
        made = [tensors[self.bias].double() / gain, *([gain.reciprocal()] if self.level or self.through else [])]
        level = any(float(each.sum().abs()) <= LEVEL * float(each.abs().sum()) for each in made)
        return replace(self, sealed=True) if level else self

    @property
    def looked_at(self) -> list[Block]:
        """The blocks that identify it."""
        through = [] if self.through is None else self.through.blocks
        return [block for block in (self.gain, self.bias, *through) if block is not None]

    @property
    def layers(self) -> set[tuple[str, tuple[int, ...]]]:
        """The layers that read it, by stack."""
        read = [*self.readers, *self.sliced]
        return {(block.line.stack, tuple(block.layers)) for block in read if block.layers}

    @property
    def blocks(self) -> list[Block]:
        """All that a move of this norm changes or looks at."""
        own = [block for block in (self.gain, self.bias, self.carried, self.onward) if block is not None]
        paid = [block for bias in self.unstored for block in (bias.via, bias.into) if block is not None]
        traded = [block for trade in self.tied_trades for block in (trade.table, trade.partner, trade.bias)]
        own += [] if self.through is None else self.through.blocks
        return [*own, *self.readers, *self.sliced, *self.reader_biases, *paid, *traded]


@dataclass
class LayerNorms:
    """The writers of streams under LayerNorm alone, by their axis along the stream, and the norms."""

    writers: dict[Block, int] = field(default_factory=dict)
    norms: list[Norm] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    """Constants that may stand in one tensor or in others, of whatever layers."""
    reached: list[Statement] = field(default_factory=list)
    """Readers that see a constant alone, or what a narrower map reaches; values that no norm hears."""
    bases: list[Basis] = field(default_factory=list)
    """Tables that stand in any basis, which many layers read."""

    def __bool__(self) -> bool:
        return bool(self.writers or self.norms or self.carried or self.reached or self.bases)

    @property
    def together(self) -> list[list[Block]]:
        """The groups of blocks that are matched at once."""
        return [each.blocks for each in (*self.norms, *self.reached)]

    @property
    def biases(self) -> set[Block]:
        """Norms' biases, and those in which these may stand as well."""
        each = (block for norm in self.norms for block in (norm.bias, norm.carried, *norm.reader_biases))
        return {block for block in each if block is not None}

    def within(self, blocks: Collection[Block]) -> LayerNorms:
        """What of it is whole in some blocks, such as a unit's."""
        writers = {block: k for block, k in self.writers.items() if block in blocks}
        norms = [norm for norm in self.norms if all(b in blocks for b in norm.blocks)]
        reached = [statement for statement in self.reached if all(b in blocks for b in statement.blocks)]
        return LayerNorms(writers, norms, reached=reached)

    def apart(self) -> LayerNorms:
        """What of it can be matched layer by layer: a norm that many layers read, as decoders read an encoder's,
        is compared, and not matched, and so is what is carried from layer to layer."""
        return LayerNorms(self.writers, [norm for norm in self.norms if len(norm.layers) < 2], reached=self.reached)

    def identifiable(self, tensors_of: Callable[[Sequence[Block]], Mapping[Block, Tensor]]) -> LayerNorms:
        """What of it some tensors identify (`Norm.identifiable`), given those of every norm's gain and bias, of
        what carries that on, and of what is reached."""
        parts = (norm.identifiable(tensors_of(norm.looked_at)) for norm in self.norms)
        norms = [norm for norm in parts if norm is not None]
        reached = [each for each in self.reached if each.is_identifiable(tensors_of(each.blocks))]
        bases = [each for each in self.bases if each.is_identifiable(lambda block: tensors_of([block])[block])]
        return LayerNorms(self.writers, norms, self.carried, reached, bases)

    def reader(self, block: Block) -> tuple[Norm, int] | None:
        """The norm that a block may read against the ones, and the axis. One that is given out keeps its bias, and
        folds as far as the tensors say: its readers are those of both."""
        return next(
            (
                (norm, norm.readers[block])
                for norm in self.norms
                if block in norm.readers and (block in norm.slack or block in norm.unheard)
            ),
            None,
        )

    @property
    def between(self) -> dict[Block, int]:
        """The writers that read a norm of another stream, and those readers' biases, by their axis along the stream
        that they write: what they get from the other one may lie along its ones."""
        read = {block for norm in self.norms for block in (*norm.readers, *norm.reader_biases)}
        return {block: k for block, k in self.writers.items() if block in read}


def gain_along(norm: Norm, gain: Tensor, dims: int, axis: int) -> Tensor:
    """A norm's gain, whole, in float64 and along one axis of a tensor of so many dimensions."""
    assert norm.gain is not None
    return (gain.double() + norm.gain.line.less).reshape([-1 if k == axis else 1 for k in range(dims)])


def gain_across(norm: Norm, tensors: Mapping[Block, Tensor], reader: Tensor, axis: int) -> Tensor:
    """A norm's gain along an axis of a reader, in float64: ones where it has none."""
    if norm.gain is not None:
        return gain_along(norm, tensors[norm.gain], reader.ndim, axis)
    shape = [n if k == axis else 1 for k, n in enumerate(reader.shape)]
    return torch.ones(shape, dtype=torch.float64, device=reader.device)


def free_dimensions(free: LayerNorms, spec: Spec, entries: Callable[[Block], int]) -> int:
    """How many dimensions it is: one for every vector that a writer writes and a reader reads, less those of
    projections between streams that are both, and the biases of norms that fold, and the gains that readers can
    take.

    Args:
        free: of a model.
        spec: of the model.
        entries: how many a block has.
    """
    slack = [place for norm in free.norms for place in norm.slack.items()]
    folded = [norm.bias for norm in free.norms if norm.bias is not None and norm.folds and not norm.level]
    levels = sum(norm.level and norm.folds for norm in free.norms)
    folded += [norm.gain for norm in free.norms if norm.gain is not None and norm.scales]
    vectors = sum(entries(b) // length((b.axes or ())[k], spec.sizes) for b, k in (*free.writers.items(), *slack))
    held = [rows for norm in free.norms for rows in (norm.bare if norm.bias is not None else {}).values()]
    held += [rows for norm in free.norms for rows in norm.apart.values()]
    vectors -= sum(int(rows.sum()) for rows in held)
    for block, k in slack:
        if (written := free.writers.get(block)) is not None:
            read_and_written = (length((block.axes or ())[axis], spec.sizes) for axis in (k, written))
            vectors -= entries(block) // prod(read_and_written)
    made = sum(each.entries for norm in free.norms for each in norm.made)
    traded = sum(len(norm.trades) for norm in free.norms)
    constants = sum(each.entries for each in free.carried)
    read = {block for norm in free.norms for block in norm.slack}
    beside = sum(each.dimension(each.slack(read)) for each in free.reached)
    bases = sum(each.width**2 for each in free.bases)
    return vectors + levels + made + traded + constants + beside + bases + sum(map(entries, folded))

"""A stage of an alignment that moves what LayerNorm leaves free (`isomerge.symmetry.layer_norms`).

Its elements are vectors, by the block that they are added to:

* ``norm.ones.BLOCK``: what a writer has more along the ones; of the block's shape, 1 long along the stream.
* ``norm.gain.BLOCK``: what a reader takes more against the ones, behind its gain: W + c (1/g)^T; of the same shape.
  Its bias loses c sum(b/g).
* ``norm.fold.BLOCK``: what a norm's bias has more; [width], of which it may be the mean alone that counts
  (`Norm.level`). Its readers' biases lose what they make of it; readers without a bias take so much against the
  ones that they make of the new bias what they made of the old one.
* ``norm.made.BLOCK``: what a reader without a bias makes more of its norm's bias, where that is free
  (`isomerge.symmetry.unstored_biases`): W + c (1/g)^T with c sum(b/g) so much; of the shape of the second. An
  output's bias loses what it adds.
* ``norm.tied.BLOCK``: what a table that is the head as well trades with others, along the reciprocals of the gains
  of the norm that the head reads; [trades of the table].
* ``norm.between.BLOCK``: what a writer that reads another stream, or its bias, has more along the ones, after all
  that it gets from that stream's norm; of the block's shape, 1 long along the stream.
* ``norm.carry.NAME``: what the first tensor of a `carry` has more, and the others less
  (`isomerge.symmetry.carried`).
* ``norm.turn.NAME``, ``norm.token.NAME``, ``norm.query.NAME``, ``norm.keys.NAME``, ``norm.drop.NAME``: what is free
  of a constant that asks, and of what it asks (`isomerge.symmetry.probed`).
* ``norm.level.NAME``, ``norm.reach.NAME.NUMBER``: what a narrower map writes along the ones, and what a reader has
  more across what it reaches (`isomerge.symmetry.reached`).
* ``norm.unheard.NAME``: what a constant of values has more, of which no norm hears anything
  (`isomerge.symmetry.unheard`).
* ``norm.centred.NAME.NUMBER``, ``norm.offset.NAME.NUMBER``: what weights, and biases, write along the ones of every
  head, which a norm over its coordinates takes away (`isomerge.symmetry.centred`).
* ``norm.basis.NAME``: the basis of a table that many layers read, an invertible matrix
  (`isomerge.symmetry.bases`).
* ``norm.length.NAME``: by what slices of a weight of which directions count, or all of it, are multiplied, as
  logarithms (`isomerge.symmetry.lengths`).
* ``norm.scale.BLOCK``: by what a norm's gains are multiplied, and its bias; [width]. Its readers are divided by it.

The first two commute with each other, and so do those of each other kind: a stage has elements of one kind, so that
its inverse has the negative of every element, or the reciprocal of scales. No two stages of moves are one.

The moves of LayerNorms, tensor by tensor: what `isomerge.symmetry.norm_stage` does with its elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, linalg

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom, shape
from isomerge.symmetry.bases import BASIS, bases_in, basis_width
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import CARRY, carried_in_unit
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import layer_norms
from isomerge.symmetry.norms import LayerNorms, Norm, gain_across, gain_along
from isomerge.symmetry.probed import TURN
from isomerge.symmetry.reached import REACHES, element_shape, reached_in
from isomerge.symmetry.stage import Stage

PREFIX = "norm."
ONES, GAIN, FOLD, SCALE, MADE = "norm.ones.", "norm.gain.", "norm.fold.", "norm.scale.", "norm.made."
TIED, BETWEEN = "norm.tied.", "norm.between."
KINDS = (ONES, GAIN, FOLD, SCALE, MADE, TIED, BETWEEN)
"""Of elements that are called by a block."""
ORDER = (*REACHES[:-2], SCALE, TIED, PREFIX, FOLD, MADE, BETWEEN, CARRY, *REACHES[-2:], BASIS)
"""The kinds of stages, in the order in which they act."""


def norm_keys(free: LayerNorms) -> set[str]:
    """The keys of all elements that move what LayerNorm leaves free."""
    keys = {ONES + block.key for block in free.writers}
    keys |= {BETWEEN + block.key for block in free.between}
    keys |= {GAIN + block.key for norm in free.norms for block in norm.slack}
    keys |= {MADE + moved.reader.key for norm in free.norms for moved in norm.made}
    keys |= {TIED + trade.table.key for norm in free.norms for trade in norm.trades}
    keys |= {SCALE + norm.gain.key for norm in free.norms if norm.gain is not None and norm.scales}
    keys |= {moved.key for moved in (*free.carried, *free.bases)} | {
        key for moved in free.reached for key in moved.element_keys
    }
    return keys | {FOLD + norm.bias.key for norm in free.norms if norm.bias is not None and norm.folds}


def norm_stages(spec: Spec, elements: Mapping[str, Tensor]) -> list[NormStage]:
    """The stages of those elements that are moves of LayerNorms, in the order in which they act.

    Args:
        spec: see `isomerge.symmetry.layer_norms.norm_spec`.
        elements: by key, without numbers of stages.
    """
    norms = {key: c for key, c in elements.items() if is_norm_key(key)}
    parts = ({key: c for key, c in norms.items() if kind_of(key) == kind} for kind in ORDER)
    return [stage_of(spec, part) for part in parts if part]


def stage_of(spec: Spec, elements: Mapping[str, Tensor]) -> NormStage:
    """The stage of elements of one kind."""
    kind = kind_of(next(iter(elements), ""))
    kinds = dict.fromkeys(REACHES, ReachStage) | {CARRY: CarryStage, BASIS: BasisStage}
    return kinds.get(kind, NormStage)(spec, elements)


def is_norm_key(key: str) -> bool:
    """Whether an element key, without the number of its stage, is of a move of LayerNorms."""
    return key.startswith(PREFIX)


def kind_of(key: str) -> str:
    """What elements a stage may have beside one, by its key: those of one kind commute."""
    return next(
        (
            kind
            for kind in (*REACHES, FOLD, SCALE, MADE, TIED, BETWEEN, CARRY, BASIS, PREFIX)
            if key.startswith(kind)
        ),
        "",
    )


class NormStage(Stage):
    """A stage of such elements alone; see `Stage`."""

    def act(self, tensors: dict[Block, Tensor]) -> None:
        """Apply to the blocks of one unit, in place; all blocks of every norm that is moved must be there."""
        free = layer_norms(self.spec, list(tensors))
        for block in list(tensors):
            for c in (self.elements.get(kind + block.key) for kind in (ONES, BETWEEN)):
                if c is not None:
                    tensors[block].add_(c.to(tensors[block]))
            if (c := self.elements.get(GAIN + block.key)) is not None:
                norm, axis = _read(free, block)
                read_against(norm, block, axis, c, tensors)
            if (factor := self.elements.get(SCALE + block.key)) is not None:
                for norm in free.norms:
                    if norm.gain == block:
                        take_gains(norm, factor, tensors)
            if (c := self.elements.get(TIED + block.key)) is not None:
                for norm in free.norms:
                    trade_tied(norm, block, c, tensors)
            if (delta := self.elements.get(FOLD + block.key)) is not None:
                for norm in (norm for norm in free.norms if norm.bias == block):
                    tensors[block].add_(norm.foldable(delta).to(tensors[block]))
                    fold_back(norm, norm.foldable(delta), tensors)
            if (delta := self.elements.get(MADE + block.key)) is not None:
                for norm in free.norms:
                    if block in norm.opened:
                        make_more(norm, block, delta, tensors)

    def applied(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """See `Stage.applied`."""
        changed = self.changed(tensors)
        moved = {block: t.clone() if block in changed else t for block, t in tensors.items()}
        self.act(moved)
        return moved

    def changed(self, blocks: Iterable[Block]) -> set[Block]:
        """The blocks whose numbers it changes."""
        within = list(blocks)
        free = layer_norms(self.spec, within)
        changed = {b for b in within if not self.elements.keys().isdisjoint(kind + b.key for kind in KINDS)}
        for norm in free.norms:
            folded = norm.bias is not None and FOLD + norm.bias.key in self.elements
            changed |= {b for b, r in norm.reader_biases.items() if folded or GAIN + r.key in self.elements}
            changed |= {norm.carried} if folded and norm.carried is not None else set()
            changed |= {*norm.opened} if folded else set()
            moved = [bias for bias in norm.made if MADE + bias.reader.key in self.elements]
            changed |= {bias.into for bias in moved if bias.into is not None}
            traded = [trade for trade in norm.trades if TIED + trade.table.key in self.elements]
            changed |= {block for trade in traded for block in (trade.partner, trade.bias)}
            if norm.gain is not None and SCALE + norm.gain.key in self.elements:
                changed |= {*norm.readers} | ({norm.bias} if norm.bias is not None else set())
        return changed

    def opened(self, blocks: Iterable[Block]) -> list[tuple[Norm, Block, int]]:
        """The readers that take against the ones what a norm's bias has less, or what they make of it has more:
        norm, reader, axis."""
        norms = layer_norms(self.spec, list(blocks)).norms if self.elements else []
        opened = [
            (norm, norm.bias, reader, axis)
            for norm in norms
            for reader, axis in norm.opened.items()
            if norm.bias is not None
        ]
        return [
            (norm, reader, axis)
            for norm, bias, reader, axis in opened
            if FOLD + bias.key in self.elements or MADE + reader.key in self.elements
        ]

    def only(self, blocks: Iterable[Block]) -> NormStage:
        """The part that acts on some blocks."""
        keys = {prefix + block.key for block in blocks for prefix in KINDS}
        return NormStage(self.spec, {key: c for key, c in self.elements.items() if key in keys})

    def act_linearly(self, block: Block, tensor: Tensor) -> None:
        """Nothing: all that it does is added, but for gains, which no space moves."""

    def act_on_view(self, view: Tensor, atoms: tuple[Atom, ...], scope: Mapping[str, int]) -> None:
        """Nothing: all that it does is added."""

    def __matmul__(self, other: Stage) -> Stage:
        raise AssertionError("stages of LayerNorm's moves are not joined")

    def follows(self, other: Stage) -> bool:
        """Never: it stays a stage of its own."""
        return False

    def split(self) -> tuple[Stage, ...]:
        """The stage: its inverse is one."""
        return (self,)

    def inverse(self) -> Stage:
        """The stage that undoes this one."""
        return NormStage(
            self.spec, {key: 1 / c if key.startswith(SCALE) else -c for key, c in self.elements.items()}
        )

    def inverse_spaces(self) -> Stage:
        """The identity: there are no spaces in it."""
        return Stage(self.spec)


class _MakingStage(NormStage):
    """A stage that makes blocks anew out of several, all of which must be there; no norm's bias is moved in it."""

    def act(self, tensors: dict[Block, Tensor]) -> None:
        """Apply to the blocks of one unit, in place."""
        for block, made in self._made(tensors).items():
            tensors[block].copy_(made)

    def applied(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """See `Stage.applied`."""
        return {**tensors, **self._made(tensors)}

    def _made(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """The blocks that it changes, changed."""
        raise NotImplementedError

    def opened(self, blocks: Iterable[Block]) -> list[tuple[Norm, Block, int]]:
        """None: no reader keeps anything."""
        return []


class CarryStage(_MakingStage):
    """A stage of what is carried from one tensor into others, of whatever layers: a unit has the element whole, and
    a part of the tensors."""

    def _made(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """The blocks that it changes, changed; all are made of the given ones."""
        moved: dict[Block, Tensor] = {}
        for vector in carried_in_unit(self.spec, self.elements, list(tensors)):
            for block in dict.fromkeys(vector.blocks):
                before = moved.get(block, tensors[block])
                moved[block] = vector.add(block, self.elements[vector.key], before, tensors.__getitem__)
        return moved

    def changed(self, blocks: Iterable[Block]) -> set[Block]:
        """The blocks whose numbers it changes."""
        vectors = carried_in_unit(self.spec, self.elements, list(blocks))
        return {block for vector in vectors for block in vector.blocks}

    def only(self, blocks: Iterable[Block]) -> NormStage:
        """The part that acts on some blocks."""
        vectors = carried_in_unit(self.spec, self.elements, list(blocks))
        return CarryStage(self.spec, {vector.key: self.elements[vector.key] for vector in vectors if vector.blocks})

    def inverse(self) -> Stage:
        """The stage that undoes this one: weights stay."""
        return CarryStage(self.spec, {key: -v for key, v in self.elements.items()})


class ReachStage(_MakingStage):
    """A stage of what is free of readers that see little of a stream, of elements of one kind."""

    def _made(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """The blocks that it changes, changed."""
        changed: dict[Block, Tensor] = {}
        for statement in reached_in(self.spec, list(tensors)):
            for key in (key for key in statement.element_keys if key in self.elements):
                before = {block: changed.get(block, tensors[block]) for block in statement.blocks}
                changed |= statement.moved(key, self.elements[key], before)
        return changed

    def changed(self, blocks: Iterable[Block]) -> set[Block]:
        """The blocks whose numbers it may change."""
        free = reached_in(self.spec, list(blocks))
        return {
            b
            for statement in free
            if not self.elements.keys().isdisjoint(statement.element_keys)
            for b in statement.changed
        }

    def only(self, blocks: Iterable[Block]) -> NormStage:
        """The part that acts on some blocks."""
        keys = {key for statement in reached_in(self.spec, list(blocks)) for key in statement.element_keys}
        return ReachStage(self.spec, {key: c for key, c in self.elements.items() if key in keys})

    def inverse(self) -> Stage:
        """The stage that undoes this one."""
        back = {key: linalg.inv(c) if key.startswith(TURN) else -c for key, c in self.elements.items()}
        return ReachStage(self.spec, back)


class BasisStage(_MakingStage):
    """A stage of tables that stand in another basis, and of what reads them, in whatever layers: a unit has the
    element whole, and a part of the tensors."""

    def _made(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """The blocks that it changes, changed."""
        bases = [basis for basis in bases_in(self.spec, list(tensors)) if basis.key in self.elements]
        return {b: basis.turned(b, tensors[b], self.elements[basis.key]) for basis in bases for b in basis.blocks}

    def changed(self, blocks: Iterable[Block]) -> set[Block]:
        """The blocks whose numbers it changes."""
        return {
            b for basis in bases_in(self.spec, list(blocks)) if basis.key in self.elements for b in basis.blocks
        }

    def only(self, blocks: Iterable[Block]) -> NormStage:
        """The part that acts on some blocks."""
        keys = {basis.key for basis in bases_in(self.spec, list(blocks))}
        return BasisStage(self.spec, {key: a for key, a in self.elements.items() if key in keys})

    def inverse(self) -> Stage:
        """The stage that undoes this one."""
        return BasisStage(self.spec, {key: linalg.inv(a) for key, a in self.elements.items()})


def _read(free: LayerNorms, block: Block) -> tuple[Norm, int]:
    read = free.reader(block)
    if read is None:
        raise AssertionError(f"{block.key} has an element, and reads no norm of its unit")
    return read


def check_norm_element(spec: Spec, key: str, c: Tensor) -> bool:
    """Whether an element is one that some tensor of the architecture may have: a line's shape, finite.

    Raises:
        IsomergeError: of no tensor of the spec.
    """
    if key.startswith(CARRY):
        vectors = carried_in_unit(spec, [key], [])
        return len(vectors) == 1 and c.shape == vectors[0].shape and bool(c.isfinite().all())
    if key.startswith(BASIS):
        width = basis_width(spec, key)
        return c.shape == (width, width) and bool(c.isfinite().all()) and _is_invertible(c)
    if key.startswith(REACHES):
        return element_shape(spec, key) == tuple(c.shape) and bool(c.isfinite().all()) and _is_undone(key, c)
    kind = next((prefix for prefix in KINDS if key.startswith(prefix)), None)
    if kind is None:
        raise IsomergeError(f"element {key} is no move of LayerNorms")
    line = spec.match(key.removeprefix(kind)).line
    if line.axes is None or not bool(c.isfinite().all()):
        return False
    if kind == TIED:
        return c.shape == (sum(trade.bias == line.name for trade in spec.tied_trades),)
    wanted = [n for i in line.indices if (n := spec.sizes.get(i)) is not None] + list(shape(line.axes, spec.sizes))
    if kind in (FOLD, SCALE):
        return c.ndim == 1 and c.shape[0] == wanted[-1] and (kind == FOLD or bool((c != 0).all()))
    whole = [want is None or have == want for want, have in zip(wanted, c.shape, strict=False)]
    single = [have == 1 for have, fits in zip(c.shape, whole, strict=False) if not fits]
    return c.ndim == len(wanted) and len(single) <= 1 and all(single)


def _is_undone(key: str, c: Tensor) -> bool:
    """Whether an element has an inverse."""
    return not key.startswith(TURN) or _is_invertible(c)


def _is_invertible(c: Tensor) -> bool:
    """Whether matrices have inverses."""
    return bool((linalg.matrix_rank(c.double()) == c.shape[-1]).all())


def read_against(norm: Norm, block: Block, axis: int, c: Tensor, tensors: Mapping[Block, Tensor]) -> None:
    """Add c (1/g)^T to a reader, in place, and take off its bias what the norm's makes of it."""
    weight = tensors[block]
    gain = gain_across(norm, tensors, weight, axis)
    c = norm.of_rows(block, c, biased=None if norm.bias is None else True)
    weight.add_((c.double() / gain).to(weight))
    for bias in (b for b, reader in norm.reader_biases.items() if reader == block and norm.bias is not None):
        assert norm.bias is not None
        made = (tensors[norm.bias].double() / gain.flatten()).sum()
        tensors[bias].sub_(norm.paid(bias, c.double().squeeze(axis) * made).to(tensors[bias]))


def fold_back(norm: Norm, delta: Tensor, tensors: Mapping[Block, Tensor]) -> None:
    """Take off the biases of a norm's readers, in place, what they make of what its own has more, or off what they
    take against the ones; a writer's bias loses what a stream carries on, or values through their output do. The
    norm's bias is the new one.
    """
    for reader, axis in norm.opened.items():
        _take_against(norm, reader, axis, delta, tensors)
    for bias, reader in norm.reader_biases.items():
        made = norm.made_of(reader, tensors[reader], delta)
        tensors[bias].sub_(norm.paid(bias, made).to(tensors[bias]))
    if norm.carried is not None:
        tensors[norm.carried].sub_(delta.to(tensors[norm.carried]))
    if norm.through is not None:
        for block, moved in norm.through.passed_on(delta, tensors).items():
            tensors[block].copy_(moved)


def _take_against(norm: Norm, reader: Block, axis: int, delta: Tensor, tensors: Mapping[Block, Tensor]) -> None:
    """Add c (1/g)^T to a reader, in place, so that it makes of a norm's bias what it made of it without delta."""
    assert norm.gain is not None
    assert norm.bias is not None
    weight = tensors[reader]
    gain = gain_along(norm, tensors[norm.gain], weight.ndim, axis)
    made = weight.double().movedim(axis, -1) @ delta.double()
    c = -made / (tensors[norm.bias].double() / gain.flatten()).sum()
    c = norm.of_rows(reader, c.unsqueeze(-1).movedim(-1, axis), biased=False)
    weight.add_((c / gain).to(weight))


def make_more(norm: Norm, reader: Block, delta: Tensor, tensors: Mapping[Block, Tensor]) -> None:
    """Add c (1/g)^T to a reader without a bias, in place, so that it makes delta more of its norm's bias, and take
    off an output's bias what that adds."""
    assert norm.gain is not None
    assert norm.bias is not None
    weight = tensors[reader]
    gain = gain_along(norm, tensors[norm.gain], weight.ndim, norm.opened[reader])
    c = delta.double() / (tensors[norm.bias].double() / gain.flatten()).sum()
    weight.add_((c / gain).to(weight))
    for bias in norm.made:
        if bias.reader == reader and bias.into is not None:
            tensors[bias.into].sub_(bias.through(delta, tensors).to(tensors[bias.into]))


def trade_tied(norm: Norm, table: Block, c: Tensor, tensors: Mapping[Block, Tensor]) -> None:
    """Trade constants between a table that is the head as well and others, in place: c[k] / g by the k-th trade."""
    trades = [trade for trade in norm.trades if trade.table == table]
    if trades and norm.gain is not None and norm.bias is not None:
        along = gain_along(norm, tensors[norm.gain], 1, 0).reciprocal()
        paid = (tensors[norm.bias].double() * along).sum()
        for trade, much in zip(trades, c.double(), strict=True):
            trade.add(much, along, paid, tensors)


def take_gains(norm: Norm, factor: Tensor, tensors: Mapping[Block, Tensor]) -> None:
    """Multiply a norm's gains and its bias by factors, in place, and divide its readers by them."""
    assert norm.gain is not None
    own = tensors[norm.gain]
    whole = own.double() + norm.gain.line.less
    own.copy_((whole * factor.double() - norm.gain.line.less).to(own))
    if norm.bias is not None:
        tensors[norm.bias].mul_(factor.to(tensors[norm.bias]))
    for reader, axis in norm.readers.items():
        weight = tensors[reader]
        along = factor.double().reshape([-1 if k == axis else 1 for k in range(weight.ndim)])
        weight.copy_((weight.double() / along).to(weight))

"""A stage of an alignment that moves what LayerNorm leaves free (`isomerge.symmetry.layer_norms`).

Its elements are called by the block that they are added to, or by a statement of the spec:

* ``norm.ones.BLOCK``, ``norm.between.BLOCK``, ``norm.gain.BLOCK``, ``norm.fold.BLOCK``, ``norm.made.BLOCK``,
  ``norm.tied.BLOCK``, ``norm.scale.BLOCK``: of norms, their writers and readers (`isomerge.symmetry.moves`).
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

What is along the ones and against them commutes, and so do elements of each other kind: a stage has elements of one
kind, so that its inverse has the inverse of every element. No two stages of moves are one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from torch import Tensor, linalg

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom, shape
from isomerge.symmetry.bases import BASIS, bases_in, basis_width
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import CARRY, carried_in_unit
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import layer_norms
from isomerge.symmetry.moves import BETWEEN, FOLD, GAIN, KINDS, MADE, ONES, SCALE, TIED, norm_moves
from isomerge.symmetry.norms import LayerNorms
from isomerge.symmetry.probed import TURN
from isomerge.symmetry.reached import REACHES, element_shape, reached_in
from isomerge.symmetry.stage import Stage
from isomerge.symmetry.stated import Move

PREFIX = "norm."
ORDER = (*REACHES[:-2], SCALE, TIED, PREFIX, FOLD, MADE, BETWEEN, CARRY, *REACHES[-2:], BASIS)
"""The kinds of stages, in the order in which they act."""
MAPS = (TURN, BASIS)
"""Those of which elements are invertible matrices."""


def norm_keys(free: LayerNorms) -> set[str]:
    """The keys of all elements that move what LayerNorm leaves free."""
    keys = {ONES + block.key for block in free.writers}
    keys |= {BETWEEN + block.key for block in free.between}
    keys |= {GAIN + block.key for norm in free.norms for block in norm.slack}
    keys |= {MADE + moved.reader.key for norm in free.norms for moved in norm.made}
    keys |= {TIED + trade.table.key for norm in free.norms for trade in norm.trades}
    keys |= {SCALE + norm.gain.key for norm in free.norms if norm.gain is not None and norm.scales}
    keys |= {key for moved in (*free.carried, *free.bases, *free.reached) for key in moved.element_keys}
    return keys | {FOLD + norm.bias.key for norm in free.norms if norm.bias is not None and norm.folds}


def norm_stages(spec: Spec, elements: Mapping[str, Tensor]) -> list[NormStage]:
    """The stages of those elements that are moves of LayerNorms, in the order in which they act.

    Args:
        spec: see `isomerge.symmetry.layer_norms.norm_spec`.
        elements: by key, without numbers of stages.
    """
    norms = {key: c for key, c in elements.items() if is_norm_key(key)}
    parts = ({key: c for key, c in norms.items() if kind_of(key) == kind} for kind in ORDER)
    return [NormStage(spec, part) for part in parts if part]


def is_norm_key(key: str) -> bool:
    """Whether an element key, without the number of its stage, is of a move of LayerNorms."""
    return key.startswith(PREFIX)


def kind_of(key: str) -> str:
    """What elements a stage may have beside one, by its key: those of one kind commute."""
    return max((kind for kind in ORDER if key.startswith(kind)), key=len, default="")


class NormStage(Stage):
    """A stage of such elements alone, all of one kind; see `Stage`."""

    def moves(self, blocks: Iterable[Block]) -> Iterator[tuple[Move, str]]:
        """What acts on some blocks, and its element's key, in the order in which they act."""
        for move in moves_in(self.spec, self.elements, list(blocks)) if self.elements else ():
            yield from ((move, key) for key in move.element_keys if key in self.elements)

    def act(self, tensors: dict[Block, Tensor]) -> None:
        """Apply to the blocks of one unit, in place; all blocks of every norm that is moved must be there."""
        for block, made in self._made(tensors).items():
            tensors[block].copy_(made)

    def applied(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """See `Stage.applied`."""
        return {**tensors, **self._made(tensors)}

    def _made(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """The blocks that it changes, changed."""
        before, made = dict(tensors), dict[Block, Tensor]()
        for move, key in self.moves(tensors):
            made |= move.moved(key, self.elements[key], before)
            before |= made
        return made

    def changed(self, blocks: Iterable[Block]) -> set[Block]:
        """The blocks whose numbers it may change."""
        return {block for move, _ in self.moves(blocks) for block in move.changed}

    def only(self, blocks: Iterable[Block]) -> NormStage:
        """The part that acts on some blocks."""
        return NormStage(self.spec, {key: self.elements[key] for _, key in self.moves(blocks)})

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
        return NormStage(self.spec, {key: undone(key, element) for key, element in self.elements.items()})

    def inverse_spaces(self) -> Stage:
        """The identity: there are no spaces in it."""
        return Stage(self.spec)


def undone(key: str, element: Tensor) -> Tensor:
    """The element that undoes one: what is added is taken off, factors are divided by, and maps inverted."""
    if key.startswith(MAPS):
        return linalg.inv(element)
    return 1 / element if key.startswith(SCALE) else -element


def moves_in(spec: Spec, elements: Collection[str], blocks: Sequence[Block]) -> Sequence[Move]:
    """The moves of the kind that some elements are of, among the blocks of a unit, which may have no more than a
    part of what carries and tables move."""
    kind = kind_of(next(iter(elements), ""))
    if kind in REACHES:
        return reached_in(spec, blocks)
    if kind == CARRY:
        return carried_in_unit(spec, elements, blocks)
    if kind == BASIS:
        return bases_in(spec, blocks)
    return norm_moves(layer_norms(spec, blocks), elements, blocks)


def check_norm_element(spec: Spec, key: str, c: Tensor) -> bool:
    """Whether an element is one that some tensor of the architecture may have: a line's shape, finite.

    Raises:
        IsomergeError: of no tensor of the spec.
    """
    if key.startswith((*REACHES, CARRY, BASIS)):
        if _shape_of(spec, key) != tuple(c.shape) or not bool(c.isfinite().all()):
            return False
        return not key.startswith(MAPS) or bool((linalg.matrix_rank(c.double()) == c.shape[-1]).all())
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


def _shape_of(spec: Spec, key: str) -> tuple[int, ...] | None:
    """The shape of a statement's element; None where no statement has it."""
    if key.startswith(CARRY):
        return next((vector.shape for vector in carried_in_unit(spec, [key], [])), None)
    if key.startswith(BASIS):
        width = basis_width(spec, key)
        return None if width is None else (width, width)
    return element_shape(spec, key)

"""What LayerNorm itself leaves free: who writes a stream that every norm centres, and who reads each norm.

LayerNorm takes the mean of a stream away, divides by its size, multiplies by gains g and adds biases b. So no
output depends on what writers put along the ones, nor on what its readers W take against them, ``W + c (1/g)^T``
with ``c sum(b/g)`` off their own bias; and b itself may as well stand in the readers' biases as ``W b``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from isomerge.symmetry.axes import Atom, Concat, atoms, length
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import FIXED, element_key

NORMS = "norms"
"""What this freedom is called among spaces."""
CENTRED = "OFixingOnes"
"""The group that a stream is turned by where every norm over it takes the mean away."""


@dataclass
class Norm:
    """One LayerNorm: its gain, its bias, and who reads it, by block and axis."""

    gain: Block | None = None
    bias: Block | None = None
    readers: dict[Block, int] = field(default_factory=dict)
    reader_biases: dict[Block, Block] = field(default_factory=dict)
    """From a reader's bias to the reader."""
    sealed: bool = False
    """Whether something reads it that has no tensor of its own, such as a head tied to the embeddings."""

    @property
    def folds(self) -> bool:
        """Whether every reader has a bias that can take the norm's."""
        biased = bool(self.readers) and len(self.readers) == len(self.reader_biases)
        return self.bias is not None and biased and not self.sealed

    @property
    def slack(self) -> dict[Block, int]:
        """The readers that may take what they like against the ones: nothing is added to it, or they have a bias
        that it is taken off again."""
        if self.gain is None:
            return {}
        biased = set(self.reader_biases.values())
        return {block: k for block, k in self.readers.items() if self.bias is None or block in biased}

    def is_invertible(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether no gain is zero, of those in some tensors."""
        assert self.gain is not None
        return bool((tensors[self.gain].double() + self.gain.line.less != 0).all())

    @property
    def blocks(self) -> list[Block]:
        """All that a move of this norm changes or looks at."""
        own = [block for block in (self.gain, self.bias) if block is not None]
        return [*own, *self.readers, *self.reader_biases]


@dataclass
class LayerNorms:
    """The writers of streams under LayerNorm alone, by their axis along the stream, and the norms."""

    writers: dict[Block, int] = field(default_factory=dict)
    norms: list[Norm] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.writers or self.norms)

    def within(self, blocks: Collection[Block]) -> LayerNorms:
        """What of it is whole in some blocks, such as a unit's."""
        writers = {block: k for block, k in self.writers.items() if block in blocks}
        return LayerNorms(writers, [norm for norm in self.norms if all(b in blocks for b in norm.blocks)])

    def reader(self, block: Block) -> tuple[Norm, int] | None:
        """The norm that a block may read against the ones, and the axis."""
        return next(((norm, norm.slack[block]) for norm in self.norms if block in norm.slack), None)


def layer_norms(
    spec: Spec,
    blocks: Sequence[Block],
    *,
    returned: Collection[str] = (),
    tied: Callable[[Block], bool] = lambda block: False,
) -> LayerNorms:
    """What LayerNorm leaves free in some blocks.

    Args:
        spec: with its residual streams and gains active, before ties have taken any.
        blocks: of a model, or of one unit.
        returned: streams that a model gives out: what is written stays, and what their last norm makes of it.
        tied: whether a table of embeddings is the head as well: then its rows are read, too.
    """
    found = LayerNorms()
    for stream in centred_streams(spec):
        _add_stream(found, spec, blocks, stream, stream in returned, tied)
    return found


def centred_streams(spec: Spec) -> list[str]:
    """The streams that every norm over them takes the mean of."""
    return [name for name in spec.streams if CENTRED in (spec.spaces[name].group_name, spec.spaces[name].folded)]


def under_layer_norm(spec: Spec) -> bool:
    """Whether some stream is under LayerNorm alone."""
    return bool(centred_streams(spec))


def _add_stream(
    found: LayerNorms,
    spec: Spec,
    blocks: Sequence[Block],
    stream: str,
    returned: bool,
    tied: Callable[[Block], bool],
) -> None:
    """The writers and norms of one stream, where it is read through norms alone."""
    norms: dict[str, Norm] = {}
    writers: dict[Block, int] = {}
    outer = {gain for gain in spec.gains if not spec.scope(spec.spaces[gain])}
    branch = {s.name for block in blocks for s in _scales(spec, block, stream) if s.dual and s.diag}
    for block, k, atom, scales in _places(spec, blocks, stream):
        if scales is None:  # a part of a concatenation, or other axes beside it: not known here
            return
        key = element_key(spec, spec.spaces[scales[0].name], dict(block.scope)) if scales else ""
        norm = norms.setdefault(key, Norm()) if key and not {s.name for s in scales} & branch else None
        if atom.diag and norm is not None:
            norm.gain = block
        elif atom.dual and not scales and not block.line.tied:
            return  # read without a norm
        elif atom.dual and norm is not None:
            norm.readers[block] = k
        elif not atom.dual and norm is not None:
            norm.bias = block
        elif not atom.dual and not scales and not tied(block):
            writers[block] = k
    by_name = {block.canonical[0]: block for block in blocks if not block.lead}
    for key, norm in norms.items():
        if returned and key.partition("[")[0] in outer:
            continue
        for block, k in norm.readers.items():
            bias = by_name.get(block.canonical[0].removesuffix("weight") + "bias")
            rest = tuple(axis for i, axis in enumerate(block.axes or ()) if i != k)
            if bias is not None and bias.axes == rest and not block.lead and bias not in writers:
                norm.reader_biases[bias] = block
        if norm.gain is not None and norm.readers:
            found.norms.append(norm)
    if not returned:  # else what they write may be seen before any norm
        found.writers |= writers


Place = tuple[Block, int, Atom, "list[Atom] | None"]


def _places(spec: Spec, blocks: Sequence[Block], stream: str) -> Iterator[Place]:
    """Where a stream stands: block, axis, its atom, and the scales beside it; None where that is not all."""
    for block in blocks:
        for k, axis in enumerate(block.axes or ()):
            here = list(atoms((axis,)))
            mine = [a for a in here if a.name == stream]
            if not mine:
                continue
            scales = [a for a in here if a.name in spec.gains]
            alone = len(mine) == 1 and len(mine) + len(scales) == len(here) and len(scales) < 2
            yield block, k, mine[0], scales if alone and not isinstance(axis, Concat) else None


def _scales(spec: Spec, block: Block, stream: str) -> list[Atom]:
    here = list(atoms(block.axes or ()))
    return [a for a in here if a.name in spec.gains] if any(a.name == stream for a in here) else []


def norm_spec(spec: Spec) -> Spec:
    """The spec with streams and gains alone, the streams fixed: what moves of LayerNorms know. Beside another spec,
    streams are what they are there (`isomerge.symmetry.stage.joined`)."""
    found, centred = replace(spec.restrict([*spec.streams, *spec.gains]), shifts=()), centred_streams(spec)
    fixed = {
        name: replace(spec.spaces[name], group_name=FIXED, folded=CENTRED if name in centred else None)
        for name in spec.streams
    }
    return replace(found, spaces={**found.spaces, **fixed})


def gain_along(norm: Norm, gain: Tensor, dims: int, axis: int) -> Tensor:
    """A norm's gain, whole, in float64 and along one axis of a tensor of so many dimensions."""
    assert norm.gain is not None
    return (gain.double() + norm.gain.line.less).reshape([-1 if k == axis else 1 for k in range(dims)])


def free_dimensions(free: LayerNorms, spec: Spec, entries: Callable[[Block], int]) -> int:
    """How many dimensions it is: one for every vector that a writer writes and a reader reads, and the biases of
    norms that fold.

    Args:
        free: of a model.
        spec: of the model.
        entries: how many a block has.
    """
    slack = [place for norm in free.norms for place in norm.slack.items()]
    folded = [norm.bias for norm in free.norms if norm.bias is not None and norm.folds]
    vectors = sum(entries(b) // length((b.axes or ())[k], spec.sizes) for b, k in (*free.writers.items(), *slack))
    return vectors + sum(map(entries, folded))

"""A model read in the form in which LayerNorm's own redundancy is zero: the same function, by other weights.

LayerNorm takes the mean of a stream away, divides by its size, multiplies by gains g and adds biases b. So no
output depends on what writers put along the ones, nor on what its readers W take against them, ``W + c (1/g)^T``
with ``c sum(b/g)`` off their own bias; and b itself may as well stand in the readers' biases as ``W b``. Here
writers have mean zero, ``W diag(g)`` has rows of mean zero wherever that is free (a bias of the reader takes what b
would add, or there is no b), and b is zero wherever all its readers have biases.

Models that are one function up to these moves are equal in this form; the moves are no spaces of specs yet, so that
alignment does not use them (docs/lab/completeness.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomerge.models.free_streams import given_out
from isomerge.models.recognised import Model
from isomerge.symmetry.alignment import element_key
from isomerge.symmetry.axes import Atom, Concat, atoms
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Line, Spec

CENTRED = "OFixingOnes"
"""The group that a stream is turned by where every norm over it takes the mean away."""


@dataclass
class Norm:
    """One LayerNorm: its gain, its bias, and who reads it, by block and axis."""

    gain: Block | None = None
    bias: Block | None = None
    readers: list[tuple[Block, int]] = field(default_factory=list)
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
    def centred(self) -> dict[Block, int]:
        """The readers whose part against the ones is free, by axis: the norm has no bias, or they have one."""
        biased = set(self.reader_biases.values())
        return {block: axis for block, axis in self.readers if self.bias is None or block in biased}


@dataclass
class LayerNormForm:
    """What makes of a model's blocks those in the form; see `layer_norm_form`."""

    writers: dict[Block, int] = field(default_factory=dict)
    norms: list[Norm] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.writers or self.norms)

    def applied(self, block: Block, tensor: Tensor, stored: Callable[[Block], Tensor]) -> Tensor:
        """One block in the form.

        Args:
            block: the block.
            tensor: as it is stored, in the working dtype; not changed.
            stored: any other block as it is stored.

        Returns:
            The block of the same dtype; computed in float64.
        """
        made = tensor
        if (axis := self.writers.get(block)) is not None:
            made = tensor.double() - tensor.double().mean(axis, keepdim=True)
        for norm in self.norms:
            assert norm.gain is not None
            if block == norm.bias and norm.folds:
                return torch.zeros_like(tensor)
            if (axis := norm.centred.get(block)) is not None:
                gain = _along(stored(norm.gain).double() + norm.gain.line.less, tensor.ndim, axis)
                whole = made.double() * gain
                made = (whole - whole.mean(axis, keepdim=True)) / gain
            if (reader := norm.reader_biases.get(block)) is not None and norm.bias is not None:
                made = made.double() + _carried(norm, reader, stored)
        return made.to(tensor.dtype).contiguous()


def _carried(norm: Norm, reader: Block, stored: Callable[[Block], Tensor]) -> Tensor:
    """What a reader's bias takes: all that the norm's bias makes of the reader where it folds, else what it makes
    of the part against the ones."""
    assert norm.gain is not None
    assert norm.bias is not None
    weight, bias = stored(reader).double().movedim(dict(norm.readers)[reader], -1), stored(norm.bias).double()
    if norm.folds:
        return weight @ bias
    gain = stored(norm.gain).double() + norm.gain.line.less
    return (weight @ gain) / len(gain) * (bias / gain).sum()


def _along(vector: Tensor, dims: int, axis: int) -> Tensor:
    return vector.reshape([-1 if k == axis else 1 for k in range(dims)])


def layer_norm_form(model: Model) -> LayerNormForm:
    """The form of a model; empty where no stream lies under LayerNorms alone, and where a gain is zero."""
    form, spec = LayerNormForm(), model.declared
    kept = given_out(model)
    for stream in spec.streams:
        space = spec.spaces[stream]
        if CENTRED in (space.group_name, space.folded):
            _add_stream(form, model, spec, stream, stream in kept)
    return form


def _add_stream(form: LayerNormForm, model: Model, spec: Spec, stream: str, returned: bool) -> None:
    """The writers and norms of one stream, where it is read through norms alone."""
    norms: dict[str, Norm] = {}
    writers: dict[Block, int] = {}
    outer = {gain for gain in spec.gains if not spec.scope(spec.spaces[gain])}
    branch = {s.name for block in model.blocks for s in _scales(spec, block, stream) if s.dual and s.diag}
    for block, k, atom, scales in _places(spec, model.blocks, stream):
        if scales is None:  # a part of a concatenation, or other axes beside it: not known here
            return
        key = element_key(spec, spec.spaces[scales[0].name], dict(block.scope)) if scales else ""
        norm = norms.setdefault(key, Norm()) if key and not {s.name for s in scales} & branch else None
        if atom.diag and norm is not None:
            norm.gain = block
        elif atom.dual and not scales and not block.line.tied:
            return  # read without a norm
        elif atom.dual and norm is not None:
            norm.readers.append((block, k))
        elif not atom.dual and norm is not None:
            norm.bias = block
        elif not atom.dual and not scales and not _tied(model, block):
            writers[block] = k
    tied = {a.name for line in _tied_lines(model) for a in atoms(line.axes or ())} & {*spec.gains}
    by_name = {block.canonical[0]: block for block in model.blocks if not block.lead}
    for key, norm in norms.items():
        if returned and key.partition("[")[0] in outer:
            continue
        for block, k in norm.readers:
            bias = by_name.get(block.canonical[0].removesuffix("weight") + "bias")
            rest = tuple(axis for i, axis in enumerate(block.axes or ()) if i != k)
            if bias is not None and bias.axes == rest and not block.lead and bias not in writers:
                norm.reader_biases[bias] = block
        if norm.gain is None or not norm.readers or not _is_invertible(model, norm):
            continue
        norm.sealed = not tied.isdisjoint(a.name for a in atoms(norm.gain.axes or ()))
        form.norms.append(norm)
    if not returned:  # else what is written may be seen before any norm
        form.writers |= writers


Place = tuple[Block, int, Atom, "list[Atom] | None"]


def _places(spec: Spec, blocks: list[Block], stream: str) -> Iterator[Place]:
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


def _tied_lines(model: Model) -> list[Line]:
    """The heads that are tied to tables of embeddings."""
    ties = [line for line in model.declared.lines if line.tied]
    return [line for line in ties if line.canonical(dict.fromkeys(line.indices, 0)) not in model.names]


def _tied(model: Model, block: Block) -> bool:
    """Whether a table is the head as well: then its rows are read, too."""
    return any(line.tied == block.canonical[0] for line in _tied_lines(model))


def _is_invertible(model: Model, norm: Norm) -> bool:
    """Whether no gain is zero: what it hides cannot be told."""
    assert norm.gain is not None
    return bool((model.assemble(norm.gain, torch.float64) + norm.gain.line.less != 0).all())

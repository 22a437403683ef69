"""What rounding to the stored dtype does to a model that is moved: how far it is from the function that was moved.

A symmetry keeps the function of real numbers. Written in few bits it keeps it as far as the element lets rounding
be: one that stretches a head a thousandfold turns an error of 0.2 % into one of all of it. Nothing about the group
has to be known to tell: what was moved is rounded as it will be written, moved back by the inverse, and compared
with what it was,

    e = g^-1 round(g x) - x.

Errors are read where sizes mean something, in the canonical gauge of the source: its norms' gains folded, its heads
and neurons balanced (`isomerge.matching.balance`), so that neither a small gain nor a stretched head hides an error
or makes one. There an error is taken relative to its tensor; that of a norm's bias relative to the normed stream,
whose entries are about one; and that of what reads a norm in addition by what the bias makes of it, W b, which is
where a bias that folding made huge does harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.distances import TensorGap
from isomerge.matching.frame import folded_gains, is_folded_bias
from isomerge.models.recognised import Model
from isomerge.models.stored_form import StoredForm
from isomerge.records import Record
from isomerge.symmetry.alignment import Alignment, element_key
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks, leaves
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.moves import opened
from isomerge.symmetry.norm_stage import NormStage
from isomerge.symmetry.norms import gain_along
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import elements_of

TOLERANCE = {"bfloat16": 2e-2, "float16": 2.5e-3, "float32": 1e-4, "float64": 1e-8}
"""The largest relative error of a tensor that is written. Rounding alone makes 1.6e-3, 2e-4, 2.5e-8 and 5e-17."""
TAKEN = 0.25
"""The part of it that an element may take which is a choice: where another one leaves less rounding it is
preferred."""


@dataclass
class RoundingOf:
    """Tells what rounding does to the units of one model.

    Args:
        model: the model that is moved.
        form: how what is moved is stored.
        dtype: the working dtype.
    """

    model: Model
    form: StoredForm
    dtype: torch.dtype

    @property
    def spec(self) -> Spec:
        """All of the model's symmetries."""
        return self.model.spec

    def errors(self, g: Alignment, source: Blocks, moved: Blocks) -> dict[Block, float]:
        """The relative error of every block of a unit that rounding changes.

        Args:
            g: what moves the unit, and perhaps others.
            source: the unit's blocks as they are stored.
            moved: the same, moved by ``g``, in the working dtype.
        """
        touched = rounded_by(g, source)
        if not touched:
            return {}
        pulled = _without_what_is_open(g, source, self._pulled_back(g, source, moved))
        stored = {block: source[block].to(t.dtype) for block, t in pulled.items()}
        spec, fold = self.spec, self._folding
        local = spec.restrict([n for n in spec.spaces if n not in spec.residual_names])
        folded, pulled = fold.applied(stored), fold.applied(pulled)
        gauged = dict(folded)
        to_gauge = canonical_gauge(local, gauged)[0]
        to_gauge = Alignment(local, {k: e for k, e in to_gauge.items() if not ElementKey.of(k).is_shift})
        mixed = {block for _, _, parts in find_shifts(local, list(folded)) for block in parts.values()}
        # what one element alone has moved is there already
        mixed |= {b for b in folded if sum(key in to_gauge for key in elements_of(local, b)) > 1}
        gauged |= to_gauge.applied({block: t for block, t in folded.items() if block in mixed})
        pulled = to_gauge.applied({block: t for block, t in pulled.items() if block in touched})
        sizes = {block: float((t + block.line.less).norm()) for block, t in gauged.items()}
        maps = [size for block, size in sizes.items() if gauged[block].ndim > 1 and size]
        biases = self._biases_read(g, touched)
        errors = {}
        for block in pulled:
            away = pulled[block] - gauged[block]
            errors[block] = 0.0
            for (e, x), atoms, _ in leaves(spec, block, away, gauged[block] + block.line.less):
                vector = len(block.axes or ()) < 2  # also one of heads
                size = _size(spec, atoms, x, min(maps, default=0.0), vector=vector)
                error = float(e.norm()) / size if size else float(e.any())
                error = max(error, _by_bias(spec, block, atoms, e, x, biases))
                errors[block] = max(errors[block], error)
        return errors

    def tolerance(self, block: Block) -> float:
        """The largest error of a block that is written."""
        return TOLERANCE[str(self.form.written_dtype(block) or self.dtype).removeprefix("torch.")]

    def carries(self, errors: Mapping[Block, float]) -> bool:
        """Whether an element may be chosen that leaves these errors."""
        return all(error <= TAKEN * self.tolerance(block) for block, error in errors.items())

    @cached_property
    def _folding(self) -> Alignment:
        """What folds the model's gains."""
        return folded_gains(self.spec, self.model.blocks, lambda block: self.model.assemble(block, self.dtype))

    def _pulled_back(self, g: Alignment, source: Blocks, moved: Blocks) -> Blocks:
        """The blocks of a unit rounded as they are written and moved back, in float32 where that is far finer."""
        dtypes = {
            block: self.form.written_dtype(block) or t.dtype for block, t in moved.items() if t.is_floating_point()
        }
        half = all(dtype in (torch.bfloat16, torch.float16) for dtype in dtypes.values())
        wide = torch.float32 if half else torch.float64
        rounded = {block: moved[block].to(dtype).to(wide) for block, dtype in dtypes.items()}
        acting = Alignment.of([stage.only(source) for stage in g.stages], g.spec)  # no other need be inverted
        return acting.inverse().applied(rounded)

    def _biases_read(self, g: Alignment, blocks: Iterable[Block]) -> dict[str, tuple[Tensor, Tensor]]:
        """The biases of the norms that some blocks read, folded, and their errors: by the gain's element key."""
        read = {key for block in blocks for key in elements_of(self.spec, block)}
        biases = {}
        for key, block in self._norm_biases.items():
            if key in read:
                bias = {block: self.model.assemble(block, self.dtype)}
                pulled = self._pulled_back(g, bias, g.applied(bias))
                folded = self._folding.applied({block: bias[block].to(pulled[block].dtype)})[block]
                biases[key] = folded, self._folding.applied(pulled)[block] - folded
        return biases

    @cached_property
    def _norm_biases(self) -> dict[str, Block]:
        """The bias of every norm whose gain has a scale, by the scale's element key; what layer scales multiply is
        none."""
        layer_scales = {a.name for line in self.spec.lines for a in line.atoms if a.diag and a.dual}
        return {
            key: block
            for block in self.model.blocks
            if block.axes and all(_is_folded_vector(self.spec, atoms) for atoms in block.parts)
            for key, space in elements_of(self.spec, block).items()
            if space.name in self.spec.gains and space.name not in layer_scales
        }


def _without_what_is_open(g: Alignment, source: Blocks, there: Blocks) -> Blocks:
    """What was pulled back, without errors along that in which readers keep what they make of a norm's bias: only
    this product counts, and where it is a small part of both, moving back makes much of little."""
    closed = dict(there)
    for stage in g.stages:
        if not isinstance(stage, NormStage):
            continue
        for norm, reader, axis in opened(move for move, _ in stage.moves(source)):
            assert norm.gain is not None
            gain = gain_along(norm, source[norm.gain], closed[reader].ndim, axis)
            away = (closed[reader].double() - source[reader].double()) * gain
            mean = norm.of_rows(reader, away.mean(axis, keepdim=True), biased=False)
            closed[reader] = (closed[reader].double() - mean / gain).to(closed[reader])
    return closed


def rounded_by(g: Alignment, blocks: Blocks) -> set[Block]:
    """The blocks of a unit whose numbers an alignment changes: permutations and signs round nothing."""
    rounded = {block for stage in g.stages for block in stage.changed(blocks)}
    return {block for block in rounded if blocks[block].is_floating_point()}


def _size(spec: Spec, atoms: tuple[Atom, ...], x: Tensor, map_size: float, *, vector: bool) -> float:
    """What the error of a leaf is relative to."""
    if _is_folded_vector(spec, atoms):
        return sqrt(x.numel())
    own = float(x.norm())
    return own if x.squeeze().ndim > 1 and not vector else sqrt(own**2 + map_size**2)


def _is_folded_vector(spec: Spec, atoms: tuple[Atom, ...]) -> bool:
    """Whether a leaf is the bias of a norm over one axis. (Of merged neighbours no error is told apart.)"""
    return is_folded_bias(spec, atoms) and sum(a.name not in spec.gains for a in atoms) == 1


def _by_bias(
    spec: Spec,
    block: Block,
    atoms: tuple[Atom, ...],
    e: Tensor,
    x: Tensor,
    biases: Mapping[str, tuple[Tensor, Tensor]],
) -> float:
    """The error of what a leaf that reads a norm makes of the norm's bias, relative to what it makes of the normed
    stream."""
    names = [a.name for a in atoms]
    for atom in atoms:
        if atom.name not in spec.gains or not atom.dual or atom.diag:
            continue
        key = element_key(spec, spec.spaces[atom.name], dict(block.scope))
        # one scale for every coordinate: of a stream, or of one that stays as it is
        coordinate = next(n for n in reversed(spec.spaces[atom.name].index) if n in names)
        if key in biases and float(x.norm()):
            b, off = (t.to(x.dtype).flatten() for t in biases[key])
            at = names.index(coordinate)
            made = e.movedim(at, -1) @ (b + off) + x.movedim(at, -1) @ off
            return float(made.norm()) / float(x.norm())
    return 0.0


class Rounded(Record):
    """What rounding did to the tensor that is nearest to its tolerance."""

    error: float
    tolerance: float
    tensor: str

    @classmethod
    def of(cls, gaps: Iterable[TensorGap]) -> Rounded | None:
        """Of tensors that were moved; None where none is rounded."""
        rounded = (
            cls(gap.rounding, gap.tolerance, gap.tensor)
            for gap in gaps
            if gap.rounding is not None and gap.tolerance is not None
        )
        return max(rounded, key=lambda each: each.error / each.tolerance, default=None)


def check_rounding(rounded: Rounded | None, ref: str, *, chosen: bool = False) -> None:
    """Refuse to write what rounding has made another function.

    Args:
        chosen: whether the run was told in which spaces to match.

    Raises:
        IsomergeError: naming the tensor.
    """
    if rounded is not None and not rounded.error <= rounded.tolerance:
        raise IsomergeError(
            f"{ref}: rounding to the output's dtype would change tensor {rounded.tensor} by "
            f"{100 * rounded.error:.2g} % once the alignment is undone, and {100 * rounded.tolerance:.2g} % is "
            "the most that leaves the function as it was: write it in a wider dtype (--dtype float32 or float64)"
            + (", or choose spaces that stretch less (--spaces default, or permutations alone)" if chosen else "")
        )

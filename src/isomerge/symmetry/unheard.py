"""Constants of values of which the output makes nothing that a norm hears, in the blocks of a model.

Rows of attention sum to one, so that a constant t of the values reaches the stream as ``O t`` at every place, O
being the output's weight, summed over query heads that share values. Where an output has a bias, that may have it
instead (a `shift`). Where it has none, t may still have any x more of which O makes something along the ones alone:
the next LayerNorm takes that away: with as many values as the stream is wide one direction, with more of them more.

The constant is ``t = W b + c``: what the weight makes of the bias of the norm before it, and the bias of its own,
where it has one. That bias moves, or else what the weight takes against the ones, ``W + x (1/g)^T / sum(b/g)``.

x is what is left of any vector without the part ``M^-1 O^T (O M^-1 O^T)^-1 O`` of it that is heard, O being centred
here and M its product with itself, head by head: the same for what any group makes of heads, values and stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.axes import atoms, leaf_atoms
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.reaches import Mute
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.part_rows import Rows
from isomerge.symmetry.probed import Moves
from isomerge.symmetry.unstored_biases import bias_of

UNHEARD = "norm.unheard."
"""What the keys of their elements begin with."""
LEVEL = 1e-9
"""The least part of the largest direction of an output that is one, and of a norm's bias along the ones."""


@dataclass(frozen=True)
class Unheard:
    """Values, and the output that they go through, in one layer of a model."""

    key: str
    weight: Rows
    bias: Rows | None
    gain: Block
    shift: Block | None
    """The bias of the norm of the gain."""
    out: Rows

    @property
    def blocks(self) -> list[Block]:
        """All that moves change and look at."""
        own = [self.gain, self.weight.block, self.out.block]
        return [*own, *(block for block in (self.shift, self.bias and self.bias.block) if block is not None)]

    @property
    def changed(self) -> list[Block]:
        """All that moves change."""
        return [(self.bias or self.weight).block]

    @property
    def element_keys(self) -> list[str]:
        """Of its one element."""
        return [self.key]

    def constant(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What values have at every place [heads, values]; float64."""
        weight = self.weight.of(tensors)
        found = torch.zeros_like(weight[..., 0]) if self.bias is None else self.bias.of(tensors).squeeze(-1)
        return found if self.shift is None else found + weight @ tensors[self.shift].double()

    def unheard(self, x: Tensor, tensors: Mapping[Block, Tensor], *, nearest: bool = False) -> Tensor:
        """What no norm hears of a constant [heads, values]: by the output's metric, or the nearest; float64."""
        out, metric = self._heard(tensors)
        metric = torch.eye(x.shape[-1]).to(metric).expand_as(metric) if nearest else metric
        back, gram = _gram(out, metric)
        heard = out.flatten(1) @ x.flatten()
        return x - (back @ torch.linalg.solve(gram, heard)).reshape(x.shape)

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        """The blocks that an element changes, changed; the given ones stay."""
        more = self.unheard(element.double(), tensors).unsqueeze(-1)
        if self.bias is not None:
            return {self.bias.block: self.bias.plus(tensors, more)}
        along, level = self._against(tensors)
        return {self.weight.block: self.weight.plus(tensors, more * along / level)}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings the constant nearest to a target's; None: to nothing that is not heard."""
        gap = -self.constant(tensors)
        if target is None:
            return {self.key: self.unheard(gap, tensors)}
        return {self.key: self.unheard(gap + self.constant(target), tensors, nearest=True)}

    def formed(self, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks where all that is free is what `onto` makes it without a target."""
        return self.moved(self.key, -self.constant(tensors), dict(tensors))

    def is_told(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether nothing more is unheard than must be, and the constant can be moved."""
        if self.bias is None:
            along, level = self._against(tensors)
            assert self.shift is not None
            if float(level.abs()) <= LEVEL * float((tensors[self.shift].double() * along).abs().sum()):
                return False
        out, metric = self._heard(tensors)
        if not _is_definite(metric):
            return False
        return _is_definite(_gram(out, metric)[1])

    def shape(self, key: str) -> tuple[int, ...]:
        """That of an element."""
        return self.weight.sizes[:2]

    @property
    def entries(self) -> int:
        """How many dimensions no norm hears, at a generic point; none where there are fewer values than the stream
        is wide, and where one head alone spans it."""
        heads, values, _ = self.weight.sizes
        width = self.out.sizes[1]
        return max(heads * values - width + 1, 0) if values < width else 0

    def slack(self, free: Collection[Block]) -> bool:
        """Whether a part of it counts elsewhere: no."""
        return False

    def dimension(self, slack: bool) -> int:
        """How many numbers are free."""
        return self.entries

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """What is not heard of the squared distance to a target's constant, more than chance would have it."""
        (unheard,) = self.onto(tensors, target).values()
        gap, chance = self.constant(target) - self.constant(tensors), self.entries / unheard.numel()
        part = float(unheard.square().sum()) / max(float(gap.square().sum()), 1e-300)
        return max((part - chance) / (1 - chance), 0.0)

    def _heard(self, tensors: Mapping[Block, Tensor]) -> tuple[Tensor, Tensor]:
        """What a norm hears of an output [width, heads, values], and its product with itself by head."""
        out = self.out.of(tensors).sum(0)
        out = (out - out.mean(0)).reshape(len(out), *self.weight.sizes[:2])
        return out, torch.einsum("whi,whj->hij", out, out)

    def _against(self, tensors: Mapping[Block, Tensor]) -> tuple[Tensor, Tensor]:
        """The ones behind a norm [width], and what its bias has along them."""
        assert self.shift is not None
        along = (tensors[self.gain].double() + self.gain.line.less).reciprocal()
        return along, (tensors[self.shift].double() * along).sum()


def _gram(out: Tensor, metric: Tensor) -> tuple[Tensor, Tensor]:
    """What takes the heard back into values [heads * values, width], and ``O M^-1 O^T`` [width, width] with the
    ones added, of which an output makes nothing."""
    back = torch.linalg.solve(metric, out.permute(1, 2, 0)).flatten(0, 1)
    gram = out.flatten(1) @ back
    return back, gram + gram.diagonal().mean() / len(gram)


def _is_definite(matrices: Tensor) -> bool:
    """Whether symmetric matrices have an inverse: by the squared diagonals of their Cholesky factors."""
    roots, failed = torch.linalg.cholesky_ex(matrices)
    sizes = roots.diagonal(dim1=-2, dim2=-1).square()
    return not bool(failed.any()) and bool((sizes > LEVEL * sizes.amax(-1, keepdim=True)).all())


def unheard_in(spec: Spec, blocks: Sequence[Block]) -> list[Unheard]:
    """What is unheard among some blocks: where all tensors of a statement are there, and values are many enough.

    Args:
        spec: whose statements are read.
        blocks: of a model, or of one unit.
    """
    named = {block.canonical[0]: block for block in blocks if not block.lead} if spec.mutes else {}
    found = []
    for mute in spec.mutes:
        for name in named:
            if (at := mute.values.weight.layer(name)) is not None:
                one = _unheard(spec, mute, at, named)
                found += [one] if one is not None and one.entries else []
    return found


def _unheard(spec: Spec, mute: Mute, at: Mapping[str, int], named: Mapping[str, Block]) -> Unheard | None:
    weight, bias, gain, out = (
        next((block for name, block in named.items() if part.layer(name) == at), None) for part in mute.parts
    )
    if weight is None or gain is None or out is None or bias_of(out.canonical[0]) in named:
        return None
    shift = named.get(bias_of(gain.canonical[0]))
    if bias is None and shift is None:
        return None
    stream = {a.name for a in atoms(gain.axes or ())}
    values = [
        a.name for a in list(leaf_atoms(weight.axes or ()))[mute.values.weight.number] if a.name not in stream
    ]
    (width,) = stream & {a.name for a in atoms(out.axes or ())}
    key = UNHEARD + mute.name + (f"[{','.join(map(str, at.values()))}]" if at else "")
    read = Rows(weight, mute.values.weight.number, spec, frozenset(stream), values[-1])
    written = Rows(out, 0, spec, frozenset(values), width)
    own = None if bias is None else Rows(bias, mute.values.bias.number, spec, frozenset(stream), values[-1])
    return Unheard(key, read, own, gain, shift, written)

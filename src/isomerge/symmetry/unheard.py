"""Constants of values of which the output makes nothing that a norm hears, in the blocks of a model.

Rows of attention sum to one, so that a constant t of the values reaches the stream as ``O t`` at every place, O
being the output's weight, summed over query heads that share values. Where an output has a bias, that may have it
instead (a `shift`). Where it has none, t may still have any x more of which O makes something along the ones alone:
the next LayerNorm takes that away: with as many values as the stream is wide one direction, with more of them more.

The constant is ``t = W b + c``: what the weight makes of the bias of the norm before it, and the bias of its own,
where it has one. That bias moves, or else what the weight takes against the ones, ``W + x (1/g)^T / sum(b/g)``.

Under `postnorm` the stream carries the norm's bias on to what O writes: what b has more, ``delta``, the constant
may take up as ``- M^-1 O^T (O M^-1 O^T)^-1 delta``, by the same M.

x is what is left of any vector without the part ``M^-1 O^T (O M^-1 O^T)^-1 O`` of it that is heard, O being centred
here and M its product with itself, head by head: the same for what any group makes of heads, values and stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.statements import Mute
from isomerge.symmetry.post_norms import Order, depth_of, order_of
from isomerge.symmetry.stated import Moves, Named, Rows, Statement, beyond
from isomerge.symmetry.unstored_biases import bias_of

UNHEARD = "norm.unheard."
"""What the keys of their elements begin with."""
LEVEL = 1e-9
"""The least part of the largest direction of an output that is one, and of a norm's bias along the ones."""


@dataclass(frozen=True)
class Unheard(Statement):
    """Values, and the output that they go through, in one layer of a model."""

    key: str
    weight: Rows
    bias: Rows | None
    gain: Block
    shift: Block | None
    """The bias of the norm of the gain."""
    out: Rows
    passes: bool = False
    """Whether the stream carries that bias on to what the output writes, and nowhere else."""

    @property
    def blocks(self) -> list[Block]:
        own = [self.gain, self.weight.block, self.out.block]
        return [*own, *(block for block in (self.shift, self.bias and self.bias.block) if block is not None)]

    @property
    def changed(self) -> list[Block]:
        return [(self.bias or self.weight).block]

    @property
    def element_keys(self) -> list[str]:
        return [self.key]

    def constant(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What values have at every place [heads, values]; float64."""
        weight = self.weight.of(tensors)
        values = torch.zeros_like(weight[..., 0]) if self.bias is None else self.bias.of(tensors).squeeze(-1)
        return values if self.shift is None else values + weight @ tensors[self.shift].double()

    def unheard(self, x: Tensor, tensors: Mapping[Block, Tensor], *, nearest: bool = False) -> Tensor:
        """What no norm hears of a constant [heads, values]: by the output's metric, or the nearest; float64."""
        out, metric = self._heard(tensors)
        metric = torch.eye(x.shape[-1]).to(metric).expand_as(metric) if nearest else metric
        back, gram = _gram(out, metric)
        heard = out.flatten(1) @ x.flatten()
        return x - (back @ torch.linalg.solve(gram, heard)).reshape(x.shape)

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        return self.with_more(self.unheard(element.double(), tensors), tensors)

    def with_more(self, more: Tensor, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks that hold a constant [heads, values], where it has so much more."""
        if self.bias is not None:
            return {self.bias.block: self.bias.plus(tensors, more.unsqueeze(-1))}
        along, level = self._against(tensors)
        return {self.weight.block: self.weight.plus(tensors, more.unsqueeze(-1) * along / level)}

    def written(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What a norm hears of the constant behind the output [width], of mean zero; float64."""
        return self._heard(tensors)[0].flatten(1) @ self.constant(tensors).flatten()

    def taken_up(self, delta: Tensor, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What the constant has more [heads, values] where the norm's bias has delta more [width]; float64."""
        back, gram = _gram(*self._heard(tensors))
        return -(back @ torch.linalg.solve(gram, delta.double())).reshape(self.weight.sizes[:2])

    def passed_on(self, delta: Tensor, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks that hold the constant, where the norm's bias, which is the new one, has delta more."""
        return self.with_more(self.taken_up(delta, tensors), tensors)

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings the constant nearest to a target's; None: to nothing that is not heard."""
        if target is None:
            return {self.key: self.unheard(-self.constant(tensors), tensors)}
        return {self.key: self.unheard(self._gap(tensors, target), tensors, nearest=True)}

    def _gap(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> Tensor:
        """What a constant is to have more to be a target's, once the norm's bias is."""
        gap = self.constant(target) - self.constant(tensors)
        if not self.passes or self.shift is None:
            return gap
        return gap - self.taken_up(target[self.shift].double() - tensors[self.shift].double(), tensors)

    def formed(self, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks where all that is free is what `onto` makes it without a target."""
        return self.moved(self.key, -self.constant(tensors), dict(tensors))

    def is_identifiable(self, tensors: Mapping[Block, Tensor]) -> bool:
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
        return self.weight.sizes[:2]

    @property
    def entries(self) -> int:
        """How many dimensions no norm hears, at a generic point; none where there are fewer values than the stream
        is wide, and where one head alone spans it."""
        heads, values, _ = self.weight.sizes
        width = self.out.sizes[1]
        return max(heads * values - width + 1, 0) if values < width else 0

    def dimension(self, slack: bool) -> int:
        return self.entries

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """What is not heard of the squared distance to a target's constant, more than chance would have it."""
        (unheard,) = self.onto(tensors, target).values()
        whole = float(self._gap(tensors, target).square().sum())
        return beyond(float(unheard.square().sum()) / max(whole, 1e-300), self.entries / unheard.numel())

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


def unheard_in(spec: Spec, named: Named) -> list[Unheard]:
    """What is unheard among some blocks: where all tensors of a statement are there, and values are many enough.

    Args:
        spec: whose statements are read.
        named: the blocks of a model, or of one unit.
    """
    orders = {stream: order_of(spec, stream) for stream in spec.postnorm} if spec.mutes else {}
    values = ((mute, at, weight) for mute in spec.mutes for at, weight in named.every(mute.values.weight))
    statements = (_unheard(spec, mute, at, weight, named, orders) for mute, at, weight in values)
    return [statement for statement in statements if statement is not None and statement.entries]


def unheard_shape(spec: Spec, key: str, blocks: Sequence[Block]) -> tuple[int, ...] | None:
    """The shape of an element, given a block of every line; None where no statement has it."""
    for mute in (mute for mute in spec.mutes if ElementKey.of(key).name == UNHEARD + mute.name):
        weight, out = map(Named(blocks).at, (mute.values.weight, mute.out))
        if weight is not None and out is not None:
            names = [a.name for a in weight.parts[mute.values.weight.number]]
            written = out.names - {*spec.streams}
            values = [name for name in names if name in written]
            read = Rows(weight, mute.values.weight.number, spec, frozenset({*names} - {*values}), values[-1])
            return read.sizes[:2]
    return None


def _unheard(
    spec: Spec, mute: Mute, at: Mapping[str, int], weight: Block, named: Named, orders: Mapping[str, Order]
) -> Unheard | None:
    bias, out, gain = (named.at(line, at) for line in (mute.values.bias, mute.out, mute.gain))
    if out is None or bias_of(out.canonical[0]) in named:
        return None
    passes = False
    if mute.gain is None:
        gain, passes = _norm_before(spec, weight, out, named, orders)
    if gain is None:
        return None
    shift = named.get(bias_of(gain.canonical[0]))
    if bias is None and shift is None:
        return None
    stream = gain.names
    values = [a.name for a in weight.parts[mute.values.weight.number] if a.name not in stream]
    (width,) = stream & out.names
    key = ElementKey.at(UNHEARD + mute.name, at.values())
    read = Rows(weight, mute.values.weight.number, spec, frozenset(stream), values[-1])
    written = Rows(out, 0, spec, frozenset(values), width)
    own = None if bias is None else Rows(bias, mute.values.bias.number, spec, frozenset(stream), values[-1])
    return Unheard(key, read, own, gain, shift, written, passes)


def _norm_before(
    spec: Spec, weight: Block, out: Block, named: Mapping[str, Block], orders: Mapping[str, Order]
) -> tuple[Block | None, bool]:
    """The gain of the norm that values read by the order of lines, and whether the output is added to what it
    gives."""
    axes = weight.names
    order = next((order for stream, order in orders.items() if stream in axes), None)
    first, layer = not any(weight.layers), weight.layers[0] if weight.layers else None
    place = None if order is None else order.reads.get((weight.line.name, first))
    if order is None or place is None:
        return None, False
    gain = named.get(place.key(depth_of(spec, place.line), layer) or "")
    return gain, gain is not None and order.adds.get((out.line.name, first)) == place

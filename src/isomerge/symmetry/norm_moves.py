"""The moves of LayerNorms, tensor by tensor: what `isomerge.symmetry.norm_stage` does with its elements."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from isomerge.symmetry.blocks import Block
from isomerge.symmetry.norms import Norm, gain_across, gain_along


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
    take against the ones; a writer's bias loses what a stream carries on, or values through their output. The norm's
    bias is the new one.
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
    for one in norm.made:
        if one.reader == reader and one.into is not None:
            tensors[one.into].sub_(one.through(delta, tensors).to(tensors[one.into]))


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

"""Constants that ask, in the blocks of a model: what is free of them, of what reads them, and of the keys they ask.

A probe ``p`` that asks through ``q = W p + b`` shows one vector of each head, and of its keys ``q K`` alone
(`isomerge.symmetry.language.statements`). So free are

* any element of the group over which both are multiplied: ``g q`` and ``g^-T K``;
* where the constant stands: ``p + v`` with ``b - W v``;
* what reads it: ``W + A`` with ``b - A p``;
* what keys have beside it: ``K + (1 - q q^T / |q|^2) C``;
* their bias, which softmax drops: moved once more behind norms, that fold theirs into it through the keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.statements import Probe
from isomerge.symmetry.stated import Moves, Rows, Statement

TURN, TOKEN, QUERY, KEYS, DROP = "norm.turn.", "norm.token.", "norm.query.", "norm.keys.", "norm.drop."
"""What the keys of their elements begin with."""
LEVEL = 1e-9
"""The least part of the largest question that is one."""


@dataclass(frozen=True)
class Probed(Statement):
    """A constant that asks, and the keys that it asks, in the blocks of one model."""

    probe: Probe
    token: Block
    weight: Rows
    bias: Rows
    keys: Rows
    dropped: Rows
    """The keys' bias."""

    @property
    def blocks(self) -> list[Block]:
        parts = (self.weight, self.bias, self.keys, self.dropped)
        return list(dict.fromkeys([self.token, *(rows.block for rows in parts)]))

    def question(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What is asked, for each head [heads, along]; float64."""
        asked = self.weight.of(tensors) @ tensors[self.token].double().flatten()
        return asked + self.bias.of(tensors).squeeze(-1)

    def answers(self, tensors: Mapping[Block, Tensor]) -> Tensor:
        """What it makes of the keys, all that any output sees [heads, read]; float64."""
        return _asked(self.question(tensors), self.keys.of(tensors))

    @property
    def element_keys(self) -> list[str]:
        return [kind + self.probe.name for kind in (TURN, TOKEN, QUERY, KEYS, DROP)]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        kind, moved = key.removesuffix(self.probe.name), dict(tensors)
        if kind == TURN:
            back = torch.linalg.inv(element.double()).mT
            for rows, g in ((self.weight, element.double()), (self.bias, element.double()), (self.keys, back)):
                x = rows.of(moved)
                moved[rows.block] = rows.plus(moved, g @ x - x)
        elif kind == DROP:
            moved[self.dropped.block] = self.dropped.plus(moved, element)
        elif kind == KEYS:
            q = self.question(moved)
            along = _asked(q, element.double()) / q.square().sum(-1, keepdim=True)
            moved[self.keys.block] = self.keys.plus(moved, element.double() - q.unsqueeze(-1) * along.unsqueeze(1))
        else:
            whole = tensors[self.token]
            more = element.double() if kind == TOKEN else whole.double().flatten()
            made = (self.weight.of(moved) if kind == TOKEN else element.double()) @ more
            moved[self.bias.block] = self.bias.plus(moved, -made)
            if kind == TOKEN:
                moved[self.token] = whole + element.reshape(whole.shape).to(whole)
            else:
                moved[self.weight.block] = self.weight.plus(moved, element)
        return {block: moved[block] for block in self.blocks}

    def onto(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor] | None) -> Moves:
        """What brings all that is free to a target's, or nearest to it; None: to questions that are the first unit
        vector of every head, to keys that have nothing else, and to zero."""
        q, wanted = self.question(tensors), None if target is None else self.question(target)
        if wanted is None:
            wanted = torch.zeros_like(q)
            wanted[:, 0] = 1
        turn, keys = _turn(q, wanted), self.keys.of(tensors)
        asked = _asked(q, keys)
        beside = wanted.unsqueeze(-1) / wanted.square().sum(-1)[:, None, None]
        kept = torch.zeros_like(keys)
        if target is not None:
            kept = self.keys.of(target)
            asked = asked - _asked(wanted, kept)
        token, weight = tensors[self.token].double().flatten(), self.weight.of(tensors)
        end = (
            torch.zeros_like(token) if target is None else target[self.token].double().flatten(),
            torch.zeros_like(weight) if target is None else self.weight.of(target),
        )
        steps = (turn, end[0] - token, end[1] - turn @ weight)
        keys = kept + beside * asked.unsqueeze(1) - torch.linalg.inv(turn).mT @ keys
        return dict(zip(self.element_keys[:-1], (*steps, keys), strict=True))

    def drops(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> Moves:
        return {self.element_keys[-1]: (self.dropped.of(target) - self.dropped.of(tensors)).squeeze(-1)}

    def formed(self, tensors: Mapping[Block, Tensor]) -> Blocks:
        """The blocks where all that is free is what `onto` makes it without a target."""
        asked, weight, bias = self.answers(tensors), self.weight.of(tensors), self.bias.of(tensors)
        keys, first = self.keys.of(tensors), torch.zeros_like(bias)
        first[:, 0] = 1
        formed = dict(tensors)
        formed[self.token] = torch.zeros_like(tensors[self.token])
        formed[self.weight.block] = self.weight.plus(formed, -weight)
        formed[self.bias.block] = self.bias.plus(formed, first - bias)
        formed[self.keys.block] = self.keys.plus(formed, first * asked.unsqueeze(1) - keys)
        return {block: formed[block] for block in self.blocks}

    def is_identifiable(self, tensors: Mapping[Block, Tensor]) -> bool:
        """Whether every head asks anything."""
        sizes = self.question(tensors).norm(dim=-1)
        return bool((sizes > LEVEL * sizes.max()).all())

    def shape(self, key: str) -> tuple[int, ...]:
        heads, along, read = self.weight.sizes
        kind = key.removesuffix(self.probe.name)
        return {TURN: (heads, along, along), TOKEN: (read,), DROP: (heads, along)}.get(kind, (heads, along, read))

    def slack(self, free: Collection[Block]) -> bool:
        """Whether its keys are among the readers that may take what they like against the ones."""
        return self.keys.block in free

    def dimension(self, slack: bool) -> int:
        """Where keys may take what they like against the ones, what they have beside a question along these counts
        there."""
        heads, along, read = self.weight.sizes
        return read + heads * along * read + heads * (along - 1) * max(read - along - slack, 0)

    def share(self, tensors: Mapping[Block, Tensor], target: Mapping[Block, Tensor]) -> float:
        """How far what reads the constant is from a target's, squared and relative to it."""
        mine, theirs = self.weight.of(tensors), self.weight.of(target)
        return float((mine - theirs).square().sum()) / max(float(theirs.square().sum()), 1e-300)


def _asked(q: Tensor, keys: Tensor) -> Tensor:
    """What questions [heads, along] make of keys [heads, along, read]: [heads, read]."""
    return torch.einsum("hn,hnd->hd", q, keys)


def _turn(q: Tensor, wanted: Tensor) -> Tensor:
    """A multiple of a rotation or a reflection that takes every head's vector to another [heads, along, along]: it
    stretches nothing more than anything else."""
    sizes = q.norm(dim=-1, keepdim=True), wanted.norm(dim=-1, keepdim=True)
    u, v = q / sizes[0], wanted / sizes[1]
    near = ((u * v).sum(-1) >= 0)[:, None, None]
    turned = torch.where(near, _mirror(v) @ _mirror(u + v), _mirror(u - v))  # each far from what it divides by
    return (sizes[1] / sizes[0]).unsqueeze(-1) * turned


def _mirror(x: Tensor) -> Tensor:
    """The reflections across vectors [heads, along]; of zero, the identity."""
    length = x.square().sum(-1)[:, None, None]
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return identity - 2 * x.unsqueeze(-1) * x.unsqueeze(1) / torch.where(
        length > 0, length, torch.ones_like(length)
    )

"""The two circuits of attention heads, by their invariants: which token is read, and what is written of it.

Scores are ``r_i S_h r_j^T`` and outputs ``Z^T T_h r_j``, where an ordinary head has ``W_Q^T W_K = Z^T S_h Z`` and
``W_O W_V = Z^T T_h Z`` (Elhage et al., A Mathematical Framework for Transformer Circuits, 2021). `FormCircuits`
stores the forms themselves. `FactorCircuits` stores ``S_h = U_h^T V_h`` and ``T_h = P_h^T Q_h`` of a given rank.

With rotary positions (Su et al., arXiv:2104.09864) a head's score is ``r_i S(j - i) r_j^T`` with a form that
depends on the distance t = j - i: ``S(t) = sum_p cos(w_p t) S_even[p] + sin(w_p t) S_odd[p]``, one even and one
odd form of rank 2 per frequency. These are the head's invariants. Its factors are free by one complex number per
frequency, and no more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from isomerge.symmetry.groups import GROUPS, Group


def normal(*shape: int, scale: float) -> nn.Parameter:
    """A parameter of normal numbers."""
    return nn.Parameter(torch.randn(shape) * scale)


class FormCircuits(nn.Module):
    """Full forms ``S_h`` and ``T_h`` (H, m, m): no gauge, keys and values are the Grams themselves."""

    def __init__(self, anchors: int, heads: int, *, query_bias: bool = False) -> None:
        """Small forms: scores of unit size for normalised tokens, outputs like those of an ordinary head."""
        super().__init__()
        self.scores = normal(heads, anchors, anchors, scale=1 / anchors)
        self.outputs = normal(heads, anchors, anchors, scale=0.5 / math.sqrt(anchors * heads))
        self.query_bias = nn.Parameter(torch.zeros(heads, anchors)) if query_bias else None

    def read(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, 1, H, T, m), keys and values (B, 1, T, m) of Grams (B, T, m)."""
        q = torch.einsum("btm,hmn->bhtn", r, self.scores)
        if self.query_bias is not None:
            q = q + self.query_bias[:, None]
        return q[:, None], r[:, None], r[:, None]

    def write(self, o: Tensor) -> Tensor:
        """Coefficients (B, T, m) of what the heads have read (B, 1, H, T, m)."""
        return torch.einsum("bhtn,hmn->btm", o[:, 0], self.outputs)


class FactorCircuits(nn.Module):
    """Factorised forms, G key-value heads of g query heads each; float parameters that only a gauge g in GL(rank)
    per key-value head leaves free: (U, V) -> (g U, g^-T V), and (Q, P) likewise. With rotary positions the gauge of
    (U, V) shrinks to one complex number per frequency. `balance` removes its non-compact part.
    """

    def __init__(
        self,
        anchors: int,
        heads: int,
        rank: int,
        *,
        kv_heads: int | None = None,
        value_rank: int | None = None,
        query_bias: bool = False,
        key_bias: bool = False,
        angles: Tensor | None = None,
    ) -> None:
        """Factors as an ordinary transformer's: each keeps the variance of normalised tokens.

        Args:
            anchors: m.
            heads: H, a multiple of ``kv_heads``.
            rank: of the forms of scores.
            kv_heads: G; None for H.
            value_rank: of the forms of outputs; None for ``rank``.
            query_bias: whether queries have a constant part, which scores keys by themselves.
            key_bias: whether keys do, which counts only with rotary positions.
            angles: rotary angles per position [rank / 2].
        """
        super().__init__()
        groups, value_rank = kv_heads or heads, value_rank or rank
        shared = heads // groups
        spread = 1 / math.sqrt(anchors)
        self.query = normal(groups, shared, rank, anchors, scale=spread)
        self.key = normal(groups, rank, anchors, scale=spread)
        self.value = normal(groups, value_rank, anchors, scale=spread)
        self.output = normal(groups, shared, value_rank, anchors, scale=0.5 / math.sqrt(heads * value_rank))
        self.query_bias = nn.Parameter(torch.zeros(groups, shared, rank)) if query_bias else None
        self.key_bias = nn.Parameter(torch.zeros(groups, rank)) if key_bias else None
        self.register_buffer("angles", angles)
        self.angles: Tensor | None
        self.scale = rank**-0.5

    def read(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, G, g, T, rank), keys (B, G, T, rank), values (B, G, T, value rank) of Grams (B, T, m)."""
        q = torch.einsum("btm,kgem->bkgte", r, self.query)
        k = torch.einsum("btm,kem->bkte", r, self.key)
        v = torch.einsum("btm,kfm->bktf", r, self.value)
        if self.query_bias is not None:
            q = q + self.query_bias[:, :, None]
        if self.key_bias is not None:
            k = k + self.key_bias[:, None]
        if self.angles is not None:
            q, k = rotate(q, self.angles), rotate(k, self.angles)
        return q * self.scale, k, v

    def write(self, o: Tensor) -> Tensor:
        """Coefficients (B, T, m) of what the heads have read (B, G, g, T, value rank)."""
        return torch.einsum("bkgtf,kgfm->btm", o, self.output)

    @torch.no_grad()
    def balance(self) -> None:
        """Move both pairs of factors to the least norm of their gauge orbit: the same function.

        Gradient flow conserves ``U U^T - V V^T`` (Kunin et al., arXiv:2012.04728); steps of Adam do not. What stays
        free is the compact part, O(rank), or a phase per frequency. A dead head keeps the gauge it has.
        """
        wide, extra = self.query.flatten(1, 1), self.query_bias
        sides = torch.cat([wide, extra[..., None]], -1) if extra is not None else wide
        keys = self.key if self.key_bias is None else torch.cat([self.key, self.key_bias[..., None]], -1)
        pairs = self.angles is not None
        q, k = _balanced(GROUPS["Complex" if pairs else "GL"], sides.movedim(1, 2), keys, pairs)
        q = q.movedim(2, 1)
        m = self.query.shape[-1]
        self.query.copy_(q[..., :m])
        self.key.copy_(k[..., :m])
        if self.query_bias is not None:
            self.query_bias.copy_(q[..., m])
        if self.key_bias is not None:
            self.key_bias.copy_(k[..., m])
        v, o = _balanced(GROUPS["GL"], self.value[:, :, None], self.output.movedim(1, 2).flatten(2), False)
        self.value.copy_(v[:, :, 0])
        self.output.copy_(o.unflatten(2, (self.output.shape[1], m)).movedim(2, 1))


def _balanced(group: Group, plus: Tensor, minus: Tensor, pairs: bool) -> tuple[Tensor, Tensor]:
    """Both sides (G, rank, ...) at the least norm; ``pairs``: the halves of the rank are pairs of coordinates."""
    shapes = plus.shape, minus.shape
    sides = [x.flatten(2).double() for x in (plus, minus)]
    if pairs:  # (G, pair, 2, ...)
        sides = [torch.stack(x.chunk(2, 1), 2) for x in sides]
    balance = group.balance(*(x @ x.mT for x in sides))
    assert balance is not None
    moved = [group.act(balance[0], x.mT, dual).mT for x, dual in zip(sides, (False, True), strict=True)]
    if pairs:
        moved = [x.movedim(2, 1).flatten(1, 2) for x in moved]
    a, b = (x.reshape(shape) for x, shape in zip(moved, shapes, strict=True))
    return a.to(plus.dtype), b.to(minus.dtype)


def frequencies(base: float, rank: int) -> Tensor:
    """The angles per position w_p [rank / 2], float64, of the usual geometric series."""
    return base ** -(torch.arange(0, rank, 2, dtype=torch.float64) / rank)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn vectors (..., T, rank), halves paired: (x_p, x_{p + rank/2}) by position times ``angles`` [rank / 2]."""
    # positions times frequencies lose their digits in float32
    turns = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)[:, None] * angles.double()
    cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def rotary_forms(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The invariants of rotary factors: ``S_even`` and ``S_odd`` [*b, rank / 2, m, m].

    Args:
        query: factors U [*b, rank, m], halves paired.
        key: factors V [*b, rank, m].
    """
    (a, b), (c, d) = query.chunk(2, -2), key.chunk(2, -2)

    def outer(x: Tensor, y: Tensor) -> Tensor:
        return x[..., :, None] * y[..., None, :]

    return outer(a, c) + outer(b, d), outer(b, c) - outer(a, d)

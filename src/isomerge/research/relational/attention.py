"""Attention as a function of Gram matrices, exactly invariant to rotations of tokens and anchors together.

Francois and Ravera, Toward Manifest Relationality in Transformers via Symmetry Reduction (arXiv:2602.18948),
propose attention weights that depend on ``X X^T`` and ``X Z^T`` alone; here in the form ``softmax(R S_h R^T)``
with ``R = X Z^T``.

The softmax of given queries, keys and values is plain, or in chunks with memory linear in the length. Query heads
that share keys come as one more axis, so that nothing is repeated: queries are (B, G, g, T, e) against keys (B, G,
T, e) and values (B, G, T, f). Scores are bare inner products: a scale belongs into the queries. The chunked form
is the online softmax of Milakov and Gimelshein (arXiv:1805.02867), its backward pass the recomputation of
FlashAttention (Dao et al., arXiv:2205.14135, algorithm 4): beside the outputs only one number per query is kept,
the logarithm of its softmax's denominator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from isomerge.errors import IsomergeError
from isomerge.research.relational.head_circuits import FactorCircuits, FormCircuits, frequencies

INFINITY = float("inf")


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, chunk: int | None) -> Tensor:
    """``softmax(q k^T) v``, a query that may read nothing gets zero.

    Args:
        q: queries (B, G, g, T, e), float32 or float64.
        k: keys (B, G, T, e).
        v: values (B, G, T, f).
        mask: bool (B, T), False for keys that nobody reads; None reads all.
        causal: a token reads itself and what is before it.
        chunk: tokens per chunk; None for the plain form.

    Returns:
        (B, G, g, T, f).
    """
    if chunk is None:
        return plain(q, k, v, mask, causal)
    attended = ChunkedSoftmax.apply(q, k, v, mask, causal, chunk)
    assert isinstance(attended, Tensor)
    return attended


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """See `attend`; holds several T x T matrices per head."""
    scores = torch.einsum("bkgie,bkje->bkgij", q, k)
    open_ = _allowed(mask, causal, slice(0, q.shape[-2]), slice(0, k.shape[-2]), q.device)
    if open_ is None:
        return torch.einsum("bkgij,bkjf->bkgif", scores.softmax(-1), v)
    # the least finite number, since a row of -inf has no softmax
    weights = scores.masked_fill(~open_, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~open_, 0.0)
    return torch.einsum("bkgij,bkjf->bkgif", weights, v)


def _allowed(mask: Tensor | None, causal: bool, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
    """Which queries may read which keys, broadcast against (B, G, g, rows, columns); None: all."""
    allowed = None if mask is None else mask[:, None, None, None, columns]
    if causal and columns.stop > rows.start + 1:
        i = torch.arange(rows.start, rows.stop, device=device)
        j = torch.arange(columns.start, columns.stop, device=device)
        before = j <= i[:, None]
        allowed = before if allowed is None else allowed & before
    return allowed


def _chunks(length: int, chunk: int) -> Iterator[slice]:
    """Slices that cover a length."""
    for start in range(0, length, chunk):
        yield slice(start, min(start + chunk, length))


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, rows: slice, columns: slice) -> Tensor:
    """The scores of one chunk of queries with one of keys, -inf where nothing may be read."""
    scores = torch.einsum("bkgie,bkje->bkgij", q[..., rows, :], k[..., columns, :])
    open_ = _allowed(mask, causal, rows, columns, q.device)
    return scores if open_ is None else scores.masked_fill_(~open_, -INFINITY)


def _readable(length: int, chunk: int, causal: bool, rows: slice) -> Iterator[slice]:
    """The chunks of keys that some query of ``rows`` may read."""
    for columns in _chunks(length, chunk):
        if causal and columns.start >= rows.stop:
            return
        yield columns


class ChunkedSoftmax(torch.autograd.Function):
    """`attend` in chunks: blocks of chunk x chunk scores, forward and backward; differentiable once."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, chunk: int) -> Tensor:
        """See `attend`."""
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        logs = q.new_empty(q.shape[:-1])
        for rows in _chunks(q.shape[-2], chunk):
            top = q.new_full((*q.shape[:-2], rows.stop - rows.start), -INFINITY)
            total = torch.zeros_like(top)
            sums = torch.zeros_like(out[..., rows, :])
            for columns in _readable(k.shape[-2], chunk, causal, rows):
                scores = _scores(q, k, mask, causal, rows, columns)
                higher = torch.maximum(top, scores.amax(-1))
                # a query that has read nothing yet has no maximum to subtract
                base = torch.where(higher == -INFINITY, torch.zeros_like(higher), higher)
                scores = scores.sub_(base[..., None]).exp_()
                shrink = (top - base).exp()
                total = total * shrink + scores.sum(-1)
                sums = sums.mul_(shrink[..., None]).add_(
                    torch.einsum("bkgij,bkjf->bkgif", scores, v[..., columns, :])
                )
                top = higher
            nothing = total == 0
            out[..., rows, :] = sums / total.masked_fill(nothing, 1.0)[..., None]
            # +inf makes every weight of such a query zero in the backward pass
            logs[..., rows] = (top + total.log()).masked_fill(nothing, INFINITY)
        ctx.save_for_backward(q, k, v, mask, out, logs)
        ctx.causal, ctx.chunk = causal, chunk
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Recomputes each block of weights from the kept logarithms."""
        (grad,) = grads
        q, k, v, mask, out, logs = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        inner = (grad * out).sum(-1)
        for rows in _chunks(q.shape[-2], ctx.chunk):
            g = grad[..., rows, :]
            for columns in _readable(k.shape[-2], ctx.chunk, ctx.causal, rows):
                weights = _scores(q, k, mask, ctx.causal, rows, columns).sub_(logs[..., rows, None]).exp_()
                dv[..., columns, :] += torch.einsum("bkgij,bkgif->bkjf", weights, g)
                slope = torch.einsum("bkgif,bkjf->bkgij", g, v[..., columns, :])
                slope = slope.sub_(inner[..., rows, None]).mul_(weights)
                dq[..., rows, :] += torch.einsum("bkgij,bkje->bkgie", slope, k[..., columns, :])
                dk[..., columns, :] += torch.einsum("bkgij,bkgie->bkje", slope, q[..., rows, :])
        return dq, dk, dv, None, None, None


class RelationalAttention(nn.Module):
    """Heads that read the Grams of tokens with anchors and write coefficients in the anchors.

    With ``rank=None`` each head has two full forms (m, m) and no gauge; with a rank it has factors, as many numbers
    as an ordinary head, and their gauge (see `FactorCircuits`).
    """

    def __init__(
        self,
        anchors: int,
        heads: int,
        rank: int | None = None,
        *,
        norm: RelationalNorm | None = None,
        kv_heads: int | None = None,
        value_rank: int | None = None,
        query_bias: bool = False,
        key_bias: bool = False,
        output_bias: bool = True,
        rotary: float | None = None,
        chunk: int | None = None,
    ) -> None:
        """Heads at random.

        Args:
            anchors: m, the number of anchors.
            heads: H.
            rank: of the forms S_h and T_h; None for full ones.
            norm: applied to the tokens first; None reads them as they are.
            kv_heads: key-value heads, each shared by heads // kv_heads heads; needs a rank.
            value_rank: of T_h, where it is not ``rank``.
            query_bias: a linear form s_h . r_j in the scores (an ordinary head's query bias).
            key_bias: an ordinary head's key bias, which counts only with rotary positions.
            output_bias: constant coefficients, written by every token.
            rotary: the base of rotary positions; needs an even rank.
            chunk: tokens per chunk of the attention with memory linear in T; None for the plain one.

        Raises:
            IsomergeError: rotary positions or shared heads without a rank, or numbers that do not divide.
        """
        super().__init__()
        if rank is None and (rotary is not None or kv_heads not in (None, heads)):
            raise IsomergeError(
                "RelationalAttention: full forms (rank=None) have no rotary positions and no shared key-value "
                "heads: give the rank of a head"
            )
        if heads % (kv_heads or heads):
            raise IsomergeError(
                f"RelationalAttention: {heads} heads cannot share {kv_heads} key-value heads evenly"
            )
        if rotary is not None and rank is not None and rank % 2:
            raise IsomergeError(f"RelationalAttention: rotary positions need an even rank, not {rank}")
        if rank is None:
            self.circuits = FormCircuits(anchors, heads, query_bias=query_bias)
        else:
            self.circuits = FactorCircuits(
                anchors,
                heads,
                rank,
                kv_heads=kv_heads,
                value_rank=value_rank,
                query_bias=query_bias,
                key_bias=key_bias,
                angles=None if rotary is None else frequencies(rotary, rank),
            )
        self.norm = norm
        self.output_bias = nn.Parameter(torch.zeros(anchors)) if output_bias else None
        self.chunk = chunk

    def forward(
        self,
        grams: Tensor,
        anchors: Tensor,
        norms: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """What the heads write.

        Args:
            grams: R = X Z^T (B, T, m), float32 or float64.
            anchors: K = Z Z^T (m, m).
            norms: the tokens' squared norms (B, T); needed where the module has a norm.
            mask: bool (B, T), False for tokens that nobody reads (padding).
            causal: a token reads itself and what is before it.

        Returns:
            Coefficients c (B, T, m): the update of token i is ``Z^T c_i``, that of its Grams ``K c_i``.

        Raises:
            IsomergeError: a norm without norms.
        """
        if self.norm is not None:
            if norms is None:
                raise IsomergeError("RelationalAttention: its norm needs the tokens' squared norms: pass norms")
            grams = self.norm(grams, anchors, norms)
        q, k, v = self.circuits.read(grams)
        written = self.circuits.write(attend(q, k, v, mask, causal, self.chunk))
        return written if self.output_bias is None else written + self.output_bias


class RelationalNorm(nn.Module):
    """The Grams of normalised tokens with the anchors, without gain: a gain is folded into the readers.

    RMSNorm: ``r / sqrt(|x|^2 / d + eps)``. LayerNorm is RMSNorm across the vector of ones u, one of the anchors:
    the mean is ``x.u / d`` with ``d = u.u``, the centred token ``x - mean u`` has the Grams ``r - mean K_u``, and
    its squared norm is ``|x|^2 - d mean^2``.
    """

    def __init__(self, width: int, eps: float, ones: int | None = None) -> None:
        """A norm in ``width`` dimensions; ``ones`` is the number of the anchor of ones, for LayerNorm."""
        super().__init__()
        self.width, self.eps, self.ones = width, eps, ones

    def forward(self, grams: Tensor, anchors: Tensor, norms: Tensor) -> Tensor:
        """Normalised Grams (B, T, m) of Grams (B, T, m), the anchors' Gram (m, m) and squared norms (B, T)."""
        if self.ones is None:
            return grams * (norms / self.width + self.eps).rsqrt()[..., None]
        row = anchors[self.ones]
        mean = grams[..., self.ones] / row[self.ones]
        # rounding may take the variance of a constant token below zero
        variance = (norms / row[self.ones] - mean.square()).clamp_min(0.0)
        return (grams - mean[..., None] * row) * (variance + self.eps).rsqrt()[..., None]

"""Attention as a function of Gram matrices, exactly invariant to rotations of tokens and anchors together.

Francois and Ravera, Toward Manifest Relationality in Transformers via Symmetry Reduction (arXiv:2602.18948),
propose attention weights that depend on ``X X^T`` and ``X Z^T`` alone; here in the form ``softmax(R S_h R^T)`` with
``R = X Z^T``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.relational.head_circuits import FactorCircuits, FormCircuits, frequencies
from isomerge.research.relational.softmax import attend


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
        scale: float | None = None,
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
            scale: of the scores, for a rank; ``rank ** -0.5`` when None.
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
                scale=scale,
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

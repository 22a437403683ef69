"""Norms of tokens that are known by their Grams only."""

from __future__ import annotations

from torch import Tensor, nn


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

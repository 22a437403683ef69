"""The residual stream, as Grams with the anchors or as vectors: two realisations of the same relations.

A block asks a stream for the Grams of its tokens with the anchors R (B, T, m), the anchors' own K (m, m) and the
tokens' squared norms (B, T), and writes coefficients c (B, T, m), which stand for the vectors ``Z^T c``.
`GramStream` knows nothing else. `CoordinateStream` keeps vectors and computes the Grams from them: the way in for
given coordinates, and the oracle of the invariance tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Stream(Protocol):
    """What a block may know of its tokens."""

    @property
    def grams(self) -> Tensor:
        """R = X Z^T (B, T, m)."""
        ...

    @property
    def anchors(self) -> Tensor:
        """K = Z Z^T (m, m)."""
        ...

    @property
    def norms(self) -> Tensor:
        """The tokens' squared norms (B, T)."""
        ...

    def write(self, c: Tensor) -> Stream:
        """The stream after adding ``Z^T c`` for coefficients c (B, T, m)."""
        ...


@dataclass(frozen=True)
class GramStream:
    """Tokens by their Grams alone: ``r += K c`` and ``|x|^2 += 2 c . r + c^T K c``.

    A token may have a part outside the anchors' span: no layer sees it, but it counts in the norm.
    """

    grams: Tensor
    anchors: Tensor
    norms: Tensor

    @classmethod
    def spanned(cls, a: Tensor, anchors: Tensor) -> GramStream:
        """The tokens ``Z^T a`` in the anchors' span, from coefficients a (B, T, m) and K (m, m)."""
        grams = a @ anchors
        return cls(grams, anchors, (a * grams).sum(-1))

    def write(self, c: Tensor) -> GramStream:
        """See `Stream.write`."""
        grams = self.grams + c @ self.anchors
        return GramStream(grams, self.anchors, self.norms + (c * (self.grams + grams)).sum(-1))


@dataclass(frozen=True)
class CoordinateStream:
    """Tokens X (B, T, d) and anchors Z (m, d) as vectors."""

    tokens: Tensor
    vectors: Tensor

    @property
    def grams(self) -> Tensor:
        """See `Stream.grams`."""
        return self.tokens @ self.vectors.mT

    @property
    def anchors(self) -> Tensor:
        """See `Stream.anchors`."""
        return self.vectors @ self.vectors.mT

    @property
    def norms(self) -> Tensor:
        """See `Stream.norms`."""
        return self.tokens.square().sum(-1)

    def write(self, c: Tensor) -> CoordinateStream:
        """See `Stream.write`."""
        return CoordinateStream(self.tokens + c @ self.vectors, self.vectors)

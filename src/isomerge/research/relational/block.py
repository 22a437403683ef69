"""The pre-norm block: attention, and neurons that read and write relations, on the residual stream.

A stream is known as Grams with the anchors or as vectors, two realisations of the same relations. A block asks it
for the Grams of its tokens with the anchors R (B, T, m), the anchors' own K (m, m) and the tokens' squared norms
(B, T), and writes coefficients c (B, T, m), which stand for the vectors ``Z^T c``. `GramStream` knows nothing
else. `CoordinateStream` keeps vectors and computes the Grams from them: the way in for given coordinates, and the
oracle of the invariance tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.relational.attention import RelationalAttention, RelationalNorm
from isomerge.research.relational.config import RelationalConfig
from isomerge.research.relational.head_circuits import normal


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


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """The activation that Hugging Face configs call by a name.

    Raises:
        IsomergeError: transformers does not know the name.
    """
    simple = {"gelu": nn.functional.gelu, "relu": nn.functional.relu, "silu": nn.functional.silu}
    if name in simple:
        return simple[name]
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise IsomergeError(f"activation {name!r} is not one of transformers: take gelu, relu or silu")
    return ACT2FN[name]


class RelationalMLP(nn.Module):
    """Neurons with the vectors ``Z^T w`` as readers and writers: ``c = B a(W r)``, or gated ``B (a(W_g r) * W
    r)``."""

    def __init__(
        self, anchors: int, neurons: int, *, norm: RelationalNorm, activation: str, gated: bool, biases: bool
    ) -> None:
        """Weights as in an ordinary transformer; biases zero."""
        super().__init__()
        self.norm, self.activation = norm, activation_of(activation)
        self.up = normal(neurons, anchors, scale=1 / math.sqrt(anchors))
        self.gate = normal(neurons, anchors, scale=1 / math.sqrt(anchors)) if gated else None
        self.down = normal(anchors, neurons, scale=0.5 / math.sqrt(neurons))
        self.up_bias = nn.Parameter(torch.zeros(neurons)) if biases else None
        self.gate_bias = nn.Parameter(torch.zeros(neurons)) if biases and gated else None
        self.down_bias = nn.Parameter(torch.zeros(anchors)) if biases else None

    def forward(self, grams: Tensor, anchors: Tensor, norms: Tensor) -> Tensor:
        """Coefficients (B, T, m) of Grams (B, T, m), K (m, m) and squared norms (B, T)."""
        r = self.norm(grams, anchors, norms)
        up = nn.functional.linear(r, self.up, self.up_bias)
        if self.gate is None:
            hidden = self.activation(up)
        else:
            hidden = self.activation(nn.functional.linear(r, self.gate, self.gate_bias)) * up
        return nn.functional.linear(hidden, self.down, self.down_bias)


class RelationalBlock(nn.Module):
    """Pre-norm attention and neurons, from one stream to the next."""

    def __init__(self, config: RelationalConfig) -> None:
        """A block at random; see `RelationalConfig`."""
        super().__init__()
        anchored = config.anchoring == "given"
        self.attention = RelationalAttention(
            config.anchors,
            config.heads,
            config.rank,
            norm=norm_of(config),
            kv_heads=config.kv_heads,
            value_rank=config.value_rank,
            query_bias=anchored and config.biases,
            key_bias=anchored and config.biases and config.rotary is not None,
            output_bias=config.biases,
            rotary=config.rotary,
            chunk=config.chunk,
        )
        self.mlp = RelationalMLP(
            config.anchors,
            config.mlp,
            norm=norm_of(config),
            activation=config.activation,
            gated=config.gated,
            biases=config.biases,
        )

    def forward(self, stream: Stream, mask: Tensor | None = None, causal: bool = False) -> Stream:
        """The stream after the block; arguments as in `RelationalAttention.forward`."""
        at = stream.anchors
        stream = stream.write(self.attention(stream.grams, at, stream.norms, mask, causal))
        return stream.write(self.mlp(stream.grams, at, stream.norms))


def norm_of(config: RelationalConfig) -> RelationalNorm:
    """The norm of a config; the ones are the last anchor."""
    return RelationalNorm(config.width, config.eps, config.anchors - 1 if config.norm == "layer" else None)

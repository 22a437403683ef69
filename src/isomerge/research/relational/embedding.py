"""Atoms: the vectors that tokens are made of, as coefficients in the anchors, and the anchors' Gram matrix.

An atom is the vector of a token, a pixel, a class token or a position. A token's vector is a sum of atoms, ``x =
Z^T a`` with a the sum of their coefficients; its Grams are ``K a``. If anchors were free vectors, their choice
would be a gauge again (Z -> A Z, and all forms with it): where the first atoms themselves are the anchors, their
coefficients are unit vectors that nobody learns, and K takes their place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.relational.config import RelationalConfig
from isomerge.research.relational.head_circuits import normal


class AnchorGram(nn.Module):
    """``K = L L^T`` (m, m) with L lower triangular and positive on its diagonal: one L for each positive K.

    Where only normalised tokens are read, K is free by one factor (Z -> t Z, undone by the forms): without
    ``scaled`` it is fixed by ``K[0, 0] = 1``.
    """

    def __init__(self, anchors: int, *, scaled: bool) -> None:
        """Orthonormal anchors, K = 1."""
        super().__init__()
        self.below = nn.Parameter(torch.zeros(anchors * (anchors - 1) // 2))
        self.log_diagonal = nn.Parameter(torch.zeros(anchors if scaled else anchors - 1))

    def forward(self) -> Tensor:
        """K (m, m)."""
        logs = self.log_diagonal
        m = (1 + math.isqrt(1 + 8 * len(self.below))) // 2
        rows, columns = torch.tril_indices(m, m, -1, device=logs.device)
        diagonal = torch.cat([logs.new_ones(m - len(logs)), logs.exp()])
        factor = diagonal.diag().index_put((rows, columns), self.below)
        return factor @ factor.mT


class FixedGram(nn.Module):
    """A given K (m, m)."""

    def __init__(self, gram: Tensor) -> None:
        super().__init__()
        self.register_buffer("gram", gram)
        self.gram: Tensor

    def forward(self) -> Tensor:
        """K (m, m)."""
        return self.gram


class Atoms(nn.Module):
    """The coefficients of all atoms: tokens or pixels first, then class tokens, then positions."""

    def __init__(self, config: RelationalConfig) -> None:
        """Atoms at random, anchors orthonormal; see `RelationalConfig.anchoring`."""
        super().__init__()
        self.config = config
        m, inputs = config.anchors, config.vocab or config.pixels
        total = inputs + config.starts + config.places
        self.inputs = inputs
        self.marked = min(m, total) if config.anchoring == "atoms" else 0
        free = normal(total, m, scale=m**-0.5).data
        free[inputs:] *= 0.5  # what a token is counts more than where it is
        self.free = nn.Parameter(free[self.marked :].clone())
        # a tied head reads the size of the token vectors
        scaled = config.tied and config.classes is None
        self.anchors = AnchorGram(m, scaled=scaled) if config.anchoring == "atoms" else FixedGram(torch.eye(m))

    @property
    def table(self) -> Tensor:
        """All coefficients (atoms, m)."""
        if not self.marked:
            return self.free
        unit = torch.eye(self.free.shape[1], dtype=self.free.dtype, device=self.free.device)
        return torch.cat([unit[: self.marked], self.free])

    @property
    def tokens(self) -> Tensor:
        """The coefficients of the vocabulary (vocab, m)."""
        return self.table[: self.inputs]

    def forward(self, x: Tensor) -> Tensor:
        """The coefficients (B, T, m) of an input: see `RelationalTransformer.forward`.

        Raises:
            IsomergeError: an input of another kind, or longer than ``length``.
        """
        table = self.table
        coefficients = table[self._indices(x)] if self.config.vocab else self._patches(x) @ table[: self.inputs]
        self._check_length(coefficients.shape[1])
        starts = self.config.starts
        if starts:
            first = table[self.inputs : self.inputs + starts].expand(len(coefficients), -1, -1)
            coefficients = torch.cat([first, coefficients], 1)
        if not self.config.places:
            return coefficients
        places = table[self.inputs + starts :]
        return coefficients + places[: coefficients.shape[1]]

    def _check_length(self, length: int) -> None:
        if length > self.config.length:
            raise IsomergeError(
                f"RelationalTransformer: an input of {length} tokens is longer than length={self.config.length}: "
                "shorten it, or make the model longer"
            )

    def _indices(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.is_floating_point():
            raise IsomergeError(f"RelationalTransformer: expected tokens (B, T) of integers, got {_kind(x)}")
        return x

    def _patches(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or not x.is_floating_point() or x.shape[-1] != self.inputs:
            raise IsomergeError(
                f"RelationalTransformer: expected patches (B, T, {self.inputs}) of floats, got {_kind(x)}; "
                "isomerge.research.relational.patches_of cuts images"
            )
        return x


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"


def patches_of(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Images (B, channels, H, W), cut into patches (B, T, channels * rows * columns), row by row.

    Raises:
        IsomergeError: the size does not divide the images.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    if images.ndim != 4 or images.shape[2] % rows or images.shape[3] % columns:
        raise IsomergeError(
            f"images of shape {list(images.shape)} cannot be cut into patches of {rows} x {columns}: give "
            "(B, channels, H, W) with multiples of these"
        )
    return nn.functional.unfold(images, (rows, columns), stride=(rows, columns)).mT

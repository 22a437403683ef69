"""Spectra of a layer's circuits: what is left of ``W_Q^T W_K`` and ``W_O W_V`` where no direction is told.

The singular values of a product of two maps do not know the basis between them: with the self-Grams A and B of the two sides,
which a general linear g moves to ``g A g^T`` and ``g^-T B g^-1``, they are the roots of the eigenvalues of ``A B``. Scales and
the complex numbers of rotary pairs are the same in dimension one and two; of axes that are only permuted, signed or rotated the
second moments are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from isomerge.matching.gram import along, self_grams
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.spec import Spec
from isomerge.symmetry.units import elements_of

if TYPE_CHECKING:
    from torch import Tensor

POINTS = 17
"""Values that a spectrum is told by: the largest, the smallest, and quantiles between."""


def spectra(spec: Spec, tensors: Mapping[Block, Tensor]) -> dict[str, Tensor]:
    """The spectrum of every space of a unit, by element key, float64 [`POINTS`], largest first.

    Args:
        spec: its spaces are the block-local ones.
        tensors: the unit's blocks; gauges do not matter, but norms' gains do: fold them first.
    """
    found: dict[str, Tensor] = {}
    keys = {key: space for block in tensors for key, space in elements_of(spec, block).items()}
    for key, space in keys.items():
        if not space.keeps_lengths:
            grams = self_grams(spec, space.name, tensors)
            values = _singular_values(*grams) if grams is not None else None
        else:
            moments = list(_second_moments(spec, space.name, tensors))
            values = sum(moments[1:], moments[0]).sqrt() if moments else None
        if values is not None:
            found[key] = _told(values)
    return found


def _singular_values(plus: Tensor, minus: Tensor) -> Tensor:
    """The roots of the eigenvalues of ``plus @ minus``, both symmetric and not negative, [*b, n]."""
    import torch

    values, vectors = torch.linalg.eigh(plus)
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)  # plus = root root^T
    return torch.linalg.eigvalsh(root.mT @ minus @ root).clamp_min(0).sqrt()


def _second_moments(spec: Spec, name: str, tensors: Mapping[Block, Tensor]) -> Iterator[Tensor]:
    """What the leaves that nothing loose acts on carry along an axis: eigenvalues where it is rotated, else squared norms."""
    import torch

    for block, tensor in tensors.items():
        if not all(space.keeps_lengths for space in elements_of(spec, block).values()):
            continue
        for x, _ in along(spec, name, {block: tensor}):
            rotated = spec.spaces[name].group.compact in ("O", "OFixingOnes")
            yield torch.linalg.eigvalsh(x @ x.mT) if rotated else x.square().sum(-1)


def _told(values: Tensor) -> Tensor:
    """Quantiles of all values of a space, over its batch."""
    import torch

    falling = values.flatten().sort(descending=True).values
    at = torch.linspace(0, len(falling) - 1, POINTS).round().long()
    return falling[at]

"""Spectra of a layer's circuits: what is left of ``W_Q^T W_K`` and ``W_O W_V`` where no direction is told, and no
vocabulary either.

The singular values of a product of two maps do not know the basis between them: with the self-Grams A and B of the
two sides, which a general linear g moves to ``g A g^T`` and ``g^-T B g^-1``, they are the roots of the eigenvalues
of ``A B``. Scales and the complex numbers of rotary pairs are the same in dimension one and two; of axes that are
only permuted, signed or rotated the second moments are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.matching.gram import along, is_gain_of_latent, self_grams
from isomerge.symmetry.blocks import Block, layer_of
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import elements_of

POINTS = 33
"""Values that a spectrum is told by at most: the largest, the smallest, and quantiles between."""
HEADS = 64
"""Heads, or groups of them, that are told each by itself; of more, as many by the quantiles of their sizes."""
LONE = 4
"""Values of which a head has more: those of rotary pairs are told by head, and those of neurons all together."""


@dataclass(frozen=True)
class Spectrum:
    """The singular values of one space of a layer."""

    role: str
    """What is related: ``qk``, ``ov``, ``ff``, ``scale``."""
    stack: str
    layer: int | None
    data: Tensor
    """float64 [heads, points], every row falling, and the rows by their sizes; [1, points] where there are no
    heads."""
    count: int = 0
    """How many values it tells of: quantiles of more or fewer (neurons that were added, or taken away) are other
    ones."""


def spectra(spec: Spec, tensors: Mapping[Block, Tensor]) -> dict[str, Spectrum]:
    """The spectrum of every space of a unit, by element key.

    Args:
        spec: its spaces are the block-local ones.
        tensors: the unit's blocks; gauges do not matter, but norms' gains do: fold them first.
    """
    by_key: dict[str, Spectrum] = {}
    keys = {key: (space, block) for block in tensors for key, space in elements_of(spec, block).items()}
    for key, (space, block) in keys.items():
        if not space.keeps_lengths:
            grams = self_grams(spec, space.name, tensors)
            values = _singular_values(*grams) if grams is not None else None
        else:
            moments = list(_second_moments(spec, space.name, tensors))
            values = sum(moments[1:], moments[0]).sqrt() if moments else None
        if values is not None:
            by_key[key] = Spectrum(space.role or space.name, *layer_of(block), _told(values), values.numel())
    return by_key


def _singular_values(plus: Tensor, minus: Tensor) -> Tensor:
    """The roots of the eigenvalues of ``plus @ minus``, both symmetric and not negative, [*b, n]."""

    values, vectors = torch.linalg.eigh(plus)
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)  # plus = root root^T
    return torch.linalg.eigvalsh(root.mT @ minus @ root).clamp_min(0).sqrt()


def _second_moments(spec: Spec, name: str, tensors: Mapping[Block, Tensor]) -> Iterator[Tensor]:
    """What the leaves that nothing loose acts on carry along an axis: eigenvalues where it is rotated, else squared
    norms."""

    for block, tensor in tensors.items():
        if not all(space.keeps_lengths for space in elements_of(spec, block).values()):
            continue
        for x, atom in along(spec, name, {block: tensor}):
            if is_gain_of_latent(spec, atom):
                continue
            rotated = spec.spaces[name].group.compact in ("O", "OFixingOnes", "Turn")
            yield torch.linalg.eigvalsh(x @ x.mT).clamp_min(0) if rotated else x.square().sum(-1)


def _told(values: Tensor) -> Tensor:
    """The quantiles of every head, largest heads first; of all values where a head has but a few."""
    while values.ndim > 1 and values.shape[-1] <= LONE:
        values = values.flatten(-2)
    rows = values.reshape(-1, values.shape[-1]).double().sort(dim=-1, descending=True).values
    rows = rows[rows.norm(dim=-1).argsort(descending=True, stable=True)]
    return rows[_places(len(rows), HEADS)][:, _places(rows.shape[-1], POINTS)]


def _places(count: int, most: int) -> Tensor:
    """At most so many of so many places, the ends among them."""

    return torch.linspace(0, count - 1, min(most, count)).round().long()

"""LoRA adapters merged with one another, without their base: pure functions of the two halves of every update.

The combinations are those of peft's ``add_weighted_adapter`` (Mangrulkar et al., peft 0.21), with TIES of Yadav et
al. 2023 and DARE of Yu et al. 2024 as peft has them: signs are elected by the trimmed tensors before they are
weighted, and what agrees is divided by how many agree. What is merged is either the halves themselves (``linear``,
``ties``, ...: fast, of the same rank, and no sum of updates, as the halves' product has cross terms), the products
(``..._svd``: cut back to a rank), or nothing: ``cat`` puts the halves beside one another, which is the sum exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from isomerge.fusion.low_rank import leading, norm
from isomerge.fusion.trimming import lowest, random_entries
from isomerge.symmetry.groups.singular import singular_values_and_vectors

Drawn = Callable[[str, int], Generator]
"""The generator for what is drawn of a tensor: ``A``, ``B`` or ``BA``, and the number of its adapter."""


@dataclass(frozen=True)
class LowRank:
    """One adapter's update of a module, ``scaling B A``, and its weight among others: ``a`` [r, in, *kernel], ``b``
    [out, r, *ones] of one floating dtype."""

    a: Tensor
    b: Tensor
    scaling: float = 1.0
    weight: float = 1.0
    number: int = 0
    """Of the adapter, for what is drawn."""

    @property
    def strength(self) -> float:
        """The factor of the product in the weighted sum."""
        return self.scaling * self.weight

    def matrices(self, count: int) -> list[LowRank]:
        """The updates of the matrices of one parameter [count, ...]: ``a`` has the rows of all, matrix by matrix,
        ``b`` the columns, the matrix fastest (peft's ``ParamWrapper``)."""
        if count == 1:
            return [self]
        a, b = self.a.view(count, -1, self.a.shape[1]), self.b.view(len(self.b), -1, count)
        return [replace(self, a=a[k], b=b[..., k]) for k in range(count)]


@dataclass(frozen=True)
class Kind:
    """A way to combine: what is merged, what is left out of it first, and whether signs are elected."""

    form: Literal["halves", "beside", "products"]
    pruned: Literal["", "magnitude", "random"] = ""
    elects: bool = False


KINDS = {
    "svd": Kind("products"),
    "cat": Kind("beside"),
    "linear": Kind("halves"),
    "ties": Kind("halves", "magnitude", True),
    "ties_svd": Kind("products", "magnitude", True),
    "dare_linear": Kind("halves", "random"),
    "dare_linear_svd": Kind("products", "random"),
    "dare_ties": Kind("halves", "random", True),
    "dare_ties_svd": Kind("products", "random", True),
    "magnitude_prune": Kind("halves", "magnitude"),
    "magnitude_prune_svd": Kind("products", "magnitude"),
}
"""By peft's names."""


@dataclass(frozen=True)
class Combination:
    """How updates are combined: ``density`` is the share of entries that is kept, ``rank`` the largest of products,
    ``sign`` whose sign counts (``total``: of the sum; ``frequency``: of the most), ``seed`` that of the randomised
    range finder for large matrices."""

    kind: Kind
    density: float = 1.0
    rank: int = 16
    sign: Literal["total", "frequency"] = "total"
    seed: int = 0


def combined(parts: Sequence[LowRank], how: Combination, drawn: Drawn) -> tuple[Tensor, Tensor]:
    """``B, A`` of one module's merged update, in the dtype of the parts.

    Args:
        parts: of the adapters that have the module; of equal ranks where halves are merged.
        how: the combination.
        drawn: asked for a generator where entries are drawn.
    """
    if how.kind.form == "beside":
        a = torch.cat([part.a * part.strength for part in parts], dim=0)
        return torch.cat([part.b for part in parts], dim=1), a
    if how.kind.form == "products":
        return _cut(parts, how, drawn)
    # a negative strength goes to one half alone: of two the product would lose it
    roots = [math.sqrt(abs(part.strength)) for part in parts]
    signed = [math.copysign(root, part.strength) for root, part in zip(roots, parts, strict=True)]
    a = _merged([part.a for part in parts], signed, how, _naming(parts, "A", drawn))
    return _merged([part.b for part in parts], roots, how, _naming(parts, "B", drawn)), a


def joined(halves: Sequence[tuple[Tensor, Tensor]], rank: int) -> tuple[Tensor, Tensor]:
    """``B, A`` of a parameter from those of its matrices, filled up with zeros to a rank."""
    b = torch.stack([pad(b, (0, rank - b.shape[1])) for b, _ in halves], dim=2)
    a = torch.cat([pad(a, (0, 0, 0, rank - len(a))) for _, a in halves])
    return b.flatten(1), a


def product_norm(b: Tensor, a: Tensor) -> float:
    """``||B A||`` (Frobenius) without the product: of the triangular factors of the two halves."""
    left, right = (torch.linalg.qr(x, mode="r").R for x in (b.flatten(1).double(), a.flatten(1).double().mT))
    return norm(left @ right.mT)


def distance_from_sum(b: Tensor, a: Tensor, parts: Sequence[LowRank]) -> tuple[float, float]:
    """``||B A - S||`` and ``||S||`` with the weighted sum ``S`` of the updates, which ``cat`` gives."""
    left, right = _beside(parts)
    apart = torch.cat([b.flatten(1), -left], dim=1), torch.cat([a.flatten(1), right], dim=0)
    return product_norm(*apart), product_norm(left, right)


def _beside(parts: Sequence[LowRank]) -> tuple[Tensor, Tensor]:
    left = torch.cat([part.b.flatten(1) for part in parts], dim=1)
    return left, torch.cat([part.a.flatten(1) * part.strength for part in parts], dim=0)


def _naming(parts: Sequence[LowRank], what: str, drawn: Drawn) -> Callable[[int], Generator]:
    return lambda k: drawn(what, parts[k].number)


def _cut(parts: Sequence[LowRank], how: Combination, drawn: Drawn) -> tuple[Tensor, Tensor]:
    """The merged products, cut to their largest singular values: ``U S`` and ``V^T``, as peft has them."""
    if not how.kind.pruned:  # the sum has as few ranks as the parts together
        left, right = _beside(parts)
        (q, r), (p, t) = torch.linalg.qr(left), torch.linalg.qr(right.mT)
        u, s, v = singular_values_and_vectors(r @ t.mT, full_matrices=False)
        u, v = q @ u, v @ p.mT
    else:
        # an update has its scaling when signs are elected, and not yet its weight
        products = [part.scaling * (part.b.flatten(1) @ part.a.flatten(1)) for part in parts]
        matrix = _merged(products, [part.weight for part in parts], how, _naming(parts, "BA", drawn))
        u, s, v = leading(matrix, how.rank, how.seed)
    floor = max(u.shape[0], v.shape[1]) * torch.finfo(s.dtype).eps * float(s[0])
    count = max(1, min(how.rank, int((s > floor).sum())))
    a, b = parts[0].a, parts[0].b
    return ((u[:, :count] * s[:count]).reshape(-1, count, *b.shape[2:]), v[:count].reshape(count, *a.shape[1:]))


def _merged(
    tensors: Sequence[Tensor], weights: Sequence[float], how: Combination, drawn: Callable[[int], Generator]
) -> Tensor:
    """Tensors pruned, their signs elected, and summed with weights."""
    kept = [_pruned(x, how, drawn, k) for k, x in enumerate(tensors)]
    if not how.kind.elects:
        return sum((x * w for x, w in zip(kept, weights, strict=True)), torch.zeros_like(kept[0]))
    votes = kept if how.sign == "total" else [x.sign() for x in kept]
    elected = torch.where(sum(votes, torch.zeros_like(kept[0])) >= 0, 1.0, -1.0)
    total, count = torch.zeros_like(kept[0]), torch.zeros_like(kept[0])
    for x, w in zip(kept, weights, strict=True):
        agrees = x.sign() == elected
        total += x * w * agrees
        count += agrees
    return total / count.clamp(min=1)


def _pruned(x: Tensor, how: Combination, drawn: Callable[[int], Generator], number: int) -> Tensor:
    if how.density >= 1 or not how.kind.pruned:
        return x
    if how.kind.pruned == "random":
        if how.density == 0:
            return torch.zeros_like(x)
        return x * random_entries(x, how.density, drawn(number)) / how.density
    left_out = x.numel() - int(how.density * x.numel())
    return x.masked_fill(lowest(x.abs(), left_out), 0)

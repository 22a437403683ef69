"""Fisher-weighted averages: models weighted, coordinate by coordinate, by how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import convex, near_average, near_or_average
from isomerge.fusion.method_options import NOT_NEGATIVE, SHARE, Range, limited
from isomerge.fusion.registry import merge_method, per_model

# Eigenvalues of a factor below this, relative to the largest, are rounding: factors are stored in float32 (6e-8).
ROUNDING = 1e-7
# The relative residual at which conjugate gradients stop: float32 weights cannot tell the rest.
SETTLED = 1e-9


@dataclass(frozen=True)
class KroneckerFactors:
    """The factored Fisher of a linear layer's weight W: for a change D of it, ``tr(G D A D^T)`` with D as [out,
    in]."""

    inputs: Tensor
    """A = E x x^T, float64 [in, in]."""
    outputs: Tensor
    """G = E sum_t g_t g_t^T, float64 [out, out], or its diagonal [out]."""
    axis: int = 1
    """Which axis of the weight reads the input: 1 of ``nn.Linear``, 0 of ``Conv1D``."""


@merge_method
@limited(weight=NOT_NEGATIVE, bound=convex)
def fisher(
    tensors: Sequence[Tensor],
    *,
    weight: Sequence[float] = per_model(1.0),
    fishers: Sequence[Tensor | None],
    floor: float = 1e-6,
) -> Tensor:
    """The average weighted by each model's diagonal Fisher information over its norm: ``sum_k w_k F_k theta_k /
    sum_k w_k F_k``.

    Matena & Raffel 2022, "Merging Models with Fisher-Weighted Averaging", Eq. 4: the mode of the product of the
    models' Gaussian posteriors. As in their code, each model's F is divided by its norm over all parameters, so
    that they are comparable (`isomerge.merging.fusion_statistics` does that). The floor differs: theirs is absolute
    and raises the first model's alone; here it is relative, so that it means the same for every size of model and
    loss.

    Args:
        tensors: one per model, of one shape, float32 or float64, aligned.
        weight: not negative.
        fishers: E grad^2 of every model in the shape of the tensors, aligned; where a model has none, or nobody has
            seen anything, the result is the plain weighted average.
        floor: Fishers below this share of the tensor's mean Fisher (the mean over models and coordinates) count as
            equal. So where all models are indifferent, such as at tokens that no example has, theirs is the plain
            average.

    Raises:
        IsomergeError: negative weights, or a sum of weights that is zero.
    """
    shares = checked_weights(weight)
    known = [f for f in fishers if f is not None]
    if len(known) < len(tensors):
        return weighted_mean(tensors, weight)
    mean = sum(float(f.double().mean()) for f in known) / len(known)
    if mean <= 0:
        return weighted_mean(tensors, weight)
    above, below = (torch.zeros_like(tensors[0], dtype=torch.float64) for _ in range(2))
    for tensor, share, f in zip(tensors, shares, known, strict=True):
        precision = f.double().clamp_min(floor * mean) * share
        above.addcmul_(precision, tensor.double())
        below.add_(precision)
    # where only models of weight zero are sure, and the floor is zero
    merged = torch.where(below > 0, above / below, weighted_mean(tensors, weight).double())
    return merged.to(tensors[0].dtype)


@merge_method
@limited(weight=NOT_NEGATIVE, damping=SHARE, iterations=Range(least=1), bound=near_average)
def fisher_kfac(
    tensors: Sequence[Tensor],
    *,
    weight: Sequence[float] = per_model(1.0),
    factors: Sequence[KroneckerFactors | None],
    damping: float = 0.1,
    iterations: int = 100,
    notes: list[str] | None = None,
) -> Tensor:
    """Linear layers merged by their factored Fisher, by conjugate gradients; every other tensor is averaged.

    Minimises ``sum_k w_k <W - W_k, F_k (W - W_k)>`` with ``F_k W = G_k W A_k``, that is solves ``sum_k w_k G_k W
    A_k = sum_k w_k G_k W_k A_k`` (Tam, Bansal & Raffel 2023, "Merging by Matching Models in Task Parameter
    Subspaces", Sec. 3; factors of Martens & Grosse 2015). It begins at the weighted average and is preconditioned
    by the pooled ``M W = (sum_k w_k G_k) W (sum_k w_k A_k)``: one step is exact where models share either factor.

    Two singular Fishers can have a minimum far outside of their models (an untied head's is nearly blind for rare
    tokens), so each factor is drawn towards its mean eigenvalue, ``(1 - damping) G_k + damping mean(G_k) I``, and
    then each Fisher towards the pooled one, ``(1 - damping) F_k + damping M``. (Their code multiplies what is off
    the diagonals instead, which depends on the basis; this commutes with rotations, and without damping with every
    linear map.) Where the minimum still lies too far out, the tensor is the average (`isomerge.fusion.bounds`).
    What no model's data see is averaged.

    Args:
        tensors: one per model, of one shape, float32 or float64, aligned.
        weight: not negative.
        factors: of every model, aligned; where a model has none, the result is the weighted average.
        damping: from 0, the exact minimum, to 1, the weighted average.
        iterations: the most steps.
        notes: is told when a tensor is averaged because its factors are nearly singular.

    Raises:
        IsomergeError: negative weights, a sum of weights that is zero, or an option outside of its range.
    """
    shares = checked_weights(weight)
    known = [_damped(f, damping) for f in factors if f is not None]
    start = weighted_mean(tensors, weight)
    if len(known) < len(tensors):
        return start
    turned = known[0].axis == 0
    mean = (start.mT if turned else start).double()
    pairs = [(share * (1 - damping), f) for share, f in zip(shares, known, strict=True)]
    pooled = KroneckerFactors(
        sum((share * f.inputs for share, f in zip(shares, known, strict=True)), 0 * known[0].inputs),
        sum((share * f.outputs for share, f in zip(shares, known, strict=True)), 0 * known[0].outputs),
    )
    right = torch.zeros_like(mean)
    for tensor, (share, f) in zip(tensors, pairs, strict=True):
        right += share * _curvature(f, (tensor.mT if turned else tensor).double() - mean)

    def apply(d: Tensor) -> Tensor:
        return sum((share * _curvature(f, d) for share, f in pairs), damping * _curvature(pooled, d))

    step = _conjugate_gradients(apply, right, _preconditioner(pooled), iterations)
    return near_or_average((step.mT if turned else step), tensors, start, notes)


def _damped(f: KroneckerFactors, damping: float) -> KroneckerFactors:
    """Both factors, float64, each drawn towards its mean eigenvalue."""

    def drawn(x: Tensor) -> Tensor:
        x = x.double()
        level = damping * (x if x.ndim == 1 else x.diagonal()).mean()
        x = (1 - damping) * x
        (x if x.ndim == 1 else x.diagonal()).add_(level)
        return x

    return KroneckerFactors(drawn(f.inputs), drawn(f.outputs), f.axis)


def _curvature(f: KroneckerFactors, d: Tensor) -> Tensor:
    """G D A for a change D [out, in]."""
    g = f.outputs.double()
    return (g[:, None] * d if g.ndim == 1 else g @ d) @ f.inputs.double()


def _conjugate_gradients(
    apply: Callable[[Tensor], Tensor], right: Tensor, solve: Callable[[Tensor], Tensor], iterations: int
) -> Tensor:
    """The solution of ``apply(x) = right``, from zero, by preconditioned conjugate gradients (Hestenes & Stiefel
    1952)."""
    x, residual = right * 0, right.clone()
    z = solve(residual)
    direction, size = z, float((residual * z).sum())
    enough = SETTLED**2 * size
    for _ in range(iterations):
        image = apply(direction)
        curvature = float((direction * image).sum())
        if size <= enough or curvature <= 0:  # settled, or nothing but rounding is left
            break
        step = size / curvature
        x += step * direction
        residual -= step * image
        z = solve(residual)
        last, size = size, float((residual * z).sum())
        direction = z + (size / last) * direction
    return x


def _preconditioner(pooled: KroneckerFactors) -> Callable[[Tensor], Tensor]:
    """D -> G^+ D A^+."""
    inputs = pseudo_inverse(pooled.inputs)
    if pooled.outputs.ndim == 1:
        rows = (pooled.outputs > 0) / pooled.outputs.clamp_min(1e-300)
        return lambda d: (rows[:, None] * d) @ inputs
    outputs = pseudo_inverse(pooled.outputs)
    return lambda d: outputs @ d @ inputs


def pseudo_inverse(gram: Tensor) -> Tensor:
    """The Moore-Penrose inverse of a symmetric positive matrix [n, n], float64.

    Its rank is found after coordinates are scaled to a diagonal of ones: entries are rounded each by its own size,
    so that a coordinate of large numbers does not hide the others.
    """
    size = gram.diagonal().clamp_min(0).sqrt()
    unit = torch.where(size > 0, 1 / size.clamp_min(1e-300), torch.zeros_like(size))
    values, vectors = torch.linalg.eigh(gram * unit[:, None] * unit)
    kept = values > ROUNDING * values.amax().clamp_min(0)
    seen = vectors[:, kept] * unit[:, None]
    inverse = (seen / values[kept]) @ seen.mT
    if not bool(kept.all()):  # of all generalised inverses, the one that is blind where the matrix is
        basis = torch.linalg.qr(vectors[:, kept] * size[:, None])[0]
        inverse = basis @ (basis.mT @ inverse @ basis) @ basis.mT
    return inverse


def checked_weights(weight: Sequence[float]) -> list[float]:
    """Weights of a least squares problem, none negative, divided by their sum.

    Raises:
        IsomergeError: nothing but zeros.
    """
    if sum(weight) <= 0:
        raise IsomergeError(
            f"weight {', '.join(f'{w:g}' for w in weight)}: this method needs weights that are not negative, "
            f"one positive"
        )
    return [w / sum(weight) for w in weight]


def weighted_mean(tensors: Sequence[Tensor], weight: Sequence[float]) -> Tensor:
    """``sum_k w_k theta_k / sum_k w_k``, summed in float64."""
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, share in zip(tensors, checked_weights(weight), strict=True):
        total.add_(tensor.double(), alpha=share)
    return total.to(tensors[0].dtype)

"""Noether moments: what an output would notice of a symmetry, before any weight is moved.

If scaling one slice of the weights by 1 + x and another by 1 - x leaves an output f unchanged for every x, then
their moments agree: <W, df/dW> over the one slice equals that over the other (Noether's identity of the scaling;
for linear maps of a head it is G_Q Q^T = K G_K^T, see Kunin et al. 2021, *Neural mechanics*, section 4). So slices
that belong together, such as a head's query and key, are found by comparing rows of numbers. Moments propose; the
law proves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.discovery.specimen import Specimen, double_precision, output_of
from isomerge.symmetry.groups.singular import singular_values_and_vectors


def moments(specimen: Specimen, names: list[str], count: int, seed: int) -> dict[str, Tensor]:
    """The elementwise products W * df/dW for random outputs f.

    Args:
        specimen: the tiny model.
        names: stored tensors; those that live nowhere in the module are left out.
        count: how many random combinations f of the outputs.
        seed: of the combinations.

    Returns:
        Stored name -> float64 [count, *shape]; zeros where no output depends on the tensor.
    """
    rng = torch.Generator().manual_seed(seed)
    known = [name for name in names if name in specimen.places and specimen.stored[name].is_floating_point()]
    owners = list(dict.fromkeys(specimen.places[name].parameter for name in known))
    leaves = [specimen.parameters[owner] for owner in owners]
    products: dict[str, list[Tensor]] = {name: [] for name in known}
    with double_precision(), torch.enable_grad():
        for leaf in leaves:
            leaf.requires_grad_(True)
        first = output_of(specimen.module, specimen.inputs[0])
        # many short rows only where there are few outputs: they cost more
        out = first if first.numel() > 4 * count else output_of(specimen.module, specimen.inputs[2])
        for _ in range(count):
            weights = torch.randn(out.shape, generator=rng, dtype=torch.float64)
            grads = torch.autograd.grad((out * weights).sum(), leaves, retain_graph=True, allow_unused=True)
            by_owner = {
                o: torch.zeros_like(p) if g is None else g for o, p, g in zip(owners, leaves, grads, strict=True)
            }
            for name in known:
                place = specimen.places[name]
                products[name].append((place.view(by_owner[place.parameter]) * specimen.live(name)).clone())
    return {name: torch.stack(parts) for name, parts in products.items()}


def along(moment: Tensor, axis: int) -> Tensor:
    """Moments of every slice of one axis: [length, count]."""
    moved = moment.movedim(axis + 1, 0)
    return moved.flatten(2).sum(-1) if moved.ndim > 2 else moved


def combination(target: Tensor, parts: Tensor) -> tuple[Tensor, float]:
    """The coefficients by which parts [n, count] sum to a target [count], and the relative error of the best
    ones."""
    coefficients = torch.linalg.lstsq(parts.mT, target.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
    gap = (parts.mT @ coefficients - target).norm() / target.norm().clamp_min(1e-300)
    return coefficients, float(gap)


def relations(parts: Tensor) -> list[dict[int, float]]:
    """The independent linear relations among rows [n, count], each with as few rows as elimination leaves.

    Returns:
        Per relation, row -> coefficient, the largest one 1 in size; empty when the rows are independent.
    """
    norms = parts.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    u, s, _ = singular_values_and_vectors(parts / norms)
    rank = int((s > RELATED * s[0]).sum()) if s.numel() else 0
    null = u[:, rank:].mT / norms.squeeze(-1)
    null = null / null.abs().amax(-1, keepdim=True).clamp_min(1e-300) if null.numel() else null
    return [_sparse(row) for row in _eliminated(null)]


RELATED = 1e-7
"""Relative size below which a combination of moments counts as zero: gradients in float64 leave 1e-12."""


def _eliminated(rows: Tensor) -> list[Tensor]:
    """Row echelon form with full pivoting, every pivot alone in its column."""
    rows = rows.clone()
    done: list[int] = []
    for _ in range(rows.shape[0]):
        rest = [r for r in range(rows.shape[0]) if r not in done]
        flat = int(rows[rest].abs().argmax())
        row, column = rest[flat // rows.shape[1]], flat % rows.shape[1]
        rows[row] = rows[row] / rows[row, column]
        for other in range(rows.shape[0]):
            if other != row:
                rows[other] -= rows[other, column] * rows[row]
        done.append(row)
    return list(rows)


def _sparse(row: Tensor) -> dict[int, float]:
    largest = float(row.abs().max())
    return {i: float(x) / largest for i, x in enumerate(row) if abs(float(x)) > 1e-5 * largest}

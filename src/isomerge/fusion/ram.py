"""Reinforced Agent Merging (2026, arXiv:2601.13572): what one model alone has learned is not diluted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isomerge.fusion.bounds import changes
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import entries_method
from isomerge.passes import Entries, Entrywise, Pass
from isomerge.pieces import wide_dtype


def _changed(d: Any, a: Any, b: Any, votes: Any) -> Any:
    return votes + type(d)(abs(d) > b)


def _diluted(d: Any, a: Any, b: Any, votes: Any, total: Any, count: Any) -> Any:
    of = type(d)
    d = d if abs(d) > b else of(0)
    return total + (d * a if votes == 1 else d / max(votes, of(1))), count


def _added(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    return total + z


def _counted(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    return votes


UNIQUE, COUNTED = Entrywise(_changed, _added, _diluted), Entrywise(_changed, _counted)


def gains(
    tensors: Sequence[Tensor], base: Tensor, *, r: float, alpha: float, epsilon: float, **_: Any
) -> list[float]:
    """By what every model's unique changes are scaled: see `ramplus_tl`.

    Args:
        tensors, base: as they are stored, of one shape.
        r, alpha, epsilon: as of `ramplus_tl`.
    """
    every, unique, counted = [0] * len(tensors), [0] * len(tensors), COUNTED([[1.0, epsilon]] * len(tensors))
    for *parts, origin in Pass([*tensors, base], wide_dtype([base, *tensors])).pieces(measure=False):
        alone = counted(parts, origin) == 1
        for k, part in enumerate(parts):
            delta = part - origin
            changed = delta.abs().gt_(epsilon).logical_and_(delta)
            every[k] += int(changed.count_nonzero())
            unique[k] += int(changed.mul_(alone).count_nonzero())
    # without unique entries it scales nothing
    rhos = [(n - own) / max(own, epsilon) for n, own in zip(every, unique, strict=True)]
    return [1 + r * min(max(rho, 0.0), alpha) for rho in rhos]


@entries_method
@limited(bound=changes)
def ram(tensors: Sequence[Tensor], base: Tensor, *, epsilon: float = 1e-5) -> Entries:
    """The base plus, entry by entry, the mean task vector of the models that change it.

    A model changes an entry when its task vector there is larger than ``epsilon``. Where one model does, its change
    is taken whole; where several do, their mean; smaller changes count as none.

    Args:
        tensors: one tensor per model, of one shape, float32 or float64, aligned.
        base: the base's tensor.
        epsilon: largest magnitude that counts as no change.
    """
    return UNIQUE([[1.0, epsilon]] * len(tensors))


@entries_method(select=gains)
@limited(bound=changes)
def ramplus_tl(
    tensors: Sequence[Tensor],
    base: Tensor,
    *,
    r: float = 0.1,
    alpha: float = 0.2,
    epsilon: float = 1e-5,
    selection: Sequence[float] | None = None,
) -> Entries:
    """RAM with unique changes scaled up: by ``1 + r clamp(rho, 0, alpha)``, what a model loses where it is
    averaged.

    ``rho`` is the number of a model's changed entries that others change too over the number that it alone changes,
    counted per tensor (tensor-local: TL).

    Args:
        tensors, base, epsilon: as in `ram`.
        r: the gain per unit of ``rho``.
        alpha: the largest ``rho`` that counts.
        selection: what `gains` gave for the whole tensors that these are pieces of.
    """
    gained = gains(tensors, base, r=r, alpha=alpha, epsilon=epsilon) if selection is None else selection
    return UNIQUE([[gain, epsilon] for gain in gained])

"""Task vectors (Ilharco et al. 2023): sums of what the models have learned beyond their base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from isomerge.errors import IsomergeError
from isomerge.fusion.linear import weighted
from isomerge.passes import Entries, Entrywise, Part

NO_WEIGHT = 1e-8
"""Sum of weights that nothing is divided by (mergekit's)."""


def check_consensus(consensus: str) -> None:
    """Raises IsomergeError where this is no way to elect signs."""
    if consensus not in ("sum", "count"):
        raise IsomergeError(f"`consensus_method` is {consensus}, but it is one of: sum, count")


def _scaled(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    return z + votes / q * p


def _vote(d: Any, a: Any, b: Any, votes: Any) -> Any:
    v, of = d * a, type(d)
    return votes + (v if b == 0 else of(v > 0) - of(v < 0))


def _agree(d: Any, a: Any, b: Any, votes: Any, total: Any, count: Any) -> Any:
    v = d * a
    v = v if votes >= 0 else -v
    agrees = type(d)(v > 0)
    return total + v * agrees, count + a * agrees


def _elected(z: Any, votes: Any, total: Any, count: Any, p: Any, q: Any, r: Any) -> Any:
    v = total if votes >= 0 else -total
    w = r if r > 0 and count < r else count
    w = w if w != 0 and q != 0 else type(z)(1)
    return z + v / w * p


SUM = Entrywise(weighted, _scaled)
ELECTED = Entrywise(_vote, _elected, _agree)


def add_task_vectors(
    weight: Sequence[float],
    dtype: torch.dtype,
    *,
    normalize: bool,
    lambda_: float = 1.0,
    consensus: str | None = None,
    parts: Sequence[Part | None] = (),
) -> Entries:
    """``base + lambda sum_m w_m delta_m``, divided by the sum of weights when ``normalize``.

    With ``consensus`` (TIES' election) an entry of a model counts, in both sums, only where its weighted task
    vector has the sign of the sum of all (``sum``, as in the paper), or that which more of them have (``count``). A
    tie is positive. Where the weights that agree cancel, nothing is divided.

    Args:
        weight: one weight per model.
        dtype: what is computed in.
        normalize: divide. Where the weights sum to zero, nothing is divided.
        lambda_: scales what is added.
        consensus: see above; None: no election.
        parts: what stays of every task vector; None, or none of them: all.

    Raises:
        IsomergeError: another word for ``consensus``.
    """
    if consensus is None:
        total = sum(weight)
        divisor = total if normalize and abs(total) >= NO_WEIGHT else 1.0
        return SUM([[w] for w in weight], (lambda_, divisor), parts=parts)
    check_consensus(consensus)
    # where all weights are positive, sums of them are no less than the least, but for one that the dtype has not
    least = max(min(weight), torch.finfo(dtype).tiny) if normalize and min(weight) > 0 else 0.0
    votes = [[w, float(consensus == "count")] for w in weight]
    return ELECTED(votes, (lambda_, float(normalize), least), parts=parts)

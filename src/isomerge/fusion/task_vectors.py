"""Task vectors (Ilharco et al. 2023): sums of what the models have learned beyond their base, and the methods that
thin them out first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from isomerge.fusion import bounds
from isomerge.fusion.linear import weighted
from isomerge.fusion.method_options import CONSENSUS, SHARE, Range, Together, limited
from isomerge.fusion.registry import PerModel, entries_method, per_model
from isomerge.passes import Entries, Entrywise, Part

NO_WEIGHT = 1e-8
"""Sum of weights that nothing is divided by (mergekit's)."""


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
    """
    if consensus is None:
        total = sum(weight)
        divisor = total if normalize and abs(total) >= NO_WEIGHT else 1.0
        return SUM([[w] for w in weight], (lambda_, divisor), parts=parts)
    # where all weights are positive, sums of them are no less than the least, but for one that the dtype has not
    least = max(min(weight), torch.finfo(dtype).tiny) if normalize and min(weight) > 0 else 0.0
    votes = [[w, float(consensus == "count")] for w in weight]
    return ELECTED(votes, (lambda_, float(normalize), least), parts=parts)


def sparse_method(
    name: str,
    keep: Callable[..., list[Part | None]],
    *,
    elects: bool,
    normalize: bool,
    about: str,
    together: Together | None = None,
    **values: Range,
) -> Callable[..., Tensor]:
    """Register a method: what ``keep`` leaves of every task vector, added up as by `add_task_vectors`.

    Its function takes the tensors, the base and the options of ``keep``, of which ``density`` is a share; and

    * ``weight``: one weight per model;
    * ``normalize``: divide by the sum of the weights; where signs are elected, of those that agree;
    * ``lambda_``: scales what is added;
    * ``consensus_method``, where signs are elected: ``sum`` (the paper's) or ``count`` (each model has one vote);
    * ``int8_mask``: accepted for mergekit's recipes; masks are booleans here, and the result does not depend on it;
    * ``selection``: what ``keep`` gave for the whole tensors that these are pieces of.

    Args:
        name: of the method.
        keep: from tensors and a base, as they are stored, and options by name to what stays of every task vector;
            None: all of it. Its keyword parameters are options, with their defaults.
        elects: whether only entries of the elected sign are added up (TIES).
        normalize: the option's default.
        about: what the method is, in the words of a docstring.
        together: what values of several options must fulfil together.
        values: which values ``keep``'s own options take.
    """
    own = [p for p in signature(keep).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]

    def option(word: str, default: Any, kind: Any) -> Parameter:
        return Parameter(word, Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    form = signature(keep).replace(
        parameters=[
            *(p for p in signature(keep).parameters.values() if p.kind is Parameter.POSITIONAL_OR_KEYWORD),
            option("weight", per_model(1.0), float),
            *(p for p in own if isinstance(p.default, PerModel)),
            option("normalize", normalize, bool),
            *(p for p in own if not isinstance(p.default, PerModel)),
            option("lambda_", 1.0, float),
            *([option("consensus_method", "sum", str)] if elects else []),
            option("int8_mask", False, bool),
            option("selection", None, Any),
        ]
    )

    def method(tensors: Sequence[Tensor], base: Tensor, **given: Any) -> Entries:
        asked = form.bind(tensors, base, **given)
        asked.apply_defaults()
        told = asked.kwargs
        parts = told["selection"]
        if parts is None:
            parts = keep(tensors, base, **{p.name: told[p.name] for p in own})
        return add_task_vectors(
            told["weight"],
            base.dtype,
            normalize=told["normalize"],
            lambda_=told["lambda_"],
            consensus=told.get("consensus_method"),
            parts=parts,
        )

    method.__name__ = method.__qualname__ = name
    method.__module__, method.__doc__ = keep.__module__, about
    method.__dict__["__signature__"] = form
    shares = {"density": SHARE, **values, **({"consensus_method": CONSENSUS} if elects else {})}
    limits = limited(together=together, bound=bounds.task_vectors, **shares)
    return entries_method(select=keep)(limits(method))

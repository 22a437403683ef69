"""What a method can explain: how large a merged tensor can be, from the sizes of what was merged and the
parameters.

Every method declares a bound with its limits (``@limited(bound=...)``); a result beyond it is refused before the
output appears (`isomerge.merging.fusing`). A bound of isomerge's own methods is a theorem about them, whatever the
inputs and however large the weights that the user asked for; what declares none has `anything_near`.

Solutions of least squares stay near their models: one that does not is the average. Two quadratic bowls that are
nearly flat in a direction can have their common minimum as far out as one likes, though each has its own where its
model is (two lines that are nearly parallel cross far away). Such a minimum says nothing of the models: it is what
is left of rounding and of too few examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf, isfinite, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from isomerge.fusion.descent import LARGEST_STEP
from isomerge.pieces import PIECE, wide_dtype

FAR = 10.0
"""What means on a sphere may add to the sum of their inputs' norms: between nearly opposite tensors they are
longer."""
ANYTHING = 100.0
"""What a method that declares no bound may add to the sum of its inputs."""
NO_WEIGHT = 1e-8
"""Sum of weights that nothing is divided by (`isomerge.fusion.task_vectors`)."""
CANCELLED = 1e-5
"""Share of the largest weight below which a sum of weights is what rounding leaves of zero."""
FEW = 12
"""Models of which all subsets are looked at."""
REACH = 10.0
"""How far from the average a solution may lie, as a multiple of the farthest model's distance from it. With the
default options it is below 2 on small language models, with as few as two examples (docs/guide/which-method.md)."""
SINGULAR = "averaged, as the statistics are nearly singular (too few examples, or outputs that never occur)"


@dataclass(frozen=True)
class Size:
    """How large a tensor is."""

    norm: float = 0.0
    """Frobenius."""
    largest: float = 0.0
    """The largest magnitude of an entry."""

    def __add__(self, other: Size) -> Size:
        return Size(self.norm + other.norm, self.largest + other.largest)

    def __rmul__(self, factor: float) -> Size:
        return Size(abs(factor) * self.norm, abs(factor) * self.largest)

    @property
    def smeared(self) -> Size:
        """That of a tensor of this norm in another direction: all of it may be in one entry."""
        return Size(self.norm, self.norm)


NOTHING = Size()


def total(sizes: Sequence[Size], factors: Sequence[float] | None = None) -> Size:
    """``sum_m |c_m| size_m``."""
    factors = [1.0] * len(sizes) if factors is None else factors
    return sum((factor * size for factor, size in zip(factors, sizes, strict=True)), NOTHING)


def size_of(parts: Iterable[Tensor]) -> Size:
    """The size of some tensors taken as one, in any floating dtype; not finite where an entry is not."""
    squares = largest = 0.0
    for part in parts:
        for piece in part.reshape(-1).split(PIECE):
            if not piece.numel():
                continue
            wide = piece if piece.dtype in (torch.float32, torch.float64) else piece.float()
            square = float(torch.dot(wide, wide))  # float32 sums of a piece are right to 1e-4
            if not 1e-30 < square < inf:
                square = float(torch.linalg.vector_norm(wide, dtype=torch.float64)) ** 2
            low, high = torch.aminmax(wide)
            squares, largest = squares + square, max(largest, -float(low), float(high))
    return Size(sqrt(squares), largest) if isfinite(squares) else Size(inf, inf)


class Inputs:
    """What a method was given, measured when a bound asks.

    Args:
        models: per model its tensors: one, or the blocks of a work unit.
        base: those of the base, where there is one.
        sizes: of the models, then of the base, where they are known.
    """

    def __init__(
        self,
        models: Sequence[Sequence[Tensor]],
        base: Sequence[Tensor] | None = None,
        sizes: Sequence[Size] | None = None,
    ) -> None:
        self.tensors, self.origin, self._sizes = models, base, sizes

    def each(self) -> Iterator[Size]:
        """The sizes of the models, then of the base, one after the other."""
        measured = map(size_of, [*self.tensors, *([] if self.origin is None else [self.origin])])
        yield from self._sizes or measured

    @cached_property
    def _every(self) -> list[Size]:
        return list(self.each())

    @property
    def models(self) -> list[Size]:
        """Of every model."""
        return self._every[: len(self.tensors)]

    @property
    def base(self) -> Size:
        """Of the base; of nothing where there is none."""
        return NOTHING if self.origin is None else self._every[-1]

    @cached_property
    def deltas(self) -> list[Size]:
        """Of every model's task vector; of the model where there is no base."""
        if self.origin is None:
            return self.models
        return [size_of(_differences(parts, self.origin)) for parts in self.tensors]

    @cached_property
    def masses(self) -> list[float]:
        """The sum of magnitudes of every task vector."""
        origin = self.origin or []
        return [
            sum(float(delta.abs().sum(dtype=torch.float64)) for delta in _differences(parts, origin))
            for parts in self.tensors
        ]


def _differences(parts: Sequence[Tensor], origin: Sequence[Tensor]) -> Iterator[Tensor]:
    """``part - origin``, piece by piece, in float32 or float64."""
    for part, other in zip(parts, origin, strict=True):
        wide = wide_dtype([part, other])
        for x, y in zip(part.reshape(-1).split(PIECE), other.reshape(-1).split(PIECE), strict=True):
            yield x.to(wide) - y.to(wide)


Bound = Callable[[Inputs, Mapping[str, Any]], Size]
"""From what a method was given and its options, by the users' names with one value per model where there is one, to
how large its result can be."""


# ------------------------------------------------------------ averages


def shares_of(parameters: Mapping[str, Any], switch: str = "normalize") -> list[float]:
    """The weights, divided by their sum where the option ``switch`` says so."""
    weight = list(parameters["weight"])
    divisor = sum(weight) if parameters.get(switch) else 1.0
    return [w / divisor for w in weight] if divisor else weight


def weighted(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """``sum_m |w_m| theta_m``, with the weights divided by their sum where they are normalised."""
    return total(inputs.models, shares_of(parameters))


def scaled(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """``sum_m |scale_m| theta_m``."""
    return total(inputs.models, parameters["scale"])


def convex(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The sum of all models and the base: every entry lies between theirs."""
    return total(inputs.models) + inputs.base


def near_average(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The average, and ten times the farthest model's distance from it (`isomerge.fusion.bounds`)."""
    weight = parameters.get("weight") or [1.0] * len(inputs.tensors)
    shares = [w / sum(weight) for w in weight]
    spread = distance_from([parts[0] for parts in inputs.tensors], shares)
    return total(inputs.models, shares) + Size(REACH * spread, REACH * spread)


# ------------------------------------------------------------ task vectors


def task_vectors(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The base and ``|lambda| sum_m |w_m| delta_m``, divided as the method divides.

    A task vector that is rescaled is as large as the sum of its magnitudes in one entry: in expectation it is
    ``1 / density`` times as large, but a mask may leave its smallest entries alone. Where signs are elected and the
    weights of those that agree are divided by, it is the smallest sum of weights that some of the models have.
    """
    weight, lambda_ = list(parameters["weight"]), parameters.get("lambda", 1.0)
    deltas = inputs.deltas
    if parameters.get("rescale"):
        density = parameters["density"]
        deltas = [
            size if share in (0, 1) else Size(max(size.norm, mass), max(size.largest, mass))
            for size, share, mass in zip(deltas, density, inputs.masses, strict=True)
        ]
    mixed = total(deltas, weight)
    if parameters.get("normalize"):
        elected = "consensus_method" in parameters
        mixed = total(deltas) if elected and min(weight) >= 0 else _divisor(weight, elected) * mixed
    return inputs.base + lambda_ * mixed


def _divisor(weight: Sequence[float], elected: bool) -> float:
    """By how much dividing by a sum of weights enlarges."""
    if not elected:
        return 1 / abs(sum(weight)) if abs(sum(weight)) >= NO_WEIGHT else 1.0
    some = weight[:FEW]
    sums = [abs(sum(part)) for count in range(1, len(some) + 1) for part in combinations(some, count)]
    least = CANCELLED * max(map(abs, weight))
    return max([1 / s for s in sums if s > least] + [1.0])


def changes(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The base and all task vectors, with the gain of those that one model alone has."""
    gain = 1 + abs(parameters.get("r", 0.0) * parameters.get("alpha", 0.0))
    return inputs.base + gain * total(inputs.deltas)


def in_directions(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The base and twice lambda times the sum of the task vectors, each times its weight or one, whichever is more,
    in any direction: orthonormal factors enlarge no norm, directions that are common to all and a model's own count
    twice, and so do small entries that are raised to the next."""
    weight = [max(1.0, abs(share)) for share in parameters["weight"]]
    return inputs.base + 2 * parameters.get("lambda", 1.0) * total(inputs.deltas, weight).smeared


def descended(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The base, the sum of the task vectors, and what Adam moves in so many steps."""
    weight = [max(1.0, abs(share)) for share in parameters["weight"]]
    return inputs.base + parameters["lambda"] * (total(inputs.deltas, weight) + _moved(inputs, parameters))


def adapted(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The base, and per model a task vector of length ``eta`` and as many times what Adam moves."""
    sizes = [size.norm for size in inputs.deltas]
    each = [abs(parameters["eta"] * w) for w in parameters["weight"]]
    lengths = sum(each)
    factors = sum(share / size for share, size in zip(each, sizes, strict=True) if size)
    return inputs.base + parameters["lambda"] * (Size(lengths, lengths) + factors * _moved(inputs, parameters))


def by_depth(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The base and the sum of the weighted task vectors times the factor of the first or the last layer."""
    count = len(inputs.tensors)
    first = 1 / count if parameters["alpha"] is None else parameters["alpha"]
    last = first + (1 - first if parameters["beta"] is None else parameters["beta"])
    return inputs.base + max(abs(first), abs(last)) * total(inputs.deltas, parameters["weight"])


def _moved(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """What Adam moves at most (`isomerge.fusion.descent`)."""
    entries = sum(part.numel() for part in inputs.tensors[0])
    step = LARGEST_STEP * parameters["iterations"] * parameters["learning_rate"]
    return Size(step * sqrt(entries), step)


# ------------------------------------------------------------ spheres


def interpolated(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """Ten times the inputs, more where ``t`` lies beyond them: the norms, in any direction."""
    if "t" in parameters:
        t = parameters["t"]
    else:
        first, second = parameters["weight"]
        t = second / (first + second) if abs(first + second) >= NO_WEIGHT else 0.5
    return FAR * ((abs(1 - t) + abs(t)) * (total(inputs.models) + inputs.base)).smeared


def on_sphere(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """Ten times the weighted mean of the norms, in any direction, and the base."""
    shares = shares_of(parameters, "normalize_weights") if "weight" in parameters else None
    return inputs.base + FAR * total(inputs.deltas, shares).smeared


def stock(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The base, and ten times the models: where task vectors point away from each other it divides by nearly
    nothing."""
    return inputs.base + FAR * total(inputs.models).smeared


# ------------------------------------------------------------ whole layers, and models that are run


def circuit_sides(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """The weighted layers, and their squares: a side of an averaged product is as large as the root of the product,
    and a value bias goes through the output projection into the output bias."""
    shares = [max(abs(share), 1.0) for share in shares_of({**parameters, "normalize": True})]
    squares = [Size(size.norm**2, size.norm**2) for size in inputs.models]
    return (total(inputs.models, shares) + total(squares, shares)).smeared


def in_layers(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """A hundred times the layers of all models, more with larger weights: what runs on data gives a layer without a
    bias one as large as its outputs."""
    factor = max(1.0, sum(map(abs, shares_of(parameters)))) if "weight" in parameters else 1.0
    return (ANYTHING * factor * total(inputs.models)).smeared


def anything_near(inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """A hundred times the sum of the inputs, times every number among the options, or one over it where it is less
    than one."""
    numbers = [
        max([abs(n) if abs(n) >= 1 else 1 / abs(n) for n in _numbers(value)] or [1.0])
        for value in parameters.values()
    ]
    return (ANYTHING * min(prod(numbers), 1e300) * (total(inputs.models) + inputs.base)).smeared


def _numbers(value: Any) -> list[float]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and v]


def near_or_average(
    step: Tensor, tensors: Sequence[Tensor], mean: Tensor, notes: list[str] | None = None
) -> Tensor:
    """``mean + step``, in the dtype of ``mean``; the mean alone where the step leads too far, or is not finite.

    Args:
        step: float64, of the shape of the tensors.
        tensors: the models'.
        mean: their weighted average.
        notes: is told of an average.
    """
    spread = max(_length(tensor.double() - mean.double()) for tensor in tensors)
    # equal models have a step of rounding
    if _length(step) <= REACH * spread + 1e-9 * _length(mean):
        return (mean.double() + step).to(mean.dtype).contiguous()
    if notes is not None:
        notes.append(SINGULAR)
    return mean


def distance_from(tensors: Sequence[Tensor], shares: Sequence[float]) -> float:
    """The farthest tensor's distance from the average with these shares, which sum to one."""
    mean = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        mean.add_(tensor.double(), alpha=share)
    return max(_length(tensor.double() - mean) for tensor in tensors)


def _length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))

"""Where the next trial is: Optuna's samplers, a grid of choices, and steps along the gradient."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from math import exp, log, prod
from typing import Any

import torch

from isomerge.errors import IsomergeError
from isomerge.merging.recipe.dimensions import Dimension

SAMPLERS = ("tpe", "cmaes", "random", "grid", "gradient")
GRADIENT = "gradient"
WITHOUT_OPTUNA = ("grid", GRADIENT)
MOST_DRAWN = 10
"""Trials that are drawn evenly before TPE's model chooses, which is Optuna's number; of few dimensions fewer."""


def check_sampler(sampler: str, dimensions: Sequence[Dimension]) -> None:
    """Refuse a sampler that cannot search these dimensions, or that is not installed.

    Raises:
        IsomergeError: naming another one, or what to install.
    """
    if sampler not in SAMPLERS:
        raise IsomergeError(f"--sampler {sampler}: choose from {', '.join(SAMPLERS)}")
    if sampler == GRADIENT:
        check_gradient(dimensions)
    numbers = [d for d in dimensions if not d.choices]
    if sampler == "grid" and numbers:
        raise IsomergeError(
            f"--sampler grid tries every choice, and `{numbers[0].name}` is searched in a range: list its values, "
            f"as {{choices: [0.25, 0.5, 1]}}, or take another sampler"
        )
    if sampler == "cmaes" and len(numbers) < max(2, len(dimensions)):
        raise IsomergeError("--sampler cmaes searches ranges of two or more numbers, and no choices: take tpe")
    for name in () if sampler in WITHOUT_OPTUNA else ("optuna", *(["cmaes"] if sampler == "cmaes" else [])):
        try:
            import_module(name)
        except ImportError:
            raise IsomergeError(
                f"--sampler {sampler} needs the package {name}: pip install 'isomerge[tune]'"
            ) from None


def check_gradient(dimensions: Sequence[Dimension]) -> None:
    """Refuse dimensions that have no gradient.

    Raises:
        IsomergeError: naming the first.
    """
    for d in dimensions:
        if d.choices or d.whole:
            raise IsomergeError(
                f"--sampler gradient changes numbers little by little, and `{d.name}` has choices: leave it out of "
                f"the search, or take tpe"
            )


def points_of(dimensions: Sequence[Dimension]) -> int:
    """The number of points of a grid."""
    return prod(len(d.choices) for d in dimensions)


def version_of(sampler: str) -> str:
    """Of the library that draws, on which the trials depend."""
    return "" if sampler in WITHOUT_OPTUNA else import_module("optuna").__version__


def study_of(dimensions: Sequence[Dimension], sampler: str, seed: int, rate: float) -> Study | AdamSteps:
    """What asks for points; ``rate`` is that of steps along the gradient."""
    return AdamSteps(dimensions, rate) if sampler == GRADIENT else Study(dimensions, sampler, seed)


class Study:
    """Asks for points one after the other, and is told what each is worth: a function of the seed and of what it
    is told alone, so that a run that goes on repeats what an earlier one has asked.

    Args:
        dimensions: what is searched.
        sampler: of `SAMPLERS`.
        seed: of what is drawn.
    """

    def __init__(self, dimensions: Sequence[Dimension], sampler: str, seed: int) -> None:
        self.dimensions = dimensions
        self._grid: Iterator[tuple[Any, ...]] | None = None
        if sampler == "grid":
            self._grid = product(*(d.choices for d in dimensions))
            return
        self._optuna: Any = import_module("optuna")
        self._ranges = {d.name: self._distribution(d) for d in dimensions}
        with self._quiet():
            self._study = self._optuna.create_study(sampler=self._sampler(sampler, seed), direction="minimize")
        self._asked: Any = None

    def know(self, values: Mapping[str, Any], loss: float, _gradient: Any = None) -> None:
        """Told of a point that was not asked for; one outside of the ranges says nothing."""
        if self._grid is not None or not all(values[d.name] in d for d in self.dimensions):
            return
        trial = self._optuna.trial.create_trial(params=dict(values), distributions=self._ranges, value=loss)
        with self._quiet():
            self._study.add_trial(trial)

    def ask(self) -> Mapping[str, Any] | None:
        """The next point, by the names of the dimensions; None where a grid has no more."""
        if self._grid is not None:
            point = next(self._grid, None)
            names = [d.name for d in self.dimensions]
            return None if point is None else dict(zip(names, point, strict=True))
        with self._quiet():
            self._asked = self._study.ask(self._ranges)
        return {d.name: d.rounded(self._asked.params[d.name]) for d in self.dimensions}

    def tell(self, loss: float | None, _gradient: Any = None) -> None:
        """What the last point is worth; None: it was refused."""
        if self._grid is not None:
            return
        state = self._optuna.trial.TrialState
        with self._quiet():
            self._study.tell(self._asked, loss, state=state.FAIL if loss is None else state.COMPLETE)

    def _distribution(self, d: Dimension) -> Any:
        kinds = self._optuna.distributions
        if d.choices:
            return kinds.CategoricalDistribution(d.choices)
        if d.whole:
            return kinds.IntDistribution(int(d.low), int(d.high), log=d.log)
        return kinds.FloatDistribution(d.low, d.high, log=d.log)

    def _sampler(self, name: str, seed: int) -> Any:
        kinds = self._optuna.samplers
        if name == "random":
            return kinds.RandomSampler(seed=seed)
        if name == "tpe":
            drawn = min(MOST_DRAWN, 2 + 2 * len(self.dimensions))
            return kinds.TPESampler(seed=seed, multivariate=True, n_startup_trials=drawn)
        start = {d.name: d.start for d in self.dimensions}
        inside = all(start[d.name] in d for d in self.dimensions)
        return kinds.CmaEsSampler(x0=start if inside else None, seed=seed, warn_independent_sampling=False)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without its lines on stderr, and its warnings of what is new in it."""
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.set_verbosity(before)


class AdamSteps:
    """Every trial is a step of Adam from the one before: asks for points and is told their losses and gradients, a
    function of what it is told alone.

    Coordinates are shares of ranges (of their logarithms where orders of magnitude are searched), so that one rate
    fits all parameters; a step that leaves a range ends at its edge, as AdaMerging clamps its coefficients.

    Args:
        dimensions: numbers.
        rate: Adam's, in shares of a range.
    """

    def __init__(self, dimensions: Sequence[Dimension], rate: float) -> None:
        self.dimensions = dimensions
        starts = [min(max(float(d.start), d.low), d.high) for d in dimensions]
        shares = [_share(d, value) for d, value in zip(dimensions, starts, strict=True)]
        self._at = torch.tensor(shares, dtype=torch.float64)
        self._adam = torch.optim.Adam([self._at], lr=rate)
        self._over = False

    def know(self, values: Mapping[str, Any], loss: float, gradient: Mapping[str, float] | None = None) -> None:
        """Told of the point where it starts; one outside of the ranges begins at their edges."""
        self._take(values, gradient)

    def ask(self) -> Mapping[str, Any] | None:
        """The next point, by the names of the dimensions; None where nothing says where it would be."""
        if self._over:
            return None
        self._adam.step()
        self._at.clamp_(0, 1)
        pairs = zip(self.dimensions, self._at.tolist(), strict=True)
        return {d.name: d.rounded(_value(d, share)) for d, share in pairs}

    def tell(self, loss: float | None, gradient: Mapping[str, float] | None = None) -> None:
        """What the last point is worth, and how that changes; None: it was refused, and nothing leads on."""
        pairs = zip(self.dimensions, self._at.tolist(), strict=True)
        self._take({d.name: _value(d, share) for d, share in pairs}, gradient)

    def _take(self, values: Mapping[str, Any], gradient: Mapping[str, float] | None) -> None:
        if gradient is None:
            self._over = True
            return
        slopes = [gradient[d.name] * _stretch(d, values[d.name]) for d in self.dimensions]
        self._at.grad = torch.tensor(slopes, dtype=torch.float64)


def _share(d: Dimension, value: float) -> float:
    """Where in its range a value lies, from 0 to 1."""
    return log(value / d.low) / log(d.high / d.low) if d.log else (value - d.low) / (d.high - d.low)


def _value(d: Dimension, share: float) -> float:
    """The inverse of `_share`."""
    return d.low * exp(share * log(d.high / d.low)) if d.log else d.low + share * (d.high - d.low)


def _stretch(d: Dimension, value: float) -> float:
    """How fast the value changes with its share."""
    return value * log(d.high / d.low) if d.log else d.high - d.low

"""Where the next trial is: Optuna's samplers, a grid of choices, and steps along the gradient."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from math import prod
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.merging.recipe.dimensions import Dimension
from isomerge.tuning.adam_steps import AdamSteps, check_gradient

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

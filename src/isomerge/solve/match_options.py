"""What a match may look at and how it searches: the options of a match."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isomerge.observe.data.examples import Examples
from isomerge.observe.live.accelerator import CPU, matching_device
from isomerge.solve.learn.settings import LearnSettings

GENERATE = "generate"
"""As data: examples that the models make themselves (`isomerge.observe.live.generated`)."""
OURS = "isomerge"
"""Our own solvers, as a way to match; the others are in `isomerge.solve.match_names`."""

# How much weights and activations count. Weights decide where activations leave a choice.
SHARES = {"weights": (1.0, 0.0), "activations": (1e-3, 1.0), "both": (1.0, 1.0)}


@dataclass(frozen=True)
class Matching:
    """What a match may look at beside the weights.

    ``data`` is read through both models for activations, ``stats`` are files of `isomerge stats` instead (the
    anchor's, then one per source). ``learn`` is data to learn from by gradient, ``search`` seconds of forward-only
    search.
    """

    data: str | Path | Examples | None = None
    stats: tuple[str, ...] = ()
    evidence: str = "both"
    learn: str | Path | Examples | None = None
    settings: LearnSettings | None = None
    search: float | None = None
    limit: int | None = None
    length: int = 128
    rows: int = 1024
    functional: bool = True
    """Where data are given, match neurons once more by what averaging a pair would cost."""
    match: str = OURS
    """By what: our own solvers, or a published baseline (`isomerge.solve.match_names`)."""
    transport: tuple[tuple[str, str], ...] = ()
    """Settings of a fusion by optimal transport, as texts (`isomerge.research.baselines.transport_maps`)."""
    for_method: bool = False
    """Whether the data are for the method and for measuring alone, as the match looks at weights."""
    decides: bool = False
    """Whether a merge decides what its data are for: nothing was said of how they are looked at
    (`isomerge.merging.decision`)."""
    may_learn: bool = False
    """Whether it may decide to learn from them."""
    of_learning: tuple[str, ...] = ()
    """Options of learning that were said."""
    tentative: bool = False
    """Whether learning was decided, not asked for: where models cannot be learned, it is left out, and told."""
    input_metric: bool = False
    """Whether layers are matched inside by the change of their outputs (`isomerge.solve.pairs.input_metric`)."""

    def spaces(self, asked: str | None) -> str:
        """The choice of spaces: what was asked for, else all of them when there is something to decide them by."""
        return asked if asked is not None else ("all" if self.needs_models or self.match != OURS else "default")

    @property
    def needs_models(self) -> bool:
        """Whether anything beside weights is looked at."""
        return bool((self.data and not self.for_method) or self.stats or self.learn or self.search)

    @property
    def device(self) -> str:
        """Where models run, and units are matched."""
        return self.settings.device if self.settings else CPU

    @property
    def matching_device(self) -> str:
        """Where units are matched: on the same device, if it has float64."""
        return CPU if self.device == CPU else matching_device(self.device)


WEIGHTS = Matching()

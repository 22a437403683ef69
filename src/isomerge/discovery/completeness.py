"""Whether a spec text misses symmetries: counted on a tiny random model, continuous ones and permutations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isomerge.discovery.bound_specimen import BoundSpecimen, SpecOf
from isomerge.discovery.building import real_config
from isomerge.discovery.inner_axes import InnerAxis, inner_axes
from isomerge.discovery.redundancy import RICHER, TINY, WIDER, Count, Redundancy, tiny_specimen
from isomerge.discovery.specimen import Specimen
from isomerge.errors import IsomergeError


@dataclass(frozen=True)
class Completeness:
    """What of a model's symmetries is declared, and what is not."""

    redundancy: Redundancy | None
    note: str | None
    """Why the redundancy could not be counted; None where it was."""
    inner: tuple[InnerAxis, ...]

    @property
    def complete(self) -> bool | None:
        """Whether nothing is missing; None where that is not known."""
        if self.redundancy is None:
            return None
        return self.redundancy.complete and not self.inner

    def report(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "complete": self.complete,
            "redundancy": None if self.redundancy is None else self.redundancy.report(),
            "redundancy_note": self.note,
            "inner": [axis.report() for axis in self.inner],
        }


def try_completeness(
    spec_of: SpecOf, config: Mapping[str, Any], specimen: Specimen | None = None, seed: int = 0
) -> Completeness:
    """Count what changes no output, and what of it the spec's groups explain.

    Args:
        spec_of: binds the spec to a config.
        config: the model's config.json; a tiny random model of its class is made.
        specimen: another model that stands for it, such as a module of one's own.
        seed: of the random weights.
    """
    if specimen is not None:
        return _counted(spec_of, [lambda: specimen])
    real = real_config(config)
    tries = ((TINY, seed), (WIDER, seed), (RICHER, seed + 1))
    return _counted(spec_of, [lambda tiny=tiny, seed=seed: tiny_specimen(real, seed, tiny) for tiny, seed in tries])


def _counted(spec_of: SpecOf, tries: Sequence[Callable[[], Specimen]]) -> Completeness:
    """The count at the first specimen that misses nothing, else at that which misses least.

    At no point is less free than at a generic one: what one specimen explains is explained. A unit that few of its
    inputs switch on, or a layer that reads few tokens, only seems free.
    """
    best: Count | None = None
    inner: tuple[InnerAxis, ...] | None = None
    note = None
    for make in tries:
        try:
            made = make()
            made.compare_whole()
            seen = BoundSpecimen(spec_of, made)
            inner = tuple(inner_axes(seen)) if inner is None else inner
            count = Count(seen)
        except IsomergeError as error:
            note = note or str(error)
            continue
        best = count if best is None or count.missing < best.missing else best
        if not best.missing:
            break
    return Completeness(None if best is None else best.named(), note if best is None else None, inner or ())

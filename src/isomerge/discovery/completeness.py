"""Whether a spec text misses symmetries: counted on a tiny random model, continuous ones and permutations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isomerge.discovery.bound_specimen import BoundSpecimen, SpecOf
from isomerge.discovery.building import real_config
from isomerge.discovery.inner_axes import InnerAxis, inner_axes
from isomerge.discovery.redundancy import TINY, WIDER, Redundancy, measure_redundancy, tiny_specimen
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
    first = None
    for tiny in (TINY, WIDER) if specimen is None else (TINY,):
        try:
            made = specimen or tiny_specimen(real_config(config), seed, tiny)
            made.compare_whole()
            seen = BoundSpecimen(spec_of, made)
            break
        except IsomergeError as error:
            first = first or error
    else:
        return Completeness(None, str(first), ())
    inner = tuple(inner_axes(seen))
    try:
        return Completeness(measure_redundancy(seen), None, inner)
    except IsomergeError as error:
        return Completeness(None, str(error), inner)

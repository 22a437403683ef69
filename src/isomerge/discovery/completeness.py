"""Whether a spec text misses symmetries: counted on a tiny random model, continuous ones and permutations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from isomerge.discovery.bound_specimen import BoundSpecimen, SpecOf
from isomerge.discovery.building import real_config
from isomerge.discovery.inner_axes import InnerAxis, inner_axes
from isomerge.discovery.redundancy import MORE_HEADS, SIDE, TINY, TOKENS, WIDER, Count, Redundancy, tiny_specimen
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
        return _counted(spec_of, lambda: specimen).told()
    real = real_config(config)
    counted = _counted(spec_of, lambda: tiny_specimen(real, seed, TINY))
    tiny = TINY
    for scale in (WIDER, MORE_HEADS):
        if counted.count is not None:
            break
        again = _counted(spec_of, lambda scale=scale: tiny_specimen(real, seed, scale))
        if again.count is not None:  # else the first one's reason is told: of the sizes that suit most
            counted, tiny = again, scale
    # two heads of half a stream span it together, as many heads never do
    others = (
        replace(tiny, heads=2 * tiny.heads, head=max(1, tiny.head // 2)),
        replace(tiny, vocabulary=TOKENS, side=SIDE),
    )
    for other, richer in enumerate(others, seed + 1):
        if counted.count is None or not counted.count.missing:
            break
        again = _counted(spec_of, lambda other=other, richer=richer: tiny_specimen(real, other, richer, cut=True))
        # at no point is less free than at a generic one: a unit that few inputs switch on only seems free
        if again.count is not None and again.count.missing < counted.count.missing:
            counted = again
    return counted.told()


@dataclass(frozen=True)
class _Counted:
    """What was counted at one specimen."""

    count: Count | None
    note: str | None
    inner: tuple[InnerAxis, ...]

    def told(self) -> Completeness:
        """With what is left by tensors."""
        return Completeness(None if self.count is None else self.count.named(), self.note, self.inner)


def _counted(spec_of: SpecOf, make: Callable[[], Specimen]) -> _Counted:
    """The count at a specimen; a note where there is none."""
    inner: tuple[InnerAxis, ...] = ()
    try:
        specimen = make()
        specimen.compare_whole()
        seen = BoundSpecimen(spec_of, specimen)
        inner = tuple(inner_axes(seen))
        return _Counted(Count(seen), None, inner)
    except IsomergeError as error:
        return _Counted(None, str(error), inner)

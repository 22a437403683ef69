"""A search with values of its own for every layer, or for every few: what is said of a parameter becomes a gradient
with as many values as there are layers; filters name what lies before the layers and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.fusion.method_options import is_for
from isomerge.merging.fusing import Fuser
from isomerge.merging.recipe.dimensions import Dimension, Place, value_at, with_values
from isomerge.merging.recipe.searched import SearchedRecipe, setting_of
from isomerge.symmetry.blocks import layer_of, stacks_of

BEFORE, AFTER = "before", "after"


def by_layer(recipe: SearchedRecipe, fuser: Fuser) -> SearchedRecipe:
    """The same recipe with every number that is searched for searched layer by layer, and before and after the
    layers.

    Args:
        recipe: what is searched for; choices stay as they are.
        fuser: of the merge with the recipe's own values.

    Raises:
        IsomergeError: a number has several values already, or there are no layers.
    """
    numbers = [d for d in recipe.dimensions if not (d.choices or d.whole)]
    several = (d for d in numbers if d.every or d.place[0] == "slices" or setting_of(d.place) is None)
    if (d := next(several, None)) is not None:
        raise IsomergeError(
            f"--by layer: `{d.name}` has a place of its own in the recipe already: search for the parameter as a "
            f"whole, with --search {d.option}"
        )
    return _Spread(fuser, "--by layer").spread(recipe, [replace(d, every=1) for d in numbers], apart=True)


def in_groups(recipe: SearchedRecipe, fuser: Fuser) -> SearchedRecipe:
    """The same recipe with a value for every group of layers where it says so (``every``): what lies before the
    layers has that of the first group, what lies after that of the last. A smooth one is an ordinary gradient.

    Args:
        recipe: what is searched for.
        fuser: as of `by_layer`.

    Raises:
        IsomergeError: there are no layers.
    """
    grouped = [d for d in recipe.dimensions if d.every]
    return _Spread(fuser, f"{recipe.path}: `every`").spread(recipe, grouped) if grouped else recipe


def _outside(fuser: Fuser) -> dict[str, list[str]]:
    """The names of tensors that lie before and after the layers. One that a filter could not tell from a layer's
    tensor has the first layer's value, as what is outside of layers has otherwise."""
    inside: list[str] = []
    names_of: dict[str, list[str]] = {BEFORE: [], AFTER: []}
    for unit in fuser.plan.units:
        for block in unit.blocks:
            for number in range(len(block.canonical)):
                name = fuser.name(block, number)
                if layer_of(block, number)[1] is not None:
                    inside.append(name)
                else:
                    names_of[AFTER if fuser.is_after(block) else BEFORE].append(name)
    distinct = {
        where: [name for name in names if not any(name in own for own in inside)]
        for where, names in names_of.items()
    }
    return {where: names for where, names in distinct.items() if names}


@dataclass(frozen=True)
class _Outer:
    """A tensor outside of the layers that has a filter of its own."""

    name: str
    where: str
    """`BEFORE` or `AFTER`."""
    entry: int
    """Which of the setting's filters it would have else."""


class _Spread:
    """Numbers become gradients over a model's layers.

    Args:
        fuser: of the merge.
        who: wants it, for messages.

    Raises:
        IsomergeError: there are no layers.
    """

    def __init__(self, fuser: Fuser, who: str) -> None:
        self.depth = max(stacks_of(fuser.donor.blocks).values(), default=0)
        if not self.depth:
            raise IsomergeError(f"{who}: {fuser.donor.ref} has no layers: search for one value of all of it")
        # the longest first: of two names one of which is a part of the other, each then finds its own
        outside = ((name, where) for where, names in _outside(fuser).items() for name in names)
        self.outside = sorted(outside, key=lambda outer: -len(outer[0]))

    def spread(self, recipe: SearchedRecipe, wanted: Sequence[Dimension], *, apart: bool = False) -> SearchedRecipe:
        """A recipe with several values in the places of some dimensions; ``apart``: with values of their own for
        what lies outside of the layers."""
        by_place = {d.place: d for d in wanted}
        values: dict[Place, Any] = {}
        made: dict[Place, list[Dimension]] = {}
        for setting in dict.fromkeys(setting_of(d.place) or d.place for d in wanted):
            value = value_at(recipe.content, setting)
            filtered = isinstance(value, (list, Mapping))
            entries = [dict(entry) for entry in (value if isinstance(value, list) else [value])] if filtered else []
            places = [(*setting, k, "value") for k in range(len(entries))]
            if not isinstance(value, list):
                entries, places = entries or [{"value": value}], [(*setting, "value") if filtered else setting]
            searched = [by_place.get(place) for place in places]
            outer = self._outer(entries, searched, apart=apart)
            for k, d in enumerate(searched):
                if d is not None:
                    place = (*setting, len(outer) + k, "value") if outer or filtered else setting
                    ends = {
                        where: [
                            (*setting, n, "value") for n, o in enumerate(outer) if (o.entry, o.where) == (k, where)
                        ]
                        for where in (BEFORE, AFTER)
                    }
                    entries[k]["value"], made[d.place] = self._values(d, place, ends, apart=apart)
            starts = [
                d.start if d is not None else entry["value"] for d, entry in zip(searched, entries, strict=True)
            ]
            named = [{"filter": o.name, "value": starts[o.entry]} for o in outer]
            values[setting] = [*named, *entries] if outer or filtered else entries[0]["value"]
        dimensions = tuple(more for d in recipe.dimensions for more in made.get(d.place, [d]))
        return replace(recipe, content=with_values(recipe.content, values), dimensions=dimensions)

    def _outer(
        self, entries: Sequence[Mapping[str, Any]], searched: Sequence[Dimension | None], *, apart: bool
    ) -> list[_Outer]:
        """The tensors outside of the layers that need a filter of their own: all of them, or those that the last
        group's value is for, and those whose names a filter for these would fit as well."""
        outer: list[_Outer] = []
        for name, where in self.outside:
            fits = (k for k, entry in enumerate(entries) if is_for(entry, name))
            if (k := next(fits, None)) is not None:
                outer.append(_Outer(name, where, k))
        if apart:
            return outer
        last = [o.name for o in outer if o.where == AFTER and (d := searched[o.entry]) and self._steps(d)]
        return [o for o in outer if any(name in o.name for name in last)]

    def _steps(self, d: Dimension) -> bool:
        """Whether a number has several values that are not interpolated."""
        return d.every < self.depth and not d.smooth

    def _values(
        self, d: Dimension, place: Place, ends: Mapping[str, Sequence[Place]], *, apart: bool
    ) -> tuple[Any, list[Dimension]]:
        """What stands in the place of one number, and where its values are: before the layers, in them, after."""
        if not apart and not self._steps(d):
            count = ceil(self.depth / d.every)
            if count == 1:
                return d.start, [replace(d, place=place)]
            return [d.start] * count, [replace(d, place=(*place, k), label=f"{d.name}.{k}") for k in range(count)]
        values: list[Dimension] = []
        for first in range(0, self.depth, d.every):
            after = min(first + d.every, self.depth)
            at = [(*place, k) for k in range(first, after)]
            if not apart:
                at += [*(ends[BEFORE] if first == 0 else ()), *(ends[AFTER] if after == self.depth else ())]
            layers = f"layer.{first}" if after == first + 1 else f"layers.{first}-{after - 1}"
            values.append(replace(d, place=at[0], also=tuple(at[1:]), label=f"{d.name}.{layers}"))
        before, behind = (
            [replace(d, place=at[0], also=tuple(at[1:]), label=f"{d.name}.{where}")] if apart and at else []
            for where, at in ((BEFORE, ends[BEFORE]), (AFTER, ends[AFTER]))
        )
        return [d.start] * self.depth, [*before, *values, *behind]

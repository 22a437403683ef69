"""A search with a value for every layer: what is said of a parameter becomes a gradient with as many values as
there are layers, and one value for what lies before the layers and one for what lies after, named by filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.merging.fusing import Fuser
from isomerge.merging.recipe.dimensions import Dimension, Place, with_values
from isomerge.merging.recipe.searched import PARAMETERS, SearchedRecipe
from isomerge.symmetry.blocks import layer_of, stacks_of


def by_layer(recipe: SearchedRecipe, fuser: Fuser) -> SearchedRecipe:
    """The same recipe with every number that is searched for searched layer by layer.

    Args:
        recipe: what is searched for; choices stay as they are.
        fuser: of the merge with the recipe's own values.

    Raises:
        IsomergeError: a number has several values already, or there are no layers.
    """
    depth = max(stacks_of(fuser.donor.blocks).values(), default=0)
    if not depth:
        raise IsomergeError(f"--by layer: {fuser.donor.ref} has no layers: take --by task")
    outside = _outside(fuser)
    values: dict[Place, Any] = {}
    dimensions: list[Dimension] = []
    for d in recipe.dimensions:
        if d.choices or d.whole:
            dimensions.append(d)
            continue
        if d.place[0] == "slices" or d.place[-2:-1] != (PARAMETERS,):
            raise IsomergeError(
                f"--by layer: `{d.name}` has a place of its own in the recipe already: search for the parameter as "
                f"a whole, with --search {d.option}"
            )
        values[d.place], more = _spread(d, depth, outside)
        dimensions += more
    return SearchedRecipe(recipe.path, with_values(recipe.content, values), tuple(dimensions))


def _outside(fuser: Fuser) -> dict[str, list[str]]:
    """The names of tensors that lie before and after the layers. One that a filter could not tell from a layer's
    tensor has the first layer's value, as what is outside of layers has otherwise."""
    inside: list[str] = []
    names_of: dict[str, list[str]] = {"before": [], "after": []}
    for unit in fuser.plan.units:
        for block in unit.blocks:
            for number in range(len(block.canonical)):
                name = fuser.name(block, number)
                if layer_of(block, number)[1] is not None:
                    inside.append(name)
                else:
                    names_of["after" if fuser.is_after(block) else "before"].append(name)
    distinct = {
        where: [name for name in names if not any(name in own for own in inside)]
        for where, names in names_of.items()
    }
    return {where: names for where, names in distinct.items() if names}


def _spread(d: Dimension, depth: int, outside: Mapping[str, Sequence[str]]) -> tuple[Any, list[Dimension]]:
    """What stands in the place of one number, and where its values are: before the layers, in them, and after."""
    layers = [d.start] * depth
    if not outside:
        return layers, [replace(d, place=(*d.place, k), label=f"{d.name}.layer.{k}") for k in range(depth)]
    # the longest first: of two names one of which is a part of the other, each then finds its own
    named = sorted(((name, where) for where, names in outside.items() for name in names), key=lambda x: -len(x[0]))
    entries = [*({"filter": name, "value": d.start} for name, _ in named), {"value": layers}]
    groups: list[Dimension] = []
    for where in outside:
        first, *others = [(*d.place, k, "value") for k, (_, own) in enumerate(named) if own == where]
        groups.append(replace(d, place=first, also=tuple(others), label=f"{d.name}.{where}"))
    place = (*d.place, len(named), "value")
    middle = [replace(d, place=(*place, k), label=f"{d.name}.layer.{k}") for k in range(depth)]
    before = [g for g in groups if g.label.endswith(".before")]
    return entries, [*before, *middle, *(g for g in groups if g not in before)]

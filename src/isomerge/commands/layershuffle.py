"""Layers of several models shuffled into one: a recipe of slices is drawn, and merged as any other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from isomerge.commands.merge_door import MergeDoor
from isomerge.commands.opening import dtype_name
from isomerge.errors import IsomergeError
from isomerge.files import check_file, write_whole
from isomerge.merging.recipe.searched import Filled
from isomerge.models.layers import Stack
from isomerge.models.references import open_model_ref
from isomerge.options.requests import merging as asked_for
from isomerge.records import Json, Record


@dataclass(frozen=True)
class Shuffle:
    """What was drawn."""

    asked: asked_for.Layershuffle
    recipe: Filled

    @property
    def text(self) -> str:
        """The recipe as YAML."""
        return yaml.safe_dump(self.recipe.content, sort_keys=False, default_flow_style=None, allow_unicode=True)

    @property
    def merge(self) -> asked_for.Merge:
        """The merge by the recipe, as it is asked for."""
        groups = ("opening", "writing", "planning", "telling", "running")
        given = {name: getattr(self.asked, name) for name in groups}
        return asked_for.Merge(models=[*self.asked.models], out=self.asked.out, **given)

    def door(self, teller: Any) -> MergeDoor:
        """What runs it."""
        return MergeDoor(self.merge, teller)

    def run(self, teller: Any) -> Record | Json:
        """Merge and write; the report."""
        report = self.door(teller).merged(self.recipe, self.asked.out, self.asked.writing)
        self.write()
        return report

    def write(self) -> None:
        """Write the recipe, where that is asked for."""
        if self.asked.write_yaml is not None:
            write_whole(Path(self.asked.write_yaml), self.text.encode())


def shuffled(asked: asked_for.Layershuffle) -> Shuffle:
    """Draw a layer of one of the models for every layer of the first; headers alone are read.

    Raises:
        IsomergeError: shares that do not fit the models, models without the layers, or no place for the recipe.
    """
    models, file, dtype = [str(model) for model in asked.models], asked.write_yaml, dtype_name(asked.writing.dtype)
    shares = [1.0] * len(models) if asked.weights is None else list(asked.weights)
    if len(shares) != len(models) or not all(0 <= x < math.inf for x in shares) or not any(shares):
        raise IsomergeError(f"--weights: give {len(models)} shares of 0 or more, one above 0, in place of {shares}")
    if file is not None:
        check_file(Path(file), f"--write-yaml {file}", overwrite=asked.writing.overwrite)
    reading = {"allow_pickle": asked.opening.allow_pickle}
    depths = [Stack(open_model_ref(model, **reading), asked.opening.spec).depth for model in models]
    if not asked.full_random and len(set(depths)) > 1:
        have = ", ".join(f"{model} has {depth}" for model, depth in zip(models, depths, strict=True))
        raise IsomergeError(f"the models have other numbers of layers ({have}): add --full-random")
    rng = Random(asked.seed)
    slices: list[tuple[int, list[int]]] = []
    for layer in range(depths[0]):
        model = rng.choices(range(len(models)), shares)[0]
        first = rng.randrange(depths[model]) if asked.full_random else layer
        if slices and slices[-1][0] == model and slices[-1][1][1] == first:
            slices[-1][1][1] += 1
        else:
            slices.append((model, [first, first + 1]))
    content = {
        "slices": [{"sources": [{"model": models[k], "layer_range": layers}]} for k, layers in slices],
        "merge_method": "passthrough",
        **({} if dtype is None else {"dtype": dtype}),
    }
    return Shuffle(asked, Filled(str(file or "the recipe that was drawn"), None, content))

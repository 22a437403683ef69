"""A model as a live module in the coordinates of another."""

from __future__ import annotations

import torch
from torch import nn

from isomerge.models.recognised import Model, working_dtype
from isomerge.models.zero_gains import units_moved_by
from isomerge.observe.live.parameter_places import every_weight, places_of
from isomerge.observe.live.substitution import untied_module
from isomerge.symmetry.alignment import Alignment


def aligned_module(model: Model, alignment: Alignment | None = None) -> nn.Module:
    """The module of a model, moved by an alignment in the checkpoint's working dtype: the same function, in the
    coordinates of the anchor. In eval mode with float32 parameters, its head untied where the model's is."""
    module = untied_module(model, "cpu")
    if alignment is None:
        return module
    places, weights, dtype = places_of(module, model), every_weight(module), working_dtype([model])
    with torch.no_grad():
        for unit in units_moved_by(alignment, model):
            tensors = model.unit(unit.blocks, dtype)
            alignment.act(tensors)
            for block, tensor in tensors.items():
                for canonical, part in block.split(tensor):
                    places.write(weights, canonical, part)
    return module

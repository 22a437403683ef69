"""Aligned models as live modules, their average, and the way back to a checkpoint's own names."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.tied_tensors import is_tied
from isomerge.models.zero_gains import units_moved_by
from isomerge.observe.live.parameter_places import (
    LivePlaces,
    every_weight,
    places_of,
    put_mean,
    tied_names,
    weights_of,
)
from isomerge.observe.live.substitution import untied_module
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec import Match


def aligned_module(model: Model, alignment: Alignment | None = None, device: str = "cpu") -> nn.Module:
    """The module of a model, moved by an alignment: the same function, in the coordinates of the anchor.

    Args:
        model: a recognised model; one that was untied gets a head with weights of its own.
        alignment: what `isomerge.align` returned for this model; None leaves it where it is.
        device: where the parameters are put.

    Returns:
        A module in eval mode with float32 parameters; the alignment acts in the checkpoint's working dtype.

    Raises:
        IsomergeError: transformers cannot load it, or makes something of its tensors that cannot be followed.
    """
    module = untied_module(model, device)
    if alignment is None:
        return module
    places, weights, dtype = places_of(module, model), every_weight(module), working_dtype([model])
    _check_places(module, weights, places, model)
    with torch.no_grad():
        for unit in units_moved_by(alignment, model):
            tensors = model.unit(unit.blocks, dtype)
            alignment.act(tensors)
            for block, tensor in tensors.items():
                for canonical, part in block.split(tensor):
                    places.write(weights, canonical, part)
    return module


def average(modules: Sequence[nn.Module], shares: Sequence[float]) -> nn.Module:
    """A new module with ``sum_m share_m theta_m`` as its weights, summed in float64.

    Args:
        modules: of one class and of one basis; buffers that are not stored, or are no floating-point numbers, are
            the first one's.
        shares: one per module; they sum to one.
    """
    mean = copy.deepcopy(modules[0])
    put_mean(mean, [weights_of(module) for module in modules], shares)
    return mean


def state_of(module: nn.Module, model: Model) -> dict[str, Tensor]:
    """A module's weights under the names of a checkpoint: the inverse of loading it.

    Args:
        module: of the model's class, such as `aligned_module` gives.
        model: the checkpoint whose names are wanted.

    Returns:
        Stored tensor name -> tensor in the module's dtype, not copied where the module has it whole. A head that is
        stored beside the embeddings that it is tied to is there as well. What the module has no weight for
        (integers, a head that its class leaves unread) is not.

    Raises:
        IsomergeError: the module has other tensors than the checkpoint, or what transformers makes of these cannot
            be followed.
    """
    places, own, shared = places_of(module, model), every_weight(module), tied_names(model, module)
    _check_places(module, own, places, model)
    state = {}
    for canonical, stored in model.names.items():
        name = canonical if canonical in places else shared.get(canonical) or _tied(model, stored)
        if name is not None and name in places:
            state[stored] = places.read(own, name).detach()
    return state


def _check_places(module: nn.Module, own: Mapping[str, Tensor], places: LivePlaces, model: Model) -> None:
    """Every weight has a stored tensor of its shape behind it: none is left out, none is filled the wrong way
    around.

    Raises:
        IsomergeError: one has not.
    """
    known = {id(own[name]) for name in (*places.names.values(), *places.fused)}
    behind = {name: model.names[canonical] for canonical, name in places.names.items()}
    for name, tensor in own.items():
        stored = behind.get(name)
        shape = None if stored is None else tuple(model.checkpoint.tensors[stored].shape)
        fits = id(tensor) in known if stored is None else shape == tuple(tensor.shape)
        if not fits:
            has = "no tensor for it" if shape is None else f"{stored} of shape {list(shape)}"
            raise IsomergeError(
                f"{type(module).__name__} of this version of transformers has {name} of shape "
                f"{list(tensor.shape)}, but "
                f"{model.ref} stores {has}: align and merge the files, and load the result"
            )


def _tied(model: Model, stored: str) -> str | None:
    """The canonical name that a stored tensor is tied to, where the config ties it."""
    match: Match = model.matches[stored]
    return match.line.tied if is_tied(model.config, stored=True) else None

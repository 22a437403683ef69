"""The average of live modules, and the way from one back to a checkpoint's own names."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.models.tied_tensors import is_tied
from isomerge.observe.live.parameter_places import (
    LivePlaces,
    every_weight,
    places_of,
    put_mean,
    tied_names,
    weights_of,
)
from isomerge.symmetry.language.spec import Match


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
        module: of the model's class.
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

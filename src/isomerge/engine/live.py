"""Aligned models as live modules, their average, and the way back to a checkpoint's own names."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isomerge.engine.models import Model, working_dtype
from isomerge.engine.modules import weight_names, weights_of
from isomerge.engine.substitution import untied_module
from isomerge.errors import IsomergeError
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.spec import Match
from isomerge.symmetry.units import plan_units

if TYPE_CHECKING:
    from torch import Tensor, nn


def aligned_module(model: Model, alignment: Alignment | None = None, device: str = "cpu") -> nn.Module:
    """The module of a model, moved by an alignment: the same function, in the coordinates of the anchor.

    Args:
        model: a recognised model; one that was untied gets a head with weights of its own.
        alignment: what `isomerge.align` returned for this model; None leaves it where it is.
        device: where the parameters are put.

    Returns:
        A module in eval mode with float32 parameters; the alignment acts in the checkpoint's working dtype.

    Raises:
        IsomergeError: transformers cannot load it, or it stores tensors otherwise than the checkpoint does, such as
            experts that it keeps fused.
    """
    import torch

    module = untied_module(model, device)
    names = weight_names(module, model.spec)
    if alignment is None:
        return module
    places, dtype = _every_weight(module), working_dtype([model])
    _check_places(module, places, names, model)
    with torch.no_grad():
        for unit in plan_units(alignment.spec, model.blocks):
            tensors = {block: model.assemble(block, dtype) for block in unit.blocks}
            alignment.act(tensors)
            for block, tensor in tensors.items():
                for canonical, part in block.split(tensor):
                    if canonical in names:
                        places[names[canonical]].copy_(part)
    return module


def average(modules: Sequence[nn.Module], shares: Sequence[float]) -> nn.Module:
    """A new module with ``sum_m share_m theta_m`` as its weights, summed in float64.

    Args:
        modules: of one class and of one basis; buffers that are not stored, or are no floating-point numbers, are the first
            one's.
        shares: one per module; they sum to one.
    """
    import torch

    found = copy.deepcopy(modules[0])
    parts = [weights_of(module) for module in modules]
    with torch.no_grad():
        for name, tensor in weights_of(found).items():
            total = torch.zeros_like(tensor, dtype=torch.float64)
            for own, share in zip(parts, shares, strict=True):
                total.add_(own[name].double(), alpha=share)
            tensor.copy_(total)
    return found


def state_of(module: nn.Module, model: Model) -> dict[str, Tensor]:
    """A module's weights under the names of a checkpoint: the inverse of `isomerge.engine.modules.weight_names`.

    Args:
        module: of the model's class, such as `aligned_module` gives.
        model: the checkpoint whose names are wanted.

    Returns:
        Stored tensor name -> tensor in the module's dtype, not copied. A head that is stored beside the embeddings that it
        is tied to is there as well. What the module has no weight for (integers, a head that its class leaves unread) is not.

    Raises:
        IsomergeError: the module stores tensors otherwise than the checkpoint does, such as experts that it keeps fused.
    """
    names, own = weight_names(module, model.spec), _every_weight(module)
    _check_places(module, own, names, model)
    found = {}
    for canonical, stored in model.names.items():
        tied = _tied(model, stored)
        place = names.get(canonical) or names.get(tied or "")
        if place is not None:
            found[stored] = own[place].detach()
    return found


def _every_weight(module: nn.Module) -> dict[str, Tensor]:
    """`weights_of` under all names, tied ones as well."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **weights_of(module)}


def _check_places(module: nn.Module, own: Mapping[str, Tensor], names: Mapping[str, str], model: Model) -> None:
    """Every weight has a stored tensor of its shape behind it: none is left out, none is filled the wrong way around.

    Raises:
        IsomergeError: one has not.
    """
    for canonical, name in names.items():
        stored = model.source_of(canonical, model.spec.match(name))
        shape = None if stored is None else tuple(model.checkpoint.tensors[stored].shape)
        if shape != tuple(own[name].shape):
            has = "no tensor for it" if shape is None else f"{stored} of shape {list(shape)}"
            raise IsomergeError(
                f"{type(module).__name__} of this version of transformers has {name} of shape {list(own[name].shape)}, but "
                f"{model.ref} stores {has}: align and merge the files, and load the result"
            )


def _tied(model: Model, stored: str) -> str | None:
    """The canonical name that a stored tensor is tied to, where the config ties it."""
    match: Match = model.matches[stored]
    return match.line.tied if model.config.get("tie_word_embeddings", True) else None

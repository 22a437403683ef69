"""The weights of a live module, and where the tensors of a model are in it: whole under some name, or as parts of
what transformers fuses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.models.conversions import Piece, assembled, conversion_of
from isomerge.models.recognised import Model


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint stores of a module as numbers that are trained, by the module's names; tied ones once.

    Parameters, and buffers that are stored and floating point, such as the correction of a router or the bias of a
    head: whatever moves or averages weights moves these as well. They are the module's own tensors.
    """
    weights: dict[str, Tensor] = dict(module.named_parameters())
    stored = module.state_dict(keep_vars=True).keys()
    buffers = ((name, buffer) for name, buffer in module.named_buffers() if name in stored)
    return weights | {name: buffer for name, buffer in buffers if buffer.is_floating_point()}


def put_mean(module: nn.Module, states: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> None:
    """Overwrite a module's weights by ``sum_m share_m state_m``, summed in float64.

    Args:
        module: see `weights_of`.
        states: weights by the module's names; never changed.
        shares: one per state; they sum to one.
    """
    with torch.no_grad():
        for name, tensor in weights_of(module).items():
            total = torch.zeros_like(tensor, dtype=torch.float64)
            for state, share in zip(states, shares, strict=True):
                total.add_(state[name].to(total), alpha=share)
            tensor.copy_(total)


@dataclass(frozen=True)
class LivePlaces:
    """Where tensors are, by their canonical names."""

    names: dict[str, str]
    """The tensors that a module has as they are stored, and the module's names of them."""
    fused: dict[str, list[tuple[str, Piece]]]
    """From the module's names of what is made of several tensors, or of a transposed one, to these."""
    shapes: dict[str, tuple[int, ...]]
    """Of the tensors that are fused."""
    live_shapes: dict[str, tuple[int, ...]]
    """Of what they are fused to, by the module's names."""

    @cached_property
    def parts(self) -> dict[str, list[tuple[str, Piece]]]:
        """The inverse of ``fused``."""
        parts: dict[str, list[tuple[str, Piece]]] = {}
        for target, members in self.fused.items():
            for name, piece in members:
                parts.setdefault(name, []).append((target, piece))
        return parts

    def __contains__(self, canonical: str) -> bool:
        return canonical in self.names or canonical in self.parts

    def submodule(self, canonical: str) -> str:
        """The submodule whose weight a tensor is, or a part of which it is; empty where there is none."""
        parts = self.parts.get(canonical, ())
        name = self.names.get(canonical) or (parts[0][0] if parts else "")
        return name.removesuffix(".weight") if name.endswith(".weight") else ""

    def live_names(self, canonical: Iterable[str]) -> Iterator[str]:
        """The module's names of what some tensors are, or are parts of; tensors that it does not have are left
        out."""
        for name in canonical:
            if name in self.names:
                yield self.names[name]
            yield from (target for target, _ in self.parts.get(name, ()))

    def live(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as the module has them, by its names, with gradients; those that it does not have are left out.

        Raises:
            IsomergeError: a tensor that is fused with one of these is missing.
        """
        live = {self.names[name]: x for name, x in tensors.items() if name in self.names}
        for target, members in self.fused.items():
            if any(name in tensors for name, _ in members):
                if lacking := next((name for name, _ in members if name not in tensors), None):
                    raise IsomergeError(
                        f"tensor {lacking} is missing, but {target} is made of it: is a shard lost?"
                    )
                live[target] = assembled(
                    [piece for _, piece in members],
                    self.live_shapes[target],
                    [tensors[name] for name, _ in members],
                )
        return live

    def write(self, weights: Mapping[str, Tensor], canonical: str, tensor: Tensor) -> None:
        """Overwrite one tensor in live ones, in place.

        Args:
            weights: the module's, by all of its names (`every_weight`).
            canonical: the tensor; nothing is done for one that the module does not have.
            tensor: its numbers, in the shape in which it is stored.
        """
        if canonical in self.names:
            weights[self.names[canonical]].copy_(tensor)
        for target, piece in self.parts.get(canonical, ()):
            piece.put(tensor, weights[target])

    def read(self, weights: Mapping[str, Tensor], canonical: str) -> Tensor:
        """One tensor out of live ones, in the shape in which it is stored: not copied where the module has it
        whole."""
        if canonical in self.names:
            return weights[self.names[canonical]]
        parts = self.parts[canonical]
        stored = weights[parts[0][0]].new_empty(self.shapes[canonical])
        for target, piece in parts:
            piece.take(weights[target], stored)
        return stored


def names_of_each(module: nn.Module) -> list[list[str]]:
    """The names of every parameter, those of one that is used in several places together."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return list(names.values())


def every_weight(module: nn.Module) -> dict[str, Tensor]:
    """`isomerge.observe.live.parameter_places.weights_of` under all names, those of tied places as well."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **weights_of(module)}


def places_of(module: nn.Module, model: Model) -> LivePlaces:
    """Where a model's floating-point tensors are in a module that was loaded from it.

    A tensor that the module uses in several places (tied embeddings) appears once, under the canonical name that is
    not tied to another. Tensors that the module has no use for, and integers, do not appear.

    Args:
        module: a module from `isomerge.observe.live.modules.load_module`; heads may have been untied since.
        model: the model.

    Raises:
        IsomergeError: transformers makes something of the tensors that cannot be followed (see `conversion_of`).
    """
    shapes = {name: tuple(info.shape) for name, info in model.checkpoint.tensors.items()}
    conversion, weights = conversion_of(module, shapes), every_weight(module)
    canonical = {stored: match.canonical for stored, match in model.matches.items()}
    owners: dict[int, str] = {}
    names: dict[str, str] = {}
    whole = {stored: live for stored, live in conversion.whole.items() if live in weights and stored in canonical}
    for stored in sorted(whole, key=lambda name: model.matches[name].line.tied is not None):
        if owners.setdefault(id(weights[whole[stored]]), stored) == stored:
            names[canonical[stored]] = whole[stored]
    fused = {
        target: [(canonical[stored], piece) for stored, piece in members if stored in canonical]
        for target, members in conversion.fused.items()
        if target in weights
    }
    sizes = {name: shapes[model.names[name]] for members in fused.values() for name, _ in members}
    return LivePlaces(names, fused, sizes, {target: tuple(weights[target].shape) for target in fused})


def tied_names(model: Model, module: nn.Module) -> dict[str, str]:
    """From the canonical names of a module's tied places to the one under which `places_of` has them."""
    weights = every_weight(module)
    owners = {id(weights[name]): canonical for canonical, name in places_of(module, model).names.items()}
    names = {}
    for name, tensor in weights.items():
        owner = owners.get(id(tensor))
        with contextlib.suppress(IsomergeError):  # what transformers fuses is not tied
            if owner is not None and (canonical := model.spec.match(name).canonical) != owner:
                names[canonical] = owner
    return names

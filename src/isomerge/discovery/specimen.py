"""Specimens: tiny random models of one configuration class, whose weights are set and whose outputs are
compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from isomerge.config.config_parts import flattened
from isomerge.discovery.placement import Joined, Place
from isomerge.discovery.precision import double_precision
from isomerge.evidence.outputs import differences, returned
from isomerge.progress import silent

OUTPUTS = ("logits", "prediction_logits", "predicted_depth", "reconstruction", "last_hidden_state")

TOWERS = ("text_embeds", "image_embeds", "logits_per_text")


@dataclass(eq=False)
class Specimen:
    """A tiny model in float64 with random weights, its stored tensors, and inputs of two shapes."""

    module: Any
    """A model of transformers."""
    config: dict[str, Any]
    """Its ``config.json``."""
    stored: dict[str, Tensor]
    """The tensors as ``save_pretrained`` writes them, by their names on disk."""
    places: dict[str, Place]
    """Where stored tensors live in the module; one that is not here is put there by way of the disk."""
    inputs: list[dict[str, Tensor]]
    """Of two shapes, for proofs; and one with many rows, for moments."""
    reference: list[Tensor] = field(default_factory=list)
    joined: dict[str, Joined] = field(default_factory=dict)
    """Stored tensors that the class computes with in parts, by their names on disk."""
    whole: bool = False
    """Whether every tensor that the class returns is compared, or its predictions alone."""

    def compare_whole(self) -> None:
        """From now on, compare every tensor that the class returns."""
        self.whole = True
        self.reference = self.outputs()

    @property
    def prefix(self) -> str:
        """What names begin with that belong to the base model; empty where none does."""
        prefix = f"{getattr(self.module, 'base_model_prefix', '')}."
        return prefix if len(prefix) > 1 and any(name.startswith(prefix) for name in self.stored) else ""

    @cached_property
    def keys(self) -> dict[str, Any]:
        """The keys of its config, those of parts under their full names as well."""
        return {**self.config, **flattened(self.config)}

    @property
    def origins(self) -> dict[str, str]:
        """From stored names to the names of the module's parameters."""
        return {name: place.parameter for name, place in self.places.items()}

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The module's parameters by name, once under every name."""
        return dict(self.module.named_parameters(remove_duplicate=False))

    def live(self, name: str) -> Tensor:
        """A stored tensor as a view of the module's parameter."""
        place = self.places[name]
        return place.view(self.parameters[place.parameter].detach())

    def owners(self, name: str) -> tuple[str, ...]:
        """The module's parameters that a stored tensor is, or is a part of."""
        return self.joined[name].parameters if name in self.joined else (self.places[name].parameter,)

    def part_of(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """A stored tensor of what the module's parameters, or their derivatives, are by name."""
        if name in self.joined:
            return self.joined[name].of(tensors)
        place = self.places[name]
        return place.view(tensors[place.parameter])

    def put(self, name: str, value: Tensor) -> None:
        """Write a stored tensor into the module, whose parameters are not trained now."""
        if name in self.joined:
            self.joined[name].put(value, self.parameters)
        else:
            self.live(name).copy_(value)

    def outputs(self) -> list[Tensor]:
        """The outputs for every input, float64, by the weights that are in the module now."""

        with double_precision(), torch.no_grad():
            if not self.whole:
                return [output_of(self.module, inputs) for inputs in self.inputs[:2]]
            every = [self._returned(inputs) for inputs in self.inputs[:2]]
        return [value.double() for tensors in every for value in tensors.values() if value.is_floating_point()]

    @property
    def many(self) -> list[Any]:
        """The inputs that give many numbers: those behind the first two."""
        return self.inputs[2:]

    def flat_outputs(self) -> Tensor:
        """Every number that the class returns for its many inputs, float64, with the graph that leads to the
        parameters."""
        return torch.cat([self.flat_output(inputs) for inputs in self.many])

    def flat_output(self, inputs: Any) -> Tensor:
        """The same for one input."""
        with double_precision():
            values = self._returned(inputs).values()
        return torch.cat([v.double().reshape(-1) for v in values if v.is_floating_point()])

    def _returned(self, inputs: Any) -> dict[str, Tensor]:
        """The tensors that the class returns, by name."""
        return returned(run(self.module, inputs))

    def change(self, moved: Mapping[str, Tensor], *, disk: bool = False) -> float:
        """The largest change of outputs under other weights, relative to the largest output; NaN counts as
        infinite.

        With ``disk`` they are written and read back by transformers, which recomputes some tensors when it reads.
        """
        with self.holding(moved, disk=disk):
            outputs = self.outputs()
        first, second = ({str(n): value for n, value in enumerate(each)} for each in (self.reference, outputs))
        return max(differences(first, second).values())

    @contextmanager
    def holding(self, moved: Mapping[str, Tensor], *, disk: bool = False) -> Iterator[None]:
        """The module with other values of some stored tensors, for a while."""
        if disk or not all(name in self.places for name in moved):
            before, self.module = self.module, self._reloaded(moved)
            try:
                yield
            finally:
                self.module = before
            return
        try:
            for name, value in moved.items():
                self.live(name).copy_(value)
            yield
        finally:
            for name in moved:
                self.live(name).copy_(self.stored[name])

    def _reloaded(self, moved: Mapping[str, Tensor]) -> Any:
        """The module with these tensors, by way of the disk: names and layouts there may be others than in
        memory."""
        return loaded(type(self.module), self.module.config, {**self.stored, **moved})


def loaded(kind: Any, config: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A model as transformers reads it from a checkpoint, float64, in eval mode.

    What a checkpoint does not store, such as sinusoids, is computed anew, and so is what a class never takes from
    it.
    """

    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder, silent(), double_precision():
        config.save_pretrained(folder)
        copies = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(copies, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        module = kind.from_pretrained(folder, config=config, dtype=torch.float64)
        narrow = {name: p for name, p in module.named_parameters() if p.dtype == torch.float32}
        module = module.double().eval()
        for name, p in narrow.items():  # torch.FloatTensor, which XLNet makes, rounds whatever the dtype
            if name in tensors and tensors[name].shape == p.shape:
                p.data = tensors[name].double().clone()
        return module


def run(module: Any, inputs: Mapping[str, Tensor]) -> Any:
    """What a model returns; those that mask at random do so alike each time."""

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module(**inputs)


def output_of(module: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What a model computes: its logits, or the first output of another name, flat, float64.

    Of two towers that meet, their vectors: they are stored and compared across models, and the scores follow from
    them.
    """

    out = run(module, inputs)
    if all(isinstance(getattr(out, name, None), torch.Tensor) for name in TOWERS):
        return torch.cat([getattr(out, name).double().flatten() for name in TOWERS])
    for name in OUTPUTS:
        value = getattr(out, name, None)
        if isinstance(value, torch.Tensor):
            return value.double().flatten()
    first = next(v for v in (out.values() if hasattr(out, "values") else out) if isinstance(v, torch.Tensor))
    return first.double().flatten()

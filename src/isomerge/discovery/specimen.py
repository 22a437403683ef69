"""Specimens: tiny random models of one configuration class, whose weights are set and whose outputs are compared.

They are computed in float64 throughout, also where their code casts to float32: Hugging Face's norms and softmaxes
cast whatever the input. That would leave 1e-6 of noise, in which a small wrong change could hide; without the
casts a symmetry shows at 1e-12 and a mistake far above.

transformers renames and fuses tensors between disk and memory (experts, old names of layers). Random weights tell
where a stored tensor lives in a module: equal numbers are the same tensor, under another name, transposed, or as a
part of a fused parameter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from isomerge.config.config_parts import flattened
from isomerge.evidence.outputs import differences, returned
from isomerge.progress import silent
from isomerge.records import Json


@dataclass(frozen=True)
class Place:
    """A parameter and the part of it that is one stored tensor."""

    parameter: str
    expert: int | None = None
    """Which of many."""
    turned: bool = False
    """Whether it is stored transposed."""
    rows: tuple[int, int] | None = None
    """The first of them, and how many; None for all."""

    def view(self, tensor: Tensor) -> Tensor:
        """The part of a parameter, or of what has its shape."""
        part = tensor if self.expert is None else tensor[self.expert]
        part = part.mT if self.turned else part
        return part if self.rows is None else part.narrow(0, *self.rows)


def places_of(stored: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Place]:
    """Where every stored tensor lives; what is found nowhere is left out.

    Args:
        stored: the tensors on disk by name; random, so that no two are equal.
        parameters: the module's parameters by name.
    """
    places: dict[str, Place] = {}
    for name, value in stored.items():
        own = parameters.get(name)
        if own is not None and own.shape == value.shape and torch.equal(own, value):
            places[name] = Place(name)
    for name, value in stored.items():
        if name in places or not value.is_floating_point():
            continue
        place = next(
            (p for p in _candidates(parameters, value) if torch.equal(p.view(parameters[p.parameter]), value)), None
        )
        if place is not None:
            places[name] = place
    return places


@dataclass(frozen=True)
class Joined:
    """Parameters of which the rows, in some order, are one stored tensor."""

    parameters: tuple[str, ...]
    order: Tensor
    """Which row of the parameters, one after the other, each stored row is."""

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The stored tensor, of parameters (or what is as long as they are) by name."""
        return torch.cat([tensors[name] for name in self.parameters])[self.order]

    def put(self, value: Tensor, parameters: Mapping[str, Tensor]) -> None:
        """Write a stored tensor into the parameters."""
        rows = torch.empty_like(value)
        rows[self.order] = value
        lengths = [parameters[name].shape[0] for name in self.parameters]
        for name, part in zip(self.parameters, rows.split(lengths), strict=True):
            parameters[name].copy_(part)


def joined_places(
    stored: Mapping[str, Tensor], places: Mapping[str, Place], parameters: Mapping[str, Tensor]
) -> dict[str, Joined]:
    """The stored tensors without a place of which the class computes with the parts: fused queries, keys and values
    that it takes apart.

    Args:
        stored: the tensors on disk by name; random, so that no two rows are equal.
        places: of those that live in one parameter.
        parameters: the module's parameters by name.
    """
    taken = {place.parameter for place in places.values()}
    free = {name: p.detach() for name, p in parameters.items() if name not in taken and p.ndim}
    joined: dict[str, Joined] = {}
    for name, value in stored.items():
        if name in places or not value.ndim or not value.is_floating_point():
            continue
        alike = {n: p for n, p in free.items() if p.shape[1:] == value.shape[1:]}
        numbers = {row: k for k, row in enumerate(_rows(value))}
        order = {n: [numbers.get(row) for row in _rows(p)] for n, p in alike.items()}
        parts = tuple(n for n, rows in order.items() if None not in rows)
        at = torch.tensor([row for n in parts for row in order[n]], dtype=torch.long)
        if len(at) == len(value):
            joined[name] = Joined(parts, at.argsort())
    return joined


def _rows(tensor: Tensor) -> list[bytes]:
    """The rows of a tensor, to be compared bit by bit."""
    return [row.numpy().tobytes() for row in tensor.contiguous()]


def _candidates(parameters: Mapping[str, Tensor], value: Tensor) -> Iterator[Place]:
    """The parts of parameters that have a tensor's shape: the whole, one expert of many, and halves of either."""
    shape = tuple(value.shape)
    for name, own in parameters.items():
        experts: Sequence[int | None] = range(len(own)) if own.ndim == value.ndim + 1 else [None]
        for expert in experts if own.ndim in (value.ndim, value.ndim + 1) else ():
            for turned in (False, True) if value.ndim == 2 else (False,):
                place = Place(name, expert, turned)
                part = place.view(own)
                if tuple(part.shape) == shape:
                    yield place
                elif part.ndim and tuple(part.shape[1:]) == shape[1:] and part.shape[0] > shape[0]:
                    for start in range(0, part.shape[0] - shape[0] + 1, shape[0]):
                        yield Place(name, expert, turned, (start, shape[0]))


@contextmanager
def double_precision() -> Iterator[None]:
    """Casts from float64 to float32 do nothing, and new tensors are float64."""
    float_cast, to, kind = torch.Tensor.float, torch.Tensor.to, torch.Tensor.type

    class Double(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
            if func is float_cast:
                return to(args[0], torch.float64)
            if func is to or func is kind:
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            return func(*args, **kwargs)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Double():
            yield
    finally:
        torch.set_default_dtype(before)


OUTPUTS = ("logits", "prediction_logits", "predicted_depth", "reconstruction", "last_hidden_state")

TOWERS = ("text_embeds", "image_embeds", "logits_per_text")


@dataclass(eq=False)
class Specimen:
    """A tiny model in float64 with random weights, its stored tensors, and inputs of two shapes."""

    module: Any
    """A model of transformers."""
    config: Json
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
    def keys(self) -> Json:
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

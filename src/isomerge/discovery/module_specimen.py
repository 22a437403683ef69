"""Specimens of one's own modules: plain torch, or classes that transformers does not build by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isomerge.discovery.building import LARGEST, randomise
from isomerge.discovery.specimen import Place, Specimen, double_precision
from isomerge.errors import IsomergeError, own_code
from isomerge.evidence.outputs import returned

Forward = Callable[[Any, Any], Any]
"""From a module and an input to what it computes."""


@dataclass(eq=False)
class ModuleSpecimen(Specimen):
    """A module of one's own with random weights, in float64, and how it is run."""

    forward: Forward | None = None

    @property
    def many(self) -> list[Any]:
        """All inputs that the user gives."""
        return self.inputs

    def outputs(self) -> list[Tensor]:
        """Every tensor that the module returns for each input, float64."""
        with double_precision(), torch.no_grad():
            every = [self._returned(each) for each in self.inputs]
        floats = [[t.double() for t in tensors.values() if t.is_floating_point()] for tensors in every]
        if not all(floats):
            raise IsomergeError(f"{type(self.module).__name__} gives no floating-point numbers for these inputs")
        return [tensor for tensors in floats for tensor in tensors]

    def _returned(self, inputs: Any) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # modules that draw at random
            return returned((self.forward or called)(self.module, inputs))

    @contextmanager
    def holding(self, moved: Mapping[str, Tensor], *, disk: bool = False) -> Iterator[None]:
        """As `Specimen.holding`; by way of the disk is by ``load_state_dict``, which is how such modules are
        read."""
        if not disk:
            with super().holding(moved):
                yield
            return
        before, self.module = self.module, copy.deepcopy(self.module)
        try:
            self.module.load_state_dict({**self.stored, **moved})
            yield
        finally:
            self.module = before


def module_specimens(
    module: Any, config: Mapping[str, Any], inputs: Any, forward: Forward | None = None, seed: int = 0
) -> tuple[ModuleSpecimen, ModuleSpecimen]:
    """Two copies of a module with random weights.

    Args:
        module: a ``torch.nn.Module``, best a tiny one: symmetries do not depend on size.
        config: what its checkpoints have as config.json.
        inputs: one input or a list of them: keywords as a dict, arguments as a tuple, or the only argument.
        forward: called with module and input, where the module itself is not what is called.
        seed: of the weights.

    Raises:
        IsomergeError: the module is large, does not run on the inputs, or gives no finite numbers.
    """
    pair = [_specimen(module, config, inputs, forward, seed + n) for n in range(2)]
    return pair[0], pair[1]


def _specimen(
    module: Any, config: Mapping[str, Any], inputs: Any, forward: Forward | None, seed: int
) -> ModuleSpecimen:
    name, size = type(module).__name__, sum(p.numel() for p in module.parameters())
    if size > LARGEST:
        raise IsomergeError(
            f"{name} has {size:,} parameters: give a tiny one of the same class (symmetries do not depend on size)"
        )
    own = copy.deepcopy(module).cpu().double().eval()
    randomise(own, seed)
    stored = {n: t.detach().clone() for n, t in own.state_dict().items()}
    places = {n: Place(n, lambda t: t) for n, _ in own.named_parameters(remove_duplicate=False)}
    each = inputs if isinstance(inputs, list) else [inputs]
    specimen = ModuleSpecimen(own, dict(config), stored, places, [_double(x) for x in each], forward=forward)
    takes = "a dict of keywords, a tuple of arguments, or the only argument"
    with own_code(f"{name} does not run on the inputs", f"give inputs= as its forward takes them ({takes})"):
        specimen.reference = specimen.outputs()
    if not all(bool(out.isfinite().all()) for out in specimen.reference):
        raise IsomergeError(f"{name} with random weights gives numbers that are not finite: it proves nothing")
    return specimen


def called(module: Any, inputs: Any) -> Any:
    """What a module computes from keywords (a dict), arguments (a tuple), or one argument."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def _double(value: Any) -> Any:
    """Inputs of any structure in float64 where they are of floating point."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: _double(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_double, value))
    return value

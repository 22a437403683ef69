"""What a method is given that runs models: the aligned ones, live, and examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from isomerge.models.recognised import Model, working_dtype
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.substitution import module_as_told
from isomerge.progress import Observer


@dataclass(frozen=True)
class Forward:
    """What a method that runs models is given."""

    models: Sequence[Model]
    """The aligned models, in order."""
    stored: Sequence[Model]
    """The same as they are stored."""
    examples: Examples
    device: str
    observer: Observer
    aligned: bool

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of the parameters: what they become is what is written, so models in float64 are run in float64."""
        return working_dtype(self.stored)

    @cached_property
    def endpoints(self) -> list[nn.Module]:
        """The aligned models, live."""
        return [self._load(model) for model in self.models]

    def unaligned(self) -> list[nn.Module]:
        """The stored models, live."""
        return [self._load(model) for model in self.stored]

    def _load(self, model: Model) -> nn.Module:
        self.observer(f"loading {model.ref}", 0, 1)
        return module_as_told(model, self.device, self.dtype)

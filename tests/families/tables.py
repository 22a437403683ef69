"""What the tables of a family file hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Toy = tuple[Callable[[], Any], float]
"""A constructor, and the largest relative change of outputs that rounding explains.

Hugging Face computes RMSNorm in float32 whatever the input, as it does some softmaxes, rotations and resizings: those
toys are compared at 1e-5, all others at 1e-9 in float64."""
Saved = tuple[dict[str, Any], list[str]]
"""A config's arguments, and the model classes whose saved names are tried, without the family's name."""
Streams = str | dict[str, str]
"""The largest group of a toy's stream ``res``; of a toy that has not just the one, of each by name."""
Drawn = Callable[[Any, torch.Generator], dict[str, torch.Tensor]]
"""Inputs, from a config and a generator."""

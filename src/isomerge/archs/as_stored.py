"""An architecture without a text, as a merge sees it that moves nothing: its tensors by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.spec import Line, Spec

COMPARED = (
    "hidden_act", "hidden_activation", "activation_function", "activation", "layer_norm_eps", "layer_norm_epsilon",
    "rms_norm_eps", "norm_eps", "rope", "sliding_window", "num_attention_heads", "num_key_value_heads", "num_heads",
    "head_dim", "num_experts_per_tok", "layer_types", "patch_size", "image_size", "num_channels",
)  # fmt: skip
"""Keys by which models compute different functions of equal weights, in most architectures that have them."""
_NUMBER = re.compile(r"(?:^|(?<=\.))(?:0|[1-9]\d*)(?=\.|$)")
_PLAIN = re.compile(r"[^\s(){}|]+")


def spec_as_stored(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Spec:
    """A spec without symmetries: a line of any shape for every name, whose first number is the layer.

    Args:
        config: the parsed ``config.json``.
        shapes: of the stored tensors, by name.

    Raises:
        IsomergeError: a name that a line cannot have.
    """
    kind = str(config.get("model_type"))
    origin = f"{kind} as it is stored"
    odd = next((name for name in shapes if not _PLAIN.fullmatch(name)), None)
    if odd is not None:
        raise IsomergeError(
            f"tensor {odd!r} has a name with spaces or brackets, which stands for others in a spec: give it another"
        )
    patterns = dict.fromkeys(_pattern(name) for name in shapes)
    lines = tuple(Line(name, None, place=f"{origin}, line {n}") for n, name in enumerate(patterns, 1))
    return Spec(kind, (), {}, {}, lines, config_keys=COMPARED, origin=origin)


def _pattern(name: str) -> str:
    indices = count()

    def index(_: re.Match[str]) -> str:
        number = next(indices)
        return "{l}" if number == 0 else f"{{n{number}}}"

    return _NUMBER.sub(index, name)

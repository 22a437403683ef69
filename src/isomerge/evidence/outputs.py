"""Comparing two models by running them on the same random inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor


def compare_outputs(one: str | Path, two: str | Path, *, seed: int = 0, batch: int = 2, length: int = 16) -> float:
    """The largest difference of two checkpoints' outputs relative to the largest output of the first.

    Token ids and pixels are drawn at random; both models run in float32 through ``from_pretrained``. Of several outputs
    (start and end of an answer, classes and boxes) it is that of the one which differs most.

    Raises:
        IsomergeError: transformers cannot load a checkpoint, its class does not run on tokens and pixels alone, or what it
            gives is not a number.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    configs = [_config(folder) for folder in (one, two)]
    given = _inputs(configs[0], torch.Generator().manual_seed(seed), batch, length)
    names = [config.architectures or [""] for config in configs]
    # a head that only one model has would be drawn at random for the other: then the bodies are compared
    name = names[0][0] if names[0] == names[1] else ""
    pairs = zip(*(_run(folder, name, given) for folder in (one, two)), strict=True)
    return max(_difference(first, second) for first, second in pairs)


def _difference(first: Tensor, second: Tensor) -> float:
    """The largest difference relative to the largest finite number of the first."""
    change = (first - second).abs().masked_fill(first == second, 0)  # infinities stand for what is never predicted
    largest = first.abs().masked_fill(first.isinf(), 0).max()
    return float(change.max() / largest.clamp_min(1e-30))


def _inputs(config: Any, rng: Any, batch: int, length: int) -> dict[str, Any]:
    """Random pixels and token ids, of a config or of the parts of one: a picture where it knows a size of pictures, a film
    where it counts frames, a text where it has a vocabulary, or no pictures."""
    import torch

    seeing = next((part for part in _parts(config, "vision") if getattr(part, "image_size", None)), None)
    reading = next((part for part in _parts(config, "text") if getattr(part, "vocab_size", None)), None)
    given: dict[str, Any] = {}
    if seeing is not None:
        shape = (getattr(seeing, "num_channels", 3), *_sides(seeing.image_size))
        shape = (seeing.num_frames, *shape) if getattr(seeing, "num_frames", None) else shape
        given["pixel_values"] = torch.randn(batch, *shape, generator=rng)
    if reading is not None:
        ids = torch.randint(0, reading.vocab_size, (batch, length), generator=rng)
        given["input_ids"] = ids
        if config.is_encoder_decoder:
            given["decoder_input_ids"] = ids
    return given


def _sides(size: Any) -> Sequence[int]:
    """Height and width, which configs write in three ways."""
    if isinstance(size, Mapping):
        return size["height"], size["width"]
    return size if isinstance(size, (list, tuple)) else (size, size)


def _parts(config: Any, kind: str) -> list[Any]:
    """A config, and that of what it sees or reads with."""
    found = (getattr(config, name, None) for name in (f"{kind}_config", "backbone_config"))
    return [config, *(part for part in found if part is not None)]


def _config(folder: str | Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a model of plain torch, or of a newer transformers
        raise _unloadable(folder, error) from None


def _run(folder: str | Path, name: str, given: dict[str, Any]) -> list[Tensor]:
    """What the model predicts from these inputs."""
    import torch
    import transformers

    from isomerge.engine.live.modules import eager_experts

    kind: Any = getattr(transformers, name, transformers.AutoModel) if name else transformers.AutoModel
    try:
        experts = eager_experts(_config(folder).to_dict())
        model = kind.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False, **experts).eval()
    except Exception as error:  # OSError, ValueError, RuntimeError, KeyError, ImportError: whatever does not fit
        raise _unloadable(folder, error) from None
    model.config.return_dict = True  # a config may ask for tuples, which have no names
    taken = inspect.signature(model.forward).parameters  # BEiT has a vocabulary, of pictures, and reads no tokens
    try:
        with torch.no_grad():
            found = model(**{key: value for key, value in given.items() if key in taken})
    except Exception as error:  # classes that ask for other inputs say so in many ways
        raise IsomergeError(
            f"{folder}: {type(model).__name__} does not run on random tokens and pixels alone ({_said(error)}): leave out --run"
        ) from None
    predicted = _predictions(found)
    if not predicted or any(bool(x.isnan().any()) for x in predicted):
        raise IsomergeError(
            f"{folder}: {type(model).__name__} gives {'no numbers' if predicted else 'nothing'} for random tokens and pixels that "
            "could be compared: leave out --run"
        )
    return predicted


def _predictions(found: Mapping[str, Any]) -> list[Tensor]:
    """The outputs that are predictions by name; where none is, the first, such as the hidden states of a body.

    Others are not compared: what an encoder gives to its decoder may be turned where the function is the same.
    """
    import torch

    numbers = {key: value for key, value in found.items() if torch.is_tensor(value) and value.is_floating_point()}
    named = [value for key, value in numbers.items() if "logits" in key or key.startswith("pred_")]
    return named or list(numbers.values())[:1]


def _unloadable(folder: str | Path, error: Exception) -> IsomergeError:
    return IsomergeError(f"{folder}: transformers cannot load this checkpoint ({_said(error)}): leave out --run")


def _said(error: Exception) -> str:
    """The first line of what an error says, or else its name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

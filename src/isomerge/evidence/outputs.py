"""Comparing two models by running them on the same random inputs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError


def compare_outputs(one: str | Path, two: str | Path, *, seed: int = 0, batch: int = 2, length: int = 16) -> float:
    """The largest difference of two checkpoints' outputs relative to the largest output of the first.

    Token ids and pixels are drawn at random; both models run in float32 through ``from_pretrained``.

    Raises:
        IsomergeError: transformers cannot load a checkpoint, or its class does not run on tokens and pixels alone.
    """
    import torch
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    config: Any = AutoConfig.from_pretrained(one, trust_remote_code=False)
    rng = torch.Generator().manual_seed(seed)
    given = _inputs(config, rng, batch, length)
    names = [
        AutoConfig.from_pretrained(folder, trust_remote_code=False).architectures or [""] for folder in (one, two)
    ]
    # a head that only one model has would be drawn at random for the other: then the bodies are compared
    name = names[0][0] if names[0] == names[1] else ""
    first, second = (_run(folder, name, given) for folder in (one, two))
    return float((first - second).abs().max() / first.abs().max().clamp_min(1e-30))


def _inputs(config: Any, rng: Any, batch: int, length: int) -> dict[str, Any]:
    """Random pixels and token ids, of a config or of the parts of one: a picture where it knows a size of pictures, a film
    where it counts frames, a text where it has a vocabulary, or no pictures."""
    import torch

    seeing = next((part for part in _parts(config, "vision") if getattr(part, "image_size", None)), None)
    reading = next((part for part in _parts(config, "text") if getattr(part, "vocab_size", None)), None)
    given: dict[str, Any] = {}
    if seeing is not None:
        size = seeing.image_size
        shape = (*(size if isinstance(size, (list, tuple)) else (size, size)),)
        shape = (getattr(seeing, "num_channels", 3), *shape)
        shape = (seeing.num_frames, *shape) if getattr(seeing, "num_frames", None) else shape
        given["pixel_values"] = torch.randn(batch, *shape, generator=rng)
    if reading is not None:
        ids = torch.randint(0, reading.vocab_size, (batch, length), generator=rng)
        given["input_ids"] = ids
        if config.is_encoder_decoder:
            given["decoder_input_ids"] = ids
    return given


def _parts(config: Any, kind: str) -> list[Any]:
    """A config, and that of what it sees or reads with."""
    found = (getattr(config, name, None) for name in (f"{kind}_config", "backbone_config"))
    return [config, *(part for part in found if part is not None)]


def _run(folder: str | Path, name: str, given: dict[str, Any]) -> Any:
    import torch
    import transformers

    kind: Any = getattr(transformers, name, transformers.AutoModel) if name else transformers.AutoModel
    try:
        model = kind.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise IsomergeError(
            f"{folder}: transformers cannot load this checkpoint ({str(error).splitlines()[0]})"
        ) from None
    taken = inspect.signature(model.forward).parameters  # BEiT has a vocabulary, of pictures, and reads no tokens
    try:
        with torch.no_grad():
            found = model(**{key: value for key, value in given.items() if key in taken})
    except Exception as error:  # classes that ask for other inputs say so in many ways
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise IsomergeError(
            f"{folder}: {type(model).__name__} does not run on random tokens and pixels alone ({said}): leave out --run"
        ) from None
    numbers = {key: value for key, value in found.items() if torch.is_tensor(value) and value.is_floating_point()}
    return numbers["logits"] if "logits" in numbers else next(iter(numbers.values()))

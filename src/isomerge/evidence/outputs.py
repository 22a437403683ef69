"""Comparing two models by running them on the same random inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError


def compare_outputs(one: str | Path, two: str | Path, *, seed: int = 0, batch: int = 2, length: int = 16) -> float:
    """The largest difference of two checkpoints' outputs relative to the largest output of the first.

    Token ids (or pixels) are drawn at random; both models run in float32 through ``from_pretrained``.

    Raises:
        IsomergeError: transformers cannot load a checkpoint.
    """
    import torch
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    config: Any = AutoConfig.from_pretrained(one, trust_remote_code=False)
    rng = torch.Generator().manual_seed(seed)
    if getattr(config, "image_size", None):
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        given = {"pixel_values": torch.randn(batch, config.num_channels, height, width, generator=rng)}
    else:
        ids = torch.randint(0, config.vocab_size, (batch, length), generator=rng)
        given = {"input_ids": ids}
        if config.is_encoder_decoder:
            given["decoder_input_ids"] = ids
    names = [
        AutoConfig.from_pretrained(folder, trust_remote_code=False).architectures or [""] for folder in (one, two)
    ]
    # a head that only one model has would be drawn at random for the other: then the bodies are compared
    name = names[0][0] if names[0] == names[1] else ""
    first, second = (_run(folder, name, given) for folder in (one, two))
    return float((first - second).abs().max() / first.abs().max().clamp_min(1e-30))


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
    with torch.no_grad():
        found = model(**given)
    return found.logits if hasattr(found, "logits") else found.last_hidden_state

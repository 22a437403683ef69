"""Comparing two models by running them on the same random inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.observe.live.modules import eager_experts
from isomerge.progress import silent


def compare_outputs(
    first: str | Path, second: str | Path, *, seed: int = 0, batch: int = 2, length: int = 16
) -> dict[str, float]:
    """How far two checkpoints' outputs are apart, each by its name, relative to the largest number of the first's.

    Token ids and pixels are drawn at random; both models run in float32 through ``from_pretrained``. All that the
    class `returned` count (logits, hidden states, boxes).

    Raises:
        IsomergeError: transformers cannot load a checkpoint, its class does not run on tokens and pixels alone, or
            what it gives is not a number.
    """
    configs = [_config(folder) for folder in (first, second)]
    inputs = _inputs(configs[0], torch.Generator().manual_seed(seed), batch, length)
    names = [config.architectures or [""] for config in configs]
    # a head that only one model has would be drawn at random for the other: then the bodies are compared
    name = names[0][0] if names[0] == names[1] else ""
    return differences(*(_run(folder, name, inputs, seed) for folder in (first, second)))


def predictions(apart: Mapping[str, float]) -> dict[str, float]:
    """Those outputs that are no hidden states, by the names that transformers gives them."""
    return {name: much for name, much in apart.items() if "hidden_state" not in name}


def _inputs(config: Any, rng: Any, batch: int, length: int) -> dict[str, Tensor]:
    """Random pixels and token ids, of a config or of the parts of one: a picture where it knows a size of pictures,
    a film where it counts frames, a text where it has a vocabulary, or no pictures."""
    seeing = next((part for part in _parts(config, "vision") if getattr(part, "image_size", None)), None)
    reading = next((part for part in _parts(config, "text") if getattr(part, "vocab_size", None)), None)
    inputs: dict[str, Tensor] = {}
    if seeing is not None:
        shape = (getattr(seeing, "num_channels", 3), *_sides(seeing.image_size))
        shape = (seeing.num_frames, *shape) if getattr(seeing, "num_frames", None) else shape
        inputs["pixel_values"] = torch.randn(batch, *shape, generator=rng)
    if reading is not None:
        ids = torch.randint(0, reading.vocab_size, (batch, length), generator=rng)
        inputs["input_ids"] = ids
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids
    return inputs


def _sides(size: Any) -> Sequence[int]:
    """Height and width, which configs write in three ways."""
    if isinstance(size, Mapping):
        return size["height"], size["width"]
    return size if isinstance(size, (list, tuple)) else (size, size)


def _parts(config: Any, kind: str) -> list[Any]:
    """A config, and that of what it sees or reads with."""
    parts = (getattr(config, name, None) for name in (f"{kind}_config", "backbone_config"))
    return [config, *(part for part in parts if part is not None)]


def _config(folder: str | Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a model of plain torch, or of a newer transformers
        raise _unloadable(folder, error) from None


def _run(folder: str | Path, name: str, inputs: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """What the model returns for these inputs; tensors that its class has and the checkpoint lacks are drawn from
    the seed."""
    import transformers

    kind: Any = getattr(transformers, name, transformers.AutoModel) if name else transformers.AutoModel
    try:
        experts = eager_experts(_config(folder).to_dict())
        with silent(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = kind.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False, **experts).eval()
    except Exception as error:  # OSError, ValueError, RuntimeError, KeyError, ImportError: whatever does not fit
        raise _unloadable(folder, error) from None
    model.config.return_dict = True  # a config may ask for tuples, which have no names
    taken = inspect.signature(model.forward).parameters  # BEiT has a vocabulary, of pictures, and reads no tokens
    try:
        with torch.no_grad():
            outcome = model(**{key: value for key, value in inputs.items() if key in taken})
    except Exception as error:  # classes that ask for other inputs say so in many ways
        raise IsomergeError(
            f"{folder}: {type(model).__name__} does not run on random tokens and pixels alone ({_said(error)}): "
            f"leave out --run"
        ) from None
    outputs = {key: value for key, value in returned(outcome).items() if value.is_floating_point()}
    if not outputs or any(bool(x.isnan().any()) for x in outputs.values()):
        raise IsomergeError(
            f"{folder}: {type(model).__name__} gives {'no numbers' if outputs else 'nothing'} for random tokens "
            "and pixels that could be compared: leave out --run"
        )
    return outputs


CACHES = ("past_key_values", "cache_params", "past_buckets_states", "mems", "state")
"""What a class returns to be given back to it with the next token: no outputs, but states of its inside, in
whatever basis."""


def returned(outcome: Any, name: str = "") -> dict[str, Tensor]:
    """Every tensor that a model returned, by the path of its name (``text_model_output.last_hidden_state``), but
    for `CACHES`.

    Args:
        found: what ``forward`` returned: a mapping, a sequence, a dataclass or a tensor, nested in any way.
        name: what the path begins with.
    """
    if torch.is_tensor(outcome):
        return {name: outcome}
    if is_dataclass(outcome) and not isinstance(outcome, Mapping):
        outcome = vars(outcome)
    if isinstance(outcome, Mapping):
        parts = {str(key): value for key, value in outcome.items() if key not in CACHES}
    elif isinstance(outcome, (list, tuple)):
        parts = {str(number): value for number, value in enumerate(outcome)}
    else:
        return {}
    dot = f"{name}." if name else ""
    return {path: tensor for key, value in parts.items() for path, tensor in returned(value, f"{dot}{key}").items()}


def differences(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, float]:
    """By how much what two models `returned` differs, tensor by tensor, relative to the largest finite number of
    the first.

    A tensor that one lacks, that has another shape, or that is not a number where the other's is, differs by
    infinity.
    """
    return {
        name: _difference(first[name], second[name]) if name in first and name in second else float("inf")
        for name in {**first, **second}
    }


def _difference(first: Tensor, second: Tensor) -> float:
    if first.shape != second.shape:
        return float("inf")
    if not first.numel():
        return 0.0
    a, b = (x if x.is_floating_point() or x.is_complex() else x.double() for x in (first, second))
    alike = (a == b) | (a.isnan() & b.isnan())  # infinities stand for what is never predicted
    largest = a.abs().masked_fill(~a.isfinite(), 0).max()
    change = (a - b).abs().masked_fill(alike, 0)
    change = change.masked_fill(change.isnan(), float("inf"))
    return float(change.max() / largest.clamp_min(1e-30))


def _unloadable(folder: str | Path, error: Exception) -> IsomergeError:
    return IsomergeError(f"{folder}: transformers cannot load this checkpoint ({_said(error)}): leave out --run")


def _said(error: Exception) -> str:
    """The first line of what an error says, or else its name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

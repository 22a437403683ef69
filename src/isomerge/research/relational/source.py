"""What a live Hugging Face module says beside its weights: how it scores, turns and activates."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.spec_text import parse_spec

ATTENTION = """
model MultiheadAttention
size res = embed_dim
size h = num_heads
size qk = res // h
size ov = res // h
residual res: O
space h: Perm
space qk: GL[h]
space ov: GL[h]
in_proj_weight   [h qk | h qk' | h ov] res'
in_proj_bias     [h qk | h qk' | h ov]
out_proj.weight  res (h ov')
out_proj.bias    res
"""
"""torch.nn.MultiheadAttention as a spec text."""
TURNING = ("dynamic", "longrope")
"""Rotary positions whose angles depend on the length of the input."""


@dataclass(frozen=True)
class Scores:
    """How attention scores are made: their scales per layer, who may read whom, and the angles of rotary
    positions."""

    scales: tuple[float, ...]
    causal: bool
    angles: Tensor | None


def scores_of(module: nn.Module, *, rotary: bool) -> Scores:
    """Read the attributes that all attention modules of transformers have.

    Args:
        module: a model, or one attention module.
        rotary: whether its spec has rotary pairs.

    Raises:
        IsomergeError: rotary angles that are not fixed, or a module without ``scaling``.
    """
    attentions: list[Any] = [m for m in module.modules() if isinstance(getattr(m, "scaling", None), float)]
    if not attentions:
        raise IsomergeError(
            f"{type(module).__name__} has no attention module that tells its scaling, from which the relational "
            "form is made: take a model such as GPT-2, ViT or Llama"
        )
    causal = any(getattr(m, "is_causal", False) for m in attentions)
    if not rotary:
        return Scores(tuple(m.scaling for m in attentions), causal, None)
    turning: Any = next((m for m in module.modules() if hasattr(m, "inv_freq")), None) or _rotary_of(module)
    if getattr(turning, "rope_type", "default") in TURNING:
        raise IsomergeError(
            f"{type(module).__name__}: rotary positions of type {turning.rope_type} change with the length of the "
            "input, which no fixed form describes: take a model with fixed ones"
        )
    # cosine and sine times a factor are scores times its square
    factor = float(getattr(turning, "attention_scaling", 1.0)) ** 2
    angles = turning.inv_freq.detach().double().cpu()
    return Scores(tuple(m.scaling * factor for m in attentions), causal, angles)


def _rotary_of(module: Any) -> Any:
    """The rotary module that belongs to a lone attention module: the one of its own source file."""

    there = vars(sys.modules[type(module).__module__])
    kind = next((k for name, k in there.items() if name.endswith("RotaryEmbedding")), None)
    if kind is None:
        raise IsomergeError(
            f"{type(module).__name__}: no rotary embedding is known for it: convert the whole model"
        )
    return kind(config=module.config)


def setting(spec: Spec, config: Mapping[str, Any], word: str) -> Any:
    """The value of the one config key of a spec that contains a word, such as ``eps``.

    Raises:
        IsomergeError: the spec names none.
    """
    key = next((k for k in spec.config_keys if word in k and config.get(k) is not None), None)
    if key is None:
        raise IsomergeError(
            f"the spec for {spec.model_type} names no config key with {word!r}: add it to its config line"
        )
    return config[key]


def eps_of(module: nn.Module, spec: Spec, config: Mapping[str, Any]) -> float:
    """What the norms of a model add below the root: from its config or, where that does not tell (OPT), from its
    norms.

    Raises:
        IsomergeError: neither tells it.
    """
    if any("eps" in key for key in spec.config_keys):
        return setting(spec, config, "eps")
    told = (getattr(m, name, None) for m in module.modules() for name in ("eps", "variance_epsilon"))
    eps = next((each for each in told if isinstance(each, float)), None)
    if eps is None:
        raise IsomergeError(
            f"neither the config nor the norms of {type(module).__name__} tell what they add below the root (eps), "
            "which the relational form needs: take a model such as GPT-2, ViT or Llama"
        )
    return eps


def attention_spec(module: nn.Module) -> tuple[Spec, dict[str, Tensor]]:
    """The spec of an attention module, and its tensors by the spec's names.

    Raises:
        IsomergeError: not an attention module of torch, or of a model that a spec describes.
    """
    own = {name: p.detach() for name, p in module.named_parameters()}
    if isinstance(module, nn.MultiheadAttention):
        config: dict[str, Any] = {"embed_dim": module.embed_dim, "num_heads": module.num_heads}
        return parse_spec(ATTENTION, config, "torch.nn.MultiheadAttention"), own
    config = config_of(module)
    spec = spec_for(config)
    places = [_places(spec, name) for name in own]
    shared = sorted(set.intersection(*places)) if places else []
    if not shared:
        raise IsomergeError(
            f"{type(module).__name__} is no attention module of {spec.model_type}: pass a whole model, or the "
            "module that holds the projections"
        )
    return spec, {f"{shared[0]}.{name}": p for name, p in own.items()}


def config_of(module: nn.Module) -> dict[str, Any]:
    """The config of a Hugging Face module.

    Raises:
        IsomergeError: it has none.
    """
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise IsomergeError(
            f"{type(module).__name__} has no Hugging Face config: from_standard takes transformers' models and "
            "attention modules, and torch.nn.MultiheadAttention"
        )
    return config.to_dict()


def _places(spec: Spec, local: str) -> set[str]:
    """The modules of layer 0 that have a tensor of this name, as the spec writes them."""
    places = set()
    for line in spec.lines:
        for name in _alternatives(line.name):
            full = name.replace("{l}", "0")
            if full.endswith(f".{local}"):
                places.add(full.removesuffix(f".{local}"))
    return places


def _alternatives(pattern: str) -> list[str]:
    """A name pattern, its ``(a|b)`` written out."""
    start, end = pattern.find("("), pattern.find(")")
    if start < 0:
        return [pattern]
    choices = pattern[start + 1 : end].split("|")
    return [pattern[:start] + c + rest for c in choices for rest in _alternatives(pattern[end + 1 :])]

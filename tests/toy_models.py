"""Constructors of tiny models that several families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transformers as tf
from safetensors.torch import load_file, save_file

from toy_settings import IMAGE


def composite(kind: str, text: Any, vision: Any, **settings: Any) -> Any:
    config = getattr(tf, f"{kind}Config")(
        text_config=text, vision_config=vision, image_token_index=IMAGE, pad_token_id=0, **settings
    )
    return getattr(tf, f"{kind}ForConditionalGeneration")(config)


def causal(kind: str, settings: dict[str, Any], **changes: Any) -> Any:
    return composed(kind, settings, "ForCausalLM", **changes)


def made(name: str, kind: str, **settings: Any) -> Callable[[], Any]:
    """A model class and its config by the name that they begin with."""
    return lambda: getattr(tf, name + kind)(getattr(tf, name + "Config")(**settings))


def ahead(model: Any, last: str, ahead: str, beside: Mapping[str, str]) -> Any:
    """A layer that predicts a further token stands in the file as well, as it is published; transformers leaves it
    out.

    Args:
        model: to be saved.
        last: what the names of its last layer begin with.
        ahead: what stands there in the names of the further layer's tensors.
        beside: the layer's other tensors, like which one each of them is; "fused" reads two streams.
    """

    def save(folder: Path) -> None:
        save_alone(folder)
        held = load_file(folder / "model.safetensors")
        fused = next(t for k, t in held.items() if k in ("lm_head.weight", "head.weight"))[:48].repeat(1, 2)
        more = {name: (fused if like == "fused" else held[like]).clone() for name, like in beside.items()}
        more |= {k.replace(last, ahead): t.clone() for k, t in held.items() if k.startswith(last)}
        save_file(held | more, folder / "model.safetensors", metadata={"format": "pt"})

    save_alone, model.save_pretrained = model.save_pretrained, save
    return model


def behind(model: Any) -> Any:
    """The same, where the further layer is numbered like the others (DeepSeek, GLM)."""
    names = {f"{n}.weight": "model.norm.weight" for n in ("enorm", "hnorm", "shared_head.norm")}
    names |= {"eh_proj.weight": "fused", "embed_tokens.weight": "lm_head.weight"}
    beside = {f"model.layers.2.{name}": like for name, like in names.items()}
    return ahead(model, "model.layers.1.", "model.layers.2.", beside)


def composed(family: str, settings: dict[str, Any], kind: str = "ForConditionalGeneration", **changes: Any) -> Any:
    return getattr(tf, family + kind)(getattr(tf, f"{family}Config")(**{**settings, **changes}))


def in_stages(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """The settings of fewer stages."""
    return {
        key: value[:count] if isinstance(value, list) and len(value) == 4 else value
        for key, value in settings.items()
    }

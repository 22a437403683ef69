"""The recipes that both tools merge, and the tiny models that they merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

MODELS = ("one", "two", "three")
SHAPE = {
    "vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 80,
    "max_position_embeddings": 32,
}  # fmt: skip
GROUPED = {**SHAPE, "num_key_value_heads": 2, "tie_word_embeddings": False}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "bert": ("BertForSequenceClassification", "BertConfig", SHAPE),
}

WEIGHTS = {"weight": [1.0, 0.6, 0.3]}
THIN = {**WEIGHTS, "density": [0.5, 0.3, 0.8]}


class Recipe(NamedTuple):
    """A merge: ``own`` has one value per model and parameter, and says how many models there are."""

    method: str
    common: dict[str, Any]
    own: dict[str, list[float]]
    base: bool = True
    dtype: str = "float32"
    models: tuple[str, ...] = MODELS


ONE, THREE = {"weight": [1.0]}, {"weight": [1.0] * 3}
TWO = {"weight": [1.0, 0.4]}
CRUMBS = {**THIN, "gamma": [0.01, 0.1, 0.3]}
SLICES = {"nuslerp_flatten": False}
ROWS = {**SLICES, "nuslerp_row_wise": True}
RECIPES = {
    "linear": Recipe("linear", {}, WEIGHTS, False),
    "linear-sum": Recipe("linear", {"normalize": False}, WEIGHTS, False),
    "slerp": Recipe("slerp", {"t": 0.3}, ONE), "slerp-ends": Recipe("slerp", {"t": 1.0}, ONE),
    "slerp-light": Recipe("slerp", {"t": 0.3}, ONE, models=("light",)),
    "nuslerp": Recipe("nuslerp", {}, TWO, False), "nuslerp-base": Recipe("nuslerp", {}, TWO),
    "nuslerp-last": Recipe("nuslerp", SLICES, TWO),
    "nuslerp-rows-float64": Recipe("nuslerp", ROWS, TWO, dtype="float64"),
    "nuslerp-rows-float32": Recipe("nuslerp", ROWS, TWO), "multislerp": Recipe("multislerp", {}, WEIGHTS, False),
    "multislerp-base": Recipe("multislerp", {"normalize_weights": False}, WEIGHTS),
    "karcher": Recipe("karcher", {}, THREE, False),
    "task_arithmetic": Recipe("task_arithmetic", {"lambda": 0.8}, WEIGHTS),
    "task_arithmetic-mean": Recipe("task_arithmetic", {"normalize": True}, WEIGHTS),
    "ties": Recipe("ties", {}, THIN),
    "ties-sum": Recipe("ties", {"normalize": False, "rescale": True, "int8_mask": True, "lambda": 0.5}, THIN),
    "breadcrumbs": Recipe("breadcrumbs", {}, CRUMBS),
    "breadcrumbs_ties": Recipe("breadcrumbs_ties", {"normalize": True}, CRUMBS),
    "model_stock": Recipe("model_stock", {}, THREE),
    "model_stock-rows": Recipe("model_stock", {"filter_wise": True}, THREE), "sce": Recipe("sce", {}, THREE),
    "sce-half": Recipe("sce", {"select_topk": 0.5}, THREE), "nearswap": Recipe("nearswap", {"t": 0.01}, ONE),
    "arcee_fusion": Recipe("arcee_fusion", {}, ONE),
    "arcee_fusion-light-float64": Recipe("arcee_fusion", {}, ONE, dtype="float64", models=("light",)),
    "arcee_fusion-light-float32": Recipe("arcee_fusion", {}, ONE, models=("light",)),
    "ram": Recipe("ram", {"epsilon": 0.01}, THREE), "ramplus_tl": Recipe("ramplus_tl", {"epsilon": 0.01}, THREE),
    "passthrough": Recipe("passthrough", {}, {"scale": [0.5]}, False),
    "dare_linear": Recipe("dare_linear", {}, {**ONE, "density": [0.3]}),
    "dare_linear-plain": Recipe("dare_linear", {"rescale": False}, {**ONE, "density": [0.3]}),
    "dare_ties": Recipe("dare_ties", {}, {**TWO, "density": [0.5, 0.7]}),
    "della": Recipe("della", {}, {**TWO, "density": [0.5, 0.6], "epsilon": [0.2, 0.3]}),
    "della_linear": Recipe("della_linear", {}, {**ONE, "density": [0.4], "epsilon": [0.3]}),
}  # fmt: skip
RANDOM = {"dare_linear", "dare_ties", "della", "della_linear"}
IGNORED = {"karcher", "model_stock", "sce", "ram", "ramplus_tl", "slerp", "nearswap", "arcee_fusion"}
"""Methods without parameters per model; their lists only say how many models there are."""


def as_yaml(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The recipe as both tools read it; ``folder`` has the models."""
    models = []
    for k in range(len(next(iter(recipe.own.values())))):
        entry: dict[str, Any] = {"model": str(folder / recipe.models[k])}
        if recipe.method not in IGNORED:
            entry["parameters"] = {name: values[k] for name, values in recipe.own.items()}
        models.append(entry)
    found: dict[str, Any] = {"models": models, "merge_method": recipe.method, "dtype": recipe.dtype}
    if recipe.common:
        found["parameters"] = recipe.common
    if recipe.base:
        found["base_model"] = str(folder / "base")
    return found


def write_models(kind: str, folder: Path) -> None:
    """A random base, three models that look fine-tuned from it (dense changes, and larger ones of rank one), and
    one that is hardly changed (by 1e-4, as a short fine-tune at a small learning rate)."""
    import torch
    import transformers

    model_class, config_class, shape = KINDS[kind]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**shape))
    rng = torch.Generator().manual_seed(sorted(KINDS).index(kind))
    for p in model.parameters():
        p.data = float(p.ndim == 1) + 0.2 * torch.randn(p.shape, generator=rng)
    model.tie_weights()
    model.save_pretrained(folder / "base")
    start = [p.data.clone() for p in model.parameters()]
    for name, size in [*((name, 1.0) for name in MODELS), ("light", 0.002)]:
        for p, origin in zip(model.parameters(), start, strict=True):
            change = 0.02 * torch.randn(p.shape, generator=rng)
            if p.ndim == 2:
                change += 0.05 * torch.outer(*(torch.randn(n, generator=rng) for n in p.shape))
            p.data = origin + size * change
        model.tie_weights()
        model.save_pretrained(folder / name)

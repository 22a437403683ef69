"""The models that pairs are made of: the tests' small ones, untrained ones as transformers initialises them, and
language models that are trained here, on one text or another."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.harness import DATA, reach_tests
from benchmarks.looks.pairs import Root, Weights
from isomerge.checkpoint.opening import open_checkpoint

TRAINED = DATA / "looks"
TOYS = (
    "gpt2", "gpt2-untied", "gpt_neox", "gpt_neo", "opt", "bloom", "llama", "llama-tied", "llama-mqa", "qwen3", "mistral", "mixtral",
    "gemma2", "phi", "falcon", "olmo2", "cohere-normed", "starcoder2", "deepseek_v3", "falcon_h1", "mamba", "bert", "bert-relu",
    "roberta", "electra", "albert", "deberta-shared", "modernbert", "distilbert", "t5-gated", "mbart", "whisper", "clip", "vit",
    "dinov2-swiglu", "swin", "wav2vec2",
)  # fmt: skip
WIDTHS = (32, 128, 512, 1024)
"""Of untrained models."""


def _saved(make: Callable[[], Any], seed: int) -> tuple[Weights, dict[str, Any]]:
    """A model's weights as transformers saves them, in float32, and its config."""
    torch.manual_seed(seed)
    model = make()
    model.tie_weights()
    ties = {name for name in (getattr(model, "_tied_weights_keys", None) or {}) if model.config.tie_word_embeddings}
    weights = {n: t.detach().clone().contiguous() for n, t in model.state_dict().items() if n not in ties}
    return weights, model.config.to_diff_dict() | {"architectures": [type(model).__name__]}


def toy(name: str, folder: Path) -> Root:
    """One of the tests' toys, with one of another seed."""
    reach_tests()
    from toys import save_toy

    weights = []
    for seed in (0, 1):
        path = save_toy(name, folder / f"{name}-{seed}", seed=seed, dtype=torch.float32)
        weights.append((open_checkpoint(path), seed))
    first, other = (({n: c.read(n).clone() for n in c.tensors}, c.config) for c, _ in weights)
    return Root(name, *first, (("another seed", other[0]),))


def _config(kind: str, width: int, layers: int, vocabulary: int, *, tied: bool) -> tuple[type, Any]:
    """A small model of a kind: its class and its config."""
    heads = max(2, width // 32)
    if kind == "gpt2":
        names = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": 64}
        drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return tf.GPT2LMHeadModel, tf.GPT2Config(vocab_size=vocabulary, tie_word_embeddings=tied, **names, **drop)
    names = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    sizes = {"intermediate_size": 3 * width if kind != "bert" else 4 * width, "max_position_embeddings": 64}
    if kind == "bert":
        return tf.BertForMaskedLM, tf.BertConfig(vocab_size=vocabulary, **names, **sizes)
    if kind == "vit":
        return tf.ViTForImageClassification, tf.ViTConfig(**names, intermediate_size=4 * width, image_size=8, patch_size=2, num_channels=1, num_labels=10)  # fmt: skip
    if kind == "t5":
        t5 = {"d_model": width, "num_heads": heads, "d_kv": 32, "num_layers": layers, "d_ff": 3 * width}
        return tf.T5ForConditionalGeneration, tf.T5Config(vocab_size=vocabulary, tie_word_embeddings=tied, **t5)
    classes = {"llama": (tf.LlamaForCausalLM, tf.LlamaConfig), "qwen3": (tf.Qwen3ForCausalLM, tf.Qwen3Config)}
    made, config = classes[kind]
    more = {"num_key_value_heads": max(1, heads // 2), "head_dim": width // heads, "tie_word_embeddings": tied}
    return made, config(vocab_size=vocabulary, **names, **sizes, **more)


def untrained(kind: str, width: int) -> Root:
    """As transformers initialises it: gains are one, biases zero."""
    made, config = _config(kind, width, 2, 512, tied=True)
    (weights, own), *others = (_saved(lambda: made(config), seed) for seed in (0, 1))
    return Root(f"{kind}-{width}, untrained", weights, own, tuple(("another seed", w) for w, _ in others))


UNTRAINED = [
    *(("gpt2", width) for width in WIDTHS),
    *((kind, width) for kind in ("llama", "bert", "vit", "t5", "qwen3") for width in WIDTHS[:2]),
]

STEPS, FINE_TUNED, BATCH, WINDOW = 400, 60, 16, 64


@cache
def texts() -> dict[str, Tensor]:
    """Two texts as bytes: Python's own manual, and the source of its standard library."""
    manual = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    library = Path(pydoc_data.topics.__file__).parents[1]
    source = "\n".join(p.read_text(encoding="utf-8") for p in sorted(library.glob("[a-d]*.py")))
    return {
        name: torch.tensor(list(text.encode()), dtype=torch.long)
        for name, text in (("manual", manual), ("source", source))
    }


def _descend(model: Any, text: str, steps: int, order: int, rate: float) -> None:
    """Train on windows of a text, in an order."""
    data, rng = texts()[text], torch.Generator().manual_seed(order)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    model.train()
    for step in range(steps):
        at = torch.randint(len(data) - WINDOW, (BATCH,), generator=rng)
        batch = torch.stack([data[k : k + WINDOW] for k in at.tolist()])
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - step / steps)
        optimiser.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


FAMILIES = {
    "gpt2 tied": ("gpt2", True), "gpt2 untied": ("gpt2", False),
    "llama tied": ("llama", True), "llama untied": ("llama", False), "qwen3 tied": ("qwen3", True),
}  # fmt: skip
RUNS = {
    "root": (0, 0, "manual"), "another seed": (1, 0, "manual"), "a third seed": (2, 0, "manual"),
    "another seed, another order": (1, 1, "manual"), "another seed, another text": (1, 0, "source"),
}  # fmt: skip
"""Seed of the weights, order of the text, and the text."""
TUNES = {"tuned on its text": ("manual", 7, 3e-4), "tuned on another": ("source", 7, 1e-3)}
TRAINED_WIDTHS = {32: 1, 64: 1, 128: 0.5}
"""Widths of trained models, and the part of `STEPS` that they are given."""


def _run(family: str, width: int, run: str) -> tuple[Weights, dict[str, Any]]:
    """A model that was trained, or tuned from the root; kept on disk."""
    folder = TRAINED / f"{family}-{width}" / run
    kind, tied = FAMILIES[family]
    made, config = _config(kind, width, 3, 256, tied=tied)
    if not (folder / "config.json").is_file():
        share = TRAINED_WIDTHS[width]
        rate = 2e-3
        if run in RUNS:
            seed, order, text = RUNS[run]
            torch.manual_seed(seed)
            model = made(config)
            _descend(model, text, round(STEPS * share), order, rate)
        else:
            text, order, rate = TUNES[run]
            _run(family, width, "root")
            model = made.from_pretrained(folder.with_name("root"))
            _descend(model, text, round(FINE_TUNED * share), order, rate)
        model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    return weights, open_checkpoint(folder).config


def trained(family: str, width: int) -> Root:
    """A trained model with its fine-tunes and those of other seeds."""
    weights, config = _run(family, width, "root")
    others = tuple((run, _run(family, width, run)[0]) for run in RUNS if run != "root")
    tuned = tuple((run, _run(family, width, run)[0]) for run in TUNES)
    return Root(f"{family}-{width}, trained", weights, config, others, tuned)


def families() -> Iterator[tuple[str, int]]:
    """Of what is trained: family and width."""
    yield from product(FAMILIES, TRAINED_WIDTHS)

"""Documents of mergekit-moe through both tools.

Outputs that transformers can load are compared as it loads them, so that names and stacking do not count;
DeepSeek's, which it cannot, by their names.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import isomerge
from benchmarks.harness import DATA, Benchmark
from benchmarks.mergekit.methods import ROUNDING, run_reference, stored

FOLDER = DATA / "mergekit" / "experts"
SHAPE = {
    "vocab_size": 260, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 80,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
KINDS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
MORE: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "qwen3": {"head_dim": 8}}
NOTES = {
    "mixtral-llama-hidden_avg": (
        "expected: prompts of several lengths are padded by mergekit, and its mean counts the padding; isomerge runs "
        "prompts one by one. Of equal lengths (mixtral-llama-hidden_avg-even) both agree."
    ),
    "mixtral-llama-hidden-bfloat16": (
        "expected: mergekit runs the base model in bfloat16, isomerge in float32. With both in float32 "
        "(mixtral-llama-hidden) they agree."
    ),
}

FIRST = {"positive_prompts": ["w3 w4 w5", "w6 w7 w8 w9"], "negative_prompts": ["w10 w11"]}
SECOND = {"positive_prompts": ["w20 w21 w22 w23 w24"]}
THIRD = {"positive_prompts": ["w30", "w31 w32"], "negative_prompts": ["w3 w4", "w33 w34 w35"]}
EVEN = [{"positive_prompts": [f"w{k} w{k + 1}", f"w{k + 5} w{k + 6}"]} for k in (3, 14, 25)]
SHARED = {"positive_prompts": ["w12 w13 w14"], "residual_scale": 0.1}


def document(kind: str, gate: str, prompts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    experts = [{"source_model": str(FOLDER / f"{kind}-{k}"), **each} for k, each in enumerate(prompts)]
    return {
        "base_model": str(FOLDER / f"{kind}-0"), "gate_mode": gate, "dtype": "float32", "experts": experts,
        **more,
    }  # fmt: skip


def documents() -> dict[str, dict[str, Any]]:
    three = [FIRST, SECOND, THIRD]
    scaled = [FIRST, {**SECOND, "residual_scale": 0.5}, THIRD]
    gates = ("hidden", "cheap_embed", "random", "uniform_random")
    content = {f"mixtral-{k}-{gate}": document(k, gate, three) for k in ("llama", "mistral") for gate in gates}
    content["mixtral-llama-hidden_avg-even"] = document("llama", "hidden_avg", EVEN)
    content["mixtral-llama-hidden_avg"] = document("llama", "hidden_avg", three)
    content["mixtral-llama-scaled"] = document("llama", "hidden", scaled, experts_per_token=3)
    content["mixtral-llama-hidden-bfloat16"] = document("llama", "hidden", three)
    plain = {"source_model": str(FOLDER / "llama-2"), "residual_scale": 0.1}
    for gate in ("hidden", "random"):
        content[f"deepseek-llama-{gate}"] = document("llama", gate, three, shared_experts=[plain])
    for kind in ("qwen2", "llama"):
        for gate in ("hidden", "cheap_embed", "random"):
            gated = [{"source_model": str(FOLDER / f"{kind}-1"), **SHARED}]
            content[f"qwen-{kind}-{gate}"] = document(
                kind, gate, three, shared_experts=gated, architecture="qwen moe"
            )
    for gate in ("hidden", "cheap_embed", "random"):
        content[f"qwen3-{gate}"] = document("qwen3", gate, three)
    return content


def write_models(folder: Path) -> None:
    """Three tiny random models of every kind, each with a tokenizer of bytes."""
    import torch
    import transformers as tf
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({word: k for k, word in enumerate(words)}, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = tf.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<s>"
    )
    for kind, stem in KINDS.items():
        for seed in range(3):
            torch.manual_seed(seed)
            config = getattr(tf, f"{stem}Config")(**SHAPE, **MORE.get(kind, {}), initializer_range=0.2)
            model = getattr(tf, f"{stem}ForCausalLM")(config)
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.data.uniform_(0.5, 1.5)
            model.save_pretrained(folder / f"{kind}-{seed}")
            tokenizer.save_pretrained(folder / f"{kind}-{seed}")


def loaded(folder: Path) -> dict[str, Any]:
    """The tensors of a checkpoint as transformers loads them; what it lacks is an error."""
    import torch
    import transformers as tf

    load: Any = tf.AutoModelForCausalLM.from_pretrained
    model, info = load(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    return {name: tensor.double() for name, tensor in model.state_dict().items()}


def as_granite(theirs: dict[str, Any]) -> dict[str, Any]:
    """mergekit's DeepSeek tensors by the names, and in the stacks, of Granite-MoE with a shared MLP."""
    import torch

    found = {name: tensor for name, tensor in theirs.items() if ".mlp." not in name}
    heads = sorted({name.split(".mlp.")[0] for name in theirs if ".mlp." in name})
    for head in heads:
        count = sum(name.startswith(f"{head}.mlp.experts.") and "gate_proj" in name for name in theirs)
        each = [f"{head}.mlp.experts.{e}" for e in range(count)]
        both = [torch.cat([theirs[f"{e}.gate_proj.weight"], theirs[f"{e}.up_proj.weight"]]) for e in each]
        found[f"{head}.block_sparse_moe.input_linear.weight"] = torch.stack(both)
        downs = torch.stack([theirs[f"{e}.down_proj.weight"] for e in each])
        found[f"{head}.block_sparse_moe.output_linear.weight"] = downs
        found[f"{head}.block_sparse_moe.router.layer.weight"] = theirs[f"{head}.mlp.gate.weight"]
        shared = f"{head}.mlp.shared_experts"
        both = torch.cat([theirs[f"{shared}.gate_proj.weight"], theirs[f"{shared}.up_proj.weight"]])
        found[f"{head}.shared_mlp.input_linear.weight"] = both
        found[f"{head}.shared_mlp.output_linear.weight"] = theirs[f"{shared}.down_proj.weight"]
    return found


@cache
def prepared() -> None:
    run_reference(FOLDER, write_models, documents(), "experts")


def compared(name: str) -> dict[str, Any]:
    prepared()
    row: dict[str, Any] = {"document": name}
    if (error := FOLDER / f"{name}.error").exists():
        return {**row, "error": f"mergekit: {error.read_text()}", "agrees": False}
    ours_at, theirs_at = FOLDER / "ours" / name, FOLDER / "theirs" / name
    row["architecture"] = isomerge.merge(FOLDER / f"{name}.yml", out=ours_at, seed=1)["architecture"]
    if name.startswith("deepseek"):
        ours, theirs = stored(ours_at), as_granite(stored(theirs_at))
    else:
        ours, theirs = loaded(ours_at), loaded(theirs_at)
    if ours.keys() != theirs.keys():
        return {**row, "tensors_differ": sorted(ours.keys() ^ theirs.keys())[:6], "agrees": False}
    gaps = {key: float((ours[key] - theirs[key]).abs().max()) for key in ours}
    routers = [key for key in gaps if key.endswith((".gate.weight", "router.layer.weight", "expert_gate.weight"))]
    rest = max(gap for key, gap in gaps.items() if key not in routers)
    worst = max(gaps[key] for key in routers)
    note = {"note": NOTES[name]} if name in NOTES else {}
    return {**row, "routers": worst, "other_tensors": rest, "agrees": max(worst, rest) <= ROUNDING, **note}


BENCHMARK = Benchmark(
    "mergekit-moe", lambda asked: {name: {"name": name} for name in documents()}, compared, inside="documents",
    about=lambda cells: {"mergekit": "0.1.5", "within": ROUNDING},
)  # fmt: skip

"""The same documents through mergekit-moe 0.1.5 and through isomerge: the largest difference of any weight.

    python benchmarks/mergekit/experts.py [--python ENV/bin/python]   # writes benchmarks/results/mergekit-moe.json

mergekit runs in an environment of its own (see compare.py, which makes one). It runs the base model in bfloat16
where prompts are looked at; for the comparison of formulas it is made to run it in float32, and one row
(`hidden-bfloat16`) is as it comes. Outputs that transformers can load are compared as it loads them, so that names and
stacking do not count; DeepSeek's, which it cannot, by their names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "mergekit-moe.json"
SHAPE = {
    "vocab_size": 260, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 80,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
KINDS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
MORE: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "qwen3": {"head_dim": 8}}
LARGEST = 1e-6
"""Difference of float32 weights, and of rows of length one, that rounding explains."""

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

ONE = {"positive_prompts": ["w3 w4 w5", "w6 w7 w8 w9"], "negative_prompts": ["w10 w11"]}
TWO = {"positive_prompts": ["w20 w21 w22 w23 w24"]}
THREE = {"positive_prompts": ["w30", "w31 w32"], "negative_prompts": ["w3 w4", "w33 w34 w35"]}
EVEN = [{"positive_prompts": [f"w{k} w{k + 1}", f"w{k + 5} w{k + 6}"]} for k in (3, 14, 25)]
SHARED = {"positive_prompts": ["w12 w13 w14"], "residual_scale": 0.1}


def document(kind: str, gate: str, prompts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A document of mergekit-moe for models of a kind."""
    experts = [{"source_model": f"{kind}-{k}", **each} for k, each in enumerate(prompts)]
    return {"base_model": f"{kind}-0", "gate_mode": gate, "dtype": "float32", "experts": experts, **more}


def documents() -> dict[str, dict[str, Any]]:
    """All cases, by their names."""
    three = [ONE, TWO, THREE]
    scaled = [ONE, {**TWO, "residual_scale": 0.5}, THREE]
    gates = ("hidden", "cheap_embed", "random", "uniform_random")
    found = {f"mixtral-{k}-{gate}": document(k, gate, three) for k in ("llama", "mistral") for gate in gates}
    found["mixtral-llama-hidden_avg-even"] = document("llama", "hidden_avg", EVEN)
    found["mixtral-llama-hidden_avg"] = document("llama", "hidden_avg", three)
    found["mixtral-llama-scaled"] = document("llama", "hidden", scaled, experts_per_token=3)
    found["mixtral-llama-hidden-bfloat16"] = document("llama", "hidden", three)
    plain = {"source_model": "llama-2", "residual_scale": 0.1}
    for gate in ("hidden", "random"):
        found[f"deepseek-llama-{gate}"] = document("llama", gate, three, shared_experts=[plain])
    for kind in ("qwen2", "llama"):
        for gate in ("hidden", "cheap_embed", "random"):
            gated = [{"source_model": f"{kind}-1", **SHARED}]
            found[f"qwen-{kind}-{gate}"] = document(
                kind, gate, three, shared_experts=gated, architecture="qwen moe"
            )
    for gate in ("hidden", "cheap_embed", "random"):
        found[f"qwen3-{gate}"] = document("qwen3", gate, three)
    return found


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


def reference(folder: Path) -> None:
    """mergekit's side: every document of a folder; imports nothing of isomerge."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import yaml
    from mergekit.moe import router  # pyright: ignore[reportMissingImports]
    from mergekit.moe.config import MoEMergeConfig  # pyright: ignore[reportMissingImports]
    from mergekit.options import MergeOptions  # pyright: ignore[reportMissingImports]
    from mergekit.scripts.moe import build  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    load = router.AutoModelForCausalLM

    class InFloat32:
        @staticmethod
        def from_pretrained(*args: Any, **more: Any) -> Any:
            return load.from_pretrained(*args, **{**more, "torch_dtype": torch.float32})

    os.chdir(folder)
    for file in sorted(Path().glob("*.yml")):
        options = MergeOptions(write_model_card=False, random_seed=1, quiet=True)
        options.apply_global_options()
        torch.manual_seed(1)
        router.AutoModelForCausalLM = load if "bfloat16" in file.name else InFloat32
        out = Path("theirs") / file.stem
        out.mkdir(parents=True)
        try:
            build(MoEMergeConfig.model_validate(yaml.safe_load(file.read_text())), str(out), options, device="cpu")
        except (Exception, SystemExit) as error:  # whatever it is, it is a result
            file.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")


def stored(folder: Path) -> dict[str, Any]:
    """The tensors of a checkpoint as they are stored."""
    from safetensors.torch import load_file

    return {n: t.double() for file in sorted(folder.glob("*.safetensors")) for n, t in load_file(file).items()}


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


def compared(name: str, folder: Path) -> dict[str, Any]:
    """One document through both tools; mergekit's result is there already."""
    import isomerge

    row: dict[str, Any] = {"document": name}
    error = folder / f"{name}.error"
    if error.exists():
        return {**row, "error": f"mergekit: {error.read_text()}", "agrees": False}
    ours_at, theirs_at = folder / "ours" / name, folder / "theirs" / name
    report = isomerge.merge(folder / f"{name}.yml", out=ours_at, seed=1)
    row["architecture"] = report["architecture"]
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
    return {**row, "routers": worst, "other_tensors": rest, "agrees": max(worst, rest) <= LARGEST, **note}


def main() -> None:
    """Compare all documents, and write the table."""
    words = argparse.ArgumentParser()
    words.add_argument("--python")
    words.add_argument("--reference", type=Path)
    given = words.parse_args()
    if given.reference is not None:
        return reference(given.reference)
    import yaml

    if given.python is None:
        from compare import environment

        given.python = environment()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        for case, content in documents().items():
            (folder / f"{case}.yml").write_text(yaml.safe_dump(content, sort_keys=False))
        subprocess.run([given.python, __file__, "--reference", folder], check=True)
        here = Path.cwd()
        os.chdir(folder)
        rows = [compared(case, folder) for case in documents()]
        os.chdir(here)
    RESULTS.write_text(json.dumps({"mergekit": "0.1.5", "within": LARGEST, "documents": rows}, indent=1) + "\n")
    for row in rows:
        print(*row.values())
    sys.exit(any(not row["agrees"] and row["document"] not in NOTES for row in rows))


if __name__ == "__main__":
    main()

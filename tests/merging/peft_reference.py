"""What peft makes of small adapters: ``python tests/merging/peft_reference.py`` in an environment with peft.

It writes tests/merging/peft_adapters, which the tests read, as peft is none of their requirements; with ``check`` it
merges the same adapters by isomerge, loads the results by ``PeftModel.from_pretrained`` and prints how far the
outputs of the two models are from one another.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

HERE = Path(__file__).parent / "peft_adapters"
WEIGHTS = [0.7, -0.4]
DENSITY = 0.5
HALVES = ("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune")
MERGES: dict[str, dict[str, Any]] = {
    **{name: {"combination_type": name, "adapters": ["one", "two"]} for name in HALVES},
    "ties frequency": {"combination_type": "ties", "adapters": ["one", "two"], "majority_sign_method": "frequency"},
    **{name: {"combination_type": name, "adapters": ["one", "wide"]} for name in ("cat", "svd", "ties_svd")},
    "svd 3": {"combination_type": "svd", "adapters": ["one", "wide"], "svd_rank": 3},
    **{
        name: {"combination_type": name, "adapters": ["one", "wide"]}
        for name in ("dare_linear_svd", "dare_ties_svd", "magnitude_prune_svd")
    },
}
"""By a name: the arguments of ``add_weighted_adapter``; ``wide`` has another rank."""


class Base(nn.Module):
    """One module of every kind that LoRA changes."""

    def __init__(self) -> None:
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        self.table, self.conv = nn.Embedding(24, 16), nn.Conv2d(6, 8, 3)
        self.q, self.up, self.down = nn.Linear(16, 12), Conv1D(20, 16), nn.Linear(20, 16)

    def forward(self, ids: Tensor, image: Tensor) -> Tensor:
        """All outputs in one row."""
        x = self.table(ids)
        parts = [x, self.q(x), self.down(torch.tanh(self.up(x))), self.conv(image)]
        return torch.cat([part.flatten() for part in parts])


def base() -> Base:
    """The same one every time."""
    torch.manual_seed(0)
    return Base()


def outputs(model: nn.Module) -> Tensor:
    """Of a model of these modules."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return model(torch.arange(8), torch.randn(1, 6, 5, 5, generator=rng))


def configs() -> dict[str, Any]:
    """Ranks, alphas and modules that differ."""
    from peft import LoraConfig  # pyright: ignore[reportMissingImports]

    return {
        "one": LoraConfig(r=4, lora_alpha=6, target_modules=["q", "down", "table"], alpha_pattern={"down": 2}),
        "two": LoraConfig(r=4, lora_alpha=4, target_modules=["q", "up", "conv", "table"], use_rslora=True),
        "wide": LoraConfig(r=6, lora_alpha=3, target_modules=["q", "up", "conv", "table"]),
    }


def adapted() -> Any:
    """A model with the three adapters, all their halves drawn."""
    from peft import get_peft_model  # pyright: ignore[reportMissingImports]

    every = configs()
    model = get_peft_model(base(), every["one"], adapter_name="one")
    for name in ("two", "wide"):
        model.add_adapter(name, every[name])
    rng = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=rng) * 0.4
    return model


def merged(model: Any, name: str) -> dict[str, Tensor]:
    """The halves of one merge, and the masks that were drawn for it, by module."""
    from peft.tuners.lora.layer import LoraLayer  # pyright: ignore[reportMissingImports]
    from peft.utils import merge_utils  # pyright: ignore[reportMissingImports]

    drawn: list[Tensor] = []

    def pruning(tensor: Tensor, density: float, rescale: bool) -> Tensor:
        rng = torch.Generator().manual_seed(100 + len(drawn))
        drawn.append(torch.bernoulli(torch.full_like(tensor, density), generator=rng))
        return tensor * drawn[-1] / density

    merge_utils.random_pruning = pruning
    more = {k: v for k, v in MERGES[name].items() if k != "adapters"}
    label = name.replace(" ", "_")
    model.add_weighted_adapter(MERGES[name]["adapters"], WEIGHTS, label, density=DENSITY, **more)
    found: dict[str, Tensor] = {}
    for module, layer in model.base_model.model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        given = [k for k, key in enumerate(MERGES[name]["adapters"]) if key in layer.scaling]
        table = label in layer.lora_embedding_A
        for half in "AB":
            holder = getattr(layer, f"lora_embedding_{half}" if table else f"lora_{half}")
            found[f"{module}.{half}"] = (holder[label] if table else holder[label].weight).data
        turned = table or getattr(layer, "fan_in_fan_out", False)  # peft prunes products as the base stores them
        for what in () if not drawn else ("BA",) if name.endswith("svd") else "AB":
            for k in given:
                mask = drawn.pop(0).bool()
                mask = mask if what != "BA" else mask.T if turned else mask.flatten(1)
                found[f"{module}.mask.{what}.{k}"] = mask
    return found


PARAMETERS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    "gpt_oss": {"target_parameters": ["experts.down_proj"]},
    "dbrx": {"target_parameters": ["mlp.w1", "mlp.v1", "mlp.w2"]},
    "tokens": {"trainable_token_indices": [3, 17]},
    "tokens of two": {"trainable_token_indices": {"embed_tokens": [3, 17], "lm_head": [5]}},
}
"""By a name: what LoRA changes beside the queries of a small model."""
OF_BOTH = ("qwen3_moe", "gpt_oss")
"""Those of which there are two adapters."""


def whole(name: str) -> Any:
    """A small model, the same one every time: experts one by one in its file, together with inputs first, in two
    dimensions; or none."""
    import transformers as tf

    sizes: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "vocab_size": 24, "intermediate_size": 16,
    }  # fmt: skip
    experts: dict[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 3}
    if name == "qwen3_moe":
        config: Any = tf.Qwen3MoeConfig(**sizes, moe_intermediate_size=12, num_experts=3, num_experts_per_tok=2)
    elif name == "gpt_oss":  # whose inputs and outputs are as many
        config = tf.GptOssConfig(**sizes, **experts)
    elif name == "dbrx":
        config = tf.DbrxConfig(
            d_model=16, n_heads=2, n_layers=1, vocab_size=24, attn_config={"kv_n_heads": 1, "clip_qkv": 8, "rope_theta": 1e4},
            ffn_config={"ffn_hidden_size": 12, "moe_num_experts": 2, "moe_top_k": 1, "hidden_size": 16},
        )  # fmt: skip
    else:
        config = tf.LlamaConfig(**sizes, tie_word_embeddings=name == "tokens")
    model = tf.AutoModelForCausalLM.from_config(config).eval()
    rng = torch.Generator().manual_seed(3)
    for _, parameter in sorted(model.named_parameters()):
        parameter.data = torch.randn(parameter.shape, generator=rng) * 0.2
    return model


def write_parameters() -> None:
    """Adapters of parameters and of rows as peft saves them, and what it merges them to."""
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    for name, said in PARAMETERS.items():
        queries = [] if name in ("dbrx", "gpt_oss") else ["q_proj"]
        for number in range(2 if name in OF_BOTH else 1):
            place = HERE / "parameters" / name.replace(" ", "_") / str(number)
            model = whole(name)
            before = {key: x.clone() for key, x in model.state_dict().items()}
            config = LoraConfig(r=2, lora_alpha=3, target_modules=queries, init_lora_weights=False, **said)
            adapted = get_peft_model(model, config)
            rng = torch.Generator().manual_seed(4 + number)
            for key, parameter in adapted.named_parameters():
                if "lora_" in key or "trainable_tokens" in key:
                    parameter.data = torch.randn(parameter.shape, generator=rng) * 0.4
            adapted.save_pretrained(place)
            (place / "README.md").unlink()
            after = adapted.merge_and_unload().state_dict()
            moved = {key: x.contiguous().clone() for key, x in after.items() if not torch.equal(x, before[key])}
            save_file(moved, place / "merged.safetensors")


def write() -> None:
    """The adapters as peft saves them, and what it merges them to."""
    shutil.rmtree(HERE, ignore_errors=True)
    model = adapted()
    model.save_pretrained(HERE, selected_adapters=["one", "two", "wide"])
    for file in HERE.rglob("README.md"):
        file.unlink()
    every = {f"{name}/{key}": x.contiguous() for name in MERGES for key, x in merged(model, name).items()}
    save_file(every, HERE / "merged.safetensors")
    write_parameters()


def check() -> None:
    """Loads what isomerge writes."""
    from peft import PeftModel  # pyright: ignore[reportMissingImports]

    import isomerge

    model = adapted()
    for name, how in MERGES.items():
        if how["combination_type"].startswith("dare"):
            continue  # other entries are drawn
        merged(model, name)
        model.set_adapter(name.replace(" ", "_"))
        wanted = outputs(model)
        method = how["combination_type"]
        with TemporaryDirectory() as folder:
            density = {"density": DENSITY} if method.startswith(("ties", "magnitude")) else {}
            more = {"rank": how["svd_rank"]} if "svd_rank" in how else {}
            sign = {"majority_sign": how["majority_sign_method"]} if "majority_sign_method" in how else {}
            out = Path(folder) / "out"
            given = {"weights": WEIGHTS, "method": method, **density, **more, **sign}
            isomerge.merge_lora([HERE / key for key in how["adapters"]], out=out, **given)
            loaded = PeftModel.from_pretrained(base(), out)
            ranks = json.loads((out / "adapter_config.json").read_text())["rank_pattern"]
            apart = float((outputs(loaded) - wanted).abs().max() / (wanted - outputs(base())).abs().max())
        print(f"{name:20} outputs differ by {apart:.1e} of what the adapter changes; other ranks {ranks}")
    for name in OF_BOTH:
        pair = [HERE / "parameters" / name / str(number) for number in range(2)]
        with TemporaryDirectory() as folder, torch.no_grad():
            start, out, merged_in = (Path(folder) / word for word in ("base", "out", "merged"))
            whole(name).save_pretrained(start)
            isomerge.merge_lora(pair, out=out, method="cat", weights=WEIGHTS)
            isomerge.merge([f"{start}+{out}"], out=merged_in, method="passthrough")
            every = PeftModel.from_pretrained(whole(name), out), type(whole(name)).from_pretrained(merged_in)
            one, two = (model(input_ids=torch.arange(24)[None]).logits for model in every)
        print(f"{name:20} outputs with parameters' updates differ by {float((one - two).abs().max()):.1e}")


if __name__ == "__main__":
    check() if sys.argv[1:] == ["check"] else write()

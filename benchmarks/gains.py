"""Small gains in few bits: does ``isomerge align`` keep the function, and does no distance rise without a line?

    python -m benchmarks.gains OUT.json [--only llama,gpt2]   # 365 cases of 1 to 5 s each on one core

Five architectures, their gains set to numbers from 1 to 1e-8, and to zero: one channel of the anchor's first norm
as it is, or a fifth of all channels of the anchor, of the source or of both with the inverse factor on what reads
them (a gauge: the function stays). What is written is loaded by transformers and run in float64 beside the source.
Rows are appended to OUT.json.rows as they are found, and a run that is started again goes on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import isomerge
from isomerge.errors import IsomergeError
from isomerge.solve.pairs import stream_descent as streams

GAINS = (1.0, 1e-2, 1e-4, 1e-6, 1e-8, 0.0)
DTYPES = ("bfloat16", "float16", "float32")
CASES = ("anchor, one gain", "anchor, a fifth, balanced", "source, a fifth, balanced", "both, a fifth, balanced")
FUNCTION = {"bfloat16": 5e-2, "float16": 6e-3, "float32": 1e-3}
"""The largest change of the outputs, relative to their root mean square: docs/lab/residual.md."""
WIDTH = 16


def small(name: str) -> nn.Module:
    """A tiny model of an architecture, its weights drawn."""
    text = {
        "vocab_size": 64,
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32,
    }
    made = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**text)),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**text)),
        "gemma": lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(**text)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=64, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32, tie_word_embeddings=False,
                bos_token_id=0, eos_token_id=0,
            )
        ),
        "vit": lambda: transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16,
                patch_size=4, num_channels=1, num_labels=10,
            )
        ),
    }  # fmt: skip
    return made[name]().double().eval()


ARCHITECTURES = ("llama", "gpt2", "gemma", "qwen3", "vit")
# From the end of a norm's name to the ends of the names of what reads it.
READERS = {
    "input_layernorm": ("q_proj", "k_proj", "v_proj"), "post_attention_layernorm": ("gate_proj", "up_proj"),
    "model.norm": ("lm_head",), "ln_1": ("c_attn",), "ln_2": ("c_fc",), "ln_f": ("lm_head",),
    "layernorm_before": ("query", "key", "value", "q_proj", "k_proj", "v_proj"),
    "layernorm_after": ("intermediate.dense", "fc1"), "vit.layernorm": ("classifier",),
}  # fmt: skip


def drawn(name: str, seed: int) -> nn.Module:
    """Weights, biases and gains as those of a model that was trained: nothing is one or zero."""
    module, rng = small(name), torch.Generator().manual_seed(seed)
    for key, p in module.named_parameters():
        part = key.removesuffix(".weight")
        with torch.no_grad():
            if p.ndim == 1 and any(part.endswith(norm) for norm in (*READERS, "q_norm", "k_norm")):
                p.copy_(torch.rand(p.shape, generator=rng, dtype=p.dtype) + 0.5 - float(name == "gemma"))
            else:
                size = 0.1 if p.ndim == 1 else 0.3 if "emb" in key or "wte" in key else 0.2
                p.copy_(size * torch.randn(p.shape, generator=rng, dtype=p.dtype))
    return module


def norms(module: nn.Module) -> Iterator[tuple[str, Tensor, Tensor | None, list[Tensor]]]:
    """Every norm of the stream: its gain, its bias, and what reads it with the stream's axis last."""
    modules = dict(module.named_modules())
    for key, norm in modules.items():
        if end := next((end for end in READERS if key.endswith(end)), None):
            parent = key.rpartition(".")[0] if key.count(".") > 1 else ""
            within = [m for n, m in modules.items() if n.startswith(parent) and n.endswith(READERS[end])]
            weights = [m.weight.T if type(m).__name__ == "Conv1D" else m.weight for m in within]
            yield key, norm.weight, getattr(norm, "bias", None), weights


def set_gains(module: nn.Module, name: str, gain: float, case: str) -> None:
    """Put a gain on one channel of the first norm, or on a fifth of all, there with the inverse on the readers."""
    less = float(name == "gemma")
    for number, (_, weight, bias, readers) in enumerate(norms(module)):
        with torch.no_grad():
            if "one gain" in case:
                if number == 0:
                    weight[3] = gain - less
                continue
            at = slice(number % 5, None, 5)
            factor = gain / (weight[at] + less)
            weight[at] = gain - less
            if gain:
                for reader in readers:
                    reader[:, at] /= factor
                if bias is not None:
                    bias[at] *= factor


def outputs(folder: Path, name: str) -> Tensor:
    """What a stored model computes, in float64."""
    kind = transformers.AutoModelForImageClassification if name == "vit" else transformers.AutoModelForCausalLM
    module = kind.from_pretrained(folder, dtype=torch.float64).eval()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if name == "vit":
            return module(torch.randn(8, 1, 16, 16, generator=rng, dtype=torch.float64)).logits
        return module(torch.randint(0, 64, (8, 16), generator=rng)).logits


def tried(name: str, dtype: str, spaces: str, gain: float, case: str) -> dict[str, Any]:
    """One alignment: kept, refused, or changed; distances, and whether a rise was told."""
    row: dict[str, Any] = {"architecture": name, "dtype": dtype, "spaces": spaces, "gain": gain, "case": case}
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        for seed, which in enumerate(("anchor", "source")):
            module = drawn(name, seed)
            if case.startswith((which, "both")):
                set_gains(module, name, gain, case)
            module.to(getattr(torch, dtype)).save_pretrained(folder / which)
        try:
            _, report = isomerge.align(folder / "source", onto=folder / "anchor", out=folder / "out", spaces=spaces)
        except IsomergeError as error:
            return {**row, "outcome": "refused", "why": str(error).replace(f"{folder}/", "")}
        before, after = outputs(folder / "source", name), outputs(folder / "out", name)
        change = float((before - after).norm() / before.norm())
        distance = report["distance"]
        risen = distance["after"] > distance["before"] * (1 + 1e-6)
        return {
            **row,
            "outcome": "kept" if change <= FUNCTION[dtype] else "changed",
            "change": change,
            "rounding": (report["rounding"] or {}).get("error", 0.0),
            "before": distance["before"],
            "after": distance["after"],
            "norm": distance["norm"],
            "risen": risen,
            "told": any("rose from" in note for note in report["notes"]),
        }


def plan() -> list[tuple[str, str, str, float, str]]:
    """All cases: one gain first, then the others so ordered that those of a run that is cut short are of all
    kinds."""
    every = list(product(ARCHITECTURES, DTYPES, ("all", "default"), GAINS, CASES))
    every = [case for case in every if case[1] == "bfloat16" or case[2] == "all"]
    # numbers beyond float16 are no checkpoint, and one zero that is refused with all spaces says what every other
    # would
    every = [c for c in every if not (c[1] == "float16" and "balanced" in c[4] and c[3] < 1e-3)]
    every = [c for c in every if c[3] or (c[1] == "bfloat16" and "balanced" not in c[4])]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).tolist()
    return sorted((every[k] for k in order), key=lambda case: ("balanced" in case[4], case[2] != "all"))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the largest change of a function by dtype."""
    kept = [row for row in rows if "change" in row]
    return {
        "planned": len(plan()),
        "cases": len(rows),
        **{what: sum(row["outcome"] == what for row in rows) for what in ("kept", "refused", "changed")},
        "risen": sum(row["risen"] for row in kept),
        "risen_untold": sum(row["risen"] and not row["told"] for row in kept),
        "largest_change": {d: max((r["change"] for r in kept if r["dtype"] == d), default=0.0) for d in DTYPES},
        "tolerance": FUNCTION,
    }


def main() -> None:
    """Try all cases, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(ARCHITECTURES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    streams.SWEEPS = 6  # a descent that goes on changes distances, and nothing that is asked here
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kept = given.out.with_suffix(".rows")
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {tuple(row[k] for k in ("architecture", "dtype", "spaces", "gain", "case")) for row in rows}
    with kept.open("a") as log:
        for case in plan():
            if case in done or case[0] not in given.only.split(","):
                continue
            rows.append(tried(*case))
            log.write(json.dumps(rows[-1]) + "\n")
            log.flush()
            print(*case, rows[-1]["outcome"], rows[-1].get("change", ""), flush=True)
    rows.sort(key=lambda row: [str(row[k]) for k in ("architecture", "dtype", "spaces", "case", "gain")])
    given.out.write_text(json.dumps({"summary": summary(rows), "rows": rows}, indent=1, sort_keys=True) + "\n")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()

"""What people do to a checkpoint that should not hide where it comes from, on a config and its tensors in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.memory import in_memory
from isomerge.engine.free_streams import given_out
from isomerge.engine.models import Model, recognise
from isomerge.evidence.law import beside_streams, random_alignment, random_turn, with_streams

Weights = dict[str, Tensor]
Config = dict[str, Any]


def read(model: Model) -> Weights:
    """All tensors of a checkpoint, by their own names."""
    return {name: model.read(name, None).clone() for name in model.checkpoint.tensors}


def disguised(weights: Weights, config: Config, seed: int) -> Model:
    """A model moved by a random element of every space: the streams' largest groups, new gains, all local spaces, biases.

    Streams stay, and the gains outside of layers, where the model gives them out.
    """
    model = recognise(
        in_memory({n: t.double() if t.is_floating_point() else t for n, t in weights.items()}, config)
    )
    blocks = {block: model.assemble(block, None) for block in model.blocks}
    rng = torch.Generator().manual_seed(seed)
    if given_out(model):
        random_alignment(model.spec, model.blocks, rng, beside_streams(model.spec)).act(blocks)
    else:
        spec = with_streams(model.spec, "largest")
        random_turn(spec, model.blocks, lambda b: blocks[b].double(), rng, gains=True).act(blocks)
    moved = dict(weights)
    for block, tensor in blocks.items():
        for canonical, part in block.split(tensor):
            moved[model.names[canonical]] = part.float() if part.is_floating_point() else part
    return recognise(in_memory(moved, config))


def _matrices(change: Callable[[Tensor], Tensor]) -> Callable[[Weights, Config, int], tuple[Weights, Config]]:
    def done(weights: Weights, config: Config, seed: int) -> tuple[Weights, Config]:
        return {
            n: change(t.float()) if t.ndim > 1 and t.is_floating_point() else t for n, t in weights.items()
        }, config

    return done


def _pruned(share: float) -> Callable[[Tensor], Tensor]:
    def done(t: Tensor) -> Tensor:
        level = t.abs().flatten().kthvalue(max(1, int(share * t.numel()))).values
        return torch.where(t.abs() <= level, 0.0, t)

    return done


def _levels(bits: int) -> Callable[[Tensor], Tensor]:
    def done(t: Tensor) -> Tensor:
        step = t.abs().amax(-1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
        return (t / step).round() * step

    return done


def more_tokens(weights: Weights, config: Config, seed: int) -> tuple[Weights, Config]:
    """A vocabulary that is a tenth larger; new rows are as large as the old ones."""
    old = config["vocab_size"]
    new, rng = old // 10, torch.Generator().manual_seed(seed)

    def grown(name: str, t: Tensor) -> Tensor:
        tables = ("word_embeddings", "embed_tokens", "shared", "wte", "lm_head", "predictions")
        if not any(mark in name for mark in tables) or not t.ndim or t.shape[0] != old:
            return t
        return torch.cat([t, t.std() * torch.randn((new, *t.shape[1:]), generator=rng)])

    return {n: grown(n, t) for n, t in weights.items()}, {**config, "vocab_size": old + new}


def fewer_layers(weights: Weights, config: Config, seed: int) -> tuple[Weights, Config]:
    """One layer in the middle taken out."""
    depth = next(k for k in ("num_hidden_layers", "n_layer", "num_layers") if k in config)
    gone = config[depth] // 2
    marks = [f"{stack}.{{}}." for stack in ("layer", "layers", "h")]
    found = {}
    for name, t in weights.items():
        for mark in marks:
            head, dot, rest = name.partition(mark.partition("{")[0])
            number = rest.partition(".")[0]
            if dot and number.isdigit():
                if int(number) == gone:
                    break
                at = int(number) - (int(number) > gone)
                found[f"{head}{dot}{at}.{rest.partition('.')[2]}"] = t
                break
        else:
            found[name] = t
    return found, {**config, depth: config[depth] - 1}


def upcycled(weights: Weights, config: Config, seed: int) -> tuple[Weights, Config]:
    """Four experts, each the dense MLP with noise of a tenth of it, and a random router (Komatsuzaki et al. 2023)."""
    rng, found, width = torch.Generator().manual_seed(seed), {}, config["hidden_size"]
    parts = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for name, t in weights.items():
        at, dot, rest = name.partition(".mlp.")
        if not dot:
            found[name] = t
            continue
        for e in range(4):
            noise = 0.1 * t.std() * torch.randn(t.shape, generator=rng)
            found[f"{at}.block_sparse_moe.experts.{e}.{parts[rest.split('.')[0]]}.weight"] = t + noise
        found[f"{at}.block_sparse_moe.gate.weight"] = 0.02 * torch.randn(4, width, generator=rng)
    moe = {**config, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    return found, moe


DERIVATIONS: dict[str, Callable[[Weights, Config, int], tuple[Weights, Config]]] = {
    "as it is": lambda weights, config, seed: (weights, config),
    "bfloat16": _matrices(lambda t: t.bfloat16().float()),
    "8 bits a row": _matrices(_levels(8)),
    "4 bits a row": _matrices(_levels(4)),
    "half pruned": _matrices(_pruned(0.5)),
    "four fifths pruned": _matrices(_pruned(0.8)),
    "a layer less": fewer_layers,
    "more tokens": more_tokens,
    "upcycled to experts": upcycled,
}


def applies(how: str, config: Config) -> bool:
    """Whether a derivation makes sense for a model."""
    if how == "more tokens":
        return "vocab_size" in config
    if how == "upcycled to experts":
        return config["model_type"] == "llama"
    if how == "a layer less":
        return config["model_type"] != "t5"  # two stacks of blocks
    return True

"""What people do to a checkpoint that should not hide where it comes from, on a config and its tensors in
memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.in_memory import in_memory
from isomerge.evidence.law import beside_streams, random_alignment, random_turn, with_streams
from isomerge.models.free_streams import given_out
from isomerge.models.recognised import Model, recognise
from isomerge.quotient.draws import chosen
from isomerge.symmetry.axes import Atom, atoms
from isomerge.symmetry.blocks import Block

Weights = dict[str, Tensor]
Config = dict[str, Any]
Made = tuple[Weights, Config]
Change = Callable[[Weights, Config, int], Made]
LAYER = re.compile(r"(.*?\b(?:layer|layers|h)\.)(\d+)(\..*)")
"""The name of a tensor of a layer."""
NEURONS = ("intermediate_size", "n_inner", "d_ff")
EPSILONS = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps")


def read(model: Model) -> Weights:
    return {name: model.read(name, None).clone() for name in model.checkpoint.tensors}


def disguised(weights: Weights, config: Config, seed: int) -> Model:
    """A model moved by a random element of every space: the streams' largest groups, new gains, all local spaces,
    biases.

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


def _random(t: Tensor, rng: torch.Generator, size: float = 1.0) -> Tensor:
    """Random numbers of a tensor's shape and spread, or of so much of it."""
    return size * t.std() * torch.randn(t.shape, generator=rng)


def _is_matrix(t: Tensor) -> bool:
    return t.ndim > 1 and t.is_floating_point()


def _matrices(change: Callable[[Tensor, torch.Generator], Tensor]) -> Change:
    def done(weights: Weights, config: Config, seed: int) -> Made:
        rng = torch.Generator().manual_seed(seed)
        return {n: change(t.float(), rng) if _is_matrix(t) else t for n, t in weights.items()}, config

    return done


def _pruned(share: float) -> Change:
    def done(t: Tensor, rng: torch.Generator) -> Tensor:
        level = t.abs().flatten().kthvalue(max(1, int(share * t.numel()))).values
        return torch.where(t.abs() <= level, 0.0, t)

    return _matrices(done)


def _levels(bits: int) -> Change:
    def done(t: Tensor, rng: torch.Generator) -> Tensor:
        step = t.abs().amax(-1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
        return (t / step).round() * step

    return _matrices(done)


def _mixed(t: Tensor, rng: torch.Generator) -> Tensor:
    """Two fifths of a stranger: the same numbers in a random order."""
    return 0.6 * t + 0.4 * t.flatten()[torch.randperm(t.numel(), generator=rng)].reshape(t.shape)


def vocabulary(weights: Weights, config: Config) -> dict[str, int]:
    """The tensors that have a row, or an entry, for every token, and the axis that tokens are on."""
    model = recognise(in_memory(weights, config))
    return {
        name: at
        for name, match in model.matches.items()
        for at, axis in enumerate(match.line.axes or ())
        if isinstance(axis, Atom) and axis.name == "vocab"
    }


def _rows(weights: Weights, config: Config, change: Callable[[Tensor], Tensor]) -> Weights:
    """Every tensor of the vocabulary changed, tokens first."""
    tables = vocabulary(weights, config)
    return {
        n: change(t.movedim(tables[n], 0)).movedim(0, tables[n]).contiguous() if n in tables else t
        for n, t in weights.items()
    }


def more_tokens(weights: Weights, config: Config, seed: int) -> Made:
    old, rng = config["vocab_size"], torch.Generator().manual_seed(seed)

    def grown(t: Tensor) -> Tensor:
        return torch.cat([t, t.std() * torch.randn((old // 10, *t.shape[1:]), generator=rng)])

    return _rows(weights, config, grown), {**config, "vocab_size": old + old // 10}


def fewer_tokens(weights: Weights, config: Config, seed: int) -> Made:
    new = config["vocab_size"] // 2
    return _rows(weights, config, lambda t: t[:new]), {**config, "vocab_size": new}


def shuffled(weights: Weights, config: Config, seed: int) -> Made:
    """The vocabulary in another order, with its tokenizer: the same function of texts."""
    order = torch.randperm(config["vocab_size"], generator=torch.Generator().manual_seed(seed))
    return _rows(weights, config, lambda t: t[order]), config


def _of_tables(change: Callable[[Tensor, str, torch.Generator], object]) -> Change:
    """A copy of every table changed, of which the key says where its public anchors are."""

    def done(weights: Weights, config: Config, seed: int) -> Made:
        rng, changed = torch.Generator().manual_seed(seed), dict(weights)
        for block, name in _tables(weights, config):
            changed[name] = weights[name].clone()
            change(changed[name], block.key, rng)
        return changed, config

    return done


def _anchors_replaced(*lots: int) -> Change:
    """Other rows of the same size in place of public anchors of some draws, in every table."""

    def done(t: Tensor, key: str, rng: torch.Generator) -> None:
        at = [row for lot in lots for row in chosen(key, len(t), lot)]
        t[at] = t.std() * torch.randn((len(at), *t.shape[1:]), generator=rng)

    return _of_tables(done)


def _others_shuffled(t: Tensor, key: str, rng: torch.Generator) -> None:
    """All rows shuffled but the public anchors of both lots: another function of nearly all texts."""
    kept = {*chosen(key, len(t)), *chosen(key, len(t), 1)}
    rest = torch.tensor([n for n in range(len(t)) if n not in kept])
    t[rest] = t[rest[torch.randperm(len(rest), generator=rng)]]


def _tables(weights: Weights, config: Config) -> list[tuple[Block, str]]:
    """The tables of tokens that feed a stream, with more rows than anchors; two tables of a tied model are one."""
    model, tokens = recognise(in_memory(weights, config)), vocabulary(weights, config)
    found = []
    for block in model.blocks:
        name = model.names[block.canonical[0]]
        reads = any(a.dual for a in atoms(block.axes or ()))
        if tokens.get(name) == 0 and weights[name].ndim == 2 and not reads and len(weights[name]) > 64:
            found.append((block, name))
    return found


def embeddings_replaced(weights: Weights, config: Config, seed: int) -> Made:
    """Random rows of the same size in every table of tokens."""
    rng = torch.Generator().manual_seed(seed)
    return _rows(weights, config, lambda t: _random(t, rng)), config


def half_replaced(weights: Weights, config: Config, seed: int) -> Made:
    """Random rows in place of half of the vocabulary."""
    rng = torch.Generator().manual_seed(seed)
    lot = torch.rand(config["vocab_size"], generator=rng) < 0.5

    def changed(t: Tensor) -> Tensor:
        return torch.where(lot.reshape(-1, *(1 for _ in t.shape[1:])), _random(t, rng), t)

    return _rows(weights, config, changed), config


def adapted(weights: Weights, config: Config, seed: int) -> Made:
    """An adapter of rank 4 in every matrix of the layers, three tenths as large."""
    rng, inside = torch.Generator().manual_seed(seed), _layered(weights)
    changed = dict(weights)
    for name, t in weights.items():
        if name in inside and t.ndim == 2:
            low = torch.randn(t.shape[0], 4, generator=rng) @ torch.randn(4, t.shape[1], generator=rng)
            changed[name] = t + low * 0.3 * t.norm() / low.norm()
    return changed, config


def _layered(weights: Weights) -> dict[str, tuple[str, int, str]]:
    """The tensors of layers: what their names begin with, the layer, and the rest."""
    found = {name: LAYER.match(name) for name in weights}
    return {name: (m[1], int(m[2]), m[3]) for name, m in found.items() if m}


def _depth(config: Config) -> str:
    """The key of the number of layers."""
    return next(k for k in ("num_hidden_layers", "n_layer", "num_layers") if k in config)


def _layers(order: Callable[[int], Iterable[int]]) -> Change:
    """Layers in another order, fewer or more, by their number."""

    def done(weights: Weights, config: Config, seed: int) -> Made:
        numbers, layered = list(order(config[_depth(config)])), _layered(weights)
        made = {name: t for name, t in weights.items() if name not in layered}
        for name, (head, layer, rest) in layered.items():
            made |= {f"{head}{at}{rest}": weights[name].clone() for at, old in enumerate(numbers) if old == layer}
        return made, {**config, _depth(config): len(numbers)}

    return done


def _swapped(depth: int) -> list[int]:
    at = depth // 2
    return [*range(at - 1), at, at - 1, *range(at + 1, depth)]


def other_layer(weights: Weights, config: Config, seed: int) -> Made:
    rng, last = torch.Generator().manual_seed(seed), config[_depth(config)] - 1
    matrices = {n for n, (_, layer, _) in _layered(weights).items() if layer == last and _is_matrix(weights[n])}
    return {n: _random(t, rng) if n in matrices else t for n, t in weights.items()}, config


def _paired_anew(*roles: str) -> Change:
    """Heads, or neurons, in another order where they write the stream, and nowhere else: another function with
    equal sums."""

    def done(weights: Weights, config: Config, seed: int) -> Made:
        model, rng = recognise(in_memory(weights, config)), torch.Generator().manual_seed(seed)
        spec, changed = model.spec, dict(weights)
        names = [
            n
            for n, s in spec.spaces.items()
            if s.group_name == "Perm" and s.role in roles and spec.sizes.get(n, 1) > 1
        ]
        for block in model.blocks:
            here = list(atoms(block.axes or ()))
            writes = any(a.name in spec.streams and not a.dual for a in here) and block.scope
            if writes and any(a.name in names for a in here):
                tensor = {block: model.assemble(block, torch.float64)}
                random_alignment(spec, [block], rng, names).act(tensor)
                for canonical, part in block.split(tensor[block]):
                    changed[model.names[canonical]] = part.float()
        return changed, config

    return done


def more_neurons(weights: Weights, config: Config, seed: int) -> Made:
    """Eight neurons of every layer split in two halves, which no symmetry of the spec does: the same function,
    other shapes."""
    model = recognise(in_memory(weights, config))
    size = next(k for k in NEURONS if isinstance(config.get(k), int))
    old = config[size]
    changed = dict(weights)
    for name, match in model.matches.items():
        t = weights[name]
        for at, axis in enumerate(match.line.axes or ()):
            here = list(atoms((axis,)))
            if here and here[0].name == "ff" and t.shape[at] == old:
                t = t.movedim(at, 0)
                writes = any(a.name in model.spec.streams and not a.dual for a in atoms(match.line.axes or ()))
                first = 0.5 * t[:8] if writes else t[:8]
                changed[name] = torch.cat([first, t[8:], first]).movedim(0, at).contiguous()
    return changed, {**config, size: old + 8}


def other_epsilon(weights: Weights, config: Config, seed: int) -> Made:
    keys = [k for k in EPSILONS if k in config]
    return weights, {**config, **{k: 100 * config[k] for k in keys}}


def other_activation(weights: Weights, config: Config, seed: int) -> Made:
    key = next(k for k in ("hidden_act", "activation_function", "hidden_activation") if k in config)
    return weights, {**config, key: "gelu" if config[key] != "gelu" else "gelu_new"}


def upcycled(weights: Weights, config: Config, seed: int) -> Made:
    """Four experts, each the dense MLP with noise of a tenth of it, and a random router (Komatsuzaki et al.
    2023)."""
    rng, found, width = torch.Generator().manual_seed(seed), {}, config["hidden_size"]
    parts = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for name, t in weights.items():
        at, dot, rest = name.partition(".mlp.")
        if not dot:
            found[name] = t
            continue
        for e in range(4):
            expert = f"{at}.block_sparse_moe.experts.{e}.{parts[rest.split('.')[0]]}.weight"
            found[expert] = t + _random(t, rng, 0.1)
        found[f"{at}.block_sparse_moe.gate.weight"] = 0.02 * torch.randn(4, width, generator=rng)
    moe = {
        **config, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
        "architectures": ["MixtralForCausalLM"],
    }  # fmt: skip
    return found, moe


def _has_tokens(config: Config) -> bool:
    return "vocab_size" in config


def _has_layers(config: Config) -> bool:
    """Whether layers can be taken one by one: not of two stacks of blocks, nor of one layer for all."""
    return config["model_type"] not in ("t5", "albert")


@dataclass(frozen=True)
class Derivation:
    """What is done to a checkpoint.

    Args:
        change: makes it, of tensors, a config and a seed.
        tells: what must be among the words of what was done; empty: nothing must.
        fits: whether it makes sense for a config.
        often: whether it is made of all roots, and not of the first of a family alone.
        hidden: whether a disguise hides it, so that undisguised models alone must tell it.
        exchanged: whether rows are exchanged for the eyes of fingerprints alone.
    """

    change: Change
    tells: str = ""
    fits: Callable[[Config], bool] = lambda config: True
    often: bool = False
    hidden: bool = False
    exchanged: bool = False


FEWER_LAYERS = _layers(lambda depth: (n for n in range(depth) if n != depth // 2))
REPEATED = _layers(lambda depth: [*range(depth // 2 + 1), *range(depth // 2 - 1, depth)])
DERIVATIONS = {
    "as it is": Derivation(lambda weights, config, seed: (weights, config), often=True),
    "bfloat16": Derivation(_matrices(lambda t, rng: t.bfloat16().float()), "rounded to bfloat16", hidden=True),
    "8 bits a row": Derivation(_levels(8), "quantised to 8 bits", hidden=True),
    "4 bits a row": Derivation(_levels(4), "quantised to 4 bits", often=True, hidden=True),
    "half pruned": Derivation(_pruned(0.5), "pruned", hidden=True),
    "four fifths pruned": Derivation(_pruned(0.8), "pruned", often=True, hidden=True),
    "noise of a fifth": Derivation(
        _matrices(lambda t, rng: t + _random(t, rng, 0.2)), "relations between weights differ"
    ),
    "two fifths of a stranger": Derivation(_matrices(_mixed), "relations between weights differ"),
    "an adapter of rank 4": Derivation(adapted, "relations between weights differ"),
    "a layer less": Derivation(FEWER_LAYERS, "lacks", _has_layers),
    "half the layers": Derivation(_layers(lambda depth: range(0, depth, 2)), "lacks", _has_layers, often=True),
    "layers twice": Derivation(REPEATED, "repeated", _has_layers),
    "layers swapped": Derivation(_layers(_swapped), "in another order", _has_layers),
    "the last layer random": Derivation(other_layer, "replaced", _has_layers),
    "more tokens": Derivation(more_tokens, " rows and ", _has_tokens),
    "half the tokens": Derivation(fewer_tokens, " rows and ", _has_tokens),
    "vocabulary shuffled": Derivation(shuffled, "rows in another order", _has_tokens, often=True),
    "anchors replaced": Derivation(_anchors_replaced(0), "exchanged", _has_tokens, often=True, exchanged=True),
    "all anchors replaced": Derivation(_anchors_replaced(0, 1), "exchanged", _has_tokens, exchanged=True),
    "all but anchors shuffled": Derivation(
        _of_tables(_others_shuffled), "exchanged", _has_tokens, often=True, exchanged=True
    ),
    "half the rows replaced": Derivation(half_replaced, "rows changed", _has_tokens),
    "embeddings replaced": Derivation(embeddings_replaced, "replaced", _has_tokens, often=True),
    "shuffled, 8 bits": Derivation(
        lambda w, c, seed: _levels(8)(*shuffled(w, c, seed), seed), "rows in another order", _has_tokens
    ),
    "replaced, a layer less": Derivation(
        lambda w, c, seed: FEWER_LAYERS(*embeddings_replaced(w, c, seed), seed),
        "replaced",
        lambda config: _has_tokens(config) and _has_layers(config),
    ),
    "heads paired anew": Derivation(_paired_anew("h"), "relations between weights differ"),
    "neurons paired anew": Derivation(_paired_anew("ff"), "relations between weights differ"),
    "neurons split": Derivation(more_neurons, "size ff", lambda c: any(isinstance(c.get(k), int) for k in NEURONS)),
    "another epsilon": Derivation(other_epsilon, "eps", lambda config: any(k in config for k in EPSILONS)),
    "another activation": Derivation(other_activation, "act"),
    "upcycled to experts": Derivation(upcycled, "upcycled", lambda config: config["model_type"] == "llama"),
}

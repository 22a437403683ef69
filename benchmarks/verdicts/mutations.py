"""What is changed of a config and its tensors: switches, numbers and words; tensors; symmetric moves, right and
slightly wrong; dtypes.

Every mutation is drawn from its number alone. It says whether nothing but a declared symmetry was used, so that the
function is the same by what isomerge declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Generator, Tensor

from benchmarks.verdicts.models import Config, Weights
from isomerge.checkpoint.in_memory import in_memory
from isomerge.evidence.law import beside_streams, random_alignment, random_turn, with_streams
from isomerge.models.free_streams import given_out
from isomerge.models.recognised import recognise
from isomerge.symmetry.blocks import Block


@dataclass(frozen=True)
class Mutant:
    """A pair's second model."""

    kind: str
    what: str
    """The tensor or key."""
    weights: Weights
    config: Config
    symmetric: bool = False
    """Whether only declared symmetries were used."""
    both: bool = False
    """Whether the first model has the changed config as well."""


def one_of(items: list[Any], rng: Generator) -> Any:
    return items[int(torch.randint(len(items), (1,), generator=rng))]


# ------------------------------------------------------------------ symmetric moves


def moved(weights: Weights, config: Config, rng: Generator, *, wrong: bool = False) -> tuple[Weights, str]:
    """The weights moved by a random element of all spaces, or of one; with ``wrong``, one of its blocks stays as it
    was."""
    model = recognise(in_memory(weights, config))
    blocks = {block: model.assemble(block, torch.float64) for block in model.blocks}
    before = {block: x.clone() for block, x in blocks.items()}
    local = beside_streams(model.spec)
    what = "all spaces"
    if not given_out(model) and bool(torch.rand(1, generator=rng) < 0.5):
        spec = with_streams(model.spec, "largest")
        random_turn(spec, model.blocks, lambda b: blocks[b].clone(), rng, gains=True).act(blocks)
    else:
        chosen = one_of([local, *([name] for name in local)], rng)
        what = what if len(chosen) > 1 else chosen[0]
        random_alignment(model.spec, model.blocks, rng, chosen).act(blocks)
    if wrong:
        changed = [block for block, x in blocks.items() if not torch.equal(x, before[block])]
        if changed:
            stays: Block = one_of(changed, rng)
            blocks[stays] = before[stays]
            what = f"{what}, but not {stays.canonical[0]}"
    found = dict(weights)
    for block, tensor in blocks.items():
        for canonical, part in block.split(tensor):
            found[model.names[canonical]] = part.to(weights[model.names[canonical]].dtype).contiguous()
    return found, what


# ------------------------------------------------------------------ tensors


def _rows(t: Tensor, rng: Generator) -> Tensor:
    return t[torch.randperm(len(t), generator=rng)]


def one_row_larger(t: Tensor, rng: Generator) -> Tensor:
    new = t.clone()
    new[int(torch.randint(len(t), (1,), generator=rng))] *= 1.01
    return new


def _noise(size: float) -> Callable[[Tensor, Generator], Tensor]:
    return lambda t, rng: t + size * t.abs().mean() * torch.randn(t.shape, generator=rng, dtype=t.dtype)


TENSORS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "noise of a hundredth": _noise(1e-2), "noise of a thousandth": _noise(1e-3),
    "noise of a millionth": _noise(1e-6), "rows permuted": _rows,
    "columns permuted": lambda t, rng: _rows(t.mT, rng).mT if t.ndim > 1 else t.flip(0),
    "a row a hundredth larger": one_row_larger, "zeroed": lambda t, rng: torch.zeros_like(t),
    "negated": lambda t, rng: -t, "a constant added": lambda t, rng: t + 0.1,
}  # fmt: skip


def tensor_mutant(weights: Weights, config: Config, rng: Generator) -> Mutant:
    names = sorted(name for name, t in weights.items() if t.is_floating_point() and t.numel() > 1)
    name, kind = one_of(names, rng), one_of(list(TENSORS), rng)
    return Mutant(
        f"tensor: {kind}", name, {**weights, name: TENSORS[kind](weights[name], rng).contiguous()}, config
    )


def names_mutant(weights: Weights, config: Config, rng: Generator) -> Mutant:
    """A tensor dropped, added, exchanged with one of its shape, or longer."""
    names = sorted(weights)
    name, kind = one_of(names, rng), one_of(["dropped", "added", "exchanged", "longer", "a bias added"], rng)
    t = weights[name]
    new = dict(weights)
    if kind == "dropped":
        del new[name]
    elif kind == "added":
        new[name.rpartition(".")[0] + ".extra"] = torch.randn(t.shape, generator=rng, dtype=torch.float64)
    elif kind == "a bias added":
        maps = [
            n for n in names if n.endswith(".weight") and n.removesuffix("weight") + "bias" not in weights
        ] or names
        name = one_of(maps, rng)
        new[name.removesuffix("weight") + "bias"] = torch.randn(
            len(weights[name]), generator=rng, dtype=torch.float64
        )
    elif kind == "longer":
        new[name] = torch.cat([t, t[:1]]) if t.ndim else t
    else:
        other = one_of([n for n in names if weights[n].shape == t.shape], rng)
        new[name], new[other] = weights[other], t
    return Mutant(f"tensors: {kind}", name, new, config)


# ------------------------------------------------------------------ configs

SIZES = (
    "size", "heads", "layers", "dim", "n_", "num_", "channels", "d_model", "d_kv", "d_ff", "vocab",
    "intermediate", "ratio",
)  # fmt: skip
WORDS = ["gelu", "relu", "silu", "gelu_new", "quick_gelu", "tanh"]


def leaves(config: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The paths and values of what a config says."""
    for key, value in config.items():
        if isinstance(value, Mapping) and key not in ("id2label", "label2id"):
            yield from leaves(value, (*at, key))
        elif key not in ("model_type", "architectures", "id2label", "label2id", "transformers_version", "dtype"):
            yield (*at, key), value


def with_value(config: Config, path: tuple[str, ...], value: Any) -> Config:
    """A config that says something else of one key."""
    key, *rest = path
    return {**config, key: with_value(config[key], tuple(rest), value) if rest else value}


def other(key: str, value: Any, rng: Generator) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return max(0, value + one_of([-1, 1, 2], rng))
    if isinstance(value, float):
        return value * one_of([0.5, 2.0, 10.0], rng) + (0.1 if value == 0 else 0)
    if isinstance(value, str):
        return one_of([w for w in WORDS if w != value], rng) if "act" in key or value in WORDS else value + "x"
    if isinstance(value, list):
        return value[::-1] if value != value[::-1] else value[:-1]
    return one_of([True, 2, 0.5, "relu"], rng)


def config_mutant(weights: Weights, config: Config, rng: Generator) -> Mutant:
    """One key of the config changed or left out, for one of the models or for both."""
    every = dict(leaves(config))
    groups = {
        "switch": [p for p, v in every.items() if isinstance(v, bool)],
        "number": [p for p, v in every.items() if type(v) in (int, float) and not any(s in p[-1] for s in SIZES)],
        "size": [p for p, v in every.items() if type(v) is int and any(s in p[-1] for s in SIZES)],
        "word or list": [p for p, v in every.items() if isinstance(v, str | list)],
        "unset key": [p for p, v in every.items() if v is None],
    }
    kind = one_of(["switch", "switch", "number", "number", "size", "word or list", "unset key"], rng)
    path = one_of(groups[kind] or list(every), rng)
    both = bool(torch.rand(1, generator=rng) < 0.25)
    new = with_value(config, path, other(path[-1], every[path], rng))
    if bool(torch.rand(1, generator=rng) < 0.1):
        kind, new = "key left out", {k: v for k, v in config.items() if k != path[0]}
    return Mutant(f"config: {kind}{' of both' if both else ''}", ".".join(path), weights, new, both=both)


# ------------------------------------------------------------------ all of them

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def mutant(name: str, weights: Weights, config: Config, number: int) -> Mutant:
    """The mutation of a number, of the model of a name."""
    rng = torch.Generator().manual_seed(crc32(f"{name} {number}".encode()))
    draw = float(torch.rand(1, generator=rng))
    if draw < 0.35:
        found = config_mutant(weights, config, rng)
        if draw < 0.1 and not found.both:
            return Mutant(f"{found.kind}, twin", found.what, moved(weights, config, rng)[0], found.config)
        return found
    if draw < 0.5:
        new, what = moved(weights, config, rng)
        return Mutant("twin", what, new, config, symmetric=True)
    if draw < 0.65:
        new, what = moved(weights, config, rng, wrong=True)
        return Mutant("twin with a block left", what, new, config)
    if draw < 0.85:
        found = tensor_mutant(weights, config, rng)
        if draw < 0.72:
            new = moved(found.weights, config, rng)[0]
            return Mutant(f"{found.kind}, twin", found.what, new, config)
        return found
    if draw < 0.93:
        return names_mutant(weights, config, rng)
    code = one_of(list(DTYPES), rng)
    new, what = moved(weights, config, rng)
    return Mutant(f"twin in {code}", what, {n: t.to(DTYPES[code]) for n, t in new.items()}, config, symmetric=True)

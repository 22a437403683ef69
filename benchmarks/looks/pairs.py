"""What is made of a model, so that it is known how it stands to what it was made of.

A change gives tensors and a config, and says what may be said of the pair: `ALLOWED` by label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.in_memory import in_memory
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import Model, recognise

Weights = dict[str, Tensor]
Config = dict[str, Any]
Made = tuple[Weights, Config]

ALLOWED = {
    "same": {"same"},
    "but": {"aligned", "related", "unknown"},
    "tuned": {"aligned", "related", "unknown"},
    "worn": {"aligned", "unknown", "related", "unrelated"},
    "moved": {"related", "unknown"},
    "strangers": {"unrelated", "unknown"},
}
"""By label, the codes that claim nothing wrong of identity and kinship. Fine-tunes (``tuned``) that are not seen to
be in place ("related", "unknown") are counted. ``worn``: noise as large as the weights, of which nobody knows what is left. ``but``: equal but for a part, which
must be named, and of which all may be foreign. ``moved``: the same function in other coordinates, or a fine-tune of
it."""


@dataclass(frozen=True)
class Root:
    """A model, and another of its architecture that has nothing in common with it."""

    name: str
    weights: Weights
    config: Config
    strangers: tuple[tuple[str, Weights], ...] = ()
    tuned: tuple[tuple[str, Weights], ...] = ()
    """Fine-tunes that were trained, by name."""

    @property
    def model(self) -> Model:
        """The model, opened."""
        return opened(self.weights, self.config)


def opened(weights: Weights, config: Config) -> Model:
    """Tensors as a model; of a type that no text describes, as what is merged as it is stored."""
    return recognise(in_memory(weights, config), unmoved=config.get("model_type") == UNHEARD)


UNHEARD = "unheard_of"


def without_spec(root: Root) -> Root:
    """The same tensors, of a type that no text describes."""
    config = {"model_type": UNHEARD}
    return Root(f"{root.name}, no spec", root.weights, config, root.strangers, root.tuned)


def rounded(root: Root, dtype: torch.dtype) -> Root:
    """All of it, stored in a dtype."""

    def to(weights: Weights) -> Weights:
        return {n: t.to(dtype) if t.is_floating_point() else t for n, t in weights.items()}

    more = [tuple((name, to(weights)) for name, weights in every) for every in (root.strangers, root.tuned)]
    name = f"{root.name}, {str(dtype).removeprefix('torch.')}"
    return Root(name, to(root.weights), root.config, *more)


Change = Callable[[Root, torch.Generator], "Made | None"]
"""None where it makes no sense of a root."""


@dataclass(frozen=True)
class Kind:
    """What is done to a root.

    Args:
        name: in the table.
        label: how the two stand, a key of `ALLOWED`.
        change: makes it.
    """

    name: str
    label: str
    change: Change


def _random(t: Tensor, rng: torch.Generator) -> Tensor:
    """Random numbers of a tensor's spread; of a vector around its mean."""
    x, count = t.double(), t.numel()
    spread = x.std() if count > 1 else x.abs().mean()
    return (x.mean() if t.ndim < 2 else 0.0) + spread * torch.randn(t.shape, generator=rng, dtype=torch.float64)


def _is_noisy(t: Tensor) -> bool:
    return t.is_floating_point() and t.ndim > 1


def _changed(root: Root, chosen: Collection[str], change: Callable[[Tensor], Tensor]) -> Made | None:
    """Some tensors changed, in the dtype that they have; None where nothing changes."""
    weights = {n: change(t).to(t.dtype).contiguous() if n in chosen else t for n, t in root.weights.items()}
    same = all(torch.equal(t, root.weights[n]) for n, t in weights.items())
    return None if same else (weights, root.config)


def noise(size: float, *, vectors: bool = True) -> Change:
    """Gaussian noise in every tensor, so many times as large as it."""

    def make(root: Root, rng: torch.Generator) -> Made | None:
        def moved(t: Tensor) -> Tensor:
            x = t.double()
            spread = x - x.mean() if t.ndim < 2 and t.numel() > 1 else x
            step = size * spread.pow(2).mean().sqrt()
            return x + step * torch.randn(t.shape, generator=rng, dtype=torch.float64)

        chosen = {n for n, t in root.weights.items() if t.is_floating_point() and (vectors or t.ndim > 1)}
        return _changed(root, chosen, moved)

    return make


def adapted(root: Root, rng: torch.Generator) -> Made | None:
    """An update of rank 2 in every matrix, a fifth as large."""

    def moved(t: Tensor) -> Tensor:
        rows = t.double().flatten(1)
        low = torch.randn(len(rows), 2, generator=rng, dtype=torch.float64)
        low = low @ torch.randn(2, rows.shape[1], generator=rng, dtype=torch.float64)
        return (rows + 0.2 * low * rows.norm() / low.norm()).reshape(t.shape)

    return _changed(root, {n for n, t in root.weights.items() if _is_noisy(t)}, moved)


def quantised(root: Root, rng: torch.Generator) -> Made | None:
    """8 bits a row."""

    def moved(t: Tensor) -> Tensor:
        x = t.double()
        step = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
        return (x / step).round() * step

    return _changed(root, {n for n, t in root.weights.items() if _is_noisy(t)}, moved)


def pruned(root: Root, rng: torch.Generator) -> Made | None:
    """The smallest third of every matrix set to zero."""

    def moved(t: Tensor) -> Tensor:
        level = t.double().abs().flatten().kthvalue(max(1, t.numel() // 3)).values
        return torch.where(t.double().abs() <= level, 0.0, t.double())

    return _changed(root, {n for n, t in root.weights.items() if _is_noisy(t)}, moved)


def _layer_of(name: str) -> int | None:
    numbers = re.findall(r"\.(\d+)\.", name)
    return int(numbers[0]) if numbers else None


def _lines(root: Root) -> dict[str, str]:
    """Which line of the text every tensor is of: its kind."""
    model = root.model
    return {
        model.names[canonical]: block.line.name
        for block in model.blocks
        for canonical in block.canonical
        if canonical in model.names
    }


def _parts(root: Root) -> dict[str, set[str]]:
    """Tensors by part: the last layer, what is outside of layers, norms, matrices of one kind."""
    floats = {n: t for n, t in root.weights.items() if t.is_floating_point() and t.numel() > 1}
    layers = {n: _layer_of(n) for n in floats}
    last = max((layer for layer in layers.values() if layer is not None), default=None)
    return {
        "the last layer": {n for n, layer in layers.items() if layer is not None and layer == last},
        "outside of layers": {n for n, layer in layers.items() if layer is None},
        "vectors": {n for n, t in floats.items() if t.ndim == 1},
        "MLPs": {
            n
            for n in floats
            if re.search(r"mlp|\bfc|intermediate|\bw[123io]\b|dense_h_|dense_4h|\bff|expert", n.lower())
        },
        "attention": {n for n in floats if re.search(r"attn|attention", n.lower())},
    }


def part(name: str, change: str) -> Change:
    """One part replaced by random numbers, or by what it is with noise of a tenth."""

    def make(root: Root, rng: torch.Generator) -> Made | None:
        chosen = _parts(root)[name]
        if not chosen or len(chosen) == len(root.weights):
            return None
        if change == "random":
            return _changed(root, chosen, lambda t: _random(t, rng))
        own = Root(root.name, {n: root.weights[n] for n in chosen}, root.config)
        made = noise(0.1)(own, rng)
        return None if made is None else ({**root.weights, **made[0]}, root.config)

    return make


def one_kind(root: Root, rng: torch.Generator) -> Made | None:
    """All tensors of one kind, drawn at random, replaced."""
    lines = _lines(root)
    kinds = sorted(
        {k for n, k in lines.items() if root.weights[n].numel() > 1 and root.weights[n].is_floating_point()}
    )
    kind = kinds[int(torch.randint(len(kinds), (), generator=rng))]
    return _changed(root, {n for n, k in lines.items() if k == kind}, lambda t: _random(t, rng))


def one_entry(root: Root, rng: torch.Generator) -> Made | None:
    """One entry of one tensor, doubled, or one if it is zero."""
    names = sorted(n for n, t in root.weights.items() if t.is_floating_point() and t.numel())
    name = names[int(torch.randint(len(names), (), generator=rng))]
    at = int(torch.randint(root.weights[name].numel(), (), generator=rng))

    def moved(t: Tensor) -> Tensor:
        x = t.double().flatten().clone()
        x[at] = 2 * x[at] if x[at] else 1.0
        return x.reshape(t.shape)

    return _changed(root, {name}, moved)


def one_row(root: Root, rng: torch.Generator) -> Made | None:
    """One row of one matrix, a fifth longer."""
    names = sorted(n for n, t in root.weights.items() if _is_noisy(t))
    name = names[int(torch.randint(len(names), (), generator=rng))]

    def moved(t: Tensor) -> Tensor:
        x = t.double().clone()
        x[int(torch.randint(len(x), (), generator=rng))] *= 1.2
        return x

    return _changed(root, {name}, moved)


def twin(*roles: str, then: float = 0.0) -> Change:
    """The same function: a random element of every space, or of those with a role; noise of a size on top."""

    def make(root: Root, rng: torch.Generator) -> Made | None:
        if root.config.get("model_type") == UNHEARD:
            return None
        model = root.model
        spec = model.spec
        names = [n for n, s in spec.spaces.items() if s.role in roles] if roles else None
        if names == []:
            return None
        blocks = {block: model.assemble(block, torch.float64) for block in model.blocks}
        before = {block: tensor.clone() for block, tensor in blocks.items()}
        random_alignment(spec, model.blocks, rng, names).act(blocks)
        if all(torch.allclose(before[b], t, rtol=0.05) for b, t in blocks.items()):
            return None  # of one head, or one neuron
        weights = dict(root.weights)
        for block, tensor in blocks.items():
            for canonical, piece in block.split(tensor):
                stored = weights[model.names[canonical]]
                weights[model.names[canonical]] = piece.to(stored.dtype).reshape(stored.shape).contiguous()
        return noise(then)(Root(root.name, weights, root.config), rng) if then else (weights, root.config)

    return make


KINDS = [
    Kind("as it is", "same", lambda root, rng: ({n: t.clone() for n, t in root.weights.items()}, root.config)),
    Kind("one entry", "but", one_entry),
    Kind("one row a fifth longer", "but", one_row),
    Kind("one kind of tensor random", "but", one_kind),
    *(Kind(f"{name} random", "but", part(name, "random")) for name in
      ("the last layer", "outside of layers", "vectors", "MLPs", "attention")),
    *(Kind(f"{name} with noise", "but", part(name, "noise")) for name in
      ("the last layer", "outside of layers", "vectors", "MLPs", "attention")),
    *(Kind(f"noise {size}", "tuned", noise(size)) for size in (1e-2, 0.03, 0.1, 0.3)),
    Kind("noise 0.1 of matrices", "tuned", noise(0.1, vectors=False)),
    Kind("an update of rank 2", "tuned", adapted),
    Kind("8 bits a row", "tuned", quantised),
    Kind("a third pruned", "tuned", pruned),
    *(Kind(f"noise {size}", "worn", noise(size)) for size in (1.0, 2.0)),
    Kind("twin by all spaces", "moved", twin()),
    Kind("twin by all spaces, noise 0.05", "moved", twin(then=0.05)),
    Kind("twin by its neurons", "moved", twin("ff")),
    Kind("twin by its heads", "moved", twin("h")),
    Kind("twin inside of heads", "moved", twin("qk", "vo")),
]  # fmt: skip

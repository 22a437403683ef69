"""Twins, one function in other weights, and near-twins, which are nearly: written through disk by the real writer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

import isomerge
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.moves import BETWEEN, FOLD, GAIN, MADE, ONES, SCALE, TIED
from isomerge.symmetry.norm_stage import norm_keys, norm_stages
from isomerge.symmetry.norms import LayerNorms
from toys import Toy, overwrite, tensors

Moves = Callable[[Model], Alignment]
"""Random symmetries of a model."""
Weights = dict[str, torch.Tensor]
Write = Callable[[Toy, Path], Path]
"""Writes a twin, or a near-twin, of a toy."""


def free_elements(model: Model, seed: int = 1) -> Weights:
    """Random elements, by key, of all that norms, and what stands beside them, leave free in a model."""
    free, rng = free_under_layer_norm(model), torch.Generator().manual_seed(seed)
    return random_elements(free, lambda block: model.assemble(block, torch.float64), rng)


def random_elements(free: LayerNorms, stored: Callable[[Block], torch.Tensor], rng: torch.Generator) -> Weights:
    """The same of what is free in some blocks, of which the shapes are looked at."""
    elements: Weights = {}

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    def draw(block: Block, axis: int | None) -> torch.Tensor:
        shape = list(stored(block).shape)
        if axis is not None:
            shape[axis] = 1
        return normal(*shape)

    for block, axis in free.writers.items():
        elements[ONES + block.key] = draw(block, axis)
    for block, axis in free.between.items():
        elements[BETWEEN + block.key] = draw(block, axis)
    for norm in free.norms:
        elements |= {GAIN + block.key: draw(block, axis) for block, axis in norm.slack.items()}
        if norm.bias is not None and norm.folds:
            elements[FOLD + norm.bias.key] = draw(norm.bias, None)
        for made in norm.made:
            rows = torch.where(
                made.rows(stored(made.reader)), draw(made.reader, made.axis), torch.zeros(()).double()
            )
            elements[MADE + made.reader.key] = elements.get(MADE + made.reader.key, 0) + rows
        if norm.trades:
            elements[TIED + norm.trades[0].table.key] = normal(len(norm.trades))
        if norm.gain is not None and norm.scales:
            elements[SCALE + norm.gain.key] = 0.5 + draw(norm.gain, None).abs()
    elements |= {carried.key: normal(*carried.shape) for carried in free.carried}
    shapes = {key: reached.shape(key) for reached in free.reached for key in reached.element_keys}
    elements |= {key: normal(*shape) for key, shape in shapes.items()}
    elements |= {basis.key: normal(basis.width, basis.width) for basis in free.bases}
    assert elements.keys() == norm_keys(free)
    return elements


def free_moves(model: Model, *kinds: str, seed: int = 1, size: float = 1.0) -> Alignment:
    """Random moves of all that norms leave free, or of those whose keys begin with one of some kinds, that many times
    as large."""
    elements = {key: size * e for key, e in free_elements(model, seed).items() if key.startswith(kinds or ("",))}
    assert elements or not kinds
    spec = norm_spec(model.declared)
    return Alignment.of(norm_stages(spec, elements), spec)


def inner_moves(model: Model, seed: int = 2) -> Alignment:
    """Random elements of all spaces inside the layers, and of shifts."""
    names = {*model.spec.spaces, *(s.name for s in model.spec.shifts)} - model.spec.residual_names
    return random_alignment(model.spec.restrict(names), model.blocks, torch.Generator().manual_seed(seed))


def of_norms(*kinds: str, seed: int = 1, size: float = 1.0) -> Moves:
    """Moves of these kinds (see `free_moves`)."""
    return lambda model: free_moves(model, *kinds, seed=seed, size=size)


def of_spaces(*names: str) -> Moves:
    """Random elements of these spaces and shifts."""

    def drawn(model: Model) -> Alignment:
        moves = random_alignment(model.spec.restrict(names), model.blocks, torch.Generator().manual_seed(1))
        assert {key.partition("[")[0].removeprefix("shift.") for key in moves} == {*names}
        return moves

    return drawn


def within_layers(moves: Moves) -> Moves:
    """These, and then random elements of all spaces inside the layers."""
    return lambda model: inner_moves(model) @ moves(model)


def written(moves: Moves) -> Write:
    """The toy after some moves."""

    def write(toy: Toy, out: Path) -> Path:
        model = recognise(toy.folder)
        run_apply(moves(model), model, Output(out))
        return out

    return write


def turned(*, streams: bool, latents: bool = False, gains: bool = False, seed: int = 1) -> Write:
    """The toy with all spaces moved, its streams only where asked, latents by all that folding allows."""

    def write(toy: Toy, out: Path) -> Path:
        largest, blocks = with_streams(toy.spec), toy.fresh()
        spec = largest if streams else largest.without(largest.residual_names)
        assert spec.turned_latents or not latents
        rng = torch.Generator().manual_seed(seed)
        load = {block: t.double() for block, t in toy.fresh().items()}.__getitem__
        random_turn(spec, toy.blocks, load, rng, condition=3.0, gains=gains).act(blocks)
        return changed(lambda _: toy.named(blocks))(toy, out)

    return write


def changed(change: Callable[[Toy], Weights]) -> Write:
    """The toy with some tensors replaced."""

    def write(toy: Toy, out: Path) -> Path:
        new = change(toy)
        assert toy.stored.keys() >= new.keys()
        shutil.copytree(toy.folder, out)
        overwrite(out, {name: t.contiguous() for name, t in {**toy.stored, **new}.items()})
        return out

    return write


def left_behind(write: Write, tensor: str) -> Write:
    """A near-twin: a twin of which one tensor has not followed."""

    def write_nearly(toy: Toy, out: Path) -> Path:
        write(toy, out)
        stored = recognise(toy.folder).names[tensor]
        assert not torch.equal(tensors(out)[stored], toy.stored[stored])
        overwrite(out, {**tensors(out), stored: toy.stored[stored]})
        return out

    return write_nearly


def fine_tuned(toy: Toy, out: Path, size: float = 0.02) -> Path:
    """The toy with noise on all of its tensors."""
    rng = torch.Generator().manual_seed(3)
    noisy = {n: (t + size * torch.randn(t.shape, generator=rng)).to(t.dtype) for n, t in toy.stored.items()}
    return changed(lambda _: noisy)(toy, out)


def apart(first: Path, second: Path) -> float:
    """The largest relative distance of two tensors of one name."""
    a, b = tensors(first), tensors(second)
    assert a.keys() == b.keys()
    return max(float((t - b[n]).norm() / t.norm().clamp_min(1e-3)) for n, t in a.items() if t.is_floating_point())


def assert_told(first: Path, second: Path) -> None:
    """`verify` and fingerprints call two models different."""
    assert isomerge.verify(first, second)["same"] is False
    assert isomerge.fingerprint(first).hash != isomerge.fingerprint(second).hash

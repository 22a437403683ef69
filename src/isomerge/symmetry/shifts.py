"""Additive gauges: biases that can be moved or dropped without changing the function.

* A key bias without rotary or relative-position terms adds a constant to every row of scores: softmax drops it.
* Attention rows sum to one, so a value bias d passes through as W_O d: it can live in the output bias instead.

A shift's element is a tensor of the bias block's shape (its atoms in order), in the source's own coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isomerge.symmetry.axes import Atom, length, views
from isomerge.symmetry.axes import atoms as flat_atoms
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.spec import Shift, Spec

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.symmetry.stage import Stage


def shift_key(shift: Shift, scope: Mapping[str, int]) -> str:
    """``shift.name[layer]``."""
    values = ",".join(str(v) for v in scope.values())
    return f"shift.{shift.name}[{values}]" if values else f"shift.{shift.name}"


def find_shifts(spec: Spec, blocks: list[Block]) -> list[tuple[Shift, str, dict[str, Block]]]:
    """The shifts whose tensors are all there: the shift, its element key, and its blocks by line name."""
    by_scope: dict[tuple[tuple[str, int], ...], dict[str, Block]] = {}
    for block in blocks:
        by_scope.setdefault(block.scope, {})[block.line.name] = block
    found = []
    for shift in spec.shifts:
        for scope, here in by_scope.items():
            names = [n for n in (shift.bias, shift.into, shift.via) if n is not None]
            if all(n in here for n in names):
                found.append((shift, shift_key(shift, dict(scope)), {n: here[n] for n in names}))
    return found


def bias_view(spec: Spec, shift: Shift, block: Block, tensor: Tensor) -> tuple[Tensor, tuple[Atom, ...]]:
    """The part of a bias tensor that a shift moves, and its atoms."""
    for (view,), atoms, number in leaves(spec, block, tensor):
        if number == (shift.block or 0):
            return view, atoms
    raise AssertionError(f"shift {shift.name}: block {shift.block} of {block.key}")


def projection(spec: Spec, via: Block, weight: Tensor, atoms: tuple[Atom, ...], into: Block) -> Tensor:
    """The matrix [output, bias] through which a bias reaches the output: W, summed over heads that share values."""
    (view,), axes, _ = next(leaves(spec, via, weight))
    names = [a.name for a in axes]
    out = [names.index(a.name) for a in flat_atoms(into.axes or ())]
    bias = [names.index(a.name) for a in atoms]
    rest = [k for k in range(view.ndim) if k not in (*out, *bias)]
    ordered = view.permute(*out, *bias, *rest).flatten(0, len(out) - 1).flatten(1, len(bias))
    return ordered.flatten(2).sum(-1) if rest else ordered


def shifted_blocks(spec: Spec, elements: Mapping[str, Tensor], blocks: list[Block]) -> set[Block]:
    """The blocks that the shifts among ``elements`` change."""
    found = [(shift, parts) for shift, key, parts in find_shifts(spec, blocks) if key in elements]
    return {parts[name] for shift, parts in found for name in (shift.bias, shift.into) if name is not None}


def add_shifts(spec: Spec, elements: Mapping[str, Tensor], tensors: dict[Block, Tensor]) -> None:
    """Apply the shifts among ``elements`` to the blocks of one unit, in place."""
    for shift, key, blocks in find_shifts(spec, list(tensors)):
        delta = elements.get(key)
        if delta is None:
            continue
        bias = blocks[shift.bias]
        view, atoms = bias_view(spec, shift, bias, tensors[bias])
        view += delta.to(view.dtype)
        if shift.into is not None and shift.via is not None:
            via = blocks[shift.via]
            into = blocks[shift.into]
            w = projection(spec, via, tensors[via], atoms, into)
            tensors[into] -= (w @ delta.to(w.dtype).flatten()).reshape(tensors[into].shape)


def shift_atoms(spec: Spec, shift: Shift) -> tuple[Atom, ...]:
    """The atoms of the bias (or of the part of it) that a shift moves."""
    import torch

    line = next(line for line in spec.lines if line.name == shift.bias)
    assert line.axes is not None
    empty = torch.empty([length(axis, spec.sizes) for axis in line.axes], device="meta")
    return [found for _, found in views((empty,), line.axes, spec.sizes)][shift.block or 0]


def shift_scope(spec: Spec, shift: Shift, key: str) -> dict[str, int]:
    """The layer that a shift's element key names; raises IsomergeError as `isomerge.symmetry.stage.scope_of`."""
    from isomerge.symmetry.stage import numbers_in

    line = next(line for line in spec.lines if line.name == shift.bias)
    names = [i for i in line.indices if i not in spec.sizes]
    _, _, rest = key.partition("[")
    return dict(zip(names, numbers_in(key, rest, len(names)), strict=True))


def _carried(g: Stage, spec: Spec, key: str, delta: Tensor) -> Tensor:
    """A shift of ``spec`` in the coordinates after the spaces of ``g`` have acted."""
    name = key.removeprefix("shift.").partition("[")[0]
    shift = next(s for s in spec.shifts if s.name == name)
    moved = delta.clone()
    g.act_on_view(moved, shift_atoms(spec, shift), shift_scope(spec, shift, key))
    return moved


def compose_shifts(g: Stage, h: Stage) -> dict[str, Tensor]:
    """Shifts of ``g @ h``: h's own, and g's pulled back through h's spaces."""
    found = {k: v for k, v in h.elements.items() if k.startswith("shift.")}
    back = h.inverse_spaces()
    for key, delta in g.elements.items():
        if key.startswith("shift."):
            pulled = _carried(back, g.spec, key, delta)
            found[key] = found[key] + pulled if key in found else pulled
    return found


def invert_shifts(g: Stage) -> dict[str, Tensor]:
    """Shifts of the inverse: the negative, in the coordinates after g."""
    return {k: -_carried(g, g.spec, k, v) for k, v in g.elements.items() if k.startswith("shift.")}

"""Linear layers: where each one's input and the gradient of its output lie, as tensors with typed axes.

For a layer y = W x, RegMean needs E x x^T and K-FAC the two factors E x x^T and E g g^T with g = dL/dy. The input
has the axis of W's columns with plain and dual exchanged, as everywhere. A gradient moves against what it is the
gradient of, so g has the axis of W's rows exchanged as well.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from isomerge.models.recognised import Model
from isomerge.observe.stats.taps import Tap, input_axis, plain, whole_weights
from isomerge.symmetry.axes import Axis, atoms
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec


def plan_linears(model: Model, module: nn.Module) -> list[tuple[Tap, str, int]]:
    """Every linear layer of a module that has a weight of its own.

    A head that is tied to the embeddings is left out: a product of its input says nothing about the table that it
    shares. Experts, which transformers keeps fused, are left out as well.

    Returns:
        The tap of the layer's input, the name of its submodule, and which axis of the weight reads the input (1 of
        ``nn.Linear``, 0 of ``Conv1D``), in the order of the spec.
    """
    linears = []
    for block, axes, path in whole_weights(model, module):
        axis = input_axis(module.get_submodule(path))
        if axis is not None and len(axes) == 2:
            linears.append((input_tap(block, axis), path, axis))
    return linears


def input_tap(block: Block, axis: int) -> Tap:
    """The tap of what a layer is given; ``axis`` of its weight reads it."""
    assert block.axes is not None
    return Tap(f"{block.key}:in", block.key, plain(block.axes[axis], flip=True), block.scope, "in")


def gradient_tap(block: Block, axis: int) -> Tap:
    """The tap of the gradient with respect to what a layer gives; ``axis`` of its weight reads the input."""
    assert block.axes is not None
    tap = input_tap(block, 1 - axis)
    return replace(tap, key=f"{block.key}:gradient", side="gradient")


def is_mobile(spec: Spec, axis: Axis) -> bool:
    """Whether a space acts on an axis."""
    return any(a.name in spec.spaces for a in atoms((axis,)))

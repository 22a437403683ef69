"""What every branch writes into a residual stream: the activations that optimal transport is computed from.

Matching by symmetries reads the stream at its norms (`isomerge.observe.stats.taps`), where it is a sum of many
writers. Transport maps are made writer by writer, and weighted by how large a branch is beside the stream that it
joins.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.stats.taps import ROWS, Activations, Tap, captured, plain, plan_taps, whole_weights
from isomerge.symmetry.axes import atoms


def plan_branches(model: Model, module: nn.Module) -> Iterator[tuple[Tap, str]]:
    """The outputs of what writes into a stream (linear layers, embeddings, patches), and the inputs of norms.

    Yields:
        The taps beside those of `isomerge.observe.stats.taps.plan_taps`, with the names of their submodules.
    """
    for block, axes, path in whole_weights(model, module):
        stream_atoms = [a for a in atoms(axes) if a.name in model.spec.streams]
        if len(axes) == 1 and stream_atoms:
            yield Tap(f"{block.key}:in", block.key, plain(axes[0]), block.scope, "in"), path
        elif len(stream_atoms) == 1 and not stream_atoms[0].dual:
            axis = next(axis for axis in axes if stream_atoms[0] in atoms((axis,)))
            yield Tap(f"{block.key}:out", block.key, plain(axis), block.scope, "out"), path


def capture_branches(
    model: Model, module: nn.Module, examples: Examples, *, rows: int = ROWS, batch_size: int = 16
) -> Activations:
    """Run a module over examples and keep up to ``rows`` rows of every tap: `plan_taps` and `plan_branches`.

    Equal examples give equal rows for every model of one architecture, as in `isomerge.observe.stats.taps.capture`.
    """

    places = [*plan_taps(model, module), *plan_branches(model, module)]
    images = {tap.key for tap, path in places if isinstance(module.get_submodule(path), torch.nn.Conv2d)}
    return captured(module, places, examples, rows, batch_size, images)

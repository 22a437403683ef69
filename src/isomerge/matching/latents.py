"""Latents that are turned: what is written, normed and read inside one layer (DeepSeek's), matched by rotations.

A latent is a residual stream of one layer. Its norm's gains fold into what reads it, ``W diag(g)``, and then any
rotation of the latent leaves the function as it is: writers ``R W``, gains of ones, readers ``W R^T``. The anchor's
gains are taken on afterwards. Between models in one basis that costs what gains differ by, and a rotation has
little to give; so with a guard both are tried where they are unrelated, and the nearer is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from isomerge.matching.distances import squared_distance, squared_norm
from isomerge.matching.frame import folded_gains, gains_over_streams, whole_gain
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.spec import Spec

RELATED = 0.1
"""The part of their squared norms by which two models' writers of a latent differ, up to which it has one basis in
both: of models that have nothing to do with each other it is one."""


def have_gains(spec: Spec, blocks: Iterable[Block]) -> bool:
    """Whether gains over latents that turn are among what acts on some blocks."""
    return any(not block.names.isdisjoint(spec.gains) for block in blocks)


def latent_folds(spec: Spec, *models: Blocks) -> list[Alignment] | None:
    """What folds the gains over latents into what reads them, in a unit of each of some models; None where a gain
    is zero, which hides what it multiplies."""
    for tensors in models:
        for _, block, scale in gains_over_streams(spec, tensors):
            if bool((whole_gain(spec, block, scale, tensors[block]) == 0).any()):
                return None
    return [folded_gains(spec, list(tensors), tensors.__getitem__) for tensors in models]


def have_one_basis(spec: Spec, anchor: Blocks, source: Blocks) -> bool:
    """Whether what writes the latents of a unit is nearly the same in both models."""
    apart = size = 0.0
    for block, tensor in anchor.items():
        if not block.writes.isdisjoint(spec.turned_latents):
            apart += squared_distance(tensor, source[block])
            size += (squared_norm(tensor) + squared_norm(source[block])) / 2
    return apart <= RELATED * size

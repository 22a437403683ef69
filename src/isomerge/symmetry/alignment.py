"""The group element: what moves a checkpoint along its symmetry orbit.

An alignment maps element keys (``ov[3]``: space ov, layer 3; ``shift.vb[3]``: an additive gauge) to tensors. It
acts in stages, nearly always a single one: by its shifts first, then by its spaces, fibres before the bases they
sit over. A rotated residual stream needs two: gains folded and the stream rotated, then the anchor's gains taken
on; and what LayerNorm leaves free is moved in stages of its own (`isomerge.symmetry.norm_stage`). Elements are
labelled by the blocks as they are before their stage (head 2, wherever it is moved to), so that ``g @ h`` and
``g.inverse()`` are exact.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import NORMS, layer_norms
from isomerge.symmetry.norm_stage import NormStage, is_norm_key
from isomerge.symmetry.patch_file import read_patch, write_patch
from isomerge.symmetry.stage import Stage, element_key, joined, scope_of

__all__ = ["Alignment", "Stage", "element_key", "scope_of"]


class Alignment(Mapping[str, "Tensor"]):
    """An element of the symmetry group of one architecture: element key -> stacked element.

    Missing keys are identities. Keys of stages after the first begin with their number (``2:n1[0]``). ``spec`` must
    have every space that occurs active.
    """

    def __init__(self, spec: Spec, elements: Mapping[str, Tensor] | None = None) -> None:
        parts: dict[int, dict[str, Tensor]] = {1: {}}
        for key, g in (elements or {}).items():
            parsed = ElementKey.of(key)
            parts.setdefault(int(parsed.stage or 1), {})[parsed.in_stage] = g
        self.spec = spec
        self.stages: tuple[Stage, ...] = tuple(_stage(spec, parts[number]) for number in sorted(parts))

    @classmethod
    def of(cls, stages: Sequence[Stage], spec: Spec) -> Alignment:
        """The alignment that acts by these stages, the first one first; neighbours are joined where they can be."""
        short: list[Stage] = []
        for stage in stages:
            spec = joined(spec, stage.spec)
            if short and stage.follows(short[-1]):
                short[-1] = stage @ short[-1]
            elif stage.elements:
                short.append(stage)
        alignment = cls(spec)
        alignment.stages = tuple(_stage(spec, s.elements) for s in short) or alignment.stages
        return alignment

    @cached_property
    def elements(self) -> dict[str, Tensor]:
        """All elements, the keys of later stages with their number; listed once, for `items` asks for each by its
        key."""
        return {
            (key if number == 1 else f"{number}:{key}"): g
            for number, stage in enumerate(self.stages, 1)
            for key, g in stage.elements.items()
        }

    def __getitem__(self, key: str) -> Tensor:
        return self.elements[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.elements)

    def __len__(self) -> int:
        return sum(map(len, self.stages))

    # ------------------------------------------------------------------ action

    def act(self, tensors: dict[Block, Tensor]) -> None:
        """Apply to the blocks of one unit, in place. Float tensors, contiguous, all blocks of every shift."""
        for stage in self.stages:
            stage.act(tensors)

    def applied(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """What `act` makes of the blocks of one unit, bit for bit, in new tensors; those that nothing moves are the
        given ones."""
        moved = dict(tensors)
        for stage in self.stages:
            moved = stage.applied(moved)
        return moved

    def act_linearly(self, block: Block, tensor: Tensor) -> None:
        """Apply the spaces (not the shifts) to one block, in place."""
        for stage in self.stages:
            stage.act_linearly(block, tensor)

    def act_on_view(self, view: Tensor, atoms: tuple[Atom, ...], scope: Mapping[str, int]) -> None:
        """Apply the spaces to one tensor whose axes are atoms, in place."""
        for stage in self.stages:
            stage.act_on_view(view, atoms, scope)

    def together(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """The groups of a model's blocks that must be moved together, beside those with an element in common: norms
        with their readers, where they are moved."""
        moved = [stage for stage in self.stages if isinstance(stage, NormStage)]
        if not moved:
            return []
        free = layer_norms(self.spec, blocks)
        return [*free.together, *(part for vector in free.carried for part in vector.together)]

    # ------------------------------------------------------------------- group

    def __matmul__(self, other: Alignment) -> Alignment:
        """``(g @ h)`` acts like h first, then g."""
        return Alignment.of((*other.stages, *self.stages), joined(other.spec, self.spec))

    def inverse(self) -> Alignment:
        """The alignment that undoes this one."""
        parts = [part.inverse() for stage in self.stages for part in stage.split()]
        return Alignment.of(parts[::-1], self.spec)

    def to(self, device: str) -> Alignment:
        """The same alignment with its elements on a device of torch."""
        return Alignment(self.spec, {key: g.to(device) for key, g in self.elements.items()})

    # -------------------------------------------------------------------- show

    def moved(self) -> dict[str, tuple[str, int, int]]:
        """Per space (or shift): its group, how many elements there are, and how many of them are not the
        identity."""
        counts: dict[str, tuple[str, int, int]] = {}
        for key, g in self.elements.items():
            name = ElementKey.of(key).name
            if is_norm_key(name):
                name, group, elements, still = NORMS, "shift", 1, not bool(g.any())
            elif ElementKey.of(key).is_shift:
                group, elements, still = "shift", 1, not bool(g.any())
            else:
                space = self.spec.spaces[name]
                batch = tuple(g.shape[: len(self.spec.batch(space))])
                group, identity = space.group_name, space.group.identity(batch, self.spec.sizes[name])
                apart = (g != identity).reshape(*batch, -1).any(-1)
                elements, still = apart.numel(), apart.numel() - int(apart.sum())
            _, count, not_still = counts.get(name, (group, 0, 0))
            counts[name] = (group, count + elements, not_still + elements - still)
        return counts

    def __repr__(self) -> str:
        return (
            f"<Alignment of {self.spec.model_type}: {len(self)} elements of "
            f"{', '.join(self.moved()) or 'no space'}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: how much of every space is moved."""
        rows = [("space", "group", "elements", "not the identity")]
        rows += [(name, group, str(count), str(moved)) for name, (group, count, moved) in self.moved().items()]
        head, *body = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        caption = f"Alignment: a symmetry of {escape(self.spec.model_type)}, the same function in other weights"
        table = "".join(f"<tr>{row}</tr>" for row in body)
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>"

    # -------------------------------------------------------------------- file

    def digest(self) -> str:
        """A digest of every element, for telling one alignment from another of the same keys."""
        digest = hashlib.sha256()
        for key, g in sorted(self.elements.items()):
            digest.update(key.encode())
            digest.update(g.numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path, **about: Any) -> None:
        """Write the patch file; see `isomerge.symmetry.patch_file.write_patch`.

        Raises:
            IsomergeError: see `isomerge.symmetry.patch_file.check_patch_file`.
        """
        write_patch(Path(os.path.expanduser(path)), self.spec, self.elements, about)

    @classmethod
    def load(cls, path: str | Path, spec: Spec) -> Alignment:
        """Read a patch file for models of ``spec``.

        Raises:
            IsomergeError: not a patch file, or one for another architecture or other sizes.
        """
        return cls(*read_patch(Path(os.path.expanduser(path)), spec))


def _stage(spec: Spec, elements: Mapping[str, Tensor]) -> Stage:
    """A stage of spaces and shifts, or of LayerNorm's moves."""
    return (NormStage if any(map(is_norm_key, elements)) else Stage)(spec, elements)

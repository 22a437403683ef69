"""MLPs of one model as experts of another: in the frame of the stream that they will read and write.

An expert reads what the base's norm gives out and adds to the base's residual stream. Neurons inside may have any
order; what counts is the stream's basis, and the gain that stands in front. So an alignment onto the base moves the
expert's MLP and its norm together, and what is left between the two gains goes into the readers,

    W' = W diag(g / g_base),

which is a move of the gain's scale, and changes nothing where the gains are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor

from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.zero_gains import units_moved_by
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block


@dataclass
class ExpertFrame:
    """What reads the MLP of a model in the frame of another one."""

    model: Model
    base: Model
    alignment: Alignment | None = None
    """What brings the model to the base; None: it is read as it is stored."""
    _held: tuple[frozenset[Block], dict[str, Tensor]] | None = field(default=None, repr=False)
    """The layer that was moved last, as its tensors are asked for one after the other."""

    def read(self, name: str) -> Tensor:
        """A tensor by its canonical name: as stored, or in the working dtype where it is moved or computed."""
        if self.alignment is None:
            stored, checkpoint = self.model.names[name], self.model.checkpoint
            finer = checkpoint.is_finer(stored)
            dtype = working_dtype([self.model]) if finer else torch_dtype(checkpoint.tensors[stored].dtype)
            return self.model.read(stored, dtype)
        together = self._together[name]
        if self._held is None or self._held[0] != together:
            self._held = together, self._moved(together, self.alignment)
        return self._held[1][name]

    def writes(self, name: str) -> bool:
        """Whether a tensor writes to a residual stream."""
        return not self.model.declared.match(name).line.writes.isdisjoint(self.model.declared.streams)

    @cached_property
    def _together(self) -> dict[str, frozenset[Block]]:
        """The blocks that must be moved with each tensor, by its canonical name: its unit's, its norm's gain."""
        alignment = self.alignment
        assert alignment is not None
        units = units_moved_by(alignment, self.model)
        unit_of = {block.key: frozenset(unit.blocks) for unit in units for block in unit.blocks}
        together: dict[str, frozenset[Block]] = {}
        for unit in units:
            gains = {gain.key for block in unit.blocks if (gain := self._gain_of(block)) is not None}
            moved_with = frozenset(unit.blocks).union(*(unit_of[key] for key in gains))
            together |= {name: moved_with for block in unit.blocks for name in block.canonical}
        return together

    @cached_property
    def _gains(self) -> dict[tuple[frozenset[str], tuple[tuple[str, int], ...]], Block]:
        """The blocks of gains, by the names of their axis' atoms and their layer."""
        gains = {}
        for block in self.model.blocks:
            if block.atoms and all(atom.diag for atom in block.atoms):
                gains[block.names, block.scope] = block
        return gains

    def _gain_of(self, block: Block) -> Block | None:
        """The gain in front of what a block reads; None where it reads no stream."""
        return self._gains.get((block.reads, block.scope))

    def _moved(self, blocks: frozenset[Block], alignment: Alignment) -> dict[str, Tensor]:
        """The tensors of a layer's MLP in the base's frame, by canonical name."""
        dtype = working_dtype([self.model, self.base])
        moved = alignment.applied(self.model.unit(blocks, dtype))
        parts: dict[str, Tensor] = {}
        for block, tensor in moved.items():
            gain = self._gain_of(block)
            if gain is not None and gain in moved:
                mine = moved[gain] + gain.line.less
                theirs = self.base.read(self.base.names[gain.canonical[0]], dtype) + gain.line.less
                # behind a gain of zero the base's stream has nothing to read
                tensor = tensor * torch.where(theirs == 0, 0.0, mine / theirs.where(theirs != 0, 1.0))
            parts |= {name: part.contiguous() for name, part in block.split(tensor)}
        return parts


@dataclass(frozen=True)
class ExpertPart:
    """One expert's tensors, as the recipe has them: ``(W + noise) scale``, where the scale is of what it writes."""

    frame: ExpertFrame
    name: str
    """Its place among the experts, on which its noise depends."""
    noise_scale: float | None = None
    residual_scale: float | None = None
    seed: int = 0

    def read(self, name: str) -> Tensor:
        """A tensor by its canonical name."""
        tensor = self.frame.read(name)
        if self.noise_scale:
            wide = tensor.to(working_dtype([self.frame.model]))
            tensor = wide + self.noise_scale * normal(self.seed, (self.name, name), wide)
        if self.residual_scale is not None and self.frame.writes(name):
            tensor = tensor.to(working_dtype([self.frame.model])) * self.residual_scale
        return tensor


def normal(seed: int, place: Sequence[str], like: Tensor) -> Tensor:
    """Numbers of the standard normal distribution that depend on the seed and the place alone, like a tensor."""
    digest = sha256("/".join((str(seed), *place)).encode()).digest()
    rng = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randn(like.shape, generator=rng, dtype=like.dtype)

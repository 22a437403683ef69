"""Leaves of blocks on their way through a transport flow, and the maps that move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from isomerge.research.baselines.transport_maps import Spaces, transported
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec


@dataclass(frozen=True)
class Step:
    """One map on one leaf: the axes that number maps, the axes that are transported, and the name of the map."""

    batch: tuple[int, ...]
    axes: tuple[int, ...]
    map: str


@dataclass(frozen=True)
class Part:
    """A leaf of a block with what is known of its axes."""

    block: Block
    number: int
    x: Tensor
    """The anchor's view."""
    y: Tensor
    """The source's view, as it is stored."""
    atoms: tuple[Atom, ...]
    hidden: Spaces
    """Active spaces inside the layer, bases first."""
    reads: bool
    """A stream is its input."""
    writes: bool
    """A stream is its output, and it is no vector."""

    @property
    def name(self) -> str:
        """The leaf, in the whole model."""
        return f"{self.block.key}#{self.number}"

    @property
    def place(self) -> str:
        """The same for a module's weight and its bias."""
        return f"{self.block.key.rpartition('.')[0]}#{self.number}"


@dataclass
class Maps:
    """All maps of a model, and which of them move which leaf."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Maps by name, float32 [*batch, *source, *anchor]: what is kept is what is used, also after an
    interruption."""
    steps: dict[str, list[Step]] = field(default_factory=dict)
    """By leaf, in the order of action."""

    def keep(self, name: str, matrix: Tensor) -> str:
        """Remember a map; returns its name."""
        self.tensors[name] = matrix.float()
        return name

    def add(self, part: Part, steps: Sequence[Step]) -> None:
        """More maps of one leaf."""
        self.steps.setdefault(part.name, []).extend(steps)

    def along(self, leaf: str, view: Tensor) -> Tensor:
        """The source's leaf as far as its maps are known, float64 if there are any."""
        for step in self.steps.get(leaf, ()):
            view = transported(view.double(), step.batch, step.axes, self.tensors[step.map].double())
        return view

    def marginal_error(self) -> float:
        """How far the rows of a map are from summing to one (its columns do), at worst."""
        used = {step.map: len(step.axes) for steps in self.steps.values() for step in steps}
        errors = [(self.tensors[name].double().flatten(-k).sum(-1) - 1).abs().max() for name, k in used.items()]
        return max(map(float, errors), default=0.0)


def in_flow(blocks: Sequence[Block], spec: Spec) -> list[Block]:
    """Blocks in the order in which a model computes: stacks layer by layer, the rest where the spec has it."""
    rank = {line.name: k for k, line in enumerate(spec.lines)}
    first: dict[str, int] = {}
    for line in spec.lines:
        first.setdefault(line.stack, rank[line.name])

    def place(block: Block) -> tuple[int, tuple[int, ...], int]:
        own = rank[block.line.name]
        if not block.scope:
            return own, (), own
        return first[stack_of(block)], tuple(v for _, v in block.scope), own

    return sorted(blocks, key=place)


def stack_of(block: Block) -> str:
    """The stack that a block of a layer belongs to, empty outside the layers."""
    return block.line.stack if block.scope else ""

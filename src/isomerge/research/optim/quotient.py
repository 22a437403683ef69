"""A live module modulo its continuous symmetries: horizontal updates, conserved quantities, the balanced point."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.optim.binding import bind
from isomerge.research.optim.movement import Movement, balancing, transport
from isomerge.research.optim.vertical import Preconditioner, VerticalSpace, project

Key = TypeVar("Key", bound=Any)
"""A parameter, or its name in the module."""

# A share of the update's norm: three digits above the rounding of float64 on weights of ordinary condition.
EXACT = 1e-12


@dataclass(frozen=True)
class Rebalanced:
    """What a re-gauging did."""

    moved: float
    """By how much the parameters moved, relative to their norm."""
    dead: dict[str, int]
    """Space -> how many of its elements have no balanced point (a dead or rank-deficient block) and stayed."""


class Quotient:
    """The continuous symmetries of a live module of transformers.

    All spaces of the architecture's spec that act by GL, by scales (those between a norm's gain and its readers
    among them) or by the complex numbers that commute with rotary positions, and the shifts of free biases.
    Rotations of the residual stream are not among them: a live module has gains and ties, for which they are no
    symmetry.

    Args:
        model: a module of transformers, not a wrapper around one.
        spaces: names of the spaces and shifts that count; all by default.
        parameters: those that are trained; by default all that require gradients. A space that would move a
            parameter that is not trained is left out.
        spec: a spec file for an architecture that isomerge does not know.

    Raises:
        IsomergeError: an unknown architecture, parameters that its spec does not describe (such as experts that
            transformers keeps fused), an unknown space, or no continuous symmetry at all.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        spaces: Collection[str] | None = None,
        parameters: Collection[nn.Parameter] | None = None,
        spec: str | Path | None = None,
    ) -> None:
        binding = bind(model, spaces=spaces, trained=parameters, spec_file=spec)
        self.spec = binding.spec
        self.left_out = dict(binding.left_out)
        """Continuous spaces and shifts that do not act in this module, and why."""
        if not (self.spec.spaces or self.spec.shifts or binding.free):
            why = "; ".join(f"{name}: {text}" for name, text in self.left_out.items()) or "its spec has none"
            raise IsomergeError(f"{type(model).__name__} has no continuous symmetry to optimise modulo ({why})")
        self.vertical_space = VerticalSpace(binding)

    @property
    def dimension(self) -> int:
        """The number of vertical directions (some may coincide where blocks are rank-deficient)."""
        return self.vertical_space.dimension

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that the symmetries move, by their names in the module."""
        layout = self.vertical_space.layout
        return dict(zip(layout.names, layout.parameters, strict=True))

    # -------------------------------------------------------------- directions

    def horizontal(self, updates: Mapping[Key, Tensor], *, tolerance: float = EXACT) -> dict[Key, Tensor]:
        """The part of an update that is orthogonal to the orbit, in the Frobenius inner product.

        Args:
            updates: parameter, or its name in the module -> its change, of its shape, any float dtype; what is
                missing does not change. Computed in float64.
            tolerance: on the vertical part that may be left, as a share of the norm of the update.

        Returns:
            The horizontal part under the same kind of keys, in the dtypes given. Parameters that no symmetry moves
            stay as they are; moved ones that were missing are there as well.

        Raises:
            IsomergeError: a name or a shape that the module does not have.
        """
        d = self._flat(updates)
        point = self._point()
        horizontal = project(point, Preconditioner(point), d, tolerance=tolerance).horizontal
        return {**updates, **self._named(horizontal, updates)}

    def vertical(self, elements: Tensor) -> dict[str, Tensor]:
        """The change of the parameters along the orbit, by name, float64.

        Args:
            elements: [dimension], the coordinates in the Lie algebras, spaces in the order of the spec, then
                shifts, then what may be added (`isomerge.research.optim.additions`).
        """
        return self._named(self._point().push(elements.to(torch.float64).contiguous()), {})

    def conserved(self) -> dict[str, Tensor]:
        """What gradient flow conserves, by space: the Gram of the plain side less that of the dual side.

        ``Q Q^T - K K^T`` of every head, and its analogues: differences of squared norms for scales and rotary
        pairs. float64, the layers first. Biases that a shift moves freely count as well.
        """
        x = self._x()
        differences = {}
        for family in self.vertical_space.families:
            plain, dual = family.grams(x)
            difference = plain - dual
            differences[family.name] = difference[..., 0] if family.kind == "complex" else difference
        return differences

    # ---------------------------------------------------------------- movement

    def rebalance(self, *optimizers: torch.optim.Optimizer) -> Rebalanced:
        """Move the parameters to the balanced point of their orbit, in place: the same function, less norm.

        Free biases are folded, and both sides of every space get the same Gram.

        Args:
            optimizers: whose buffers go with the parameters: averages of gradients as gradients transform, averages
                of their squares by the entrywise squares of the same matrices.

        Raises:
            IsomergeError: an optimiser keeps buffers of which it is not known how they transform.
        """
        x = self._x()
        before = x.clone()
        movement, dead = balancing(self.vertical_space, x)
        transport(movement, optimizers)
        self.vertical_space.layout.scatter(x, self.vertical_space.layout.parameters)
        return Rebalanced(float((x - before).norm() / before.norm()), dead)

    def move(self, elements: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        """Move the parameters by a group element, in place: the same function in other weights.

        Args:
            elements: [elements]: matrices of GL, factors, real and imaginary parts of the spaces in the order of
                the spec, then what is added to free biases (which acts first); see `identity`.
            optimizers: whose buffers go with the parameters, see `rebalance`.

        Raises:
            IsomergeError: an optimiser keeps buffers of which it is not known how they transform.
        """
        movement = Movement(self.vertical_space, elements.to(torch.float64).contiguous())
        x = self._x()
        movement.parameters(x)
        transport(movement, optimizers)
        self.vertical_space.layout.scatter(x, self.vertical_space.layout.parameters)

    def identity(self) -> Tensor:
        """The group element [elements] that moves nothing, float64."""
        return Movement.identity(self.vertical_space).elements

    # ------------------------------------------------------------------- flats

    def _x(self) -> Tensor:
        return self.vertical_space.layout.gather(self.vertical_space.layout.parameters, torch.float64)

    def _point(self) -> Any:
        return self.vertical_space.at(self._x())

    def _flat(self, updates: Mapping[Any, Tensor]) -> Tensor:
        """The updates of the moved parameters, flat, float64."""
        layout = self.vertical_space.layout
        by_name = all(isinstance(key, str) for key in updates)
        keys = layout.names if by_name else layout.parameters
        parts = []
        for key, parameter in zip(keys, layout.parameters, strict=True):
            part = updates.get(key)
            if part is not None and part.shape != parameter.shape:
                name = layout.names[len(parts)]
                raise IsomergeError(
                    f"the update of {name} has shape {list(part.shape)}, expected {list(parameter.shape)}"
                )
            parts.append(torch.zeros_like(parameter) if part is None else part)
        return layout.gather([part.double() for part in parts])

    def _named(self, flat: Tensor, like: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """Parts of a flat vector by the kind of keys, and in the dtypes, of ``like``."""
        layout = self.vertical_space.layout
        keys = layout.names if all(isinstance(key, str) for key in like) else layout.parameters
        parts = zip(keys, layout.parameters, layout.split(flat), strict=True)
        if not like:
            return {key: part for key, _, part in parts}
        return {key: part.to(like[key].dtype if key in like else p.dtype) for key, p, part in parts}

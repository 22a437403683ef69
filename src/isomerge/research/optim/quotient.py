"""A live module modulo its continuous symmetries: horizontal updates, conserved quantities, the balanced point;
and any optimiser of torch on the quotient: what it would move along the orbit is taken out of every step, up to a
tolerance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.optim.binding import bind
from isomerge.research.optim.movement import Movement, balancing, transport
from isomerge.research.optim.vertical import Preconditioner, VerticalSpace, project

Group = dict[str, Any]
"""One of torch's groups of parameters, with its options."""
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


# Iterations beyond those of a fresh preconditioner after which it is made anew (eigendecompositions cost as much as
# several iterations).
STALE = 2


class QuotientOptimizer(torch.optim.Optimizer):
    """An optimiser whose steps are horizontal, up to a tolerance: orthogonal to the orbit of weights with the same
    function.

    Adam's elementwise scaling, momentum and weight decay move parameters along the orbit, which changes their sizes
    but no output. Each step of the wrapped optimiser is projected at the parameters that it began from.
    ``param_groups``, ``state`` and ``defaults`` are the wrapped optimiser's own, so that schedulers work on either.

    Args:
        optimizer: one of torch; its parameters are those that are trained.
        model: the module of transformers that has these parameters.
        rebalance_every: number of steps after which the parameters are moved to the balanced point of their orbit
            (`Quotient.rebalance`), buffers with them; 0: never.
        tolerance: on the vertical part of a step that may be left, as a share of the step's norm; it is estimated,
            and what is left may be a third more.
        spaces, spec: see `Quotient`.

    Raises:
        IsomergeError: see `Quotient`; or a number out of range.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        rebalance_every: int = 0,
        tolerance: float = 1e-3,
        spaces: Collection[str] | None = None,
        spec: Any = None,
    ) -> None:
        if rebalance_every < 0 or not 0 < tolerance < 1:
            raise IsomergeError(
                f"rebalance_every={rebalance_every}, tolerance={tolerance}: expected a number of steps "
                "(0: never) and a share between 0 and 1"
            )
        self.optimizer, self.rebalance_every, self.tolerance = optimizer, rebalance_every, tolerance
        super().__setstate__({"defaults": optimizer.defaults})  # hooks, but neither groups nor state of its own
        self._options = (model, spaces, spec)
        self.steps = 0
        """Steps taken."""
        self._bind()

    def _bind(self) -> None:
        model, spaces, spec = self._options
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.quotient = Quotient(model, spaces=spaces, parameters=trained, spec=spec)
        dtypes = {p.dtype for p in self.quotient.vertical_space.layout.parameters}
        self._dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        self._preconditioner: Preconditioner | None = None
        self._start: Tensor | None = None
        self._fresh = 0
        self.iterations = 0
        """Iterations that the last projection took."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The wrapped optimiser's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The wrapped optimiser's state."""
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See torch."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train further parameters; spaces that were left out for them may act from now on."""
        self.optimizer.add_param_group(param_group)
        self._bind()

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimiser's, and the number of steps. What speeds up the projections is made anew."""
        return {**self.optimizer.state_dict(), "quotient": {"steps": self.steps}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a `state_dict` back; that of an optimiser that was not wrapped will do."""
        rest = dict(state_dict)
        self.steps = rest.pop("quotient", {"steps": 0})["steps"]
        self.optimizer.load_state_dict(rest)
        self._preconditioner = self._start = None

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None
    ) -> Any:
        """One step of the wrapped optimiser, projected; returns what it returns."""
        layout = self.quotient.vertical_space.layout
        before = layout.gather(layout.parameters, self._dtype)
        result = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        d = layout.gather(layout.parameters, self._dtype).sub_(before)
        self.steps += 1
        if bool(d.sum().isfinite()):  # else training has diverged, which is not for the projection to hide
            layout.scatter(before + self._project(before, d), layout.parameters)
        if self.rebalance_every and self.steps % self.rebalance_every == 0:
            self.quotient.rebalance(self.optimizer)
            self._preconditioner = self._start = None
        return result

    def _project(self, x: Tensor, d: Tensor) -> Tensor:
        """The horizontal part of a step, from the last step's solution and preconditioner."""
        point = self.quotient.vertical_space.at(x)
        fresh = self._preconditioner is None
        if self._preconditioner is None:
            self._preconditioner = Preconditioner(point)
        projection = project(point, self._preconditioner, d, start=self._start, tolerance=self.tolerance)
        self._start, self.iterations = projection.xi, projection.iterations
        if fresh:
            self._fresh = projection.iterations
        elif projection.iterations > self._fresh + STALE:
            self._preconditioner = None
        return projection.horizontal

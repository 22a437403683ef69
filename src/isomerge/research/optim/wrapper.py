"""Any optimiser of torch, on the quotient: what it would move along the orbit is taken out of every step, up to a
tolerance."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.optim.quotient import Quotient
from isomerge.research.optim.vertical import Preconditioner, project

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

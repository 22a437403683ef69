"""Optimisers whose trajectory does not depend on the point of the orbit where training began.

Both take the gradient in the invariant metric (`isomerge.quotient.optim.invariant_metric`). A bias that a shift
moves freely holds still: what it would do, the bias that it is carried into does. Parameters that no continuous
space moves are updated as torch's SGD and AdamW do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.quotient.optim.invariant_metric import InvariantMetric
from isomerge.quotient.optim.movement import add_outer
from isomerge.quotient.optim.quotient import Quotient
from isomerge.quotient.optim.vertical import carrier


class InvariantOptimizer(torch.optim.Optimizer):
    """What both share: one group of all trained parameters, and gradients in a fixed gauge of the biases."""

    def __init__(
        self, model: nn.Module, defaults: dict[str, Any], spaces: Collection[str] | None, spec: Any
    ) -> None:
        for name in ("lr", "weight_decay"):
            if not defaults[name] >= 0:
                raise IsomergeError(f"{name}={defaults[name]}: expected a number that is not negative")
        self.quotient = Quotient(model, spaces=spaces, spec=spec)
        self._space = self.quotient.vertical_space
        self._metric = InvariantMetric(self._space)
        moved = self._space.layout.parameters
        known = {id(p) for p in moved}
        self._rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        self._dtype = torch.float64 if any(p.dtype == torch.float64 for p in moved) else torch.float32
        super().__init__([*moved, *self._rest], defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only at the beginning: elements of one space must not be trained at different rates.

        Raises:
            IsomergeError: there is a group already.
        """
        if self.param_groups:
            raise IsomergeError(
                f"{type(self).__name__} has one group of parameters: make another optimiser instead"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None
    ) -> Any:
        """One step; returns the loss of the closure, if there is one. Missing gradients count as zero."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        (group,) = self.param_groups
        self._step_moved(group)
        rest = [p for p in self._rest if p.grad is not None]
        for p in rest:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        self._step_rest(group, rest)
        return loss

    def _step_moved(self, group: dict[str, Any]) -> None:
        """The step of all parameters that some space moves, as one flat vector."""
        layout = self._space.layout
        if all(p.grad is None for p in layout.parameters):
            return
        x = layout.gather(layout.parameters, self._dtype)
        g = layout.gather(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in layout.parameters], self._dtype
        )
        folded = self._fold(x, g)
        d = self._direction(g, self._metric.at(folded), group)
        for shift in self._space.shifts:  # and back
            w = carrier(shift, d)
            if w is not None and shift.into is not None:
                into = shift.into.of(d)
                into -= (w @ shift.bias.of(x).flatten(1).unsqueeze(-1)).view(into.shape)
        decayed = x * (group["lr"] * group["weight_decay"])
        for shift in self._space.shifts:
            shift.bias.of(decayed).zero_()
        layout.scatter(x - decayed - d * group["lr"], layout.parameters)

    def _fold(self, x: Tensor, g: Tensor) -> Tensor:
        """The parameters with every free bias folded into the one it is carried to.

        Gradients become those there, in place; of free biases they become zero: these hold still.
        """
        folded = x.clone()
        for shift in self._space.shifts:
            bias = shift.bias.of(x)
            w = carrier(shift, x)
            if w is not None and shift.via is not None and shift.into is not None:
                into = shift.into.of(folded)
                into += (w @ bias.flatten(1).unsqueeze(-1)).view(into.shape)
                add_outer(shift.via.of(g), shift.into.of(g), bias, value=-1)
            shift.bias.of(folded).zero_()
            shift.bias.of(g).zero_()
        return folded

    def _buffer(self, name: str) -> Tensor:
        """A buffer of the moved parameters as a flat vector; zeros at first."""
        layout = self._space.layout
        for p in layout.parameters:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p, dtype=self._dtype)
        return layout.gather([self.state[p][name] for p in layout.parameters], self._dtype)

    def _keep(self, name: str, flat: Tensor) -> None:
        self._space.layout.scatter(flat, [self.state[p][name] for p in self._space.layout.parameters])

    @abstractmethod
    def _direction(self, g: Tensor, metric: tuple[Tensor, Tensor], group: dict[str, Any]) -> Tensor:
        """What the learning rate times is subtracted from the moved parameters."""

    @abstractmethod
    def _step_rest(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        """The step of parameters that no space moves, without weight decay."""


class InvariantSGD(InvariantOptimizer):
    """Stochastic gradient descent with momentum in the invariant metric.

    From ``g theta`` it goes to ``g`` times where it goes from ``theta``, in exact arithmetic: the function learned
    does not depend on the point of the orbit that training begins at.

    Args:
        model: a module of transformers; all parameters that require gradients are trained.
        lr: the learning rate; at a balanced point that of plain SGD.
        momentum: of an average of gradients, as torch's SGD has it.
        weight_decay: decoupled: a share ``lr * weight_decay`` of the weights (which moves with them).
        spaces, spec: see `Quotient`.

    Raises:
        IsomergeError: see `Quotient`; or a number out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-2,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        spaces: Collection[str] | None = None,
        spec: Any = None,
    ) -> None:
        if not 0 <= momentum < 1:
            raise IsomergeError(f"momentum={momentum}: expected a number from 0 to less than 1")
        super().__init__(model, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, spaces, spec)

    def _direction(self, g: Tensor, metric: tuple[Tensor, Tensor], group: dict[str, Any]) -> Tensor:
        if group["momentum"]:
            g = self._buffer("momentum_buffer").mul_(group["momentum"]).add_(g)
            self._keep("momentum_buffer", g)
        return self._metric.raised(g, metric)

    def _step_rest(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        for p in parameters:
            g = p.grad
            assert g is not None
            if group["momentum"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                g = buffer.mul_(group["momentum"]).add_(g)
            p.sub_(g, alpha=group["lr"])


class InvariantAdam(InvariantOptimizer):
    """Adam in the invariant metric, with second moments that no symmetry changes.

    The first moment is an average of gradients; it is taken to the metric of the moment. The second is the average
    of ``G * P G``, over the entries that a matrix (or a rotary pair) mixes: one number for every column of a head's
    weights, and one for every weight where only scales act, so that it is Adam at the balanced point there.

    Args:
        model: a module of transformers; all parameters that require gradients are trained.
        lr, betas, eps: as Adam's.
        weight_decay: decoupled, as AdamW's.
        spaces, spec: see `Quotient`.

    Raises:
        IsomergeError: see `Quotient`; or a number out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        spaces: Collection[str] | None = None,
        spec: Any = None,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise IsomergeError(f"betas={betas}: expected two numbers from 0 to less than 1")
        super().__init__(model, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, spaces, spec)

    def _direction(self, g: Tensor, metric: tuple[Tensor, Tensor], group: dict[str, Any]) -> Tensor:
        (beta1, beta2), first = group["betas"], self._space.layout.parameters[0]
        n = self.state[first]["step"] = self.state[first].get("step", 0) + 1
        u = self._metric.raised(g, metric).mul_(g)
        self._metric.averaged(u)
        m = self._buffer("exp_avg").lerp_(g, 1 - beta1)
        v = self._buffer("invariant_sq").lerp_(u, 1 - beta2)
        self._keep("exp_avg", m)
        self._keep("invariant_sq", v)
        size = v.clamp_min_(0).div_(1 - beta2**n).sqrt_().add_(group["eps"])  # rounding may leave -0
        return self._metric.raised(m.div_(1 - beta1**n), metric).div_(size)

    def _step_rest(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        beta1, beta2 = group["betas"]
        for p in parameters:
            state, g = self.state[p], p.grad
            assert g is not None
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            n = state["step"] = state["step"] + 1
            m = state["exp_avg"].lerp_(g, 1 - beta1)
            v = state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.addcdiv_(m, (v / (1 - beta2**n)).sqrt_().add_(group["eps"]), value=-group["lr"] / (1 - beta1**n))

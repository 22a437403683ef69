"""Optimisers whose trajectory does not depend on the point of the orbit where training began.

Both take the gradient in a metric on weights that no symmetry changes (`InvariantMetric`). A bias that a shift
moves freely holds still: what it would do, the bias that it is carried into does. Parameters that no continuous
space moves are updated as torch's SGD and AdamW do.

At a plain leaf of GL the metric is ``tr(P^-1 D D^T)`` with ``P = A / t``: A the Gram of all plain leaves of the
element, B that of the dual ones, ``t^2 = tr(A B) / n``. Under g, ``A -> g A g^T`` and ``B -> g^-T B g^-1``, t
stays; so the gradient in the metric, ``P G``, moves as the weights do (``G -> g^-T G``), and steps commute with g.
Dual leaves have ``B / t``. (Absil, Mahony and Sepulchre, Optimization Algorithms on Matrix Manifolds, 2008,
section 3.6; Mishra et al., Fixed-rank matrix factorizations and Riemannian low-rank optimization, 2014.) At a
balanced point with isotropic Grams P is the identity, so that learning rates mean what they mean elsewhere; for
scales and rotary pairs ``P = (A / B)^(1/2)`` is the plain gradient of the balanced point, wherever one stands.

Where spaces meet in one tensor, the Gram of one must not feel the elements of the other: the other axis is
contracted with the other space's Gram of the *opposite* side, which transforms inversely. No Gram is inverted, so
nothing is damped; an element one of whose sides is zero has the identity for P, for there is nothing there to
measure by.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.optim.layout import Family, Leaf, Touch
from isomerge.research.optim.movement import act, add_outer, multiply
from isomerge.research.optim.quotient import Group, Quotient
from isomerge.research.optim.vertical import VerticalSpace, carrier

Side = tuple[str, bool]
"""A family's name, and whether its dual side is meant."""


class InvariantOptimizer(torch.optim.Optimizer):
    """What both share: one group of all trained parameters, and gradients in a fixed gauge of the biases."""

    def __init__(self, model: nn.Module, defaults: Group, spaces: Collection[str] | None, spec: Any) -> None:
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

    def add_param_group(self, param_group: Group) -> None:
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

    def _step_moved(self, group: Group) -> None:
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
            shift.carry(d, carrier(shift, d), shift.bias.of(x), -1)
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
            shift.carry(folded, carrier(shift, x), bias, 1)
            if shift.via is not None and shift.into is not None:
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
    def _direction(self, g: Tensor, metric: tuple[Tensor, Tensor], group: Group) -> Tensor:
        """What the learning rate times is subtracted from the moved parameters."""

    @abstractmethod
    def _step_rest(self, group: Group, parameters: list[nn.Parameter]) -> None:
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

    def _direction(self, g: Tensor, metric: tuple[Tensor, Tensor], group: Group) -> Tensor:
        if group["momentum"]:
            g = self._buffer("momentum_buffer").mul_(group["momentum"]).add_(g)
            self._keep("momentum_buffer", g)
        return self._metric.raised(g, metric)

    def _step_rest(self, group: Group, parameters: list[nn.Parameter]) -> None:
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

    def _direction(self, g: Tensor, metric: tuple[Tensor, Tensor], group: Group) -> Tensor:
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

    def _step_rest(self, group: Group, parameters: list[nn.Parameter]) -> None:
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


class InvariantMetric:
    """The order in which the Grams of a module are made; nothing here depends on the values of the parameters.

    Args:
        space: of the module.

    Raises:
        IsomergeError: spaces meet in a circle, so that no Gram can come first.
    """

    def __init__(self, space: VerticalSpace) -> None:
        self.space = space
        self.on_leaf: dict[Leaf, list[Touch]] = {}
        for family in space.families:
            for touch in family.touches:
                self.on_leaf.setdefault(touch.leaf, []).append(touch)
        self.order = self._order()

    def _needs(self, family: Family, dual: bool) -> set[Side]:
        """The Grams by which those of one side are weighted."""
        return {
            (other.family.name, not other.dual)
            for touch in family.touches
            if touch.dual == dual and not touch.free
            for other in self.on_leaf[touch.leaf]
            if other is not touch
        }

    def _order(self) -> list[tuple[Family, bool]]:
        rest = [(family, dual) for family in self.space.families for dual in (False, True)]
        order: list[tuple[Family, bool]] = []
        while rest:
            done = {(family.name, dual) for family, dual in order}
            ready = next((side for side in rest if self._needs(*side) <= done), None)
            if ready is None:
                raise IsomergeError(
                    f"the spaces {', '.join(sorted({f.name for f, _ in rest}))} meet in a circle: "
                    "name fewer in spaces="
                )
            order.append(ready)
            rest.remove(ready)
        return order

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """P of every plain and of every dual side at parameters x [parameters]: two flat vectors [elements]."""
        sides = [torch.zeros(self.space.size, dtype=x.dtype, device=x.device) for _ in range(2)]
        scratch, seen = torch.empty_like(x), set()
        for family, dual in self.order:
            for touch in family.touches:
                if touch.dual != dual or touch.free:
                    continue
                touch.leaf.view.of(scratch).copy_(touch.leaf.view.of(x))
                for other in self.on_leaf[touch.leaf]:
                    if other is not touch:
                        multiply(other, other.at.of(scratch), sides[not other.dual])
                touch.add_gram(sides[dual], touch.at.of(scratch), touch.at.of(x))
            if family.name in seen:
                _normalise(family, *sides)
            seen.add(family.name)
        return sides[0], sides[1]

    def raised(self, g: Tensor, metric: tuple[Tensor, Tensor]) -> Tensor:
        """``P G`` of what transforms as gradients do [parameters]; it moves as the weights do."""
        raised = g.clone()
        act(self.space, raised, *metric)
        return raised

    def averaged(self, u: Tensor) -> None:
        """Average over the axes that matrices and complex numbers mix, in place: what is left is invariant."""
        for leaf, touches in self.on_leaf.items():
            axes = tuple(leaf.names.index(t.family.name) for t in touches if t.family.kind != "scale")
            if axes:
                view = leaf.view.of(u)
                view.copy_(view.mean(axes, keepdim=True).expand_as(view))


def _normalise(family: Family, plain: Tensor, dual: Tensor) -> None:
    """Divide both Grams of a family by their invariant size, in place."""
    a, b = family.of(plain), family.of(dual)
    if family.kind == "matrix":
        square = (a * b.mT).sum((-2, -1), keepdim=True) / family.n
        identity = torch.eye(family.n, dtype=a.dtype, device=a.device).expand_as(a)
    elif family.kind == "complex":
        square = (a * b).sum(-1, keepdim=True)
        identity = torch.tensor([1.0, 0.0], dtype=a.dtype, device=a.device).expand_as(a)
    else:
        square, identity = a * b, torch.ones_like(a)
    alive = square > torch.finfo(a.dtype).tiny
    scale = torch.where(alive, square, torch.ones_like(square)).rsqrt()
    a.copy_(torch.where(alive, a * scale, identity))
    b.copy_(torch.where(alive, b * scale, identity))

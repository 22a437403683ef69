"""Group elements acting on flat vectors: on parameters, on averages of gradients, and on those of their squares.

The function of the model is the same at ``g X`` (plain leaves) and ``g^-T X`` (dual ones), so gradients there are
``g^-T G`` and ``g G``: averages of gradients, such as momentum buffers, are carried along so that the next steps
are those that would have been made had all of training happened in the new coordinates. Averages of *squared*
gradients have no exact law under matrices; they are carried as if entries were uncorrelated, by the entrywise
squares of the same matrices, which is exact for scales.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.research.optim.layout import Family, Touch
from isomerge.research.optim.vertical import VerticalSpace, carrier, quarter_turn

# Sweeps over spaces that meet in one tensor; each lowers the norm.
SWEEPS = 100
SETTLED = 1e-10


class Movement:
    """An element of every family, and a shift of every free bias, acting first.

    Args:
        space: of the module.
        elements: [elements], float64; its places of shifts are their d.
    """

    def __init__(self, space: VerticalSpace, elements: Tensor) -> None:
        self.space, self.elements = space, elements
        self.contragredient = contragredient(space.families, elements)

    @classmethod
    def identity(cls, space: VerticalSpace) -> Movement:
        """What moves nothing."""
        elements = torch.zeros(space.size, dtype=torch.float64, device=space.layout.parameters[0].device)
        for family in space.families:
            batch = family.shape[: -2 if family.kind == "matrix" else -1]
            family.of(elements).copy_(family.space.group.identity(batch, family.n))
        return cls(space, elements)

    def parameters(self, x: Tensor) -> None:
        """Move parameters [parameters], float64, in place."""
        self._shift_parameters(x)
        act(self.space, x, self.elements, self.contragredient)

    def gradients(self, g: Tensor) -> None:
        """Move gradients or averages of them, float64, in place."""
        self._shift_gradients(g, self.elements)
        act(self.space, g, self.contragredient, self.elements)

    def squares(self, v: Tensor) -> None:
        """Move averages of squared gradients, float64, in place; see above for what is approximate."""
        self._shift_gradients(v, self.elements.square())
        act(self.space, v, self.contragredient.square(), self.elements.square(), squares=True)

    def _shift_parameters(self, x: Tensor) -> None:
        for shift in self.space.shifts:
            d, w = shift.of(self.elements), carrier(shift, x)
            shift.bias.of(x).add_(d)
            shift.carry(x, w, d, -1)

    def _shift_gradients(self, g: Tensor, elements: Tensor) -> None:
        """``into = into' - W d``: the gradient of W gains ``G_into d^T``."""
        for shift in self.space.shifts:
            if shift.into is not None and shift.via is not None:
                add_outer(shift.via.of(g), shift.into.of(g), shift.of(elements))


def add_outer(via: Tensor, into: Tensor, d: Tensor, value: float = 1.0) -> None:
    """``W += value into d^T``, W [layer, *outputs, *bias, *others], in place."""
    left = into.reshape(*into.shape, *(1,) * (via.ndim - into.ndim))
    right = d.reshape(
        d.shape[0], *(1,) * (into.ndim - 1), *d.shape[1:], *(1,) * (via.ndim - into.ndim - d.ndim + 1)
    )
    via.addcmul_(left.expand_as(via), right.expand_as(via), value=value)


def act(space: VerticalSpace, x: Tensor, plain: Tensor, dual: Tensor, *, squares: bool = False) -> None:
    """Multiply the plain leaves of x [parameters] by ``plain`` [elements], dual ones by ``dual``, in place.

    With ``squares``, complex numbers are entrywise squares of their 2 x 2 matrices.
    """
    for family in space.families:
        for touch in family.touches:
            multiply(touch, touch.at.of(x), dual if touch.dual else plain, squares=squares)


def multiply(touch: Touch, leaf: Tensor, factors: Tensor, *, squares: bool = False) -> None:
    """Multiply one leaf, arranged as the touch has it, by its factors, in place."""
    c = touch.coefficient.of(factors)
    if touch.family.kind == "matrix":
        leaf.copy_(c @ leaf)
    elif touch.family.kind == "scale":
        leaf.mul_(c)
    else:
        turned = leaf.flip(touch.axis) if squares else quarter_turn(touch, leaf)
        leaf.mul_(c).addcmul_(turned, touch.imaginary.of(factors))


def contragredient(families: Iterable[Family], elements: Tensor) -> Tensor:
    """``g^-T`` of the elements [elements] of these families; zeros elsewhere."""
    inverses = torch.zeros_like(elements)
    for family in families:
        g = family.of(elements)
        if family.kind == "complex":
            g = g / g.square().sum(-1, keepdim=True)
        else:
            g = torch.linalg.inv(g).mT if family.kind == "matrix" else g.reciprocal()
        family.of(inverses).copy_(g)
    return inverses


def balancing(space: VerticalSpace, x: Tensor) -> tuple[Movement, dict[str, int]]:
    """The movement to the balanced point: free biases folded, both sides of every space of equal Grams.

    Args:
        space: of the module.
        x: the parameters, float64; they are moved, in place.

    Returns:
        What was applied; how many elements of which spaces have no balanced point and stay (dead blocks).
    """
    total = Movement.identity(space)
    unit = total.elements.clone()
    for shift in space.shifts:
        shift.of(total.elements).copy_(-shift.bias.of(x))
    total._shift_parameters(x)
    dead: dict[str, int] = {}
    for sweep in range(SWEEPS):
        moved = 0.0
        for family in space.families:
            g, closed = _balance(family, x)
            if sweep == 0 and closed:
                dead[family.name] = closed
            moved = max(moved, float((g - family.of(unit)).abs().max()))
            _apply(space, family, g, x)
            family.of(total.elements).copy_(family.space.group.compose(g, family.of(total.elements)))
        if moved < SETTLED:
            break
    return Movement(space, total.elements), dead


def _balance(family: Family, x: Tensor) -> tuple[Tensor, int]:
    """The element of one family that balances it alone, and how many are dead."""
    plain, dual = family.grams(x, free=False)
    if family.kind != "matrix":
        plain, dual = torch.diag_embed(plain), torch.diag_embed(dual)
    balanced = family.space.group.balance(plain, dual)
    assert balanced is not None, f"{family.name} is compact"
    return balanced[0], int(balanced[1].sum())


def _apply(space: VerticalSpace, family: Family, g: Tensor, x: Tensor) -> None:
    elements = x.new_zeros(space.size)
    family.of(elements).copy_(g)
    back = contragredient([family], elements)
    for touch in family.touches:
        multiply(touch, touch.at.of(x), back if touch.dual else elements)


GRADIENTS = ("momentum_buffer", "exp_avg", "grad_avg")
"""Averages of gradients, by the names that torch gives them."""
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
"""Averages or sums of squared gradients."""
INVARIANT = ("invariant_sq",)
"""What no symmetry changes."""


def transport(movement: Movement, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Move the buffers of optimisers as a movement moves gradients and their squares, in place.

    Args:
        movement: that the parameters make.
        optimizers: whose state has tensors of the parameters' shapes under torch's names.

    Raises:
        IsomergeError: a buffer of a parameter's shape with another name; nothing has been moved then.
    """
    layout = movement.space.layout
    own = {id(p): p for p in layout.parameters}
    every = list(optimizers)
    for optimizer in every:
        for parameter, state in optimizer.state.items():
            for name, value in state.items() if id(parameter) in own else ():
                known = name in (*GRADIENTS, *SQUARES, *INVARIANT)
                if not known and getattr(value, "shape", None) == parameter.shape and parameter.ndim:
                    raise IsomergeError(
                        f"{type(optimizer).__name__} keeps {name} for every parameter, of which it is not "
                        "known how it transforms: re-gauge with SGD, Adam or another optimiser of torch's that "
                        "averages gradients"
                    )
    for optimizer in every:
        for name in (*GRADIENTS, *SQUARES):
            _carry(movement, optimizer, name)


def _carry(movement: Movement, optimizer: torch.optim.Optimizer, name: str) -> None:
    """One buffer of all parameters; those that have none count as zero."""
    layout = movement.space.layout
    states = [optimizer.state.get(p, {}) for p in layout.parameters]
    there = [state.get(name) for state in states]
    if all(value is None for value in there):
        return
    filled = [torch.zeros_like(p) if v is None else v for v, p in zip(there, layout.parameters, strict=True)]
    flat = layout.gather(filled, torch.float64)
    (movement.squares if name in SQUARES else movement.gradients)(flat)
    layout.scatter(flat, filled)

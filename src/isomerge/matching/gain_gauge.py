"""The gauge of norm gains: what every channel's gain is written as, once streams are turned and gains folded.

A gain may be any number that is not zero: what reads the channel is divided by it (what writes it, for a layer
scale), so that the function stays. Between folded models (every gain one) let x be what an element e multiplies in
one channel, and y what it divides: of a norm, x = (1, b) are its gain and bias, and y all that reads them. Moved by
e, the models m are, from an anchor as it is stored (x_a, y_a),

    f(e) = sum over m of |e x_m - x_a|^2 + |y_m / e - y_a|^2

away: alpha e^2 - 2 c_plus e + beta / e^2 - 2 c_minus / e and a constant, of four sums over the models. It is the
quartic of every other scale (`isomerge.matching.rescale.quartic_scale` finds its least value). So the distance is
no more than with the anchor's gains, and no more than with gains of one, however small a gain is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomerge.matching.gram import sides
from isomerge.matching.rescale import TINY, quartic_scale
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import elements_of


@dataclass
class GainGauge:
    """Gathers what decides the common gain of every channel, over units and models in any order.

    Args:
        spec: the spec whose gains are folded.
    """

    spec: Spec
    _sums: dict[tuple[str, bool], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """By element key and side (dual or not): squares, and products with the anchor, float64 [*batch, 1] each."""

    def add(self, anchor: Blocks, folded: Blocks) -> None:
        """Some blocks of the anchor as it is stored, and of a model that will have the common gains, with its gains
        folded."""
        for block, stored in anchor.items():
            for key, space in elements_of(self.spec, block).items():
                if space.name not in self.spec.gains:
                    continue
                depth = len(self.spec.batch(space)) + 1
                for dual, parts, order in sides(self.spec, space, {block: stored}, {block: folded[block]}):
                    x, y = (t.double().permute(order) for t in parts)
                    products = [p.reshape(*p.shape[:depth], -1).sum(-1) for p in (y * y, x * y)]
                    there = self._sums.get((key, dual))
                    square, shared = (
                        products if there is None else (a + b for a, b in zip(there, products, strict=True))
                    )
                    self._sums[key, dual] = square, shared

    def chosen(self, storable: Callable[[str, Tensor], Tensor] | None = None) -> dict[str, Tensor]:
        """What moves the folded models to the common gains, by element key, float64 [*batch, 1]: where f is least.

        Args:
            storable: brings elements to those whose gains their tensors can hold, so that rounding falls on the
                other side alone; where that leaves none, the channel stays folded.
        """

        found = {}
        for key in dict.fromkeys(key for key, _ in self._sums):
            some = next(self._sums[k, dual][0] for k, dual in self._sums if k == key)
            nothing = torch.zeros_like(some), torch.zeros_like(some)
            (alpha, plus), (beta, minus) = (self._sums.get((key, dual), nothing) for dual in (False, True))
            best = quartic_scale(alpha, beta, plus, minus)
            best = torch.where((beta <= TINY) & (alpha > TINY), plus / alpha, best)
            best = torch.where((alpha <= TINY) & (beta > TINY), beta / minus, best)
            if storable is not None:
                best = storable(key, best)
            found[key] = torch.where(best.isfinite() & (best != 0), best, 1.0)
        return found

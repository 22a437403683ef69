"""Steps along an orbit: orthogonalised momentum for matrices, Adam for numbers.

A rotation's gradient is pulled to the Lie algebra, and the step is taken along the geodesic, ``R <- exp(-step) R``.
Of a matrix (a rotation's skew gradient, a logarithm of GL) the momentum is orthogonalised before it is a step: all
its singular values become one, so that planes in which the loss is flat move as far as steep ones. That halves what
Adam leaves of the barrier after as many steps (docs/lab/experiments.md).

Sources: Jordan et al. 2024 (Muon: momentum, orthogonalised by Newton and Schulz); Liu et al. 2025 (its size beside
Adam's); Becigneul and Ganea 2019 (adaptive steps on manifolds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from isomerge.matching.smooth import SmoothElements
from isomerge.symmetry.groups.polar import nearer_orthogonal

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Of an odd polynomial that takes every number of (0, 1] near one when it is repeated: its slope at zero is steep,
and its values end between 0.7 and 1.2."""
ROUNDS = 5


class OrbitOptimiser:
    """Learns elements with one schedule: a warm-up and a cosine.

    Args:
        elements: what is learned; gradients must have been computed before a step.
        rotation_rate: radians of a rotation's entries per step at the peak, were they all alike (a step of a
            matrix has `SHARE` of such a step's norm).
        gauge_rate: step of log-scales, phases and logarithms of GL at the peak.
        steps, warmup: the schedule: linear to the peak, then a cosine to zero.
    """

    BETAS, EPS, SCORE_RATE = (0.9, 0.999), 1e-8, 2e-2
    SHARE = 0.3

    def __init__(
        self, elements: SmoothElements, rotation_rate: float, gauge_rate: float, steps: int, warmup: int
    ) -> None:
        self.elements = elements
        self.rates = (rotation_rate, gauge_rate)
        self.steps, self.warmup, self.step_number = steps, warmup, 0
        self.moments: dict[str, tuple[Tensor, ...]] = {}

    def factor(self) -> float:
        """The schedule at the current step."""
        at = self.step_number
        if at < self.warmup:
            return (at + 1) / self.warmup
        return 0.5 * (1 + math.cos(math.pi * (at - self.warmup) / max(self.steps - self.warmup, 1)))

    def step(self) -> None:
        """One step; gradients are cleared."""

        rate = self.factor()
        self.step_number += 1
        with torch.no_grad():
            for key, r in self.elements.rotations.items():
                if r.grad is None:
                    continue
                lie = r.grad @ r.mT  # dL/dR of exp(S) R at S = 0 is G R^T, of which the skew part is the gradient
                skew = self._of_matrix(key, (lie - lie.mT) / 2) * (self.rates[0] * rate)
                skew = (skew - skew.mT) / 2
                if self.elements.spec.spaces[key.partition("[")[0]].group_name == "OFixingOnes":
                    skew = skew - skew.mean(-1, keepdim=True)
                    skew = skew - skew.mean(-2, keepdim=True)
                r.copy_(torch.linalg.matrix_exp(-skew) @ r)
                if self.step_number % 50 == 0:  # float32 drifts off the group, by 1e-5
                    r.copy_(nearer_orthogonal(r))
                r.grad = None
            for key, x in self.elements.gauges.items():
                if x.grad is not None:
                    group = self.elements.spec.spaces[key.partition("[")[0]].group_name
                    direction = self._of_matrix if group == "GL" else self._of_numbers
                    x -= direction(key, x.grad) * (self.rates[1] * rate)
                    x.grad = None
            for key, x in self.elements.scores.items():
                if x.grad is not None:
                    x -= self._of_numbers(key, x.grad) * (self.SCORE_RATE * rate)
                    x.grad = None
        if self.step_number % 10 == 0:
            self.elements.restrain()

    def _of_matrix(self, key: str, gradient: Tensor) -> Tensor:
        """The momentum of matrices [*b, n, n], orthogonalised; in norm a share of n, which Adam's at most has."""

        if key not in self.moments:
            self.moments[key] = (torch.zeros_like(gradient),)
        (momentum,) = self.moments[key]
        momentum.mul_(self.BETAS[0]).add_(gradient)
        ahead = gradient + self.BETAS[0] * momentum
        return orthogonalised(ahead) * (self.SHARE * gradient.shape[-1] ** 0.5)

    def _of_numbers(self, key: str, gradient: Tensor) -> Tensor:
        """Adam's direction."""

        if key not in self.moments:
            self.moments[key] = (torch.zeros_like(gradient), torch.zeros_like(gradient))
        first, second = self.moments[key]
        first.lerp_(gradient, 1 - self.BETAS[0])
        second.lerp_(gradient.square(), 1 - self.BETAS[1])
        n = self.step_number
        return (first / (1 - self.BETAS[0] ** n)) / ((second / (1 - self.BETAS[1] ** n)).sqrt() + self.EPS)

    def state(self) -> dict[str, Tensor]:
        """Moments and step number, for a file."""

        found = {"step": torch.tensor(self.step_number)}
        for key, moments in self.moments.items():
            found |= {f"{k}.{key}": moment.cpu().clone() for k, moment in enumerate(moments)}
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take a `state` back."""
        self.step_number = int(state["step"])
        device = next(iter(self.elements.parameters().values())).device
        for name in sorted(state):
            number, _, key = name.partition(".")
            if number.isdecimal():
                kept = self.moments.get(key, ()) if int(number) else ()
                self.moments[key] = (*kept, state[name].to(device))


def orthogonalised(x: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Matrices [*b, n, n] with singular values near one (0.7 to 1.2) and the singular vectors that they have; what
    is below a thousandth of a matrix's norm stays small. A skew matrix stays skew.

    Source: Jordan et al. 2024, a Newton-Schulz iteration of fifth order.
    """

    a, b, c = QUINTIC
    norm = torch.linalg.matrix_norm(x, keepdim=True)
    x = x / norm.clamp_min(torch.finfo(x.dtype).tiny)
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x

"""Group elements as functions of unconstrained numbers: what gradients can learn, always a symmetry.

Every continuous space starts at the identity, from a solution that was found without gradients:

* rotations (O, OFixingOnes): a matrix kept on the group; its gradient is pulled to the Lie algebra, Adam works
  there, and the step is taken along the geodesic, ``R <- exp(-step) R`` (Riemannian Adam with the exponential map);
* GL: ``exp(X)`` with the symmetric part of X bounded, so that the condition number never exceeds ``CONDITION``;
* Complex: ``exp(s + i t)``; Turn: ``exp(i t)``; Scale, PositiveScale: ``exp(s)`` (signs are settled before).

Log-scales are centred in every layer: a factor common to a whole layer would move the barrier along the path
instead of lowering it (docs/lab/experiments.md). Permutations are frozen, or learned by a straight-through
assignment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.groups.discrete import assign
from isomerge.symmetry.groups.polar import nearer_orthogonal
from isomerge.symmetry.language.spec import Spec

ROTATIONS = ("O", "OFixingOnes")
CONDITION = 100.0
# Of the Sinkhorn relaxation: scores start at one for the found assignment and zero elsewhere.
TEMPERATURE = 0.2


class SmoothElements:
    """Learnable elements of all continuous spaces, by element key.

    Args:
        spec: the spec in which the spaces act.
        keys: the element keys that are learned; what is not continuous is left out, but for permutations if asked
            for.
        device: of the parameters, which are float32.
        permutations: learn permutations as well; ``acting`` then has them as matrices.
    """

    def __init__(self, spec: Spec, keys: Iterable[str], device: str = "cpu", *, permutations: bool = False) -> None:

        self.spec = spec
        self.scores: dict[str, Tensor] = {}
        self.rotations: dict[str, Tensor] = {}
        self.gauges: dict[str, Tensor] = {}
        for key in keys:
            space = spec.space_of(key)
            batch = tuple(spec.sizes[i] for i in spec.batch(space))
            n = spec.sizes[space.name]
            if space.group_name in ROTATIONS:
                eye = torch.eye(n, dtype=torch.float32, device=device).expand(*batch, n, n).clone()
                self.rotations[key] = eye.requires_grad_()
            elif space.group_name == "Perm" and permutations and n > 1:
                eye = torch.eye(n, dtype=torch.float32, device=device).expand(*batch, n, n).clone()
                self.scores[key] = eye.requires_grad_()
            elif space.group.dimension(n):
                shape = {"GL": (*batch, n, n), "Complex": (*batch, 2), "Turn": batch}.get(
                    space.group_name, (*batch, n)
                )
                self.gauges[key] = torch.zeros(shape, dtype=torch.float32, device=device, requires_grad=True)

    @property
    def acting(self) -> Spec:
        """The spec in which `elements` act: learned permutations are matrices there."""
        spec = self.spec
        for name in {ElementKey.of(key).name for key in self.scores}:
            spec = spec.with_group(name, "O")
        return spec

    def parameters(self) -> dict[str, Tensor]:
        """Everything that is learned, by key."""
        return {**self.rotations, **self.gauges, **self.scores}

    def elements(self) -> dict[str, Tensor]:
        """The elements as functions of the parameters, with gradients."""
        elements = {**self.rotations, **{key: straight_through(z) for key, z in self.scores.items()}}
        for key, x in self.gauges.items():
            elements[key] = _element(self.spec.space_of(key).group_name, x)
        return elements

    def restrain(self) -> None:
        """Bring the symmetric parts of GL's logarithms back below the allowed condition number, in place."""

        half = math.log(CONDITION) / 2
        with torch.no_grad():
            for key, x in self.gauges.items():
                name = self.spec.space_of(key).group_name
                if name == "GL":
                    even, odd = (x + x.mT) / 2, (x - x.mT) / 2
                    values, vectors = torch.linalg.eigh(even)
                    if bool((values.abs() > half).any()):
                        x.copy_(odd + (vectors * values.clamp(-half, half).unsqueeze(-2)) @ vectors.mT)
                elif name == "Complex":
                    x[..., 0].clamp_(-half, half)
                elif name != "Turn":
                    x.clamp_(-half, half)

    def solution(self) -> dict[str, Tensor]:
        """The elements in float64, exactly in their groups: rotations projected once more."""

        elements = {}
        with torch.no_grad():
            for key, x in self.rotations.items():
                group = self.spec.space_of(key).group
                elements[key] = group.solve(x.double().cpu())[0]
            for key, x in self.gauges.items():
                elements[key] = _element(self.spec.space_of(key).group_name, x.double().cpu())
            for key, z in self.scores.items():
                elements[key] = assign(z.cpu())
        return elements

    def state(self) -> dict[str, Tensor]:
        """The parameters, for a file."""
        return {k: v.detach().cpu().clone() for k, v in self.parameters().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take parameters back from `state`."""

        with torch.no_grad():
            for key, x in self.parameters().items():
                x.copy_(state[key])


def sinkhorn(scores: Tensor, rounds: int = 20) -> Tensor:
    """The doubly stochastic matrices [*b, n, n] of exp(scores), by alternating normalisation of logarithms."""
    z = scores
    for _ in range(rounds):
        z = z - z.logsumexp(-1, keepdim=True)
        z = z - z.logsumexp(-2, keepdim=True)
    return z.exp()


def straight_through(scores: Tensor) -> Tensor:
    """The best assignment of scores as permutation matrices, with the gradient of its Sinkhorn relaxation."""

    hard = torch.nn.functional.one_hot(assign(scores.detach().cpu()), scores.shape[-1]).to(scores)
    soft = sinkhorn(scores / TEMPERATURE)
    return hard + soft - soft.detach()


def _element(group: str, x: Tensor) -> Tensor:
    """The element for one space's parameters."""

    if group == "GL":
        trace = x.diagonal(dim1=-2, dim2=-1).sum(-1).mean() / x.shape[-1]
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        return torch.linalg.matrix_exp(x - trace * eye)
    if group == "Complex":
        size, angle = (x[..., 0] - x[..., 0].mean()).exp(), x[..., 1]
        return torch.stack([size * angle.cos(), size * angle.sin()], -1)
    if group == "Turn":
        return torch.stack([x.cos(), x.sin()], -1)
    return (x - x.mean()).exp()


class RiemannianAdam:
    """Adam for gauges, and Adam in the Lie algebra for rotations, with one cosine schedule.

    Args:
        elements: what is learned; gradients must have been computed before a step.
        rotation_rate: radians per step of a rotation's entries at the peak.
        gauge_rate: step of log-scales, phases and logarithms of GL at the peak.
        steps, warmup: the schedule: linear to the peak, then a cosine to zero.
    """

    BETAS, EPS, SCORE_RATE = (0.9, 0.999), 1e-8, 2e-2

    def __init__(
        self, elements: SmoothElements, rotation_rate: float, gauge_rate: float, steps: int, warmup: int
    ) -> None:
        self.elements = elements
        self.rates = (rotation_rate, gauge_rate)
        self.steps, self.warmup, self.step_number = steps, warmup, 0
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}

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
                skew = self._adam(key, (lie - lie.mT) / 2) * (self.rates[0] * rate)
                skew = (skew - skew.mT) / 2
                if self.elements.spec.space_of(key).group_name == "OFixingOnes":
                    skew = skew - skew.mean(-1, keepdim=True)
                    skew = skew - skew.mean(-2, keepdim=True)
                r.copy_(torch.linalg.matrix_exp(-skew) @ r)
                if self.step_number % 50 == 0:  # float32 drifts off the group, by 1e-5
                    r.copy_(nearer_orthogonal(r))
                r.grad = None
            slow = dict.fromkeys(self.elements.scores, self.SCORE_RATE)
            for key, x in (*self.elements.gauges.items(), *self.elements.scores.items()):
                if x.grad is None:
                    continue
                x -= self._adam(key, x.grad) * (slow.get(key, self.rates[1]) * rate)
                x.grad = None
        if self.step_number % 10 == 0:
            self.elements.restrain()

    def _adam(self, key: str, gradient: Tensor) -> Tensor:

        if key not in self.moments:
            self.moments[key] = (torch.zeros_like(gradient), torch.zeros_like(gradient))
        first, second = self.moments[key]
        first.lerp_(gradient, 1 - self.BETAS[0])
        second.lerp_(gradient.square(), 1 - self.BETAS[1])
        n = self.step_number
        return (first / (1 - self.BETAS[0] ** n)) / ((second / (1 - self.BETAS[1] ** n)).sqrt() + self.EPS)

    def state(self) -> dict[str, Tensor]:
        """Moments and step number, for a file."""

        state = {"step": torch.tensor(self.step_number)}
        for key, (first, second) in self.moments.items():
            state |= {f"first.{key}": first.cpu().clone(), f"second.{key}": second.cpu().clone()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take a `state` back."""
        self.step_number = int(state["step"])
        device = next(iter(self.elements.parameters().values())).device
        for name, x in state.items():
            kind, _, key = name.partition(".")
            if kind == "first":
                self.moments[key] = (x.to(device), state[f"second.{key}"].to(device))

"""What is learned of several models, all at once: smooth elements of each, and their optimisers in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.smooth import RiemannianAdam, SmoothElements
from isomerge.solve.learn.settings import LearnSettings
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import Stage


class LearnedElements:
    """The learnable elements of every model but the first, identities to begin with, and their optimisers.

    Args:
        spec: of all spaces that are matched.
        keys: of elements; those of continuous spaces are learned.
        count: of models that are moved.
        settings: device, rates and steps.

    Raises:
        IsomergeError: no space is continuous.
    """

    def __init__(self, spec: Spec, keys: Sequence[str], count: int, settings: LearnSettings) -> None:
        self.parts = [
            SmoothElements(spec, keys, settings.device, permutations=settings.permutations) for _ in range(count)
        ]
        if not self.parts[0].parameters():
            raise IsomergeError("nothing can be learned: no continuous space is chosen; add some with --spaces")
        rates = (settings.rotation_rate, settings.gauge_rate, settings.steps, min(20, settings.steps))
        self.optimisers = [RiemannianAdam(part, *rates) for part in self.parts]

    def stages(self) -> list[Stage]:
        """The elements as they act now, with gradients."""
        return [Stage(part.acting, part.elements()) for part in self.parts]

    def solution(self) -> list[dict[str, Tensor]]:
        """The elements in float64, exactly in their groups."""
        return [part.solution() for part in self.parts]

    @property
    def steps_taken(self) -> int:
        """Steps taken, of all models alike."""
        return self.optimisers[0].step_number

    def have_finite_gradients(self) -> bool:
        """Whether every gradient is: a step along any other would leave numbers that no element has."""
        every = (x.grad for part in self.parts for x in part.parameters().values())
        return all(bool(grad.isfinite().all()) for grad in every if grad is not None)

    def step(self) -> None:
        """One step of every model; gradients are cleared."""
        for optimiser in self.optimisers:
            optimiser.step()

    # ------------------------------------------------------------------- state

    def state(self) -> dict[str, Tensor]:
        """All parameters, for a file."""
        return _numbered([part.state() for part in self.parts])

    def optimiser_state(self) -> dict[str, Tensor]:
        """All moments, for a file."""
        return _numbered([optimiser.state() for optimiser in self.optimisers])

    def load(self, state: Mapping[str, Tensor], optimiser_state: Mapping[str, Tensor] | None = None) -> None:
        """Take parameters back from `state`, and moments from `optimiser_state`."""
        for part, own in zip(self.parts, self._split(state), strict=True):
            part.load(own)
        if optimiser_state is not None:
            for optimiser, own in zip(self.optimisers, self._split(optimiser_state), strict=True):
                optimiser.load(own)

    def join(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take every model's parameters from a `state` of its own."""
        for part, state in zip(self.parts, states, strict=True):
            part.load(state)

    def _split(self, state: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        every: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for name, x in state.items():
            number, _, key = name.rpartition("|")
            every[int(number or 0)][key] = x
        return every


def _numbered(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One mapping of several; keys begin with the number of their model where there are more than one."""
    if len(states) == 1:
        return dict(states[0])
    return {f"{k}|{key}": x for k, state in enumerate(states) for key, x in state.items()}

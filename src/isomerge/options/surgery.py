"""How a merged model's representations are corrected for one task: options of `isomerge surgery`."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.errors import IsomergeError
from isomerge.options.option import FIRST, Options, option


@dataclass(frozen=True)
class SurgeryOptions(Options):
    """The size of the correction, and how it is learned."""

    rank: int = option(16, "Of the correction; a larger one needs more examples.", panel=FIRST)
    steps: int = option(1000, "Steps of Adam; each sees 64 rows of representations.", panel=FIRST)
    rate: float = option(1e-2, "The learning rate of the first step; it falls to zero.", panel=FIRST)
    judge_share: float = option(0.25, "The share of --data that is held out, to tell what was gained.", panel=FIRST)
    batch_size: int = option(32, "Examples that a model reads at a time.", panel=FIRST)
    seed: int = option(0, "Of the first step, of the rows of every step and of what is held out.", panel=FIRST)

    def check(self) -> None:
        """Refuse numbers that no correction can have.

        Raises:
            IsomergeError: naming the option.
        """
        for name in ("rank", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise IsomergeError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")
        if not 0 < self.rate <= 1:
            raise IsomergeError(f"--rate {self.rate:g}: give a number above 0 and at most 1")
        if not 0 < self.judge_share < 1:
            raise IsomergeError(f"--judge-share {self.judge_share:g}: give a share between 0 and 1")
        if not 0 <= self.seed < 2**32:
            raise IsomergeError(f"--seed {self.seed}: give a whole number from 0 to {2**32 - 1}")

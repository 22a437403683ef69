"""Which masks give tasks their models back: options of `isomerge task-mask`."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.options.option import FIRST, Options, option


@dataclass(frozen=True)
class MaskOptions(Options):
    """What a weight must be to be in a task's mask."""

    kind: str = option(
        "emr",
        "emr (weights that have the task's direction; of merges by emr) or tall (weights that are nearer to the "
        "task's than the base's are; of merges by task_arithmetic).",
        panel=FIRST,
    )
    tall_lambda: float = option(
        0.4, "With --kind tall: the larger, the fewer weights are in the mask.", "--tall-lambda", panel=FIRST
    )

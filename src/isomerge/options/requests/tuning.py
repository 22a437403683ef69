"""How the parameters of a recipe are searched for: what `isomerge tune` is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.options.files import DryRunOptions, OpeningOptions, OutputOptions, TellingOptions, out_folder
from isomerge.options.option import FIRST, LATE, Options, Request, argument, group, option
from isomerge.options.running import ExamplesOptions, RunningOptions

SEARCH, JUDGING = "Search", "Examples"
BY, OBJECTIVES = ("task", "layer"), ("loss", "entropy")


def _named(texts: Sequence[str] | None) -> dict[str, str] | None:
    """``NAME=RANGE`` by names."""
    if not texts:
        return None
    ranges: dict[str, str] = {}
    for text in texts:
        name, _, spec = text.partition("=")
        if not name or name in ranges:
            why = "is said twice" if name else "has no name"
            raise IsomergeError(f"--search {text}: {name or 'it'} {why}; write NAME=LOW:HIGH once for a parameter")
        ranges[name] = spec
    return ranges


class TuningOptions(Options):
    """What is searched for, in how many trials, and on what the result is judged."""

    trials: int = option(50, "Try so many values of all parameters, beside the recipe's own.", least=1, panel=FIRST)
    search: Mapping[str, Any] | None = option(
        None,
        "Search for this parameter of the method: NAME=LOW:HIGH, NAME=A,B,C for choices, or NAME alone for its "
        "natural range; repeat it. By default what the recipe says ({search: [LOW, HIGH]}), else all numbers.",
        "--search", kind=list[str] | None, read=_named, panel=FIRST,
    )  # fmt: skip
    sampler: str = option(
        "tpe",
        "What chooses the next trial: tpe, cmaes, random, grid (every choice), or gradient (of the loss, by Adam).",
        panel=SEARCH,
    )  # fmt: skip
    by: str = option(
        "task",
        "task: one value of a parameter per model; layer: one per model and layer, and of what lies before and "
        "after the layers.",
        panel=SEARCH,
    )  # fmt: skip
    rate: float = option(
        0.03, "With --sampler gradient: the share of its range by which a parameter changes in the first step.",
        panel=SEARCH,
        acts=lambda a: (
            None if a.sampler == "gradient" else f"--sampler {a.sampler} takes no steps along a gradient"
        ),
    )  # fmt: skip
    objective: str = option(
        "loss",
        "What the search lowers: loss (labels, or the next tokens of text), or entropy (of a classifier's "
        "predictions; needs no labels).",
        panel=SEARCH,
    )  # fmt: skip
    layer_groups: int | None = option(
        None, "Search so many values of every number, interpolated from the first layer to the last.", panel=SEARCH,
        acts=LATE,
    )  # fmt: skip
    timeout: float | None = option(
        None, "Begin no trial after so many seconds; the best so far is written.", panel=SEARCH,
    )  # fmt: skip
    judge_data: Any = option(
        None, "Judge the result on these examples (as --data), and search on all of --data.", "--judge-data",
        kind=str | None, panel=JUDGING, reads=True,
    )  # fmt: skip
    judge_share: float = option(
        0.5, "Without --judge-data: the share of --data that is held out.", panel=JUDGING,
        acts=lambda a: None if a.judge_data is None else "--judge-data says what the result is judged on",
    )  # fmt: skip
    batch_size: int = option(32, "Examples that a model reads at a time.", panel=JUDGING)
    tasks: Sequence[str | Mapping[str, Any]] | None = option(
        None,
        "In place of --data: raise the score on this task of lm-evaluation-harness (pip install 'lm-eval[hf]'): "
        "NAME, NAME:METRIC or NAME:METRIC@WEIGHT, as in gsm8k:exact_match,strict-match@0.5 (acc,none@1 by "
        "default); repeat it for a sum. A share of its documents is held out.",
        "--task", kind=list[str] | None, panel=FIRST,
    )  # fmt: skip
    task_path: str | Path | None = option(
        None, "With --task: a folder with tasks of one's own (YAML), whose functions are run.", "--task-path",
        kind=Path | None, panel=JUDGING, acts=LATE, reads=True,
    )  # fmt: skip
    seed: int = option(0, "Of the trials, and of what is held out.", panel=SEARCH)

    def check(self) -> None:
        """Refuse numbers that no search can have.

        Raises:
            IsomergeError: naming the option.
        """
        if self.trials < 1:
            raise IsomergeError(f"--trials {self.trials}: at least one is needed")
        if self.timeout is not None and not self.timeout > 0:
            raise IsomergeError(f"--timeout {self.timeout:g}: give seconds, more than 0")
        if self.batch_size < 1:
            raise IsomergeError(f"--batch-size {self.batch_size}: at least one example is needed")
        if not 0 < self.judge_share < 1:
            raise IsomergeError(f"--judge-share {self.judge_share:g}: give a share between 0 and 1")
        for name, words in (("by", BY), ("objective", OBJECTIVES)):
            if getattr(self, name) not in words:
                raise IsomergeError(f"--{name} {getattr(self, name)}: choose from {', '.join(words)}")
        if self.by == "layer" and self.layer_groups is not None:
            raise IsomergeError("--by layer gives every layer a value of its own: leave --layer-groups out")
        if not 0 < self.rate <= 1:
            raise IsomergeError(f"--rate {self.rate:g}: give a share of the range, above 0 and at most 1")
        if self.tasks is not None:
            self._check_tasks()
        if not 0 <= self.seed < 2**32:
            raise IsomergeError(f"--seed {self.seed}: give a whole number from 0 to {2**32 - 1}")

    def _check_tasks(self) -> None:
        """Refuse what goes with examples alone.

        Raises:
            IsomergeError: naming the option.
        """
        if not self.tasks:
            raise IsomergeError("--task: no task is named")
        if self.sampler == "gradient":
            raise IsomergeError(
                "--sampler gradient follows a loss, and the score of a task has no gradient: take tpe"
            )
        if self.objective != "loss":
            raise IsomergeError(
                f"--objective {self.objective} is measured on --data, and --task has a score: leave it out"
            )
        if self.judge_data is not None:
            raise IsomergeError(
                "--judge-data are examples, and --task is judged on documents of its own: leave it out"
            )


class Tune(Request):
    """Search for the parameters of a recipe on the loss of the merge or on tasks, and write the best merge.

    The models are aligned once. The same command goes on with a search that was killed.
    """

    progress = "tuning"
    recipe: str | Path = argument(
        "A recipe (YAML); {search: [LOW, HIGH]} or {choices: [A, B]} for a value; or a genome of mergekit-evolve."
    )
    out: str | Path = out_folder(needed_in_python=True, panel=FIRST)
    data: Any = option(
        None, "Labelled examples, or text for language models (as of isomerge merge); a share is held out.",
        "--data", kind=str | None, panel=FIRST, reads=True,
    )  # fmt: skip
    tuning: TuningOptions = group(TuningOptions)
    examples: ExamplesOptions = group(
        ExamplesOptions,
        # else the examples say whether it acts
        length=lambda a: "tasks say themselves how long their texts are" if a.tasks else None,
    )
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)
    running: RunningOptions = group(RunningOptions)

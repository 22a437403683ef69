"""Options that one command alone has: of `isomerge merge-lora`, `canon`, `task-mask`, `surgery`,
`transplant-tokenizer` and `widen`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.options.fusing import weights_of
from isomerge.options.matching import DATA
from isomerge.options.option import FIRST, Options, option


@dataclass(frozen=True)
class AdapterOptions(Options):
    """The method, by peft's name, and its parameters."""

    method: str = option(
        "svd",
        "svd (the sum, cut to a rank), cat (the sum, ranks added), linear (halves summed: fast and rough), ties, "
        "dare_linear, dare_ties, magnitude_prune, or these four with _svd (of products, not of halves).",
        panel="Method",
    )
    weights: Sequence[float] | None = option(
        None,
        "One number per adapter, such as 0.7,0.3; by default equal ones of sum 1, and 1 each for ties.",
        kind=str | None,
        read=weights_of,
        panel="Method",
    )
    density: float | None = option(
        None, "The share of entries that ties, dare and magnitude_prune keep.", panel="Method"
    )
    rank: int | None = option(
        None, "The largest rank that svd leaves; by default the adapters' largest.", panel="Method"
    )
    majority_sign: str = option(
        "total",
        "Whose sign ties elects: total (of the sum) or frequency (of the most adapters).",
        "--majority-sign",
        panel="Method",
    )
    seed: int = option(
        0,
        "Of the entries that dare keeps, and of the randomised range finder for large products (_svd).",
        panel="Method",
    )


@dataclass(frozen=True)
class DressingOptions(Options):
    """Whether, and on what, activations are dressed."""

    activations: str | Path | None = option(
        None,
        "Also write the layers' activations on --data, in the canonical frame, to this file (safetensors).",
        "--activations", kind=Path | None, panel="Activations",
    )  # fmt: skip
    data: Any = option(None, f"Examples to run the model on. {DATA}", kind=str | None, panel="Activations")
    limit: int = option(64, "Run it on no more than so many examples.", panel="Activations")
    length: int = option(128, "Tokens per example of text.", panel="Activations")


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


MULTIPLE = "Add rows until their number is a multiple of this."


@dataclass(frozen=True)
class TransplantOptions(Options):
    """How tokens get rows that a model does not have."""

    missing: str | None = option(
        None,
        "What tokens get that MODEL lacks: omp (the sum of its own rows that orthogonal matching pursuit finds in "
        "the other model), nearest (the mean of the nearest there, by cosine), subword (the mean of their pieces "
        "by MODEL's own tokenizer), mean, or zero. By default omp where the other one has weights, else subword.",
        "--missing", shown=False, panel=FIRST,
    )  # fmt: skip
    neighbours: int = option(64, "How many rows omp and nearest sum, at most.", least=1, panel=FIRST)
    data: str | Path | Sequence[str] | None = option(
        None,
        "Measure the loss on this text before and after, in nats per byte: a file of text, or of records with a "
        "field text.",
        "--data", kind=str | None, panel=FIRST,
    )  # fmt: skip
    limit: int | None = option(256, "With --data: use no more than so many texts.", least=1, panel=FIRST)
    pad_to_multiple_of: int | None = option(None, MULTIPLE, "--pad-to-multiple-of", panel=FIRST)


def _sizes(texts: Sequence[str] | None) -> dict[str, int] | None:
    """The sizes that ``KEY=NUMBER`` says.

    Raises:
        IsomergeError: another form.
    """
    sizes = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not (key and sign and value.strip().isdecimal()):
            raise IsomergeError(f"--set {text}: write KEY=NUMBER, with a key of config.json that says a size")
        sizes[key.strip()] = int(value)
    return sizes or None


@dataclass(frozen=True)
class WideningOptions(Options):
    """The sizes of the wide model."""

    like: Any = option(
        None,
        "A model of the same architecture whose config.json has the sizes: a folder, a hub id, or a config.json.",
        "--like", kind=str | None, panel=FIRST,
    )  # fmt: skip
    sizes: Mapping[str, int] | None = option(
        None,
        "A size by its key of config.json, such as hidden_size=1024; it goes before what --like says.",
        "--set", kind=list[str] | None, read=_sizes, panel=FIRST,
    )  # fmt: skip
    untie: bool = option(
        False, "Give a head that is tied to the embeddings weights of its own.", "--untie", panel=FIRST
    )

"""How LoRA adapters are merged with one another: options of `isomerge merge-lora` that a recipe says instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isomerge.options.fusing import weights_of
from isomerge.options.option import Options, option

METHOD = "Method"


@dataclass(frozen=True)
class AdapterOptions(Options):
    """The method, by peft's name, and its parameters."""

    method: str = option(
        "svd",
        "svd (the sum, cut to a rank), cat (the sum, ranks added), linear (halves summed: fast and rough), ties, "
        "dare_linear, dare_ties, magnitude_prune, or these four with _svd (of products, not of halves).",
        panel=METHOD,
    )
    weights: Sequence[float] | None = option(
        None,
        "One number per adapter, such as 0.7,0.3; by default equal ones of sum 1, and 1 each for ties.",
        kind=str | None,
        read=weights_of,
        panel=METHOD,
    )
    density: float | None = option(
        None, "The share of entries that ties, dare and magnitude_prune keep.", panel=METHOD
    )
    rank: int | None = option(
        None, "The largest rank that svd leaves; by default the adapters' largest.", panel=METHOD
    )
    majority_sign: str = option(
        "total",
        "Whose sign ties elects: total (of the sum) or frequency (of the most adapters).",
        "--majority-sign",
        panel=METHOD,
    )
    seed: int = option(
        0,
        "Of the entries that dare keeps, and of the randomised range finder for large products (_svd).",
        panel=METHOD,
    )

"""What is merged and how: the options of `isomerge merge` that a recipe says instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from isomerge.errors import IsomergeError
from isomerge.options.option import FIRST, LATE, REFUSED, Asked, Key, Options, group, listed, option, texts_of
from isomerge.options.spaces import aligned

AUTO = "auto"
"""Models that are aligned already are left as they are."""
METHOD, MODELS, ALIGNMENT = "Method", "Models", "Matching"


def weights_of(text: str | None) -> list[float] | None:
    """Numbers joined by commas; raises IsomergeError where they are none."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise IsomergeError(f"--weights {text}: give one number per model, such as 0.7,0.3") from None


def _merge_base(a: Asked) -> str | None:
    if a.base_model is None:
        return "no --base-model is named"
    return None if a.base_role == "donor" else "the base would not be merged with the models in any case"


class AligningOptions(Options):
    """How models are aligned, and whose heads they have then: what a request of a merge has as it is said."""

    heads: str = option(
        "average",
        "Classifier heads: average, copy (the first model's), keep:MODEL, or separate (all, in folders of "
        "their own).",
        panel=MODELS, acts=LATE, recipe=Key(aligns=False, experts=False),
    )  # fmt: skip
    align: bool | str = option(
        AUTO,
        "Align all before fusing, or none; by default those that are not aligned already, as fine-tunes of one "
        "base are.",
        "--align/--no-align", kind=bool | None, read=lambda align: AUTO if align is None else align, default=None,
        panel=FIRST,
    )  # fmt: skip
    anchor: str = option(
        "first", "What the models are aligned onto: the first model, or none of them (their common mean).",
        panel=ALIGNMENT, acts=REFUSED, recipe=Key(Literal["first", "none"], experts=False),
    )  # fmt: skip
    select_layers: str | None = option(
        None,
        "validation: match each layer alone, and the first and last so many, and keep what is best on --data.",
        panel=ALIGNMENT, acts=REFUSED,
    )  # fmt: skip


class FusingOptions(Options):
    """The method, its parameters, and what the models are to it."""

    method: str = option("linear", "How aligned weights are fused; see isomerge methods.", panel=FIRST)
    weights: Sequence[float] | None = option(
        None, "One number per model, such as 0.7,0.3; equal by default.", kind=str | None, read=weights_of,
        panel=FIRST, acts=REFUSED,
    )  # fmt: skip
    base_model: Any = option(
        None,
        "What task vectors are taken from; it gives config and tokenizer. All align onto it. Methods that know no "
        "base merge it with the models, as mergekit does.",
        "--base-model", kind=str | None, panel=FIRST, reads=True,
    )  # fmt: skip
    merge_base: bool = option(
        True,
        "Whether methods that know no base merge a --base-model that is not among the models; else it gives config "
        "and tokenizer alone.",
        "--merge-base/--no-merge-base", panel=MODELS, acts=_merge_base, recipe=Key(aligns=False, experts=False),
    )  # fmt: skip
    parameters: Mapping[str, Any] | None = option(
        None, "A parameter of the method, such as density=0.5, or density=0.5,0.3 per model.", "--parameter", "-p",
        kind=list[str] | None, panel=METHOD, acts=REFUSED,
    )  # fmt: skip
    stats: Sequence[str | Path] = option(
        (), "For methods that need statistics: one file of isomerge stats per model, in their order.",
        kind=list[Path] | None, read=texts_of, default=None, panel=METHOD, reads=True,
        acts=lambda a: None if a.method_statistics else f"the method {a.method} reads no statistics",
    )  # fmt: skip
    tokenizer_source: str | None = option(
        None, "Where vocabularies differ, the output's: base, union or a model.", "--tokenizer-source",
        panel=MODELS, acts=LATE, reads=True,
    )  # fmt: skip
    source_bases: Sequence[Any] = option(
        (), "What the models were tuned from (one for all, or one each), where it is not --base-model.",
        "--source-base", kind=list[str] | None, read=listed, default=None, panel=MODELS,
        acts=REFUSED, reads=True,
    )  # fmt: skip
    aligning: AligningOptions = group(AligningOptions)
    onto: Any = option(
        None, "The model that all are aligned onto, where it is not the first.", "--onto", kind=str | None,
        panel=ALIGNMENT, acts=aligned, reads=True, recipe=Key(experts=False),
    )  # fmt: skip


def check_alone(recipe: Any, *groups: Options) -> None:
    """Refuse options that a recipe has keys for, where they are not what they are by default.

    Raises:
        IsomergeError: naming them, as Python does.
    """
    rows = [(name, value, group.defaults()[name]) for group in groups for name, value in group.given().items()]
    if beside := [name for name, value, default in rows if type(value) is not type(default) or value != default]:
        raise IsomergeError(f"{recipe}: a recipe says what is merged and how; put {', '.join(beside)} into it")

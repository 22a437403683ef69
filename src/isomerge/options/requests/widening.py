"""Models made larger: what `isomerge widen` and `transplant-tokenizer` are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.options.files import DryRunOptions, OpeningOptions, OutputOptions, TellingOptions, out_folder
from isomerge.options.option import FIRST, LATE, Request, argument, group, needed, option
from isomerge.options.requests.measuring import measured


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


class Widen(Request):
    """Write MODEL as a wider or deeper model of its architecture that is the same function: what is added is zero.

    It is first tried on a tiny random model of the class, whose outputs must stay. The result can be aligned,
    merged and trained with models of its new sizes.
    """

    progress = "widening"
    model: Any = argument("The model to widen: a folder or hub id.")
    out: str | Path | None = out_folder()
    like: Any = option(
        None,
        "A model of the same architecture whose config.json has the sizes: a folder, a hub id, or a config.json.",
        "--like", kind=str | None, panel=FIRST, reads=True,
    )  # fmt: skip
    sizes: Mapping[str, int] | None = option(
        None, "A size by its key of config.json, such as hidden_size=1024; it goes before what --like says.",
        "--set", kind=list[str] | None, read=_sizes, panel=FIRST,
    )  # fmt: skip
    untie: bool = option(
        False, "Give a head that is tied to the embeddings weights of its own.", "--untie", panel=FIRST,
    )  # fmt: skip
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)


class TransplantTokenizer(Request):
    """Write MODEL with another tokenizer: embeddings, head, config and tokenizer files fit the new tokens.

    What both tokenizers have keeps its vector, also where they write it differently; train the others on.
    """

    progress = "transplanting"
    model: Any = argument("The model that gets another tokenizer: a folder or hub id.")
    tokenizer: str | Path = needed(
        "Whose: a model, or a folder with a tokenizer alone.", "--tokenizer", kind=str, reads=True,
    )  # fmt: skip
    out: str | Path | None = out_folder()
    missing: str | None = option(
        None,
        "What tokens get that MODEL lacks: omp (the sum of its own rows that orthogonal matching pursuit finds in "
        "the other model), nearest (the mean of the nearest there, by cosine), subword (the mean of their pieces "
        "by MODEL's own tokenizer), mean, or zero. By default omp where the other one has weights, else subword.",
        "--missing", shown=False, panel=FIRST,
    )  # fmt: skip
    neighbours: int = option(64, "How many rows omp and nearest sum, at most.", least=1, panel=FIRST, acts=LATE)
    data: str | Path | Sequence[str] | None = option(
        None,
        "Measure the loss on this text before and after, in nats per byte: a file of text, or of records with a "
        "field text.",
        "--data", kind=str | None, panel=FIRST, reads=True,
    )  # fmt: skip
    limit: int | None = option(
        256, "With --data: use no more than so many texts.", least=1, panel=FIRST, acts=measured,
    )  # fmt: skip
    pad_to_multiple_of: int | None = option(
        None, "Add rows until their number is a multiple of this.", "--pad-to-multiple-of", panel=FIRST,
    )  # fmt: skip
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)

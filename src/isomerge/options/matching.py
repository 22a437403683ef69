"""What a match may look at beside the weights, and how it searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.options.option import FIRST, LATE, REFUSED, Asked, Key, Options, option, texts_of

DATA = "Folder or file of images, text, JSON lines, parquet or safetensors, a data set, or module:function."
BY_DATA = "Matching with data"
LEARNING = "Learning the match"
RUNNING_MODELS = "Running the models"


RUN_DATA = ("git-rebasin-acts", "git-rebasin-acts-centred", "ot-acts", "ot-acts-emd")
"""Baselines that read activations."""


def _reads(a: Asked) -> bool:
    """Whether models are run on data of a match, of a method or of a repair."""
    return a.data is not None or a.learn is not None or a.repair is not None


def _own(a: Asked) -> bool:
    """Whether it is our match, and no published one."""
    return a.match in (None, "isomerge")


def _data(a: Asked) -> str | None:
    if a.method_reads or a.align is False:
        return None  # where no method reads them either they are refused
    if not _own(a) and a.match not in RUN_DATA:
        if a.method is not None:  # a merge is measured on them
            return None
        raise IsomergeError(
            f"--match {a.match} reads no data, so that --data does not go with it: leave one of them out"
        )
    idle = a.evidence == "weights" and a.search is None and not a.input_metric
    return "--evidence weights counts no activations, and nothing else reads them" if idle else None


def _functional(a: Asked) -> str | None:
    if not _own(a) or a.align is False or (a.data is None and a.learn is None):
        return "it takes away a step of matching by data (--data, --learn), which this run does not have"
    return None if a.evidence == "both" else f"--evidence {a.evidence} has no such step"


def _examples(a: Asked) -> str | None:
    return None if _reads(a) else "no data are read"


def _rows(a: Asked) -> str | None:
    kept = (a.data is not None or a.learn is not None) and a.align is not False
    return None if kept and (_own(a) or a.match in RUN_DATA) else "no activations are kept"


def _seed(a: Asked) -> str | None:
    learned = a.learn is not None or (a.data is not None and a.may_learn)
    matched = learned or a.search is not None or a.match == "git-rebasin"
    return None if a.random or (matched and a.align is not False) else "nothing is drawn"


class MatchingOptions(Options):
    """What a match may look at beside the weights, and how it searches."""

    data: Any = option(
        None,
        "Examples to match activations on, or generate: the models make their own. A merge learns the match on "
        f"them where models show no common base (--learn: in any case), and measures what came out. {DATA}",
        kind=str | None, panel=FIRST, acts=_data, reads=True, recipe=Key(aligns=False),
    )  # fmt: skip
    stats_src: str | Path | Sequence[str | Path] | None = option(
        None, "Activations from a file of `isomerge stats`, one per model that is moved.", kind=list[Path] | None,
        read=texts_of, panel=BY_DATA, acts=REFUSED, reads=True,
    )  # fmt: skip
    stats_anchor: str | Path | None = option(
        None, "The anchor's file of `isomerge stats`.", kind=Path | None, panel=BY_DATA, acts=REFUSED,
        read=lambda path: None if path is None else str(path), reads=True,
    )  # fmt: skip
    evidence: str = option(
        "both", "With activations, what counts: both, activations or weights.", panel=BY_DATA,
        acts=lambda a: None if _own(a) else f"--match {a.match} has evidence of its own",
    )  # fmt: skip
    functional: bool = option(
        True,
        "With --data or --learn, which run the models, match neurons once more by what averaging a pair would "
        "cost; files of statistics do not tell that.",
        "--functional/--no-functional", panel=BY_DATA, acts=_functional,
    )  # fmt: skip
    input_metric: bool = option(
        False,
        "With data or statistics, match inside layers by the change of their outputs: weights count by the "
        "covariance of what they read.",
        "--input-metric", panel=BY_DATA, acts=REFUSED,
    )  # fmt: skip
    search: float | None = option(
        None, "Search forward for so many SECONDS on --data, without gradients.", panel=BY_DATA, acts=REFUSED,
    )  # fmt: skip
    learn: Any = option(
        None, f"Learn the match by gradient on these examples. {DATA}", kind=str | None, panel=FIRST, acts=REFUSED,
        reads=True,
    )  # fmt: skip
    learn_effort: str = option(
        "quick", "How long to learn: quick (300 steps), thorough (3000), or none, where a merge would.",
        panel=LEARNING, acts=LATE,
    )  # fmt: skip
    learn_target: str = option(
        "auto",
        "labels, or distill (the models' own predictions, no labels needed); auto: the next token for text, else "
        "distill.",
        panel=LEARNING, acts=REFUSED,
    )  # fmt: skip
    steps: int | None = option(None, "Learning steps, instead of --learn-effort.", panel=LEARNING, acts=REFUSED)
    learn_permutations: bool = option(
        False, "Learn permutations as well (straight-through).", "--learn-permutations", panel=LEARNING,
        acts=REFUSED,
    )  # fmt: skip
    batch_size: int | None = option(None, "Examples per learning step.", panel=LEARNING, acts=REFUSED)
    device: str = option(
        "cpu", "Where units are matched and models run: cpu, cuda, ...", panel=RUNNING_MODELS,
        acts=lambda a: (
            "nothing is matched, and no model is run"
            if a.align is False and not a.method_reads and a.repair is None
            else None
        ),
    )  # fmt: skip
    precision: str = option("float32", "float32, or bfloat16 for mixed precision.", panel=LEARNING, acts=REFUSED)
    gradient_checkpointing: bool = option(
        False, "Learn in less memory and more time.", "--gradient-checkpointing", panel=LEARNING, acts=REFUSED,
    )  # fmt: skip
    limit: int | None = option(None, "Read no more than so many examples.", panel=RUNNING_MODELS, acts=_examples)
    length: int = option(128, "Tokens per example of text.", panel=RUNNING_MODELS, acts=_examples)
    rows: int = option(
        1024, "Rows of activations that are kept of every place in a model.", panel=BY_DATA, acts=_rows,
    )  # fmt: skip
    seed: int = option(0, "The start of everything that is drawn.", panel=RUNNING_MODELS, acts=_seed)
    match: str = option(
        "isomerge",
        "isomerge, or a published baseline: git-rebasin, git-rebasin-acts (by activations; a variant of it is "
        "git-rebasin-acts-centred), otfusion; for merges also ot-wts, ot-acts, ot-acts-emd, which do not preserve "
        "functions.",
        panel="Matching", acts=REFUSED,
    )  # fmt: skip
    transport: Mapping[str, Any] | Sequence[str] = option(
        (),
        "A setting of the OT fusions (--match ot-wts and others): residual=averaging, weighted_scalar, "
        "weighted_matrix, no_residual or only_residual; heads=across or within; queries=separate or shared; "
        "regularisation=0.06.",
        "--transport", kind=list[str] | None, read=lambda given: tuple(given or ()), default=None, panel="Matching",
        acts=REFUSED,
    )  # fmt: skip

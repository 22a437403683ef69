"""What a match may look at beside the weights, and how it searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.options.option import FIRST, Options, option

DATA = "Folder or file of images, text, JSON lines, parquet or safetensors, a data set, or module:function."
BY_DATA = "Matching with data"
LEARNING = "Learning the match"
RUNNING_MODELS = "Running the models"


def _texts(paths: Sequence[Path] | None) -> list[str]:
    return [str(path) for path in paths or ()]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@dataclass(frozen=True)
class MatchingOptions(Options):
    """What a match may look at beside the weights, and how it searches."""

    data: Any = option(
        None,
        "Examples to match activations on, or generate: the models make their own. A merge learns the match on "
        f"them where models were trained apart, and measures what came out. {DATA}",
        kind=str | None,
        panel=FIRST,
        recipe=True,
    )
    stats_src: str | Path | Sequence[str | Path] | None = option(
        None, "Activations from a file of `isomerge stats`, one per model that is moved.",
        kind=list[Path] | None, read=_texts, panel=BY_DATA,
    )  # fmt: skip
    stats_anchor: str | Path | None = option(
        None, "The anchor's file of `isomerge stats`.", kind=Path | None, read=_text, panel=BY_DATA
    )
    evidence: str = option(
        "both", "With activations, what counts: both, activations or weights.", panel=BY_DATA, recipe=True
    )
    functional: bool = option(
        True,
        "With --data or --learn, which run the models, match neurons once more by what averaging a pair would "
        "cost; files of statistics do not tell that.",
        "--functional/--no-functional", panel=BY_DATA, recipe=True,
    )  # fmt: skip
    input_metric: bool = option(
        False,
        "With data or statistics, match inside layers by the change of their outputs: weights count by the "
        "covariance of what they read.",
        "--input-metric", panel=BY_DATA, recipe=True,
    )  # fmt: skip
    search: float | None = option(
        None, "Search forward for so many SECONDS on --data, without gradients.", panel=BY_DATA, recipe=True
    )
    learn: Any = option(
        None,
        f"Learn the match by gradient on these examples. {DATA}",
        kind=str | None,
        panel=FIRST,
        recipe=True,
    )
    learn_effort: str = option(
        "quick",
        "How long to learn: quick (300 steps), thorough (3000), or none, where a merge would.",
        panel=LEARNING,
        recipe=True,
    )
    learn_target: str = option(
        "auto",
        "labels, or distill (the models' own predictions, no labels needed); auto: the next token for text, "
        "else distill.",
        panel=LEARNING, recipe=True,
    )  # fmt: skip
    steps: int | None = option(None, "Learning steps, instead of --learn-effort.", panel=LEARNING, recipe=True)
    learn_permutations: bool = option(
        False, "Learn permutations as well (straight-through).", "--learn-permutations", panel=LEARNING, recipe=True
    )
    batch_size: int | None = option(None, "Examples per learning step.", panel=LEARNING, recipe=True)
    device: str = option(
        "cpu", "Where units are matched and models run: cpu, cuda, ...", panel=RUNNING_MODELS, recipe=True
    )
    precision: str = option("float32", "float32, or bfloat16 for mixed precision.", panel=LEARNING, recipe=True)
    gradient_checkpointing: bool = option(
        False, "Learn in less memory and more time.", "--gradient-checkpointing", panel=LEARNING, recipe=True
    )
    limit: int | None = option(None, "Read no more than so many examples.", panel=RUNNING_MODELS, recipe=True)
    length: int = option(128, "Tokens per example of text.", panel=RUNNING_MODELS, recipe=True)
    rows: int = option(
        1024, "Rows of activations that are kept of every place in a model.", panel=BY_DATA, recipe=True
    )
    seed: int = option(0, "The start of everything that is drawn.", panel=RUNNING_MODELS, recipe=True)
    match: str = option(
        "isomerge",
        "isomerge, or a published baseline: git-rebasin, git-rebasin-acts (by activations; a variant of it is "
        "git-rebasin-acts-centred), otfusion; for merges also ot-wts, ot-acts, ot-acts-emd, which do not preserve "
        "functions.",
        panel="Matching", recipe=True,
    )  # fmt: skip
    transport: Mapping[str, Any] | Sequence[str] = option(
        (),
        "A setting of the OT fusions (--match ot-wts and others): residual=averaging, weighted_scalar, "
        "weighted_matrix, no_residual or only_residual; heads=across or within; queries=separate or shared; "
        "regularisation=0.06.",
        "--transport", kind=list[str] | None, read=lambda given: tuple(given or ()), default=None,
        panel="Matching", recipe=True,
    )  # fmt: skip

"""Models run on data: what `isomerge barrier`, `eval`, `report`, `stats` and `generate` are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.options.files import (
    DryRunOptions,
    FileOptions,
    OpeningOptions,
    ReportOptions,
    TellingOptions,
    out_file,
)
from isomerge.options.option import (
    COMMAND_LINE,
    FILE,
    LATE,
    REFUSED,
    Asked,
    Request,
    argument,
    group,
    listed,
    needed,
    option,
)
from isomerge.options.running import ExamplesOptions, LengthOptions, LiveOptions, MemoryOptions, TokenizerOptions

AT_A_TIME = "Examples that a model reads at a time."


class Barrier(Request):
    """Measure the loss on the line from A to B (or the plane through A, B, C), as stored and aligned."""

    progress = "measuring"
    one: Any = argument("The anchor: a folder or hub id.", "a")
    two: Any = argument("The model at the other end of the line.", "b")
    third: Any = argument(
        "A third one: the plane through the three is measured.", "c", default=None, kind=str | None,
    )  # fmt: skip
    data: Any = needed(
        "Labelled examples: a folder of images or text, .jsonl, .csv, .parquet, text, .safetensors, a data set of "
        "the package datasets (name:split), or a Python function (module:function).",
        "--data", kind=str, reads=True,
    )  # fmt: skip
    spaces: str | Sequence[str] | None = option(
        None,
        "Also after alignment of these spaces (as in isomerge align); repeat it for several curves. If not given, "
        "what the models need; none for the models as stored alone.",
        kind=list[str] | None, read=lambda given: given or None,
    )  # fmt: skip
    match: str | Sequence[str] = option(
        (), "Also after alignment by this published way, git-rebasin or otfusion; repeat it.",
        kind=list[str] | None, read=listed, default=None,
    )  # fmt: skip
    aligned: Sequence[Any] = option(
        (), "Also the line from A to this checkpoint, aligned by other means; repeat it.", "--aligned",
        kind=list[str] | None, read=listed, default=None, reads=True, acts=REFUSED,
    )  # fmt: skip
    points: int = option(25, "Points on a line, both ends included; odd.", acts=REFUSED)
    grid: int = option(21, "Points along each side of the plane.", acts=REFUSED)
    examples: ExamplesOptions = group(ExamplesOptions)
    batch_size: int = option(32, AT_A_TIME)
    png: str | Path | None = option(
        None, "Draw the curves, or the plane, to this file.", "--png", kind=Path | None, writes=FILE,
    )  # fmt: skip
    live: LiveOptions = group(LiveOptions)
    opening: OpeningOptions = group(OpeningOptions)
    memory: MemoryOptions = group(MemoryOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)

    @property
    def models(self) -> list[Any]:
        """The ends of the line, or the corners of the plane."""
        return [self.one, self.two] if self.third is None else [self.one, self.two, self.third]


class Evaluate(Request):
    """Evaluate models side by side: loss, accuracy and perplexity on DATA, or tasks, in one table."""

    progress = "evaluating"
    models: Sequence[Any] = argument("Models: folders or hub ids, such as parents and a merge.", kind=list[str])
    data: Any = option(
        None, "Labelled examples, or text for language models (as of isomerge merge).", kind=str | None, reads=True,
    )  # fmt: skip
    tasks: Sequence[str] = option(
        (), "Tasks of lm-evaluation-harness, with commas: pip install 'lm-eval[hf]'.", kind=str | None,
        default=None, read=lambda names: [task.strip() for task in (names or "").split(",") if task.strip()],
    )  # fmt: skip
    examples: ExamplesOptions = group(ExamplesOptions)
    batch_size: int = option(32, "Examples that are run at a time.")
    live: LiveOptions = group(LiveOptions)
    opening: OpeningOptions = group(OpeningOptions)
    telling: TellingOptions = group(TellingOptions)


def measured(a: Asked) -> str | None:
    """Why what says how a loss is measured does nothing."""
    return "nothing is measured without --data" if a.data is None else None


class Report(Request):
    """Write one self-contained HTML page on OUT: what was merged, how far apart the models are, and whether it
    works."""

    progress = "measuring"
    out: str | Path = argument("The folder that isomerge merge or isomerge align wrote.", kind=Path)
    page: Path | None = option(
        None, "The HTML file to write; OUT/report.html if not given.", "--out", "-o", writes=FILE,
        door=COMMAND_LINE,
    )  # fmt: skip
    data: Any = option(
        None,
        "Labelled examples (as in isomerge barrier): also measure the loss between the models, as stored and as "
        "they were moved, and that of the merge.",
        kind=str | None, python="str | Path | Examples | None", reads=True,
    )  # fmt: skip
    barrier: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]] = option(
        (), "Show a measured line: a file of isomerge barrier --json; repeat it.", kind=list[Path] | None,
        read=listed, default=None, reads=True,
    )  # fmt: skip
    points: int = option(11, "With --data: points on a line, both ends included; odd.", acts=measured)
    limit: int | None = option(None, "With --data: use no more than so many examples.", acts=measured)
    length: int = option(128, "With --data: tokens per example of text.", acts=measured)
    batch_size: int = option(32, "With --data: examples that a model reads at a time.", acts=measured)
    device: str = option("cpu", "With --data: where the models run, cpu or cuda.", acts=measured)
    opening: OpeningOptions = group(OpeningOptions, allow_pickle=measured)
    telling: ReportOptions = group(ReportOptions)


def _kinds(a: Asked) -> tuple[str, ...]:
    return tuple(part.strip() for part in a.kinds.split(",")) if isinstance(a.kinds, str) else tuple(a.kinds)


def _with_fisher(a: Asked) -> str | None:
    return None if {"fisher", "kfac"} & set(_kinds(a)) else "--kinds has neither fisher nor kfac"


def _with_activations(a: Asked) -> str | None:
    return None if "activations" in _kinds(a) else "--kinds has no activations"


def _sampled(a: Asked) -> str | None:
    sampled = a.fisher_labels == "sampled"
    return _with_fisher(a) or (None if sampled else "labels are not sampled (--fisher-labels sampled)")


class Stats(Request):
    """Run MODEL over data once and write the statistics that matching and merging need; align and merge read
    them."""

    progress = "reading activations"
    model: Any = argument("The model to run: a folder or hub id.")
    data: Any = needed(
        "Examples, no labels needed (but for --fisher-labels given): a folder of images or text, .jsonl, .csv, "
        ".parquet, text, .safetensors, a data set of the package datasets (name:split), or a Python function "
        "(module:function).",
        "--data", kind=str, reads=True,
    )  # fmt: skip
    out: str | Path = out_file()
    kinds: str | Sequence[str] = option(
        "activations,regmean",
        "What is gathered: activations and regmean (Grams), which matching reads; fisher (diagonal) and kfac "
        "(Kronecker factors), which the merge methods of these names read.",
        kind=str,
    )  # fmt: skip
    fisher_labels: str | None = option(
        None,
        "Of fisher and kfac: given labels (the default where there are some), sampled from the model's own "
        "prediction, or expected over all classes.",
        acts=_with_fisher,
    )  # fmt: skip
    rows: int = option(
        1024, "Rows of activations that are kept of every place in the model.", acts=_with_activations,
    )  # fmt: skip
    examples: ExamplesOptions = group(ExamplesOptions)
    batch_size: int = option(16, "Examples read at a time; equal for models to be matched.")
    dtype: Any = option(
        "float32", "Of the rows: float32, or float16 in half the size.", kind=str, acts=_with_activations,
    )  # fmt: skip
    seed: int = option(0, "Of sampled labels.", acts=_sampled)
    live: TokenizerOptions = group(TokenizerOptions)
    opening: OpeningOptions = group(OpeningOptions)
    memory: MemoryOptions = group(MemoryOptions)
    writing: FileOptions = group(FileOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)


class Generate(Request):
    """Write examples for --data and --learn where you have none: language models write texts, classifiers of images
    get noise."""

    progress = "writing examples"
    models: Sequence[Any] = argument("All models that will be matched: folders or hub ids.", kind=list[str])
    out: str | Path = out_file()
    limit: int = option(1024, "How many examples.")
    examples: LengthOptions = group(LengthOptions)
    batch_size: int = option(64, "Texts that a model writes at a time.", acts=LATE)
    seed: int = option(0, "Of what is drawn.")
    opening: OpeningOptions = group(OpeningOptions)
    memory: MemoryOptions = group(MemoryOptions)
    writing: FileOptions = group(FileOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)

"""What stands beside a model: adapters, masks and corrected heads. What `isomerge extract-lora`, `merge-lora`,
`task-mask`, `restore-task` and `surgery` are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.options.files import (
    FileOptions,
    FolderOptions,
    OpeningOptions,
    ReportOptions,
    TellingOptions,
    out_file,
    out_folder,
)
from isomerge.options.fusing import weights_of
from isomerge.options.option import FIRST, Asked, Options, Request, argument, group, needed, option
from isomerge.options.running import ExamplesOptions, TokenizerOptions

MERGED = "The merged model: a folder or hub id."
BASE = "The base that it was merged around."


class ExtractLora(Request):
    """Write FINETUNED minus BASE as a LoRA adapter in peft's format; BASE+OUT is then the fine-tune, as far as
    ranks go."""

    finetuned: Any = argument("The model to describe: a folder or hub id.")
    base: Any = argument("The model that the adapter is for.")
    out: str | Path = out_folder(needed_in_python=True)
    rank: int | None = option(None, "The largest rank of a layer; 16 where neither it nor --energy is given.")
    energy: float = option(1.0, "Per layer, the fewest ranks that keep this share of the squared singular values.")
    sv_epsilon: float = option(0.0, "Drop singular values below this share of a layer's largest.", "--sv-epsilon")
    include: str | None = option(
        None, "Only modules whose names contain this regular expression.", "--include", "--include-regex",
    )  # fmt: skip
    exclude: str | None = option(None, "No modules whose names contain this one.", "--exclude", "--exclude-regex")
    embeddings: bool = option(False, "Describe tables of tokens by factors as well.", "--embeddings")
    save_modules: bool = option(
        False, "Keep whole what has no factors: norms, biases, tables, new heads.", "--save-modules",
    )  # fmt: skip
    seed: int = option(0, "Of the randomised range finder for large matrices.")
    opening: OpeningOptions = group(OpeningOptions)
    writing: FolderOptions = group(FolderOptions)
    telling: TellingOptions = group(TellingOptions)


def _prunes(a: Asked) -> str | None:
    prunes = a.method.startswith(("ties", "dare", "magnitude"))
    return None if prunes else f"the method {a.method} keeps all entries"


def _draws(a: Asked) -> str | None:
    # large products are cut by a randomised range finder; the sum of svd is cut by its halves
    cut = a.method.endswith("_svd")
    return None if cut or a.method.startswith("dare") else "nothing is drawn"


class AdapterOptions(Options):
    """The method, by peft's name, and its parameters."""

    method: str = option(
        "svd",
        "svd (the sum, cut to a rank), cat (the sum, ranks added), linear (halves summed: fast and rough), ties, "
        "dare_linear, dare_ties, magnitude_prune, or these four with _svd (of products, not of halves).",
        panel="Method",
    )  # fmt: skip
    weights: Sequence[float] | None = option(
        None, "One number per adapter, such as 0.7,0.3; by default equal ones of sum 1, and 1 each for ties.",
        kind=str | None, read=weights_of, panel="Method",
    )  # fmt: skip
    density: float | None = option(
        None, "The share of entries that ties, dare and magnitude_prune keep.", panel="Method", acts=_prunes,
    )  # fmt: skip
    rank: int | None = option(
        None, "The largest rank that svd leaves; by default the adapters' largest.", panel="Method",
        acts=lambda a: None if a.method.endswith("svd") else f"the method {a.method} cuts nothing to a rank",
    )  # fmt: skip
    majority_sign: str = option(
        "total", "Whose sign ties elects: total (of the sum) or frequency (of the most adapters).",
        "--majority-sign", panel="Method",
        acts=lambda a: None if "ties" in a.method else f"the method {a.method} elects no signs",
    )  # fmt: skip
    seed: int = option(
        0, "Of the entries that dare keeps, and of the randomised range finder for large products (_svd).",
        panel="Method", acts=_draws,
    )  # fmt: skip


class MergeLora(Request):
    """Merge LoRA adapters into one adapter, as peft's add_weighted_adapter does; the base is not read.

    For one model of base and adapters, whole: isomerge merge BASE+A BASE+B.
    """

    adapters: Sequence[str | Path] | str | Path = argument(
        "LoRA adapters (folders or hub ids) for one base; or one RECIPE.yml.", kind=list[str],
    )  # fmt: skip
    out: str | Path = out_folder(needed_in_python=True)
    allow_pickle: bool = option(
        False, "Read .bin weights (with weights_only); safetensors are safer.", "--allow-pickle",
    )  # fmt: skip
    merging: AdapterOptions = group(AdapterOptions)
    writing: FolderOptions = group(FolderOptions)
    telling: TellingOptions = group(TellingOptions)


class TaskMask(Request):
    """Write the mask (one bit per weight) by which restore-task gives TASK back from MERGED and BASE.

    EMR (Huang et al. 2024) and TALL masks (Wang et al. 2024).
    """

    merged: Any = argument(MERGED)
    base: Any = argument(BASE)
    task: Any = argument("The model of the task; after an aligned merge, aligned onto the base as well.")
    out: str | Path = out_file()
    kind: str = option(
        "emr",
        "emr (weights that have the task's direction; of merges by emr) or tall (weights that are nearer to the "
        "task's than the base's are; of merges by task_arithmetic).",
        panel=FIRST,
    )  # fmt: skip
    tall_lambda: float = option(
        0.4, "With --kind tall: the larger, the fewer weights are in the mask.", "--tall-lambda", panel=FIRST,
        acts=lambda a: None if a.kind == "tall" else "masks of EMR have no threshold",
    )  # fmt: skip
    opening: OpeningOptions = group(OpeningOptions)
    writing: FileOptions = group(FileOptions)
    telling: ReportOptions = group(ReportOptions)


class RestoreTask(Request):
    """Write the model of one task: BASE plus what MASK lets through of MERGED, with MERGED's config and files."""

    merged: Any = argument(MERGED)
    base: Any = argument(BASE)
    mask: str | Path = argument("The file that task-mask wrote.", kind=Path)
    out: str | Path = out_folder(needed_in_python=True)
    opening: OpeningOptions = group(OpeningOptions)
    writing: FolderOptions = group(FolderOptions)
    telling: ReportOptions = group(ReportOptions)


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


class Surgery(Request):
    """Correct what the head of TASK reads in MERGED, and write the corrected head as an adapter: MERGED+OUT is the
    model of the task.

    Representation surgery (Yang et al. 2024), in the form that is part of an ordinary checkpoint.
    """

    progress = "surgery"
    merged: Any = argument(MERGED)
    task: Any = argument("The task's own model; after an aligned merge, aligned in the same way.")
    data: Any = needed("Examples of the task, no labels needed (as of stats).", "--data", kind=str, reads=True)
    out: str | Path = out_folder(needed_in_python=True)
    operating: SurgeryOptions = group(SurgeryOptions)
    examples: ExamplesOptions = group(ExamplesOptions)
    live: TokenizerOptions = group(TokenizerOptions)
    opening: OpeningOptions = group(OpeningOptions)
    writing: FolderOptions = group(FolderOptions)
    telling: TellingOptions = group(TellingOptions)

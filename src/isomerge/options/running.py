"""Where and how much at once: the options of commands that work on units, or run models on examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isomerge.options.option import LATE, PYTHON, REFUSED, Options, option

RUN = "Run"


class RunningOptions(Options):
    """Where units are worked on, and how many at once."""

    jobs: int | None = option(
        None, "Work on this many units at once, each by one thread; what is written does not depend on the number.",
        "--jobs", "-j", least=1, shown=False, panel=RUN,
    )  # fmt: skip
    max_memory: str | int | None = option(
        None,
        "What the run (with ray: one worker) may take, such as 8GB: fewer units at once, by the estimate of "
        "--dry-run.",
        kind=str | None, panel=RUN,
    )  # fmt: skip
    engine: str = option(
        "local", "local, or ray: units are tasks of a Ray cluster, and all files are on shared storage.", panel=RUN,
    )  # fmt: skip
    address: str | None = option(
        None, "The Ray cluster: auto or host:port; without it Ray is started on this machine alone.", panel=RUN,
        acts=REFUSED,
    )  # fmt: skip


class MemoryOptions(Options):
    """What a run of models may take."""

    max_memory: str | int | None = option(
        None, "What the run may take, such as 8GB, by the estimate of --dry-run; refused where that is too little.",
        kind=str | None,
    )  # fmt: skip


class LengthOptions(Options):
    """How long examples are, and where models run."""

    length: int = option(128, "Tokens per example of text.", acts=LATE)
    device: str = option("cpu", "Where models run: cpu or cuda.")


class ExamplesOptions(LengthOptions):
    """The same, and how many examples models are run on."""

    limit: int | None = option(None, "Use no more than so many examples.")


class TokenizerOptions(Options):
    """Texts in memory, which Python alone has."""

    tokenizer: Any = option(
        None,
        "Of texts, where no folder of the first model has one: a tokenizer of transformers or tokenizers, the "
        "name or folder of one, for modules of one's own also a function from a text to ids. Data are then texts, "
        "or files of them.",
        door=PYTHON, acts=LATE,
    )  # fmt: skip


class LiveOptions(TokenizerOptions):
    """The same, and modules of one's own."""

    loss: Callable[..., Any] | None = option(
        None,
        "Of modules of one's own: a function of their outputs and labels (where there are none, the batch) that "
        "gives the mean loss of a batch; by default what outputs and labels are decides.",
        door=PYTHON, acts=REFUSED,
    )  # fmt: skip

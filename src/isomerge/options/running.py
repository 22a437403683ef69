"""Where and how much at once: the options of commands that work on units, or run models on examples."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.options.option import Options, option

RUN = "Run"


@dataclass(frozen=True)
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
        "local", "local, or ray: units are tasks of a Ray cluster, and all files are on shared storage.", panel=RUN
    )
    address: str | None = option(
        None, "The Ray cluster: auto or host:port; without it Ray is started on this machine alone.", panel=RUN
    )


@dataclass(frozen=True)
class MemoryOptions(Options):
    """What a run of models may take."""

    max_memory: str | int | None = option(
        None, "What the run may take, such as 8GB, by the estimate of --dry-run; refused where that is too little.",
        kind=str | None,
    )  # fmt: skip


@dataclass(frozen=True)
class LengthOptions(Options):
    """How long examples are, and where models run."""

    length: int = option(128, "Tokens per example of text.")
    device: str = option("cpu", "Where models run: cpu or cuda.")


@dataclass(frozen=True)
class ExamplesOptions(LengthOptions):
    """The same, and how many examples models are run on."""

    limit: int | None = option(None, "Use no more than so many examples.")

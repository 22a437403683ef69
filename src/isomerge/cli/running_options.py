"""Where and how much at once: the options of commands that work on units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from isomerge.cli.composed import with_options


def _declared(
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Work on this many units at once, each by one thread; what is written does not depend on the number.",
            show_default=False,
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            help="What the run (with ray: one worker) may take, such as 8GB: fewer units at once, by the estimate of --dry-run."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="local, or ray: units are tasks of a Ray cluster, and all files are on shared storage."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster: auto or host:port; without it Ray is started on this machine alone."),
    ] = None,
) -> dict[str, Any]:
    return {"jobs": jobs, "max_memory": max_memory, "engine": engine, "address": address}


def with_running(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; its parameter ``running`` gets them as a dict for `isomerge.merge`."""
    return with_options(_declared, "running", last=True)(command)

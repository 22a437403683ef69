"""Models run on data: losses between them, statistics, and the page that shows what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.api.live_inputs import opened_data, own_models
from isomerge.commands.measuring import planned_barrier, planned_stats
from isomerge.commands.opening import dtype_name
from isomerge.evidence.report.folder import read_output
from isomerge.evidence.report.loss_facts import losses_of, read_losses
from isomerge.evidence.report.notebook import Report
from isomerge.evidence.report.page import Page, page_of
from isomerge.observe.data.examples import Examples
from isomerge.options import ImportOptions
from isomerge.progress import Observer, quiet
from isomerge.run.arguments import checked
from isomerge.run.barrier_options import BarrierOptions
from isomerge.run.measured_output import measure


@checked(ImportOptions)
def barrier(
    one: Any,
    two: Any,
    third: Any = None,
    *,
    data: Any,
    loss: Callable[..., Any] | None = None,
    tokenizer: Any = None,
    points: int = 25,
    grid: int = 21,
    spaces: str | Sequence[str] | None = None,
    match: str | Sequence[str] = (),
    aligned: Sequence[Any] = (),
    batch_size: int = 32,
    limit: int | None = None,
    length: int = 128,
    device: str = "cpu",
    png: str | Path | None = None,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    max_memory: str | int | None = None,
    observer: Observer = quiet,
) -> dict[str, Any]:
    """The loss on the line between two models, or on the plane through three: whether their average can work.

    Args:
        one, two, third: models of one architecture; the first is the anchor, onto which the others are aligned.
        data: labelled examples: a path or what else `isomerge.observe.data.opening_data.open_data` opens for the
            first model, batches, a loader, a function.
        loss, tokenizer: of modules of one's own, and of texts; see `isomerge.merge`.
        points: along a line, both ends included; odd.
        grid: points along each side of a plane.
        spaces: after alignment in these spaces (one selection, or several), beside the models as stored; ``none``
            for those alone. By default what the models need: nothing for those that are aligned already.
        match: after alignment by these published ways as well, each a curve: ``git-rebasin``, ``otfusion``.
        aligned: checkpoints that were aligned onto the first by other means; two models only.
        batch_size, device: how the models are run, in float32.
        limit, length: examples, and tokens per example; see `open_data`.
        png: where to draw it.
        max_memory: what the run may take, such as ``8GB``, by the estimate of ``--dry-run``; where that is too
            little nothing is done.

    Returns:
        A report: ``lines`` (``barrier`` by definition, in ``unit``, ``midpoint``, ``highest``, ``losses``, ...) or
        ``planes``, and ``ensemble``, the mean of the models' predictions. Of values
        (regression) what tells of accuracy is None. ``untied`` are the models whose head was given weights of its
        own, as that of another one has them: their functions are the same.

    Raises:
        IsomergeError: models or data do not fit together, or an option is wrong.
    """

    models = own_models([one, two] if third is None else [one, two, third], loss)
    data = opened_data(data, models[0], tokenizer, limit=limit, length=length)
    with planned_barrier(
        models, data=data, points=points, grid=grid, spaces=spaces, match=match,
        aligned=aligned, batch_size=batch_size, limit=limit, length=length, device=device, png=png, spec=spec,
        allow_pickle=allow_pickle, max_memory=max_memory, observer=observer,
    ) as planned:  # fmt: skip
        return Report(planned.run())


@checked(ImportOptions)
def report(
    out: str | Path,
    *,
    barrier: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]] = (),
    data: str | Path | Examples | None = None,
    points: int = 11,
    batch_size: int = 32,
    limit: int | None = None,
    length: int = 128,
    device: str = "cpu",
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    observer: Observer = quiet,
) -> Page:
    """The page for people on what `merge` or `align` wrote; nothing is matched anew.

    Args:
        out: the folder that was written.
        barrier: reports of `barrier` on its models, or the files that ``isomerge barrier --json`` wrote.
        data: labelled examples: the loss between the models, as stored and as they were moved, and that of the
            merge, are measured on them. The models that went in must still be where they were.
        points, batch_size, limit, length, device: of that measurement; see `barrier`.
        spec: of an architecture that isomerge does not know.

    Returns:
        A page: ``save(path)`` writes it, ``html`` is its text, ``verdict`` what it says; a notebook shows it.
        ``measured`` are the reports that `barrier` gave.

    Raises:
        IsomergeError: nothing that isomerge wrote, or models and data do not fit together.
    """

    written = read_output(out, spec=spec)
    sources = [barrier] if isinstance(barrier, (str, Path, Mapping)) else barrier
    losses = [losses_of(source) if isinstance(source, Mapping) else read_losses(source) for source in sources]
    measured: list[dict[str, Any]] = []
    if data is not None:
        options = BarrierOptions(points=points, batch_size=batch_size, device=device, observer=observer)
        measured = measure(written, data, options, limit=limit, length=length, spec=spec, allow_pickle=allow_pickle)
    return page_of(written, [*map(losses_of, measured), *losses], measured=measured)


@checked(ImportOptions)
def stats(
    model: Any,
    *,
    data: Any,
    out: str | Path,
    tokenizer: Any = None,
    rows: int = 1024,
    limit: int | None = None,
    length: int = 128,
    batch_size: int = 16,
    device: str = "cpu",
    dtype: Any = "float32",
    kinds: str | Sequence[str] = "activations,regmean",
    fisher_labels: str | None = None,
    seed: int = 0,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    overwrite: bool = False,
    max_memory: str | int | None = None,
    observer: Observer = quiet,
) -> dict[str, Any]:
    """Run a model over data once and write the statistics that matching and merging need, one file per model.

    Args:
        model: a folder, hub id, open checkpoint or live module.
        data: examples, as of `barrier`; no labels needed but for
            ``fisher_labels="given"``.
        tokenizer: of texts; see `isomerge.merge`.
        out: the safetensors file; see `docs/lab/activations.md` for what is in it.
        rows: rows of activations that are kept of every place; models to be matched need equal data, ``rows`` and
            ``batch_size``.
        dtype: of the rows, ``float32`` or ``float16``.
        kinds: what is gathered: ``activations`` and ``regmean`` (Grams), which matching reads; ``fisher``
            (diagonal) and ``kfac`` (Kronecker factors), for which the model is run backwards on every example
            alone.
        fisher_labels: ``given`` (the data's; the default where there are some), ``sampled`` from the model's
            prediction, or ``expected`` over all classes; see `isomerge.observe.stats.likelihoods`.
        seed: of sampled labels.
        limit, length: examples, and tokens per example; see `open_data`.
        device: where the model runs, in float32.
        overwrite: replace ``out``.
        max_memory: what the run may take, such as ``8GB``, by the estimate of ``--dry-run``; where that is too
            little nothing is done.

    Returns:
        A report: ``taps``, ``rows``, ``tokens`` by tap, ``kinds``, ``fisher``, ``examples``, ``bytes``.

    Raises:
        IsomergeError: model or data do not fit together, or an option is wrong; nothing is written.
    """

    (model,) = own_models([model])
    data = opened_data(data, model, tokenizer, limit=limit, length=length)
    with planned_stats(
        model, data=data, out=out, rows=rows, limit=limit, length=length, batch_size=batch_size, device=device,
        dtype=dtype_name(dtype) or dtype, kinds=kinds, labels=fisher_labels, seed=seed, spec=spec,
        allow_pickle=allow_pickle, overwrite=overwrite, max_memory=max_memory, observer=observer,
    ) as planned:  # fmt: skip
        return Report(planned.run())

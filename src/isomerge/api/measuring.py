"""Models run on data: losses between them, statistics, and the page that shows what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isomerge.api.live_inputs import own_models, with_data
from isomerge.commands.evaluating import EvaluateReport, evaluate_models
from isomerge.commands.measuring import planned_barrier, planned_generate, planned_stats
from isomerge.evidence.report.folder import read_output
from isomerge.evidence.report.loss_facts import losses_of, read_losses
from isomerge.evidence.report.page import Page, page_of
from isomerge.observe.live.generated import GenerateReport
from isomerge.observe.stats.gathering import StatsReport
from isomerge.options.requests import measuring as asked_for
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.run.arguments import checked
from isomerge.run.barrier_options import BarrierOptions
from isomerge.run.connectivity import BarrierReport
from isomerge.run.fsck import changes_of
from isomerge.run.measured_output import measure


@checked(asked_for.Barrier)
def barrier(asked: asked_for.Barrier, observer: Observer) -> BarrierReport:
    """The loss on the line between two models, or on the plane through three: whether their average can work.

    Args:
        one, two, third: models of one architecture; the first is the anchor, onto which the others are aligned.
        data: labelled examples: a path or what else `isomerge.observe.data.opening_data.open_data` opens for the
            first model, batches, a loader, a function.
        spaces: after alignment in these spaces (one selection, or several), beside the models as stored; ``none``
            for those alone. By default what the models need: nothing for those that are aligned already.

    Returns:
        A report: ``lines`` (``barrier`` by definition, in ``unit``, ``midpoint``, ``highest``, ``losses``, ...) or
        ``planes``, and ``ensemble``, the mean of the models' predictions. Of values
        (regression) what tells of accuracy is None. ``untied`` are the models whose head was given weights of its
        own, as that of another one has them: their functions are the same.

    Raises:
        IsomergeError: models or data do not fit together, or an option is wrong.
    """
    one, two, *third = own_models(asked.models, asked.live.loss)
    asked = with_data(asked, one, one=one, two=two, third=third[0] if third else None)
    with planned_barrier(asked, observer) as planned:
        return planned.run()


@checked(asked_for.Report)
def report(asked: asked_for.Report, observer: Observer) -> Page:
    """The page for people on what `merge` or `align` wrote; nothing is matched anew. Its verdict says so where what
    lies there is not what was written, as `fsck` finds it: all files are read for that.

    Args:
        out: the folder that was written.
        barrier: reports of `barrier` on its models, or the files that ``isomerge barrier --json`` wrote.
        data: labelled examples: the loss between the models, as stored and as they were moved, and that of the
            merge, are measured on them. The models that went in must still be where they were.

    Returns:
        A page: ``save(path)`` writes it, ``html`` is its text, ``verdict`` what it says; a notebook shows it.
        ``measured`` are the reports that `barrier` gave.

    Raises:
        IsomergeError: nothing that isomerge wrote, or models and data do not fit together.
    """
    opening, barrier = asked.opening, asked.barrier
    written = read_output(asked.out, spec=opening.spec)
    changed = changes_of(asked.out, spec=opening.spec, observer=observer)
    written = replace(written, changed=tuple(changed))
    sources = [barrier] if isinstance(barrier, (str, Path, Mapping)) else barrier
    losses = [losses_of(source) if isinstance(source, Mapping) else read_losses(source) for source in sources]
    measured: list[Json] = []
    if asked.data is not None:
        options = BarrierOptions(
            points=asked.points, batch_size=asked.batch_size, device=asked.device, observer=observer
        )
        reports = measure(
            written,
            asked.data,
            options,
            limit=asked.limit,
            length=asked.length,
            spec=opening.spec,
            allow_pickle=opening.allow_pickle,
        )
        measured = [report.document() for report in reports]
    return page_of(written, [*map(losses_of, measured), *losses], measured=measured)


@checked(asked_for.Stats)
def stats(asked: asked_for.Stats, observer: Observer) -> StatsReport:
    """Run a model over data once and write the statistics that matching and merging need, one file per model.

    Args:
        model: a folder, hub id, open checkpoint or live module.
        data: examples, as of `barrier`; no labels needed but for
            ``fisher_labels="given"``.
        out: the safetensors file; see `docs/lab/activations.md` for what is in it.
        rows: rows of activations that are kept of every place; models to be matched need equal data, ``rows`` and
            ``batch_size``.
        kinds: what is gathered: ``activations`` and ``regmean`` (Grams), which matching reads; ``fisher``
            (diagonal) and ``kfac`` (Kronecker factors), for which the model is run backwards on every example
            alone.

    Returns:
        A report: ``taps``, ``rows``, ``tokens`` by tap, ``kinds``, ``fisher``, ``examples``, ``bytes``.

    Raises:
        IsomergeError: model or data do not fit together, or an option is wrong; nothing is written.
    """
    (model,) = own_models([asked.model])
    with planned_stats(with_data(asked, model, model=model), observer) as planned:
        return planned.run()


@checked(asked_for.Generate)
def generate(asked: asked_for.Generate, observer: Observer) -> GenerateReport:
    """Write examples for models that shall be matched and that nobody has data for.

    Causal language models write texts themselves, drawn token by token from their own distribution, each model its
    share, in turn; classifiers of images get noise. The file is data for `align`, `merge`, `stats` and `barrier`.

    Args:
        models: folders, hub ids, open checkpoints or live modules: all that will be matched.
        out: the safetensors file: ``input_ids`` int64 [limit, length] or ``pixel_values`` float32 [limit, channels,
            height, width].
        length: tokens per text; less where the models read less.
        seed: of what is drawn; equal seeds give equal files on one machine.

    Returns:
        A report: ``kind`` (``texts`` or ``images``), ``shapes`` by tensor, ``examples``, ``seed``, ``bytes``.

    Raises:
        IsomergeError: models that neither write texts nor see images, or not the same ones; nothing is written.
    """
    with planned_generate(asked, observer) as planned:
        return planned.run()


@checked(asked_for.Evaluate)
def evaluate(asked: asked_for.Evaluate, observer: Observer) -> EvaluateReport:
    """Evaluate models side by side, such as the parents of a merge and the merge.

    Args:
        models: folders, hub ids, open checkpoints or live modules that read the same data.
        data: labelled examples, or text for language models: a path, batches, a loader, a function.

    Returns:
        ``models``: a row for each with ``loss``, ``accuracy`` and ``perplexity`` on the data, and ``tasks`` with
        the numbers of each; ``unit`` of the loss and ``examples``.

    Raises:
        IsomergeError: neither data nor tasks, data without labels, or no harness.
    """
    models = own_models(asked.models, asked.live.loss)
    asked = with_data(asked, models[0], models=models) if models and asked.data is not None else asked
    return evaluate_models(asked, observer)

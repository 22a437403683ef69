"""Models merged, and fine-tunes written as adapters."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from isomerge.api.live import live
from isomerge.api.live_inputs import opened_data, own_models, with_examples
from isomerge.commands.experts import planned_experts
from isomerge.commands.experts_asked import experts_of
from isomerge.commands.layer_selection import with_selected_layers
from isomerge.commands.merging import check_alone, merge_of, planned_merge
from isomerge.commands.opening import recognised
from isomerge.commands.pipeline_merges import ComponentMerge, pipeline_merge
from isomerge.commands.pipeline_runs import run_pipeline
from isomerge.commands.step_merges import run_steps, step_merges
from isomerge.errors import IsomergeError
from isomerge.evidence.report.notebook import Report
from isomerge.merging.adapter.adapter_recipe import asked_of_recipe
from isomerge.merging.adapter.extract_lora import extract_lora as extract
from isomerge.merging.adapter.merge_lora import Asked
from isomerge.merging.adapter.merge_lora import merge_lora as merge_adapters
from isomerge.merging.adapter.surgery import write_surgery
from isomerge.merging.recipe.schema import makes_experts
from isomerge.merging.task_masks import read_task_mask, write_task_mask
from isomerge.merging.task_masks import restore_task as write_restored
from isomerge.models.references import is_assembled
from isomerge.models.row_meanings import in_order
from isomerge.options import (
    AdapterOptions,
    ExamplesOptions,
    FusingOptions,
    ImportOptions,
    MaskOptions,
    MatchingOptions,
    OpeningOptions,
    OutputOptions,
    RunningOptions,
    SpacesOptions,
    SurgeryOptions,
)
from isomerge.options.unused import note
from isomerge.progress import Observer, quiet
from isomerge.run.arguments import checked, defaults_in
from isomerge.solve.match_inputs import data_for


@checked(
    FusingOptions, SpacesOptions, OpeningOptions, OutputOptions, RunningOptions, MatchingOptions, settled=False
)
def merge(
    models: Sequence[Any] | str | Path,
    *,
    out: str | Path | None = None,
    intermediate_dir: str | Path | None = None,
    repair: Any = None,
    loss: Callable[..., Any] | None = None,
    tokenizer: Any = None,
    observer: Observer = quiet,
    **options: Any,
) -> Any:
    """Align every model onto the first (or, with ``anchor="none"``, onto their common mean), merge them, and return
    the merged module; with ``out``, write it there and return the report.

    Args:
        models: folders, hub ids (``org/name@revision+adapter``), open checkpoints or live modules; or one recipe
            file, which says all that the other arguments say but ``out`` and how it is written. A document of
            mergekit-moe (or one with ``merge_method: moe``) makes one model with experts of dense ones.
        intermediate_dir: of a recipe of several steps (documents), where the outputs of all but the last go, by
            their names; by default beside ``out``, as ``OUT.steps``. Those that are there already, made by the same
            recipe, are kept.
        out: the folder to write. Without it nothing is written, and a live module comes back: of the models' class,
            in the dtype and on the device of the first one where that is a module; its report is its attribute
            ``isomerge_report``.
        repair: data on which the merged model's activations are re-normalised to the models' (REPAIR, Jordan et al.
            2023).
        loss: of modules of one's own: a function of their outputs and labels (where there are none, the batch) that
            gives the mean loss of a batch; by default what outputs and labels are decides.
        tokenizer: of texts, where no folder of the first model has one: a tokenizer of transformers or tokenizers,
            the name or folder of one, for modules of one's own also a function from a text to ids. Data are then
            texts, or files of them.
        observer: told of progress.
        options: the method and what the models are to it, what may move, what is looked at beside the weights, and
            how it is read, written and run. A list in ``parameters`` has one number per model. Methods that need
            statistics read ``stats``, or without them ``data`` on the aligned models. Task vectors of models that
            were tuned from ``source_bases`` are moved onto ``base_model``. With any ``heads`` but ``average`` the
            numbers of labels may differ. ``align`` is ``auto`` (models that are aligned already, as fine-tunes of
            one base are, are left as they are), True (all are aligned) or False (none).

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    first: Any = None
    if not isinstance(models, (str, Path)):
        models = own_models(models, loss)
        first = models[0] if models else None
        options = with_examples({"repair": repair, **options}, ("data", "learn", "repair"), first, tokenizer)
        repair = options.pop("repair")
    if out is None:
        named: list[Any] = [models] if isinstance(models, (str, Path)) else list(models)
        if (pipeline := next((ref for ref in named if is_assembled(ref)), None)) is not None:
            raise IsomergeError(f"{pipeline} is a pipeline, which is merged into a folder: name it with --out")
        more = {"intermediate_dir": intermediate_dir, "repair": repair, "observer": observer, **options}
        return live(lambda folder: merge(models, out=folder, **more), first)
    if makes_experts(models):
        if intermediate_dir is not None:
            note("intermediate_dir", "one model is made, not several steps of a recipe")
        return Report(_experts(models, out, repair, observer, options))
    outputs = {k: v for k, v in options.items() if k in {*MatchingOptions.declared(), "dtype"}}
    steps = step_merges(models, out, intermediate_dir, {**outputs, "repair": repair}, OpeningOptions.of(options))
    if not steps:
        return Report(_merged(models, out, OutputOptions.of(options), repair, observer, options))
    writing = OutputOptions.of(options)
    return Report(
        run_steps(
            steps,
            lambda step: _merged(step.step, step.out, step.writing(writing), repair, observer, options),
            writing.overwrite,
        )
    )


def _experts(
    path: str | Path, out: str | Path, repair: Any, observer: Observer, options: dict[str, Any]
) -> dict[str, Any]:
    """Experts of dense models, written; the report."""
    opening, writing = OpeningOptions.of(options), OutputOptions.of(options)
    check_alone(path, {**FusingOptions.of(options).given(), **SpacesOptions.of(options).given()})
    asked = experts_of(path, **_evidence(options), repair=repair, spec=opening.spec, dtype=writing.dtype)
    how: dict[str, Any] = {"opening": opening, "writing": writing, "running": RunningOptions.of(options)}
    with planned_experts(asked, out, **how, observer=observer) as plan:
        return plan.run()


def _evidence(options: dict[str, Any]) -> dict[str, Any]:
    """What is looked at beside the weights, and what of it was said."""
    said = {name: value for name, value in options.items() if name in MatchingOptions.declared()}
    return {"matching": MatchingOptions.of(options), "said": said}


def _merged(
    models: Any, out: str | Path, writing: OutputOptions, repair: Any, observer: Observer, options: dict[str, Any]
) -> dict[str, Any]:
    """One merge, of models or of pipelines, written; its report."""
    opening, fusing, moving = (each.of(options) for each in (OpeningOptions, FusingOptions, SpacesOptions))
    how: dict[str, Any] = {"fusing": fusing, "moving": moving, "opening": opening, "writing": writing}
    pipeline = pipeline_merge(
        models, out, **how, more={k: options[k] for k in sorted(options)} | {"repair": repair}
    )
    if pipeline is None:
        return _of_one(models, out, writing, repair, observer, options)

    def one(component: ComponentMerge, place: Path, own: OutputOptions) -> dict[str, Any]:
        said = {} if component.fusing is None else component.fusing.given()
        said |= {} if component.moving is None else component.moving.given()
        return _of_one(component.source, place, own, repair, observer, {**options, **said})

    return run_pipeline(pipeline, writing, one)


def _of_one(
    models: Any, out: str | Path, writing: OutputOptions, repair: Any, observer: Observer, options: dict[str, Any]
) -> dict[str, Any]:
    """A merge of models, not of pipelines."""
    opening = OpeningOptions.of(options)
    asked = merge_of(
        models,
        fusing=FusingOptions.of(options),
        moving=SpacesOptions.of(options),
        **_evidence(options),
        repair=repair,
        spec=opening.spec,
        dtype=writing.dtype,
    )
    how: dict[str, Any] = {"opening": opening, "writing": writing, "running": RunningOptions.of(options)}
    asked = with_selected_layers(asked, **how, observer=observer)
    with planned_merge(asked, out, **how, observer=observer) as plan:
        return plan.run()


@checked(ImportOptions)
def extract_lora(
    finetuned: Any,
    base: Any,
    *,
    out: str | Path,
    rank: int | None = None,
    energy: float = 1.0,
    sv_epsilon: float = 0.0,
    include: str | None = None,
    exclude: str | None = None,
    embeddings: bool = False,
    save_modules: bool = False,
    seed: int = 0,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write ``finetuned`` minus ``base`` as a LoRA adapter in peft's format; ``base+out`` is then the fine-tune.

    Args:
        finetuned, base: folders, hub ids, open checkpoints or live modules of one architecture and equal shapes.
        out: the adapter's folder.
        rank: the largest rank of a layer (16 where neither it nor ``energy`` is given); ``energy`` keeps the fewest
            ranks with this share of the squared singular values, ``sv_epsilon`` drops singular values below this
            share of the largest.
        include, exclude: regular expressions for module names.
        embeddings: describe tables of tokens by factors as well.
        save_modules: keep whole what has no factors and differs.

    Returns:
        ``rank``, per tensor that differs ``kept`` (``lora``, ``saved`` or ``lost``), ``rank``, ``norm`` and
        ``lost``, and over all of them ``norm``, ``lost`` and ``share`` (Frobenius); see
        `isomerge.merging.adapter.extract_lora`.

    Raises:
        IsomergeError: the models do not fit together or are equal, or an option is wrong; nothing is written.
    """

    folder = Path(os.path.expanduser(out))
    with recognised([finetuned, base], spec, allow_pickle, proven=False) as (one, two):
        report = extract(
            one, two, folder, rank=rank, energy=energy, sv_epsilon=sv_epsilon, include=include, exclude=exclude,
            embeddings=embeddings, save_modules=save_modules, overwrite=overwrite, seed=seed,
        )  # fmt: skip
        return Report({"command": "extract-lora", "models": [one.ref, two.ref], **report})


@checked(AdapterOptions)
def merge_lora(
    adapters: Sequence[str | Path] | str | Path,
    *,
    out: str | Path,
    allow_pickle: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Merge LoRA adapters into one adapter in peft's format, as peft's ``add_weighted_adapter`` does; their base is
    not read.

    Args:
        adapters: folders or hub ids (``org/name@revision``) of adapters for one base; or one recipe file, which
            says what ``method`` and the other options say.
        out: the adapter's folder.

    Returns:
        ``adapters``, ``method``, ``weights``, ``rank``, per module ``adapters`` (their numbers), ``rank``, ``norm``
        (of the weighted sum of the updates) and ``distance`` (of the merged update from it), and over all of them
        ``norm``, ``distance`` and ``share`` (Frobenius); see `isomerge.merging.adapter.merge_lora`.

    Raises:
        IsomergeError: an adapter cannot be opened or needs the base to be merged, the adapters do not fit together,
            or an option is wrong; nothing is written.
    """
    reads: list[Path] = []
    if isinstance(adapters, (str, Path)):
        if beside := [name for name, value in options.items() if value != defaults_in(AdapterOptions)[name]]:
            raise IsomergeError(
                f"{adapters}: a recipe says what is merged and how; put {', '.join(beside)} into it"
            )
        reads.append(Path(os.path.expanduser(adapters)))
        asked = asked_of_recipe(adapters)
    else:
        settings = AdapterOptions.of(options).given()
        weights = settings.pop("weights")
        asked = Asked(tuple(adapters), weights=None if weights is None else tuple(weights), **settings)
    folder = Path(os.path.expanduser(out))
    report = merge_adapters(asked, folder, allow_pickle=allow_pickle, overwrite=overwrite, reads=reads)
    return Report({"command": "merge-lora", "adapters": [str(ref) for ref in asked.adapters], **report})


@checked(MaskOptions, OpeningOptions)
def task_mask(
    merged: Any, base: Any, task: Any, *, out: str | Path, overwrite: bool = False, **options: Any
) -> dict[str, Any]:
    """Write the mask by which `restore_task` gives back the model of one task from a merged one: a safetensors file
    of one bit per weight (EMR, Huang et al. 2024; TALL masks, Wang et al. 2024).

    Args:
        merged: the merged model: of the method ``emr`` for its masks, a sum of task vectors for TALL masks.
        base: the base that it was merged around.
        task: the model of the task, in the merged model's coordinates: after an aligned merge, aligned.
        out: the file.
        options: which weights are in the mask, and how models are read.

    Returns:
        ``kind``, ``factor``, ``share`` (of the weights in the mask) and ``error``: how far the restored model will
        be from the task's, as a share of what the task changed; ``notes`` where that is no gain.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    path, opening, masking = Path(os.path.expanduser(out)), OpeningOptions.of(options), MaskOptions.of(options)
    how: dict[str, Any] = {**masking.given(), "overwrite": overwrite}
    with recognised([merged, base, task], opening.spec, opening.allow_pickle, proven=False) as (one, origin, tuned):
        report = write_task_mask(one, origin, tuned, path, **how)
        doubt = f"the restored model is no nearer to {tuned.ref} than the base is: is {tuned.ref} aligned with "
        notes = [doubt + f"{one.ref}, and {one.ref} merged by emr?"] if report["error"] >= 1 else []
        refs = [one.ref, origin.ref, tuned.ref]
        return Report({"command": "task-mask", "models": refs, **report, "notes": [*report["notes"], *notes]})


@checked(OpeningOptions)
def restore_task(
    merged: Any, base: Any, mask: str | Path, *, out: str | Path, overwrite: bool = False, **options: Any
) -> dict[str, Any]:
    """Write the model of one task from a merged model, its base and a file of `task_mask`: ``base + factor mask
    (merged - base)``, with the merged model's config and files.

    Raises:
        IsomergeError: the mask was made for other models, or an option is wrong; nothing is written.
    """
    (folder, file), opening = (Path(os.path.expanduser(path)) for path in (out, mask)), OpeningOptions.of(options)
    with recognised([merged, base], opening.spec, opening.allow_pickle, proven=False) as (one, origin):
        report = write_restored(one, origin, read_task_mask(file), folder, overwrite=overwrite)
        return Report({"command": "restore-task", "models": [one.ref, origin.ref], **report})


@checked(SurgeryOptions, ExamplesOptions, OpeningOptions)
def surgery(
    merged: Any,
    task: Any,
    *,
    data: Any,
    out: str | Path,
    tokenizer: Any = None,
    overwrite: bool = False,
    observer: Observer = quiet,
    **options: Any,
) -> dict[str, Any]:
    """Correct what the head of a task reads in a merged model, and write the corrected head as an adapter on it in
    peft's format: ``merged+out`` is the model of the task (representation surgery, Yang et al. 2024, in the form
    that is part of an ordinary checkpoint; see `isomerge.fusion.forward.surgery`).

    Args:
        merged: the merged model.
        task: the task's own model, in the merged model's coordinates: after an aligned merge, aligned.
        data: examples of the task, as of `stats`; labels are not used. A share of them is held out.
        out: the adapter's folder.
        tokenizer: of texts; see `isomerge.merge`.
        observer: told of progress.
        options: the size of the correction and how it is learned, how many examples, where models run, and how
            they are opened.

    Returns:
        ``head``, ``width``, ``rank``, ``rows``; on held-out examples ``before`` and ``after``, the mean absolute
        difference of what the head reads from what it reads in the task's own model, as a share of that, and
        ``agreement`` with the task's predictions (``before``, ``after``; None where these are one number);
        ``notes`` where nothing was gained.

    Raises:
        IsomergeError: models or data do not fit together, or an option is wrong; nothing is written.
    """
    operating, examples = SurgeryOptions.of(options), ExamplesOptions.of(options)
    opening = OpeningOptions.of(options)
    operating.check()
    merged, task = own_models([merged, task])
    data = opened_data(data, merged, tokenizer, limit=examples.limit, length=examples.length)
    folder = Path(os.path.expanduser(out))
    with recognised([merged, task], opening.spec, opening.allow_pickle, proven=False) as models:
        rows = in_order(models, use="replaced")
        one, two = rows.models
        shown = data_for(two.checkpoint, data, limit=examples.limit, length=examples.length)
        report = write_surgery(
            one, two, shown, folder, operating, device=examples.device, overwrite=overwrite, observer=observer
        )
        report["notes"] = [*rows.notes, *report["notes"]]
        return Report({"command": "surgery", "models": [one.ref, two.ref], **report})

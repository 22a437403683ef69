"""What stands beside a model: adapters, masks, corrected heads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from isomerge.api.live_inputs import own_models, with_data
from isomerge.commands.opening import recognised
from isomerge.merging.adapter.extract_lora import Extraction, are_image_models
from isomerge.merging.adapter.extract_lora import extract_lora as extract
from isomerge.merging.adapter.merge_lora import Asked, MergedLora, asked_of_recipe
from isomerge.merging.adapter.merge_lora import merge_lora as merge_adapters
from isomerge.merging.adapter.surgery import SurgeryReport, write_surgery
from isomerge.merging.task_masks import MaskReport, MaskUse, read_task_mask, write_task_mask
from isomerge.merging.task_masks import restore_task as write_restored
from isomerge.models.row_meanings import in_order
from isomerge.options.fusing import check_alone
from isomerge.options.requests import adapting as asked_for
from isomerge.progress import Observer
from isomerge.records import OfModels, Record, inline
from isomerge.run.arguments import checked
from isomerge.solve.match_inputs import data_for


@checked(asked_for.ExtractLora)
def extract_lora(asked: asked_for.ExtractLora) -> OfModels[Extraction]:
    """Write ``finetuned`` minus ``base`` as a LoRA adapter in peft's format, of image models (pipelines, single
    files, U-Nets and transformers of diffusers) in diffusers' form; ``base+out`` is then the fine-tune.

    Args:
        finetuned, base: folders, hub ids, open checkpoints or live modules of one architecture and equal shapes.

    Returns:
        ``rank``, per tensor that differs ``kept`` (``lora``, ``saved`` or ``lost``), ``rank``, ``norm`` and
        ``lost``, and over all of them ``norm``, ``lost`` and ``share`` (Frobenius); see
        `isomerge.merging.adapter.extract_lora`.

    Raises:
        IsomergeError: the models do not fit together or are equal, or an option is wrong; nothing is written.
    """
    write = partial(
        extract,
        out=Path(os.path.expanduser(asked.out)),
        rank=asked.rank,
        energy=asked.energy,
        sv_epsilon=asked.sv_epsilon,
        include=asked.include,
        exclude=asked.exclude,
        embeddings=asked.embeddings,
        save_modules=asked.save_modules,
        overwrite=asked.writing.overwrite,
        seed=asked.seed,
        allow_pickle=asked.opening.allow_pickle,
    )
    given = [asked.finetuned, asked.base]
    if are_image_models(*given, allow_pickle=asked.opening.allow_pickle):
        return OfModels("extract-lora", [*map(str, given)], about=write(*given))
    with recognised(given, asked.opening, proven=False) as (tuned, base):
        return OfModels("extract-lora", [tuned.ref, base.ref], about=write(tuned, base))


class MergeLoraReport(Record):
    """How adapters were merged."""

    adapters: Sequence[str]
    command: str = "merge-lora"
    about: MergedLora = inline()


@checked(asked_for.MergeLora)
def merge_lora(asked: asked_for.MergeLora) -> MergeLoraReport:
    """Merge LoRA adapters into one adapter in peft's format, as peft's ``add_weighted_adapter`` does; their base is
    not read.

    Args:
        adapters: folders or hub ids (``org/name@revision``) of adapters for one base; or one recipe file, which
            says what ``method`` and the other options say.

    Returns:
        ``adapters``, ``method``, ``weights``, ``rank``, per module ``adapters`` (their numbers), ``rank``, ``norm``
        (of the weighted sum of the updates) and ``distance`` (of the merged update from it), and over all of them
        ``norm``, ``distance`` and ``share`` (Frobenius); see `isomerge.merging.adapter.merge_lora`.

    Raises:
        IsomergeError: an adapter cannot be opened or needs the base to be merged, the adapters do not fit together,
            or an option is wrong; nothing is written.
    """
    adapters, settings, reads = asked.adapters, asked.merging.given(), list[Path]()
    if isinstance(adapters, (str, Path)):
        check_alone(adapters, asked.merging)
        reads.append(Path(os.path.expanduser(adapters)))
        merge = asked_of_recipe(adapters)
    else:
        weights = settings.pop("weights")
        merge = Asked(tuple(adapters), weights=None if weights is None else tuple(weights), **settings)
    folder, overwrite = Path(os.path.expanduser(asked.out)), asked.writing.overwrite
    made = merge_adapters(merge, folder, allow_pickle=asked.allow_pickle, overwrite=overwrite, reads=reads)
    return MergeLoraReport([str(ref) for ref in merge.adapters], about=made)


@checked(asked_for.TaskMask)
def task_mask(asked: asked_for.TaskMask) -> OfModels[MaskReport]:
    """Write the mask by which `restore_task` gives back the model of one task from a merged one: a safetensors file
    of one bit per weight (EMR, Huang et al. 2024; TALL masks, Wang et al. 2024).

    Args:
        merged: the merged model: of the method ``emr`` for its masks, a sum of task vectors for TALL masks.
        base: the base that it was merged around.
        task: the model of the task, in the merged model's coordinates: after an aligned merge, aligned.

    Returns:
        ``kind``, ``factor``, ``share`` (of the weights in the mask) and ``error``: how far the restored model will
        be from the task's, as a share of what the task changed; ``notes`` where that is no gain.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    path, models = Path(os.path.expanduser(asked.out)), [asked.merged, asked.base, asked.task]
    kind, threshold, overwrite = asked.kind, asked.tall_lambda, asked.writing.overwrite
    with recognised(models, asked.opening, proven=False) as (merged, origin, tuned):
        made = write_task_mask(merged, origin, tuned, path, kind=kind, tall_lambda=threshold, overwrite=overwrite)
        if made.error >= 1:
            doubt = (
                f"the restored model is no nearer to {tuned.ref} than the base is: is {tuned.ref} aligned with "
                f"{merged.ref}, and {merged.ref} merged by emr?"
            )
            made = replace(made, mask=replace(made.mask, notes=[*made.mask.notes, doubt]))
        return OfModels("task-mask", [merged.ref, origin.ref, tuned.ref], about=made)


@checked(asked_for.RestoreTask)
def restore_task(asked: asked_for.RestoreTask) -> OfModels[MaskUse]:
    """Write the model of one task from a merged model, its base and a file of `task_mask`: ``base + factor mask
    (merged - base)``, with the merged model's config and files.

    Raises:
        IsomergeError: the mask was made for other models, or an option is wrong; nothing is written.
    """
    folder, file = (Path(os.path.expanduser(path)) for path in (asked.out, asked.mask))
    with recognised([asked.merged, asked.base], asked.opening, proven=False) as (merged, origin):
        made = write_restored(merged, origin, read_task_mask(file), folder, overwrite=asked.writing.overwrite)
        return OfModels("restore-task", [merged.ref, origin.ref], about=made)


@checked(asked_for.Surgery)
def surgery(asked: asked_for.Surgery, observer: Observer) -> OfModels[SurgeryReport]:
    """Correct what the head of a task reads in a merged model, and write the corrected head as an adapter on it in
    peft's format: ``merged+out`` is the model of the task (representation surgery, Yang et al. 2024, in the form
    that is part of an ordinary checkpoint; see `isomerge.merging.adapter.surgery`).

    Args:
        merged: the merged model.
        task: the task's own model, in the merged model's coordinates: after an aligned merge, aligned.
        data: examples of the task, as of `stats`; labels are not used. A share of them is held out.

    Returns:
        ``head``, ``width``, ``rank``, ``rows``; on held-out examples ``before`` and ``after``, the mean absolute
        difference of what the head reads from what it reads in the task's own model, as a share of that, and
        ``agreement`` with the task's predictions (``before``, ``after``; None where these are one number);
        ``notes`` where nothing was gained.

    Raises:
        IsomergeError: models or data do not fit together, or an option is wrong; nothing is written.
    """
    examples = asked.examples
    asked.operating.check()
    merged, task = own_models([asked.merged, asked.task])
    asked = with_data(asked, merged, merged=merged, task=task)
    folder = Path(os.path.expanduser(asked.out))
    with recognised([merged, task], asked.opening, proven=False) as models:
        rows = in_order(models, use="replaced")
        mended, own = rows.models
        shown = data_for(own.checkpoint, asked.data, limit=examples.limit, length=examples.length)
        overwrite, device = asked.writing.overwrite, examples.device
        made = write_surgery(
            mended, own, shown, folder, asked.operating, device=device, overwrite=overwrite, observer=observer
        )
        made = replace(made, notes=[*rows.notes, *made.notes])
        return OfModels("surgery", [mended.ref, own.ref], about=made)

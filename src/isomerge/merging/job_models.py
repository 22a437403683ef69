"""The models of a merge opened: stacks of layers, views of one vocabulary, a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.checkpoint.chat_template import AUTO, common_template, own_template
from isomerge.checkpoint.chat_template import FILE as CHAT_TEMPLATE
from isomerge.checkpoint.in_memory import as_reference
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.merging.merge_job import MergeJob
from isomerge.models.model_inputs import Inputs
from isomerge.models.quantised import dequantised
from isomerge.models.references import open_model_ref
from isomerge.options.unused import note


def opened(job: MergeJob, *, spec: Any = None, allow_pickle: bool = False) -> list[Any]:
    """What a job merges, in the run's order, as `isomerge.models.recognised.recognise` takes it: with slices,
    stacks of layers; with a tokenizer, views of one vocabulary.

    Raises:
        IsomergeError: a model that cannot be opened, layers that it does not have, or vocabularies that do not fit.
    """
    refs = _opened(job, spec, allow_pickle)
    if job.chat_template is None:
        return refs
    template, text = job.chat_template
    donor = _open(refs[0], allow_pickle)
    if template == AUTO:
        common = common_template([donor, *(_open(model, allow_pickle) for model in refs[1:])])
        if common is None or common == own_template(donor):
            return refs
        text = common
    files = {**donor.companions(), CHAT_TEMPLATE: text.encode()}
    return [donor.derive({}, origin=f"chat template {template}", companions=files), *refs[1:]]


def _opened(job: MergeJob, spec: Any, allow_pickle: bool) -> list[Any]:
    if not job.stacks:
        models = _of_one_vocabulary(job, list(job.models), spec, allow_pickle)
        return [_kept(_open(model, allow_pickle), job, spec) for model in models] if job.kept_layers else models

    # layers are stacked where a recipe has slices
    from isomerge.merging.recipe.recipe_modules import PARTS
    from isomerge.models.layers import Part, stack_layers

    # tokens belong to whole models: a stack may have its layers from models of several vocabularies
    refs = list(dict.fromkeys(ref for stack in job.stacks for ref, _ in stack))
    whole = _of_one_vocabulary(job, [_open(ref, allow_pickle) for ref in refs], spec, allow_pickle)
    known = dict(zip(refs, whole, strict=True))
    donor = known[job.stacks[0][0][0]]
    part = Part(job.module, PARTS[job.module]) if job.module in PARTS else None
    return [
        _kept(
            stack_layers([(known[ref], range(*layers)) for ref, layers in stack], donor, spec_file=spec, part=part),
            job,
            spec,
        )
        for stack in job.stacks
    ]


def _kept(model: Checkpoint, job: MergeJob, spec: Any) -> Checkpoint:
    """A model with those layers of other modules that the job keeps."""
    from isomerge.merging.recipe.recipe_modules import PARTS
    from isomerge.models.layers import Part, stack_layers

    for name, layers in job.kept_layers.items():
        parts = [(model, range(*span)) for span in layers]
        model = stack_layers(parts, model, spec_file=spec, part=Part(name, PARTS.get(name, ())))
    return model


def _of_one_vocabulary(job: MergeJob, models: list[Any], spec: Any, allow_pickle: bool) -> list[Any]:
    """Models, the donor first, as they are or as views of the vocabulary that the job asks for."""
    if job.tokenizer is None:
        return models
    from isomerge.models.vocabulary_views import with_vocabulary

    base = 0 if job.base_named else None
    checkpoints = [_open(model, allow_pickle) for model in models]
    views, _ = with_vocabulary(checkpoints, base=base, spec_file=spec, **job.tokenizer)
    moved = next((x for x, view in zip(checkpoints, views, strict=True) if view.recipes != x.recipes), None)
    if moved is None and views[0] is checkpoints[0]:  # whose files are written
        note("tokenizer_source", "the models have one vocabulary")
    if moved is not None and any(origin is not None for origin in job.source_bases):
        raise IsomergeError(
            f"{moved.ref}: another vocabulary moves the rows of its tokens, and not those of the models that "
            "--source-base names: give models of one vocabulary, or leave --source-base out"
        )
    return list(views)


def differing_vocabularies(job: MergeJob, *, allow_pickle: bool = False) -> list[int]:
    """How many tokens each model has, where these numbers differ and every model has a tokenizer to bring them
    together by; nothing where the job says what becomes of vocabularies, or tokens cannot be moved.

    Raises:
        IsomergeError: a model that cannot be opened.
    """
    fixed = job.tokenizer is not None or job.recipe is not None or job.stacks
    moved = any(base is not None for base in job.source_bases)
    if fixed or moved or not all(isinstance(model, (str, Path)) for model in job.models):
        return []
    checkpoints = [_open(model, allow_pickle) for model in job.models]
    sizes = [Inputs(checkpoint.config).vocabulary for checkpoint in checkpoints]
    have_tokenizers = all("tokenizer.json" in checkpoint.companions() for checkpoint in checkpoints)
    return [size or 0 for size in sizes] if have_tokenizers and len(set(sizes)) > 1 and all(sizes) else []


def _open(model: Any, allow_pickle: bool) -> Checkpoint:
    if hasattr(model, "save_pretrained"):
        raise IsomergeError(f"{type(model).__name__} has no tokenizer: save it in a folder with one, and give that")
    reference = as_reference(model)
    if isinstance(reference, Checkpoint):
        return dequantised(reference)
    return open_model_ref(reference, allow_pickle=allow_pickle)

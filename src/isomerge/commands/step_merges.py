"""Recipes of several steps: where each output goes, which are there already, and one merge after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from isomerge.checkpoint.yaml_text import read_documents
from isomerge.commands.opening import recognised
from isomerge.commands.pipeline_merges import pipelines_of_recipe
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors, write_whole
from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.opened_models import by_token, opened
from isomerge.merging.recipe.recipe_steps import Step, first_name, steps_of
from isomerge.models.compatible import check_compatible, check_kin
from isomerge.models.recognised import Model
from isomerge.models.references import open_model_ref
from isomerge.options import OpeningOptions, OutputOptions
from isomerge.options.unused import note
from isomerge.records import Json, Record, as_json
from isomerge.run.report_file import PIPELINE_REPORT
from isomerge.symmetry.axes import LABELS, VOCABULARY


@dataclass(frozen=True)
class StepMerge:
    """One step to be merged; its recipe names the folders of earlier outputs."""

    step: Step
    out: Path
    last: bool
    record: Path
    """Beside an output that is complete: what it was made by."""
    text: str
    """What stands in the record."""
    kept: bool = False
    """Whether the output is there, made by the same recipe and options."""

    def writing(self, writing: OutputOptions) -> OutputOptions:
        """How its output is written: the last step's alone is pushed."""
        return writing if self.last else replace(writing, push_to_hub=None, private=False)

    def finish(self) -> None:
        """Note that the output is complete."""
        if not self.last:
            with disk_errors(self.record):
                write_whole(self.record, self.text.encode())


def step_merges(
    models: Any,
    out: str | Path | None,
    folder: str | Path | None,
    options: Mapping[str, Any],
    opening: OpeningOptions,
) -> list[StepMerge]:
    """The merges that a recipe of several steps asks for, in their order; empty where there is one or no recipe.
    All steps and all models that they name are checked as far as it goes before earlier outputs are there; nothing
    is written.

    Args:
        models: models, or a recipe.
        out: the last step's output.
        folder: where the others go, each by its name; by default beside ``out``, as ``OUT.steps``.
        options: what else the outputs depend on.
        opening: how models are opened.

    Raises:
        IsomergeError: a step is wrong, or one of its models, or there is no place to write.
    """
    steps = asked_steps(models)
    if steps is None:
        if folder is not None:
            note("intermediate_dir", "one merge is asked for, not several steps of a recipe")
        return []
    # what reads recipes is loaded where there is one
    from isomerge.merging.recipe.recipe_components import pipelines_of
    from isomerge.merging.recipe.recipe_request import request_of_recipe

    if out is None:
        raise IsomergeError(f"{models}: a recipe of several steps needs a folder to write: add -o OUT")
    whole = Path(os.path.expanduser(out))
    beside = whole.absolute().with_name(f"{whole.absolute().name}.steps")
    place = beside if folder is None else Path(os.path.expanduser(folder)).absolute()
    folders = {step.name: place / step.name for step in steps[:-1] if step.name is not None}
    if whole.absolute() in (place, *folders.values()):
        raise IsomergeError(
            f"{out} would be the last step's folder and another one's: choose another output folder"
        )
    merges: list[StepMerge] = []
    assembled: set[str] = set()
    """Steps that merge pipelines."""
    like: dict[str, str] = {}
    """By steps, a pipeline that has the components of the output, or a model of its class; empty: seen later."""
    plain: dict[str, tuple[Any, Model]] = {}
    """Steps that take no other's output: the first model as it is named, and as the output has its architecture."""
    stand_ins: dict[str, Model] = {}
    """By folders of earlier outputs, the model that gives each its architecture."""
    for step in steps:
        last = step is steps[-1]
        asked = step.reading(folders)
        name = str(step.name)
        if pipelines_of(asked.content) or assembled & {*step.needs}:
            assembled.add(name)
            like |= {need: _unchanged(*plain[need], opening) for need in step.needs if need in plain}
            known = all(map(like.get, step.needs))
            like[name] = _checked_pipelines(step.reading(like), opening) if known else ""
        else:
            request = request_of_recipe(asked)
            model = stand_ins[str(folders.get(name))] = _checked(asked, request, stand_ins, opening)
            if not step.needs:
                plain[name] = request.models[0], model
        said = {
            "recipe": dict(asked.content),
            "options": {key: str(value) for key, value in sorted(options.items())},
        }
        text = yaml.safe_dump(said, sort_keys=False, allow_unicode=True)
        record = place / f"{name}.made-by.yml"
        kept_before = {merge.step.name for merge in merges if merge.kept}
        kept = not last and _is_made(record, text, folders[name]) and kept_before.issuperset(step.needs)
        merges.append(StepMerge(asked, whole if last else folders[name], last, record, text, kept))
    return merges


def _unchanged(ref: Any, model: Model, opening: OpeningOptions) -> str:
    """A model's name, where an output of its architecture has its tensors as they are stored; else empty: what
    brings vocabularies together is not known before it is done."""
    stored = open_model_ref(ref, allow_pickle=opening.allow_pickle) if isinstance(ref, str) else None
    return str(ref) if stored is not None and stored.shapes == model.checkpoint.shapes else ""


def _checked_pipelines(step: Step, opening: OpeningOptions) -> str:
    """Check a step that merges pipelines, those that earlier steps write replaced by ones with their components;
    returns one with its own.

    Raises:
        IsomergeError: see `isomerge.commands.pipeline_merges.pipeline_merge`.
    """
    try:
        decided = pipelines_of_recipe(step, opening, OutputOptions())
    except IsomergeError as error:
        raise IsomergeError(f"{step}: {error.sentence}") from None
    return "" if decided is None else decided.whole.ref


def _checked(step: Step, request: MergeRequest, stand_ins: Mapping[str, Model], opening: OpeningOptions) -> Model:
    """Open the models of a step, those that earlier steps write left out; the one that gives the output its
    architecture.

    Raises:
        IsomergeError: a model that cannot be opened, or does not fit to the others.
    """
    request, unmoved = replace(request, spec=opening.spec or request.spec), not request.align
    reading = {"allow_pickle": opening.allow_pickle}
    earlier = {ref: stand_ins[name] for ref in request.every if (name := first_name(str(ref))) in stand_ins}
    rest = [ref for ref in request.every if ref not in earlier]
    try:
        refs = rest if earlier else opened(by_token(request, **reading).request, **reading)
        how = {"untie": not earlier and request.untie, "unmoved": unmoved, "proven": False}
        with recognised(refs, replace(opening, spec=request.spec), **how) as models:
            if earlier:
                first, *others = *earlier.values(), *models
                for other in others:  # what a merge may change is not compared
                    check_kin(first, other, but={VOCABULARY, LABELS})
            elif request.heads == "average":
                check_compatible(models[0], models[1:], stored=unmoved)
    except IsomergeError as error:
        raise IsomergeError(f"{step}: {error.sentence}") from None
    first = request.models[0]
    return earlier[first] if first in earlier else models[rest.index(first) if earlier else 0]


def asked_steps(models: Any) -> list[Step] | None:
    """The steps of a recipe, of several documents or of modules that differ; None where there is one merge.

    Raises:
        IsomergeError: see `steps_of` and `module_steps`.
    """
    if not isinstance(models, (str, Path)):
        return None
    from isomerge.merging.recipe.recipe_components import pipelines_of
    from isomerge.merging.recipe.recipe_modules import module_steps

    steps = steps_of(models)
    if steps is not None or not os.path.isfile(os.path.expanduser(models)):
        return steps
    documents = read_documents(os.path.expanduser(models))
    content = documents[0] if documents else None
    return None if pipelines_of(content) else module_steps(models, content)


def _is_made(record: Path, text: str, out: Path) -> bool:
    with disk_errors(record, "looking at"):
        whole = any((out / name).is_file() for name in ("config.json", PIPELINE_REPORT))
        return record.is_file() and whole and record.read_bytes() == text.encode()


def run_steps(steps: Sequence[StepMerge], merge: Callable[[StepMerge], Record | Json], overwrite: bool) -> Json:
    """Merge one after the other; the last one's report, with what became of each under ``steps``.

    Args:
        steps: of `step_merges`.
        merge: merges one of them; its report.
        overwrite: merge those that are there already as well.
    """
    rows: list[Json] = []
    report: Json = {}
    for step in steps:
        kept = step.kept and not overwrite
        rows.append({"name": step.step.name, "out": str(step.out), "kept": kept})
        if not kept:
            report = as_json(merge(step))
            step.finish()
    return {**report, "steps": rows}

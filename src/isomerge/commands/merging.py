"""Models merged: what is asked for becomes a plan, and the plan runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.weights import of_diffusers
from isomerge.commands.opening import Means, destination, dtype_name, recognised
from isomerge.merging.merge_plan import MergePlan, plan_merge
from isomerge.merging.merge_request import MergeRequest, joins, number_of, request_of_models
from isomerge.merging.opened_models import by_token, opened
from isomerge.merging.recipe.recipe_steps import Step
from isomerge.merging.recipe.recipe_words import told_in_keys
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.refused_data import check_given
from isomerge.options import FusingOptions, MatchingOptions, OpeningOptions, SpacesOptions
from isomerge.options.fusing import check_alone
from isomerge.options.option import Given
from isomerge.options.requests import merging as asked_for
from isomerge.options.unused import note_idle
from isomerge.run.absolute_names import lasting_ref
from isomerge.solve.match_checks import files_of_matching, matching_of
from isomerge.solve.standing import check_align


def merge_of(
    models: Sequence[Any] | str | Path | Step,
    *,
    fusing: FusingOptions,
    moving: SpacesOptions,
    matching: MatchingOptions,
    said: Mapping[str, Any],
    repair: str | Path | Examples | None = None,
    spec: str | Path | None = None,
    dtype: Any = None,
) -> MergeRequest:
    """What is asked for, of models or of a recipe; nothing is opened.

    Args:
        models: the models, or one recipe file, or a step of one.
        fusing, moving: of the models; a recipe says them itself.
        matching: what is looked at beside the weights.
        said: those options of ``matching`` that were said, whatever their values: they count more than a recipe's.

    Raises:
        IsomergeError: an option is wrong, or a recipe says it.
    """
    check_given(repair, "--repair")
    dtype = dtype_name(dtype)
    if isinstance(models, (str, Path, Step)):
        from isomerge.merging.recipe.recipe_request import request_of_recipe

        check_alone(models, fusing, moving)
        request = request_of_recipe(models, seed=said.get("seed"))
        spec, dtype, repair = spec or request.spec, dtype or request.dtype, repair or request.repair
        said = {**request.said, **said}
        matching = MatchingOptions.of(said)
    else:
        own = fusing.given()
        onto, aligning = own.pop("onto"), {name: own.pop(name) for name in fusing.aligning.given()}
        request = request_of_models(models, **own, seed=matching.seed or 0)
        request = replace(request, onto=number_of(onto, request), **moving.given(), **aligning)
    request = replace(request, spec=spec, dtype=dtype, repair=repair)
    with told_in_keys(models, request.recipe, {**said, "repair": repair}):
        match = matching_of(matching, decides=request.spaces is None and request.layers is None)
        said = {**said, **{name: getattr(match, name) for name in ("data", "learn") if name in said}}
        return replace(request, matching=match, said=said)


@contextmanager
def planned_merge(
    request: MergeRequest, out: str | Path, means: Means, own: Collection[str] = ()
) -> Iterator[MergePlan]:
    """A merge as it will be run: opened, checked and planned, and nothing is written.

    ``own``: options of the command itself, of the names that a recipe's `align` has.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong.
    """
    with request.worded(own):
        tokens = by_token(request, allow_pickle=means.opening.allow_pickle)
    request = tokens.request
    with request.worded(own):
        check_align(request.align)
        note_idle(asked_for.Merge, _asked(request, out), {**asked_for.Merge.defaults(), "onto": 0})
        reads = (request.spec, request.repair, *files_of_matching(request.matching), *request.stats, *request.files)
        with (
            _models_of(request, replace(means.opening, spec=request.spec)) as (opened, origins),
            destination(
                out,
                replace(means.writing, dtype=request.dtype),
                [*opened, *(base for base in origins if base is not None)],
                *reads,
                running=means.running,
                observer=means.observer,
            ) as output,
        ):
            named = [
                lasting_ref(m) if isinstance(m, (str, Path)) else f.ref
                for m, f in zip(request.models, opened, strict=True)
            ]
            notes = (*tokens.notes, *tokens.template_notes(opened[0].checkpoint), *_channels(opened))
            yield plan_merge(
                request,
                opened,
                output,
                bases=origins,
                kinship=_kinship,
                named=named,
                vocabulary=tokens.decided,
                notes=notes,
            )


def _channels(models: Sequence[Model]) -> list[str]:
    """What is told of image models with other numbers of input channels."""
    if not any(of_diffusers(model.config) for model in models):
        return []
    from isomerge.models.input_channels import channel_notes

    return channel_notes(model.checkpoint for model in models)


def _kinship(anchor: Model, model: Model) -> bool | None:
    """See `isomerge.quotient.kinship.kinship`, which is asked of models in another basis alone."""
    # and loaded for them: most merges are of relatives in one basis
    from isomerge.quotient.kinship import kinship

    return kinship(anchor, model)


def _asked(request: MergeRequest, out: Any) -> Given:
    """A merge's arguments by whatever door, and what decides whether they act: for `note_idle`."""
    match, method = request.matching, request.fusion.method
    arguments = {name: getattr(match, name) for name in MatchingOptions.declared() if hasattr(match, name)}
    same = (*MergeRequest.declared(), "onto", "repair", "merge_base", "stats")
    arguments |= {name: getattr(request, name) for name in same}
    seed = match.settings.seed if match.settings else 0
    return arguments | {
        "out": out,
        "may_learn": match.may_learn,
        "seed": seed or request.fusion.seed,
        "method": method.name,
        "base_model": request.base_named or None,
        "base_role": request.fusion.first if joins(method) else "model",
        "random": method.random,
        "method_statistics": method.statistics,
        "method_reads": method.forward or (method.statistics is not None and not request.stats),
    }


@contextmanager
def _models_of(request: MergeRequest, opening: OpeningOptions) -> Iterator[tuple[list[Model], list[Model | None]]]:
    """The models of a merge, recognised, and what those that are fused were tuned from."""
    refs = opened(request, allow_pickle=opening.allow_pickle)
    bases = [base for base in request.source_bases if base is not None]
    with recognised([*refs, *bases], opening, request.untie, unmoved=not request.align) as every:
        rest = iter(every[len(refs) :])
        yield every[: len(refs)], [None if base is None else next(rest) for base in request.source_bases]

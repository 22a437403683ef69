"""What a merge is asked for, from the command line, from Python or from a recipe: models in the run's order, and the fusion.

A run's first model gives config and tokenizer, and is what the others are aligned onto: the base where one is named, else
the first model listed, always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.chat_template import FILE as CHAT_TEMPLATE
from isomerge.checkpoint.chat_template import common_template, own_template, template_text
from isomerge.engine.fusing import Fusion, fusion_of, role_of_base
from isomerge.errors import IsomergeError
from isomerge.fusion.parameters import Parameters, SliceParameters
from isomerge.fusion.recipe import ModelEntry, Recipe, SliceEntry, SourceEntry, read_recipe
from isomerge.fusion.registry import Method
from isomerge.fusion.registry import method as merge_method

Layers = tuple[Any, tuple[int, int]]
"""A model, and some of its layers ``[first, last)``."""


@dataclass(frozen=True)
class MergeJob:
    """A merge, before any model is opened."""

    models: tuple[Any, ...]
    """References, open checkpoints or modules, in the run's order; with slices, the first of every stack."""
    fusion: Fusion
    stacks: tuple[tuple[Layers, ...], ...] = ()
    """Per model of the run, the layers that it is stacked of; empty for whole models."""
    recipe: Recipe | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What a recipe says of `isomerge.merge`'s other arguments."""
    matching: Mapping[str, Any] = field(default_factory=dict)
    stats: tuple[str, ...] = ()
    """Statistics files for the method, one per model that is fused, in the run's order."""
    source_bases: tuple[Any, ...] = ()
    """What the models that are fused were tuned from, in the run's order; None where it is the base. Empty: all of them."""
    tokenizer: Mapping[str, Any] | None = None
    """The output's vocabulary; None: all models have one."""


def job_of_models(
    models: Sequence[Any],
    *,
    method: str = "linear",
    weights: Sequence[float] | None = None,
    parameters: Mapping[str, Any] | None = None,
    base_model: Any = None,
    stats: Sequence[str | Path] = (),
    tokenizer_source: str | None = None,
    source_bases: Sequence[Any] = (),
    seed: int = 0,
) -> MergeJob:
    """The merge of whole models.

    Args:
        models: those that are merged; the base may be among them.
        method: its name.
        weights: one per model.
        parameters: of the method; a list has one number per model.
        base_model: the base, named as among the models or another one.
        stats: statistics files for the method, one per model.
        source_bases: what the models were tuned from, one for all or one per model, where that is not ``base_model``.
        tokenizer_source: the vocabulary of the output, where the models' differ: ``base``, ``union`` or a model.
        seed: of random methods.

    Raises:
        IsomergeError: see `fusion_of`.
    """
    chosen = merge_method(method)
    listed = list(models)
    given = dict(parameters or {})
    if weights is not None and len(weights) != len(listed):
        raise IsomergeError(
            f"--weights: {len(listed)} numbers are needed that do not sum to zero, got {list(weights)}"
        )
    files = [str(file) for file in stats]
    if files and len(files) != len(listed):
        raise IsomergeError(f"--stats: {len(listed)} files are needed, one per model, got {len(files)}")
    origins = list(source_bases) * (len(listed) if len(source_bases) == 1 else 1)
    if origins and len(origins) != len(listed):
        raise IsomergeError(
            f"--source-base: give one for all, or one for each of {len(listed)} models, got {len(origins)}"
        )
    at = None if base_model is None else next((k for k, m in enumerate(listed) if _same(m, base_model)), None)
    if at is not None:  # a base that is listed comes first; methods of task vectors take it for the base alone
        order = [k for k in range(len(listed)) if k != at]
        order = order if chosen.base != "none" else [at, *order]
        weights = None if weights is None else [weights[k] for k in order]
        given = {
            name: [value[k] for k in order]
            if isinstance(value, (list, tuple)) and len(value) == len(listed)
            else value
            for name, value in given.items()
        }
        listed, files = [listed[k] for k in order], [files[k] for k in order] if files else []
        origins = [origins[k] for k in order] if origins else []
    named = base_model is not None and (at is None or chosen.base != "none")
    fusion = fusion_of(len(listed), method=method, weights=weights, parameters=given, base=named, seed=seed)
    order = tuple([base_model, *listed] if named else listed)
    tokenizer = None if tokenizer_source is None else {"source": tokenizer_source}
    return MergeJob(order, fusion, stats=tuple(files), tokenizer=tokenizer, source_bases=tuple(origins))


def job_of_recipe(path: str | Path, *, seed: int = 0) -> MergeJob:
    """The merge that a recipe describes.

    Raises:
        IsomergeError: the recipe is wrong.
    """
    recipe = read_recipe(path)
    method = _method(recipe, path)
    if recipe.models is not None:
        parts = [SliceEntry(sources=[_whole(entry) for entry in recipe.models])]
    else:
        parts = list(recipe.slices or ())
    arranged = [_arrange(part, recipe, method, str(path), k) for k, part in enumerate(parts)]
    role = role_of_base(method, arranged[0][0] is not None)
    parameters = Parameters(tuple(found for _, _, found in arranged), recipe.parameters)
    notes = parameters.check(method, str(path))
    fusion = Fusion(
        method, parameters, role, recipe.align.seed if recipe.align.seed is not None else seed, tuple(notes)
    )
    width = max(len(sources) for _, sources, _ in arranged)
    columns = [[base] for base, _, _ in arranged] if role != "model" else [[] for _ in arranged]
    for column, (_, sources, _) in zip(columns, arranged, strict=True):
        # a slice of fewer sources repeats its first, which the fusion then leaves out
        column += [*sources, *[sources[0]] * (width - len(sources))]
    stacks = tuple(
        tuple((s.model, s.layer_range) for s in stack if s is not None) for stack in zip(*columns, strict=True)
    )
    if len(stacks) < 2 and method.name != "passthrough":
        raise IsomergeError(f"{path}: merge needs at least two models: name another one under `models`")
    block = recipe.align
    options: dict[str, Any] = {"align": block.enabled, "anchor": block.anchor, "spaces": block.spaces}
    options |= {"layers": block.layers, "untie": block.untie, "dtype": recipe.written_dtype}
    options |= {"onto": _number(block.onto, [stack[0][0] for stack in stacks], path), "repair": block.repair}
    options |= {"heads": block.heads}
    names = tuple(stack[0][0] for stack in stacks)
    files = _statistics(recipe, [source.model for source in arranged[0][1]], path)
    return MergeJob(
        names,
        fusion,
        stacks if recipe.slices else (),
        recipe,
        options,
        block.matching(),
        files,
        _origins(recipe, arranged[0][1]),
        tokenizer_of(recipe),
    )


def _origins(recipe: Recipe, order: Sequence[SourceEntry]) -> tuple[str | None, ...]:
    """What the models were tuned from, in the run's order."""
    given = {entry.model: entry.base_model for entry in recipe.models or () if entry.base_model is not None}
    return tuple(given.get(source.model) for source in order) if given else ()


def _number(onto: str | None, names: Sequence[Any], path: str | Path) -> int:
    """Which of the run's models all are aligned onto."""
    if onto is None:
        return 0
    if onto not in names:
        raise IsomergeError(
            f"{path}: `align.onto` is {onto}: name one of {', '.join(map(str, dict.fromkeys(names)))}"
        )
    return list(names).index(onto)


def number_of(onto: Any, job: MergeJob) -> int:
    """Which of a job's models all are aligned onto.

    Raises:
        IsomergeError: none of them.
    """
    found = [k for k, model in enumerate(job.models) if _same(model, onto)]
    if onto is not None and not found:
        raise IsomergeError(f"--onto {onto}: name one of the models, {', '.join(map(str, job.models))}")
    return found[0] if found else 0


def _statistics(recipe: Recipe, order: Sequence[str], path: str | Path) -> tuple[str, ...]:
    """The models' statistics files in the run's order."""
    given = {entry.model: entry.stats for entry in recipe.models or () if entry.stats is not None}
    if not given:
        return ()
    if lacking := [name for name in order if name not in given]:
        raise IsomergeError(
            f"{path}: `models`: {lacking[0]} has no `stats`, but others have: give one file per model"
        )
    return tuple(given[name] for name in order)


def _method(recipe: Recipe, path: str | Path) -> Method:
    try:
        return merge_method(recipe.merge_method)
    except IsomergeError as error:
        raise IsomergeError(f"{path}: {str(error).replace('--method ', '`merge_method`: ')}") from None


def _whole(entry: ModelEntry) -> SourceEntry:
    return SourceEntry(model=entry.model, parameters=entry.parameters, layer_range=(0, 1))


def _arrange(
    part: SliceEntry, recipe: Recipe, method: Method, path: str, number: int
) -> tuple[SourceEntry | None, list[SourceEntry], SliceParameters]:
    """The base of a slice (None where there is none apart from the sources), its sources in order, and their settings."""
    base, sources = part.base_model or recipe.base_model, list(part.sources)
    first, last = sources[0].layer_range
    lead: SourceEntry | None = None
    if base is not None:
        listed = next((s for s in sources if s.model == base), None)
        if method.base != "none":
            sources = [s for s in sources if s.model != base]
            lead = listed or SourceEntry(model=base, layer_range=(first, last))
        elif listed is not None:  # one of the models, whose config and tokenizer are written
            sources = [listed, *(s for s in sources if s is not listed)]
        else:
            lead = SourceEntry(model=base, layer_range=(first, last))
    if not sources:
        where = f"`slices.{number}`" if recipe.slices else "`models`"
        raise IsomergeError(f"{path}: {where} has no model but the base: name another one")
    where = f"slices.{number}.sources" if recipe.slices else "models"
    places = {id(source): f"{where}.{k}" for k, source in enumerate(part.sources)}
    settings = SliceParameters(
        last - first,
        tuple(s.parameters for s in sources),
        part.parameters,
        tuple(places[id(s)] for s in sources),
        (lead.parameters, places[id(lead)]) if lead is not None and id(lead) in places else ({}, ""),
    )
    return lead, sources, settings


def with_notes(job: MergeJob, notes: Sequence[str]) -> MergeJob:
    """The same merge, with more to tell."""
    return replace(job, fusion=replace(job.fusion, notes=(*job.fusion.notes, *notes)))


def opened(job: MergeJob, *, spec: Any = None, allow_pickle: bool = False) -> list[Any]:
    """What a job merges, in the run's order, as `isomerge.engine.models.recognise` takes it: with slices, stacks of layers;
    with a tokenizer, views of one vocabulary.

    Raises:
        IsomergeError: a model that cannot be opened, layers that it does not have, or vocabularies that do not fit.
    """
    found = _opened(job, spec, allow_pickle)
    template = job.recipe.chat_template if job.recipe is not None else None
    if template is None:
        return found
    donor = _open(found[0], allow_pickle)
    if template == "auto":
        text = common_template([donor, *(_open(model, allow_pickle) for model in found[1:])])
        if text is None or text == own_template(donor):
            return found
    else:
        text = template_text(template)
    files = {**donor.companions(), CHAT_TEMPLATE: text.encode()}
    return [donor.derive({}, origin=f"chat template {template}", companions=files), *found[1:]]


def _opened(job: MergeJob, spec: Any, allow_pickle: bool) -> list[Any]:
    found = list(job.models)
    if job.stacks:
        from isomerge.checkpoint.layers import stack_layers

        known = {ref: _open(ref, allow_pickle) for stack in job.stacks for ref, _ in stack}
        donor = known[job.stacks[0][0][0]]
        found = [
            stack_layers([(known[ref], range(*layers)) for ref, layers in stack], donor, spec_file=spec)
            for stack in job.stacks
        ]
    if job.tokenizer is None:
        return found
    from isomerge.checkpoint.vocabulary_views import with_vocabulary

    base = 0 if job.fusion.first != "model" else None
    checkpoints = [_open(model, allow_pickle) for model in found]
    views, _ = with_vocabulary(checkpoints, base=base, spec_file=spec, **job.tokenizer)
    return list(views)


def _open(model: Any, allow_pickle: bool) -> Any:
    if isinstance(model, (str, Path)):
        from isomerge.checkpoint.references import open_model_ref

        return open_model_ref(model, allow_pickle=allow_pickle)
    if hasattr(model, "save_pretrained"):
        raise IsomergeError(f"{type(model).__name__} has no tokenizer: save it in a folder with one, and give that")
    return model


def tokenizer_of(recipe: Recipe) -> dict[str, Any] | None:
    """The vocabulary that a recipe asks for, as `isomerge.checkpoint.vocabulary_views.with_vocabulary` takes it."""
    if recipe.tokenizer_source is not None:
        return {"source": recipe.tokenizer_source}
    if recipe.tokenizer is None:
        return None
    entry = recipe.tokenizer
    tokens = {name: token.model_dump(exclude_none=True) for name, token in entry.tokens.items()}
    return {"source": entry.source, "tokens": tokens, "pad_to_multiple_of": entry.pad_to_multiple_of}


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, (str, Path)) and isinstance(two, (str, Path)):
        return str(one) == str(two)
    return one is two

"""The merge that a recipe describes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isomerge.checkpoint.chat_template import AUTO, is_file_name, template_text
from isomerge.checkpoint.vocabulary import check_missing, check_multiple
from isomerge.config.keys import PARTS
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import Fusion, role_of_base
from isomerge.fusion.method_options import check_count
from isomerge.fusion.method_parameters import Parameters, SliceParameters
from isomerge.fusion.registry import Method
from isomerge.fusion.registry import method as merge_method
from isomerge.merging.merge_request import Layers, MergeRequest, joined, joins, of_align
from isomerge.merging.recipe.no_code import check_imports, check_no_code
from isomerge.merging.recipe.recipe_modules import check_known
from isomerge.merging.recipe.recipe_steps import Step
from isomerge.merging.recipe.schema import Recipe, SliceEntry, SourceEntry, check_checksums, read_recipe
from isomerge.records import Json

Arranged = tuple[SourceEntry | None, list[SourceEntry], SliceParameters]
"""The base of a slice (None where there is none apart from the sources), its sources in order, and their
settings."""


def request_of_recipe(source: str | Path | Step, *, seed: int | None = None) -> MergeRequest:
    """The merge that a recipe describes.

    Args:
        source: the recipe, or a step of one.
        seed: of random methods; None: what the recipe says, else 0.

    Raises:
        IsomergeError: the recipe is wrong, or asks for code, or it is a folder.
    """
    file = os.path.expanduser(source.path if isinstance(source, Step) else source)
    if os.path.isdir(file):
        raise IsomergeError(f"{file} is a folder: merge needs at least two models in a list, or one recipe")
    path = str(source) if isinstance(source, Step) else file
    recipe = read_recipe(source if isinstance(source, Step) else file)
    check_imports(recipe.imports, path)
    check_no_code(recipe.align, path)
    method = _method(recipe, path)
    if recipe.models is not None:
        whole = [SourceEntry(model=m.model, parameters=m.parameters, layer_range=(0, 1)) for m in recipe.models]
        parts = [SliceEntry(sources=whole)]
    else:
        parts = list(recipe.slices or ())
    arranged = [_arrange(part, recipe, method, str(path), k) for k, part in enumerate(parts)]
    if method.base == "required" and any(base is None for base, _, _ in arranged):
        raise IsomergeError(
            f"{path}: the method {method.name} needs a base model: name it as `base_model` (one of the models, "
            f"for slerp and its kin)"
        )
    _check_counts(arranged, recipe, method, path)
    role = role_of_base(method, arranged[0][0] is not None)
    check_known(path, [name for name in (recipe.sliced.module, *recipe.sliced.layers) if name is not None])
    pieces = PARTS.get(recipe.sliced.module or "", ())
    settings = tuple(slice_settings for _, _, slice_settings in arranged)
    parameters = Parameters(settings, recipe.parameters, pieces).with_numbers(method)
    notes = [*parameters.check(method, str(path)), *_left_out(parts)]
    if len(arranged[0][1]) > len(parts[0].sources):
        _check_joining(recipe, method, path)
        notes.append(joined(recipe.base_model, "`base_model`", "`align: {merge_base: false}` takes"))
    seed = recipe.align.seed if seed is None else seed
    fusion = Fusion(method, parameters, role, seed or 0, tuple(notes))
    stacks = _stacks(arranged, has_base=role != "model")
    if len(stacks) < 2 and method.name != "passthrough":
        raise IsomergeError(f"{path}: merge needs at least two models: name another one under `models`")
    names = tuple(stack[0][0] for stack in stacks)
    bases = {entry.model: entry.base_model for entry in recipe.models or () if entry.base_model is not None}
    origins = tuple(bases.get(source.model) for source in arranged[0][1]) if bases else ()
    check_checksums(recipe, len(names) + sum(origin is not None for origin in origins), path)
    template = _chat_template(recipe.chat_template, path, Path(file).parent)
    written = template is not None and is_file_name(template[0])
    block = recipe.align
    return MergeRequest(
        models=names,
        fusion=fusion,
        stacks=stacks if recipe.slices else (),
        module=recipe.sliced.module,
        kept_layers={module: tuple(layers) for module, layers in recipe.sliced.layers.items()},
        stats=_statistics(recipe, [source.model for source in arranged[0][1]], path),
        source_bases=origins,
        base_named=(parts[0].base_model or recipe.base_model) is not None,
        tokenizer=tokenizer_of(recipe, path),
        chat_template=template,
        recipe=recipe,
        checksums=tuple(recipe.checksums),
        files=(file, *([str(Path(file).parent / template[0])] if written and template else [])),
        align=block.enabled,
        onto=_number(block.onto, names, path),
        said=block.matching(),
        spec=_spec(block.spec, path),
        dtype=recipe.written_dtype,
        **{name: getattr(block, name) for name in of_align()},
    )


def _check_joining(recipe: Recipe, method: Method, path: str | Path) -> None:
    """Refuse to guess a base's share of what every model says for itself: mergekit does not merge such recipes
    either."""
    entries = recipe.models or []
    own = [n for n, option in method.options.items() if option.per_model and n not in recipe.parameters]
    said = [f"parameters.{name}" for name in own if any(name in entry.parameters for entry in entries)]
    if said := [*said, *(["stats"] if any(entry.stats is not None for entry in entries) else [])]:
        raise IsomergeError(
            f"{path}: `base_model` {recipe.base_model}: the method {method.name} knows no base and merges it as "
            f"one of the models, as mergekit does, but has no `{said[0]}` for it: list it under `models` as well, "
            "with a value of its own, or write `align: {merge_base: false}`, with which it gives config and "
            "tokenizer alone"
        )


def _check_counts(arranged: Sequence[Arranged], recipe: Recipe, method: Method, path: str | Path) -> None:
    """Refuse more or fewer models than the method merges."""
    for k, (_, sources, _) in enumerate(arranged):
        try:
            check_count(len(sources), method.name, method.models)
        except IsomergeError as error:
            where = f"`slices.{k}`" if recipe.slices else "`models`"
            raise IsomergeError(f"{path}: {where}: {str(error).replace('--method ', 'the method ')}") from None


def _stacks(arranged: Sequence[Arranged], *, has_base: bool) -> tuple[tuple[Layers, ...], ...]:
    """Of every model, its layers in every slice; the base first where there is one."""
    width = max(len(sources) for _, sources, _ in arranged)
    columns = [[base] if has_base else [] for base, _, _ in arranged]
    for column, (_, sources, _) in zip(columns, arranged, strict=True):
        if has_base and column[0] is None:  # a base that is a source of this slice
            column[0] = sources[0]
        # a slice of fewer sources repeats its first, which the fusion then leaves out
        column += [*sources, *[sources[0]] * (width - len(sources))]
    return tuple(
        tuple((s.model, s.layer_range) for s in stack if s is not None) for stack in zip(*columns, strict=True)
    )


def _chat_template(template: str | None, path: str, folder: Path) -> tuple[str, str] | None:
    """How a recipe names its chat template, and its text."""
    if template is None or template == AUTO:
        return None if template is None else (template, "")
    try:
        return template, template_text(template, folder)
    except IsomergeError as error:
        raise IsomergeError(f"{path}: {error}") from None


def _left_out(parts: Sequence[SliceEntry]) -> list[str]:
    """Notes on keys of mergekit's that change nothing, there or here."""
    name = "residual_weight"
    places = [f"slices.{k}.{name}" for k, part in enumerate(parts) if part.residual_weight is not None]
    return [f"`{place}` is left out, as mergekit does nothing with it" for place in places]


def _spec(spec: str | None, path: str | Path) -> str | None:
    """The spec text that a recipe names: a plain file, as nobody vouches for its name."""
    if spec is not None and not os.path.isfile(os.path.expanduser(spec)):
        raise IsomergeError(f"{path}: `align.spec` is {spec}: no such file; give the path of a spec text")
    return None if spec is None else os.path.expanduser(spec)


def _number(onto: str | None, names: Sequence[Any], path: str | Path) -> int:
    """Which of the run's models all are aligned onto."""
    if onto is None:
        return 0
    if onto not in names:
        raise IsomergeError(
            f"{path}: `align.onto` is {onto}: name one of {', '.join(map(str, dict.fromkeys(names)))}"
        )
    return list(names).index(onto)


def _statistics(recipe: Recipe, order: Sequence[str], path: str | Path) -> tuple[str, ...]:
    """The models' statistics files in the run's order."""
    files = {entry.model: entry.stats for entry in recipe.models or () if entry.stats is not None}
    if not files:
        return ()
    if lacking := [name for name in order if name not in files]:
        raise IsomergeError(
            f"{path}: `models`: {lacking[0]} has no `stats`, but others have: give one file per model"
        )
    return tuple(files[name] for name in order)


def _method(recipe: Recipe, path: str | Path) -> Method:
    try:
        return merge_method(recipe.merge_method)
    except IsomergeError as error:
        raise IsomergeError(f"{path}: {str(error).replace('--method ', '`merge_method` ')}") from None


def _arrange(part: SliceEntry, recipe: Recipe, method: Method, path: str, number: int) -> Arranged:
    """One slice arranged for a method."""
    base, sources = part.base_model or recipe.base_model, list(part.sources)
    first, last = sources[0].layer_range
    lead: SourceEntry | None = None
    if base is not None:
        listed = next((s for s in sources if s.model == base), None)
        if method.base != "none":
            sources = [s for s in sources if s.model != base]
            lead = listed or SourceEntry(model=base, layer_range=(first, last))
        elif listed is None and recipe.slices is None and recipe.align.merge_base and joins(method):
            # one of the models, as mergekit has it
            sources = [SourceEntry(model=base, layer_range=(first, last)), *sources]
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
        tuple(places.get(id(s), "base_model") for s in sources),
        (lead.parameters, places[id(lead)]) if lead is not None and id(lead) in places else ({}, ""),
        tuple(s.layer_range[0] for s in sources) if recipe.slices else (),
    )
    return lead, sources, settings


def tokenizer_of(recipe: Recipe, path: str | Path) -> Json | None:
    """The vocabulary that a recipe asks for, as `isomerge.models.vocabulary_views.with_vocabulary` takes it.

    Raises:
        IsomergeError: it is padded to a multiple that is none.
    """
    if recipe.tokenizer_source is not None:
        return {"source": recipe.tokenizer_source}
    if recipe.tokenizer is None:
        return None
    entry = recipe.tokenizer
    try:
        check_multiple(entry.pad_to_multiple_of)
        check_missing(entry.missing, entry.neighbours)
    except IsomergeError as error:
        raise IsomergeError(f"{path}: `tokenizer`: {error}") from None
    tokens = {name: token.model_dump(exclude_none=True) for name, token in entry.tokens.items()}
    more = {"missing": entry.missing, "neighbours": entry.neighbours} if entry.missing != "copy" else {}
    return {"source": entry.source, "tokens": tokens, "pad_to_multiple_of": entry.pad_to_multiple_of, **more}

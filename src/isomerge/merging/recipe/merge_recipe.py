"""The recipe that repeats a merge, in one normal form, by whatever door it was asked for: defaults are left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from isomerge.checkpoint.chat_template import FILE as CHAT_TEMPLATE
from isomerge.checkpoint.chat_template import is_file_name
from isomerge.checkpoint.reader import Checkpoint
from isomerge.fusion.method_parameters import Settings, SliceParameters
from isomerge.fusion.registry import Method, Option
from isomerge.merging.merge_request import MergeRequest, of_align
from isomerge.observe.data.records import may_be_function
from isomerge.options import MatchingOptions
from isomerge.plug_ins.command import given_modules
from isomerge.records import Json
from isomerge.run.absolute_names import absolute_data, absolute_path, lasting_ref

DATA = ("data", "learn", "repair")
"""Keys that name data, which may be a Python function where the command line or Python names it."""
FUNCTIONS = "# Data were given by Python functions, and a recipe runs no code: run this one with {}.\n"
IMPORTS = "# It needs code of others, and a recipe runs no code: look at it, and run this one with {}.\n"
OBJECTS = "# Models or data were given as Python objects: name folders or files of them to run this recipe.\n"


def recipe_text(
    request: MergeRequest, refs: Sequence[str], spaces: str | None = None, *, firm: bool = False
) -> str:
    """The YAML of a merge.

    Args:
        request: what is merged, and how.
        refs: what the run's models are called, in its order.
        spaces: those that are matched.
        firm: whether they must stand in it.
    """
    method, common = request.fusion.method, request.fusion.parameters.common
    full = {str(model): ref for model, ref in zip(request.models, refs, strict=True)}
    imports = [module.name for module in given_modules()]
    content: Json = {"import": imports} if imports else {}
    content |= {**_parts(request, refs), **_sliced(request), "merge_method": method.name}
    if parameters := _settings(method, common):
        content["parameters"] = parameters
    if request.dtype:
        content["dtype"] = request.dtype
    content |= _tokenizer(request.tokenizer, full)
    if request.chat_template is not None:  # a file's text is written beside the recipe
        template = request.chat_template[0]
        content["chat_template"] = CHAT_TEMPLATE if is_file_name(template) else template
    how, colon, model = request.heads.partition(":")
    heads = f"{how}{colon}{full.get(model, model)}"
    implied = spaces in ("none", request.matching.spaces(None)) and request.spaces != "none"
    if request.matching.decides or (implied and not firm):  # they are decided anew, and alike
        spaces = None
    align, complete = _align(request, refs, heads, spaces)
    if request.fusion.first == "donor" and not request.stacks:
        align = {**(align or {"enabled": False}), "merge_base": False}
    if align:
        content["align"] = align["enabled"] if set(align) == {"enabled"} else align
    named = all(isinstance(model, (str, Path, Checkpoint)) for model in request.models)
    text = recipe_yaml(content, {**request.said, "repair": request.repair}, complete=complete and named)
    return IMPORTS.format(" ".join(f"--import {shlex.quote(name)}" for name in imports)) + text if imports else text


def _parts(request: MergeRequest, refs: Sequence[str]) -> Json:
    """``models`` or ``slices``, and the base."""
    fusion, parts = request.fusion, request.fusion.parameters.slices
    base_entry: Json = {}
    if fusion.first != "model" or request.base_named:
        base_entry["base_model"] = refs[0]
    if not request.stacks:
        models = refs[fusion.start :]
        entries = [{"model": ref, **_under(request, parts[0], k)} for k, ref in enumerate(models)]
        for entry, file in zip(entries, request.stats, strict=False):
            entry["stats"] = absolute_path(file)
        for entry, base in zip(entries, request.source_bases, strict=False):
            if base is not None:
                entry["base_model"] = lasting_ref(str(base))
        return {"models": entries, **base_entry}
    slices = []
    for number, part in enumerate(parts):
        column = [stack[number] for stack in request.stacks]
        sources = [
            {"model": lasting_ref(str(ref)), "layer_range": list(layers), **_under(request, part, k)}
            for k, (ref, layers) in enumerate(column[fusion.start :][: len(part.sources)])
        ]
        base: Json = {}
        if fusion.start:
            name, layers = lasting_ref(str(column[0][0])), column[0][1]
            base = {} if name == refs[0] else {"base_model": name}
            if fusion.first == "base":
                sources.insert(0, {"model": name, "layer_range": list(layers)})
        own = _settings(fusion.method, part.own, fusion.parameters.common)
        slices.append({"sources": sources, **base, **({"parameters": own} if own else {})})
    return {"slices": slices, **base_entry}


def _sliced(request: MergeRequest) -> Json:
    """Of which module slices are, and which layers of others are kept."""
    module = {"module": request.module} if request.module else {}
    layers = {name: [list(span) for span in spans] for name, spans in request.kept_layers.items()}
    sliced = {**module, **({"layers": layers} if layers else {})}
    return {"sliced": sliced} if sliced else {}


def _under(request: MergeRequest, part: SliceParameters, source: int) -> Json:
    settings = _settings(request.fusion.method, part.sources[source], part.own, request.fusion.parameters.common)
    return {"parameters": settings} if settings else {}


def _settings(method: Method, own: Settings, *wider: Settings) -> Json:
    """Settings without those of other methods, and without defaults that no wider setting would replace."""
    kept = {}
    for name, option in method.options.items():
        if name not in own:
            continue
        value = _plain(option, own[name])
        if value != option.default or any(name in settings for settings in wider):
            kept[name] = value
    return kept


def _plain(option: Option, value: Any) -> Any:
    """A setting in plain YAML values, numbers of the option's kind."""
    if isinstance(value, Mapping):
        return {k: _plain(option, v) if k == "value" else v for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(option, v) for v in value]
    if option.kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return value.item() if hasattr(value, "item") else value  # pyright: ignore[reportAttributeAccessIssue]


def _renamed(value: Any, full: Mapping[str, str]) -> Any:
    """A value of a tokenizer's settings with models by the names that the recipe has for them."""
    if isinstance(value, Mapping):
        return {key: _renamed(part, full) for key, part in value.items()}
    return full.get(value, value) if isinstance(value, str) and value not in ("union", "base", "first") else value


def _tokenizer(tokenizer: Mapping[str, Any] | None, full: Mapping[str, str]) -> Json:
    if tokenizer is None:
        return {}
    tokenizer = {name: _renamed(value, full) for name, value in tokenizer.items()}
    tokens = {
        name: {k: v for k, v in token.items() if v} for name, token in (tokenizer.get("tokens") or {}).items()
    }
    more = {"tokens": tokens or None}
    more |= {name: tokenizer.get(name) for name in ("pad_to_multiple_of", "missing", "neighbours")}
    more = {name: value for name, value in more.items() if value is not None}
    source = tokenizer["source"]
    return {"tokenizer": {"source": source, **more}} if more else {"tokenizer_source": source}


def _align(request: MergeRequest, refs: Sequence[str], heads: str, spaces: str | None) -> tuple[Json, bool]:
    """The block ``align``, and whether it says all: data that are objects have no name."""
    defaults, said = MatchingOptions().given(), replace(request, spaces=spaces, heads=heads)
    own = {n: getattr(said, n) for n in of_align() if n != "merge_base"}  # which `recipe_text` says
    settings: Json = {name: value for name, value in own.items() if value != getattr(MergeRequest, name)}
    settings |= {"onto": refs[request.onto] if request.onto else None}
    settings |= {"spec": None if request.spec is None else absolute_path(request.spec)}
    match = {name: value for name, value in request.said.items() if value != defaults.get(name)}
    keys, complete = align_keys(match, settings)
    block: Json = {"enabled": request.align, **keys}
    if block["enabled"] == "auto" and len(block) > 1:
        del block["enabled"]  # a block says so
    return ({} if block == {"enabled": False} else block), complete


def recipe_yaml(content: Json, said: Mapping[str, Any], *, complete: bool) -> str:
    """A recipe's text behind what it cannot say: that models or data were objects, and which data are functions.

    Args:
        content: of the recipe.
        said: options, with the data among them.
        complete: whether no object was given.
    """
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True, width=116)
    text = text if complete else OBJECTS + text
    data = {name: ref for name in DATA if isinstance(ref := said.get(name), str) and may_be_function(ref)}
    return FUNCTIONS.format(" ".join(f"--{name} {ref}" for name, ref in data.items())) + text if data else text


def align_keys(match: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Json, bool]:
    """The keys of ``align`` that options of a match and others are, and whether they say all."""
    files = [match["stats_anchor"], *_listed(match.get("stats_src"))] if match.get("stats_anchor") else None
    settings = {**match, **settings, "stats": files}
    block: Json = {}
    complete = True
    for name in _keys_said(settings):
        value = settings[name]
        if name in DATA and isinstance(value, str) and may_be_function(value):
            continue
        if isinstance(value, list):
            value = [absolute_path(v) for v in value]
        elif name in DATA and isinstance(value, (str, Path)):
            value = absolute_data(value)
        if isinstance(value, (str, int, float, list)):
            block[name] = float(value) if name == "search" and not isinstance(value, list) else value
        else:
            complete = False
    return block, complete


def _keys_said(settings: Mapping[str, Any]) -> list[str]:
    """The keys of ``align`` that say something, in the order in which they stand there."""
    if all(value is None or value == [] for value in settings.values()):
        return []
    # most merges say nothing of it, and need no schema of recipes
    from isomerge.merging.recipe.schema import AlignBlock

    return [name for name in AlignBlock.model_fields if settings.get(name) is not None and name != "enabled"]


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, Path)) else list(value or ())

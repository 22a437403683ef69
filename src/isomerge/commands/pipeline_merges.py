"""Pipelines of diffusers, and Stable Diffusion in single files, merged: component by component, each as a merge of
its own, into one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge import __version__
from isomerge.archs import without_spec
from isomerge.checkpoint.header import read_header
from isomerge.checkpoint.image_lora import lora_file
from isomerge.checkpoint.opening import is_state_dict
from isomerge.checkpoint.output_folder import check_out
from isomerge.checkpoint.pipeline import LIBRARIES, Component, Pipeline
from isomerge.checkpoint.single_file import LANGUAGE, REST, SCHEDULE, SUFFIX, FilePart, alone, parts_of
from isomerge.checkpoint.stamps import stamps_of
from isomerge.checkpoint.tokenizer import tokenizer_alone
from isomerge.checkpoint.weights import of_diffusers
from isomerge.checkpoint.yaml_text import read_yaml
from isomerge.commands.opening import recognised
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import role_of_base
from isomerge.fusion.registry import method
from isomerge.merging.recipe.recipe_steps import Step, named_models
from isomerge.models.compatible import check_compatible
from isomerge.models.references import is_assembled, model_type_of, open_assembled, open_model_ref
from isomerge.models.row_meanings import stored_ids, unlike_tokens
from isomerge.options import FusingOptions, OpeningOptions, OutputOptions, SpacesOptions
from isomerge.run.report_file import REPORTS

if TYPE_CHECKING:
    from isomerge.commands.language_merges import Inside

TELLING = ("unet", "transformer", "text_encoder")
"""How parts are called without which a pipeline is another kind of model."""
ONLY_ONE = ("stats", "tokenizer_source", "select_layers")
"""Options that are about one model: a pipeline has several."""


@dataclass(frozen=True)
class ComponentMerge:
    """What becomes of one component."""

    name: str
    source: list[str] | Step | None
    """Models or a recipe to be merged; None: it is copied."""
    copied: Component | None
    said: str
    """Why it is copied, or how it is merged where that is not as asked; may be empty."""
    fusing: FusingOptions | None = None
    """How models are merged; None: a recipe says so."""
    moving: SpacesOptions | None = None
    channels: int | None = None
    """How many input channels it has where it is merged; None where that is not known."""


@dataclass(frozen=True)
class PipelineMerge:
    """Pipelines to be merged, the base first."""

    pipelines: tuple[Pipeline, ...]
    whole: Pipeline
    """What the output is like: it gives the class, the layout and all that is not merged."""
    out: Path
    components: tuple[ComponentMerge, ...]
    notes: tuple[str, ...]
    """What is told of the whole, and of components that it has no place for."""
    asked: str
    """What the output depends on beside the files of the pipelines."""
    recipe: str = ""
    """The YAML that merges them again."""

    def lines(self) -> list[str]:
        """What was decided, in a line for each component that is not merged as asked."""
        return [*(f"{part.name}: {part.said}." for part in self.components if part.said), *self.notes]

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        names = [component.name for component in self.components if component.source is not None]
        merged = f"{', '.join(names)} merged" if names else "nothing merged"
        return f"a {self.whole.kind} of {', '.join(pipeline.ref for pipeline in self.pipelines)} ({merged})."

    def place(self, name: str) -> Path:
        """Where what is told of a component stands."""
        return self.out / REPORTS / name if self.whole.is_whole else self.out / name

    def key(self) -> str:
        """A digest of what determines the output."""
        parts = [part for pipeline in self.pipelines for part in pipeline.components.values()]
        parts += [component.copied for component in self.components if component.copied is not None]
        files = dict.fromkeys(file for part in parts for file in part.files(allow_pickle=True))
        stamps = repr(stamps_of([*files, *(pipeline.index for pipeline in self.pipelines)]))
        return hashlib.sha256(f"{__version__}\n{self.asked}\n{stamps}".encode()).hexdigest()


def pipeline_merge(
    source: Any,
    out: str | Path | None,
    *,
    fusing: FusingOptions,
    moving: SpacesOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
    more: Mapping[str, Any],
) -> PipelineMerge | None:
    """What becomes of every component of pipelines; None where no model is one. Headers are read, to refuse what
    does not fit before anything is written.

    Args:
        source: models, a recipe, or a step of one.
        out: the folder to write.
        fusing, moving, opening, writing: the options of the merge.
        more: what else the output depends on.

    Raises:
        IsomergeError: pipelines or components that do not fit together, or an option that is about one model.
    """
    if isinstance(source, str | Path | Step):
        decided = pipelines_of_recipe(source, opening, writing)
    else:
        decided = _by_options(list(source), fusing, moving, opening, writing)
    if decided is None:
        return None
    if out is None:
        raise IsomergeError("pipelines are merged into a folder: name it with --out")
    pipelines, whole = decided.pipelines, decided.whole
    place = Path(os.path.expanduser(out))
    check_out(
        place, overwrite=writing.overwrite, reads=[place for pipeline in pipelines for place in pipeline.reads]
    )
    every = {name: each.ref for each in reversed(pipelines) for name in each.components}
    notes = [
        f"{name}: left out, as {whole.ref} has none, and that of {every[name]} is in another form."
        for name in sorted(every.keys() - whole.components.keys())
    ]
    if whole.ref != pipelines[0].ref:
        notes.append(f"The output is a {whole.kind}, as {whole.ref} is, whose input channels it has.")
    asked = json.dumps(
        [decided.said, repr((fusing, moving, writing.dtype, writing.out_shard_size, dict(more)))], default=str
    )
    return PipelineMerge(tuple(pipelines), whole, place, tuple(decided.components), tuple(notes), asked)


@dataclass(frozen=True)
class Decided:
    """What becomes of pipelines, the base first."""

    pipelines: list[Pipeline]
    whole: Pipeline
    """See `PipelineMerge`."""
    components: list[ComponentMerge]
    said: Any
    """What was asked for."""


def _decided_all(
    pipelines: list[Pipeline], decide: Callable[[Pipeline, str], ComponentMerge], said: Any
) -> Decided:
    """The output is like the first pipeline, or that whose further input channels it has.

    Args:
        decide: what becomes of a component where the output is like this pipeline.

    Raises:
        IsomergeError: no pipeline has as many input channels as what is kept in its place.
    """
    whole = _with_others(pipelines[0], pipelines)
    components = [decide(whole, name) for name in whole.components]
    wide = _of_channels(whole, components, pipelines)
    if wide is not whole:
        whole = _with_others(wide, pipelines)
        components = [decide(whole, name) for name in whole.components]
    return Decided(pipelines, whole, components, said)


def _with_others(first: Pipeline, pipelines: Sequence[Pipeline]) -> Pipeline:
    """A pipeline with those components that only others of its form have."""
    every = dict(first.components)
    for other in pipelines:
        every |= {n: c for n, c in other.components.items() if n not in every and other.is_whole == first.is_whole}
    return replace(first, components=every)


def _of_channels(whole: Pipeline, components: Sequence[ComponentMerge], pipelines: Sequence[Pipeline]) -> Pipeline:
    """The pipeline that has as many input channels as the output: the whole, or the first such one."""
    from isomerge.models.input_channels import KEY

    def channels(part: Component | None) -> int | None:
        if part is None or not part.has_weights or part.library not in LIBRARIES:
            return None
        return part.config().get(KEY)

    for each in components:
        count = each.channels if each.copied is None else channels(each.copied)
        if count in (None, channels(whole.components[each.name])):
            continue
        for pipeline in pipelines:
            if channels(pipeline.components.get(each.name)) == count:
                return pipeline
        raise IsomergeError(
            f"{each.name} of {whole.ref} has {channels(whole.components[each.name])} input channels and what is "
            f"kept in its place {count}, which are a pipeline's of another class: name the pipeline that it is of"
        )
    return whole


def _by_options(
    models: list[Any],
    fusing: FusingOptions,
    moving: SpacesOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
) -> Decided | None:
    """Pipelines that are listed, the base first, and what becomes of their components."""
    named = [fusing.base_model] if fusing.base_model is not None else []
    refs = list(dict.fromkeys(map(str, [*named, *models]))) if all(map(_is_ref, [*named, *models])) else []
    if not any(map(is_assembled, refs)):
        if (inner := _inside(refs, str(models[0]) if models else "", opening, writing)) is None:
            return None
        sources = [inner.within(model) for model in models]
        part = ComponentMerge(LANGUAGE[1:], sources, None, inner.said, inner.fusing(fusing), moving)
        return Decided([*inner.pipelines], inner.pipelines[0], [part], refs)
    pipelines = _opened(refs)
    role_of_base(method(fusing.method), fusing.base_model is not None)  # told before any component is merged
    if option := next((name for name in ONLY_ONE if fusing.given()[name]), None):
        raise IsomergeError(
            f"--{option.replace('_', '-')} is about one model, and {refs[0]} is a pipeline of several: merge the "
            f"folders of one component by themselves"
        )
    for base in map(str, fusing.source_bases):
        pipelines += _opened([base]) if base not in refs else []

    by_ref = {pipeline.ref: pipeline for pipeline in pipelines}

    def within(ref: Any, name: str) -> Any:
        pipeline = by_ref.get(str(ref)) if _is_ref(ref) else None
        return ref if pipeline is None else pipeline.components[name].ref

    def of(name: str, stored: bool) -> ComponentMerge:
        how = replace(
            fusing,
            base_model=within(fusing.base_model, name),
            onto=None if stored else within(fusing.onto, name),
            source_bases=[within(base, name) for base in fusing.source_bases],
            aligning=replace(fusing.aligning, align=False) if stored else fusing.aligning,
        )
        return ComponentMerge(
            name, [within(ref, name) for ref in models], None, STORED if stored else "", how,
            SpacesOptions() if stored else moving,
        )  # fmt: skip

    def decide(whole: Pipeline, name: str) -> ComponentMerge:
        aligned = fusing.aligning.align is not False
        return _decided(name, pipelines, opening, aligned=aligned, merge=of, whole=whole)

    return _decided_all(pipelines, decide, [str(model) for model in models])


def _inside(refs: Sequence[str], first: str, opening: OpeningOptions, writing: OutputOptions) -> Inside | None:
    """The one model of images among language models (`isomerge.commands.language_merges.inside`); None where all
    are of one kind."""
    if opening.spec is not None or len({*map(model_type_of, refs)} - {None}) < 2:
        return None
    from isomerge.commands.language_merges import inside

    return inside(refs, first, opening, writing)


def pipelines_of_recipe(
    source: str | Path | Step, opening: OpeningOptions, writing: OutputOptions
) -> Decided | None:
    """The pipelines that a recipe names, the base first, and what becomes of their components."""
    path = str(source)
    if not isinstance(source, Step) and os.path.isdir(os.path.expanduser(source)):
        return None
    # what reads recipes is loaded where there is one
    from isomerge.merging.recipe.recipe_components import component_step, own_words, pipelines_of
    from isomerge.merging.recipe.recipe_request import request_of_recipe

    content = dict(source.content) if isinstance(source, Step) else read_yaml(os.path.expanduser(source))
    if not isinstance(content, Mapping):  # what reads a recipe says what is wrong with it
        return None
    refs = pipelines_of(content)
    if not refs:
        models = list(
            dict.fromkeys(named_models({k: v for k, v in content.items() if k in ("base_model", "models")}))
        )
        listed = named_models({"models": content.get("models")})
        if not listed or (inner := _inside(models, listed[0], opening, writing)) is None:
            return None
        step = component_step(path, content, LANGUAGE[1:], {}, {inner.whole: inner.within(inner.whole)})
        part = ComponentMerge(LANGUAGE[1:], step, None, inner.said)
        return Decided([*inner.pipelines], inner.pipelines[0], [part], content)
    pipelines = {ref: open_assembled(ref) for ref in refs}
    _check_classes(list(pipelines.values()))
    every = {name for pipeline in pipelines.values() for name in pipeline.components}
    if any(pipeline.is_whole for pipeline in pipelines.values()):
        every |= {REST, SCHEDULE}  # which a file may be without
    said = own_words(path, content, every)

    def decide(whole: Pipeline, name: str) -> ComponentMerge:
        word = said.get(name)
        if isinstance(word, str):
            ref = word.partition(":")[2] or next(ref for ref in refs if name in pipelines[ref].components)
            part = _kept(whole, name, pipelines.get(ref), ref, f"{path}: `{name}` is {word}")
            return _as_it_is(name, part, f"kept from {ref}")
        folders = {
            ref: pipeline.components[name].ref for ref, pipeline in pipelines.items() if name in pipeline.components
        }
        named = pipelines_of({k: v for k, v in content.items() if k in ("models", "slices", "base_model")})
        own = word or {}
        if own.keys() & {"models", "slices"}:
            named = [*(n for n in named[:1] if "base_model" in content), *pipelines_of(own)]
        named = list(dict.fromkeys([*pipelines_of({k: v for k, v in own.items() if k == "base_model"}), *named]))
        step = component_step(path, content, name, {**said, name: own}, folders)
        align = step.content.get("align", False)

        def merge(name: str, stored: bool) -> ComponentMerge:
            changed = {**step.content, "align": False} if stored and align else step.content
            changed_step = replace(step, content=changed)
            request_of_recipe(changed_step)
            return ComponentMerge(name, changed_step, None, STORED if stored and align else "")

        in_order = [pipelines[ref] for ref in named]
        return _decided(name, in_order, opening, aligned=bool(align), merge=merge, whole=whole)

    return _decided_all(list(pipelines.values()), decide, content)


def _as_it_is(name: str, part: Component, said: str) -> ComponentMerge:
    """A component that is not merged, with its adapters in it where it has some."""
    if not part.adapters:
        return ComponentMerge(name, None, part, said)
    from isomerge.models.input_channels import KEY

    baked = FusingOptions(method="passthrough")
    return ComponentMerge(name, [part.ref], None, said, baked, SpacesOptions(), part.config().get(KEY))


def _kept(base: Pipeline, name: str, other: Pipeline | None, ref: str, place: str) -> Component:
    """What takes a part's place as it is: that of another pipeline, or a model of its own.

    Raises:
        IsomergeError: it has no such part, or one of another class; ``place`` is where the recipe says so.
    """
    mine = base.components[name]
    if other is None and is_assembled(ref):
        other = open_assembled(ref)
    try:
        part = alone(name, ref) if other is None else other.components.get(name)
    except IsomergeError as error:
        raise IsomergeError(
            f"{place}: name a pipeline that has it, or the folder of a {mine.kind} ({error.sentence})"
        ) from None
    if part is None or part.kind != mine.kind:
        said = "has none" if part is None else f"gives a {part.kind}"
        raise IsomergeError(f"{place}: {ref} {said}, and that of {base.ref} is a {mine.kind}")
    if isinstance(part, FilePart) == isinstance(mine, FilePart) and not isinstance(mine, FilePart):
        return part
    here, there = (open_model_ref(each.ref).shapes for each in (mine, part))
    if differing := next((key for key in {**here, **there} if here.get(key) != there.get(key)), None):
        shapes = [shapes.get(differing, "none") for shapes in (here, there)]
        raise IsomergeError(
            f"{place}: tensor {differing} has shape {shapes[0]} in {mine.ref} and {shapes[1]} in {part.ref}: parts "
            f"of single files are exchanged where all shapes are equal"
        )
    return replace(part, beside=mine) if isinstance(part, FilePart) else part


STORED = "merged as stored, not aligned, as there is no spec for its class"


def _is_ref(model: Any) -> bool:
    return isinstance(model, str | Path)


def _opened(refs: Sequence[str]) -> list[Pipeline]:
    for ref in refs:
        if not is_assembled(ref):
            other = next((name for name in refs if is_assembled(name)), "another model")
            raise _no_pipeline(ref, other)
    pipelines = [open_assembled(ref) for ref in refs]
    _check_classes(pipelines)
    return pipelines


def _no_pipeline(ref: str, other: str) -> IsomergeError:
    """What is said of a model beside pipelines that is none."""
    path = Path(os.path.expanduser(ref))
    if is_state_dict(path):
        return IsomergeError(
            f"{ref} is a pickle, and {other} is merged with pipelines and safetensors alone: save its tensors by "
            f"safetensors.torch.save_file (torch.load with weights_only=True gives them), and name that file"
        )
    is_file = path.suffix == SUFFIX and path.is_file()
    if path.exists() and (any("lora" in name for name in read_header(path)[0]) if is_file else lora_file(ref)):
        return IsomergeError(f"{ref} is a LoRA and no model: write it behind its model, {other}+{ref}")
    if is_file and (name := next((name for name in parts_of(path) if name not in (REST, SCHEDULE)), None)):
        return IsomergeError(
            f"{ref} has a {name} alone, and {other} is a whole model: put it there by a recipe that says `{name}: "
            f"keep:{ref}`"
        )
    return IsomergeError(
        f"{ref} is no folder of a pipeline (with model_index.json) and no single file, and {other} is one: give "
        f"pipelines alone, or the folders of one component"
    )


def _check_classes(pipelines: Sequence[Pipeline]) -> None:
    """Refuse pipelines of different classes, but for those that have the same parts, or lack some that do not tell
    one kind of model from another: what is merged are parts."""
    first = pipelines[0]
    for other in pipelines[1:]:
        mine, theirs = ({n: k for n, k in each.models.items() if n != REST} for each in (first, other))
        unlike = {name for name, _ in mine.items() ^ theirs.items()}
        if other.kind != first.kind and any(n in mine.keys() & theirs or n.startswith(TELLING) for n in unlike):
            apart = [dict(sorted(one.items() - peer.items())) for one, peer in ((mine, theirs), (theirs, mine))]
            way = (
                ""
                if first.is_whole == other.is_whole
                else "; of a single file diffusers' from_single_file makes one"
            )
            raise IsomergeError(
                f"{first.ref} is a {first.kind} and {other.ref} a {other.kind}, whose parts differ "
                f"({'; '.join(map(_said, apart))}): only pipelines of one class or of equal parts can be "
                f"merged{way}"
            )


def _said(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} is a {kind}" for name, kind in parts.items()) or "none"


def _decided(
    name: str,
    pipelines: Sequence[Pipeline],
    opening: OpeningOptions,
    *,
    aligned: bool,
    merge: Callable[[str, bool], ComponentMerge],
    whole: Pipeline,
) -> ComponentMerge:
    """What becomes of a component of these pipelines, the base first; ``whole`` is what the output is like.

    Raises:
        IsomergeError: its models do not fit together.
    """
    part = whole.components[name]
    base = next((each for each in pipelines if each.components.get(name) is part), whole)
    others = [each for each in pipelines if each is not base and name in each.components]
    if lacking := [each.ref for each in pipelines if name not in each.components]:
        return _as_it_is(name, part, f"kept from {base.ref}, as {lacking[0]} has none")
    if not part.has_weights:
        differs = [other.ref for other in others if not part.equals(other.components[name])]
        words = f"copied from {base.ref}, that of {differs[0]} is another one" if differs else ""
        return ComponentMerge(name, None, part, words)
    for other in others:
        if (kind := other.components[name].kind) != part.kind:
            raise IsomergeError(
                f"{name} of {base.ref} is a {part.kind} and that of {other.ref} a {kind} (model_index.json): only "
                f"components of one class can be merged; `{name}: keep` in a recipe takes one as it is"
            )
    parts = [pipeline.components[name] for pipeline in pipelines]
    # one alone is compared with itself: whether it can be read, and has adapters
    theirs = [other.components[name] for other in others] or parts
    if all(part.equals(other, allow_pickle=opening.allow_pickle) for other in theirs):
        return ComponentMerge(name, None, part, "copied, as all have the same bytes")
    if part.library not in LIBRARIES:
        return ComponentMerge(
            name, None, part, f"kept from {base.ref}, as {part.kind} is a class of the pipeline's own"
        )
    stored = without_spec(part.config())
    models: list[Any] = [open_model_ref(part.ref, allow_pickle=opening.allow_pickle) for part in parts]
    channels = None
    if of_diffusers(models[0].config):
        from isomerge.models.input_channels import KEY, of_equal_channels

        models = of_equal_channels(models)
        channels = models[0].config.get(KEY)
    unmoved = stored or not aligned
    with recognised(models, replace(opening, spec=None), unmoved=unmoved) as models:
        check_compatible(models[0], models[1:], stored=unmoved)
    _check_tokens(name, pipelines)
    decision = replace(merge(name, stored), channels=channels)
    return (
        replace(decision, said=f"{STORED}: {part.described()}")
        if stored and isinstance(part, FilePart)
        else decision
    )


def _check_tokens(name: str, pipelines: Sequence[Pipeline]) -> None:
    """Refuse text encoders of which one number of a token is another text's by the pipelines' tokenizers (those of
    ``text_encoder_2`` are ``tokenizer_2``): the merged pipeline has one of these."""
    tokenizer = name.replace("text_encoder", "tokenizer")
    having = [pipeline for pipeline in pipelines if tokenizer != name and tokenizer in pipeline.components]
    if all(having[0].components[tokenizer].equals(pipeline.components[tokenizer]) for pipeline in having[1:]):
        return
    refs = [pipeline.components[tokenizer].ref for pipeline in having]
    for apart in unlike_tokens({ref: stored_ids(tokenizer_alone(ref)) for ref in refs}):
        if apart.how.opposed:
            raise IsomergeError(
                f"{apart.said}, so that rows of {name} are of other tokens: `{name}: keep` in a recipe takes one "
                "as it is"
            )

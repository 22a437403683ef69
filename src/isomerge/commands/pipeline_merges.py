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
from isomerge.checkpoint.image_lora import lora_file
from isomerge.checkpoint.output_folder import check_out
from isomerge.checkpoint.pipeline import LIBRARIES, Component, Pipeline
from isomerge.checkpoint.single_file import LANGUAGE, FilePart, alone
from isomerge.checkpoint.stamps import stamps_of
from isomerge.checkpoint.tokenizer import tokenizer_alone
from isomerge.checkpoint.weights import of_diffusers
from isomerge.commands.opening import recognised
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import role_of_base
from isomerge.fusion.registry import method
from isomerge.merging.recipe.recipe_steps import Step, named_models
from isomerge.merging.recipe.yaml_text import read_yaml
from isomerge.models.compatible import check_compatible
from isomerge.models.references import is_assembled, model_type_of, open_assembled, open_model_ref
from isomerge.models.row_meanings import stored_ids, unlike_tokens
from isomerge.options import FusingOptions, OpeningOptions, OutputOptions, SpacesOptions
from isomerge.run.report_file import REPORTS

if TYPE_CHECKING:
    from isomerge.commands.language_merges import Inside

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

    @property
    def line(self) -> str:
        """What is told of it."""
        return f"{self.name}: {self.said}."


@dataclass(frozen=True)
class PipelineMerge:
    """Pipelines to be merged; the first is the base: it gives all that is not merged."""

    pipelines: tuple[Pipeline, ...]
    out: Path
    components: tuple[ComponentMerge, ...]
    left_out: tuple[str, ...]
    """What is told of components that the base does not have."""
    asked: str
    """What the output depends on beside the files of the pipelines."""
    recipe: str = ""
    """The YAML that merges them again."""

    def lines(self) -> list[str]:
        """What was decided, in a line for each component that is not merged as asked."""
        return [*(component.line for component in self.components if component.said), *self.left_out]

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        names = [component.name for component in self.components if component.source is not None]
        merged = f"{', '.join(names)} merged" if names else "nothing merged"
        return f"a {self.pipelines[0].kind} of {', '.join(pipeline.ref for pipeline in self.pipelines)} ({merged})."

    def place(self, name: str) -> Path:
        """Where what is told of a component stands."""
        return self.out / REPORTS / name if self.pipelines[0].is_whole else self.out / name

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
    pipelines, components, said = decided
    place = Path(os.path.expanduser(out))
    check_out(
        place, overwrite=writing.overwrite, reads=[place for pipeline in pipelines for place in pipeline.reads]
    )
    left = [
        f"{name}: left out, as {pipelines[0].ref} has none."
        for name in sorted(
            {n for pipeline in pipelines for n in pipeline.components} - pipelines[0].components.keys()
        )
    ]
    asked = json.dumps(
        [said, repr((fusing, moving, writing.dtype, writing.out_shard_size, dict(more)))], default=str
    )
    return PipelineMerge(tuple(pipelines), place, tuple(components), tuple(left), asked)


Found = tuple[list[Pipeline], list[ComponentMerge], Any]


def _by_options(
    models: list[Any],
    fusing: FusingOptions,
    moving: SpacesOptions,
    opening: OpeningOptions,
    writing: OutputOptions,
) -> Found | None:
    """Pipelines that are listed, the base first, and what becomes of their components."""
    named = [fusing.base_model] if fusing.base_model is not None else []
    refs = list(dict.fromkeys(map(str, [*named, *models]))) if all(map(_is_ref, [*named, *models])) else []
    if not any(map(is_assembled, refs)):
        if (inner := _inside(refs, str(models[0]) if models else "", opening, writing)) is None:
            return None
        sources = [inner.within(model) for model in models]
        part = ComponentMerge(LANGUAGE[1:], sources, None, inner.said, inner.fusing(fusing), moving)
        return list(inner.pipelines), [part], refs
    pipelines = _opened(refs)
    role_of_base(method(fusing.method), fusing.base_model is not None)  # told before any component is merged
    if option := next((name for name in ONLY_ONE if getattr(fusing, name)), None):
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
            align=False if stored else fusing.align,
        )
        return ComponentMerge(
            name, [within(ref, name) for ref in models], None, STORED if stored else "", how,
            SpacesOptions() if stored else moving,
        )  # fmt: skip

    def decide(name: str) -> ComponentMerge:
        return _decided(name, pipelines, opening, aligned=fusing.align is not False, merge=of)

    return pipelines, [decide(name) for name in pipelines[0].components], [str(model) for model in models]


def _inside(refs: Sequence[str], first: str, opening: OpeningOptions, writing: OutputOptions) -> Inside | None:
    """The one model of images among language models (`isomerge.commands.language_merges.inside`); None where all
    are of one kind."""
    if opening.spec is not None or len({*map(model_type_of, refs)} - {None}) < 2:
        return None
    from isomerge.commands.language_merges import inside

    return inside(refs, first, opening, writing)


def pipelines_of_recipe(source: str | Path | Step, opening: OpeningOptions, writing: OutputOptions) -> Found | None:
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
        return list(inner.pipelines), [ComponentMerge(LANGUAGE[1:], step, None, inner.said)], content
    pipelines = {ref: open_assembled(ref) for ref in refs}
    _check_classes(list(pipelines.values()))
    every = {name for pipeline in pipelines.values() for name in pipeline.components}
    said = own_words(path, content, every)

    def decide(name: str) -> ComponentMerge:
        word = said.get(name)
        if isinstance(word, str):
            ref = word.partition(":")[2] or refs[0]
            part = _kept(pipelines[refs[0]], name, pipelines.get(ref), ref, f"{path}: `{name}` is {word}")
            if part.adapters:
                baked = FusingOptions(method="passthrough")
                return ComponentMerge(name, [part.ref], None, f"kept from {ref}", baked, SpacesOptions())
            return ComponentMerge(name, None, part, f"kept from {ref}")
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
        return _decided(name, in_order, opening, aligned=bool(align), merge=merge, base=pipelines[refs[0]])

    components = [decide(name) for name in pipelines[refs[0]].components]
    return list(pipelines.values()), components, content


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
            if os.path.exists(os.path.expanduser(ref)) and lora_file(ref) is not None:
                raise IsomergeError(f"{ref} is a LoRA and no model: write it behind its model, {other}+{ref}")
            raise IsomergeError(
                f"{ref} is no folder of a pipeline (with model_index.json) and no single file, and {other} is one: "
                f"give pipelines alone, or the folders of one component"
            )
    pipelines = [open_assembled(ref) for ref in refs]
    _check_classes(pipelines)
    return pipelines


def _check_classes(pipelines: Sequence[Pipeline]) -> None:
    """Refuse pipelines of different classes, but for those that have the same parts: what is merged are parts."""
    first = pipelines[0]
    for other in pipelines[1:]:
        if other.kind != first.kind and other.models != first.models:
            mine, theirs = (dict(sorted(each.models.items() - peer.items())) for each, peer in
                        ((first, other.models), (other, first.models)))  # fmt: skip
            way = (
                ""
                if first.is_whole == other.is_whole
                else "; of a single file diffusers' from_single_file makes one"
            )
            raise IsomergeError(
                f"{first.ref} is a {first.kind} and {other.ref} a {other.kind}, whose parts differ ({_said(mine)}; "
                f"{_said(theirs)}): only pipelines of one class or of equal parts can be merged{way}"
            )


def _said(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} is a {kind}" for name, kind in parts.items() if name != kind) or "none"


def _decided(
    name: str,
    pipelines: Sequence[Pipeline],
    opening: OpeningOptions,
    *,
    aligned: bool,
    merge: Callable[[str, bool], ComponentMerge],
    base: Pipeline | None = None,
) -> ComponentMerge:
    """What becomes of a component of these pipelines, the base first.

    Raises:
        IsomergeError: a pipeline lacks it, or its models do not fit together.
    """
    base = base or pipelines[0]
    part = base.components[name]
    others = [pipeline for pipeline in pipelines if pipeline is not base]
    if not part.has_weights:
        differs = [o.ref for o in others if name in o.components and not part.equals(o.components[name])]
        words = f"copied from {base.ref}, that of {differs[0]} is another one" if differs else ""
        return ComponentMerge(name, None, part, words)
    for other in others:
        if name not in other.components:
            raise IsomergeError(
                f"{other.folder}: the pipeline has no {name}, and {base.ref} has one: keep that with `{name}: "
                f"keep` in a recipe"
            )
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
    if of_diffusers(models[0].config):
        from isomerge.models.input_channels import of_equal_channels

        models = of_equal_channels(models)
    unmoved = stored or not aligned
    with recognised(models, replace(opening, spec=None), unmoved=unmoved) as models:
        check_compatible(models[0], models[1:], stored=unmoved)
    _check_tokens(name, pipelines)
    decision = merge(name, stored)
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

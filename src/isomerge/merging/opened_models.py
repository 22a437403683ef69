"""The models of a merge opened: stacks of layers, views of one vocabulary or number of input channels, a chat
template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isomerge.checkpoint.chat_template import AUTO, common_template, own_template
from isomerge.checkpoint.chat_template import FILE as CHAT_TEMPLATE
from isomerge.checkpoint.in_memory import as_reference
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import of_diffusers
from isomerge.config.keys import PARTS
from isomerge.errors import IsomergeError
from isomerge.merging.merge_request import MergeRequest
from isomerge.models.model_inputs import Inputs
from isomerge.models.quantised import dequantised
from isomerge.models.references import open_model_ref
from isomerge.models.row_meanings import described, token_rows, unknown_tokens, unlike_tokens
from isomerge.options.unused import note


def opened(request: MergeRequest, *, allow_pickle: bool = False) -> list[Any]:
    """What a request merges, in the run's order, as `isomerge.models.recognised.recognise` takes it: with slices,
    stacks of layers; with a tokenizer, views of one vocabulary.

    Raises:
        IsomergeError: a model that cannot be opened, layers that it does not have, or vocabularies that do not fit.
    """
    refs = _of_one_input(_opened(request, allow_pickle), allow_pickle)
    if request.chat_template is None:
        return refs
    template, text = request.chat_template
    donor = _open(refs[0], allow_pickle)
    if template == AUTO:
        # of the models as they are named: views of one vocabulary all have the files of one of them
        common = common_template(_saved(request, allow_pickle))
        if common is None or common == own_template(donor):
            return refs
        text = common
    files = {**donor.companions(), CHAT_TEMPLATE: text.encode()}
    return [donor.derive({}, origin=f"chat template {template}", companions=files), *refs[1:]]


def _saved(request: MergeRequest, allow_pickle: bool) -> list[Checkpoint]:
    """All models that a request names, opened, each once, but for modules in memory."""
    checkpoints = [_open(model, allow_pickle) for model in request.every if not hasattr(model, "save_pretrained")]
    return list({checkpoint.ref: checkpoint for checkpoint in checkpoints}.values())


def _of_one_input(refs: list[Any], allow_pickle: bool) -> list[Any]:
    """Models of images as views of one number of input channels; others as they are."""
    if any(hasattr(model, "save_pretrained") for model in refs) or not of_diffusers(
        _open(refs[0], allow_pickle).config
    ):
        return refs
    from isomerge.models.input_channels import of_equal_channels

    checkpoints = [_open(model, allow_pickle) for model in refs]
    views = of_equal_channels(checkpoints)
    return refs if all(view is model for view, model in zip(views, checkpoints, strict=True)) else views


def _opened(request: MergeRequest, allow_pickle: bool) -> list[Any]:
    if not request.stacks:
        models = _of_one_vocabulary(request, list(request.models), allow_pickle)
        return [_kept(_open(model, allow_pickle), request) for model in models] if request.kept_layers else models

    # layers are stacked where a recipe has slices
    from isomerge.models.layers import Part, stack_layers

    # tokens belong to whole models: a stack may have its layers from models of several vocabularies
    refs = list(dict.fromkeys(ref for stack in request.stacks for ref, _ in stack))
    whole = _of_one_vocabulary(request, [_open(ref, allow_pickle) for ref in refs], allow_pickle)
    known = dict(zip(refs, whole, strict=True))
    donor = known[request.stacks[0][0][0]]
    part = Part(request.module, PARTS[request.module]) if request.module in PARTS else None
    return [
        _kept(
            stack_layers(
                [(known[ref], range(*layers)) for ref, layers in stack], donor, spec_file=request.spec, part=part
            ),
            request,
        )
        for stack in request.stacks
    ]


def _kept(model: Checkpoint, request: MergeRequest) -> Checkpoint:
    """A model with those layers of other modules that a request keeps."""
    from isomerge.models.layers import Part, stack_layers

    for name, layers in request.kept_layers.items():
        parts = [(model, range(*span)) for span in layers]
        model = stack_layers(parts, model, spec_file=request.spec, part=Part(name, PARTS.get(name, ())))
    return model


def _of_one_vocabulary(request: MergeRequest, models: list[Any], allow_pickle: bool) -> list[Any]:
    """Models, the donor first, as they are or as views of the vocabulary that is asked for."""
    if request.tokenizer is None:
        return models
    from isomerge.models.vocabulary_views import with_vocabulary

    base = 0 if request.base_named else None
    checkpoints = [_open(model, allow_pickle) for model in models]
    views, _ = with_vocabulary(checkpoints, base=base, spec_file=request.spec, **request.tokenizer)
    moved = next((x for x, view in zip(checkpoints, views, strict=True) if view.recipes != x.recipes), None)
    if moved is None and views[0] is checkpoints[0]:  # whose files are written
        note("tokenizer_source", "the models have one vocabulary")
    if moved is not None and any(origin is not None for origin in request.source_bases):
        raise IsomergeError(
            f"{moved.ref}: another vocabulary moves the rows of its tokens, and not those of the models that "
            "--source-base names: give models of one vocabulary, or leave --source-base out"
        )
    return list(views)


@dataclass(frozen=True)
class ByToken:
    """What becomes of models' tokens where a request does not say it."""

    request: MergeRequest
    decided: str = ""
    """What was decided; empty: nothing had to be."""
    notes: tuple[str, ...] = ()
    """What cannot be told, or is not done."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """The chat templates of the models that have one, by their names."""

    def template_notes(self, written: Checkpoint) -> list[str]:
        """That chat templates of models are not in the output, which has the files of ``written``, where nothing
        says which is to be."""
        own = own_template(written)
        lost = [ref for ref, template in self.templates.items() if template != own]
        if not lost or self.request.chat_template is not None:
            return []
        has = f"{' and '.join(lost)} {'has a chat template' if len(lost) == 1 else 'have chat templates'}"
        instead = "none" if own is None else "another one"
        return [
            f"{has}, and the output has {instead}: a recipe's `chat_template: auto` takes the most frequent one"
        ]


def by_token(request: MergeRequest, *, allow_pickle: bool = False) -> ByToken:
    """The request with the union of its models' tokens, where they have different numbers of them, or rows of one
    number are of different tokens; and the models' chat templates.

    Raises:
        IsomergeError: a model that cannot be opened, or rows of different tokens that cannot be brought together.
    """
    models = _saved(request, allow_pickle)
    templates = {model.ref: text for model in models if (text := own_template(model)) is not None}
    return replace(_by_token(request, models, allow_pickle), templates=templates)


def _by_token(request: MergeRequest, models: Sequence[Checkpoint], allow_pickle: bool) -> ByToken:
    if request.tokenizer is not None:
        return ByToken(request)
    refs, bases = request.every, any(base is not None for base in request.source_bases)
    whole = not any(hasattr(ref, "save_pretrained") for ref in refs)
    sizes = [Inputs(checkpoint.config).vocabulary for checkpoint in models]
    union = ByToken(replace(request, tokenizer={"source": "union"}))
    if len(set(sizes)) > 1:
        have_tokenizers = all("tokenizer.json" in checkpoint.companions() for checkpoint in models)
        if not (have_tokenizers and all(sizes) and whole) or bases:
            return ByToken(request)  # refused, with the sizes
        numbers = " and ".join(map(str, sizes))
        return replace(union, decided=f"the output has the tokens of all models, as they have {numbers}")
    specs = {model.ref: described(model, request.spec) for model in models}
    if len({spec.kin for spec in specs.values() if spec is not None}) > 1:
        return ByToken(request)  # refused as they are
    known = {model.ref: token_rows(model, specs[model.ref]) for model in models}
    notes = tuple(unknown_tokens(known))
    differing = unlike_tokens(known)
    if not differing:
        return ByToken(request, notes=notes)
    apart = next((each for each in differing if each.how.opposed), differing[0])
    said = apart.said
    try:
        if not whole or bases:
            raise IsomergeError("models in memory, and what --source-base names, keep their rows")
        _of_one_vocabulary(union.request, list(refs), allow_pickle)
    except IsomergeError as error:
        if apart.how.opposed:
            raise IsomergeError(
                f"{said}, and rows of other tokens cannot be merged: {error.sentence}: give models of one "
                "vocabulary (isomerge transplant-tokenizer makes them so)"
            ) from None
        return ByToken(request, notes=(*notes, f"{said}; rows are merged by their numbers"))
    return replace(union, decided=f"rows are merged by their tokens, and the output has those of all, as {said}")


def _open(model: Any, allow_pickle: bool) -> Checkpoint:
    if hasattr(model, "save_pretrained"):
        raise IsomergeError(f"{type(model).__name__} has no tokenizer: save it in a folder with one, and give that")
    reference = as_reference(model)
    if isinstance(reference, Checkpoint):
        return dequantised(reference)
    return open_model_ref(reference, allow_pickle=allow_pickle)

"""What models must share to become one: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from isomerge.config.agreement import Difference, disagreements, written_differences
from isomerge.config.keys import MODEL_KINDS
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.models.tied_tensors import has_language_head, is_tied
from isomerge.symmetry.axes import LABELS, VOCABULARY
from isomerge.symmetry.blocks import stacks_of


def check_compatible(
    anchor: Model,
    others: Sequence[Model],
    *,
    apart: Collection[str] = (),
    stored: bool = False,
    settings: bool = True,
) -> list[str]:
    """Refuse models that cannot become one, before anything is computed.

    Args:
        anchor: whose config the result has.
        others: what is compared with it.
        apart: the names of lines that are not compared: heads that are not merged, of any number of labels.
        stored: whether weights are merged as they are stored, as mergekit does: what fine-tunes set anew
            (`isomerge.config.agreement.RETUNED`) may then differ.
        settings: whether configs must say the same of the function.

    Returns:
        A note for every setting that differs all the same.

    Raises:
        IsomergeError: different architectures, sizes, vocabularies, rotary positions, activation functions, or a
            tensor that one lacks.
    """
    notes: list[str] = []
    for model in (anchor, *others):
        check_tie(model)
    for other in others:
        pair = f"{anchor.ref} and {other.ref}"
        check_kin(anchor, other, but={LABELS} if apart else (), apart=apart)
        every = disagreements(anchor.config, other.config, compared_keys(anchor)) if settings else []
        for difference in every:
            said = f"{pair} differ in config.json: {difference.sentence}"
            if not (stored and difference.retuned):
                raise IsomergeError(
                    f"{said}; models that compute different functions of equal weights cannot be "
                    f"averaged{_way_out(difference)}"
                )
            notes.append(f"{said}: what is written has that of {anchor.ref}")
        for difference in (
            written_differences(anchor.config, other.config, compared_keys(anchor)) if settings else ()
        ):
            notes.append(f"{pair} differ in config.json: {difference.sentence}: what is written has the first")
        _check_tensors(anchor, other, apart)
    return notes


def check_kin(anchor: Model, other: Model, *, but: Collection[str] = (), apart: Collection[str] = ()) -> None:
    """Refuse models of other architectures or sizes; ``but``: sizes that are not compared; ``apart``: the names of
    lines that are not."""
    pair = f"{anchor.ref} and {other.ref}"
    if anchor.spec.kin != other.spec.kin or _differently_described(anchor, other, apart):
        raise unlike(pair, anchor.spec.model_type, other.spec.model_type)
    for size, value in anchor.spec.sizes.items():
        theirs = other.spec.sizes.get(size, value)
        if theirs != value and size not in but:
            what = "vocabularies" if size == VOCABULARY else "shapes"
            hint = "isomerge widen writes the smaller one with the sizes of the other"
            hint = "; " + ("merge makes them so with --tokenizer-source union" if size == VOCABULARY else hint)
            raise IsomergeError(
                f"{pair} have different {what} ({size} is {value} and {theirs}): they must be equal{hint}"
            )


def unlike(pair: str, one: str, two: str) -> IsomergeError:
    """What is said of two models of other architectures."""
    return IsomergeError(
        f"{pair} have different architectures ({one}, {two}): only models of one architecture are compared and "
        "merged (isomerge inspect MODEL shows it)"
    )


def _differently_described(first: Model, second: Model, apart: Collection[str]) -> bool:
    """Whether of two model types of a family the texts give some tensor other axes, as halves and neighbours of
    rotary pairs, or one has tensors of a kind of which the other has none, as biases."""
    if first.spec.origin == second.spec.origin and first.spec.model_type == second.spec.model_type:
        return False
    mine, theirs = ({m.canonical: m.line.axes for m in model.matches.values()} for model in (first, second))
    if any(axes != theirs[name] for name, axes in mine.items() if name in theirs):
        return True
    lines = [{m.line.name for m in model.matches.values()} for model in (first, second)]
    return any(
        m.line.name not in (*there, *apart) and not m.line.optional and peer.source_of(m.canonical, m) is None
        for model, peer, there in ((first, second, lines[1]), (second, first, lines[0]))
        for m in model.matches.values()
    )


def compared_keys(model: Model) -> tuple[str, ...]:
    """The keys of config.json in which models must agree: those that the spec declares, and those of any
    architecture."""
    return (*model.spec.config_keys, *MODEL_KINDS)


def check_tie(model: Model) -> None:
    """Refuse a head that the config ties to the embeddings and that is stored with other values: transformers reads
    it from version 5 on, and reads the embeddings before that."""
    stored = {
        name: match.line for name, match in model.matches.items() if match.line.tied and not match.line.indices
    }
    if not stored or not has_language_head(model.config) or not is_tied(model.config, stored=True):
        return
    for name, line in stored.items():
        home = model.names.get(str(line.tied), name)
        head, table = (model.checkpoint.tensors[n] for n in (name, home))
        if len(head.shape) < 2 or (head.shape, head.dtype) != (table.shape, table.dtype):
            continue
        if not torch.equal(model.read(name, None, mapped=True), model.read(home, None, mapped=True)):
            raise IsomergeError(
                f"{model.ref}: config.json ties {name} to {home}, but it is stored with other values, which some "
                "versions of transformers read and others do not: set tie_word_embeddings to false, or save the "
                "model without this tensor"
            )


def _way_out(difference: Difference) -> str:
    """What to do about a setting in which models differ, where there is something."""
    if difference.key == "tie_word_embeddings":
        return "; --untie gives a tied head weights of its own"
    if difference.retuned:
        return "; where nothing is aligned (--no-align), merge takes them as they are stored, with the first one's"
    return ""


def _lacking(whole: Model, part: Model, canonical: str) -> str:
    """Why one model has a tensor that the other lacks: more layers, as its config says, or a lost file."""
    mine, theirs = stacks_of(whole.blocks), stacks_of(part.blocks)
    for stack, depth in mine.items():
        if theirs.get(stack, depth) < depth:
            return (
                f"{whole.ref} and {part.ref} have different numbers of layers ({stack.rstrip('.')}: {depth} and "
                f"{theirs[stack]}): they are not compared; they are merged with the `slices` of a recipe, or after "
                "isomerge widen has given the smaller one as many"
            )
    return f"{part.ref}: tensor {canonical} is missing, but {whole.ref} has it: is a shard lost?"


def _check_tensors(anchor: Model, other: Model, apart: Collection[str]) -> None:
    for model, peer in ((anchor, other), (other, anchor)):
        for name, match in model.matches.items():
            if match.line.name in apart:
                continue
            theirs = peer.source_of(match.canonical, match)
            if theirs is None and not match.line.optional:
                raise IsomergeError(_lacking(model, peer, match.canonical))
            if theirs is not None:
                a, b = model.checkpoint.tensors[name].shape, peer.checkpoint.tensors[theirs].shape
                if tuple(a) != tuple(b):
                    labels = LABELS in match.line.names
                    hint = "; merge with --heads copy, or keep:MODEL, where labels are other ones" if labels else ""
                    raise IsomergeError(
                        f"tensor {match.canonical} has shape {list(a)} in {model.ref} and {list(b)} in {peer.ref}: "
                        f"models must have equal shapes{hint}"
                    )
                if match.line.infinite:
                    _check_infinities(model, name, peer, theirs)


def _check_infinities(first: Model, name: str, second: Model, theirs: str) -> None:
    """Refuses infinities of one model where the other has none, or those of the other sign: there is nothing
    between them."""
    a, b = first.read(name, None).double(), second.read(theirs, None).double()
    if not bool((a == b)[a.isinf() | b.isinf()].all()):
        raise IsomergeError(
            f"tensor {name} has other infinities in {first.ref} than in {second.ref}, and nothing lies between: "
            f"give both the same"
        )

"""Tied tensors: one storage in two places of the model, which must be moved alike.

A head that is tied to the embeddings reads the stream through the weights that write it. What acts on one place
must act on the other: a permutation or a rotation of the stream does (it is its own dual), the final norm's gain
folded into the head does not. A head may be given weights of its own: the tensors that are stored then, under which
names, and what the config says.

Whether a head is tied, formats of ``config.json`` say in several ways, or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from isomerge.config.agreement import as_transformers_reads
from isomerge.config.config_parts import parts_of
from isomerge.config.keys import TIE
from isomerge.errors import IsomergeError
from isomerge.records import Json
from isomerge.symmetry.language.spec import Line, Spec
from isomerge.symmetry.returned import class_of, task_of

# Groups whose elements are their own inverse transpose.
SELF_DUAL = {"Perm", "SignedPerm", "Sign", "O", "OFixingOnes", "Fixed"}
# Classes of Hugging Face whose names have "For" but which have a language-modelling head all the same.
LANGUAGE_HEADS = ("LM", "ConditionalGeneration", "PreTraining", "CausalImageModeling")
SCALED = "scale_decoder_outputs"
ALWAYS = re.compile(r"LMHeadModel$|For\w*LM$|ForConditionalGeneration$|EncoderDecoderModel$")
"""Classes that cannot do without a head: one that is not stored is tied, whatever the config of a whole says of its
part."""


def has_language_head(config: Mapping[str, Any]) -> bool:
    """Whether the model's class has a head that a config may tie to the embeddings; True when the config is
    silent."""
    names = config.get("architectures") or [""]
    name = str(names[0])
    return "For" not in name or any(mark in name.partition("For")[2] for mark in LANGUAGE_HEADS)


def is_body(config: Mapping[str, Any]) -> bool:
    """Whether the class that a config names is a base class: whatever it says of ties, its embeddings are no
    head."""
    return task_of(config) == "Model" and not ALWAYS.search(class_of(config)) and not parts_of(config)


def tied_lines(spec: Spec, present: Iterable[str], config: Mapping[str, Any]) -> list[tuple[Line, Line]]:
    """The lines that are absent because another stands in, with that line.

    Args:
        spec: the bound spec.
        present: canonical names of the checkpoint's tensors.
        config: its parsed ``config.json``.
    """
    stored = set(present)
    return [pair for pair in _declared_ties(spec, stored, config) if pair[0].canonical({}) not in stored]


def _declared_ties(spec: Spec, stored: set[str], config: Mapping[str, Any]) -> list[tuple[Line, Line]]:
    """The lines that the config ties to a stored one, also where both are stored (as torch's pickles do)."""
    if not has_language_head(config):
        return []
    by_name = {line.canonical({}): line for line in spec.lines if not line.indices}
    lines = [line for line in spec.lines if line.tied in stored and not line.indices]
    # a head may have several names, of which one is stored
    apart = {(line.tied, line.axes) for line in lines if line.canonical({}) in stored}
    return [
        (line, by_name[str(line.tied)]) for line in lines if is_tied(config, stored=(line.tied, line.axes) in apart)
    ]


def broken_ties(spec: Spec, present: Iterable[str], config: Mapping[str, Any]) -> dict[Line, tuple[Line, set[str]]]:
    """The tied lines that some space would move in one place only: with the line that stands in, and these
    spaces."""
    ties = {}
    for line, stand_in in _declared_ties(spec, set(present), config):
        own_spaces, stand_in_spaces = (x.names & spec.spaces.keys() for x in (line, stand_in))
        broken = (own_spaces ^ stand_in_spaces) | {
            n for n in own_spaces & stand_in_spaces if spec.spaces[n].group_name not in SELF_DUAL
        }
        if broken:
            ties[line] = (stand_in, broken)
    return ties


def without_broken_ties(spec: Spec, present: Iterable[str], config: Mapping[str, Any]) -> Spec:
    """The spec without the spaces that would move a tied tensor in one of its places only, and the trades of tables
    that are heads as well."""
    broken = {name for _, names in broken_ties(spec, present, config).values() for name in names}
    ties = [] if is_body(config) else _declared_ties(spec, set(present), config)
    tables = {stand_in.name for _, stand_in in ties}
    for shift in spec.shifts:
        broken |= {shift.name} if shift.trades and shift.against is None and shift.ends & tables else set()
    if not broken:
        return spec
    return spec.without(broken)


@dataclass(frozen=True)
class Untied:
    """A checkpoint's heads with weights of their own."""

    copies: Mapping[str, str]
    """From names of new tensors to the stored ones that they are equal to."""
    lines: Mapping[str, Line]
    """The lines of the new tensors."""
    config: Mapping[str, Any]
    """The keys of the config that change."""


def untie(spec: Spec, names: Mapping[str, str], config: Mapping[str, Any], heads: Collection[Line]) -> Untied:
    """What to store so that these heads are no longer the embeddings.

    A config ties all or nothing: what else is absent and tied (an encoder's embeddings) is stored as well, but in
    the classes that tie whatever their config says. T5's read from the tie whether outputs are scaled, where no key
    says it.

    Args:
        spec: the bound spec.
        names: from canonical tensor names to the checkpoint's own.
        config: its parsed ``config.json``.
        heads: lines that are absent or stored.

    Raises:
        IsomergeError: the function would be another one.
    """
    if spec.tied:
        raise IsomergeError(
            f"a head of its own would change the function of {spec.model_type}: transformers reads from "
            f"tie_word_embeddings {spec.tied}, too; leave the head tied"
        )
    read = as_transformers_reads({**config, TIE: False})
    forced = read is not None and bool(read.get(TIE))
    absent = [
        (line, stand_in)
        for line, stand_in in tied_lines(spec, names, config)
        if line in heads or (line.axes == stand_in.axes and not forced)
    ]
    stored = {_stored_name(spec, line, stand_in, names): (line, stand_in) for line, stand_in in absent}
    changed: Json = {TIE: False}
    if SCALED in spec.config_keys:
        changed[SCALED] = config.get(SCALED, config.get(TIE) is not False)
    return Untied(
        {name: names[stand_in.canonical({})] for name, (_, stand_in) in stored.items()},
        {name: line for name, (line, _) in stored.items()},
        changed,
    )


def _stored_name(spec: Spec, line: Line, stand_in: Line, names: Mapping[str, str]) -> str:
    """What a checkpoint calls a tensor that it does not store, by what it calls the one that stands in.

    A table of the body has the body's prefix. The head of a composite is called after its part only where that part
    is not within the body: ``language_model.model.embed_tokens`` goes with ``language_model.lm_head``, and
    ``model.language_model.embed_tokens`` with ``lm_head``.
    """
    canonical, there = line.canonical({}), stand_in.canonical({})
    stored = names[there]
    if line.axes == stand_in.axes:
        name = stored.removesuffix(there) + canonical if stored.endswith(there) else canonical
    else:
        part, _, rest = canonical.partition(".")
        name = rest if stored.startswith(f"model.{part}.") else canonical
    try:
        return name if spec.match(name).canonical == canonical else canonical
    except IsomergeError:
        return canonical


def is_tied(config: Mapping[str, Any], *, stored: bool) -> bool:
    """Whether the head is the embeddings.

    A head that is not stored must be, but where the config says otherwise of a class that can do without one. Of
    one that is stored (as torch's pickles and models that were untied have it) the config decides; where it is
    silent, what transformers reads in it, whose default is one of the architecture.

    Args:
        config: the parsed ``config.json``.
        stored: whether the checkpoint has a tensor for the head.
    """
    if not stored:
        return says_tied(config) or bool(ALWAYS.search(str((config.get("architectures") or [""])[0])))
    if TIE in config:
        return bool(config[TIE])
    return _read_tied(json.dumps(config, sort_keys=True, default=str))


@lru_cache(64)  # asked for again and again, and read by building a configuration
def _read_tied(text: str) -> bool:
    config = json.loads(text)
    read = as_transformers_reads(config)
    return says_tied(config if read is None else read)


def says_tied(config: Mapping[str, Any]) -> bool:
    """What a config says of the head. One of a whole that is silent asks its parts that have a vocabulary; True
    when they are silent, too."""
    if TIE in config:
        return bool(config[TIE])
    parts = [*(part for part in config.values() if isinstance(part, Mapping))]
    while parts:
        ties = [part[TIE] for part in parts if {TIE, "vocab_size"} <= part.keys()]
        if ties:
            return any(ties)
        parts = [below for part in parts for below in part.values() if isinstance(below, Mapping)]
    return True

"""Giving a head weights of its own: the tensors that are stored then, under which names, and what the config
says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from isomerge.config.agreement import as_transformers_reads
from isomerge.config.keys import TIE
from isomerge.errors import IsomergeError
from isomerge.models.tied_tensors import tied_lines
from isomerge.records import Json
from isomerge.symmetry.language.spec import Line, Spec

SCALED = "scale_decoder_outputs"


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

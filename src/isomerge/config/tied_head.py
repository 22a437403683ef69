"""Whether a head is tied to the embeddings, which formats of ``config.json`` say in several ways, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from isomerge.config.agreement import as_transformers_reads
from isomerge.config.keys import TIE

ALWAYS = re.compile(r"LMHeadModel$|For\w*LM$|ForConditionalGeneration$|EncoderDecoderModel$")
"""Classes that cannot do without a head: one that is not stored is tied, whatever the config of a whole says of its
part."""


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

"""What classes of models return by default: the spaces that no symmetry may move, because somebody reads what is in
them.

Every tensor that a class returns is an output, also one inside of another output; states that are only given back
to the model with the next token (``past_key_values``) are none. Specs say of which classes more than predictions
are returned (``returns``), and a config may ask for more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from isomerge.config.keys import LABELS
from isomerge.symmetry.language.spec import Spec

ROLES_RETURNED = {"output_attentions": {"h", "g"}, "output_router_logits": {"expert"}}
"""Roles of spaces that are outputs where a config asks for maps of attention (a row for every head) or for votes of
routers."""
HIDDEN_STATES = "output_hidden_states"
_TASK = re.compile("For([A-Z].*)")  # RoFormerForMaskedLM
_OLD_HEADS = ("LMHeadModel", "HeadModel", "HeadsModel")
"""How classes with heads were named at first: BertLMHeadModel, GPT2DoubleHeadsModel."""


def class_of(config: Mapping[str, Any]) -> str:
    """The class that ``config.json`` names, or nothing."""
    return str((config.get("architectures") or [""])[0])


def task_of(config: Mapping[str, Any]) -> str | None:
    """What the model's class is for, by its name: ``SequenceClassification`` of ``BertForSequenceClassification``,
    ``CausalLM`` of ``BertLMHeadModel``, ``Model`` of a base class, nothing of a class of another name; None where
    ``config.json`` names no class."""
    kind = class_of(config)
    if not kind:
        return None
    if said := _TASK.search(kind):
        return said[1]
    if kind.endswith(_OLD_HEADS):
        return "CausalLM" if kind.endswith(_OLD_HEADS[0]) else ""
    return "Model" if kind.endswith("Model") else ""


def declared(spec: Spec, config: Mapping[str, Any]) -> frozenset[str] | None:
    """What the spec says that the model's class returns; None where it says nothing of this class."""
    kind = class_of(config)
    said = [
        statement.names for statement in spec.returned if any(fnmatchcase(kind, name) for name in statement.classes)
    ]
    return frozenset().union(*said) if said else None


def asks_for(config: Mapping[str, Any], key: str) -> bool:
    """Whether a config, or a group of its keys that describes a part, has a switch on."""
    return any(part.get(key) is True for part in _parts(config))


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for name, value in config.items():
        if name not in ("whole", *LABELS) and isinstance(value, Mapping):  # labels may be many
            yield from _parts(value)


def without_returned(spec: Spec, config: Mapping[str, Any]) -> Spec:
    """The spec without the spaces and shifts inside of layers that the model's class returns; `declared` names the
    streams that it returns."""
    roles = {role for key, roles in ROLES_RETURNED.items() if asks_for(config, key) for role in roles}
    lost = (declared(spec, config) or frozenset()) - {*spec.streams, *spec.gains}
    lost |= {name for name, space in spec.spaces.items() if space.role in roles}
    if not lost:
        return spec
    return spec.without(lost)

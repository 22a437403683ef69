"""Tied tensors: one storage in two places of the model, which must be moved alike.

A head that is tied to the embeddings reads the stream through the weights that write it. What acts on one place
must act on the other: a permutation or a rotation of the stream does (it is its own dual), the final norm's gain
folded into the head does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isomerge.config.config_parts import parts_of
from isomerge.config.tied_head import ALWAYS, is_tied
from isomerge.symmetry.language.spec import Line, Spec
from isomerge.symmetry.returned import class_of, task_of

# Groups whose elements are their own inverse transpose.
SELF_DUAL = {"Perm", "SignedPerm", "Sign", "O", "OFixingOnes", "Fixed"}
# Classes of Hugging Face whose names have "For" but which have a language-modelling head all the same.
LANGUAGE_HEADS = ("LM", "ConditionalGeneration", "PreTraining", "CausalImageModeling")


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

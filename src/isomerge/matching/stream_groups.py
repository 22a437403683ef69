"""Which group acts on a residual stream: the largest that the architecture and the config allow, or a chosen
one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.returned import HIDDEN_STATES, asks_for, class_of, declared

ROLE = "residual"
EVERYTHING = "all"


def names_stream(spec: Spec, word: str) -> bool:
    """Whether a word of ``--spaces`` stands for a residual stream."""
    return word == ROLE or word.partition(":")[0] in spec.streams


def choose_frame(spec: Spec, words: Sequence[str]) -> tuple[Spec | None, tuple[str, ...]]:
    """The spec with every stream acted on by the group that ``--spaces`` asks for, and notes for the user.

    Without a word for a stream there is no frame. ``all`` and ``residual`` take the largest exact group of every
    stream; where only some streams are named, the others (and the gains over them) stay as they are.

    Raises:
        IsomergeError: a group that is none of the stream's, or one that needs gains folded where they cannot be.
    """
    asked = [w for w in words if names_stream(spec, w)]
    if asked and not spec.streams:
        raise IsomergeError(f"--spaces {asked[0]}: the spec for {spec.model_type} declares no residual stream")
    if not (asked or EVERYTHING in words) or not spec.streams:
        return None, ()
    every = EVERYTHING in words or ROLE in words
    chosen = dict.fromkeys(spec.streams, "") if every else {}
    for word in asked:
        name, _, group = word.partition(":")
        if name != ROLE and (group or name not in chosen):
            chosen[name] = group
    notes = []
    still = set(spec.streams) - chosen.keys()
    gone = still | {n for n, space in spec.spaces.items() if space.residual and still & set(space.index)}
    kept = [n for n in spec.spaces if n not in gone]
    frame = spec.restrict([*kept, *(s.name for s in spec.shifts)]) if still else spec
    for name, group in chosen.items():
        acting, note = _group(spec, name, group)
        notes += [note] if note else []
        frame = frame.with_group(name, acting)
    return frame, tuple(notes)


def _group(spec: Spec, name: str, asked: str) -> tuple[str, str]:
    """The group of one stream, and a note where a larger one was out of reach."""
    space = spec.spaces[name]
    if asked and asked not in space.groups:
        raise IsomergeError(
            f"--spaces {name}:{asked}: no symmetry of {spec.model_type}; choose {' or '.join(space.groups)}"
        )
    foldable = spec.can_fold(name)
    needs_folding = asked == space.folded if asked else space.folded is not None
    if not needs_folding or foldable:
        return asked or (space.folded if space.folded else space.group_name), ""
    why = f"{name} keeps to {space.group_name}: {_unfolded(spec, name)}"
    if asked:
        raise IsomergeError(f"--spaces {name}:{asked}: {why}")
    return space.group_name, why


def _unfolded(spec: Spec, name: str) -> str:
    """Why gains over a stream cannot be folded, and what helps, if anything does."""
    folded = spec.spaces[name].folded
    others = [line for line, tied in spec.unfolded(name).items() if not tied]
    if others:  # untying would not help
        return (
            f"the gain {others[0]} stands where nothing that reads the stream can take it in, and {folded} "
            "needs that"
        )
    return (
        f"the final norm's gain cannot be folded into a head that is tied to the embeddings, and {folded} needs "
        "that; --untie gives the head weights of its own"
    )


def headless(spec: Spec, names: Sequence[str], config: Mapping[str, Any], tied: bool) -> bool:
    """Whether a model gives out the residual stream itself and nothing else.

    Args:
        spec: the bound spec.
        names: canonical names of the checkpoint's tensors.
        config: its parsed ``config.json``; base classes are named ``...Model`` or
            ``...Backbone``, but for those that the spec calls ``headed``: CLIP's two towers give out projections.
        tied: whether a head is there that is tied to the embeddings.
    """
    kind = class_of(config)
    if kind in spec.headed:
        return False
    headed = any(word in kind for word in ("LMHead", "DoubleHeads", "EncoderDecoder"))
    if kind.endswith(("Model", "Backbone")) and not headed:
        return True
    stored = set(names)
    for line in spec.lines:
        if line.indices or line.canonical({}) not in stored:
            continue
        streams = [a for a in line.atoms if a.name in spec.streams]
        if streams and all(a.dual for a in streams):
            return False
    return not tied


def returned_streams(spec: Spec, names: Sequence[str], config: Mapping[str, Any], tied: bool) -> frozenset[str]:
    """The residual streams that a model's class returns by default: what the spec says of it, all of a model
    without a head otherwise, and all where ``config.json`` asks for hidden states. Turning one would change an
    output.

    Args: see `headless`.
    """
    every = frozenset(spec.streams)
    if asks_for(config, HIDDEN_STATES):
        return every
    said = declared(spec, config)
    if said is not None:
        return said & every
    return every if headless(spec, names, config, tied) else frozenset()

"""Which residual streams may be turned: those that no model gives out, by groups that leave alone what nothing
reads.

What a class of models returns by default are its outputs, every tensor of it (`isomerge.symmetry.returned`): hidden
states too. A stream among them keeps its basis, and so does what a norm outside the layers makes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from isomerge.errors import IsomergeError
from isomerge.matching.frame import lonely_gains
from isomerge.matching.selection import Selection
from isomerge.matching.stream_groups import ROLE, choose_frame, headless, returned_streams
from isomerge.models.recognised import Model
from isomerge.models.tied_tensors import tied_lines
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.returned import class_of

HEADLESS = "this model has no head, so that its residual stream is what it gives out and must keep its basis"


def given_out(model: Model) -> frozenset[str]:
    """The residual streams that a model returns: turning them would change its outputs."""
    return returned_streams(model.spec, list(model.names), model.config, _has_tied_head(model))


def given_out_by_any(models: Sequence[Model]) -> frozenset[str]:
    """The residual streams that some model returns: between these models they keep their bases."""
    return frozenset[str]().union(*map(given_out, models))


def streams_are_free(models: Sequence[Model]) -> bool:
    """Whether a residual stream could be matched: one that no model gives out."""
    return bool(set(models[0].spec.streams) - given_out_by_any(models))


def has_no_head(model: Model) -> bool:
    """Whether hidden states are all that a model returns."""
    return headless(model.spec, list(model.names), model.config, _has_tied_head(model))


def _has_tied_head(model: Model) -> bool:
    return bool(tied_lines(model.spec, model.names, model.config))


def why_given_out(model: Model, stream: str) -> str:
    """A sentence: why a stream keeps its basis."""
    if has_no_head(model):
        return HEADLESS
    kind = class_of(model.config) or "this model"
    return f"{kind} returns hidden states of the stream {stream} beside its predictions, so that it keeps its basis"


def turned_outputs(model: Model, stream: str) -> str:
    """A sentence: what it means that a stream is turned which a model returns."""
    kind = class_of(model.config) or "this model"
    return (
        f"{kind} returns hidden states of the stream {stream}, which is turned: what it predicts stays, the hidden "
        "states that it returns are in another basis"
    )


def unread_gains(models: Sequence[Model]) -> frozenset[str]:
    """The elements of gains that no tensor of some model reads (a last norm that its class does not use): they are
    left as they are."""
    return frozenset(key for model in models for key in lonely_gains(model.spec, model.blocks))


def with_free_streams(selection: Selection, models: Sequence[Model], spaces: str) -> Selection:
    """The selection without the streams that some model gives out, unless they were named and are not all that it
    gives out. The gains that only their own layer reads are no outputs, and stay in the frame.

    Raises:
        IsomergeError: a stream was named that is all that a model gives out.
    """
    frame = selection.frame
    if frame is None:
        return selection
    words = {word.strip().partition(":")[0] for word in spaces.split(",")}
    notes, kept = dict.fromkeys(selection.notes), set()
    for model in models:
        for stream in sorted(given_out(model) & set(frame.streams)):
            why = f"{model.ref}: {why_given_out(model, stream)}"
            if not words & {ROLE, stream}:
                kept.add(stream)
                notes[
                    why
                    if has_no_head(model)
                    else f"{why}; name it to turn it all the same (--spaces default,{stream})"
                ] = None
            elif has_no_head(model):
                raise IsomergeError(f"--spaces {spaces}: {why}; choose --spaces default")
            else:
                notes[f"{model.ref}: {turned_outputs(model, stream)}"] = None
    frame, more = readable(without_streams(frame, kept), unread_gains(models))
    return replace(selection, frame=frame if frame.streams or frame.gains else None, notes=(*notes, *more))


def free_frame(spec: Spec, models: Sequence[Model], turned: Collection[str] = ()) -> Spec | None:
    """The largest frame in which models are the same functions: every stream that none gives out, those that are
    ``turned`` all the same, and all gains that may be folded.

    None where there is no such stream.
    """
    frame, _ = choose_frame(spec, ["all"])
    if frame is None:
        return None
    frame, _ = readable(without_streams(frame, given_out_by_any(models) - {*turned}), unread_gains(models))
    return frame.turning_latents() if frame.streams else None


def without_streams(frame: Spec, streams: Collection[str]) -> Spec:
    """The frame in which some streams keep their bases, and so do the gains over them outside of layers. Those
    inside stay free: what reads them is theirs alone, and no output."""
    kept = [
        name
        for name, space in frame.spaces.items()
        if name not in streams
        and (
            not space.residual
            or not set(streams) & set(space.index)
            or frame.scope(space)
            or set(frame.within) & set(space.index)
        )
    ]
    return frame.restrict([*kept, *(shift.name for shift in frame.shifts)])


def readable(frame: Spec, unread: Collection[str]) -> tuple[Spec, list[str]]:
    """The frame with no stream acted on by what needs a gain folded that no tensor reads; and notes."""
    names, notes = {ElementKey.of(key).name for key in unread}, []
    for stream in frame.streams:
        space = frame.spaces[stream]
        gains = sorted(n for n in frame.gains if n in names and stream in frame.spaces[n].index)
        declared = _declared_group(space.group_name, space.folded)
        if gains and declared != space.group_name:
            frame = frame.with_group(stream, declared)
            notes.append(
                f"{stream} keeps to {declared}: no stored tensor reads a gain over it, which then cannot be folded"
            )
    return frame, notes


def _declared_group(group: str, folded: str | None) -> str:
    """The group that needs no folding, in place of one that does."""
    return {"O": "SignedPerm", "OFixingOnes": "Perm"}.get(group, group) if group == folded else group

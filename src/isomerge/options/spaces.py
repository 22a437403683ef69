"""What may move: spaces, layers, tied heads."""

from __future__ import annotations

from isomerge.options.option import FIRST, LATE, Asked, Key, Options, option

PANEL = "Matching"
_UNTIE = "Give a head that is tied to the embeddings weights of its own, where that frees a symmetry."


def aligned(a: Asked) -> str | None:
    """Why what says how models are aligned does nothing."""
    return "nothing is aligned" if a.align is False else None


class LayersOptions(Options):
    """What may move, in which layers."""

    spaces: str | None = option(
        None,
        "What may move: default (inside the layers), all (the residual stream as well), paper, paper-no-rescale, "
        "paper-joint, attention, ffn, none, or a list of roles and spaces such as qk,ov,ff or default,res:Perm "
        "(isomerge inspect shows them). Without it, what the models need: nothing where they are aligned already, "
        "inside the layers where their streams are in one basis, else all.",
        shown=False, panel=FIRST, acts=aligned, recipe=Key(),
    )  # fmt: skip
    layers: str | None = option(
        None, "Match these layers only: 0-4, 0,2,5, head:5 or tail:3.", panel=PANEL, recipe=Key(),
        acts=lambda a: "--spaces none leaves nothing to match" if a.spaces == "none" else aligned(a),
    )  # fmt: skip


class SpacesOptions(LayersOptions):
    """The same, and whether tied heads are given weights of their own."""

    untie: bool = option(False, _UNTIE, "--untie", panel=PANEL, acts=LATE, recipe=Key(aligns=False, experts=False))


class UntieOptions(Options):
    """Tied heads, for commands that match nothing."""

    untie: bool = option(False, _UNTIE, "--untie", acts=LATE)

"""Which spaces are matched: the meaning of ``--spaces``."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.errors import IsomergeError
from isomerge.matching.stream_groups import choose_frame, names_stream
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import NORMS, under_layer_norm

PRESETS = {
    "default": "every exact space inside the layers: heads, QK, VO, neurons, experts, biases, norms",
    "all": "default and the residual stream: the largest group that config.json allows",
    "paper": "Algorithm 1 of the seed paper: QK and VO rotations, FFN permutations, rescaling",
    "paper-joint": "the same spaces, rotation and rescaling solved together: the certified global optimum",
    "paper-no-rescale": "the same without rescaling",
    "paper-no-attention": "its FFN permutations alone (w/o ATTN in its Figure 3)",
    "paper-no-ffn": "its QK and VO rotations and rescaling alone (w/o FFN)",
    "paper-no-rotation": "its FFN permutations and the rescaling of QK and VO, without rotations",
    "attention": "what acts inside attention: heads, QK, VO and their biases",
    "ffn": "what acts inside the MLPs: neurons, experts and their scales",
    "none": "nothing",
}
_ATTENTION = {"h", "g", "qk", "ov", "bias"}
_PAPER = {"qk", "ov", "ff"}


@dataclass(frozen=True)
class Selection:
    """A spec with the chosen spaces active, and how they are solved."""

    spec: Spec
    gauge: bool = True
    """Solve in the canonical gauge (minimum norm, biases folded)."""
    rescale: bool = False
    """Follow the rotations by the paper's rescaling (Eq. 12)."""
    rotate: bool = True
    """Whether continuous spaces are turned, and not only rescaled."""
    joint: bool = False
    """Solve rotation and rescaling together in that last step."""
    frame: Spec | None = None
    """With residual streams: the spec of everything, every stream acted on by the group that was chosen. Where
    models give their streams out, the gains inside of layers are what is left of it beside the local spaces."""
    notes: tuple[str, ...] = ()
    """What the user should know of the choice."""
    norms: bool = False
    """Whether what LayerNorm leaves free is brought onto the anchor's (`isomerge.symmetry.layer_norms`)."""

    @property
    def inner(self) -> Spec:
        """The spec of what is matched inside layers once gains are folded: a latent is then turned, and its gains
        are ones."""
        return self.spec.without(self.spec.gains)

    @property
    def unfolded(self) -> Spec:
        """The spec of what is matched where gains stay as they are: those over latents are scales like all others,
        or left out where they lie over heads as well, which many spaces share."""
        spec, turned = self.spec, {*self.spec.turned_latents}
        shared = {n for n in spec.gains if {*spec.spaces[n].index} & spec.spaces.keys() - turned}
        return spec.without(turned | shared)

    @property
    def streams(self) -> tuple[str, ...]:
        """The residual streams that may be turned."""
        return () if self.frame is None else self.frame.streams


def select_spaces(spec: Spec, spaces: str) -> Selection:
    """Resolve a comma-separated choice of presets, roles and space names.

    Args:
        spec: the bound spec of the checkpoint.
        spaces: for example ``default``, ``paper``, or ``qk,ov,ff``. Roles (``h g qk ov ff scale expert bias``)
            stand for all spaces that play them; ``residual`` (or a stream's name, ``res``, or one of its groups,
            ``res:Perm``) for the residual stream; ``norms`` for what LayerNorm leaves free.

    Raises:
        IsomergeError: a name that is neither a preset, a role nor a space of this architecture.
    """
    roles = {n: s.role for n, s in spec.spaces.items() if n not in spec.residual_names}
    roles |= {s.name: "bias" for s in spec.shifts}
    chosen: set[str] = set()
    if not isinstance(spaces, str):
        raise IsomergeError(f"--spaces {spaces!r}: give one text, with commas, such as 'qk,ov'")
    words = [w.strip() for w in spaces.split(",") if w.strip()]
    if not words:
        raise IsomergeError(f"--spaces is empty: choose from {', '.join([*PRESETS, *roles])}")
    frame, notes = choose_frame(spec, words)
    residual = ("residual",) if spec.residual_names else ()
    residual += (NORMS,) if under_layer_norm(spec) else ()
    for word in words:
        if names_stream(spec, word) or (word == NORMS and under_layer_norm(spec)):
            continue
        named = _preset(word, roles)
        if named is None:
            named = {n for n, role in roles.items() if word in (n, role)}
        if not named and word not in PRESETS and word not in (*_ATTENTION, "ff", "scale", "expert"):
            raise IsomergeError(
                f"--spaces {word}: no such space in {spec.model_type}; choose from "
                f"{', '.join(dict.fromkeys([*PRESETS, *residual, *roles, *roles.values()]))}"
            )
        chosen |= named
    paper = [w for w in words if w.startswith("paper")]
    if paper and len(words) > 1:
        raise IsomergeError(f"--spaces {spaces}: {paper[0]} is an algorithm of its own and stands alone")
    local = spec.restrict(chosen) if paper else spec.restrict(chosen).turning_latents()
    if frame is not None:
        for name in local.turned_latents:
            frame = frame.with_group(name, local.spaces[name].group_name)
    return Selection(
        local,
        gauge=not paper,
        rescale=bool(paper) and paper[0] not in ("paper-no-rescale", "paper-no-attention"),
        rotate=paper != ["paper-no-rotation"],
        joint=paper == ["paper-joint"],
        frame=frame,
        notes=notes,
        norms=bool({"default", "all", NORMS} & {*words}) and under_layer_norm(spec),
    )


def _preset(word: str, local: dict[str, str]) -> set[str] | None:
    roles = {
        "default": set(local.values()),
        "all": set(local.values()),
        "paper": _PAPER,
        "paper-joint": _PAPER,
        "paper-no-rescale": _PAPER,
        "paper-no-attention": _PAPER - _ATTENTION,
        "paper-no-ffn": _PAPER & _ATTENTION,
        "paper-no-rotation": _PAPER,
        "attention": _ATTENTION,
        "ffn": set(local.values()) - _ATTENTION,
        "none": set(),
    }.get(word)
    if roles is None:
        return None
    return {n for n, role in local.items() if role in roles}


def select_layers(layers: str | None, count: int) -> set[int] | None:
    """The layers that ``--layers`` names, of a stack of ``count``; None for all.

    ``0-4`` and ``0,2,5`` count from the input; ``head:5`` are the first five, ``tail:3`` the last three.

    Raises:
        IsomergeError: the text is not of this form, or names a layer that is not there.
    """
    if layers is None:
        return None
    if not isinstance(layers, str):
        raise IsomergeError(f"--layers {layers!r}: give a text, such as '0-4', '0,2,5', 'head:5' or 'tail:3'")
    kind, _, number = layers.partition(":")
    if kind in ("head", "tail") and _is_number(number):
        n = min(int(number), count)
        return set(range(n)) if kind == "head" else set(range(count - n, count))
    chosen: set[int] = set()
    for part in layers.split(","):
        low, dash, high = part.strip().partition("-")
        if not _is_number(low) or (dash and not _is_number(high)):
            raise IsomergeError(f"--layers {layers}: write 0-4, 0,2,5, head:5 or tail:3")
        chosen |= set(range(int(low), int(high if dash else low) + 1))
    if not chosen or max(chosen) >= count:
        raise IsomergeError(f"--layers {layers}: the model has layers 0 to {count - 1}")
    return chosen


def _is_number(text: str) -> bool:
    """Plain digits: ``isdigit`` alone takes superscripts, which are no numbers."""
    return text.isascii() and text.isdigit()

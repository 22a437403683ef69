"""An ordinary transformer as the conversion reads it: what a live Hugging Face module says beside its weights (how
it scores, turns and activates), and its parts by the typed axes of its tensors: queries, keys, neurons, gains,
embeddings.

Nothing here knows an architecture: what a tensor does is said by its axes. A weight that is dual on the residual
stream reads it, one that is plain writes it; the other axes say for whom. A bias belongs to the weight of the same
module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.records import Json
from isomerge.symmetry.axes import Atom, show
from isomerge.symmetry.blocks import Block, gather_blocks, whole_leaves
from isomerge.symmetry.groups import SCALES
from isomerge.symmetry.language.spec import Spec, by_canonical, coverage
from isomerge.symmetry.language.spec_text import parse_spec

ATTENTION = """
model MultiheadAttention
size res = embed_dim
size h = num_heads
size qk = res // h
size ov = res // h
residual res: O
space h: Perm
space qk: GL[h]
space ov: GL[h]
in_proj_weight   [h qk | h qk' | h ov] res'
in_proj_bias     [h qk | h qk' | h ov]
out_proj.weight  res (h ov')
out_proj.bias    res
"""
"""torch.nn.MultiheadAttention as a spec text."""
TURNING = ("dynamic", "longrope")
"""Rotary positions whose angles depend on the length of the input."""


@dataclass(frozen=True)
class Scores:
    """How attention scores are made: their scales per layer, who may read whom, and the angles of rotary
    positions."""

    scales: tuple[float, ...]
    causal: bool
    angles: Tensor | None


def scores_of(module: nn.Module, *, rotary: bool) -> Scores:
    """Read the attributes that all attention modules of transformers have.

    Args:
        module: a model, or one attention module.
        rotary: whether its spec has rotary pairs.

    Raises:
        IsomergeError: rotary angles that are not fixed, or a module without ``scaling``.
    """
    attentions: list[Any] = [m for m in module.modules() if isinstance(getattr(m, "scaling", None), float)]
    if not attentions:
        raise IsomergeError(
            f"{type(module).__name__} has no attention module that tells its scaling, from which the relational "
            "form is made: take a model such as GPT-2, ViT or Llama"
        )
    causal = any(getattr(m, "is_causal", False) for m in attentions)
    if not rotary:
        return Scores(tuple(m.scaling for m in attentions), causal, None)
    turning: Any = next((m for m in module.modules() if hasattr(m, "inv_freq")), None) or _rotary_of(module)
    if getattr(turning, "rope_type", "default") in TURNING:
        raise IsomergeError(
            f"{type(module).__name__}: rotary positions of type {turning.rope_type} change with the length of the "
            "input, which no fixed form describes: take a model with fixed ones"
        )
    # cosine and sine times a factor are scores times its square
    factor = float(getattr(turning, "attention_scaling", 1.0)) ** 2
    angles = turning.inv_freq.detach().double().cpu()
    return Scores(tuple(m.scaling * factor for m in attentions), causal, angles)


def _rotary_of(module: Any) -> Any:
    """The rotary module that belongs to a lone attention module: the one of its own source file."""
    there = vars(sys.modules[type(module).__module__])
    kind = next((k for name, k in there.items() if name.endswith("RotaryEmbedding")), None)
    if kind is None:
        raise IsomergeError(
            f"{type(module).__name__}: no rotary embedding is known for it: convert the whole model"
        )
    return kind(config=module.config)


def setting(spec: Spec, config: Mapping[str, Any], word: str) -> Any:
    """The value of the one config key of a spec that contains a word, such as ``eps``.

    Raises:
        IsomergeError: the spec names none.
    """
    key = next((k for k in spec.config_keys if word in k and config.get(k) is not None), None)
    if key is None:
        raise IsomergeError(
            f"the spec for {spec.model_type} names no config key with {word!r}: add it to its config line"
        )
    return config[key]


def eps_of(module: nn.Module, spec: Spec, config: Mapping[str, Any]) -> float:
    """What the norms of a model add below the root: from its config or, where that does not tell (OPT), from its
    norms.

    Raises:
        IsomergeError: neither tells it.
    """
    if any("eps" in key for key in spec.config_keys):
        return setting(spec, config, "eps")
    told = (getattr(m, name, None) for m in module.modules() for name in ("eps", "variance_epsilon"))
    eps = next((each for each in told if isinstance(each, float)), None)
    if eps is None:
        raise IsomergeError(
            f"neither the config nor the norms of {type(module).__name__} tell what they add below the root (eps), "
            "which the relational form needs: take a model such as GPT-2, ViT or Llama"
        )
    return eps


def attention_spec(module: nn.Module) -> tuple[Spec, dict[str, Tensor]]:
    """The spec of an attention module, and its tensors by the spec's names.

    Raises:
        IsomergeError: not an attention module of torch, or of a model that a spec describes.
    """
    own = {name: p.detach() for name, p in module.named_parameters()}
    if isinstance(module, nn.MultiheadAttention):
        config: Json = {"embed_dim": module.embed_dim, "num_heads": module.num_heads}
        return parse_spec(ATTENTION, config, "torch.nn.MultiheadAttention"), own
    config = config_of(module)
    spec = spec_for(config)
    places = [_places(spec, name) for name in own]
    shared = sorted(set.intersection(*places)) if places else []
    if not shared:
        raise IsomergeError(
            f"{type(module).__name__} is no attention module of {spec.model_type}: pass a whole model, or the "
            "module that holds the projections"
        )
    return spec, {f"{shared[0]}.{name}": p for name, p in own.items()}


def config_of(module: nn.Module) -> Json:
    """The config of a Hugging Face module.

    Raises:
        IsomergeError: it has none.
    """
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise IsomergeError(
            f"{type(module).__name__} has no Hugging Face config: from_standard takes transformers' models and "
            "attention modules, and torch.nn.MultiheadAttention"
        )
    return config.to_dict()


def _places(spec: Spec, local: str) -> set[str]:
    """The modules of layer 0 that have a tensor of this name, as the spec writes them."""
    places = set()
    for line in spec.lines:
        for name in _alternatives(line.name):
            full = name.replace("{l}", "0")
            if full.endswith(f".{local}"):
                places.add(full.removesuffix(f".{local}"))
    return places


def _alternatives(pattern: str) -> list[str]:
    """A name pattern, its ``(a|b)`` written out."""
    start, end = pattern.find("("), pattern.find(")")
    if start < 0:
        return [pattern]
    choices = pattern[start + 1 : end].split("|")
    return [pattern[:start] + c + rest for c in choices for rest in _alternatives(pattern[end + 1 :])]


CONVOLUTION = ("channel", "row", "column")
FREE = {"vocab": "token", "pos": "position", "labels": "label"}
Key = tuple[tuple[int, ...], str]


@dataclass
class Part:
    """One linear map, its unit axes first, the stream's last; or a gain with its offset, both [d]. float64."""

    weight: Tensor
    bias: Tensor | None = None


def parts_of(spec: Spec, tensors: Mapping[str, Tensor]) -> dict[Key, Part]:
    """All parts of a model or of one of its modules, gains folded into what reads through them.

    Args:
        spec: of a pre-norm architecture, or of bare attention.
        tensors: by the names of the spec; of any float dtype.

    Returns:
        (scope, role) -> part: roles ``query`` [G, g, rank, d], ``key`` and ``value`` [G, rank, d], ``output`` [G,
        g, rank, d], ``gate``, ``up`` and ``down`` [ff, d], ``token``, ``position`` and ``start`` [n, d], ``patch``
        [pixels, d], ``label`` and ``logit`` [n, d]. Biases of readers have the weight's shape without d, those of
        writers are [d].

    Raises:
        IsomergeError: a tensor whose axes have no relational form here, or heads that have none.
    """
    scores = {space.group_name for space in spec.spaces.values() if space.role == "qk"}
    if not scores or "ov" not in {space.role for space in spec.spaces.values()}:
        raise without_form(spec, "it has no attention of queries, keys and values")
    if "Complex" in scores and len(scores) > 1:
        raise without_form(spec, "positions do not turn the whole of every head")
    if scores - {"Complex", "GL"}:
        raise without_form(
            spec, "its scores are more than products of queries and keys (norms or clips between, a state space)"
        )
    for name in tensors:
        try:
            spec.match(name)
        except IsomergeError:  # experts, for one, which transformers fuses
            raise without_form(
                spec, f"its module holds {name}, which the spec of its checkpoints does not name"
            ) from None
    return _Reader(spec).read(tensors)


def without_form(spec: Spec, why: str, part: str = "") -> IsomergeError:
    """What to say of an architecture, or a part of one, that cannot be relational here."""
    return IsomergeError(
        f"{part}{spec.model_type} has no relational form here, as {why}: take a model such as GPT-2, ViT or Llama"
    )


class _Reader:
    """Sorts the leaves of one model's blocks."""

    def __init__(self, spec: Spec) -> None:
        if len(spec.streams) != 1:
            raise IsomergeError(
                f"{spec.model_type} has {len(spec.streams)} residual streams: only models with one can be "
                f"relational"
            )
        self.spec, (self.stream,) = spec, spec.streams
        self.scales = {n for n, s in spec.spaces.items() if self.stream in s.index and s.group_name == "Scale"}
        self.role = {name: space.role for name, space in spec.spaces.items()}
        self.parts: dict[Key, Part] = {}
        self.scale_of: dict[Key, set[str]] = {}
        self.roles: dict[tuple[str, tuple[int, ...], int], str] = {}

    def read(self, tensors: Mapping[str, Tensor]) -> dict[Key, Part]:
        """See `parts_of`."""
        leaves = list(self._leaves(tensors))
        # weights first, since a bias on the stream is known by its module's weight alone
        for block, number, atoms, x in leaves:
            if self._is_weight(atoms):
                self._weight(block, number, atoms, x)
        for block, number, atoms, x in leaves:
            if not self._is_weight(atoms):
                self._bias(block, number, atoms, x)
        for scope, role in list(self.parts):
            if (
                role == "gate" and (scope, "up") not in self.parts
            ):  # neurons of a spec that knows no scale of theirs
                self._rename((scope, "gate"), (scope, "up"))
        self._fold()
        return self.parts

    def _rename(self, old: Key, new: Key) -> None:
        self.parts[new], self.scale_of[new] = self.parts.pop(old), self.scale_of.pop(old)

    def _leaves(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Block, int, tuple[Atom, ...], Tensor]]:
        matches = coverage(self.spec, {name: tuple(t.shape) for name, t in tensors.items()})
        names = by_canonical(matches)
        for block in gather_blocks(self.spec, matches):
            whole = block.assemble(lambda name: tensors[names[name]]).detach().cpu().double().contiguous()
            for (view,), atoms, number in whole_leaves(self.spec, block, whole):
                kept = [view.shape[i] for i, a in enumerate(atoms) if not self._dropped(a)]
                yield block, number, atoms, view.reshape(kept)

    def _dropped(self, atom: Atom) -> bool:
        """Whether an axis has size one by its nature: a scale's, or a dimension of one that a tensor is stored
        with."""
        if atom.name.isdigit():
            return atom.name == "1"
        space = self.spec.spaces.get(atom.name)
        if space is None:
            return self.spec.sizes.get(atom.name) == 1
        return space.group_name in SCALES

    def _is_weight(self, atoms: tuple[Atom, ...]) -> bool:
        on_stream = [a for a in atoms if a.name == self.stream]
        others = [a for a in atoms if a.name != self.stream and a.name not in self.scales]
        return any(a.diag for a in atoms) or (bool(on_stream) and bool(others))

    def _refuse(self, block: Block, why: str = "") -> IsomergeError:
        axes = " ".join(map(show, block.axes or ()))
        unknown = f"its axes ({axes}) are those of no query, key, value, output, neurons, embedding or head"
        return without_form(self.spec, why or unknown, f"tensor {block.key} of ")

    # ------------------------------------------------------------------ weights

    def _weight(self, block: Block, number: int, atoms: tuple[Atom, ...], x: Tensor) -> None:
        scope = tuple(v for _, v in block.scope)
        names = [a.name for a in atoms if not self._dropped(a)]
        if any(a.diag for a in atoms):
            role = next((f"gain {a.name}" for a in atoms if a.name in self.scales), "")
        else:
            role = self._role(atoms)
        if not role and any(a.diag for a in atoms):
            raise self._refuse(block, "it is a gain on the stream itself or on what a branch writes")
        if not role or len(names) != x.ndim or names.count(self.stream) != 1:
            raise self._refuse(block)
        if role == "start":
            # class tokens may be several, in the order of the spec
            x = x.reshape(1, -1)
            if (scope, role) in self.parts:
                x = torch.cat([self.parts.pop((scope, role)).weight, x])
        elif not role.startswith("gain"):
            x = self._ordered(role, names, x)
        if (scope, role) in self.parts:
            raise self._refuse(block)
        self.parts[scope, role] = Part(x)
        self.scale_of[scope, role] = {a.name for a in atoms if a.name in self.scales}
        self.roles[self._module(block), scope, number] = role

    def _role(self, atoms: tuple[Atom, ...]) -> str:
        """What a weight does, by its axes; empty when that is not known."""
        reads = any(a.name == self.stream and a.dual for a in atoms)
        units = {self.role.get(a.name, a.name): a for a in atoms if a.name != self.stream and not self._dropped(a)}
        scaled = any(self._dropped(a) and a.name not in self.scales for a in atoms)
        if "qk" in units and set(units) <= {"h", "g", "qk", "pair"} and reads:
            return "key" if units["qk"].dual else "query"
        if "ov" in units and set(units) <= {"h", "g", "ov"}:
            return "value" if reads else "output" if units["ov"].dual else ""
        if set(units) == {"ff"}:
            return ("up" if scaled else "gate") if reads else "down"
        if set(units) == set(CONVOLUTION):
            return "" if reads else "patch"
        if len(units) == 1 and next(iter(units)) in FREE:
            role = FREE[next(iter(units))]
            return ("logit" if role == "token" else role if role == "label" else "") if reads else role
        return "start" if not units and not reads else ""

    def _ordered(self, role: str, names: list[str], x: Tensor) -> Tensor:
        """Unit axes in one order, the stream last; the axes of a head gathered into [G, g, rank]."""
        rank = {"h": 0, "g": 1, "qk": 2, "ov": 2, "pair": 3, **{n: i for i, n in enumerate(CONVOLUTION)}}
        known = [self.role.get(n, n) for n in names]
        order = sorted(range(len(names)), key=lambda i: 9 if names[i] == self.stream else rank.get(known[i], 0))
        x = x.permute(order)
        if role in ("query", "output") and "g" not in known:
            x = x.unsqueeze(1)
        lead = {"query": 2, "output": 2, "key": 1, "value": 1}.get(role, 0)
        return x.reshape(*x.shape[:lead], -1, x.shape[-1])

    # ------------------------------------------------------------------- biases

    def _bias(self, block: Block, number: int, atoms: tuple[Atom, ...], x: Tensor) -> None:
        scope = tuple(v for _, v in block.scope)
        module = self._module(block)
        role = self.roles.get((module, scope, number))
        if role is None:
            raise self._refuse(block)
        part = self.parts[scope, role]
        reads = role in ("query", "key", "value", "up", "gate", "label", "logit")
        names = [a.name for a in atoms if not self._dropped(a)]
        if reads and self.stream not in names:
            part.bias = self._ordered(role, [*names, self.stream], x[..., None])[..., 0]
        elif not reads and names == [self.stream]:
            part.bias = x
        else:
            raise self._refuse(block)

    @staticmethod
    def _module(block: Block) -> str:
        return block.line.name.rpartition(".")[0]

    # -------------------------------------------------------------------- gains

    def _fold(self) -> None:
        """Put the gains and offsets of norms into their readers, layer scales into their writers, and drop them."""
        gains = {key: part for key, part in self.parts.items() if key[1].startswith("gain")}
        for (scope, role), part in self.parts.items():
            for name in self.scale_of[scope, role] if not role.startswith("gain") else ():
                gain = gains.get((scope, f"gain {name}"))
                if gain is None:
                    continue
                if role in ("output", "down"):
                    part.weight = part.weight * gain.weight
                    part.bias = None if part.bias is None else part.bias * gain.weight
                    continue
                if gain.bias is not None:
                    offset = part.weight @ gain.bias
                    part.bias = offset if part.bias is None else part.bias + offset
                part.weight = part.weight * gain.weight
        for key in gains:
            del self.parts[key]

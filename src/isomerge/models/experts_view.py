"""A dense model as one with experts: a view whose attention, norms and tables are the dense model's own, and whose
experts are made of the MLPs of other models when they are read.

Every expert reads the stream behind the dense model's norm and adds to its stream, so that experts are given in its
frame. Neurons inside may have any order; what counts is the stream's basis, and the gain that stands in front. So
an alignment onto the base moves the expert's MLP and its norm together, and what is left between the two gains goes
into the readers,

    W' = W diag(g / g_base),

which is a move of the gain's scale, and changes nothing where the gains are equal. A router whose weights sum to
one over the experts that it chooses makes of copies of the dense model's own MLP that model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from isomerge.archs.expert_targets import ExpertTarget
from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.config.agreement import as_transformers_reads, config_value
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.stored_form import cast, out_code
from isomerge.models.zero_gains import units_moved_by
from isomerge.records import Json
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block

OF_FILES = ("dtype", "torch_dtype", "head_dim")
"""Keys that go from one config to another though a class may not list them."""
PLAIN = "full_attention"
"""What every layer is where no `layer_types` are said."""
Part = Callable[[str], Tensor]
"""Gives a tensor of a dense model's MLP by its canonical name, in the dense model's frame: float, of its shape."""
Rows = Callable[[int], Tensor]
"""Gives the rows of a router by the number of the layer: float [experts, width]."""


@dataclass(frozen=True)
class ExpertNumbers:
    """How many experts there are, and how many a token goes to."""

    experts: int
    per_token: int
    shared: int = 0


@dataclass(frozen=True)
class DenseMlps:
    """The MLPs of a dense model, of which experts are made."""

    model: Model
    target: ExpertTarget

    @cached_property
    def layers(self) -> list[dict[str, str]]:
        """Of every layer, the canonical name of each tensor of its MLP, by what the target calls it.

        Raises:
            IsomergeError: a layer lacks one.
        """
        by_head: dict[str, dict[str, str]] = {}
        for name in self.model.names:
            for tail in self.target.dense:
                if name.endswith(f".{tail}"):
                    by_head.setdefault(name.removesuffix(tail), {})[tail] = name
        ordered = sorted(by_head, key=lambda head: [int(part) for part in head.split(".") if part.isdecimal()])
        for head in ordered:
            if lacking := [tail for tail in self.target.dense if tail not in by_head[head]]:
                raise IsomergeError(
                    f"{self.model.ref}: layer {head.rstrip('.')} has no {lacking[0]}, of which experts are made"
                )
        if not ordered:
            raise IsomergeError(f"{self.model.ref}: no layer has {self.target.dense[0]}, of which experts are made")
        return [by_head[head] for head in ordered]

    def stored(self, layer: int, tail: str) -> str:
        """The name under which a tensor is stored."""
        return self.model.names[self.layers[layer][tail]]

    def prefix(self, layer: int) -> str:
        """What the stored names of a layer begin with."""
        first = self.target.dense[0]
        return self.stored(layer, first).removesuffix(first)

    def shape(self, layer: int, tail: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self.model.checkpoint.tensors[self.stored(layer, tail)].shape)

    @property
    def neurons(self) -> int:
        """How many neurons an MLP has."""
        return self.shape(0, self.target.dense[0])[0]

    @property
    def width(self) -> int:
        """The width of the stream that an MLP reads."""
        return self.shape(0, self.target.dense[0])[1]


def experts_config(base: Model, target: ExpertTarget, numbers: ExpertNumbers) -> Json:
    """The config.json of a model with experts: what both classes know of the dense model's, and the target's own
    keys.

    Raises:
        IsomergeError: the dense model computes something that the target has no key for.
    """
    raw, full = base.config, as_transformers_reads(base.config)
    plain = as_transformers_reads({"model_type": target.model_type})
    if full is None or plain is None:
        raise IsomergeError(
            f"{base.ref}: this version of transformers cannot read its config.json, or has no class for "
            f"{target.model_type}: update transformers"
        )
    kept = {key: full[key] for key in full if key in plain and (key in raw or full[key] != plain[key])}
    kept |= {key: raw[key] for key in OF_FILES if key in raw}
    kept = {key: value for key, value in kept.items() if key not in ("transformers_version", "architectures")}
    neurons = DenseMlps(base, target).neurons
    heads = base.config.get("head_dim") or full["hidden_size"] // full["num_attention_heads"]
    said = target.settings(
        {
            "experts": numbers.experts,
            "per_token": numbers.per_token,
            "neurons": neurons,
            "shared_neurons": neurons * numbers.shared,
            "score_scale": heads**-0.5,
        }
    )
    source = str(base.config["model_type"])
    classes = [target.class_name(name, source) for name in raw.get("architectures") or ()]
    config = {**({"architectures": classes} if classes else {}), **kept, **said}
    read = as_transformers_reads(config)
    for key in (key for key in base.spec.config_keys if key not in said):
        mine, theirs = config_value(full, key), config_value(read or {}, key)
        if _plain(mine) != _plain(theirs):
            raise IsomergeError(
                f"{base.ref}: config.json says {key}={mine!r}, which {target.stem} has no place for (it reads "
                f"{theirs!r}): its experts would read another stream; choose another `architecture`"
            )
    return config


def _plain(value: Any) -> Any:
    """A value of config.json, with one form for what says nothing."""
    if isinstance(value, list) and all(entry == PLAIN for entry in value):
        return None
    return value or None


def with_experts(
    base: Model,
    target: ExpertTarget,
    config: Mapping[str, Any],
    *,
    experts: Sequence[Part],
    shared: Sequence[Part],
    rows: Rows,
    shared_rows: Rows,
    sources: Sequence[Checkpoint],
    origin: str,
    dtype: str | None = None,
) -> Checkpoint:
    """The view. No weights are read here.

    Args:
        base: the dense model, which gives all but the experts.
        target: the architecture.
        config: of `experts_config`.
        experts, shared: what reads the tensors of each expert, and of a shared one.
        rows, shared_rows: of the routers, asked when they are read.
        sources: the checkpoints that experts are read from.
        origin: in words, complete: how it was made.
        dtype: what weights are rounded to, once; what the dense model stores when None.
    """
    mlps = DenseMlps(base, target)
    derived: dict[str, Derived] = {}

    def add(name: str, shape: tuple[int, ...], like: str, read: Callable[[], Tensor]) -> None:
        stored = base.checkpoint.tensors[like]
        code = out_code(stored.dtype, dtype)
        derived[name] = Derived(replace(stored, dtype=code, shape=shape), lambda: cast(read(), code, name))

    for layer, names in enumerate(mlps.layers):
        head, first = mlps.prefix(layer), mlps.stored(layer, target.dense[0])
        width = mlps.width
        add(head + target.router, (len(experts), width), first, partial(rows, layer))
        if target.shared_gate is not None and shared:
            add(head + target.shared_gate, (len(shared), width), first, partial(shared_rows, layer))
        for tail, like in target.zeros.items():
            if head + tail not in base.checkpoint.tensors:
                count = base.checkpoint.tensors[head + like].shape[0]
                add(head + tail, (count,), head + like, partial(torch.zeros, count))
        for table, parts in ((target.experts, experts), (target.shared_experts, shared)):
            for tail, of in table.items():
                shapes = [mlps.shape(layer, part) for part in of]
                shape = (sum(rows_ for rows_, *_ in shapes), *shapes[0][1:])
                like = mlps.stored(layer, of[0])
                own = [partial(_joined, part, [names[name] for name in of]) for part in parts]
                if "{e}" in tail:
                    for number, read in enumerate(own):
                        add(head + tail.replace("{e}", str(number)), shape, like, read)
                elif own and table is target.experts:
                    add(head + tail, (len(own), *shape), like, partial(_stacked, own))
                elif own:
                    add(head + tail, shape, like, own[0])
    gone = [mlps.stored(layer, tail) for layer in range(len(mlps.layers)) for tail in target.dense]
    return base.checkpoint.derive(
        derived, sources=[base.checkpoint, *sources], origin=origin, config=config, drop=gone
    )


def _joined(part: Part, names: Sequence[str]) -> Tensor:
    """Tensors of one MLP one below the other."""
    return torch.cat([part(name) for name in names]) if len(names) > 1 else part(names[0])


def _stacked(parts: Sequence[Callable[[], Tensor]]) -> Tensor:
    return torch.stack([part() for part in parts])


@dataclass
class ExpertFrame:
    """What reads the MLP of a model in the frame of another one."""

    model: Model
    base: Model
    alignment: Alignment | None = None
    """What brings the model to the base; None: it is read as it is stored."""
    _held: tuple[frozenset[Block], dict[str, Tensor]] | None = field(default=None, repr=False)
    """The layer that was moved last, as its tensors are asked for one after the other."""

    def read(self, name: str) -> Tensor:
        """A tensor by its canonical name: as stored, or in the working dtype where it is moved or computed."""
        if self.alignment is None:
            stored, checkpoint = self.model.names[name], self.model.checkpoint
            finer = checkpoint.is_finer(stored)
            dtype = working_dtype([self.model]) if finer else torch_dtype(checkpoint.tensors[stored].dtype)
            return self.model.read(stored, dtype)
        together = self._together[name]
        if self._held is None or self._held[0] != together:
            self._held = together, self._moved(together, self.alignment)
        return self._held[1][name]

    def writes(self, name: str) -> bool:
        """Whether a tensor writes to a residual stream."""
        return not self.model.declared.match(name).line.writes.isdisjoint(self.model.declared.streams)

    @cached_property
    def _together(self) -> dict[str, frozenset[Block]]:
        """The blocks that must be moved with each tensor, by its canonical name: its unit's, its norm's gain."""
        alignment = self.alignment
        assert alignment is not None
        units = units_moved_by(alignment, self.model)
        unit_of = {block.key: frozenset(unit.blocks) for unit in units for block in unit.blocks}
        together: dict[str, frozenset[Block]] = {}
        for unit in units:
            gains = {gain.key for block in unit.blocks if (gain := self._gain_of(block)) is not None}
            moved_with = frozenset(unit.blocks).union(*(unit_of[key] for key in gains))
            together |= {name: moved_with for block in unit.blocks for name in block.canonical}
        return together

    @cached_property
    def _gains(self) -> dict[tuple[frozenset[str], tuple[tuple[str, int], ...]], Block]:
        """The blocks of gains, by the names of their axis' atoms and their layer."""
        gains = {}
        for block in self.model.blocks:
            if block.atoms and all(atom.diag for atom in block.atoms):
                gains[block.names, block.scope] = block
        return gains

    def _gain_of(self, block: Block) -> Block | None:
        """The gain in front of what a block reads; None where it reads no stream."""
        return self._gains.get((block.reads, block.scope))

    def _moved(self, blocks: frozenset[Block], alignment: Alignment) -> dict[str, Tensor]:
        """The tensors of a layer's MLP in the base's frame, by canonical name."""
        dtype = working_dtype([self.model, self.base])
        moved = alignment.applied(self.model.unit(blocks, dtype))
        parts: dict[str, Tensor] = {}
        for block, tensor in moved.items():
            gain = self._gain_of(block)
            if gain is not None and gain in moved:
                mine = moved[gain] + gain.line.less
                theirs = self.base.read(self.base.names[gain.canonical[0]], dtype) + gain.line.less
                # behind a gain of zero the base's stream has nothing to read
                tensor = tensor * torch.where(theirs == 0, 0.0, mine / theirs.where(theirs != 0, 1.0))
            parts |= {name: part.contiguous() for name, part in block.split(tensor)}
        return parts


@dataclass(frozen=True)
class ExpertPart:
    """One expert's tensors, as the recipe has them: ``(W + noise) scale``, where the scale is of what it writes."""

    frame: ExpertFrame
    name: str
    """Its place among the experts, on which its noise depends."""
    noise_scale: float | None = None
    residual_scale: float | None = None
    seed: int = 0

    def read(self, name: str) -> Tensor:
        """A tensor by its canonical name."""
        tensor = self.frame.read(name)
        if self.noise_scale:
            wide = tensor.to(working_dtype([self.frame.model]))
            tensor = wide + self.noise_scale * normal(self.seed, (self.name, name), wide)
        if self.residual_scale is not None and self.frame.writes(name):
            tensor = tensor.to(working_dtype([self.frame.model])) * self.residual_scale
        return tensor


def normal(seed: int, place: Sequence[str], like: Tensor) -> Tensor:
    """Numbers of the standard normal distribution that depend on the seed and the place alone, like a tensor."""
    digest = sha256("/".join((str(seed), *place)).encode()).digest()
    rng = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randn(like.shape, generator=rng, dtype=like.dtype)

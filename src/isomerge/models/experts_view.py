"""A dense model as one with experts: a view whose attention, norms and tables are the dense model's own, and whose
experts are made of the MLPs of other models when they are read.

Every expert reads the stream behind the dense model's norm and adds to its stream, so that experts are given in its
frame (`isomerge.models.expert_frames`). A router whose weights sum to one over the experts that it chooses makes of
copies of the dense model's own MLP that model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from isomerge.archs.expert_targets import ExpertTarget
from isomerge.checkpoint.dtypes import byte_size
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.config.agreement import as_transformers_reads, config_value
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.models.stored_form import cast, out_code
from isomerge.records import Json

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
        nbytes = byte_size(code, shape)
        assert nbytes is not None
        info = replace(stored, name=name, dtype=code, shape=shape, nbytes=nbytes, offset=-1)
        derived[name] = Derived(info, lambda: cast(read(), code, name))

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

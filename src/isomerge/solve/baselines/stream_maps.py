"""The maps of residual streams: where they start, what branches write, and how the two are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from isomerge.config.tied_head import is_tied
from isomerge.matching.gram import Leaf
from isomerge.matching.transport_maps import likeness, transport_map
from isomerge.observe.stats.taps import Activations
from isomerge.solve.baselines.flow_leaves import Maps, Part, Step
from isomerge.solve.baselines.transport_settings import POOLED, TransportSettings
from isomerge.symmetry.alignment import element_key
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.language.spec import Spec


class StreamMaps:
    """The state of every residual stream along the flow.

    Args:
        maps: where maps are kept.
        spec: the permutations that are transported.
        full: the model's own spec, which names the norms' scales.
        config: the parsed ``config.json``.
        settings: the method.
        compare: what a part's outputs are compared by.
        anchor: the anchor's activations, not centred.
    """

    def __init__(
        self,
        maps: Maps,
        spec: Spec,
        full: Spec,
        config: dict[str, Any],
        settings: TransportSettings,
        compare: Callable[[Part], Leaf],
        anchor: Activations | None,
    ) -> None:
        self.maps, self.spec, self.full, self.config = maps, spec, full, config
        self.settings, self.compare, self.anchor = settings, compare, anchor
        self.streams = tuple(n for n in full.streams if n in spec.spaces)
        self.start: dict[str, str] = {}
        """The map of every stream after the embeddings, where every stack begins."""
        self.now: dict[str, str] = {}
        self.at_norm: dict[str, str] = {}
        """The maps of what lies behind a norm (or a layer scale), by the element key of its scale."""
        self.written: dict[str, str] = {}
        """The maps of what blocks write, by block key."""
        self.level: dict[str, Tensor] = {}
        """How large the anchor's streams are, by coordinate."""

    def begin(self, tables: Sequence[Part]) -> None:
        """The streams' first maps: of embeddings of tokens, positions and patches."""
        for stream in self.streams:
            mine = [p for p in tables if any(a.name == stream for a in p.atoms)]
            if not mine:
                continue
            groups = [mine] if self.settings.residual in POOLED else [[p] for p in mine]
            for group in groups:
                key = self._branch(stream, group)
                self.written |= {p.block.key: key for p in group}
            kept = [(self.written[g[0].block.key], self._size(g)) for g in groups]
            name = f"{stream} at the start"
            self.start[stream] = kept[0][0] if len(kept) == 1 else self.maps.keep(name, self._mixed(kept))
        self.now = dict(self.start)

    def write(self, parts: Sequence[Part]) -> None:
        """What a branch writes, and the stream after it."""
        for stream in self.streams:
            mine = [p for p in parts if any(a.name == stream for a in p.atoms)]
            before = self.now.get(stream)
            if not mine:
                continue
            fixed = before is not None and self.settings.residual == "only_residual"
            key = before if fixed and before else self._branch(stream, mine)
            for part in mine:
                self.written[part.block.key] = key
                if scale := self._scale(part, stream):
                    self.at_norm[scale] = key
            if before is None or self.settings.residual == "no_residual":
                self.now[stream] = key
            elif not fixed:
                sizes = self.level.get(stream), self._size(mine)
                mixed = self._mixed([(before, sizes[0]), (key, sizes[1])])
                self.now[stream] = self.maps.keep(f"{stream} after {mine[0].block.key}", mixed)

    def _branch(self, stream: str, parts: Sequence[Part]) -> str:
        """A map for what some layers write into a stream."""
        only = self.spec.restrict([stream])
        (each,) = likeness(only, [self.compare(p) for p in parts]).values()
        cost = each.cost(self.settings.how).arrange((f"{stream}-", f"{stream}+"))
        return self.maps.keep(f"{stream} from {parts[0].block.key}", transport_map(cost, self.settings.how))

    def _mixed(self, kept: Sequence[tuple[str, Tensor | None]]) -> Tensor:
        """The mean of maps, weighted by the sizes [n] of what arrives by them as the residual policy says."""

        maps = [self.maps.tensors[key].double() for key, _ in kept]
        sizes = [size for _, size in kept if size is not None]
        policy = self.settings.residual
        if policy == "averaging" or len(sizes) < len(kept):
            return torch.stack(maps).mean(0)
        each = torch.stack([s.mean().expand_as(s) if policy == "weighted_scalar" else s for s in sizes])
        total = each.sum(0)
        shares = torch.where(total > 0, each / total, 1 / len(sizes))
        return (torch.stack(maps) * shares.unsqueeze(1)).sum(0)

    def _size(self, parts: Sequence[Part]) -> Tensor | None:
        """The mean absolute activation [n] of what the anchor's layers write; None without activations."""
        if self.anchor is None:
            return None
        outputs = [self.anchor.values.get(f"{p.block.key}:out") for p in parts]
        sizes = [x.double().abs().mean(0) for x in outputs if x is not None]
        if sizes or parts[0].block.scope:
            return sum(sizes[1:], sizes[0]) if sizes else None
        # a table that is a parameter of its own is its own activation
        at = next(k for k, a in enumerate(parts[0].atoms) if a.name in self.streams)
        return parts[0].x.double().abs().movedim(at, -1).flatten(0, -2).mean(0)

    def measure(self, part: Part) -> None:
        """Remember how large the anchor's stream is: before a norm of a branch, or after a norm of the stream
        itself."""
        stream = next((a for a in part.atoms if a.name in self.streams), None)
        if stream is None or self.anchor is None:
            return
        values = self.anchor.values
        if f"{part.block.key}:in" in values:
            self.level[stream.name] = (
                values[f"{part.block.key}:{'in' if stream.diag else 'out'}"].double().abs().mean(0)
            )

    def _scale(self, part: Part, stream: str) -> str | None:
        """The element key of the scale over a stream that acts on a part: it names the norm."""
        for atom in part.atoms:
            space = self.full.spaces.get(atom.name)
            if space is not None and space.residual and stream in space.index:
                return element_key(self.full, space, dict(part.block.scope))
        return None

    def steps(self, part: Part) -> list[Step]:
        """The maps of the streams on a part, as they stand where the model computes it."""
        steps = []
        for at, atom in enumerate(part.atoms):
            if atom.name in self.streams and (key := self._arrives(part, atom)):
                steps.append(Step((), (at,), key))
        return steps

    def _arrives(self, part: Part, atom: Atom) -> str | None:
        now = self.now.get(atom.name)
        line, stem = part.block.line, part.block.key.rpartition(".")[0]
        tie = next(
            (other for other in self.full.lines if not other.indices and other.canonical({}) == line.tied), None
        )
        if tie is not None and is_tied(self.config, stored=True):
            return self.written.get(tie.canonical(dict(part.block.scope)), now)
        if scale := self._scale(part, atom.name):
            return self.at_norm.setdefault(scale, now) if now else None
        if atom.dual or atom.diag:
            return now
        return self.written.get(part.block.key) or self.written.get(f"{stem}.weight", now)

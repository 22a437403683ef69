"""The flow of transport maps through a transformer (Imfeld et al., ICLR 2024, section 4), over typed axes.

Maps are made in the order in which a model computes. A layer's input is transported by the map that it arrives
with, its neurons by a map of their own, and that map is what the next layer's input arrives with:

* What is read from a residual stream arrives with the stream's map: at a norm for its readers, else as it stands.
* Queries and keys end in the softmax, so that their maps go nowhere; the values' map goes on into the output layer.
* What a branch writes has a map of its own. The residual policy makes the stream's next map of it and the stream's.
* Biases, norms and their gains have no maps of their own: they follow.

Only one group of tensors of each model is in memory at a time (a layer's attention, or its MLP), beside the maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from isomerge.matching.gram import Leaf
from isomerge.matching.permutations import permutation_spec
from isomerge.observe.stats.taps import Activations
from isomerge.progress import Observer, quiet
from isomerge.solve.baselines.flow_leaves import Maps, Part, in_flow, stack_of
from isomerge.solve.baselines.neuron_maps import NeuronMaps
from isomerge.solve.baselines.stream_maps import StreamMaps
from isomerge.solve.baselines.transport_settings import TransportSettings
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import element_key, scope_of
from isomerge.symmetry.blocks import Block, leaves

NOTE = "transport maps do not preserve the source's function: the aligned source is no model of its own"


class TransportFlow:
    """Finds the maps of a whole model.

    Args:
        pair: the two models and the plan; spaces that are not selected are not transported.
        settings: the method.
        observer: told of progress.
        activations: of the anchor and of the source (`isomerge.solve.baselines.branches`); needed where the cost is
            of activations or the residual policy is weighted.
    """

    def __init__(
        self,
        pair: PairSolver,
        settings: TransportSettings,
        observer: Observer = quiet,
        activations: tuple[Activations, Activations] | None = None,
        *,
        check: bool = True,
    ) -> None:
        if check:
            settings.check(activations is not None)
        self.pair, self.settings, self.observer = pair, settings, observer
        self.full, chosen = pair.anchor.spec, pair.plan.selection
        streams = chosen.frame.streams if chosen.frame is not None else ()
        self.spec = permutation_spec(self.full, [*chosen.spec.spaces, *streams])
        self.local = self.spec.restrict(n for n in self.spec.spaces if n not in streams)
        self.skipped = {b.key for u in pair.plan.units if u.key in pair.plan.skipped for b in u.blocks}
        self.blocks = in_flow([b for unit in pair.plan.units for b in unit.blocks], self.full)
        self.centred = activations and tuple(a.centred() for a in activations)
        self.maps, self.from_weights = Maps(), []
        self.neurons = NeuronMaps(self.maps, self.local, self.full, settings, self._compared)
        raw, config = activations and activations[0], pair.anchor.config
        self.stream = StreamMaps(self.maps, self.spec, self.full, config, settings, self._compared, raw)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without what the maps were made from: activations, and who is told of progress."""
        return _of_maps, (self.pair, self.settings, self.maps)

    # -------------------------------------------------------------------- flow

    def run(self) -> dict[str, Any]:
        """Make all maps; returns the report."""
        groups, stack = list(self._groups()), ""
        first = next((k for k, b in enumerate(self.blocks) if b.scope), len(self.blocks))
        self.stream.begin([p for b in self.blocks[:first] for p in self._parts([b]) if p.writes and not p.reads])
        for number, group in enumerate(groups):
            self.observer(f"transport maps, {group[0].key}", number, len(groups))
            if stack_of(group[0]) not in ("", stack):
                stack = stack_of(group[0])
                self.stream.now = dict(self.stream.start)
            self._visit(list(self._parts(group)))
        hard = all(bool(((t == 0) | (t == 1)).all()) for t in self.maps.tensors.values())
        exact = self.settings.exact and hard and set(self.stream.start) == set(self.stream.streams)
        return {
            "settings": self.settings.record(),
            "streams": list(self.stream.streams),
            "maps": len(self.maps.tensors),
            "hard": hard,
            "marginal_error": self.maps.marginal_error(),
            "preserves_function": exact,
            "note": "" if exact else NOTE,
            "compared_by_weights": sorted(set(self.from_weights)),
        }

    def moved(self, block: Block, tensor: Tensor) -> Tensor:
        """The source's block transported to the anchor's places, in its own dtype."""
        transported = tensor.clone()
        if tensor.is_floating_point():
            for (view,), _, number in leaves(self.full, block, transported):
                view.copy_(self.maps.along(f"{block.key}#{number}", view))
        return transported

    def permutations(self) -> dict[str, Tensor]:
        """The elements of `permutation_spec`, int64 [*batch, n] by element key, where all maps are one symmetry."""

        permutations = {name: self.maps.tensors[key].argmax(0) for name, key in self.stream.start.items()}
        for key, nested in self.neurons.elements.items():
            space = self.spec.space_of(key)
            bases = [b for b in space.index if b in self.spec.spaces]
            batch = [d for d in nested.dims if d[-1] not in "+-"]
            data = nested.arrange((*batch, *(f"{b}{end}" for b in bases for end in "-+"), *nested.dims[-2:]))
            if bases:  # one base: its j-th block goes to the place i where p[i] = j
                (base,) = bases
                own = element_key(self.spec, self.spec.spaces[base], scope_of(self.spec, key))
                places = self.neurons.elements[own].data.argmax(-2).argsort(-1)
                data = data[..., torch.arange(len(places)), places, :, :]
            permutations[key] = data.argmax(-2)
        return permutations

    def _groups(self) -> Iterator[list[Block]]:
        """Blocks that share maps inside a layer, in the order of the first."""
        groups: dict[Any, list[Block]] = {}
        for block in self.blocks:
            hidden = [a.name for a in block.atoms if a.name in self.local.spaces]
            key = (block.scope, self._root(hidden[0])) if hidden else block.key
            groups.setdefault(key, []).append(block)
        yield from groups.values()

    def _root(self, name: str) -> str:
        bases = [b for b in self.local.spaces[name].index if b in self.local.spaces]
        return self._root(bases[0]) if bases else name

    def _parts(self, group: Sequence[Block]) -> Iterator[Part]:
        for block in group:
            a, b = (self.pair.load_block(m, block) for m in (self.pair.anchor, self.pair.source))
            if not a.is_floating_point():
                continue
            for (x, y), axes, number in leaves(self.full, block, a, b):
                inside = {a.name for a in axes} if block.key not in self.skipped else set()
                hidden = tuple(n for n in self.local.ordered if n in inside)
                streams = [a for a in axes if a.name in self.full.streams and not a.diag]
                reads = any(a.dual for a in streams)
                writes = any(not a.dual and x.numel() > self.full.sizes[a.name] for a in streams)
                yield Part(block, number, x, y, axes, hidden, reads, writes)

    def _visit(self, parts: list[Part]) -> None:
        """Make the maps of one group and write down what moves its blocks: inputs, neurons, outputs."""
        for part in parts:
            if part.reads:
                self.maps.add(part, self.stream.steps(part))
        self.neurons.visit(parts)
        self.stream.write([p for p in parts if p.writes and not p.reads and p.block.scope])
        for part in parts:
            self.stream.measure(part)
            if not part.reads:
                self.maps.add(part, self.stream.steps(part))

    def _compared(self, part: Part) -> Leaf:
        """What a part's outputs are compared by: rows of weights, the source's with aligned inputs, or
        activations."""
        key = f"{part.block.key}:out"
        if self.settings.cost == "activations" and self.centred is not None:
            a, b = self.centred
            if all(key in side.values and _varies(side.values[key]) for side in (a, b)):
                views = list(a.taps[key].leaves(self.full, a.values[key], b.values[key]))
                (x, y), axes = views[part.number]
                return x, y, axes
            self.from_weights.append(part.block.key)
        return part.x, self.maps.along(part.name, part.y), part.atoms


def _of_maps(pair: PairSolver, settings: TransportSettings, maps: Maps) -> TransportFlow:
    """A flow whose maps are made already."""
    flow = TransportFlow(pair, settings, check=False)
    flow.maps.tensors, flow.maps.steps = maps.tensors, maps.steps
    return flow


def _varies(centred: Tensor) -> bool:
    """Whether activations tell anything: those of a token type that all tokens have do not.

    Centred float32 activations of constants are rounding, far below the 1e-6 that is asked for here.
    """
    return bool((centred.abs().amax(0) > 1e-6).any())

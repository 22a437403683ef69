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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from isomerge.matching.gram import Cross, Leaf
from isomerge.models.tied_tensors import is_tied
from isomerge.observe.stats.taps import Activations
from isomerge.progress import Observer, quiet
from isomerge.records import Json
from isomerge.research.baselines.permutations import permutation_spec
from isomerge.research.baselines.transport_maps import (
    POOLED,
    Likeness,
    Spaces,
    TransportSettings,
    joint_map,
    likeness,
    nested_maps,
    product,
    transport_map,
    transported,
)
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import element_key, scope_of
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.language.spec import Spec


@dataclass(frozen=True)
class Step:
    """One map on one leaf: the axes that number maps, the axes that are transported, and the name of the map."""

    batch: tuple[int, ...]
    axes: tuple[int, ...]
    map: str


@dataclass(frozen=True)
class Part:
    """A leaf of a block with what is known of its axes."""

    block: Block
    number: int
    x: Tensor
    """The anchor's view."""
    y: Tensor
    """The source's view, as it is stored."""
    atoms: tuple[Atom, ...]
    hidden: Spaces
    """Active spaces inside the layer, bases first."""
    reads: bool
    """A stream is its input."""
    writes: bool
    """A stream is its output, and it is no vector."""

    @property
    def name(self) -> str:
        """The leaf, in the whole model."""
        return f"{self.block.key}#{self.number}"

    @property
    def place(self) -> str:
        """The same for a module's weight and its bias."""
        return f"{self.block.key.rpartition('.')[0]}#{self.number}"


@dataclass
class Maps:
    """All maps of a model, and which of them move which leaf."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Maps by name, float32 [*batch, *source, *anchor]: what is kept is what is used, also after an
    interruption."""
    steps: dict[str, list[Step]] = field(default_factory=dict)
    """By leaf, in the order of action."""

    def keep(self, name: str, matrix: Tensor) -> str:
        """Remember a map; returns its name."""
        self.tensors[name] = matrix.float()
        return name

    def add(self, part: Part, steps: Sequence[Step]) -> None:
        """More maps of one leaf."""
        self.steps.setdefault(part.name, []).extend(steps)

    def along(self, leaf: str, view: Tensor) -> Tensor:
        """The source's leaf as far as its maps are known, float64 if there are any."""
        for step in self.steps.get(leaf, ()):
            view = transported(view.double(), step.batch, step.axes, self.tensors[step.map].double())
        return view

    def marginal_error(self) -> float:
        """How far the rows of a map are from summing to one (its columns do), at worst."""
        used = {step.map: len(step.axes) for steps in self.steps.values() for step in steps}
        errors = [(self.tensors[name].double().flatten(-k).sum(-1) - 1).abs().max() for name, k in used.items()]
        return max(map(float, errors), default=0.0)


def in_flow(blocks: Sequence[Block], spec: Spec) -> list[Block]:
    """Blocks in the order in which a model computes: stacks layer by layer, the rest where the spec has it."""
    rank = {line.name: k for k, line in enumerate(spec.lines)}
    first: dict[str, int] = {}
    for line in spec.lines:
        first.setdefault(line.stack, rank[line.name])

    def place(block: Block) -> tuple[int, tuple[int, ...], int]:
        own = rank[block.line.name]
        if not block.scope:
            return own, (), own
        return first[stack_of(block)], tuple(v for _, v in block.scope), own

    return sorted(blocks, key=place)


def stack_of(block: Block) -> str:
    """The stack that a block of a layer belongs to, empty outside the layers."""
    return block.line.stack if block.scope else ""


NOTE = "transport maps do not preserve the source's function: the aligned source is no model of its own"


class TransportFlow:
    """Finds the maps of a whole model.

    Args:
        pair: the two models and the plan; spaces that are not selected are not transported.
        settings: the method.
        observer: told of progress.
        activations: of the anchor and of the source (`transport_solver.capture_branches`); needed where the cost
            is of activations or the residual policy is weighted.
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

    def run(self) -> Json:
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
            "settings": asdict(self.settings),
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
            a, b = (m.assemble(block, self.pair.dtype) for m in (self.pair.anchor, self.pair.source))
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


@dataclass
class Inside:
    """The maps of one group's neurons."""

    own: dict[str, list[Cross]]
    """Of one place alone (queries, keys)."""
    joints: list[tuple[Spaces, Cross]]
    """Of several axes together, across heads."""
    nested: dict[str, Cross]
    """Of every space."""

    def factors(self, part: Part) -> tuple[list[str], list[Cross]]:
        """The axes of a part that are mapped, and the maps whose product it is."""
        rest, maps = list(part.hidden), []
        if part.place in self.own:
            maps = self.own[part.place]
            return [n for n in rest if any(f"{n}-" in f.dims for f in maps)], maps
        for names, joint in self.joints:
            if set(names) <= set(rest):
                rest, maps = [n for n in rest if n not in names], [*maps, joint]
        maps += [self.nested[n] for n in rest if n in self.nested]
        return [n for n in part.hidden if n not in rest or n in self.nested], maps

    def lacks(self, part: Part) -> bool:
        """Whether a part has neurons that no map is known of yet."""
        return set(self.factors(part)[0]) != set(part.hidden)


class NeuronMaps:
    """Makes the maps of one group of parts after the other.

    Args:
        maps: where they are kept.
        local: the permutations inside layers that are transported.
        full: the model's own spec.
        settings: the method.
        compare: what a part's outputs are compared by.
    """

    def __init__(
        self, maps: Maps, local: Spec, full: Spec, settings: TransportSettings, compare: Callable[[Part], Leaf]
    ) -> None:
        self.maps, self.local, self.full, self.settings, self.compare = maps, local, full, settings, compare
        self.elements: dict[str, Cross] = {}
        """The nested maps by element key; those of a whole stack are made in its first layer."""

    def visit(self, parts: Sequence[Part]) -> None:
        """Make the maps of a group and write down what they move; inputs must be aligned already."""
        inside = self._inside([p for p in parts if p.hidden and p.reads and not p.writes], parts)
        for part in parts:
            self.maps.add(part, self._steps(part, inside))

    def _inside(self, made: Sequence[Part], parts: Sequence[Part]) -> Inside:
        """The maps of a group's neurons, from the layers that make them."""
        how, inside = self.settings, Inside({}, [], {})
        pool: list[Leaf] = []
        joint: dict[Spaces, list[Leaf]] = {}
        for part in made:
            leaf = self.compare(part)
            separate = self.settings.queries == "separate" and "qk" in self._roles(part)
            if separate:
                (each,) = likeness(self.local, [leaf]).items()
                across = self._across(part)
                inside.own[part.place] = [joint_map(*each, how)] if across else self._nested(each)
            else:
                pool.append(leaf)
                if self._across(part):
                    joint.setdefault(part.hidden, []).append(leaf)
        for names, each in joint.items():
            (pooled,) = likeness(self.local, each).items()
            inside.joints.append((names, joint_map(*pooled, how)))
        if any(inside.lacks(part) for part in parts) and pool:
            scope = dict(parts[0].block.scope)
            keys = {n: element_key(self.local, self.local.spaces[n], scope) for p in parts for n in p.hidden}
            elements = {n: self.elements[key] for n, key in keys.items() if key in self.elements}
            inside.nested = nested_maps(self.local, likeness(self.local, pool), how, elements)
            self.elements |= {keys[n]: t for n, t in inside.nested.items()}
        return inside

    def _nested(self, each: tuple[Spaces, Likeness]) -> list[Cross]:
        return list(nested_maps(self.local, dict([each]), self.settings).values())

    def _roles(self, part: Part) -> set[str]:
        return {self.full.spaces[n].role for n in part.hidden}

    def _across(self, part: Part) -> bool:
        """Whether the neurons of a part may be mapped across heads: all of their axes may be renumbered."""
        inside = {a.name for a in part.atoms if a.name in self.full.spaces} - self.full.residual_names
        fixed = {n for n in inside - set(part.hidden) if self.full.sizes[n] > 1}
        return self.settings.heads == "across" and len(part.hidden) > 1 and "h" in self._roles(part) and not fixed

    def _steps(self, part: Part, inside: Inside) -> list[Step]:
        names, factors = inside.factors(part)
        if not names:
            return []
        axes = [a.name for a in part.atoms]
        batch = [n for n in axes if any(n in f.dims for f in factors)]
        at, order = [axes.index(n) for n in batch], [axes.index(n) for n in names]
        scope = ",".join(str(v) for _, v in part.block.scope)
        own = part.place if part.place in inside.own else f"[{scope}]"
        name = f"{','.join(names)} {own} {','.join(batch)}"
        if name not in self.maps.tensors:
            self.maps.keep(name, product(factors, names, batch))
        return [Step(tuple(at), tuple(order), name)]


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
        config: Json,
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
        cost = each.cost(self.settings).arrange((f"{stream}-", f"{stream}+"))
        return self.maps.keep(f"{stream} from {parts[0].block.key}", transport_map(cost, self.settings))

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

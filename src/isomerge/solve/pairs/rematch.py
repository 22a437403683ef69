"""Solving one unit again: by other evidence, with heads where they are told to be, or by what its neurons
compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.checkpoint.own_class import own_class_of
from isomerge.matching.functional import (
    Activation,
    Layer,
    Neurons,
    branches,
    feed_forward,
    hidden,
    likeness,
    match_neurons,
    neurons_of,
)
from isomerge.matching.local import unit_keys
from isomerge.observe.data.examples import Examples
from isomerge.observe.stats.taps import enough
from isomerge.solve.canonical.canonical_units import weights_of
from isomerge.solve.match_options import SHARES
from isomerge.solve.pairs.midpoint import Midpoint, unpadded_batches
from isomerge.solve.pairs.stream_descent import StreamSolver, UnitPair
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.units import Unit

# Rows that the functional cost is computed from (docs/lab/experiments.md: about a thousand suffice).
ROWS = 1024
# Layers whose hidden values are read in one pass: 1024 rows of 11008 neurons are 45 MB.
TOGETHER = 8
# The names under which configs say which activation function their layers have.
ACTIVATIONS = ("dense_act_fn", "hidden_act", "activation_function", "hidden_activation", "activation")
# Those that are tried where no config names one.
COMMON = ("gelu", "relu", "silu", "gelu_pytorch_tanh", "tanh")
# A layer whose hidden values differ from what its axes say by more than this fraction is not understood.
UNDERSTOOD = 1e-3


def solve_again(
    solver: StreamSolver, turned: UnitPair, evidence: str, fixed: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The compact elements of one unit, solved from some evidence with some elements given.

    Args:
        solver: its frame and weights.
        turned: the unit with the source's streams turned and nothing matched inside.
        evidence: a key of `SHARES`; activations count only where the solver has some.
        fixed: elements that are given by element key, such as permutations of heads; their fibres are solved.
    """
    spec = solver.local
    first = Alignment(spec, dict(fixed or {}))
    names = {ElementKey.of(key).name for key in first}
    rest = spec.without(names)
    moved = turned.moved(first)
    of_blocks, of_taps = (
        share / own if own else 0.0 for share, own in zip(SHARES[evidence], solver.units.evidence, strict=True)
    )
    match = solver.units.solution(moved.anchor, moved.source, {}, spec=rest, factors=(of_blocks, of_taps))
    return dict((Alignment(spec, match.elements) @ first).elements)


def voted_elements(solver: StreamSolver, unit: Unit) -> dict[str, Tensor]:
    """The stack-wide elements that act in a unit."""
    return {name: solver.votes[name] for name in unit.votes}


def activations_of(module: nn.Module) -> list[Activation]:
    """The activation function that a module's config names; the common ones, to be tried, of a module of one's own
    that names none."""
    from transformers.activations import ACT2FN

    config: Any = getattr(module, "config", None)
    for key in ACTIVATIONS:
        name = config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
        if isinstance(name, str) and name in ACT2FN:
            return [ACT2FN[name]]
    return [] if own_class_of(module) is None else [ACT2FN[name] for name in COMMON]


class FunctionalMatch:
    """Matches feed-forward layers by the functional cost, on the prefix that is merged already.

    Args:
        midpoint: the line; its solver's streams and earlier layers are taken as they are.
        batches: examples, as the module reads them.
    """

    def __init__(self, midpoint: Midpoint, batches: Sequence[Mapping[str, Tensor]]) -> None:
        self.midpoint, self.solver, self.batches = midpoint, midpoint.solver, batches
        self.spec = midpoint.solver.pair.anchor.spec
        acts = activations_of(midpoint.module)
        self.act = next(iter(acts), None)
        self.layers: dict[str, Layer] = {}
        for key, unit in midpoint.units.items():
            layer = feed_forward(self.spec, unit.blocks)
            known = layer is not None and layer.space in self.solver.local.spaces
            matched = known and self.act is not None and self.solver.pair.plan.is_matched(unit)
            if layer is not None and matched and self._is_read(layer):
                self.layers[key] = layer
        self._anchor = self._own(0.0) if self.layers else {}
        self._source: dict[str, Tensor] = {}
        self._turn: Alignment | None = None
        understood: set[str] = set()
        for self.act in acts:
            if understood := self._understood():
                break
        self.layers = {key: layer for key, layer in self.layers.items() if key in understood}

    def _is_read(self, layer: Layer) -> bool:
        """Whether the module has submodules of the layer's maps, which can be listened to."""
        maps = (*(block for block, _ in layer.readers), layer.writer[0])
        return all(self.midpoint.places.submodule(block.canonical[0]) for block in maps)

    def path(self, key: str) -> str:
        """The submodule that reads a layer's inputs."""
        return self.midpoint.places.submodule(self.layers[key].readers[0][0].canonical[0])

    def _own(self, t: float) -> dict[str, Tensor]:
        """The inputs of every layer at one end of the line."""
        self.midpoint.at(t)
        inputs = self.midpoint.inputs([self.path(key) for key in self.layers], self.batches, ROWS)
        self.midpoint.at(0.5)
        return {key: inputs[self.path(key)] for key in self.layers}

    def _understood(self) -> set[str]:
        """The layers whose second map is given what their axes and the activation function say."""
        understood: set[str] = set()
        self.midpoint.at(0.0)
        keys = list(self.layers)
        for start in range(0, len(keys), TOGETHER):
            names = {key: self._fed(key) for key in keys[start : start + TOGETHER]}
            seen = self.midpoint.inputs(list(names.values()), self.batches, ROWS)
            understood |= {key for key, name in names.items() if self._as_said(key, seen[name])}
        self.midpoint.at(0.5)
        return understood

    def _fed(self, key: str) -> str:
        """The submodule that a layer's neurons are given to."""
        return self.midpoint.places.submodule(self.layers[key].writer[0].canonical[0])

    def _as_said(self, key: str, seen: Tensor) -> bool:
        assert self.act is not None
        tensors = weights_of(self.midpoint.placed[key].anchor)
        said = hidden(branches(self.spec, self.layers[key], tensors, self._anchor[key]), self.act)
        return seen.shape == said.shape and float((seen - said).norm()) <= UNDERSTOOD * float(seen.norm())

    def match(self, unit: Unit, turned: UnitPair) -> dict[str, Tensor] | None:
        """The unit's elements with the smallest functional cost; None where the layer is not understood.

        Args:
            unit: one unit of the plan.
            turned: the unit with the source's streams turned and nothing matched inside.
        """
        if unit.key not in self.layers:
            return None
        if self._turn is not self.solver.turn:
            self._source, self._turn = self._own(1.0), self.solver.turn
        layer, spec, act = self.layers[unit.key], self.spec, self.act
        assert act is not None
        x = self.midpoint.inputs([self.path(unit.key)], self.batches, ROWS)[self.path(unit.key)]
        anchor, source, sides = weights_of(turned.anchor), weights_of(turned.source), []
        for tensors, own in ((anchor, self._anchor[unit.key]), (source, self._source[unit.key])):
            values = hidden(branches(spec, layer, tensors, own), act)
            sides.append(
                Neurons(branches(spec, layer, tensors, x), values, neurons_of(spec, layer, layer.writer, tensors))
            )
        signed = layer.scale is not None and layer.scale in self.solver.local.spaces
        like = likeness(spec, layer, anchor, source)
        p, signs = match_neurons(sides[0], sides[1], act, signs=signed, likeness=like)
        keys = unit_keys(self.solver.local, anchor)
        elements = {keys[layer.space]: p}
        if signed and layer.scale is not None:
            elements[keys[layer.scale]] = signs[:, None]
        return {**voted_elements(self.solver, unit), **elements}

    def sequence(self) -> dict[str, dict[str, Tensor]]:
        """Elements of all layers, each matched on what those before it make of the inputs; the midpoint is left as
        it was."""
        matches: dict[str, dict[str, Tensor]] = {}
        for key in self.layers:
            unit = self.midpoint.units[key]
            turned = self.solver.turned_unit(unit).without_taps()
            elements = self.match(unit, turned)
            if elements is not None:
                matches[key] = elements
                self.midpoint.replace({key: turned.moved(Alignment(self.solver.local, elements))})
        self.midpoint.rebuild(matches)
        return matches


def match_functionally(solver: StreamSolver, examples: Examples, device: str = "cpu") -> list[str]:
    """Match every feed-forward layer of a solver again by what its neurons compute; returns the units that were.

    A step after the descent: streams and heads stay. It is not judged; `isomerge.solve.pairs.search` does that.
    """

    with torch.no_grad():
        matches = FunctionalMatch(Midpoint(solver, device), unpadded_batches(enough(examples, ROWS))).sequence()
    solver.inner |= matches
    return list(matches)

"""What running models takes in memory, from shapes alone: their weights, what is read in them, and learning.

The factors are what `benchmarks.performance.bounds` has measured on Llama-shaped pairs, rounded up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import Fusion
from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model
from isomerge.observe.live.accelerator import CPU
from isomerge.solve.match_options import Matching
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

LIBRARIES = 4.8e8
"""Bytes that torch, transformers and what these bring along take once a model was run."""
READ, TOLD, STEP = 16, 32, 2048
"""Examples that are read at a time for activations, and by merges that run models; tokens of one step of learning
and searching."""
IMAGES = 128
"""Images of one step."""
PLACED = 5.5
"""Models that a midpoint takes: a module, both models as they are placed, what takes their place, and what is
between."""
SOLVED, METRIC = 8, 6
"""Matrices in float64 of the widest layer, where its neurons are matched; Grams of all streams, where layers are
matched by what they read: both models' as they are and moved, and their roots."""
MOVED = 6
"""Where layers are computed once more: copies of the weights outside of layers, and of one layer, for every model
that is moved: its own, moved, in between, and gradients."""
LOGITS, GRAPH = 6, 1.4
"""Where there are gradients: copies of the logits, and what is kept of a layer, as a multiple of what is read in
it."""
JUDGED = 256
"""Examples that a search judges by, at most."""
TARGETS = 3 * 4 * (1 << 27)
"""The most that a search keeps of predictions (`isomerge.solve.pairs.midpoint.LARGEST`), of both models and of
their mean."""
UNIT = 6
"""Copies of a unit's activations while it is matched."""


@dataclass(frozen=True)
class Running:
    """How models of one architecture are run."""

    models: Sequence[Model]
    matching: Matching

    @cached_property
    def weights(self) -> float:
        """Bytes of one module: float32."""
        return 4.0 * sum(prod(info.shape) for info in self.models[0].checkpoint.tensors.values())

    @cached_property
    def inside(self) -> float:
        """Bytes of the weights that lie in layers: float32."""
        model = self.models[0]
        stored = (name for block in model.blocks if block.scope for name in model.stored_names(block))
        return 4.0 * sum(prod(model.checkpoint.tensors[name].shape) for name in stored)

    @cached_property
    def layers(self) -> int:
        """How many layers there are, in all stacks."""
        return max(len({(b.line.stack, b.scope) for b in self.models[0].blocks if b.scope}), 1)

    @property
    def stream(self) -> int:
        """Numbers per token between two layers."""
        spec = self.models[0].spec
        return max((spec.sizes[name] for name in spec.streams), default=self.widest)

    @cached_property
    def widths(self) -> dict[Block, list[int]]:
        """What is read at every weight, in numbers per token (`isomerge.observe.stats.taps.plan_taps`)."""
        return {block: widths for block in self.models[0].blocks if (widths := _read_at(self.models[0], block))}

    @cached_property
    def width(self) -> int:
        """Numbers per token that are read in all."""
        return sum(map(sum, self.widths.values()))

    @cached_property
    def widest(self) -> int:
        """The widest place."""
        return max((w for every in self.widths.values() for w in every), default=0)

    @cached_property
    def positions(self) -> int:
        """Tokens of an example, at most."""
        inputs, length = Inputs(self.models[0].config), self.matching.length
        try:
            _, height, width = inputs.image_shape
            seen = (height // _patch(inputs.config)) * (width // _patch(inputs.config)) + 1
        except IsomergeError:
            seen = 0
        own = length if inputs.positions is None else min(length, inputs.positions)
        return seen if inputs.images else own + seen if inputs.pairs else own

    @cached_property
    def activations(self) -> float:
        """Bytes of the rows that are kept of one model."""
        how = self.matching
        if how.stats:
            return float(max((Path(file).stat().st_size for file in how.stats if Path(file).is_file()), default=0))
        rows = how.rows if how.limit is None else min(how.rows, how.limit * self.positions)
        return 4.0 * rows * self.width

    def forward(self, tokens: int) -> float:
        """Bytes of one pass without gradients: two layers' values, and the predictions."""
        return 4.0 * tokens * (4 * self.widest + 2 * self.outputs)

    @property
    def outputs(self) -> int:
        """Numbers that are predicted of a token; of images few."""
        inputs = Inputs(self.models[0].config)
        return 0 if inputs.images else inputs.vocabulary

    @property
    def step(self) -> int:
        """Tokens of one step."""
        settings, inputs = self.matching.settings, Inputs(self.models[0].config)
        asked = None if settings is None else settings.batch_size
        if asked is not None:
            return asked * self.positions
        return IMAGES * self.positions if inputs.images else max(STEP, self.positions)

    def grams(self, *, alone: bool = False) -> float:
        """Bytes of the Grams of all places in float64; ``alone``: of those that lie in residual streams."""
        chosen = (every for block, every in self.widths.items() if not alone or len(block.axes or ()) == 1)
        return 8.0 * sum(w * w for every in chosen for w in every)

    def of_unit(self, unit: Unit) -> float:
        """Bytes of a unit's activations while it is matched."""
        kept = self.activations / max(self.width, 1)
        return UNIT * kept * sum(sum(self.widths.get(block, ())) for block in unit.blocks)


def _patch(config: object) -> int:
    """The side of a patch of images; towers that halve their images divide them by 32 in all."""
    if isinstance(config, dict):
        if isinstance(size := config.get("patch_size"), int):
            return max(size, 1)
        return next((side for part in config.values() if (side := _patch(part)) != 32), 32)
    return 32


def _read_at(model: Model, block: Block) -> list[int]:
    """The widths of what is read at a weight: at its outputs and inputs inside layers, and behind gains."""
    spec, axes = model.spec, block.axes
    if block.lead or axes is None:
        return []
    shape = model.checkpoint.tensors[model.stored_names(block)[0]].shape
    streams = [not names.isdisjoint(spec.streams) for names in block.names_by_axis]
    if len(axes) == 1:
        return [shape[0]] if streams[0] and not block.canonical[0].endswith("bias") else []
    mobile = [not names.isdisjoint(spec.spaces) for names in block.names_by_axis]
    return [n for n, moves, in_stream in zip(shape, mobile, streams, strict=False) if moves and not in_stream][:2]


def matching_memory(models: Sequence[Model], matching: Matching, *, anchor: str = "first") -> tuple[float, float]:
    """Bytes that a match takes beside units: at its peak, and those that are there while units are matched; 0 for
    weights alone.

    Args:
        models: all of them.
        matching: what is looked at.
        anchor: with ``none``, all models are learned together.
    """
    if not matching.needs_models:
        return 0.0, 0.0
    run, together = Running(models, matching), len(models) if anchor == "none" else 2
    on_cpu = matching.device == CPU
    kept = run.activations * together
    if matching.stats and matching.learn is None:
        return LIBRARIES + kept + run.activations, LIBRARIES + kept
    read = READ * run.positions
    stages = [kept + max(run.weights + 4.0 * read * run.width + run.forward(read), run.activations)]
    solved = SOLVED * 8.0 * run.widest**2
    placed = PLACED * run.weights + kept + run.forward(run.step) + solved
    if anchor != "none" and (matching.functional and matching.evidence == "both"):
        stages.append(placed)
    if matching.search is not None:
        judged = JUDGED if matching.limit is None else min(JUDGED, matching.limit)
        stages.append(placed + min(TARGETS, 3 * 4.0 * judged * run.positions * max(run.outputs, 1)))
    if matching.input_metric:
        streams = run.grams(alone=True)
        stages.append(kept + streams + run.grams() + run.weights + run.forward(read))
        stages.append(kept + METRIC * streams + solved)
    if matching.learn is not None:
        stages.append(kept + (_learning(run, together) if on_cpu else 2 * run.weights))
    return LIBRARIES + max(stages), LIBRARIES + kept


def _learning(run: Running, count: int) -> float:
    """Bytes of learning: a module and all models, those that are moved, a point between them, and one step of
    gradients. Where layers are computed once more, one of them at a time has what is moved."""
    settings = run.matching.settings
    values, logits = 4.0 * run.step * run.width * GRAPH, LOGITS * 4.0 * run.step * run.outputs
    if settings is None or not settings.checkpointing:
        return (1 + count + (count - 1) + 1) * run.weights + values + logits
    inside, layers = run.inside, run.layers
    kept = count * run.weights * (0.5 if settings.precision == "bfloat16" else 1.0)
    moved = MOVED * (count - 1) * (run.weights - inside + inside / layers)
    between = 4.0 * run.step * run.stream * layers
    return max(run.weights, kept) + moved + between + values / layers + logits


def fusing_memory(
    models: Sequence[Model], fusion: Fusion, matching: Matching, *, repair: bool, gathers: bool, aligned: bool
) -> float:
    """Bytes of a merge that runs the models when they are aligned; 0 for one that runs none.

    Args:
        models: all of them.
        fusion: the method.
        matching: how they are run.
        repair: whether activations are re-normalised at the end.
        gathers: whether the method's statistics are gathered on the way.
        aligned: whether models were moved: regression compares with what they were.
    """
    run, stages = Running(models, matching), [0.0]
    every = (1 + len(models) - fusion.start) * run.weights + run.forward(TOLD * run.positions)
    if fusion.method.forward:
        stages.append((1 + aligned) * every + SOLVED * 8.0 * run.widest**2)
    if repair:
        stages.append(every)
    if gathers:
        stages.append(gathering_memory(run, {fusion.method.statistics or ""}))
    return LIBRARIES + max(stages) if len(stages) > 1 else 0.0


def gathering_memory(run: Running, kinds: Collection[str]) -> float:
    """Bytes of gathering statistics of one model, by the parameters that ask for them."""
    grams = run.grams()
    needed = run.weights + run.forward(READ * run.positions) + 4.0 * READ * run.positions * run.width
    if {"grams", "factors"} & set(kinds):
        needed += 1.5 * grams  # they are written in float32
    if {"fishers", "factors"} & set(kinds):  # gradients, and their squares in float64 with their means
        needed += 5 * run.weights if "fishers" in kinds else grams
    return needed

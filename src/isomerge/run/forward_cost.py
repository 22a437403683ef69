"""What `isomerge stats`, `generate` and `barrier` take in memory and time, from shapes alone: they run models, and
write none.

The factors are what `benchmarks.performance.bounds` has measured on Llama-shaped models, rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from isomerge.config.keys import HEADS, LAYERS, STREAM_WIDTHS
from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import make_plan
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.generated import Generation
from isomerge.observe.stats.fisher_information import WIDE
from isomerge.observe.stats.gathering import StatsOptions
from isomerge.records import Record, hidden
from isomerge.run.barrier_options import BarrierOptions
from isomerge.run.cost import FLOPS, LIBRARIES, Needs, check_bound, estimate, memory_needed
from isomerge.run.running_cost import GRAPH, LOGITS, Running
from isomerge.run.running_cost import LIBRARIES as RUNNING
from isomerge.solve.match_options import WEIGHTS

GRADIENTS = 5
"""Modules that a diagonal Fisher takes: gradients, their squares in float64, and the means of these."""
BESIDE = 1.15
"""What gathering takes, as a multiple of what shapes tell: measured were 136 MB for a layer of which they tell
121."""
FOUND = 2
"""Copies of Kronecker factors: sums, and their means."""
SAMPLED = 8
"""Copies of the logits of a text's next token while it is drawn."""
DRAWN = 3
"""Copies of all images that are made: one by one, together, and one while they are written."""
JUDGED = 3
"""Copies of a batch's logits while its loss is taken."""
BETWEEN, PLANE = 1, 6
"""Copies of the largest tensor while a point on a line, or on a plane, is placed."""
BACKWARD = 3
"""A pass with gradients, in passes without."""


class Cost(Record):
    """What a command takes."""

    memory: float
    """Bytes, libraries included."""
    seconds: float
    """On one core, by `isomerge.run.cost.FLOPS`."""
    named: str = hidden("running the models")
    """What takes most of the memory."""
    less: str = hidden("give a smaller --batch-size")

    def check(self, limit: int | None) -> None:
        """Refuse what cannot be within ``limit`` bytes.

        Raises:
            IsomergeError: it is less than what the command cannot be without.
        """
        check_bound(self.memory, limit, self.named, self.less)


@dataclass(frozen=True)
class Reading:
    """What a model is given to read."""

    count: int
    """Of examples."""
    length: int
    """Tokens of one."""
    held: float
    """Bytes of the examples themselves."""


def reading_of(examples: Examples) -> Reading:
    """Examples as they are read, texts as long as they are."""
    ids = examples.tensors.get("input_ids")
    length = WEIGHTS.length if ids is None else ids.shape[1]
    return Reading(len(examples), length, float(sum(x.nbytes for x in examples.tensors.values())))


def _running(model: Model, read: Reading, rows: int = 1) -> Running:
    return Running([model], replace(WEIGHTS, length=read.length, rows=rows, limit=read.count))


def _seconds(run: Running, passes: float, examples: int, per_token: float = 0.0) -> float:
    """Multiplications of so many passes over so many examples; ``per_token`` beside one per weight."""
    return passes * examples * run.positions * (run.weights / 4 + per_token) / FLOPS


def stats_cost(model: Model, options: StatsOptions, examples: Examples) -> Cost:
    """What gathering statistics of a model takes.

    Args:
        model: it.
        options: how.
        examples: all of them.
    """
    given, kinds = reading_of(examples), set(options.kinds)
    run = _running(model, given, options.rows)
    read, factors, squares = options.batch_size * run.positions, 0.0, 0.0
    kept = run.activations if "activations" in kinds else 0.0
    grams = run.grams() if "regmean" in kinds else 0.0
    seen = run.forward(read) + 4.0 * read * run.width + 12.0 * run.widest**2
    stages = [seen if {"activations", "regmean"} & kinds else 0.0]
    if "fisher" in kinds:
        squares = GRADIENTS * run.weights
    if "kfac" in kinds:
        factors = run.grams() + (8.0 * run.outputs**2 if run.outputs <= WIDE else 0.0)
    if squares or factors:
        stages.append(
            squares + FOUND * factors + 2 * (run.forward(run.positions) + 4.0 * run.positions * run.width)
        )
    stages.append((grams + factors + kept * (options.dtype == "float16") + squares) / 2)  # written in half the size
    seconds = _seconds(run, 1 if stages[0] else 0, len(examples), grams / 8)
    seconds += _seconds(run, BACKWARD if squares or factors else 0, len(examples), factors / 8)
    memory = RUNNING + BESIDE * (run.weights + kept + grams + given.held + max(stages))
    return Cost(memory, seconds, less="ask for fewer --kinds, or give fewer --rows or a smaller --batch-size")


def generate_cost(models: Sequence[Model], options: Generation) -> Cost:
    """What making examples takes: one model at a time that writes, with what it keeps of the text; or all images.

    Args:
        models: those that shall be matched.
        options: how.
    """
    inputs = Inputs(models[0].config)
    if inputs.images:
        return Cost(
            RUNNING + DRAWN * 4.0 * options.count * prod(inputs.image_shape),
            0.0,
            "making the images",
            "give a smaller --limit",
        )
    runs = [Running([model], replace(WEIGHTS, length=options.length)) for model in models]
    length = min(run.positions for run in runs)
    texts = min(options.batch_size, -(-options.count // len(runs)))
    most = 0.0
    for run in runs:
        written = texts * (4.0 * length * _cached(run) + 4.0 * SAMPLED * run.outputs + 16.0 * run.widest)
        most = max(most, run.weights + written)
    tokens = options.count * length / len(runs)
    seconds = sum(tokens * run.weights / 4 for run in runs) / FLOPS
    return Cost(
        RUNNING + most + 16.0 * options.count * length, seconds, less="give a smaller --batch-size or --length"
    )


def _cached(run: Running) -> float:
    """Numbers that a model keeps of a token while it writes: keys and values of all layers; where its config tells
    less, all that is read in it."""
    text = Inputs(run.models[0].config).text
    layers, heads, width = (
        next((text[key] for key in keys if isinstance(text.get(key), int)), 0)
        for keys in (LAYERS, HEADS, STREAM_WIDTHS)
    )
    kept = text.get("num_key_value_heads")
    kept = kept if isinstance(kept, int) else heads
    head = text.get("head_dim")
    head = head if isinstance(head, int) else width // max(heads, 1)
    return float(2 * (layers + 2) * kept * head or run.width)


def barrier_cost(
    models: Sequence[Model],
    options: BarrierOptions,
    examples: Examples,
    aligned: Sequence[Model] = (),
) -> Cost:
    """What measuring a line or a plane takes: all modules and one between them, one batch, and the alignment.

    Args:
        models: two or three.
        options: how.
        examples: all of them.
        aligned: see `isomerge.run.connectivity.run_barrier`.
    """
    given, count = reading_of(examples), len(models)
    run = _running(models[0], given)
    read = options.batch_size * run.positions
    logits, layers = 4.0 * read * run.outputs, 16.0 * read * run.widest
    largest = 4.0 * max(prod(info.shape) for info in models[0].checkpoint.tensors.values())
    between = (count + 1) * run.weights + (BETWEEN if count == 2 else PLANE) * largest
    stages = [
        count * run.weights + layers + (3 * count + 1) * logits,
        between,
        (count + 1) * run.weights + layers + JUDGED * logits,
    ]
    cost = Cost(RUNNING + given.held + max(stages), 0.0, less="give a smaller --batch-size")
    held, matched = held_while_aligning(models[0]) + given.held, 0.0
    for way in options.ways:
        for model in models[1:]:
            plan = make_plan(model, [models[0]], way.spaces)
            need, largest_unit = memory_needed(plan, [model, models[0]], Needs(True))
            if held + need > cost.memory and largest_unit is not None:
                cost = Cost(held + need, 0.0, f"the unit of {largest_unit.key}", "match fewer spaces")
            matched += estimate(plan, [model, models[0]], Needs(True))["seconds"]
    each = options.points if count == 2 else options.grid**2 + 4
    passes = count + each * (1 + len(options.ways) + len(aligned))
    return replace(cost, seconds=matched + _seconds(run, passes, len(examples)))


def tune_cost(
    donor: Model,
    models: Sequence[Model],
    search: Reading,
    judge: Reading,
    trials: int,
    batch_size: int,
    *,
    gradients: bool = False,
) -> Cost:
    """What the trials of a search take: one module, which is run on the examples of the search for every trial, and
    on all for the judgement; merging is not in it.

    Args:
        donor: whose architecture the merge has.
        models: those that are judged beside it.
        search, judge: what it reads for each.
        trials: how many.
        batch_size: examples that are read at a time.
        gradients: whether trials take the gradient of the loss as well.
    """
    run = _running(donor, search)
    read = batch_size * run.positions
    memory = run.weights + 16.0 * read * run.widest + JUDGED * 4.0 * read * run.outputs
    each = 1
    if gradients:  # of all weights, and what is kept of all layers
        kept = GRAPH * 4.0 * read * run.width + (LOGITS - JUDGED) * 4.0 * read * run.outputs
        memory, each = memory + run.weights + kept, BACKWARD
    passes = each * (1 + trials) * search.count + 2 * judge.count + len(models) * (search.count + judge.count)
    return Cost(RUNNING + search.held + judge.held + memory, _seconds(run, 1, passes))


def held_while_aligning(anchor: Model) -> float:
    """Bytes that are there beside an alignment on which a barrier is measured: the anchor's module, and what
    running it has brought."""
    return RUNNING - LIBRARIES + Running([anchor], WEIGHTS).weights

"""Commands that run models, up to where they begin: opened and checked, and what they will take in memory and
time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from isomerge.commands.opening import bytes_of, dtype_name, recognised
from isomerge.files import check_not_read
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.row_meanings import of_all_tokens
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.generated import GenerateReport, Generation, check_generate, run_generate
from isomerge.observe.read_files import files_read
from isomerge.observe.stats.gathering import StatsOptions, StatsReport, parse_kinds, run_stats
from isomerge.options.requests.measuring import Barrier, Generate, Stats
from isomerge.progress import Observer, quiet
from isomerge.quotient.kinship import kinship
from isomerge.records import Record
from isomerge.run.barrier_options import BarrierOptions
from isomerge.run.connectivity import BarrierReport, barrier_verdict, run_barrier, untied_alike
from isomerge.run.forward_cost import Cost, barrier_cost, generate_cost, stats_cost
from isomerge.run.run_verdict import RunVerdict, pairs_of
from isomerge.solve.match_inputs import data_for
from isomerge.solve.standing import standings

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Planned(Generic[R]):
    """A command that was checked and has not begun."""

    models: Sequence[Model]
    cost: Cost
    run: Callable[[], R]
    """Does it; returns its report."""
    examples: Examples | None
    """Those that are read."""
    verdict: RunVerdict | None = None
    """What the models are to each other, where the command asks."""
    notes: Sequence[str] = ()


def _opened(
    asked: Stats | Barrier, model: Model, bound: int | None, cost: Callable[[Examples], Cost]
) -> tuple[Examples, Cost]:
    """Examples, and what running models on them costs; a bound that cannot hold is refused."""
    data, how = asked.data, asked.examples
    if not isinstance(data, Examples):
        data = data_for(model.checkpoint, str(data), limit=how.limit, length=how.length)
    needs = cost(data)
    needs.check(bound)
    return data, needs


@contextmanager
def planned_stats(asked: Stats, observer: Observer = quiet) -> Iterator[Planned[StatsReport]]:
    """`isomerge.stats` up to where the model is loaded.

    Raises:
        IsomergeError: see there.
    """
    bound = bytes_of(asked.memory.max_memory)
    options = StatsOptions(
        Path(os.path.expanduser(asked.out)), rows=asked.rows, batch_size=asked.batch_size,
        device=asked.examples.device, dtype=dtype_name(asked.dtype) or asked.dtype,
        overwrite=asked.writing.overwrite, observer=observer, kinds=parse_kinds(asked.kinds),
        labels=asked.fisher_labels, seed=asked.seed,
    )  # fmt: skip
    options.check()
    with recognised([asked.model], asked.opening) as (opened,):
        check_not_read(options.out, f"--out {options.out}", files_read([opened], asked.data, asked.opening.spec))
        examples, cost = _opened(asked, opened, bound, lambda data: stats_cost(opened, options, data))
        options.check_labels(examples)
        yield Planned([opened], cost, lambda: run_stats(opened, examples, options), examples)


@contextmanager
def planned_generate(asked: Generate, observer: Observer = quiet) -> Iterator[Planned[GenerateReport]]:
    """`isomerge.generate` up to where a model is loaded.

    Raises:
        IsomergeError: see there.
    """
    bound = bytes_of(asked.memory.max_memory)
    options = Generation(
        Path(os.path.expanduser(asked.out)), count=asked.limit, length=asked.examples.length, seed=asked.seed,
        batch_size=asked.batch_size, device=asked.examples.device, overwrite=asked.writing.overwrite,
        observer=observer,
    )  # fmt: skip
    options.check()
    with recognised(asked.models, asked.opening) as opened:
        check_generate(opened, options)
        cost = generate_cost(opened, options)
        cost.check(bound)
        yield Planned(opened, cost, lambda: run_generate(opened, options), None)


@contextmanager
def planned_barrier(asked: Barrier, observer: Observer = quiet) -> Iterator[Planned[BarrierReport]]:
    """`isomerge.barrier` up to where models are loaded.

    Raises:
        IsomergeError: see there.
    """
    options = BarrierOptions(
        points=asked.points, grid=asked.grid,
        spaces=[asked.spaces] if isinstance(asked.spaces, str) else asked.spaces,
        match=[asked.match] if isinstance(asked.match, str) else asked.match,
        batch_size=asked.batch_size, device=asked.examples.device,
        png=None if asked.png is None else Path(os.path.expanduser(asked.png)),
        max_memory=bytes_of(asked.memory.max_memory), observer=observer,
    )  # fmt: skip
    spec, count = asked.opening.spec, len(asked.models)
    with recognised([*asked.models, *asked.aligned], asked.opening) as opened:
        in_one = of_all_tokens(opened)
        alike, untied = untied_alike(in_one.models, spec)
        models, others = alike[:count], alike[count:]
        options.check(models, others)
        standing = standings(models[0], models[1:], working_dtype(models), kinship=kinship, observer=observer)
        options, notes = options.chosen(models, standing)
        notes = [*in_one.notes, *notes]
        pairs = pairs_of(standing, models)
        if options.png is not None:
            check_not_read(options.png, f"--png {options.png}", files_read(opened, asked.data, spec))
        examples, cost = _opened(
            asked, models[0], options.max_memory, lambda data: barrier_cost(models, options, data, others)
        )
        yield Planned(
            alike,
            cost,
            lambda: replace(run_barrier(models, examples, options, others, pairs, notes), untied=untied),
            examples,
            barrier_verdict(pairs, models),
            notes,
        )

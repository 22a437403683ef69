"""Commands that run models, up to where they begin: opened and checked, and what they will take in memory and
time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.checkpoint.size import parse_size
from isomerge.commands.opening import recognised
from isomerge.files import check_not_read
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.row_meanings import of_all_tokens
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.generated import Generation, check_generate, run_generate
from isomerge.observe.read_files import files_read
from isomerge.observe.stats.gathering import StatsOptions, parse_kinds, run_stats
from isomerge.quotient.kinship import kinship
from isomerge.run.barrier_options import BarrierOptions
from isomerge.run.connectivity import barrier_verdict, run_barrier, untied_alike
from isomerge.run.forward_cost import Cost, barrier_cost, generate_cost, stats_cost
from isomerge.run.run_verdict import pairs_of
from isomerge.solve.match_inputs import data_for
from isomerge.solve.standing import standings


@dataclass(frozen=True)
class Planned:
    """A command that was checked and has not begun."""

    models: Sequence[Model]
    cost: Cost
    run: Callable[[], dict[str, Any]]
    """Does it; returns its report."""
    examples: Examples | None
    """Those that are read."""
    verdict: dict[str, Any] | None = None
    """What the models are to each other, where the command asks."""
    notes: Sequence[str] = ()


def bytes_of(max_memory: str | int | None) -> int | None:
    """``--max-memory`` as a number of bytes; None: no bound. Raises IsomergeError for what is no size."""
    return None if max_memory is None else parse_size(max_memory)


def _opened(
    data: str | Path | Examples,
    model: Model,
    limit: int | None,
    length: int,
    bound: int | None,
    cost: Callable[[Examples], Cost],
) -> tuple[Examples, Cost]:
    """Examples, and what running models on them costs; a bound that cannot hold is refused."""
    if not isinstance(data, Examples):
        data = data_for(model.checkpoint, str(data), limit=limit, length=length)
    needs = cost(data)
    needs.check(bound)
    return data, needs


@contextmanager
def planned_stats(
    model: Any,
    *,
    data: str | Path | Examples,
    out: str | Path,
    limit: int | None,
    length: int,
    kinds: str | Sequence[str],
    spec: str | Path | None,
    allow_pickle: bool,
    max_memory: str | int | None,
    **how: Any,
) -> Iterator[Planned]:
    """`isomerge.stats` up to where the model is loaded; ``how`` is the rest of `StatsOptions`.

    Raises:
        IsomergeError: see there.
    """

    bound = bytes_of(max_memory)
    options = StatsOptions(Path(os.path.expanduser(out)), kinds=parse_kinds(kinds), **how)
    options.check()
    with recognised([model], spec, allow_pickle) as (opened,):
        check_not_read(options.out, f"--out {options.out}", files_read([opened], data, spec))
        examples, cost = _opened(
            data, opened, limit, length, bound, lambda data_read: stats_cost(opened, options, data_read)
        )
        options.check_labels(examples)
        yield Planned([opened], cost, lambda: run_stats(opened, examples, options), examples)


@contextmanager
def planned_generate(
    models: Sequence[Any],
    *,
    out: str | Path,
    limit: int,
    spec: str | Path | None,
    allow_pickle: bool,
    max_memory: str | int | None,
    **how: Any,
) -> Iterator[Planned]:
    """`isomerge.generate` up to where a model is loaded; ``how`` is the rest of `Generation`.

    Raises:
        IsomergeError: see there.
    """

    bound, options = bytes_of(max_memory), Generation(Path(os.path.expanduser(out)), count=limit, **how)
    options.check()
    with recognised(models, spec, allow_pickle) as opened:
        check_generate(opened, options)
        cost = generate_cost(opened, options)
        cost.check(bound)
        yield Planned(opened, cost, lambda: run_generate(opened, options), None)


@contextmanager
def planned_barrier(
    refs: Sequence[Any],
    *,
    data: str | Path | Examples,
    aligned: Sequence[Any],
    limit: int | None,
    length: int,
    spec: str | Path | None,
    allow_pickle: bool,
    spaces: str | Sequence[str] | None,
    match: str | Sequence[str],
    png: str | Path | None,
    max_memory: str | int | None,
    **how: Any,
) -> Iterator[Planned]:
    """`isomerge.barrier` up to where models are loaded; ``how`` is the rest of `BarrierOptions`.

    Raises:
        IsomergeError: see there.
    """

    options = BarrierOptions(
        spaces=[spaces] if isinstance(spaces, str) else spaces,
        match=[match] if isinstance(match, str) else match,
        png=None if png is None else Path(os.path.expanduser(png)),
        max_memory=bytes_of(max_memory),
        **how,
    )
    with recognised([*refs, *aligned], spec, allow_pickle) as opened:
        in_one = of_all_tokens(opened)
        alike, untied = untied_alike(in_one.models, spec)
        models, others = alike[: len(refs)], alike[len(refs) :]
        options.check(models, others)
        standing = standings(
            models[0], models[1:], working_dtype(models), kinship=kinship, observer=options.observer
        )
        options, notes = options.chosen(models, standing)
        notes = [*in_one.notes, *notes]
        pairs = pairs_of(standing, models)
        if options.png is not None:
            check_not_read(options.png, f"--png {options.png}", files_read(opened, data, spec))
        examples, cost = _opened(
            data,
            models[0],
            limit,
            length,
            options.max_memory,
            lambda refs: barrier_cost(models, options, refs, others),
        )
        yield Planned(
            alike,
            cost,
            lambda: {**run_barrier(models, examples, options, others, pairs, notes), "untied": untied},
            examples,
            barrier_verdict(pairs, models),
            notes,
        )

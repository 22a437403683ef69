"""Gathering statistics: one run of a model over examples, activations kept in part and summed in full."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.files import check_file
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.accelerator import check_device
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import outputs_of
from isomerge.observe.stats.fisher_information import LABELS, gather_fisher, labels_for
from isomerge.observe.stats.statistics import DTYPES, KINDS, Statistics, write_statistics
from isomerge.observe.stats.taps import (
    ROWS,
    Activations,
    pairing,
    plan_inputs,
    plan_linears,
    plan_taps,
    reading,
    shared_out,
    spread_rows,
    unpadded,
)
from isomerge.progress import Observer, quiet
from isomerge.records import Json, Record

BATCH = 16
DEFAULT_KINDS = ("activations", "regmean")
"""What matching needs; ``fisher`` and ``kfac`` are for merging."""


class _Sums:
    """Sums over batches, in float64; tensors that several taps see are counted once."""

    def __init__(self) -> None:
        self.grams: dict[str, Tensor] = {}
        self.means: dict[str, Tensor] = {}
        self.tokens: dict[str, int] = {}
        self.same: dict[str, str] = {}

    def add(self, seen: Mapping[str, list[Tensor]], order: list[str], batch: Mapping[str, Tensor]) -> None:
        """Add one batch; products of a batch are float32, as the model's own.

        What all examples share (tables of relative positions [1, n, width]) counts for each of them: batches change
        nothing.
        """
        mask, examples = batch.get("attention_mask"), len(next(iter(batch.values())))
        if not self.same:
            first: dict[tuple[int, ...], str] = {}
            self.same = {k: first.setdefault(tuple(map(id, seen[k])), k) for k in order if k in seen}
        for key in dict.fromkeys(self.same.values()):
            for part in seen[key]:
                x, times = unpadded(part, mask).float(), examples if part.ndim == 3 and len(part) == 1 else 1
                gram, total = times * (x.mT @ x).double().cpu(), times * x.double().sum(0).cpu()
                self.grams[key] = self.grams[key] + gram if key in self.grams else gram
                self.means[key] = self.means[key] + total if key in self.means else total
                self.tokens[key] = self.tokens.get(key, 0) + times * len(x)


def gather(
    model: Model,
    module: nn.Module,
    examples: Examples,
    *,
    kinds: Collection[str] = DEFAULT_KINDS,
    rows: int = ROWS,
    batch_size: int = BATCH,
    observer: Observer = quiet,
) -> Statistics:
    """Run a module over examples once.

    Args:
        model: the checkpoint that the module was loaded from.
        module: see `isomerge.observe.live.modules.load_module`.
        examples: all of them count in means and Grams.
        kinds: ``activations`` for rows, ``regmean`` for means and Grams.
        rows: how many rows are kept of every tap, of the first ``rows`` examples: the same rows that
            `isomerge.observe.stats.taps.capture` keeps of these.
        batch_size: examples that the module reads at a time; equal for models that are to be paired.

    Raises:
        IsomergeError: activations that are no finite numbers, or examples that do not fit the module.
    """
    taps, inputs, linears = plan_taps(model, module), plan_inputs(model, module), plan_linears(model, module)
    places = {tap.key: (tap, path) for tap, path, *_ in (*taps, *inputs, *linears)}
    head = examples.head(min(len(examples), rows)) if "activations" in kinds else None
    sums, done = _Sums(), 0
    kept = {tap.key: [] for tap, _ in taps}
    with torch.no_grad():
        for batch, share in _batches(examples, head, rows, batch_size, rest="regmean" in kinds):
            observer(f"reading activations of {model.ref}", done, len(examples))
            done += len(next(iter(batch.values())))
            seen: dict[str, list[Tensor]] = {}
            with reading(module, list(places.values()), seen):
                outputs_of(module, batch)
            if "regmean" in kinds:
                sums.add(seen, list(places), batch)
            for key in kept.keys() & seen.keys() if share else ():
                kept[key] += [spread_rows(x, batch.get("attention_mask"), share) for x in seen[key]]
    values = {key: torch.cat(kept.pop(key))[:rows] for key in list(kept) if kept[key]}  # parts are let go
    for key, x in (*values.items(), *sums.grams.items()):
        if not bool(x.isfinite().all()):
            raise IsomergeError(
                f"{model.ref}: activations at {key} are not finite: its weights, or the numbers of the data, "
                f"are too large for float32"
            )
    known = {key: tap for key, (tap, _) in places.items()}
    rows_of = pairing(head, rows, batch_size) if head is not None else ""
    return Statistics(
        Activations({k: known[k] for k in values}, values, rows_of),
        {key: known[key] for key in sums.grams},
        {key: gram.div_(sums.tokens[key]) for key, gram in sums.grams.items()},
        {key: total / sums.tokens[key] for key, total in sums.means.items()},
        sums.tokens,
        {tap.block: sums.same[tap.key] for tap, _ in inputs if tap.key in sums.same},
        {tap.block: (sums.same[tap.key], axis) for tap, _, axis in linears if tap.key in sums.same},
    )


def _batches(
    examples: Examples, head: Examples | None, rows: int, size: int, *, rest: bool
) -> Iterator[tuple[dict[str, Tensor], int]]:
    """Batches, and how many rows are kept of each: those of the first examples, the ``head``, then the others if
    asked for."""
    if head is not None:
        yield from shared_out(head, rows, size)
    first = 0 if head is None else len(head)
    if rest and first < len(examples):
        others = replace(examples, tensors={name: x[first:] for name, x in examples.tensors.items()})
        yield from ((batch, 0) for batch in others.without_padding(size))


@dataclass(frozen=True)
class StatsOptions:
    """What `isomerge stats` is told; see `isomerge.stats`."""

    out: Path
    rows: int = ROWS
    batch_size: int = BATCH
    device: str = "cpu"
    dtype: str = "float32"
    overwrite: bool = False
    observer: Observer = quiet
    kinds: tuple[str, ...] = DEFAULT_KINDS
    labels: str | None = None
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot work before anything is read.

        Raises:
            IsomergeError: naming the option.
        """
        check_file(self.out, f"--out {self.out}", overwrite=self.overwrite)
        for name, value in (("--rows", self.rows), ("--batch-size", self.batch_size)):
            if value < 1:
                raise IsomergeError(f"{name} {value}: at least 1 is needed")
        if self.dtype not in DTYPES:
            raise IsomergeError(f"--dtype {self.dtype}: choose from {', '.join(DTYPES)}")
        if self.labels is not None and self.labels not in LABELS:
            raise IsomergeError(f"--fisher-labels {self.labels}: choose from {', '.join(LABELS)}")
        check_device(self.device)

    def check_labels(self, examples: Examples) -> None:
        """Refuse data without the labels that are asked for.

        Raises:
            IsomergeError: see `isomerge.observe.stats.fisher_information.labels_for`.
        """
        if {"fisher", "kfac"} & set(self.kinds):
            labels_for(examples, self.labels)


def parse_kinds(kinds: str | Collection[str]) -> tuple[str, ...]:
    """Kinds of statistics by name, or a text of them with commas; ``kfac`` brings ``regmean``, its other factor.

    Raises:
        IsomergeError: none, or one that does not exist.
    """
    words = [w.strip() for w in kinds.split(",") if w.strip()] if isinstance(kinds, str) else list(kinds)
    strange = [word for word in words if word not in KINDS]
    if strange or not words:
        raise IsomergeError(f"--kinds {', '.join(strange) or 'is empty'}: choose from {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in words or (kind == "regmean" and "kfac" in words))


class StatsReport(Record, kw_only=True):
    """What was gathered."""

    command: str = "stats"
    model: str
    architecture: str
    digest: str
    kinds: Sequence[str]
    examples: int
    rows: int
    taps: int
    tokens: Mapping[str, int]
    fisher: Json | None
    bytes: int


def run_stats(model: Model, examples: Examples, options: StatsOptions) -> StatsReport:
    """Gather and write; returns the report."""
    kinds, fisher = options.kinds, None
    options.check_labels(examples)
    module = load_module(model, device=options.device)
    statistics = Statistics(Activations({}, {}, ""))
    if {"activations", "regmean"} & set(kinds):
        statistics = gather(
            model, module, examples, kinds=kinds, rows=options.rows, batch_size=options.batch_size,
            observer=options.observer,
        )  # fmt: skip
    if {"fisher", "kfac"} & set(kinds):
        fisher = gather_fisher(
            model, module, examples, diagonal="fisher" in kinds, factors="kfac" in kinds, labels=options.labels,
            seed=options.seed, observer=options.observer,
        )  # fmt: skip
    header = write_statistics(options.out, statistics, model, dtype=options.dtype, fisher=fisher)
    return StatsReport(
        model=model.ref,
        architecture=model.spec.model_type,
        digest=header["model"],
        kinds=kinds,
        examples=len(examples),
        rows=max((len(x) for x in statistics.activations.values.values()), default=0),
        taps=len(statistics.activations.taps),
        tokens=statistics.tokens,
        fisher={k: header["fisher"][k] for k in ("labels", "samples", "norm")} if fisher else None,
        bytes=options.out.stat().st_size,
    )

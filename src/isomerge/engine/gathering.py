"""Gathering statistics: one run of a model over examples, activations kept in part and summed in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.engine.models import Model
from isomerge.engine.statistics import DTYPES, Statistics, write_statistics
from isomerge.engine.taps import ROWS, Activations, pairing, plan_inputs, plan_taps, reading, spread_rows, unpadded
from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isomerge.data.examples import Examples
    from isomerge.engine.run import Observer

BATCH = 16


class _Sums:
    """Sums over batches, in float64; tensors that several taps see are counted once."""

    def __init__(self) -> None:
        self.grams: dict[str, Tensor] = {}
        self.means: dict[str, Tensor] = {}
        self.tokens: dict[str, int] = {}
        self.same: dict[str, str] = {}

    def add(self, seen: Mapping[str, list[Tensor]], order: list[str], mask: Tensor | None) -> None:
        """Add one batch; products of a batch are float32, as the model's own."""
        if not self.same:
            first: dict[tuple[int, ...], str] = {}
            self.same = {k: first.setdefault(tuple(map(id, seen[k])), k) for k in order if k in seen}
        for key in dict.fromkeys(self.same.values()):
            for part in seen[key]:
                x = unpadded(part, mask).float()
                gram, total = (x.mT @ x).double().cpu(), x.double().sum(0).cpu()
                self.grams[key] = self.grams[key] + gram if key in self.grams else gram
                self.means[key] = self.means[key] + total if key in self.means else total
                self.tokens[key] = self.tokens.get(key, 0) + len(x)


def gather(
    model: Model,
    module: nn.Module,
    examples: Examples,
    *,
    rows: int = ROWS,
    batch_size: int = BATCH,
    observer: Observer = lambda what, done, total: None,
) -> Statistics:
    """Run a module over examples once.

    Args:
        model: the checkpoint that the module was loaded from.
        module: see `isomerge.engine.modules.load_module`.
        examples: all of them count in means and Grams.
        rows: how many rows are kept of every tap, of the first ``rows`` examples: the same rows that
            `isomerge.engine.taps.capture` keeps of these.
        batch_size: examples that the module reads at a time; equal for models that are to be paired.

    Raises:
        IsomergeError: activations that are no finite numbers, or examples that do not fit the module.
    """
    import torch

    from isomerge.evidence.losses import logits_of

    places = [*(taps := plan_taps(model, module)), *plan_inputs(model, module)]
    order = [tap.key for tap, _ in places]
    head = examples.head(min(len(examples), rows))
    share = -(-rows // -(-len(head) // batch_size))
    sums, kept = _Sums(), {tap.key: [] for tap, _ in taps}
    with torch.no_grad():
        for part, done in ((head, 0), (_rest(examples, len(head)), len(head))):
            for batch in part.batches(batch_size) if part is not None else ():
                observer(f"reading activations of {model.ref}", done, len(examples))
                done += len(next(iter(batch.values())))
                seen: dict[str, list[Tensor]] = {}
                with reading(module, places, seen):
                    logits_of(module, batch)
                mask = batch.get("attention_mask")
                sums.add(seen, order, mask)
                for key in kept.keys() & seen.keys() if part is head else ():
                    kept[key] += [spread_rows(x, mask, share) for x in seen[key]]
    values = {key: torch.cat(parts)[:rows] for key, parts in kept.items() if parts}
    for key, x in (*values.items(), *sums.grams.items()):
        if not bool(x.isfinite().all()):
            raise IsomergeError(
                f"{model.ref}: activations at {key} are not finite: this model cannot be read in float32"
            )
    known = {tap.key: tap for tap, _ in places}
    found = Activations({k: known[k] for k in values}, values, pairing(head, rows, batch_size))
    return Statistics(
        found,
        {key: known[key] for key in sums.grams},
        {key: gram / sums.tokens[key] for key, gram in sums.grams.items()},
        {key: total / sums.tokens[key] for key, total in sums.means.items()},
        sums.tokens,
        {tap.block: sums.same[tap.key] for tap, _ in places[len(taps) :] if tap.key in sums.same},
    )


def _rest(examples: Examples, first: int) -> Examples | None:
    """The examples from ``first`` on; None when there are none."""
    if first >= len(examples):
        return None
    return replace(examples, tensors={name: x[first:] for name, x in examples.tensors.items()})


@dataclass(frozen=True)
class StatsOptions:
    """What `isomerge stats` is told; see `isomerge.stats`."""

    out: Path
    rows: int = ROWS
    batch_size: int = BATCH
    device: str = "cpu"
    dtype: str = "float32"
    force: bool = False
    observer: Observer = lambda what, done, total: None

    def check(self) -> None:
        """Refuse what cannot work before anything is read.

        Raises:
            IsomergeError: naming the option.
        """
        from isomerge.engine.modules import check_device

        if not self.out.absolute().parent.is_dir():
            raise IsomergeError(f"--out {self.out}: no such folder; make it first")
        if self.out.is_dir() or (self.out.exists() and not self.force):
            raise IsomergeError(f"--out {self.out} exists: choose another file, or --overwrite a file")
        for name, value in (("--rows", self.rows), ("--batch-size", self.batch_size)):
            if value < 1:
                raise IsomergeError(f"{name} {value}: at least 1 is needed")
        if self.dtype not in DTYPES:
            raise IsomergeError(f"--dtype {self.dtype}: choose from {', '.join(DTYPES)}")
        check_device(self.device)


def run_stats(model: Model, examples: Examples, options: StatsOptions) -> dict[str, Any]:
    """Gather and write; returns the report."""
    from isomerge.engine.modules import load_module

    module = load_module(model, device=options.device)
    found = gather(
        model, module, examples, rows=options.rows, batch_size=options.batch_size, observer=options.observer
    )
    header = write_statistics(options.out, found, model, dtype=options.dtype)
    return {
        "command": "stats",
        "model": model.ref,
        "architecture": model.spec.model_type,
        "digest": header["model"],
        "examples": len(examples),
        "rows": max((len(x) for x in found.activations.values.values()), default=0),
        "taps": len(found.activations.taps),
        "tokens": dict(found.tokens),
        "bytes": options.out.stat().st_size,
    }

"""Statistics of a model: what its activations and gradients say, gathered once and read by every later match and
merge.

One safetensors file per model. Keys are ``<kind>/<place>``. ``rows`` are activations [rows, width] at every tap
(pairs of rows of two models give the cross-Grams that matching needs), ``mean`` [width] and ``gram`` [width, width]
are E x and E x x^T over every token, in the model's own coordinates. What linear layers read is there by its Gram
alone, once where several read the same. ``fisher`` and ``kfac`` are of blocks
(`isomerge.observe.stats.fisher_information`). Further kinds can be added beside these: a reader takes the kinds
that it knows.

A file belongs to one model, known by a digest of its weights, and moves along with it: statistics of a moved model
are moved statistics of the model (`isomerge.observe.stats.moved_statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.files import write_tensors
from isomerge.models.recognised import Model
from isomerge.observe.stats.fisher_information import FisherInformation
from isomerge.observe.stats.moved_statistics import moved_moments
from isomerge.observe.stats.statistics_file import KINDS, StatisticsFile, axis_number, weights_digest
from isomerge.observe.stats.statistics_header import FORMAT, VERSION
from isomerge.observe.stats.taps import Activations, Tap
from isomerge.symmetry.alignment import Alignment

DTYPES = ("float32", "float16")
__all__ = [
    "DTYPES",
    "FORMAT",
    "KINDS",
    "VERSION",
    "Statistics",
    "read_activations",
    "read_statistics",
    "weights_digest",
]


@dataclass(frozen=True)
class Statistics:
    """What was gathered of the activations of one model, in its own coordinates."""

    activations: Activations
    """Paired rows of the taps that matching looks at."""
    taps: Mapping[str, Tap] = field(default_factory=dict)
    """Every tap that has a Gram."""
    grams: Mapping[str, Tensor] = field(default_factory=dict)
    """E x x^T over all tokens, float64 [width, width], by tap."""
    means: Mapping[str, Tensor] = field(default_factory=dict)
    """E x, float64 [width], by tap."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """How many rows a Gram is the mean of: tokens without padding, or patches, or examples."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """From linear layers that read a residual stream (block keys) to the tap whose Gram is that of their input."""
    linears: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """From every linear layer to the tap whose Gram is that of its input, and which axis of its weight reads it."""

    def of_inputs(self) -> Statistics:
        """The Grams of what reads a residual stream, alone: those of neurons are far larger."""
        kept = {key: self.taps[key] for key in self.taps if key in set(self.inputs.values())}
        grams, means = ({key: of[key] for key in kept} for of in (self.grams, self.means))
        return replace(self, activations=Activations({}, {}, ""), taps=kept, grams=grams, means=means, linears={})

    def moved(self, alignment: Alignment) -> Statistics:
        """Those of the moved model, exactly; rows up to what shifts of biases add."""
        grams, means = {}, {}
        for key, tap in self.taps.items():
            grams[key], means[key] = moved_moments(alignment, tap, self.grams[key], self.means[key])
        return replace(self, activations=self.activations.moved(alignment), grams=grams, means=means)


def write_statistics(
    path: Path,
    statistics: Statistics,
    model: Model,
    *,
    dtype: str = "float32",
    fisher: FisherInformation | None = None,
) -> dict[str, Any]:
    """Write a statistics file, complete or not at all; equal statistics give equal bytes. Returns its header.

    Args:
        path: the file.
        statistics: of the model's activations.
        dtype: of the rows, ``float32`` or ``float16`` (half the size, 3 digits). Grams, Fishers and factors are
            float32, means float64.
        fisher: of its gradients.

    Raises:
        IsomergeError: rows that do not fit into float16, an unknown dtype, or a file that cannot be written.
    """

    if dtype not in DTYPES:
        raise IsomergeError(f"--dtype {dtype}: choose from {', '.join(DTYPES)}")
    acts = statistics.activations
    tensors = {f"rows/{key}": x.to(getattr(torch, dtype)).contiguous() for key, x in acts.values.items()}
    for key, x in tensors.items():
        if not bool(x.isfinite().all()):
            raise IsomergeError(f"{path}: {key} has values that {dtype} cannot hold: choose --dtype float32")
    tensors |= {f"gram/{key}": x.float().contiguous() for key, x in statistics.grams.items()}
    tensors |= {f"mean/{key}": x.contiguous() for key, x in statistics.means.items()}
    if fisher is not None:
        tensors |= {f"fisher/{key}": x.float().contiguous() for key, x in fisher.fishers.items()}
        tensors |= {f"kfac/{key}": x.float().contiguous() for key, x in fisher.factors.items()}
    header = _header(statistics, fisher, model)
    write_tensors(path, tensors, header)
    return header


def _header(statistics: Statistics, fisher: FisherInformation | None, model: Model) -> dict[str, Any]:
    """Everything of a file that is no tensor."""
    axes: dict[str, Any] = {block.key: block.axes for block in model.blocks}
    every = {**statistics.activations.taps, **statistics.taps}
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model_type": model.spec.model_type,
        "model": weights_digest(model),
        "rows_of": statistics.activations.fingerprint,
        "taps": [[k, t.block, t.side, axis_number(t, axes[t.block])] for k, t in every.items()],
        "tokens": dict(statistics.tokens),
        "inputs": dict(statistics.inputs),
        "linears": {block: list(place) for block, place in statistics.linears.items()},
    }
    if fisher is not None:
        norm = sum(float(x.square().sum()) for x in fisher.fishers.values()) ** 0.5
        header["fisher"] = {
            "labels": fisher.labels,
            "samples": fisher.samples,
            "norm": norm,
            "tie": not model.has_own_head,
            "tied": dict(fisher.tied),
        }
    return header


def read_activations(path: Path, model: Model) -> Activations:
    """The paired rows of a statistics file.

    Raises:
        IsomergeError: not a statistics file, one of another model, or damaged.
    """
    return _activations(StatisticsFile(path, model))


def _activations(file: StatisticsFile) -> Activations:
    values = {key: file.read(f"rows/{key}").float() for key in file.taps if f"rows/{key}" in file.names}
    if not values:
        raise IsomergeError(
            f"{file.path}: there are no activations in this file: make it again with isomerge stats"
        )
    return Activations({key: file.taps[key] for key in values}, values, str(file.header.get("rows_of")))


def read_statistics(path: Path, model: Model) -> Statistics:
    """What a statistics file says of activations.

    Raises:
        IsomergeError: see `read_activations`.
    """
    file = StatisticsFile(path, model)
    grams = {key: file.read(f"gram/{key}").double() for key in file.taps if f"gram/{key}" in file.names}
    means = {key: file.read(f"mean/{key}") for key in grams if f"mean/{key}" in file.names}
    tokens, inputs = file.header.get("tokens", {}), file.header.get("inputs", {})
    if (
        means.keys() != grams.keys()
        or not grams.keys() <= tokens.keys()
        or not set(inputs.values()) <= grams.keys()
    ):
        raise IsomergeError(f"{path}: means or Grams are missing: this file is damaged, make it again")
    taps = {key: file.taps[key] for key in grams}
    return Statistics(_activations(file), taps, grams, means, tokens, inputs, file.linears)

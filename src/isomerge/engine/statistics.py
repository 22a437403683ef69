"""Statistics files: what a model's activations say, gathered once and read by every later match.

One safetensors file per model. Keys are ``<kind>/<tap>``: ``rows`` are activations [rows, width] at every tap (pairs of
rows of two models give the cross-Grams that matching needs), ``mean`` [width] and ``gram`` [width, width] are E x and
E x x^T over every token, in the model's own coordinates. What linear layers read is there by its Gram alone, once where
several read the same. Further kinds can be added beside these: a reader takes the kinds that it knows.

A file belongs to one model, known by a digest of its weights, and moves along with it: statistics of a moved model are
moved statistics of the model.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.engine.models import Model
from isomerge.engine.taps import Activations, Tap, plain
from isomerge.errors import IsomergeError
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import size

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "isomerge-statistics"
VERSION = 1
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Statistics:
    """What was gathered of one model, in its own coordinates."""

    activations: Activations
    """Paired rows of the taps that matching looks at."""
    taps: Mapping[str, Tap]
    """Every tap that has a Gram."""
    grams: Mapping[str, Tensor]
    """E x x^T over all tokens, float64 [width, width], by tap."""
    means: Mapping[str, Tensor]
    """E x, float64 [width], by tap."""
    tokens: Mapping[str, int]
    """How many rows a Gram is the mean of: tokens without padding, or patches, or examples."""
    inputs: Mapping[str, str]
    """From linear layers that read a residual stream (block keys) to the tap whose Gram is that of their input."""

    def covariance(self, key: str) -> Tensor:
        """Cov x of a tap, float64 [width, width]: additive gauges of biases do not change it."""
        return self.grams[key] - self.means[key].outer(self.means[key])

    def moved(self, alignment: Alignment) -> Statistics:
        """Those of the moved model, exactly; rows and means up to what shifts of biases add."""
        grams, means = {}, {}
        for key, tap in self.taps.items():
            grams[key] = _act(alignment, tap, _act(alignment, tap, self.grams[key]).mT).mT.contiguous()
            means[key] = _act(alignment, tap, self.means[key][None])[0]
        return replace(self, activations=self.activations.moved(alignment), grams=grams, means=means)


def _act(alignment: Alignment, tap: Tap, x: Tensor) -> Tensor:
    """Rows [n, width] at a tap, moved."""
    found = x.clone().contiguous()
    for (view,), here in tap.leaves(alignment.spec, found):
        alignment.act_on_view(view, here, dict(tap.scope))
    return found


def weights_digest(model: Model) -> str:
    """The sha256 of every stored tensor's name, type, shape and bytes, in the order of names; read one by one.

    How tensors are spread over files does not matter, nor does a head that `recognise` untied.
    """
    import torch

    found = hashlib.sha256()
    seen: set[tuple[Any, int]] = set()
    names = []
    for name, info in model.checkpoint.tensors.items():
        place = (info.file, info.offset)
        if info.offset < 0 or info.nbytes == 0 or place not in seen:
            names.append(name)
        seen.add(place)
    for name in sorted(names):
        tensor = model.checkpoint.read(name)
        found.update(f"{name} {model.checkpoint.tensors[name].dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return found.hexdigest()


def write_statistics(path: Path, statistics: Statistics, model: Model, *, dtype: str = "float32") -> dict[str, Any]:
    """Write a statistics file, complete or not at all; equal statistics give equal bytes. Returns its header.

    Args:
        path: the file.
        statistics: of the model.
        dtype: of the rows, ``float32`` or ``float16`` (half the size, 3 digits). Grams are float32, means float64.

    Raises:
        IsomergeError: rows that do not fit into float16, an unknown dtype, or a file that cannot be written.
    """
    import torch
    from safetensors.torch import save_file

    if dtype not in DTYPES:
        raise IsomergeError(f"--dtype {dtype}: choose from {', '.join(DTYPES)}")
    acts = statistics.activations
    tensors = {f"rows/{key}": x.to(getattr(torch, dtype)).contiguous() for key, x in acts.values.items()}
    for key, x in tensors.items():
        if not bool(x.isfinite().all()):
            raise IsomergeError(f"{path}: {key} has values that {dtype} cannot hold: choose --dtype float32")
    tensors |= {f"gram/{key}": x.float().contiguous() for key, x in statistics.grams.items()}
    tensors |= {f"mean/{key}": x.contiguous() for key, x in statistics.means.items()}
    axes: dict[str, Any] = {block.key: block.axes for block in model.blocks}
    every = {**acts.taps, **statistics.taps}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "model_type": model.spec.model_type,
        "model": weights_digest(model),
        "rows_of": acts.fingerprint,
        "taps": [[k, t.block, t.side, _axis_number(t, axes[t.block])] for k, t in every.items()],
        "tokens": dict(statistics.tokens),
        "inputs": dict(statistics.inputs),
    }
    beside = path.with_name(f".{path.name}.partial")
    try:
        save_file(
            dict(sorted(tensors.items())), str(beside), metadata={"isomerge": json.dumps(header, sort_keys=True)}
        )
        os.replace(beside, path)
    except OSError as error:
        raise IsomergeError(f"{path}: cannot be written ({error.strerror or error}); choose another file") from None
    finally:
        beside.unlink(missing_ok=True)
    return header


def _axis_number(tap: Tap, axes: Any) -> int:
    return [plain(axis, flip=tap.side == "in") for axis in axes].index(tap.axis)


def read_activations(path: Path, model: Model) -> Activations:
    """The paired rows of a statistics file.

    Raises:
        IsomergeError: not a statistics file, one of another model, or damaged.
    """
    taps, header, tensors = _open(path, model, ("rows",))
    values = {key: tensors[f"rows/{key}"].float() for key in taps if f"rows/{key}" in tensors}
    if not values:
        raise IsomergeError(f"{path}: there are no activations in this file: make it again with isomerge stats")
    return Activations({key: taps[key] for key in values}, values, str(header.get("rows_of")))


def read_statistics(path: Path, model: Model) -> Statistics:
    """Everything of a statistics file.

    Raises:
        IsomergeError: see `read_activations`.
    """
    taps, header, tensors = _open(path, model, ("gram", "mean"))
    grams = {key: tensors[f"gram/{key}"].double() for key in taps if f"gram/{key}" in tensors}
    means = {key: tensors[f"mean/{key}"] for key in grams if f"mean/{key}" in tensors}
    tokens, inputs = header.get("tokens", {}), header.get("inputs", {})
    if (
        means.keys() != grams.keys()
        or not grams.keys() <= tokens.keys()
        or not set(inputs.values()) <= grams.keys()
    ):
        raise IsomergeError(f"{path}: means or Grams are missing: this file is damaged, make it again")
    return Statistics(read_activations(path, model), {k: taps[k] for k in grams}, grams, means, tokens, inputs)


def _open(
    path: Path, model: Model, kinds: tuple[str, ...]
) -> tuple[dict[str, Tap], dict[str, Any], dict[str, Tensor]]:
    """Taps, header and the tensors of some kinds, checked."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            header = json.loads((file.metadata() or {}).get("isomerge", "{}"))
            tensors = {k: file.get_tensor(k) for k in file.keys() if k.partition("/")[0] in kinds}  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise IsomergeError(
            f"{path}: not a readable statistics file ({error}): make one with isomerge stats"
        ) from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise IsomergeError(f"{path}: not a statistics file of isomerge: make one with isomerge stats")
    if header.get("version") != VERSION:
        raise IsomergeError(
            f"{path}: version {header.get('version')} of the format, but this program reads {VERSION}"
        )
    if header.get("model_type") != model.spec.model_type:
        raise IsomergeError(
            f"{path}: made for {header.get('model_type')}, but {model.ref} is {model.spec.model_type}"
        )
    if header.get("model") != weights_digest(model):
        raise IsomergeError(
            f"{path}: made for another model than {model.ref}: make one of this one with isomerge stats"
        )
    taps = _read_taps(path, header.get("taps"), model)
    for name, x in tensors.items():
        tap = taps.get(name.partition("/")[2])
        good = tap is not None and x.is_floating_point() and x.shape[-1:] == (size(tap.axis, model.spec.sizes),)
        if not good or not bool(x.isfinite().all()):
            raise IsomergeError(
                f"{path}: {name} is not what a tap of {model.ref} gives: this file is damaged, make it again"
            )
    return taps, header, tensors


def _read_taps(path: Path, rows: Any, model: Model) -> dict[str, Tap]:
    blocks = {block.key: block for block in model.blocks}
    taps = {}
    try:
        for key, block, side, at in rows:
            axes: Any = blocks[block].axes
            taps[key] = Tap(key, block, plain(axes[at], flip=side == "in"), blocks[block].scope, side)
    except (TypeError, ValueError, KeyError, IndexError):
        raise IsomergeError(f"{path}: its list of taps does not fit {model.ref}: make it again") from None
    return taps

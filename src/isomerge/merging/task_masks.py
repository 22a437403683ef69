"""Task masks: a light file beside a merged model, from which one task's own model comes back.

A task's model is ``base + r M (merged - base)``: a mask ``M`` of one bit per weight and a factor ``r``. EMR (Huang
et al. 2024) takes the entries whose sign is the task's, and the factor that restores the sum of magnitudes
(equations 4 and 5; the authors' code weighs tensors alike there, the paper and this weigh entries alike); TALL
masks (Wang et al. 2024, equation 5) take the entries that lie nearer to the task's than the base's do, and no
factor.

The merged model must be what the masks are meant for: `emr`'s for EMR, a sum of task vectors for TALL masks. The
task's model must stand in the coordinates of the merged one; after an aligned merge, align it first
(`isomerge.align`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.weights import weights_name
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.errors import IsomergeError
from isomerge.files import check_file, write_tensors
from isomerge.fusion.consensus import tall_mask
from isomerge.fusion.emr import same_direction
from isomerge.models.recognised import Model
from isomerge.models.row_meanings import in_order
from isomerge.pieces import wide_dtype
from isomerge.records import Record, inline

FORMAT = "isomerge-task-mask"
KINDS = ("emr", "tall")
SAMPLED, SAMPLE = 16, 1 << 16
"""How many tensors, and how many weights of each, tell models apart."""


@dataclass(frozen=True)
class TaskMask:
    """What a file of `write_task_mask` says."""

    kind: str
    factor: float
    """What the masked task vector is multiplied by."""
    digest: str
    """Of the merged model and the base: the mask fits no others."""
    path: Path

    @cached_property
    def names(self) -> frozenset[str]:
        """The tensors that have a mask."""
        with safe_open(str(self.path), "pt") as file:
            return frozenset(file.keys())

    def of(self, name: str, shape: torch.Size) -> Tensor | None:
        """The mask of a stored tensor, booleans; None where it has none.

        Raises:
            IsomergeError: it has another size.
        """
        if name not in self.names:
            return None
        with safe_open(str(self.path), "pt") as file:
            packed = file.get_tensor(name)
        if len(packed) != -(-shape.numel() // 8):
            raise IsomergeError(
                f"{self.path}: the mask of tensor {name} has {8 * len(packed)} bits, but the merged model's has "
                f"shape {list(shape)}: give the model that the mask was made for"
            )
        bits = np.unpackbits(packed.numpy(), count=shape.numel())
        return torch.from_numpy(bits).bool().reshape(shape)


class MaskUse(Record):
    """A mask that was made or used."""

    kind: str
    factor: float
    notes: Sequence[str]
    """On what rows mean, which are taken in the merged model's order."""
    out: str


class MaskReport(Record):
    """What a mask is worth."""

    share: float
    error: float
    """How far the restored model is from the task's, as a share of the task vector's length: 1 is as far as the
    base, and then nothing is gained."""
    mask: MaskUse = inline()


def write_task_mask(
    merged: Model,
    base: Model,
    task: Model,
    out: Path,
    *,
    kind: str = "emr",
    tall_lambda: float = 0.4,
    overwrite: bool = False,
) -> MaskReport:
    """Write the mask of a task's model, a safetensors file of one bit per weight.

    Args:
        merged: the merged model.
        base: what it was merged around.
        task: the model of the task, in the coordinates of the merged one.
        out: the file.
        kind: ``emr`` or ``tall``.
        tall_lambda: the threshold of TALL masks, larger for smaller masks.
        overwrite: replace ``out`` if it exists.

    Raises:
        IsomergeError: another word for ``kind``, models that do not fit together, rows without partners, a
            task's model that is the base, or a file that exists.
    """
    check_file(out, f"--out {out}", overwrite=overwrite)
    if kind not in KINDS:
        raise IsomergeError(f"--kind {kind}: give one of {', '.join(KINDS)}")
    if not 0 <= tall_lambda < math.inf:
        raise IsomergeError(f"--tall-lambda {tall_lambda}: give a finite number of at least 0")
    rows = in_order([merged, base, task], use="averaged")
    merged, base, task = rows.models
    masks: dict[str, Tensor] = {}
    entries = kept = 0
    own = masked = crossed = squares = lengths = 0.0
    for name, unified, delta in _task_vectors(merged, base, task):
        mask = same_direction(delta, unified) if kind == "emr" else tall_mask(delta, unified, tall_lambda)
        chosen = (unified * mask).double()
        own += float(delta.abs().sum(dtype=torch.float64))
        masked += float(chosen.abs().sum())
        crossed += float((chosen * delta).sum())
        squares += float(chosen.square().sum())
        lengths += float(delta.double().square().sum())
        entries, kept = entries + mask.numel(), kept + int(mask.sum())
        masks[name] = torch.from_numpy(np.packbits(mask.reshape(-1).numpy()))
    if not lengths:
        raise IsomergeError(f"{task.ref} and {base.ref} have equal weights: there is no task to make a mask of")
    factor = own / masked if kind == "emr" and masked else 1.0
    error = max(0.0, factor**2 * squares - 2 * factor * crossed + lengths)
    header = {"format": FORMAT, "kind": kind, "factor": repr(factor), "fits": _digest(merged, base)}
    write_tensors(out, masks, header)
    return MaskReport(kept / entries, (error / lengths) ** 0.5, mask=MaskUse(kind, factor, rows.notes, str(out)))


def read_task_mask(path: Path) -> TaskMask:
    """Open a file of `write_task_mask`.

    Raises:
        IsomergeError: it is none.
    """
    try:
        with safe_open(str(path), "pt") as file:
            header = json.loads((file.metadata() or {}).get("isomerge", "{}"))
    except Exception as error:
        raise IsomergeError(f"{path} cannot be read as a task mask ({error}): give a file of task_mask") from None
    if header.get("format") != FORMAT:
        raise IsomergeError(f"{path} is no task mask: give a file of task_mask")
    return TaskMask(header["kind"], float(header["factor"]), header["fits"], path)


def restore_task(merged: Model, base: Model, mask: TaskMask, out: Path, *, overwrite: bool = False) -> MaskUse:
    """Write the model of a task: ``base + factor mask (merged - base)``, tensor by tensor, with the merged model's
    config and files, in its dtypes.

    Raises:
        IsomergeError: the mask was made for other models, or ``out`` exists.
    """
    rows = in_order([merged, base], use="averaged")
    merged, base = rows.models
    if mask.digest != _digest(merged, base):
        raise IsomergeError(
            f"{mask.path} was made for other models than {merged.ref} and {base.ref}: give those of the mask"
        )
    checkpoint = merged.checkpoint
    wanted = {name for name, info in checkpoint.tensors.items() if info.dtype.startswith(("F", "BF"))}
    if strange := sorted(wanted ^ mask.names):
        raise IsomergeError(
            f"{mask.path}: the mask {'lacks' if strange[0] in wanted else 'has'} tensor {strange[0]}, and "
            f"{merged.ref} {'has' if strange[0] in wanted else 'lacks'} it: make the mask anew with task_mask"
        )
    plan = [OutTensor(info.name, info.dtype, tuple(info.shape)) for info in checkpoint.tensors.values()]
    content = hashlib.sha256(mask.path.read_bytes()).hexdigest()
    seen = ["restore", content, checkpoint.identity(), base.checkpoint.identity()]
    key = hashlib.sha256(json.dumps(seen).encode()).hexdigest()
    reads = (*checkpoint.files, *base.checkpoint.files, mask.path)
    stored = {name: canonical for canonical, name in merged.names.items()}
    name = weights_name(checkpoint.config)
    with CheckpointWriter(out, plan, key=key, overwrite=overwrite, name=name, reads=reads) as writer:
        for name in checkpoint.tensors:
            if name not in writer.done:
                tensor = merged.read(name, None)
                bits = mask.of(name, tensor.shape)
                origin = None if bits is None else base.read(_source(base, stored.get(name, name)), None)
                if bits is not None and origin is not None:
                    wide = wide_dtype([tensor, origin])
                    change = (tensor.to(wide) - origin.to(wide)).mul_(bits)
                    tensor = torch.add(origin.to(wide), change, alpha=mask.factor).to(tensor.dtype)
                writer.write(name, tensor)
                writer.commit(name, {})
        writer.finish({**checkpoint.companions(), CONFIG: config_bytes(checkpoint.config)})
    return MaskUse(mask.kind, mask.factor, rows.notes, str(out))


def _task_vectors(merged: Model, base: Model, task: Model) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The stored name in the merged model, and what the merged and the task's model add to the base's tensor, of
    every tensor of floating point that the merged model stores."""
    stored = {name: canonical for canonical, name in merged.names.items()}
    for name in merged.checkpoint.tensors:
        together = merged.read(name, None)
        if not together.is_floating_point():
            continue
        canonical = stored.get(name, name)
        origin, tuned = (model.read(_source(model, canonical), None) for model in (base, task))
        for model, tensor in ((base, origin), (task, tuned)):
            if tensor.shape != together.shape:
                raise IsomergeError(
                    f"tensor {name} has shape {list(together.shape)} in {merged.ref} and {list(tensor.shape)} in "
                    f"{model.ref}: a mask needs equal shapes"
                )
        wide = wide_dtype([together, origin, tuned])
        start = origin.to(wide)
        yield name, together.to(wide) - start, tuned.to(wide) - start


def _source(model: Model, canonical: str) -> str:
    """The stored tensor of a model.

    Raises:
        IsomergeError: it has none.
    """
    name = model.names.get(canonical)
    if name is None and canonical in model.checkpoint.tensors:
        name = canonical
    if name is None:
        match = {m.canonical: m for m in model.matches.values()}.get(canonical)
        name = model.source_of(canonical, match)
    if name is None:
        raise IsomergeError(f"{model.ref}: tensor {canonical} is missing, but the merged model has it")
    return name


def _digest(merged: Model, base: Model) -> str:
    """What both look like, wherever they lie: names, shapes and dtypes, and a few of the weights themselves."""
    tensors = merged.checkpoint.tensors
    seen = [[info.name, info.dtype, list(info.shape)] for _, info in sorted(tensors.items())]
    digest = hashlib.sha256(json.dumps(seen).encode())
    for name in sorted(tensors)[:: max(1, len(tensors) // SAMPLED)]:
        stored = {own: canonical for canonical, own in merged.names.items()}.get(name, name)
        for tensor in (merged.read(name, None), base.read(_source(base, stored), None)):
            sample = tensor.reshape(-1)[:SAMPLE].contiguous()
            digest.update(sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b"")
    return digest.hexdigest()

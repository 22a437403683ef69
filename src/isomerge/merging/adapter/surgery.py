"""Surgery on a merged model for one task, written as an adapter on it: a head that reads corrected representations.

Yang et al. 2024 (Representation Surgery for Multi-Task Model Merging): in a merge, representations z of a task are
biased against those of the task's own model, and a small module of each task takes the bias away again,
``z - B relu(A z)``, learned without labels: the mean absolute difference from the task's own representations.

A module with a relu in it is no part of an ordinary checkpoint. Without the relu, and with a constant c where the
head has a bias, it is one: the head that reads ``z - B A z - c`` is ``W (1 - B A)`` with the bias ``b - W c``, and
W, b are the task's own. Both kinds are here: `learn` with ``rectified`` is the publication's.

The adapter is in peft's format and has one module, the head, whole (``modules_to_save``): a few kilobytes for a
classifier beside one merged model that all tasks share. ``merged+adapter`` is the model of the task, wherever a
model is named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE, NO_TARGETS, PREFIX
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.checkpoint.output_folder import PartialFolder, written_at_once
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors
from isomerge.models.lora import with_adapter
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import logits_of
from isomerge.observe.stats.layer_sequence import linear_modules, matrix
from isomerge.observe.stats.taps import run_until, watch
from isomerge.options.requests.adapting import SurgeryOptions
from isomerge.progress import Observer, quiet
from isomerge.records import Change, Record, inline
from isomerge.run.absolute_names import absolute_ref

ROWS = 1 << 14
"""The most tokens whose representations are kept of either model; of more, so many are drawn."""
UNGAINED = (
    "on held-out examples the corrected representations are no nearer to {task}'s than the merged model's are: "
    "{cure}"
)
CURE = "give more --data or a smaller --rank; if the merge aligned {task}, align it first (isomerge align)"
BATCH = 64
"""Rows of a step."""


def head_of(module: nn.Module, examples: Examples) -> str:
    """The linear layer whose outputs are what a module predicts: of those that are as wide as its predictions, the
    one that runs last.

    Raises:
        IsomergeError: the module predicts nothing, or not by a linear layer.
    """
    ran: list[tuple[str, int]] = []
    batch = next(examples.head(1).without_padding(1))
    with ExitStack() as hooks, torch.no_grad():
        for path, part in linear_modules(module).items():
            watch(hooks, part, (path, "out"), lambda place, x: ran.append((place[0], x.shape[-1])))
        width = logits_of(module, batch).shape[-1]
    if (path := next((path for path, wide in reversed(ran) if wide == width), None)) is None:
        raise IsomergeError(
            f"{type(module).__name__} has no linear layer that gives its {width} outputs: surgery corrects what "
            "such a head reads"
        )
    return path


def representations(module: nn.Module, path: str, examples: Examples, batch_size: int, seed: int) -> Tensor:
    """What a layer reads of all tokens, float32 [n, width] on the CPU; of more than `ROWS` so many, drawn.

    Raises:
        IsomergeError: they are not finite.
    """
    parts: list[Tensor] = []
    with torch.no_grad():
        for batch in examples.without_padding(batch_size):
            (rows,) = run_until(module, batch, {(path, "in"): 1}).values()
            parts += [part.float().cpu() for part in rows]
    whole = torch.cat(parts)
    if not bool(whole.isfinite().all()):
        raise IsomergeError(f"activations at {path} are not finite: load the models in float32")
    if len(whole) <= ROWS:
        return whole
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    return whole[order[:ROWS].sort().values]


class SurgeryReport(Record):
    """What a correction does, on held-out examples."""

    head: str
    width: int
    rank: int
    rows: int
    """Tokens that it was learned on."""
    agreement: Change | None
    """With the task's own predictions; None where these are one number."""
    notes: Sequence[str]
    out: str
    bias: Change = inline()
    """The mean absolute difference from the task's own representations, as a share of their mean magnitude."""


def write_surgery(
    merged: Model,
    task: Model,
    examples: Examples,
    out: Path,
    options: SurgeryOptions,
    *,
    device: str = "cpu",
    overwrite: bool = False,
    observer: Observer = quiet,
) -> SurgeryReport:
    """Learn the correction of one task and write its adapter.

    Args:
        merged: the merged model.
        task: the task's own model, in the merged one's coordinates.
        examples: of the task; labels are not used.
        out: the adapter's folder.
        options: the size of the correction, and how it is learned.
        device: where the models run.
        overwrite: replace ``out`` if it exists.
        observer: told of progress.

    Raises:
        IsomergeError: the models do not fit together, or cannot be run on the examples; nothing is written.
    """
    reads = [*merged.checkpoint.places, *task.checkpoint.places]
    learning, judging = examples.split(1 - options.judge_share, seed=options.seed)
    with written_at_once(out, overwrite=overwrite, reads=reads) as folder:
        heads: list[nn.Module] = []
        seen: list[list[Tensor]] = []
        paths: list[str] = []
        for number, model in enumerate((merged, task)):
            observer(f"running {model.ref}", number, 3)
            module = load_module(model, device=device)
            paths.append(head_of(module, examples))
            how = (options.batch_size, options.seed)
            seen.append([representations(module, paths[-1], part, *how) for part in (learning, judging)])
            heads.append(module.get_submodule(paths[-1]).cpu())
        _check(merged, task, heads, seen, paths)
        observer("learning the correction", 2, 3)
        (rows, held), (wanted, unseen) = seen
        correction = learn(
            rows, wanted, rank=options.rank, steps=options.steps, rate=options.rate, seed=options.seed,
            constant=_bias(heads[1]) is not None,
        )  # fmt: skip
        _write(folder, merged, paths[0], heads[1], correction)
        observer("", 3, 3)
    bias, agreement = _judged(correction, heads, held, unseen)
    ungained = bias.after >= bias.before
    notes = [UNGAINED.format(task=task.ref, cure=CURE.format(task=task.ref))] if ungained else []
    width, rank = rows.shape[1], len(correction.down)
    return SurgeryReport(paths[0], width, rank, len(rows), agreement, notes, str(out), bias=bias)


def _bias(head: nn.Module) -> Tensor | None:
    bias: Any = head.bias
    return None if bias is None else bias.detach()


def _check(merged: Model, task: Model, heads: list[nn.Module], seen: list[list[Tensor]], paths: list[str]) -> None:
    """Refuse models whose heads do not read the same tokens in the same way."""
    if paths[0] != paths[1]:
        raise IsomergeError(
            f"{merged.ref} predicts by {paths[0]} and {task.ref} by {paths[1]}: surgery needs the same head in both"
        )
    shapes = [list(matrix(head).shape) for head in heads]
    if shapes[0] != shapes[1]:
        raise IsomergeError(
            f"{paths[0]} has shape {shapes[0]} in {merged.ref} and {shapes[1]} in {task.ref}: give the merged "
            "model with a head of the task's size (isomerge merge --heads separate)"
        )
    if any(x.shape != y.shape for x, y in zip(*seen, strict=True)):
        raise IsomergeError(f"{merged.ref} and {task.ref} read other tokens of the examples: surgery compares them")


def _write(folder: PartialFolder, merged: Model, path: str, head: nn.Module, correction: Correction) -> None:
    """The task's head with the correction in it, as peft names it.

    Raises:
        IsomergeError: the merged model has no such tensors.
    """
    weight, bias = correction.folded(matrix(head), _bias(head))
    if not isinstance(head, nn.Linear):  # stored as columns
        weight = weight.mT
    file = GrowingFile(folder.blobs / "tensors")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            file.add(f"{PREFIX}{path}.{name}", tensor.float().contiguous())
    file.finish(folder.model / ADAPTER_WEIGHTS)
    config = {
        "peft_type": "LORA",
        "task_type": None,
        BASE: absolute_ref(merged.ref),
        "inference_mode": True,
        "r": 1,
        "lora_alpha": 1,
        "bias": "none",
        "target_modules": NO_TARGETS,
        "modules_to_save": [path],
    }
    with disk_errors(folder.model):
        (folder.model / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    with_adapter(merged.checkpoint, folder.model)


def _judged(
    correction: Correction, heads: list[nn.Module], held: Tensor, unseen: Tensor
) -> tuple[Change, Change | None]:
    """What the correction does to representations that it was not learned from, and to predictions."""
    size = float(unseen.abs().mean(dtype=torch.float64)) or 1.0
    mended = correction(held)
    agreement = None
    with torch.no_grad():
        own, before, after = (head(x) for head, x in ((heads[1], unseen), (heads[0], held), (heads[1], mended)))
    if own.shape[-1] > 1:
        agree = [float((x.argmax(-1) == own.argmax(-1)).double().mean()) for x in (before, after)]
        agreement = Change(*agree)
    return Change(bias_of(held, unseen) / size, bias_of(mended, unseen) / size), agreement


@dataclass(frozen=True)
class Correction:
    """What is taken from a representation: ``B relu(A z) + c``, or ``B A z + c``."""

    down: Tensor
    """A, [rank, width]."""
    up: Tensor
    """B, [width, rank]."""
    shift: Tensor | None
    """c, [width]; None where there is none."""
    rectified: bool = False

    def __call__(self, rows: Tensor) -> Tensor:
        """Representations [n, width] without their bias."""
        inner = rows @ self.down.mT
        bias = (inner.relu() if self.rectified else inner) @ self.up.mT
        return rows - bias if self.shift is None else rows - bias - self.shift

    def folded(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A head's weight [outputs, width] and bias [outputs] that read what is not corrected; float64.

        Raises:
            ValueError: a correction that is not affine, or a constant without a bias to take it.
        """
        if self.rectified or (self.shift is not None and bias is None):
            raise ValueError("only an affine correction is part of a head, and a constant of its bias")
        wide = weight.double()
        reads = wide - (wide @ self.up.double()) @ self.down.double()
        if bias is None or self.shift is None:
            return reads, None if bias is None else bias.double()
        return reads, bias.double() - wide @ self.shift.double()


def bias_of(rows: Tensor, wanted: Tensor) -> float:
    """The mean absolute difference of representations [n, width] from those of the task's own model."""
    return float((rows - wanted).abs().mean(dtype=torch.float64))


def learn(
    rows: Tensor,
    wanted: Tensor,
    *,
    rank: int,
    steps: int,
    rate: float,
    seed: int = 0,
    rectified: bool = False,
    constant: bool = True,
    batch: int = BATCH,
) -> Correction:
    """The correction by which a merged model's representations come nearest to a task's own, by Adam.

    A is drawn as torch draws linear layers (uniform within ``1 / sqrt(width)``), B and c start at zero: the merged
    model as it is. Rows are drawn anew for every step.

    Args:
        rows: [n, width], float32: what the head reads in the merged model.
        wanted: the same tokens in the task's own model.
        rank: of the correction; at most the width.
        steps: of Adam.
        rate: its learning rate at the first step; it falls to zero along a line.
        seed: of A and of the rows that are drawn.
        rectified: with the publication's relu, which no ordinary checkpoint has.
        constant: whether there is a c.
        batch: rows of a step.

    Returns:
        The correction, in the scale of ``rows``.
    """
    width, rng = rows.shape[1], torch.Generator().manual_seed(seed)
    # in units of the task's own representations: a rate then means the same in every model
    unit = float(wanted.square().mean(dtype=torch.float64).sqrt()) or 1.0
    down = torch.empty(min(rank, width), width)
    down.uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=rng)
    up, shift = torch.zeros(width, len(down)), torch.zeros(width) if constant else None
    learned = [x.requires_grad_(True) for x in (down, up, shift) if x is not None]
    correction = Correction(down, up, shift, rectified)
    optimizer = torch.optim.Adam(learned, lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        chosen = torch.randint(len(rows), (min(batch, len(rows)),), generator=rng)
        loss = (correction(rows[chosen] / unit) - wanted[chosen] / unit).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    down, up = down.detach(), up.detach()
    return Correction(down, up, None if shift is None else shift.detach() * unit, rectified)

"""Classifier heads in merges: fused like all else, one model's, or all of them beside one merged body.

A head is what has the axis ``labels`` outside the layers, with what stands before it in the same module (RoBERTa's
``classifier.dense``). Merging papers leave heads per task (task arithmetic, Ilharco et al. 2023): labels of two
tasks have nothing to do with each other. A head reads the residual stream, so it moves with its model's alignment.
Language-model heads are none: their axis is the vocabulary, which all models of a merge share.

Separate heads have folders: one merged body in several checkpoints, by links, each with a model's own head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.shard_plan import files_index
from isomerge.checkpoint.weights import SAFETENSORS, SAFETENSORS_INDEX
from isomerge.config.keys import CLASSIFIER
from isomerge.errors import IsomergeError
from isomerge.files import write_tensors
from isomerge.models.recognised import Model
from isomerge.models.row_meanings import class_rows
from isomerge.models.unit_plan import Plan
from isomerge.records import Json
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.match_names import SOFT
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import LABELS, VOCABULARY
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Line, Spec

WAYS = ("average", "copy", "separate", "keep:MODEL")
FILE = "model-head.safetensors"
"""The weights of a head, beside links to those of the body."""


@dataclass(frozen=True)
class Heads:
    """Whose heads a merge writes, and where."""

    how: str
    """``average``, ``copy``, ``separate`` or ``keep``; ``agreed``: the average of a head that the base
    lacks."""
    kept: int = 0
    """The number, from 0 in the run's order, of the model whose head the output has."""

    @property
    def apart(self) -> bool:
        """Whether heads are left out of matching and fusion."""
        return self.how != "average"


def heads_of(asked: str, models: Sequence[Model], *, based: bool = False, soft: bool = False) -> Heads:
    """What ``--heads`` asks for; where heads are averaged and a base lacks the one that all its fine-tunes have,
    that is averaged, and the output is of their class.

    Args:
        asked: one of `WAYS`; a model is named by its number, from 1 in the run's order (the base first, where there
            is one), or by its reference.
        models: in the run's order.
        based: whether the first is a base, and not fused itself.
        soft: whether models are moved in a way that moves no heads, or run with them.

    Raises:
        IsomergeError: another word, or a model that is not there or has no head.
    """
    if asked in ("average", "copy", "separate"):
        if asked == "separate" and not any(own_blocks(m, models[0]) for m in models):
            raise IsomergeError("--heads separate: none of the models has a classifier head: leave it out")
        agreed = asked == "average" and based and not soft and _agree(models[0], models[1:])
        return Heads("agreed", 1) if agreed else Heads(asked)
    word, colon, name = asked.partition(":")
    if word != "keep" or not colon:
        raise IsomergeError(f"--heads {asked}: choose from {', '.join(WAYS)}")
    names = [model.ref for model in models]
    if name in names:
        number = names.index(name)
    elif name.isdigit() and 1 <= int(name) <= len(models):
        number = int(name) - 1
    else:
        raise IsomergeError(
            f"--heads {asked}: no such model; give a number from 1 to {len(models)}, or one of {', '.join(names)}"
        )
    if not own_blocks(models[number], models[0]):
        raise IsomergeError(f"--heads {asked}: {names[number]} has no classifier head: name another model")
    return Heads("keep", number)


def _agree(base: Model, tuned: Sequence[Model]) -> bool:
    """Whether all fine-tunes have one head, with the same classes, and their base has none of its size."""
    heads = set()
    for model in tuned:
        names = [name for block in own_blocks(model, base) for name in block.canonical]
        shapes = frozenset((name, model.checkpoint.tensors[model.names[name]].shape) for name in names)
        heads.add((str(model.config.get("architectures")), frozenset(class_rows(model) or ()), shapes))
    names = [name for block in head_blocks(base) for name in block.canonical]
    theirs = {(name, base.checkpoint.tensors[base.names[name]].shape) for name in names}
    return len(heads) == 1 and all(map(head_blocks, tuned)) and not (theirs and theirs <= next(iter(heads))[2])


def left_out(models: Sequence[Model], template: Model, like: str, *, heads: bool) -> list[str]:
    """What to tell of tensors that models have and that are not written.

    Args:
        models: in the run's order.
        template: what is written.
        like: the model whose class it is.
        heads: whether classifier heads count.
    """
    lacking: dict[str, list[str]] = {}
    apart = frozenset[str]() if heads else head_lines(template.spec)
    for model in models:
        for match in model.matches.values():
            counts = match.line.axes is not None and match.line.name not in apart
            if counts and template.source_of(match.canonical, match) is None:
                lacking.setdefault(match.canonical, []).append(model.ref)
    of_whom: dict[str, list[str]] = {}
    for name, refs in lacking.items():
        of_whom.setdefault(" and ".join(refs), []).append(name)
    return [
        f"the output has the tensors of {like}, so that of {refs} is left out: {', '.join(names[:6])}"
        f"{f' and {len(names) - 6} more' if len(names) > 6 else ''}"
        for refs, names in of_whom.items()
    ]


def check_heads(heads: Heads, match: str, *, runs: bool) -> None:
    """Refuse what heads that stay apart cannot be combined with.

    Args:
        heads: what is asked for.
        match: the name of the match.
        runs: whether the merged model or the models are run (`fuse_forward`).

    Raises:
        IsomergeError: the match moves no heads, or models with different heads would have to be run.
    """
    if heads.apart and runs:
        raise IsomergeError("--heads: this merge runs the models with their heads: choose --heads average")
    if heads.how in ("separate", "keep") and match in SOFT:
        raise IsomergeError(
            f"--heads {heads.how}: --match {match} gives no alignment to move a head by; choose --heads copy"
        )


def head_lines(spec: Spec) -> frozenset[str]:
    """The names of the lines that are a classifier head."""

    def part(line: Line) -> str:
        return line.name.partition(".")[0]

    outside = [line for line in spec.lines if not line.indices]
    heads = [line for line in outside if LABELS in line.names]
    language = {part(line) for line in outside if VOCABULARY in line.names}
    parts = {part(line) for line in heads} - language
    beside = [line for line in outside if line.optional and part(line) in parts]
    return frozenset(line.name for line in (*heads, *beside))


def head_blocks(model: Model) -> list[Block]:
    """A model's classifier head."""
    names = head_lines(model.spec)
    return [block for block in model.blocks if block.line.name in names]


def own_blocks(model: Model, donor: Model) -> list[Block]:
    """What a model needs beside the donor's body: its head, and what the donor lacks (a pooler); empty without a
    head."""
    names, matches = head_lines(model.spec), {m.canonical: m for m in model.matches.values()}
    head = head_blocks(model)
    lacking = [
        block
        for block in model.blocks
        if block.line.name not in names and any(donor.source_of(c, matches[c]) is None for c in block.canonical)
    ]
    return [*head, *lacking] if head else []


def arrange(heads: Heads, models: Sequence[Model], plan: Plan) -> tuple[Model, Plan]:
    """The model whose names, config and companions are written, and the plan of its body, heads left out.

    The template of ``keep`` has the kept model's head and no weights of its own to read.
    """
    donor, kept = models[0], models[heads.kept]
    if not heads.apart:
        return donor, plan
    apart = {block.key for block in head_blocks(donor)}
    units = [replace(unit, blocks=tuple(b for b in unit.blocks if b.key not in apart)) for unit in plan.units]
    rest = [b for b in plan.alone if b.key not in apart]
    units = tuple(unit for unit in units if unit.blocks)
    if kept is donor:
        return donor, replace(plan, units=units, alone=(*rest, *head_blocks(donor)))
    theirs = {block.key for block in kept.blocks}
    gone = {c for b in plan.alone if b.key not in theirs for c in b.canonical}
    gone |= {c for b in head_blocks(donor) for c in b.canonical}
    rest = [b for b in rest if b.key in theirs]
    return _template(donor, kept, gone), replace(plan, units=units, alone=tuple(rest))


def _template(donor: Model, kept: Model, gone: set[str]) -> Model:
    """The donor without some of its tensors (by canonical names), with another model's head and its labels."""
    stored = {donor.names[c] for c in gone if c in donor.names}
    tensors = {n: info for n, info in donor.checkpoint.tensors.items() if n not in stored}
    matches = {n: match for n, match in donor.matches.items() if n not in stored}
    for block in own_blocks(kept, donor):
        for canonical in block.canonical:
            name = kept.names[canonical]
            tensors[name], matches[name] = kept.checkpoint.tensors[name], kept.matches[name]
    config = with_labels(donor.config, kept.config)
    return replace(donor, checkpoint=replace(donor.checkpoint, tensors=tensors, config=config), matches=matches)


def with_labels(config: Mapping[str, Any], of: Mapping[str, Any]) -> Json:
    """A config with what another one says of the head, in the order of the first."""
    labelled = {k: of[k] if k in CLASSIFIER else v for k, v in config.items() if k not in CLASSIFIER or k in of}
    return {**labelled, **{key: of[key] for key in CLASSIFIER if key in of}}


def moved_head(
    model: Model, donor: Model, alignment: Alignment | None, dtype: torch.dtype
) -> dict[Block, torch.Tensor]:
    """A model's own blocks where its alignment moves them; ``None`` leaves them as they are."""
    head = {}
    for block in own_blocks(model, donor):
        tensor = model.assemble(block, dtype)
        if alignment is not None and tensor.is_floating_point():
            alignment.act_linearly(block, tensor)
        head[block] = tensor
    return head


def write_kept(
    stream: StreamWriter, heads: Heads, models: Sequence[Model], by: Sequence[Alignment | None], dtype: torch.dtype
) -> None:
    """Write the head of ``keep``, or the mean of those of ``agreed``; ``by`` is what moved every model, None for
    the anchor."""
    kept = models[heads.kept]
    if heads.how not in ("keep", "agreed") or kept is models[0]:
        return
    givers = range(heads.kept, len(models) if heads.how == "agreed" else heads.kept + 1)
    moved = [moved_head(models[k], models[0], by[k], dtype) for k in givers]
    others = [{block.canonical: tensor for block, tensor in head.items()} for head in moved[1:]]
    for block, tensor in moved[0].items():
        if others and tensor.is_floating_point():
            every = [tensor, *(head[block.canonical] for head in others)]
            tensor = torch.stack(every).double().mean(0).to(tensor.dtype)
        stream.put(block, tensor)
    stream.writer.commit("kept head", {})


def apart_names(heads: Heads, donor: Model) -> frozenset[str]:
    """The donor's tensors that need weights files of their own, for the body's files to be shared by other
    heads."""
    if heads.how != "separate":
        return frozenset()
    return frozenset(donor.names[c] for block in head_blocks(donor) for c in block.canonical)


def _folder(number: int, model: Model) -> str:
    """``heads/2-name``: the folder of a model's head in the output; ``number`` counts from 1 in the run's order."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", model.ref.rstrip("/").rpartition("/")[2]).strip(".-")
    return f"heads/{number}-{name or 'model'}"


def separate_heads(
    stream: StreamWriter, models: Sequence[Model], by: Sequence[Alignment | None], dtype: torch.dtype
) -> tuple[dict[str, bytes | Path], dict[str, str]]:
    """A complete checkpoint for every model that has a head: the merged body, and this head moved by its alignment.

    Returns:
        The files to write, and the links to the output's own weights files: both by their names in the output.
    """
    files: dict[str, bytes | Path] = {}
    links: dict[str, str] = {}
    body = [shard for shard in stream.writer.shards if not stream.apart & shard.spans.keys()]
    places = {name: _within(shard.file) for shard in body for name in shard.spans}
    size = sum(nbytes for shard in body for _, nbytes in shard.spans.values())
    for number, model in enumerate(models, 1):
        tensors = stream.form.named(model, moved_head(model, models[0], by[number - 1], dtype))
        if not tensors:
            continue
        folder, path = _folder(number, model), stream.writer.blob(f"head-{number}.safetensors")
        write_tensors(path, tensors, metadata={"format": "pt"})
        index = files_index(
            {**places, **dict.fromkeys(tensors, FILE)}, size + sum(t.nbytes for t in tensors.values())
        )
        files |= {f"{folder}/{name}": content for name, content in stream.donor.checkpoint.companions().items()}
        files[f"{folder}/config.json"] = config_bytes(with_labels(stream.config(), model.config))
        files[f"{folder}/{SAFETENSORS_INDEX}"] = index
        files[f"{folder}/{FILE}"] = path
        links |= {f"{folder}/{_within(shard.file)}": shard.file for shard in body}
    return files, links


def _within(file: str) -> str:
    """The name of a body's file beside a head: a model.safetensors would be taken for the whole checkpoint."""
    return "model-body.safetensors" if file == SAFETENSORS else file

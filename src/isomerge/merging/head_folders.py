"""The folders of separate heads: one merged body in several checkpoints, by links, each with a model's own head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.shard_plan import files_index
from isomerge.checkpoint.weights import SAFETENSORS, SAFETENSORS_INDEX
from isomerge.files import write_tensors
from isomerge.merging.heads import Heads, head_blocks, moved_head, with_labels
from isomerge.models.recognised import Model
from isomerge.run.writing_run import StreamWriter
from isomerge.symmetry.alignment import Alignment

FILE = "model-head.safetensors"
"""The weights of a head, beside links to those of the body."""


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
        tensors = stream.named(model, moved_head(model, models[0], by[number - 1], dtype))
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

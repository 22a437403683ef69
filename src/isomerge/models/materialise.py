"""Writing a view to disk as the ordinary checkpoint that it shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import weights_name
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor


def materialise(
    checkpoint: Checkpoint, out: str | Path, *, out_shard_size: int = 5_000_000_000, overwrite: bool = False
) -> Path:
    """Writes every tensor of ``checkpoint``, its config and its companion files to the folder ``out``, which is
    returned.

    Tensors are read and written one by one; a killed run goes on where it stopped. ``out_shard_size`` is in bytes.
    Raises IsomergeError when ``out`` exists (unless ``overwrite``), the disk is full, or a tensor cannot be read.
    """
    key = hashlib.sha256(json.dumps(["materialise", checkpoint.config, checkpoint.identity()]).encode()).hexdigest()
    plan = [OutTensor(info.name, info.dtype, tuple(info.shape)) for info in checkpoint.tensors.values()]
    # `transformers_weights` names the weights file of the folder that was opened
    config = {name: value for name, value in checkpoint.config.items() if name != "transformers_weights"}
    name = weights_name(config)
    with CheckpointWriter(
        Path(out),
        plan,
        key=key,
        out_shard_size=out_shard_size,
        overwrite=overwrite,
        name=name,
        reads=checkpoint.files,
    ) as writer:
        for name in checkpoint.tensors:
            if name not in writer.done:
                writer.write(name, checkpoint.read(name))
                writer.commit(name, {})
        return writer.finish({**checkpoint.companions(), CONFIG: config_bytes(config)})

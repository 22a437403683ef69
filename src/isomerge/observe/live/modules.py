"""Checkpoints as live modules, and the names by which a spec knows their parameters."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isomerge.arithmetic import aligned
from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.opening import CONFIG, open_checkpoint
from isomerge.checkpoint.own_class import OwnClass
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import weights_name
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.errors import IsomergeError, first_line
from isomerge.models.recognised import Model
from isomerge.models.transformers_classes import class_of
from isomerge.observe.live.accelerator import check_device
from isomerge.observe.live.own_modules import load_own
from isomerge.observe.live.parameter_places import names_of_each
from isomerge.progress import silent
from isomerge.records import Config
from isomerge.symmetry.language.spec import Spec


def load_module(
    model: Model | str | Path,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    *,
    own: OwnClass | None = None,
) -> nn.Module:
    """The module of a checkpoint, in eval mode, without code from the checkpoint: a Hugging Face one, or of one's
    own.

    Its class is the one that ``architectures`` in config.json names; where there is none, the auto class for the
    head that is stored, or the bare body.

    Args:
        model: a recognised model, a folder or a hub id.
        dtype: of the parameters; float32 when None.
        device: where they are put, such as ``cuda``.
        own: the class of one's own that runs it; of a recognised model the model's, when None.

    Raises:
        IsomergeError: transformers cannot load it, no such device, or weights of the module are not stored.
    """
    checkpoint = model.checkpoint if isinstance(model, Model) else open_checkpoint(model)
    if (own := own or checkpoint.own) is not None:
        return load_own(checkpoint, own, dtype, device)
    config, where, kind = (
        checkpoint.config,
        check_device(device),
        class_of(checkpoint.config, tuple(checkpoint.tensors), checkpoint.folder),
    )
    with silent(), on_disk(checkpoint) as folder:
        # pickles were opened, so the user has allowed them; what is written for transformers to read is none
        files = [info.file for info in checkpoint.tensors.values()] if checkpoint.in_folder else []
        pickled = any(file.suffix != ".safetensors" for file in files)
        try:
            module, info = kind.from_pretrained(
                folder,
                dtype=dtype or torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                use_safetensors=not pickled,
                **eager_experts(config),
            )
        except Exception as error:  # OSError, ValueError, RuntimeError, KeyError: whatever does not fit
            raise IsomergeError(
                f"{folder}: transformers cannot load this checkpoint ({first_line(error)}); "
                "check config.json and the weights"
            ) from error
    _check_complete(checkpoint.folder, kind.__name__, info)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = aligned(tensor.data)
    return module.eval().to(where)


def eager_experts(config: Config) -> dict[str, str]:
    """How a model with experts is to be loaded: products of matrices in groups have no gradients on every device,
    and want strides of 16 bytes, which small experts do not have."""
    return {"experts_implementation": "eager"} if _has_experts(config) else {}


def _has_experts(config: Config) -> bool:
    """Whether a config, or a part of it, tells a number of experts."""
    return any(
        _has_experts(value) if isinstance(value, dict) else "expert" in str(key) and isinstance(value, int)
        for key, value in config.items()
    )


@contextlib.contextmanager
def on_disk(checkpoint: Checkpoint) -> Iterator[Path]:
    """A folder that transformers can load: the checkpoint's own, or a temporary one for a view (adapters merged in,
    layers stacked or left out) or for tensors in memory."""
    if checkpoint.in_folder:
        yield checkpoint.folder
        return
    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder:
        yield materialise(checkpoint, Path(folder) / "model")


def _check_complete(folder: Path, kind: str, info: Config) -> None:
    """Refuse a module with weights drawn at random."""
    missing = sorted(info.get("missing_keys") or ())
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise IsomergeError(
            f"{folder}: {kind} needs {', '.join(missing[:3])}{more}, which the checkpoint does not have: correct "
            "architectures in config.json, or train and save the whole model"
        )


def parameter_names(module: nn.Module, spec: Spec) -> dict[str, str]:
    """From canonical tensor names to the names of a module's parameters, by the spec alone: no file is there.

    Where there is one, `isomerge.observe.live.parameter_places.places_of` also finds what transformers renames and
    fuses.

    A parameter that the module uses in several places (tied embeddings) appears once, under the canonical name that
    is not tied to another; buffers do not appear.

    Args:
        module: a module from `load_module`.
        spec: the spec of the same checkpoint.

    Raises:
        IsomergeError: the module stores a tensor that the spec does not describe, such as experts that transformers
            keeps fused while the checkpoint has them one by one.
    """
    by_canonical: dict[str, str] = {}
    for names in names_of_each(module):
        matches = [(name, _match(module, spec, name)) for name in names]
        name, match = next((pair for pair in matches if pair[1].line.tied is None), matches[0])
        by_canonical[match.canonical] = name
    return by_canonical


def _match(module: nn.Module, spec: Spec, name: str) -> Any:
    try:
        return spec.match(name)
    except IsomergeError:
        raise IsomergeError(
            f"{type(module).__name__} of this version of transformers stores {name}, which the spec for "
            f"{spec.model_type} ({spec.origin}) does not describe: its weights cannot be set one by one"
        ) from None


def materialise(checkpoint: Checkpoint, out: str | Path) -> Path:
    """Writes every tensor of ``checkpoint``, its config and its companion files to the folder ``out``, which is
    returned.

    Tensors are read and written one by one; a killed run goes on where it stopped.

    Raises:
        IsomergeError: ``out`` exists, the disk is full, or a tensor cannot be read.
    """
    key = hashlib.sha256(json.dumps(["materialise", checkpoint.config, checkpoint.identity()]).encode()).hexdigest()
    plan = [OutTensor(info.name, info.dtype, tuple(info.shape)) for info in checkpoint.tensors.values()]
    # `transformers_weights` names the weights file of the folder that was opened
    config = {name: value for name, value in checkpoint.config.items() if name != "transformers_weights"}
    name = weights_name(config)
    with CheckpointWriter(Path(out), plan, key=key, name=name, reads=checkpoint.files) as writer:
        for name in checkpoint.tensors:
            if name not in writer.done:
                writer.write(name, checkpoint.read(name))
                writer.commit(name, {})
        return writer.finish({**checkpoint.companions(), CONFIG: config_bytes(config)})


def save_module(module: Any, folder: str | Path) -> None:
    """Write a live module of transformers or diffusers as a checkpoint, without a bar.

    Raises:
        IsomergeError: it has adapters, of which alone ``save_pretrained`` would write the weights; or it cannot be
            saved (weights without values, on the device meta; settings of generation that contradict each other).
    """
    kind = type(module).__name__
    if getattr(module, "peft_config", None):
        raise IsomergeError(
            f"{kind}: save_pretrained writes the adapter alone, and the base would be read from disk, whatever it "
            "is in memory: give merge_and_unload() of it, or save the adapter and give base+adapter"
        )
    try:
        with silent():
            module.save_pretrained(folder)
    except Exception as error:  # NotImplementedError, ValueError, RuntimeError: whatever does not fit
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise IsomergeError(
            f"{kind}: save_pretrained fails ({reason}): correct what it names, or give the folder that the module "
            f"was loaded from"
        ) from error

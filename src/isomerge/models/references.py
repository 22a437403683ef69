"""What the user calls a model: ``model``, ``model@revision``, ``model+adapter@revision``, an adapter alone, or a
part of a single file, ``FILE.safetensors:unet``, or the language model in one of images,
``MODEL:language_model``."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, BASE, is_adapter
from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.opening import CONFIG, is_state_dict, open_checkpoint, read_config
from isomerge.checkpoint.pipeline import Pipeline, is_pipeline, open_pipeline
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.single_file import (
    is_single_file,
    open_part,
    open_single_file,
    split_part,
    whole_of_language,
)
from isomerge.checkpoint.weights import PICKLE, PICKLE_INDEX, SAFETENSORS, SAFETENSORS_INDEX
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors
from isomerge.models.quantised import dequantised

_WHOLE = (SAFETENSORS, SAFETENSORS_INDEX, PICKLE, PICKLE_INDEX)
"""What says that a folder holds the weights of a whole model."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model and the adapters that are merged into it, in their order; each a path or a hub id with its
    revision."""

    model: str
    adapters: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As the user writes it."""
        return "+".join((self.model, *self.adapters))


def parse_model_ref(text: str) -> ModelRef:
    """``model+adapter+...`` taken apart: ``org/name@rev+org/lora@rev2`` are two parts, each with its revision.

    A path that exists wins: of ``a+b/c+d``, the longest beginning that is a file or folder is the first part, and
    so on.

    Raises:
        IsomergeError: a part is empty.
    """
    parts, rest = [], text
    while rest is not None:
        cut = [at for at, c in enumerate(rest) if c == "+"] + [len(rest)]
        there = [
            at for at in cut if at and (os.path.exists(os.path.expanduser(rest[:at])) or split_part(rest[:at]))
        ]
        at = max(there, default=cut[0])
        parts.append(rest[:at])
        rest = rest[at + 1 :] if at < len(rest) else None
    if not all(parts):
        raise IsomergeError(f"{text or 'the empty reference'}: write a model, or model+adapter, with both names")
    return ModelRef(parts[0], tuple(parts[1:]))


def is_assembled(ref: Any) -> bool:
    """Whether a reference names a model of several components: a pipeline's folder, or a single file, alone or with
    adapters."""
    if not isinstance(ref, str | os.PathLike):
        return False
    pieces = str(ref).split("+")
    starts = [ref, *("+".join(pieces[:count]) for count in range(1, len(pieces)))]
    return any(is_pipeline(start) or is_single_file(start) for start in starts)


def check_one_model(ref: Any, what: str) -> None:
    """Refuse a model of several components where one model is asked for.

    Args:
        ref: as of `is_assembled`.
        what: is of one model alone, for the message.

    Raises:
        IsomergeError: naming a component.
    """
    if is_assembled(ref):
        parts = [part.ref for part in open_assembled(ref).components.values() if part.has_weights]
        raise IsomergeError(
            f"{ref} is a pipeline, and {what} is of one model: name one of its parts, such as {parts[0]}"
        )


def open_assembled(ref: str | Path) -> Pipeline:
    """It, opened, with its adapters' parts at the components that they are for.

    Raises:
        IsomergeError: see `open_pipeline` and `isomerge.models.lora_layers.with_lora`.
    """
    alone = is_pipeline(ref) or is_single_file(ref)
    reference = ModelRef(str(ref)) if alone else parse_model_ref(str(ref))
    whole = open_pipeline(reference.model) if is_pipeline(reference.model) else open_single_file(reference.model)
    for adapter in reference.adapters:
        from isomerge.models.lora_layers import with_lora

        whole = with_lora(whole, adapter)
    return replace(whole, ref=str(ref))


def open_model_ref(ref: str | Path | ModelRef, *, allow_pickle: bool = False) -> Checkpoint:
    """Opens what a reference names: a checkpoint, or one with LoRA adapters merged in as its tensors are read.

    An adapter alone stands for its ``base_model_name_or_path`` (and ``revision``) with the adapter merged in.

    Raises:
        IsomergeError: see `open_checkpoint` and `isomerge.models.lora.with_adapter`.
    """
    if (whole := whole_of_language(ref)) is not None:
        from isomerge.models.language_part import language_part

        return language_part(open_model_ref(whole, allow_pickle=allow_pickle)).alone()
    if isinstance(ref, Path) and (ref.exists() or "+" not in str(ref)):
        reference = ModelRef(str(ref))
        checkpoint = _open_model(ref, allow_pickle)
    else:
        reference = ref if isinstance(ref, ModelRef) else parse_model_ref(str(ref))
        checkpoint = _open_model(reference.model, allow_pickle)
    for adapter in reference.adapters:
        from isomerge.models.lora import with_adapter

        checkpoint = with_adapter(checkpoint, adapter, allow_pickle=allow_pickle)
    return checkpoint


def model_type_of(ref: str) -> str | None:
    """The ``model_type`` of the model that a reference begins with, or its class of diffusers; None where it has
    none that can be read."""
    with suppress(IsomergeError):
        if whole_of_language(ref) is None and split_part(ref) is None:
            config = read_config(local_folder(with_base(parse_model_ref(ref)).model))
            return config.get("model_type") or config.get("_class_name")
    return None


def with_base(ref: ModelRef) -> ModelRef:
    """An adapter alone with the base that it names, where both are on this machine; every other reference as it
    is."""
    folder = Path(os.path.expanduser(ref.model))
    if not folder.is_dir() or not is_adapter(folder) or any(map(Path.is_file, map(folder.joinpath, _WHOLE))):
        return ref
    base = read_object(folder / ADAPTER_CONFIG, remedy="", unique=False).get(BASE)
    there = isinstance(base, str) and base and os.path.exists(os.path.expanduser(base))
    return ModelRef(str(base), (ref.model, *ref.adapters)) if there else ref


def _is_alone(folder: Path, ref: str | Path) -> bool:
    """Whether a folder holds an adapter and no model, though perhaps its config.

    Raises:
        IsomergeError: it holds both: transformers reads the adapter over the base that it names, and not the
            weights beside it.
    """
    with disk_errors(folder, "looking into"):
        if not is_adapter(folder):
            return False
        beside = next((name for name in _WHOLE if (folder / name).is_file()), None)
        if beside is not None and (folder / CONFIG).is_file():
            raise IsomergeError(
                f"{ref} holds a model ({beside}) and an adapter ({ADAPTER_CONFIG}): put the adapter into a folder "
                "of its own, and name the model alone, or MODEL+ADAPTER for both"
            )
        return beside is None


def _open_model(ref: str | Path, allow_pickle: bool) -> Checkpoint:
    if split_part(ref) is not None:
        return open_part(ref)
    if whole_of_language(ref) is not None:
        return open_model_ref(ref, allow_pickle=allow_pickle)
    folder = None if is_state_dict(ref) else local_folder(ref, allow_pickle=allow_pickle)
    if folder is None or not _is_alone(folder, ref):
        return dequantised(open_checkpoint(ref, allow_pickle=allow_pickle))
    from isomerge.models.lora import with_adapter

    path = folder / ADAPTER_CONFIG
    config = read_object(path, remedy="an adapter folder is what peft's save_pretrained writes", unique=False)
    base, revision = config.get(BASE), config.get("revision")
    if not isinstance(base, str) or not base:
        raise IsomergeError(
            f"{path} names no base_model_name_or_path; write model+{ref} to say what it is merged into, or "
            "merge adapters with one another by isomerge merge-lora"
        )
    if revision and not os.path.exists(base):
        base = f"{base}@{revision}"
    try:
        opened = open_checkpoint(base, allow_pickle=allow_pickle)
    except IsomergeError as error:
        raise IsomergeError(
            f"{path} names a base_model_name_or_path that cannot be opened: write model+{ref} to say what it is "
            f"merged into ({error.sentence})"
        ) from error
    return with_adapter(dequantised(opened), ref, allow_pickle=allow_pickle)

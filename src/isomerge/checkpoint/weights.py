"""Which files of a checkpoint folder hold its weights, and which tensor is in which shard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companions import WEIGHTS
from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.header import TensorInfo, read_header
from isomerge.errors import IsomergeError

SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
DIFFUSERS = "diffusion_pytorch_model.safetensors"
DIFFUSERS_INDEX = "diffusion_pytorch_model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
STEMS = tuple(name.removesuffix(".safetensors") for name in (SAFETENSORS, DIFFUSERS))
"""How the names of safetensors files begin that are a model's weights, of one file or of many."""
OTHERS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".msgpack", ".h5", ".npz", ".gguf")
"""Endings of files of weights, which are named where none of those is there that are read."""
VARIANT = re.compile(rf"({'|'.join(STEMS)})\.(?:safetensors\.index\.(\w+)\.json|(\w+)\.safetensors)")
"""The file of weights, or the index, of a variant such as ``fp16``."""
MAX_NAME = 255
"""Longest file name, in bytes of UTF-8: what the usual file systems take."""
_REMEDY = "download or save the checkpoint again"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weights files of one checkpoint.

    ``files`` are in the order of their names; ``weight_map`` maps tensor name to file name and is None when
    there is no index; ``source`` is the index, or the single file.
    """

    source: Path
    files: tuple[Path, ...]
    weight_map: dict[str, str] | None
    pickled: bool


def is_plain_name(name: Any) -> bool:
    """Whether ``name`` is a file name that stays in the folder it is joined to, and that file systems take."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME


def find_weights(folder: Path, *, allow_pickle: bool, explicit: Any = None) -> WeightFiles:
    """The weights files of ``folder``, chosen as transformers chooses them.

    The order is: ``explicit`` (the config's ``transformers_weights``), model.safetensors, its index,
    diffusers' names of these, pytorch_model.bin, its index; so a single file wins over an index, and safetensors
    over pickles. Where there are none of these, a variant (``model.fp16.safetensors``) is read, if there is one
    alone. Raises IsomergeError when there are none, when only pickles are there without ``allow_pickle``,
    and when an index is malformed or names a file that is missing or outside the folder.
    """
    if explicit is not None:
        return _explicit(folder, explicit)
    for name in (SAFETENSORS, SAFETENSORS_INDEX, DIFFUSERS, DIFFUSERS_INDEX, PICKLE, PICKLE_INDEX):
        path = folder / name
        if not path.is_file():
            continue
        pickled = name in (PICKLE, PICKLE_INDEX)
        if pickled and not allow_pickle:
            raise IsomergeError(
                f"{path} is a pickle, which can run code when it is loaded; convert it to safetensors "
                "(load it and call save_pretrained), or pass --allow-pickle to load it with weights_only"
            )
        return _sharded(path, pickled) if name.endswith(".json") else WeightFiles(path, (path,), None, pickled)
    if files := sorted(folder.glob("*.gguf")):
        raise gguf_error(files[0])
    named = [
        (fits, path) for path in sorted(folder.iterdir(), reverse=True) if (fits := VARIANT.fullmatch(path.name))
    ]
    variants = {fits[2] or fits[3]: path for fits, path in named if path.is_file()}
    if len(variants) > 1:
        raise IsomergeError(
            f"{folder} has weights of the variants {', '.join(sorted(variants))} alone: leave those of one of them "
            "there"
        )
    for path in variants.values():
        return _sharded(path, False) if path.name.endswith(".json") else WeightFiles(path, (path,), None, False)
    others = sorted(path.name for path in folder.iterdir() if path.suffix in OTHERS and path.is_file())
    hint = f" (it holds {', '.join(others[:3])})" if others else ""
    raise IsomergeError(
        f"{folder} has no weights: expected {SAFETENSORS} or {SAFETENSORS_INDEX}{hint}; "
        f"name a folder written by save_pretrained, or pass --allow-pickle if there is only a {PICKLE}"
    )


def is_weights(name: str) -> bool:
    """Whether a file of this name holds weights, or is an index of such files."""
    return name.endswith(WEIGHTS) or (name.endswith(".json") and ".index." in name)


def gguf_error(path: Path) -> IsomergeError:
    """What is said of a GGUF file, named itself or met in a folder."""
    return IsomergeError(
        f"{path} is GGUF, which is made to run a model and not to change it: name the folder of the model that "
        f"it was made from"
    )


def of_diffusers(config: Mapping[str, Any]) -> bool:
    """Whether diffusers loads a checkpoint: its configs name a class, those of transformers a ``model_type``."""
    return "_class_name" in config and "model_type" not in config


def weights_name(config: Mapping[str, Any]) -> str:
    """What the library that loads a checkpoint of this ``config`` calls its one file of weights."""
    return DIFFUSERS if of_diffusers(config) else SAFETENSORS


def _explicit(folder: Path, name: Any) -> WeightFiles:
    if not is_plain_name(name) or not name.endswith((".safetensors", ".safetensors.index.json")):
        raise IsomergeError(
            f"{folder / 'config.json'}: transformers_weights is {name!r:.80}, expected the plain name of a "
            ".safetensors file or its index in that folder; correct or remove it"
        )
    path = folder / name
    if not path.is_file():
        raise IsomergeError(f"{path} is named by transformers_weights in config.json but missing; {_REMEDY}")
    return _sharded(path, False) if name.endswith(".json") else WeightFiles(path, (path,), None, False)


def _sharded(index: Path, pickled: bool) -> WeightFiles:
    weight_map = read_object(index, remedy=_REMEDY).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise IsomergeError(f"{index} must have a weight_map from tensor names to file names; {_REMEDY}")
    suffix = ".bin" if pickled else ".safetensors"
    for tensor, name in weight_map.items():
        if not is_plain_name(name) or not name.endswith(suffix):
            raise IsomergeError(
                f"{index} places tensor {tensor!r} in {name!r:.200}, "
                f"expected the plain name of a {suffix} file in the same folder; {_REMEDY}"
            )
    files = tuple(index.parent / name for name in sorted(set(weight_map.values())))
    for file in files:
        if not file.is_file():
            raise IsomergeError(f"{file} is named by {index.name} but missing; {_REMEDY}")
    return WeightFiles(index, files, weight_map, pickled)


def read_headers(weights: WeightFiles) -> dict[str, TensorInfo]:
    """The tensors of all safetensors ``weights``, file after file, in the order of their bytes.

    Raises IsomergeError when a header is invalid or disagrees with the index (see `check_index`).
    """
    tensors: dict[str, TensorInfo] = {}
    for file in weights.files:
        infos = read_header(file)[0]
        check_index(weights, file, set(infos))
        tensors.update(infos)
    return tensors


def check_index(weights: WeightFiles, file: Path, stored: set[str]) -> None:
    """Raises IsomergeError unless the index places just the tensors ``stored`` in ``file``."""
    if weights.weight_map is None:
        return
    placed = {name for name, shard in weights.weight_map.items() if shard == file.name}
    for name in sorted(placed - stored):
        raise IsomergeError(f"{weights.source} places tensor {name!r} in {file.name}, which lacks it; {_REMEDY}")
    for name in sorted(stored - placed):
        raise IsomergeError(
            f"{file} holds tensor {name!r}, which {weights.source.name} does not place there; {_REMEDY}"
        )

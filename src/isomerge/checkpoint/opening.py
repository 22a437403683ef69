"""Opening a checkpoint: a folder or a model of the hub, its config, and the headers of its weights; or weights in
torch pickles (.bin files), loaded without running their code and shown as stored tensors."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.companions import companion_files
from isomerge.checkpoint.document import FETCH, POINTER, read_object
from isomerge.checkpoint.dtypes import dtype_code
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.stamps import stamps_of
from isomerge.checkpoint.weights import WeightFiles, check_index, find_weights, gguf_error, read_headers
from isomerge.errors import IsomergeError
from isomerge.records import Json

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
STATE_DICTS = (".pt", ".pth", ".ckpt", ".bin")
"""Endings of files of weights that torch saves."""
PIPELINE = "model_index.json"
"""What a pipeline of diffusers has in place of a config: its models are in folders of their own."""
AROUND = ("state_dict", "model_state_dict", "module", "model")
"""What trainers call the weights among what else they save."""
_REMEDY = "convert the checkpoint to safetensors with save_pretrained"


def open_checkpoint(ref: str | Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint: a folder, or a hub id ``org/name`` or ``org/name@revision``, which is downloaded.

    A path to the only .safetensors file of a folder stands for the folder. A state dict of torch (.pt, .pth,
    .ckpt, .bin) is a model by itself, with ``allow_pickle``; its config is the one beside it, or empty. Files are
    chosen as transformers does: model.safetensors, then its index, then (with ``allow_pickle``) pytorch_model.bin
    and its index.
    Safetensors files are opened by their headers alone, without importing torch.
    Raises IsomergeError when the folder or model does not exist, config.json is missing or
    damaged, there are no weights, or any index or header is invalid.
    """
    if is_state_dict(ref):
        return _state_dict(Path(os.path.expanduser(ref)), os.fspath(ref), allow_pickle)
    folder = local_folder(ref, allow_pickle=allow_pickle)
    config = read_config(folder)
    explicit = config.get("transformers_weights")
    weights = find_weights(folder, allow_pickle=allow_pickle, explicit=explicit)
    return open_tensors(os.fspath(ref), folder, config, weights)


def is_state_dict(ref: str | Path) -> bool:
    """Whether a reference is a file of weights that torch saved."""
    path = os.path.expanduser(ref)
    return os.fspath(path).endswith(STATE_DICTS) and os.path.isfile(path)


def _state_dict(path: Path, ref: str, allow_pickle: bool) -> Checkpoint:
    if not allow_pickle:
        raise IsomergeError(
            f"{path} is a pickle, which can run code when it is loaded: save its tensors as safetensors, or pass "
            "--allow-pickle to load it with weights_only"
        )
    known = (path.parent / CONFIG).is_file()
    beside = companion_files(path.parent) if known else {}
    stored = open_tensors(
        ref, path, read_config(path.parent) if known else {}, WeightFiles(path, (path,), None, True)
    )
    return replace(stored, in_folder=False, _companions=beside)


def open_tensors(
    ref: str, folder: Path, config: Json, weights: WeightFiles, *, others: Iterable[Path] = ()
) -> Checkpoint:
    """A checkpoint of weights files that were found already; ``others`` are files whose change it depends on too.

    Raises IsomergeError when a file is missing or damaged.
    """
    stamps = stamps_of((*weights.files, *others))  # before the headers are read: a later change is always noticed
    if weights.pickled:
        tensors, views = load_pickles(weights)
        return Checkpoint(ref, folder, config, tensors, stamps, views)
    return Checkpoint(ref, folder, config, read_headers(weights), stamps)


def read_config(folder: Path) -> Json:
    """The object in ``folder``/config.json, in the key order of the file.

    Raises IsomergeError when it is missing, not a JSON object, or has a ``model_type`` that is no string or
    ``architectures`` that are no list of strings.
    """
    path = folder / CONFIG
    if not path.is_file():
        _refuse_other_folders(folder)
    config = read_object(
        path,
        remedy="a checkpoint needs the config.json that save_pretrained writes; a model of plain torch needs no "
        "more than {} in it, and a text of its own (--spec FILE)",
        unique=False,
    )
    if not isinstance(config.get("model_type", ""), str):  # checkpoints of before 2020 have none
        raise IsomergeError(f'{path} must have a string model_type; correct it, e.g. "model_type": "bert"')
    kinds = config.get("architectures")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise IsomergeError(f"{path}: architectures is {kinds!r:.80}, expected a list of class names; correct it")
    return config


def _refuse_other_folders(folder: Path) -> None:
    """Say what a folder without a config is: a pipeline, a training run with its checkpoints, GGUF, empty."""
    parts = sorted((part.parent.name for part in folder.glob(f"*/{CONFIG}")), key=lambda name: (len(name), name))
    if parts or (folder / PIPELINE).is_file():
        whole = (folder / PIPELINE).is_file()
        what = "is a pipeline of several models" if whole else "has models in folders of its own"
        example = f", such as {folder / parts[-1]}" if parts else ""
        raise IsomergeError(f"{folder} {what}: name the folder of one of them{example}")
    if files := sorted(folder.glob("*.gguf")):
        raise gguf_error(files[0])
    if folder.is_dir() and not any(folder.iterdir()):
        raise IsomergeError(f"{folder} is an empty folder: give one that save_pretrained wrote")


def load_pickles(weights: WeightFiles) -> tuple[dict[str, TensorInfo], dict[str, torch.Tensor]]:
    """The tensors of all pickles of ``weights`` in file order: their descriptions, and views of the files.

    The views map the files where the format allows (torch 1.6 and later), so nothing is in memory until it
    is read; tensors may share storage. Raises IsomergeError when a file holds anything but named dense
    tensors, or disagrees with the index.
    """
    infos: dict[str, TensorInfo] = {}
    views: dict[str, torch.Tensor] = {}
    for file in weights.files:
        loaded = _load(file)
        check_index(weights, file, set(loaded))
        for name, tensor in loaded.items():
            infos[name] = _info(file, name, tensor)
            views[name] = tensor.detach()
    return infos, views


def _load(file: Path) -> Json:
    import torch

    with suppress(OSError), file.open("rb") as stream:
        if stream.read(len(POINTER)) == POINTER:
            raise IsomergeError(f"{file} {FETCH}")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # torch and pickle raise nearly any type on a damaged or hostile file
        raise IsomergeError(
            f"{file} is damaged or holds more than plain tensors, so it was not loaded "
            f"({type(error).__name__}); {_REMEDY}"
        ) from error
    if isinstance(content, dict):  # what trainers save around the weights
        inside = (content.get(key) for key in AROUND if not isinstance(content.get(key), torch.Tensor))
        content = next((each for each in inside if isinstance(each, dict)), content)
    if not isinstance(content, dict):
        raise IsomergeError(f"{file} holds a {type(content).__name__}, expected a dict of named tensors; {_REMEDY}")
    return content


def _info(file: Path, name: Any, tensor: Any) -> TensorInfo:
    import torch

    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise IsomergeError(
            f"{file}: entry {name!r:.200} is a {type(tensor).__name__}, "
            f"expected a tensor under a string name; {_REMEDY}"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise IsomergeError(f"{file}: tensor {name!r} is not a plain dense tensor; {_REMEDY}")
    code = dtype_code(tensor.dtype, f"{file}: tensor {name!r}")
    return TensorInfo(name, code, tuple(tensor.shape), tensor.numel() * tensor.element_size(), file, -1)

"""Weights in torch pickles (.bin files), loaded without running their code and shown as stored tensors."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.document import FETCH, POINTER
from isomerge.checkpoint.dtypes import dtype_code
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.weights import WeightFiles, check_index
from isomerge.errors import IsomergeError
from isomerge.records import Json

if TYPE_CHECKING:
    import torch

AROUND = ("state_dict", "model_state_dict", "module", "model")
"""What trainers call the weights among what else they save."""
_REMEDY = "convert the checkpoint to safetensors with save_pretrained"


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
    try:
        code = dtype_code(tensor.dtype)
    except IsomergeError as error:
        raise IsomergeError(f"{file}: tensor {name!r}: {error}") from error
    return TensorInfo(name, code, tuple(tensor.shape), tensor.numel() * tensor.element_size(), file, -1)

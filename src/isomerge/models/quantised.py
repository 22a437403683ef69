"""Checkpoints whose weights are stored quantised, read as the weights that they stand for, one tensor at a time.

Scaled: 8-bit floats or integers times a factor for the tensor, for each row, or for each block (DeepSeek-V3,
fbgemm, compressed-tensors, ModelOpt). MXFP4: pairs of 4-bit floats in blocks of 32 with a power of two each (OCP
Microscaling Formats v1.0; gpt-oss). Other packings (GPTQ, AWQ, bitsandbytes) need their own kernels and are
refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.dtypes import FLOATS, torch_dtype
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.errors import IsomergeError

KEYS = ("quantization_config", "compression_config")
NARROW = ("F8_E4M3", "F8_E5M2", "I8")
"""What a scaled weight is stored as."""
SCALES = ("_scale_inv", "_scale")
"""What is behind a weight's name for its factors; both multiply."""
PACKERS = (
    "gptq", "awq", "auto-round", "aqlm", "vptq", "spqr", "higgs", "eetq", "fp8", "mxfp8", "fbgemm_fp8", "nvfp4",
)  # fmt: skip
"""Methods whose modules in transformers have no place for plain weights; others (bitsandbytes, quanto) round what
they load, and of what it does not know transformers takes no notice."""
UNNAMED = "an unnamed method"
PACKED = ("U8", "I8", "I32", "F4")
"""Left over, these are weights that are packed in another way."""
BESIDE = re.compile(r"\.(input_scale|output_scale|activation_scale|[qkv]_scale|kv_scale|input_zero_point)$")
"""Factors of activations: nothing that the weights need."""
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of four bits, two for the exponent and one for the mantissa, by their number."""
STORED = "weights stored as "
"""Begins what `Checkpoint.origin` says of such a checkpoint."""
FUSED = f"{STORED}transformers holds them in memory (experts fused)"
"""What it says of one that `isomerge.models.fused_on_disk` reads."""


def dequantised(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint itself, or a view with the weights that quantised ones stand for, in the config's dtype.

    Products are float32 and rounded once. The view's config does not speak of quantisation. Nothing is read yet.

    Raises:
        IsomergeError: weights that are packed in a way that is not known, factors that do not fit, or a config that
            says that weights are packed, which are plain numbers.
    """
    packed = (n.removesuffix(".scales") for n in checkpoint.tensors if n.endswith(".scales"))
    if stem := next((n for n in packed if {f"{n}.weight", f"{n}.biases"} <= checkpoint.tensors.keys()), None):
        raise IsomergeError(
            f"{checkpoint.ref}: {stem}.weight is packed by MLX ({stem}.scales and .biases lie beside it), which is "
            "read by MLX alone: name the model that it was made from, or unpack it there (dequantize of "
            "mlx_lm.convert)"
        )
    key = next((key for key in KEYS if isinstance(checkpoint.config.get(key), Mapping)), None)
    if key is None:
        return checkpoint
    how = checkpoint.config[key]
    code = _float_of(checkpoint.config)
    derived, used = _scaled(checkpoint, how, code)
    more, blocks = _microscaled(checkpoint, code)
    derived, used = derived | more, used | blocks
    method = str(how.get("quant_method") or UNNAMED)
    for name, info in checkpoint.tensors.items():
        if name not in used and name not in derived and info.dtype in PACKED:
            raise IsomergeError(
                f"{info.file}: tensor {name} is packed ({info.dtype}) by {method}, which cannot be read as weights "
                "here: use the model that this one was made from, or unpack it first "
                "(from_pretrained(...).dequantize().save_pretrained(...) of transformers)"
            )
    if not derived:
        _check_plain(checkpoint, key, method)
        return checkpoint
    return checkpoint.derive(
        derived,
        origin=f"{STORED}{method}, read as {code}",
        config={k: v for k, v in checkpoint.config.items() if k not in KEYS},
        drop=used | {name for name in checkpoint.tensors if BESIDE.search(name)},
    )


def _check_plain(checkpoint: Checkpoint, key: str, method: str) -> None:
    """Refuse a config that says that weights are packed where all of them are plain numbers.

    Raises:
        IsomergeError: naming the key, and a tensor that is plain.
    """
    plain = [info for info in checkpoint.tensors.values() if info.dtype in FLOATS.values() and len(info.shape) > 1]
    online = checkpoint.config[key].keys() & {
        "load_in_4bit",
        "load_in_8bit",
    }  # old bitsandbytes, which named no method
    refused = method in PACKERS or (key == KEYS[0] and method == UNNAMED and not online)
    if refused and len(plain) == sum(len(info.shape) > 1 for info in checkpoint.tensors.values()) > 0:
        raise IsomergeError(
            f"{checkpoint.ref}: config.json says {key} (quant_method={method}), but {plain[0].name} and all other "
            f"weights are plain numbers ({plain[0].dtype}), for which transformers then has no place: take {key} "
            "out of config.json, or name the model that it belongs to"
        )


def quantisation_note(checkpoint: Checkpoint) -> str | None:
    """What a user must know: which models are stored in another way than the output is."""
    words_of = next((words for words in checkpoint.origin if words.startswith(STORED)), None)
    if words_of == FUSED:
        return f"{checkpoint.ref}: {FUSED}; what is written is stored as save_pretrained does by default"
    return None if words_of is None else f"{checkpoint.ref}: {words_of}; what is written is not quantised"


def _float_of(config: Mapping[str, Any]) -> str:
    """The dtype of weights that a config names, also in the part for texts; else bfloat16."""
    parts = [config, *(part for part in config.values() if isinstance(part, Mapping))]
    names = (str(part.get("dtype") or part.get("torch_dtype")) for part in parts)
    return next((FLOATS[name] for name in names if name in FLOATS), "BF16")


def _misfit(info: TensorInfo, factors: TensorInfo, more: str = "") -> IsomergeError:
    return IsomergeError(
        f"{info.file}: tensor {factors.name} of shape {list(factors.shape)} has no factors for {info.name} of "
        f"shape {list(info.shape)}{more}: save this model again"
    )


# ------------------------------------------------------------------------------------------------- scaled


def _scaled(checkpoint: Checkpoint, how: Mapping[str, Any], code: str) -> tuple[dict[str, Derived], set[str]]:
    """All weights with factors beside them; and the names of the factors."""
    derived: dict[str, Derived] = {}
    used: set[str] = set()
    blocks = how.get("weight_block_size")
    for name, info in checkpoint.tensors.items():
        scale = next((name + end for end in SCALES if name + end in checkpoint.tensors), None)
        if info.dtype not in NARROW or scale is None:
            continue
        zero = f"{name}_zero_point"
        zero = zero if zero in checkpoint.tensors else None
        factors = checkpoint.tensors[scale]
        steps = _steps(info, factors, blocks)
        if zero is not None and checkpoint.tensors[zero].shape != factors.shape:
            raise IsomergeError(f"{info.file}: tensor {zero} must have the shape of {scale}: save this model again")
        read = partial(_unscaled, checkpoint, name, scale, zero, steps, code)
        derived[name] = Derived(replace(info, dtype=code), read)
        used |= {scale} | ({zero} if zero is not None else set())
    return derived, used


def _steps(info: TensorInfo, factors: TensorInfo, blocks: Any) -> tuple[int, ...]:
    """How many entries of every axis of a weight share a factor.

    Raises:
        IsomergeError: no number fits.
    """
    if math.prod(factors.shape) == 1:
        return tuple(info.shape)
    shape = (*factors.shape, 1) if len(factors.shape) == len(info.shape) - 1 else factors.shape
    stated = blocks if isinstance(blocks, (list, tuple)) and len(blocks) == 2 else (None, None)
    stated = (*(None,) * (len(info.shape) - 2), *stated)[-len(info.shape) :] if info.shape else ()
    steps = []
    for long, short, size in zip(info.shape, shape, stated, strict=False):
        options = ([size] if isinstance(size, int) and size > 0 else []) + (
            [long // short] if short and long % short == 0 else []
        )
        fitting = [step for step in options if -(-long // step) == short]
        if not fitting or len(shape) != len(info.shape):
            raise _misfit(info, factors, f" (weight_block_size {blocks})")
        steps.append(fitting[0])
    return tuple(steps)


def _unscaled(
    checkpoint: Checkpoint, name: str, scale: str, zero: str | None, steps: tuple[int, ...], code: str
) -> Tensor:
    """One weight: its stored numbers, less the zero point, times their factors."""
    weight = checkpoint.read(name).to(torch.float32)

    def spread(key: str) -> Tensor:
        small = checkpoint.read(key).to(torch.float32)
        if small.numel() == 1:
            return small.reshape(())
        small = small.reshape(*small.shape, *(1,) * (weight.ndim - small.ndim))
        for axis, (long, step) in enumerate(zip(weight.shape, steps, strict=True)):
            if 1 < step < long:  # one factor for all, or one for each, are spread by broadcasting
                small = small.index_select(axis, torch.arange(long) // step)
        return small

    if zero is not None:
        weight -= spread(zero)
    return weight.mul_(spread(scale)).to(torch_dtype(code))


# -------------------------------------------------------------------------------------------------- MXFP4


def _microscaled(checkpoint: Checkpoint, code: str) -> tuple[dict[str, Derived], set[str]]:
    """All weights in blocks ``[*lead, rows, blocks, 16]``, as the transposed ``[*lead, columns, rows]`` that
    modules have."""
    derived: dict[str, Derived] = {}
    used: set[str] = set()
    for key, info in checkpoint.tensors.items():
        name = key.removesuffix("_blocks")
        scale = f"{name}_scales"
        if name == key or info.dtype != "U8" or scale not in checkpoint.tensors:
            continue
        if len(info.shape) < 3 or checkpoint.tensors[scale].shape != info.shape[:-1]:
            raise _misfit(info, checkpoint.tensors[scale])
        *lead, rows, blocks, pairs = info.shape
        shape = (*lead, blocks * pairs * 2, rows)
        read = partial(_unpacked, checkpoint, key, scale, code)
        derived[name] = Derived(replace(info, dtype=code, shape=shape), read)
        used |= {key, scale}
    return derived, used


def _unpacked(checkpoint: Checkpoint, key: str, scale: str, code: str) -> Tensor:
    """One weight: four bits each, the lower first, times two to the block's exponent."""
    packed = checkpoint.read(key)
    exponents = checkpoint.read(scale).to(torch.int32) - 127
    values = torch.tensor(FP4, dtype=torch.float32)
    pairs = torch.stack([values[(packed & 15).int()], values[(packed >> 4).int()]], -1).flatten(-2)
    return torch.ldexp(pairs, exponents.unsqueeze(-1)).flatten(-2).mT.to(torch_dtype(code)).contiguous()

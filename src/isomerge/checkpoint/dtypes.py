"""The element types of the safetensors format and the torch types they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    import torch

BITS: dict[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
}
"""Bits per element of every safetensors dtype code."""

# F4 and the F6 types are packed below the byte; torch has no element type of that size.
_TORCH_NAMES: dict[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
"""The codes of the floats that weights have, by the names that configs and options use."""
SHORT = {
    **dict.fromkeys(("bf16", "bfloat", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half", "float16"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "float32"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double", "float64"), "float64"),
}
"""What people call them."""
STORED_FLOATS = {*FLOATS.values(), "F8_E4M3", "F8_E5M2"}
"""The codes of all floats that tensors are converted from and to, one by one; eight bits have no name in
options."""


def torch_dtype(code: str) -> torch.dtype:
    """The torch dtype of a safetensors code, e.g. ``"BF16"`` -> ``torch.bfloat16``.

    Raises IsomergeError for a code that is unknown or that this torch has no type for.
    """
    import torch

    dtype = getattr(torch, _TORCH_NAMES.get(code, ""), None)
    if dtype is None:
        raise IsomergeError(
            f"dtype {code!r} has no counterpart in torch {torch.__version__}; "
            f"convert the tensor to one of {', '.join(_TORCH_NAMES)}"
        )
    return dtype


def dtype_code(dtype: torch.dtype, of: str = "") -> str:
    """The safetensors code of a torch dtype, e.g. ``torch.bfloat16`` -> ``"BF16"``; ``of`` says whose it is.

    Raises IsomergeError for a torch dtype that safetensors cannot store.
    """
    name = str(dtype).removeprefix("torch.")
    for code, torch_name in _TORCH_NAMES.items():
        if torch_name == name:
            return code
    raise IsomergeError(
        f"{of and f'{of}: '}safetensors cannot store torch dtype {name!r}; convert the tensor to one of "
        f"{', '.join(_TORCH_NAMES)}"
    )


def byte_size(code: str, shape: tuple[int, ...]) -> int | None:
    """Bytes of a tensor of dtype ``code`` and ``shape``.

    None when the packed bits do not fill whole bytes, or when a dimension or the product of the non-zero
    dimensions passes 2**63 - 1 (no library can address such a tensor). ``code`` must be a key of BITS and
    dimensions must not be negative.
    """
    extent = 1  # product of the non-zero dimensions: strides overflow even when the tensor is empty
    for dim in shape:
        extent *= max(dim, 1)
        if extent > 2**63 - 1:
            return None
    bits = 0 if 0 in shape else extent * BITS[code]
    return None if bits % 8 else bits // 8

"""Products that do not depend on where their operands lie in memory: the reproducible mode of Intel's MKL, which
torch computes with.

Without it MKL takes another path, and rounds otherwise, where a matrix begins at another multiple of 8 bytes (seen
on AMD's processors). Tensors are read in the pages of their files, so the length of a file's header would decide
the last bits of what is written. ``import isomerge`` asks for the mode in the environment, which MKL reads at its
first product; where somebody computed before, it is too late, and tensors are copied to memory that torch aligns
(to 64 bytes).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "MKL_CBWR"
"""MKL's own environment variable ("conditional bitwise reproducibility"); ``isomerge/__init__.py`` sets it unless
the user has."""
OFF, UNKNOWN, NONE = "OFF", "unknown", "none"
_MODES = {
    0: OFF,
    1: OFF,
    2: "AUTO",
    3: "COMPATIBLE",
    4: "SSE2",
    6: "SSSE3",
    7: "SSE4_1",
    8: "SSE4_2",
    9: "AVX",
    10: "AVX2",
    11: "AVX512_MIC",
    12: "AVX512",
    13: "AVX512_MIC_E1",
    14: "AVX512_E1",
}
"""MKL's numbers (mkl_types.h): AUTO is the fastest path that it knows for the processor, COMPATIBLE one for all of
them."""
_AUTO, _ALL, _STRICT = 2, -1, 0x10000
_ONE_THREAD = {"COMPATIBLE", "SSE2", "SSSE3", "SSE4_1", "SSE4_2"}
"""Modes in which MKL's sums over several threads differ from run to run (measured with COMPATIBLE; ``MKL_DYNAMIC``
changes nothing)."""
_held: list[int] = []
"""The threads that torch had before `_hold_to_one_thread` took them."""


@cache
def mkl_mode() -> str:
    """The reproducible mode that MKL computes in, as MKL itself tells it: ``AUTO`` and the like; ``OFF``; ``none``
    where torch has no MKL, ``unknown`` where its MKL does not answer.

    MKL that has not computed anything yet and was not asked for a mode (it reads the environment once) gets
    ``AUTO``.
    """
    import torch

    if not torch.backends.mkl.is_available():
        return NONE
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
        ask, tell = library.mkl_serv_cbwr_get, library.mkl_serv_cbwr_set
    except (OSError, AttributeError, StopIteration):
        return UNKNOWN
    number = ask(ctypes.c_int(_ALL))
    if _MODES.get(number) == OFF and os.environ.get(VARIABLE, "AUTO").upper() == "AUTO":
        tell(ctypes.c_int(_AUTO))  # refused, and nothing changed, where a product was computed before
        number = ask(ctypes.c_int(_ALL))
    name = _MODES.get(number & ~_STRICT, UNKNOWN)
    return f"{name},STRICT" if number & _STRICT else name


def is_reproducible() -> bool:
    """Whether MKL has told that its results do not depend on where operands lie. A mode that needs one thread for
    that gets it here."""
    if _needs_one_thread():
        _hold_to_one_thread()
    return mkl_mode() not in (OFF, UNKNOWN, NONE)


def _needs_one_thread() -> bool:
    return mkl_mode().partition(",")[0] in _ONE_THREAD


def _hold_to_one_thread() -> None:
    """Let torch compute on one thread: called wherever tensors are read, so that nothing is computed before."""
    import torch

    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
        _held.append(threads)


def aligned(tensor: Tensor) -> Tensor:
    """A tensor that a library has mapped from a file, at whatever place: as it is where that changes no result,
    else a copy of it in memory that torch has aligned.
    """
    return tensor if is_reproducible() else tensor.clone()


def arithmetic_record() -> dict[str, str | int]:
    """What rounding depends on, for reports: MKL's mode, the instructions that torch uses, and its threads."""
    import torch

    return {
        "mkl": mkl_mode(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def arithmetic_notes() -> list[str]:
    """What is to be said where MKL could be in its reproducible mode and is not, or takes threads for it."""
    if _held and _needs_one_thread():
        return [
            f"{VARIABLE}={mkl_mode()}: computed on one thread instead of {max(_held)}, because in this mode MKL's "
            f"sums over several threads differ from run to run ({VARIABLE}=AUTO keeps the threads)"
        ]
    if mkl_mode() != OFF:
        return []
    wish = os.environ.get(VARIABLE, "AUTO")
    why = (
        "torch had computed before isomerge was imported, when MKL's reproducible mode can no longer be set "
        "(import isomerge first)"
        if wish.upper() == "AUTO"
        else f"{VARIABLE}={wish} keeps MKL out of its reproducible mode (unset it)"
    )
    return [
        f"{why}: tensors are copied to aligned memory, so that the same run writes the same bytes; it takes longer"
    ]

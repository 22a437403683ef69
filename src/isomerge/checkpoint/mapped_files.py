"""Files that are mapped, and may be cut while they are read: the system ends a process that touches a page which is
no longer in its file (SIGBUS), without a word.

Here such pages of `map_private` become zeros, and the process goes on to where whoever reads them looks whether the
file is still the same (`Checkpoint.check_unchanged`). Of what libraries map nobody looks: a command tells the file
and ends; from Python the process ends as it would, and the file is told.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import weakref
from contextlib import suppress
from signal import SIGBUS
from typing import Any

from isomerge.errors import visible

_MADV_POPULATE_READ = 22
_FIXED = 0x10 | mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE
_WITH_INFO = 4
"""Linux's SA_SIGINFO."""
_NO_PAGE = 2
"""Linux's BUS_ADRERR: the other causes are damaged memory, and odd addresses."""
_CODE, _ADDRESS = 8, 16
"""Where siginfo_t has them, on Linux with 64 bits."""
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """Linux's struct sigaction, with 64 bits."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Pages(mmap.mmap):
    """Pages of a file, and where they are in memory."""

    address: int


_mapped: weakref.WeakValueDictionary[int, _Pages] = weakref.WeakValueDictionary()
_cut: list[str] = []
"""The sentences on files that were cut."""
_before: list[_Action] = []
"""What the system did before `watch_mapped_files`, where that was called."""
_ends = False


def map_private(fd: int, offset: int, size: int) -> memoryview:
    """``size`` bytes (not none) from byte ``offset`` of ``fd``, mapped; what is written to them stays in this
    process. Where the file is cut, they become zeros: see `cut_sentence`.

    Raises OSError.
    """
    watch_mapped_files()
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    private = mmap.PROT_READ | mmap.PROT_WRITE
    pages = _Pages(fd, offset - start + size, flags=mmap.MAP_PRIVATE, prot=private, offset=start)
    pages.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    _mapped[pages.address] = pages
    with suppress(OSError):  # before Linux 5.14 they are read when they are touched
        pages.madvise(_MADV_POPULATE_READ)
    return memoryview(pages)[offset - start :]


def cut_sentence() -> str | None:
    """What is said of a file that was cut while it was mapped; None where none was."""
    return _cut[0] if _cut else None


def watch_mapped_files(*, ends: bool = False) -> None:
    """Have files looked for that are cut while they are mapped, from now on.

    Args:
        ends: whether the process is a command, which ends with exit code 2 where a library reads what is gone.
    """
    global _ends
    _ends = _ends or ends
    if _before or sys.platform != "linux" or struct.calcsize("P") != 8:
        return
    _before.append(_Action())
    action = _Action(handler=_handler, flags=_WITH_INFO)
    ctypes.CDLL(None).sigaction(SIGBUS, ctypes.byref(action), ctypes.byref(_before[0]))


def _on_missing_page(number: int, info: int, context: Any) -> None:
    """The system calls this where a page is missing, and tries once more when it returns."""
    try:
        address = ctypes.c_size_t.from_address(info + _ADDRESS).value
        if ctypes.c_int.from_address(info + _CODE).value == _NO_PAGE and (file := _file_at(address)):
            _cut.append(
                f"{file} was cut while it was read: let the program that writes it finish, then start again"
            )
            if _become_zeros(address):
                return
            os.write(2, f"isomerge: {visible(_cut[-1])}\n".encode())
            if _ends:
                os._exit(2)
    except BaseException as error:  # whatever is raised here would be dropped, and the page tried for ever
        os.write(2, f"isomerge: a page of memory is missing ({type(error).__name__})\n".encode())
    ctypes.CDLL(None).sigaction(SIGBUS, ctypes.byref(_before[0]), None)


_handler = _Handler(_on_missing_page)


def _become_zeros(address: int) -> bool:
    """Zeros in place of `map_private`'s pages from an address on; False where it is in none."""
    for reference in _mapped.valuerefs():
        pages = reference()
        if pages is not None and pages.address <= address < pages.address + len(pages):
            start = address - address % mmap.PAGESIZE
            to_end = ctypes.c_size_t(pages.address + len(pages) - start)
            place = ctypes.CDLL(None).mmap
            place.restype = ctypes.c_void_p
            private = mmap.PROT_READ | mmap.PROT_WRITE
            made = place(ctypes.c_void_p(start), to_end, private, _FIXED, -1, ctypes.c_long(0))
            return made == start
    return False


def _file_at(address: int) -> str | None:
    """The file that is mapped at an address."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            place, *about = line.split(maxsplit=5)
            first, last = (int(word, 16) for word in place.split("-"))
            if first <= address < last:
                return about[-1].strip() if about[-1].startswith("/") else None
    return None

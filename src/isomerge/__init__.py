"""isomerge: align transformers along their weight symmetries, merge them, and prove it.

The Python API is the names of the commands, and some more; heavy imports happen when they are used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from isomerge import api

if TYPE_CHECKING:
    from isomerge.api import *  # noqa: F403
    from isomerge.errors import IsomergeError as IsomergeError
    from isomerge.symmetry.alignment import Alignment as Alignment

__version__ = "0.1.0"
# read by torch's MKL at its first product, and by child processes: results do not depend on where operands lie
# (`isomerge.arithmetic`)
os.environ.setdefault("MKL_CBWR", "AUTO")
_HOMES = {"Alignment": "isomerge.symmetry.alignment", "IsomergeError": "isomerge.errors"}
__all__ = ["Alignment", "IsomergeError"]
__all__ += api.__all__


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "isomerge.api")), name)
    raise AttributeError(f"module 'isomerge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

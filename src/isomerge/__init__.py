"""isomerge: align transformers along their weight symmetries, merge them, and prove it.

The Python API is the names of the commands, and some more; heavy imports happen when they are used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
# read by torch's MKL at its first product, and by child processes: results do not depend on where operands lie
# (`isomerge.arithmetic`)
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from isomerge.api import align as align
    from isomerge.api import apply as apply
    from isomerge.api import architectures as architectures
    from isomerge.api import barrier as barrier
    from isomerge.api import canon as canon
    from isomerge.api import diff as diff
    from isomerge.api import discover as discover
    from isomerge.api import evaluate as evaluate
    from isomerge.api import extract_lora as extract_lora
    from isomerge.api import fingerprint as fingerprint
    from isomerge.api import fsck as fsck
    from isomerge.api import generate as generate
    from isomerge.api import inspect as inspect
    from isomerge.api import merge as merge
    from isomerge.api import merge_lora as merge_lora
    from isomerge.api import methods as methods
    from isomerge.api import open as open
    from isomerge.api import orbit_distance as orbit_distance
    from isomerge.api import prove as prove
    from isomerge.api import report as report
    from isomerge.api import restore_task as restore_task
    from isomerge.api import similarity as similarity
    from isomerge.api import stats as stats
    from isomerge.api import surgery as surgery
    from isomerge.api import task_mask as task_mask
    from isomerge.api import transplant_tokenizer as transplant_tokenizer
    from isomerge.api import tune as tune
    from isomerge.api import verify as verify
    from isomerge.api import widen as widen
    from isomerge.errors import IsomergeError as IsomergeError
    from isomerge.symmetry.alignment import Alignment as Alignment

_HOMES = {
    **dict.fromkeys(
        [
            "align",
            "apply",
            "architectures",
            "barrier",
            "canon",
            "diff",
            "discover",
            "evaluate",
            "extract_lora",
            "fingerprint",
            "fsck",
            "generate",
            "inspect",
            "merge",
            "merge_lora",
            "methods",
            "open",
            "orbit_distance",
            "prove",
            "report",
            "restore_task",
            "similarity",
            "stats",
            "surgery",
            "task_mask",
            "transplant_tokenizer",
            "tune",
            "verify",
            "widen",
        ],
        "isomerge.api",
    ),
    "Alignment": "isomerge.symmetry.alignment",
    "IsomergeError": "isomerge.errors",
}
__all__ = [
    "Alignment",
    "IsomergeError",
    "align",
    "apply",
    "architectures",
    "barrier",
    "canon",
    "diff",
    "discover",
    "evaluate",
    "extract_lora",
    "fingerprint",
    "fsck",
    "generate",
    "inspect",
    "merge",
    "merge_lora",
    "methods",
    "open",
    "orbit_distance",
    "prove",
    "report",
    "restore_task",
    "similarity",
    "stats",
    "surgery",
    "task_mask",
    "transplant_tokenizer",
    "tune",
    "verify",
    "widen",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isomerge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

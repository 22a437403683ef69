"""The Python API: the commands as functions, on paths, hub ids, open checkpoints or live modules.

A lazy door: a function's module, and torch with it, is imported when the function is first used. Type checkers and
editors read the signatures in ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

HOMES = {
    "checking": ["fsck"],
    "comparing": ["diff", "fingerprint", "inspect", "orbit_distance", "similarity", "verify"],
    "discovering": ["discover"],
    "evaluating": ["evaluate"],
    "generating": ["generate"],
    "listing": ["architectures", "methods"],
    "measuring": ["barrier", "report", "stats"],
    "merging": ["extract_lora", "merge", "merge_lora", "restore_task", "surgery", "task_mask"],
    "moving": ["align", "apply", "canon"],
    "opening": ["open"],
    "proving": ["prove"],
    "tuning": ["tune"],
    "widening": ["transplant_tokenizer", "widen"],
}
_MODULES = {name: f"isomerge.api.{module}" for module, names in HOMES.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'isomerge.api' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])

"""Federated averaging with alignment: clients' weights are brought into one coordinate system before they are
averaged.

`aggregate` and `align_updates` work on parameters in memory, whatever framework carries them;
`isomerge.research.federated.flower` has the strategy for Flower (``pip install 'isomerge[flower]'``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isomerge.research.federated.activations import activations_of as activations_of
    from isomerge.research.federated.aggregate import Aligned as Aligned
    from isomerge.research.federated.aggregate import aggregate as aggregate
    from isomerge.research.federated.aggregate import align_updates as align_updates

_HOMES = {"activations_of": "activations", **dict.fromkeys(("Aligned", "aggregate", "align_updates"), "aggregate")}
__all__ = ["Aligned", "activations_of", "aggregate", "align_updates"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isomerge.research.federated' has no attribute {name!r}")
    member = getattr(import_module(f"isomerge.research.federated.{_HOMES[name]}"), name)
    globals()[name] = member  # the function `aggregate` stays in front of the module of its name
    return member

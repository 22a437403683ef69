"""Transformers that see Gram matrices only: relational attention, after Francois and Ravera (arXiv:2602.18948).

The names below are imported when they are used, since they need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isomerge.relational.anchors import choose_anchors as choose_anchors
    from isomerge.relational.attention import RelationalAttention as RelationalAttention
    from isomerge.relational.block import RelationalBlock as RelationalBlock
    from isomerge.relational.config import RelationalConfig as RelationalConfig
    from isomerge.relational.conversion import from_standard as from_standard
    from isomerge.relational.embedding import patches_of as patches_of
    from isomerge.relational.stream import CoordinateStream as CoordinateStream
    from isomerge.relational.stream import GramStream as GramStream
    from isomerge.relational.transformer import RelationalTransformer as RelationalTransformer

_PLACES = {
    "CoordinateStream": "stream",
    "GramStream": "stream",
    "RelationalAttention": "attention",
    "RelationalBlock": "block",
    "RelationalConfig": "config",
    "RelationalTransformer": "transformer",
    "choose_anchors": "anchors",
    "from_standard": "conversion",
    "patches_of": "embedding",
}
__all__ = [
    "CoordinateStream",
    "GramStream",
    "RelationalAttention",
    "RelationalBlock",
    "RelationalConfig",
    "RelationalTransformer",
    "choose_anchors",
    "from_standard",
    "patches_of",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

"""Transformers that see Gram matrices only: relational attention, after Francois and Ravera (arXiv:2602.18948).

The names below are imported when they are used, since they need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isomerge.research.relational.attention import RelationalAttention as RelationalAttention
    from isomerge.research.relational.block import CoordinateStream as CoordinateStream
    from isomerge.research.relational.block import GramStream as GramStream
    from isomerge.research.relational.block import RelationalBlock as RelationalBlock
    from isomerge.research.relational.config import RelationalConfig as RelationalConfig
    from isomerge.research.relational.conversion import choose_anchors as choose_anchors
    from isomerge.research.relational.conversion import from_standard as from_standard
    from isomerge.research.relational.embedding import patches_of as patches_of
    from isomerge.research.relational.token_grams import TokenGramAttention as TokenGramAttention
    from isomerge.research.relational.token_grams import moved_gram as moved_gram
    from isomerge.research.relational.token_grams import token_gram_attention as token_gram_attention
    from isomerge.research.relational.transformer import RelationalTransformer as RelationalTransformer
    from isomerge.research.relational.transformer import load as load
    from isomerge.research.relational.transformer import save as save

_HOMES = {
    "attention": ("RelationalAttention",),
    "block": ("CoordinateStream", "GramStream", "RelationalBlock"),
    "config": ("RelationalConfig",),
    "conversion": ("choose_anchors", "from_standard"),
    "embedding": ("patches_of",),
    "token_grams": ("TokenGramAttention", "moved_gram", "token_gram_attention"),
    "transformer": ("RelationalTransformer", "load", "save"),
}
_PLACES = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

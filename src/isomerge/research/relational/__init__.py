"""Transformers that see Gram matrices only: relational attention, after Francois and Ravera (arXiv:2602.18948)."""

from isomerge.research.relational.attention import RelationalAttention
from isomerge.research.relational.conversion import choose_anchors, from_standard
from isomerge.research.relational.token_grams import TokenGramAttention, moved_gram, token_gram_attention
from isomerge.research.relational.transformer import (
    CoordinateStream,
    GramStream,
    RelationalBlock,
    RelationalConfig,
    RelationalTransformer,
    load,
    patches_of,
    save,
)

__all__ = [
    "CoordinateStream",
    "GramStream",
    "RelationalAttention",
    "RelationalBlock",
    "RelationalConfig",
    "RelationalTransformer",
    "TokenGramAttention",
    "choose_anchors",
    "from_standard",
    "load",
    "moved_gram",
    "patches_of",
    "save",
    "token_gram_attention",
]

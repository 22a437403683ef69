"""How a model is brought into relational form."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.options.option import Options, option


@dataclass(frozen=True)
class RelationalOptions(Options):
    """What a relational model is anchored to, and how its heads are stored."""

    anchors: str = option(
        "identity",
        "The vectors that tokens are seen from: identity (the coordinate axes), random (a basis), or tokens "
        "(embeddings that are far from each other).",
    )
    full: bool = option(
        False, "Store each head as two full forms, free of gauge; not with rotary positions.", "--full"
    )
    chunk: int | None = option(None, "Tokens per chunk of attention with memory linear in the length.", least=1)
    seed: int = option(0, "Of a random basis.")

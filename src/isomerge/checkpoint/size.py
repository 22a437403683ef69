"""Sizes as people write them: "5GB", "500M", "5B"."""

from __future__ import annotations

import re
from decimal import Decimal

from isomerge.errors import IsomergeError

_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(B?)\s*", re.ASCII | re.IGNORECASE)
_FACTOR = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str | int) -> int:
    """A number of bytes: "5GB" and "5G" are 5e9, "500M" is 5e8, "1.5K" is 1500, "4096" and 4096 are 4096.

    Suffixes K, M, G and T are powers of 1000, as for the Hugging Face libraries; a "B" may follow them. A
    "B" right after the number means billions, as in mergekit's ``--out-shard-size 5B``: 5e9 bytes. Upper or
    lower case. Raises IsomergeError for anything else, and unless the size is a whole number >= 1.
    """
    match = _SIZE.fullmatch(str(text)) if not isinstance(text, bool) else None
    size = Decimal(0)
    if match is not None:
        number, unit, b = match.groups()
        size = Decimal(number) * (_FACTOR[unit.upper()] if unit else 10**9 if b else 1)
    if size < 1 or size != int(size):
        raise IsomergeError(
            f"{text!r} is not a size: expected a positive whole number of bytes, "
            "or a number with K, M, G or T such as '5GB' or '500M' ('5B' means 5 billion bytes)"
        )
    return int(size)

"""What tokens stand for, across tokenizers that write the same text in different ways, and of what pieces another
tokenizer makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""What tokens mark, beside what they spell; the first roles of a token count."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>$")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


@cache
def _bytes_of_letters() -> dict[str, int]:
    """The letter by which byte-level BPE writes every byte (Radford et al. 2019): printable ones by themselves, the
    others by the letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + k): byte for k, byte in enumerate(rest)}


def spelled(tokenizer: Any) -> dict[str, bytes]:
    """What every ordinary token of a tokenizer spells, in bytes; of those that were added, nothing."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    letters = _bytes_of_letters() if _is_byte_level(tokenizer) else None
    spelling = {}
    for token in tokenizer.get_vocab():
        if token in added:
            continue
        if letters is not None:
            if all(letter in letters for letter in token):
                spelling[token] = bytes(letters[letter] for letter in token)
        elif (byte := _BYTE.match(token)) is not None:
            spelling[token] = bytes([int(byte[1], 16)])
        else:
            spelling[token] = token.replace(_SPACE, " ").encode()
    return spelling


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether letters stand for bytes; asked of its decoder, as SentencePiece's byte tokens are none of these."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "ByteLevel" in repr(getattr(backend, "decoder", None)) if backend is not None else False


def same_tokens(wanted: Any, own: Any) -> dict[str, str]:
    """From tokens of one tokenizer to those of another that are the same: by name, by what they spell, or by what
    they mark (the end of a text)."""
    mine = own.get_vocab()
    pairs = {token: token for token in wanted.get_vocab() if token in mine}
    by_bytes: dict[bytes, str] = {}
    for token, content in spelled(own).items():
        by_bytes.setdefault(content, token)
    for token, content in spelled(wanted).items():
        if token not in pairs and content in by_bytes:
            pairs[token] = by_bytes[content]
    for role in ROLES:
        their_special, own_special = (getattr(tokenizer, f"{role}_token", None) for tokenizer in (wanted, own))
        if (
            their_special is not None
            and own_special is not None
            and str(their_special) not in pairs
            and str(own_special) in mine
        ):
            pairs[str(their_special)] = str(own_special)
    return pairs


def pieces_of(wanted: Any, tokens: Mapping[str, int], own: Any, rows: int) -> dict[str, list[int]]:
    """For tokens of one tokenizer, the ids of what another makes of their text: of those that have a row, and
    without what it adds to texts. Tokens that spell nothing are left out."""
    texts = {
        token: content.decode(errors="ignore") for token, content in spelled(wanted).items() if token in tokens
    }
    pieces = {}
    unknown = own.unk_token_id
    for token, text in texts.items():
        ids = own(text, add_special_tokens=False)["input_ids"] if text else []
        known = [at for at in ids if at < rows and at != unknown]
        if known:
            pieces[token] = known
    return pieces

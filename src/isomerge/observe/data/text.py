"""Text to token ids, by a checkpoint's own tokenizer or as raw bytes; windows; the masks of masked language
models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError, first_line
from isomerge.models.model_inputs import BYTES, Inputs
from isomerge.observe.data.examples import IGNORED

VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "spm.model",
)
MASKED_SHARE = 0.15  # Devlin et al. 2019
CHUNK = 1 << 16
"""Bytes of plain text that are tokenized at a time, up to the end of the line."""


@dataclass(frozen=True)
class Encoder:
    """Text to ids; ``prefix`` and ``suffix`` are the special tokens that the tokenizer puts around a text."""

    tokenizer: Any | None
    """None: the ids are the bytes of the text in UTF-8."""
    length: int
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    pad: int = 0
    mask: int | None = None
    special: frozenset[int] = frozenset()

    def plain(self, text: str | bytes) -> list[int]:
        """The ids without special tokens, however many; only raw encoders read bytes."""
        if self.tokenizer is None:
            return list(text if isinstance(text, bytes) else text.encode())
        return self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]

    def encode(self, text: str, pair: str | None = None) -> dict[str, list[int]]:
        """``input_ids`` (and ``token_type_ids`` where the tokenizer has them) with special tokens, cut to
        ``length``."""
        if self.tokenizer is None:
            return {"input_ids": self.plain(text + (pair or ""))[: self.length]}
        encoded = self.tokenizer(text, pair, truncation=True, max_length=self.length, verbose=False)
        return {name: list(encoded[name]) for name in ("input_ids", "token_type_ids") if name in encoded}

    def windows(self, texts: Iterable[str] | Iterable[bytes]) -> Iterator[list[int]]:
        """Texts, joined and cut into windows of ``length`` tokens, each with the special tokens around it.

        The rest that fills no window is left out, unless it is all there is.
        """
        size = self.length - len(self.prefix) - len(self.suffix)
        if size < 1:
            raise IsomergeError(f"--length {self.length}: no room for text beside the special tokens; give more")
        rest: list[int] = []
        full = False
        for text in texts:
            rest += self.plain(text)
            while len(rest) >= size:
                full = True
                yield [*self.prefix, *rest[:size], *self.suffix]
                rest = rest[size:]
        if rest and not full:
            yield [*self.prefix, *rest, *self.suffix]


def text_encoder(folder: Path, inputs: Inputs, length: int) -> Encoder:
    """The encoder of the checkpoint in ``folder``: its tokenizer, or raw bytes where it has none and 256 tokens.

    Texts are cut to ``length`` tokens, or to what the checkpoint can read when that is less.

    Raises:
        IsomergeError: no tokenizer, or one that transformers cannot load.
    """
    bounds = [length, inputs.positions or length]
    if not any((folder / name).is_file() for name in VOCABULARIES):
        if inputs.vocabulary == BYTES:
            return Encoder(None, min(bounds), mask=inputs.token("mask_token_id"))
        raise IsomergeError(
            f"{folder} has no tokenizer (tokenizer.json), so text cannot be read: copy the tokenizer's files "
            "there, or give input_ids as JSON lines or safetensors"
        )
    tokenizer = loaded("AutoTokenizer", folder, "tokenizer")
    prefix, suffix = _frame(tokenizer)
    pad = inputs.token("pad_token_id")
    pad = tokenizer.pad_token_id if pad is None else pad
    return Encoder(
        tokenizer,
        min(*bounds, int(tokenizer.model_max_length or length)),
        prefix,
        suffix,
        pad or 0,
        tokenizer.mask_token_id,
        frozenset(tokenizer.all_special_ids),
    )


def loaded(kind: str, folder: Path, what: str, **how: Any) -> Any:
    """A tokenizer or processor of a checkpoint, by the name of its auto class and in a user's words.

    Raises:
        IsomergeError: transformers cannot load it.
    """
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False, **how)
    except Exception as error:  # its files fail in as many types as there are tokenizers
        raise IsomergeError(
            f"{folder}: transformers cannot load this {what} ({first_line(error)}); save it again with "
            f"save_pretrained"
        ) from error


def _frame(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens before and after one text, seen on a text of one letter."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def read_chunks(files: Sequence[Path], *, raw: bool) -> Iterator[Any]:
    """The contents of files in pieces of whole lines: bytes where ``raw``, else text.

    Raises:
        IsomergeError: a file that cannot be read, or is not UTF-8.
    """
    for path in files:
        try:
            with path.open("rb") as stream:
                while lines := stream.readlines(CHUNK):
                    piece = b"".join(lines)
                    yield piece if raw else piece.decode("utf-8")
        except UnicodeDecodeError:
            raise IsomergeError(f"{path} is no text in UTF-8: convert it, or give another file") from None
        except OSError as error:
            raise IsomergeError(f"{path} cannot be read ({error.strerror}); check the path") from None


def masked(ids: Tensor, mask: int, kept: frozenset[int]) -> tuple[Tensor, Tensor]:
    """Hide 15 % of the tokens, at least one, behind the mask token.

    Which is fixed by the ids themselves: positions are ranked by the sha256 of the row and the position, so that a
    row is masked alike in any data set, on every machine.

    Args:
        ids: int64 [length], one example without padding.
        mask: the mask token.
        kept: ids that are never hidden (special tokens).

    Returns:
        The ids with masks, and labels [length]: the hidden token, -100 elsewhere.
    """
    row = hashlib.sha256(str(ids.tolist()).encode()).digest()
    free = [k for k, token in enumerate(ids.tolist()) if token not in kept]
    free.sort(key=lambda k: hashlib.sha256(row + k.to_bytes(8, "little")).digest())
    hidden = torch.tensor(free[: max(1, round(MASKED_SHARE * len(free)))], dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    labels[hidden] = ids[hidden]
    return ids.index_fill(0, hidden, mask), labels

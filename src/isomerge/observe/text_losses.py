"""The loss of a language model on text in nats per byte, which models of other tokenizers have in common.

Every token of a text is predicted once, the first one after the token that begins texts (else the one that ends
them); a text longer than what the model reads goes on in a next window, whose first token is the last of the one
before. The sum of the losses is divided by the bytes of the text in UTF-8."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path

import torch
from torch import nn

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.examples import IGNORED
from isomerge.observe.data.opening_data import PACKED, check_limit, records_of
from isomerge.observe.data.refused_data import FORMS
from isomerge.observe.data.rows import Reader
from isomerge.observe.data.text import Encoder, read_chunks
from isomerge.observe.losses import logits_of
from isomerge.records import Record

PIECE = 2000
"""Characters of a text of a file of plain text."""
WINDOW, BATCH = 512, 8
"""Tokens that are read at a time at most, and windows."""


class TextLoss(Record):
    """How well a model predicts texts."""

    nats_per_byte: float
    tokens: int
    """How many tokens the texts are."""


def texts_of(data: str | Path | Sequence[str], folder: Path, inputs: Inputs, limit: int | None) -> list[str]:
    """The texts themselves, whatever tokenizer reads them.

    Args:
        data: a file or folder of text, JSON lines or a table with a field ``text``, whatever else names records for
            a model of language (`isomerge.observe.data.opening_data.open_data`); or texts.
        folder, inputs: of the model that reads them.
        limit: no more than so many texts; plain text is cut into pieces of `PIECE` characters.

    Raises:
        IsomergeError: nothing is there, or it has no text.
    """
    check_limit(limit)
    if not isinstance(data, (str, Path)):
        texts = list(islice(data, limit))
        if not all(isinstance(text, str) for text in texts):
            raise IsomergeError("--data: give texts, or a file of them: the loss is measured on text")
    else:
        texts = list(islice(_texts(str(data), folder, inputs), limit))
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise IsomergeError(f"--data {data if isinstance(data, (str, Path)) else ''}: there is no text: {FORMS}")
    return texts


def _texts(ref: str, folder: Path, inputs: Inputs) -> Iterator[str]:
    path = Path(os.path.expanduser(ref))
    if path.is_file() and path.suffix.lower() in (*PACKED, ".safetensors"):
        raise IsomergeError(f"--data {ref}: the loss on text is measured on text itself: give a file of it")
    files = Reader(folder, inputs, WINDOW).files(path)
    if files:
        for chunk in read_chunks(files, raw=False):
            yield from (chunk[k : k + PIECE] for k in range(0, len(chunk), PIECE))
        return
    for record in records_of(ref, path, inputs, "--data"):
        text = record.fields.get("text")
        if not isinstance(text, str):
            raise IsomergeError(f'{record.where} has no text: give a field "text"')
        yield text


def check_predicts_text(inputs: Inputs, ref: str) -> None:
    """Refuse models that do not predict the next token.

    Raises:
        IsomergeError: naming the model.
    """
    if inputs.task != "causal":
        raise IsomergeError(
            f"{ref} does not predict the next token of a text, so that --data measures no loss: leave it out"
        )


def text_loss(module: nn.Module, encoder: Encoder, texts: Sequence[str]) -> TextLoss:
    """The loss of a language model on texts.

    Args:
        module: a causal model in eval mode.
        encoder: its tokenizer, and how many tokens it reads.
        texts: one or more.

    Raises:
        IsomergeError: the model does not read them, or its outputs are no numbers.
    """
    total, tokens = 0.0, 0
    windows = list(_windows(encoder, texts))
    with torch.no_grad():
        for start in range(0, len(windows), BATCH):
            part = windows[start : start + BATCH]
            ids = torch.zeros(len(part), max(map(len, part)), dtype=torch.int64)
            wanted = torch.full_like(ids, IGNORED)
            for row, window in enumerate(part):
                ids[row, : len(window)] = torch.tensor(window)
                wanted[row, : len(window) - 1] = torch.tensor(window[1:])
            seen = torch.arange(ids.shape[1]) < torch.tensor([[len(window)] for window in part])
            logits = logits_of(module, {"input_ids": ids, "attention_mask": seen.long()})
            wanted = wanted.to(logits.device)
            lost = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="none"
            )
            total += float(lost.sum(dtype=torch.float64))
            tokens += int((wanted != IGNORED).sum())
    if not isfinite(total):
        raise IsomergeError("the loss on text is no number: the model's outputs are none in this dtype")
    return TextLoss(total / sum(len(text.encode()) for text in texts), tokens)


def _windows(encoder: Encoder, texts: Sequence[str]) -> Iterator[list[int]]:
    """The tokens of texts, each but the first of a window to be predicted."""
    tokenizer, size = encoder.tokenizer, min(encoder.length, WINDOW)
    first = None if tokenizer is None else tokenizer.bos_token_id
    if first is None and tokenizer is not None:
        first = tokenizer.eos_token_id
    for text in texts:
        ids = encoder.plain(text)
        if first is None:  # the first token is given
            first_ids, ids = ids[:1], ids[1:]
        else:
            first_ids = [first]
        for start in range(0, len(ids), size - 1):
            before = first_ids if start == 0 else [ids[start - 1]]
            yield [*before, *ids[start : start + size - 1]]

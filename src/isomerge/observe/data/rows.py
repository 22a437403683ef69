"""Rows of numbers: what one record, image or window of text is to a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.chats import Chat, ChatReader, chat_of
from isomerge.observe.data.examples import IGNORED
from isomerge.observe.data.images import find_images, image_encoder, labelled_images, pair_encoder
from isomerge.observe.data.records import LINES, PICTURED, TABLES, Record
from isomerge.observe.data.splits import PARQUET, holds_set
from isomerge.observe.data.tensors import ARGUMENTS, check_names, plain, target_of
from isomerge.observe.data.text import VOCABULARIES, Encoder, read_chunks, text_encoder
from isomerge.records import Json

TEXTS = (".txt", ".text", ".md")


def mask_of(folder: Path, inputs: Inputs, length: int) -> tuple[int | None, frozenset[int]]:
    """The mask token and the special ones of a masked language model, from its tokenizer if there is one."""
    if inputs.task != "masked":
        return None, frozenset()
    if any((folder / name).is_file() for name in VOCABULARIES):
        encoder = text_encoder(folder, inputs, length)
        return encoder.mask, encoder.special
    special = {inputs.token(f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep", "mask")}
    return inputs.token("mask_token_id"), frozenset(t for t in special if t is not None)


class Reader:
    """Turns what sources give into rows of numbers; tokenizer and processor are loaded when first needed."""

    def __init__(self, folder: Path, inputs: Inputs, length: int) -> None:
        self.folder, self.inputs, self.length = folder, inputs, length
        self.pad = inputs.token("pad_token_id") or 0
        self.mask, self.special = mask_of(folder, inputs, length)

    @cached_property
    def encoder(self) -> Encoder:
        """The tokenizer; an IsomergeError when there is none."""
        encoder = text_encoder(self.folder, self.inputs, self.length)
        self.pad = encoder.pad
        return encoder

    @cached_property
    def _image(self) -> Callable[[Any, str], Any]:
        return image_encoder(self.folder, self.inputs)

    @cached_property
    def _pair(self) -> Callable[[str, Any, str], Json]:
        return pair_encoder(self.folder, self.inputs, self.encoder.encode, self.encoder.length)

    @cached_property
    def _chats(self) -> ChatReader:
        return ChatReader(self.folder, self.encoder)

    def images(self, path: Path) -> Iterator[Json] | None:
        """Rows of a file or folder of images; None when it is none."""
        images = [] if not path.exists() or (path.is_dir() and holds_set(path)) else find_images(path)
        if not images:
            return None
        return (
            {"pixel_values": self._image(file, str(file)), **({} if label is None else {"labels": label})}
            for file, label in self._labelled(path, images)
        )

    def _labelled(self, path: Path, images: list[Path]) -> Iterator[tuple[Path, int | None]]:
        """Images with their classes; without any where the checkpoint does not predict classes."""
        if self.inputs.kind() == "classes":
            return labelled_images(path, images, self.inputs)
        return ((file, None) for file in images)

    def texts(self, path: Path) -> Iterator[Json] | None:
        """Rows of a text file or a folder of them, as windows; None when it is none."""
        files = self.files(path)
        return self._windows(files) if files else None

    def files(self, path: Path) -> list[Path]:
        """The files of plain text that a path names; none where it holds records, or what is no text."""
        if path.is_dir() and not holds_set(path):
            texts = (p for p in path.rglob("*") if p.suffix.lower() in TEXTS and p.is_file())
            return sorted(p for p in texts if p.name.lower() != "readme.md")  # it is about the data
        records = path.suffix.lower() in (*LINES, *TABLES, PARQUET)
        return [path] if path.is_file() and not records else []

    def _windows(self, files: list[Path]) -> Iterator[Json]:
        encoder = self.encoder
        for window in encoder.windows(read_chunks(files, raw=encoder.tokenizer is None)):
            if self.inputs.task != "seq2seq":
                yield {"input_ids": window}
                continue
            end = len(window) - len(encoder.suffix)
            half = (len(encoder.prefix) + end) // 2
            parts = (window[len(encoder.prefix) : half], window[half:end])
            read, write = ([*encoder.prefix, *part, *encoder.suffix] for part in parts)
            yield {"input_ids": read, "labels": write}

    def row(self, record: Record) -> Json:
        """One record as numbers.

        Raises:
            IsomergeError: it has nothing that the checkpoint reads, naming the place.
        """
        fields, where = record.fields, record.where
        if "pixel_values" in fields or "input_ids" in fields:
            return self._numbers(fields, where)
        label = fields.get("label", fields.get("labels"))
        if self.inputs.images:
            image = _image_of(record)
            if image is None:
                raise IsomergeError(
                    f"{where} has no image, which this checkpoint reads: give pixel_values, or an image"
                )
            row = {"pixel_values": self._image(image, where)}
        else:
            row = self._text(record)
        if label is not None and self.inputs.task == "classes":
            row["labels"] = target_of(label, self.inputs, where)
        return row

    def _text(self, record: Record) -> Json:
        fields, where = record.fields, record.where
        if (chat := chat_of(fields, where)) is not None:
            self._check_chat(chat, record)
            if not isinstance(chat.prompt, str) or self.inputs.task == "causal":
                return self._said(chat, where)
            written = "" if self.inputs.task == "seq2seq" else chat.completion
            fields = {**fields, "text": f"{chat.prompt}{written}", "target": chat.completion}
        outside = {"label", "labels", "target", *PICTURED} if "text" not in fields else set()
        text = fields.get(
            "text", next((v for k, v in fields.items() if isinstance(v, str) and k not in outside), None)
        )
        if not isinstance(text, str):
            raise IsomergeError(f'{where} has no text: give a field "text", or messages, or input_ids')
        if self.inputs.pairs and (image := _image_of(record)) is not None:
            return self._pair(text, image, where)
        pair = fields.get("text_pair")
        row = self._encoded(text, pair if isinstance(pair, str) else None, where)
        if self.inputs.task == "seq2seq":
            target = next(
                (fields[k] for k in ("target", "labels", "label") if isinstance(fields.get(k), str)), None
            )
            if target is None:
                raise IsomergeError(f'{where}: an encoder-decoder needs a field "target", the text to write')
            row["labels"] = self._encoded(target, None, where)["input_ids"]
            if not row["labels"]:
                raise IsomergeError(f"{where} has an empty target: leave it out")
        if not row["input_ids"]:
            raise IsomergeError(f"{where} has an empty text: leave it out")
        return row

    def _check_chat(self, chat: Chat, record: Record) -> None:
        """Whether what is said can be read by this kind of model."""
        where, fields = record.where, record.fields
        if self.inputs.pairs and any(fields.get(name) is not None for name in (*PICTURED, "images")):
            raise IsomergeError(
                f"{where} has an image beside a conversation or a prompt, which are read without: give text and "
                f"image"
            )
        if self.inputs.task == "seq2seq" and not isinstance(chat.prompt, str):
            raise IsomergeError(
                f"{where}: an encoder-decoder reads one text and writes another: give prompt and completion as "
                f"texts"
            )

    def _said(self, chat: Chat, where: str) -> dict[str, list[int]]:
        """A conversation, or a prompt and its completion; labels where not all is predicted."""
        chats = self._chats
        try:
            ids, start = chats.read(chat, where)
        except (UnicodeError, TypeError, ValueError):  # half of a surrogate pair
            raise IsomergeError(f"{where}: this text is no Unicode: write it again in UTF-8") from None
        if not ids:
            raise IsomergeError(f"{where} has an empty text: leave it out")
        if chat.prompt is None or self.inputs.task != "causal":
            return {"input_ids": ids}
        return {"input_ids": ids, "labels": [IGNORED] * start + ids[start:]}

    def _encoded(self, text: str, pair: str | None, where: str) -> dict[str, list[int]]:
        try:
            return self.encoder.encode(text, pair)
        except (UnicodeError, TypeError, ValueError):  # half of a surrogate pair
            raise IsomergeError(f"{where}: this text is no Unicode: write it again in UTF-8") from None

    def _numbers(self, fields: Mapping[str, Any], where: str) -> Json:
        """A record that holds tensors, arrays or lists of numbers already."""
        row = {name: value for name, value in fields.items() if name in ARGUMENTS and value is not None}
        label = fields.get("label")
        if label is not None and "labels" not in row:
            row["labels"] = label
        label = row.get("labels")
        if label is not None and self.inputs.task == "classes":
            row["labels"] = target_of(label, self.inputs, where)
        elif isinstance(plain(label), (str, int, float)):
            row["labels"] = None
        row = {name: value for name, value in row.items() if value is not None}
        check_names(row, where)
        try:
            tensors = {name: torch.as_tensor(value) for name, value in row.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise IsomergeError(f"{where}: these are no numbers ({error})") from None
        if "input_ids" in tensors and (tensors["input_ids"].ndim != 1 or not len(tensors["input_ids"])):
            raise IsomergeError(f"{where}: input_ids must be a list of at least one token")
        return tensors


def _image_of(record: Record) -> Any:
    """The image of a record: one in memory, its bytes, or the path of a file that it names; None where it has none.

    Raises:
        IsomergeError: the file is missing, or what stands there is no image.
    """
    image = next((record.fields[name] for name in PICTURED if record.fields.get(name) is not None), None)
    if isinstance(image, Mapping):  # as the package datasets stores one
        image = next((image[name] for name in ("bytes", "path") if image.get(name)), image)
    if isinstance(image, bytes):
        return BytesIO(image)
    if isinstance(image, str) and not image:  # an empty cell of a table
        return None
    if isinstance(image, str) and record.folder is not None:
        path = record.folder / os.path.expanduser(image)
        if not os.path.isfile(path):
            raise IsomergeError(
                f"{record.where}: the image {image[:80]} is not there: give its path from {record.folder}"
            )
        return path
    if image is None or hasattr(image, "convert"):
        return image
    wanted = "an image in memory (Pillow)" if record.folder is None else "the path of a file"
    raise IsomergeError(f"{record.where}: the image is a {type(image).__name__}: give {wanted}, or pixel_values")

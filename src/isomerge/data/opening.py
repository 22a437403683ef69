"""Opening data: from what the user typed to examples that a checkpoint can read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from isomerge.data.examples import Examples
from isomerge.data.given import FORMS, check_given, check_reads
from isomerge.data.images import find_images, image_encoder, labelled_images
from isomerge.data.inputs import Inputs
from isomerge.data.pictured import pair_encoder
from isomerge.data.records import (
    SAVED,
    Record,
    dataset_records,
    function_records,
    is_function,
    json_records,
    saved_split,
)
from isomerge.data.targets import plain, target_of
from isomerge.data.tensors import ARGUMENTS, check_names, finish, read_tensors, stack
from isomerge.data.text import VOCABULARIES, Encoder, read_chunks, text_encoder
from isomerge.errors import IsomergeError

TEXTS = (".txt", ".text", ".md")
LINES = (".jsonl", ".json", ".ndjson")
PICTURED = ("image", "img")
"""Fields with an image."""


def open_data(
    ref: str,
    folder: Path,
    *,
    limit: int | None = None,
    length: int = 128,
    config: Mapping[str, Any],
    option: str = "--data",
) -> Examples:
    """Examples for the checkpoint in ``folder``, through its own tokenizer or image processor, all in memory.

    Args:
        ref: one of

            - a folder or file of images (.png, .jpg); sub-folders are classes (names of ``label2id``, ids, or, when
              there is one for every class, in sorted order), and examples come from each class in turn;
            - .jsonl or .json: objects with ``text`` (or the first field that is a string), ``label`` or ``labels``
              (id or name; of several labels at once or several values a list of numbers, of one value a number); or ``input_ids``, ``labels`` as they are;
              ``target`` is what an encoder-decoder shall write; ``image`` is a picture's path from there, of a classifier, or
              beside the text of a checkpoint that reads both;
            - any other file of text, or a folder of .txt: joined and cut into windows of ``length`` tokens, for an
              encoder-decoder the first half of a window to read and the second to write;
            - .safetensors with the model's inputs by name (``pixel_values``, ``input_ids``, ``attention_mask``,
              ``labels``), labels of a language model as Hugging Face has them;
            - a data set that the package ``datasets`` saved to disk (``folder`` or ``folder:split``), or ``name`` or ``name:split`` for that package;
            - ``module:function``, a Python function without arguments (the current folder is importable) that returns
              dicts: of tensors (an example, or a batch of them), or with ``text`` or ``image`` (Pillow) and ``label``.
        folder: the checkpoint. Without an image processor, images are resized to ``image_size``, scaled to 0..1 and
            normalised with mean 0.5 and deviation 0.5. Without a tokenizer, and with 256 tokens, text is read as bytes.
        limit: no more than so many examples, the first ones.
        length: tokens per example of text, special tokens included; less where the checkpoint reads less.
        config: its parsed config.json, which tells the task: classes, several labels, values, next tokens, masked tokens (15 %, all replaced
            by the mask token, positions fixed by the text itself) or an encoder-decoder's output.
        option: by which ``ref`` was given, as errors name it.

    Raises:
        IsomergeError: nothing is there, it cannot be read, or it does not fit the checkpoint.
    """
    check_given(ref, option)
    if limit is not None and limit < 1:
        raise IsomergeError(f"--limit {limit}: at least one example is needed")
    if length < 2:
        raise IsomergeError(f"--length {length}: at least two tokens are needed")
    inputs = Inputs(config)
    if not inputs.images and not inputs.vocabulary:
        raise IsomergeError(
            f"{folder}/config.json has neither vocab_size nor image_size, also in its text_config: no data can be made for it"
        )
    check_reads(inputs, folder)
    path = Path(os.path.expanduser(ref))
    try:
        where = str(path) if path.exists() else f"{option} {ref}"
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise IsomergeError(f"{option} {ref[:80]}: cannot be looked up ({error.strerror}); {FORMS}") from None
    if path.is_file() and path.suffix == ".safetensors":
        mask, special = _mask(folder, inputs, length)
        return finish(read_tensors(path, limit), inputs, where, mask=mask, special=special)
    reader = _Reader(folder, inputs, length)
    rows = reader.images(path) if inputs.images else reader.texts(path)
    if rows is None:
        rows = (reader.row(record) for record in _records(ref, path, inputs, option))
    found = list(islice(rows, limit))  # the padding is known once the tokenizer is
    return finish(stack(found, reader.pad, where), inputs, where, mask=reader.mask, special=reader.special)


def _records(ref: str, path: Path, inputs: Inputs, option: str) -> Iterator[Record]:
    """Records of every form but images and plain text."""
    if path.is_dir():
        if any((path / name).is_file() for name in SAVED):
            return dataset_records(str(path), inputs.class_ids, option)
        if not any(path.iterdir()):
            raise IsomergeError(f"{path} is an empty folder: put the data there, or give another one")
        lines = sorted(p for p in path.iterdir() if p.suffix in LINES)
        if not lines:
            kind = "images (.png, .jpg)" if inputs.images else "text (.txt, .jsonl)"
            raise IsomergeError(f"{path} holds no {kind}, which this checkpoint reads: give another folder")
        return (record for file in lines for record in json_records(file))
    if path.is_file():
        if path.suffix in LINES:
            return json_records(path)
        raise IsomergeError(f"{path} is no image, but this checkpoint reads images: {FORMS}")
    if saved_split(os.path.expanduser(ref))[0]:
        return dataset_records(os.path.expanduser(ref), inputs.class_ids, option)
    if is_function(ref):
        return function_records(ref, option)
    if ref.endswith((*LINES, *TEXTS, ".safetensors", ".png", ".jpg", "/")) or ref.startswith((".", "/", "~")):
        raise IsomergeError(f"{option} {ref}: no such file or folder; {FORMS}")
    return dataset_records(ref, inputs.class_ids, option)


def _mask(folder: Path, inputs: Inputs, length: int) -> tuple[int | None, frozenset[int]]:
    """The mask token and the special ones of a masked language model, from its tokenizer if there is one."""
    if inputs.task != "masked":
        return None, frozenset()
    if any((folder / name).is_file() for name in VOCABULARIES):
        encoder = text_encoder(folder, inputs, length)
        return encoder.mask, encoder.special
    special = {inputs.token(f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep", "mask")}
    return inputs.token("mask_token_id"), frozenset(t for t in special if t is not None)


class _Reader:
    """Turns what sources give into rows of numbers; tokenizer and processor are loaded when first needed."""

    def __init__(self, folder: Path, inputs: Inputs, length: int) -> None:
        self.folder, self.inputs, self.length = folder, inputs, length
        self.pad = inputs.token("pad_token_id") or 0
        self.mask, self.special = _mask(folder, inputs, length)
        self._encoder: Encoder | None = None
        self._image: Any = None
        self._pair: Any = None

    @property
    def encoder(self) -> Encoder:
        """The tokenizer; an IsomergeError when there is none."""
        if self._encoder is None:
            self._encoder = text_encoder(self.folder, self.inputs, self.length)
            self.pad = self._encoder.pad
        return self._encoder

    def image(self, image: Any, where: str) -> Any:
        """The pixels of one image."""
        if self._image is None:
            self._image = image_encoder(self.folder, self.inputs)
        return self._image(image, where)

    def pair(self, text: str, image: Any, where: str) -> dict[str, Any]:
        """A text with its image."""
        if self._pair is None:
            self._pair = pair_encoder(self.folder, self.inputs, self.encoder.encode, self.encoder.length)
        return self._pair(text, image, where)

    def images(self, path: Path) -> Iterator[dict[str, Any]] | None:
        """Rows of a file or folder of images; None when it is none."""
        saved = any((path / name).is_file() for name in SAVED)
        found = find_images(path) if path.exists() and not saved else []
        if not found:
            return None
        return (
            {"pixel_values": self.image(file, str(file)), **({} if label is None else {"labels": label})}
            for file, label in self._labelled(path, found)
        )

    def _labelled(self, path: Path, found: list[Path]) -> Iterator[tuple[Path, int | None]]:
        """Images with their classes; without any where the checkpoint does not predict classes."""
        if self.inputs.kind() == "classes":
            return labelled_images(path, found, self.inputs)
        return ((file, None) for file in found)

    def texts(self, path: Path) -> Iterator[dict[str, Any]] | None:
        """Rows of a text file or a folder of them, as windows; None when it is none."""
        if path.is_dir() and not any((path / name).is_file() for name in SAVED):
            files = sorted(p for p in path.rglob("*") if p.suffix in TEXTS and p.is_file())
        else:
            files = [path] if path.is_file() and path.suffix not in LINES else []
        return self._windows(files) if files else None

    def _windows(self, files: list[Path]) -> Iterator[dict[str, Any]]:
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

    def row(self, record: Record) -> dict[str, Any]:
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
            row = {"pixel_values": self.image(image, where)}
        else:
            row = self._text(record)
        if label is not None and self.inputs.task == "classes":
            row["labels"] = target_of(label, self.inputs, where)
        return row

    def _text(self, record: Record) -> dict[str, Any]:
        fields, where = record.fields, record.where
        outside = {"label", "labels", "target", *PICTURED} if "text" not in fields else set()
        text = fields.get(
            "text", next((v for k, v in fields.items() if isinstance(v, str) and k not in outside), None)
        )
        if not isinstance(text, str):
            raise IsomergeError(f'{where} has no text: give a field "text", or input_ids')
        if self.inputs.pairs and (image := _image_of(record)) is not None:
            return self.pair(text, image, where)
        pair = fields.get("text_pair")
        row = self._encoded(text, pair if isinstance(pair, str) else None, where)
        if self.inputs.task == "seq2seq":
            target = next(
                (fields[k] for k in ("target", "labels", "label") if isinstance(fields.get(k), str)), None
            )
            if target is None:
                raise IsomergeError(f'{where}: an encoder-decoder needs a field "target", the text to write')
            row["labels"] = self._encoded(target, None, where)["input_ids"]
        if not row["input_ids"]:
            raise IsomergeError(f"{where} has an empty text: leave it out")
        return row

    def _encoded(self, text: str, pair: str | None, where: str) -> dict[str, list[int]]:
        try:
            return self.encoder.encode(text, pair)
        except (UnicodeError, TypeError, ValueError):  # half of a surrogate pair
            raise IsomergeError(f"{where}: this text is no Unicode: write it again in UTF-8") from None

    def _numbers(self, fields: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A record that holds tensors, arrays or lists of numbers already."""
        import torch

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
            found = {name: torch.as_tensor(value) for name, value in row.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise IsomergeError(f"{where}: these are no numbers ({error})") from None
        if "input_ids" in found and (found["input_ids"].ndim != 1 or not len(found["input_ids"])):
            raise IsomergeError(f"{where}: input_ids must be a list of at least one token")
        return found


def _image_of(record: Record) -> Any:
    """The image of a record: one in memory, or the path of a file that it names; None where it has none.

    Raises:
        IsomergeError: the file is missing.
    """
    image = next((record.fields[name] for name in PICTURED if record.fields.get(name) is not None), None)
    if isinstance(image, dict):
        return None
    if not isinstance(image, str) or record.folder is None:
        return None if isinstance(image, str) else image
    path = record.folder / os.path.expanduser(image)
    if not path.is_file():
        raise IsomergeError(f"{record.where}: the image {image} is not there: give its path from {record.folder}")
    return path

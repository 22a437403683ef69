"""Opening data: from what the user typed to examples that a checkpoint can read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.data_sets import dataset_records, parquet_records
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.images import SUFFIXES
from isomerge.observe.data.plug_in_readers import plug_in_examples
from isomerge.observe.data.records import LINES, TABLES, Record, file_records, function_records, is_function
from isomerge.observe.data.refused_data import FORMS, check_given, check_reads
from isomerge.observe.data.rows import TEXTS, Reader, mask_of
from isomerge.observe.data.splits import PARQUET, files_of_split, is_saved, parquet_files, saved_split
from isomerge.observe.data.tensors import finish, read_tensors, stack

PACKED = (".arrow", ".gz", ".zip", ".npy", ".npz", ".pt", ".pth", ".pkl", ".bz2", ".xz", ".xlsx")
"""Files of data that are no text."""


def check_limit(limit: int | None) -> None:
    """Refuse fewer examples than one.

    Raises:
        IsomergeError: naming the option.
    """
    if limit is not None and limit < 1:
        raise IsomergeError(f"--limit {limit}: at least one example is needed")


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
              (id or name; of several labels at once or several values a list of numbers, of one value a number); or
              ``input_ids``, ``labels`` as they are; ``target`` is what an encoder-decoder shall write; ``image`` is
              a picture's path from there, of a classifier, or beside the text of a checkpoint that reads both;
              in place of ``text``, ``messages`` (``conversations``), which go through the tokenizer's chat
              template, or ``prompt`` and ``completion``, joined as TRL does: of these two a language model predicts
              the completion alone;
            - .csv or .tsv with the names of these fields in the first line, ``text`` or ``image`` among them;
            - .parquet, or a folder of such files (``folder:split`` where their names tell splits), with these
              fields as columns;
            - any other file of text, or a folder of .txt: joined and cut into windows of ``length`` tokens, for an
              encoder-decoder the first half of a window to read and the second to write;
            - .safetensors with the model's inputs by name (``pixel_values``, ``input_ids``, ``attention_mask``,
              ``labels``), labels of a language model as Hugging Face has them;
            - a data set that the package ``datasets`` saved to disk (``folder`` or ``folder:split``), or ``name``,
              ``name:split`` or ``name:configuration:split`` for that package;
            - ``module:function``, a Python function without arguments (the current folder is importable) that
              returns dicts: of tensors (an example, or a batch of them), or with ``text`` or ``image`` (Pillow) and
              ``label``;
            - ``name:...``, where an installed package has a reader of that name
              (`isomerge.observe.data.plug_in_readers`).
        folder: the checkpoint. Without an image processor, images are resized to ``image_size``, scaled to 0..1 and
            normalised with mean 0.5 and deviation 0.5. Without a tokenizer, and with 256 tokens, text is read as
            bytes.
        limit: no more than so many examples, the first ones.
        length: tokens per example of text, special tokens included; less where the checkpoint reads less.
        config: its parsed config.json, which tells the task: classes, several labels, values, next tokens, masked
            tokens (15 %, all replaced by the mask token, positions fixed by the text itself) or an
            encoder-decoder's output.
        option: by which ``ref`` was given, as errors name it.

    Raises:
        IsomergeError: nothing is there, it cannot be read, or it does not fit the checkpoint.
    """
    check_given(ref, option)
    check_limit(limit)
    if length < 2:
        raise IsomergeError(f"--length {length}: at least two tokens are needed")
    inputs = Inputs(config)
    if not inputs.images and not inputs.vocabulary:
        raise IsomergeError(
            f"{folder}/config.json has neither vocab_size nor image_size, also in its text_config: no data can "
            f"be made for it"
        )
    check_reads(inputs, folder)
    path = Path(os.path.expanduser(ref))
    try:
        where = str(path) if path.exists() else f"{option} {ref}"
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise IsomergeError(f"{option} {ref[:80]}: cannot be looked up ({error.strerror}); {FORMS}") from None
    if where != str(path) and (examples := plug_in_examples(ref, folder, limit, length, config)) is not None:
        return examples
    suffix = path.suffix.lower() if path.is_file() else ""
    if suffix == ".safetensors":
        mask, special = mask_of(folder, inputs, length)
        return finish(read_tensors(path, limit), inputs, where, mask=mask, special=special)
    if suffix in PACKED:
        way = (
            "is not read: save its arrays as .safetensors, by the names of the inputs (pixel_values, labels)"
            if not inputs.vocabulary
            else "is no text: write it as JSON lines, with the text or the input_ids of an example on each"
        )
        raise IsomergeError(f"{where} {way}")
    reader = Reader(folder, inputs, length)
    rows = reader.images(path) if inputs.images else reader.texts(path)
    if rows is None:
        rows = (reader.row(record) for record in records_of(ref, path, inputs, option))
    first = list(islice(rows, limit))  # the padding is known once the tokenizer is
    return finish(stack(first, reader.pad, where), inputs, where, mask=reader.mask, special=reader.special)


def records_of(ref: str, path: Path, inputs: Inputs, option: str) -> Iterator[Record]:
    """Records of every form but images and plain text."""
    folder, split = saved_split(os.path.expanduser(ref))
    if folder and is_saved(folder):
        return dataset_records(os.path.expanduser(ref), inputs.class_ids, option)
    if folder and (files := parquet_files(Path(folder))):
        chosen = files_of_split(Path(folder), files, split, f"{option} {ref}")
        return parquet_records(chosen, inputs.class_ids)
    if path.is_dir():
        if not any(path.iterdir()):
            raise IsomergeError(f"{path} is an empty folder: put the data there, or give another one")
        if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
            raise IsomergeError(f"{option} {ref} is a model, and examples are wanted: {FORMS}")
        lines = sorted(p for p in path.iterdir() if p.suffix.lower() in (*LINES, *TABLES))
        if not lines:
            kind = "images (.png, .jpg, .parquet)" if inputs.images else "text (.txt, .jsonl, .parquet)"
            raise IsomergeError(f"{path} holds no {kind}, which this checkpoint reads: give another folder")
        return (record for file in lines for record in file_records(file))
    if path.is_file():
        if path.suffix.lower() in (*LINES, *TABLES):
            return file_records(path)
        if path.suffix.lower() == PARQUET:
            return parquet_records([path], inputs.class_ids)
        raise IsomergeError(f"{path} is no image, but this checkpoint reads images: {FORMS}")
    if is_function(ref):
        return function_records(ref, option)
    endings = (*LINES, *TABLES, *PACKED, *TEXTS, *SUFFIXES, PARQUET, ".safetensors", "/")
    if ref.lower().endswith(endings) or ref.startswith((".", "/", "~")):
        raise IsomergeError(f"{option} {ref}: no such file or folder; {FORMS}")
    return dataset_records(ref, inputs.class_ids, option)

"""Data that are Python objects: batches, loaders of batches, functions that give them; and texts in memory,
through a tokenizer that no folder holds."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.own_class import OwnClass
from isomerge.errors import IsomergeError, first_line
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.own_modules import LABELS, called_with, first_output, inputs_of
from isomerge.records import Json


def as_data(data: Any, option: str, module: Any = None) -> str | Path | Examples | None:
    """Names of data and examples as they are; a function is called; batches are put together into examples.

    Args:
        data: what stands for them: None, a name, `Examples`, a function without arguments, a batch, or an iterable
            of batches, such as a DataLoader, which is read once and to its end. A batch is a mapping of tensors by
            the names of ``forward``'s arguments, with ``labels`` where there are some; or a pair of images [n,
            channels, height, width] and labels [n]; for a module of one's own what its forward takes: a tensor, or
            a tuple of them, the last one the labels where there is one more than forward needs.
        option: what errors name.
        module: a module of one's own that is given the data.

    Raises:
        IsomergeError: something else, no batch at all, or batches that do not fit together.
    """
    if data is None or isinstance(data, (str, Path, Examples)):
        return data
    if callable(data) and not isinstance(data, Iterable):
        data = data()
        if isinstance(data, (str, Path, Examples)):
            return data
    if isinstance(data, Mapping):
        data = [data]
    if not isinstance(data, Iterable):
        raise IsomergeError(
            f"{option} is a {type(data).__name__}: give a path, examples, batches, a DataLoader, or a function "
            f"that gives them"
        )
    named = _batch if module is None else partial(_own_batch, module)
    examples = _together([named(batch, number, option) for number, batch in enumerate(data)], option)
    return examples if module is None else Examples(examples.tensors, labelled="labels" in examples.tensors)


def _own_batch(module: Any, given: Any, number: int, option: str) -> dict[str, Tensor]:
    """A batch for a module of one's own, by the names of its forward's arguments."""
    if isinstance(given, Mapping):
        return _batch(given, number, option)
    parts = [given] if isinstance(given, Tensor) else given
    kind = type(module).__name__
    if not isinstance(parts, (tuple, list)) or not all(isinstance(x, Tensor) for x in parts):
        raise IsomergeError(
            f"{option}: batch {number} is a {type(given).__name__}: give tensors, tuples or dicts of them, "
            f"as forward of {kind} takes them; texts alone are a list of them"
        )
    names, needed, _ = inputs_of(module)
    names = names or [f"input{k}" for k in range(len(parts))]
    count = len(parts) - (len(parts) > needed > 0)
    if not needed <= count <= len(names):
        raise IsomergeError(
            f"{option}: batch {number} has {len(parts)} tensors, and forward of {kind} takes {', '.join(names)}: "
            f"give these, and labels behind them where there are some"
        )
    labels = {LABELS: parts[-1]} if count < len(parts) else {}
    return {**dict(zip(names, parts[:count], strict=False)), **labels}


def _batch(given: Any, number: int, option: str) -> dict[str, Tensor]:
    """A batch as tensors by name."""
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(x, Tensor) for x in given):
        given = {"pixel_values": given[0], "labels": given[1]}
    if not isinstance(given, Mapping) or not given:
        raise IsomergeError(
            f"{option}: batch {number} is a {type(given).__name__}: give mappings of tensors by the names of "
            f"forward's arguments, or pairs of images and labels; texts alone are a list of them"
        )
    tensors = {str(name): x for name, x in given.items() if isinstance(x, Tensor)}
    if len(tensors) < len(given):
        other = next(name for name, x in given.items() if not isinstance(x, Tensor))
        raise IsomergeError(f"{option}: {other} of batch {number} is no tensor: leave it out, or make it one")
    return tensors


def _together(batches: list[dict[str, Tensor]], option: str) -> Examples:
    """Batches one behind the other."""
    if not batches:
        raise IsomergeError(f"{option} has no batch: a loader or generator that was read before is empty")
    names = batches[0].keys()
    for number, batch in enumerate(batches):
        for name in names | batch.keys():
            first, other = batches[0].get(name), batch.get(name)
            if first is None or other is None or first.shape[1:] != other.shape[1:]:
                shapes = [None if x is None else list(x.shape[1:]) for x in (first, other)]
                raise IsomergeError(
                    f"{option}: {name} is {shapes[0]} per example in batch 0 and {shapes[1]} in batch {number}: "
                    f"pad or cut them alike"
                )
    tensors = {name: torch.cat([batch[name].detach().cpu() for batch in batches]) for name in names}
    return Examples(tensors, labelled="labels" in tensors or "input_ids" in tensors)


LANGUAGE_MODEL = "OwnForCausalLM"
"""What a module of one's own is read as: every next token is predicted."""


@contextmanager
def texts_file(texts: Sequence[str], option: str, *, joined: bool = False) -> Iterator[Path]:
    """A file of texts, one per line as JSON, or ``joined``, which is read in windows; while it lasts. Errors name
    texts by their numbers, and the option by which they were given."""
    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder:
        file = Path(folder) / ("texts.txt" if joined else "texts.jsonl")
        lines = texts if joined else [json.dumps({"text": text}) for text in texts]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            yield file
        except IsomergeError as error:
            sentence = error.sentence.replace(f"{file}, line ", f"{option}, text ").replace(str(file), option)
            raise IsomergeError(sentence) from error


def examples_of_texts(
    texts: str | Path | Sequence[str],
    tokenizer: Any,
    config: Mapping[str, Any],
    option: str,
    *,
    own: OwnClass | None = None,
    limit: int | None = None,
    length: int = 128,
) -> Examples:
    """Texts, or what `open_data` opens, through a tokenizer.

    Args:
        given: texts, an example each, or a path or name. For a module of one's own whose forward takes no
            ``attention_mask`` texts are joined and cut into windows, as a file of text is: nothing is padded.
        tokenizer: of transformers or tokenizers; a folder or the name of one; for modules of one's own also a
            function from a text to a list of ids.
        config: the model's config.json.
        option: by which ``given`` was given.
        own: the class of a module of one's own.
        limit, length: see `open_data`.

    Raises:
        IsomergeError: no tokenizer, or texts that it, or the model, cannot read.
    """
    # it has a reader for every kind of data, and most runs have none
    from isomerge.observe.data.opening_data import open_data

    masked = own is None or "attention_mask" in signature(own.module.forward).parameters
    if callable(tokenizer) and not hasattr(tokenizer, "save_pretrained"):
        if own is None:
            raise IsomergeError(
                "--tokenizer is a function: models of transformers need a tokenizer of transformers"
            )
        return _language(_windows(texts, tokenizer, option, limit, length), own, option)
    with tempfile.TemporaryDirectory(prefix="isomerge-") as scratch:
        folder = Path(scratch)
        size = _save(tokenizer, folder)
        if own is not None:
            config = {"vocab_size": size, "architectures": [LANGUAGE_MODEL]}
        how: Json = {"limit": limit, "length": length, "config": config, "option": option}
        if isinstance(texts, (str, Path)):
            examples = open_data(str(texts), folder, **how)
        else:
            with texts_file(texts, option, joined=not masked) as file:
                examples = open_data(str(file), folder, **how)
    return examples if own is None else _language(examples, own, option)


def _save(tokenizer: Any, folder: Path) -> int:
    """Write a tokenizer of any kind into a folder; returns the number of its tokens."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if isinstance(tokenizer, (str, Path)):
        try:
            tokenizer = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
        except Exception as error:  # a tokenizer's files fail in as many types as there are tokenizers
            raise IsomergeError(
                f"--tokenizer {tokenizer}: transformers cannot load this tokenizer ({first_line(error)}); "
                f"give a folder with tokenizer.json, a hub id, or a tokenizer"
            ) from error
    elif hasattr(tokenizer, "encode_batch"):  # of the package tokenizers
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if not hasattr(tokenizer, "save_pretrained"):
        raise IsomergeError(
            f"--tokenizer is a {type(tokenizer).__name__}: give a tokenizer of transformers, or its name"
        )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def _windows(
    texts: str | Path | Sequence[str],
    tokenizer: Callable[..., Any],
    option: str,
    limit: int | None,
    length: int,
) -> Examples:
    """Windows of ``length`` ids, which a function gives for texts or a file of text; the rest is left out, unless
    it is all there is."""
    if isinstance(texts, (str, Path)):
        from isomerge.observe.data.rows import TEXTS  # as above

        path = Path(texts).expanduser()
        if path.suffix.lower() not in TEXTS or not path.is_file():
            raise IsomergeError(
                f"{option} {texts}: a function that is a tokenizer reads files of text ({', '.join(TEXTS)})"
            )
        texts = [path.read_text(encoding="utf-8")]
    ids = torch.tensor([int(token) for text in texts for token in tokenizer(text)], dtype=torch.int64)
    if not len(ids):
        raise IsomergeError(f"{option} has no text: --tokenizer gives no token for it")
    size = min(length, len(ids))
    rows = ids[: len(ids) // size * size].view(-1, size)
    return Examples({"input_ids": rows if limit is None else rows[:limit]}, True)


def _language(examples: Examples, own: OwnClass, option: str) -> Examples:
    """Examples of text for a module of one's own: without what its forward does not take, and labelled where it
    predicts a token at every place.

    Raises:
        IsomergeError: texts are padded, and forward takes no mask.
    """
    taken = signature(own.module.forward).parameters
    mask = examples.tensors.get("attention_mask")
    kind = type(own.module).__name__
    if mask is not None and "attention_mask" not in taken and bool((mask == 0).any()):
        raise IsomergeError(
            f"{option}: texts differ in length, and forward of {kind} takes no attention_mask: give a file of text "
            f"(.txt), which is cut into windows, or let forward take one"
        )
    tensors = {name: x for name, x in examples.tensors.items() if name in ("input_ids", "labels") or name in taken}
    with torch.no_grad():
        module = copy.deepcopy(own.module).eval()
        batch = {name: x[:1].to(next(module.parameters()).device) for name, x in tensors.items()}
        try:
            predicted = first_output(module, called_with(module, batch))
        except (IndexError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise IsomergeError(
                f"{option}: {kind} cannot read these texts ({first_line(error)}): check that --tokenizer is "
                f"its own, or give a smaller --length"
            ) from error
    every = predicted.ndim == 3 and predicted.shape[:2] == batch["input_ids"].shape
    return Examples(tensors, labelled=every or "labels" in tensors)

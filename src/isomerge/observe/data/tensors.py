"""Examples as tensors: rows put together, targets, padding, and the checks that they fit the checkpoint; the
class, the several labels or the values of one example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from isomerge.arithmetic import aligned
from isomerge.checkpoint.header import read_header
from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.examples import ALONG, IGNORED, IMAGES, Examples, first_not_finite
from isomerge.observe.data.text import masked


def target_of(label: Any, inputs: Inputs, where: str) -> int | float | list[float]:
    """The label of one example of a classifier or regressor: a class id, a value, or a number per output.

    Raises:
        IsomergeError: no class of the checkpoint, no number, or another count of numbers than it has outputs.
    """
    label = plain(label)
    kind, several = inputs.kind(), isinstance(label, Sequence) and not isinstance(label, str)
    if kind == "classes":
        if not several:
            return inputs.class_id(label, where)
        if inputs.config.get("problem_type") is not None or not any(isinstance(x, float) for x in label):
            raise IsomergeError(
                f"{where}: label {str(label)[:60]!r} is a list, but must be one class id; for several labels at "
                "once write 0.0 and 1.0, or set problem_type to multi_label_classification in config.json"
            )
    numbers = [_number(x, where) for x in (label if several else [label])]
    if len(numbers) != inputs.outputs:
        raise IsomergeError(
            f"{where}: the label has {len(numbers)} numbers, but the checkpoint has {inputs.outputs} outputs: give "
            "a number for each"
        )
    return numbers[0] if inputs.outputs == 1 else numbers


def plain(label: Any) -> Any:
    """A tensor or array as a number or a list; anything else as it is."""
    return label.tolist() if hasattr(label, "tolist") else label


def _number(x: Any, where: str) -> float:
    try:
        number = float(x)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not isfinite(number):
        raise IsomergeError(f"{where}: label {str(x)[:60]!r} is no number, which this checkpoint predicts")
    return number


def check_targets(labels: Tensor, inputs: Inputs, where: str) -> None:
    """Whether labels fit a classifier or regressor, or a head with an answer per token of its own kind.

    Raises:
        IsomergeError: a shape or a number that does not fit.
    """
    kind, shape = inputs.kind(labels), list(labels.shape)
    if inputs.task == "classes":
        one = labels.ndim == 1 and (kind == "classes" or inputs.outputs == 1)
        if not one and (kind == "classes" or shape[1:] != [inputs.outputs]):
            wanted = (
                "one class id each (several labels at once are floating point, or need problem_type "
                "multi_label_classification in config.json)"
                if kind == "classes"
                else f"{inputs.outputs} numbers for each example"
            )
            raise IsomergeError(f"{where}: labels have shape {shape}, but must be {wanted}")
    if kind == "classes":
        for label in set(labels.tolist()) - set(inputs.class_ids.values()):
            inputs.class_id(label, where)
        return
    if (example := first_not_finite(labels)) is not None:
        raise IsomergeError(
            f"{where}: labels of example {example} have NaN or infinite numbers: make the data again"
        )
    if kind == "labels" and not bool((((labels >= 0) & (labels <= 1)) | (labels == IGNORED)).all()):
        raise IsomergeError(
            f"{where}: labels must be from 0 (does not hold) to 1 (holds), or {IGNORED} where it is not known"
        )


ARGUMENTS = frozenset((*IMAGES, *ALONG, "decoder_input_ids", "labels"))
"""What examples may hold: the inputs of the module, and the targets."""


def read_tensors(path: Path, limit: int | None) -> dict[str, Tensor]:
    """The tensors of a safetensors file, the first ``limit`` examples of each.

    Raises:
        IsomergeError: a damaged file, or names that are no inputs.
    """
    infos, _ = read_header(path)
    check_names(infos, str(path))
    tensors = {}
    try:
        with safe_open(path, "pt") as file:
            for name, info in infos.items():
                if not info.shape:
                    raise IsomergeError(
                        f"{path}: tensor {name} is a single number; its first axis must be examples"
                    )
                tensors[name] = aligned(file.get_slice(name)[:limit])
    except (OSError, SafetensorError) as error:
        raise IsomergeError(f"{path} cannot be read ({error}); save it again") from None
    return tensors


def check_names(names: Iterable[str], where: str) -> None:
    """Raise an IsomergeError when ``names`` are not those of inputs, or do not hold any."""
    names = set(names)
    if strange := sorted(names - ARGUMENTS):
        raise IsomergeError(
            f"{where}: {strange[0]!r} is no input of a model; the names are {', '.join(sorted(ARGUMENTS))}"
        )
    if not names & {"pixel_values", "input_ids"}:
        raise IsomergeError(
            f"{where} has neither pixel_values nor input_ids: name the tensors as the model's inputs"
        )


def stack(rows: Sequence[Mapping[str, Any]], pad: int, where: str) -> dict[str, Tensor]:
    """Rows as tensors; sequences of unequal length are padded on the right, with an attention mask.

    Raises:
        IsomergeError: no rows, or rows that do not have the same inputs.
    """
    if not rows:
        raise IsomergeError(f"{where} holds no examples: give at least one")
    if uneven := next((k for k, row in enumerate(rows) if set(row) != set(rows[0])), None):
        first, other = (", ".join(sorted(row)) for row in (rows[0], rows[uneven]))
        raise IsomergeError(
            f"{where}: example 1 has {first} and example {uneven + 1} has {other}: give all the same"
        )
    tensors: dict[str, Tensor] = {}
    fills = {"labels": IGNORED, "attention_mask": 0, "token_type_ids": 0, "mm_token_type_ids": 0}
    for name in rows[0]:
        columns = [torch.as_tensor(row[name]) for row in rows]
        if name == "labels" and any(c.is_floating_point() for c in columns):
            columns = [c.to(torch.float32) for c in columns]
        if columns[0].ndim == 1:
            tensors[name] = torch.nn.utils.rnn.pad_sequence(columns, True, float(fills.get(name, pad)))
        elif len({tuple(c.shape) for c in columns}) == 1:
            tensors[name] = torch.stack(columns)
        else:
            raise IsomergeError(f"{where}: {name} have unequal shapes: bring them to one size")
    lengths = [len(row["input_ids"]) for row in rows] if "input_ids" in rows[0] else []
    if len(set(lengths)) > 1 and "attention_mask" not in tensors:
        places = torch.arange(max(lengths))
        tensors["attention_mask"] = (places < torch.tensor(lengths)[:, None]).to(torch.int64)
    return tensors


def finish(
    tensors: dict[str, Tensor], inputs: Inputs, where: str, *, mask: int | None, special: frozenset[int]
) -> Examples:
    """Examples from tensors: checked against the checkpoint, in one form, with the targets of a language model.

    Args:
        tensors: by the names of inputs; labels of language models are as Hugging Face has them (not shifted).
        mask: the mask token, where the tokenizer has one.
        special: ids that are never masked.

    Raises:
        IsomergeError: tensors that do not fit the checkpoint, naming tensor and sizes.
    """
    tensors = {name: _plain(name, tensor, inputs, where) for name, tensor in tensors.items()}
    counts = {name: t.shape[0] for name, t in tensors.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        raise IsomergeError(f"{where}: tensors must have equal, positive first dimensions, but have {text}")
    check_fit(tensors, inputs, where)
    if bool((tensors.get("attention_mask", torch.ones(1)) == 1).all()):
        tensors.pop("attention_mask", None)
    if not bool(tensors.get("token_type_ids", torch.zeros(1)).any()):
        tensors.pop("token_type_ids", None)
    if inputs.task == "causal":
        tensors = _next_tokens(_spoken(tensors, inputs), where)
    elif inputs.task == "masked" and "labels" not in tensors:
        tensors = _hide(tensors, where, mask, special)
    elif inputs.task == "seq2seq":
        tensors = _decoded(tensors, inputs, where)
    return Examples(tensors, "labels" in tensors or inputs.task == "causal")


def _plain(name: str, tensor: Tensor, inputs: Inputs, where: str) -> Tensor:
    """Pixels, values and labels of which several may hold in float32, everything else in int64."""
    if name == "labels" and inputs.kind(tensor if tensor.ndim > 1 else None) != "classes":
        return tensor.to(torch.float32).contiguous()
    pixels = name == "pixel_values"
    if pixels != tensor.is_floating_point():
        kind = "floating point, scaled as the model wants them" if pixels else "whole numbers"
        raise IsomergeError(f"{where}: {name} are {str(tensor.dtype).removeprefix('torch.')}, but must be {kind}")
    return tensor.to(torch.float32 if pixels else torch.int64).contiguous()


def check_fit(tensors: Mapping[str, Tensor], inputs: Inputs, where: str) -> None:
    """Raise an IsomergeError when shapes or numbers are not what the checkpoint reads."""
    pixels, ids, labels = (tensors.get(n) for n in ("pixel_values", "input_ids", "labels"))
    if inputs.images != (pixels is not None) and not (inputs.pairs and ids is not None):
        wanted = "images (pixel_values)" if inputs.images else "text (input_ids)"
        raise IsomergeError(f"{where}: this checkpoint reads {wanted}, and the data are not")
    if inputs.pairs and pixels is None and inputs.image_token is None and inputs.task == "classes":
        raise IsomergeError(
            f"{where}: this checkpoint reads texts with their images: give JSON lines with text and image (a file)"
        )
    if pixels is not None:
        shape = list(pixels.shape[1:])
        if inputs.image_token is None and shape != list(inputs.image_shape):
            raise IsomergeError(
                f"{where}: images are {shape}, but config.json says {list(inputs.image_shape)} (channels, "
                f"height, width)"
            )
        if (example := first_not_finite(pixels)) is not None:
            raise IsomergeError(
                f"{where}: pixel_values of example {example} have NaN or infinite numbers: make the data again"
            )
    if ids is not None:
        _check_ids(tensors, ids, inputs, where)
    if labels is None:
        return
    if inputs.task == "classes":
        check_targets(labels, inputs, where)
    elif inputs.task != "seq2seq" and ids is not None and labels.shape != ids.shape:
        raise IsomergeError(
            f"{where}: labels are {list(labels.shape)} and input_ids {list(ids.shape)}: a label is needed per "
            f"token ({IGNORED} where there is none)"
        )
    elif inputs.kind() != "classes":
        check_targets(labels, inputs, where)


def _check_ids(tensors: Mapping[str, Tensor], ids: Tensor, inputs: Inputs, where: str) -> None:
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise IsomergeError(f"{where}: input_ids have shape {list(ids.shape)}, but must be [examples, tokens]")
    mask = tensors.get("attention_mask", ids)
    if mask is not ids and not bool(((mask == 0) | (mask == 1)).all()):
        raise IsomergeError(f"{where}: attention_mask must be 1 for a token and 0 for padding, and nothing else")
    for name in ("attention_mask", "token_type_ids", "mm_token_type_ids"):
        if name in tensors and tensors[name].shape != ids.shape:
            raise IsomergeError(f"{where}: {name} and input_ids have unequal shapes: give a number per token")
    spoken = [n for n in ("input_ids", "decoder_input_ids", "labels") if n in tensors]
    for name in spoken if inputs.task not in ("classes", "tokens", "replaced") else spoken[:1]:
        known = tensors[name][tensors[name] != IGNORED] if name == "labels" else tensors[name]
        if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < inputs.vocabulary:
            raise IsomergeError(
                f"{where}: {name} have the id {int(known.max()) if known.min() >= 0 else int(known.min())}, but "
                f"the vocabulary of config.json ends at {inputs.vocabulary - 1}: is this the right tokenizer?"
            )
    if inputs.positions is not None and ids.shape[1] > inputs.positions and inputs.task != "seq2seq":
        raise IsomergeError(
            f"{where}: input_ids have {ids.shape[1]} tokens, but the checkpoint reads {inputs.positions}: cut them"
        )


def _spoken(tensors: dict[str, Tensor], inputs: Inputs) -> dict[str, Tensor]:
    """With labels where tokens stand for images: nobody predicts these."""
    ids, token = tensors["input_ids"], inputs.image_token
    if "labels" in tensors or token is None or not bool((ids == token).any()):
        return tensors
    return {**tensors, "labels": ids.masked_fill(ids == token, IGNORED)}


def _next_tokens(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Labels of a causal model, shifted to their logits; none when they are all the next tokens."""
    if "labels" not in tensors:
        return tensors
    labels, ids = tensors["labels"], tensors["input_ids"]
    seen = tensors.get("attention_mask", torch.ones_like(ids)) == 1
    if bool((torch.where(seen, labels, IGNORED) == torch.where(seen, ids, IGNORED)).all()):
        return {name: t for name, t in tensors.items() if name != "labels"}
    shifted = torch.full_like(labels, IGNORED)
    shifted[:, :-1] = torch.where(seen[:, 1:], labels[:, 1:], IGNORED)
    if len(shifted) > 1 and bool((shifted == IGNORED).all()):  # one alone may be the first of many
        raise IsomergeError(
            f"{where}: no example has anything to predict: give more tokens with --length, if prompts fill the "
            f"examples"
        )
    return {**tensors, "labels": shifted}


def _hide(tensors: dict[str, Tensor], where: str, mask: int | None, special: frozenset[int]) -> dict[str, Tensor]:
    """Masks and labels of a masked language model, row by row."""
    if mask is None:
        raise IsomergeError(
            f"{where}: the checkpoint has no tokenizer with a mask token, so tokens cannot be masked: "
            "give labels as well (-100 where nothing is predicted), or put the tokenizer beside the weights"
        )
    ids = tensors["input_ids"]
    seen = tensors.get("attention_mask", torch.ones_like(ids)).bool()
    new, labels = ids.clone(), torch.full_like(ids, IGNORED)
    for k in range(len(ids)):
        new[k, seen[k]], labels[k, seen[k]] = masked(ids[k, seen[k]], mask, special)
    return {**tensors, "input_ids": new, "labels": labels}


def _decoded(tensors: dict[str, Tensor], inputs: Inputs, where: str) -> dict[str, Tensor]:
    """Labels of an encoder-decoder, and what its decoder reads: the labels, shifted to the right."""
    if "labels" not in tensors and "decoder_input_ids" not in tensors:
        half = tensors["input_ids"].shape[1] // 2
        if half == 0 or "attention_mask" in tensors:
            raise IsomergeError(f"{where}: an encoder-decoder needs labels beside input_ids: give both")
        ids = tensors["input_ids"]
        tensors = {"input_ids": ids[:, :half].contiguous(), "labels": ids[:, half:].contiguous()}
    if "decoder_input_ids" not in tensors:
        start, pad = inputs.token("decoder_start_token_id"), inputs.token("pad_token_id") or 0
        labels = tensors["labels"]
        shifted = torch.full_like(labels, pad if start is None else start)
        shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, pad)
        tensors = {**tensors, "decoder_input_ids": shifted}
    return tensors

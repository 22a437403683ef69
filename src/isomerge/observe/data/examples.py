"""Examples in memory: tensors by the names of a module's inputs, in batches, with a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a position that is not predicted."""


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Examples for one checkpoint.

    ``tensors`` have equal first dimensions, and are named as the arguments of the Hugging Face module's
    ``forward``: ``pixel_values`` float32 [n, channels, height, width]; ``input_ids`` int64 [n, length], with
    ``attention_mask`` int64 (1: a token, 0: padding, on the right) only where something is padded.

    ``labels`` are the targets, and never given to ``forward``: class ids int64 [n], or tokens int64 [n, length]
    *aligned with the logits*: logits at a position predict the label at that position, -100 is not predicted. A
    causal model has no labels when every next token is predicted; when it has, they are shifted already. Of several
    labels at once (0 or 1 each) and of values they are float32 [n, outputs], [n] for a single output, [n, length]
    for one per token.

    Raises:
        IsomergeError: something else than tensors, unequal numbers of examples, or numbers that are NaN or infinite
            (weights would be blamed for what they give), naming tensor and example.
    """

    tensors: Mapping[str, Tensor]
    labelled: bool
    """Whether a loss can be computed: labels are there, or the text itself is what a language model predicts."""

    def __post_init__(self) -> None:
        import torch

        counts: dict[str, int] = {}
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, torch.Tensor) or not tensor.ndim:
                raise IsomergeError(f"{name} of examples is no tensor with one example per row: make it one")
            counts[name] = len(tensor)
            if (example := first_not_finite(tensor)) is not None:
                raise IsomergeError(
                    f"{name} of example {example} have NaN or infinite numbers: make the data again"
                )
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise IsomergeError(f"tensors of examples have unequal numbers of rows ({listed}): give each the same")

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {shape} {dtype}" for name, shape, dtype in self._told())
        return f"<{len(self)} examples, {'labelled' if self.labelled else 'without labels'}: {columns}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(part)}</td>" for part in row) + "</tr>" for row in self._told()
        )
        about = f"{len(self)} examples, {'labelled' if self.labelled else 'without labels'}"
        return f"<table><caption>{about}</caption><tbody>{rows}</tbody></table>"

    def _told(self) -> list[tuple[str, str, str]]:
        """Names, shapes and dtypes."""
        named = self.tensors.items()
        return [(name, str(list(x.shape)), str(x.dtype).removeprefix("torch.")) for name, x in named]

    def __len__(self) -> int:
        return next(iter(self.tensors.values())).shape[0]

    def batches(
        self, size: int, *, shuffle_seed: int | None = None, drop_last: bool = False
    ) -> Iterator[dict[str, Tensor]]:
        """Tensors of ``size`` examples at a time, in order, or in the order that a seed gives.

        Args:
            size: examples per batch; the last batch may be smaller.
            shuffle_seed: equal seeds give equal orders.
            drop_last: leave the smaller last batch out.

        Raises:
            IsomergeError: a size below one.
        """
        import torch

        if size < 1:
            raise IsomergeError(f"a batch of {size} examples is not possible: give a size of at least 1")
        count = len(self)
        order = None
        if shuffle_seed is not None:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(shuffle_seed))
        for start in range(0, count, size):
            stop = min(start + size, count)
            if drop_last and stop - start < size:
                return
            chosen = slice(start, stop) if order is None else order[start:stop]
            yield {name: tensor[chosen] for name, tensor in self.tensors.items()}

    def without_padding(self, size: int) -> Iterator[dict[str, Tensor]]:
        """Inputs (no labels) of up to ``size`` examples of equal lengths at a time, cut to these lengths; short
        ones first.

        Modules lay tokens out in many ways ([n * length, width] before experts, [length, n, width]), and a
        decoder's padding is in no mask: where nothing is padded, none of it can be taken for text. Only rows whose
        mask is not padding on the right keep it, and their whole length.

        Raises:
            IsomergeError: a size below one.
        """
        import torch

        inputs = Examples({name: x for name, x in self.tensors.items() if name != "labels"}, False)
        lengths = self._lengths()
        if not lengths:
            yield from inputs.batches(size)
            return
        keys = torch.stack(list(lengths.values()), 1)
        for key in torch.unique(keys, dim=0):
            alike = (keys == key).all(1)
            cut = dict(zip(lengths, key.tolist(), strict=True))
            group = {name: _cut(name, x[alike], cut) for name, x in inputs.tensors.items()}
            if cut.get("input_ids", -1) > 0:
                group.pop("attention_mask", None)
            yield from Examples(group, False).batches(size)

    def _lengths(self) -> dict[str, Tensor]:
        """Lengths [n] of what is read and of what a decoder writes, where examples differ in them; 0 where a mask
        is no padding on the right."""
        import torch

        lengths = {}
        mask, labels = self.tensors.get("attention_mask"), self.tensors.get("labels")
        if mask is not None:
            read = mask.sum(1)
            right = (mask[:, 1:] <= mask[:, :-1]).all(1) & (mask <= 1).all(1)
            lengths["input_ids"] = torch.where(right, read, 0)
        if "decoder_input_ids" in self.tensors and labels is not None:
            places = torch.arange(1, labels.shape[1] + 1)
            lengths["decoder_input_ids"] = (places * (labels != IGNORED)).amax(1).clamp_min(1)
        return lengths

    def head(self, n: int) -> Examples:
        """The first ``n`` examples (all of them when there are fewer).

        Raises:
            IsomergeError: ``n`` is below one.
        """
        if n < 1:
            raise IsomergeError(f"{n} examples are too few: give at least 1")
        return Examples({name: tensor[:n] for name, tensor in self.tensors.items()}, self.labelled)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Examples, Examples]:
        """Two disjoint parts that together are everything; the first has ``fraction`` of the examples, rounded.

        Which examples is drawn by the seed, so that data in order of class is split evenly; each part keeps the
        order.

        Raises:
            IsomergeError: a part would be empty.
        """
        import torch

        first = round(len(self) * fraction)
        if not 0 < first < len(self):
            raise IsomergeError(
                f"{len(self)} examples cannot be split at {fraction}: one part would be empty; give more data"
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        parts = (order[:first].sort().values, order[first:].sort().values)
        first, rest = ({name: t[part] for name, t in self.tensors.items()} for part in parts)
        return Examples(first, self.labelled), Examples(rest, self.labelled)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of names, dtypes, shapes and numbers: equal data have equal fingerprints on every machine."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name].contiguous()
            digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
            array = tensor.numpy()
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
        return digest.hexdigest()


def first_not_finite(tensor: Tensor) -> int | None:
    """The number, from 1, of the first example with a NaN or infinite number; None where all are finite."""
    if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
        return None
    damaged = ~tensor.reshape(len(tensor), -1).isfinite().all(1)
    return int(damaged.nonzero()[0, 0]) + 1


ALONG = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
"""Inputs with a number per token that is read."""
IMAGES = ("pixel_values", "pixel_attention_mask", "image_sizes", "spatial_shapes")
"""What a processor may give of images, of which one example has a first axis of length one."""


def _cut(name: str, x: Tensor, lengths: Mapping[str, int]) -> Tensor:
    """The first tokens of inputs that have a number per token."""
    length = lengths.get("input_ids" if name in ALONG else name, 0)
    return x[:, :length] if length > 0 and name in (*ALONG, "decoder_input_ids") else x

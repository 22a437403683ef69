"""Checkpoints with a LoRA adapter merged in: ``W + s B A``, computed when a tensor is read.

Products and sums are float32 (float64 for float64 bases), and whoever computes with the result has it so
(`isomerge.checkpoint.reader.Rounded`): an update is often smaller than a half's rounding. What is stored or run as
it is read is rounded once, to the base tensor's dtype: that is what peft's ``merge_and_unload`` gives for the
float32 halves that it loads (its ``safe_merge`` rounds the product before the sum as well).

LoRA: Hu et al. 2021. DoRA: Liu et al. 2024, eq. 5, ``m (W + s B A) / ||W + s B A||`` with a norm for every output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import Any, Literal

import torch
from torch import Tensor

from isomerge.checkpoint.adapter import BASE, Adapter, Update
from isomerge.checkpoint.chat_template import FILE as CHAT_TEMPLATE
from isomerge.checkpoint.chat_template import own_template, template_among
from isomerge.checkpoint.companions import companion_files
from isomerge.checkpoint.dtypes import FLOATS, byte_size, torch_dtype
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.image_lora import open_lora
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint, Derived, Recipe, Rounded
from isomerge.checkpoint.single_file import SUFFIX
from isomerge.checkpoint.weights import of_diffusers
from isomerge.config.config_parts import KeyPath, counts, with_values
from isomerge.config.keys import LABELS as LABEL_KEYS
from isomerge.errors import IsomergeError
from isomerge.models.adapter_names import (
    AdapterNames,
    LiveParameter,
    LiveParameters,
    input_axis,
    known_spec,
    line_of,
    stand_in,
)
from isomerge.models.conversions import Piece
from isomerge.models.lora_layers import for_model
from isomerge.models.tied_tensors import has_language_head, untie
from isomerge.options.unused import tell
from isomerge.records import Json
from isomerge.symmetry.axes import LABELS

Layout = Literal["rows", "columns", "kernel"]
"""How a weight stores its outputs: as rows (Linear), as columns (Conv1D, embeddings), or a convolution's kernel."""
ENDINGS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
"""How the names of transformers' classes end, by peft's tasks."""
_HEAD = re.compile(r"(For[A-Z]\w*|(WithLMHead|LMHead)?Model)$", re.ASCII)


def with_adapter(base: Checkpoint, ref: str | Path, *, allow_pickle: bool = False) -> Checkpoint:
    """The checkpoint ``base`` with the adapter ``ref`` (a folder or hub id) merged in; nothing is read yet.

    A tensor of ``modules_to_save`` or a trained bias replaces the base's, in the base's dtype; a head that the base
    does not have is added. With a head for classes, class and labels in the config are the adapter's, and a head
    over tokens is left out. A head that is tied to the embeddings and that the adapter changes becomes a tensor of
    its own, and ``tie_word_embeddings`` false. Where the adapter changes the embeddings of a tied model, their
    stored tensor changes, so the head does too. Saved embeddings may have another number of rows: ``vocab_size``
    and the tokenizer are then the adapter's. A chat template beside the adapter is the model's.

    Raises:
        IsomergeError: the adapter cannot be opened (see `open_lora`), changes modules that the base does not
            have, or has tensors of shapes that do not fit; nothing of the weights is read for this.
    """
    adapter = open_lora(ref, allow_pickle=allow_pickle)
    if adapter.starts:
        adapter = for_model(adapter, base)
    merged = _Merger(base, adapter).view()
    _tell_of_other_base(base, adapter, next((name for name in merged.recipes if name not in base.recipes), ""))
    return merged


def _tell_of_other_base(base: Checkpoint, adapter: Adapter, name: str) -> None:
    """Tell where an adapter was trained on another model than it is merged into, or may have been: shapes fit all
    the same. Where the model that it names is on this machine, one tensor of both is compared."""
    said = str(adapter.config.get(BASE) or "")
    there = Path(os.path.expanduser(said))
    there = there / base.folder.name if (there / base.folder.name).is_dir() else there
    if not said or os.path.realpath(there) == os.path.realpath(base.folder):
        return
    with suppress(IsomergeError):
        other = open_checkpoint(there) if there.is_dir() else None
        if other is not None and name in other.tensors and name in base.tensors:
            mine, theirs = base.read(name), other.read(name)
            if mine.is_floating_point() and theirs.is_floating_point():  # else one of them is quantised
                coarse = min(mine.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize)
                if mine.shape != theirs.shape or not torch.equal(mine.to(coarse), theirs.to(coarse)):
                    tell(f"{adapter.ref} was trained on {said}, and {base.ref} is another model: {name} differs")
                return
    own = [
        PurePath(x).parts
        for x in (base.ref.partition("+")[0], base.folder, str(base.config.get("_name_or_path") or ""))
    ]
    if _plain(PurePath(said).name) not in {_plain(part) for parts in own for part in parts}:
        tell(f"{adapter.ref} names {said} as what it was trained on; whether {base.ref} is that was not looked at")


def _plain(name: str) -> str:
    """A model's name without what stands behind it."""
    return name.partition("@")[0].partition(SUFFIX)[0].lower()


class _Merger:
    """Finds for every tensor of an adapter the tensor of the base that it changes."""

    def __init__(self, base: Checkpoint, adapter: Adapter) -> None:
        self.base, self.adapter = base, adapter
        self.spec = known_spec(base.config)
        self.names = AdapterNames(base, adapter, self.spec)
        self.config: Json = dict(base.config)
        self.derived: dict[str, Derived] = {}
        self.copies: dict[str, str] = {}
        self.grown = False
        """Whether there are more tokens than the base has."""
        self.classes = 0
        """Of a head for classes that is the adapter's."""

    def view(self) -> Checkpoint:
        # what is tied comes after what it is tied to
        for name, key in sorted(self.adapter.saved.items(), key=lambda item: self.names.find(item[0]) is None):
            self.replace(name, key)
        for update in self.adapter.updates.values():
            self.update(update)
        for module, (key, numbers) in self.adapter.tokens.items():
            self.replace_rows(module, key, numbers)
        folder = self.adapter.tensors.folder
        beside = companion_files(folder) if folder.is_dir() else {}
        companions, template = None, template_among(beside)
        if self.grown:
            companions = {**self.base.companions(), **beside}
        elif template is not None and template != own_template(self.base):  # what it was tuned with
            companions = {**self.base.companions(), CHAT_TEMPLATE: template.encode()}
        base, gone = self.copied(), list[str]()
        if self.classes:
            self.config = with_classes(self.config, self.adapter.config, self.classes)
            if not has_language_head(self.config):
                gone = [n for n in base.tensors if (line := line_of(self.spec, n)) is not None and line.tied]
        return base.derive(
            self.derived,
            drop=[name for name in gone if name not in self.derived],
            sources=(self.adapter.tensors,),
            origin=f"lora {self.adapter.tensors.folder.resolve()}",
            ref=f"{self.base.ref}+{self.adapter.ref}",
            config=self.config,
            companions=companions,
        )

    def replace(self, name: str, key: str) -> None:
        """A whole tensor of the adapter takes the place of the base's, or is new."""
        replacement = self.adapter.tensors.tensors[key]
        target, line = self.names.find(name), line_of(self.spec, name)
        classes = line is not None and LABELS in line.names
        if target is None:
            twin = stand_in(self.base, self.spec, name)
            if twin in self.derived and self.adapter.config.get("ensure_weight_tying"):
                return  # the same as its table
            if twin is None and not self.adapter.wraps(name):
                raise self.names.missing(name, key)
            self.untie(name)
            target, stored = name, replacement if twin is None else self.base.tensors[twin]
        else:
            stored = self.base.tensors[target]
        if classes:
            self.classes = replacement.shape[0]
        elif replacement.shape != stored.shape and not self.resized(replacement, stored):
            raise self.misfit(key, replacement, target, stored)
        info = self.described(replacement.shape, stored, name=target)
        self.put(target, info, lambda: self.adapter.tensors.read(key).to(_working(info)))

    def resized(self, replacement: TensorInfo, stored: TensorInfo) -> bool:
        """Whether a table of all tokens got another number of rows; the config follows."""
        if not replacement.shape or not stored.shape or replacement.shape[1:] != stored.shape[1:]:
            return False
        said = self.counts(stored.shape[0])
        self.config = with_values(self.config, dict.fromkeys(said, replacement.shape[0]))
        self.grown |= bool(said)
        return bool(said)

    def counts(self, rows: int) -> list[KeyPath]:
        """Where the config says that there are so many tokens."""
        if self.spec is None:
            return [("vocab_size",)] if self.base.config.get("vocab_size") == rows else []

        def bound(config: Mapping[str, Any]) -> int | None:
            spec = known_spec(config)
            return None if spec is None else spec.sizes.get("vocab")

        return counts(self.base.config, rows, bound) if self.spec.sizes.get("vocab") == rows else []

    def update(self, update: Update) -> None:
        """The product of two halves is added to a weight; a bias of the second half to the bias."""
        name = f"{update.module}.weight"
        own = update.parameters in ((), (name,)) and update.stack == 1
        if not own or (changed := self.changed(name)) is None:
            self.update_live(update)
            return
        target, before = changed
        layout = self.layout(update, target, before.info)
        info = self.described(before.info.shape, before.info, name=target)
        self.put(target, info, lambda: _merged(before.exact(), update, layout, _working(info), self.adapter))
        if "bias" in update.parts:
            self.update_bias(update, target)

    def changed(self, name: str) -> tuple[str, Derived] | None:
        """The tensor that the adapter calls ``name``, by its name in the result, as it is so far; a head that was
        tied becomes one. None where the base has none."""
        target = self.names.find(name) or (name if name in self.derived else None)
        source = target or stand_in(self.base, self.spec, name)
        if source is None:
            return None
        if target is None:
            self.untie(name)
            target = name
        return target, self.so_far(target, source)

    def so_far(self, target: str, source: str) -> Derived:
        """A tensor of the result, as far as it is known: of floating point."""
        before = self.derived.get(target)
        if before is None:
            before = self.base.as_it_is(source)
        if before.info.dtype not in FLOATS.values():
            raise IsomergeError(
                f"{before.info.file}: tensor {target!r} is {before.info.dtype} (quantised), so {self.adapter.ref} "
                "cannot be merged into it; give the base model in floating point"
            )
        return before

    def replace_rows(self, module: str, key: str, numbers: list[int]) -> None:
        """Rows of the adapter take the places of those of some tokens (``trainable_token_indices``)."""
        name, rows = f"{module}.weight", self.adapter.tensors.tensors[key]
        changed = self.changed(name)
        if changed is None:
            raise self.names.missing(name, key)
        target, before = changed
        if rows.shape[1:] != before.info.shape[1:]:
            raise self.misfit(key, rows, target, before.info)
        if max(numbers, default=0) >= before.info.shape[0]:
            raise IsomergeError(
                f"{rows.file}: tensor {key!r} has a row for token {max(numbers)}, but tensor {target!r} of "
                f"{self.base.ref} has {before.info.shape[0]} rows (axis 0): give the base with as many rows as the "
                "adapter was trained on"
            )
        info = self.described(before.info.shape, before.info, name=target)

        def replaced() -> Tensor:
            table = before.exact().to(_working(info))
            table[torch.tensor(numbers)] = self.adapter.tensors.read(key).to(table.dtype)
            return table

        self.put(target, info, replaced)

    def update_live(self, update: Update) -> None:
        """The update of a parameter of the class that transformers builds, which files may store otherwise: in one
        tensor for every expert, or under another name."""
        parameter = self.live.parameter(update, self.names, self.adapter)
        if parameter is None:
            raise self.names.missing((update.parameters or (f"{update.module}.weight",))[0], update.parts["A"])
        for target, piece in parameter.stored:
            before = self.so_far(target, target)
            info = self.described(before.info.shape, before.info)
            self.put(target, info, partial(self.live_moved, before, parameter, piece, _working(info)))

    def live_moved(
        self, before: Derived, parameter: LiveParameter, piece: Piece | None, work: torch.dtype
    ) -> Tensor:
        """A stored tensor with its part of a parameter's update."""
        a, b = (self.adapter.tensors.read(parameter.update.parts[part]).to(work) for part in "AB")
        return parameter.add(before.exact().to(work), a, b, piece)

    @cached_property
    def live(self) -> LiveParameters:
        """The parameters of the base's class."""
        return LiveParameters.of(self.base)

    def update_bias(self, update: Update, weight: str) -> None:
        target, key = weight.removesuffix("weight") + "bias", update.parts["bias"]
        if target not in self.base.tensors:
            raise self.names.missing(f"{update.module}.bias", key)
        before = self.so_far(target, target)
        bias, stored = self.adapter.tensors.tensors[key], self.base.tensors[target]
        if bias.shape != stored.shape:
            raise self.misfit(key, bias, target, stored)
        info = self.described(stored.shape, stored)

        def moved() -> Tensor:
            work = _working(info)
            return before.exact().to(work) + update.scaling * self.adapter.tensors.read(key).to(work)

        self.put(target, info, moved)

    def layout(self, update: Update, target: str, stored: TensorInfo) -> Layout:
        """How the base stores the weight, from the shapes; for square ones from the spec, else the adapter's
        config.

        The file's ``fan_in_fan_out`` is that of the module which peft saw last, so it is asked last.
        """
        infos = self.adapter.tensors.tensors
        key, other = update.parts["A"], update.parts["B"]
        a, b = infos[key].shape, infos[other].shape
        out, into = b[0], a[1]
        shapes: dict[Layout, tuple[int, ...]] = {
            "rows": (out, into),
            "columns": (into, out),
            "kernel": (out, *a[1:]),
        }
        if len(a) == len(b) == 2:
            kinds: tuple[Layout, ...] = ("columns",) if update.embedding else ("rows", "columns")
        else:
            kinds = ("kernel",) if set(b[2:]) <= {1} else ()
        # a kernel of one pixel is a matrix, and some adapters have the one where the base has the other
        fits: list[Layout] = [kind for kind in kinds if _matrix(stored.shape) == _matrix(shapes[kind])]
        if not fits:
            raise IsomergeError(
                f"{self.adapter.file}: tensors {key!r} {list(a)} and {other!r} {list(b)} do not fit tensor "
                f"{target!r} "
                f"of {self.base.ref}, whose shape is {list(stored.shape)}; check that the adapter is for this model"
            )
        if "magnitude" in update.parts:
            size = infos[update.parts["magnitude"]]
            if byte_size("U8", size.shape) != out:
                raise self.misfit(update.parts["magnitude"], size, target, stored)
        if len(fits) == 1 or of_diffusers(self.base.config):  # which stores no layer as columns
            return fits[0]
        known = input_axis(line_of(self.spec, target))
        if known is not None:
            return "rows" if known == 1 else "columns"
        return "columns" if self.adapter.config.get("fan_in_fan_out") else "rows"

    def untie(self, name: str) -> None:
        """A new tensor that the config would ignore makes it say so."""
        line = line_of(self.spec, name)
        if self.spec is None or line is None or stand_in(self.base, self.spec, name) is None:
            return
        try:
            untied = untie(self.spec, self.names.canonical, self.base.config, [line])
        except IsomergeError as error:
            raise IsomergeError(f"{self.adapter.file} changes {name!r} of {self.base.ref}: {error}") from None
        self.copies |= {new: stored for new, stored in untied.copies.items() if untied.lines[new] != line}
        self.config |= untied.config

    def copied(self) -> Checkpoint:
        """The base, with what else is no longer tied; where the adapter changes what that was tied to, as it is
        then."""
        plain = {}
        for name, stored in self.copies.items():
            if stored in self.derived:
                self.derived.setdefault(name, self.derived[stored])
            else:
                plain[name] = stored
        return self.base.with_copies(plain)

    def put(self, target: str, info: TensorInfo, exact: Recipe) -> None:
        """A tensor of the result, computed in the working dtype."""
        self.derived[target] = Derived(info, Rounded(exact, partial(_cast, info, self.adapter)))

    def described(self, shape: tuple[int, ...], stored: TensorInfo, name: str | None = None) -> TensorInfo:
        """A tensor of the base as it will be: its dtype, and the adapter's file."""
        return replace(stored, name=name or stored.name, shape=shape, file=self.adapter.file)

    def misfit(self, key: str, replacement: TensorInfo, target: str, stored: TensorInfo) -> IsomergeError:
        return IsomergeError(
            f"{replacement.file}: tensor {key!r} has shape {list(replacement.shape)}, but tensor {target!r} of "
            f"{self.base.ref} has {list(stored.shape)}; check that the adapter is for this model"
        )


def _merged(weight: Tensor, update: Update, layout: Layout, work: torch.dtype, adapter: Adapter) -> Tensor:
    """``W + s B A``, and with a magnitude the DoRA form of it, in the working dtype; ``weight`` in any."""
    a, b = (adapter.tensors.read(update.parts[part]).to(work) for part in "AB")
    moved = weight.to(work)  # memory of its own or the caller's own: either may be written to
    flat = moved.mT if layout == "columns" else moved.flatten(1)
    flat.addmm_(b.flatten(1), a.flatten(1), alpha=update.scaling)
    if "magnitude" in update.parts:
        magnitude = adapter.tensors.read(update.parts["magnitude"]).to(work).reshape(-1, 1)
        flat.mul_(magnitude / torch.linalg.vector_norm(flat, dim=1, keepdim=True))
    return moved


def _matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without sides of one pixel."""
    return shape[:2] if set(shape[2:]) <= {1} else shape


def _working(info: TensorInfo) -> torch.dtype:
    return torch.float64 if info.dtype == "F64" else torch.float32


def _cast(info: TensorInfo, adapter: Adapter, tensor: Tensor) -> Tensor:
    converted = tensor.to(torch_dtype(info.dtype))
    if converted.is_floating_point() and not bool(converted.isfinite().all()):
        raise IsomergeError(
            f"{adapter.file}: merged with this adapter, tensor {info.name} has values that {info.dtype} cannot "
            "hold; check the adapter, or give the base in float32"
        )
    return converted


def with_classes(config: Mapping[str, Any], adapter: Mapping[str, Any], classes: int) -> Json:
    """A config with the class and the labels of a head that an adapter brings.

    Args:
        config: of the base.
        adapter: the parsed adapter_config.json: peft notes a task, or the class that it was trained on.
        classes: rows of the head. Where the base names another number of classes, nobody has named these.
    """
    named = (adapter.get("auto_mapping") or {}).get("base_model_class")
    own = str((config.get("architectures") or [""])[0])
    if (ending := ENDINGS.get(str(adapter.get("task_type")))) is not None and own:
        named = _HEAD.sub("", own) + ending
    changed = {**config, **({"architectures": [named]} if isinstance(named, str) else {})}
    if len(config.get("id2label") or {}) != classes:
        names = [f"LABEL_{row}" for row in range(classes)]
        by_id = {str(row): name for row, name in enumerate(names)}
        changed |= dict(zip(LABEL_KEYS, (by_id, {name: row for row, name in enumerate(names)}), strict=True))
    return {**changed, **({"num_labels": classes} if "num_labels" in config else {})}

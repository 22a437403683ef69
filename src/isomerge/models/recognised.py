"""Recognised models: a checkpoint with its spec, every tensor matched to a line before a weight is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from isomerge.archs import infer_model_types, spec_as_stored, spec_for, without_spec
from isomerge.checkpoint.dtypes import BITS
from isomerge.checkpoint.reader import Checkpoint
from isomerge.config.agreement import as_transformers_reads
from isomerge.errors import IsomergeError
from isomerge.models.peak_memory import map_large_blocks
from isomerge.models.quantised import dequantised
from isomerge.models.references import open_model_ref
from isomerge.models.tied_tensors import broken_ties, is_tied, without_broken_ties
from isomerge.models.tied_tensors import untie as untied
from isomerge.models.transformers_reading import check_read
from isomerge.pieces import all_finite
from isomerge.records import Json
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.bases import Basis
from isomerge.symmetry.blocks import Block, Blocks, gather_blocks
from isomerge.symmetry.carried import Carried
from isomerge.symmetry.completeness import check_complete
from isomerge.symmetry.language.spec import Match, Spec, by_canonical, coverage
from isomerge.symmetry.units import elements_of


class View(Protocol):
    """What makes of a model's blocks those of the same function in other weights: how it is seen moved."""

    def applied(self, block: Block, before: Callable[[Block], Tensor]) -> Tensor:
        """One block as it is seen, from itself and from others as they are ``before``."""
        ...


@dataclass(frozen=True)
class Moved:
    """A model seen moved by an alignment, block by block."""

    alignment: Alignment
    parts: tuple[Carried | Basis, ...] = ()
    """What its elements move of several layers at once; beside these it has spaces alone."""

    def changes(self, block: Block) -> bool:
        """Whether a block is moved."""
        acting = (key in stage for stage in self.alignment.stages for key in elements_of(stage.spec, block))
        return any(block in part.blocks for part in self.parts) or any(acting)

    def applied(self, block: Block, before: Callable[[Block], Tensor]) -> Tensor:
        """See `View`; spaces act in place, and integers stay as they are."""
        tensor = before(block)
        if tensor.is_floating_point():
            self.alignment.act_linearly(block, tensor)
        for part in self.parts:
            if block in part.blocks:
                tensor = part.seen(block, self.alignment[part.key].to(tensor.device), tensor, before)
        return tensor


@dataclass(eq=False)
class Model:
    """A checkpoint whose every tensor is understood, and what it is seen through."""

    checkpoint: Checkpoint
    spec: Spec
    matches: dict[str, Match]
    declared: Spec
    """The spec before ties have taken spaces from it."""
    spec_file: str | Path | None = None
    """The spec text of the user's own that it was recognised by: what is made of the model needs it again."""
    unties: bool = False
    """Whether its head was untied when it was opened."""
    views: tuple[View, ...] = ()
    """What it is seen through, one after the other: gains of zero opened (`isomerge.models.zero_gains`), moved, in
    the form of norms (`isomerge.models.layer_norm_form`)."""

    @cached_property
    def names(self) -> dict[str, str]:
        """From canonical tensor names to the checkpoint's own."""
        return by_canonical(self.matches)

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks, in the order of the checkpoint."""
        return gather_blocks(self.spec, self.matches)

    @cached_property
    def has_own_head(self) -> bool:
        """Whether it stores a head that is not the embeddings, or one was untied in memory."""
        return any(m.line.tied for m in self.matches.values()) and not is_tied(self.config, stored=True)

    @property
    def moves(self) -> list[Moved]:
        """By what it is seen moved."""
        return [view for view in self.views if isinstance(view, Moved)]

    def seen(self, view: View) -> Model:
        """The same seen through one more, behind all that it is seen through."""
        return self.through((*self.views, view))

    def without(self, kind: type[View]) -> Model:
        """The same seen through nothing of a kind."""
        return self.through([view for view in self.views if not isinstance(view, kind)])

    def through(self, views: Sequence[View]) -> Model:
        """The same seen through these alone."""
        other = copy(self)  # with its names and blocks, where they are listed already
        other.views = tuple(views)
        return other

    @property
    def ref(self) -> str:
        """What the user called it."""
        return self.checkpoint.ref

    @property
    def config(self) -> Json:
        """The parsed config.json."""
        return self.checkpoint.config

    def source_of(self, canonical: str, match: Match | None = None) -> str | None:
        """The stored tensor behind a canonical name: its own, or the one that it is tied to; None if absent."""
        if canonical in self.names:
            return self.names[canonical]
        if match is not None and match.line.tied and is_tied(self.config, stored=False):
            return self.names.get(match.line.tied)
        return None

    def read(self, name: str, dtype: torch.dtype | None, *, mapped: bool = False) -> Tensor:
        """One stored tensor; floating point is converted to ``dtype`` from that which it is computed in (None: in
        its stored dtype) and must be finite. With ``mapped``, or without a dtype, in pages of its file where that
        can be (see `Checkpoint.read`).

        Raises:
            IsomergeError: NaN or infinite values (but for infinities that the spec says are meant), naming file and
                tensor.
        """
        tensor = self.checkpoint.read(name, mapped=mapped or dtype is None, exact=dtype is not None)
        if not tensor.is_floating_point():
            return tensor
        if not all_finite(tensor) and not meant(self.spec, name, tensor):
            raise self.damaged(name)
        return tensor.to(dtype or tensor.dtype)

    def damaged(self, name: str) -> IsomergeError:
        """What is said of a stored tensor that is not finite."""
        file = self.checkpoint.tensors[name].file
        return IsomergeError(f"{file}: tensor {name} has NaN or infinite values: this checkpoint is damaged")

    def expect(self, block: Block) -> None:
        """Has the system begin to read a block that will be assembled soon."""
        for name in self.stored_names(block):
            self.checkpoint.expect(name)

    def check_unchanged(self, block: Block) -> None:
        """Raises IsomergeError when a file that the block was mapped from has changed."""
        for name in self.stored_names(block):
            self.checkpoint.check_unchanged(name)

    def stored_names(self, block: Block) -> list[str]:
        """The stored tensors behind a block, those that are there."""
        names = (self.source_of(canonical, Match(block.line, {})) for canonical in block.canonical)
        return [name for name in names if name is not None]

    def assemble(self, block: Block, dtype: torch.dtype | None, *, mapped: bool = False) -> Tensor:
        """A block as one contiguous tensor in the working dtype, as it is seen; see `read`.

        Infinities that are meant are zero in it, for nothing can be computed with them: they are equal in all
        models of a run (`check_compatible`), and are there again in what is written (`with_infinities`).
        """
        return self._seen(len(self.views), block, dtype=dtype, mapped=mapped)

    def unrounded(self, block: Block) -> Tensor:
        """A block as it is stored, in pages of its files where that can be; in the working dtype where it is
        computed more finely than that."""
        finer = any(map(self.checkpoint.is_finer, self.stored_names(block)))
        return self.assemble(block, working_dtype([self]) if finer else None, mapped=True)

    def unit(self, blocks: Iterable[Block], dtype: torch.dtype | None, *, mapped: bool = False) -> Blocks:
        """The blocks of a unit, or others that are worked on at once; see `assemble`."""
        return {block: self.assemble(block, dtype, mapped=mapped) for block in blocks}

    def _seen(self, depth: int, block: Block, *, dtype: torch.dtype | None, mapped: bool) -> Tensor:
        """A block through the first views alone."""
        if depth:
            before = cache(partial(self._seen, depth - 1, dtype=dtype, mapped=mapped))  # each is read once
            return self.views[depth - 1].applied(block, before)

        def read(canonical: str) -> Tensor:
            name = self.source_of(canonical, Match(block.line, {}))
            if name is None:
                raise IsomergeError(f"{self.ref}: tensor {canonical} is missing")
            return self.read(name, dtype, mapped=mapped)

        whole = block.assemble(read).contiguous()
        return whole.masked_fill(whole.isinf(), 0) if block.line.infinite else whole


def meant(spec: Spec, name: str, tensor: Tensor) -> bool:
    """Whether what is not finite in a stored tensor is an infinity that its line declares."""
    return spec.match(name).line.infinite and not bool(tensor.isnan().any())


def with_infinities(model: Model, name: str, tensor: Tensor) -> Tensor:
    """A tensor with the infinities that the model has stored under this name."""
    stored = model.read(name, None)
    return tensor.where(~stored.isinf(), stored.to(tensor.dtype))


def recognise(
    model: str | Path | Checkpoint,
    *,
    spec_file: str | Path | None = None,
    allow_pickle: bool = False,
    untie: bool = False,
    unmoved: bool = False,
    as_files: bool = False,
) -> Model:
    """Open a checkpoint and match all of its tensors, names and shapes, to its spec; no weights are read.

    With ``untie``, a head whose tie to the embeddings stands in the way of a symmetry becomes a tensor of its own
    (equal until it is moved), and the config says so. With ``unmoved``, where nothing will be moved, an
    architecture without a spec is taken as it is stored (`spec_as_stored`). With ``as_files``, tensors are those
    that `save_pretrained` writes by default, also where the spec knows those of the class as well.

    Raises:
        IsomergeError: an unreadable checkpoint, one without tensors, an unknown architecture, a tensor that no line
            describes, one that is missing, or one that config.json makes transformers leave out (see
            `isomerge.models.transformers_reading`).
    """
    map_large_blocks()  # every run that reads weights begins here
    checkpoint = (
        dequantised(model) if isinstance(model, Checkpoint) else open_model_ref(model, allow_pickle=allow_pickle)
    )
    if as_files:
        from isomerge.models.fused_on_disk import read_as_files

        checkpoint = read_as_files(checkpoint) or checkpoint
    shapes = checkpoint.shapes
    if not shapes:
        raise IsomergeError(f"{checkpoint.ref}: there is no tensor in it: name a checkpoint with weights")
    named = checkpoint.config.get("model_type") or checkpoint.config.get("_class_name")
    if not named and spec_file is None:
        kinds = infer_model_types(checkpoint.config, shapes)
        # BERT and RoBERTa bodies look alike without a prefix and have the same symmetries: the first will do
        if (
            kinds and "architecture" not in checkpoint.config
        ):  # timm's key: its loaders want no model_type beside it
            checkpoint = replace(checkpoint, config={**checkpoint.config, "model_type": kinds[0]})
    checkpoint, spec, matches = _bound(checkpoint, spec_file, unmoved=unmoved)
    shapes = checkpoint.shapes
    _check_numbers(checkpoint, spec, matches)
    if named and not unmoved:
        check_read(checkpoint.ref, checkpoint.config, shapes, spec, matches)
    names = by_canonical(matches)
    if ties := broken_ties(spec, names, checkpoint.config) if untie else {}:
        try:
            head = untied(spec, names, checkpoint.config, list(ties))
        except IsomergeError as error:
            raise IsomergeError(f"{checkpoint.ref}: {error}") from None
        checkpoint = checkpoint.with_copies(head.copies, **head.config)
        matches |= {name: Match(line, {}) for name, line in head.lines.items()}
    kept = without_broken_ties(spec, by_canonical(matches), checkpoint.config)
    return Model(checkpoint, kept, matches, spec, spec_file, unties=bool(untie and ties))


def _check_numbers(checkpoint: Checkpoint, spec: Spec, matches: Mapping[str, Match]) -> None:
    """Refuse weights that symmetries move and that are no floating-point numbers: nothing could be computed with
    them.

    Raises:
        IsomergeError: naming the tensor and its dtype.
    """
    moved = {*spec.spaces, *spec.residual_names}
    for name, match in matches.items():
        code = checkpoint.tensors[name].dtype
        if not code.startswith(("F", "BF")) and moved & match.line.names:
            raise IsomergeError(
                f"{checkpoint.ref}: tensor {name} is stored as {code}, and weights are floating-point numbers: "
                "name the checkpoint that it was made from, or store it as float16, bfloat16 or float32"
            )


def _bound(
    checkpoint: Checkpoint, spec_file: str | Path | None, *, unmoved: bool
) -> tuple[Checkpoint, Spec, dict[str, Match]]:
    """A checkpoint with its spec and its tensors' lines; where the config as it stands does not fit, by what
    transformers reads in it, and where tensors do not, by what transformers makes of them on saving.

    Parts of composites were saved without what is a default of their classes, which a spec knows of the most common
    alone.
    """

    def bound(checkpoint: Checkpoint, config: Mapping[str, Any]) -> tuple[Checkpoint, Spec, dict[str, Match]]:
        spec = spec_for(config, spec_file, checkpoint.shapes)
        matches = coverage(spec, checkpoint.shapes)
        check_complete(spec, matches)
        return checkpoint, spec, matches

    try:
        return bound(checkpoint, checkpoint.config)
    except IsomergeError as error:
        full = as_transformers_reads(checkpoint.config)
        if full is not None:
            with suppress(IsomergeError):
                return bound(checkpoint, full)
        unknown = spec_file is None and without_spec(checkpoint.config)
        from isomerge.models.fused_on_disk import read_as_files  # builds a class of transformers

        view = read_as_files(checkpoint)
        for config in (checkpoint.config, full):
            if view is not None and config is not None:
                with suppress(IsomergeError):
                    return bound(view, config)
        if unknown and unmoved:
            spec = spec_as_stored(checkpoint.config, checkpoint.shapes)
            return checkpoint, spec, coverage(spec, checkpoint.shapes)
        hint = "; merge --no-align needs none" if unknown else ""
        raise IsomergeError(f"{checkpoint.ref}: {error}{hint}") from None


def working_dtype(models: Sequence[Model], written: str | None = None) -> torch.dtype:
    """float64 when a model is stored in it, or the output is ``written`` in it, else float32: never half."""
    double = written == "float64" or any(
        info.dtype == "F64" for m in models for info in m.checkpoint.tensors.values()
    )
    return torch.float64 if double else torch.float32


def coarsest_dtype(model: Model) -> str:
    """The stored float dtype with the largest rounding, as safetensors names it; F32 where nothing is float."""
    codes = {info.dtype for info in model.checkpoint.tensors.values()}
    floats = [code for code in codes if code.startswith(("F", "BF"))]
    return min(floats, key=lambda code: (BITS[code], code), default="F32")

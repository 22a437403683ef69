"""Statistics for merging: of every model, from its file, moved with its alignment, one tensor at a time.

A merge method asks for ``fishers``, ``grams`` or ``factors`` (`isomerge.fusion.registry`); `FusionStatistics` gives
them for one block of all models. Nothing is held but the file's header and the last Gram, which several layers
share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.fisher import KroneckerFactors
from isomerge.fusion.regmean import InputGram
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.stats.gathering import StatsOptions, parse_kinds, run_stats
from isomerge.observe.stats.statistics import (
    StatisticsFile,
    check_closed,
    moved_factor,
    moved_fisher,
    moved_moments,
)
from isomerge.observe.stats.taps import gradient_tap
from isomerge.progress import Observer, quiet
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block

Alignments = Sequence[Alignment | None]
"""Of every model, in order: what moves it to where it is merged; None for a model that stays as it is."""


@dataclass
class _Last:
    """The Gram of a model that was moved last: query, key and value read the same."""

    tap: str
    alignment: Alignment | None
    gram: Tensor


class FusionStatistics:
    """The statistics of several models, in order; see `open` and `gathered`.

    Args:
        files: one per model.
        normalize: divide the diagonal Fisher of every model by its norm over all parameters, as Matena & Raffel's
            code does: a model that was trained on a harder loss would outweigh the others.
    """

    def __init__(self, files: Sequence[StatisticsFile], *, normalize: bool = True) -> None:
        self.files = tuple(files)
        self.normalize = normalize
        self._last: dict[int, _Last] = {}

    @classmethod
    def open(
        cls, paths: Sequence[str | Path], models: Sequence[Model], kinds: Collection[str], *, normalize: bool = True
    ) -> FusionStatistics:
        """Files of models, checked before anything is merged: each is of its model and has what is asked for.

        Args:
            paths: one per model.
            models: in the same order.
            kinds: of ``regmean``, ``fisher`` and ``kfac``, those that will be read.

        Raises:
            IsomergeError: naming the file, and what it lacks.
        """
        if len(paths) != len(models):
            raise IsomergeError(
                f"{len(paths)} statistics files for {len(models)} models: give one per model, in order"
            )
        files = [StatisticsFile(path, model) for path, model in zip(paths, models, strict=True)]
        for file in files:
            needed = {*kinds, *(("regmean",) if "kfac" in kinds else ())}
            if lacking := sorted(needed - file.kinds):
                raise IsomergeError(
                    f"{file.path}: there is no {' and no '.join(lacking)} in this file: make it again with "
                    f"isomerge stats --kinds {','.join(sorted(file.kinds | set(kinds)))}"
                )
        return cls(files, normalize=normalize)

    @classmethod
    def gathered(
        cls,
        models: Sequence[Model],
        data: Sequence[Examples],
        kinds: Collection[str],
        folder: Path,
        *,
        device: str = "cpu",
        normalize: bool = True,
        observer: Observer = quiet,
    ) -> FusionStatistics:
        """Statistics gathered now: of models that are aligned already (checkpoints on disk), so that nothing moves.

        Args:
            models: one loaded at a time.
            data: one per model, or one for all.
            kinds: see `open`.
            folder: an existing one, for the files.

        Raises:
            IsomergeError: data that do not fit a model.
        """
        if len(data) not in (1, len(models)):
            raise IsomergeError(
                f"{len(data)} sets of examples for {len(models)} models: give one, or one per model"
            )
        paths = [folder / f"{number}.safetensors" for number in range(len(models))]
        for number, (path, model) in enumerate(zip(paths, models, strict=True)):
            options = StatsOptions(path, device=device, overwrite=True, observer=observer, kinds=parse_kinds(kinds))
            options.check()
            run_stats(model, data[number if len(data) > 1 else 0], options)
        return cls.open(paths, models, kinds, normalize=normalize)

    # ------------------------------------------------------------- by block

    def given(self, parameter: str, block: Block, alignments: Alignments | None = None) -> list[Any]:
        """What a merge method's parameter ``fishers``, ``grams`` or ``factors`` is given for a block."""
        return getattr(self, parameter)(block, alignments)

    def check(self, parameter: str, blocks: Sequence[Block], alignments: Alignments) -> None:
        """Refuse before anything is written what cannot be moved: diagonal Fishers of blocks that are rotated.

        Raises:
            IsomergeError: naming the tensor, the space and the ways out.
        """
        for file, alignment in zip(self.files, alignments, strict=True):
            for block in blocks if parameter == "fishers" else ():
                if alignment is not None and self._fisher_key(file, block) is not None:
                    check_closed(alignment, block, file.model.ref)

    def fishers(self, block: Block, alignments: Alignments | None = None) -> list[Tensor | None]:
        """The diagonal Fisher of a block of every model, float64 in the shape of the block; None where there is
        none.

        Raises:
            IsomergeError: an alignment that mixes coordinates
                (`isomerge.observe.stats.statistics.moved_fisher`).
        """
        return [self._fisher(f, block, g) for f, g in zip(self.files, self._each(alignments), strict=True)]

    def grams(self, block: Block, alignments: Alignments | None = None) -> list[InputGram | None]:
        """E x x^T of what a linear layer reads, of every model; None for blocks that are none."""
        return [self._gram(k, block, g) for k, g in enumerate(self._each(alignments))]

    def factors(self, block: Block, alignments: Alignments | None = None) -> list[KroneckerFactors | None]:
        """The Kronecker factors of a linear layer, of every model; None for blocks that are none."""
        return [self._factors(k, block, g) for k, g in enumerate(self._each(alignments))]

    def _each(self, alignments: Alignments | None) -> Alignments:
        return [None] * len(self.files) if alignments is None else alignments

    def _fisher_key(self, file: StatisticsFile, block: Block) -> str | None:
        """The key under which a block's Fisher is stored.

        Tied tensors share the Fisher of their sum. Once the tie is undone it says nothing of either.
        """
        about = file.header.get("fisher") or {}
        tied = about.get("tied") or {}
        key = tied.get(block.key, block.key)
        undone = about.get("tie", True) is not False and file.model.has_own_head
        if undone and key in tied.values():
            return None
        return key if f"fisher/{key}" in file.names else None

    def _fisher(self, file: StatisticsFile, block: Block, alignment: Alignment | None) -> Tensor | None:
        key = self._fisher_key(file, block)
        if key is None:
            return None
        fisher = file.read(f"fisher/{key}").double()
        if self.normalize:
            fisher /= max(float(file.header["fisher"].get("norm", 1.0)), 1e-300)
        return fisher if alignment is None else moved_fisher(alignment, block, fisher, file.model.ref)

    def _gram(self, number: int, block: Block, alignment: Alignment | None) -> InputGram | None:
        file = self.files[number]
        if block.key not in file.linears:
            return None
        key, axis = file.linears[block.key]
        last = self._last.get(number)
        if last is None or last.tap != key or last.alignment is not alignment:
            gram = file.read(f"gram/{key}").double()
            if alignment is not None:
                gram, _ = moved_moments(alignment, file.taps[key], gram, file.read(f"mean/{key}").double())
            last = self._last[number] = _Last(key, alignment, gram)
        return InputGram(last.gram, axis)

    def _factors(self, number: int, block: Block, alignment: Alignment | None) -> KroneckerFactors | None:
        file = self.files[number]
        inputs = self._gram(number, block, alignment) if f"kfac/{block.key}" in file.names else None
        if inputs is None:
            return None
        outputs = file.read(f"kfac/{block.key}").double()
        if alignment is not None:
            outputs = moved_factor(alignment, gradient_tap(block, inputs.axis), outputs)
        return KroneckerFactors(inputs.gram, outputs, inputs.axis)

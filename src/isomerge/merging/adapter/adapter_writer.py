"""The tensors of a LoRA adapter from two models: factors of a difference, a whole tensor, or what is lost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.checkpoint.adapter import BASE, NO_TARGETS, PREFIX
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.errors import IsomergeError
from isomerge.fusion.low_rank import Cut, factors, norm
from isomerge.models.adapter_names import input_axis
from isomerge.models.recognised import Model
from isomerge.models.untie import untie
from isomerge.records import Json, Record
from isomerge.run.absolute_names import absolute_ref
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.language.spec import Match


@dataclass(frozen=True)
class Choice:
    """Which modules are described, and how."""

    cut: Cut
    include: re.Pattern[str] | None
    exclude: re.Pattern[str] | None
    embeddings: bool

    def wants(self, module: str) -> bool:
        """Whether a module may be described by factors or be saved."""
        included = self.include is None or self.include.search(module)
        return bool(included) and not (self.exclude and self.exclude.search(module))


class Extracted(Record):
    """What became of a tensor that differs; ``kept`` is ``lora``, ``saved`` or ``lost``, norms are Frobenius
    norms."""

    kept: str
    rank: int
    norm: float
    """Of the difference; of the tensor where the base has none."""
    lost: float


class Extraction(Record):
    """What became of the tensors that differ, and of all of them together; norms are Frobenius norms."""

    tensors: Mapping[str, Extracted]
    notes: Sequence[str]
    rank: int
    norm: float
    """Of the difference."""
    lost: float
    """Of what is not described."""
    share: float

    @classmethod
    def of(cls, tensors: Mapping[str, Extracted], notes: Sequence[str] = ()) -> Extraction:
        """Of tensors; what is to be told of them."""
        norm, lost = (sum(getattr(x, key) ** 2 for x in tensors.values()) ** 0.5 for key in ("norm", "lost"))
        rank = max((x.rank for x in tensors.values()), default=0)
        return cls(tensors, notes, rank, norm, lost, lost / norm if norm else 0.0)


@dataclass(frozen=True)
class Pair:
    """One tensor of the two models: its name in the adapter, and its names in either model; ``stored`` is None
    where the base has none."""

    name: str
    match: Match
    tuned: str
    stored: str | None
    resized: bool = False
    """Whether the two have different numbers of tokens."""

    @property
    def module(self) -> str:
        """The module that the tensor is a parameter of."""
        return self.name.rpartition(".")[0]


class AdapterWriter:
    """Writes the tensors of an adapter one by one, and keeps account of what became of each.

    Args:
        finetuned, base: the models.
        choice: what is described, and how.
        file: takes the adapter's tensors.
    """

    def __init__(self, finetuned: Model, base: Model, choice: Choice, file: GrowingFile) -> None:
        self.finetuned, self.base, self.choice, self.file = finetuned, base, choice, file
        self.found: dict[str, Extracted] = {}
        self.ranks: dict[str, int] = {}
        self.layouts: set[str] = set()
        self.saved: dict[str, str] = {}
        """Tensors that are kept whole, to their modules."""
        self.whole: set[str] = set()
        """Modules that are kept whole."""
        self.tied: dict[str, str] = {}
        """Heads that are tables kept whole, which peft wants stored as well, to these."""

    def put(self, pair: Pair, save: bool) -> None:
        """Write the factors of a tensor's difference; with ``save``, note one without factors to be kept whole."""
        difference = self._difference(pair)
        if difference is None:
            return
        size, layout = norm(difference), _layout(pair, self.choice.embeddings)
        if size == 0 and pair.stored is not None and not pair.resized:
            return
        wanted = self.choice.wants(pair.module)
        if wanted and layout is not None and pair.stored is not None and not pair.resized:
            self.found[pair.name] = self._factored(pair.module, layout, difference, size)
        elif wanted and save:
            self.found[pair.name] = Extracted("saved", 0, size, 0.0)
            self.saved[pair.name] = pair.module
        else:
            self.found[pair.name] = Extracted("lost", 0, size, size)

    def _difference(self, pair: Pair) -> Tensor | None:
        """What the base's tensor lacks, or the whole where the base has none; None where they are equal."""
        work = torch.float64 if self.finetuned.checkpoint.tensors[pair.tuned].dtype == "F64" else torch.float32
        tuned = self.finetuned.read(pair.tuned, work)
        if pair.stored is None:
            return tuned
        stored = self.base.read(pair.stored, work)
        if not pair.resized:
            return None if torch.equal(tuned, stored) else tuned - stored
        difference = tuned.new_zeros((max(len(tuned), len(stored)), *tuned.shape[1:]), dtype=work)
        difference[: len(tuned)] += tuned
        difference[: len(stored)] -= stored
        return difference

    def _factored(self, module: str, layout: str, difference: Tensor, size: float) -> Extracted:
        """Write the factors of a difference, as peft names them."""
        matrix = difference if layout == "rows" else difference.mT
        b, a = factors(matrix, self.choice.cut)
        self.ranks[module] = len(a)
        self.layouts.add(layout)
        label = "lora_embedding_{}" if layout == "embedding" else "lora_{}.weight"
        for half, x in (("A", a), ("B", b)):
            self.file.add(f"{PREFIX}{module}.{label.format(half)}", x)
        return Extracted("lora", len(a), size, norm(torch.addmm(matrix, b, a, alpha=-1)))

    def complete(self, pairs: Sequence[Pair]) -> None:
        """Whole tensors, as peft names them.

        A module is saved with all its tensors; biases of layers that have factors, and parameters of modules that
        have modules of their own (which peft would save as well), go by their names alone.
        """
        holders = {pair.module[:at] for pair in pairs for at, c in enumerate(pair.module) if c == "."}
        self.whole = set(self.saved.values()) - self.ranks.keys() - holders
        for pair in pairs:
            if pair.name in self.saved or pair.module in self.whole:
                part = pair.name.rpartition(".")[2]
                name = f"{pair.module}.base_layer.{part}" if pair.module in self.ranks else pair.name
                self.file.add(f"{PREFIX}{name}", self.finetuned.read(pair.tuned, None))
        with suppress(IsomergeError):  # where more hangs on the tie than the head
            tied = {line for line in self.base.spec.lines if line.tied}
            copies = untie(self.base.spec, self.base.names, self.base.config, tied).copies
            tuned = {pair.stored: pair.tuned for pair in pairs if pair.module in self.whole}
            self.tied = {name: tuned[stored] for name, stored in copies.items() if stored in tuned}
        for name, source in self.tied.items():
            self.file.add(f"{PREFIX}{name}", self.finetuned.read(source, None))

    def config(self) -> Json:
        """The adapter_config.json: a scaling of 1 for every module."""
        top = max(self.ranks.values(), default=self.choice.cut.rank or 1)
        other = {module: rank for module, rank in self.ranks.items() if rank != top}
        biases = any(name.endswith(".bias") and self.saved[name] not in self.whole for name in self.saved)
        return {
            "peft_type": "LORA",
            "task_type": None,
            BASE: absolute_ref(self.base.ref),
            "inference_mode": True,
            "r": top,
            "lora_alpha": top,
            "rank_pattern": other,
            "alpha_pattern": other,
            "lora_dropout": 0.0,
            "bias": "all" if biases else "none",
            "fan_in_fan_out": "columns" in self.layouts,
            "target_modules": sorted(self.ranks) or NO_TARGETS,
            "modules_to_save": sorted(self.whole) or None,
            **({"ensure_weight_tying": True} if self.tied else {}),
        }


def _layout(pair: Pair, embeddings: bool) -> str | None:
    """How a weight stores its outputs: ``rows`` (Linear), ``columns`` (Conv1D), ``embedding``; None if it has no
    factors."""
    axes = pair.match.line.axes
    if axes is None or len(axes) != 2 or not pair.name.endswith(".weight"):
        return None
    reads = input_axis(pair.match.line)
    if reads is not None:
        return "rows" if reads == 1 else "columns"
    return "embedding" if embeddings and axes[0] == Atom("vocab") else None

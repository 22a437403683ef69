"""A fine-tune as a LoRA adapter on its base: the difference of every weight, cut to its largest singular values.

By Eckart and Young the cut is the best approximation of its rank: what is lost is the rest of the singular values.
The folder is in peft's format, so peft loads it, and so does a ``base+adapter`` reference.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PREFIX
from isomerge.checkpoint.adapter_names import input_axis
from isomerge.checkpoint.disk import disk_errors
from isomerge.checkpoint.growing import GrowingFile
from isomerge.checkpoint.partial import PartialFolder
from isomerge.engine.models import Model, recognise
from isomerge.errors import IsomergeError
from isomerge.fusion.low_rank import Cut, factors, norm
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.spec import Match

_FLOATS = ("F32", "F16", "BF16", "F64")


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


@dataclass(frozen=True)
class Extracted:
    """What became of a tensor that differs; ``kept`` is ``lora``, ``saved`` or ``lost``, norms are Frobenius norms."""

    kept: str
    rank: int
    norm: float
    """Of the difference; of the tensor where the base has none."""
    lost: float


@dataclass(frozen=True)
class _Pair:
    """One tensor of the two models: its name in the adapter, and its names in either model."""

    name: str
    match: Match
    tuned: str
    stored: str | None

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]


def extract_lora(
    finetuned: Model | str | Path,
    base: Model | str | Path,
    out: str | Path,
    *,
    rank: int = 16,
    energy: float = 1.0,
    epsilon: float = 0.0,
    include: str | None = None,
    exclude: str | None = None,
    embeddings: bool = False,
    save_modules: bool = False,
    force: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Write an adapter folder that turns ``base`` into ``finetuned``, as far as the rank goes; returns a report.

    Tensors are read and written pair by pair. Factors are float32 (float64 for float64 models) with a scaling of 1.
    Modules have the names of the base's stored tensors: peft finds them where transformers does not rename these.

    Args:
        finetuned: the model to be described.
        base: the model that the adapter is for; of the same architecture and shapes.
        out: the folder, complete or not there at all.
        rank: the largest rank of a layer.
        energy: keep the fewest singular values whose squares sum to this share of all, in (0, 1].
        epsilon: drop singular values below this share of a layer's largest, in [0, 1) (mergekit's ``sv_epsilon``).
        include: a regular expression that module names must contain; all modules when None.
        exclude: a regular expression that they must not contain. The differences of other modules are lost.
        embeddings: describe tables of tokens by factors as well.
        save_modules: keep whole what has no factors and differs (norms, biases, tables, a head that the base lacks).
        force: replace ``out`` if it exists.
        seed: of the randomised range finder for large matrices.

    Returns:
        ``{rank, tensors: {name: {kept, rank, norm, lost}}, norm, lost, share}`` over the tensors that differ: norms of
        the differences and of what the adapter does not say; ``share`` is lost / norm.

    Raises:
        IsomergeError: the models do not belong together or are equal, nothing of their difference would be kept, an option is
            out of range, or ``out`` exists.
    """
    choice = Choice(
        Cut(rank, energy, epsilon, seed), _pattern("include", include), _pattern("exclude", exclude), embeddings
    )
    _check_options(choice.cut)
    one, two = (m if isinstance(m, Model) else recognise(m) for m in (finetuned, base))
    pairs = list(_pairs(one, two))
    folder = PartialFolder(Path(out).absolute(), force=force)
    try:
        folder.begin()
        writer = _Writer(one, two, choice, GrowingFile(folder.blobs / "tensors"))
        for pair in pairs:
            writer.put(pair, save_modules)
        writer.complete(pairs)
        if not writer.found:
            raise IsomergeError(f"{one.ref} and {two.ref} have equal weights: there is nothing to extract")
        if all(found.kept == "lost" for found in writer.found.values()):
            raise IsomergeError(
                f"no module that differs between {one.ref} and {two.ref} would be kept: choose others with --include and "
                "--exclude, or add --embeddings or --save-modules"
            )
        writer.file.finish(folder.model / ADAPTER_WEIGHTS)
        with disk_errors(folder.model):
            (folder.model / ADAPTER_CONFIG).write_text(json.dumps(writer.config(), indent=2) + "\n")
        folder.publish()
    finally:
        shutil.rmtree(folder.root, ignore_errors=True)  # nothing in it can be gone on with
        folder.release()
    return writer.report()


def _check_options(cut: Cut) -> None:
    if cut.rank < 1:
        raise IsomergeError(f"--rank {cut.rank}: give 1 or more")
    if not 0 < cut.energy <= 1:
        raise IsomergeError(f"--energy {cut.energy}: give a share of the squared singular values in (0, 1]")
    if not 0 <= cut.epsilon < 1:
        raise IsomergeError(f"--sv-epsilon {cut.epsilon}: give a share of the largest singular value in [0, 1)")


def _pattern(name: str, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise IsomergeError(f"--{name} {text!r} is no regular expression ({error})") from None


def _pairs(one: Model, two: Model) -> Iterator[_Pair]:
    """The tensors of both models; a tensor that is tied in one and stored in the other counts as stored.

    Raises:
        IsomergeError: the models have other architectures or shapes, or the fine-tune lacks a tensor.
    """
    if one.spec.origin != two.spec.origin:
        kinds = f"{one.spec.model_type}, {two.spec.model_type}"
        raise IsomergeError(f"{one.ref} and {two.ref} have different architectures ({kinds})")
    for canonical, match in {m.canonical: m for m in (*two.matches.values(), *one.matches.values())}.items():
        tuned, stored = one.source_of(canonical, match), two.source_of(canonical, match)
        if tuned is None:
            if match.line.optional:
                continue
            raise IsomergeError(f"{one.ref}: tensor {canonical} is missing, but {two.ref} has it: is a shard lost?")
        name = two.names.get(canonical) or one.names[canonical]
        if stored is not None:
            a, b = one.checkpoint.tensors[tuned].shape, two.checkpoint.tensors[stored].shape
            if a != b:
                raise IsomergeError(
                    f"tensor {canonical} has shape {list(a)} in {one.ref} and {list(b)} in {two.ref}: an adapter needs "
                    "equal shapes"
                )
        if one.checkpoint.tensors[tuned].dtype in _FLOATS:
            yield _Pair(name, match, tuned, stored)


class _Writer:
    """Collects what becomes of every tensor."""

    def __init__(self, one: Model, two: Model, choice: Choice, file: GrowingFile) -> None:
        self.one, self.two, self.choice, self.file = one, two, choice, file
        self.found: dict[str, Extracted] = {}
        self.ranks: dict[str, int] = {}
        self.layouts: set[str] = set()
        self.saved: dict[str, str] = {}
        """Tensors that are kept whole, to their modules."""
        self.whole: set[str] = set()
        """Modules that are kept whole."""

    def put(self, pair: _Pair, save: bool) -> None:
        """Factors, a whole tensor, or nothing."""
        import torch

        tuned = self.one.read(pair.tuned, None)
        work = torch.float64 if tuned.dtype == torch.float64 else torch.float32
        difference = tuned.to(work)
        if pair.stored is not None:
            stored = self.two.read(pair.stored, None)
            if torch.equal(tuned, stored):
                return
            difference = difference - stored.to(work)
        size = norm(difference)
        layout = _layout(pair, self.choice.embeddings)
        if size == 0 and pair.stored is not None:
            return
        if not self.choice.wants(pair.module):
            self.found[pair.name] = Extracted("lost", 0, size, size)
        elif layout is not None and pair.stored is not None:
            matrix = difference if layout == "rows" else difference.mT
            b, a = factors(matrix, self.choice.cut)
            lost = norm(torch.addmm(matrix, b, a, alpha=-1))
            self.found[pair.name] = Extracted("lora", len(a), size, lost)
            self.ranks[pair.module] = len(a)
            self.layouts.add(layout)
            label = "lora_embedding_{}" if layout == "embedding" else "lora_{}.weight"
            for half, x in (("A", a), ("B", b)):
                self.file.add(f"{PREFIX}{pair.module}.{label.format(half)}", x)
        elif save:
            self.found[pair.name] = Extracted("saved", 0, size, 0.0)
            self.saved[pair.name] = pair.module
        else:
            self.found[pair.name] = Extracted("lost", 0, size, size)

    def complete(self, pairs: list[_Pair]) -> None:
        """Whole tensors, as peft names them.

        A module is saved with all its tensors; biases of layers that have factors, and parameters of modules that have
        modules of their own (which peft would save as well), go by their names alone.
        """
        holders = {pair.module[:at] for pair in pairs for at, c in enumerate(pair.module) if c == "."}
        self.whole = set(self.saved.values()) - self.ranks.keys() - holders
        for pair in pairs:
            if pair.name in self.saved or pair.module in self.whole:
                part = pair.name.rpartition(".")[2]
                name = f"{pair.module}.base_layer.{part}" if pair.module in self.ranks else pair.name
                self.file.add(f"{PREFIX}{name}", self.one.read(pair.tuned, None))

    def config(self) -> dict[str, Any]:
        """The adapter_config.json: a scaling of 1 for every module."""
        top = max(self.ranks.values(), default=self.choice.cut.rank)
        other = {module: rank for module, rank in self.ranks.items() if rank != top}
        biases = any(name.endswith(".bias") and self.saved[name] not in self.whole for name in self.saved)
        return {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": self.two.ref,
            "inference_mode": True,
            "r": top,
            "lora_alpha": top,
            "rank_pattern": other,
            "alpha_pattern": other,
            "lora_dropout": 0.0,
            "bias": "all" if biases else "none",
            "fan_in_fan_out": "columns" in self.layouts,
            "target_modules": sorted(self.ranks),
            "modules_to_save": sorted(self.whole) or None,
        }

    def report(self) -> dict[str, Any]:
        """See `extract_lora`."""
        total, lost = (sum(getattr(x, key) ** 2 for x in self.found.values()) ** 0.5 for key in ("norm", "lost"))
        return {
            "rank": max(self.ranks.values(), default=0),
            "tensors": {name: asdict(x) for name, x in self.found.items()},
            "norm": total,
            "lost": lost,
            "share": lost / total if total else 0.0,
        }


def _layout(pair: _Pair, embeddings: bool) -> str | None:
    """How a weight stores its outputs: ``rows`` (Linear), ``columns`` (Conv1D), ``embedding``; None if it has no factors."""
    axes = pair.match.line.axes
    if axes is None or len(axes) != 2 or not pair.name.endswith(".weight"):
        return None
    reads = input_axis(pair.match.line)
    if reads is not None:
        return "rows" if reads == 1 else "columns"
    return "embedding" if embeddings and axes[0] == Atom("vocab") else None

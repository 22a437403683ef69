"""A fine-tune as a LoRA adapter on its base: the difference of every weight, cut to its largest singular values.

By Eckart and Young the cut is the best approximation of its rank: what is lost is the rest of the singular values.
The folder is in peft's format, so peft loads it, and so does a ``base+adapter`` reference. That of an image model
(a pipeline, its U-Net or its transformer) is in diffusers' form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE, NO_TARGETS, PREFIX
from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.companions import tokenizer_files
from isomerge.checkpoint.dtypes import FLOATS
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.checkpoint.image_lora import IMAGE_WEIGHTS
from isomerge.checkpoint.output_folder import written_at_once
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import of_diffusers
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors
from isomerge.fusion.low_rank import Cut, factors, norm
from isomerge.models.adapter_names import input_axis
from isomerge.models.recognised import Model, recognise
from isomerge.models.references import is_assembled, open_assembled, open_model_ref
from isomerge.models.row_meanings import in_order
from isomerge.models.tied_tensors import untie
from isomerge.pieces import wide_dtype
from isomerge.records import Json, Record
from isomerge.run.absolute_names import absolute_ref
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.language.spec import Match

RANK = 16
"""The largest rank where nobody says one, nor how much is to be kept."""
TEXT_LAYERS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
"""Layers of CLIP's towers that diffusers takes LoRAs of; of other text encoders it takes none."""


def extract_lora(
    finetuned: Model | str | Path,
    base: Model | str | Path,
    out: str | Path,
    *,
    rank: int | None = None,
    energy: float = 1.0,
    sv_epsilon: float = 0.0,
    include: str | None = None,
    exclude: str | None = None,
    embeddings: bool = False,
    save_modules: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    spec_file: str | Path | None = None,
    allow_pickle: bool = False,
) -> Extraction:
    """Write an adapter folder that turns ``base`` into ``finetuned``, as far as the rank goes. Of image models
    (pipelines, single files, U-Nets) it is a LoRA in diffusers' form.

    Tensors are read and written pair by pair. Factors are float32 (float64 for float64 models) with a scaling of 1.
    Modules have the names of the base's stored tensors: peft finds them where transformers does not rename these.

    Args:
        finetuned, base: of the same architecture and shapes.
        out: the folder, complete or not there at all.
        rank, ...: see `isomerge.options.requests.adapting.ExtractLora`. Without a rank layers have what ``energy``
            says, or `RANK`. The differences of modules that are excluded are lost. Tables of another number of
            tokens have no factors: the fine-tune's tokenizer is kept with them where they are saved.

    Raises:
        IsomergeError: the models do not belong together or are equal, their rows have no partners, nothing of their
            difference would be kept, an option is out of range, or ``out`` exists.
    """
    cut = Cut(RANK if rank is None and energy == 1 else rank, energy, sv_epsilon, seed)
    _check_options(cut)
    choice = Choice(cut, _pattern("include", include), _pattern("exclude", exclude), embeddings)
    if parts := parts_of_two(finetuned, base, allow_pickle=allow_pickle):
        if embeddings or save_modules:
            raise IsomergeError(
                "a LoRA of image models has no tables or whole tensors: leave --embeddings and --save-modules out"
            )
        return extract_image_lora(parts, choice, Path(out), overwrite=overwrite)
    finetuned, base = (
        m if isinstance(m, Model) else recognise(m, spec_file=spec_file, allow_pickle=allow_pickle)
        for m in (finetuned, base)
    )
    _check_kin(finetuned, base)
    rows = in_order([base, finetuned], use="replaced")
    base, finetuned = rows.models
    pairs = list(_pairs(finetuned, base))
    reads = [*finetuned.checkpoint.places, *base.checkpoint.places]
    with written_at_once(Path(out), overwrite=overwrite, reads=reads) as folder:
        writer = AdapterWriter(finetuned, base, choice, GrowingFile(folder.blobs / "tensors"))
        for pair in pairs:
            writer.put(pair, save_modules)
        writer.complete(pairs)
        tables = [pair.name for pair in pairs if pair.resized]
        _check_kept(writer, tables)
        writer.file.finish(folder.model / ADAPTER_WEIGHTS)
        with disk_errors(folder.model):
            if any(writer.found[name].kept == "saved" for name in tables):  # rows are of the tokens beside them
                write_companions(folder.model, tokenizer_files(finetuned.checkpoint.companions()))
            (folder.model / ADAPTER_CONFIG).write_text(json.dumps(writer.config(), indent=2) + "\n")
    return Extraction.of(writer.found, rows.notes)


def _check_options(cut: Cut) -> None:
    if cut.rank is not None and cut.rank < 1:
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


def _check_kin(finetuned: Model, base: Model) -> None:
    if finetuned.spec.kin != base.spec.kin:
        kinds = f"{finetuned.spec.model_type}, {base.spec.model_type}"
        raise IsomergeError(
            f"{finetuned.ref} and {base.ref} have different architectures ({kinds}): give a model and the base "
            "that it was tuned from"
        )


def _check_kept(writer: AdapterWriter, tables: list[str]) -> None:
    """Refuse an adapter that would say nothing, or some of the tables of another number of tokens alone."""
    pair = f"{writer.finetuned.ref} and {writer.base.ref}"
    if not writer.found:
        raise IsomergeError(f"{pair} have equal weights: there is nothing to extract")
    if all(update.kept == "lost" for update in writer.found.values()):
        raise IsomergeError(
            f"no module that differs between {pair} would be kept: choose others with "
            "--include and --exclude, or add --embeddings or --save-modules"
        )
    if len({writer.found[name].kept for name in tables}) > 1:
        raise IsomergeError(
            f"{pair} have different numbers of tokens: keep {' and '.join(tables)} all or "
            "none (--include, --exclude)"
        )


def _pairs(finetuned: Model, base: Model) -> Iterator[Pair]:
    """The tensors of both models; a tensor that is tied in one and stored in the other counts as stored.

    Raises:
        IsomergeError: the models have other shapes, or the fine-tune lacks a tensor.
    """
    for canonical, match in {m.canonical: m for m in (*base.matches.values(), *finetuned.matches.values())}.items():
        tuned, stored = finetuned.source_of(canonical, match), base.source_of(canonical, match)
        if tuned is None:
            if match.line.optional:
                continue
            raise IsomergeError(
                f"{finetuned.ref}: tensor {canonical} is missing, but {base.ref} has it: is a shard lost?"
            )
        name, resized = base.names.get(canonical) or finetuned.names[canonical], False
        if stored is not None:
            a, b = finetuned.checkpoint.tensors[tuned].shape, base.checkpoint.tensors[stored].shape
            resized = a != b and a[1:] == b[1:] and (match.line.axes or ("",))[0] == Atom("vocab")
            if a != b and not resized:
                raise IsomergeError(
                    f"tensor {canonical} has shape {list(a)} in {finetuned.ref} and {list(b)} in {base.ref}: an "
                    "adapter needs equal shapes"
                )
        if finetuned.checkpoint.tensors[tuned].dtype in FLOATS.values():
            yield Pair(name, match, tuned, stored, resized)


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


@dataclass(frozen=True)
class Part:
    """A model of a pipeline, tuned and not: both have the same weights."""

    start: str
    """How the names of its layers begin in the file."""
    finetuned: Checkpoint
    base: Checkpoint
    names: Mapping[str, str]
    """From the base's names of its weights to the fine-tune's, which other versions of a library may call
    otherwise."""

    def layer(self, name: str) -> str | None:
        """What the layer of a weight is called in the file; None where diffusers takes no LoRA of it."""
        module = name.removesuffix(".weight")
        if module == name or len(self.base.tensors[name].shape) < 2:
            return None
        if self.start in ("unet.", "transformer."):
            return self.start + module
        if not self.start.startswith("text_encoder") or not module.endswith(TEXT_LAYERS):
            return None
        return f"{self.start}{'' if module.startswith('text_model.') else 'text_model.'}{module}"


def are_image_models(finetuned: Any, base: Any, *, allow_pickle: bool = False) -> bool:
    """Whether these are pipelines, or models of diffusers, by their names."""
    if not all(isinstance(ref, str | Path) for ref in (finetuned, base)):
        return False
    return any(map(is_assembled, (finetuned, base))) or all(
        of_diffusers(open_model_ref(ref, allow_pickle=allow_pickle).config) for ref in (finetuned, base)
    )


def parts_of_two(finetuned: Any, base: Any, *, allow_pickle: bool = False) -> list[Part]:
    """The models in which two pipelines differ, or two of diffusers; empty where they are others.

    Raises:
        IsomergeError: one is a pipeline and the other none, pipelines do not differ, or models differ in tensors or
            shapes.
    """
    if not are_image_models(finetuned, base, allow_pickle=allow_pickle):
        return []
    whole = [is_assembled(ref) for ref in (finetuned, base)]
    if not any(whole):
        finetuned, base = (open_model_ref(ref, allow_pickle=allow_pickle) for ref in (finetuned, base))
        start = "transformer." if "Transformer" in str(base.config["_class_name"]) else "unet."
        return [_paired(start, finetuned, base)]
    if not all(whole):
        raise IsomergeError(
            f"{finetuned if whole[0] else base} is a pipeline, and the other is none: give two of a kind"
        )
    tuned, plain = open_assembled(finetuned), open_assembled(base)
    parts = []
    for name, component in plain.components.items():
        other = tuned.components.get(name)
        if not component.has_weights or other is None or component.equals(other, allow_pickle=allow_pickle):
            continue
        models = (open_model_ref(each.ref, allow_pickle=allow_pickle) for each in (other, component))
        parts.append(_paired(f"{name}.", *models))
    if not parts:
        raise IsomergeError(f"{tuned.ref} and {plain.ref}: no model differs: there is nothing to extract")
    return parts


def _paired(start: str, finetuned: Checkpoint, base: Checkpoint) -> Part:
    """A part, once both models have weights of the same names and shapes; buffers are no weights."""
    named = [_weights(model) for model in (finetuned, base)]
    if named[0].keys() != named[1].keys():
        with suppress(IsomergeError):  # of an architecture that no spec describes, or with a tensor that none has
            named = [
                {key: name for key, name in recognise(model, unmoved=True).names.items() if name in own}
                for model, own in zip((finetuned, base), named, strict=True)
            ]
    shapes = [
        {key: model.tensors[name].shape for key, name in names.items()}
        for names, model in zip(named, (finetuned, base), strict=True)
    ]
    differing = (key for key in {**shapes[1], **shapes[0]} if shapes[0].get(key) != shapes[1].get(key))
    if (key := next(differing, None)) is not None:
        said = [list(each[key]) if key in each else "none" for each in shapes]
        raise IsomergeError(
            f"tensor {key} has shape {said[0]} in {finetuned.ref} and {said[1]} in {base.ref}: a LoRA needs equal "
            "shapes"
        )
    return Part(start, finetuned, base, {name: named[0][key] for key, name in named[1].items()})


def _weights(model: Checkpoint) -> dict[str, str]:
    return {name: name for name, info in model.tensors.items() if info.dtype in FLOATS.values()}


def extract_image_lora(parts: list[Part], choice: Choice, out: Path, *, overwrite: bool = False) -> Extraction:
    """Write the factors of the differences of linear layers and convolutions, each with a scaling of 1; the report
    of `isomerge.merging.adapter.extract_lora.extract_lora`.

    Raises:
        IsomergeError: nothing differs, or nothing that does would be kept, or ``out`` exists.
    """
    reads = [place for part in parts for model in (part.finetuned, part.base) for place in model.places]
    rows: dict[str, Extracted] = {}
    with written_at_once(out, overwrite=overwrite, reads=reads) as folder:
        file = GrowingFile(folder.blobs / "tensors")
        for part, name, difference in _differences(parts):
            layer, size = part.layer(name), norm(difference)
            if layer is None or not choice.wants(layer):
                rows[part.start + name] = Extracted("lost", 0, size, size)
                continue
            b, a = factors(difference.flatten(1), choice.cut)
            file.add(f"{layer}.lora_A.weight", a.reshape(-1, *difference.shape[1:]))
            file.add(f"{layer}.lora_B.weight", b.reshape(*b.shape, *[1] * (difference.ndim - 2)))
            lost = norm(torch.addmm(difference.flatten(1), b, a, alpha=-1))
            rows[part.start + name] = Extracted("lora", len(a), size, lost)
        if not any(row.kept == "lora" for row in rows.values()):
            refs = " and ".join(
                dict.fromkeys(model.ref for part in parts[:1] for model in (part.finetuned, part.base))
            )
            said = "no layer that differs would be kept: choose others with --include and --exclude"
            raise IsomergeError(f"{refs}: {said if rows else 'weights are equal: there is nothing to extract'}")
        file.finish(folder.model / IMAGE_WEIGHTS)
    return Extraction.of(rows)


def _differences(parts: list[Part]) -> Iterator[tuple[Part, str, Tensor]]:
    """What is not equal, one tensor at a time."""
    for part in parts:
        for name, own in part.names.items():
            tuned, stored = part.finetuned.read(own, exact=True), part.base.read(name, exact=True)
            work = wide_dtype([tuned])
            difference = tuned.to(work) - stored.to(work)
            if difference.any():
                yield part, name, difference

"""A fine-tune as a LoRA adapter on its base: the difference of every weight, cut to its largest singular values.

By Eckart and Young the cut is the best approximation of its rank: what is lost is the rest of the singular values.
The folder is in peft's format, so peft loads it, and so does a ``base+adapter`` reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.companions import tokenizer_files
from isomerge.checkpoint.dtypes import FLOATS
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.checkpoint.output_folder import written_at_once
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors
from isomerge.fusion.low_rank import Cut
from isomerge.merging.adapter.adapter_writer import AdapterWriter, Choice, Extraction, Pair
from isomerge.merging.adapter.extract_image_lora import extract_image_lora, parts_of_two
from isomerge.models.recognised import Model, recognise
from isomerge.models.row_meanings import in_order
from isomerge.symmetry.axes import Atom

RANK = 16
"""The largest rank where nobody says one, nor how much is to be kept."""


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
    choice = _chosen(cut, include, exclude, embeddings=embeddings)
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
    read = [model.checkpoint for model in (finetuned, base) if model.checkpoint.files]
    reads = [place for checkpoint in read for place in (*checkpoint.files, checkpoint.folder)]
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


def _chosen(cut: Cut, include: str | None, exclude: str | None, *, embeddings: bool) -> Choice:
    """What is described, and how. Raises IsomergeError where an option is out of range."""
    _check_options(cut)
    return Choice(cut, _pattern("include", include), _pattern("exclude", exclude), embeddings)


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

"""A fine-tune as a LoRA adapter on its base: the difference of every weight, cut to its largest singular values.

By Eckart and Young the cut is the best approximation of its rank: what is lost is the rest of the singular values.
The folder is in peft's format, so peft loads it, and so does a ``base+adapter`` reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.companions import tokenizer_files
from isomerge.checkpoint.dtypes import FLOATS
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.checkpoint.output_folder import written_at_once
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors
from isomerge.fusion.low_rank import Cut
from isomerge.merging.adapter.adapter_writer import AdapterWriter, Choice, Pair
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
) -> dict[str, Any]:
    """Write an adapter folder that turns ``base`` into ``finetuned``, as far as the rank goes; returns a report.
    Of image models (pipelines, single files, U-Nets) it is a LoRA in diffusers' form.

    Tensors are read and written pair by pair. Factors are float32 (float64 for float64 models) with a scaling of 1.
    Modules have the names of the base's stored tensors: peft finds them where transformers does not rename these.

    Args:
        finetuned: the model to be described.
        base: the model that the adapter is for; of the same architecture and shapes.
        out: the folder, complete or not there at all.
        rank: the largest rank of a layer. None: as ``energy`` says, or 16 where that is 1.
        energy: keep the fewest singular values whose squares sum to this share of all, in (0, 1].
        sv_epsilon: drop singular values below this share of a layer's largest, in [0, 1) (mergekit's
            ``sv_epsilon``).
        include: a regular expression that module names must contain; all modules when None.
        exclude: a regular expression that they must not contain. The differences of other modules are lost.
        embeddings: describe tables of tokens by factors as well.
        save_modules: keep whole what has no factors and differs (norms, biases, tables, a head that the base
            lacks). Tables of another number of tokens have none; the fine-tune's tokenizer is then kept with them.
        overwrite: replace ``out`` if it exists.
        seed: of the randomised range finder for large matrices.
        spec_file: a spec text of the user's own, for models that are not recognised yet.
        allow_pickle: whether pickles are loaded.

    Returns:
        ``{rank, tensors: {name: {kept, rank, norm, lost}}, norm, lost, share, notes}`` over the tensors that
        differ: norms of the differences and of what the adapter does not say; ``share`` is lost / norm; ``notes``
        on what rows mean, which are taken in the base's order.

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
    how: dict[str, Any] = {"spec_file": spec_file, "allow_pickle": allow_pickle}
    one, two = (m if isinstance(m, Model) else recognise(m, **how) for m in (finetuned, base))
    _check_kin(one, two)
    rows = in_order([two, one], use="replaced")
    two, one = rows.models
    pairs = list(_pairs(one, two))
    read = [model.checkpoint for model in (one, two) if model.checkpoint.files]
    reads = [place for checkpoint in read for place in (*checkpoint.files, checkpoint.folder)]
    with written_at_once(Path(out), overwrite=overwrite, reads=reads) as folder:
        writer = AdapterWriter(one, two, choice, GrowingFile(folder.blobs / "tensors"))
        for pair in pairs:
            writer.put(pair, save_modules)
        writer.complete(pairs)
        tables = [pair.name for pair in pairs if pair.resized]
        _check_kept(writer, tables)
        writer.file.finish(folder.model / ADAPTER_WEIGHTS)
        with disk_errors(folder.model):
            if any(writer.found[name].kept == "saved" for name in tables):  # rows are of the tokens beside them
                write_companions(folder.model, tokenizer_files(one.checkpoint.companions()))
            (folder.model / ADAPTER_CONFIG).write_text(json.dumps(writer.config(), indent=2) + "\n")
    return {**writer.report(), "notes": rows.notes}


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


def _check_kin(one: Model, two: Model) -> None:
    if one.spec.kin != two.spec.kin:
        kinds = f"{one.spec.model_type}, {two.spec.model_type}"
        raise IsomergeError(
            f"{one.ref} and {two.ref} have different architectures ({kinds}): give a model and the base that it "
            "was tuned from"
        )


def _check_kept(writer: AdapterWriter, tables: list[str]) -> None:
    """Refuse an adapter that would say nothing, or some of the tables of another number of tokens alone."""
    pair = f"{writer.one.ref} and {writer.two.ref}"
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


def _pairs(one: Model, two: Model) -> Iterator[Pair]:
    """The tensors of both models; a tensor that is tied in one and stored in the other counts as stored.

    Raises:
        IsomergeError: the models have other shapes, or the fine-tune lacks a tensor.
    """
    for canonical, match in {m.canonical: m for m in (*two.matches.values(), *one.matches.values())}.items():
        tuned, stored = one.source_of(canonical, match), two.source_of(canonical, match)
        if tuned is None:
            if match.line.optional:
                continue
            raise IsomergeError(f"{one.ref}: tensor {canonical} is missing, but {two.ref} has it: is a shard lost?")
        name, resized = two.names.get(canonical) or one.names[canonical], False
        if stored is not None:
            a, b = one.checkpoint.tensors[tuned].shape, two.checkpoint.tensors[stored].shape
            resized = a != b and a[1:] == b[1:] and (match.line.axes or ("",))[0] == Atom("vocab")
            if a != b and not resized:
                raise IsomergeError(
                    f"tensor {canonical} has shape {list(a)} in {one.ref} and {list(b)} in {two.ref}: an adapter "
                    "needs equal shapes"
                )
        if one.checkpoint.tensors[tuned].dtype in FLOATS.values():
            yield Pair(name, match, tuned, stored, resized)

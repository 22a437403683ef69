"""Which files went into an output, with their checksums, and where they are now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from isomerge.checkpoint.checksums import Checksum, file_checksum, joined
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.models.references import parse_model_ref
from isomerge.records import Json, Record, inline, optional
from isomerge.run.absolute_names import absolute_path

FORM = re.compile(r"crc32:[0-9a-f]{8}")
"""How a recipe writes a checksum: the word keeps readers of YAML from taking the digits for a number."""

_ID = re.compile(r"[\w.-]+(/[\w.-]+(@[^\s,]+)?)?")
"""Hub ids, and classes of live modules."""


class InputFile(Record):
    """A file that went into an output."""

    model: str
    """A full path, or a hub id."""
    file: str
    """Relative to it; the full path of a file in another folder."""
    checksum: Checksum = inline()
    state: str | None = optional()
    """Where it was looked for since: unchanged, changed, or absent from where it was."""


def weights_checksums(checkpoints: Iterable[Checkpoint], inputs: Iterable[InputFile]) -> list[str | None]:
    """Of each checkpoint the CRC-32 of its own weights files, one after the other in the order of their names, as
    ``cat *.safetensors | crc32 /dev/stdin`` tells it wherever they are; None for tensors in memory.

    Args:
        checkpoints: whose files were all summed.
        inputs: what `input_files` gave for them.
    """
    known: dict[tuple[str, str], list[Checksum]] = {}
    for each in inputs:
        known.setdefault((each.model, each.file), []).append(each.checksum)
    return [_weights_checksum(checkpoint, known) for checkpoint in checkpoints]


def _weights_checksum(checkpoint: Checkpoint, known: Mapping[tuple[str, str], list[Checksum]]) -> str | None:
    files = checkpoint.own_files
    sums = [known.get(_named(checkpoint, file), []) for file in files]
    own = [matching[0] for matching in sums if len(matching) == 1]
    if len(own) < len(sums):  # live modules of one class, which have one name
        sums_of = checkpoint.checksums()
        own = [sums_of[file] for file in files]
    parts = sorted(zip((file.name for file in files), own, strict=True), key=_by_name)
    return f"crc32:{joined(part for _, part in parts).crc32:08x}" if parts else None


def _by_name(part: tuple[str, Checksum]) -> tuple[str, int, int]:
    name, checksum = part
    return name, checksum.nbytes, checksum.crc32


class ModelChecksum(Record):
    """Of the weights files of a model that was read."""

    model: str
    checksum: str | None
    in_recipe: str | None = optional()
    """What a recipe expects, where that is another one."""


def model_checksums(
    models: Sequence[Model], inputs: Iterable[InputFile], expected: Sequence[str | None]
) -> list[ModelChecksum]:
    """The checksums of models, beside those that a recipe expects, where it knows some."""
    checksums = weights_checksums((model.checkpoint for model in models), inputs)
    return [
        ModelChecksum(model.ref, checksum, in_recipe=None if wanted in (None, checksum) else wanted)
        for model, checksum, wanted in zip(models, checksums, expected or [None] * len(models), strict=True)
    ]


def other_models(checksums: Iterable[ModelChecksum]) -> list[str]:
    """What to tell of models that are not those that a recipe was made with."""
    return [
        f"{each.model} is not the model that the recipe was made with: its weights files have the checksum "
        f"{each.checksum}, and the recipe says {each.in_recipe}; this is another merge, or the same weights are "
        f"stored in other files"
        for each in checksums
        if each.in_recipe is not None
    ]


def input_files(checkpoints: Iterable[Checkpoint]) -> list[InputFile]:
    """The files that the checkpoints depend on, each once.

    Files are summed while they are read; what was never read is read here. Tensors in memory have no files.

    Raises:
        IsomergeError: a file changed since it was opened, or cannot be read.
    """
    inputs: dict[InputFile, None] = {}
    checkpoints = list(checkpoints)
    owned = {file for checkpoint in checkpoints for file in checkpoint.own_files}
    for checkpoint in checkpoints:
        elsewhere = owned.difference(checkpoint.own_files)  # in the rows of the model that lends it
        sums = {file: checksum for file, checksum in checkpoint.checksums().items() if file not in elsewhere}
        config = checkpoint.folder / CONFIG
        if sums and config.is_file():
            sums[config] = file_checksum(config)
        inputs |= dict.fromkeys(InputFile(*_named(checkpoint, f), checksum=sums[f]) for f in sorted(sums))
    return list(inputs)


def _named(checkpoint: Checkpoint, file: Path) -> tuple[str, str]:
    """Model and file of an `InputFile`, without what tells only where this machine keeps its files."""
    first = _parts(checkpoint.ref)[0]
    named = _ID.fullmatch(first) or os.path.exists(os.path.expanduser(first))  # not a stack's slices, nor a part
    if named and file.is_relative_to(checkpoint.folder):
        return _full(first), file.relative_to(checkpoint.folder).as_posix()
    for part in _parts(checkpoint.ref):
        folder = Path(os.path.expanduser(part))
        if file.is_relative_to(folder):
            return _full(part), file.relative_to(folder).as_posix()
    return checkpoint.ref, _full(str(file))


def _full(part: str) -> str:
    """A path that does not depend on where the command is run, below the home folder without its name; hub ids as
    they are."""
    path, home = Path(absolute_path(part)), Path.home()
    below = path.is_absolute() and path != home and path.is_relative_to(home)
    return f"~/{path.relative_to(home).as_posix()}" if below else absolute_path(part)


def _parts(ref: str) -> tuple[str, ...]:
    """A reference's model and adapters; what is none (the name of a class) is one part."""
    try:
        reference = parse_model_ref(ref)
    except IsomergeError:
        return (ref,)
    return (reference.model, *reference.adapters)


def input_states(report: Json, path: Path) -> list[InputFile]:
    """A report's inputs, each with its ``state``.

    Raises:
        IsomergeError: the report, which is at ``path``, is damaged.
    """
    rows = report.get("inputs", [])
    good = isinstance(rows, list) and all(
        isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("model", "file")) for row in rows
    )
    if not good:
        raise IsomergeError(f"{path}: its list of inputs is damaged; run the command that wrote it again")
    return [_with_state(row, path) for row in rows]


def _with_state(row: Json, path: Path) -> InputFile:
    wanted = Checksum.read(row, f"{path}: input {row['file']!r}")

    def same(file: Path) -> bool:
        return file.stat().st_size == wanted.nbytes and file_checksum(file) == wanted

    model, file = row["model"], row["file"]
    where = _find_input(model, os.path.expanduser(file))
    if where is not None:
        state = "unchanged" if same(where) else "changed"
    else:
        place = Path(os.path.expanduser(model)) / os.path.expanduser(file)
        state = "unchanged" if any(map(same, _moved_along(place, path.parent))) else "absent"
    return InputFile(model, file, checksum=wanted, state=state)


def _moved_along(place: Path, folder: Path) -> Iterator[Path]:
    """Where an input may be that was moved together with the output, in a folder of both: the end of its path, as
    seen from the folders that the output is in."""
    if not place.is_absolute():
        return
    for above in folder.absolute().parents:
        for start in range(1, len(place.parts) - 1):
            if (moved := above.joinpath(*place.parts[start:])).is_file():
                yield moved


def _find_input(model: str, file: str) -> Path | None:
    """An input on this machine, in a folder or in the hub's cache; None where it is not here. Downloads
    nothing.
    """
    folder = os.path.expanduser(model)
    if os.path.isfile(folder):  # a lone .safetensors file stands for its folder
        folder = os.path.dirname(folder) or "."
    path = Path(file) if os.path.isabs(file) else Path(folder) / file
    if os.path.isfile(path):
        return path
    repo, _, revision = model.partition("@")
    if os.path.isabs(file) or repo.count("/") != 1:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(repo, file, revision=revision or None)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None

"""Which files went into an output, with their checksums, and where they are now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from isomerge.checkpoint.checksums import Checksum, file_checksum, joined
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.references import parse_model_ref
from isomerge.run.absolute_names import absolute_path

FORM = re.compile(r"crc32:[0-9a-f]{8}")
"""How a recipe writes a checksum: the word keeps readers of YAML from taking the digits for a number."""

_ID = re.compile(r"[\w.-]+(/[\w.-]+(@[^\s,]+)?)?")
"""Hub ids, and classes of live modules."""


def weights_checksums(checkpoints: Iterable[Checkpoint], rows: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """Of each checkpoint the CRC-32 of its own weights files, one after the other in the order of their names, as
    ``cat *.safetensors | crc32 /dev/stdin`` tells it wherever they are; None for tensors in memory.

    Args:
        checkpoints: whose files were all summed.
        rows: what `input_rows` gave for them.
    """
    known: dict[tuple[str, str], list[Checksum]] = {}
    for row in rows:
        known.setdefault((row["model"], row["file"]), []).append(Checksum.read(row, row["file"]))
    return [_weights_checksum(checkpoint, known) for checkpoint in checkpoints]


def _weights_checksum(checkpoint: Checkpoint, known: Mapping[tuple[str, str], list[Checksum]]) -> str | None:
    files = checkpoint.own_files
    places = [_named(checkpoint, file) for file in files]
    sums = [known.get((place["model"], place["file"]), []) for place in places]
    own = [matching[0] for matching in sums if len(matching) == 1]
    if len(own) < len(sums):  # live modules of one class, which have one name
        sums_of = checkpoint.checksums()
        own = [sums_of[file] for file in files]
    parts = sorted(zip((file.name for file in files), own, strict=True), key=_by_name)
    return f"crc32:{joined(part for _, part in parts).crc32:08x}" if parts else None


def _by_name(part: tuple[str, Checksum]) -> tuple[str, int, int]:
    name, checksum = part
    return name, checksum.nbytes, checksum.crc32


def input_rows(checkpoints: Iterable[Checkpoint]) -> list[dict[str, Any]]:
    """One row per file that the checkpoints depend on: ``{model, file, bytes, crc32}``.

    ``model`` is a full path, or a hub id, and ``file`` relative to it; the files of other folders are told by their
    full path. Files are summed while they are read; what was never read is read here. Tensors in memory have no
    files.

    Raises:
        IsomergeError: a file changed since it was opened, or cannot be read.
    """
    rows, checkpoints = [], list(checkpoints)
    owned = {file for checkpoint in checkpoints for file in checkpoint.own_files}
    for checkpoint in checkpoints:
        elsewhere = owned.difference(checkpoint.own_files)  # in the rows of the model that lends it
        sums = {file: checksum for file, checksum in checkpoint.checksums().items() if file not in elsewhere}
        config = checkpoint.folder / CONFIG
        if sums and config.is_file():
            sums[config] = file_checksum(config)
        rows += [{**_named(checkpoint, file), **checksum.document()} for file, checksum in sorted(sums.items())]
    return [row for number, row in enumerate(rows) if row not in rows[:number]]


def _named(checkpoint: Checkpoint, file: Path) -> dict[str, str]:
    """``{model, file}``, without what tells only where this machine keeps its files."""
    first = _parts(checkpoint.ref)[0]
    named = _ID.fullmatch(first) or os.path.exists(os.path.expanduser(first))  # not a stack's slices, nor a part
    if named and file.is_relative_to(checkpoint.folder):
        return {"model": _full(first), "file": file.relative_to(checkpoint.folder).as_posix()}
    for part in _parts(checkpoint.ref):
        folder = Path(os.path.expanduser(part))
        if file.is_relative_to(folder):
            return {"model": _full(part), "file": file.relative_to(folder).as_posix()}
    return {"model": checkpoint.ref, "file": _full(str(file))}


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


def input_states(report: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    """The rows of a report's inputs, each with its ``state``: unchanged, changed, or absent from where it was.

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


def _with_state(row: Mapping[str, Any], path: Path) -> dict[str, Any]:
    wanted = Checksum.read(row, f"{path}: input {row['file']!r}")

    def same(file: Path) -> bool:
        return file.stat().st_size == wanted.nbytes and file_checksum(file) == wanted

    where = _find_input(row)
    if where is not None:
        state = "unchanged" if same(where) else "changed"
    else:
        state = "unchanged" if any(map(same, _moved_along(row, path.parent))) else "absent"
    return {"model": row["model"], "file": row["file"], **wanted.document(), "state": state}


def _moved_along(row: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """Where an input may be that was moved together with the output, in a folder of both: the end of its path, as
    seen from the folders that the output is in."""
    place = Path(os.path.expanduser(str(row["model"]))) / os.path.expanduser(str(row["file"]))
    if not place.is_absolute():
        return
    for above in folder.absolute().parents:
        for start in range(1, len(place.parts) - 1):
            if (moved := above.joinpath(*place.parts[start:])).is_file():
                yield moved


def _find_input(row: Mapping[str, Any]) -> Path | None:
    """The file of a row on this machine, in a folder or in the hub's cache; None where it is not here. Downloads
    nothing.
    """
    model, file = str(row["model"]), os.path.expanduser(str(row["file"]))
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

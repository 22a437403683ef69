"""Which files went into an output, with their checksums, and where they are now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isomerge.checkpoint.checksums import Checksum, file_checksum
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.references import parse_model_ref
from isomerge.errors import IsomergeError


def input_rows(checkpoints: Iterable[Checkpoint]) -> list[dict[str, Any]]:
    """One row per file that the checkpoints depend on: ``{model, file, bytes, crc32}``.

    ``file`` is relative to the folder that ``model`` names; the files of other folders are told by their full path.
    Files are summed while they are read; what was never read is read here. Tensors in memory have no files.

    Raises:
        IsomergeError: a file changed since it was opened, or cannot be read.
    """
    rows = []
    for checkpoint in checkpoints:
        sums = checkpoint.checksums()
        config = checkpoint.folder / CONFIG
        if sums and config.is_file():
            sums[config] = file_checksum(config)
        rows += [{**_named(checkpoint, file), **found.document()} for file, found in sorted(sums.items())]
    return [row for number, row in enumerate(rows) if row not in rows[:number]]


def _named(checkpoint: Checkpoint, file: Path) -> dict[str, str]:
    """``{model, file}``, without what tells only where this machine keeps its files."""
    if file.is_relative_to(checkpoint.folder):
        return {"model": _parts(checkpoint.ref)[0], "file": file.relative_to(checkpoint.folder).as_posix()}
    for part in _parts(checkpoint.ref):
        folder = Path(os.path.expanduser(part))
        if file.is_relative_to(folder):
            return {"model": part, "file": file.relative_to(folder).as_posix()}
    home = Path.home()
    return {
        "model": checkpoint.ref,
        "file": f"~/{file.relative_to(home).as_posix()}" if file.is_relative_to(home) else file.as_posix(),
    }


def _parts(ref: str) -> tuple[str, ...]:
    """A reference's model and adapters; what is none (the name of a class) is one part."""
    try:
        found = parse_model_ref(ref)
    except IsomergeError:
        return (ref,)
    return (found.model, *found.adapters)


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
    where = _find_input(row)
    state = "absent"
    if where is not None:
        same = where.stat().st_size == wanted.nbytes and file_checksum(where) == wanted
        state = "unchanged" if same else "changed"
    return {"model": row["model"], "file": row["file"], **wanted.document(), "state": state}


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

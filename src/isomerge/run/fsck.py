"""Checking a finished output against its own report: files, checksums, headers, index, shapes, finite numbers,
inputs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from zlib_ng.zlib_ng import crc32

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from isomerge.checkpoint.checksums import Checksum, file_checksum, open_regular
from isomerge.checkpoint.disk import read_into
from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.header import TensorInfo, read_header
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.weights import PICKLE, STEMS, is_plain_name
from isomerge.errors import IsomergeError
from isomerge.evidence.card import REPORT
from isomerge.evidence.parents import CARD
from isomerge.files import disk_errors
from isomerge.models.recognised import recognise
from isomerge.pieces import all_finite
from isomerge.progress import Observer
from isomerge.records import Json, Record, inline
from isomerge.run.provenance import InputFile, input_states
from isomerge.run.report_file import PIPELINE_REPORT, REPORTS, is_as_written

PIECE = 1 << 22
"""Bytes that are in memory at a time; a multiple of every element size."""
EDITED = "it is not the report that was written: it was edited since, or an early version wrote it"
_REMEDY = "give a folder that isomerge merge, align, apply or canon wrote"
_STEMS = "|".join(
    (*STEMS, PICKLE.removesuffix(".bin"), ADAPTER_WEIGHTS.removesuffix(".safetensors"), "consolidated")
)
_LOADED = re.compile(rf"(.*/)?(({_STEMS}).*\.(safetensors|bin)|.*\.index\.json|{re.escape(ADAPTER_CONFIG)})")
"""Files that change what is loaded from a folder, where they lie in it."""


class FileState(Record):
    """A file of an output: ``ok``, ``missing`` or ``damaged``."""

    file: str
    state: str
    checksum: Checksum = inline()


class Problem(Record):
    """What is wrong with a file."""

    file: str
    problem: str


class Checkup(Record):
    """Whether an output is what was written."""

    out: str
    sound: bool
    problems: Sequence[Problem]
    report: str
    """Whether it is ``ok`` or ``changed``, a problem."""
    files: Sequence[FileState]
    strangers: Sequence[str]
    """Files that the run did not write."""
    inputs: Sequence[InputFile]
    """With their states; changed ones are no problem of the output."""
    command: str = "fsck"


@dataclass
class _Check:
    """One output as it is looked through."""

    folder: Path
    observer: Observer
    spec: str | Path | None
    files: dict[str, Checksum]
    states: list[FileState] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seen: int = 0

    @property
    def total(self) -> int:
        return sum(checksum.nbytes for checksum in self.files.values())

    def problem(self, file: str, text: str) -> None:
        self.problems.append(Problem(file, text))

    def file(self, name: str) -> None:
        """One file of the report: there, of its size and checksum; of safetensors the header and the numbers as
        well.
        """
        self.observer(name, self.seen, self.total)
        wanted, path, before = self.files[name], self.folder / name, len(self.problems)
        try:
            if not os.path.lexists(path):
                raise IsomergeError("it is missing")
            checksum = self._weights(name, path) if name.endswith(".safetensors") else file_checksum(path)
            if checksum.nbytes != wanted.nbytes:
                self.problem(name, f"it has {checksum.nbytes} bytes, but {wanted.nbytes} were written")
            elif checksum != wanted:
                self.problem(name, "its checksum is not that of what was written: it has changed since")
        except IsomergeError as error:
            self.problem(name, str(error))
        state = "ok" if len(self.problems) == before else "missing" if not os.path.lexists(path) else "damaged"
        self.states.append(FileState(name, state, checksum=wanted))
        self.seen += wanted.nbytes

    def _weights(self, name: str, path: Path) -> Checksum:
        """Header and tensors of a file in one pass; its checksum."""
        try:
            infos = read_header(path)[0]
        except IsomergeError as error:
            if (checksum := file_checksum(path)) == self.files[name]:
                raise
            self.problem(name, f"its header is damaged: {error}")
            return checksum
        with disk_errors(path, "reading"), open_regular(path) as fd:
            crc, position = 0, 0
            for info in [*infos.values(), None]:
                start, end = (info.offset, info.offset + info.nbytes) if info else (os.fstat(fd).st_size,) * 2
                for piece in _pieces(fd, position, start):  # the header, before the first tensor
                    crc = crc32(piece, crc)
                finite = True
                for piece in _pieces(fd, start, end):
                    crc = crc32(piece, crc)
                    self.observer(name, self.seen + start, self.total)
                    finite = finite and (info is None or _finite(piece, info))
                if not finite and info is not None and not self._meant(path, info.name):
                    self.problem(name, f"tensor {info.name} has NaN or infinite values")
                position = end
        return Checksum(position, crc)

    def _meant(self, path: Path, tensor: str) -> bool:
        """Whether a tensor's infinities are meant: the spec says so of bounds."""
        try:
            recognise(path.parent, spec_file=self.spec, unmoved=True).read(tensor, None)
        except (IsomergeError, KeyError):
            return False
        return True

    def structure(self) -> None:
        """Config, index, shards and shapes of every model in the folder agree, and the weights loaded are those
        written.
        """
        names = {PurePosixPath(name) for name in self.files}
        homes = {name.parent for name in names if name.suffix == ".safetensors" and name.stem.startswith(STEMS)}
        for home in sorted(homes):
            if home / CONFIG not in names:
                self.problem(str(home / CONFIG), "the report does not list it beside the weights")
                continue
            try:
                checkpoint = recognise(self.folder / home, spec_file=self.spec, unmoved=True).checkpoint
            except IsomergeError as error:
                self.problem(str(home / CONFIG), str(error))
                continue
            strange = [
                f for f in checkpoint.files if PurePosixPath(f.relative_to(self.folder).as_posix()) not in names
            ]
            for file in strange:
                self.problem(file.name, "it is loaded in place of the weights that were written: remove it")

    def strangers(self) -> list[str]:
        """Files beside those of the report, relative; one that changes what is loaded is a problem."""
        strangers = []
        for root, folders, files in os.walk(self.folder):
            folders.sort()
            strangers += [(Path(root) / file).relative_to(self.folder).as_posix() for file in sorted(files)]
        strangers = [name for name in strangers if name not in self.files and name != REPORT]
        named = {problem.file for problem in self.problems}
        for name in strangers:
            if _LOADED.fullmatch(name) and name not in named:
                self.problem(name, "the run did not write it, and it may be loaded with the weights: remove it")
        return strangers


def _check_alone(folder: Path) -> None:
    """Refuse what has a report for each of its parts, and a report on a part of a single file.

    Raises:
        IsomergeError: it says where to look.
    """
    above = folder.absolute().parent
    whole = above.parent if above.name == REPORTS else folder
    if not (whole / PIPELINE_REPORT).is_file():
        return
    if whole == folder and (components := sorted(folder.glob(f"*/{REPORT}"))):
        raise IsomergeError(
            f"{folder} is a pipeline, of which every merged component has a report: give the folder of one, such "
            f"as {components[0].parent}"
        )
    raise IsomergeError(
        f"{whole}: no report has the checksum of what is in one file, or was copied whole: to see whether it is "
        "still what was written, merge once more into another folder, and compare the files"
    )


def fsck(out: str | Path, *, spec: str | Path | None = None, observer: Observer) -> Checkup:
    """Check a finished output against its report, in one pass over its files.

    Args:
        out: the folder.
        spec: the spec file of an architecture that isomerge does not know.
        observer: told of files and bytes.

    Raises:
        IsomergeError: no folder, no readable report, or one without checksums: there is nothing to check against;
            or a pipeline, whose components are checked one by one.
    """
    checkup, report = _checkup(out, spec, observer)
    return replace(checkup, inputs=input_states(report, Path(os.path.expanduser(out)) / REPORT))


def _checkup(out: str | Path, spec: str | Path | None, observer: Observer) -> tuple[Checkup, Json]:
    """What `fsck` finds of the output itself, whose inputs are not read; and its report."""
    folder = Path(os.path.expanduser(out))
    if not folder.is_dir():
        raise IsomergeError(f"{out}: no such folder; {_REMEDY}")
    _check_alone(folder)
    report = read_object(folder / REPORT, remedy=_REMEDY)
    own_spec = report.get("spec")
    if spec is None and isinstance(own_spec, str) and os.path.isfile(own_spec):
        spec = own_spec  # by which the output was written
    check = _Check(folder, observer, spec, _written(report, folder / REPORT))
    if not (as_written := is_as_written((folder / REPORT).read_bytes())):
        check.problem(REPORT, EDITED)
    state = "ok" if as_written else "changed"
    for name in sorted(check.files):
        check.file(name)
    check.structure()
    strangers = check.strangers()
    observer("", check.total, check.total)
    return Checkup(str(out), not check.problems, check.problems, state, check.states, strangers, ()), report


def changes_of(out: str | Path, *, spec: str | Path | None = None, observer: Observer) -> list[str]:
    """What of an output is not, or not any more, what its run wrote, but for the card, which people edit: what
    `fsck` finds of the output itself, in a sentence for each file. Where that has nothing to check by (a part of a
    single file) the report tells of itself alone.

    Args: as of `fsck`; a folder with a readable report.
    """
    try:
        problems = _checkup(out, spec, observer)[0].problems
    except IsomergeError:
        raw = (Path(os.path.expanduser(out)) / REPORT).read_bytes()
        problems = [] if is_as_written(raw) else [Problem(REPORT, EDITED)]
    return [f"{each.file}: {each.problem}" for each in problems if PurePosixPath(each.file).name != CARD]


def _written(report: Mapping[str, Any], path: Path) -> dict[str, Checksum]:
    """The report's checksums by file. Raises IsomergeError unless they are of files within the folder."""
    files = report.get("files")
    if not isinstance(files, dict) or not files:
        raise IsomergeError(f"{path} has no checksums: an earlier version of isomerge wrote it; write it again")
    for name in files:
        if not all(is_plain_name(part) for part in name.split("/")):
            raise IsomergeError(f"{path}: {name!r} is no file name within the folder; this report is damaged")
    return {name: Checksum.read(entry, f"{path}: {name!r}") for name, entry in files.items()}


def _pieces(fd: int, start: int, end: int) -> Any:
    """The bytes from ``start`` to ``end`` in one buffer, again and again. Raises IsomergeError where the file ends
    early.
    """
    buffer = memoryview(bytearray(min(PIECE, max(end - start, 0))))
    while start < end:
        piece = buffer[: end - start]
        if read_into(fd, piece, start) < len(piece):
            raise IsomergeError("it became shorter while it was read")
        yield piece
        start += len(piece)


def _finite(piece: memoryview, info: TensorInfo) -> bool:
    """Whether some of a tensor's numbers are finite; integers are, and so is what torch has no type for."""
    try:
        dtype: torch.dtype = torch.float32 if info.dtype == "C64" else torch_dtype(info.dtype)
    except IsomergeError:
        return True
    if not dtype.is_floating_point:
        return True
    return all_finite(torch.frombuffer(piece, dtype=dtype))

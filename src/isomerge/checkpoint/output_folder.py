"""The folder that a run writes: it lies apart from all that is read, grows under a partial name, is locked, and is
published by a rename."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isomerge.checkpoint.companions import MODEL_FILES, WEIGHTS
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors, flush
from isomerge.lock import give_back, take


def check_out(out: Path, *, overwrite: bool, reads: Iterable[Path] = ()) -> None:
    """Raises IsomergeError when ``out`` exists, is not an empty folder, and must not be replaced. A file never is.

    What is read (``reads``, files and folders) is never replaced, nor written into (see `check_apart`). With
    ``overwrite`` a folder is not replaced either where the current folder is in it, nor where it is a folder of
    other folders and no checkpoint. The current folder itself, even empty, would no longer be the one that a shell
    is in.
    """
    with disk_errors(out, "looking at"):
        if out.is_dir() and out.samefile(os.curdir):  # which has no name where it was removed
            raise IsomergeError(
                f"{out} is the current folder, which cannot be replaced; choose a folder in it, or run the "
                f"command elsewhere"
            )
        check_apart(out, reads)
        if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
            return
        if overwrite:
            if os.path.exists(out) and not out.is_dir():
                raise IsomergeError(f"{out} is a file, which no folder replaces; choose another output folder")
            _check_replaceable(out)
            return
    raise IsomergeError(
        f"{out} exists and is not an empty folder; choose another output folder, "
        "or pass --overwrite to replace it once the new checkpoint is complete"
    )


def _check_replaceable(out: Path) -> None:
    """See `check_out`. Raises OSError."""
    place = Path(os.path.realpath(out))
    if place in Path.cwd().parents:
        raise IsomergeError(
            f"{out} holds the current folder: --overwrite would remove it; choose another output folder"
        )
    if not out.is_dir() or out.is_symlink():
        return
    names = [path.name for path in out.iterdir()]
    known = any(name in MODEL_FILES or name.endswith(".safetensors") for name in names)
    if not known and (folders := sorted(name for name in names if (out / name).is_dir())):
        raise IsomergeError(
            f"{out} is no checkpoint, and holds folders ({folders[0]}): --overwrite replaces none such; choose "
            "another output folder, or remove this one yourself"
        )


MARK = "isomerge"
"""An empty file in every unfinished folder of ours: what lacks it is somebody else's, and is neither replaced nor
removed."""
BLOBS = "blobs"
"""The folder in an unfinished one of what a run keeps for itself."""


def unfinished_root(out: Path) -> Path:
    """Where an output grows until it is complete: beside it."""
    return out.parent / f".{out.name}.partial"


class PartialFolder:
    """``.<name>.partial`` beside ``out``, held by one process at a time.

    Whatever else has that name, such as a file of the user's, stops the run. Within it ``model`` becomes ``out`` by
    one rename, so that ``out`` is always absent, whole, or what it was; ``journal`` and ``blobs`` are beside
    ``model`` and stay valid until after that rename.
    """

    def __init__(self, out: Path, *, overwrite: bool, reads: Iterable[Path] = ()) -> None:
        """Checks ``out`` and takes the lock; removes and creates nothing else but missing parents of ``out``.

        Raises IsomergeError when ``out`` exists and must not be replaced (see `check_out`), when something that is
        not ours is in the folder's place, when another process holds the lock, or when the parent folder cannot be
        written.
        """
        if not out.name:
            raise IsomergeError(f"{out} cannot be an output folder; name a new folder")
        self.out = out
        self.overwrite = overwrite
        self.reads = tuple(reads)
        self.root = unfinished_root(out)
        self.model = self.root / "model"
        self.blobs = self.root / BLOBS
        self.journal = self.root / "journal.jsonl"
        self._replaced = self.root / "replaced"
        self._lock_path = out.parent / f".{out.name}.lock"
        check_out(self.out, overwrite=self.overwrite, reads=self.reads)
        check_apart(self.root, self.reads)
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = self._locked()
        try:
            self._check_place()
            self._restore()
            check_out(self.out, overwrite=self.overwrite, reads=self.reads)
        except BaseException:
            self.release()
            raise

    def _locked(self) -> int:
        try:
            return take(self._lock_path, wait=False)
        except BlockingIOError as error:
            raise IsomergeError(
                f"another process is writing {self.out}; wait until it is done or choose another output folder"
            ) from error

    def _check_place(self) -> None:
        """Raises IsomergeError where the folder's place is taken by what we have not made, and something would be
        lost."""
        with disk_errors(self.root, "looking at"):
            if not os.path.lexists(self.root) or self.root.is_symlink() or self._is_marked():
                return
            empty = not any(self.root.iterdir()) if self.root.is_dir() else self.root.stat().st_size == 0
            if not empty:
                raise IsomergeError(
                    f"{self.root} is in the way: unfinished output goes there, and isomerge has not made it; "
                    "rename or remove it, or choose another output folder"
                )

    def _is_marked(self) -> bool:
        return (self.root / MARK).is_file() and self.root.is_dir() and not self.root.is_symlink()

    def _restore(self) -> None:
        """Puts back what ``out`` held, when a run died between moving it aside and the final rename."""
        with disk_errors(self.out):
            if self._is_marked() and os.path.lexists(self._replaced) and not os.path.lexists(self.out):
                os.rename(self._replaced, self.out)

    def is_ours(self) -> bool:
        """Whether the folder is one that this user made: not a link, nor what somebody left in a shared folder.
        Raises OSError.
        """
        status = os.lstat(self.root)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()

    def has_blobs(self) -> bool:
        """Whether the folder of side files is there, or could be made. Raises OSError."""
        if not os.path.lexists(self.blobs):
            self.blobs.mkdir()
        return self.blobs.is_dir() and not self.blobs.is_symlink()

    def remove_blob(self, name: str) -> None:
        """Removes what is in a side file's place: a file, a link or a folder, or nothing. Raises OSError."""
        _remove(self.blobs / name)

    def begin(self) -> None:
        """Makes the folder anew and empty."""
        self._check_place()
        with disk_errors(self.root):
            _remove(self.root)
            self.root.mkdir()
            (self.root / MARK).touch()
            self.model.mkdir()
            self.blobs.mkdir()

    def publish(self) -> None:
        """Renames ``model`` to ``out``, replacing it only with ``overwrite``; then removes everything else.

        Raises IsomergeError when ``out`` was filled meanwhile or cannot be replaced; nothing is lost then.
        """
        check_out(self.out, overwrite=self.overwrite, reads=self.reads)
        with disk_errors(self.out):
            if os.path.lexists(self.out) and (not self.out.is_dir() or any(self.out.iterdir())):
                os.rename(self.out, self._replaced)
            try:
                os.rename(self.model, self.out)
            except OSError:
                self._restore()
                raise
            flush(self.out.parent)
            if os.path.lexists(self._replaced):
                # Under another name first: a half-deleted folder must never be taken for one to restore.
                os.rename(self._replaced, self.root / "trash")
        self.discard()  # the checkpoint is complete: a leftover that resists is no reason to call the run a failure

    def discard(self) -> None:
        """Removes the folder, as far as it can be and is ours, and keeps the lock."""
        if not self._is_marked():
            return
        with suppress(OSError):
            for path in self.root.iterdir():
                if path.name != MARK:  # the last to go: what is left of the folder stays ours
                    _remove(path)
            shutil.rmtree(self.root, ignore_errors=True)

    def release(self) -> None:
        """Gives up the lock; the folder stays as it is."""
        if self._lock is not None:
            give_back(self._lock_path, self._lock)
            self._lock = None


@contextmanager
def written_at_once(out: Path, *, overwrite: bool, reads: Iterable[Path] = ()) -> Iterator[PartialFolder]:
    """A new, empty folder for what no later run can go on with: published where nothing is raised, else removed.

    Raises IsomergeError as `PartialFolder` does.
    """
    folder = PartialFolder(out.absolute(), overwrite=overwrite, reads=reads)
    try:
        folder.begin()
        yield folder
        folder.publish()
    finally:
        folder.discard()
        folder.release()


def _remove(path: Path) -> None:
    """Removes a file, a link or a folder, if there is one. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_Place = tuple[int, int]
"""What a folder or file is, whatever it is called: its device and its number there."""


def check_apart(out: Path, reads: Iterable[Path]) -> None:
    """Refuse an output folder that would replace what is read, or that would grow inside of it.

    Folders are told by what they are and not by their names: through links, ``x/../A``, other letters' cases where
    the file system does not tell them apart, and mounts.

    Args:
        out: the folder, there or not.
        reads: files that are read, and folders of which all is read.

    Raises:
        IsomergeError: naming what is read.
    """
    place, above = _place(out), dict(_above(out))
    for file in dict.fromkeys(reads):
        if place is not None and place in (_place(file), *map(_place, _whole(file))):
            raise IsomergeError(
                f"{out} is read, and would be replaced by what is made of it; choose another output folder"
            )
        if place is not None and place in dict(_above(file)):
            raise IsomergeError(
                f"{out} holds {file}, which is read: --overwrite would remove it; choose another output folder"
            )
        for folder in _whole(file):
            if (inside := _place(folder)) is not None and inside in above:
                raise IsomergeError(
                    f"{out} lies in {folder}, which is read: an input stays as it is; choose another output folder"
                )


def _place(path: Path) -> _Place | None:
    """What is at a path, behind links; None where nothing is."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _above(path: Path) -> Iterator[tuple[_Place, Path]]:
    """The folders that a path lies in: as it is written, and where it really is."""
    for way in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
        for folder in way.parents:
            if (place := _place(folder)) is not None:
                yield place, folder


def _whole(file: Path) -> Iterator[Path]:
    """The folders that are read with a file: a folder itself, the model of weights, and its repository in the hub's
    cache."""
    if file.is_dir():
        yield file
    elif file.suffix in WEIGHTS and any((file.parent / name).is_file() for name in MODEL_FILES):
        yield file.parent
        if file.parent.parent.name == "snapshots":
            yield file.parent.parent.parent

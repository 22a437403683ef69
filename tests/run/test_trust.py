"""A full disk, too little memory, two writers, folders that others planted: nothing is lost and nothing half is
published.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.cli.app import main
from isomerge.errors import DiskFullError, IsomergeError
from solve.disguises import files_of, single

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two unrelated toys."""
    folder = tmp_path_factory.mktemp("pair")
    return single("gpt2", folder / "a"), single("gpt2", folder / "b", 5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that holds 600 kB; only where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)]
    if (
        os.geteuid()
        or not shutil.which("mount")
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def room(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def test_every_way_to_fill_a_disk(small_disk: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    """With less and less room: a sentence, inputs as they were, no output; with room again, the same bytes."""
    a, b = pair
    before = files_of(a.parent)
    isomerge.merge([a, b], out=tmp_path / "whole", out_shard_size=60_000)
    ballast, out = small_disk / "ballast", small_disk / "out"
    stopped = resumed = 0
    for left in range(200_000, 420_000, 24_000):
        ballast.write_bytes(b"x" * max(room(small_disk) - left, 0))
        try:
            isomerge.merge([a, b], out=out, out_shard_size=60_000)
            said = None
        except IsomergeError as error:
            said = error
        if said is None:
            ballast.unlink()
            assert files_of(out) == files_of(tmp_path / "whole")
            shutil.rmtree(out)
        else:
            stopped += 1
            assert "disk" in str(said)
            assert not out.exists()
            partial = (small_disk / ".out.partial" / "journal.jsonl").exists()
            assert partial == isinstance(said, DiskFullError)
            resumed += partial
        assert files_of(a.parent) == before
        ballast.unlink(missing_ok=True)
    assert stopped > 2
    assert resumed > 0
    isomerge.merge([a, b], out=out, out_shard_size=60_000)
    assert files_of(out) == files_of(tmp_path / "whole")


LIMITED = textwrap.dedent("""
    import resource, signal, sys
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), -1))
    from isomerge.cli.app import main
    main()
""")


def test_a_limit_on_files(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """`ulimit -f`, in a process of its own: the shard does not fit, and there is no output."""
    command = [sys.executable, "-c", LIMITED, "100000", "merge", *map(str, pair), "-o", str(tmp_path / "out"), "-q"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert said.returncode == 2, said.stderr
    assert "the disk is full" in said.stderr
    assert len([line for line in said.stderr.splitlines() if not line.startswith("warning: ")]) == 1
    assert not (tmp_path / "out").exists()


ERRORS = {
    "Python": MemoryError(),
    "torch": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"
    ),
    "accelerator": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "mapping": OSError(12, os.strerror(12)),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_out_of_memory(
    kind: str,
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the middle of a merge: one sentence, no output, and the same command goes on where it stopped."""
    from isomerge.checkpoint import reader

    original, count = reader.map_private, 0

    def fails(*arguments):
        nonlocal count
        count += 1
        if count == 40:
            raise ERRORS[kind]
        return original(*arguments)

    out = tmp_path / "out"
    monkeypatch.setattr(reader, "map_private", fails)
    monkeypatch.setattr("sys.argv", ["isomerge", "merge", *map(str, pair), "-o", str(out), "-q"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("isomerge: out of memory")
    assert len(said.splitlines()) == 1
    assert not out.exists()
    assert (tmp_path / ".out.partial" / "journal.jsonl").read_text().count("\n") > 2
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert isomerge.fsck(out)["sound"]


def test_other_errors_are_not_hidden(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the program is not called a lack of memory."""
    from isomerge.checkpoint import reader

    def fails(*_):
        raise RuntimeError("a fault")

    monkeypatch.setattr(reader, "map_private", fails)
    monkeypatch.setattr("sys.argv", ["isomerge", "merge", *map(str, pair), "-o", str(tmp_path / "out")])
    with pytest.raises(RuntimeError, match="a fault"):
        main()


def test_two_processes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The second refuses while the first writes; the first is not disturbed."""
    code = textwrap.dedent("""
        import sys, isomerge
        a, b, out = sys.argv[1:]
        def observer(unit, done, total):
            if unit and not unit.startswith("looking "):
                print("writing", flush=True)
                sys.stdin.readline()
        isomerge.merge([a, b], out=out, observer=observer)
    """)
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, *map(str, pair), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, text=True, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == "writing\n"
    for overwrite in (False, True):
        with pytest.raises(IsomergeError, match=r"another process is writing .*out"):
            isomerge.merge([*pair], out=out, overwrite=overwrite)
    assert not out.exists()
    first.communicate("\n" * 1000, timeout=60)
    assert first.returncode == 0
    assert isomerge.fsck(out)["sound"]
    with pytest.raises(IsomergeError, match="exists"):
        isomerge.merge([*pair], out=out)


def test_links_where_the_output_grows(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """In a folder that others may write to: a planted link is neither written through nor emptied."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine")
    (tmp_path / ".out.partial").symlink_to(victim)
    isomerge.merge([*pair], out=tmp_path / "out")
    assert (victim / "file").read_text() == "mine"
    assert sorted(p.name for p in victim.iterdir()) == ["file"]
    (tmp_path / ".new.lock").symlink_to(victim / "made")
    with pytest.raises(IsomergeError, match=r"\.new\.lock"):
        isomerge.merge([*pair], out=tmp_path / "new")
    assert not (victim / "made").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_partial_folder_of_somebody_else_is_not_gone_on_with(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """It could hold other weights under the right names."""
    from isomerge.checkpoint.writer import CheckpointWriter, OutTensor

    plan = [OutTensor("x", "F32", (2,))]
    with CheckpointWriter(tmp_path / "m", plan, key="k") as writer:
        writer.write("x", torch.ones(2))
        writer.commit("u", {})
    with CheckpointWriter(tmp_path / "m", plan, key="k") as writer:
        assert writer.resumed
    os.chown(tmp_path / ".m.partial", 12345, 12345)
    with CheckpointWriter(tmp_path / "m", plan, key="k") as writer:
        assert not writer.resumed


def test_everything_is_on_the_disk_before_the_rename(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder of the output is flushed after it was last written, and the rename comes after all of
    them.
    """
    events: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    fsync, rename, real_open = os.fsync, os.rename, os.open

    def opened(path, *arguments, **more):
        fd = real_open(path, *arguments, **more)
        names[fd] = os.fspath(path)
        return fd

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(("fsync", names.get(fd, ""))), fsync(fd))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append(("rename", str(b))), rename(a, b))[1])
    out = tmp_path / "out"
    isomerge.merge([*pair], out=out, out_shard_size=60_000)
    model = str(tmp_path / ".out.partial" / "model")
    at = events.index(("rename", str(out)))
    flushed = {path for what, path in events[:at] if what == "fsync"}
    assert {f"{model}/{path.relative_to(out)}" for path in out.rglob("*")} <= flushed
    assert model in flushed
    assert ("fsync", str(tmp_path)) in events[at:]

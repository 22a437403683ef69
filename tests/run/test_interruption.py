"""Killed runs: the output folder is absent or whole, and the second run ends with the bytes of an undisturbed
one."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import isomerge
from depth import more
from imported import METHOD
from isomerge.checkpoint.output_folder import PartialFolder
from isomerge.checkpoint.writer import CheckpointWriter
from isomerge.errors import IsomergeError
from isomerge.merging.fusing import Fuser
from isomerge.models.recognised import recognise
from isomerge.run.writing_run import Output, StreamWriter
from solve.disguises import files_of, single

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

KILLED = textwrap.dedent("""
    import os, signal, sys
    import torch
    torch.set_num_threads(1)
    import isomerge
    what, a, b, out, at, *how = sys.argv[1:]
    seen = 0
    def observer(unit, done, total):
        global seen
        if seen and unit.startswith("looking whether"):
            return  # the look at the models counts once
        if seen == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
    if what == "merge":
        spaces = how[0] if how else None
        isomerge.merge([a, b], out=out, out_shard_size=60_000, observer=observer, spaces=spaces)
    elif what == "align":
        isomerge.align(b, onto=a, out=out, out_shard_size=60_000, observer=observer)
    else:
        isomerge.apply(what, b, out=out, out_shard_size=60_000, observer=observer)
""")


def run(what: str, a: Path, b: Path, out: Path, at: int, *how: str) -> int:
    """Run in a process of its own that kills itself at a work unit; the return code."""
    command = [sys.executable, "-c", KILLED, what, str(a), str(b), str(out), str(at), *how]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode


@pytest.mark.parametrize(
    ("name", "what", "at"),
    [("gpt2", "align", 20), ("t5-gated", "merge", 14), *more(("gpt2", "merge", 0), ("gpt2", "merge", 9))],
)
def test_killed_and_run_again(name: str, what: str, at: int, tmp_path: Path) -> None:
    """SIGKILL at a unit: no output folder; the second run goes on and writes what one run would have."""
    a, b = single(name, tmp_path / "a"), single(name, tmp_path / "b", 5)
    out = tmp_path / "runs" / "out"
    assert run(what, a, b, out, at) == -signal.SIGKILL
    assert not out.exists()
    assert (out.parent / ".out.partial").is_dir()
    solved = []
    again = {"out_shard_size": 60_000, "observer": lambda unit, done, total: solved.append(unit)}
    for folder in (out, tmp_path / "whole"):
        if what == "merge":
            isomerge.merge([a, b], out=folder, **again)
        else:
            isomerge.align(b, onto=a, out=folder, **again)
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert files_of(out) == files_of(tmp_path / "whole")


def test_finished_units_are_not_solved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal spares the work that was done, and only that."""
    from isomerge.run.unit_work import UnitWork

    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    assert run("merge", a, b, tmp_path / "out", 9, "default") == -signal.SIGKILL
    solved = []
    original = UnitWork.solve
    with monkeypatch.context() as watched:
        watched.setattr(UnitWork, "solve", lambda self, unit: [solved.append(unit.key), original(self, unit)][1])
        isomerge.merge([a, b], out=tmp_path / "out", out_shard_size=60_000, spaces="default")
    units = []
    how = {"out_shard_size": 60_000, "spaces": "default"}
    isomerge.merge([a, b], out=tmp_path / "whole", **how, observer=lambda u, *_: units.append(u))
    # the run that was killed looked at one unit first, and wrote one less; what was being written behind may be
    # lost
    assert solved in (units[8:-1], units[7:-1])


def test_other_inputs_start_anew(tmp_path: Path) -> None:
    """A partial folder of other inputs or settings is not continued."""
    a, b, c = (single("gpt2", tmp_path / tag, seed) for seed, tag in enumerate("abc"))
    assert run("merge", a, b, tmp_path / "out", 9, "ff") == -signal.SIGKILL
    for name in ("out", "whole"):
        isomerge.merge([a, c], out=tmp_path / name, out_shard_size=60_000, spaces="ff")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_killed_apply(tmp_path: Path) -> None:
    """The same for the replay of a patch."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    alignment, _ = isomerge.align(b, onto=a, spaces="ff")
    alignment.save(tmp_path / "patch.safetensors")
    assert run(str(tmp_path / "patch.safetensors"), a, b, tmp_path / "out", 9) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    for name in ("out", "whole"):
        isomerge.apply(tmp_path / "patch.safetensors", b, out=tmp_path / name, out_shard_size=60_000)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_killed_run_leaves_what_was_there(tmp_path: Path) -> None:
    """With overwrite, the old folder stands until the new one is whole."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    out = tmp_path / "out"
    isomerge.merge([a, b], out=out, spaces="ff")
    before = files_of(out)

    class Stop(BaseException):
        pass

    def observer(unit: str, done: int, total: int) -> None:
        if done > total / 2:
            raise Stop

    with pytest.raises(Stop):
        isomerge.merge([b, a], out=out, overwrite=True, observer=observer, spaces="ff")
    assert files_of(out) == before
    isomerge.merge([b, a], out=out, overwrite=True, spaces="ff")
    isomerge.merge([b, a], out=tmp_path / "whole", spaces="ff")
    assert files_of(out) == files_of(tmp_path / "whole")


def test_interrupt_leaves_a_folder_to_resume(tmp_path: Path) -> None:
    """Ctrl-C keeps the finished units; a second run of other bytes is not needed for them."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)

    def observer(unit: str, done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isomerge.merge([a, b], out=tmp_path / "out", observer=observer)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.partial" / "journal.jsonl").read_text().count("\n") > 5


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Every write to a shard beyond the first few finds the disk full."""
    from isomerge.checkpoint import tensor_place, writer

    count = 0
    original = writer.write_from
    assert original is tensor_place.write_from

    def fails(*args):
        nonlocal count
        count += 1
        if count > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args)

    for module in (writer, tensor_place):
        monkeypatch.setattr(module, "write_from", fails)


def test_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one sentence, and there is no output folder."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    full_disk(monkeypatch, 12)
    with pytest.raises(IsomergeError, match=r"disk is full.*run the same command again"):
        isomerge.merge([a, b], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_full_disk_leaves_a_folder_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says that the same command goes on where it stopped, so the partial folder must be there."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    full_disk(monkeypatch, 12)
    with pytest.raises(IsomergeError, match=r"disk is full"):
        isomerge.merge([a, b], out=tmp_path / "out")
    assert (tmp_path / ".out.partial" / "journal.jsonl").is_file()


def test_bad_input_leaves_nothing_where_out_is_a_link(tmp_path: Path) -> None:
    """The unfinished folder is beside what the link leads to, and is removed there."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    weights = load_file(b / "model.safetensors")
    next(iter(weights.values())).fill_(float("nan"))
    save_file(weights, b / "model.safetensors", metadata={"format": "pt"})
    there = tmp_path / "disk" / "out"
    there.mkdir(parents=True)
    (tmp_path / "out").symlink_to(there)
    with pytest.raises(IsomergeError, match="NaN"):
        isomerge.merge([a, b], out=tmp_path / "out")
    assert list(there.parent.iterdir()) == [there]


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_output_that_was_filled_meanwhile(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All work is done: it is kept, and the same command does no more than publish it."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    out = tmp_path / "out"

    def fill(unit: str, done: int, total: int) -> None:
        out.mkdir(exist_ok=True)
        (out / "precious.txt").write_text("keep")

    with pytest.raises(IsomergeError, match=r"exists and is not an empty folder.*the same command goes on"):
        isomerge.merge([a, b], out=out, observer=fill)
    assert files_of(out) == {"precious.txt": b"keep"}
    if not overwrite:
        (out / "precious.txt").unlink()
    monkeypatch.setattr(Fuser, "fuse", lambda *_, **__: pytest.fail("a unit is fused again"))
    isomerge.merge([a, b], out=out, overwrite=overwrite)
    assert (out / "model.safetensors").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "out"}


def test_an_unfinished_folder_is_removed_under_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another process may have begun its own there; and once the lock is given up nothing is removed."""
    donor = recognise(single("gpt2", tmp_path / "a"))
    remove, refused = shutil.rmtree, []

    def removed(path: Path, **how: bool) -> None:
        if path.name == ".out.partial":
            with pytest.raises(IsomergeError, match="another process is writing"):
                PartialFolder(tmp_path / "out", overwrite=False)
            refused.append(path)
        remove(path, **how)

    monkeypatch.setattr(shutil, "rmtree", removed)
    with pytest.raises(IsomergeError, match="bad"), StreamWriter(donor, Output(tmp_path / "out"), "k"):
        raise IsomergeError("bad")
    assert len(refused) == 1
    stream = StreamWriter(donor, Output(tmp_path / "out"), "k")
    stream.writer.close()
    with (
        CheckpointWriter(tmp_path / "out", [], key="another process"),
        pytest.raises(IsomergeError, match="bad"),
        stream,
    ):
        raise IsomergeError("bad")
    assert (tmp_path / ".out.partial").is_dir()


def test_another_spec_starts_anew(tmp_path: Path) -> None:
    """A spec file that was edited after the interruption counts for every unit."""
    from isomerge.archs import spec_texts

    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    spec = tmp_path / "mine.spec"
    spec.write_text(spec_texts()["gpt2"][1])

    def stop(unit: str, done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isomerge.merge([a, b], out=tmp_path / "out", spec=spec, observer=stop)
    spec.write_text(spec.read_text().replace("space ff: Perm[l]", "space ff: Fixed"))
    for name in ("out", "whole"):
        isomerge.merge([a, b], out=tmp_path / name, spec=spec)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_an_interrupted_apply_goes_on(tmp_path: Path) -> None:
    """A killed apply keeps its units, another alignment with the same keys starts anew; both end as a clean run
    does."""
    a, b, c = (single("gpt2", tmp_path / name, seed) for name, seed in (("a", 0), ("b", 5), ("c", 9)))
    first, other = (isomerge.align(b, onto=anchor, spaces="ff")[0] for anchor in (a, c))
    assert set(first) == set(other)
    clean = {}
    for name, patch in (("first", first), ("other", other)):
        isomerge.apply(patch, b, out=tmp_path / name)
        clean[name] = (tmp_path / name / "model.safetensors").read_bytes()

    class KilledError(Exception):
        """Stands for a kill: no clean-up of bad input."""

    for name, patch in (("first", first), ("other", other)):
        seen: list[str] = []

        def stop(unit: str, done: int, total: int, seen: list[str] = seen) -> None:
            seen.append(unit)
            if len(seen) == 8:
                raise KilledError

        with pytest.raises(KilledError):
            isomerge.apply(first, b, out=tmp_path / f"out-{name}", observer=stop)
        isomerge.apply(patch, b, out=tmp_path / f"out-{name}")
        assert (tmp_path / f"out-{name}" / "model.safetensors").read_bytes() == clean[name]


IMPORTING = textwrap.dedent("""
    import os, signal, sys
    import torch
    torch.set_num_threads(1)
    import isomerge
    a, b, own, out, at = sys.argv[1:]
    seen = 0
    def observer(unit, done, total):
        global seen
        if seen == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        seen += not unit.startswith("looking whether")
    isomerge.merge([a, b], out=out, align=False, method="pulled", imports=own, out_shard_size=60_000, observer=observer)
""")
READS = {
    "beside it": "from scratch_beside import PULL",
    "when it is called": "import scratch_package",
}
"""How the module of the method comes to what is edited."""


def pulled(way: str) -> str:
    """A module that registers a method, and reads a number from another module."""
    inside = "    from scratch_package.inner import PULL\n" if way == "when it is called" else ""
    return METHOD.replace("    return", f"{inside}    return").replace("+ pull", "+ PULL") + READS[way] + "\n"


@pytest.mark.parametrize("way", READS)
def test_an_edited_plug_in_starts_anew(way: str, tmp_path: Path) -> None:
    """What a method's module imports is edited between a kill and the next run: the output is that of the new code
    alone. It was of two codes. Mutant: `code_digest` without what a module imports."""
    a, b = single("gpt2", tmp_path / "a"), single("gpt2", tmp_path / "b", 5)
    own, place = tmp_path / "code" / "scratch_own.py", tmp_path / "code" / "scratch_package"
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    edited = place / "inner.py" if way == "when it is called" else own.with_name("scratch_beside.py")
    own.write_text(pulled(way))

    def merged(out: str, at: int = 10**6) -> int:
        command = [sys.executable, "-c", IMPORTING, str(a), str(b), str(own), str(tmp_path / out), str(at)]
        return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode

    edited.write_text("PULL = 0.5\n")
    assert merged("out", 14) == -signal.SIGKILL
    assert len((tmp_path / ".out.partial" / "journal.jsonl").read_text().splitlines()) > 3
    edited.write_text("PULL = 0.125\n")
    assert merged("out") == merged("whole") == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")

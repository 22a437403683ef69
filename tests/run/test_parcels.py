"""What workers of a cluster are given and give back, without a cluster: same bytes, little to carry, wrong files
refused."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import isomerge
from isomerge.checkpoint import checksums
from isomerge.errors import ClusterError, IsomergeError, UnfinishedError
from isomerge.files import open_fd
from isomerge.run.cluster import connection
from isomerge.run.cluster import parcel as parcels
from isomerge.run.cluster.parcel import Parcel, pack, unpack
from isomerge.run.cluster.ray_engine import remove_at_once
from isomerge.run.cluster.worker import SolvedUnit, solve_unit, take_unit
from isomerge.run.engines import engine_of
from isomerge.run.local_engine import Demand, LocalEngine
from isomerge.run.unit_work import UnitWork
from run.parcel_engine import ParcelEngine, use
from solve.disguises import disguise, files_of, perturb, single

pytestmark = [
    pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here"),
    pytest.mark.matched("of layers: else strangers' streams are matched as well, and small changes not at all"),
]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "aligned": ("gpt2", {}),
    "streams, many": ("llama", {"spaces": "all", "anchor": "none"}),
    "task vectors": ("mixtral", {"method": "ties", "parameters": {"density": 0.5}, "base_model": "base"}),
    "random": ("bert", {"method": "dare_linear", "parameters": {"density": 0.5}, "base_model": "base"}),
    "moved task vectors": ("llama", {"method": "task_arithmetic", "base_model": "base", "source_bases": ["near"]}),
    "transport": ("gpt2", {"match": "ot-wts"}),
    "as stored": ("llama", {"align": False, "dtype": "bfloat16"}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_travels_is_all_that_is_needed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units solved from what was pickled: the bytes of the local engine, the report's checksums of inputs among
    them."""
    name, how = CASES[case]
    made = {"base": single(name, tmp_path / "base", 7), "a": single(name, tmp_path / "a")}
    made["near"] = perturb(made["a"], tmp_path / "near", 0.2)
    made["b"] = disguise(name, made["near"], tmp_path / "b", 3)
    how = {**how}
    for key in {"base_model", "source_bases"} & how.keys():
        how[key] = made[how[key]] if key == "base_model" else [made[ref] for ref in how[key]]
    isomerge.merge([made["a"], made["b"]], out=tmp_path / "local", jobs=1, **how)
    use(engine := ParcelEngine(), monkeypatch)
    isomerge.merge([made["a"], made["b"]], out=tmp_path / "out", **how)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")
    assert len(engine.sent) > 3
    assert max(engine.sent) < 1000  # paths
    assert max(engine.returned) < 10_000  # figures and checksums of tensors, never the tensors


def test_views_and_models_in_memory_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter merged in as it is read, and a model that has no files at all."""
    import transformers

    a = single("llama", tmp_path / "a")
    near = perturb(a, tmp_path / "near", 0.1)
    isomerge.extract_lora(near, a, out=tmp_path / "lora", rank=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(near)
    given = [f"{a}+{tmp_path / 'lora'}", (model.state_dict(), model.config)]
    isomerge.merge(given, out=tmp_path / "local", jobs=1)
    isomerge.merge([a, near], out=tmp_path / "plain", jobs=1)
    use(ParcelEngine(), monkeypatch)
    isomerge.merge(given, out=tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")
    assert files_of(tmp_path / "out")["model.safetensors"] != files_of(tmp_path / "plain")["model.safetensors"]


class StopError(Exception):
    """Raised by an engine that has seen enough."""


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[UnitWork, Parcel]:
    """The work on two GPT-2s, and its parcel in a folder of its own."""
    a = single("gpt2", tmp_path / "a")
    b = disguise("gpt2", a, tmp_path / "b", 3)
    found: list[UnitWork] = []

    class Seen:
        def run(self, work: UnitWork, demand: Demand) -> Any:
            found.append(work)
            raise StopError

    (tmp_path / "shared").mkdir()
    with monkeypatch.context() as context:
        use(Seen(), context)
        with pytest.raises(StopError):
            isomerge.merge([a, b], out=tmp_path / "out", spaces="all")
    return found[0], pack(found[0], tmp_path / "shared")


def matched(work: UnitWork) -> int:
    """The number of a unit with elements to find."""
    return next(n for n, unit in enumerate(work.units) if unit.elements)


def test_another_process_solves_the_same(packed: tuple[UnitWork, Parcel], tmp_path: Path) -> None:
    """With another hash seed, and nothing but what travels."""
    work, parcel = packed
    number = matched(work)
    (tmp_path / "task").write_bytes(pickle.dumps((parcel, number)))
    code = """
import pickle, sys
from dataclasses import replace
from pathlib import Path
from isomerge.run.cluster.worker import solve_unit
Path(sys.argv[2]).write_bytes(pickle.dumps(solve_unit(*pickle.loads(Path(sys.argv[1]).read_bytes()))))
"""
    where = [str(tmp_path / "task"), str(tmp_path / "result")]
    subprocess.run([sys.executable, "-c", code, *where], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    there: SolvedUnit = pickle.loads((tmp_path / "result").read_bytes())
    here = solve_unit(parcel, number)
    assert there.crc32 == here.crc32
    assert len(here.crc32) > 1
    assert there.records == here.records
    assert there.file != here.file  # no attempt writes over another one's
    found, tensors = take_unit(work, work.units[number], there)
    expected, written = unpack(parcel).solve(work.units[number])
    assert tensors.keys() == written.keys()
    assert all((tensors[name] == written[name]).all() for name in written)
    assert found[0].elements.keys() == expected[0].elements.keys()
    assert not Path(there.file).exists()


def other_file(work: UnitWork, parcel: Parcel) -> None:
    os.utime(work.models[1].checkpoint.files[0], ns=(1, 1))


def lost_file(work: UnitWork, parcel: Parcel) -> None:
    work.models[1].checkpoint.files[0].unlink()


def other_folder(work: UnitWork, parcel: Parcel) -> None:
    shutil.rmtree(Path(parcel.path).parent)


def forged(work: UnitWork, parcel: Parcel) -> None:
    Path(parcel.path).write_bytes(pickle.dumps(print))


def no_tensors(work: UnitWork, parcel: Parcel) -> None:
    Path(parcel.path).with_suffix(".safetensors").unlink()


def other_tensors(work: UnitWork, parcel: Parcel) -> None:
    path = Path(parcel.path).with_suffix(".safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"?")


REFUSED: dict[str, tuple[Callable[[UnitWork, Parcel], None], str]] = {
    "another checkpoint": (other_file, r"does not see what the driver sees: .*b/model.safetensors is not the file"),
    "no checkpoint": (lost_file, r"does not see what the driver sees: .*b/model.safetensors cannot be read"),
    "no folder": (other_folder, r"cannot read .*shared.*No such file.*: the output must be in a folder that all"),
    "another parcel": (forged, r"work-.*pickle is not what the driver has written"),
    "no tensors": (no_tensors, r"cannot read .*shared.*No such file.*: the output must be in a folder that all"),
    "other tensors": (other_tensors, r"work-.*pickle is not what the driver has written"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_machine_that_sees_other_files_is_refused(case: str, packed: tuple[UnitWork, Parcel]) -> None:
    """By a sentence that names the machine and the file, before a weight is read; what is done stays."""
    change, sentence = REFUSED[case]
    assert unpack.__wrapped__(packed[1]).units == packed[0].units
    change(*packed)
    with pytest.raises(ClusterError, match=sentence):
        unpack.__wrapped__(packed[1])
    assert issubclass(ClusterError, UnfinishedError)


def test_other_releases_are_refused(packed: tuple[UnitWork, Parcel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that computes: bytes might differ."""
    mine = parcels.versions()
    monkeypatch.setattr(parcels, "versions", lambda: {**mine, "torch": "1.0"})
    with pytest.raises(ClusterError, match=rf"has torch 1\.0, but the driver has {mine['torch'][:3]}"):
        unpack.__wrapped__(packed[1])


def test_another_mode_of_mkl_is_refused(packed: tuple[UnitWork, Parcel], monkeypatch: pytest.MonkeyPatch) -> None:
    """It rounds otherwise; a driver that has none of its own takes what the workers have."""
    monkeypatch.setattr(parcels, "mkl_mode", lambda: "OFF")
    with pytest.raises(
        ClusterError, match=rf"computes with MKL_CBWR=OFF, but the driver with {packed[1].mkl}: set"
    ):
        unpack.__wrapped__(packed[1])
    assert unpack.__wrapped__(replace(packed[1], mkl=None)).units == packed[0].units


def test_a_unit_that_arrives_damaged_is_refused(packed: tuple[UnitWork, Parcel]) -> None:
    """One byte of its file, or the whole file; what a worker has read must be what others have read."""
    work, parcel = packed
    number = matched(work)
    unit = work.units[number]
    for harm in (lambda data: bytes([*data[:-1], data[-1] ^ 1]), lambda data: data[:40]):
        solved = solve_unit(parcel, number)
        path = Path(solved.file)
        path.write_bytes(harm(path.read_bytes()))
        with pytest.raises(ClusterError, match=r"is not as .* has written it"):
            take_unit(work, unit, solved)
    solved = solve_unit(parcel, number)
    file, offset, nbytes, crc32 = solved.read[1][0]
    other = SolvedUnit(
        solved.file, solved.records, solved.crc32, [[], [(file, offset, nbytes, crc32 ^ 1)]], "elsewhere"
    )
    take_unit(work, unit, solve_unit(parcel, number))
    with pytest.raises(ClusterError, match=r"elsewhere has read other bytes from .*model\.safetensors"):
        take_unit(work, unit, other)
    lost = solve_unit(parcel, number)
    Path(lost.file).unlink()
    with pytest.raises(ClusterError, match=rf"reading {lost.file} failed: No such file"):
        take_unit(work, unit, lost)


def refused_file(name: str) -> Callable[..., Any]:
    """An `open_fd` of a machine that may not open files of this name."""

    def opened(path: Path, *how: int) -> Any:
        if path.parent.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_fd(path, *how)

    return opened


def test_a_machine_that_may_not_read_a_checkpoint_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done stays for another one, unlike where the input is at fault."""
    a = single("gpt2", tmp_path / "a")
    b = disguise("gpt2", a, tmp_path / "b", 3)
    solve, done = UnitWork.solve, []

    def solved(work: UnitWork, unit: Any) -> Any:
        if len(done) == 3:
            monkeypatch.setattr("isomerge.checkpoint.reader.open_fd", refused_file("b"))
        done.append(unit.key)
        return solve(work, unit)

    with monkeypatch.context() as context:
        use(ParcelEngine(), context)
        context.setattr(UnitWork, "solve", solved)
        with pytest.raises(ClusterError) as told:
            isomerge.merge([a, b], out=tmp_path / "out")
    assert re.search(
        rf"{socket.gethostname()}: .*b/model.safetensors: tensor .*Permission denied.* all machines",
        str(told.value),
    )
    monkeypatch.undo()
    rest: list[str] = []
    isomerge.merge([a, b], out=tmp_path / "out", observer=lambda unit, *_: rest.append(unit))
    assert not set(done[:3]) & set(rest)


def test_engines_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown ones, an address without a cluster, and Ray that is not installed: sentences, before anything is
    written."""
    a = single("gpt2", tmp_path / "a")
    merge = {"models": [a, a], "out": tmp_path / "out"}
    with pytest.raises(IsomergeError, match=r"engine='spark'.*: choose from local, ray"):
        isomerge.merge(**merge, engine="spark")
    with pytest.raises(IsomergeError, match=r"address='auto'.* is that of a Ray cluster: add engine='ray'"):
        isomerge.align(a, onto=a, address="auto")
    with engine_of("local") as engine:
        assert isinstance(engine, LocalEngine)
    monkeypatch.setattr("isomerge.run.cluster.connection.find_spec", lambda name: None)
    with pytest.raises(IsomergeError, match=r"engine='ray'.* needs Ray.*pip install 'isomerge\[ray\]'"):
        isomerge.merge(**merge, engine="ray")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_engine_is_closed_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when writing fails in the middle: no unit is left to be worked on."""
    a = single("gpt2", tmp_path / "a")
    ended = []

    class Ending(LocalEngine):
        def run(self, work: UnitWork, demand: Demand) -> Any:
            try:
                yield from super().run(work, demand)
            finally:
                ended.append(len(demand.units))

    def observer(unit: str, done: int, total: int) -> None:
        if done:
            raise StopError

    use(Ending(), monkeypatch)
    with pytest.raises(StopError):
        isomerge.merge([a, a], out=tmp_path / "out", observer=observer)
    assert ended
    assert ended[0] > 3


def test_the_cluster_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of this machine alone unless an address is given; left as it was found; one that does not answer is
    told."""
    import ray

    asked: list[dict[str, Any]] = []
    stopped: list[bool] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **given: asked.append(given))
    monkeypatch.setattr(ray, "shutdown", lambda: stopped.append(True))
    for address in (None, "head:6379"):
        with connection.connected(address, jobs=3):
            assert len(stopped) + 1 == len(asked)
            assert (
                connection.UNTOLD in os.environ
            )  # units that end beside one that has failed are none of a user's business
        assert connection.UNTOLD not in os.environ
    assert [(given["address"], given.get("num_cpus")) for given in asked] == [("local", 3), ("head:6379", None)]
    assert len(stopped) == 2

    def nobody(**given: Any) -> None:
        raise ConnectionError("Could not find any\nrunning Ray instance.")

    monkeypatch.setattr(ray, "init", nobody)
    with (
        pytest.raises(ClusterError, match=r"--address auto: no cluster answers \(Could not find any running Ray"),
        connection.connected("auto", jobs=None),
    ):
        raise AssertionError
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with connection.connected(None, jobs=None):  # a notebook's own connection
        pass
    assert len(stopped) == 2


@pytest.mark.parametrize(("first", "then"), [("parcel", "local"), ("local", "parcel")])
def test_the_other_engine_goes_on(first: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one engine has written is not done again by the other, and the end is the same."""
    a = single("gpt2", tmp_path / "a")
    b = disguise("gpt2", a, tmp_path / "b", 3)
    engines = {"parcel": ParcelEngine(), "local": LocalEngine()}
    whole: list[str] = []
    isomerge.align(b, onto=a, out=tmp_path / "whole", jobs=1, observer=lambda unit, *_: whole.append(unit))
    seen: list[str] = []

    def stop(unit: str, done: int, total: int) -> None:
        seen.append(unit)
        if len(seen) == 9:
            raise StopError

    use(engines[first], monkeypatch)
    with pytest.raises(StopError):
        isomerge.align(b, onto=a, out=tmp_path / "out", jobs=1, observer=stop)
    use(engines[then], monkeypatch)
    rest: list[str] = []
    isomerge.align(b, onto=a, out=tmp_path / "out", jobs=1, observer=lambda unit, *_: rest.append(unit))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert rest[0] == "checking what was written"
    assert set(rest) - {rest[0]} < set(whole)


def test_what_workers_have_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums of inputs in the report are those of the bytes that workers saw; the driver reads headers
    alone."""
    a = single("gpt2", tmp_path / "a")
    b = disguise("gpt2", a, tmp_path / "b", 3)
    again: list[int] = []
    whole = checksums._read_sum

    def read_sum(fd: int, offset: int, nbytes: int, path: Path) -> checksums.Checksum:
        again.append(offset)
        return whole(fd, offset, nbytes, path)

    monkeypatch.setattr(checksums, "_read_sum", read_sum)
    use(ParcelEngine(), monkeypatch)
    report = isomerge.merge([a, b], out=tmp_path / "out")
    assert set(again) == {0}
    rows = {(row["model"], row["file"]): row for row in report["inputs"]}
    assert rows[str(b), "model.safetensors"]["crc32"] == f"{zlib.crc32((b / 'model.safetensors').read_bytes()):08x}"


def test_no_worker_writes_to_a_folder_that_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is made while a folder is emptied would keep it; it is gone before, and one that was never there
    is no error."""
    folder, emptied = tmp_path / "units", shutil.rmtree
    folder.mkdir()
    (folder / "1.safetensors").touch()

    def late(path: Path, **options: Any) -> None:
        with pytest.raises(FileNotFoundError):
            (folder / "2.safetensors").touch()
        emptied(path, **options)

    monkeypatch.setattr(shutil, "rmtree", late)
    remove_at_once(folder)
    assert not list(tmp_path.iterdir())
    remove_at_once(folder)

"""Modules that are imported for a run: part of its key, and imported by its workers as well."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import isomerge
from imported import METHOD, forgotten
from isomerge.errors import ClusterError
from isomerge.models.recognised import recognise
from isomerge.plug_ins.command import importing
from isomerge.run.cluster.parcel import unpack
from isomerge.run.writing_run import run_key
from run.parcel_engine import ParcelEngine, use
from solve.disguises import files_of, single


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a file that registers a method."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch_own.py").write_text(METHOD)
    with forgotten():
        yield tmp_path


@pytest.mark.parametrize("name", ["scratch_own.py", "scratch_package"])
def test_the_text_is_part_of_the_key(name: str, place: Path) -> None:
    """Of a package that of all its files; without modules a key is what it is."""
    models = [recognise(single("gpt2", place / "m"))]
    (place / "scratch_package").mkdir()
    for file in ("__init__.py", "inner.py"):
        (place / "scratch_package" / file).write_text("x = 1\n")
    changed = place / (name if name.endswith(".py") else f"{name}/inner.py")
    keys = [run_key("merge", models, 1)]
    for text in ("", "", "# another text\n"):
        changed.write_text(changed.read_text() + text)
        with forgotten(), importing([name]):
            keys.append(run_key("merge", models, 1))
    assert keys[1] == keys[2]
    assert len(set(keys)) == 3
    assert run_key("merge", models, 1) == keys[0]


def test_workers_import_alike(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process solves a unit by the method of a file that is imported under a name of its own, and refuses
    another text of it."""
    models = [single("gpt2", place / "a"), single("gpt2", place / "b", 5)]
    how: dict[str, Any] = {"method": "pulled", "imports": "scratch_own.py", "align": False}
    isomerge.merge(models, out=place / "local", **how)
    parcels: list[Any] = []

    class Engine(ParcelEngine):
        def run(self, work: Any, demand: Any):
            """As `ParcelEngine`'s, and once by a worker of its own."""
            from isomerge.run.cluster.parcel import FOLDER, pack

            (demand.folder / FOLDER).mkdir(exist_ok=True)
            parcel = pack(work, demand.folder / FOLDER)
            (place / "task").write_bytes(pickle.dumps((parcel, 0)))
            code = (
                "import pickle, sys; from pathlib import Path; from isomerge.run.cluster.worker import solve_unit\n"
            )
            code += "print(solve_unit(*pickle.loads(Path('task').read_bytes())).machine)"
            paths = os.pathsep.join([str(Path(isomerge.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            parcels.append(parcel)
            (place / "scratch_own.py").write_text(METHOD + "# another text\n")
            with pytest.raises(ClusterError, match=r"another text of .*scratch_own\.py"):
                unpack(parcel)
            (place / "scratch_own.py").rename(place / "away.py")
            with pytest.raises(ClusterError, match=r"cannot import what the driver has imported: .*no such file"):
                unpack(parcel)
            (place / "scratch_own.py").write_text(METHOD)
            yield from super().run(work, demand)

    use(Engine(), monkeypatch)
    isomerge.merge(models, out=place / "out", **how)
    assert [module.name for module in parcels[0].imports] == [str(place / "scratch_own.py")]
    assert files_of(place / "out") == files_of(place / "local")

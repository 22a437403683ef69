"""Modules that are imported for a run: part of its key, and imported by its workers as well."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import isomerge
from imported import METHOD, forgotten
from isomerge.errors import ClusterError
from isomerge.models.recognised import Model, recognise
from isomerge.observe.read_files import data_key
from isomerge.plug_ins import modules
from isomerge.plug_ins.command import given_modules, importing
from isomerge.plug_ins.modules import code_digest, module_of
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


WAYS: dict[str, str] = {
    "beside": "import scratch_beside",
    "by a name": "from scratch_beside import x",
    "in a function": "def later():\n    import scratch_beside",
    "in a class's function": "class A:\n    def later(self):\n        from scratch_beside import x",
    "under a condition": "try:\n    import scratch_beside\nexcept ImportError:\n    pass",
    "by importlib": "import importlib\nbeside = importlib.import_module('scratch_beside')",
    "by another": "import scratch_between",
    "in a package": "import scratch_package",
    "a package's file": "from scratch_package.inner import x",
}
"""How a module may import what is changed."""
PLACES = {"in a package": "scratch_package/inner.py", "a package's file": "scratch_package/inner.py"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Any."""
    return recognise(single("gpt2", tmp_path_factory.mktemp("model") / "m"))


@pytest.mark.parametrize(
    ("way", "door"),
    [*((way, "file") for way in WAYS), *(("by importlib", door) for door in ("module", "function", "package"))],
)
def test_what_it_imports_is_part_of_the_key(
    way: str, door: str, place: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files, modules, functions that give data, and readers of packages: the code of what they import, from
    outside of installed packages; a run went on with the new code of it, and its output was of two codes. Mutant:
    `code_digest` of the first module alone."""
    monkeypatch.syspath_prepend(str(place))
    (place / "scratch_package").mkdir()
    (place / "scratch_package" / "__init__.py").write_text("from . import inner\n")
    (place / "scratch_between.py").write_text("import scratch_beside\n")
    changed = [place / "scratch_beside.py", place / "scratch_package" / "inner.py"]
    for file in changed:
        file.write_text("x = 1\n")
    (place / "scratch_own.py").write_text(f"{WAYS[way]}\ndef rows():\n    yield {{}}\ndef read(*_):\n    pass\n")
    info = place / "scratch-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scratch\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[isomerge.data]\nscratch_data = scratch_own:read\n")

    def key() -> Any:
        with forgotten():
            if door == "function":
                return data_key("scratch_own:rows", model)
            if door == "package":
                return data_key("scratch_data:x", model)
            with importing(["scratch_own.py" if door == "file" else "scratch_own"]):
                return run_key("merge", [model], 1)

    first = key()
    assert key() == first
    file = place / PLACES.get(way, "scratch_beside.py")
    file.write_text("x = 2\n")
    assert key() != first


def test_installed_packages_are_told_by_their_versions(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not read: they have thousands of files. What is loaded counts as it was loaded."""
    site = place / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    for folder in (site, place):
        (folder / f"scratch_in_{folder.name[:4]}.py").write_text("x = 1\n")
    beside = f"scratch_in_{place.name[:4]}"
    (place / "scratch_own.py").write_text(f"import torch, json, scratch_in_site, {beside}\n")
    with importing("scratch_own.py"):
        first = code_digest("scratch_own")
        assert code_digest(given_modules()[0].module) == given_modules()[0].sha256
        texts = {name for module in modules._TEXTS.values() for name in module}
    assert not [name for name in texts if name.startswith(("torch", "json", "scratch_in_site"))]
    (site / "scratch_in_site.py").write_text("x = 2\n")
    (place / f"{beside}.py").write_text("x = 2\n")
    assert code_digest("scratch_own") == first


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


def test_a_function_with_arguments_given_is_of_its_own_module() -> None:
    """And its code is that of no module of Python, whose text says nothing of it."""
    assert module_of(partial(partial(forgotten), "x")) == module_of(forgotten) == forgotten.__module__
    assert module_of(partial(forgotten)) != partial.__module__

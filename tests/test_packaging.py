"""What `pip install isomerge` brings: the source distribution, the wheel built from it, and a fresh environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import isomerge

ROOT = Path(__file__).parents[1]


def build(source: Path, kind: str, out: Path) -> Path:
    """A distribution of a source folder, by the back end that pip calls."""
    # packages of PyPI that are installed here already: nothing is fetched
    code = f"import hatchling.build as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that comes out of the source distribution: what PyPI would serve."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(build(ROOT, "sdist", folder)) as archive:
        archive.extractall(folder / "source", filter="data")
    return build(next((folder / "source").iterdir()), "wheel", folder)


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """Modules, and the data that they read: specs, chat templates, the marker of types, the digits of the demo and what it leaves for the guides."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "isomerge"
    expected = {
        f"isomerge/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in expected} >= {".py", ".spec", ".typed"}
    assert expected <= names
    examples = {
        f"isomerge/examples/{folder}/{path.name}"
        for folder in ("digits", "guide")
        for path in (ROOT / "examples" / folder).iterdir()
        if path.is_file()
    }
    assert examples <= names
    assert not any(name.startswith(("tests/", "benchmarks/", "docs/")) for name in names)


def test_a_fresh_environment_runs_the_program(wheel: Path, tmp_path: Path) -> None:
    """Installed with pip into an empty environment, away from the sources: the command, the types, and a merge.

    What isomerge requires is lent by this environment: its gigabytes are not installed anew.
    """
    home = tmp_path / "fresh"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    # `-P`, and no PYTHONPATH: nothing of the source tree is on the path
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # behind its own packages, so that the installed isomerge comes first
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-P", "-c", "import isomerge; print(isomerge.__file__)").strip()
    assert Path(where).is_relative_to(home)
    assert run(home / "bin" / "isomerge", "--version").split()[-1] == isomerge.__version__
    assert (site / "isomerge" / "py.typed").exists()
    digits = site / "isomerge" / "examples" / "digits"
    first, second = sorted(path for path in digits.iterdir() if path.name.startswith("vit-"))[:2]
    report = run(home / "bin" / "isomerge", "merge", first, second, "-o", tmp_path / "out", "-q", "--json", "-")
    assert json.loads(report)["command"] == "merge"
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_what_is_said_of_the_project_agrees() -> None:
    """pyproject.toml, CITATION.cff and the package name one version, licence and home."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == citation["version"] == isomerge.__version__
    assert project["license"] == citation["license"]
    assert project["urls"]["Homepage"] == citation["repository-code"]
    assert {"title", "authors", "message", "cff-version"} <= set(citation)


def test_the_workflow_runs_what_people_run() -> None:
    """The workflow of GitHub calls targets that the Makefile has, and no commands of its own."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in commands} == {"test", "docs"}
    assert all(command.startswith("make ") for command in commands)

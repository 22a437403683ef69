"""``isomerge --help`` is printed from a table; it says what the program itself would say."""

from __future__ import annotations

import errno
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from isomerge.cli.app import main
from isomerge.cli.overview import TAGLINE, overview
from isomerge.cli.program import app
from isomerge.doors import COMMANDS


@pytest.mark.parametrize("argument", ["-h", "--help"])
def test_help_is_the_overview(isomerge: Callable, argument: str) -> None:
    """Both spellings, on standard output."""
    said = isomerge(argument)
    assert (said.code, said.out.strip()) == (0, overview().strip())


def test_the_package_is_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m isomerge`` is the same program."""
    monkeypatch.setattr("sys.argv", ["isomerge", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("isomerge", run_name="__main__")
    assert capsys.readouterr().out.strip() == overview().strip()


def test_without_arguments_it_is_shown_as_an_error(isomerge: Callable) -> None:
    """A script that forgot its arguments should not go on."""
    assert isomerge().code == 2


def test_it_says_what_the_program_says() -> None:
    """Typer's own help: the same words in the same order, but for the last line, which is the overview's own."""
    own = CliRunner().invoke(app, ["--help"], prog_name="isomerge").output
    *said, _ = overview().strip().splitlines()
    assert " ".join(own.split()) == " ".join(" ".join(said).split())


def test_every_command_is_told_in_a_line() -> None:
    """Typer would cut what is longer."""
    assert TAGLINE
    sentences = {name: said for name, (_, said) in COMMANDS.items()}
    assert {name: said for name, said in sentences.items() if not 0 < len(said) <= 60 or said.endswith("...")} == {}
    commands: Any = typer.main.get_command(app)
    assert list(COMMANDS) == [command.name for command in commands.commands.values()]
    assert {command.short_help for command in commands.commands.values()} == set(sentences.values())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
@pytest.mark.parametrize("command", ["--help", "methods"])
def test_full_standard_output_is_one_sentence(command: str) -> None:
    """As of ``isomerge diff A B > FILE`` on a full disk."""
    code = "from isomerge.cli.app import main; main()"
    with Path("/dev/full").open("wb") as full:
        said = subprocess.run([sys.executable, "-c", code, command], stdout=full, stderr=subprocess.PIPE, text=True)
    sentence = "isomerge: the disk is full while writing to standard output; free space there\n"
    assert (said.returncode, said.stderr) == (2, sentence)


def test_a_full_disk_without_a_name_is_not_said_to_be_standard_output(
    isomerge: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to some open file of a library's, say."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("isomerge.cli.app._run", full)
    said = isomerge("diff", "a", "b")
    assert (said.code, said.err) == (2, "isomerge: the disk is full; free space on it\n")


def test_a_full_disk_where_standard_output_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """``isomerge diff A B >&-`` has no stream to look at."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("isomerge.cli.app._run", full)
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert capsys.readouterr().err == "isomerge: the disk is full; free space on it\n"


def test_nobody_reads_what_is_said(tmp_path: Path) -> None:
    """With stdout closed the command says nothing and ends as it would; where its reader has left, with the code of
    a broken pipe."""
    run = f"{sys.executable} -m isomerge methods"
    assert subprocess.run(["bash", "-c", f"{run} >&-"], capture_output=True, timeout=60).returncode == 0
    for more in ("", " --json - -q"):
        left = subprocess.run(
            ["bash", "-c", f"{run}{more} | true; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (left.stdout.strip(), left.stderr) == ("141", "")


def test_a_library_for_which_there_is_no_memory_is_no_traceback(
    isomerge: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the address space is limited."""

    def lacking() -> None:
        raise ImportError("libtorch_cpu.so: failed to map segment: Cannot allocate memory")

    monkeypatch.setattr("isomerge.cli.app._run", lacking)
    said = isomerge("diff", "a", "b")
    assert said.code == 2
    assert said.err.startswith("isomerge: out of memory")


def test_methods_for_programs(isomerge: Callable, tmp_path: Path) -> None:
    """A parameter that has no default has none in JSON."""
    assert isomerge("methods", "-q", "--json", tmp_path / "methods.json").code == 0
    found = {row["method"]: row for row in json.loads((tmp_path / "methods.json").read_text())["methods"]}
    t = {"per_model": False, "default": None, "required": True, "type": "float"}
    assert found["slerp"]["parameters"]["t"] == t
    assert found["ties"]["parameters"]["lambda"]["default"] == 1.0

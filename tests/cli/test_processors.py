"""On a busy machine threads that wait sleep; on an idle one, or where somebody has chosen, nothing is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isomerge.cli import processors

# user nice system idle iowait irq softirq steal guest guest_nice
STAT = "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu1 {busy} 0 0 {idle} 0 0 0 0 0 0\nintr 5\n"


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's own account, of two processors that are this process's."""
    for name in processors.CHOICES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # restored at the end, whatever is set in between
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(processors, "STAT", file := tmp_path / "stat")
    file.write_text(STAT.format(busy=100, idle=100))
    return file


@pytest.mark.parametrize(("busy", "idle", "asleep"), [(20, 0, True), (17, 3, True), (10, 10, False), (0, 0, False)])
def test_threads_sleep_where_the_processors_are_busy(stat: Path, busy: int, idle: int, asleep: bool) -> None:
    """This process alone keeps one of two busy: half of all ticks are idle then."""
    before = processors.ticks()
    assert before == (200, 400)
    stat.write_text(STAT.format(busy=100 + busy, idle=100 + idle))
    processors.wait_asleep_where_busy(before)
    assert (os.environ.get("OMP_WAIT_POLICY") == "PASSIVE") is asleep


def test_what_somebody_has_chosen_stays(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine does."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    before = processors.ticks()
    stat.write_text(STAT.format(busy=120, idle=100))
    processors.wait_asleep_where_busy(before)
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize("text", [None, "", "cpu0 1 2\ncpu1 x y z 1 2\n"])
def test_systems_that_do_not_tell(stat: Path, text: str | None) -> None:
    """No account, or another one: nothing is changed."""
    before = processors.ticks()
    stat.unlink() if text is None else stat.write_text(text)
    processors.wait_asleep_where_busy(before)
    assert "OMP_WAIT_POLICY" not in os.environ


def test_one_processor_has_nobody_to_wait_for() -> None:
    """No threads, no waiting."""
    assert not processors.are_busy((0, 0), (0, 20), 1)
    assert processors.are_busy((0, 0), (0, 20), 2)

"""The tiers: the list names tests that exist, and `make test` notices what is slow and not listed."""

from __future__ import annotations

import json

import pytest

import tiers

pytest_plugins = ["pytester"]

TESTS = """
import tiers

RUNS = []

def test_cheap():
    tiers.processor_seconds.now += tiers.LIMIT * tiers.MARGIN

def test_listed():
    tiers.processor_seconds.now += 100

def test_slow_at_first():
    RUNS.append(1)
    tiers.processor_seconds.now += 4 / len(RUNS) ** 2

def test_slow(tmp_path):
    (tmp_path / "made").mkdir()
    tiers.processor_seconds.now += 4

def test_end_to_end():
    tiers.processor_seconds.now += 4
"""


class Clock:
    """Processor time that passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Five tests, of which two are listed, and one of these runs end to end."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(tiers, "processor_seconds", Clock())
    monkeypatch.setattr(tiers, "TIMES", pytester.path / "tests" / "times.json")
    monkeypatch.setattr(tiers, "END_TO_END", {"test_it.py::test_end_to_end": "all of it"})
    pytester.makepyfile(test_it=TESTS)
    tiers.TIMES.parent.mkdir()
    tiers.write_times({"test_it.py::test_listed": 100, "test_it.py::test_end_to_end": 4.0})
    return pytester


def test_listed_tests_exist(request: pytest.FixtureRequest) -> None:
    """As far as this run has collected their files whole."""
    config = request.config
    parts = {argument.partition("::")[0] for argument in config.args if "::" in argument}
    listed = [n for n in [*tiers.read_times(), *tiers.END_TO_END] if not n.startswith(tuple(parts))]
    assert tiers.gone(listed, config.stash[tiers.COLLECTED]) == [], "python tools/test_times.py --only FILES"


def test_what_is_gone() -> None:
    """A test is gone where its file is, or where its file has been collected without it."""
    listed = ["tests/a.py::test_a", "tests/test_tiers.py::test_b", "tests/test_doors.py::test_c"]
    assert tiers.gone(listed, ["tests/test_tiers.py::test_a"]) == listed[:2]
    assert tiers.gone(listed, ["tests/a.py::test_a"]) == []
    assert tiers.gone(listed, ["tests/a.py::test_a"], everywhere=True) == listed[1:]


@pytest.mark.usefixtures("suite")
def test_the_list_is_read_as_written() -> None:
    """Parameters may hold what parts an id."""
    times = {"tests/a.py::test_a[b::c/d é]": 1.2, "tests/a.py::test_a[x]": 2.0, "tests/b.py::C::test": 0.7}
    tiers.write_times(times)
    assert tiers.read_times() == times


def test_fast_tier(suite: pytest.Pytester) -> None:
    """What is not listed, and the runs end to end; what is slow warm as well is named."""
    run = suite.runpytest_inprocess("-p", "tiers", "--tier", "fast")
    run.assert_outcomes(passed=4, warnings=1, deselected=1)
    run.stdout.fnmatch_lines(
        [
            "*test_it.py::test_slow takes 4.0 s of processor time, where `make test` expects at most "
            f"{tiers.LIMIT * tiers.MARGIN:.1f} s: make it cheaper, or `python tools/test_times.py --only test_it.py` records it for `make test-slow`"
        ]
    )


def test_slow_tier(suite: pytest.Pytester) -> None:
    """What is listed, and does not run end to end; nothing is judged."""
    suite.runpytest_inprocess("-p", "tiers", "--tier", "slow").assert_outcomes(passed=1, deselected=4)


def test_recording(suite: pytest.Pytester) -> None:
    """Every test's seconds: the lesser ones where once more may show what is paid once."""
    suite.runpytest_inprocess("-p", "tiers", "--record-times", str(suite.path)).assert_outcomes(passed=5)
    records = dict(json.loads(line) for line in (suite.path / "alone.jsonl").read_text().splitlines())
    calls, cold = ({n.partition("::")[2]: s[k] for n, s in records.items()} for k in ("call", "cold"))
    expected = {
        "test_cheap": tiers.LIMIT * tiers.MARGIN,
        "test_listed": 100,
        "test_slow_at_first": 1.0,
        "test_slow": 4.0,
        "test_end_to_end": 4.0,
    }
    assert calls == pytest.approx(expected)
    assert cold == pytest.approx(expected | {"test_slow_at_first": 4.0})


def test_a_bypass_says_why(pytester: pytest.Pytester) -> None:
    """A marker that puts a part of the product out of action has a reason beside it."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.matched
        def test_it():
            pass
        """
    )
    run = pytester.runpytest_inprocess("-p", "bypasses")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(
        ['*test_a_bypass_says_why.py::test_it: @pytest.mark.matched says no reason: matched("why")']
    )

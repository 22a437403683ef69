"""Two tiers of tests, by measured processor time: `make test` takes what is cheap and ten runs end to end, `make
test-slow` the rest.

A test is slow where `times.json` lists it, which `tools/test_times.py` writes: all that took more than `LIMIT`. In
`make test` one that is not listed and takes far longer is named in a warning, and passes: a machine's speed decides no
test. Judged is the processor time of the test's call, in its process and those that it waits for. What is paid once per process
(imports, toys that are saved, a first compilation) falls on whichever test comes first; so a test that seems slow runs
once more, and the lesser time counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

TIMES = Path(__file__).with_name("times.json")
LIMIT = 0.2
"""Seconds above which a test is listed, and so is slow: with 0.3 `make test` takes six minutes on two cores."""
MARGIN = 5.0
"""How much longer than `LIMIT` an unlisted test takes unnamed. Between machines of one generation, and with a neighbour on
the same core, processor times differ by a factor of two; a test that is slow by mistake is slow by more."""
TWICE = 5.0
"""Seconds above which a recording does not run a test once more: so much is not paid once."""
COLLECTED = pytest.StashKey[list[str]]()
"""The tests of this run before any is left out."""

RUNS = {
    "the program in a process of its own, and what it writes": ("tests/cli/test_commands.py::test_as_a_program",),
    "a merge that is killed and goes on": ("tests/checkpoint/test_resume.py::test_killed_process_is_resumed",),
    "a moved copy is aligned and verified: LayerNorm before layers, behind them, with shared heads; RMSNorm with a gain, "
    "over heads, in two stacks, before experts": tuple(
        f"tests/solve/test_planted.py::test_moved_copy_comes_back[{case}]"
        for case in (
            "gpt2-untied-4.0", "bert-100.0", "deberta-shared-4.0", "llama-100.0", "qwen3-4.0", "t5-gated-4.0", "mixtral-100.0",
        )
    ),
    "twins have one canonical form": (
        *(
            f"tests/quotient/test_canonical.py::test_twins_have_one_canonical_form[{name}]"
            for name in ("gpt2-untied", "qwen3", "t5-gated", "mixtral")
        ),
        "tests/quotient/test_canonical.py::test_in_float32_rounding_is_divided_by_gaps[bert]",
    ),
    "a merge is a function of orbits": ("tests/solve/test_headline_law.py::test_merge_is_a_function_of_orbits[gpt2-untied]",),
    "a recipe, with data": ("tests/cli/test_commands.py::test_recipe_with_data",),
    "adapters become one, which its base takes": ("tests/merging/test_merge_lora.py::test_it_merges_into_the_base",),
    "strangers are matched whole, and the match is learned": (
        "tests/cli/test_decides.py::test_strangers_are_matched_whole_and_learned",
    ),
    "a report and its figures": ("tests/cli/test_report.py::test_page_of_a_merge",),
    "how models stand to one another has its verdict": ("tests/cli/test_commands.py::test_diff",),
}  # fmt: skip
"""Ten runs end to end, which `make test` takes however long they are: what they show, and their tests."""
END_TO_END = {node: run for run, nodes in RUNS.items() for node in nodes}


def read_times() -> dict[str, float]:
    """The slow tests' recorded seconds."""
    files: dict[str, dict[str, float]] = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    return {f"{file}::{test}": seconds for file, tests in files.items() for test, seconds in tests.items()}


def write_times(times: Mapping[str, float]) -> None:
    """Writes the list, by file."""
    files: dict[str, dict[str, float]] = {}
    for node, seconds in sorted(times.items()):
        file, _, test = node.partition("::")
        files.setdefault(file, {})[test] = round(seconds, 1)
    TIMES.write_text(json.dumps(files, indent=1, ensure_ascii=False) + "\n")


def gone(listed: Collection[str], collected: Collection[str], *, everywhere: bool = False) -> list[str]:
    """Those listed tests that are no more: their file is not there, or has been collected without them.

    Args:
        listed, collected: ids.
        everywhere: whether all files have been collected, so that a file without tests has none.
    """
    ids, files = set(collected), {node.partition("::")[0] for node in collected}
    return [
        node
        for node in listed
        if node not in ids
        and (everywhere or (file := node.partition("::")[0]) in files or not (TIMES.parents[1] / file).exists())
    ]


def processor_seconds() -> float:
    """Of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--tier` and `--record-times`."""
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=("fast", "slow"), help="run the tests of one tier alone (tests/tiers.py)")
    group.addoption("--record-times", metavar="FOLDER", help="write every test's processor seconds there")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the times where they are judged or recorded."""
    if config.getoption("--tier") == "fast" or config.getoption("--record-times"):
        config.pluginmanager.register(Watch(config), "tests' times")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other tier out."""
    config.stash[COLLECTED] = [item.nodeid for item in items]
    tier = config.getoption("--tier")
    if tier is None:
        return
    slow = read_times().keys() - END_TO_END.keys()
    left = [item for item in items if (item.nodeid in slow) != (tier == "slow")]
    items[:] = [item for item in items if (item.nodeid in slow) == (tier == "slow")]
    if left:
        config.hook.pytest_deselected(items=left)


class Watch:
    """Measures tests, names what is slow in the fast tier, and records."""

    def __init__(self, config: pytest.Config) -> None:
        self.judges = config.getoption("--tier") == "fast"
        self.seconds: dict[str, float] = {}
        folder = config.getoption("--record-times")
        worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        self.record = Path(folder) / f"{worker}.jsonl" if folder else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        return (yield from self._phase("setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        return (yield from self._phase("call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        return (yield from self._phase("teardown"))

    def _phase(self, phase: str) -> Iterator[None]:
        began = processor_seconds()
        try:
            return (yield)
        finally:
            self.seconds[phase] = round(processor_seconds() - began, 2)

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test, and once more where it seems slow."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports, seconds = self._run(item, nextitem)
        cold = seconds["call"]
        allowed = LIMIT * MARGIN if self.judges else LIMIT
        again = cold > allowed and (cold <= TWICE if self.record else item.nodeid not in END_TO_END)
        if again and all(report.passed for report in reports):
            reports, warm = self._run(item, nextitem)
            seconds["call"] = min(cold, warm["call"])
        if self.record:
            with self.record.open("a") as file:
                file.write(json.dumps([item.nodeid, seconds | {"cold": cold}]) + "\n")
        elif again and seconds["call"] > allowed:
            item.warn(pytest.PytestWarning(_sentence(item.nodeid, seconds["call"])))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> tuple[list[pytest.TestReport], dict[str, float]]:
        self.seconds = dict.fromkeys(("setup", "call", "teardown"), 0.0)
        return runtestprotocol(item, nextitem=nextitem, log=False), self.seconds


def _sentence(node: str, seconds: float) -> str:
    return (
        f"{node} takes {seconds:.1f} s of processor time, where `make test` expects at most {LIMIT * MARGIN:.1f} s: make it "
        f"cheaper, or `python tools/test_times.py --only {node.partition('::')[0]}` records it for `make test-slow`"
    )

"""Shared fixtures: one thread, quiet transformers, every toy saved once per session."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import settings

import isomerge  # noqa: F401 - before torch computes: it sets the arithmetic that tests of bytes rely on
from depth import EVERY

# the same examples on every machine, and no test that depends on the machine's speed
settings.register_profile("isomerge", deadline=None, derandomize=True, max_examples=50, database=None)
settings.load_profile("isomerge")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
re._MAXCACHE = 1 << 15  # pyright: ignore[reportAttributeAccessIssue]  # patterns of hundreds of architectures, which transformers compiles at every loading
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is `thorough` is for `make test-all`, and the report in a browser for `make test-browser`: left out, not
    skipped, so that every skip is about the machine."""
    browser = "ISOMERGE_BROWSER" in os.environ
    left = [
        item
        for item in items
        if (not EVERY and (item.get_closest_marker("thorough") or _has_no_case(item)))
        or (not browser and item.path.parent.name == "browser")
    ]
    if left:
        items[:] = [item for item in items if item not in set(left)]
        config.hook.pytest_deselected(items=left)


def _has_no_case(item: pytest.Item) -> bool:
    """Whether all parameters of a test are for `make test-all`: pytest would skip it."""
    reasons = (mark.kwargs.get("reason", "") for mark in item.iter_markers("skip"))
    return any(reason.startswith("got empty parameter set") for reason in reasons)


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    """One thread per worker, unless `benchmarks/determinism.py` asks for more; no progress bars, no chatter."""
    import torch

    torch.set_num_threads(int(os.environ.get("ISOMERGE_THREADS", "1")))
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=UserWarning, module="transformers")


@pytest.fixture(scope="session", autouse=True)
def own_proofs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Answers are kept for the session, by all of its workers together, and those of whoever runs the tests are not
    looked at."""
    workers = "PYTEST_XDIST_WORKER" in os.environ
    folder = tmp_path_factory.getbasetemp().parent / "answers" if workers else tmp_path_factory.mktemp("answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISOMERGE_CACHE", str(folder))
        yield


MATCHED = {"models", "observe", "data", "solve", "run", "merging", "fusion", "checkpoint"}
"""Rooms whose tests are about matching: their models are matched without a look at how they stand, as under
``--align``."""
LOOKED_AT = {"test_verdict", "test_live", "test_own_modules"}
"""Of these rooms the tests of that look."""


@pytest.fixture(autouse=True)
def matched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is taken to be aligned already, so that small perturbations and identities are matched as everything
    else."""
    room, name = request.path.parent.name, request.path.stem
    if room not in MATCHED or name in LOOKED_AT:
        return
    # all that look are imported before: what is imported while the look is replaced would keep the replacement
    from isomerge.api import comparing  # noqa: F401
    from isomerge.commands import measuring  # noqa: F401
    from isomerge.merging import merge_plan
    from isomerge.run import alignment_runs as commands
    from isomerge.solve import standing

    def misplaced(anchor: Any, models: Any, *_: object, **__: object) -> list[standing.Standing]:
        return [standing.Standing(anchor.ref, model.ref, 1.0, False, "", same_basis=True) for model in models]

    for home in (commands, merge_plan, standing):
        monkeypatch.setattr(home, "standings", misplaced)


TRIED = {"test_trial", "test_prove", "test_plain_torch", "test_own_modules"}
"""Tests of texts that are proven before they are used; others invent types of models, of which no tiny one can be
made."""


@pytest.fixture(autouse=True)
def trusted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec texts of tests are taken as proven where something else is tested."""
    if request.path.stem not in TRIED and request.path.parent.name != "docs":
        monkeypatch.setattr("isomerge.commands.opening.demand_proof", lambda *args, **more: None)


IN_PYTHONS_WORDS = {"test_python_words", "test_notebooks"}
"""Tests of what errors of Python's functions call options."""


@pytest.fixture(autouse=True)
def one_wording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors call options as the command line does, at both doors, so that a test may try a sentence at either; what
    Python makes of every option is tried in `tests/cli/test_python_words.py`."""
    if request.path.stem not in IN_PYTHONS_WORDS:
        monkeypatch.setattr("isomerge.run.arguments.in_python", lambda *args: "")


IN_FEW_SWEEPS = {
    "test_aggregate", "test_commands", "test_decides", "test_fingerprint", "test_from_elsewhere", "test_in_place", "test_inputs", "test_jobs",
    "test_live", "test_paper_commands", "test_parcels", "test_reprs", "test_statistics", "test_statistics_files",
    "test_timm", "test_verdict", "test_zero_gains",
}  # fmt: skip
"""Tests that match streams of unrelated models, which take forty sweeps to settle, where it does not matter how far:
what is the same after forty is the same after four."""


@pytest.fixture(autouse=True)
def in_few_sweeps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are given a few sweeps."""
    if request.path.stem in IN_FEW_SWEEPS:
        monkeypatch.setattr("isomerge.solve.pairs.stream_descent.SWEEPS", 4)


@pytest.fixture(scope="session", autouse=True)
def cheap_outputs() -> Iterator[None]:
    """What hundreds of merges would pay for over and over: flushes to the disk, and a picture each.

    One picture is drawn and serves all; `tests/evidence` draws its own, and `tests/run/test_trust.py` watches the
    flushes.
    """
    from isomerge.evidence.distances_figure import distances_picture, layer_distances
    from isomerge.run import writing_run as run

    drawn: list[bytes | None] = []

    def picture(report: dict[str, Any]) -> bytes | None:
        if not layer_distances(report):
            return None
        if not drawn:
            drawn.append(distances_picture(report))
        return drawn[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "distances_picture", picture)
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """``toy(name, seed=0)``: a saved float64 toy, opened; made once per session."""
    from toys import load_toy, save_toy

    @cache
    def make(name: str, seed: int = 0):
        return load_toy(name, save_toy(name, tmp_path_factory.mktemp(name), seed=seed))

    return make

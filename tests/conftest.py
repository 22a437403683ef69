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

pytest_plugins = ["bypasses", "tiers"]
# the same examples on every machine, and no test that depends on the machine's speed
settings.register_profile("isomerge", deadline=None, derandomize=True, max_examples=50, database=None)
settings.load_profile("isomerge")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
re._MAXCACHE = 1 << 15  # pyright: ignore[reportAttributeAccessIssue]  # patterns of hundreds of architectures, which transformers compiles at every loading
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cheap-outputs`, which `make test` asks for."""
    parser.addoption(
        "--cheap-outputs",
        action="store_true",
        help="what hundreds of merges would pay for over and over: no flushes to the disk, and one picture for all",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """With a tier, loops are compiled before workers begin, who find them on disk: else the first test to use one
    would pay for it."""
    if session.config.getoption("tier") is None or hasattr(session.config, "workerinput"):
        return
    import torch

    from isomerge.fusion.registry import method
    from isomerge.matching.rows import rows
    from isomerge.passes import Pass

    x, ties, linear = torch.ones(2, 3), method("ties"), method("linear")
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float64):
        y, wide = x.to(dtype), torch.float64 if dtype == torch.float64 else torch.float32
        Pass([y], wide).run(lambda parts: parts[0], torch.empty_like(y))
        rows(y, y)
        if y.dtype == wide:
            rows(y, y, columns=True)
            ties.fuse([2 * y, 3 * y], {"density": [0.5, 0.5]}, base=y)
            linear.fuse([y, y], {})


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
    """One thread per worker, unless `benchmarks.determinism` asks for more; no progress bars, no chatter."""
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


@pytest.fixture(scope="session", autouse=True)
def cheap_outputs(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--cheap-outputs`: no flushes to the disk, and one picture for all outputs.

    `tests/evidence` draws its own pictures, and `tests/run/test_trust.py` watches the flushes.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--cheap-outputs"):
            _make_cheap(patch)
        yield


def _make_cheap(patch: pytest.MonkeyPatch) -> None:
    from isomerge.evidence.pictures import distances_picture, layer_distances
    from isomerge.run import writing_run as run

    drawn: list[bytes | None] = []

    def picture(report: dict[str, Any]) -> bytes | None:
        if not layer_distances(report):
            return None
        if not drawn:
            drawn.append(distances_picture(report))
        return drawn[0]

    patch.setattr(run, "distances_picture", picture)
    patch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """``toy(name, seed=0)``: a saved float64 toy, opened; made once per session."""
    from toys import load_toy, save_toy

    @cache
    def make(name: str, seed: int = 0):
        return load_toy(name, save_toy(name, tmp_path_factory.mktemp(name), seed=seed))

    return make

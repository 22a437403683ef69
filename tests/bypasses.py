"""What a test may put out of action in the product, each by a marker with the reason beside it:
``@pytest.mark.matched("why")``. All else runs as users run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def matched(patch: pytest.MonkeyPatch) -> None:
    """models are matched as under `--align`, without a look at how they stand to one another"""
    # all that look are imported before: what is imported while the look is replaced would keep the replacement
    from isomerge.api import comparing  # noqa: F401
    from isomerge.commands import measuring  # noqa: F401
    from isomerge.merging import merge_plan
    from isomerge.run import alignment_runs
    from isomerge.solve import standing

    def misplaced(anchor: Any, models: Any, *_: object, **__: object) -> list[standing.Standing]:
        return [standing.Standing(anchor.ref, model.ref, 1.0, False, same_basis=True) for model in models]

    for home in (alignment_runs, merge_plan, standing):
        patch.setattr(home, "standings", misplaced)


def trusted(patch: pytest.MonkeyPatch) -> None:
    """texts of specs are taken as proven: a type of models is invented, of which no tiny one can be made"""
    patch.setattr("isomerge.commands.opening.demand_proof", lambda *args, **more: None)


def in_few_sweeps(patch: pytest.MonkeyPatch) -> None:
    """streams of unrelated models get four sweeps in place of the forty in which they settle"""
    patch.setattr("isomerge.solve.pairs.stream_descent.SWEEPS", 4)


BYPASSES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    bypass.__name__: bypass for bypass in (matched, trusted, in_few_sweeps)
}


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the markers."""
    for name, bypass in BYPASSES.items():
        config.addinivalue_line("markers", f"{name}(why): {bypass.__doc__}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A bypass says why.

    Raises:
        pytest.UsageError: of a marker without a reason.
    """
    for item in items:
        for mark in item.iter_markers():
            if mark.name in BYPASSES and not (len(mark.args) == 1 and str(mark.args[0]).strip()):
                raise pytest.UsageError(
                    f'{item.nodeid}: @pytest.mark.{mark.name} says no reason: {mark.name}("why")'
                )


@pytest.fixture(autouse=True)
def bypassed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts out of action what the test's markers name."""
    for name, bypass in BYPASSES.items():
        if request.node.get_closest_marker(name):
            bypass(monkeypatch)

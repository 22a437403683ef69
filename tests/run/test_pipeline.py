"""Working ahead and writing behind change when things happen, never what comes out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isomerge.run import pipeline
from isomerge.run.pipeline import SOON, WriteBehind, ahead, beside, expected, one_thread_each, spread, within


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_every_item_once_whatever_the_workers(sizes: list[int], workers: int) -> None:
    """The same pairs by any number of workers; in order by none."""
    items = list(enumerate(sizes))
    found = list(ahead(lambda item: item[1] ** 2, items, beside(lambda item: item[1] << 20), workers))
    assert sorted(found) == [(item, item[1] ** 2) for item in items]
    assert workers or [item for item, _ in found] == items


@given(st.integers(0, 9))
def test_items_are_expected_before_they_come(count: int) -> None:
    """Every item in order, once the next ones are expected, and not all of them at once."""
    told: list[int] = []
    for number, item in enumerate(expected(range(count), told.append)):
        assert item == number
        assert told == list(range(min(count, number + 1 + SOON)))
    assert len(told) == count


def test_items_are_worked_on_together() -> None:
    """Two workers are inside at once: each waits for the other."""
    both = threading.Barrier(2, timeout=20)
    assert len(list(ahead(lambda _: both.wait(), [1, 2], beside(lambda _: 1), 2))) == 2


def at_once(sizes: list[int], together: int, fits: Callable[[Sequence[int]], bool]) -> list[list[int]]:
    """Which items are worked on at once, at every moment when one is begun; all wait until there are
    ``together``."""
    running: list[int] = []
    moments: list[list[int]] = []
    lock, full = threading.Lock(), threading.Event()

    def work(size: int) -> None:
        with lock:
            running.append(size)
            moments.append(list(running))
            if len(running) == together:
                full.set()
        full.wait(20)
        with lock:
            running.remove(size)

    list(ahead(work, sizes, fits, 4))
    return moments


@pytest.mark.parametrize(("sizes", "together"), [([40, 40, 40, 40], 3), ([97, 97, 97], 1), ([1000, 60, 30, 60], 3)])
def test_what_is_beside_the_largest_is_bounded(
    sizes: list[int], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many at once as fit beside the largest, which may have any size, and no more."""
    monkeypatch.setattr(pipeline, "BESIDE", 96)
    moments = at_once(sizes, together, beside(lambda size: size))
    assert max(map(len, moments)) == together
    assert max(sum(here) - max(here) for here in moments) <= 96


@pytest.mark.parametrize(("sizes", "together"), [([40, 40, 40, 40], 2), ([97, 97], 1), ([50, 20, 20, 90], 3)])
def test_a_budget_bounds_all_together(sizes: list[int], together: int) -> None:
    """As many at once as the budget holds; one alone may be larger."""
    moments = at_once(sizes, together, within(lambda size: size, 96))
    assert max(map(len, moments)) == together
    assert all(sum(here) <= 96 or len(here) == 1 for here in moments)


@given(st.lists(st.integers(1, 200), max_size=20))
def test_large_items_have_small_ones_beside_them(sizes: list[int]) -> None:
    """Every item once, small ones in order; the large ones are as far apart as can be, and none comes last without
    need."""
    items = list(enumerate(sizes))
    found = spread(items, lambda item: item[1] << 20)
    small, large = ([i for i in items if (i[1] << 20 > pipeline.LARGE) == big] for big in (False, True))
    assert sorted(found) == items
    assert [item for item in found if item in small] == small
    assert [item for item in found if item in large] == large
    if large:
        assert found[0] == large[0]
        places = [k for k, item in enumerate(found) if item in large]
        gaps = [b - a - 1 for a, b in pairwise([*places, len(items)])]
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_worker_is_the_caller_s(workers: int) -> None:
    """It is raised where the results are read, and no thread is left."""

    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    before = threading.active_count()
    with pytest.raises(ValueError, match="three"):
        list(ahead(work, range(100), lambda _: 1, workers))
    for thread in threading.enumerate():
        if thread.name.startswith("unit"):
            thread.join(20)
    assert threading.active_count() == before


@pytest.mark.parametrize(("workers", "inside"), [(0, None), (2, 1)])
def test_threads_of_torch_come_back(workers: int, inside: int | None) -> None:
    """One thread each while several work, and what there was afterwards, errors or not."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = list[int]()

        def fail() -> None:
            with one_thread_each(workers):
                seen.append(torch.get_num_threads())
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert seen == [inside or 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_writes_are_in_order_and_one_behind() -> None:
    """What is put is written in turn; a second waits for the first."""
    written: list[int] = []
    go = threading.Event()

    def write(number: int) -> Callable[[], None]:
        def now() -> None:
            assert go.wait(20)
            written.append(number)

        return now

    with WriteBehind() as writer:
        writer.put(write(0))
        assert written == []  # it returned before the writing was done
        go.set()
        for number in range(1, 5):
            writer.put(write(number))
            assert written[:number] == list(range(number))
    assert written == list(range(5))


def test_an_error_of_writing_is_raised_at_the_next_or_at_the_end() -> None:
    """Nothing that failed passes for written."""

    def fail() -> None:
        raise OSError("disk full")

    def put(*writes: Callable[[], object], then: Exception | None = None) -> None:
        with WriteBehind() as writer:
            for write in writes:
                writer.put(write)
            if then is not None:
                raise then

    with pytest.raises(OSError, match="disk full"):
        put(fail, lambda: pytest.fail("was written after a failure"))
    with pytest.raises(OSError, match="disk full"):
        put(fail)
    with pytest.raises(KeyError):  # the caller's own error is not hidden by it
        put(fail, then=KeyError())

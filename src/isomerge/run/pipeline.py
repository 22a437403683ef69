"""Units on their way through a run: some are worked on ahead while one is written."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

SOON = 2
"""How many items are read ahead by the system, beside those that are worked on."""
BESIDE = 288 << 20
"""Bytes that may be taken by what is worked on beside the largest item."""
LARGE = 96 << 20
"""Stored bytes of an item that others are to be worked on beside."""
T = TypeVar("T")
R = TypeVar("R")


def ahead(
    work: Callable[[T], R], items: Iterable[T], fits: Callable[[Sequence[T]], bool], workers: int
) -> Iterator[tuple[T, R]]:
    """Every item with what ``work`` makes of it, as each is ready; the results do not depend on the number of
    workers.

    Args:
        work: runs in threads, for several items at once.
        items: what is worked on.
        fits: whether there is room for these items at once; one alone always has it.
        workers: threads; 0: everything happens here, one item at a time, in order.
    """
    if not workers:
        yield from ((item, work(item)) for item in items)
        return
    running: dict[Future[R], T] = {}
    with ThreadPoolExecutor(workers, "unit") as pool:
        try:
            for item in items:
                while running and (len(running) > workers or not fits([item, *running.values()])):
                    yield from _ready(running)
                running[pool.submit(work, item)] = item
            while running:
                yield from _ready(running)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def beside(size: Callable[[T], float]) -> Callable[[Sequence[T]], bool]:
    """Room for the largest item, and for `BESIDE` bytes beside it."""

    def fits(items: Sequence[T]) -> bool:
        sizes = list(map(size, items))
        return sum(sizes) - max(sizes) <= BESIDE

    return fits


def within(memory: Callable[[T], float], budget: float) -> Callable[[Sequence[T]], bool]:
    """Room for items that take no more than a budget together, in bytes as estimated."""
    return lambda items: sum(map(memory, items)) <= budget


def expected(items: Iterable[T], expect: Callable[[T], None]) -> Iterator[T]:
    """The items; ``expect`` is told of each when those are asked for that come `SOON` before it."""
    waiting: deque[T] = deque()
    for item in items:
        expect(item)
        waiting.append(item)
        if len(waiting) > SOON:
            yield waiting.popleft()
    yield from waiting


def spread(items: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """The items with those larger than `LARGE` at even distances, the first one first: each has smaller ones to be
    worked on beside it, and none is left for last."""
    large = [item for item in items if size(item) > LARGE]
    small = [item for item in items if size(item) <= LARGE]
    places = [number * len(small) // max(len(large), 1) for number in range(len(large) + 1)]
    order: list[T] = []
    for item, first, last in zip(large, places, places[1:], strict=False):
        order += [item, *small[first:last]]
    return order if large else small


def _ready(running: dict[Future[R], T]) -> Iterator[tuple[T, R]]:
    """What is done, once something is, in the order in which it was begun."""
    done = wait(running, return_when=FIRST_COMPLETED).done
    for future in [f for f in running if f in done]:
        yield running.pop(future), future.result()


@contextmanager
def one_thread_each(workers: int) -> Iterator[None]:
    """torch works in one thread for each worker: threads of threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    if workers:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def libraries_frozen() -> Iterator[None]:
    """What lives already is not looked at by the garbage collector: the libraries' objects, half a million, each
    time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class WriteBehind:
    """Writes in a thread of its own, one thing after the other, and never holds more than one that is not
    written."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "write behind")
        self._last: Future[None] | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown()

    def put(self, write: Callable[[], None]) -> None:
        """Write, once what was put before is written; raises what that raised."""
        self.wait()
        self._last = self._pool.submit(write)

    def wait(self) -> None:
        """Until all is written; raises what writing raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

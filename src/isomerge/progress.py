"""Who is told of progress, and of whose nobody is."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

Observer = Callable[[str, int, int], None]
"""Told of progress: what is done now, bytes done, bytes in all."""


def quiet(what: str, done: int, total: int) -> None:
    """An observer that says nothing."""


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without the bars, reports and warnings of transformers: what they say becomes one sentence of ours."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(50)  # critical
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

"""How much is tried: more architectures of what one or two show, and what takes long and has cheaper kin, are left for
`make test-all`. Which of the other tests are in `make test` follows from their times (`tiers.py`)."""

from __future__ import annotations

import os
from typing import Any

import pytest

EVERY = bool(os.environ.get("ISOMERGE_ALL_TOYS"))
thorough = pytest.mark.thorough
"""Left out by `conftest.py` unless `EVERY`."""


def more(*values: Any) -> list[Any]:
    """Parameters of a test that only `make test-all` takes."""
    return list(values) if EVERY else []

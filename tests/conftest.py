"""Shared fixtures: one thread, quiet transformers, every toy saved once per session."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import settings

# the same examples on every machine, and no test that depends on the machine's speed
settings.register_profile("isomerge", deadline=None, derandomize=True, max_examples=50, database=None)
settings.load_profile("isomerge")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    """One thread per worker; no progress bars, no chatter."""
    import torch

    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=UserWarning, module="transformers")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """``toy(name, seed=0)``: a saved float64 toy, opened; made once per session."""
    from toys import load_toy, save_toy

    @cache
    def make(name: str, seed: int = 0):
        return load_toy(name, save_toy(name, tmp_path_factory.mktemp(name), seed=seed))

    return make

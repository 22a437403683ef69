"""lm-evaluation-harness, installed beside the environment (the group ``harness`` in pyproject.toml).

What it runs models with is accelerate, and where that can be imported transformers and diffusers load models another
way; so it can be in a block alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import transformers.modeling_utils  # noqa: F401 - has looked for accelerate before it can be found

HARNESS = Path(sys.prefix) / "harness"
_imported: dict[str, ModuleType] = {}


@contextmanager
def harness_at_hand() -> Iterator[None]:
    """`lm_eval` and accelerate can be imported in the block alone.

    Raises ImportError where they are not installed (`make .venv/.developer` does).
    """
    sys.path.append(str(HARNESS))
    sys.modules.update(_imported)
    try:
        import lm_eval.models.huggingface  # noqa: F401

        yield
    finally:
        sys.path.remove(str(HARNESS))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("accelerate", "lm_eval")]:
            _imported[name] = sys.modules.pop(name)

"""Small answers that are kept between runs: what takes seconds to find out, and stays true for the same question.

They are JSON files in ``$ISOMERGE_CACHE``, or in ``isomerge`` below ``$XDG_CACHE_HOME`` (``~/.cache``), and may be
removed at any time. A file that is damaged, or a folder that cannot be written, is as if nothing were kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from isomerge import __version__
from isomerge.files import write_whole


def folder() -> Path:
    """Where answers are kept."""
    own = os.environ.get("ISOMERGE_CACHE")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "isomerge").expanduser()


def recall(kind: str, question: Sequence[Any]) -> Any:
    """The answer that is kept; None where there is none.

    Args:
        kind: what is asked: a folder of its own.
        question: plain values, all that the answer depends on; versions are added.
    """
    with suppress(OSError, ValueError):
        return json.loads(_file(kind, question).read_text(encoding="utf-8"))
    return None


def remember(kind: str, question: Sequence[Any], answer: Any) -> Path | None:
    """Keep an answer of plain values; returns its file, or None where it cannot be written."""
    file = _file(kind, question)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(answer).encode())
        return file
    return None


def _file(kind: str, question: Sequence[Any]) -> Path:
    asked = [*question, __version__, version("transformers")]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
    return folder() / kind / f"{digest[:32]}.json"

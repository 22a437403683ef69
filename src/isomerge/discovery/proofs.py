"""Proofs of spec texts that are remembered, so that a text of the user's own is tried once and not in every run.

A proof holds for a text and a config (conditions of a text choose its lines by keys of the config), and for the versions
of isomerge and transformers that it was made with.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from isomerge.files import write_whole

SILENT = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "id2label", "label2id", "use_cache")
"""Keys of a config that say nothing of the function of a model that a spec describes."""


def folder() -> Path:
    """Where proofs are kept: ``$ISOMERGE_CACHE``, or ``isomerge`` in ``$XDG_CACHE_HOME`` (``~/.cache``)."""
    own = os.environ.get("ISOMERGE_CACHE")
    if own:
        return Path(own).expanduser() / "proofs"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "isomerge" / "proofs"


def recall(text: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report of the trial of this text for models of this config; None where it was not tried, or its file is damaged."""
    try:
        report = json.loads(_file(text, config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(report, dict) and report.get("proven") in (True, False) and "refuted" in report
    return report if whole else None


def remember(text: str, config: Mapping[str, Any], report: Mapping[str, Any]) -> Path | None:
    """Keep the report of a trial; returns its file, or None where nothing can be written there: then it is made again next time."""
    file = _file(text, config)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(report, indent=1).encode())
        return file
    return None


def _file(text: str, config: Mapping[str, Any]) -> Path:
    from isomerge import __version__

    parts = [
        meaning(text),
        {k: v for k, v in config.items() if k not in SILENT},
        __version__,
        version("transformers"),
    ]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return folder() / f"{digest[:32]}.json"


def meaning(text: str) -> str:
    """A text without comments, empty lines and the spaces that align its columns."""
    lines = (" ".join(line.partition("#")[0].split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)

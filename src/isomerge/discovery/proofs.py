"""Proofs of spec texts that are remembered, so that a text of the user's own is tried once and not in every run.

A proof holds for a text and a config (conditions of a text choose its lines by keys of the config), and for the
versions of isomerge and transformers that it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge import remembered
from isomerge.config.keys import SILENT
from isomerge.records import Json

KIND = "proofs"


def recall(text: str, config: Mapping[str, Any]) -> Json | None:
    """The report of the trial of this text for models of this config; None where it was not tried, or its file is
    damaged."""
    report = remembered.recall(KIND, _question(text, config))
    whole = isinstance(report, dict) and report.get("proven") in (True, False) and "refuted" in report
    return report if whole else None


def remember(text: str, config: Mapping[str, Any], report: Mapping[str, Any]) -> Path | None:
    """Keep the report of a trial; returns its file, or None where nothing can be written there: then it is made
    again next time."""
    return remembered.remember(KIND, _question(text, config), report)


def _question(text: str, config: Mapping[str, Any]) -> list[Any]:
    return [meaning(text), {key: value for key, value in config.items() if key not in SILENT}]


def meaning(text: str) -> str:
    """A text without comments, empty lines and the spaces that align its columns."""
    lines = (" ".join(line.partition("#")[0].split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)

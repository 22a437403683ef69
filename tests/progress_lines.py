"""What commands print of how far they are, which depends on how busy the machine is."""

from __future__ import annotations

import re

PROGRESS = re.compile(r"^.*: \d+%(?:, .*)?\n", re.MULTILINE)


def without_progress(text: str) -> str:
    """The text but for its lines of progress."""
    return PROGRESS.sub("", text)

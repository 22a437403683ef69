"""The report of a run as a file that tells whether it was edited: it holds the digest of itself without it."""

from __future__ import annotations

import hashlib
import json

from isomerge.records import Json

PIPELINE_REPORT = "isomerge_pipeline.json"
"""What became of each component; how it was merged is told in its own folder."""
REPORTS = "reports"
"""Where the reports on the parts of a single file are, whose weights are in one file."""
KEY = "digest"


def signed(report: Json) -> tuple[bytes, str]:
    """The file of a report, and its ``digest``: the sha256 of the file with an empty one."""
    digest = hashlib.sha256(_written({**report, KEY: ""})).hexdigest()
    return _written({**report, KEY: digest}), digest


def _written(report: Json) -> bytes:
    return (json.dumps(report, indent=2, sort_keys=True) + "\n").encode()


def is_as_written(raw: bytes) -> bool:
    """Whether a file is, to the byte, what `signed` gives of what stands in it."""
    try:
        report = json.loads(raw)
    except ValueError:
        return False
    return isinstance(report, dict) and KEY in report and signed(report)[0] == raw

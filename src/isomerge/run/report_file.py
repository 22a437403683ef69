"""The report of a run as a file that tells whether it was edited: it holds the digest of itself without it."""

from __future__ import annotations

import hashlib
import json
import re

from isomerge.records import Json

PIPELINE_REPORT = "isomerge_pipeline.json"
"""What became of each component; how it was merged is told in its own folder."""
REPORTS = "reports"
"""Where the reports on the parts of a single file are, whose weights are in one file."""
KEY = "digest"
_LINE = re.compile(rb'(?m)^  "%s": "([0-9a-f]*)"' % KEY.encode())
"""At the depth of the report's own keys: no line within a text or an object of it begins so."""


def signed(report: Json) -> tuple[bytes, str]:
    """The file of a report, and its ``digest``: the sha256 of the file with an empty one."""
    digest = hashlib.sha256(_written({**report, KEY: ""})).hexdigest()
    return _written({**report, KEY: digest}), digest


def _written(report: Json) -> bytes:
    return (json.dumps(report, indent=2, sort_keys=True) + "\n").encode()


def report_state(raw: bytes) -> str:
    """Whether a file is what `signed` gave: ``ok``, ``changed``, or ``unknown`` where it says no digest."""
    digests = _LINE.findall(raw)
    if not digests:
        return "unknown"
    digest = hashlib.sha256(_LINE.sub(b'  "%s": ""' % KEY.encode(), raw)).hexdigest()
    return "ok" if digests == [digest.encode()] else "changed"

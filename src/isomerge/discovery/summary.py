"""What was found, as a report: plain values, for tables and JSON."""

from __future__ import annotations

import math
from typing import Any

from isomerge.discovery.discover import Discovery
from isomerge.discovery.proving import Verdict


def summary(discovery: Discovery) -> dict[str, Any]:
    """The report of a discovery; see `isomerge.discover` for its keys."""
    kept = {*discovery.draft.spaces, *discovery.draft.shifts}
    proven = [v for v in discovery.record if v.proven and v.space in kept]
    done = {(v.space, v.group) for v in proven}
    refused = [v for v in discovery.record if not v.proven and (v.space, v.group) not in done]
    return {
        "model_type": discovery.draft.model_type,
        "class": discovery.module,
        "spec": discovery.text,
        "proven": [_row(v) for v in {(v.space, v.group): v for v in proven}.values()],
        "rejected": [_row(v) for v in {(v.space, v.group): v for v in refused}.values()],
        "fixed": list(discovery.fixed),
        "checked": dict(discovery.errors),
    }


def _row(verdict: Verdict) -> dict[str, Any]:
    return {
        "space": verdict.space,
        "role": verdict.role,
        "group": verdict.group,
        "index": list(verdict.index),
        "error": verdict.error if math.isfinite(verdict.error) else None,
    }

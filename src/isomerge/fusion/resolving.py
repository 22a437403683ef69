"""The value of a setting for one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def is_list(setting: Any) -> bool:
    """Whether a setting lists several: bytes are no numbers."""
    return isinstance(setting, Sequence) and not isinstance(setting, (str, bytes, bytearray, memoryview))


def resolve(setting: Any, name: str, t: float, *, numeric: bool) -> Any:
    """The value of a setting for a tensor at ``t`` in [0, 1] of its slice; None where no filter fits."""
    if isinstance(setting, Mapping):
        setting = [setting]
    if not is_list(setting):
        return setting
    if all(isinstance(entry, Mapping) for entry in setting):
        for entry in setting:
            wanted = entry.get("filter")
            if wanted in (None, "*") or str(wanted) in name:
                return resolve(entry["value"], name, t, numeric=numeric)
        return None
    if not numeric:  # flags and words are not interpolated
        return setting[int(t * (len(setting) - 1))]
    setting = [float(value) for value in setting]
    place = t * (len(setting) - 1)
    low = int(place)
    high, share = min(len(setting) - 1, low + 1), place - low
    return (1 - share) * setting[low] + share * setting[high]

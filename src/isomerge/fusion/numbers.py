"""Numbers that YAML 1.1 leaves as text (``1e-9`` without a point, ``'0.5'``), read as mergekit reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isomerge.fusion.registry import Method
from isomerge.fusion.resolving import is_list

NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
EXACT = 15
"""Characters of a whole number that is a float exactly."""


def numbers_of(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with numbers in place of texts that say one, where the method's option is a number."""
    numeric = {name for name, option in method.options.items() if option.kind in (int, float)}
    return {name: as_number(value) if name in numeric else value for name, value in settings.items()}


def as_number(setting: Any) -> Any:
    """A scalar, gradient or list of filters with its texts read as numbers; what is no number stays for those who refuse it."""
    if isinstance(setting, Mapping):
        return {key: as_number(value) if key == "value" else value for key, value in setting.items()}
    if isinstance(setting, str):
        if not NUMBER.fullmatch(setting):
            return setting
        return int(setting) if len(setting) <= EXACT and setting.strip().lstrip("+-").isdigit() else float(setting)
    return [as_number(entry) for entry in setting] if is_list(setting) else setting

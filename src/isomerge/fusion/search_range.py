"""Where a number of a merge method is searched for when nobody says it: by its limits and its default alone."""

from __future__ import annotations

from math import isfinite

from isomerge.fusion.method_options import Option, Range

TOLERANCE = 1e-3
"""A default below this is a step or a tolerance of the computation: nothing that a merge is chosen by."""


def is_chosen_by(option: Option) -> bool:
    """Whether an option is searched for where nothing else is said: numbers that are no counts, tolerances or
    steps."""
    if option.kind is not float:
        return False
    return not isinstance(option.default, (int, float)) or option.default == 0 or abs(option.default) >= TOLERANCE


def natural_range(option: Option) -> Range | None:
    """The limits of an option where it has both; else from nothing to twice its default, within its limits. A float
    without a default lies between 0 and 1; None for other options, and for words and flags."""
    if option.kind not in (int, float):
        return None
    limits = option.values if isinstance(option.values, Range) else Range()
    if isfinite(limits.least) and isfinite(limits.most):
        return limits
    default = option.default if isinstance(option.default, (int, float)) else None
    if not default:
        return None if option.kind is int else Range(max(limits.least, 0.0), min(limits.most, 1.0))
    ends = sorted((0.0, 2.0 * default))
    return Range(max(limits.least, ends[0]), min(limits.most, ends[1]))

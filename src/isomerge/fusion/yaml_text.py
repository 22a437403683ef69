"""YAML from files that nobody vouches for: bounded, without code, and with no aliases that explode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError

MAX_BYTES = 200_000
"""Longest text read, in bytes: some three seconds of parsing. A slice of a recipe takes about a hundred."""
MAX_VALUES = 100_000
"""Most values in a text whose aliases are written out."""


def read_yaml(path: str | Path) -> Any:
    """The plain values of a YAML file: mappings, lists, texts, numbers, dates.

    Raises:
        IsomergeError: the file cannot be read, is longer than `MAX_BYTES`, no YAML, asks for Python objects, is
        nested too
            deeply, contains itself, or has more than `MAX_VALUES` values with its aliases written out.
    """
    import yaml

    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise IsomergeError(f"{path}: longer than the {MAX_BYTES} bytes allowed for a recipe; shorten it")
        content = yaml.safe_load(raw.decode("utf-8"))
        count = _count(content, {})
    except (OSError, UnicodeDecodeError) as error:
        raise IsomergeError(f"{path}: cannot read this recipe ({error})") from None
    except yaml.YAMLError as error:
        raise IsomergeError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from None
    except RecursionError:
        raise IsomergeError(
            f"{path}: nested too deeply for a recipe, or an alias contains itself; flatten it"
        ) from None
    except (
        ValueError,
        TypeError,
        OverflowError,
        AttributeError,
        LookupError,
    ) as error:  # dates and numbers that are none
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise IsomergeError(f"{path}: not valid YAML ({reason[:200]})") from None
    if count > MAX_VALUES:
        raise IsomergeError(
            f"{path}: more than {MAX_VALUES} values once its aliases are written out; write fewer of them"
        )
    return content


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values there are with every alias written out; what an alias names is counted once and remembered.

    Raises RecursionError where a value contains itself.
    """
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = -1
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, known) for part in parts)
    if known[id(value)] < 0:
        raise RecursionError
    return known[id(value)]

"""JSON documents from files that nobody vouches for: bounded, unambiguous, and always an object."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.records import Json

MAX_BYTES = 100_000_000
"""Longest document read, in bytes (the bound that safetensors sets for its headers)."""
POINTER = b"version https://git-lfs"
"""How a file begins that git left in the place of a large one."""
FETCH = (
    "is what git leaves in the place of a large file: fetch the file itself (git lfs pull), or download it again"
)
MAX_VALUES = 2_000_000
"""Most commas and opening brackets in a document: it becomes some hundred megabytes of objects in a few seconds at
worst. A header has nine for a tensor.
"""


class DuplicateKeyError(ValueError):
    """An object names one key twice, so that readers disagree about its value."""


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    seen: Json = {}
    for key, value in pairs:
        if key in seen:
            raise DuplicateKeyError(f"names {key!r} twice")
        seen[key] = value
    return seen


@lru_cache(4)  # a command opens its models, and so their configs, several times
def _read_once(raw: bytes) -> Any:
    return json.loads(raw.decode())


def _copied(value: Any) -> Any:
    """A value of JSON that may be changed."""
    if isinstance(value, dict) and {dict, list}.isdisjoint(map(type, value.values())):
        return value.copy()  # of names of classes there may be many
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return [*map(_copied, value)] if isinstance(value, list) else value


def parse_object(raw: bytes, where: str, *, remedy: str, unique: bool = True) -> Json:
    """The JSON object in ``raw`` (UTF-8).

    ``where`` opens the error sentence and ``remedy`` ends it. With ``unique`` an object that names one key
    twice is refused; without it the last value counts, as in most readers.
    Raises IsomergeError when ``raw`` is not UTF-8, not JSON, not an object, or has more than MAX_VALUES values.
    """
    if raw.startswith(POINTER):
        raise IsomergeError(f"{where} {FETCH}")
    if (count := sum(map(raw.count, (b",", b"[", b"{")))) > MAX_VALUES:
        raise IsomergeError(f"{where} has about {count} values, more than the {MAX_VALUES} allowed; {remedy}")
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_unique) if unique else _copied(_read_once(raw))
    except DuplicateKeyError as error:
        raise IsomergeError(f"{where} {error}, but every name may occur once; {remedy}") from error
    except (ValueError, RecursionError) as error:  # ValueError covers JSON, UTF-8 and over-long integers
        raise IsomergeError(f"{where} is not valid JSON ({type(error).__name__}); {remedy}") from error
    if not isinstance(value, dict):
        raise IsomergeError(f"{where} is a JSON {type(value).__name__}, not an object; {remedy}")
    return value


def read_object(path: Path, *, remedy: str, unique: bool = True) -> Json:
    """The JSON object in the file ``path``; see `parse_object` for ``remedy``, ``unique`` and the errors.

    Raises IsomergeError also when the file is missing, unreadable or longer than MAX_BYTES.
    """
    if not path.is_file():
        raise IsomergeError(f"{path} does not exist; {remedy}")
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise IsomergeError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if size > MAX_BYTES:
        raise IsomergeError(f"{path} has {size} bytes, more than the {MAX_BYTES} allowed; {remedy}")
    return parse_object(raw, str(path), remedy=remedy, unique=unique)

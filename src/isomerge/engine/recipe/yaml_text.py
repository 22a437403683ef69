"""YAML from files that nobody vouches for: bounded, without code, and with no aliases that explode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError

MAX_BYTES = 200_000
"""Longest text read, in bytes: some three seconds of parsing. A slice of a recipe takes about a hundred."""
MAX_VALUES = 100_000
"""Most values in a text whose aliases are written out."""


SEVERAL = "expected a single document in the stream"
"""What PyYAML says of a file with more than one ``---``."""


def _unrepeated() -> Any:
    """PyYAML's safe loader, but a key that stands twice in one mapping is refused: the first one would be lost."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            # not where values are made of it: by then `<<` may have put another mapping's keys beside its own
            node, seen = super().compose_mapping_node(anchor), set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        line = key.start_mark.line + 1
                        raise yaml.YAMLError(f"line {line} has the key `{key.value}` once more: give it once")
                    seen.add(key.value)
            return node

    return Loader


def read_yaml(path: str | Path) -> Any:
    """The plain values of a YAML file: mappings, lists, texts, numbers, dates.

    Raises:
        IsomergeError: the file cannot be read, is longer than `MAX_BYTES`, no YAML, asks for Python objects, says one key
            twice, holds several documents, is nested too deeply, contains itself, or has more than `MAX_VALUES` values with
            its aliases written out.
    """
    import yaml

    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise IsomergeError(f"{path}: longer than the {MAX_BYTES} bytes allowed for a recipe; shorten it")
        content = yaml.load(raw.decode("utf-8"), _unrepeated())
        count = _count(content, {})
    except (OSError, UnicodeDecodeError) as error:
        raise IsomergeError(f"{path}: cannot read this recipe ({error})") from None
    except yaml.YAMLError as error:
        if getattr(error, "context", None) == SEVERAL:
            raise IsomergeError(
                f"{path}: holds several recipes, as mergekit-multi reads them: put each into a file of its own "
                "and merge one after the other"
            ) from None
        raise IsomergeError(f"{path}: not valid YAML ({_told(error)})") from None
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


def _told(error: Any) -> str:
    """What PyYAML found wrong, and in which line, in one line."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        return str(error).splitlines()[0]
    tab = "; indent with spaces, which YAML wants in place of tabs" if "'\\t'" in problem else ""
    return f"line {mark.line + 1}: {problem}{tab}"


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

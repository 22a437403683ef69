"""YAML from files that nobody vouches for: bounded, without code, and with no aliases that explode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from isomerge.errors import IsomergeError
from isomerge.files import unreadable

MAX_BYTES = 200_000
"""Longest text read, in bytes: some three seconds of parsing. A slice of a recipe takes about a hundred."""
MAX_VALUES = 100_000
"""Most values in a text whose aliases are written out."""
MAX_DOCUMENTS = 100
"""Most documents in a text."""
LONGEST_NUMBER = 3000
"""Characters of a number: Python refuses to write out those of thousands of digits."""
DEEPEST = 100
"""Brackets within brackets."""
MERGE = "tag:yaml.org,2002:merge"
TAGS = ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge")
"""Kinds of values that a recipe has; of the others (binary data, sets) no key asks for one."""


def _bounded() -> Any:
    """PyYAML's safe loader, but a key that stands twice in one mapping is refused (the first one would be lost),
    dates and numbers to the base of sixty are texts, values of other kinds are refused, and merge keys (``<<``) do
    not multiply."""
    tags = {f"tag:yaml.org,2002:{name}" for name in TAGS}

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, TokenClass: Any) -> None:
            if self.flow_level >= DEEPEST:  # each level is looked through at every token
                raise RecursionError
            super().fetch_flow_collection_start(TokenClass)

        merged = 0
        """Values that merge keys have put into mappings."""

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            if node.tag not in tags:
                kind = node.tag.rpartition(":")[2]
                raise _at(
                    node, f" has a value of kind {kind}, which a recipe has none of: write it as a text or number"
                )
            return super().construct_object(node, deep)

        def construct_scalar(self, node: Any) -> Any:
            text = super().construct_scalar(node)
            if not isinstance(text, str) or text.isascii():
                return text
            try:  # JSON escapes what lies above U+FFFF as a pair
                return text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                raise _at(node, " has half of a pair of escapes: give both, or the letter") from None

        def construct_yaml_int(self, node: Any) -> Any:
            return self._unless_sixties(node, super().construct_yaml_int)

        def construct_yaml_float(self, node: Any) -> Any:
            return self._unless_sixties(node, super().construct_yaml_float)

        def construct_yaml_timestamp(self, node: Any) -> Any:
            super().construct_yaml_timestamp(node)  # one that is none is refused
            return self.construct_scalar(node)

        def _unless_sixties(self, node: Any, number: Any) -> Any:
            text = str(self.construct_scalar(node))
            if len(text) > LONGEST_NUMBER:
                raise _at(node, f" has a number of {len(text)} characters: give a shorter one")
            # 1:30 is 90 to YAML 1.1 alone, and long ones take minutes
            return text if ":" in text else number(node)

        def flatten_mapping(self, node: Any) -> None:
            """Puts what is merged by ``<<`` beside a mapping's own keys: of one key its own value counts, then the
            first merged one.

            (PyYAML's own lists keys once for every alias, and in 6.0.4 loses short ones.)
            """
            own: dict[Any, Any] = {}
            merged: dict[Any, Any] = {}
            for key, value in node.value:
                if key.tag != MERGE:
                    own[_meant(key)] = (key, value)
                    continue
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(part, yaml.MappingNode):
                        raise _at(part, " merges by `<<` what is no mapping")
                    self.flatten_mapping(part)
                    self.merged += len(part.value)
                    if self.merged > MAX_VALUES:
                        raise _at(key, f": more than {MAX_VALUES} values are merged by `<<`: write fewer of them")
                    for name, pair in ((_meant(k), (k, v)) for k, v in part.value):
                        merged.setdefault(name, pair)
            node.value = [pair for name, pair in merged.items() if name not in own] + list(own.values())

        def compose_mapping_node(self, anchor: Any) -> Any:
            # not where values are made of it: by then `<<` may have put another mapping's keys beside its own
            node, seen = super().compose_mapping_node(anchor), set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                    if key.value in seen:
                        raise _at(key, f" has the key `{key.value}` once more: give it once")
                    seen.add(key.value)
            return node

    for kind in ("int", "float", "timestamp"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", getattr(Loader, f"construct_yaml_{kind}"))
    return Loader


def _at(node: Any, words: str) -> yaml.YAMLError:
    """What is wrong with a node, by its line."""
    return yaml.YAMLError(f"line {node.start_mark.line + 1}{words}")


def _meant(key: Any) -> Any:
    """By what a key's node is the same as another's: its kind and text; a key of several values is one of its
    own."""
    return (key.tag, key.value) if isinstance(key.value, str) else id(key)


def plain_value(text: str) -> Any:
    """The value of a short text, such as an option's on the command line; see `read_yaml`.

    Raises:
        ValueError: it is none.
    """
    try:
        return yaml.load(text, _bounded())
    except (yaml.YAMLError, RecursionError, TypeError, OverflowError, AttributeError, LookupError) as error:
        raise ValueError(_told(error) if isinstance(error, yaml.YAMLError) else str(error)) from None


def read_yaml(path: str | Path) -> Any:
    """The plain values of a YAML file of one document; see `read_documents`.

    Raises:
        IsomergeError: there are several, or what `read_documents` refuses.
    """
    documents = read_documents(path)
    if len(documents) > 1:
        raise IsomergeError(
            f"{path}: holds {len(documents)} documents (---), and one is expected: leave the others out"
        )
    return documents[0] if documents else None


def read_documents(path: str | Path) -> list[Any]:
    """The plain values of the documents of a YAML file: mappings, lists, texts (dates, too), numbers, flags. Empty
    documents are left out.

    Raises:
        IsomergeError: the file cannot be read, is longer than `MAX_BYTES`, no YAML, asks for Python objects, says
            one key twice, holds more than `MAX_DOCUMENTS` documents, is nested too deeply, contains itself, has
            values of other kinds, or more than `MAX_VALUES` values with its aliases written out.
    """
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise IsomergeError(f"{path}: longer than the {MAX_BYTES} bytes allowed for a recipe; shorten it")
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, "recipe", error) from None
    return documents_of(text, path)


def documents_of(text: str, path: str | Path) -> list[Any]:
    """The same of a text that stands in a file.

    Raises:
        IsomergeError: see `read_documents`.
    """
    try:
        content = [x for x in yaml.load_all(text, _bounded()) if x is not None]
        count = _count(content, {})
    except yaml.YAMLError as error:
        raise IsomergeError(f"{path}: not valid YAML ({_told(error)})") from None
    except RecursionError:
        raise IsomergeError(
            f"{path}: nested too deeply for a recipe, or an alias contains itself; flatten it"
        ) from None
    except (ValueError, TypeError, OverflowError, AttributeError, LookupError) as error:  # no dates, no numbers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise IsomergeError(f"{path}: not valid YAML ({reason[:200]})") from None
    if len(content) > MAX_DOCUMENTS:
        raise IsomergeError(f"{path}: more than {MAX_DOCUMENTS} documents (---); give fewer of them")
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
    way = "indent with spaces, which YAML wants in place of tabs" if "'\\t'" in problem else "correct that line"
    return f"line {mark.line + 1}: {problem}; {way}"


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

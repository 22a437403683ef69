"""Recipes of several documents, as mergekit-multi reads them: a step may name another one's output by its name.

The step without a name is the last one; where all have names it is the one that no other step needs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.yaml_text import read_documents
from isomerge.errors import IsomergeError

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""A name that a folder may have anywhere, and that leads nowhere else."""
WORDS = ("union", "base")
"""What a tokenizer's source may be beside a model."""
KEYS = ("model", "base_model", "path", "onto", "tokenizer_source", "source")
"""Keys whose value names a model."""
KEEP = "keep:"
"""Before the name of a model whose heads, or whose component of a pipeline, are kept."""


@dataclass(frozen=True)
class Step:
    """One document of a recipe of several; ``needs`` are the names of those whose output it reads."""

    path: str
    name: str | None
    content: Mapping[str, Any]
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As messages name it."""
        return f"{self.path} ({self.title})"

    @property
    def title(self) -> str:
        """What it is called."""
        return "the step without a name" if self.name is None else f"step {self.name}"

    def reading(self, folders: Mapping[str, Path | str]) -> Step:
        """The step with the folders of earlier outputs in the place of their names."""
        return replace(self, content=_named(self.content, lambda text: _in_folder(text, folders)))


def steps_of(path: str | Path) -> list[Step] | None:
    """The steps of a recipe in an order in which they can be run, the last one last; None where it has one
    document.

    Raises:
        IsomergeError: the file cannot be read; a document is no recipe, a name no plain one or there twice; steps
            wait for one another, or it is open which is the last.
    """
    path = os.path.expanduser(path)
    documents = [] if os.path.isdir(path) else read_documents(path)
    if len(documents) < 2:
        return None
    steps: dict[str | None, Step] = {}
    for number, content in enumerate(documents):
        if not isinstance(content, dict):
            raise IsomergeError(f"{path}: document {number + 1} is no mapping: a step is a recipe, with a `name`")
        name = content.get("name")
        if name is not None and (not isinstance(name, str) or not PLAIN.fullmatch(name) or name in WORDS):
            raise IsomergeError(
                f"{path}: document {number + 1} has the `name` {name!r:.200}: give letters, digits, `-`, `_` "
                f"and `.`, and none of {', '.join(WORDS)}"
            )
        if name in steps:
            said = (
                "have no `name`: the last step alone may have none" if name is None else f"have the `name` {name}"
            )
            raise IsomergeError(f"{path}: two steps {said}")
        steps[name] = Step(path, name, content)
    with_needs = {name: replace(step, needs=_needs(step, steps)) for name, step in steps.items()}
    return _ordered(path, with_needs)


def _needs(step: Step, steps: Mapping[str | None, Step]) -> tuple[str, ...]:
    used: dict[str, None] = {}

    def look(text: str) -> str:
        if (name := first_name(text)) in steps:
            used[name] = None
        return text

    _named(step.content, look)
    return tuple(used)


def _ordered(path: str, steps: Mapping[str | None, Step]) -> list[Step]:
    """Steps after those that they need, as they are listed otherwise; the last one last."""
    needed = {name for step in steps.values() for name in step.needs}
    ends = [name for name in steps if name not in needed]
    last = ends if None not in steps else [None]
    if len(last) != 1:
        said = (
            f"{', '.join(map(str, last))} are all needed by no other step" if last else "they wait for one another"
        )
        raise IsomergeError(f"{path}: it is open which step is the last ({said}): leave out the `name` of one")
    order: list[Step] = []
    left = [*(step for name, step in steps.items() if name != last[0]), steps[last[0]]]
    while left:
        done = {step.name for step in order}
        ready = next((step for step in left if set(step.needs) <= done), None)
        if ready is None:
            names = ", ".join(str(step.name) for step in left if step.name is not None)
            raise IsomergeError(f"{path}: steps wait for one another: {names}; let one of them name other models")
        order.append(ready)
        left.remove(ready)
    return order


def named_models(content: Mapping[str, Any], *, whole: bool = False) -> list[str]:
    """What a document calls models, in its order, each once; ``whole``: with revisions and adapters."""
    names: dict[str, None] = {}

    def look(text: str) -> str:
        names[text if whole else first_name(text)] = None
        return text

    _named(dict(content), look)
    return list(names)


def first_name(text: str) -> str:
    """The model of a reference, without revision and adapters."""
    return re.split(r"[+@]", text, maxsplit=1)[0]


def _in_folder(text: str, folders: Mapping[str, Path | str]) -> str:
    name = text if text in folders else first_name(text)
    return f"{folders[name]}{text[len(name) :]}" if name in folders else text


def _named(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """A document with every name of a model changed."""
    if isinstance(value, Mapping):
        return {k: _named(v, change, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_named(v, change, key) for v in value]
    if not isinstance(value, str):
        return value
    if value.startswith(KEEP):
        return KEEP + change(value.removeprefix(KEEP))
    return change(value) if key in KEYS else value

"""Readers of data of installed packages: ``NAME:...`` is read by the entry point NAME of ``isomerge.data``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.plug_ins import DATA, load, origin, plug_ins


def plug_in_examples(
    ref: str, folder: Path, limit: int | None, length: int, config: Mapping[str, Any]
) -> Examples | None:
    """Examples of the reader of an installed package; None where no package reads ``ref``, or its reader declines.

    Args:
        ref: ``NAME:...``, of which NAME is an entry point; its package is imported only then.
        folder: the checkpoint.
        limit: no more than so many examples, the first ones.
        length: tokens per example of text.
        config: the checkpoint's parsed config.json.

    Raises:
        IsomergeError: two packages have a reader of that name, or one cannot be imported, is no function, fails,
            returns something else than `Examples`, none, or more than ``limit``; naming the package.
    """
    name, colon, _ = ref.partition(":")
    points = plug_ins(DATA).get(name, []) if colon else []
    if not points:
        return None
    takers = [origin(point) for point in points]
    if len(takers) > 1:
        raise IsomergeError(
            f"{ref}: {' and '.join(takers)} both have a reader of that name; uninstall or rename one"
        )
    read = load(points[0])
    if not callable(read):
        raise IsomergeError(
            f"{ref}: the plug-in of {takers[0]} is no function: let its entry point name module:function"
        )
    try:
        examples = read(ref, folder, limit, length, config)
    except IsomergeError:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise IsomergeError(f"{ref}: the reader of {takers[0]} fails ({what}): mend that package") from error
    if examples is None:
        return None
    if not isinstance(examples, Examples):
        raise IsomergeError(
            f"{ref}: the reader of {takers[0]} returns {type(examples).__name__}, not Examples or None"
        )
    if not examples.tensors or not len(examples):
        raise IsomergeError(f"{ref}: the reader of {takers[0]} returns no examples: name other data")
    if limit is not None and len(examples) > limit:
        raise IsomergeError(
            f"{ref}: the reader of {takers[0]} returns {len(examples)} examples, not {limit} at most: mend "
            f"that package"
        )
    return examples

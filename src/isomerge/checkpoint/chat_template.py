"""Chat templates: those with a name, a checkpoint's own, and the one that most of several models have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError

FILE = "chat_template.jinja"
"""Where transformers looks first."""


def named_templates() -> dict[str, str]:
    """The templates that mergekit has names for, in the formats that their models were trained with."""
    folder = files("isomerge.checkpoint") / "chat_templates"
    found = {Path(item.name).stem: item for item in folder.iterdir() if item.name.endswith(".jinja")}
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}


def template_text(template: str) -> str:
    """The Jinja text that a recipe's ``chat_template`` names: a known name, a file, or the text itself.

    Raises:
        IsomergeError: it is none of these.
    """
    named = named_templates()
    if template in named:
        return named[template]
    if "{" in template:
        return template
    if Path(template).is_file():
        return Path(template).read_text(encoding="utf-8")
    raise IsomergeError(
        f"`chat_template` is {template}: write auto (what most of the models have), one of {', '.join(named)}, the Jinja "
        "template itself, or the path of a file that holds it"
    )


def own_template(checkpoint: Checkpoint) -> str | None:
    """The template that a checkpoint comes with, in a file of its own or in tokenizer_config.json; None: it has none."""
    companions = checkpoint.companions()
    if FILE in companions:
        return _text(companions[FILE])
    if "tokenizer_config.json" not in companions:
        return None
    try:
        found = json.loads(_text(companions["tokenizer_config.json"])).get("chat_template")
    except (ValueError, AttributeError):
        return None  # whoever loads the tokenizer says what is wrong with the file
    if isinstance(found, list):  # several with names, of which one is the default
        named = {x.get("name"): x.get("template") for x in found if isinstance(x, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def common_template(checkpoints: Sequence[Checkpoint]) -> str | None:
    """The template that most of the models have, the earliest of those as frequent; None: no model has one."""
    found = Counter(text for text in map(own_template, checkpoints) if text is not None)
    return found.most_common(1)[0][0] if found else None


def _text(content: bytes | Path) -> str:
    return content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")

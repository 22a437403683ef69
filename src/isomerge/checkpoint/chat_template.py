"""Chat templates: those with a name, a checkpoint's own, and the one that most of several models have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError

FILE = "chat_template.jinja"
"""Where transformers looks first."""
AUTO = "auto"
"""What most of the models have."""
SUFFIX = ".jinja"
"""Of files that a recipe may name."""
MAX_BYTES = 1_000_000
"""Longest file that a recipe may name."""
SHOWN = 80
"""Characters of a template that messages show."""


def named_templates() -> dict[str, str]:
    """The templates that mergekit has names for, in the formats that their models were trained with."""
    folder = files("isomerge.checkpoint") / "chat_templates"
    by_name = {Path(item.name).stem: item for item in folder.iterdir() if item.name.endswith(".jinja")}
    return {name: by_name[name].read_text(encoding="utf-8") for name in sorted(by_name)}


def template_text(template: str, folder: Path) -> str:
    """The Jinja text that a recipe's ``chat_template`` names: a known name, a file beside the recipe, or the text
    itself.

    Args:
        template: what the recipe says.
        folder: the recipe's, which a file must lie in: the text goes into the output, and a recipe is not trusted
            with others.

    Raises:
        IsomergeError: it is none of these, or a file that lies elsewhere, is longer than `MAX_BYTES` or no text.
    """
    named = named_templates()
    if template in named:
        return named[template]
    if "{" in template:
        return template
    if is_file_name(template):
        return _file_text(template, folder)
    raise IsomergeError(
        f"`chat_template` is {_short(template)}: write auto (what most of the models have), one of "
        f"{', '.join(named)}, the Jinja template itself, or the path of a .jinja file in the recipe's folder"
    )


def is_file_name(template: str) -> bool:
    """Whether a recipe's ``chat_template`` names a file."""
    return "{" not in template and template.endswith(SUFFIX)


def _file_text(template: str, folder: Path) -> str:
    said = f"`chat_template` is {_short(template)}"
    try:
        path, home = (folder / template).resolve(), folder.resolve()
        if Path(template).is_absolute() or not path.is_relative_to(home) or path.suffix != SUFFIX:
            raise IsomergeError(
                f"{said}, but a recipe reads templates of its own folder alone: copy the file beside the recipe, "
                "and name it by its path from there"
            )
        if not path.is_file():
            raise IsomergeError(f"{said}, but {home} has no such file: give its path from the recipe's folder")
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # names too long, with zeros, links in circles
        reason = getattr(error, "strerror", None) or error
        raise IsomergeError(f"{said}, but this file cannot be read ({reason}): check its name") from None
    if len(raw) > MAX_BYTES:
        raise IsomergeError(f"{said}, a file longer than the {MAX_BYTES} bytes allowed for a template: shorten it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise IsomergeError(
            f"{said}, but this file is no text in UTF-8: write the template again in UTF-8"
        ) from None


def _short(template: str) -> str:
    return template if len(template) <= SHOWN else f"{template[:SHOWN]}..."


def own_template(checkpoint: Checkpoint) -> str | None:
    """The template that a checkpoint comes with; None: it has none."""
    return template_among(checkpoint.companions())


def template_among(companions: Mapping[str, bytes | Path]) -> str | None:
    """The template among the files beside weights, in a file of its own or in tokenizer_config.json; None: there is
    none that can be read, which whoever loads the tokenizer tells."""
    try:
        if FILE in companions:
            return _text(companions[FILE])
        if "tokenizer_config.json" not in companions:
            return None
        template = json.loads(_text(companions["tokenizer_config.json"])).get("chat_template")
    except (ValueError, AttributeError, OSError):
        return None
    if isinstance(template, list):  # several with names, of which one is the default
        named = {x.get("name"): x.get("template") for x in template if isinstance(x, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def common_template(checkpoints: Sequence[Checkpoint]) -> str | None:
    """The template that most of the models have, the earliest of those as frequent; None: no model has one."""
    templates = Counter(text for text in map(own_template, checkpoints) if text is not None)
    return templates.most_common(1)[0][0] if templates else None


def _text(content: bytes | Path) -> str:
    return content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")

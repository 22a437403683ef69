"""What is known of the models that went into an output: their names on the Hub, and what their own cards say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.hub import hub_name, snapshot_of
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.records import Json

CARD = "README.md"
LONGEST = 1 << 20
"""Characters of a card that are read: its front matter comes first."""
NO_OWNERS = {
    "artifacts", "checkpoint", "checkpoints", "ckpt", "ckpts", "content", "data", "exp", "experiments", "home",
    "log", "logs", "model", "models", "out", "output", "outputs", "result", "results", "root", "run", "runs",
    "saved", "saved_models", "tmp", "train", "weights", "work", "workspace",
}  # fmt: skip
"""What ``_name_or_path`` begins with where it is a relative path on somebody's machine, and no owner on the Hub."""
LIBRARIES = {"_diffusers_version": "diffusers", "pretrained_cfg": "timm"}
"""Keys of a config.json that a library beside transformers writes."""
_STEP = re.compile(r"(checkpoint|step|epoch)[-_]?\d+")
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Parent:
    """A folder whose weights went in: a model, or an adapter over one."""

    name: str
    """What the user called it."""
    hub: tuple[str, ...] = ()
    """Its id on the Hub, or those of what it was made of; empty where none is known."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """The front matter of its own card, scalars as text; empty without one."""
    library: str | None = None
    """The library that opens it, where its config tells one beside transformers."""

    def said(self, key: str) -> tuple[str, ...]:
        """The texts that the card has under a key: of a list all, else the one; none where it has another value."""
        value = self.card.get(key)
        listed = value if isinstance(value, list) else [value]
        return tuple(text.strip() for text in listed if isinstance(text, str) and text.strip())


def parents_of(checkpoints: Iterable[Checkpoint]) -> list[Parent]:
    """The parents behind checkpoints, each folder once: behind a view with adapters, or of stacked layers, all of
    its folders. Tensors in memory have no card, but perhaps a config that names what they were loaded from."""
    parents: dict[Path, Parent] = {}
    for checkpoint in checkpoints:
        if not checkpoint.files:
            parents.setdefault(Path(checkpoint.ref), parent_of(None, checkpoint.ref, checkpoint.config))
            continue
        home = checkpoint.folder
        beside = dict.fromkeys(file.parent for file in checkpoint.files if not file.is_relative_to(home))
        for folder in (home, *beside):
            name = str(folder) if beside else checkpoint.ref
            config = checkpoint.config if folder == home else _config(folder)
            parents.setdefault(folder, parent_of(folder, name, config))
    return list(parents.values())


def parent_of(folder: Path | None, name: str, config: Mapping[str, Any]) -> Parent:
    """What is known of one folder, or of tensors in memory (None), by its name and config."""
    card = {} if folder is None else front_matter_of(folder / CARD)
    parent = Parent(name, card=card, library=_library(folder, config))
    snapshot = None if folder is None else snapshot_of(folder)
    if snapshot is not None:
        return replace(parent, name=name if name != str(folder) else snapshot[0], hub=(snapshot[0],))
    known = [hub_name(name), _owned(config.get("_name_or_path"))]
    own = tuple(filter(None, known))[:1]
    return replace(parent, hub=own or tuple(filter(None, map(_owned, parent.said("base_model")))))


def front_matter_of(path: Path) -> Json:
    """The YAML at the beginning of a card, scalars as text (``no`` is Norwegian); empty where there is none that
    can be read, as nobody vouches for it."""
    if not path.is_file():  # which never waits, as a pipe does
        return {}
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            front = _FRONT.match(file.read(LONGEST))
        content = None if front is None else yaml.load(front[1], Loader=yaml.BaseLoader)
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _owned(name: Any) -> str | None:
    """A name as an id on the Hub, where it is more likely one than a path on another machine."""
    text = hub_name(name) if isinstance(name, str) else None
    if text is None:
        return None
    owner, _, model = text.partition("/")
    return None if owner.lower() in NO_OWNERS or _STEP.fullmatch(model) else text


def _config(folder: Path) -> Json:
    try:
        return read_object(folder / CONFIG, remedy="", unique=False)
    except IsomergeError:  # of an adapter: it has none
        return {}


def _library(folder: Path | None, config: Mapping[str, Any]) -> str | None:
    if folder is not None and (folder / "modules.json").is_file():
        return "sentence-transformers"
    return next((library for key, library in LIBRARIES.items() if key in config), None)

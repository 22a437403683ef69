"""The checkpoint that a spec is wanted for: its config, and whether the spec found describes every tensor that it
has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.opening import CONFIG, open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import find_weights
from isomerge.discovery.discover import Discovery
from isomerge.errors import IsomergeError, guide
from isomerge.records import Json
from isomerge.symmetry.language.spec import coverage
from isomerge.symmetry.language.spec_text import parse_spec

Shapes = Mapping[str, tuple[int, ...]]
BUFFER = re.compile(
    r".*(inv_freq|position_ids|token_type_ids|masked_bias|attn\.bias|attention\.bias|num_batches_tracked)$"
)
"""Constants that old checkpoints carry and no class reads back."""


def read_config(model: Any) -> tuple[str, Json, Shapes | None]:
    """What the user calls a model, its config, and the shapes of its tensors (None where there are no weights).

    Raises:
        IsomergeError: there is no config, or the checkpoint cannot be read.
    """
    if isinstance(model, Mapping):
        return str(model.get("model_type")), dict(model), None
    if isinstance(model, Checkpoint):
        return model.ref, model.config, model.shapes
    if hasattr(model, "named_parameters"):
        return _read_live(model)
    if not isinstance(model, (str, os.PathLike)):
        raise IsomergeError(
            f"{type(model).__name__} is no model: give a folder, a config.json, a hub id, or a config"
        )
    path = Path(os.path.expanduser(model))
    file = path if path.suffix == ".json" else path / CONFIG
    if path.is_file() or (path.is_dir() and file.is_file() and not _has_weights(path)):
        return str(model), read_object(file, remedy="download config.json again"), None
    checkpoint = open_checkpoint(os.fspath(model))
    return str(model), checkpoint.config, checkpoint.shapes


def _read_live(module: Any) -> tuple[str, Json, None]:
    """The config of a live module, whose class is built anew; its weights are not looked at."""
    name = type(module).__name__
    config: Any = getattr(module, "config", None)
    config = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(config, Mapping) or not config.get("model_type"):
        raise IsomergeError(
            f"{name} is a module of plain torch, of which no tiny one can be made from a config: write its spec by "
            f"hand and prove it ({guide('add-an-architecture')}; isomerge.prove(module, spec=TEXT, inputs=...))"
        )
    return name, dict(config), None


def _has_weights(folder: Path) -> bool:
    try:
        return bool(find_weights(folder, allow_pickle=True))
    except IsomergeError:
        return False


def covered(discovery: Discovery, config: Mapping[str, Any], shapes: Shapes | None) -> tuple[Discovery, int | None]:
    """The discovery whose text describes every tensor of a checkpoint, and how many there are.

    Buffers that no class reads are added as lines of their own; a tensor with weights that the class run here does
    not have is refused, for nothing is proven of it.

    Raises:
        IsomergeError: naming a tensor that the text does not describe, or whose shape is another.
    """
    spec = parse_spec(discovery.text, config, "discovered")
    if shapes is None:
        return discovery, None
    extra = []
    for name in shapes:
        try:
            spec.match(name)
        except IsomergeError:
            if not BUFFER.match(name):
                raise IsomergeError(
                    f"tensor {name} is stored, but {discovery.module} of the installed transformers has none of "
                    f"this name: name the "
                    "class of this checkpoint in config.json (architectures), or write its spec by hand"
                ) from None
            extra.append(name)
    matches = coverage(spec, {name: shape for name, shape in shapes.items() if name not in extra})
    _check_complete(discovery, {match.line.name for match in matches.values()})
    if extra:
        # the first number of a buffer's name is the layer
        names = [re.sub(r"\.\d+\.", ".{l}.", x.removeprefix(discovery.draft.prefix), count=1) for x in extra]
        discovery = replace(discovery, draft=replace(discovery.draft, buffers=tuple(dict.fromkeys(names))))
        coverage(parse_spec(discovery.text, config, "discovered"), shapes)
    return discovery, len(shapes)


def _check_complete(discovery: Discovery, present: set[str]) -> None:
    """Refuse a checkpoint without a tensor that the proofs moved: its class would compute a constant in its
    place."""
    draft = discovery.draft
    for line in draft.lines:
        needed = line.name not in (*draft.optional, *draft.ties, *discovery.fixed)
        if needed and line.name not in present:
            raise IsomergeError(
                f"tensor {line.name} of {discovery.module} is not stored: what was proven moves it along with the "
                f"others, so it does "
                "not hold for this checkpoint; save it with the installed transformers, or write its spec by hand"
            )

"""One declarative text per architecture, and the register of them by ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.expansion import expanded_text, written_out
from isomerge.symmetry.language.spec import Spec, coverage
from isomerge.symmetry.language.spec_text import BEHIND_PADDING, parse_spec


@cache
def spec_texts() -> dict[str, tuple[str, str]]:
    """From every known ``model_type`` to the file name and the text of its spec, as it is written."""
    texts: dict[str, tuple[str, str]] = {}
    for folder in sorted(files(__name__).iterdir(), key=lambda f: f.name):
        for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
            if file.name.endswith(".spec"):
                text = file.read_text(encoding="utf-8")
                named = [line.split()[1:] for line in text.splitlines() if line.startswith("model ")]
                texts |= dict.fromkeys((kind for kinds in named for kind in kinds), (file.name, text))
    return texts


@cache
def expanded_texts() -> dict[str, tuple[str, str]]:
    """The same with everything written out: no text is like another, and every tensor has a line of its own."""
    return {kind: (name, expanded_text(text, name, spec_texts())) for kind, (name, text) in spec_texts().items()}


@cache
def behind_padding() -> frozenset[str]:
    """Model types whose first token stands behind the padding's row of the table of positions: it has fewer tokens
    than rows."""
    said = f"positions {BEHIND_PADDING}"
    return frozenset(kind for kind, (_, text) in expanded_texts().items() if said in text.splitlines())


def spec_for(
    config: Mapping[str, Any],
    file: str | Path | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Spec:
    """The spec of a checkpoint, bound to its config.

    Args:
        config: the parsed ``config.json``.
        file: a spec text of the user's own, read instead of the built-in ones.
        shapes: of the stored tensors, for texts that ask for them, and to tell the architecture of a config that
            does not (timm's are silent about most).

    Raises:
        IsomergeError: no spec for this ``model_type``, or the config is not one that the spec describes.
    """
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise IsomergeError(f"{file}: cannot read this spec file ({error})") from None
        return parse_spec(text, config, str(file), spec_texts(), shapes)
    named = config.get("model_type") or config.get("_class_name")  # diffusers names a class
    if not named and shapes and (kinds := infer_model_types(config, shapes)):
        named, config = kinds[0], {**config, "model_type": kinds[0]}
    kind, known = str(named), spec_texts()
    if kind not in known:
        raise IsomergeError(
            f"config.json: no spec for model_type {kind!r}, which is none of the {len(known)} of "
            f"docs/reference/architectures.md; "
            "derive one (isomerge discover) or write one (docs/guide/add-an-architecture.md), and give it with "
            "--spec FILE"
        )
    name, text = known[kind]
    return parse_spec(text, config, name, spec_texts(), shapes)


def without_spec(config: Mapping[str, Any]) -> bool:
    """Whether there is no spec for the ``model_type`` of a config, or of a group of its keys that describes a
    part."""
    parts = [config, *(part for part in config.values() if isinstance(part, Mapping) and "model_type" in part)]
    return any(str(part.get("model_type") or part.get("_class_name")) not in spec_texts() for part in parts)


def infer_model_types(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The architectures whose spec describes every tensor of a checkpoint without a ``model_type`` (before 2020).

    Raises:
        IsomergeError: several do, and not with the same axes and symmetries (a fused projection has many layouts).
    """
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    first: dict[str, str] = {}
    for kind, (name, text) in spec_texts().items():
        if written_out(text):  # a text that is like another describes the same tensors
            first.setdefault(name, kind)
    for name, kind in sorted(first.items()):
        text = spec_texts()[kind][1]
        try:
            spec = parse_spec(text, {**config, "model_type": kind}, name, spec_texts(), shapes)
            matches = coverage(spec, shapes)
        except IsomergeError:
            continue
        groups = {n: (space.group_name, space.index) for n, space in spec.spaces.items()}
        found[kind] = ({n: match.line.axes for n, match in matches.items()}, groups)
    if any(one != other for one in found.values() for other in found.values()):
        raise IsomergeError(
            f"config.json has no model_type, and the specs of {', '.join(found)} all describe these tensors, "
            f"each in "
            "another way: add the model_type to config.json"
        )
    return list(found)

"""One declarative text per architecture, and the register of them by ``model_type``; packages and imported modules
add texts (`isomerge.archs.plug_in_specs`).

An architecture without a text, as a merge sees it that moves nothing: its tensors by their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from isomerge.archs.plug_in_specs import PlugInTexts, SpecText, model_types, plug_in_texts, register
from isomerge.errors import IsomergeError, guide
from isomerge.files import unreadable
from isomerge.plug_ins.command import use
from isomerge.records import Json
from isomerge.symmetry.language.expansion import expanded_text, written_out
from isomerge.symmetry.language.spec import Line, Spec, coverage
from isomerge.symmetry.language.spec_text import parse_spec
from isomerge.symmetry.language.words import BEHIND_PADDING


def spec_texts() -> dict[str, tuple[str, str]]:
    """From every known ``model_type`` to the file name and the text of its spec, as it is written: isomerge's own,
    and those of packages and of modules that were imported, whose files are named by their paths."""
    return _with_own(plug_in_texts(_own_kinds()))


def listing() -> tuple[list[dict[str, str]], list[str]]:
    """Every known ``model_type`` with the file of its text (``spec``) and where that comes from (``source``:
    ``isomerge``, a package with its version, or what registered it); and a sentence for every one that several
    give, and for every package whose texts cannot be read."""
    texts = plug_in_texts(_own_kinds())
    sources = {kind: text.source for kind, text in texts.by_kind.items()}
    rows = [
        {"model_type": kind, "spec": name, "source": sources.get(kind, "isomerge")}
        for kind, (name, _) in sorted(spec_texts().items())
        if kind not in texts.refused
    ]
    return rows, [*texts.refused.values(), *texts.broken]


def register_specs(folder: str | os.PathLike[str]) -> None:
    """Register the ``*.spec`` files of a folder, as a module does that ``--import`` names.

    Raises:
        IsomergeError: there are none, one cannot be read, or a model type has a text already: isomerge's own, or
            that of another folder.
    """
    register(folder, _own_texts())


@cache
def _own_texts() -> dict[str, tuple[str, str]]:
    texts: dict[str, tuple[str, str]] = {}
    for folder in sorted(files(__name__).iterdir(), key=lambda f: f.name):
        for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
            if file.name.endswith(".spec"):
                text = file.read_text(encoding="utf-8")
                texts |= dict.fromkeys(model_types(text), (file.name, text))
    return texts


@cache
def _own_kinds() -> frozenset[str]:
    return frozenset(_own_texts())


@cache
def _with_own(texts: PlugInTexts) -> dict[str, tuple[str, str]]:
    return {**_own_texts(), **{kind: (text.file, text.text) for kind, text in texts.by_kind.items()}}


def expanded_texts() -> dict[str, tuple[str, str]]:
    """The same with everything written out: no text is like another, and every tensor has a line of its own. Texts
    of others that are wrong are left out: reading one of them raises the error."""
    return _expanded(plug_in_texts(_own_kinds()))


@cache
def _expanded(texts: PlugInTexts) -> dict[str, tuple[str, str]]:
    every, expanded = _with_own(texts), {}
    for kind, (name, text) in every.items():
        with suppress(*([IsomergeError] if kind in texts.by_kind else [])):
            expanded[kind] = name, expanded_text(text, name, every)
    return expanded


def is_behind_padding(kind: str | None) -> bool:
    """Whether the first token of a model type stands behind the padding's row of the table of positions: it has
    fewer tokens than rows. No other text is expanded for it than that type's own."""
    return kind is not None and _is_behind_padding(plug_in_texts(_own_kinds()), kind)


@cache
def _is_behind_padding(texts: PlugInTexts, kind: str) -> bool:
    every = _with_own(texts)
    if kind not in every:
        return False
    name, text = every[kind]
    with suppress(*([IsomergeError] if kind in texts.by_kind else [])):
        return f"positions {BEHIND_PADDING}" in expanded_text(text, name, every).splitlines()
    return False


def plug_in_parts(config: Mapping[str, Any]) -> list[tuple[SpecText, Mapping[str, Any]]]:
    """The spec texts of others that describe a model or a part of it, with its config or that of the part."""
    texts = plug_in_texts(_own_kinds()).by_kind
    parts = [(_kind_of(part), part) for part in _parts(config)]
    return [(texts[kind], part) for kind, part in parts if kind in texts]


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A config, and those groups of its keys that describe a part."""
    return [config, *(part for part in config.values() if isinstance(part, Mapping) and "model_type" in part)]


def _kind_of(config: Mapping[str, Any]) -> str:
    return str(config.get("model_type") or config.get("_class_name"))  # diffusers names a class


def spec_for(
    config: Mapping[str, Any], file: str | Path | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Spec:
    """The spec of a checkpoint, bound to its config.

    Args:
        config: the parsed ``config.json``.
        file: a spec text of the user's own, read instead of the built-in ones.
        shapes: of the stored tensors, for texts that ask for them, and to tell the architecture of a config that
            does not (timm's are silent about most).

    Raises:
        IsomergeError: no spec for this ``model_type``, or several, or the config is not one that the spec
            describes.
    """
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(file, "spec file", error) from None
        return parse_spec(text, config, str(file), spec_texts(), shapes)
    named = config.get("model_type") or config.get("_class_name")  # diffusers names a class
    if not named and shapes and (kinds := infer_model_types(config, shapes)):
        named, config = kinds[0], {**config, "model_type": kinds[0]}
    kind, known, plug_ins = str(named), spec_texts(), plug_in_texts(_own_kinds())
    if kind in plug_ins.refused:
        raise IsomergeError(plug_ins.refused[kind])
    if kind not in known:
        if plug_ins.broken:
            raise IsomergeError(f"config.json: no spec for model_type {kind!r}, and {plug_ins.broken[0]}")
        raise IsomergeError(
            f"config.json: no spec for model_type {kind!r}, which is none of the {len(_own_texts())} that "
            "isomerge architectures lists; derive one (isomerge discover) or write one "
            f"({guide('add-an-architecture')}), and give it with --spec FILE"
        )
    for plug_in, part in plug_in_parts(config):
        use("architecture", _kind_of(part), plug_in.source)
    name, text = known[kind]
    return parse_spec(text, config, name, spec_texts(), shapes)


def without_spec(config: Mapping[str, Any]) -> bool:
    """Whether there is no spec for the ``model_type`` of a config, or of a group of its keys that describes a
    part."""
    return any(_kind_of(part) not in spec_texts() for part in _parts(config))


def infer_model_types(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The architectures of isomerge's own whose spec describes every tensor of a checkpoint without a
    ``model_type`` (before 2020).

    Raises:
        IsomergeError: several do, and not with the same axes and symmetries (a fused projection has many layouts).
    """
    layouts: dict[str, tuple[Json, Json]] = {}
    first: dict[str, str] = {}
    for kind, (name, text) in _own_texts().items():
        if written_out(text):  # a text that is like another describes the same tensors
            first.setdefault(name, kind)
    for name, kind in sorted(first.items()):
        text = _own_texts()[kind][1]
        try:
            spec = parse_spec(text, {**config, "model_type": kind}, name, _own_texts(), shapes)
            matches = coverage(spec, shapes)
        except IsomergeError:
            continue
        groups = {n: (space.group_name, space.index) for n, space in spec.spaces.items()}
        layouts[kind] = ({n: match.line.axes for n, match in matches.items()}, groups)
    if any(layout != other for layout in layouts.values() for other in layouts.values()):
        raise IsomergeError(
            f"config.json has no model_type, and the specs of {', '.join(layouts)} all describe these tensors, "
            "each in another way: add the model_type to config.json"
        )
    return list(layouts)


COMPARED = (
    "hidden_act", "hidden_activation", "activation_function", "activation", "layer_norm_eps", "layer_norm_epsilon",
    "rms_norm_eps", "norm_eps", "rope", "sliding_window", "num_attention_heads", "num_key_value_heads", "num_heads",
    "head_dim", "num_experts_per_tok", "layer_types", "patch_size", "image_size", "num_channels",
)  # fmt: skip
"""Keys by which models compute different functions of equal weights, in most architectures that have them."""
_NUMBER = re.compile(r"(?:^|(?<=\.))(?:0|[1-9]\d*)(?=\.|$)")
_PLAIN = re.compile(r"[^\s(){}|]+")


def spec_as_stored(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Spec:
    """A spec without symmetries: a line of any shape for every name, whose first number is the layer.

    Args:
        config: the parsed ``config.json``.
        shapes: of the stored tensors, by name.

    Raises:
        IsomergeError: a name that a line cannot have.
    """
    kind = str(config.get("model_type"))
    origin = f"{kind} as it is stored"
    odd = next((name for name in shapes if not _PLAIN.fullmatch(name)), None)
    if odd is not None:
        raise IsomergeError(
            f"tensor {odd!r} has a name with spaces or brackets, which stands for others in a spec: give it another"
        )
    patterns = dict.fromkeys(_pattern(name) for name in shapes)
    lines = tuple(Line(name, None, place=f"{origin}, line {n}") for n, name in enumerate(patterns, 1))
    return Spec(kind, (), {}, {}, lines, config_keys=COMPARED, origin=origin)


def _pattern(name: str) -> str:
    indices = count()

    def index(_: re.Match[str]) -> str:
        number = next(indices)
        return "{l}" if number == 0 else f"{{n{number}}}"

    return _NUMBER.sub(index, name)

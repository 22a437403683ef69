"""The language model in a model of images or sounds, as a model of its own, and put back in its place.

Which tensors it has is known from the two specs: a name is one of its own where the spec of the part knows what is
left of it behind the beginning that the part has in the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from isomerge.archs import spec_for
from isomerge.checkpoint.companions import tokenizer_files
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.single_file import LANGUAGE
from isomerge.config.keys import TIE
from isomerge.errors import IsomergeError
from isomerge.models.tied_tensors import is_tied
from isomerge.records import Json
from isomerge.symmetry.language.spec import Match, Spec, coverage

KEPT = ("dtype", "torch_dtype", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id")
"""Keys of a whole's config that count for its language model where that does not say them."""
ROPES = ("rope_parameters", "rope_scaling")
"""Keys of what positions are rotated by."""


@dataclass(frozen=True)
class LanguagePart:
    """The language model in a checkpoint."""

    whole: Checkpoint
    spec: Spec
    """Of the part."""
    config: Mapping[str, Any]
    names: Mapping[str, str]
    """From canonical names in the part to stored ones in the whole."""

    def alone(self) -> Checkpoint:
        """It as a checkpoint, under the names that a model of its own has."""
        body = (*self.spec.prefixes, "")[0]
        lines = {line.name: line for line in self.spec.lines}
        tensors, recipes, pickled = {}, {}, {}
        for canonical, stored in self.names.items():
            line = lines[self.spec.match(canonical).line.name]
            head = line.tied or "labels" in line.names
            name = canonical if head else f"{body}{canonical}"
            tensors[name] = replace(self.whole.tensors[stored], name=name)
            if stored in self.whole.recipes:
                recipes[name] = self.whole.recipes[stored]
            if self.whole._pickled is not None:
                pickled[name] = self.whole._pickled[stored]
        return replace(
            self.whole,
            ref=f"{self.whole.ref}{LANGUAGE}",
            config=dict(self.config),
            tensors=tensors,
            recipes=recipes,
            origin=(*self.whole.origin, "its language model"),
            in_folder=False,
            _pickled=None if self.whole._pickled is None else pickled,
            _companions=tokenizer_files(self.whole.companions()),
        )

    def holding(self, other: Checkpoint) -> Checkpoint:
        """The whole with the weights of another checkpoint of its language model.

        Raises:
            IsomergeError: that has other tensors, or tensors of other shapes.
        """
        theirs = {self.spec.match(name).canonical: name for name in other.tensors}
        derived = {}
        for canonical, stored in self.names.items():
            name, info = theirs.get(canonical), self.whole.tensors[stored]
            shape = None if name is None else other.tensors[name].shape
            if name is None or shape != info.shape:
                what = "is missing" if shape is None else f"has shape {list(shape)}"
                raise IsomergeError(
                    f"{other.ref}: tensor {canonical} {what}, but {stored} of {self.whole.ref} has "
                    f"{list(info.shape)}, so that the language model cannot be put back: merge with the tokens of "
                    f"{self.whole.ref} (--tokenizer-source)"
                )
            derived[stored] = other.as_it_is(name)
        return self.whole.derive(derived, sources=[other], origin=f"with the language model {other.ref}")


def language_part(whole: Checkpoint) -> LanguagePart:
    """The language model in a checkpoint.

    Raises:
        IsomergeError: there is none, or its tensors are not known.
    """
    spec = spec_for(whole.config, None, whole.shapes)
    if spec.language is None:
        raise IsomergeError(
            f"{whole.ref}: {spec.model_type} has no language model inside that is known: name the model alone"
        )
    at, own = spec.language
    starts = at[1:-1].split("|") if at.startswith("(") else [at]
    config = {k: v for k, v in own.items() if k != "architectures" and (k == TIE or not k.endswith("_config"))}
    config = {**{k: whole.config[k] for k in KEPT if k in whole.config}, **config}
    config |= {key: _of_words(rope) for key in ROPES if isinstance(rope := config.get(key), Mapping)}
    beginnings = sorted({p + s for p in ("", *spec.prefixes) for s in starts}, key=len, reverse=True)
    rests = {n: [n.removeprefix(start) for start in beginnings if n.startswith(start)] for n in whole.tensors}
    part = spec_for(config, None, {rest: whole.shapes[name] for name, every in rests.items() for rest in every})
    names: dict[str, str] = {}
    for stored, every in rests.items():
        known = (match.canonical for rest in every if (match := _match(part, rest)) is not None)
        if (canonical := next(known, None)) is not None:
            names.setdefault(canonical, stored)
    config[TIE] = is_tied(whole.config, stored=any(part.match(name).line.tied for name in names))
    shapes = {name: whole.shapes[stored] for name, stored in names.items()}
    part = spec_for(config, None, shapes)
    coverage(part, shapes)
    return LanguagePart(whole, part, config, names)


def _of_words(rope: Mapping[str, Any]) -> Json | None:
    """Rotary positions as words have them: time, row and column of an image are one number there."""
    plain = {k: "default" if v == "mrope" else v for k, v in rope.items() if not k.startswith("mrope_")}
    return None if [*plain.values()] == ["default"] else plain


def _match(spec: Spec, name: str) -> Match | None:
    with suppress(IsomergeError):
        return spec.match(name)
    return None

"""Spaces in plain words: what moves, and by what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.evidence.distance import FIXED
from isomerge.models.free_streams import streams_are_free
from isomerge.models.recognised import Model, recognise
from isomerge.models.transformers_classes import loss_examples
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import NORMS, under_layer_norm
from isomerge.symmetry.returned import task_of

ROLES = {
    "h": "attention heads",
    "g": "query heads of a group",
    "qk": "queries and keys",
    "ov": "values and output",
    "bias": "attention biases",
    "expert": "experts",
    "ff": "feed-forward neurons",
    "scale": "neuron scales",
    "stream": "residual stream",
    "gain": "norm gains",
    NORMS: "what LayerNorm leaves free",
    "": "",
    FIXED: "all other tensors",
}
"""The roles of spec texts (see `isomerge.matching.selection`) in words, in the order in which they are shown."""


@dataclass(frozen=True)
class SpaceWords:
    """A space for people."""

    name: str
    """As ``--spaces`` takes it."""
    role: str = ""
    group: str = ""
    """The symmetry group that acts, such as ``Perm`` or ``GL``."""

    @property
    def label(self) -> str:
        """Its role in words, and its name."""
        words = ROLES.get(self.role, "")
        return words if self.role == FIXED else f"{words} ({self.name})" if words else self.name


@dataclass(frozen=True)
class Wording:
    """What the spaces of an architecture are called; those that are not known go by their names."""

    known: Mapping[str, SpaceWords] = field(default_factory=dict)
    free_streams: bool = False
    """Whether it is known that residual streams may be matched."""
    loss_on: str = ""
    """What the models' loss is measured on and a match is learned from (see `loss_examples`)."""
    writes: bool = False
    """Whether it is known that they write texts to learn from."""

    def words(self, space: str) -> SpaceWords:
        """Of one space."""
        return self.known.get(space) or SpaceWords(space, FIXED if space == FIXED else "")

    def ordered(self, spaces: Iterable[str]) -> list[str]:
        """Attention first, then the MLPs, the residual stream, and what is fixed; by name within a role."""
        place = {role: number for number, role in enumerate(ROLES)}
        return sorted(spaces, key=lambda name: (place.get(self.words(name).role, place[""]), name))


def space_words(spec: Spec) -> dict[str, SpaceWords]:
    """The spaces and shifts of an architecture, by name, in words."""
    streams, residual = set(spec.streams), spec.residual_names
    known = {}
    for name, space in spec.spaces.items():
        role = "stream" if name in streams else "gain" if name in residual else space.role
        known[name] = SpaceWords(name, role if role in ROLES else "", space.group_name)
    if under_layer_norm(spec):
        known[NORMS] = SpaceWords(NORMS, NORMS, "shift")
    return known | {shift.name: SpaceWords(shift.name, "bias", "shift") for shift in spec.shifts}


def plain_names(spec: Spec) -> dict[str, str]:
    """What people call the spaces of an architecture, by name: several may share a word."""
    return {name: ROLES.get(words.role) or name for name, words in space_words(spec).items()} | {
        FIXED: ROLES[FIXED]
    }


def wording_of(folder: Path, spec: str | Path | None = None) -> Wording:
    """Of a checkpoint, from its headers; nothing is known of one that cannot be recognised."""
    try:
        # as it stands: whether transformers reads it was asked of the models that it was made of
        model = recognise(folder, spec_file=spec, unmoved=True)
        return wording_for([model]) if model.spec.spaces else Wording()
    except (IsomergeError, OSError, ValueError):
        return Wording()


def wording_for(models: Sequence[Model]) -> Wording:
    """What the spaces of models are called, and what can be done with all of them."""
    # only where something may be advised
    from isomerge.observe.live.generated import can_write

    examples = [_loss_examples(model) for model in models]
    tasks = {task_of(model.config) for model in models}  # the losses of other tasks are of other things
    loss_on = examples[0] if all(examples) and len(tasks) == 1 else ""
    writes = loss_on == "texts" and can_write(models)
    return Wording(space_words(models[0].declared), streams_are_free(models), loss_on, writes)


def _loss_examples(model: Model) -> str:
    if model.checkpoint.own is not None:  # a module of the user's own, which is at hand
        return "labelled examples"
    return loss_examples(model.config, tuple(model.checkpoint.tensors))

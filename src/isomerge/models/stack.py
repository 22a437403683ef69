"""A checkpoint taken apart into its stack of layers and what is around it, by the lines of its spec; no weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.layer_rules import Layered
from isomerge.models.tied_head import is_tied

if TYPE_CHECKING:
    from isomerge.symmetry.language.spec import Line, Match, Spec


@dataclass(eq=False)
class Stack:
    """A checkpoint taken apart into its layers and what is around them; lists are of tensor names."""

    checkpoint: Checkpoint
    spec_file: str | Path | None

    @cached_property
    def spec(self) -> Spec:
        """The spec of the checkpoint."""
        from isomerge.archs import spec_for

        return spec_for(self.checkpoint.config, self.spec_file, self.checkpoint.shapes)

    @cached_property
    def index(self) -> str:
        """The index that numbers the layers."""
        self._check_further()
        stored = {match.line for match in self.matches.values()}
        lines = [line for line in self.spec.lines if line in stored or not line.optional]
        found = {(i, line.stack) for line in lines for i in self.indices(line)}
        if len(found) != 1:
            what = (
                "no layers" if not found else f"several stacks of layers ({', '.join(sorted(p for _, p in found))})"
            )
            raise IsomergeError(
                f"{self.checkpoint.ref}: the spec for {self.spec.model_type} describes {what}, so its layers cannot be "
                "sliced; slices are for models with one stack"
            )
        if any(number.sign or number.axis for line in self.spec.lines for number in line.numbers):
            raise IsomergeError(
                f"{self.checkpoint.ref}: what a layer of {self.spec.model_type} is depends on its number, so its layers cannot "
                "be sliced"
            )
        return found.pop()[0]

    def _check_further(self) -> None:
        """Refuse layers that predict further tokens: they belong behind the last layer, and slices change which that is."""
        # parts that a file may lack whole; a tower or a head that is fixed, it has
        extra = [p for p in self.spec.fixed if all(line.optional for line in self.spec.lines if p.has(line.name))]
        for name, match in self.matches.items():
            line = match.line
            aside = line.axes is None and any(part.has(line.name) for part in extra)
            behind = range(*self.spec.depths.get(line.stack, (0, 0)))
            if aside or any(match.binding[i] in behind for i in self.indices(line)[:1]):
                raise IsomergeError(
                    f"{self.checkpoint.ref}: tensor {name} is of a layer that predicts further tokens from the last of all "
                    "layers, which slices change: load the model with transformers and save it again, which leaves such "
                    "layers out, and slice the result"
                )

    def indices(self, line: Line) -> list[str]:
        """The indices of a line's name that are no axes."""
        return [i for i in line.indices if i not in self.spec.sizes]

    @cached_property
    def matches(self) -> dict[str, Match]:
        """The line of every tensor, by its name."""
        from isomerge.symmetry.language.spec import coverage

        try:
            return coverage(self.spec, {name: info.shape for name, info in self.checkpoint.tensors.items()})
        except IsomergeError as error:
            raise IsomergeError(f"{self.checkpoint.ref}: {error}") from None

    @cached_property
    def layers(self) -> dict[int, list[str]]:
        """The tensors of every layer."""
        found: dict[int, list[str]] = {}
        for name, match in self.matches.items():
            if self.index in match.binding:
                found.setdefault(match.binding[self.index], []).append(name)
        return found

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return max(self.layers, default=-1) + 1

    @cached_property
    def layered(self) -> Layered:
        """What its config says of the layers, and the kinds of tensors that they have."""
        kinds = {
            layer: frozenset(self.kind(self.matches[n]) for n in names) for layer, names in self.layers.items()
        }
        return Layered(self.checkpoint.ref, self.checkpoint.config, self.depth, kinds, self.spec.numbered)

    def around(self) -> tuple[list[str], list[str]]:
        """What is before the layers and what is after them."""
        order = [line.name for line in self.spec.lines]
        first = min(at for at, line in enumerate(self.spec.lines) if self.indices(line))
        outside = {n: m.line for n, m in self.matches.items() if self.index not in m.binding}
        tied = any(x.tied for x in outside.values()) and is_tied(self.checkpoint.config, stored=True)
        home = {x.canonical({}): x for x in outside.values() if not x.indices}
        # what is tied goes with the tensor that stands in for it
        placed = {n: home.get(str(x.tied), x) if tied else x for n, x in outside.items()}
        before = [n for n, x in placed.items() if order.index(x.name) < first]
        return before, [n for n in outside if n not in before]

    @cached_property
    def templates(self) -> dict[tuple[Any, ...], str]:
        """A name for every kind of tensor, to be renumbered."""
        return {self.kind(match): name for name, match in self.matches.items()}

    @cached_property
    def forms(self) -> set[str]:
        """Its names but for their numbers: layers of one model may call the same tensor otherwise (hybrid layers)."""
        return {_form(name) for name in self.matches}

    def own(self, stack: Stack, name: str) -> str:
        """What this model calls a tensor of another stack, but for the layer."""
        return name if _form(name) in self.forms else self.templates.get(self.kind(stack.matches[name]), name)

    def kind(self, match: Match) -> tuple[Any, ...]:
        """A tensor but for its layer: equal for two checkpoints of one architecture."""
        return match.line.name, tuple(sorted((i, v) for i, v in match.binding.items() if i != self.index))

    def renumbered(self, name: str, layer: int) -> str:
        """A tensor's name in another layer: the one number is changed that the spec reads as the layer's."""
        match = self.spec.match(name)
        wanted = {**match.binding, self.index: layer}
        pieces = name.split(".")
        for at, piece in enumerate(pieces):
            if piece == str(match.binding[self.index]):
                found = ".".join([*pieces[:at], str(layer), *pieces[at + 1 :]])
                if self.spec.match(found).binding == wanted:
                    return found
        raise IsomergeError(
            f"{self.checkpoint.ref}: the layer of tensor {name} is no part of its name between dots"
        )


def _form(name: str) -> str:
    return ".".join("#" if piece.isdecimal() else piece for piece in name.split("."))

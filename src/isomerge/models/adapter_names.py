"""What the modules of an adapter are called in a checkpoint, and what its spec, if it has one, knows of them.

Some adapters name what they change as the class does that transformers builds of a checkpoint (peft's
``target_parameters``): experts are one parameter there, [experts, out, in] or [experts, in, out], and may be stored
one by one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from isomerge.archs import spec_for
from isomerge.checkpoint.adapter import Adapter, Update
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.conversions import Piece, conversion_of
from isomerge.models.tied_tensors import is_tied
from isomerge.models.transformers_reading import skeleton
from isomerge.symmetry.axes import atoms
from isomerge.symmetry.language.spec import Line, Spec

Stored = list[tuple[str, Piece | None]]
"""Stored tensors by name, with their pieces of a parameter; None for one that is the parameter."""


class AdapterNames:
    """From the names of an adapter's modules to those of the base: equal, or with another prefix for the whole
    body.

    A checkpoint of a body lacks the prefix that the class with a head gives it (``model.``, ``transformer.``). A
    spec knows such prefixes, and other names that versions of transformers have for one tensor.
    """

    def __init__(self, base: Checkpoint, adapter: Adapter, spec: Spec | None) -> None:
        self.base, self.adapter, self.spec = base, adapter, spec
        self.canonical = {x: name for name in base.tensors if (x := _canonical(spec, name))}
        modules = [
            *(update.module for update in adapter.updates.values() if not update.parameters),
            *adapter.tokens,
        ]
        wanted = [f"{module}.weight" for module in modules] or list(adapter.saved)
        absent = sorted((n for n in wanted if self._known(n) is None), key=lambda n: (-n.count("."), n))
        self.swap = ("", "")
        if absent:
            # a head may be absent for another reason: the prefix that suits most names is the body's
            ranks = {swap: (-self._count(absent, swap), len("".join(swap))) for swap in self._swaps(absent[0])}
            best = sorted(ranks, key=lambda swap: (ranks[swap], swap))[:2]
            if len(best) == 2 and ranks[best[0]] == ranks[best[1]]:
                raise IsomergeError(
                    f"{adapter.file}: module {absent[0].removesuffix('.weight')} fits several tensors of "
                    f"{base.ref} "
                    f"({best[0][1]!r} or {best[1][1]!r} before its name); train it on the class of the base"
                )
            self.swap = best[0] if best else self.swap

    def _swaps(self, first: str) -> set[tuple[str, str]]:
        """Prefixes to drop and to add that make a name one of the base's."""
        dots = [at + 1 for at, c in enumerate(first) if c == "."]
        dropped = [(first[:at], first[at:]) for at in (0, *dots[:2])]
        return {
            (drop, name.removesuffix(rest))
            for drop, rest in dropped
            for name in self.base.tensors
            if (name == rest and "." in rest)
            # only what has a layer's number is known well enough to have both prefixes changed
            or (name.endswith(f".{rest}") and (not drop or any(part.isdigit() for part in rest.split("."))))
        }

    def _count(self, wanted: list[str], swap: tuple[str, str]) -> int:
        return sum(self._swapped(name, swap) in self.base.tensors for name in wanted)

    def among(self, name: str, others: Collection[str]) -> str | None:
        """A name of the adapter among others (of a class's own): equal, with the prefix that the base has, or the
        only one that ends so from a layer's number on; None where there is none."""
        if (known := next((n for n in (name, self._swapped(name, self.swap)) if n in others), None)) is not None:
            return known
        parts = name.split(".")
        for at in range(1, len(parts)):
            end = ".".join(parts[at:])
            alike = [n for n in others if f".{n}".endswith(f".{end}")]
            if alike or not any(part.isdigit() for part in parts[at:]):
                return alike[0] if len(alike) == 1 and any(part.isdigit() for part in parts[at:]) else None
        return None

    @staticmethod
    def _swapped(name: str, swap: tuple[str, str]) -> str:
        return swap[1] + name.removeprefix(swap[0]) if name.startswith(swap[0]) else name

    def find(self, name: str) -> str | None:
        """The base's name of a tensor; None when it has none."""
        swapped = self._swapped(name, self.swap)
        return self._known(name) or (swapped if swapped in self.base.tensors else None)

    def _known(self, name: str) -> str | None:
        if name in self.base.tensors:
            return name
        canonical = _canonical(self.spec, name)
        return self.canonical.get(canonical) if canonical else None

    def missing(self, name: str, key: str) -> IsomergeError:
        """The error of a tensor ``name`` that the base lacks and that ``key`` of the adapter changes."""
        near = difflib.get_close_matches(name, self.base.tensors, n=1)
        hint = f" (the nearest is {near[0]!r})" if near else ""
        return IsomergeError(
            f"{self.adapter.file}: tensor {key!r} changes {name!r}, which {self.base.ref} does not have{hint}; "
            "check that the adapter is for this model"
        )


def known_spec(config: Mapping[str, Any]) -> Spec | None:
    """What is known of the architecture; an adapter can be merged into one that is not."""
    try:
        return spec_for(config)
    except IsomergeError:
        return None


def line_of(spec: Spec | None, name: str) -> Line | None:
    """The line of a tensor; None when the spec has none for it."""
    try:
        return spec.match(name).line if spec is not None else None
    except IsomergeError:
        return None


def stand_in(base: Checkpoint, spec: Spec | None, name: str) -> str | None:
    """The base's tensor that serves as ``name``, which it does not store, while its config ties the two; or
    None."""
    line = line_of(spec, name)
    if line is None or not line.tied or not is_tied(base.config, stored=False):
        return None
    return next((n for n in base.tensors if _canonical(spec, n) == line.tied), None)


def _canonical(spec: Spec | None, name: str) -> str | None:
    try:
        return spec.match(name).canonical if spec is not None else None
    except IsomergeError:
        return None


def input_axis(line: Line | None) -> int | None:
    """Which of the two axes of a linear layer's weight it reads by, 1 for Linear and 0 for Conv1D; None for others.

    It is the dual one. Keys are dual on their output side as well, but there only within heads.
    """
    if line is None or line.axes is None or len(line.axes) != 2:
        return None
    marks = [[atom.dual for atom in atoms((axis,))] for axis in line.axes]
    for test in (all, any):
        axes = [at for at, mark in enumerate(marks) if test(mark)]
        if len(axes) == 1:
            return axes[0]
    return None


@dataclass(frozen=True)
class LiveParameter:
    """A parameter that an update changes."""

    update: Update
    shape: tuple[int, int, int]
    """[matrices, rows, columns]."""
    turned: bool
    """Whether rows are inputs."""
    stored: Stored

    def add(self, weight: Tensor, a: Tensor, b: Tensor, piece: Piece | None) -> Tensor:
        """A stored tensor plus its part of ``s B A`` of every matrix, in place.

        Args:
            weight: contiguous, in the working dtype.
            a: [matrices * rank, in].
            b: [out, rank * matrices], the matrix fastest.
            piece: which of the parameter it is.
        """
        count, *sides = self.shape
        size = sides[0] * sides[1]
        first, last = (0, count - 1) if piece is None else piece.span(size)
        left = b.view(len(b), -1, count)[..., first : last + 1].permute(2, 0, 1)
        right = a.view(count, -1, a.shape[1])[first : last + 1]
        whole = weight.view(self.shape) if piece is None else weight.new_zeros(last - first + 1, *sides)
        (whole.mT if self.turned else whole).baddbmm_(left, right, alpha=self.update.scaling)
        if piece is None:
            return weight
        piece.moved(-first * size).take(whole, part := weight.new_zeros(weight.shape))
        return weight.add_(part)


@dataclass(frozen=True)
class LiveParameters:
    """Of a checkpoint: every parameter's stored tensors, in the order of the class; of one that transformers does
    not know, its own tensors."""

    module: nn.Module | None
    shapes: Mapping[str, tuple[int, ...]]
    stored: Mapping[str, Stored]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> LiveParameters:
        """Those of a checkpoint.

        Raises:
            IsomergeError: a conversion of transformers that cannot be followed.
        """
        module = skeleton(checkpoint.config, checkpoint.shapes)
        if not isinstance(module, nn.Module):
            return cls(None, checkpoint.shapes, {name: [(name, None)] for name in checkpoint.tensors})
        conversion = conversion_of(module, checkpoint.shapes)
        stored: dict[str, Stored] = {live: [(name, None)] for name, live in conversion.whole.items()}
        stored |= {live: list(pieces) for live, pieces in conversion.fused.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict(keep_vars=True).items()}
        return cls(module, shapes, stored)

    def parameter(self, update: Update, names: AdapterNames, adapter: Adapter) -> LiveParameter | None:
        """The parameter that an update changes; None where there is none.

        Of several that were wrapped in one module, peft wraps the one that the class has first innermost.

        Raises:
            IsomergeError: no parameter, or more than one, has a shape that fits.
        """
        wanted = update.parameters or (f"{update.module}.weight",)
        known = {live: name for name in wanted if (live := names.among(name, self.stored)) is not None}
        in_order = [live for live in reversed([*self.shapes]) if live in known]
        fitting = [
            live for live in in_order if self._fits(live, adapter.of_parameter(update, known[live], 1), adapter)
        ]
        if not in_order:
            return None
        outer = in_order[update.depth : update.depth + 1] if self.module is not None else []
        chosen = [live for live in outer if live in fitting] or fitting
        if len(chosen) != 1:
            shapes = ", ".join(f"{live} {list(self.shapes[live])}" for live in in_order)
            raise IsomergeError(
                f"{adapter.file}: the update of {update.module} fits {len(chosen) or 'none'} of the parameters "
                f"that it may be of ({shapes}); check that the adapter is for this model"
            )
        return self._parameter(chosen[0], known[chosen[0]], update, adapter)

    def _fits(self, live: str, update: Update, adapter: Adapter) -> bool:
        """Whether the halves of an update are of a parameter's matrices, of which a vector is none."""
        shape = self.shapes[live]
        if len(shape) not in (2, 3):
            return False
        a, b = (adapter.tensors.tensors[update.parts[part]].shape for part in "AB")
        own = update.rank * (shape[0] if len(shape) == 3 else 1)
        return len(a) == len(b) == 2 and a[0] == own == b[1] and sorted(shape[-2:]) == sorted((b[0], a[1]))

    def _parameter(self, live: str, name: str, update: Update, adapter: Adapter) -> LiveParameter:
        if others := update.parts.keys() - {"A", "B"}:
            raise IsomergeError(
                f"{adapter.file}: tensor {update.parts[min(others)]!r} has no meaning beside the update of the "
                f"parameter {live}; merge the adapter with peft's merge_and_unload and give the result"
            )
        count, rows, columns = (1, *self.shapes[live])[-3:]
        into = adapter.tensors.tensors[update.parts["A"]].shape[1]
        turned = rows == into
        if rows == columns:  # as peft asks the class, of experts alone
            owner = None if self.module is None else self.module.get_submodule(live.rpartition(".")[0])
            turned = len(self.shapes[live]) == 3 and bool(getattr(owner, "is_transposed", False))
        exact = replace(adapter.of_parameter(update, name, count), parameters=(live,))
        return LiveParameter(exact, (count, rows, columns), turned, self.stored[live])

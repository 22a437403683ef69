"""The parameters of the class that transformers builds of a checkpoint, and the stored tensors that they are of.

Adapters name what they change as the class does (peft's ``target_parameters``): experts are one parameter there,
[experts, out, in] or [experts, in, out], and may be stored one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from isomerge.checkpoint.adapter import Adapter, Update
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.adapter_names import AdapterNames
from isomerge.models.assembled import Piece
from isomerge.models.conversions import conversion_of
from isomerge.models.transformers_reading import skeleton

Stored = list[tuple[str, Piece | None]]
"""Stored tensors by name, with their pieces of a parameter; None for one that is the parameter."""


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

"""Merge methods of plug-ins, called: what they raise is told in a sentence, and what they give back is held to what
the register asks of a method. A tensor of another shape would be broadcast into the checkpoint, and whole numbers
would be taken for weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError, own_code
from isomerge.fusion.bounds import Bound, Inputs, Size
from isomerge.records import Json


class PlugInCalls:
    """Calls of one method.

    Args:
        function: the method's.
        words: which method it is, and where it comes from.
    """

    def __init__(self, function: Callable[..., Any], words: str) -> None:
        self.function, self.words = function, words

    def tensor(self, operands: Sequence[Any], arguments: Mapping[str, Any], name: str | None) -> Tensor:
        """What a method makes of tensors.

        Args:
            operands: the models' tensors, and a base's where the method takes one.
            arguments: its keywords.
            name: of the tensor, for errors.

        Returns:
            A dense tensor of floating point and of the models' shape, on their device, without gradients.

        Raises:
            IsomergeError: the function fails, gives back something else, or changes what it is given.
        """
        models, what = operands[0], self.words if name is None else f"tensor {name}: {self.words}"
        with _unchanged([*models, *(x for x in operands[1:] if x is not None)], what), own_code(f"{what} fails"):
            result = self.function(*operands, **arguments)
        if not all(isinstance(note, str) for note in arguments.get("notes") or ()):
            raise IsomergeError(f"{what} puts something else than texts into `notes`: let it append sentences")
        return _like(result, models[0], what)

    def selection(self, select: Callable[..., Any]) -> Callable[..., Any]:
        """What tells a method of whole tensors; raises IsomergeError where it fails."""

        def selected(*operands: Any, **options: Any) -> Any:
            with own_code(f"{self.words} fails"):
                return select(*operands, **options)

        return selected

    def blocks(
        self, spec: Any, units: Sequence[Mapping[Any, Tensor]], options: Mapping[str, Any]
    ) -> dict[Any, Tensor]:
        """What a method makes of units, by block; see `tensor`.

        Raises:
            IsomergeError: as of `tensor`, or blocks that the unit does not have.
        """
        what = self.words
        with _unchanged([x for unit in units for x in unit.values()], what), own_code(f"{what} fails"):
            result = self.function(spec, units, **options)
        if not isinstance(result, Mapping):
            raise IsomergeError(f"{what} gives back {_kind(result)}, not a dict: let it return tensors by block")
        if strange := [getattr(block, "key", repr(block)[:80]) for block in result if block not in units[0]]:
            raise IsomergeError(f"{what} gives back {strange[0]}, which is no block of the unit: leave it out")
        return {block: _like(x, units[0][block], f"{block.key}: {what}") for block, x in result.items()}

    def module(self, run: Any, options: Mapping[str, Any]) -> tuple[nn.Module, Json]:
        """What a method makes of models that it runs: a module of their class, and what a report has of it.

        Raises:
            IsomergeError: as of `tensor`; parameters of other names or shapes than the models'; or a report that
                JSON does not hold.
        """
        what = self.words
        with own_code(f"{what} fails"):
            result = self.function(run, **options)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Module):
            raise IsomergeError(
                f"{what} gives back {_kind(result)}, not (module, report): let it return a module with the merged "
                f"parameters, and a dict"
            )
        shapes, wanted = (
            {n: list(x.shape) for n, x in m.named_parameters()} for m in (result[0], run.endpoints[0])
        )
        if shapes != wanted:
            name = next(n for n in {**wanted, **shapes} if shapes.get(n) != wanted.get(n))
            raise IsomergeError(
                f"{what} gives back a module whose parameter {name} has shape {shapes.get(name, 'none')}, where "
                f"that of the models has {wanted.get(name, 'none')}: let it return a module of their class"
            )
        try:
            return result[0], json.loads(json.dumps(dict(result[1])))
        except (TypeError, ValueError) as error:
            raise IsomergeError(f"{what} gives back a report that is no JSON ({error}): make it one") from None

    def size(self, bound: Bound, inputs: Inputs, values: Mapping[str, Any]) -> Size:
        """How large a result can be, by a method's own bound.

        Raises:
            IsomergeError: it fails, or gives something else.
        """
        with own_code(f"the bound of {self.words} fails"):
            size = bound(inputs, values)
        if not isinstance(size, Size):
            raise IsomergeError(
                f"the bound of {self.words} gives no Size of isomerge.fusion.bounds: let it give one"
            )
        return size


@contextmanager
def _unchanged(tensors: Sequence[Tensor], what: str) -> Iterator[None]:
    """What a method is given is the same after the block: distances are measured by it, and others may read it."""
    before = [tensor._version for tensor in tensors]
    yield
    if before != [tensor._version for tensor in tensors]:
        raise IsomergeError(f"{what} changes tensors that it is given: let it work on copies of them (clone)")


def _like(result: Any, model: Tensor, what: str) -> Tensor:
    """A result that can stand for a model's tensor."""
    if not isinstance(result, Tensor):
        raise IsomergeError(f"{what} gives back {_kind(result)}, not a tensor: let it return the merged tensor")
    if result.shape != model.shape:
        raise IsomergeError(
            f"{what} gives back a tensor of shape {list(result.shape)} where the models' are {list(model.shape)}: "
            f"let it return one of their shape"
        )
    if not (result.is_floating_point() and result.layout == torch.strided) or result.is_meta:
        kind = str(result.layout if result.layout != torch.strided else result.dtype).removeprefix("torch.")
        raise IsomergeError(
            f"{what} gives back a tensor of {'no numbers (meta)' if result.is_meta else kind}: let it return a "
            f"dense one of floating point"
        )
    return result.detach().to(model.device)


def _kind(result: Any) -> str:
    """What a result is, in words."""
    return "None" if result is None else f"a {type(result).__name__}"

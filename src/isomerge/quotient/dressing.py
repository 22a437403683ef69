"""A live model's activations, dressed: seen in the canonical frame of its residual stream.

The dressing field of a model (`isomerge.quotient.canonical`) turns its stream by an element Q that depends on its
weights. Activations of a disguised twin are turned by some g, and its dressing field is ``Q g^-1``: so ``Q x`` is
one and the same for all disguises (Francois and Ravera 2026). The model itself computes what it did.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom


def dressed(x: Tensor, alignment: Alignment) -> Tensor:
    """Vectors of the residual stream in the frame to which an alignment moves their model.

    Args:
        x: (..., d), of any float dtype.
        alignment: of the model, such as `isomerge.canon` gives; of an architecture with one residual stream.

    Returns:
        A new tensor of the shape and dtype of x; float32 and float64 are computed in float64.

    Raises:
        IsomergeError: several residual streams, or vectors of another width.
    """
    stream, width = stream_of(alignment)
    if x.shape[-1] != width:
        raise IsomergeError(
            f"activations of shape {list(x.shape)} are not of the residual stream {stream}: expected {width} "
            "numbers on the last axis"
        )
    rows = x.detach().reshape(-1, width).double().clone()
    alignment.to(str(rows.device)).act_on_view(rows, (Atom("token"), Atom(stream)), {})
    return rows.reshape(x.shape).to(x.dtype)


def stream_of(alignment: Alignment) -> tuple[str, int]:
    """The residual stream of an alignment's architecture, and its width.

    Raises:
        IsomergeError: there is not exactly one.
    """
    streams = alignment.spec.streams
    if len(streams) != 1:
        raise IsomergeError(
            f"{alignment.spec.model_type}: the alignment can move {len(streams)} residual streams, and activations "
            "are dressed where it is one"
        )
    return streams[0], alignment.spec.sizes[streams[0]]


class Dressing:
    """Forward hooks that keep the dressed outputs of a live model's layers; a context manager, or a handle to
    `remove`.

    ``activations`` has the last forward pass: from names of submodules to (..., d) tensors, on the device and in
    the dtype of the model, without gradients. The model's outputs are not changed.
    """

    def __init__(self, module: nn.Module, alignment: Alignment, layers: list[str] | None = None) -> None:
        """Hooks on a module.

        Args:
            module: the live model.
            alignment: what moves its weights to the canonical form: ``isomerge.canon(module)[0]``.
            layers: names of submodules whose output (or its first part) is the residual stream; None for the
                members of the model's outermost list of layers.

        Raises:
            IsomergeError: several residual streams, no such submodule, or no list of layers.
        """
        stream_of(alignment)
        self.alignment = alignment
        self.activations: dict[str, Tensor] = {}
        places = dict(module.named_modules())
        names = layers_of(module) if layers is None else layers
        if lacking := [name for name in names if name not in places]:
            raise IsomergeError(f"the model has no submodule {lacking[0]}: take names of named_modules()")
        self._handles = [places[name].register_forward_hook(self._keep(name)) for name in names]

    def _keep(self, name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            x = output[0] if isinstance(output, (tuple, list)) else output
            if not isinstance(x, Tensor):
                raise IsomergeError(f"the output of {name} is no tensor: name other layers")
            self.activations[name] = dressed(x, self.alignment)

        return hook

    def remove(self) -> None:
        """Take the hooks off; what they kept stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Dressing:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def layers_of(module: nn.Module) -> list[str]:
    """The names of a model's layers: the members of the one outermost list of modules.

    Raises:
        IsomergeError: there is not exactly one such list.
    """
    lists = [name for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        raise IsomergeError(
            f"{type(module).__name__} has {len(outer)} lists of layers ({', '.join(outer) or 'none'}): name the "
            "submodules to dress"
        )
    return [f"{outer[0]}.{n}" for n in range(len(module.get_submodule(outer[0])))]  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def dressed_activations(module: nn.Module, alignment: Alignment, **inputs: Any) -> dict[str, Tensor]:
    """The dressed outputs of all layers for one batch of inputs; see `Dressing`."""
    with Dressing(module, alignment) as dressing:
        module(**inputs)
    return dressing.activations

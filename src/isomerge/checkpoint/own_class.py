"""Classes of one's own: modules of plain torch, which transformers does not build, beside their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Self

from isomerge.records import Json

ATTRIBUTE = "isomerge_own"
"""Of a module that was built from an `OwnClass`: that class."""


@dataclass(frozen=True, eq=False)
class OwnClass:
    """A class of one's own, told by a live module of it; never copied with a module that has it as an attribute."""

    module: Any
    """A ``torch.nn.Module``; it is copied, and never changed."""
    loss: Callable[[Any, Any], Any] | None = None
    """From outputs and labels (where a batch has none, the batch) to the mean loss of a batch, a scalar with
    gradients; None: what labels and outputs are decides."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def own_class_of(module: Any) -> OwnClass | None:
    """The class of one's own that a live module was built from; None where transformers built it."""
    return getattr(module, ATTRIBUTE, None)


def is_own(model: Any) -> bool:
    """Whether something is a live module of a class that cannot save itself."""
    return (
        hasattr(model, "named_parameters")
        and hasattr(model, "state_dict")
        and not hasattr(model, "save_pretrained")
    )


def own_config(module: Any) -> Json:
    """The configuration of a module of one's own, as config.json would hold it: what its attribute ``config`` says,
    a mapping, a dataclass or an object with ``to_dict``; empty where there is none."""
    config = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        return dict(config.to_dict())  # pyright: ignore[reportOptionalMemberAccess]
    if isinstance(config, Mapping):
        return dict(config)
    if is_dataclass(config) and not isinstance(config, type):
        return asdict(config)
    return {}

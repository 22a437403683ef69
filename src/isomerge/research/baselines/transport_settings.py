"""The choices of fusion by optimal transport, and the published methods as such choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.research.baselines.transport_maps import Coupling

COSTS = ("weights", "activations")
RESIDUALS = ("averaging", "weighted_scalar", "weighted_matrix", "no_residual", "only_residual")
HEADS = ("across", "within")
QUERIES = ("separate", "shared")
POOLED = ("no_residual", "only_residual")
"""The residual policies under which all embeddings have one map together: nothing joins their maps."""


@dataclass(frozen=True)
class TransportSettings:
    """How transport maps are made (Imfeld et al., ICLR 2024, section 4)."""

    cost: str = "weights"
    """What neurons are compared by: their aligned weights, or what they compute of the same inputs."""
    coupling: str = "sinkhorn"
    """``sinkhorn``: soft maps; ``emd``: hard ones."""
    regularisation: float = 0.06
    """Of Sinkhorn, in units of the mean cost."""
    residual: str = "averaging"
    """A stream's map after a branch was added, of its own map and the branch's: their ``averaging``, weighted by
    how large they are (``weighted_scalar``: two numbers, ``weighted_matrix``: for every coordinate; these need
    activations), the branch's alone (``no_residual``), or the stream's alone (``only_residual``)."""
    heads: str = "across"
    """``across``: one map for all dimensions of all heads (cross-head alignment); ``within``: heads to heads, and
    their dimensions inside."""
    queries: str = "separate"
    """``separate`` maps for queries and keys, or ``shared`` ones, also for the heads of the values."""
    squared: bool = False
    """Squared Euclidean distances."""
    normalised: bool = True
    """Neurons are compared as vectors of length one."""

    @property
    def exact(self) -> bool:
        """Whether all maps are one symmetry of the model, so that the aligned source computes what the source
        does."""
        chosen = (self.coupling, self.residual, self.heads, self.queries)
        return chosen == ("emd", "only_residual", "within", "shared")

    @property
    def how(self) -> Coupling:
        """The coupling."""
        return Coupling(self.coupling, self.regularisation, self.squared, self.normalised)

    def check(self, activations: bool) -> None:
        """Refuse what cannot be done.

        Args:
            activations: whether there are activations to look at.

        Raises:
            IsomergeError: an unknown choice, or one that needs activations without any.
        """
        known = {"cost": COSTS, "residual": RESIDUALS, "heads": HEADS, "queries": QUERIES}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise IsomergeError(f"transport {name} {getattr(self, name)!r}: choose from {', '.join(choices)}")
        self.how.check()
        if not activations and self.cost == "activations":
            raise IsomergeError("transport by activations needs examples to read them from: add --data DATA")
        if not activations and self.residual.startswith("weighted"):
            raise IsomergeError(
                f"the residual policy {self.residual} weights by activations: add --data DATA, or choose averaging"
            )

    def record(self) -> dict[str, Any]:
        """The JSON form, for reports and the keys of runs."""
        return asdict(self)


METHODS = {
    "ot-wts": TransportSettings(),
    "ot-acts": TransportSettings(cost="activations", regularisation=0.08),
    "ot-acts-emd": TransportSettings(cost="activations", coupling="emd"),
    "otfusion": TransportSettings(coupling="emd", residual="only_residual", heads="within", queries="shared"),
}
"""OT-WTS, OT-ACTS and OT-ACTS-EMD of Imfeld et al.; ``otfusion`` is OT-WTS with hard maps that are one symmetry."""


def changed(settings: TransportSettings, said: Iterable[tuple[str, str]]) -> TransportSettings:
    """Settings with other values, as texts have them.

    Args:
        settings: of a published method.
        said: names and values; ``cost`` and ``coupling`` tell the methods apart and are no settings.

    Raises:
        IsomergeError: an unknown name, or a value that is not of its kind.
    """
    new: dict[str, Any] = {}
    for name, value in said:
        if name not in CHANGEABLE:
            raise IsomergeError(f"--transport {name}={value}: choose from {', '.join(CHANGEABLE)}")
        try:
            new[name] = _READ[type(getattr(settings, name))](value)
        except (KeyError, ValueError):
            kind = "true or false" if isinstance(getattr(settings, name), bool) else "a number"
            raise IsomergeError(f"--transport {name}={value}: give {kind}") from None
    changed_settings = replace(settings, **new)
    if not changed_settings.regularisation > 0:
        raise IsomergeError(f"--transport regularisation={changed_settings.regularisation}: give a number above 0")
    return changed_settings


CHANGEABLE = ("residual", "heads", "queries", "regularisation", "squared", "normalised")
_READ: dict[type, Callable[[str], Any]] = {
    str: str,
    float: float,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
}

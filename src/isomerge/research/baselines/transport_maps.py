"""Transport maps: optimal transport between the neurons of two models, nested as their axes are.

A map ``T`` [n of the source, n of the anchor] says of which of the source's neurons the anchor's n-th one is made.
It is an optimal coupling of two uniform measures times n (Singh & Jaggi 2020, Alg. 1): rows and columns sum to one,
so that an aligned neuron is a weighted mean, ``T_out^T W T_in``. A hard coupling (earth mover's distance) of equal
numbers is a permutation; a soft one (Sinkhorn) is none and does not preserve a function.

What a cost needs of weights or activations is a cross-Gram and the two squared norms (`Likeness`). Spaces are
solved bases first; what it costs to send one head to another is what it costs to transport its dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.gram import Cross, Leaf, cross_gram, signature
from isomerge.records import Json
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.language.spec import Spec

COUPLINGS = ("emd", "sinkhorn")
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
    """Entropic, of Sinkhorn alone, in units of the mean cost."""
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
    """Costs are squared Euclidean distances instead of distances."""
    normalised: bool = True
    """Neurons are compared as vectors of length one."""

    @property
    def exact(self) -> bool:
        """Whether all maps are one symmetry of the model, so that the aligned source computes what the source
        does."""
        chosen = (self.coupling, self.residual, self.heads, self.queries)
        return chosen == ("emd", "only_residual", "within", "shared")

    def check(self, activations: bool) -> None:
        """Refuse what cannot be done.

        Args:
            activations: whether there are activations to look at.

        Raises:
            IsomergeError: an unknown choice, or one that needs activations without any.
        """
        known = {"cost": COSTS, "residual": RESIDUALS, "heads": HEADS, "queries": QUERIES, "coupling": COUPLINGS}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise IsomergeError(f"transport {name} {getattr(self, name)!r}: choose from {', '.join(choices)}")
        if not 0 < self.regularisation < float("inf"):
            raise IsomergeError(f"transport regularisation {self.regularisation}: give a positive number")
        if not activations and self.cost == "activations":
            raise IsomergeError("transport by activations needs examples to read them from: add --data DATA")
        if not activations and self.residual.startswith("weighted"):
            raise IsomergeError(
                f"the residual policy {self.residual} weights by activations: add --data DATA, or choose averaging"
            )


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
    new: Json = {}
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
Spaces = tuple[str, ...]
# Sinkhorn stops where the marginals are met to this (mass one in all), or after so many iterations.
MARGINAL = 1e-9
ITERATIONS = 1000
# exp(-cost/regularisation) beyond this loses digits in float64; the slower iteration in the log domain does not.
LARGEST_EXPONENT = 200.0
# A coupling gains something over the identity if it lowers the cost by more than this fraction: rounding of Grams.
GAIN = 1e-9


def transport_map(cost: Tensor, how: TransportSettings) -> Tensor:
    """The optimal couplings of uniform measures as maps, float64 [*b, n, m]; columns sum to one.

    Args:
        cost: [*b, n, m] of sending the source's neuron i to the anchor's place j; finite.
        how: the method.
    """
    n, m = cost.shape[-2:]
    flat = cost.detach().reshape(-1, n, m).double()
    maps = [_coupled(c, how) * m for c in flat]
    return torch.stack(maps).reshape(cost.shape) if maps else cost.double()


def _coupled(cost: Tensor, how: TransportSettings) -> Tensor:
    """One coupling [n, m] of mass one."""
    import ot

    n, m = cost.shape
    if n == m and how.coupling == "emd" and float(cost.sum()) == 0:
        return torch.eye(n, dtype=torch.float64) / n
    a, b = numpy.full(n, 1 / n), numpy.full(m, 1 / m)
    if how.coupling == "sinkhorn":
        mean = float(cost.mean())
        scaled = (cost / mean if mean > 0 else cost).numpy()
        steep = float(scaled.max()) / how.regularisation > LARGEST_EXPONENT
        plan = ot.sinkhorn(
            a, b, scaled, how.regularisation, method="sinkhorn_log" if steep else "sinkhorn",
            numItermax=ITERATIONS, stopThr=MARGINAL, warn=False,
        )  # fmt: skip
        plan = torch.from_numpy(numpy.asarray(plan, dtype=numpy.float64))
        return plan / (plan.sum(0) * m)
    # the default bound is reached with 700 neurons; the simplex needs about n log n pivots per neuron
    plan = torch.from_numpy(numpy.asarray(ot.emd(a, b, cost.numpy(), numItermax=10_000_000), dtype=numpy.float64))
    if n != m:
        return plan
    hard = (plan * n).round() / n  # a vertex of Birkhoff's polytope: zeros and ones but for rounding
    stay = float(cost.diagonal().sum()) / n
    return hard if float((hard * cost).sum()) < stay - GAIN * float(cost.mean()) else torch.eye(n).double() / n


@dataclass(frozen=True)
class Likeness:
    """What distances between neurons are made of, float64: ``<x_i, y_j>``, ``|x_i|^2`` and ``|y_j|^2``.

    ``cross`` has dims batch, then ``s+`` (the anchor's) and ``s-`` (the source's) of every space; ``anchor`` has
    the batch and ``s+``, ``source`` the batch and ``s-``.
    """

    cross: Cross
    anchor: Cross
    source: Cross

    def __add__(self, other: Likeness) -> Likeness:
        pairs = zip((self.cross, self.anchor, self.source), (other.cross, other.anchor, other.source), strict=True)
        return Likeness(*(Cross(x.dims, x.data + y.arrange(x.dims)) for x, y in pairs))

    def cost(self, how: TransportSettings) -> Cross:
        """Distances between all pairs, with the dims of ``cross``."""
        dims = self.cross.dims
        cross, a, b = self.cross.data, self.anchor.arrange(dims), self.source.arrange(dims)
        if how.normalised:  # a neuron of zeros is as far from all others
            length = (a * b).sqrt()
            squared = 2 - 2 * cross / length.where(length > 0, length.new_ones(()))
        else:
            squared = a + b - 2 * cross
        # differences of large numbers: what rounding makes of an exact zero must not become its square root
        scale = 2.0 if how.normalised else a + b
        squared = squared.where(squared > 1e-13 * scale, squared.new_zeros(()))
        return Cross(dims, squared if how.squared else squared.sqrt())


def likeness(spec: Spec, leaves: Iterable[Leaf]) -> dict[Spaces, Likeness]:
    """The likeness of neurons by signature, summed over leaves of the anchor and of the source.

    Args:
        spec: its active spaces are the axes of neurons; all else is summed over.
        leaves: atom views of weights or activations; the source's are aligned on all axes but the active ones.
    """
    sums: dict[Spaces, Likeness] = {}
    for x, y, atoms in leaves:
        spaces = signature(spec, atoms)
        if not spaces:
            continue
        x, y = x.double(), y.double()
        cross = cross_gram(spec, x, y, atoms)
        each = Likeness(cross, *(_norms(t, atoms, cross.dims, end) for t, end in ((x, "+"), (y, "-"))))
        sums[spaces] = sums[spaces] + each if spaces in sums else each
    return sums


def _norms(x: Tensor, atoms: Sequence[Atom], dims: Sequence[str], end: str) -> Cross:
    """Squared norms over all that is no batch and no space."""
    names = [a.name for a in atoms]
    kept = tuple(d for d in dims if d.endswith(end) or d[-1] not in "+-")
    order = [names.index(d.rstrip("+-")) for d in kept]
    rest = [k for k in range(x.ndim) if k not in order]
    squares = (
        x.square().permute(*order, *rest).flatten(len(order)) if rest else x.square().permute(*order)[..., None]
    )
    return Cross(kept, squares.sum(-1))


def nested_maps(
    spec: Spec,
    likenesses: Mapping[Spaces, Likeness],
    how: TransportSettings,
    decided: Mapping[str, Cross] | None = None,
) -> dict[str, Cross]:
    """A map for every space: heads to heads, and for every pair of heads their dimensions.

    A map has dims batch, ``b-`` and ``b+`` of its bases, ``s-``, ``s+``: rows are the source's. A base pays for
    every pair what the couplings over it cost. Where two fibres number the same neurons (query heads of a group,
    and their dimensions), the one that stands alone in some leaf is solved first, and the other one after it.

    Args:
        spec: the active spaces.
        likenesses: see `likeness`.
        how: the method.
        decided: maps that are there already.
    """
    maps, open_ = dict(decided or {}), dict(likenesses)
    paid: dict[str, list[Cross]] = {}
    names = [n for n in reversed(spec.ordered) if any(n in sig for sig in likenesses)]
    while names:
        depth = max(spec.depth(n) for n in names)
        deepest = [n for n in names if spec.depth(n) == depth]
        name = next((n for n in deepest if any(not _unknown(spec, n, sig, maps) for sig in open_)), deepest[0])
        names.remove(name)
        deciding = {sig: c for sig, c in open_.items() if name in sig and not _unknown(spec, name, sig, maps)}
        deciding = deciding or {sig: c for sig, c in open_.items() if name in sig}
        open_ = {sig: c for sig, c in open_.items() if sig not in deciding}
        bases = [b for b in spec.spaces[name].index if b in spec.spaces]
        parts = [_reduced(c, sig, {name, *bases}, maps) for sig, c in deciding.items()]
        costs = [*([sum(parts[1:], parts[0]).cost(how)] if parts else []), *paid.get(name, [])]
        if not costs:
            continue
        batch = [d for d in costs[0].dims if d[-1] not in "+-"]
        dims = (*batch, *(f"{s}{end}" for s in (*bases, name) for end in "-+"))
        total = sum((c.arrange(dims) for c in costs[1:]), costs[0].arrange(dims))
        if name not in maps:
            maps[name] = Cross(dims, transport_map(total, how))
        if bases:
            spent = (maps[name].arrange(dims) * total).sum((-2, -1))
            own = {f"{s}{end}" for s in bases for end in "-+"} | set(spec.batch(spec.spaces[bases[-1]]))
            paid.setdefault(bases[-1], []).append(Cross(dims[:-2], spent).reduce(own))
    return maps


def _unknown(spec: Spec, name: str, sig: Spaces, maps: Mapping[str, Cross]) -> bool:
    """Whether a likeness cannot yet decide a space: it lacks it, or another fibre that is not solved acts as
    well."""
    if name not in sig:
        return True
    return any(n not in maps and n != name and n not in spec.spaces[name].index for n in sig)


def _reduced(each: Likeness, sig: Spaces, kept: set[str], maps: Mapping[str, Cross]) -> Likeness:
    """A likeness without the fibres that are solved: the source's neurons transported along them."""
    cross = each.cross
    for name in (n for n in sig if n not in kept):
        size = each.anchor.data.shape[each.anchor.dims.index(f"{name}+")]
        along = maps.get(name) or Cross((f"{name}-", f"{name}+"), torch.eye(size, dtype=torch.float64))
        cross = Cross(cross.dims, cross.data * along.arrange(cross.dims))
    left = [d for d in cross.dims if d.rstrip("+-") in kept or d[-1] not in "+-"]
    return Likeness(cross.reduce(left), each.anchor.reduce(left), each.source.reduce(left))


def joint_map(sig: Spaces, each: Likeness, how: TransportSettings) -> Cross:
    """One map between all neurons of several axes at once, whatever heads they belong to (cross-head alignment).

    Its dims are batch, then ``s-`` and ``s+`` of every space. Such a map mixes heads: it is no symmetry of
    attention.
    """
    cost = each.cost(how)
    batch = [d for d in cost.dims if d[-1] not in "+-"]
    rows, columns = [f"{s}-" for s in sig], [f"{s}+" for s in sig]
    data = cost.arrange((*batch, *rows, *columns))
    at = len(batch)
    flat = data.flatten(at + len(sig)).flatten(at, at + len(sig) - 1)
    return Cross((*batch, *rows, *columns), transport_map(flat, how).reshape(data.shape))


def product(factors: Sequence[Cross], names: Sequence[str], batch: Sequence[str]) -> Tensor:
    """The map along several axes as one tensor [*batch, *source, *anchor] from the maps of bases and of their
    fibres."""
    dims = (*batch, *(f"{n}-" for n in names), *(f"{n}+" for n in names))
    parts = [f.arrange(dims) for f in factors]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole * part
    return whole


def transported(view: Tensor, batch: Sequence[int], axes: Sequence[int], along: Tensor) -> Tensor:
    """A tensor with some axes transported: ``sum_s T[s, a] x[.., s, ..]``.

    Args:
        view: the source's, any floating dtype.
        batch: axes that number maps.
        axes: axes that are transported, together.
        along: the map [*batch, *source, *anchor]; a batch of length one serves all.
    """
    letters = "abcdefghijklm"[: view.ndim]
    new = dict(zip(axes, "nopqrstuvwxyz", strict=False))
    term = "".join(letters[k] for k in (*batch, *axes)) + "".join(new[k] for k in axes)
    shape = [view.shape[k] for k in (*batch, *axes, *axes)]
    out = "".join(new.get(k, letter) for k, letter in enumerate(letters))
    return torch.einsum(f"{letters},{term}->{out}", view.to(along.dtype), along.expand(shape))

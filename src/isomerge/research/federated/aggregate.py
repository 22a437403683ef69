"""One round: clients' parameters are aligned along their symmetries onto an anchor, then averaged with weights.

The average of federated learning (McMahan et al. 2017, FedAvg) takes equal positions for equal meanings. That holds
for clients that start from one model and stay near it; it fails for clients that were trained apart. Matching
before averaging is due to Yurochkin et al. 2019 and Wang et al. 2020 (FedMA), for the neurons of simple networks;
here the solvers of `isomerge.merge` move every tensor of a transformer along all of its symmetries, residual
streams included.

Everything happens in memory, and nobody has to send more than parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isomerge.fusion.linear import linear
from isomerge.observe.stats.taps import Activations
from isomerge.research.federated.parameters import Parameters, like
from isomerge.research.federated.round import Matching, Round, weights_of
from isomerge.symmetry.alignment import Alignment


@dataclass(frozen=True)
class Aligned:
    """The updates of a round in one coordinate system."""

    updates: list[Any]
    """Each as it was given (same container, names, types), the same function in other weights."""
    alignments: list[Alignment]
    """What moved each; empty where an update is the anchor itself."""
    report: dict[str, Any]
    """``distance`` before and after (Frobenius, to the anchor, over all updates), per space and layer, and
    ``updates``: the same for each."""


def align_updates(
    updates: Sequence[Parameters],
    *,
    anchor: Parameters | str,
    config: Any,
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    spaces: str = "default",
    layers: str | None = None,
    activations: Sequence[Activations] | None = None,
    evidence: str = "both",
    guard: bool = True,
    spec: str | Path | None = None,
) -> Aligned:
    """Bring clients' parameters into one coordinate system, without averaging: for servers that combine them their
    own way.

    For the arguments see `aggregate`; ``weights`` matter here only for ``largest`` and ``none``.

    Raises:
        IsomergeError: parameters that do not fit together, or an option that is wrong.
    """
    shares = weights_of(weights, len(updates))
    how = Matching(config, names, spaces, layers, evidence, guard, spec)
    clients = Round.of(updates, anchor, shares, how, activations)
    tensors: list[dict[str, Tensor]] = [{} for _ in updates]
    for donor, moved in clients.units():
        for k, blocks in enumerate(moved):
            tensors[k] |= clients.stored(blocks, donor)
    each = [like(update, names, part) for update, part in zip(updates, tensors, strict=True)]
    return Aligned(each, clients.alignments(), clients.report())


def aggregate(
    updates: Sequence[Parameters],
    *,
    anchor: Parameters | str,
    config: Any,
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    spaces: str = "default",
    layers: str | None = None,
    activations: Sequence[Activations] | None = None,
    evidence: str = "both",
    guard: bool = True,
    spec: str | Path | None = None,
) -> Any:
    """The weighted average of clients' parameters, each aligned onto the anchor first.

    Args:
        updates: one model per client: a ``state_dict`` (name -> torch tensor or numpy array), or a list of arrays.
            All of one architecture, with equal names, types and shapes. Not changed.
        anchor: what all are aligned onto: the server's current parameters (of the kind of the updates, not averaged
            in), one of the updates (``first``, or ``largest`` by weight), or ``none``: their common mean, in the
            first one's coordinates (generalised Procrustes analysis, see `isomerge.solve.many.mean_solver`). Where
            clients started from different models, server parameters that nobody trained are no anchor: take another
            one in the first round.
        config: the model's ``config``, or the content of its config.json.
        weights: numbers of examples; all alike when None.
        names: of the arrays, in their order (``list(model.state_dict())``), where updates are lists.
        spaces: what may move (``isomerge align --help``); ``all`` includes the residual streams.
        layers: ``0-4``, ``head:5`` or ``tail:3``; all by default.
        activations: what every model gives for equal examples (`isomerge.research.federated.activations_of`), in
            the order of the updates; the anchor's before them where the anchor is parameters. None: weights alone
            decide.
        evidence: with activations: ``activations`` or ``both`` (with weights).
        guard: never move an update farther from the anchor than it is, for block-local spaces and weights alone.
            With False the result is a function of the updates' orbits, as that of `isomerge.merge` is.
        spec: a spec file for an architecture that isomerge does not know.

    Returns:
        Parameters in the form of the first update. Accumulated in float32 or float64, stored in the updates' types.
        Tensors that are no floating-point numbers are the anchor's (the first update's with ``none``).

    Raises:
        IsomergeError: parameters that do not fit together, or an option that is wrong.
    """

    shares = weights_of(weights, len(updates))
    how = Matching(config, names, spaces, layers, evidence, guard, spec)
    clients = Round.of(updates, anchor, shares, how, activations)
    gains = clients.gains()
    tensors: dict[str, Tensor] = {}
    for donor, moved in clients.units():
        mean = {
            block: linear([blocks[block] for blocks in moved], weight=shares) if x.is_floating_point() else x
            for block, x in donor.items()
        }
        tensors |= clients.stored(mean if gains is None else gains.written.applied(mean), donor)
    return like(updates[0], names, tensors)

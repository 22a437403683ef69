"""Flower strategies that align clients' parameters before they are averaged (``pip install 'isomerge[flower]'``).

Written for the message API of Flower (``flwr.serverapp.strategy``), tested with 1.41.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.research.federated.aggregate import ANCHORS, Aligned, activations_of, align_updates

if TYPE_CHECKING:
    _Strategy: Any = object
    AlignedFedAvg: Any
else:
    _Strategy = object

SERVER = "server"


class Aligning(_Strategy):
    """Makes a strategy of Flower align what clients send before it is averaged.

    Put it before a strategy that combines replies tensor by tensor: ``class AlignedFedAdam(Aligning, FedAdam)``;
    `AlignedFedAvg` is ``Aligning, FedAvg``. Messages keep their form: one ArrayRecord whose keys are tensor names
    (as ``ArrayRecord(model.state_dict())`` has them), one MetricRecord with the number of examples. Nothing more is
    sent.

    Every round's metrics get ``distance-before`` and ``distance-after``: of the updates to the anchor, as stored
    and aligned, relative to the anchor's norm.

    Args:
        *arguments, **options: those of the strategy.
        config: the model's ``config``, or the content of its config.json.
        anchor: what updates are aligned onto: the ``server``'s current parameters, one of the updates (``first`` by
            node id, or ``largest`` by examples), or ``none``: their common mean.
        first_anchor: the same for the first round. Where clients start from models of their own, the server's
            parameters mean nothing yet: ``none`` or ``largest``.
        rounds: align in so many rounds, then leave the strategy alone; in all when None. Clients that started apart
            start together from the second round on.
        names: tensor names, where the keys of the ArrayRecord are others (numbers), in its order.
        spaces, layers, evidence, guard, spec: see `isomerge.research.federated.aggregate`.
        probe: examples that the server runs every model on, to align by activations as well; no client sees or
            sends any.

    Raises:
        IsomergeError: an unknown anchor; in a round, parameters that do not fit together.
    """

    def __init__(
        self,
        *arguments: Any,
        config: Any,
        anchor: str = SERVER,
        first_anchor: str = SERVER,
        rounds: int | None = None,
        names: Sequence[str] | None = None,
        spaces: str = "default",
        layers: str | None = None,
        evidence: str = "both",
        guard: bool = True,
        spec: str | None = None,
        probe: Examples | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        for asked in (anchor, first_anchor):
            if asked not in (SERVER, *ANCHORS):
                raise IsomergeError(f"anchor {asked!r}: choose from {', '.join((SERVER, *ANCHORS))}")
        self.anchor, self.first_anchor, self.rounds = anchor, first_anchor, rounds
        self.names, self.probe = names, probe
        self.matching = {
            "config": config,
            "spaces": spaces,
            "layers": layers,
            "evidence": evidence,
            "guard": guard,
            "spec": spec,
        }
        self._server: Mapping[str, Any] = {}

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """Keep what clients start from, as the anchor of what they send back."""
        self._server = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Align the parameters of all replies in place, then do what the strategy does."""
        if self.rounds is not None and server_round > self.rounds:
            return super().aggregate_train(server_round, replies)
        replies = list(replies)
        good = sorted((r for r in replies if not r.has_error()), key=lambda r: r.metadata.src_node_id)
        # what is malformed is told by the strategy, in Flower's words
        if not good or any(len(r.content.array_records) != 1 or not r.content.metric_records for r in good):
            return super().aggregate_train(server_round, replies)
        first = next(iter(good[0].content.array_records.values()))
        aligned = self._aligned(server_round, good)
        for reply, update in zip(good, aligned.updates, strict=True):
            key = next(iter(reply.content.array_records))
            reply.content[key] = _record(first, update)
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:  # averages of whole numbers mean nothing: the anchor's are kept
            held = next(iter(good[0].content.array_records.values()))
            for key in arrays:
                if held[key].numpy().dtype.kind != "f":
                    arrays[key] = held[key]
        if metrics is not None:
            distance = aligned.report["distance"]
            for what in ("before", "after"):
                metrics[f"distance-{what}"] = distance[what] / distance["norm"] if distance["norm"] else 0.0
        return arrays, metrics

    def _aligned(self, server_round: int, replies: Sequence[Any]) -> Aligned:
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        weights = [
            float(next(iter(reply.content.metric_records.values())).get(self.weighted_by_key, 1.0))
            for reply in replies
        ]
        updates = [self._by_name(record) for record in records]
        chosen = self.first_anchor if server_round <= 1 else self.anchor
        anchor = self._by_name(self._server) if chosen == SERVER else chosen
        models = updates if isinstance(anchor, str) else [anchor, *updates]
        seen = None
        if self.probe is not None:
            how = {"config": self.matching["config"], "spec": self.matching["spec"]}
            seen = [activations_of(model, self.probe, **how) for model in models]
        return align_updates(updates, anchor=anchor, weights=weights, activations=seen, **self.matching)

    def _by_name(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arrays of a record by tensor name."""
        names = self.names or list(record)
        if len(names) != len(record):
            raise IsomergeError(
                f"a client sent {len(record)} arrays, but there are {len(names)} names: give one for each"
            )
        return {name: array.numpy() for name, array in zip(names, record.values(), strict=True)}


def _record(keys: Iterable[str], update: Mapping[str, Any]) -> Any:
    """An ArrayRecord of an update under the keys that clients use."""
    from flwr.app import Array, ArrayRecord  # pyright: ignore[reportMissingImports]

    return ArrayRecord(
        {key: Array(np.ascontiguousarray(x).reshape(x.shape)) for key, x in zip(keys, update.values(), strict=True)}
    )


@cache
def _aligned_fedavg() -> type:
    try:
        from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise IsomergeError(
            "AlignedFedAvg is a strategy of Flower, which is not installed: pip install 'isomerge[flower]'"
        ) from None

    class AlignedFedAvg(Aligning, FedAvg):
        __doc__ = Aligning.__doc__

    return AlignedFedAvg


def __getattr__(name: str) -> Any:
    if name == "AlignedFedAvg":
        return _aligned_fedavg()
    raise AttributeError(f"module 'isomerge.research.federated.flower' has no attribute {name!r}")

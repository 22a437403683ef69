"""The Flower strategy: replies are aligned before Flower averages them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from isomerge import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.research.federated.flower import AlignedFedAvg, Aligning
from research.federated.clients import Server, server
from toys import inputs, relative

TWIN = 1e-4


@dataclass
class Reply:
    """What a strategy reads of a message; Flower makes real ones only within a run."""

    content: RecordDict
    metadata: Any

    def has_error(self) -> bool:
        return False


def record(state: dict[str, torch.Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(x.numpy()) for name, x in state.items()})


def played(strategy: Any, start: ArrayRecord, updates: list[ArrayRecord], counts: list[int]) -> tuple[Any, Any]:
    """The first round of a strategy, with fabricated replies that arrive in reverse order."""
    strategy.fraction_train = 0.0  # nobody is asked: replies are there
    assert list(strategy.configure_train(1, start, ConfigRecord(), None)) == []
    replies = []
    for node, (update, count) in enumerate(zip(updates, counts, strict=True), 1):
        metrics = MetricRecord({"num-examples": count, "loss": float(count)})
        replies.append(Reply(RecordDict({"arrays": update, "metrics": metrics}), SimpleNamespace(src_node_id=node)))
    return strategy.aggregate_train(1, replies[::-1])


def computed(home: Server, arrays: Any) -> float:
    found = home.outputs({name: torch.from_numpy(x.numpy().copy()) for name, x in arrays.items()})
    return relative(found, home.outputs(home.state))


@pytest.mark.parametrize(
    ("options", "streams"),
    [({}, False), ({"first_anchor": "none"}, False), ({"spaces": "all", "first_anchor": "largest"}, True)],
)
def test_twins_average_to_their_function(options: dict[str, Any], streams: bool) -> None:
    """Where Flower's own average computes something else; metrics tell how far apart the clients were."""
    home = server("tiny")
    clients = [record(home.twin(seed, streams=streams)) for seed in (1, 2, 3)]
    arrays, metrics = played(
        AlignedFedAvg(config=home.config, **options), record(home.state), clients, [10, 30, 20]
    )
    assert computed(home, arrays) <= TWIN
    assert list(arrays) == list(home.state)
    assert metrics["loss"] == pytest.approx((100 + 900 + 400) / 60)
    assert metrics["distance-before"] > 0.3
    assert metrics["distance-after"] < 1e-3
    clients = [record(home.twin(seed, streams=streams)) for seed in (1, 2, 3)]
    plain, _ = played(FedAvg(), record(home.state), clients, [10, 30, 20])
    assert computed(home, plain) > 0.1


def test_without_anything_to_move_it_is_fedavg() -> None:
    """Weights by examples, as Flower takes them."""
    home = server("tiny")

    def clients() -> list[ArrayRecord]:
        return [record(server("tiny", seed).state) for seed in (1, 2)]

    ours, _ = played(AlignedFedAvg(config=home.config, spaces="none"), record(home.state), clients(), [10, 30])
    flowers, _ = played(FedAvg(), record(home.state), clients(), [10, 30])
    for name in flowers:
        assert np.array_equal(ours[name].numpy(), flowers[name].numpy()), name
        assert ours[name].numpy().dtype == np.float32


def test_rounds_that_are_not_aligned() -> None:
    """After so many rounds it is the strategy alone."""
    home = server("tiny")
    clients = [record(home.twin(seed)) for seed in (1, 2)]
    arrays, metrics = played(AlignedFedAvg(config=home.config, rounds=0), record(home.state), clients, [1, 1])
    assert computed(home, arrays) > 0.1
    assert "distance-after" not in metrics


def test_integers_and_numbered_arrays() -> None:
    """Whole numbers stay the server's, in their type; arrays without names are known by their order."""
    home = server("bert")
    state = {**home.state, "bert.embeddings.position_ids": torch.arange(32)[None]}
    strategy = AlignedFedAvg(config=home.config, names=list(state))

    def numbered(other: dict[str, torch.Tensor]) -> ArrayRecord:
        return ArrayRecord([x.numpy() for x in other.values()])

    shifted = {**state, "bert.embeddings.position_ids": torch.arange(32)[None] + 5}
    arrays, _ = played(strategy, numbered(state), [numbered(shifted), numbered(state)], [1, 1])
    assert list(arrays) == list(numbered(state))
    found = arrays[list(arrays)[list(state).index("bert.embeddings.position_ids")]].numpy()
    assert found.dtype == np.int64
    assert np.array_equal(found, np.arange(32)[None])


def test_other_strategies_can_align() -> None:
    """Aligning is put before any strategy that combines replies tensor by tensor: no update, no step."""

    class AlignedFedAdam(Aligning, FedAdam):
        pass

    home = server("tiny")
    clients = [record(home.twin(seed)) for seed in (1, 2)]
    strategy = AlignedFedAdam(config=home.config, eta=1e-6)
    arrays, _ = played(strategy, record(home.state), clients, [1, 1])
    assert computed(home, arrays) <= TWIN


def test_the_server_can_look_at_activations() -> None:
    """With a probe, the server runs all models on it."""
    home = server("tiny")
    given = {name: x.float() for name, x in inputs(home.module.config).items()}
    strategy = AlignedFedAvg(config=home.config, spaces="all", probe=Examples(given, False))
    clients = [record(home.twin(seed, streams=True)) for seed in (1, 2)]
    arrays, _ = played(strategy, record(home.state), clients, [1, 1])
    assert computed(home, arrays) <= TWIN


def test_flower_runs_the_strategy() -> None:
    """A round of Flower's own simulation: its messages, its records, its averaging; twins come back as the server's
    function."""
    for telemetry in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):  # read when these are imported
        os.environ.setdefault(telemetry, "0")
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    home = server("tiny")
    twins, results = [home.twin(seed) for seed in (1, 2)], []
    client_app, server_app = ClientApp(), ServerApp()

    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        arrays = ArrayRecord({name: Array(x) for name, x in states[number].items()})
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1 + number})}), reply_to=message
        )

    states = [{name: x.numpy() for name, x in twin.items()} for twin in twins]
    client_app.train()(train)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = AlignedFedAvg(config=home.config, fraction_evaluate=0.0, min_available_nodes=2)
        results.append(strategy.start(grid, record(home.state), num_rounds=1))

    resources = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=2, backend_config=resources)
    (found,) = results
    assert computed(home, found.arrays) <= TWIN
    metrics = found.train_metrics_clientapp[1]
    assert metrics["distance-before"] > 0.3
    assert metrics["distance-after"] < 1e-3


def test_errors() -> None:
    """Options when the strategy is made, updates when they arrive."""
    home = server("tiny")
    with pytest.raises(IsomergeError, match="anchor 'best': choose from server, first"):
        AlignedFedAvg(config=home.config, anchor="best")
    strategy = AlignedFedAvg(config=home.config, names=["a"])
    with pytest.raises(IsomergeError, match="24 arrays, but there are 1 names"):
        played(strategy, record(home.state), [record(home.state)] * 2, [1, 1])

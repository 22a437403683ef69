"""Federated averaging of small vision transformers, plain and aligned, through Flower's simulation engine.

    python benchmarks/federated/run.py [--engine flower|loop] [--seeds 0 1 2] [--page]

Four clients (`benchmarks/federated/clients.py`), two ways to start:

* ``shared``: all start from one model, as federated learning usually does. Eight rounds of two local epochs.
* ``own``: every client has trained a model of its own from its own seed, for 30 epochs, before the first round;
  then three rounds of two local epochs from what the server sends. The first round is the hard one.

Ways to average: ``plain`` (Flower's FedAvg), ``one`` (the first round takes the largest client's model and averages
nothing: what alignment must beat), ``default`` (block-local spaces), ``all`` (residual streams as well),
``activations`` (all spaces, and the server runs every model on 200 images without labels).

Every run is written to benchmarks/results/federated/digits.json when it is done, and not repeated; the table in
docs/lab/federated.md is made from that file (``--page`` does only that). Without Flower the same rounds run in a
plain loop.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.federated import clients
from benchmarks.federated.clients import CLIENTS, State, build, deal, load_split, measured, trained, trained_apart
from isomerge.federated import activations_of, align_updates
from isomerge.observe.data.examples import Examples

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "federated" / "digits.json"
PAGE = HERE.parents[1] / "docs" / "lab" / "federated.md"
MARK = "<!-- made by benchmarks/federated/run.py -->"
ROUNDS = {"shared": 8, "own": 4}
EPOCHS = 2
FIRST_EPOCHS = 30
SETTINGS = {"shared": ("skewed",), "own": ("even", "skewed")}
OWN_ONLY = ("one", "activations")
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "one": None,
    "default": {"spaces": "default"},
    "all": {"spaces": "all"},
    "activations": {"spaces": "all", "probe": True},
}
NAMES = {"plain": "plain average",
    "one": "largest client, then plain average", "default": "aligned, `default`", "all": "aligned, `all`",
         "activations": "aligned, `all`, 200 images looked at"}  # fmt: skip


def client_update(told: dict[str, Any], client: int, server: State) -> tuple[State, int]:
    """What one client sends back in one round."""
    split, seed, number = told["split"], told["seed"], told["server-round"]
    if told["start"] == "own" and number == 1:
        return trained_apart(split, seed, client, FIRST_EPOCHS)
    return trained(server, split, seed, client, EPOCHS, number)


def probe(split: str, seed: int) -> Examples:
    """The images that everybody may see."""
    return Examples({"pixel_values": load_split()[0][torch.from_numpy(deal(split, seed)[-1])]}, False)


def options_of(way: str, told: dict[str, Any]) -> dict[str, Any]:
    """The options of the strategy."""
    options: dict[str, Any] = {"config": build(0).config, **(WAYS[way] or {})}
    options["first_anchor"] = "largest" if told["start"] == "own" else "server"
    if options.pop("probe", False):
        options["probe"] = probe(told["split"], told["seed"])
    return options


def in_a_loop(way: str, told: dict[str, Any]) -> list[dict[str, Any]]:
    """All rounds of one run, without Flower."""
    server = {name: x.clone() for name, x in build(told["seed"]).state_dict().items()}
    rounds = []
    for number in range(1, ROUNDS[told["start"]] + 1):
        sent = [client_update({**told, "server-round": number}, k, server) for k in range(CLIENTS)]
        updates, weights = [state for state, _ in sent], [float(n) for _, n in sent]
        if way == "one" and number == 1:
            weights = [float(k == weights.index(max(weights))) for k in range(CLIENTS)]
        began, about = time.perf_counter(), {}
        if WAYS[way] is not None:
            options = options_of(way, told)
            first, examples = options.pop("first_anchor"), options.pop("probe", None)
            anchor: Any = first if number == 1 and first != "server" else server
            models = updates if isinstance(anchor, str) else [anchor, *updates]
            seen = examples and [activations_of(m, examples, config=options["config"]) for m in models]
            found = align_updates(updates, anchor=anchor, weights=weights, activations=seen, **options)
            updates, distance = found.updates, found.report["distance"]
            about = {what: round(distance[what] / distance["norm"], 4) for what in ("before", "after")}
        server = {
            name: sum(u[name] * (w / sum(weights)) for u, w in zip(updates, weights, strict=True))
            for name in server
        }
        rounds.append({**measured(server), **about, "seconds": round(time.perf_counter() - began, 2)})
    return rounds


def through_flower(runs: list[tuple[str, dict[str, Any]]], done: Callable[..., None]) -> None:
    """Runs through Flower's simulation engine, one after the other in one simulation."""
    for telemetry in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):  # read when these are imported
        os.environ.setdefault(telemetry, "0")
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from isomerge.federated.flower import AlignedFedAvg

    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        server = message.content["arrays"].to_torch_state_dict()
        client = int(context.node_config["partition-id"])
        state, count = client_update(dict(message.content["config"]), client, server)
        found = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": count})}
        return Message(RecordDict(found), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        for way, told in runs:
            common: dict[str, Any] = {"fraction_evaluate": 0.0, "min_available_nodes": CLIENTS}
            strategy = FedAvg(**common) if WAYS[way] is None else AlignedFedAvg(**common, **options_of(way, told))
            seconds: list[float] = []
            average = strategy.aggregate_train

            def timed(
                number: int, replies: Any, average: Any = average, seconds: Any = seconds, way: str = way
            ) -> Any:
                replies, began = list(replies), time.perf_counter()
                if way == "one" and number == 1:
                    replies = [max(replies, key=lambda r: r.content["metrics"]["num-examples"])]
                found = average(number, replies)
                seconds.append(round(time.perf_counter() - began, 2))
                return found

            strategy.aggregate_train = timed
            result = strategy.start(
                grid,
                ArrayRecord(build(told["seed"]).state_dict()),
                num_rounds=ROUNDS[told["start"]],
                train_config=ConfigRecord(dict(told)),
                evaluate_fn=lambda number, arrays: MetricRecord(measured(arrays.to_torch_state_dict())),
            )
            rounds = []
            for number, took in enumerate(seconds, 1):
                metrics = result.train_metrics_clientapp.get(number) or {}
                about = {
                    k: round(metrics[f"distance-{k}"], 4) for k in ("before", "after") if f"distance-{k}" in metrics
                }
                rounds.append({**result.evaluate_metrics_serverapp[number], **about, "seconds": took})
            done(way, told, rounds)

    resources = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)


def references(split: str, seed: int) -> dict[str, Any]:
    """What clients that trained apart reach alone, and together by the mean of their probabilities."""
    states = [trained_apart(split, seed, k, FIRST_EPOCHS)[0] for k in range(CLIENTS)]
    return {"clients": [measured(state) for state in states], "ensemble": measured(*states)}


def table(results: dict[str, Any]) -> str:
    """Means over seeds, with the lowest and the highest."""
    lines: list[str] = []
    for start, splits in SETTINGS.items():
        for split in splits:
            runs = {
                way: [r for k, r in results["runs"].items() if k.startswith(f"{start} {split} {way} ")]
                for way in WAYS
            }
            rounds = ROUNDS[start]
            shown = (1, 2, 4, 8) if start == "shared" else (1, 2, rounds)
            title = (
                "all clients start from one model"
                if start == "shared"
                else "every client starts from a model of its own"
            )
            lines += [
                "",
                f"**{title.capitalize()}**, `{split}` data, accuracy of the server's model after round",
                "",
            ]
            lines += ["| | " + " | ".join(map(str, shown)) + " | distance, round 1 | s per round |"]
            lines += ["|" + "---|" * (len(shown) + 3)]
            for way, found in runs.items():
                if found:
                    cells = [spread([r["rounds"][n - 1]["accuracy"] for r in found]) for n in shown]
                    first = [r["rounds"][0] for r in found]
                    moved = "" if "before" not in first[0] else " → ".join(
                        f"{statistics.mean(r[k] for r in first):.2f}" for k in ("before", "after")
                    )  # fmt: skip
                    took = statistics.median(x["seconds"] for r in found for x in r["rounds"])
                    lines += [f"| {NAMES[way]} | {' | '.join(cells)} | {moved} | {took:.2f} |"]
            told = [r for key, r in results["references"].items() if start == "own" and key.startswith(f"{split} ")]
            if told:
                alone = spread([statistics.mean(c["accuracy"] for c in r["clients"]) for r in told])
                together = spread([r["ensemble"]["accuracy"] for r in told])
                lines += [
                    "",
                    f"Before the first round: a client alone {alone}, the ensemble of all four {together}.",
                ]
    return "\n".join(lines).strip() + "\n"


def spread(values: list[float]) -> str:
    """Per cent: the mean, and the range where there are several."""
    low, high = 100 * min(values), 100 * max(values)
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ({low:.0f} to {high:.0f})"


def write_page(results: dict[str, Any]) -> None:
    """Put the table between the marks of the page."""
    if PAGE.exists():
        before, _, after = PAGE.read_text().split(MARK)
        PAGE.write_text(f"{before}{MARK}\n\n{table(results)}\n{MARK}{after}")


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    installed = importlib.util.find_spec("flwr") and importlib.util.find_spec("ray")
    parser.add_argument("--engine", choices=("flower", "loop"), default="flower" if installed else "loop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--page", action="store_true", help="only write the table of the results that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    clients.load_split()
    results: dict[str, Any] = (
        json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}, "references": {}}
    )

    def done(way: str, told: dict[str, Any], rounds: list[dict[str, Any]]) -> None:
        key = f"{told['start']} {told['split']} {way} {told['seed']}"
        results["runs"][key] = {"engine": arguments.engine, "rounds": rounds}
        save(results)
        print(key, [r["accuracy"] for r in rounds], flush=True)

    wanted = []
    for seed in [] if arguments.page else arguments.seeds:
        for start, splits in SETTINGS.items():
            for split in splits:
                for way in WAYS:
                    if (
                        not (start == "shared" and way in OWN_ONLY)
                        and f"{start} {split} {way} {seed}" not in results["runs"]
                    ):
                        wanted.append((way, {"start": start, "split": split, "seed": seed}))
    if arguments.engine == "flower" and wanted:
        through_flower(wanted, done)
    for way, told in wanted if arguments.engine == "loop" else []:
        done(way, told, in_a_loop(way, told))
    for seed in [] if arguments.page else arguments.seeds:
        for split in SETTINGS["own"]:
            if f"{split} {seed}" not in results["references"]:
                results["references"][f"{split} {seed}"] = references(split, seed)
    save(results)
    write_page(results)


def save(results: dict[str, Any]) -> None:
    """Write the results, complete or not at all."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    unfinished = RESULTS.with_suffix(".tmp")
    unfinished.write_text(json.dumps({k: dict(sorted(v.items())) for k, v in results.items()}, indent=1) + "\n")
    unfinished.replace(RESULTS)


if __name__ == "__main__":
    main()

"""Averaging clients: twins of one model average to that model, weights count, and it is the merge on disk, in
memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import isomerge
from isomerge import IsomergeError
from isomerge.checkpoint.in_memory import in_memory
from isomerge.observe.data.examples import Examples
from isomerge.research.federated import activations_of, aggregate, align_updates
from isomerge.symmetry.carried import CARRY
from research.federated.clients import Server, plain, server
from symmetry.twins import free_moves
from toys import inputs, relative

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

# float32 weights, three layers, elements of condition 4: rounding reaches about 1e-5
TWIN = 1e-4


def error(home: Server, state: dict[str, Any]) -> float:
    return relative(home.outputs(state), home.outputs(home.state))


@pytest.mark.parametrize(
    ("name", "anchor"),
    [
        ("vit", "server"),
        ("gpt2", "server"),
        ("bert", "server"),
        ("t5-gated", "server"),
        ("gpt2", "none"),
        ("tiny", "none"),
    ],
)
def test_twins_average_to_their_common_function(name: str, anchor: str) -> None:
    """Whatever symmetry stands between the clients; the plain average computes something else."""
    home = server(name)
    clients = [home.twin(1), home.twin(2), home.twin(3)]
    chosen = home.state if anchor == "server" else anchor
    found = aggregate(clients, anchor=chosen, config=home.config, weights=[5, 1, 3])
    assert error(home, found) <= TWIN
    assert error(home, plain(clients, [5, 1, 3])) > 0.1


@pytest.mark.parametrize(("name", "anchor"), [("vit", "first"), ("llama", "first"), ("tiny", "none")])
def test_twins_in_other_streams(name: str, anchor: str) -> None:
    """Clients whose residual streams are in different bases need all spaces, and have them."""
    home = server(name)
    clients = [home.twin(1, streams=True), home.twin(2, streams=True)]
    assert error(home, aggregate(clients, anchor=anchor, config=home.config, spaces="all")) <= TWIN
    assert error(home, aggregate(clients, anchor=anchor, config=home.config)) > 0.1


@pytest.mark.parametrize("name", ["gpt2", "bert"])
@pytest.mark.parametrize("anchor", ["first", "none"])
@pytest.mark.parametrize("spaces", ["default", "all"])
def test_twins_under_what_layer_norm_leaves_free(name: str, anchor: str, spaces: str) -> None:
    """What a norm takes away again hides nothing between clients, and is averaged away with them."""
    home = server(name)
    clients = [home.moved(free_moves(home.recognised(), seed=seed), home.twin(seed)) for seed in (1, 2, 3)]
    assert all(error(home, client) <= TWIN for client in clients)
    merged = aggregate(clients, anchor=anchor, config=home.config, weights=[2, 1, 3], spaces=spaces)
    assert error(home, merged) <= TWIN
    assert error(home, plain(clients, [2, 1, 3])) > 0.1


@pytest.mark.parametrize("anchor", ["server", "first", "none"])
def test_twins_with_other_constants(anchor: str) -> None:
    """What may stand in one tensor or in those of other layers is brought onto the anchor's first."""
    home = server("openai-gpt")
    clients = [home.moved(free_moves(home.recognised(), CARRY, seed=seed), home.twin(seed)) for seed in (1, 2)]
    chosen = home.state if anchor == "server" else anchor
    assert error(home, aggregate(clients, anchor=chosen, config=home.config)) <= TWIN
    assert error(home, plain(clients, [1, 1])) > 0.1


@pytest.mark.parametrize(
    ("anchor", "spaces"), [("first", "default"), ("first", "all"), ("none", "all"), ("server", "default")]
)
def test_it_is_the_merge_on_disk(anchor: str, spaces: str, tmp_path: Path) -> None:
    """Bit for bit what `isomerge.merge` writes, with the anchor left out of the average where it is the
    server's."""
    homes = [server("tiny", seed) for seed in ((1, 2, 3) if anchor != "none" else (1, 2))]
    for k, home in enumerate(homes):
        home.module.load_state_dict(home.state)
        home.module.save_pretrained(tmp_path / str(k))
    weights = {"server": [0.0, 2.0, 1.0], "first": [1.0, 2.0, 1.0], "none": [1.0, 2.0]}[anchor]
    out = tmp_path / "out"
    how = "none" if anchor == "none" else "first"
    folders = [tmp_path / str(k) for k in range(len(homes))]
    isomerge.merge(folders, out=out, weights=weights, anchor=how, spaces=spaces)
    states = [home.state for home in homes]
    given: dict[str, Any] = {"config": homes[0].config, "spaces": spaces, "guard": False}
    if anchor == "server":
        found = aggregate(states[1:], anchor=states[0], weights=weights[1:], **given)
    else:
        found = aggregate(states, anchor=anchor, weights=weights, **given)
    match = homes[0].recognised().spec.match  # transformers has other names on disk than in memory
    merged = {match(name).canonical: x for name, x in load_file(out / "model.safetensors").items()}
    named = {match(name).canonical: x for name, x in found.items()}
    assert merged.keys() == named.keys()
    assert [name for name in merged if not torch.equal(merged[name], named[name])] == []


def test_weights_are_numbers_of_examples() -> None:
    """Without alignment it is the weighted mean; with it, a client of weight zero has no say."""
    one, two = server("vit", 1), server("vit", 2)
    found = aggregate([one.state, two.state], anchor="first", config=one.config, weights=[30, 10], spaces="none")
    for name, x in found.items():
        mean = (one.state[name].double() * 3 + two.state[name].double()) / 4
        assert torch.allclose(x.double(), mean, atol=1e-6), name
    alone = aggregate([two.state, one.twin(4)], anchor=one.state, config=one.config, weights=[0, 7])
    assert error(one, alone) <= TWIN


def test_the_largest_client_can_be_the_anchor() -> None:
    """The anchor's own weights are what the others are brought to."""
    home = server("vit")
    clients = [home.twin(1), home.twin(2), home.twin(3)]
    found = align_updates(clients, anchor="largest", config=home.config, weights=[1, 9, 2])
    assert all(torch.equal(found.updates[1][name], x) for name, x in clients[1].items())
    assert len(found.alignments[1]) == 0
    assert len(found.alignments[0]) > 0
    assert found.report["anchor"] == "update 2"


def test_aligned_updates_are_the_same_functions_nearer() -> None:
    """Every update keeps its function and comes no farther from the anchor; the report says how near."""
    home, others = server("gpt2", 1), [server("gpt2", 2), server("gpt2", 3)]
    found = align_updates([o.state for o in others], anchor=home.state, config=home.config)
    for other, update, told in zip(others, found.updates, found.report["updates"], strict=True):
        assert error(other, update) <= TWIN
        # a tied head is stored twice, but is one tensor where distances are measured or two: compare each
        before, after = (
            sum(float((s[n] - home.state[n]).double().square().sum()) for n in s) ** 0.5
            for s in (other.state, update)
        )
        assert after < 0.98 * before
        assert told["before"] == pytest.approx(before, rel=1e-5)
        assert told["after"] == pytest.approx(after, rel=1e-4)


def test_forms_of_parameters() -> None:
    """Lists of arrays, arrays by name and tensors by name give the same numbers, each in its own form."""
    one, two = server("tiny", 1), server("tiny", 2)
    names = list(one.state)
    kept = {name: x.clone() for name, x in two.state.items()}
    by_name = aggregate([one.state, two.state], anchor="first", config=one.module.config)
    arrays = [{n: x.numpy() for n, x in home.state.items()} for home in (one, two)]
    as_arrays = aggregate(arrays, anchor="first", config=one.config)
    lists = [list(x.values()) for x in arrays]
    as_list = aggregate(lists, anchor=lists[0], config=one.config, names=names, weights=[1, 1])
    reference = aggregate([one.state, two.state], anchor=one.state, config=one.config)
    assert isinstance(as_list, list)
    for k, name in enumerate(names):
        assert isinstance(as_arrays[name], np.ndarray)
        assert as_arrays[name].dtype == np.float32
        assert np.array_equal(as_arrays[name], by_name[name].numpy())
        assert np.array_equal(as_list[k], reference[name].numpy())
    assert all(torch.equal(kept[name], x) for name, x in two.state.items())  # nothing given is changed


def test_halves_are_averaged_in_float32() -> None:
    """Stored types are kept, sums are not taken in them: 256 + 2 + 2 in bfloat16 would stay 256."""
    home = server("vit")
    states = []
    for value in (256.0, 258.0, 258.0):
        state = {name: x.bfloat16() for name, x in home.state.items()}
        state["classifier.bias"] = torch.full_like(state["classifier.bias"], value)
        states.append(state)
    found = aggregate(states, anchor="first", config=home.config, spaces="none", weights=[0.01, 1, 1])
    assert found["classifier.bias"].dtype == torch.bfloat16
    assert found["classifier.bias"].tolist() == [258.0] * len(found["classifier.bias"])


def test_integers_are_the_anchors() -> None:
    """Position numbers are not averaged."""
    home = server("bert")
    name = "bert.embeddings.position_ids"
    states = []
    for start in (0, 100, 200):
        states.append({**home.state, name: torch.arange(32)[None] + start})
    found = aggregate(states[1:], anchor=states[0], config=home.config, spaces="none")
    assert torch.equal(found[name], states[0][name])
    aligned = align_updates(states[1:], anchor=states[0], config=home.config, spaces="none")
    assert all(torch.equal(update[name], states[0][name]) for update in aligned.updates)


def test_one_client_is_itself() -> None:
    """A round that one client answers has nothing to average."""
    home = server("vit")
    for anchor in ("first", "none"):
        found = aggregate([home.state], anchor=anchor, config=home.config, spaces="all")
        assert all(torch.equal(found[name], x) for name, x in home.state.items())


def test_a_round_draws_nothing() -> None:
    """The result is a function of the input, and the caller's random numbers are left alone."""
    home = server("tiny")
    clients = [home.twin(1, streams=True), server("tiny", 5).state]
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    found = [aggregate(clients, anchor="none", config=home.config, spaces="all") for _ in range(2)]
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(found[0][name], x) for name, x in found[1].items())


def test_without_an_anchor_the_order_of_clients_is_nothing() -> None:
    """Strangers with examples of their own number: the same parameters, whoever reports first."""
    homes = [server("tiny", seed) for seed in (1, 2)]
    one, two = (
        aggregate(
            [homes[k].state for k in order], anchor="none", config=homes[0].config, weights=[k + 1 for k in order]
        )
        for order in ((0, 1), (1, 0))
    )
    assert all(torch.allclose(one[name], x, atol=1e-5) for name, x in two.items())


def probe(home: Server) -> Examples:
    given = inputs(home.module.config)
    return Examples({name: x.float() for name, x in given.items()}, False)


def test_activations_align_as_weights_do() -> None:
    """Twins are found by what they compute alone, through streams in other bases."""
    home = server("vit")
    clients = [home.twin(1, streams=True), home.twin(2, streams=True)]
    seen = [activations_of(c, probe(home), config=home.config, rows=512) for c in (home.state, *clients)]
    assert seen[0].values.keys() == seen[1].values.keys()
    assert all(x.dtype == torch.float32 and len(x) <= 512 for x in seen[1].values.values())
    found = aggregate(
        clients, anchor=home.state, config=home.config, spaces="all", activations=seen, evidence="both"
    )
    assert error(home, found) <= TWIN


def test_activations_decide_what_weights_leave_open() -> None:
    """Evidence is used: other activations give another alignment of unrelated models."""
    one, two = server("vit", 1), server("vit", 2)
    seen = [activations_of(h.state, probe(one), config=one.config) for h in (one, two)]
    with_them, without = (
        aggregate([one.state, two.state], anchor="first", config=one.config, activations=s) for s in (seen, None)
    )
    assert max(float((with_them[n] - without[n]).abs().max()) for n in without) > 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: {n: x for n, x in s.items() if n != "classifier.bias"},
            "update 2: .* needs classifier.bias",
        ),
        (lambda s: {**s, "adapter.weight": torch.ones(3)}, "update 2: tensor adapter.weight is not described"),
        (lambda s: {**s, "classifier.bias": torch.ones(7)}, "update 2: .*classifier.bias"),
        (
            lambda s: {**s, "classifier.bias": s["classifier.bias"].double()},
            "update 2: tensor classifier.bias is F64",
        ),
        (
            lambda s: {**s, "classifier.bias": s["classifier.bias"] * np.nan},
            "update 2: tensor classifier.bias has NaN",
        ),
        (lambda s: {**s, "classifier.bias": [1.0, 2.0]}, "update 2: entry 'classifier.bias' is a list"),
        (lambda s: {**s, "classifier.bias": np.array(["a"])}, "update 2: array 'classifier.bias' has the type"),
        (lambda s: {**s, "classifier.bias": s["classifier.bias"].to_sparse()}, "not a plain dense tensor"),
        (lambda s: list(s.values()), "update 2 is a list of arrays: give their names"),
    ],
)
def test_updates_that_do_not_fit(change: Any, message: str) -> None:
    """One sentence names the client and the tensor."""
    home = server("vit")
    with pytest.raises(IsomergeError, match=message):
        aggregate([home.state, change(home.state)], anchor="first", config=home.config)


def test_options_that_are_wrong() -> None:
    """Every option is checked before anything is solved."""
    home = server("vit")
    two = [home.state, home.state]
    given: dict[str, Any] = {"anchor": "first", "config": home.config}
    for wrong, message in (
        ({"anchor": "best"}, "anchor 'best': give the server's parameters"),
        ({"weights": [1]}, "weights: 2 numbers of examples"),
        ({"weights": [1, -1]}, "weights: 2 numbers"),
        ({"weights": [0, 0]}, "weights: 2 numbers"),
        ({"weights": [1, float("inf")]}, "weights: 2 numbers"),
        ({"spaces": "neurons"}, "neurons"),
        ({"evidence": "hearsay"}, "evidence 'hearsay': choose from"),
        ({"config": "vit"}, "str is no configuration"),
        ({"activations": []}, "activations of 0 models, but 2"),
        ({"anchor": "none", "spaces": "paper"}, "paper"),
    ):
        with pytest.raises(IsomergeError, match=message):
            aggregate(two, **{**given, **wrong})
    with pytest.raises(IsomergeError, match="no updates"):
        aggregate([], **given)
    with pytest.raises(IsomergeError, match="56 arrays, but there are 1 names"):
        aggregate([list(home.state.values())], names=["a"], **given)
    head = probe(home).head(1)
    seen = [activations_of(home.state, e, config=home.config) for e in (probe(home), head)]
    with pytest.raises(IsomergeError, match="activations are of different examples"):
        aggregate(two, activations=seen, **given)


def test_an_open_checkpoint_in_memory(tmp_path: Path) -> None:
    """Functions that take open checkpoints take tensors in memory: distance, inspection, alignment, merging."""
    home = server("gpt2")
    one, two = in_memory(home.state, home.config, ref="one"), in_memory(home.twin(1), home.module.config, ref="two")
    report = isomerge.diff(one, two)
    assert report["models"] == ["one", "two"]
    assert report["distance"]["after"] < 1e-4 * report["distance"]["norm"]
    assert report["distance"]["before"] > 0.1 * report["distance"]["norm"]
    assert isomerge.inspect(one)["architecture"] == "gpt2"
    _, moved = isomerge.align(two, onto=one, out=tmp_path / "moved")
    assert moved["distance"]["after"] < 1e-4 * moved["distance"]["norm"]
    isomerge.merge([one, two], out=tmp_path / "merged")
    merged = isomerge.open(tmp_path / "merged").read("transformer.wte.weight")
    assert relative(merged, home.state["transformer.wte.weight"]) < TWIN
    assert one.identity() != two.identity()
    assert one.identity() == in_memory(home.state, home.config).identity()
    read = one.read("transformer.wte.weight")
    read += 1
    assert torch.equal(one.read("transformer.wte.weight"), home.state["transformer.wte.weight"])

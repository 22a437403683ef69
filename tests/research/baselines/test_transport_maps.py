"""Transport maps against brute force, linear programming, and the conditions that make a coupling optimal."""

from __future__ import annotations

from itertools import permutations, product

import numpy
import ot
import pytest
import torch
from scipy.optimize import linprog

from isomerge.errors import IsomergeError
from isomerge.matching.gram import Leaf, paired_leaves
from isomerge.research.baselines import transport_maps
from isomerge.research.baselines.permutations import in_declared_groups, permutation_matrix, permutation_spec
from isomerge.research.baselines.transport_maps import (
    TransportSettings,
    joint_map,
    likeness,
    nested_maps,
    transport_map,
    transported,
)
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import leaves
from matching.drawn import draw, moved, small_spec

HARD = TransportSettings(coupling="emd")
PLAIN = TransportSettings(coupling="emd", squared=True, normalised=False)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_hard_maps_are_the_best_permutations(n: int) -> None:
    """Of all n! permutations, for a batch of costs."""
    costs = drawn(3, n, n, seed=n).square()
    found = transport_map(costs, HARD)
    assert bool(((found == 0) | (found == 1)).all())
    assert torch.equal(found.sum(-1), torch.ones(3, n).double())
    assert torch.equal(found.sum(-2), found.sum(-1))
    for cost, one in zip(costs, found, strict=True):
        best = min(sum(float(cost[i, p[i]]) for i in range(n)) for p in permutations(range(n)))
        assert float((one * cost).sum()) == pytest.approx(best, rel=1e-12)


def test_what_gains_nothing_stays() -> None:
    """Where the identity is as good as any, nothing is moved."""
    assert torch.equal(transport_map(torch.ones(4, 4), HARD), torch.eye(4).double())
    assert torch.equal(transport_map(torch.zeros(4, 4), HARD), torch.eye(4).double())
    tie = torch.tensor([[1.0, 1.0, 5.0], [1.0, 1.0, 5.0], [5.0, 5.0, 0.0]])
    assert torch.equal(transport_map(tie, HARD), torch.eye(3).double())


def test_unequal_widths() -> None:
    """Three neurons onto four places: every place is a mean, and the cost is that of the linear program."""
    cost = drawn(3, 4).square()
    found = transport_map(cost, HARD)
    assert torch.allclose(found.sum(0), torch.ones(4).double())
    assert torch.allclose(found.sum(1), torch.full((3,), 4 / 3).double())
    rows = numpy.kron(numpy.eye(3), numpy.ones(4))
    columns = numpy.kron(numpy.ones(3), numpy.eye(4))
    bounds = numpy.concatenate([numpy.full(3, 1 / 3), numpy.full(4, 1 / 4)])
    best = linprog(cost.flatten().numpy(), A_eq=numpy.concatenate([rows, columns]), b_eq=bounds).fun
    assert float((found * cost).sum()) / 4 == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("regularisation", [0.05, 0.5])
def test_soft_maps_have_their_marginals_and_are_optimal(regularisation: float) -> None:
    """Rows and columns sum to one, and log T + cost / regularisation is a sum of a row's and a column's number."""
    cost = drawn(6, 6).abs()
    found = transport_map(cost, TransportSettings(regularisation=regularisation))
    # columns are normalised at last; rows are met to the stopping threshold on plans of mass one
    assert torch.allclose(found.sum(0), torch.ones(6).double(), atol=1e-14)
    assert torch.allclose(found.sum(1), torch.ones(6).double(), atol=6 * 1e-8)
    assert bool((found > 0).all())
    potential = found.log() + cost / (cost.mean() * regularisation)
    rest = potential - potential[:1] - potential[:, :1] + potential[0, 0]
    assert float(rest.abs().max()) < 1e-9


def test_a_map_of_too_few_iterations_is_still_made_of_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns sum to one whatever happens; only rows show that the iteration has not settled."""
    monkeypatch.setattr(transport_maps, "ITERATIONS", 2)
    found = transport_map(drawn(6, 6).abs(), TransportSettings(regularisation=0.02))
    assert torch.allclose(found.sum(0), torch.ones(6).double(), atol=1e-14)
    assert float((found.sum(1) - 1).abs().max()) > 1e-3


def test_a_steep_cost_is_solved_in_the_log_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two iterations agree, and a regularisation that would underflow gives the hard map."""
    cost = drawn(5, 5).abs()
    mild = transport_map(cost, TransportSettings(regularisation=0.1))
    monkeypatch.setattr(transport_maps, "LARGEST_EXPONENT", 0.0)
    assert torch.allclose(transport_map(cost, TransportSettings(regularisation=0.1)), mild, atol=1e-7)
    monkeypatch.undo()
    steep = transport_map(cost, TransportSettings(regularisation=5e-3))
    assert bool(steep.isfinite().all())
    assert torch.equal(steep.round(), transport_map(cost, HARD))


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("normalised", [True, False])
def test_costs_are_distances(squared: bool, normalised: bool) -> None:
    """From Grams over several tensors, as between the concatenated vectors; a neuron of zeros is no exception."""
    spec = permutation_spec(small_spec("gpt2", n_embd=6, n_head=2, n_inner=5), ["ff"])
    a, b = drawn(5, 9), drawn(5, 9, seed=1)
    a[2] = 0
    parts = [((Atom("ff"), Atom("x")), slice(0, 4)), ((Atom("y"), Atom("ff", dual=True)), slice(4, 9))]
    pairs: list[Leaf] = []
    for atoms, at in parts:
        x, y = (t[:, at] if atoms[0].name == "ff" else t[:, at].mT for t in (a, b))
        pairs.append((x, y, atoms))
    found = likeness(spec, pairs)[("ff",)].cost(
        TransportSettings(coupling="emd", squared=squared, normalised=normalised)
    )
    if normalised:
        a, b = (torch.nn.functional.normalize(t, dim=1) for t in (a, b))
    wanted = torch.cdist(b, a) ** (2 if squared else 1)
    if normalised:  # no direction: as far from all as what is orthogonal
        wanted[:, 2] = 2.0 if squared else 2.0**0.5
    assert torch.allclose(found.arrange(("ff-", "ff+")), wanted, atol=1e-12)


def test_equal_neurons_cost_nothing() -> None:
    """Rounding of a Gram is not taken for a distance: its square root would be 1e-8."""
    spec = permutation_spec(small_spec("gpt2", n_embd=6, n_head=2, n_inner=5), ["ff"])
    a = drawn(5, 300) * 1e3
    for how in (TransportSettings(coupling="emd"), TransportSettings(coupling="emd", normalised=False)):
        cost = likeness(spec, [(a, a, (Atom("ff"), Atom("x")))])[("ff",)].cost(how)
        assert float(cost.arrange(("ff-", "ff+")).diagonal().max()) == 0


def test_heads_and_their_dimensions_by_brute_force() -> None:
    """Of all 3! (2!)^3 ways to renumber heads and values inside, none is closer; neurons are never mixed."""
    spec = small_spec("gpt2", n_embd=6, n_head=3, n_inner=4)
    local = permutation_spec(spec, ["h", "ov"])
    a, b = (draw(spec, seed, "c_attn.weight") for seed in (0, 1))
    pairs = [leaf for leaf in paired_leaves(spec, a, b) if any(x.name == "ov" for x in leaf[2])]
    found = nested_maps(local, likeness(local, pairs), PLAIN)
    assert found["h"].dims == ("h-", "h+")
    assert found["ov"].dims == ("h-", "h+", "ov-", "ov+")
    ((x, y, here),) = pairs
    here = [n.name for n in here]
    x, y = (t.permute(here.index("h"), here.index("ov"), here.index("res"), here.index("n1")) for t in (x, y))

    def distance(p: tuple[int, ...], inner: tuple[tuple[int, ...], ...]) -> float:
        return sum(float((x[i] - y[p[i]][list(inner[i])]).square().sum()) for i in range(3))

    best = min(
        distance(p, inner) for p in permutations(range(3)) for inner in product(permutations(range(2)), repeat=3)
    )
    along = transport_maps.product(list(found.values()), ["h", "ov"], [])
    assert float((transported(y, (), (0, 1), along) - x).square().sum()) == pytest.approx(best, rel=1e-12)


def test_across_heads_by_brute_force() -> None:
    """One map for all six values of three heads: the best of 6! permutations, better than any that keeps heads."""
    spec = small_spec("gpt2", n_embd=6, n_head=3, n_inner=4)
    local = permutation_spec(spec, ["h", "ov"])
    a, b = (draw(spec, seed, "c_attn.weight") for seed in (0, 1))
    pairs = [leaf for leaf in paired_leaves(spec, a, b) if any(x.name == "ov" for x in leaf[2])]
    ((sig, each),) = likeness(local, pairs).items()
    found = joint_map(sig, each, PLAIN)
    assert found.dims == ("h-", "ov-", "h+", "ov+")
    flat = found.data.reshape(6, 6)
    cost = each.cost(PLAIN).arrange(("h-", "ov-", "h+", "ov+")).reshape(6, 6)
    best = min(sum(float(cost[p[i], i]) for i in range(6)) for p in permutations(range(6)))
    assert float((flat * cost).sum()) == pytest.approx(best, rel=1e-12)
    inside = nested_maps(local, {sig: each}, PLAIN)
    nested = transport_maps.product(list(inside.values()), list(sig), []).reshape(6, 6)
    assert float((nested * cost).sum()) > best * (1 + 1e-6)


def test_query_heads_given_their_dimensions() -> None:
    """Two fibres on one tensor: the one that is alone in another tensor comes first, and both are recovered."""
    spec = small_spec("llama", hidden_size=12, num_attention_heads=6, num_key_value_heads=2, intermediate_size=4)
    local = permutation_spec(spec, ["kv", "g", "ov"])
    queries = (Atom("kv"), Atom("g"), Atom("ov"), Atom("x"))
    values = (Atom("kv"), Atom("ov"), Atom("x"))
    q, v = drawn(2, 3, 2, 5), drawn(2, 2, 5, seed=1)
    kv, g, o = torch.tensor([1, 0]), torch.tensor([[1, 2, 0], [0, 2, 1]]), torch.tensor([[1, 0], [0, 1]])
    y = torch.stack([q[kv[j]][g[j]][:, o[j]] for j in range(2)])
    w = torch.stack([v[kv[j]][o[j]] for j in range(2)])
    found = nested_maps(local, likeness(local, [(q, y, queries), (v, w, values)]), HARD)
    factors = [found[n] for n in ("kv", "g", "ov")]
    assert torch.equal(transported(y, (), (0, 1, 2), transport_maps.product(factors, ["kv", "g", "ov"], [])), q)
    assert torch.equal(transported(w, (), (0, 1), transport_maps.product(factors[::2], ["kv", "ov"], [])), v)


def test_given_maps_are_kept() -> None:
    """What was decided elsewhere decides which dimensions meet."""
    spec = small_spec("gpt2", n_embd=6, n_head=3, n_inner=4)
    local = permutation_spec(spec, ["h", "ov"])
    a, b = (draw(spec, seed, "c_attn.weight") for seed in (0, 1))
    pairs = [leaf for leaf in paired_leaves(spec, a, b) if any(x.name == "ov" for x in leaf[2])]
    found = nested_maps(local, likeness(local, pairs), HARD)
    turned = transport_maps.Cross(("h-", "h+"), found["h"].data.roll(1, 0))
    again = nested_maps(local, likeness(local, pairs), HARD, {"h": turned})
    assert torch.equal(again["h"].data, turned.data)
    assert torch.equal(again["ov"].data, found["ov"].data)


def test_transported_is_a_matrix_product() -> None:
    """Along two axes together, and for every index of a batch."""
    x, t = drawn(3, 2, 5), drawn(3, 2, 3, 2, seed=1)
    dense = t.reshape(6, 6).mT @ x.reshape(6, 5)
    assert torch.allclose(transported(x, (), (0, 1), t).reshape(6, 5), dense)
    each = drawn(3, 5, 5, seed=2)
    wanted = torch.stack([x[k] @ each[k] for k in range(3)])
    assert torch.allclose(transported(x, (0,), (2,), each), wanted)


def test_permutations_act_alike_in_their_own_group_and_in_the_declared_one() -> None:
    """Renumbered head dimensions are permutation matrices of GL; a matrix has ``(G x)[i] = x[p[i]]``."""
    spec = small_spec("gpt2", n_embd=6, n_head=3, n_inner=4)
    renumber = permutation_spec(spec)
    assert {s.group_name for s in renumber.spaces.values()} == {"Perm"}
    assert not renumber.shifts
    assert renumber.spaces.keys() == {"res", "h", "qk", "ov", "ff"}
    p = torch.tensor([[1, 0], [0, 1], [1, 0]])
    found = {"res": torch.randperm(6), "h[0]": torch.tensor([2, 0, 1]), "qk[0]": p, "ov[0]": p.flip(0)}
    blocks = draw(spec, 0, "attn")
    own = moved(Alignment(renumber, found), blocks)
    declared = moved(in_declared_groups(spec, found), blocks)
    assert len(own) == 4
    assert all(torch.equal(own[b], declared[b]) for b in own)
    assert any(not torch.equal(own[b], t) for b, t in blocks.items())
    x = drawn(2)
    assert torch.equal(permutation_matrix(p)[0] @ x, x[p[0]])


def test_leaves_of_a_fused_tensor_are_told_apart() -> None:
    """Queries, keys and values of GPT-2 are three leaves, of which one has values."""
    spec = small_spec("gpt2", n_embd=6, n_head=3, n_inner=4)
    (block, tensor), *_ = draw(spec, 0, "c_attn.weight").items()
    names = [{a.name for a in atoms} for _, atoms, _ in leaves(spec, block, tensor)]
    assert [("qk" in n, "ov" in n) for n in names] == [(True, False), (True, False), (False, True)]


def test_a_coupling_that_cannot_be_computed() -> None:
    """The option is named."""
    with pytest.raises(IsomergeError, match="coupling 'hungarian': choose from emd, sinkhorn"):
        TransportSettings(coupling="hungarian").check(activations=False)
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(IsomergeError, match="give a positive number"):
            TransportSettings(regularisation=value).check(activations=False)


def test_the_library_agrees() -> None:
    """The same plan as POT's own, times the number of neurons."""
    cost = drawn(7, 7).square()
    plan = ot.emd(numpy.full(7, 1 / 7), numpy.full(7, 1 / 7), cost.numpy())
    assert torch.allclose(transport_map(cost, HARD), torch.from_numpy(plan) * 7)

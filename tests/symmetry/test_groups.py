"""The laws of groups, over the registry: composition, duality, optimality, balance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isomerge.symmetry.groups import GROUPS, Group

SEEDS = st.integers(0, 2**32 - 1)
BATCHES = st.sampled_from([(), (3,), (2, 2)])
WIDTHS = {"Complex": [2], "Turn": [2], "OFixingOnes": [2, 3, 5]}
NONCOMPACT = ["GL", "Scale", "PositiveScale", "SquaredScale", "Complex"]
EVERY = pytest.mark.parametrize("name", GROUPS)


def generator(seed: int) -> torch.Generator:
    """A seeded source."""
    return torch.Generator().manual_seed(seed)


def width(name: str, seed: int) -> int:
    """An axis length that the group acts on."""
    sizes = WIDTHS.get(name, [1, 2, 3, 5])
    return sizes[seed % len(sizes)]


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    """Equal up to rounding (condition numbers are at most 100)."""
    return bool((a - b).abs().max() <= tolerance * (1 + b.abs().max())) if a.numel() else a.shape == b.shape


def compact(group: Group, batch: tuple[int, ...], n: int, rng: torch.Generator) -> Tensor:
    """A random element of the maximal compact subgroup."""
    if group.name in ("Complex", "Turn"):
        z = group.sample(batch, n, rng)
        return z / z.norm(dim=-1, keepdim=True)
    if group.compact == "Fixed" and group.name != "Fixed":  # positive factors
        return group.identity(batch, n)
    return GROUPS[group.compact].sample(batch, n, rng)


# ------------------------------------------------------------------------- action


@EVERY
@given(SEEDS, BATCHES, st.booleans())
def test_composition_is_action_after_action(name: str, seed: int, batch: tuple[int, ...], dual: bool) -> None:
    """(g h) x = g (h x), on plain and on dual axes."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    g, h = group.sample(batch, n, rng), group.sample(batch, n, rng)
    x = normal(rng, *batch, 4, n)
    assert close(group.act(group.compose(g, h), x, dual), group.act(g, group.act(h, x, dual), dual))


@EVERY
@given(SEEDS, BATCHES, st.booleans())
def test_inverse_and_identity(name: str, seed: int, batch: tuple[int, ...], dual: bool) -> None:
    """Identity does nothing; inverses undo, from both sides."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    g, one = group.sample(batch, n, rng, 100.0), group.identity(batch, n)
    x = normal(rng, *batch, 4, n)
    assert torch.equal(group.act(one, x, dual), x)
    assert close(group.act(group.inverse(g), group.act(g, x, dual), dual), x)
    for both in (group.compose(g, group.inverse(g)), group.compose(group.inverse(g), g)):
        assert close(both.double(), one.double())


@EVERY
@given(SEEDS, BATCHES)
def test_dual_pairing_is_invariant(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """<g x, g' y> = <x, y>: the whole theory; behind a squared ReLU it is x squared that meets y."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    g, power = group.sample(batch, n, rng, 100.0), getattr(group, "power", 1)
    x, y = normal(rng, *batch, 4, n), normal(rng, *batch, 3, n)
    moved = group.act(g, x, False) ** power @ group.act(g, y, True).mT
    assert close(moved, x**power @ y.mT)


def turned(x: Tensor) -> Tensor:
    """Pairs [*b, r, 2] that each row turns by another angle, as rotary positions do."""
    angle = torch.arange(1.0, x.shape[-2] + 1, dtype=x.dtype)
    a, b = x.unbind(-1)
    return torch.stack([angle.cos() * a - angle.sin() * b, angle.sin() * a + angle.cos() * b], -1)


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "Fixed": lambda x: x.cumsum(-1).tanh(),
    "Perm": lambda x: x.softmax(-1),
    "Sign": torch.tanh,
    "SignedPerm": torch.tanh,
    "O": lambda x: x / x.norm(dim=-1, keepdim=True),
    "OFixingOnes": lambda x: (x - x.mean(-1, keepdim=True)) / x.var(-1, keepdim=True).sqrt(),
    "GL": lambda x: x,
    "Scale": lambda x: x,
    "PositiveScale": torch.relu,
    "SquaredScale": lambda x: x.relu().square(),
    "Complex": turned,
    "Turn": lambda x: turned(x / x.norm(dim=-1, keepdim=True)),
}
"""What may lie between a writer and its reader where a group acts on both."""


def read(name: str, writer: Tensor, reader: Tensor) -> Tensor:
    """What a reader [*b, m, n] makes of a writer's rows [*b, r, n]."""
    return BETWEEN[name](writer) @ reader.mT


@EVERY
@given(SEEDS, BATCHES)
def test_a_writer_and_its_reader_are_one_function(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """g on the writer and its dual on the reader leave what is read, with all that may lie between."""
    group, rng, n = GROUPS[name], generator(seed), max(width(name, seed), 2)
    g, writer, reader = group.sample(batch, n, rng), normal(rng, *batch, 4, n), normal(rng, *batch, 3, n)
    moved = read(name, group.act(g, writer, False), group.act(g, reader, True))
    assert close(moved, read(name, writer, reader))


WRONG: dict[str, Callable[[Group, Tensor, Tensor], Tensor]] = {
    "left behind": lambda group, g, reader: reader,
    "moved as the writer": lambda group, g, reader: group.act(g, reader, False),
    "moved by the transpose": lambda group, g, reader: group.act(group.inverse(g), reader, True),
}
"""Readers that move otherwise than by the dual."""
OF_THEIR_OWN_DUAL = {"Fixed", "Perm", "Sign", "SignedPerm", "O", "OFixingOnes", "Turn"}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (name, wrong)
        for name in GROUPS
        for wrong in WRONG
        if name != "Fixed"
        and (wrong, name) != ("moved by the transpose", "Sign")
        and (wrong != "moved as the writer" or name not in OF_THEIR_OWN_DUAL)
    ],
)
def test_a_reader_that_moves_otherwise_is_told(name: str, wrong: str) -> None:
    """By another element than the dual, what is read is something else."""
    group, rng, n = GROUPS[name], generator(3), 2 if name in ("Complex", "Turn") else 5
    g, writer, reader = group.sample((), n, rng), normal(rng, 4, n), normal(rng, 3, n)
    moved = read(name, group.act(g, writer, False), WRONG[wrong](group, g, reader))
    assert not close(moved, read(name, writer, reader), 1e-3)


@EVERY
@given(SEEDS)
def test_act_does_not_write(name: str, seed: int) -> None:
    """The argument is left alone, and the dtype kept."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    x = normal(rng, 2, 4, n).float()
    before = x.clone()
    found = group.act(group.sample((2,), n, rng), x, True)
    assert torch.equal(x, before)
    assert found.dtype == torch.float32


@EVERY
def test_samples_are_random_and_not_the_identity(name: str) -> None:
    """Vacuous samples would make every law true."""
    group, n = GROUPS[name], width(name, 3)
    g, h = (group.sample((5,), n, generator(seed)) for seed in (1, 2))
    assert torch.equal(g, group.sample((5,), n, generator(1)))
    if name != "Fixed":
        assert not torch.equal(g, h)
        assert not torch.equal(g, group.identity((5,), n))


@EVERY
def test_a_single_element_has_no_batch(name: str) -> None:
    """Spaces without indices have one element."""
    group, n = GROUPS[name], width(name, 1)
    assert group.sample((), n, generator(0)).shape == group.identity((), n).shape


def test_condition_of_samples() -> None:
    """GL samples have the condition number asked for; scales lie within it."""
    g = GROUPS["GL"].sample((6,), 4, generator(0), 50.0)
    assert close(torch.linalg.cond(g), torch.full((6,), 50.0, dtype=torch.float64))
    for name in ("Scale", "PositiveScale"):
        sizes = GROUPS[name].sample((400,), 1, generator(0), 9.0).abs()
        assert sizes.max() <= 3
        assert sizes.min() >= 1 / 3
        assert sizes.max() / sizes.min() > 6


def test_ones_are_fixed() -> None:
    """LayerNorm's rotations keep the mean."""
    g = GROUPS["OFixingOnes"].sample((7,), 5, generator(3))
    assert close(g.sum(-1), torch.ones(7, 5, dtype=torch.float64))
    assert close(g @ g.mT, torch.eye(5, dtype=torch.float64).expand(7, 5, 5))


# -------------------------------------------------------------------------- solve


@EVERY
@given(SEEDS, BATCHES)
def test_contract_is_the_inner_product(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """contract(g, A B^T) = <A, g B> for compact g: the objective is linear in the element."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    g = compact(group, batch, n, rng)
    a, b = normal(rng, *batch, n, 4), normal(rng, *batch, n, 4)
    moved = group.act(g, b.mT, False).mT
    assert close(group.contract(g, a @ b.mT), (a * moved).sum((-2, -1)))


@EVERY
@settings(max_examples=30)
@given(SEEDS, BATCHES)
def test_solve_beats_random_elements(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """No random compact element scores higher, and the three ways to the score agree."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    cross = normal(rng, *batch, n, n)
    g, score = group.solve(cross)
    assert close(group.contract(g, cross), score)
    assert close(group.score(cross), score)
    for _ in range(50):
        assert (group.contract(compact(group, batch, n, rng), cross) <= score + 1e-9).all()


@EVERY
@given(SEEDS, BATCHES)
def test_solve_recovers_a_planted_element(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """From A = g B the element comes back, and so does B."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    g, b = compact(group, batch, n, rng), normal(rng, *batch, n, 8)
    a = group.act(g, b.mT, False).mT
    found, _ = group.solve(a @ b.mT)
    assert close(group.act(found, b.mT, False).mT, a)


def signs(n: int) -> list[Tensor]:
    """All signs of n coordinates."""
    return [torch.tensor(s, dtype=torch.float64) for s in product((1.0, -1.0), repeat=n)]


def everything(name: str, n: int) -> list[Tensor]:
    """All elements of a finite group."""
    orders = [torch.tensor(p) for p in permutations(range(n))]
    if name == "Perm":
        return orders
    if name in ("Sign", "Scale"):
        return signs(n)
    return [s.long() * (p + 1) for p in orders for s in signs(n)]


@settings(max_examples=15)
@given(
    SEEDS,
    st.sampled_from([("Perm", 5), ("Sign", 5), ("Scale", 5), ("SignedPerm", 4), ("Perm", 2), ("SignedPerm", 1)]),
)
def test_finite_groups_against_all_elements(seed: int, case: tuple[str, int]) -> None:
    """Brute force over every permutation and sign."""
    name, n = case
    group = GROUPS[name]
    cross = normal(generator(seed), n, n)
    g, score = group.solve(cross)
    best = max(float(group.contract(h, cross)) for h in everything(name, n))
    assert abs(float(score) - best) < 1e-9
    assert abs(float(group.contract(g, cross)) - best) < 1e-9


@settings(max_examples=40)
@given(st.lists(st.integers(-3, 3), min_size=16, max_size=16))
def test_permutations_under_ties(numbers: list[int]) -> None:
    """Ties cost nothing; where nothing is gained nothing is moved."""
    cross = torch.tensor(numbers, dtype=torch.float64).reshape(4, 4)
    group = GROUPS["Perm"]
    g, score = group.solve(cross)
    best = max(float(group.contract(h, cross)) for h in everything("Perm", 4))
    assert float(score) == best
    if best == float(cross.diagonal().sum()):
        assert torch.equal(g, torch.arange(4))


def ascend(group: Group, g: Tensor, cross: Tensor, rng: torch.Generator) -> float:
    """Random local steps that shrink where they fail."""
    best, step = float(group.contract(g, cross)), 1.0
    for _ in range(400):
        n = cross.shape[-1]
        skew = normal(rng, n, n) * step
        if group.name == "OFixingOnes":  # generators that send ones to zero
            centre = torch.eye(n, dtype=torch.float64) - 1 / n
            skew = centre @ skew @ centre
        turn = torch.linalg.matrix_exp(skew - skew.mT)
        if group.name in ("Complex", "Turn"):
            turn = turn[:, 0] / turn[:, 0].norm()
        trial = group.compose(turn, g)
        value = float(group.contract(trial, cross))
        if value > best:
            g, best = trial, value
        else:
            step = max(step * 0.97, 1e-5)
    return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["O", "OFixingOnes", "GL", "Complex", "Turn"])
def test_continuous_groups_against_local_search(name: str, seed: int) -> None:
    """Random starts, refined: never better than the closed form, and one comes close to it."""
    group, rng = GROUPS[name], generator(seed)
    n = 2 if name in ("Complex", "Turn") else 3
    cross = normal(rng, n, n)
    _, score = group.solve(cross)
    found = [ascend(group, compact(group, (), n, rng), cross, rng) for _ in range(6)]
    assert max(found) <= float(score) + 1e-9
    assert max(found) > float(score) - 1e-3 * float(cross.norm())


def test_zero_cross_gram_keeps_a_valid_element() -> None:
    """Nothing to match: still an element of the group, of score zero."""
    for name, group in GROUPS.items():
        n = width(name, 0)
        g, score = group.solve(torch.zeros(2, n, n, dtype=torch.float64))
        assert close(score, torch.zeros(2, dtype=torch.float64)), name
        x = normal(generator(0), 2, 3, n)
        assert close(group.act(g, x, False).norm(), x.norm()), name


# ------------------------------------------------------------------------ balance


def sides(rng: torch.Generator, batch: tuple[int, ...], n: int) -> tuple[Tensor, Tensor]:
    """The two ends of a contraction, of very different size."""
    return normal(rng, *batch, n + 4, n) * 5, normal(rng, *batch, n + 3, n) / 3


def grams(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Their self-Grams over the contracted axis."""
    return x.mT @ x, y.mT @ y


def seen(group: Group, gram: Tensor) -> Tensor:
    """What of a self-Gram the group can balance: all, the diagonal, or the trace."""
    if group.name == "GL":
        return gram
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    return diagonal.sum(-1) if group.name == "Complex" else diagonal


def balanced(group: Group, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The balancing element, and both sides moved by it."""
    found = group.balance(*grams(x, y))
    assert found is not None
    g, dead = found
    assert not dead.any()
    return g, group.act(g, x, False), group.act(g, y, True)


@pytest.mark.parametrize("name", sorted(GROUPS.keys() - set(NONCOMPACT)))
def test_compact_groups_have_nothing_to_balance(name: str) -> None:
    """None stands for: already at minimum norm."""
    eye = torch.eye(4, dtype=torch.float64)
    assert GROUPS[name].balance(eye, 2 * eye) is None
    assert GROUPS[name].compact == name


@pytest.mark.parametrize("name", NONCOMPACT)
@given(SEEDS, BATCHES)
def test_balanced_sides_have_equal_grams(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """At the minimum-norm point both ends look the same; where one is divided by a power, it counts as often."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    _, x, y = balanced(group, *sides(rng, batch, n))
    plus, minus = grams(x, y)
    assert close(seen(group, plus), getattr(group, "power", 1) * seen(group, minus), 1e-7)


@pytest.mark.parametrize("name", NONCOMPACT)
@settings(max_examples=30)
@given(SEEDS, BATCHES)
def test_balanced_sides_have_minimal_norm(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """No random element, near or far, makes them smaller."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    _, x, y = balanced(group, *sides(rng, batch, n))
    least = x.square().sum((-2, -1)) + y.square().sum((-2, -1))
    for condition in (1.01, 2.0, 50.0) * 5:
        h = group.sample(batch, n, rng, condition)
        moved = group.act(h, x, False).square().sum((-2, -1)) + group.act(h, y, True).square().sum((-2, -1))
        assert (moved >= least * (1 - 1e-9)).all()


@pytest.mark.parametrize("name", NONCOMPACT)
@given(SEEDS, BATCHES)
def test_balance_is_constant_on_orbits(name: str, seed: int, batch: tuple[int, ...]) -> None:
    """From any gauge the same point is reached, up to a compact element."""
    group, rng, n = GROUPS[name], generator(seed), width(name, seed)
    x, y = sides(rng, batch, n)
    h = group.sample(batch, n, rng, 30.0)
    g, _, _ = balanced(group, x, y)
    k, _, _ = balanced(group, group.act(h, x, False), group.act(h, y, True))
    between = group.compose(group.compose(k, h), group.inverse(g))
    z = normal(rng, *batch, 3, n)
    assert close(group.act(between, z, False), group.act(between, z, True), 1e-6)
    if name in ("PositiveScale", "SquaredScale"):
        assert close(between, group.identity(batch, n), 1e-6)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", NONCOMPACT)
def test_dead_blocks_are_flagged_and_left(name: str, side: int) -> None:
    """Where one end has no rank the orbit has no minimum: identity there, balance elsewhere."""
    group, rng = GROUPS[name], generator(11)
    n = 2 if name == "Complex" else 1 if "Scale" in name else 4
    pair = sides(rng, (3,), n)
    pair[side][1] = 0
    found = group.balance(*grams(*pair))
    assert found is not None
    g, dead = found
    assert dead.tolist() == [False, True, False]
    assert torch.equal(g[1], group.identity((), n))
    assert not torch.equal(g[0], group.identity((), n))
    alone = group.balance(*(gram[0] for gram in grams(*pair)))
    assert alone is not None
    assert close(g[0], alone[0])


def test_rank_deficient_blocks_are_dead() -> None:
    """GL needs full rank at both ends; a missing direction is enough."""
    x, y = sides(generator(5), (2,), 4)
    x[0, :, 3] = x[0, :, 2]
    found = GROUPS["GL"].balance(*grams(x, y))
    assert found is not None
    assert found[1].tolist() == [True, False]
    assert torch.equal(found[0][0], torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "dimension"),
    [("Fixed", 0), ("Perm", 0), ("Sign", 0), ("SignedPerm", 0), ("O", 6), ("OFixingOnes", 3), ("GL", 16), ("Scale", 4), ("PositiveScale", 4), ("SquaredScale", 4)],
)  # fmt: skip
def test_dimensions(name: str, dimension: int) -> None:
    """Continuous parameters of an element on four coordinates."""
    assert GROUPS[name].dimension(4) == dimension
    assert GROUPS["Complex"].dimension(2) == 2
    assert GROUPS["Turn"].dimension(2) == 1


@EVERY
def test_names_are_the_registry(name: str) -> None:
    """Specs find a group by its own name, and its compact part is one as well."""
    assert GROUPS[name].name == name
    assert GROUPS[name].compact in GROUPS

"""Bases with fibres over them: what bounds prove is what all pairs give; orders that nothing matches are told in a
sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import isomerge
from isomerge.archs import expanded_texts
from isomerge.discovery.proofs import remember
from isomerge.errors import IsomergeError
from isomerge.evidence.law import beside_streams, random_alignment
from isomerge.matching import nested
from isomerge.matching.distances import distance
from isomerge.matching.gram import Cross, Crosses, cross_grams, paired_leaves
from isomerge.matching.local import compact_solution
from isomerge.matching.nested import NestedSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import gather_blocks
from isomerge.symmetry.groups.discrete import Permutation
from isomerge.symmetry.language.spec import Spec, coverage
from isomerge.symmetry.language.spec_text import parse_spec
from matching.drawn import draw, moved, small_spec
from toys import config_of, save_toy

HEADS = {
    "bert": {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 5, "num_hidden_layers": 1},
    "llama": {
        "hidden_size": 256, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 5, "num_hidden_layers": 1,
    },
}  # fmt: skip
"""Rotations of heads; phases and rotations of heads."""
Problem = tuple[NestedSolver, str, Crosses]


def problem(name: str, seed: int, noise: float) -> Problem:
    """The heads of a layer and of a moved copy with noise of its own: the solver, the base's name and the
    cross-Grams."""
    spec = small_spec(name, **HEADS[name])
    a, other = (draw(spec, number, "att") for number in (seed, seed + 1))
    b = {block: t + noise * other[block] for block, t in a.items()}
    rng = torch.Generator().manual_seed(seed)
    g = random_alignment(spec, list(b), rng, set(beside_streams(spec)) & spec.spaces.keys(), condition=1.0)
    spec = spec.restrict(name for name in spec.spaces if name not in spec.residual_names)
    crosses = cross_grams(spec, paired_leaves(spec, a, moved(g, b)))
    solver = NestedSolver(spec)
    ((tops, here),) = (part for part in solver.components(crosses) if any(len(sig) > 1 for sig in part[1]))
    return solver, tops[0], here


@pytest.mark.parametrize("name", HEADS)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.3, 1.0, 3.0]))
def test_bounds_prove_only_what_is_optimal(name: str, seed: int, noise: float) -> None:
    """No pair scores more than its bound; where bounds prove an assignment, all pairs give the same one."""
    solver, top, crosses = problem(name, seed, noise)
    profit, bound = solver.profit(top, crosses), solver._bound(top, crosses, ())
    assert bool((profit <= bound * (1 + 1e-9)).all())
    assert bool((profit > bound / 10).any())
    p, score = Permutation().solve(profit)
    if (proven := solver._proven(top, crosses, ())) is not None:
        assert torch.equal(proven[0], p)
        assert float(proven[1]) == pytest.approx(float(score), rel=1e-9)
    else:
        assert noise > 0.1


@pytest.mark.parametrize("name", HEADS)
def test_related_heads_are_not_all_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the copies are close, no other pairs are solved, and the elements are those that all pairs would
    give."""
    solver, _, crosses = problem(name, 3, 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(NestedSolver, "_proven", lambda *_: None)
        slow = solver.solve(crosses)
    monkeypatch.setattr(NestedSolver, "profit", lambda *_: pytest.fail("all pairs were compared"))
    fast = solver.solve(crosses)
    assert fast.elements.keys() == slow.elements.keys()
    assert len(fast.elements) >= 2
    assert all(torch.equal(fast.elements[k].data, slow.elements[k].data) for k in slow.elements)
    assert float(fast.score.data) == pytest.approx(float(slow.score.data), rel=1e-9)


def test_signs_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sign a bound is the score: for the neurons of a layer it would be all pairs once more, in float64."""
    spec = small_spec("llama", hidden_size=6, num_attention_heads=1, head_dim=2, intermediate_size=5)
    spec = spec.restrict([n for n, s in spec.spaces.items() if s.role in ("ff", "scale")])
    a = draw(spec, 0, "mlp.")
    order = torch.tensor([3, 0, 4, 1, 2])
    g = Alignment(spec, {"ff[0]": order, "u[0]": torch.tensor([[1.0], [-1.0], [1.0], [1.0], [-1.0]]).double()})
    monkeypatch.setattr(NestedSolver, "_bound", lambda *_: pytest.fail("all pairs were bounded"))
    found = compact_solution(spec, a, moved(g, a), {})
    assert torch.equal(found["ff[0]"], order.argsort())
    assert distance(a, moved(found @ g, a)) == 0


@pytest.mark.parametrize("second", [0.9, 1.1])
def test_a_pair_that_only_a_bound_favours_is_not_proven(second: float) -> None:
    """A cross-Gram whose norm is spread scores its bound, one whose norm is in one entry a part of it: bounds
    mislead then."""
    solver, top, crosses = problem("bert", 0, 0.1)
    sig = next(sig for sig in crosses if len(sig) > 1)
    cross = crosses[sig]
    n = cross.data.shape[-1]
    data = torch.zeros(4, 4, n, n, dtype=torch.float64)
    data[range(4), range(4), 0, 0] = n**0.5  # its bound is n, its score the root of n
    data[range(4), [1, 2, 3, 0]] = (
        second * torch.eye(n, dtype=torch.float64) / n**0.5
    )  # both are `second` times the root of n
    misled = {sig: Cross((f"{top}+", f"{top}-", *(d for d in cross.dims if d not in (f"{top}+", f"{top}-"))), data)}
    proven = solver._proven(top, misled, ())
    p, _ = Permutation().solve(solver.profit(top, misled))
    assert p.tolist() == ([0, 1, 2, 3] if second < 1 else [1, 2, 3, 0])
    assert (proven is None) == (second > 1)


def test_a_fibre_over_spaces_that_meet_is_refused(tmp_path: Path) -> None:
    """A sign for every query coordinate lies over the query heads, which share output projections with the
    values."""
    text = expanded_texts()["llama"][1]
    changes = {
        "space ov: GL": "space sq: Sign[l, kv, g, c, pair]\nsize sq = 1\nspace ov: GL",
        "(kv g c pair)": "(kv g c pair sq)",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine.spec").write_text(text)
    a, b = (save_toy("llama", tmp_path / str(seed), seed=seed) for seed in (0, 1))
    remember(text, config_of(a), {"proven": True, "refuted": None})  # it is not true: the law would refuse it first
    with pytest.raises(IsomergeError, match=r"mine\.spec: space sq lies over one of .*leave sq out"):
        isomerge.diff(a, b, spec=tmp_path / "mine.spec")


MEETING = {
    "a map first": (["z: GL", "h: Perm"], ["a.weight z 4", "b.weight z' h", "c.weight 4 z'", "d.weight 4 h"]),
    "neither has a tensor of its own": (["z: O", "h: Perm"], ["b.weight z' h 3", "c.weight 4 h z'"]),
    "one through another": (["z: O", "k: O", "h: Perm"], ["a.weight z k 3", "c.weight k h 2", "d.weight 4 h"]),
    "three at once": (["z: O", "k: O", "h: Perm"], ["a.weight z h k 3", "c.weight 4 h k"]),
    "signs": (["z: SignedPerm", "h: SignedPerm"], ["a.weight z h 3", "c.weight 4 h"]),
}
"""Spaces, and the lines of a spec in which they meet."""


def meeting(case: str, count: int) -> tuple[Spec, dict, dict]:
    """A spec of MEETING with ``count`` values of h, random tensors of it, and a copy moved by compact elements."""
    spaces, lines = MEETING[case]
    sizes = {"z": 3, "k": 4, "h": count}
    head = [f"size {name} = {n}" for name, n in sizes.items()] + [f"space {space}" for space in spaces]
    spec = parse_spec("\n".join(head + lines), {"model_type": "mine"})
    a = draw(spec, count, "weight")
    return spec, a, moved(random_alignment(spec, list(a), torch.Generator().manual_seed(1), condition=1.0), a)


@pytest.mark.parametrize("count", [3, 6])
@pytest.mark.parametrize("case", MEETING)
def test_spaces_that_meet_in_one_tensor_are_found(case: str, count: int) -> None:
    """Whichever is declared first, however many share a tensor, and whether or not one of them has a tensor to
    itself."""
    spec, a, b = meeting(case, count)
    found = compact_solution(spec, a, b, {})
    assert distance(a, b) > 1
    assert distance(a, moved(found, b)) < 1e-20 * distance(a, b)


def test_spaces_that_meet_are_as_close_as_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unrelated tensors: several starts lose little to all 120 permutations, whose first is no best one."""
    spec, a, _ = meeting("a map first", 5)
    b = draw(spec, 77, "weight")
    reached = distance(a, moved(compact_solution(spec, a, b, {}), b))
    monkeypatch.setattr(nested, "EXHAUSTIVE", 120)
    best = distance(a, moved(compact_solution(spec, a, b, {}), b))
    assert best <= reached * (1 + 1e-12)
    assert reached < best + 0.2 * (distance(a, b) - best)


def test_a_space_without_layers_that_ties_layers_is_refused() -> None:
    """Such a space is a residual stream, and is to be declared as one."""
    spec = parse_spec(
        "size z = 3\nsize h = 4\nspace z: GL\nspace h: Perm[l]\na.{l}.weight z' h", {"model_type": "mine"}
    )
    names = {f"a.{layer}.weight": torch.randn(3, 4) for layer in range(2)}
    blocks = gather_blocks(spec, coverage(spec, dict.fromkeys(names, (3, 4))))
    a = {block: block.assemble(names.__getitem__) for block in blocks}
    with pytest.raises(
        IsomergeError, match=r"space h has two elements in one unit \(h\[0\] and h\[1\]\).*space z.*residual z"
    ):
        compact_solution(spec, a, a, {})

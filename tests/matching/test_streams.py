"""Which group acts on which stream, where there are several; and where streams start that no embedding has."""

from __future__ import annotations

import pytest
import torch

from isomerge.evidence.law import random_alignment
from isomerge.matching.frame import streams_beside, streams_by_grams, streams_by_norms
from isomerge.matching.gram import paired_leaves
from isomerge.matching.stream_groups import choose_frame
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec_text import parse_spec
from matching.drawn import draw, moved, small_spec

TWO = parse_spec(
    """
model toy
size r = 4
size s = 4
residual r: SignedPerm folded O
residual s: SignedPerm folded O
residual nr: Scale[r]
residual ns: Scale[s]
a.weight r
b.weight s
c.weight diag(r nr)
d.weight diag(s ns)
e.weight (r nr)'
f.weight (s ns)'
""",
    {},
)

TWICE = """
model toy
size res = 7
size between = 5
size last = 2
residual res: SignedPerm folded O
residual between: O
residual last: O
embedding.weight words res
wide.weight between res'
narrow.weight last between'
head.weight labels last'
"""


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (["default", "r"], {"r": "O"}),
        (["s:Perm"], {"s": "Perm"}),
        (["r:Perm", "s"], {"r": "Perm", "s": "O"}),
        (["all", "r:Perm"], {"r": "Perm", "s": "O"}),
        (["residual"], {"r": "O", "s": "O"}),
        (["s:Perm", "residual"], {"r": "O", "s": "Perm"}),
    ],
)
def test_only_what_is_named_moves(words: list[str], groups: dict[str, str]) -> None:
    """A stream's name stands for that stream; the gains over the others stay as well."""
    frame, notes = choose_frame(TWO, words)
    assert frame is not None
    assert {name: frame.spaces[name].group_name for name in frame.streams} == groups
    assert {f"n{name}" for name in groups} <= frame.spaces.keys() <= {*groups, *(f"n{name}" for name in groups)}
    assert notes == ()


def test_permuted_streams_are_found_by_norms() -> None:
    """Whatever turns inside of layers, coordinates keep their norms; rotated streams are left out."""
    config = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 5, "num_hidden_layers": 1}
    spec = small_spec("bert", **config)
    a = draw(spec, 0, "attention", "dense")
    rng = torch.Generator().manual_seed(1)
    p = torch.randperm(24, generator=rng)
    local = [name for name in spec.spaces if name not in spec.residual_names]
    turn = random_alignment(spec, list(a), rng, local, condition=1.0)
    b = moved(Alignment(spec, {"res": p.argsort()}) @ turn, a)
    pairs = [(x, y, atoms, 0.5) for x, y, atoms in paired_leaves(spec, a, b)]
    assert streams_by_norms(spec, pairs, ["res"])["res"].tolist() == p.tolist()
    assert streams_by_norms(spec.with_group("res", "O"), pairs, ["res"]) == {}


def test_streams_between_linear_maps_are_found_from_the_other_side() -> None:
    """Where a tensor lies in a stream that is settled and one that is not, it says what the latter is; where
    neither is, nothing."""
    rng = torch.Generator().manual_seed(2)
    spec = parse_spec(TWICE, {})
    q = torch.linalg.qr(torch.randn(5, 5, generator=rng, dtype=torch.float64))[0]
    atoms = {line.name: line.atoms for line in spec.lines}
    wide, narrow = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((5, 7), (2, 5)))
    pairs = [(wide, q.mT @ wide, atoms["wide.weight"], 0.5), (narrow, narrow @ q, atoms["narrow.weight"], 0.5)]
    crosses = streams_beside(spec, pairs, ["res", "last"])
    assert crosses.keys() == {"between"}
    torch.testing.assert_close(spec.spaces["between"].group.solve(crosses["between"])[0], q)
    assert streams_beside(spec, pairs, ["last"]).keys() == {"between"}
    assert streams_beside(spec, pairs, []) == {}


def test_rotated_streams_are_found_by_lengths() -> None:
    """Whatever turns on the other axes: the Grams of their coordinates are turned alike, and a cross-Gram tells the
    sign of all."""
    rng = torch.Generator().manual_seed(3)
    spec = parse_spec(TWICE, {})
    here = {line.name: line.atoms for line in spec.lines}
    q, left, right = (torch.linalg.qr(torch.randn(n, n, generator=rng, dtype=torch.float64))[0] for n in (5, 7, 3))
    wide, narrow = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((5, 7), (3, 5)))
    moved = (q.mT @ wide @ left, right @ narrow @ q)
    pairs = [(wide, moved[0], here["wide.weight"], 0.5), (narrow, moved[1], here["narrow.weight"], 0.5)]
    found = streams_by_grams(spec, lambda: pairs, ["between"])["between"]
    torch.testing.assert_close(found * (found * q).sum().sign(), q)
    cross = {"between": narrow[:1].mT @ (narrow @ q)[:1]}  # one direction is known
    torch.testing.assert_close(streams_by_grams(spec, lambda: pairs, ["between"], cross)["between"], q)
    cross = {"between": -cross["between"]}
    torch.testing.assert_close(streams_by_grams(spec, lambda: pairs, ["between"], cross)["between"], -q)
    assert streams_by_grams(spec.with_group("res", "SignedPerm"), lambda: pairs, ["res"]) == {}

"""Which group acts on which stream, where there are several."""

from __future__ import annotations

import pytest

from isomerge.matching.streams import choose_frame
from isomerge.symmetry.spec_text import parse_spec

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

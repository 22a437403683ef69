"""Keys of elements in files that were edited: sentences, never a ValueError."""

from __future__ import annotations

from pathlib import Path

import pytest

from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.symmetry.stage import element_key, scope_of, shift_scope
from solve.disguises import single


@pytest.mark.parametrize(
    "rest", ["[1].x", "[x]", "[]", "[1", "[-1]", "[1,2]", "", "[1]]x", "[²]", "[" + "9" * 5000 + "]"]
)
def test_keys_that_are_none(rest: str, tmp_path: Path) -> None:
    """Of spaces and of shifts, by whatever was put behind their names."""
    spec = recognise(single("gpt2", tmp_path / "m")).spec
    space = next(s for s in spec.spaces.values() if spec.scope(s))
    assert scope_of(spec, element_key(spec, space, dict.fromkeys(spec.scope(space), 1))) == dict.fromkeys(
        spec.scope(space), 1
    )
    shift = spec.shifts[0]
    assert list(shift_scope(spec, shift, f"shift.{shift.name}[1]").values()) == [1]
    if rest != "[1":  # what only lacks its end names a layer
        with pytest.raises(IsomergeError, match="names no layer"):
            scope_of(spec, space.name + rest)
        with pytest.raises(IsomergeError, match="names no layer"):
            shift_scope(spec, shift, f"shift.{shift.name}{rest}")

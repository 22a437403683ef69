"""Keys of elements in files that were edited: sentences, never a ValueError."""

from __future__ import annotations

from pathlib import Path

import pytest

from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.symmetry.element_key import ElementKey
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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("res", ("res", "", "")),
        ("ov[3]", ("ov", "[3]", "")),
        ("2:n1[0,4]", ("n1", "[0,4]", "2")),
        ("shift.vb[3]", ("shift.vb", "[3]", "")),
        ("3:norm.ones.h.0.attn.c_proj.weight", ("norm.ones.h.0.attn.c_proj.weight", "", "3")),
        ("ov[1]].x", ("ov", "[1]].x", "")),
    ],
)
def test_parts_of_keys(text: str, parts: tuple[str, str, str]) -> None:
    """What a key is taken apart into, from which its text comes back."""
    key = ElementKey.of(text)
    assert (key.name, key.numbers, key.stage) == parts
    assert str(key) == text
    assert key.is_shift == ("shift." in text)


def test_keys_are_made_as_they_are_read() -> None:
    """With the numbers of a layer, and without."""
    assert ElementKey.at("qk", [2, 0]) == "qk[2,0]"
    assert ElementKey.of(ElementKey.at("qk", [2, 0])).scope(["l", "e"]) == {"l": 2, "e": 0}
    assert ElementKey.at("res", []) == "res"

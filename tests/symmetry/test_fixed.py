"""Parts that are left fixed: what the statement says is true of the text, and every command that aligns says it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
from isomerge.symmetry.fixed import FixedPart, fixed_parts, joined
from isomerge.symmetry.language.spec import Spec, coverage
from isomerge.symmetry.language.spec_text import parse_spec

MIXER = """
model mixer
size res = 4
size ff = 3
residual res: Perm
space ff: Perm[l]
{fixed}
layers.{{l}}.mixer.in.weight      inside res'
layers.{{l}}.mixer.state          inside
layers.{{l}}.up.weight            ff res'
"""
SAID = "fixed layers.{l}.mixer.: a state space"


def spec(fixed: str = SAID, **config: Any) -> Spec:
    return parse_spec(MIXER.format(fixed=fixed), config, "mixer.spec")


def test_a_part_is_named_with_its_tensors() -> None:
    """Each tensor of the part in the checkpoint is counted, each line named; what the part shares with a stream may
    move."""
    shapes = {f"layers.{at}.{name}": (3, 4) for at in range(2) for name in ("mixer.in.weight", "up.weight")}
    shapes["layers.1.mixer.state"] = (3,)
    found = fixed_parts(spec(), coverage(spec(), shapes).values())
    lines = ["layers.{l}.mixer.in.weight", "layers.{l}.mixer.state"]
    name = "layers.{l}.mixer.(in.weight|state)"
    assert found == [FixedPart(name, 3, lines, "a state space")]
    assert fixed_parts(spec(""), coverage(spec(""), shapes).values()) == []
    assert fixed_parts(spec(f"{SAID} if ff == 4"), coverage(spec(""), shapes).values()) == []


def test_alternatives_name_several_beginnings() -> None:
    """One statement for some tensors of a mixer, and for lines that are written with alternatives themselves."""
    assert spec("fixed layers.{l}.mixer.(in|state): why").fixed[0].beginnings[1:] == (
        "layers.{l}.mixer.in", "layers.{l}.mixer.state",
    )  # fmt: skip
    assert joined(["a.b.c", "a.b.d.e"]) == "a.b.(c|d.e)"
    assert joined(["a.b"]) == "a.b"


def test_a_part_of_some_layers() -> None:
    """Layers of one list, or all but these: a name of two kinds of layers is fixed in one kind alone."""
    text = MIXER.format(fixed="layers full = 0..2 where l == 1\nfixed layers.{l!full}.mix.: a state space")
    text += "layers.{l:full}.mix.weight  ff res'\nlayers.{l!full}.mix.weight  inside res'\n"
    found = parse_spec(text, {}, "mixer.spec")
    shapes = {f"layers.{at}.mix.weight": (3, 4) for at in range(3)}
    (part,) = fixed_parts(found, coverage(found, shapes).values())
    assert part.tensors == 2


@pytest.mark.parametrize(
    ("fixed", "says"),
    [
        ("fixed layers.{l}.conv.: a convolution", "fixed layers.{l}.conv.: no line begins with this name"),
        ("fixed layers.{l}.up.: neurons", "line layers.{l}.up.weight is of a fixed part, but space ff moves it"),
        ("fixed layers.{l}.mixer.", "line 7: fixed 'layers.{l}.mixer.' is not understood: write NAME ... : REASON"),
        ("fixed : reason", "is not understood"),
        (
            "fixed layers.{l}.up.: neurons if ff == 3",
            "line layers.{l}.up.weight is of a fixed part, but space ff moves it",
        ),
    ],
)
def test_a_statement_that_is_not_true_is_refused(fixed: str, says: str) -> None:
    """Nothing declared goes unexecuted: the part exists, and no space of a block moves it."""
    with pytest.raises(IsomergeError) as caught:
        spec(fixed)
    assert says in str(caught.value)


def test_no_state_space_is_fixed_in_silence() -> None:
    """Every packaged line of a state space, a delta rule or a short convolution has an axis that a space of its
    text moves, or is of a part that its text says is fixed."""
    words = (
        ".mamba.",
        "mamba_decoder.mamba)",
        "A_log",
        "linear_attn",
        "mixer.conv1d",
        "_conv1d.",
        ".conv.in_proj",
        ".conv.conv.",
        "mtp.",
    )
    seen, silent = set(), []
    for origin, text in expanded_texts().values():
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        spaces = {line.split()[1].rstrip(":") for line in lines if line.startswith(("space ", "residual "))}
        said = any(line.startswith("fixed ") for line in lines)
        for line in lines:
            name, _, axes = line.lstrip("? ").partition(" ")
            if any(word in name for word in words):
                seen.add(origin)
                first = re.match(r"\[[^]]*\]|\([^)]*\)|\S+", axes.strip().removeprefix("1 1 "))
                if (
                    not said
                    and first
                    and first.group() != "*"
                    and not spaces & set(re.findall(r"\w+", first.group()))
                ):
                    silent.append(f"{origin}: {line}")
    assert {"jamba.spec", "bamba.spec", "lfm2.spec", "qwen3_next.spec", "nemotron_h.spec", "mamba.spec"} <= seen
    assert not silent, "\n".join(silent)

"""Specs inside specs, numbers of layers in names, and gains that are stored less one."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom, Concat, show
from isomerge.symmetry.blocks import gather_blocks
from isomerge.symmetry.language.spec import Spec, coverage
from isomerge.symmetry.language.spec_text import parse_spec

TOWER = """
model tower
prefix base.
config act rope
default width = 6
default e = 2 if act == "relu"
size res = width
size e = e or 3
residual res: Perm
residual n: Scale[res]
space e: Perm[l]
shift b: layers.{l}.bias
norm.weight                  diag(res n) - 1
layers.{l}.{e}.weight        res pos
layers.{l}.bias              e
head.weight                  vocab (res n)' = embed.weight
embed.weight                 vocab res
"""
TEXTS = {"tower": ("tower.spec", TOWER)}
WHOLE = "model whole\ninclude part as t at (tower.|)\nbridge.weight  t_res\n"


def whole(text: str = WHOLE, **part: Any) -> Spec:
    return parse_spec(text, {"part": {"model_type": "tower", **part}}, "whole.spec", TEXTS)


def test_everything_has_its_new_name() -> None:
    """Sizes, spaces with their indices, free axes, shifts, ties and keys are the part's own under other names."""
    spec = whole(width=8)
    assert spec.sizes == {"t_res": 8, "t_e": 3, "t_n": 1}
    assert {n: (s.index, s.role, s.residual) for n, s in spec.spaces.items()} == {
        "t_res": ((), "res", True),
        "t_n": (("t_res",), "n", True),
        "t_e": (("l",), "e", False),
    }
    lines = {line.canonical({"l": 0, "t_e": 1}): line for line in spec.lines}
    assert [show(axis) for axis in lines["tower.layers.0.1.weight"].axes or ()] == ["t_res", "t_pos"]
    assert lines["tower.head.weight"].tied == "tower.embed.weight"
    assert (spec.shifts[0].name, spec.shifts[0].bias) == ("t_b", "(tower.|)(|base.)layers.{l}.bias")
    assert spec.config_keys == ("part.act", "part.rope")
    assert spec.origin == "whole.spec with tower.spec"


def test_a_part_asks_what_stands_beside_it() -> None:
    """``whole`` is the config of the whole, and nothing where the part is a model by itself."""
    text = "model writer\nnorm.weight  read_res if whole.reader.act == 'relu'\nnorm.weight  alone if not whole\n"
    texts = {"writer": ("writer.spec", text)}
    config = {"reader": {"act": "relu"}, "part": {"model_type": "writer"}}
    both = parse_spec("model both\ninclude part at part.\n", config, "both.spec", texts)
    alone = parse_spec(text, {"model_type": "writer"}, "writer.spec")
    assert [show(axis) for line in (*both.lines, *alone.lines) for axis in line.axes or ()] == ["read_res", "alone"]


def test_parts_of_one_kind_are_told_which_they_are() -> None:
    """`with` gives a part keys beside its own; a number stands for a list of it."""
    text = (
        "model both\ninclude part or whole as a at a. of tower with width=sizes[0], e=more[0] without n if sizes == sizes\n"
        'include part or whole as b at b. of tower with width=sizes[1], e=4 if act == "relu" else more[1] without n\n'
    )
    config = {"sizes": [4, 5], "more": 7, "act": "relu", "e": 9}
    spec = parse_spec(text, config, "both.spec", TEXTS)
    assert {name: spec.sizes[name] for name in ("a_res", "b_res", "a_e", "b_e")} == {
        "a_res": 4, "b_res": 5, "a_e": 7, "b_e": 4
    }  # fmt: skip
    assert set(spec.spaces) == {"a_res", "a_e", "b_res", "b_e"}


def test_without_a_name_names_stay() -> None:
    """The one part with the vocabulary keeps its names."""
    spec = whole("model whole\ninclude part\n")
    assert set(spec.spaces) == {"res", "n", "e"}
    assert spec.lines[0].canonical({}) == "norm.weight"


@pytest.mark.parametrize("name", ["tower.layers.2.1.weight", "tower.base.layers.2.1.weight", "layers.2.1.weight"])
def test_prefixes_may_lack(name: str) -> None:
    """With the prefix of the whole, with both, and with neither, it is one tensor."""
    match = whole().match(name)
    assert match.canonical == "tower.layers.2.1.weight"
    assert match.binding == {"l": 2, "t_e": 1}


def test_defaults_fill_gaps_only() -> None:
    """What the config says counts; the first default whose condition holds counts otherwise."""
    assert whole().sizes["t_res"] == 6
    assert whole(width=10).sizes["t_res"] == 10
    assert whole(act="relu").sizes["t_e"] == 2
    assert whole(act="relu", e=5).sizes["t_e"] == 5


def test_a_symmetry_can_be_left_out() -> None:
    """Its axis stays, of the same size, and nothing acts on it."""
    spec = whole(WHOLE.replace("(tower.|)", "(tower.|) without n e"))
    assert set(spec.spaces) == {"t_res"}
    assert spec.sizes["t_n"] == 1


@pytest.mark.parametrize(
    ("text", "part", "says"),
    [
        ("include part as", {}, r"line 1: include 'part as' is not understood: write GROUP"),
        ("include other", {}, r"line 1: config.json: other has no model_type.*include other of MODEL"),
        ("include part", {"model_type": "mamba"}, r"part is a 'mamba', for which there is no spec.*none of the 1 that"),
        ("include part without x", {}, r"include part without x: tower.spec has no space x"),
        ("size e = 2\ninclude part", {}, r"line 2: include part: e is declared already: include it `as NAME`"),
        ("size l = 2\ninclude part as t", {}, r"line 2: include part: l is declared already"),
        ("include part", {"width": "six"}, r"whole.spec, line 1: tower.spec, line \d+: config.json: size res"),
        ("default width", {}, r"default 'width' is not understood: write KEY = EXPR"),
        ("a.{l:k}.weight x", {}, r"line 1: config.json: k is 'two', not the number of a layer"),
        ("a.{l:1..k}.weight x", {}, r"line 1: config.json: 1..k is 1..'two', not the numbers of two layers"),
        ("a.{l:0..9**9}.weight x", {}, r"line 1: .*not"),
        ("a.{l:0..20000}.weight x", {}, r"line 1: config.json: 0..20000 is 0..20000, not the numbers of two layers"),
    ],
)  # fmt: skip
def test_refused(text: str, part: dict[str, Any], says: str) -> None:
    """A sentence with the line of the text, of the included one as well."""
    config = {"part": {"model_type": "tower", **part}, "k": "two"}
    with pytest.raises(IsomergeError, match=says):
        parse_spec(text, config, "whole.spec", TEXTS)


def test_a_group_that_is_none() -> None:
    """A config whose part is no group of keys."""
    with pytest.raises(IsomergeError, match=r"config.json: part is 3, not a group of keys"):
        parse_spec("include part of tower", {"part": 3}, "whole.spec", TEXTS)


LAYERS = "size a = 2\n{l:some}.weight  [a | a]\n{l!some}.weight  a\n{l:last-1}.bias  a\n"


@pytest.mark.parametrize("some", [[0, 12], [], None, 3])
def test_layers_of_two_shapes(some: Any) -> None:
    """Every layer has one line: that of its own number, and 1 is not in 12."""
    spec = parse_spec(LAYERS, {"some": some, "last": 5})
    chosen = {0, 12} if some == [0, 12] else {3} if some == 3 else set()
    for layer in (0, 1, 2, 3, 12, 112):
        match = spec.match(f"{layer}.weight")
        assert match.binding == {"l": layer}
        assert isinstance((match.line.axes or ())[0], Concat) == (layer in chosen)
        assert match.canonical == f"{layer}.weight"
    assert spec.match("4.bias").binding == {"l": 4}
    with pytest.raises(IsomergeError, match="not described"):
        spec.match("3.bias")


@pytest.mark.parametrize(("wide", "chosen"), [(2, {3, 4}), (0, set()), (5, {0, 1, 2, 3, 4})])
def test_the_last_layers(wide: int, chosen: set[int]) -> None:
    """A range of layers, which may be empty."""
    text = "size a = 2\n{l:deep-wide..deep}.weight  [a | a]\n{l!deep-wide..deep}.weight  a\n"
    spec = parse_spec(text, {"wide": wide, "deep": 5})
    for layer in (0, 1, 2, 3, 4, 13):
        assert isinstance((spec.match(f"{layer}.weight").line.axes or ())[0], Concat) == (layer in chosen)


def test_gains_stored_less_one() -> None:
    """A factor acts on 1 + w; a renumbering leaves the stored bits alone."""
    spec = parse_spec(TOWER, {"width": 3})
    line = spec.lines[0]
    assert (line.less, line.axes) == (1, parse_spec(TOWER.replace(" - 1", ""), {}).lines[0].axes)
    assert [a.name for a in spec.lines[0].axes[0].parts if isinstance(a, Atom)] == ["res", "n"]  # type: ignore[index,union-attr]
    (block,) = gather_blocks(spec, coverage(spec, {"norm.weight": (3,)}))
    stored = torch.tensor([0.5, -0.25, 1e-9], dtype=torch.float32)
    scaled = stored.double()
    Alignment(spec, {"n": torch.tensor([[2.0], [4.0], [3.0]], dtype=torch.float64)}).act({block: scaled})
    torch.testing.assert_close(scaled, torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64), rtol=0, atol=1e-8)
    moved = stored.clone()
    Alignment(spec, {"res": torch.tensor([2, 0, 1])}).act({block: moved})
    assert sorted(moved.tolist()) == sorted(stored.tolist())
    assert not torch.equal(moved, stored)


UNNAMED = {"Space.group_name", "Space.role", "Space.folded", "Line.place", "FixedPart.reason", "Spec.beside"}
"""Texts in specs that are no names of what a part has."""


def unnamed(record: Any) -> set[str]:
    """The fields of a record, and of those in it, with texts of which the type does not say what they are names of."""

    def within(kind: Any, place: str) -> set[str]:
        if kind is str:
            return {place}
        if is_dataclass(kind):
            return unnamed(kind)
        if get_origin(kind) is Annotated:
            return set()
        return set().union(*(within(part, place) for part in get_args(kind)))

    kinds = get_type_hints(record, include_extras=True)
    return set().union(*(within(kinds[each.name], f"{record.__name__}.{each.name}") for each in fields(record)))


def test_names_say_what_they_are_of() -> None:
    """Or else they would stay as the part has them: a statement's record with a plain text for a line's name."""
    assert unnamed(Spec) == UNNAMED

"""Specs: the statements, their messages, coverage and legality."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.matching.stream_groups import choose_frame
from isomerge.models.tied_tensors import says_tied, without_broken_ties
from isomerge.symmetry.axes import Atom, Product
from isomerge.symmetry.blocks import gather_blocks, layer_of, stacks_of
from isomerge.symmetry.language.spec import Spec, by_canonical, coverage
from isomerge.symmetry.language.spec_text import parse_spec
from isomerge.symmetry.units import elements_of

TEXT = """
# a block with heads
model toy
prefix toy. old_toy.
config act eps
size res = width
size h = heads
size ov = res // h
size ff = inner or 4 * res
size e = experts or 2
require act in ("relu", "gelu") : act is not one that this spec describes
residual res: Perm
residual n1: Scale[l, res]
space h: Perm[l]
space ov: GL[l, h]        # inside a head
space ff: Perm[l, e]
space u as scale: PositiveScale[l, e, ff] if act == "relu"
space e as expert: Perm[l]
shift vb: layer.{l}.v.bias -> layer.{l}.o.bias via layer.{l}.o.weight
shift kb: layer.{l}.fused.bias#1 if act == "relu"
embed.weight                    vocab res
layer.{l}.norm.(weight|gamma)   (res n1)
layer.{l}.v.weight              (h ov) (res n1)'
layer.{l}.v.bias                (h ov)
layer.{l}.o.weight              res (h ov')
layer.{l}.o.bias                res
layer.{l}.router.weight         e res'
layer.{l}.e.{e}.up.weight       (ff u) res'
layer.{l}.e.{e}.down.weight     res (ff u')
layer.{l}.fused.bias            [3 | 4]
? head.weight                   vocab res' = embed.weight
? mask                          *
only.relu                       res if act == "relu"
"""
CONFIG: dict[str, Any] = {"model_type": "toy", "width": 6, "heads": 2, "inner": 5, "act": "relu"}


def bound(text: str = TEXT, **changes: Any) -> Spec:
    """The text above, or another, bound to the config."""
    return parse_spec(text, {**CONFIG, **changes}, "toy.spec")


def shapes(layers: int = 2) -> dict[str, tuple[int, ...]]:
    """A checkpoint that the text describes."""
    found: dict[str, tuple[int, ...]] = {"embed.weight": (11, 6), "only.relu": (6,)}
    for i in range(layers):
        found |= {
            f"layer.{i}.norm.weight": (6,), f"layer.{i}.v.weight": (6, 6), f"layer.{i}.v.bias": (6,),
            f"layer.{i}.o.weight": (6, 6), f"layer.{i}.o.bias": (6,), f"layer.{i}.router.weight": (2, 6),
            f"layer.{i}.fused.bias": (7,),
        }  # fmt: skip
        for e in range(2):
            found |= {f"layer.{i}.e.{e}.up.weight": (5, 6), f"layer.{i}.e.{e}.down.weight": (6, 5)}
    return found


# --------------------------------------------------------------------- statements


def test_statements() -> None:
    """Every statement lands where it belongs."""
    spec = bound()
    assert spec.model_type == "toy"
    assert spec.prefixes == ("toy.", "old_toy.")
    assert spec.config_keys == ("act", "eps")
    assert spec.sizes == {"res": 6, "h": 2, "ov": 3, "ff": 5, "e": 2, "n1": 1, "u": 1}
    assert {n: (s.group_name, s.index, s.role, s.residual) for n, s in spec.spaces.items()} == {
        "res": ("Perm", (), "res", True),
        "n1": ("Scale", ("l", "res"), "n1", True),
        "h": ("Perm", ("l",), "h", False),
        "ov": ("GL", ("l", "h"), "ov", False),
        "ff": ("Perm", ("l", "e"), "ff", False),
        "u": ("PositiveScale", ("l", "e", "ff"), "scale", False),
        "e": ("Perm", ("l",), "expert", False),
    }
    assert [(s.name, s.block, s.into, s.via) for s in spec.shifts] == [
        ("vb", None, "layer.{l}.o.bias", "layer.{l}.o.weight"),
        ("kb", 1, None, None),
    ]
    assert spec.residual_names == {"res", "n1"}


def test_lines() -> None:
    """Names, axes, options and ties."""
    lines = {line.name: line for line in bound().lines}
    v = lines["layer.{l}.v.weight"]
    assert v.axes == (
        Product((Atom("h"), Atom("ov"))),
        Product((Atom("res", True), Atom("n1", True))),
    )
    assert (v.optional, v.tied, v.indices) == (False, None, ("l",))
    assert (lines["head.weight"].optional, lines["head.weight"].tied) == (True, "embed.weight")
    assert lines["mask"].axes is None
    assert lines["layer.{l}.e.{e}.up.weight"].indices == ("l", "e")


def test_conditions() -> None:
    """Spaces, shifts and lines may depend on the config; sizes fall back."""
    other = bound(act="gelu", inner=None)
    assert "u" not in other.spaces
    assert [s.name for s in other.shifts] == ["vb"]
    assert "only.relu" not in {line.name for line in other.lines}
    assert other.sizes["ff"] == 24


def test_structure() -> None:
    """Indices that are axes number elements; the others are scopes; fibres come after their bases."""
    spec = bound()
    assert spec.batch(spec.spaces["u"]) == ("e", "ff")
    assert spec.scope(spec.spaces["u"]) == ("l",)
    assert [spec.depth(n) for n in ("res", "n1", "h", "ov", "e", "ff", "u")] == [0, 1, 0, 1, 0, 1, 2]
    assert spec.depth("vocab") == -1
    order = list(spec.ordered)
    assert order.index("e") < order.index("ff") < order.index("u")
    assert order.index("h") < order.index("ov")


def test_restrict() -> None:
    """Only the named spaces and shifts stay; lines and sizes do."""
    spec = bound().restrict(["ov", "vb", "nothing"])
    assert list(spec.spaces) == ["ov"]
    assert [s.name for s in spec.shifts] == ["vb"]
    assert spec.lines == bound().lines
    assert spec.sizes == bound().sizes


def test_comments() -> None:
    """A hash after a space starts a comment; one inside a shift does not."""
    assert bound(TEXT.replace("#1 if", "#0 if")).shifts[1].block == 0


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("space h: Perm[l]", "space h Perm[l]", "space 'h Perm[l]' is not understood: write NAME: GROUP[index, ...]"),
        ("space h: Perm[l]", "space h: Perm[l] x", "space 'h: Perm[l] x' is not understood"),
        ("space h: Perm[l]", "space h: Prem[l]", "space h: no group 'Prem'; there are Fixed, Perm,"),
        ("size ov = res // h", "size ov = res // 4", "res // 4 = 6 // 4 is not a whole number"),
        ("size ov = res // h", "size ov = depth", "size ov = depth is None, not a whole number"),
        ("size ov = res // h", "size ov = -3", "size ov = -3 is -3, not a whole number"),
        ("size ov = res // h", "size ov = res == 6", "size ov = res == 6 is True, not a whole number"),
        ("size ov = res // h", "size ov = depth + 1", "the spec needs 'depth + 1', but depth is missing"),
        ("size ov = res // h", "size ov = len(res)", "'len(res)' is not allowed"),
        ("size ov = res // h", "size ov = res h", "expression ' res h' in the spec is not valid"),
        ("size ov = res // h", "", "space ov has no size: add `size ov = ...`"),
        ("shift vb: layer", "prenorm nothing\nshift vb: layer", "prenorm 'nothing' is not understood: name a residual"),
        ("shift vb: layer", "postnorm h\nshift vb: layer", "postnorm 'h' is not understood: name a residual stream"),
        (
            "shift vb: layer",
            "shift t: embed.weight -> layer.{l}.o.bias\nshift vb: layer",
            "shift t moves res vocab of embed.weight, but res of layer.{l}.o.bias: say along which axis each is constant",
        ),
        ("shift vb: layer", "length n: embed.weight\nshift vb: layer", "length 'n: embed.weight' is not understood: write NAME: WEIGHT by LENGTHS along AXIS"),
        ("shift vb: layer", "length n: embed.weight by layer.{l}.o.bias along vocab\nshift vb: layer", "length n is along vocab, which is no axis of both tensors whose size is known"),
        ("shift vb: layer", "prenorm res seen a.weight without b.weight\nshift vb: layer", "'without' stands behind 'seen': write `across`, `except`, `without`, `sliced`, `seen`, `padded`, `tiled` in this order"),
        ("shift vb: layer", "carry c: embed.weight\nshift vb: layer", "carry 'c: embed.weight' is not understood: write NAME: LINE"),
        ("shift vb: layer", "carry c: embed.weight along vocab -> nothing.bias\nshift vb: layer", "carry c names nothing.bias, which is no line"),
        ("shift vb: layer", "carry c: embed.weight along vocab -> embed.weight along vocab over res[1:3]\nshift vb: layer", "carry c is over 2 coordinates of res in embed.weight, but its vector has"),
        ("shift vb: layer", "biased embed.weight\nshift vb: layer", "biased 'embed.weight' is not understood: write WEIGHT#PART by BIAS, or WEIGHT by BIAS ..."),
        ("shift vb: layer", "biased embed.weight by embed.bias\nshift vb: layer", "biased names embed.bias, which is no line"),
        ("shift vb: layer", "together layer. elsewhere.\nshift vb: layer", "together elsewhere.: no line's name begins with it and a number"),
        ("shift vb: layer", "biased embed.weight#0 by embed.bias\nshift vb: layer", "biased names embed.bias, which is no line"),
        ("shift vb: layer", "shift vb layer", "is not understood: write NAME: BIAS [along AXIS] [-> OUT via WEIGHT | -> OUT [along AXIS]]"),
        ("via layer.{l}.o.weight", "layer.{l}.o.weight", "is not understood: write NAME: BIAS"),
        ("layer.{l}.fused.bias#1", "layer.{l}.router.weight along ff", "shift kb is along ff, which is no one axis of layer.{l}.router.weight"),
        ("layer.{l}.fused.bias#1", "embed.weight along res", "shift kb moves axis vocab, whose size is not known"),
        ("-> layer.{l}.o.bias", "-> layer.{l}.out.bias", "shift vb names layer.{l}.out.bias, which is no line"),
        ("shift vb: layer.{l}.v.bias", "shift vb: layer.{l}.w.bias", "shift vb names layer.{l}.w.bias, which is no"),
        ("(h ov) (res n1)'", "(h ov) (res n1", "axis pattern '(h ov) (res n1': expected ')'"),
        ("(h ov) (res n1)'", "(h ov) res-n1", "'-n1' is not in the language"),
        ("res if act", "res if act =", "in the spec is not valid"),
    ],
)  # fmt: skip
def test_messages(old: str, new: str, says: str) -> None:
    """Each wrong statement is refused in words that name it."""
    assert old in TEXT
    text = TEXT.replace(old, new)
    with pytest.raises(IsomergeError, match=re.escape(says)) as caught:
        bound(text)
    assert "toy.spec" in str(caught.value)


def test_messages_give_the_line() -> None:
    """Statements are counted from one, as editors do."""
    with pytest.raises(IsomergeError, match=r"^toy\.spec, line 3: space h: no group 'X'"):
        bound("size h = heads\n\nspace h: X")


def test_require() -> None:
    """A config that the spec does not describe is refused in the spec's own words."""
    with pytest.raises(IsomergeError, match=r"config.json: act is not one that this spec describes"):
        bound(act="silu")


def test_unused_space() -> None:
    """A declaration that nothing executes rots."""
    with pytest.raises(IsomergeError, match="space x is declared, but no line uses it"):
        bound(TEXT + "size x = 3\nspace x: Perm\n")


def test_over_a_stream_only_scales_act() -> None:
    """Signs for every coordinate of a stream would be lawful, but nothing matches them: `verify` would be wrong."""
    text = "size res = heads\nsize s = 1\nresidual res: Perm\nspace s: {}[res]\nup  (res s)\ndown  (res s)'\n"
    assert "s" in bound(text.format("Scale")).spaces
    with pytest.raises(IsomergeError, match=r"space s is Sign over res, but .* only scales"):
        bound(text.format("Sign"))
    turning = text.replace("residual res: Perm", "residual res: Perm folded OFixingOnes")
    with pytest.raises(IsomergeError, match=r"space s lies over res, which turns .* declare `residual s`"):
        bound(turning.format("Scale"))


def test_missing_index() -> None:
    """A fibre needs its base in every line that it is in."""
    with pytest.raises(IsomergeError, match=r"line odd uses space (h|ov), but has no index l"):
        bound(TEXT + "odd (h ov)\n")
    with pytest.raises(IsomergeError, match=r"line odd\.\{l\} uses space ov, but has no index h"):
        bound(TEXT + "odd.{l} ov res'\n")


def test_a_base_that_occurs_twice() -> None:
    """Where a line has a base twice, a fibre over it would silently take the first: refused. Blocks of their own
    are not."""
    with pytest.raises(IsomergeError, match=r"line pool\.\{l\} has res twice, .* which of them n1 lies over"):
        bound(TEXT + "pool.{l} res (res n1)'\n")
    bound(TEXT + "pool.{l} labels [(res n1)' | (res n1)']\n")
    bound(TEXT + "pool.{l} res res'\n")


# ----------------------------------------------------------------------- coverage


def test_every_tensor_has_one_line() -> None:
    """Bindings and canonical names; optional tensors may be there."""
    found = coverage(bound(), {**shapes(), "head.weight": (11, 6), "mask": (1, 2, 3)})
    assert found["layer.1.v.weight"].binding == {"l": 1}
    assert found["layer.1.e.0.up.weight"].binding == {"l": 1, "e": 0}
    assert found["layer.1.norm.weight"].canonical == "layer.1.norm.weight"


@pytest.mark.parametrize("prefix", ["toy.", "old_toy."])
def test_prefixes_and_alternatives(prefix: str) -> None:
    """A tensor is itself with any prefix and under its legacy name."""
    renamed = {prefix + n.replace("norm.weight", "norm.gamma"): s for n, s in shapes().items()}
    found = coverage(bound(), renamed)
    assert by_canonical(found) == dict(zip(shapes(), renamed, strict=True))


@pytest.mark.parametrize(
    "name", ["other", "xtoy.embed.weight", "layer.x.v.bias", "layer.01.v.bias", "embed.weight2", "layer.0.v.weigh"]
)
def test_unknown_tensors_are_named(name: str) -> None:
    """Names match whole or not at all."""
    says = f"tensor {name} is not described by any line of the spec for toy (toy.spec): add one line for it"
    with pytest.raises(IsomergeError, match=re.escape(says)):
        coverage(bound(), {**shapes(), name: (6,)})


def test_names_of_what_was_wrapped_around_a_model() -> None:
    """A line for each would be wrong advice."""
    with pytest.raises(
        IsomergeError, match=r"tensor module\.embed\.weight .*: save the model itself.* take module\. off the names"
    ):
        coverage(bound(), {f"module.{name}": shape for name, shape in shapes().items()})


def test_several_lines() -> None:
    """Two lines for one tensor are an error of the spec."""
    with pytest.raises(
        IsomergeError, match=r"tensor embed\.weight matches several lines .*: make the lines exclusive"
    ):
        coverage(bound(TEXT + "(embed|emb).weight vocab res\n"), shapes())


def test_duplicates() -> None:
    """With and without the prefix, under the old and the new name: the same tensor twice."""
    for name in ("toy.embed.weight", "layer.0.norm.gamma"):
        extra = {**shapes(), name: (11, 6) if "embed" in name else (6,)}
        with pytest.raises(IsomergeError, match=rf"and {name} are the same tensor under two names"):
            coverage(bound(), extra)


@pytest.mark.parametrize(
    ("name", "actual", "says"),
    [
        ("layer.0.v.weight", (5, 6), "tensor layer.0.v.weight: axis (h ov) has length 5, but config.json says 6"),
        ("layer.0.v.weight", (6, 7), "tensor layer.0.v.weight: axis (res' n1') has length 7, but config.json says 6"),
        ("layer.1.fused.bias", (6,), "tensor layer.1.fused.bias: axis [3 | 4] has length 6, but config.json says 7"),
        ("layer.0.o.bias", (6, 1), "tensor layer.0.o.bias has 2 dimensions [6, 1], but the spec for toy declares 1"),
        ("embed.weight", (6,), "tensor embed.weight has 1 dimensions [6], but the spec for toy declares 2"),
    ],
)  # fmt: skip
def test_shapes_name_tensor_and_axis(name: str, actual: tuple[int, ...], says: str) -> None:
    """The message says which axis, what it is and what it should be."""
    with pytest.raises(IsomergeError, match=re.escape(says)):
        coverage(bound(), {**shapes(), name: actual})


# ------------------------------------------------------------------------- blocks


def test_experts_become_one_block() -> None:
    """Name axes lead; other indices are scopes; assembling and splitting are inverse."""
    spec = bound()
    blocks = {b.key: b for b in gather_blocks(spec, coverage(spec, shapes()))}
    up = blocks["layer.1.e.0.up.weight"]
    assert up.canonical == ("layer.1.e.0.up.weight", "layer.1.e.1.up.weight")
    assert up.lead == (2,)
    assert up.at("l") == 1
    assert up.at("e") is None
    stored = {n: torch.randn(5, 6) for n in up.canonical}
    assert up.assemble(stored.__getitem__).shape == (2, 5, 6)
    assert all(torch.equal(t, stored[n]) for n, t in up.split(up.assemble(stored.__getitem__)))


def test_a_lost_expert_is_named() -> None:
    """An index that is an axis has all its values, and no others."""
    spec, some = bound(), shapes()
    del some["layer.1.e.0.up.weight"]
    with pytest.raises(
        IsomergeError, match=r"tensor layer\.1\.e\.0\.up\.weight is missing, but others of its kind"
    ):
        gather_blocks(spec, coverage(spec, some))
    with pytest.raises(
        IsomergeError, match=r"tensor layer\.0\.e\.2\.up\.weight is out of range: config.json says e < 2"
    ):
        gather_blocks(spec, coverage(spec, {**shapes(), "layer.0.e.2.up.weight": (5, 6)}))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("spaces h: Perm", "did you mean `space`"),
        ("sise kv = 2", "did you mean `size`"),
        ("zork kv 4", "'zork' is no statement"),
        ("grip x = 3", "'grip' is no statement"),
    ],
)
def test_a_misspelt_statement_is_no_tensor(line: str, said: str) -> None:
    """A plain word that no tensor of the checkpoint is called by; words that tensors are called by stay lines."""
    shapes = {"model.embed": (3, 4), "head": (3, 4)}
    with pytest.raises(IsomergeError, match=rf"toy\.spec, line 2: .*{said}"):
        parse_spec(f"size res = 4\n{line}\n", {}, "toy.spec", shapes=shapes)
    spec = parse_spec(
        "prefix model.\nsize res = 4\nembed vocab res\nhead vocab res\n? probe res\n", {}, shapes=shapes
    )
    assert coverage(spec, shapes).keys() == shapes.keys()


def test_an_axis_without_a_size_is_told_with_its_place() -> None:
    """The file, the line and the tensor."""
    spec = parse_spec("size res = 4\nhead.weight (h foo) res\nsize h = 2\n", {}, "toy.spec")
    with pytest.raises(
        IsomergeError, match=r"toy\.spec, line 2: tensor head\.weight: the size of axis foo is not known"
    ):
        coverage(spec, {"head.weight": (8, 4)})


@pytest.mark.parametrize(
    ("kind", "tie", "stored", "kept"),
    [
        ("ToyForCausalLM", True, False, False),
        ("ToyForCausalLM", True, True, False),  # in both places, as torch's pickles have it
        ("ToyForCausalLM", False, True, True),
        ("ToyForCausalLM", False, False, False),  # a whole says so of its part, which is tied all the same
        ("ToyForConditionalGeneration", False, False, False),
        ("ToyModel", False, False, True),
        ("ToyForSequenceClassification", True, False, True),
    ],
)
def test_a_head_that_is_not_stored_is_tied(kind: str, tie: bool, stored: bool, kept: bool) -> None:
    """The last gain cannot be folded into the embeddings: it has no space where the head is tied to them."""
    text = "model toy\nsize res = 4\nresidual res: SignedPerm\nresidual nf: Scale[res]\n"
    text += "embed.weight vocab res\nnorm.weight diag(res nf)\n? lm_head.weight vocab (res nf)' = embed.weight\n"
    text += "? head.weight vocab (res nf)' = embed.weight\n"  # an older name
    present = ["embed.weight", "norm.weight", *(["lm_head.weight"] if stored else [])]
    config = {"architectures": [kind], "tie_word_embeddings": tie}
    assert ("nf" in without_broken_ties(parse_spec(text, config), present, config).spaces) == kept


def test_why_gains_cannot_be_folded() -> None:
    """A tie is blamed only where untying would help."""
    text = "model toy\nsize res = 4\nresidual res: SignedPerm folded O\nresidual nf: Scale[res]\n"
    text += "embed.weight vocab res\nnorm.weight diag(res nf)\nhead.weight vocab (res nf)' = embed.weight\n"
    for more, reason, untie in (
        ("", "tied to the embeddings", True),
        ("post.weight diag(res)\n", "post.weight", False),
    ):
        spec = without_broken_ties(parse_spec(text + more, {}), ["embed.weight", "norm.weight"], {})
        notes = choose_frame(spec, ["all"])[1]
        assert len(notes) == 1
        assert reason in notes[0]
        assert ("--untie" in notes[0]) == untie


LENT = """model toy
size res = 4
size depth = 6
layers far = 0..depth where kinds[l] == "far"
layers read = 3..depth where l not in far
layers fread = 3..depth where l in far
size h = 2
size rh = 2
space h: Perm[l]
space rh as h: Perm[l, read] if read
layers.{l:0..3}.q.weight h res
layers.{l:0..3}.k.weight h res
layers.{l:2,read}.q.weight rh res
layers.{l:far[0],fread}.q.weight h res
? layers.{l:3..depth}.k.weight *
"""
KINDS = ["near", "far", "near", "near", "far", "near"]


def test_layers_along_an_axis() -> None:
    """Layers that read what another one holds are an axis of it: one element moves all of them."""
    spec = parse_spec(LENT, {"kinds": KINDS})
    shapes = {f"layers.{n}.q.weight": (2, 4) for n in range(6)} | {f"layers.{n}.k.weight": (2, 4) for n in range(4)}
    blocks = {b.key: b for b in gather_blocks(spec, coverage(spec, shapes))}
    lent = blocks["layers.3.q.weight"]
    assert lent.canonical == ("layers.3.q.weight", "layers.5.q.weight")
    assert (lent.scope, lent.lead, lent.layers) == ((("l", 2),), (2,), (3, 5))
    assert blocks["layers.4.q.weight"].scope == (("l", 1),)
    assert [layer_of(lent, k) for k in range(2)] == [("layers.", 3), ("layers.", 5)]
    assert stacks_of(list(blocks.values())) == {"layers.": 6}
    assert set(elements_of(spec, lent)) == {"rh[2]"}


def test_no_layers_along_an_axis() -> None:
    """Where none reads the keys of others, a line for such layers describes nothing."""
    none = LENT.replace("3..depth", "6..depth").replace("0..3", "0..6").replace("{l:2,", "{l:far[7],")
    spec = parse_spec(none, {"kinds": KINDS})
    assert "rh" not in spec.spaces
    assert spec.match("layers.5.q.weight").binding == {"l": 5}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "layers far = 0..depth",
            "layers far : depth",
            r"line 4: layers .* is not understood: write NAME = FIRST\.\.LAST",
        ),
        (
            "layers far = 0..depth",
            "layers far = 0..missing",
            r"line 4: .*0\.\.missing is 0\.\.None, not the numbers of two layers",
        ),
        ("layers far = 0..depth", "layers far = 0-1..depth", "line 4: .*0-1 is -1, not the number of a layer"),
        ("{l:far[0],fread}", "{l:far,fread}", r"far is \[1, 4\], not the one layer that fread is an axis of"),
        ("{l:far[0],fread}", "{l:far[9],fread}", r"far\[9\] is \[\], not the one layer"),
        (
            "{l:far[0],fread}",
            "{l:far[0],fred}",
            r"far\[0\],fred is \(1, None\), not the number of a layer or a list",
        ),
    ],
)
def test_layers_that_are_none(old: str, new: str, says: str) -> None:
    """Nonsense is refused with its place."""
    with pytest.raises(IsomergeError, match=says):
        parse_spec(LENT.replace(old, new), {"kinds": KINDS}, "toy.spec")


def test_a_whole_that_does_not_say_whether_its_head_is_tied() -> None:
    """Asks its parts with a vocabulary, however deep; one that says it is not asked."""
    apart, tied = ({"vocab_size": 9, "tie_word_embeddings": value} for value in (False, True))
    assert says_tied({})
    assert says_tied({"vision_config": {"tie_word_embeddings": False}})
    assert not says_tied({"thinker_config": {"text_config": apart}})
    assert says_tied({"text_config": apart, "talker_config": tied})
    assert says_tied({"tie_word_embeddings": True, "text_config": apart})
    assert not says_tied({"tie_word_embeddings": False, "text_config": tied})

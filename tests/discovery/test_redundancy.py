"""The completeness law: the null space of the Jacobian against the declared groups, on tiny random models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

from depth import more, thorough
from isomerge.archs import expanded_texts
from isomerge.checkpoint.in_memory import in_memory
from isomerge.commands.proof import text_of
from isomerge.discovery import redundancy
from isomerge.discovery.building import make_specimen, real_config
from isomerge.discovery.completeness import inner_axes, try_completeness
from isomerge.discovery.proving import BoundSpecimen
from isomerge.discovery.redundancy import Count, Redundancy, span_of, tiny_specimen
from isomerge.discovery.redundancy_point import Point, form_of, form_tangents
from isomerge.discovery.shrinking import Scale
from isomerge.errors import IsomergeError
from isomerge.evidence.inspection import inspection
from isomerge.models.layer_norm_form import LayerNormForm
from isomerge.models.recognised import Model
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.language.spec_text import parse_spec

V3: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_buckets": 256,
    "position_biased_input": False,
    "type_vocab_size": 0,
}
"""What DeBERTa-v3's config says."""


def bound(
    kind: str,
    *edits: tuple[str, str],
    architecture: str = "",
    tiny: Scale = redundancy.TINY,
    **settings: Any,
) -> BoundSpecimen:
    """A tiny model of a type, seen by its packaged text with some edits."""
    config = tf.AutoConfig.for_model(kind, **settings).to_dict() | {"model_type": kind}
    if architecture:
        config["architectures"] = [architecture]

    def spec_of(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Any:
        texts = dict(expanded_texts())
        origin, text = texts[kind]
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        texts[kind] = (origin, text)
        return parse_spec(text, config, origin, texts, shapes)

    specimen = tiny_specimen(real_config(config), tiny=tiny)
    specimen.compare_whole()
    return BoundSpecimen(spec_of, specimen)


def counted(kind: str, *edits: tuple[str, str], **more: Any) -> Redundancy:
    """The redundancy of a tiny model; one thread is enough for its matrices. What is declared is what `inspect`
    prints, by formula."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seen = bound(kind, *edits, **more)
        count = Count(seen).named()
    finally:
        torch.set_num_threads(threads)
    assert count.declared == inspected(seen)["redundant_dimensions"]
    return count


def inspected(seen: BoundSpecimen) -> dict[str, Any]:
    """What `inspect` says of a specimen."""
    stored = in_memory(seen.specimen.stored, seen.specimen.config, ref="specimen")
    return inspection(Model(stored, seen.spec, seen.matches, seen.declared)).document()


def explained(count: Redundancy) -> bool:
    """Whether what is left is all that is not declared."""
    return count.true == count.declared + sum(left.dimensions for left in count.left)


@pytest.mark.parametrize("name", list(GROUPS))
def test_generators_are_a_basis_of_the_algebra(name: str) -> None:
    """As many as the group has dimensions, independent, and each of them leads to an element to first order."""
    group, n = GROUPS[name], 4 if name != "Complex" else 2
    basis = group.generators(n)
    assert len(basis) == group.dimension(n)
    if len(basis):
        assert torch.linalg.matrix_rank(basis.flatten(1)) == len(basis)
        near = group.identity((len(basis),), n) + 1e-5 * basis
        assert group.contains(near)
        assert float((near - group.identity((len(basis),), n)).abs().max()) > 1e-6


def test_llama_is_complete() -> None:
    """Value spaces, complex numbers on rotary pairs, scales of neurons, gains, and the stream's rotations."""
    count = counted("llama")
    ov, c, u, gains, stream = 2 * 16, 2 * 2 * 2, 2 * 12, 5 * 8, 28
    stream_and_heads = count.declared - u - gains
    assert count.true == count.declared
    assert count.left == ()
    assert count.complete
    assert stream_and_heads >= ov + c + stream
    assert count.gap[0] > 1e3 * max(count.gap[1], 1e-15)


@pytest.mark.parametrize(
    ("edit", "missing", "lines"),
    [
        (("space u as scale: Scale[l, ff]", "size u = 1"), 24, {"layers.{l}.mlp.up_proj.weight", "layers.{l}.mlp.down_proj.weight"}),
        *more(
            (("space ov: GL[l, kv]", "space ov: O[l, kv]"), None, {"layers.{l}.self_attn.v_proj.weight", "layers.{l}.self_attn.o_proj.weight"})
        ),
    ],
)  # fmt: skip
def test_a_group_that_is_left_out_is_named(edit: tuple[str, str], missing: int | None, lines: set[str]) -> None:
    """A text that declares too little: the law counts what is missing, and names the tensors that it moves."""
    count = counted("llama", edit)
    assert not count.complete
    assert explained(count)
    assert {line for left in count.left for line in left.lines} == lines
    if missing is not None:
        assert count.true - count.declared == missing


def test_a_declared_space_that_is_none_is_told() -> None:
    """The tangent of what is no symmetry is not in the null space."""
    with pytest.raises(IsomergeError, match="space ov changes outputs to first order"):
        counted("llama", ("res (kv g ov')", "res (kv g ov)"))


def test_what_layer_norm_leaves_free_is_declared() -> None:
    """GPT-2 is complete by it: the writers' means, the readers against the ones, biases of norms in theirs. By hand,
    of width 8 with 12 neurons: the positions 14, what two layers write 2 (8 + 1 + 12 + 1), the readers 2 (24 + 12),
    the norms' biases 2 (8 + 8). Of these the spaces have some already: the biases of keys, and of values."""
    count = counted("gpt2")
    assert count.complete
    assert count.left == ()
    written, read, biases = 14 + 2 * (8 + 1 + 12 + 1), 2 * (24 + 12), 2 * (8 + 8)
    assert count.layer_norm == written + read + biases


COMPLETE = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "phi3",
    "granite",
    "olmo2",
    "glm",
    "glm4",
    "gpt2",
    "cohere",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "swin",
    "siglip",
    "whisper",
]


@thorough
@pytest.mark.parametrize("kind", COMPLETE)
def test_these_types_are_complete(kind: str) -> None:
    """By the texts that are packaged, as docs/lab/completeness.md has it."""
    config = tf.AutoConfig.for_model(kind).to_dict() | {"model_type": kind}
    found = try_completeness(text_of(None)[1], config)
    assert found.complete, found.document()


OTHER_CLASSES = {
    # what words and positions trade is free once the words are no head: without `wp`, as many dimensions as the stream
    # has are missing
    "gpt2 untied": ("gpt2", "GPT2LMHeadModel", False),
    "gpt_neo untied": ("gpt_neo", "GPTNeoForCausalLM", False),
    "opt untied": ("opt", "OPTForCausalLM", False),
    "gpt_bigcode untied": ("gpt_bigcode", "GPTBigCodeForCausalLM", False),
    # the same of words and types: without `wt` in this class, seven
    "bert untied": ("bert", "BertForMaskedLM", False),
    "roberta untied": ("roberta", "RobertaForMaskedLM", False),
    # whose head is no head of words, and stands before that of the other class in the order of lines
    "electra's discriminator": ("electra", "ElectraForPreTraining", True),
    # narrow embeddings that are no head turn behind their norm: ten dimensions of six coordinates
    "albert untied": ("albert", "AlbertForMaskedLM", False),
    # a body gives out what its last norm makes of the stream: without `returned` all that is written along the ones is
    # missing, and where its embeddings are taken for a head, theirs is
    "falcon's body": ("falcon", "FalconModel", True),
    "gpt2's body": ("gpt2", "GPT2Model", True),
    # a neuron of the head that all inputs switch on is linear, and its bias seemed free: heads' are centred as well
    "distilbert's classifier": ("distilbert", "DistilBertForSequenceClassification", True),
}  # fmt: skip
"""Classes of which a text that knows the default one alone misses something."""


@pytest.mark.parametrize("case", OTHER_CLASSES)
def test_other_classes_and_ties_are_complete(case: str) -> None:
    """As docs/lab/completeness.md has it of many more."""
    kind, architecture, tied = OTHER_CLASSES[case]
    config = tf.AutoConfig.for_model(kind, tie_word_embeddings=tied).to_dict() | {"model_type": kind}
    counted = try_completeness(text_of(None)[1], {**config, "architectures": [architecture]})
    assert counted.complete, counted.document()


@pytest.mark.parametrize(
    ("kind", "architecture", "table", "free"),
    [
        ("gpt2", "GPT2Model", "wte.weight", True),
        ("gpt2", "GPT2ForSequenceClassification", "wte.weight", True),
        ("gpt2", "GPT2LMHeadModel", "wte.weight", False),
        ("falcon", "FalconModel", "word_embeddings.weight", True),
        ("falcon", "FalconForCausalLM", "word_embeddings.weight", False),
    ],
)
def test_embeddings_are_a_head_only_where_a_class_has_one(
    kind: str, architecture: str, table: str, free: bool
) -> None:
    """The config says tied in all five: in a body and in a classifier the last norm does not see what words have along
    the ones; in a language model each word's is added to its logits."""
    config = tf.AutoConfig.for_model(kind, tie_word_embeddings=True).to_dict() | {"model_type": kind}
    config["architectures"] = [architecture]
    seen = BoundSpecimen(text_of(None)[1], make_specimen(real_config(config), redundancy.TINY, 0, untied=False))
    form = form_of(seen)
    assert isinstance(form, LayerNormForm)
    assert (table in {block.line.name for block in form.free.writers}) is free
    (name,) = [stored for stored, match in seen.matches.items() if match.line.name == table]
    weight = seen.specimen.stored[name]
    along = torch.randn(len(weight), 1, dtype=torch.float64).expand_as(weight)
    assert (seen.specimen.change({name: weight + along}) < 1e-12) is free


SMALL = {
    "vit_mae": {"num_channels": 1, "decoder_hidden_size": 768, "mask_ratio": 0.5},
    "gpt2": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize(
    "kind",
    ["qwen3", "vit", "bert", "mixtral", *more("t5", "opt", "phi", "albert", "olmo", "swin", "vit_mae", "gpt2")],
)
def test_what_inspect_prints_is_the_whole_declared_group(kind: str) -> None:
    """Its formula, against the rank of the declared tangents: streams, gains and trades included, nothing twice."""
    seen = bound(kind, **SMALL.get(kind, {}))
    point, told = Point(seen), inspected(seen)
    tangents = torch.cat([point.tangents(), point.form_tangents()])
    assert told["redundant_dimensions"] == len(span_of(tangents))
    assert told["redundant_dimensions"] == sum(told["redundant"].values())
    assert len(tangents) - len(span_of(tangents)) == -told["redundant"]["common"]
    if kind in ("bert", "vit"):
        assert told["redundant"]["common"] < 0


def test_what_the_form_does_not_see_is_no_more_than_that() -> None:
    """Every direction that is counted for LayerNorm leaves the form as it is to second order; one beside it not."""
    seen = bound("gpt2")
    form, blocks = form_of(seen), seen.fresh()
    assert form is not None

    def formed(moved: Mapping[Block, Tensor], step: float) -> Tensor:
        there = {block: x + step * moved.get(block, torch.zeros(())) for block, x in blocks.items()}
        return torch.cat([form.applied(b, there.__getitem__).reshape(-1) for b in there])

    directions = form_tangents(form, blocks)
    still = formed({}, 0)
    for moved in directions[::25]:
        assert float((formed(moved, 1e-4) - still).abs().max()) < 1e-7
    rng = torch.Generator().manual_seed(1)
    beside = {block: x + torch.randn(x.shape, generator=rng, dtype=x.dtype) for block, x in directions[0].items()}
    assert float((formed(beside, 1e-4) - still).abs().max()) > 1e-6


def test_what_is_left_changes_no_output() -> None:
    """By a move of one's own: what GPT-2's MLP writes along the ones. Along one coordinate it counts."""
    seen = bound("gpt2")
    name = next(n for n in seen.specimen.stored if n.endswith("h.0.mlp.c_proj.weight"))
    weight = seen.specimen.stored[name]
    written = torch.randn(len(weight), 1, dtype=torch.float64)
    assert seen.specimen.change({name: weight + written}) < 1e-12
    assert seen.specimen.change({name: weight + written * torch.eye(weight.shape[1])[0]}) > 1e-3


def test_inner_axes() -> None:
    """The hidden axes of BERT's pooler and of RoBERTa's head are declared; typed like the stream, where no text
    knows the class, that of a pooler is one of its own, whose signs tanh lets through; a model without heads has
    none."""
    assert inner_axes(bound("bert", architecture="BertForSequenceClassification")) == []
    assert inner_axes(bound("roberta", architecture="RobertaForSequenceClassification")) == []
    assert inner_axes(bound("llama")) == []


def test_too_few_outputs_are_not_taken_for_symmetries() -> None:
    seen = bound("llama")
    seen.specimen.inputs[2:] = [{k: v[:2] for k, v in seen.specimen.inputs[-1].items()}]
    with pytest.raises(IsomergeError, match=r"outputs are too few to tell [\d,]+ parameters apart"):
        Count(seen).named()


def test_sinusoids_are_no_parameters() -> None:
    """A table that its class computes and stores stays what it is in a specimen, and is in neither count."""
    seen = bound("roformer", architecture="RoFormerModel")
    name = next(n for n in seen.specimen.stored if n.endswith("embed_positions.weight"))
    assert seen.specimen.stored[name][1, 0] == pytest.approx(0.8414709848)
    point = Point(seen)
    assert name not in point.names
    assert len(point.names) == len(point.numbers) - 1


@thorough
def test_what_one_eps_leaves_free_is_no_symmetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeBERTa-v3's table of relative positions is normed at once: what eps leaves of its rows' lengths makes up for
    seven numbers of that norm's bias and one of its gains, to first order."""
    missing = []
    for factor in (1.0, redundancy.OTHER_EPS):
        monkeypatch.setattr(redundancy, "OTHER_EPS", factor)
        seen = bound("deberta-v2", tiny=redundancy.MORE_HEADS, **V3)
        missing.append(redundancy.Count(seen).missing)
    assert missing == [8, 0]


def test_rows_are_derived_a_few_at_once() -> None:
    """All of them once, in their order; inputs of which one tensor has other rows (patches of all images in a row)
    stay whole. Parts without the last, shorter one would lose what only its rows reach."""
    count = 2 * redundancy.AT_ONCE + 3
    inputs = {"ids": torch.arange(count * 2).reshape(count, 2), "pixels": torch.randn(count, 3)}
    parts = list(redundancy.in_parts(inputs))
    assert [len(part["ids"]) for part in parts] == [redundancy.AT_ONCE, redundancy.AT_ONCE, 3]
    for name, value in inputs.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), value)
    (whole,) = redundancy.in_parts({**inputs, "patches": torch.randn(4 * count, 3)})
    assert len(whole["ids"]) == count

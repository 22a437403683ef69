"""Every checker has mutants it must reject: plausible wrong specs, made from the packaged texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from archs.added_families import ADDED_MUTANTS
from archs.composed_mutants import COMPOSED_MUTANTS
from archs.encoder_mutants import ENCODER_MUTANTS
from archs.finder_families import FINDER_MUTANTS
from archs.gemma_mutants import GEMMA_MUTANTS
from archs.giant_families import GIANT_MUTANTS
from archs.hearing_families import HEARING_MUTANTS
from archs.hybrid_mutants import HYBRID_MUTANTS
from archs.language_mutants import LANGUAGE_MUTANTS
from archs.later_mutants import LATER_MUTANTS
from archs.latest_mutants import LATEST_MUTANTS
from archs.mutants import FAMILY_MUTANTS, Mutant, mutant
from archs.newest_families import NEWEST_MUTANTS
from archs.pair_mutants import PAIR_MUTANTS
from archs.picture_mutants import PICTURE_MUTANTS
from archs.reading_families import READING_MUTANTS
from archs.recent_families import RECENT_MUTANTS
from archs.sense_mutants import SENSE_MUTANTS
from archs.signal_families import SIGNAL_MUTANTS
from archs.sparse_families import SPARSE_MUTANTS
from archs.speech_families import SPEECH_MUTANTS
from archs.switched_families import SWITCHED_MUTANTS
from archs.text_mutants import TEXT_MUTANTS
from archs.wrapped_families import WRAPPED_MUTANTS
from isomerge.archs import expanded_texts, spec_texts
from isomerge.symmetry.language.expansion import family_of
from isomerge.symmetry.language.spec_text import parse_spec
from toys import TRIED, Toy, config_of, load_toy, outputs, relative, write_toy

ROTATED = "residual res: Perm => residual res: O"
PLAIN_GAINS = ("diag(res n1) => (res n1)", "diag(res n2) => (res n2)", "diag(res nf) => (res nf)")
ROPE_GL = (
    "space c as qk: Complex[l, kv, pair] => space c as qk: GL[l, kv]",
    "size pair = head // 2 => size c = head",
    "(kv g c pair) => (kv g c)",
    "(kv c' pair) => (kv c')",
)
CROSSING = (
    "size ov = head => size ov = head\nsize hh = num_attention_heads",
    "space g: Perm[l, kv] => space hh: Perm[l]",
    "(kv g c pair) => (hh head)",
    "(kv c' pair) => rows",
    "space c as qk: Complex[l, kv, pair] => ",
    "res (kv g ov') => res (hh head)",
)
COMPLEX_UNDER_NORMS = (
    "size sg = 1\n => ",
    "size c = 2\n => ",
    "space sg as qk: Sign[l, kv, pair] => space c as qk: Complex[l, kv, pair]",
    "space t as qk: Scale[l, pair] if not behind => ",
    "(q_norm|norm_q).weight (c pair t) => (q_norm|norm_q).weight gain",
    "(k_norm|norm_k).weight (c pair t') => (k_norm|norm_k).weight gain",
    "(kv g c pair sg) => (kv g c pair)",
    "(kv c pair sg') => (kv c' pair)",
)
GELU = {
    "bert": "hidden_act",
    "roberta": "hidden_act",
    "distilbert": "activation",
    "deberta-shared": "hidden_act",
    "vit": "hidden_act",
    "gpt2": "activation_function",
}
MUTANTS = [
    # bert
    mutant(
        "bert",
        "one flat permutation over heads",
        "flat",
        "size ov =  => size flat = res\nsize ov = ",
        "space ov: GL[l, h] => space flat: Perm[l]",
        "value.weight (h ov) res' => value.weight flat res'",
        "value.bias (h ov) => value.bias flat",
        "res (h ov') => res flat'",
    ),
    mutant("bert", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("bert", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant("bert", "rotated post-LN residual", "res", ROTATED),
    mutant("bert-relu", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant("bert-relu", "hidden scale not undone", "u", "(ff u') => ff"),
    mutant("bert", "heads fast", "h", "(h ov) => (ov h)", "(h ov') => (ov' h)"),
    # roberta
    mutant("roberta", "query bias forgotten", "qk", "query.bias (h qk) => query.bias rows"),
    mutant(
        "roberta", "hidden bias forgotten", "ff", "intermediate.dense.bias (ff u) => intermediate.dense.bias rows"
    ),
    mutant("xlm-roberta", "rotated post-LN residual", "res", ROTATED),
    # distilbert
    mutant("distilbert", "second layer not permuted", "ff", "res (ff u') => res neurons"),
    mutant("distilbert", "output not dual", "ov", "res (h ov') => res (h ov)"),
    # deberta
    mutant(
        "deberta-shared",
        "key bias under p2c",
        "kb",
        ' if "p2c" not in (pos_att_type or ()) => ',
    ),
    mutant("deberta-shared", "key not dual", "qk", "key_proj.weight (h qk') res' => key_proj.weight (h qk) res'"),
    mutant(
        "deberta-unshared",
        "pos_key_proj forgotten",
        "qk",
        "pos_key_proj.weight (h qk') res' => pos_key_proj.weight rows res'",
    ),
    mutant(
        "deberta-unshared",
        "pos_query_proj forgotten",
        "h",
        "pos_query_proj.weight (h qk) res' => pos_query_proj.weight rows res'",
    ),
    mutant(
        "deberta-shared",
        "position table not in the residual",
        "res",
        "rel_embeddings.weight rel res => rel_embeddings.weight rel other",
    ),
    # vit
    mutant("vit", "residual rotated under gains", "res", ROTATED, *PLAIN_GAINS),
    mutant("vit", "norm bias not scaled", "n1", "layernorm_before.bias (res n1) => layernorm_before.bias res"),
    mutant(
        "vit",
        "one flat permutation over heads",
        "flat",
        "size ov =  => size flat = res\nsize ov = ",
        "space ov: GL[l, h] => space flat: Perm[l]",
        "(attention.value|v_proj).weight (h ov) (res n1)' => (attention.value|v_proj).weight flat (res n1)'",
        "(attention.value|v_proj).bias (h ov) => (attention.value|v_proj).bias flat",
        "res (h ov') => res flat'",
    ),
    # dinov2
    mutant("dinov2", "layer scale not divided", "s1", "lambda1 diag(res s1') => lambda1 res"),
    mutant("dinov2", "layer scale on the wrong side", "s2", "diag(res s2') => diag(res s2)"),
    mutant("dinov2", "bias past the layer scale", "s2", "mlp.fc2.bias (res s2) => mlp.fc2.bias res"),
    mutant("dinov2-swiglu", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    # gpt2
    mutant(
        "gpt2",
        "one flat permutation over heads",
        "flat",
        "size ov =  => size flat = res\nsize ov = ",
        "space ov: GL[l, h] => space flat: Perm[l]",
        "[h qk | h qk' | h ov] => [h qk | h qk' | flat]",
        "(h ov') res => flat' res",
    ),
    mutant("gpt2", "fused blocks in the wrong order", "ov", "[h qk | h qk' | h ov] => [h qk | h ov | h qk']"),
    mutant("gpt2", "fused head by head", "h", "[h qk | h qk' | h ov] => (h [qk | qk' | ov])"),
    mutant("gpt2", "Conv1D axes swapped", "ov", "c_proj.weight (h ov') res => c_proj.weight res (h ov')"),
    mutant("gpt2", "tied head not in the residual", "res", "wte.weight vocab res => wte.weight vocab other"),
    # llama
    mutant("llama", "GL on q and k under RoPE", "c", *ROPE_GL),
    mutant("llama", "key not dual", "c", "(kv c' pair) => (kv c pair)"),
    mutant("llama", "interleaved pairs", "c", "(kv g c pair) => (kv g pair c)", "(kv c' pair) => (kv pair c')"),
    mutant("llama", "query heads cross kv groups", "hh", *CROSSING),
    mutant(
        "llama", "scale on gate and up", "u", "gate_proj.weight ff (res n2)' => gate_proj.weight (ff u) (res n2)'"
    ),
    mutant("llama", "residual rotated under gains", "res", "res: SignedPerm => res: O", *PLAIN_GAINS),
    mutant(
        "llama-biased",
        "key bias under RoPE",
        "kb",
        "shift vb:  => shift kb: layers.{l}.self_attn.k_proj.bias\nshift vb: ",
    ),
    mutant("mistral", "groups fast", "kv", "(kv g c pair) => (g kv c pair)", "(kv g ov') => (g kv ov')"),
    mutant("mistral", "output not dual", "ov", "(kv g ov') => (kv g ov)"),
    mutant(
        "qwen2",
        "q and k biases not moved",
        "c",
        "bias (kv g c pair) => bias rows",
        "bias (kv c' pair) => bias rows",
    ),
    mutant("qwen2", "head bias not moved", "g", "bias (kv g c pair) => bias rows"),
    # qwen3
    mutant("qwen3", "rotations despite q/k norms", "c", *COMPLEX_UNDER_NORMS),
    mutant("qwen3", "gains not dual", "t", "(c pair t') => (c pair t)"),
    mutant("qwen3", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    # mixtral
    mutant(
        "mixtral",
        "router forgotten",
        "e",
        "gate.weight e (res n2)' => gate.weight rows (res n2)'",
        "? score.bias => ? layers.{l}.nowhere.weight e\n? score.bias",
    ),
    mutant("mixtral", "scale on gate and up", "u", "w1.weight ff (res n2)' => w1.weight (ff u) (res n2)'"),
    mutant("mixtral", "gate and down mistaken", "ff", "w1.weight ff (res n2)' => w1.weight rows (res n2)'"),
    # t5
    mutant("t5-gated", "self-attention heads per layer", "eh", "space eh as h: Perm\n => space eh as h: Perm[l]\n"),
    mutant("t5-relu", "relative bias not permuted", "dh", "bucket dh => bucket heads"),
    mutant(
        "t5-gated",
        "scale on both gated inputs",
        "eu",
        "wi_0.weight eff (res en2)' => wi_0.weight (eff eu) (res en2)'",
    ),
    mutant(
        "t5-relu", "negative scale under ReLU", "du", "space du as scale: PositiveScale => space du as scale: Scale"
    ),
    mutant("t5-gated", "cross-attention key not dual", "xqk", "(xh xqk') (res enf)' => (xh xqk) (res enf)'"),
    mutant(
        "mt5",
        "cross-attention reads the decoder",
        "dn2",
        "EncDecAttention.k.weight (xh xqk') (res enf)' => EncDecAttention.k.weight (xh xqk') (res dn2)'",
    ),
    *FAMILY_MUTANTS,
    *LATEST_MUTANTS,
    *COMPOSED_MUTANTS,
    *HYBRID_MUTANTS,
    *LATER_MUTANTS,
    *ENCODER_MUTANTS,
    *LANGUAGE_MUTANTS,
    *GEMMA_MUTANTS,
    *NEWEST_MUTANTS,
    *RECENT_MUTANTS,
    *TEXT_MUTANTS,
    *PICTURE_MUTANTS,
    *SENSE_MUTANTS,
    *PAIR_MUTANTS,
    *SPEECH_MUTANTS,
    *FINDER_MUTANTS,
    *SIGNAL_MUTANTS,
    *ADDED_MUTANTS,
    *GIANT_MUTANTS,
    *SPARSE_MUTANTS,
    *HEARING_MUTANTS,
    *WRAPPED_MUTANTS,
    *READING_MUTANTS,
    *SWITCHED_MUTANTS,
    *(mutant(toy, "ReLU's scale under GELU", "u", f' if {key} == "relu" => ') for toy, key in GELU.items()),
]


def root_of(kind: str) -> str:
    """The text that the text of a model type is like, over any way; its own where it is written out."""
    name, text = spec_texts()[kind]
    return family_of(text, name, spec_texts())


def mutated(model: Toy, mutant: Mutant) -> Toy:
    """The toy as the wrong spec sees it: the text that is named is wrong, and all that are like it."""
    kind = model_type_of(model.name)
    wrong = mutant.part or kind
    texts = dict(expanded_texts())
    for other in [k for k in texts if root_of(k) == root_of(wrong)]:
        origin, text = texts[other]
        text = re.sub(" +", " ", text)  # edits do not depend on how columns are set
        for old, new in mutant.edits:
            assert old in text or other != wrong, f"{origin} has no {old!r}"
            text = text.replace(old, new)
        texts[other] = (origin, text)
    shapes = {name: tuple(t.shape) for name, t in model.stored.items()}
    spec = parse_spec(texts[kind][1], config_of(model.folder), texts[kind][0], texts, shapes)
    return load_toy(model.name, model.folder, spec)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.toy in TRIED], ids=lambda m: f"{m.toy}: {m.wrong}")
def test_rejected(mutant: Mutant, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Moved by what the wrong spec calls a symmetry, the model is another function."""
    model = mutated(toy(mutant.toy), mutant)
    moved = model.drawn([mutant.space])
    assert model.change(moved) > 1e-3
    found = relative(outputs(write_toy(model, moved, tmp_path / "out")), toy(mutant.toy).reference)
    assert found > 1e-3


def test_every_text_has_two() -> None:
    """No text that is written out goes unchallenged; one that is like another shares its mutants."""
    texts = Counter(root_of(m.part or model_type_of(m.toy)) for m in MUTANTS)
    assert set(texts) == {root_of(kind) for kind in spec_texts()}
    assert min(texts.values()) >= 2


NAMED = {
    **dict.fromkeys(["deberta-shared", "deberta-unshared", "deberta-c2p", "deberta-conv"], "deberta-v2"), "dit": "DiTTransformer2DModel", "sd3": "SD3Transformer2DModel", "flux": "FluxTransformer2DModel",
}  # fmt: skip


def model_type_of(toy: str) -> str:
    """The ``model_type`` of a toy, from its name."""
    kind = toy
    while kind and kind not in spec_texts():
        kind = kind.rpartition("-")[0]
    return NAMED.get(toy) or kind or NAMED[toy.partition("-")[0]]

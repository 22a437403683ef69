"""Every checker has mutants it must reject: plausible wrong specs, made from the packaged texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from toys import Toy, config_of, load_toy, outputs, relative, write_toy

from isomerge.archs import spec_texts
from isomerge.evidence.law import random_alignment
from isomerge.symmetry.spec import parse_spec


class Mutant(NamedTuple):
    """A wrong spec: the toy that refutes it, the space that is wrong, and the edits that make it."""

    name: str
    toy: str
    space: str
    edits: tuple[tuple[str, str], ...]


def flat_heads(toy: str, *edits: tuple[str, str]) -> Mutant:
    """One permutation of all of v's rows: it tears heads apart."""
    space = ("space ov: GL[l, h]", "space flat: Perm[l]")
    return Mutant("one flat permutation over heads", toy, "flat", (("size ov = ", "size flat = res\nsize ov = "), space, *edits))


ROPE_GL = (
    ("space c as qk: Complex[l, kv, pair]", "space c as qk: GL[l, kv]"),
    ("size pair = head // 2", "size c = head"),
    ("(kv g c pair)", "(kv g c)"),
    ("(kv c' pair)", "(kv c')"),
)
INTERLEAVED = (("(kv g c pair)", "(kv g pair c)"), ("(kv c' pair)", "(kv pair c')"))
CROSSING = (
    ("size ov = head", "size ov = head\nsize hh = num_attention_heads"),
    ("space g: Perm[l, kv]", "space hh: Perm[l]"),
    ("(kv g c pair)", "(hh head)"),
    ("(kv c' pair)", "rows"),
    ("space c as qk: Complex[l, kv, pair]", ""),
    ("res (kv g ov')", "res (hh head)"),
)
UNFOLDED = (("residual res: Perm", "residual res: O"),)
GELU = "bert distilbert roberta vit gpt2 deberta-shared".split()
CONDITION = {"distilbert": "activation", "gpt2": "activation_function"}


def gelu_scale(toy: str) -> Mutant:
    """ReLU's scale under GELU."""
    return Mutant("GELU neuron scale", toy, "u", ((f' if {CONDITION.get(toy, "hidden_act")} == "relu"', ""),))


MUTANTS = [
    # ------------------------------------------------------------------ BERT
    flat_heads(
        "bert",
        ("value.weight (h ov) res'", "value.weight flat res'"),
        ("value.bias (h ov)", "value.bias flat"),
        ("res (h ov')", "res flat'"),
    ),
    Mutant("key not dual", "bert", "qk", (("(h qk')", "(h qk)"),)),
    Mutant("output not dual", "bert", "ov", (("(h ov')", "(h ov)"),)),
    Mutant("rotated post-LN residual", "bert", "res", UNFOLDED),
    Mutant("negative scale under ReLU", "bert-relu", "u", (("PositiveScale[l, ff]", "Scale[l, ff]"),)),
    Mutant("hidden scale not undone", "bert-relu", "u", (("(ff u')", "ff"),)),
    Mutant("heads fast", "bert", "h", (("(h ov)", "(ov h)"), ("(h ov')", "(ov' h)"))),
    # --------------------------------------------------------------- RoBERTa
    Mutant("query bias forgotten", "roberta", "qk", (("query.bias (h qk)", "query.bias rows"),)),
    Mutant("hidden bias forgotten", "roberta", "ff", (("intermediate.dense.bias (ff u)", "intermediate.dense.bias rows"),)),
    Mutant("rotated post-LN residual", "xlm-roberta", "res", UNFOLDED),
    # ------------------------------------------------------------ DistilBERT
    Mutant("second layer not permuted", "distilbert", "ff", (("res (ff u')", "res neurons"),)),
    Mutant("output not dual", "distilbert", "ov", (("res (h ov')", "res (h ov)"),)),
    # -------------------------------------------------------------- DeBERTa
    Mutant("key bias under p2c", "deberta-shared", "kb", ((' if "p2c" not in (pos_att_type or ()) and (not share_att_key or not relative_attention)', ""),)),
    Mutant("key not dual", "deberta-shared", "qk", (("key_proj.weight (h qk') res'", "key_proj.weight (h qk) res'"),)),
    Mutant("pos_key_proj forgotten", "deberta-unshared", "qk", (("pos_key_proj.weight (h qk') res'", "pos_key_proj.weight rows res'"),)),
    Mutant("pos_query_proj forgotten", "deberta-unshared", "h", (("pos_query_proj.weight (h qk) res'", "pos_query_proj.weight rows res'"),)),
    Mutant("position table not in the residual", "deberta-shared", "res", (("rel_embeddings.weight rel res", "rel_embeddings.weight rel other"),)),
    # ------------------------------------------------------------------ ViT
    Mutant("residual rotated under gains", "vit", "res", UNFOLDED),
    Mutant("norm bias not scaled", "vit", "n1", (("layernorm_before.bias (res n1)", "layernorm_before.bias res"),)),
    flat_heads(
        "vit",
        ("(attention.value|v_proj).weight (h ov) (res n1)'", "(attention.value|v_proj).weight flat (res n1)'"),
        ("(attention.value|v_proj).bias (h ov)", "(attention.value|v_proj).bias flat"),
        ("res (h ov')", "res flat'"),
    ),
    # ---------------------------------------------------------------- GPT-2
    flat_heads(
        "gpt2", ("[h qk | h qk' | h ov]", "[h qk | h qk' | flat]"), ("(h ov') res", "flat' res"),
    ),
    Mutant("fused blocks in the wrong order", "gpt2", "ov", (("[h qk | h qk' | h ov]", "[h qk | h ov | h qk']"),)),
    Mutant("fused head by head", "gpt2", "h", (("[h qk | h qk' | h ov]", "(h [qk | qk' | ov])"),)),
    Mutant("Conv1D axes swapped", "gpt2", "ov", (("c_proj.weight (h ov') res", "c_proj.weight res (h ov')"),)),
    Mutant("tied head not in the residual", "gpt2", "res", (("wte.weight vocab res", "wte.weight vocab other"),)),
    # ---------------------------------------------- Llama, Mistral and Qwen2
    Mutant("GL on q and k under RoPE", "llama", "c", ROPE_GL),
    Mutant("key not dual", "llama", "c", (("(kv c' pair)", "(kv c pair)"),)),
    Mutant("interleaved pairs", "llama", "c", INTERLEAVED),
    Mutant("query heads cross kv groups", "llama", "hh", CROSSING),
    Mutant("scale on gate and up", "llama", "u", (("gate_proj.weight ff (res n2)'", "gate_proj.weight (ff u) (res n2)'"),)),
    Mutant("residual rotated under gains", "llama", "res", UNFOLDED),
    Mutant("key bias under RoPE", "llama-biased", "kb", (("shift vb: ", "shift kb: layers.{l}.self_attn.k_proj.bias\nshift vb: "),)),
    Mutant("groups fast", "mistral", "kv", (("(kv g c pair)", "(g kv c pair)"), ("(kv g ov')", "(g kv ov')"))),
    Mutant("output not dual", "mistral", "ov", (("(kv g ov')", "(kv g ov)"),)),
    Mutant("q and k biases not moved", "qwen2", "c", (("bias (kv g c pair)", "bias rows"), ("bias (kv c' pair)", "bias rows"))),
    Mutant("head bias not moved", "qwen2", "g", (("bias (kv g c pair)", "bias rows"),)),
    # ---------------------------------------------------------------- Qwen3
    Mutant("rotations despite q/k norms", "qwen3", "c", (
        ("size sg = 1\n", ""), ("size c = 2\n", ""),
        ("space sg as qk: Sign[l, kv, pair]", "space c as qk: Complex[l, kv, pair]"),
        ("space t as qk: Scale[l, pair]", ""),
        ("q_norm.weight (c pair t)", "q_norm.weight gain"), ("k_norm.weight (c pair t')", "k_norm.weight gain"),
        ("(kv g c pair sg)", "(kv g c pair)"), ("(kv c pair sg')", "(kv c' pair)"),
    )),
    Mutant("gains not dual", "qwen3", "t", (("(c pair t')", "(c pair t)"),)),
    Mutant("a sign per coordinate", "qwen3", "sg", (("Sign[l, kv, pair]", "Sign[l, kv, c, pair]"),)),
    # -------------------------------------------------------------- Mixtral
    Mutant("router forgotten", "mixtral", "e", (("gate.weight e (res n2)'", "gate.weight rows (res n2)'"), ("? score.bias", "? nowhere.weight e\n? score.bias"))),
    Mutant("scale on gate and up", "mixtral", "u", (("w1.weight ff (res n2)'", "w1.weight (ff u) (res n2)'"),)),
    Mutant("gate and down mistaken", "mixtral", "ff", (("w1.weight ff (res n2)'", "w1.weight rows (res n2)'"),)),
    # ------------------------------------------------------------------- T5
    Mutant("self-attention heads per layer", "t5-gated", "eh", (("space eh as h: Perm\n", "space eh as h: Perm[l]\n"),)),
    Mutant("relative bias not permuted", "t5-relu", "dh", (("bucket dh", "bucket heads"),)),
    Mutant("scale on both gated inputs", "t5-gated", "eu", (("wi_0.weight eff (res en2)'", "wi_0.weight (eff eu) (res en2)'"),)),
    Mutant("negative scale under ReLU", "t5-relu", "du", (("space du as scale: PositiveScale", "space du as scale: Scale"),)),
    Mutant("cross-attention key not dual", "t5-gated", "xqk", (("(xh xqk') res'", "(xh xqk) res'"),)),
    Mutant("cross-attention reads the decoder", "mt5", "dn2", (("EncDecAttention.k.weight (xh xqk') res'", "EncDecAttention.k.weight (xh xqk') (res dn2)'"),)),
    *map(gelu_scale, GELU),
]  # fmt: skip


def mutated(model: Toy, mutant: Mutant) -> Toy:
    """The toy as the wrong spec sees it."""
    origin, text = spec_texts()[model.spec.model_type]
    text = re.sub(" +", " ", text)  # edits do not depend on how columns are set
    for old, new in mutant.edits:
        assert old in text, f"{origin} has no {old!r}"
        text = text.replace(old, new)
    return load_toy(model.name, model.folder, parse_spec(text, config_of(model.folder), origin))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.toy}: {m.name}")
def test_rejected(mutant: Mutant, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Moved by what the wrong spec calls a symmetry, the model is another function."""
    model = mutated(toy(mutant.toy), mutant)
    for seed in range(1, 9):
        blocks = model.fresh()
        random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(seed), [mutant.space]).act(blocks)
        moved = model.named(blocks)
        if model.change(moved) > 1e-3:
            break
    assert model.change(moved) > 1e-3
    found = relative(outputs(write_toy(model, moved, tmp_path / "out")), toy(mutant.toy).reference)
    assert found > 1e-3

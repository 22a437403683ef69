"""Families of `toy_giants` whose saved names are tried, their streams, what their toys cannot move, and plausible
wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_giants import AXK2, CANVAS, KIMI, MINICPM, MOLMO, STEP, STEP_EYE
from toy_seeing import IMAGE

COMPOSED = ["Model", "ForConditionalGeneration"]
GIANT_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Kimi_K25": (KIMI, ["ForConditionalGeneration"]),
    "AXK2": (AXK2, ["Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification"]),
    "Step3p7": ({"text_config": STEP, "vision_config": STEP_EYE, "image_token_id": IMAGE, "projector_bias": True}, COMPOSED),
    "Molmo2": (MOLMO, COMPOSED),
    "MiniCPMV4_6": (MINICPM, COMPOSED),
    "MiniCPMV4_7": (CANVAS, COMPOSED),
    "MiniCPMOcr": ({**MINICPM, "image_size": None}, COMPOSED),
}  # fmt: skip
GIANT_STREAMS: dict[str, dict[str, str]] = {
    "kimi_k25": {"res": "O"},
    "axk2": {"res": "Perm"},
    "axk2-light": {"res": "Perm"},
    "step3p7": {"res": "O", "vres": "Perm", "down1": "O", "down2": "O"},
    "molmo2": {"res": "O", "vres": "OFixingOnes", "mid": "O"},
    "molmo2-olmo": {"res": "SignedPerm", "vres": "OFixingOnes", "mid": "O"},
    **{name: {"res": "O", "vres": "Perm"} for name in ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")},
}
"""The largest groups of their streams (see `test_streams`)."""
GIANT_IDLE = {("minicpmv4_6", "vb"), ("minicpm_ocr", "vb")}
"""Shifts of biases that a toy has not."""
GIANT_MUTANTS = [
    mutant("kimi_k25", "halves of a head turned together", "vc", "[vh vpair vc | vh vpair vc' | vh vov] => [vh vc vpair | vh vc' vpair | vh vov]"),
    mutant("kimi_k25", "past the gain of the projector's norm", "np", "project (merge vres np)' => project (merge vres)'"),
    mutant("kimi_k25", "neurons of the projector not permuted back", "project", "res project' => res other"),
    mutant("axk2", "any matrix on gated values", "ov", "space ov: Perm[l, h] => space ov: GL[l, h]", "space os as scale: Scale[l, h, ov]\n => ", "[nope' | ov os] => [nope' | ov]", "(h ov' os') => (h ov')", "[nope | pair c | ov] => [nope | pair c | gates]", "size vocab => size gates = ov\nsize vocab"),
    mutant("axk2", "values without their gates", "ov", "[nope | pair c | ov] => [nope | pair c | gates]", "size vocab => size gates = ov\nsize vocab"),
    mutant("axk2", "gates scaled with their values", "os", "[nope | pair c | ov] => [nope | pair c | ov os]"),
    mutant("axk2", "the latent's gain where no norm is in front", "qg", "[qlat qs qg' | qlat qs] => [qlat qs qg' | qlat qs qg']"),
    mutant("axk2", "signs through the gate of a norm", "res", "residual res: Perm => residual res: SignedPerm"),
    mutant("axk2", "neurons of the gate not permuted back", "gn", "W_up.weight res gn' => W_up.weight res other"),
    mutant("axk2-light", "a dense layer's norm with a gate", "ggn", "W_down.weight ggn (res n2)' => W_down.weight neurons (res n2)'"),
    mutant("step3p7", "heads of the other layers", "g", "layers.{l:full}.self_attn.g_proj.weight (kv g) (res n1)' => layers.{l:full}.self_attn.g_proj.weight gates (res n1)'", part="step3p5"),
    mutant("step3p7", "factors where experts are cut off", "cu", "cu as scale: Sign => cu as scale: Scale", "size cu = 1\n => ", part="step3p5"),
    mutant("step3p7", "factors where shared experts are cut off", "scu", "scu as scale: Sign => scu as scale: Scale", "size scu = 1\n => ", part="step3p5"),
    mutant("step3p7", "any factor on normed queries", "sg", "sg as qk: Sign[l, kv, pair] => sg as qk: Scale[l, kv, pair]", "size sg = 1\n => ", part="step3p5"),
    mutant("step3p7", "gains as they are stored", "n1", "input_layernorm.weight diag(res n1) - 1 => input_layernorm.weight diag(res n1)", part="step3p5"),
    mutant("step3p7", "the router's bias forgotten", "e", "layers.{l:loose}.moe.router_bias e => layers.{l:loose}.moe.router_bias rows", part="step3p5"),
    mutant("step3p7", "layer scales on the readers' side", "vs1", "ls_1.gamma diag(vres vs1') => ls_1.gamma diag(vres vs1)"),
    mutant("step3p7", "the second convolution's bias forgotten", "down2", "vit_downsampler2.bias down2 => vit_downsampler2.bias rows"),
    mutant("step3p7", "halves of a head turned together", "vc", "[vh vpair vc | vh vpair vc' | vh vov] => [vh vc vpair | vh vc' vpair | vh vov]"),
    mutant("molmo2", "gates before ups", "u", "[ff u | ff] => [ff | ff u]"),
    mutant("molmo2", "the layers that are read, fast", "vres", "(pkv pg pqk) (reads vres)' => (pkv pg pqk) (vres reads)'"),
    mutant("molmo2", "words added later forgotten", "res", "transformer.wte.new_embedding more res => transformer.wte.new_embedding more other"),
    mutant("molmo2", "what is pooled in other coordinates", "mid", "w3.weight (pff pu) mid' => w3.weight (pff pu) other"),
    mutant("molmo2", "the query's bias dropped", "pqb", "shift pkb: => shift pqb: vision_backbone.image_pooling_2d.wq.bias\nshift pkb:"),
    mutant("molmo2-olmo", "a gain that heads share", "t", "q_norm.weight (kv g c pair t) if not shared => q_norm.weight (kv g c pair) if not shared"),
    mutant("molmo2-olmo", "rotated behind the branches' norms", "res", "residual res: SignedPerm if behind => residual res: O if behind", "diag(res) => res", "diag(res nf) => (res nf)"),
    mutant("minicpmv4_6", "patches of a window fast", "vres", "wff (window vres)' => wff (vres window)'"),
    mutant("minicpmv4_6", "the norm over a window forgotten", "vres", "vit_merger.pre_norm.weight (window vres) => vit_merger.pre_norm.weight gains"),
    mutant("minicpmv4_6", "neurons of a window not permuted back", "wff", "vres wff' => vres other"),
    mutant("minicpmv4_6", "the window's heads and the tower's", "wh", "vit_merger.self_attn.v_proj.bias (wh wov) => vit_merger.self_attn.v_proj.bias rows"),
    mutant("minicpmv4_7", "the merger past its neurons", "project", "res project' => res other"),
    mutant("minicpm_ocr", "all of the tower turned", "vres", "residual vres: Perm => residual vres: OFixingOnes", "diag(vres) => vres", "diag(vres vn1) => (vres vn1)", "diag(vres vn2) => (vres vn2)", "diag(vres wn) => (vres wn)"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""

"""Families of `toy_sparse` whose saved names are tried, their streams, what their toys cannot move, and plausible wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_sparse import LARGE, LARGE_WHOLE

COMPOSED = ["Model", "ForConditionalGeneration"]
SPARSE_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "MistralLarge4": ({**LARGE_WHOLE, "text_config": {**LARGE, "attention_bias": True}}, COMPOSED),
    "MistralLarge4Text": (LARGE, ["Model"]),
}  # fmt: skip
SPARSE_STREAMS: dict[str, dict[str, str]] = {
    "mistral_large4": {"res": "Perm", "vision_res": "SignedPerm", "merged": "O"},
}
"""The largest groups of their streams (see `test_streams`)."""
SPARSE_IDLE: set[tuple[str, str]] = set()
"""Shifts of biases that a toy has not."""
TEXT = "mistral_large4_text"
SPARSE_MUTANTS = [
    mutant("mistral_large4", "the norm's gain where a choice reads behind it", "n1", "layers.{l:chosen}.attention_norm.weight diag(res) => layers.{l:chosen}.attention_norm.weight diag(res n1)", part=TEXT),
    mutant("mistral_large4", "signs through the choice's LayerNorm", "res", "residual res: Perm => residual res: SignedPerm", part=TEXT),
    mutant("mistral_large4", "heads without their scaling", "qs", "softmax_scaling.bias) (h qs') => softmax_scaling.bias) h", part=TEXT),
    mutant("mistral_large4", "halves of a head turned together", "c", "[nope | pair c] => [nope | c pair]", "[lat ls | pair c'] => [lat ls | c' pair]", part=TEXT),
    mutant("mistral_large4", "negative factors through ReLU", "ip", "ip as scale: PositiveScale => ip as scale: Scale", part=TEXT),
    mutant("mistral_large4", "heads of the choice without their weights", "ih", "weights_proj.weight (ih ip') => weights_proj.weight rows", part=TEXT),
    mutant("mistral_large4", "keys of the choice scaled twice", "jt", "irest jt'] => irest jt]", part=TEXT),
    mutant("mistral_large4", "keys of the choice without their norm's bias", "iwide", "k_norm.bias (iwide kt) => k_norm.bias rows", part=TEXT),
    mutant("mistral_large4", "patches of the tower in halves", "vision_c", "wq.weight (h pair c) => wq.weight (h c pair)", "wk.weight (h pair c') => wk.weight (h c' pair)", part="pixtral"),
    mutant("mistral_large4", "past the gain in front of the projector", "np", "(vision_res np merge)' => (vision_res merge)'"),
    mutant("mistral_large4", "what is merged in other coordinates", "merged", "linear_1).weight (project pu) merged' => linear_1).weight (project pu) other"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""

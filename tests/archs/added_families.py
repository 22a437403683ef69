"""Families of `toy_added` whose saved names are tried, their streams, what their toys cannot move, and plausible wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_added import PHI4, PHI_PATCHES, PHI_SOUND

ADDED_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Phi4Multimodal": (PHI4, ["Model", "ForCausalLM"]),
    "Phi4MultimodalVision": (PHI_PATCHES, ["Model"]),
    "Phi4MultimodalAudio": (PHI_SOUND, ["Model"]),
}
ADDED_STREAMS: dict[str, dict[str, str]] = {
    **{key: {"res": "O", "vision_res": "OFixingOnes", "sound_res": "Perm"} for key in ["phi4_multimodal", "phi4_multimodal-sound"]},
}  # fmt: skip
"""The largest groups of their streams (see `test_streams`)."""
ADDED_IDLE: set[tuple[str, str]] = set()
"""Shifts of biases that a toy has not."""
ADDED_MUTANTS = [
    mutant("phi4_multimodal", "images read in other coordinates", "vision_res", "project vision_res' => project other"),
    mutant("phi4_multimodal", "what separates rows in other coordinates", "vision_res", "sub_img_feature_extensor 1 1 1 vision_res => sub_img_feature_extensor 1 1 1 other"),
    mutant("phi4_multimodal", "neurons beside images not permuted back", "beside", "res beside' => res other"),
    mutant("phi4_multimodal-sound", "neurons of speech not permuted back", "speech", "res speech' => res other"),
    mutant("phi4_multimodal", "heads per layer under one table", "sound_h", "space h: Perm\n => space h: Perm[l]\n", "distance h => distance heads", part="phi4_multimodal_audio"),
    mutant("phi4_multimodal", "gates before ups", "sound_u", "[ff u | ff] => [ff | ff u]", part="phi4_multimodal_audio"),
    mutant("phi4_multimodal", "the factor of a channel not taken back", "sound_cu", "dw_conv.weight (channel m cu') => dw_conv.weight (channel m)", part="phi4_multimodal_audio"),
    mutant("phi4_multimodal", "the bias beside a channel forgotten", "sound_cu", "glu.b1 1 (channel cu) 1 => glu.b1 1 channel 1", part="phi4_multimodal_audio"),
    mutant("phi4_multimodal", "negative factors through ReLU", "sound_u1", "u1 as scale: PositiveScale => u1 as scale: Scale", part="phi4_multimodal_audio"),
    mutant("phi4_multimodal", "frequencies slow", "sound_c2", "res (c2 u2' frequency) => res (frequency c2 u2')", part="phi4_multimodal_audio"),
    mutant("phi4_multimodal-sound", "copies of a channel slow", "sound_m", "(channel m cu') 1 width => (m channel cu') 1 width", "(channel m) => (m channel)", part="phi4_multimodal_audio"),
    mutant("phi4_multimodal-sound", "a convolution's bias dropped", "sound_db", "dw_conv.bias -> encoders.{l}.conv.dw_sep_conv_1d.pw_conv.bias via encoders.{l}.conv.dw_sep_conv_1d.pw_conv.weight => dw_conv.bias", part="phi4_multimodal_audio"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""

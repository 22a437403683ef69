"""Families of `toy_added` whose saved names are tried, their streams, what their toys cannot move, and plausible wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_added import ASR, LISTENER, OMNI3, PHI4, PHI_PATCHES, PHI_SOUND, TALKER_TEXT, THINKER

ADDED_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Phi4Multimodal": (PHI4, ["Model", "ForCausalLM"]),
    "Phi4MultimodalVision": (PHI_PATCHES, ["Model"]),
    "Phi4MultimodalAudio": (PHI_SOUND, ["Model"]),
    "Qwen3OmniMoe": (OMNI3, ["ForConditionalGeneration"]),
    "Qwen3OmniMoeThinker": (THINKER, ["ForConditionalGeneration"]),
    "Qwen3OmniMoeText": (THINKER["text_config"], []),
    "Qwen3OmniMoeTalkerText": (TALKER_TEXT, []),
    "Qwen3OmniMoeAudioEncoder": (THINKER["audio_config"], []),
    "Qwen3ASR": (ASR, ["Model", "ForConditionalGeneration", "ForTokenClassification"]),
    "Qwen3ASREncoder": (LISTENER, []),
}
ADDED_STREAMS: dict[str, dict[str, str]] = {
    "qwen3_omni_moe": {"res": "O", "vres": "Perm", "talk_res": "SignedPerm"},
    "qwen3_omni_moe_thinker": {"res": "O", "vres": "Perm"},
    "qwen3_asr": {"res": "O"},
    **{key: {"res": "O", "vision_res": "OFixingOnes", "sound_res": "Perm"} for key in ["phi4_multimodal", "phi4_multimodal-sound"]},
}  # fmt: skip
"""The largest groups of their streams (see `test_streams`)."""
ADDED_IDLE = {(toy, "vb") for toy in ("qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_asr")} | {
    ("qwen3_omni_moe", "talk_vb"),
    ("qwen3_omni_moe", "talk_cvb"),
}
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
    mutant("qwen3_omni_moe", "what is seen read in other coordinates", "res", "seen res' => seen other"),
    mutant("qwen3_omni_moe", "words past their neurons", "told", "talk_res told' => talk_res other"),
    mutant("qwen3_omni_moe", "further codes in other coordinates", "talk_res", "codec_embedding.{c}.weight codes res => codec_embedding.{c}.weight codes other", part="qwen3_omni_moe_talker"),
    mutant("qwen3_omni_moe", "the talker's last gain folded past its predictor", "talk_nf", "qwen3_omni_moe_talker_text without nf => qwen3_omni_moe_talker_text", part="qwen3_omni_moe_talker"),
    mutant("qwen3_omni_moe", "the predictor's sign per coordinate", "talk_csg", "Sign[p, ckv, cpair] => Sign[p, ckv, cc, cpair]", part="qwen3_omni_moe_talker"),
    mutant("qwen3_omni_moe", "the shared expert's gate in other coordinates", "talk_n2", "shared_expert_gate.weight 1 (res n2)' => shared_expert_gate.weight 1 res'", part="qwen3_omni_moe_talker_text"),
    mutant("qwen3_omni_moe_thinker", "channels of sound not permuted back", "sound_c2", "c3 c2' row column => c3 other row column", part="qwen3_omni_moe_audio_encoder"),
    mutant("qwen3_omni_moe_thinker", "frequencies slow", "sound_c3", "res (c3' frequency) => res (frequency c3')", part="qwen3_omni_moe_audio_encoder"),
    mutant("qwen3_omni_moe_thinker", "permuted under computed positions", "sound_res", "residual res: Perm if not computed => residual res: Perm", part="qwen3_omni_moe_audio_encoder"),
    mutant("qwen3_omni_moe_thinker", "neurons behind what is heard forgotten", "sound_project", "audio_tower.proj2.weight res (sound_project' sound_pu') => audio_tower.proj2.weight res other"),
    mutant("qwen3_omni_moe_thinker", "a layer that is read forgotten", "deep", "res deep' if stacked => res other if stacked"),
    mutant("qwen3_asr", "the projector past its neurons", "project", "multi_modal_projector.linear_2.weight res (project pu') => multi_modal_projector.linear_2.weight res other"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""

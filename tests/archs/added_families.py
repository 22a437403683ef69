"""Families of `toy_added` whose saved names are tried, their streams, what their toys cannot move, and plausible wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_added import (
    ASR,
    CHAMELEON,
    FILMS,
    LISTENER,
    LOOKING,
    MUSIC,
    OMNI3,
    PHI4,
    PHI_PATCHES,
    PHI_SOUND,
    PLAYED,
    TALKER_TEXT,
    THINKER,
)

ADDED_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Phi4Multimodal": (PHI4, ["Model", "ForCausalLM"]),
    "Phi4MultimodalVision": (PHI_PATCHES, ["Model"]),
    "Phi4MultimodalAudio": (PHI_SOUND, ["Model"]),
    "Qwen3OmniMoe": (OMNI3, ["ForConditionalGeneration"]),
    "Qwen3OmniMoeThinker": (THINKER, ["ForConditionalGeneration"]),
    "Qwen3OmniMoeText": (THINKER["text_config"], []),
    "Qwen3OmniMoeTalkerText": (TALKER_TEXT, []),
    "Qwen3OmniMoeAudioEncoder": (THINKER["audio_config"], []),
    "Chameleon": (CHAMELEON, ["Model", "ForConditionalGeneration"]),
    "MllamaText": (LOOKING, []),
    "VideoLlava": (FILMS, ["Model", "ForConditionalGeneration"]),
    "Musicgen": (MUSIC, ["ForConditionalGeneration"]),
    "MusicgenDecoder": (PLAYED, []),
    "MusicgenMelody": ({**MUSIC, "num_chroma": 6}, ["ForConditionalGeneration"]),
    "MusicgenMelodyDecoder": (PLAYED, []),
    "Qwen3ASR": (ASR, ["Model", "ForConditionalGeneration", "ForTokenClassification"]),
    "Qwen3ASREncoder": (LISTENER, []),
}
ADDED_STREAMS: dict[str, dict[str, str]] = {
    "qwen3_omni_moe": {"res": "O", "vres": "Perm", "talk_res": "SignedPerm"},
    "qwen3_omni_moe_thinker": {"res": "O", "vres": "Perm"},
    "qwen3_asr": {"res": "O"},
    "chameleon": {"res": "O"},
    "chameleon-swin": {"res": "SignedPerm"},
    "mllama_text_model": {"res": "O"},
    "video_llava": {"res": "O"},
    "musicgen": {"text_res": "O", "told": "O"},
    "musicgen_melody": {"text_res": "O"},
    "musicgen_decoder": {},
    **{key: {"res": "O", "vision_res": "OFixingOnes", "sound_res": "Perm"} for key in ["phi4_multimodal", "phi4_multimodal-sound"]},
}  # fmt: skip
"""The largest groups of their streams (see `test_streams`)."""
ADDED_IDLE = {
    *((toy, "vb") for toy in ("chameleon-swin", "video_llava", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_asr")),
    *(("qwen3_omni_moe", name) for name in ("talk_vb", "talk_cvb")),
    *((toy, f"text_dn{n}") for toy in ("musicgen", "musicgen_melody") for n in "123f"),
}  # fmt: skip
"""Shifts of biases that a toy has not, and gains of T5's other half."""
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
    mutant("chameleon", "biases of norms not scaled", "t", "q_norm.bias (kv g) (c pair t) => q_norm.bias (kv g) (c pair)"),
    mutant("chameleon", "norms' gains of other heads", "kv", "k_norm.weight kv (c pair t') => k_norm.weight heads (c pair t')", "space t as qk: Scale[l, kv, pair] => space t as qk: Scale[l, pair]"),
    mutant("chameleon", "signs under a centring norm", "sg", "size c = 2\n => size c = 2\nsize sg = 1\n", "space t as => space sg as qk: Sign[l, kv, pair]\nspace t as", "weight (kv g c pair) (res n1)' => weight (kv g c pair sg) (res n1)'", "weight (kv c pair) (res n1)' => weight (kv c pair sg') (res n1)'"),
    mutant("chameleon-swin", "rotated behind the branches' norms", "res", "residual res: SignedPerm if swin_norm => residual res: O if swin_norm", "diag(res n1) => res", "diag(res n2) => res", "diag(res nf) => (res nf)"),
    mutant("chameleon-swin", "gains behind branches folded", "n1", "n1: Scale[l, res] if not swin_norm => n1: Scale[l, res]"),
    mutant("mllama_text_model", "what is looked at turned where nothing writes it", "seen", "residual seen: O if whole => residual seen: O"),
    mutant("mllama_text_model", "a sign of queries alone", "xs", "(xkv xqk xs') seen' => (xkv xqk) seen'"),
    mutant("video_llava", "one tower's basis for both", "vision_res", "as vision at image_tower. without res nf => as vision at image_tower. without nf"),
    mutant("video_llava", "neurons not permuted back", "project", "res (project pu') => res other"),
    mutant("musicgen", "past the last gain of the text", "text_enf", "told (text_res text_enf)' => told text_res'"),
    mutant("musicgen", "what is told turned in its map alone", "told", "(xh xov) told' => (xh xov) other", part="musicgen_decoder"),
    mutant("musicgen_melody", "the text in other coordinates", "text_res", "enc_to_dec_proj.weight res (text_res text_enf)' => enc_to_dec_proj.weight res columns"),
    mutant("musicgen_decoder", "permuted under computed positions", "res", "residual n1: => residual res: Perm\nresidual n1:"),
    mutant("musicgen_decoder", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""

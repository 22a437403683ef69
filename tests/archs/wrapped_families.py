"""Families of `toy_wrapped` whose saved names are tried, their streams, what their toys cannot move, and plausible
wrong specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_seeing import GRID
from toy_wrapped import COMPASS, EAR, EDGE, EMBEDDING, LIVE, PLACED, WINDOWED, WORDS, WRAPPED_CONFIGS

COMPOSED = ["Model", "ForConditionalGeneration"]
WRAPPED_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    **{kind: (settings, COMPOSED) for kind, settings in WRAPPED_CONFIGS.values()},
    "CohereCompassText": (COMPASS, ["Model", "ForSequenceClassification"]),
    "Cosmos3EdgeText": (PLACED, ["Model"]),
    "Cosmos3EdgeVision": (EDGE, ["Model"]),
    "GlmAsrEncoder": (EAR, [""]),
    "VoxtralRealtimeText": (WORDS, []),
    "VoxtralRealtimeEncoder": (LIVE, [""]),
    "EmbeddingGemma2": ({"text_config": EMBEDDING}, ["Model"]),
    "EmbeddingGemma2Text": (EMBEDDING, ["Model"]),
    "Qwen2VLVision": ({**GRID, "embed_dim": 60, "hidden_size": 48, "mlp_ratio": 2}, []),
    "Qwen2_5_VLVision": (WINDOWED, []),
    "Qwen2_5OmniVisionEncoder": (WINDOWED, []),
    "Exaone4_5_Vision": ({**WINDOWED, "num_heads": 6, "num_key_value_heads": 3}, ["Model"]),
}
WRAPPED_STREAMS: dict[str, dict[str, str]] = {
    "hyperclovax_vision_v2": {"res": "SignedPerm", "vision_res": "O"},
    "cohere_compass": {"res": "OFixingOnes", "vres": "Perm"},
    "cosmos3_edge": {"res": "O", "vision_res": "Perm"},
    "musicflamingo": {"res": "O"},
    "glmasr": {"res": "O", "sound_res": "Perm"},
    "voxtral_realtime": {"res": "Perm", "sound_res": "Perm"},
    "embedding_gemma2": {"res": "SignedPerm", "pl": "Perm", "vision_res": "SignedPerm", "audio_res": "Perm"},
    "embedding_gemma2_text": {"res": "SignedPerm", "pl": "Perm"},
    "qwen2_5_vl_vision": {"res": "O"},
}
"""The largest groups of their streams (see `test_streams`)."""
WRAPPED_IDLE = {
    (toy, "vb") for toy in ("hyperclovax_vision_v2", "cohere_compass", "cosmos3_edge", "musicflamingo", "glmasr")
}
"""Shifts of biases that a toy has not."""
WRAPPED_MUTANTS = [
    mutant("hyperclovax_vision_v2", "the second map reads other coordinates", "mid", "weight res mid' => weight res other"),
    mutant("hyperclovax_vision_v2", "the first bias in other coordinates", "mid", "merger.mlp.2.bias mid => merger.mlp.2.bias other"),
    mutant("hyperclovax_vision_v2", "the first bias not given back", "mb", " -> (projector|vision_projector).bias via (projector|vision_projector).weight => "),
    mutant("cohere_compass", "interleaved pairs", "c", "size split = 1\n => size split = 0\n", part="cohere_compass_text"),
    mutant("cohere_compass", "the tower past the deep projectors", "vres", "merger_list).{d}.(linear_fc1|mlp.0).weight deep (merge vres)' => merger_list).{d}.(linear_fc1|mlp.0).weight deep other"),
    mutant("cosmos3_edge", "patches fast in the projector", "vision_res", "project (merge vision_res np)' => project (vision_res np merge)'"),
    mutant("cosmos3_edge", "past the gain of the projector's norm", "np", "project (merge vision_res np)' => project (merge vision_res)'"),
    mutant("cosmos3_edge", "factors where neurons are squared", "u", " if hidden_act == \"relu\" => ", part="cosmos3_edge_text"),
    mutant("cosmos3_edge", "key not dual", "vision_qk", "(k_proj|to_k).weight (h qk') => (k_proj|to_k).weight (h qk)", part="cosmos3_edge_vision"),
    mutant("musicflamingo", "permuted where pairs are turned by the time", "sound_res", "without res nf => "),
    mutant("glmasr", "moments fast", "sound_res", "(merge sound_res sound_nf)' => (sound_res merge sound_nf)'"),
    mutant("glmasr", "the rest before the rotated part", "sound_rest", "[c pair | rest] => [rest | c pair]", "[c' pair | rest'] => [rest' | c' pair]", part="glmasr_encoder"),
    mutant("glmasr", "channels of the second convolution forgotten", "sound_channel", "res channel' width => res other width", part="glmasr_encoder"),
    mutant("voxtral_realtime", "signs past the delay's factors", "res", "residual res: Perm => residual res: SignedPerm", part="voxtral_realtime_text"),
    mutant("voxtral_realtime", "the delay's factors in other coordinates", "res", "linear2.weight res af' => linear2.weight other af'", part="voxtral_realtime_text"),
    mutant("voxtral_realtime", "the delay's neurons not permuted back", "af", "linear2.weight res af' => linear2.weight res other", part="voxtral_realtime_text"),
    mutant("voxtral_realtime", "interleaved pairs", "sound_c", "(h c pair) => (h pair c)", "(h c' pair) => (h pair c')", part="voxtral_realtime_encoder"),
    mutant("embedding_gemma2_text", "any matrix on values behind a norm", "ov", "ov: O[l, kv] => ov: GL[l, kv]"),
    mutant("embedding_gemma2_text", "what layers add scaled in front of its norm", "pt", "(depth pl) res' => (depth pl pt) res'"),
    mutant("embedding_gemma2_text", "gates in other coordinates", "pl", "per_layer_input_gate.weight pl res' => per_layer_input_gate.weight other res'"),
    mutant("embedding_gemma2_text", "halves of a head turned together", "fsg", "c fpair fsg => fpair c fsg", "(c fpair ft) => (fpair c ft)", "(c fpair ft') => (fpair c ft')"),
    mutant("embedding_gemma2", "embeddings past the last gain", "nf", "embedding (res nf)' => embedding res'", part="embedding_gemma2_text"),
    mutant("qwen2_5_vl_vision", "past the gain of the projector's norm", "nf", "project (merge res nf)' => project (merge res)'"),
    mutant("qwen2_5_vl_vision", "key not dual", "c", "h g c pair | h c' pair | => h g c pair | h c pair |"),
    mutant("cosmos3_edge", "queries in groups of others", "kv", "(kv g c pair) => (g kv c pair)", part="cosmos3_edge_text"),
    mutant("cosmos3_edge", "negative factors allowed by GELU", "vision_u", " if hidden_act == \"relu\" => ", part="cosmos3_edge_vision"),
    mutant("exaone4_5", "the tower writes other coordinates", "res", "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight other vision_project'"),
    mutant("exaone4_5", "the projector's neurons not permuted back", "vision_project", "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight res other"),
    mutant("qwen2_5_vl", "the tower writes other coordinates", "res", "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight other vision_project'"),
    mutant("qwen2_vl", "the projector's neurons not permuted back", "vision_project", "visual.merger.mlp.2.weight res vision_project' => visual.merger.mlp.2.weight res other"),
    mutant("voxtral_realtime", "gate scaled", "sound_u", "gate_proj.weight ff => gate_proj.weight (ff u)", part="voxtral_realtime_encoder"),
]  # fmt: skip
"""Plausible wrong specs (see `test_mutants`)."""

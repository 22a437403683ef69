"""Families of `toy_senses` whose saved names are tried, their streams, and what their toys cannot move (see
`test_names`, `test_streams`, `test_law`)."""

from __future__ import annotations

from typing import Any

from toy_senses import GLM, GLM_EYES, GLM_MOE, HEARD, LISTENER, SENSE_CONFIGS, TEXT, TOWER

SEEN = ["Model", "ForConditionalGeneration"]
SPOKEN = ["Model", "ForCTC", "ForSequenceClassification"]
KINDS = {
    **{name: ["ForRetrieval"] for name in ("colpali", "colqwen2", "colmodernvbert")},
    "modernvbert": ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"],
    "fuyu": ["Model", "ForCausalLM"],
    "shieldgemma2": ["ForImageClassification"],
    "wav2vec2-bert": [*SPOKEN, "ForAudioFrameClassification", "ForXVector"],
    "wav2vec2-conformer": [*SPOKEN, "ForAudioFrameClassification", "ForXVector", "ForPreTraining"],
    "sew": SPOKEN,
    "blip-2": [*SEEN, "ForImageTextRetrieval"],
}
"""Classes of the models that have others than the rest."""
SENSE_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    **{family: (settings, KINDS.get(name, SEEN)) for name, (family, settings) in SENSE_CONFIGS.items()},
    "Qwen2AudioEncoder": (LISTENER, [""]),
    "VoxtralEncoder": (HEARD, [""]),
    "AudioFlamingo3Encoder": (HEARD, [""]),
    "Qwen2_5OmniAudioEncoder": (LISTENER, []),  # without a class of its own in the library's list, as those below
    "Qwen2_5OmniText": (TEXT, []),
    "PaddleOCRText": (TEXT, []),
    "Idefics2Vision": (TOWER, []),
    "Kosmos2Vision": (TOWER, []),
    "VideoLlama3Vision": (TOWER, ["Model"]),
    "PaddleOCRVision": (TOWER, ["Transformer"]),
    **dict.fromkeys(["Glm4vVision", "Glm4vMoeVision", "GlmOcrVision"], (GLM_EYES, [])),
    "Glm4vText": (GLM, ["Model"]),
    "GlmOcrText": (GLM, ["Model"]),
    "Glm4vMoeText": (GLM_MOE, []),
}
WITHOUT_GAINS = {
    "down1",
    "down2",
    "mid",
    "wide",
    "merged",
    "seen",
    "told",
    "drawn",
    "vision_down",
    "up1",
    "up2",
    "lat",
}
"""Streams between linear maps, which no norm reads: there is nothing to fold before they are turned."""
SENSE_STREAMS: dict[str, dict[str, str]] = {
    **{name: {"res": "O", "sound_res": "Perm"} for name in ("qwen2_audio", "voxtral", "audioflamingo3")},
    **{name: {"res": "SignedPerm", "vision_res": "Perm"} for name in ("lfm2_vl", "shieldgemma2")},
    "lfm2_vl-plain": {"res": "SignedPerm", "vision_res": "OFixingOnes"},
    "lighton_ocr": {"res": "O", "vision_res": "SignedPerm", "merged": "O"},
    **{name: {"res": "O", "vision_res": "OFixingOnes"} for name in ("deepseek_vl", "colpali", "video_llama_3")},
    **{name: {"res": "Perm", "vision_res": "OFixingOnes"} for name in ("modernvbert", "colmodernvbert")},
    "colqwen2": {"res": "O", "vres": "OFixingOnes"},
    "fuyu": {"res": "OFixingOnes"},
    "kosmos-2": {"vision_res": "Perm", "lat": "O"},
    "mllama": {"vres": "Perm", "seen": "O", "res": "O"},
    **{
        name: {"res": "SignedPerm", "vision_vres": "SignedPerm", "vision_down": "O"} for name in ("glm4v", "glm46v")
    },
    "glm4v_moe": {"res": "O", "vision_vres": "SignedPerm", "vision_down": "O"},
    "glm_ocr": {"res": "SignedPerm", "vision_vres": "O", "vision_down": "O"},
    "idefics2": {"res": "SignedPerm", "vision_res": "OFixingOnes"},
    "qwen2_5_omni_thinker": {"res": "O", "vision_res": "O"},
    "florence2": {"res": "Perm", "d0": "Perm", "d1": "Perm", "d2": "Perm"},
    "got_ocr2": {
        "res": "O",
        "vres": "OFixingOnes",
        "neck1": "OFixingOnes",
        "neck2": "OFixingOnes",
        "up1": "O",
        "up2": "O",
    },
    "paddleocr_vl": {"res": "O", "vision_res": "Perm"},
    **{name: {} for name in ("wav2vec2-bert-adapted", "wav2vec2-conformer-rotary", "sew")},
    "moonshine": {"res_in": "Perm", "res": "Perm"},
    "moonshine-untied": {"res_in": "Perm", "res": "OFixingOnes"},
    "blip-2-retrieval": {"vres": "OFixingOnes", "qres": "Perm"},
    "instructblipvideo": {"res": "OFixingOnes", "vres": "OFixingOnes", "qres": "Perm"},
}
"""The largest groups of the streams of toys that have not just one of permutations."""
SENSE_IDLE = {
    *((toy, "vb") for toy in (
        "qwen2_audio", "voxtral", "audioflamingo3", "lighton_ocr", "deepseek_vl", "colpali", "colqwen2", "shieldgemma2", "glm4v", "glm46v",
        "glm_ocr", "idefics2", "qwen2_5_omni_thinker", "video_llama_3", "got_ocr2",
    )),
    *((toy, "vision_vb") for toy in ("glm4v", "glm46v", "glm4v_moe")),
    ("glm_ocr", "kb"),
}  # fmt: skip
"""Shifts of biases that a toy has not."""

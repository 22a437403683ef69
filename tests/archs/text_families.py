"""Families of `toy_texts` whose saved names are tried (see `test_names`), and what their streams can do (see
`test_streams`)."""

from __future__ import annotations

from typing import Any

from toy_texts import (
    ANT,
    BLOCKS,
    CONVOLVED,
    DBRX,
    EXPERT_NLLB,
    FAIRSEQ,
    FOURIER,
    GPT,
    GRIFFIN,
    GROUPED,
    HEADS,
    LEARNT,
    LED,
    LILT,
    MARKED,
    MOBILE,
    NYSTROM,
    PAGE,
    PROPHET,
    PROTEIN,
    SUBTRACTED,
    T5GEMMA2,
    XGLM,
    XLM,
    XLNET,
    ZAMBA,
)

WORDS = ["Model", "ForCausalLM"]
TASKS = ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
READERS = ["Model", "ForMaskedLM", "ForMultipleChoice", *TASKS]
TRANSLATORS = ["Model", "ForConditionalGeneration"]
FLUENT = ["Model", "WithLMHeadModel", "ForQuestionAnswering", "ForQuestionAnsweringSimple", "ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice"]  # fmt: skip
ENCODER: dict[str, Any] = {**LEARNT, "model_type": "roberta"}
DECODER: dict[str, Any] = {**LEARNT, "model_type": "bert", "is_decoder": True, "add_cross_attention": True}
TEXT_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Dbrx": (DBRX, WORDS),
    "RecurrentGemma": (GRIFFIN, WORDS),
    "BitNet": (HEADS, WORDS),
    "DiffLlama": (SUBTRACTED, [*WORDS, *TASKS]),
    "Doge": (HEADS, [*WORDS, TASKS[0]]),
    "XGLM": (XGLM, WORDS),
    "ImageGPT": (GPT, ["Model", "ForCausalImageModeling", "ForImageClassification"]),
    "Zamba": (ZAMBA, [*WORDS, TASKS[0]]),
    "T5Gemma2": (T5GEMMA2, [*TRANSLATORS, *TASKS[:2]]),
    "T5Gemma2Encoder": (T5GEMMA2["encoder"], [""]),
    "MarkupLM": (MARKED, ["Model", *TASKS]),
    "Nystromformer": (NYSTROM, READERS),
    "DPR": (LEARNT, ["ContextEncoder", "QuestionEncoder", "Reader"]),
    "Lilt": (LILT, ["Model", *TASKS]),
    "LayoutLMv3": (PAGE, ["Model", *TASKS]),
    "XLM": (XLM, FLUENT),
    "Flaubert": (XLM, FLUENT),
    "XLNet": (XLNET, ["Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice", "ForQuestionAnswering", "ForQuestionAnsweringSimple"]),
    "CTRL": ({"vocab_size": 67, "n_positions": 32, "n_embd": 48, "dff": 40, "n_layer": 2, "n_head": 6}, ["Model", "LMHeadModel", "ForSequenceClassification"]),
    "MobileBert": (MOBILE, [*READERS, "ForPreTraining", "ForNextSentencePrediction"]),
    "ConvBert": (CONVOLVED, READERS),
    "NllbMoe": (EXPERT_NLLB, TRANSLATORS),
    "LED": (LED, [*TRANSLATORS, "ForQuestionAnswering"]),
    "PegasusX": (BLOCKS, TRANSLATORS),
    "FSMT": (FAIRSEQ, TRANSLATORS),
    "Esmc": (PROTEIN, ["Model", "ForMaskedLM", *TASKS[:2]]),
    "CpmAnt": (ANT, WORDS),
    "SqueezeBert": (GROUPED, READERS),
    "FNet": (FOURIER, [*READERS, "ForPreTraining", "ForNextSentencePrediction"]),
    "ProphetNet": (PROPHET, TRANSLATORS),
    "EncoderDecoder": ({"encoder": ENCODER, "decoder": DECODER}, ["Model"]),
}  # fmt: skip
TEXT_LARGEST = {
    **dict.fromkeys(["recurrent_gemma", "bitnet", "diffllama", "imagegpt", "cpmant"], "O"),
    **dict.fromkeys(["recurrent_gemma-tied", "doge", "doge-routed", "zamba"], "SignedPerm"),
    "dbrx": "OFixingOnes",
    "esmc": "OFixingOnes",
}
"""The largest group of every toy's stream."""
TEXT_STREAMS: dict[str, dict[str, str]] = {
    **{name: {} for name in ("xglm", "xglm-relu", "dpr-plain", "layoutlmv3", "layoutlmv3-words", "ctrl", "nllb-moe", "pegasus_x", "pegasus_x-relu", "fsmt", "fsmt-gelu", "squeezebert", "squeezebert-relu", "fnet")},
    **{name: {"res": "SignedPerm", "vision_res": "Perm"} for name in ("t5gemma2", "t5gemma2-tied")},
    **{name: {"res": "Perm", "emb": "Perm"} for name in ("mobilebert", "mobilebert-normed", "convbert")},
    "t5gemma2_encoder": {"vision_res": "Perm"},
    "lilt": {"res": "Perm", "tres": "Perm"},
    "encoder-decoder": {"res": "Perm", "read_res": "Perm"},
}  # fmt: skip
"""The largest groups of streams where there is none, or are several."""

"""GPT by OpenAI and those who rebuilt it."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_models import causal
from toy_settings import (
    BODY,
    BODY_OF_THREE,
    CLASSIFYING_LANGUAGE_MODELS,
    DECODER_CLASSES,
    KNOWN,
    LANGUAGE_MODELS,
    LAYER_NORM,
    LOCAL,
    PLAIN,
    TASK_CLASSES,
)


def _neox(**changes: Any) -> Any:
    return tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**BODY, **changes))


GPT_OF_THREE = {"vocab_size": 67, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 32, "n_inner": 40}
NEO: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_layers": 2, "num_heads": 6, "intermediate_size": 40, "max_position_embeddings": 32,
    "attention_types": [[["global", "local"], 1]], "window_size": 4, **KNOWN,
}  # fmt: skip
WIDE: dict[str, Any] = {
    "vocab_size": 67,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 32,
    "n_inner": 40,
    **KNOWN,
}
EIGHT: dict[str, Any] = {
    "vocab_size": 67, "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 32, "n_ctx": 32, "n_inner": 40, **KNOWN,
}  # fmt: skip
FIRST: dict[str, Any] = {"vocab_size": 67, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 32, **KNOWN}
NEOX = "(h [c pair | rest | c' pair | rest' | ov])"
FILTER: dict[str, Any] = {**LOCAL, "head_dim": 8, "sliding_window": 4, "pad_token_id": 0, "num_labels": 5}
GPT: dict[str, Any] = {
    "vocab_size": 67,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 32,
    "n_inner": 40,
    **KNOWN,
}

TOYS: dict[str, Toy] = {
    "gpt2": (lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT_OF_THREE)), 1e-9),
    "gpt2-untied": (lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT_OF_THREE, tie_word_embeddings=False)), 1e-9),
    "gpt_neox": (lambda: _neox(rotary_pct=0.5), 1e-9),
    "gpt_neox-full": (
        lambda: _neox(rotary_pct=1.0, attention_bias=False, hidden_act="relu", use_parallel_residual=False),
        1e-9,
    ),
}

MORE_TOYS: dict[str, Toy] = {
    "gpt_oss": (
        lambda: tf.GptOssForCausalLM(
            tf.GptOssConfig(
                **LOCAL, head_dim=8, layer_types=["sliding_attention", "full_attention"], sliding_window=4
            )
        ),
        1e-5,
    ),
    "gptj": (lambda: tf.GPTJForCausalLM(tf.GPTJConfig(**WIDE, rotary_dim=4)), 1e-5),
    "gpt_neo": (lambda: tf.GPTNeoForCausalLM(tf.GPTNeoConfig(**NEO)), 1e-5),
    "gpt_bigcode": (lambda: tf.GPTBigCodeForCausalLM(tf.GPTBigCodeConfig(**WIDE)), 1e-5),
    "gpt_bigcode-heads": (lambda: tf.GPTBigCodeForCausalLM(tf.GPTBigCodeConfig(**WIDE, multi_query=False)), 1e-5),
    "codegen": (lambda: tf.CodeGenForCausalLM(tf.CodeGenConfig(**EIGHT, rotary_dim=4)), 1e-5),
    "gpt_neox_japanese": (lambda: causal("GPTNeoXJapanese", PLAIN, intermediate_multiple_size=2), 1e-5),
    "openai-gpt": (lambda: tf.OpenAIGPTLMHeadModel(tf.OpenAIGPTConfig(**FIRST)), 1e-9),
    "openai_privacy_filter": (
        lambda: tf.OpenAIPrivacyFilterForTokenClassification(tf.OpenAIPrivacyFilterConfig(**FILTER)),
        1e-5,
    ),
    "imagegpt": (lambda: tf.ImageGPTForCausalImageModeling(tf.ImageGPTConfig(**GPT)), 1e-9),
}

NAMES: dict[str, Saved] = {
    "GPT2": (GPT_OF_THREE, ["Model", "LMHeadModel", "DoubleHeadsModel", *TASK_CLASSES]),
    "GPTNeoX": (BODY_OF_THREE, DECODER_CLASSES),
    "GptOss": ({**LOCAL, "pad_token_id": 0}, DECODER_CLASSES[:-1]),
}

MORE_NAMES: dict[str, Saved] = {
    "GPTJ": ({**WIDE, "rotary_dim": 4}, [*CLASSIFYING_LANGUAGE_MODELS, "ForQuestionAnswering"]),
    "GPTNeo": (NEO, [*CLASSIFYING_LANGUAGE_MODELS, "ForQuestionAnswering", "ForTokenClassification"]),
    "GPTBigCode": (WIDE, [*CLASSIFYING_LANGUAGE_MODELS, "ForTokenClassification"]),
    "CodeGen": ({**EIGHT, "rotary_dim": 4}, LANGUAGE_MODELS),
    "GPTNeoXJapanese": (PLAIN, LANGUAGE_MODELS),
    "OpenAIGPT": (FIRST, ["Model", "LMHeadModel", "DoubleHeadsModel", "ForSequenceClassification"]),
    "ImageGPT": (GPT, ["Model", "ForCausalImageModeling", "ForImageClassification"]),
    "OpenAIPrivacyFilter": (FILTER, ["Model", "ForTokenClassification"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(
        ["gpt2-untied", "gpt_neox", "gpt_neox-full", "gptj", "codegen", "gpt_neox_japanese"], "OFixingOnes"
    ),
    **dict.fromkeys(["gpt_oss", "openai_privacy_filter", "imagegpt"], "O"),
}

IDLE = {
    ("gpt_neo", "kb"),
    ("gpt_neo", "vb"),
    ("gptj", "kb"),
    ("gptj", "vb"),
    ("gpt_bigcode", "kv"),
    ("gpt_bigcode-heads", "g"),
    ("gpt_neox-full", "vb"),
    ("gpt_neox_japanese", "vb"),
}

MUTANTS = [
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
    mutant("gpt_neox", "fused block by block", "h", f"{NEOX} => [h c pair | h rest | h c' pair | h rest' | h ov]"),
    mutant(
        "gpt_neox",
        "rest before the rotated part",
        "rest",
        f"{NEOX} => (h [rest | c pair | rest' | c' pair | ov])",
    ),
    mutant("gpt_neox", "GL on a rotated pair", "c", "space c as qk: Complex => size c = 2\nspace c as qk: GL"),
    mutant("gpt_neox", "key bias free where it is rotated", "kb", "bias#3 => bias#2"),
    mutant("gpt_neox", "ReLU's scale under GELU", "u", ' if hidden_act == "relu" => '),
    mutant("gpt_oss", "sinks forgotten", "kv", "sinks (kv g) => sinks rows"),
    mutant("gpt_oss", "gate before up", "ff", "(ff 2) => (2 ff)"),
    mutant(
        "gpt_oss",
        "value bias free under sinks",
        "vb",
        "embed_tokens.weight vocab res\n => shift vb: layers.{l}.self_attn.v_proj.bias -> "
        "layers.{l}.self_attn.o_proj.bias via layers.{l}.self_attn.o_proj.weight\nembed_tokens.weight vocab res\n",
    ),
    mutant(
        "gptj",
        "half-split pairs",
        "c",
        "[pair c | rest] => [c pair | rest]",
        "[pair c' | rest'] => [c' pair | rest']",
    ),
    mutant("gptj", "MLP past the shared norm", "n1", "fc_in.weight (ff u) (res n1)' => fc_in.weight (ff u) res'"),
    mutant("gpt_neo", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("gpt_neo", "ReLU's scale under GELU", "u", ' if activation_function == "relu" => '),
    mutant("gpt_bigcode", "value before key", "ov", "(kv [g qk | qk' | ov]) => (kv [g qk | ov | qk'])"),
    mutant(
        "gpt_bigcode-heads", "fused block by block", "kv", "(kv [g qk | qk' | ov]) => [kv g qk | kv qk' | kv ov]"
    ),
    mutant(
        "codegen",
        "query, key, value in this order",
        "ov",
        "[h [pair c | rest] | h ov | h [pair c' | rest']] => [h [pair c | rest] | h [pair c' | rest'] | h ov]",
    ),
    mutant(
        "codegen",
        "one block for all parts",
        "h",
        "(m [h [pair c | rest] | h ov | h [pair c' | rest']]) => [m h [pair c | rest] | m h ov | m h [pair c' | rest']]",
    ),
    mutant(
        "codegen",
        "half-split pairs",
        "c",
        "[pair c | rest] => [c pair | rest]",
        "[pair c' | rest'] => [c' pair | rest']",
    ),
    mutant(
        "gpt_neox_japanese",
        "interleaved pairs",
        "c",
        "[c pair | rest | c' pair | rest' | ov] => [pair c | rest | pair c' | rest' | ov]",
    ),
    mutant(
        "gpt_neox_japanese",
        "the last bias forgotten",
        "res",
        "attention.dense_bias res => attention.dense_bias rows",
    ),
    mutant("openai-gpt", "key not dual", "qk", "[h qk | h qk' | h ov] => [h qk | h qk | h ov]"),
    mutant(
        "openai-gpt", "rotated post-LN stream", "res", "residual res: Perm => residual res: O", "diag(res) => res"
    ),
    mutant("openai_privacy_filter", "half-split pairs", "c", "size beside = 1\n => size beside = 0\n"),
    mutant(
        "openai_privacy_filter", "gate and up beside each other", "ff", "[ff | ff] if beside => (ff 2) if beside"
    ),
    mutant(
        "imagegpt",
        "a stream that is centred",
        "res",
        "residual res: SignedPerm folded O\n => residual res: OFixingOnes\n",
        "diag(res n1) => (res n1)",
        "diag(res n2) => (res n2)",
        "diag(res nf) => (res nf)",
    ),
    mutant("imagegpt", "the head past the last gain", "nf", "pixels (res nf)' => pixels res'"),
    mutant("gpt2", "ReLU's scale under GELU", "u", ' if activation_function == "relu" => '),
]

STREAM_MUTANTS = [
    StreamMutant("gpt2-untied", "signed permutations under LayerNorm", "SignedPerm", (f"{LAYER_NORM} SignedPerm",)),
    StreamMutant("gpt2-untied", "all rotations under LayerNorm", "O", (f"{LAYER_NORM} O",)),
    StreamMutant("gpt2", "final gain folded into a tied head", "OFixingOnes", ()),
    StreamMutant(
        "gpt2-untied",
        "positions forgotten",
        "OFixingOnes",
        (
            "wpe.weight pos res => wpe.weight pos other",
            "shift wp: wte.weight along vocab -> wpe.weight along pos\n => ",
        ),
    ),
]

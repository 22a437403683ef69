"""BLIP and other models that ask and answer about images."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, in_pixels, seen_pictures
from toy_models import composed, in_stages, made
from toy_settings import BART, BODY, COMPOSED_MODELS, IMAGE, KNOWN, NARROW_TOWER, PIXELS, TOWER, UMT5, Inputs

CAPTIONS = {
    "text_config": {
        **BODY, "encoder_hidden_size": 60, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0,
    },
    "vision_config": {
        **{k: v for k, v in PIXELS.items() if k != "num_labels"},
        "hidden_size": 60, "num_attention_heads": 5, "intermediate_size": 44, "hidden_act": "relu",
    },
    "projection_dim": 20, "image_text_hidden_size": 18,
}  # fmt: skip
ANSWERS = {
    **CAPTIONS, "text_config": {**CAPTIONS["text_config"], "encoder_hidden_size": 48},
    "vision_config": {**CAPTIONS["vision_config"], "hidden_size": 48, "num_attention_heads": 4},
}  # fmt: skip
GIT = {**BODY, "num_image_with_embedding": 2, "vision_config": {**NARROW_TOWER, "patch_size": 4}}
EYES = {
    "vision_config": {**NARROW_TOWER, "patch_size": 4, "qkv_bias": True, "hidden_act": "relu"},
    "qformer_config": {**BODY, "encoder_hidden_size": 20, "cross_attention_frequency": 2, "num_attention_heads": 4},
    "num_query_tokens": 3, "image_token_index": IMAGE, "image_text_hidden_size": 12,
}  # fmt: skip
QUERIED_IMAGES = {
    **EYES,
    "text_config": {
        "model_type": "opt", "vocab_size": 67, "hidden_size": 48, "word_embed_proj_dim": 48, "num_hidden_layers": 2,
        "num_attention_heads": 6, "ffn_dim": 40, "max_position_embeddings": 32, "tie_word_embeddings": False,
    },
    "tie_word_embeddings": False,
}  # fmt: skip
SUMMED = {**EYES, "text_config": {**UMT5, "model_type": "t5"}, "tie_word_embeddings": True}


def _captioned(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images and what is said of them."""
    side = config.vision_config.image_size
    return {
        "input_ids": torch.randint(4, 60, (3, 7), generator=rng),
        "pixel_values": torch.randn((3, 2, 3, side, side), generator=rng, dtype=torch.float64),
    }


def _asked(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images, of which three tokens stand in the text, and what the queries are told."""
    ids = torch.randint(4, 60, (3, 11), generator=rng)
    ids[:, 1:4] = IMAGE
    found = {"input_ids": ids, "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)}
    if config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.randint(4, 60, (3, 7), generator=rng)
    if config.model_type == "instructblip":
        found["qformer_input_ids"] = torch.randint(4, 60, (3, 5), generator=rng)
    return found


def _asked_of_images(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and images; of a model that answers questions its loss is the only output that its answers have."""
    side = config.vision_config.image_size
    found = {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64),
    }  # fmt: skip
    if config.architectures[0] == "BlipForQuestionAnswering":
        found["labels"] = torch.randint(4, 60, (3, 7), generator=rng)
    return found


SPOKEN = {**BODY, "image_size": 8, "patch_size": 4, "hidden_act": "relu"}
LXMERT: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 40, "max_position_embeddings": 32, "l_layers": 2, "r_layers": 2,
    "x_layers": 2, "visual_feat_dim": 10, "num_qa_labels": 5, "num_object_labels": 5, "num_attr_labels": 4,
}  # fmt: skip


def _located(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, and what was found in images, with where."""
    return {
        "input_ids": torch.randint(1, 60, (3, 11), generator=rng), "visual_pos": torch.rand((3, 5, 4), generator=rng, dtype=torch.float64),
        "visual_feats": torch.randn((3, 5, config.visual_feat_dim), generator=rng, dtype=torch.float64),
    }  # fmt: skip


def _in_stages(_: Any, rng: torch.Generator) -> Inputs:
    """Images, of which five tokens stand in the text, and the words before."""
    return {**in_pixels(5)(_, rng), "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng)}


def _in_latents(_: Any, rng: torch.Generator) -> Inputs:
    """Images, for which three latents stand in the text."""
    found = in_pixels(3)(_, rng)
    return {**found, "image_embeds_position_mask": (found["input_ids"] == IMAGE).long()}


def _as_film(_: Any, rng: torch.Generator) -> Inputs:
    """Films of two images, and what the queries are told."""
    told = torch.randint(4, 60, (3, 5), generator=rng)
    return {
        "input_ids": drawn_words(rng, 6),
        "pixel_values": drawn_numbers(rng, 3, 2, 3, 8, 8),
        "qformer_input_ids": told,
    }


STAGES: dict[str, Any] = {
    "depths": [1, 2, 1, 1], "embed_dim": [12, 18, 24, 36], "num_heads": [3, 3, 4, 6], "num_groups": [2, 3, 4, 4], "patch_size": [3, 3, 3, 3],
    "patch_stride": [2, 2, 1, 1], "patch_padding": [1, 1, 1, 1], "window_size": 3, "projection_dim": 48, "max_temporal_embeddings": 3,
    "max_position_embeddings": 8, "mlp_ratio": 2.0, "drop_path_rate": 0.0,
}  # fmt: skip
BLIP_2: dict[str, Any] = {**QUERIED_IMAGES, "qformer_config": {**QUERIED_IMAGES["qformer_config"], "use_qformer_text_input": True}, "image_token_index": None}  # fmt: skip
INSTRUCTBLIPVIDEO: dict[str, Any] = {**QUERIED_IMAGES, "video_token_index": IMAGE}  # fmt: skip
FLORENCE2: dict[str, Any] = {"text_config": {**BART, "model_type": "bart"}, "vision_config": STAGES, "image_token_id": IMAGE, "tie_word_embeddings": True}  # fmt: skip
KOSMOS_2: dict[str, Any] = {
            "text_config": {
                **KNOWN, "vocab_size": 67, "embed_dim": 48, "layers": 2, "ffn_dim": 40, "attention_heads": 6, "max_position_embeddings": 32,
                "add_cross_attention": False,
            },
            "vision_config": TOWER, "latent_query_num": 3,
        }  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "blip": (lambda: tf.BlipForConditionalGeneration(tf.BlipConfig(**CAPTIONS)), 1e-9),
    "blip-answers": (lambda: tf.BlipForQuestionAnswering(tf.BlipConfig(**ANSWERS)), 1e-9),
    "blip-contrast": (lambda: tf.BlipModel(tf.BlipConfig(**CAPTIONS)), 1e-9),
    "blip-retrieval": (lambda: tf.BlipForImageTextRetrieval(tf.BlipConfig(**CAPTIONS)), 1e-9),
    "git": (made("Git", "ForCausalLM", **GIT, tie_word_embeddings=True), 1e-5),
    "blip-2": (made("Blip2", "ForConditionalGeneration", **QUERIED_IMAGES), 1e-9),
    "blip-2-t5": (made("Blip2", "ForConditionalGeneration", **SUMMED), 1e-5),
    "instructblip": (made("InstructBlip", "ForConditionalGeneration", **QUERIED_IMAGES), 1e-9),
    "vilt": (made("Vilt", "ForQuestionAnswering", **SPOKEN), 1e-9),
    "blip-2-retrieval": (partial(composed, "Blip2", BLIP_2, "ForImageTextRetrieval"), 1e-9),
    "instructblipvideo": (partial(composed, "InstructBlipVideo", INSTRUCTBLIPVIDEO), 1e-9),
    "florence2": (partial(composed, "Florence2", FLORENCE2), 1e-9),
    "kosmos-2": (partial(composed, "Kosmos2", KOSMOS_2), 1e-9),
    "lxmert": (lambda: tf.LxmertForPreTraining(tf.LxmertConfig(**LXMERT)), 1e-9),
    "lxmert-answers": (lambda: tf.LxmertForQuestionAnswering(tf.LxmertConfig(**LXMERT, hidden_act="relu")), 1e-9),
    "florence2-three": (
        lambda: tf.Florence2ForConditionalGeneration(
            tf.Florence2Config(**{**FLORENCE2, "vision_config": in_stages(FLORENCE2["vision_config"], 3)})
        ),
        1e-9,
    ),
}

NAMES: dict[str, Saved] = {
    "Blip": (ANSWERS, ["Model", "ForConditionalGeneration", "ForImageTextRetrieval", "ForQuestionAnswering"]),
    "BlipText": (CAPTIONS["text_config"], ["Model"]),
}

MORE_NAMES: dict[str, Saved] = {
    "Git": (GIT, ["Model", "ForCausalLM"]),
    "GitVision": (GIT["vision_config"], ["Model"]),
    "InstructBlip": (QUERIED_IMAGES, ["ForConditionalGeneration"]),
    "Vilt": (
        SPOKEN,
        ["Model", "ForMaskedLM", "ForQuestionAnswering", "ForImageAndTextRetrieval", "ForTokenClassification"],
    ),
    "Blip2": (BLIP_2, [*COMPOSED_MODELS, "ForImageTextRetrieval"]),
    "InstructBlipVideo": (INSTRUCTBLIPVIDEO, COMPOSED_MODELS),
    "Florence2": (FLORENCE2, COMPOSED_MODELS),
    "Kosmos2": (KOSMOS_2, COMPOSED_MODELS),
    "Kosmos2Vision": (TOWER, []),
    "Lxmert": (LXMERT, ["Model", "ForPreTraining", "ForQuestionAnswering"]),
}

STREAMS: dict[str, Streams] = {
    **{key: {"t_res": "Perm", "vres": "OFixingOnes"} for key in ["blip", "blip-retrieval"]},
    "blip-answers": {"t_res": "Perm", "q_res": "Perm", "vres": "OFixingOnes"},
    "blip-contrast": {"t_res": "Perm", "vres": "Perm"},
    "git": {"res": "Perm", "vision_res": "Perm"},
    **{
        key: {"res": "OFixingOnes", "vres": "OFixingOnes", "qres": "Perm"}
        for key in ["blip-2", "instructblip", "instructblipvideo"]
    },
    "blip-2-t5": {"res": "SignedPerm", "vres": "OFixingOnes", "qres": "Perm"},
    "vilt": {"res": "Perm"},
    "blip-2-retrieval": {"vres": "OFixingOnes", "qres": "Perm"},
    "florence2": {"res": "Perm", "d0": "Perm", "d1": "Perm", "d2": "Perm"},
    "kosmos-2": {"vision_res": "Perm", "lat": "O"},
    "florence2-three": {"res": "Perm", "d0": "Perm", "d1": "Perm"},
}

INPUTS: dict[str, Drawn] = {
    "lxmert": _located,
    "git": _captioned,
    **dict.fromkeys(["blip-2", "instructblip"], _asked),
    "vilt": seen_pictures(8, input_ids=torch.arange(33).reshape(3, 11) + 4),
    "kosmos-2": _in_latents,
    "florence2": _in_stages,
    "instructblipvideo": _as_film,
    "blip": _asked_of_images,
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "lxmert": ("prediction_logits", "cross_relationship_score", "question_answering_score"),
}

MUTANTS = [
    mutant("blip", "cross-attention past the last gain", "vnf", "(t_xh t_xqk') (vres vnf)' => (t_xh t_xqk') vres'"),
    mutant("blip", "patches fused head by head", "vh", "[vh vqk | vh vqk' | vh vov] => (vh [vqk | vqk' | vov])"),
    mutant("blip", "negative scale under ReLU", "vu", "PositiveScale[l, vff] => Scale[l, vff]"),
    mutant(
        "blip-retrieval",
        "cross-attention's output not dual",
        "t_xov",
        "(xh xov') => (xh xov)",
        part="blip_text_model",
    ),
    mutant(
        "git",
        "the map past the tower's last gain",
        "vision_nf",
        "visual_projection.0.weight res (vision_res vision_nf)' => visual_projection.0.weight res vision_res'",
    ),
    mutant(
        "git",
        "the map's norm in other coordinates",
        "res",
        "visual_projection.1.weight res => visual_projection.1.weight other",
    ),
    mutant("git", "output not dual", "vision_ov", "(h ov') => (h ov)", part="git_vision_model"),
    mutant(
        "git",
        "marks of places in time past the last gain",
        "vision_nf",
        "img_temporal_embedding.1 1 1 (vision_res vision_nf) => img_temporal_embedding.1 1 1 vision_res",
    ),
    mutant(
        "blip-2", "cross-attention past the tower's last gain", "vnf", "(qxh qxov) (vres vnf)' => (qxh qxov) vres'"
    ),
    mutant("blip-2", "patches fused head by head", "vh", "[vh vqk | vh vqk' | vh vov] => (vh [vqk | vqk' | vov])"),
    mutant(
        "blip-2",
        "the map writes other coordinates",
        "res",
        "language_projection.weight res qres' => language_projection.weight other qres'",
    ),
    mutant(
        "instructblip",
        "words by the queries' neurons",
        "wff",
        "output.dense.weight qres (wff wu') => output.dense.weight qres neurons",
    ),
    mutant(
        "instructblip",
        "words in other coordinates",
        "qres",
        "word_embeddings.weight words qres => word_embeddings.weight words other",
    ),
    mutant(
        "lxmert",
        "streams of their own",
        "res",
        "encoder.visn_fc.visn_fc.weight res seen => encoder.visn_fc.visn_fc.weight other seen",
    ),
    mutant(
        "lxmert",
        "keys of cross-attention not dual",
        "xqk",
        "visual_attention.att.key.weight (xh xqk') => visual_attention.att.key.weight (xh xqk)",
    ),
    mutant(
        "lxmert",
        "the bias of objects' neurons forgotten",
        "vff",
        "visn_inter.dense.bias (vff vu) => visn_inter.dense.bias rows",
    ),
    mutant(
        "lxmert-answers", "the answers' norm forgotten", "told", "logit_fc.2.weight told => logit_fc.2.weight rows"
    ),
    mutant("vilt", "words past their norm", "res", "LayerNorm.bias res => LayerNorm.bias rows"),
    mutant("vilt", "kinds forgotten", "res", "kinds res => kinds rows"),
    mutant(
        "blip-2-retrieval",
        "words in other coordinates",
        "qres",
        "word_embeddings.weight words qres => word_embeddings.weight words other",
    ),
    mutant(
        "instructblipvideo",
        "queries in other coordinates",
        "qres",
        "query_tokens 1 queries qres => query_tokens 1 queries other",
    ),
    mutant(
        "florence2",
        "channels' queries permuted with their keys",
        "q1",
        "[cg1 q1 | cg1 k1 | cg1 k1] => [cg1 q1 | cg1 q1 | cg1 k1]",
    ),
    mutant(
        "florence2",
        "computed positions permuted",
        "d3",
        "residual d2: Perm => residual d2: Perm\nresidual d3: Perm",
        "res d3 => res d3'",
    ),
    mutant(
        "florence2",
        "a convolution by channels forgotten",
        "d1",
        "spatial_block.conv1.weight d1 => spatial_block.conv1.weight channels",
    ),
    mutant(
        "kosmos-2",
        "any matrix on values behind which a norm stands",
        "ov",
        "ov: Perm[l, h] => ov: GL[l, h]",
        "space ou as scale: Scale[l, h, ov] => ",
        "(h ov ou)' => (h ov')",
        "(h ov ou) => rows",
    ),
    mutant(
        "kosmos-2",
        "the norm's bias without its factor",
        "fu",
        "ffn_layernorm.bias (ff fu) => ffn_layernorm.bias ff",
    ),
    mutant("kosmos-2", "latents do not turn", "lat", "latent_query latents lat => latent_query latents columns"),
    mutant(
        "blip-answers",
        "answers read the tower",
        "vres",
        "(t_xh t_xov) q_res' if answers => (t_xh t_xov) vres' if answers",
    ),
    mutant(
        "blip-answers",
        "the question read past the tower's last gain",
        "vnf",
        "(q_xh q_xov) (vres vnf)' => (q_xh q_xov) vres'",
    ),
    mutant("blip-answers", "cross-attention's key not dual", "q_xqk", "(q_xh q_xqk') => (q_xh q_xqk)"),
    mutant(
        "blip-answers",
        "words in other coordinates",
        "q_res",
        "word_embeddings.weight vocab res => word_embeddings.weight vocab other",
        part="blip_text_model",
    ),
    mutant(
        "blip-contrast",
        "the last gain of a norm applied twice",
        "vnf",
        "vnf: Scale[vres] if not twice => vnf: Scale[vres]",
    ),
    mutant(
        "florence2-three",
        "computed positions permuted",
        "d2",
        "residual d2: Perm if vision_config.depths[3] => residual d2: Perm",
    ),
]

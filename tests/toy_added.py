"""Constructors of tiny models of the types that were described last, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers as tf

from toy_draws import drawn_numbers, drawn_words
from toy_languages import KNOWN
from toy_models import BART, BODY, EXPERTS, SHARED
from toy_seeing import GRID, IMAGE, SECTIONS, TEXT, TOWER
from toy_sense_inputs import seen_and_heard

Inputs = dict[str, torch.Tensor]
HEARD = 62
"""The id of the token that stands for a piece of sound."""
PHI_PATCHES: dict[str, Any] = {**TOWER, "num_hidden_layers": 3, "crop_size": 8, "image_token_id": IMAGE}
PHI_SOUND: dict[str, Any] = {
    "hidden_size": 40, "intermediate_size": 36, "num_blocks": 2, "num_attention_heads": 5, "ext_pw_out_channel": 40, "depthwise_separable_out_channel": 40,
    "input_size": 20, "nemo_conv_channels": 12, "bias_max_distance": 4, "audio_token_id": HEARD,
}  # fmt: skip
PHI4: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "vision_config": PHI_PATCHES, "audio_config": PHI_SOUND,
}  # fmt: skip
LISTENER: dict[str, Any] = {
    "d_model": 60, "encoder_layers": 2, "encoder_attention_heads": 5, "encoder_ffn_dim": 44, "num_mel_bins": 7, "downsample_hidden_size": 12, "output_dim": 48,
}  # fmt: skip
THINKER: dict[str, Any] = {
    "text_config": {**EXPERTS, **KNOWN, "rope_parameters": SECTIONS}, "image_token_id": IMAGE, "video_token_id": 64, "audio_token_id": HEARD,
    "vision_start_token_id": 65, "audio_start_token_id": 66,
    "vision_config": {
        **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    },
    "audio_config": {**LISTENER, "max_source_positions": 8},
}  # fmt: skip
TALKER_TEXT: dict[str, Any] = {
    **SHARED, **KNOWN, "vocab_size": 31, "hidden_size": 40, "num_attention_heads": 4, "intermediate_size": 36, "rope_parameters": SECTIONS,
    "norm_topk_prob": True,
}  # fmt: skip
OMNI3: dict[str, Any] = {
    "thinker_config": THINKER,
    "talker_config": {
        "text_config": TALKER_TEXT, "thinker_hidden_size": 48, "accept_hidden_layer": 1, "num_code_groups": 3, "spatial_merge_size": 2, "speaker_id": {"a": 1},
        "code_predictor_config": {**TEXT, **KNOWN, "vocab_size": 29, "hidden_size": 40, "intermediate_size": 24, "num_code_groups": 3},
    },
    "code2wav_config": {
        "codebook_size": 11, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_quantizers": 2, "decoder_dim": 32, "upsample_rates": [2, 2], "upsampling_ratios": [2],
    },
}  # fmt: skip
ASR: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "qwen3"}, "audio_config": LISTENER, "audio_token_id": HEARD, "pad_token_id": 0, "eos_token_id": [2],
    "tie_word_embeddings": False,
}  # fmt: skip
JANUS: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "llama"},
    "vision_config": {**{k: v for k, v in TOWER.items() if k != "intermediate_size"}, "mlp_ratio": 0.75, "projection_dim": 48, "num_image_tokens": 16},
    "vq_config": {
        "embed_dim": 4, "num_embeddings": 11, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1, "num_patches": 4,
        "projection_dim": 48, "image_token_embed_dim": 48,
    },
    "image_token_id": IMAGE, "tie_word_embeddings": False,
}  # fmt: skip
EARS: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "conv_dim": [10, 12], "conv_stride": [2, 2],
    "conv_kernel": [3, 2], "num_conv_pos_embeddings": 5, "num_conv_pos_embedding_groups": 4, "apply_spec_augment": False,
}  # fmt: skip
WRITER: dict[str, Any] = {**BART, "is_encoder_decoder": False, "is_decoder": True}


def _hearing(encoder: str, decoder: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"encoder": {**EARS, "model_type": encoder, **changes}, "decoder": decoder}


HEARD_AND_WRITTEN = _hearing("wav2vec2", {**WRITER, "model_type": "bart"})
HEARD_BY_BERT = _hearing(
    "hubert", {**BODY, "model_type": "bert", "hidden_size": 60, "is_decoder": True, "add_cross_attention": True}
)


def barks(model: Any, given: Inputs) -> torch.Tensor:
    """What the three transformers of Bark write."""
    fine = given["input_ids"][..., None].repeat(1, 1, 4)
    found = [model.semantic(**given).logits, model.coarse_acoustics(**given).logits]
    found += [model.fine_acoustics(codebook_idx, fine).logits for codebook_idx in (1, 2, 3)]
    return torch.cat([x.double().flatten() for x in found])


def draws(model: Any, given: Inputs) -> torch.Tensor:
    """What Janus writes of what it sees, and what it draws."""
    seen = model(**given, output_hidden_states=True)
    drawn = model.model.language_model(
        inputs_embeds=model.prepare_embeddings_for_image_generation(given["input_ids"] % 11)
    ).last_hidden_state
    found = [seen.logits, model.model.generation_head(drawn), model.model.generation_head(seen.hidden_states[-1])]
    return torch.cat([x.double().flatten() for x in found])


def says(folder: Path, config: Any, dtype: torch.dtype, given: Inputs) -> torch.Tensor | None:
    """What Qwen3-Omni writes, says and predicts of further codes: the whole has no forward pass of its own; what
    Janus writes and draws; what Bark says. None of others."""
    if config.model_type == "janus" and "For" in config.architectures[0]:
        with torch.no_grad():
            return draws(tf.JanusForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval(), given)
    if config.model_type == "bark":
        with torch.no_grad():
            return barks(tf.BarkModel.from_pretrained(folder, dtype=dtype).eval(), given)
    if config.model_type != "qwen3_omni_moe":
        return None
    model = tf.Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        thought = model.thinker(**given, output_hidden_states=True)
        embedded, layer = thought.hidden_states[0], thought.hidden_states[config.talker_config.accept_hidden_layer]
        talker, codes = model.talker, given["input_ids"] % 29
        heard = (
            talker.text_projection(embedded)
            + talker.hidden_projection(layer)
            + talker.get_input_embeddings()(codes)
        )
        said = talker(inputs_embeds=heard, output_hidden_states=True)
        last = said.hidden_states[0][-1][:, -1:]
        more = talker.code_predictor(
            inputs_embeds=torch.cat([last, talker.get_input_embeddings()(codes[:, -1:])], 1)
        )
        next_code = talker.code_predictor.get_input_embeddings()[0](codes[:, :1])
        again = talker.code_predictor(inputs_embeds=torch.cat([last, last, next_code], 1))
        after = talker(inputs_embeds=heard + next_code)
    return torch.cat([found.logits.double().flatten() for found in (thought, said, more, again, after)])


CODES: dict[str, Any] = {
    "embed_dim": 4, "num_embeddings": 11, "latent_channels": 4, "resolution": 8, "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1,
}  # fmt: skip
CHAMELEON: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "vq_config": CODES,
    "vocabulary_map": {"<image>": IMAGE, **{f"IMGIMG{a}Z": 40 + n for n, a in enumerate([*"ABCDEFGHIJ", "BA"])}},
}  # fmt: skip
FILMS: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "llama"},
    "vision_config": {**TOWER, "model_type": "clip_vision_model", "patch_size": 4, "projection_dim": 20},
    "image_token_index": IMAGE, "video_token_index": 64, "image_seq_length": 4, "video_seq_length": 10,
}  # fmt: skip
TOLD: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 67,
    "d_model": 48,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
}
PLAYED: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "ffn_dim": 44, "num_codebooks": 2, "max_position_embeddings": 32,
    "pad_token_id": 29, "bos_token_id": 29,
}  # fmt: skip
MUSIC: dict[str, Any] = {
    "text_encoder": TOLD, "decoder": PLAYED,
    "audio_encoder": {
        "model_type": "encodec", "num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "upsampling_ratios": [2, 2], "sampling_rate": 40,
        "target_bandwidths": [0.1],
    },
}  # fmt: skip
LOOKING: dict[str, Any] = {**TEXT, **KNOWN, "num_hidden_layers": 3, "cross_attention_layers": [1]}
BARKING: dict[str, Any] = {
    "block_size": 32,
    "input_vocab_size": 67,
    "output_vocab_size": 61,
    "num_layers": 2,
    "num_heads": 6,
    "hidden_size": 48,
}
BARK: dict[str, Any] = {
    "semantic_config": BARKING, "coarse_acoustics_config": {**BARKING, "bias": False, "num_heads": 4},
    "fine_acoustics_config": {**BARKING, "num_heads": 8, "output_vocab_size": 67, "n_codes_total": 4, "n_codes_given": 1}, "codec_config": MUSIC["audio_encoder"],
}  # fmt: skip
SPEECH: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "encoder_layers": 2, "encoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_layers": 2, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 36, "conv_dim": [10, 12], "conv_stride": [2, 2], "conv_kernel": [3, 2], "num_conv_pos_embeddings": 5, "num_conv_pos_embedding_groups": 4,
    "num_mel_bins": 7, "speech_decoder_prenet_units": 20, "speech_decoder_postnet_units": 14, "speaker_embedding_dim": 9, "encoder_max_relative_position": 6,
    "max_speech_positions": 64, "max_text_positions": 32, "apply_spec_augment": False, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip


def _phi4(**sound: Any) -> Any:
    config = {**PHI4, "audio_config": {**PHI_SOUND, **sound}}
    return tf.Phi4MultimodalForCausalLM(tf.Phi4MultimodalConfig(**config))


def _chameleon(**changes: Any) -> Any:
    return tf.ChameleonForConditionalGeneration(tf.ChameleonConfig(**CHAMELEON, **changes))


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm, or softmax, is computed
# in float32.
ADDED: dict[str, tuple[Callable[[], Any], float]] = {
    "phi4_multimodal": (_phi4, 1e-5),
    "phi4_multimodal-sound": (
        lambda: _phi4(time_reduction=4, conv_activation="relu", depthwise_multiplier=2, nemo_activation="gelu"),
        1e-5,
    ),
    "qwen3_omni_moe": (lambda: tf.Qwen3OmniMoeForConditionalGeneration(tf.Qwen3OmniMoeConfig(**OMNI3)), 1e-5),
    "qwen3_omni_moe_thinker": (
        lambda: tf.Qwen3OmniMoeThinkerForConditionalGeneration(tf.Qwen3OmniMoeThinkerConfig(**THINKER)),
        1e-5,
    ),
    "chameleon": (lambda: _chameleon(attention_bias=True, mlp_bias=True), 1e-5),
    "chameleon-swin": (lambda: _chameleon(swin_norm=True), 1e-5),
    "mllama_text_model": (lambda: tf.MllamaForCausalLM(tf.MllamaTextConfig(**LOOKING)), 1e-5),
    "video_llava": (lambda: tf.VideoLlavaForConditionalGeneration(tf.VideoLlavaConfig(**FILMS)), 1e-5),
    "musicgen": (lambda: tf.MusicgenForConditionalGeneration(tf.MusicgenConfig(**MUSIC)), 1e-5),
    "musicgen_decoder": (
        lambda: tf.MusicgenForCausalLM(tf.MusicgenDecoderConfig(**PLAYED, activation_function="relu")),
        1e-9,
    ),
    "musicgen_melody": (
        lambda: tf.MusicgenMelodyForConditionalGeneration(tf.MusicgenMelodyConfig(**MUSIC, num_chroma=6)),
        1e-5,
    ),
    "speecht5": (lambda: tf.SpeechT5ForTextToSpeech(tf.SpeechT5Config(**SPEECH)), 1e-9),
    "speecht5-heard": (lambda: tf.SpeechT5ForSpeechToText(tf.SpeechT5Config(**SPEECH, hidden_act="relu")), 1e-9),
    "janus": (lambda: tf.JanusForConditionalGeneration(tf.JanusConfig(**JANUS)), 1e-5),
    "speech-encoder-decoder": (
        lambda: tf.SpeechEncoderDecoderModel(tf.SpeechEncoderDecoderConfig(**HEARD_AND_WRITTEN)),
        1e-9,
    ),
    "speech-encoder-decoder-bert": (
        lambda: tf.SpeechEncoderDecoderModel(tf.SpeechEncoderDecoderConfig(**HEARD_BY_BERT)),
        1e-9,
    ),
    "ibert": (lambda: tf.IBertForMaskedLM(tf.IBertConfig(**BODY)), 1e-9),
    "bark": (lambda: tf.BarkModel(tf.BarkConfig(**BARK)), 1e-9),
    "qwen3_asr": (lambda: tf.Qwen3ASRForConditionalGeneration(tf.Qwen3ASRConfig(**ASR)), 1e-5),
}

CONVERTED_ADDED = ["qwen3_omni_moe", "qwen3_omni_moe_thinker"]
"""Those that transformers stores otherwise than it computes with them."""


def written(kind: str, found: Any) -> torch.Tensor | None:
    """What Chameleon writes: codes of images, which it never does, are infinitely improbable; what SpeechT5 says.
    None of others."""
    if kind == "speecht5" and "spectrogram" in found:
        return found.spectrogram
    return found.logits[..., :40] if kind == "chameleon" else None


def without_chance(config: Any) -> AbstractContextManager[Any]:
    """SpeechT5 hides neurons in front of its decoder by chance, even when it is not trained: here it hides none."""
    if config.model_type != "speecht5":
        return nullcontext()
    from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpeechDecoderPrenet

    return patch.object(SpeechT5SpeechDecoderPrenet, "_consistent_dropout", lambda _, x, p: x)


def _seen_and_heard(config: Any, rng: torch.Generator) -> Inputs:
    """Images of one tile and as a whole, and sounds; only sounds where these keep every fourth moment."""
    sound = {"audio_input_features": drawn_numbers(rng, 3, 24, 20)}
    if config.audio_config.time_reduction == 4:
        return {"input_ids": drawn_words(rng, 6, HEARD), **sound, "audio_embed_sizes": torch.tensor([6] * 3)}
    ids = drawn_words(rng, 13)
    ids[:, 15:18] = HEARD
    return {
        "input_ids": ids, "image_pixel_values": drawn_numbers(rng, 3, 2, 3, 8, 8), "image_sizes": torch.tensor([[8, 8]] * 3),
        "image_attention_mask": torch.ones((3, 2, 4, 4)), **sound, "audio_embed_sizes": torch.tensor([3] * 3),
    }  # fmt: skip


def _heard(_: Any, rng: torch.Generator) -> Inputs:
    """Thirty-two moments of sound, filled up to hundred, for which four tokens stand in the text."""
    mask = (torch.arange(100) < 32).long().repeat(3, 1)
    return {
        "input_ids": drawn_words(rng, 4, HEARD),
        "input_features": drawn_numbers(rng, 3, 7, 100),
        "input_features_mask": mask,
    }


def _with_sounds(config: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image each, and a sound of thirty-two moments."""
    sound = {
        "input_features": drawn_numbers(rng, 3, 7, 32),
        "feature_attention_mask": torch.ones((3, 32), dtype=torch.long),
    }
    return {**seen_and_heard(config, rng), **sound}


def _in_codes(_: Any, rng: torch.Generator) -> Inputs:
    """Images, of which sixteen codes stand in the text."""
    return {"input_ids": drawn_words(rng, 16), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8)}


def _looking(_: Any, rng: torch.Generator) -> Inputs:
    """What a model of texts looks at."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "cross_attention_states": drawn_numbers(rng, 3, 7, 48),
    }


def _images_and_films(_: Any, rng: torch.Generator) -> Inputs:
    """Images, and films of two."""
    ids = torch.randint(4, 60, (3, 20), generator=rng)
    ids[:, 1:5], ids[:, 6:16] = IMAGE, 64
    return {
        "input_ids": ids,
        "pixel_values": drawn_numbers(rng, 3, 3, 8, 8),
        "pixel_values_videos": drawn_numbers(rng, 3, 2, 3, 8, 8),
    }


def _played(_: Any, rng: torch.Generator) -> Inputs:
    """Two codes at every moment, and what is told."""
    codes = torch.randint(0, 29, (6, 7), generator=rng)
    return {"input_ids": torch.randint(1, 60, (3, 9), generator=rng), "decoder_input_ids": codes}


def _of_a_melody(_: Any, rng: torch.Generator) -> Inputs:
    return {**_played(_, rng), "input_features": drawn_numbers(rng, 3, 5, 6)}


def _codes_alone(_: Any, rng: torch.Generator) -> Inputs:
    """Two codes at every moment, and what is read by cross-attention."""
    return {
        "input_ids": torch.randint(0, 29, (6, 7), generator=rng),
        "encoder_hidden_states": drawn_numbers(rng, 3, 5, 60),
    }


def _read_or_heard(config: Any, rng: torch.Generator) -> Inputs:
    """Text to be said by someone, or sound to be written down."""
    if "ForSpeechToText" in config.architectures[0]:
        return {
            "input_values": drawn_numbers(rng, 3, 90),
            "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
        }
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "decoder_input_values": drawn_numbers(rng, 3, 8, 7), "speaker_embeddings": drawn_numbers(rng, 3, 9),
    }  # fmt: skip


def _as_waves(_: Any, rng: torch.Generator) -> Inputs:
    """Sounds, and the words before."""
    return {
        "input_values": drawn_numbers(rng, 3, 90),
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }


def _words_alone(_: Any, rng: torch.Generator) -> Inputs:
    return {"input_ids": torch.randint(4, 60, (3, 11), generator=rng)}


ADDED_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "phi4_multimodal": _seen_and_heard,
    "qwen3_omni_moe": _with_sounds,
    "qwen3_omni_moe_thinker": _with_sounds,
    "speecht5": _read_or_heard,
    "janus": _in_codes,
    "bark": _words_alone,
    "speech-encoder-decoder": _as_waves,
    "qwen3_asr": _heard,
    "chameleon": _in_codes,
    "mllama_text_model": _looking,
    "video_llava": _images_and_films,
    "musicgen": _played,
    "musicgen_melody": _of_a_melody,
    "musicgen_decoder": _codes_alone,
}
"""Inputs by ``model_type``."""

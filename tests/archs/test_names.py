"""Every head that Hugging Face saves is covered, tensor by tensor, with the base model's prefix and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import transformers as tf

from archs.added_families import ADDED_FAMILIES
from archs.encoder_families import ENCODER_FAMILIES, ENCODER_HALF
from archs.finder_families import FINDER_FAMILIES
from archs.gemma_families import GEMMA_FAMILIES
from archs.giant_families import GIANT_FAMILIES
from archs.hearing_families import HEARING_FAMILIES
from archs.language_families import SPOKEN
from archs.later_families import LATER
from archs.newest_families import NEWEST_FAMILIES
from archs.reading_families import READING_FAMILIES
from archs.recent_families import RECENT_FAMILIES
from archs.sense_families import SENSE_FAMILIES
from archs.signal_families import SIGNAL_FAMILIES
from archs.sparse_families import SPARSE_FAMILIES
from archs.speech_families import SPEECH_FAMILIES
from archs.text_families import TEXT_FAMILIES
from archs.wrapped_families import WRAPPED_FAMILIES
from diffusion_models import DIFFUSION
from isomerge.archs import spec_for, spec_texts
from isomerge.symmetry.blocks import gather_blocks
from isomerge.symmetry.language.spec import coverage
from isomerge.symmetry.units import elements_of
from toy_experts import LATENT, LOCAL, ROUTED_BODY
from toy_models import (
    BART,
    BLOOM,
    EXPERTS,
    FALCON,
    GROUPED,
    MODERN,
    MPT,
    NARROW,
    OPT,
    PHI3,
    SHARED,
    SPEECH,
    TIED,
    TOWERS,
)
from toy_pictures import PICTURE_FAMILIES, PICTURE_HALF
from toy_towers import ANSWERS, BY_PLACE, CAPTIONS
from toys import BODY, CAUSAL, DISENTANGLED, EVERY, GPT, PATCHES, SEQ2SEQ, config_of, tensors

TASKS = ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
ENCODER = ["Model", "ForMaskedLM", "ForMultipleChoice", *TASKS]
DECODER = ["Model", "ForCausalLM", *TASKS]
IMAGES = ["Model", "ForImageClassification", "ForMaskedImageModeling"]
SEQUENCES = ["Model", "EncoderModel", "ForConditionalGeneration", *TASKS]
BARTS = ["Model", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering"]
DISTILLED = {
    "vocab_size": 67,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 6,
    "hidden_dim": 40,
    "max_position_embeddings": 32,
}
COMPOSED = ["Model", "ForConditionalGeneration"]
SEEN = {**TOWERS["vision_config"], "model_type": "clip_vision_model"}
LOOKED = {**TOWERS["vision_config"], "model_type": "siglip_vision_model", "vision_use_head": False}
DINO = {k: v for k, v in PATCHES.items() if k != "intermediate_size"}
# family: the config's arguments, and the model classes
FAMILIES: dict[str, tuple[dict, list[str]]] = {
    "Bert": (BODY, [*ENCODER, "ForPreTraining", "ForNextSentencePrediction", "LMHeadModel"]),
    "Roberta": (BODY, [*ENCODER, "ForCausalLM"]),
    "XLMRoberta": (BODY, [*ENCODER, "ForCausalLM"]),
    "Camembert": (BODY, [*ENCODER, "ForCausalLM"]),
    "DistilBert": (DISTILLED, ENCODER),
    "DebertaV2": ({**DISENTANGLED, "pos_att_type": ["c2p", "p2c"]}, ENCODER),
    "ViT": (PATCHES, IMAGES),
    "DeiT": (PATCHES, [*IMAGES, "ForImageClassificationWithTeacher"]),
    "Dinov2": (DINO, ["Model", "ForImageClassification", "Backbone"]),
    "GPT2": (GPT, ["Model", "LMHeadModel", "DoubleHeadsModel", *TASKS]),
    "Llama": (CAUSAL, DECODER),
    "Mistral": (CAUSAL, DECODER),
    "Qwen2": (CAUSAL, DECODER),
    "Qwen3": (CAUSAL, DECODER),
    "Mixtral": ({**CAUSAL, "num_local_experts": 4}, DECODER),
    "T5": (SEQ2SEQ, SEQUENCES),
    "MT5": (SEQ2SEQ, SEQUENCES),
    "GPTNeoX": (BODY, DECODER),
    "OPT": (OPT, ["Model", "ForCausalLM", "ForSequenceClassification", "ForQuestionAnswering"]),
    "Gemma": (TIED, DECODER[:-1]),
    "Gemma2": (TIED, DECODER[:-1]),
    "Gemma3Text": (TIED, ["Model", "ForSequenceClassification"]),
    "Phi": (BODY, DECODER[:-1]),
    "Phi3": (PHI3, DECODER[:-1]),
    "Falcon": (FALCON, DECODER),
    "Bloom": (BLOOM, DECODER),
    "Mpt": (MPT, DECODER),
    "Cohere": ({**TIED, "pad_token_id": 0}, ["Model", "ForCausalLM"]),
    "Cohere2": ({**TIED, "pad_token_id": 0}, ["Model", "ForCausalLM"]),
    "Granite": (CAUSAL, ["Model", "ForCausalLM"]),
    "Starcoder2": (CAUSAL, DECODER[:-1]),
    "StableLm": (GROUPED, DECODER[:-1]),
    "Qwen2Moe": (SHARED, DECODER),
    "Qwen3Moe": ({**EXPERTS, "mlp_only_layers": [1]}, DECODER),
    "Electra": (NARROW, [*ENCODER, "ForPreTraining", "ForCausalLM"]),
    "Albert": (NARROW, [*ENCODER, "ForPreTraining"]),
    "ModernBert": (MODERN, ENCODER),
    "Bart": (BART, [*BARTS, "ForCausalLM"]),
    "MBart": (BART, [*BARTS, "ForCausalLM"]),
    "Marian": (BART, ["Model", "MTModel", "ForCausalLM"]),
    "Pegasus": (BART, ["Model", "ForConditionalGeneration", "ForCausalLM"]),
    "Whisper": (SPEECH, ["Model", "ForConditionalGeneration", "ForCausalLM", "ForAudioClassification"]),
    "CLIPText": (TOWERS["text_config"], ["Model", "ModelWithProjection"]),
    "CLIPVision": (TOWERS["vision_config"], ["Model", "ModelWithProjection"]),
    "SiglipVision": (TOWERS["vision_config"], ["Model"]),
    "Llava": ({"text_config": {**CAUSAL, "model_type": "llama"}, "vision_config": SEEN}, COMPOSED),
    "VipLlava": ({"text_config": {**CAUSAL, "model_type": "llama"}, "vision_config": SEEN}, COMPOSED),
    "LlavaNext": ({"text_config": {**CAUSAL, "model_type": "mistral"}, "vision_config": SEEN}, COMPOSED),
    "PaliGemma": (
        {"text_config": {**TIED, "model_type": "gemma2"}, "vision_config": LOOKED, "projection_dim": 48},
        COMPOSED,
    ),
    "Gemma3": ({"text_config": TIED, "vision_config": LOOKED}, COMPOSED),
    "CLIP": (TOWERS, ["Model", "ForImageClassification"]),
    "DeepseekV2": ({**LATENT, "topk_method": "group_limited_greedy"}, DECODER[:-2]),
    "DeepseekV3": (LATENT, DECODER[:-1]),
    "Phimoe": (LOCAL, DECODER[:3]),
    "GptOss": ({**LOCAL, "pad_token_id": 0}, DECODER[:-1]),
    "Olmoe": ({**ROUTED_BODY, "num_experts": 4}, DECODER[:2]),
    "NomicBert": (BODY, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "XLMRobertaXL": (BODY, [*ENCODER, "ForCausalLM"]),
    "Beit": ({**BY_PLACE, "vocab_size": 9}, IMAGES[:2]),
    "Data2VecVision": (BY_PLACE, IMAGES[:2]),
    "Blip": (ANSWERS, ["Model", "ForConditionalGeneration", "ForImageTextRetrieval", "ForQuestionAnswering"]),
    "BlipText": (CAPTIONS["text_config"], ["Model"]),
}
ALL_FAMILIES = {
    **FAMILIES,
    **LATER,
    **ENCODER_FAMILIES,
    **SPOKEN,
    **GEMMA_FAMILIES,
    **TEXT_FAMILIES,
    **PICTURE_FAMILIES,
    **SENSE_FAMILIES,
    **SPEECH_FAMILIES,
    **NEWEST_FAMILIES,
    **RECENT_FAMILIES,
    **FINDER_FAMILIES,
    **SIGNAL_FAMILIES,
    **ADDED_FAMILIES,
    **GIANT_FAMILIES,
    **SPARSE_FAMILIES,
    **HEARING_FAMILIES,
    **READING_FAMILIES,
    **WRAPPED_FAMILIES,
}
TRIED = ALL_FAMILIES if EVERY else FAMILIES
# what begins so has nothing to act on: an encoder alone has no decoder, an image classifier no text
HALF = {
    **dict.fromkeys(
        [
            "T5EncoderModel",
            "MT5EncoderModel",
            "UdopEncoderModel",
            "T5ForTokenClassification",
            "MT5ForTokenClassification",
        ],
        "dx",
    ),
    "WhisperForAudioClassification": "dx",
    "WhisperForCausalLM": "ec",
    "CLIPForImageClassification": "t",
    **ENCODER_HALF,
    **PICTURE_HALF,
}
CLASSES = [pytest.param(family, kind, id=family + kind) for family, (_, kinds) in TRIED.items() for kind in kinds]
Saved = tuple[dict, dict[str, tuple[int, ...]]]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Saved]:
    """The config and the shapes of a model class as ``save_pretrained`` writes it."""

    @cache
    def make(family: str, kind: str) -> Saved:
        folder: Path = tmp_path_factory.mktemp(family + kind)
        config = getattr(tf, f"{family}Config")(**ALL_FAMILIES[family][0])
        getattr(tf, family + kind)(config).save_pretrained(folder)
        return config_of(folder), {name: tuple(t.shape) for name, t in tensors(folder).items()}

    return make


def other_prefix(prefixes: tuple[str, ...], shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The same tensors with the base model's prefix taken away or, where there is none, added."""
    has = any(name.startswith(prefixes) for name in shapes)
    bare = {name: next((name[len(p) :] for p in prefixes if name.startswith(p)), name) for name in shapes}
    return {bare[name] if has else prefixes[0] + name: shape for name, shape in shapes.items()}


@pytest.mark.parametrize(("family", "kind"), CLASSES)
def test_covered_as_saved(family: str, kind: str, saved: Callable[[str, str], Saved]) -> None:
    """Each tensor has one line, and each space that is no residual acts."""
    config, shapes = saved(family, kind)
    spec = spec_for(config, shapes=shapes)
    matches = coverage(spec, shapes)
    assert set(matches) == set(shapes)
    acting = {s.name for block in gather_blocks(spec, matches) for s in elements_of(spec, block).values()}
    idle = {n for n in spec.spaces if n.startswith(tuple(HALF.get(family + kind, "") or "-"))}
    assert acting | spec.residual_names == set(spec.spaces) - (idle - spec.residual_names)


@pytest.mark.parametrize(("family", "kind"), CLASSES)
def test_covered_with_the_other_prefix(family: str, kind: str, saved: Callable[[str, str], Saved]) -> None:
    """With and without the prefix, a tensor is the same tensor."""
    config, shapes = saved(family, kind)
    spec = spec_for(config, shapes=shapes)
    if not spec.prefixes:
        return
    canonical = {m.canonical for m in coverage(spec, shapes).values()}
    renamed = other_prefix(spec.prefixes, shapes)
    assert set(renamed) != set(shapes)
    assert {m.canonical for m in coverage(spec, renamed).values()} == canonical


def test_every_model_type_is_tried() -> None:
    """A packaged spec without a class here is an untested promise."""
    tried = {getattr(tf, f"{family}Config").model_type for family in ALL_FAMILIES}
    tried |= {make().config["_class_name"] for make, _ in DIFFUSION.values()} | {
        "Transformer2DModel"
    }  # DiT's old name
    assert tried == set(spec_texts()) - {
        "timm_vit", "timm_wrapper",  # timm's own: see test_plain_torch
        "new",  # what published files call GTE 1.5: see test_a_model_under_its_published_type
        "exaone4_5_text",  # what published files call the language model of EXAONE 4.5
        "step3p5",  # the language model of Step-3.7-Flash, with which it is tried; alone its class is code of its publisher's
        "qwen3_omni_moe_talker",  # a part that Qwen3-Omni's config gives no type
    }  # fmt: skip


def test_a_model_under_its_published_type(saved: Callable[[str, str], Saved]) -> None:
    """GTE 1.5 is published as `new`, with that prefix; its tensors are described by the same lines."""
    config, shapes = saved("Gte", "ForMaskedLM")
    published = {"new." + n.removeprefix("gte.") if n.startswith("gte.") else n: s for n, s in shapes.items()}
    assert set(published) != set(shapes)
    old, new = spec_for(config, shapes=shapes), spec_for({**config, "model_type": "new"}, shapes=published)
    names = [{m.canonical for m in coverage(spec, s).values()} for spec, s in ((old, shapes), (new, published))]
    assert names[0] == names[1]
    assert set(old.spaces) == set(new.spaces)


@pytest.mark.parametrize("old", ["gamma", "beta"])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "DebertaV2"])
def test_legacy_norm_names(family: str, old: str, saved: Callable[[str, str], Saved]) -> None:
    """Checkpoints of 2018 call the gains gamma and beta."""
    config, shapes = saved(family, "ForMaskedLM" if family != "DebertaV2" else "Model")
    spec = spec_for(config, shapes=shapes)
    new = {"gamma": "weight", "beta": "bias"}[old]
    renamed = {n.replace(f"LayerNorm.{new}", f"LayerNorm.{old}"): s for n, s in shapes.items()}
    assert set(renamed) != set(shapes)
    names = [{m.canonical for m in coverage(spec, s).values()} for s in (shapes, renamed)]
    assert names[0] == names[1]


def test_weight_norms_of_both_formats() -> None:
    """The convolution of positions in wav2vec 2.0: a fine-tune saved by a newer torch meets the names of the
    published file."""
    config = {
        "model_type": "wav2vec2",
        "hidden_size": 48,
        "num_attention_heads": 6,
        "intermediate_size": 40,
        "vocab_size": 67,
    }
    spec, place = spec_for(config), "wav2vec2.encoder.pos_conv_embed.conv."
    for old, new in (
        ("weight_g", "parametrizations.weight.original0"),
        ("weight_v", "parametrizations.weight.original1"),
    ):
        assert spec.match(place + old).canonical == spec.match(place + new).canonical

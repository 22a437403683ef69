"""Tiny randomised Hugging Face models, one or more per architecture: the oracles of the laws."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from depth import EVERY
from diffusion_models import DIFFUSION, run
from isomerge.archs import spec_for
from isomerge.checkpoint.dtypes import dtype_code
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.weights import weights_name
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.evidence.law import random_alignment
from isomerge.models.tied_tensors import without_broken_ties
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.language.spec import Spec, by_canonical, coverage
from toy_added import ADDED, says, without_chance, written
from toy_composites import COMPOSITES
from toy_decoders import COMBINED
from toy_encoders import WIDER
from toy_experts import ROUTED
from toy_finders import FINDERS
from toy_gemmas import GEMMAS, in_double
from toy_giants import GIANTS
from toy_hearing import HEARING
from toy_hybrids import HYBRIDS
from toy_inputs import OWN_INPUTS
from toy_languages import LANGUAGES
from toy_models import DECODERS, ENCODERS, SEQUENCES
from toy_newest import NEWEST
from toy_pairs import PAIRS
from toy_pictures import PICTURES, seen_outputs
from toy_plain import PLAIN, load_plain, plain_outputs
from toy_reading import READING, translates
from toy_recent import RECENT
from toy_seeing import SEEING, is_seeing, seen_inputs
from toy_senses import SENSES
from toy_signals import SIGNALS
from toy_sparse import SPARSE
from toy_speech import SPOKEN, speaks
from toy_switched import SWITCHED
from toy_texts import TEXTS, in_default, in_width, with_caches_by_layer
from toy_towers import ENCODED
from toy_wrapped import WRAPPED

BODY = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
CAUSAL = {**BODY, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False}
PATCHES = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 40,
    "image_size": 8, "patch_size": 4, "num_labels": 5,
}  # fmt: skip
DISENTANGLED = {
    **BODY, "relative_attention": True, "norm_rel_ebd": "layer_norm", "position_buckets": 8,
    "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": 16, "hidden_dropout_prob": 0.0,
}  # fmt: skip
GPT = {"vocab_size": 67, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 32, "n_inner": 40}
SEQ2SEQ = {
    "vocab_size": 67, "d_model": 48, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 6,
    "relative_attention_num_buckets": 8,
}  # fmt: skip


def _t5(**changes: Any) -> Any:
    return tf.T5ForConditionalGeneration(tf.T5Config(**SEQ2SEQ, **changes))


def _deberta(model: Any, share: bool, terms: list[str], **changes: Any) -> Any:
    return model(tf.DebertaV2Config(**DISENTANGLED, share_att_key=share, pos_att_type=terms, **changes))


def _dinov2(**changes: Any) -> Any:
    shape = {k: v for k, v in PATCHES.items() if k != "intermediate_size"}
    return tf.Dinov2ForImageClassification(tf.Dinov2Config(**shape, mlp_ratio=2, **changes))


def _llama(**changes: Any) -> Any:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**{**CAUSAL, **changes}))


# Families that came last: architectures that combine what those before them have.
LATEST = {
    **ROUTED,
    **ENCODED,
    **PLAIN,
    **COMPOSITES,
    **DIFFUSION,
    **HYBRIDS,
    **COMBINED,
    **SEEING,
    **WIDER,
    **LANGUAGES,
    **GEMMAS,
    **NEWEST,
    **TEXTS,
    **PICTURES,
    **SENSES,
    **PAIRS,
    **RECENT,
    **SPOKEN,
    **FINDERS,
    **SIGNALS,
    **ADDED,
    **GIANTS,
    **SPARSE,
    **HEARING,
    **READING,
    **WRAPPED,
    **SWITCHED,
}

# name -> (constructor, largest relative change of outputs that rounding explains). Hugging Face's RMSNorm computes
# in float32 whatever the input, as does T5's: those models are compared at 1e-5, all others at 1e-9 in float64.
TOYS: dict[str, tuple[Callable[[], Any], float]] = {
    "bert": (lambda: tf.BertForMaskedLM(tf.BertConfig(**BODY)), 1e-9),
    "bert-relu": (lambda: tf.BertForSequenceClassification(tf.BertConfig(**BODY, hidden_act="relu")), 1e-9),
    "roberta": (lambda: tf.RobertaForMaskedLM(tf.RobertaConfig(**BODY)), 1e-9),
    "xlm-roberta": (lambda: tf.XLMRobertaForSequenceClassification(tf.XLMRobertaConfig(**BODY)), 1e-9),
    "distilbert": (
        lambda: tf.DistilBertForMaskedLM(
            tf.DistilBertConfig(
                vocab_size=67, dim=48, n_layers=3, n_heads=6, hidden_dim=40, max_position_embeddings=32
            )
        ),
        1e-9,
    ),
    "deberta-shared": (lambda: _deberta(tf.DebertaV2ForMaskedLM, True, ["c2p", "p2c"]), 1e-9),
    "deberta-unshared": (lambda: _deberta(tf.DebertaV2ForSequenceClassification, False, ["c2p", "p2c"]), 1e-9),
    "deberta-c2p": (lambda: _deberta(tf.DebertaV2ForMaskedLM, False, ["c2p"]), 1e-9),
    "deberta-conv": (
        lambda: _deberta(
            tf.DebertaV2ForSequenceClassification,
            True,
            ["c2p"],
            conv_kernel_size=3,
            conv_act="gelu",
            embedding_size=24,
        ),
        1e-9,
    ),
    "vit": (lambda: tf.ViTForImageClassification(tf.ViTConfig(**PATCHES)), 1e-9),
    "vit-plain": (
        lambda: tf.ViTForImageClassification(tf.ViTConfig(**PATCHES, qkv_bias=False, hidden_act="relu")),
        1e-9,
    ),
    "dinov2": (lambda: _dinov2(), 1e-9),
    "dinov2-swiglu": (lambda: _dinov2(use_swiglu_ffn=True), 1e-9),
    "deit": (lambda: tf.DeiTForImageClassificationWithTeacher(tf.DeiTConfig(**PATCHES)), 1e-9),
    "gpt2": (lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT)), 1e-9),
    "gpt2-untied": (lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT, tie_word_embeddings=False)), 1e-9),
    "llama": (_llama, 1e-5),
    "llama-biased": (lambda: _llama(attention_bias=True, mlp_bias=True), 1e-5),
    "llama-tied": (lambda: _llama(tie_word_embeddings=True), 1e-5),
    "llama-mha": (lambda: _llama(num_key_value_heads=6, head_dim=12), 1e-5),
    "llama-mqa": (lambda: _llama(num_key_value_heads=1), 1e-5),
    "mistral": (lambda: tf.MistralForSequenceClassification(tf.MistralConfig(**CAUSAL, pad_token_id=0)), 1e-5),
    "qwen2": (lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**CAUSAL)), 1e-5),
    "qwen3": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**CAUSAL)), 1e-5),
    "qwen3-biased": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**CAUSAL, attention_bias=True)), 1e-5),
    "t5-gated": (lambda: _t5(feed_forward_proj="gated-gelu"), 1e-5),
    "t5-relu": (lambda: _t5(feed_forward_proj="relu"), 1e-5),
    "mt5": (
        lambda: tf.MT5ForConditionalGeneration(tf.MT5Config(**{**SEQ2SEQ, "d_kv": 6}, tie_word_embeddings=False)),
        1e-5,
    ),
    "mixtral": (
        lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**CAUSAL, num_local_experts=4, num_experts_per_tok=2)),
        1e-5,
    ),
    **DECODERS,
    **ENCODERS,
    **SEQUENCES,
    **LATEST,
}

# The toys that go through every law by default. The others, whose architectures combine what these have, are held
# to
# soundness, recovery and verdicts alone; to all of it with ISOMERGE_ALL_TOYS=1 (`make test-all`).
REPRESENTATIVE = {"gpt_neox", "whisper"}
FAMILIES = {**DECODERS, **ENCODERS, **SEQUENCES}
# Of the latest, only these are in `make test` at all; the others, with their mutants, in `make test-all`.
TRIED_LATEST = {"llava", "deepseek_v3", "falcon_h1"}
TRIED = [n for n in TOYS if EVERY or n not in LATEST or n in TRIED_LATEST]
# Kin of a toy beside them, with other biases, heads or activations.
KIN = {
    "bert-relu", "roberta", "xlm-roberta", "distilbert", "deberta-unshared", "deberta-c2p", "vit-plain", "deit", "dinov2", "llama-biased",
    "llama-tied", "llama-mha", "mistral", "qwen2", "qwen3-biased", "t5-relu", "mt5",
}  # fmt: skip
SAMPLE = [n for n in TRIED if EVERY or n not in {**FAMILIES, **LATEST} | dict.fromkeys(KIN) or n in REPRESENTATIVE]

STREAMS_ALONE = {"mamba", "falcon_mamba", "mamba2"}
"""Toys of which nothing is matched block by block: all but the residual stream is left fixed."""
GAINS = ("norm", "ln_", "lambda")


def randomise(model: Any, seed: int) -> None:
    """Fill every parameter: matrices 0.15 N, vectors 0.3 N, gains around one, so that no term is vacuous."""
    rng = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        gain = p.ndim == 1 and "bias" not in name and any(word in name.lower() for word in GAINS)
        scale = 0.3 if p.ndim == 1 else 0.15
        p.data = torch.randn(p.shape, generator=rng, dtype=torch.float64).to(p.dtype) * scale + float(gain)
    for name, b in model.named_buffers():
        if "correction_bias" in name or "expert_bias" in name:  # of routers: a buffer that is trained, and stored
            b.copy_(torch.randn(b.shape, generator=rng, dtype=torch.float64) * 0.3)
        elif "balancing_biases" in name:  # of routers whose last class is to do nothing
            b[:-1] = torch.randn(b.shape, generator=rng, dtype=torch.float64)[:-1] * 0.03
        elif (
            "running_" in name
        ):  # what a norm over batches has seen: means of both signs, or ReLU hides all behind them
            low = -0.5 if "mean" in name else 0.5
            b.copy_(torch.rand(b.shape, generator=rng, dtype=torch.float64) + low)


def save_toy(name: str, folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Path:
    """A randomised toy, saved as Hugging Face saves it."""
    model = TOYS[name][0]().to(dtype).eval()
    randomise(model, seed)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    model.save_pretrained(folder)
    return folder


def inputs(config: Any) -> dict[str, torch.Tensor]:
    """Fixed inputs for a toy."""
    rng = torch.Generator().manual_seed(7)
    seen = getattr(config, "vision_config", config)
    found = {}
    if own := OWN_INPUTS.get(config.model_type):
        return own(config, rng)
    if is_seeing(config):
        return seen_inputs(config, rng)
    if hasattr(seen, "image_size"):
        shape = (3, getattr(seen, "num_channels", 3), seen.image_size, seen.image_size)
        found["pixel_values"] = torch.randn(shape, generator=rng, dtype=torch.float64)
    if hasattr(config, "num_mel_bins"):
        shape = (3, config.num_mel_bins, 2 * config.max_source_positions)
        found["input_features"] = torch.randn(shape, generator=rng, dtype=torch.float64)
    elif seen is not config or not found:
        found["input_ids"] = torch.randint(1, 60, (3, 11), generator=rng)
        if hasattr(config, "image_token_id"):
            _place_images(config, found["input_ids"])
    if config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.randint(1, 60, (3, 7), generator=rng)
    return found


def _place_images(config: Any, ids: torch.Tensor) -> None:
    """The tokens that stand for pieces of the image, behind the first token; nowhere else is there one."""
    patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    ids[ids == config.image_token_id] += 1
    ids[:, 1 : 1 + getattr(config, "mm_tokens_per_image", patches)] = config.image_token_id


def outputs(folder: Path) -> torch.Tensor:
    """The logits of a saved toy, through ``from_pretrained``, in the stored dtype."""
    if (plain := load_plain(folder)) is not None:
        return plain_outputs(plain)
    if "_class_name" in config_of(folder):
        return run(config_of(folder), tensors(folder))
    config = tf.AutoConfig.from_pretrained(folder)
    kind = getattr(tf, config.architectures[0])
    dtype = next(t.dtype for t in tensors(folder).values() if t.is_floating_point())
    experts = (
        {"experts_implementation": "eager"}
        if any(
            hasattr(getattr(config, "text_config", config), key)
            for key in ("num_experts_per_tok", "top_k_experts", "moe_topk")
        )
        else {}
    )
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs(config).items()}
    for speaking in (speaks, says, translates):
        if (said := speaking(folder, config, dtype, given)) is not None:
            return said
    model = in_width(kind.from_pretrained(folder, dtype=dtype, **experts), dtype).eval()
    with (
        torch.no_grad(),
        in_double(config),
        in_default(config),
        with_caches_by_layer(config),
        without_chance(config),
    ):
        found = model(**given)
    for seeing in (seen_outputs, written):
        if (seen := seeing(config.model_type, found)) is not None:
            return seen
    names = (
        "logits",
        "loss",
        "logits_per_image",
        "itm_score",
        "text_embeds",
        "image_embeds",
        "pooler_output",
        "start_logits",
        "last_hidden_state",
        "embeddings",
    )
    return next(found[name] for name in names if name in found)


def relative(new: torch.Tensor, old: torch.Tensor) -> float:
    """The largest change relative to the largest output."""
    return float((new - old).abs().max() / old.abs().max())


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All stored tensors by name."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        if file.name != "alignment.safetensors":
            found |= load_file(file)
    return found


def overwrite(folder: Path, new: dict[str, torch.Tensor]) -> None:
    """Replace the weights of a single-file checkpoint."""
    save_file(new, folder / "model.safetensors", metadata={"format": "pt"})


def config_of(folder: Path) -> dict[str, Any]:
    """The parsed config.json."""
    return json.loads((folder / "config.json").read_text())


@dataclass(frozen=True)
class Toy:
    """A saved toy, read by the real reader and recognised by its spec."""

    name: str
    folder: Path
    spec: Spec
    blocks: list[Block]
    stored: dict[str, torch.Tensor]
    """The stored tensors by their own names."""
    names: dict[str, str]
    """From canonical names to stored ones."""

    @cached_property
    def reference(self) -> torch.Tensor:
        """The outputs of the saved toy."""
        return outputs(self.folder)

    @property
    def tolerance(self) -> float:
        """The largest relative change of outputs that rounding explains."""
        return TOYS[self.name][1]

    def fresh(self) -> dict[Block, torch.Tensor]:
        """The blocks' tensors, each in memory of its own."""
        return {b: b.assemble(lambda n: self.stored[self.names[n]]).clone().contiguous() for b in self.blocks}

    def named(self, blocks: Mapping[Block, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The inverse of `fresh`: tensors by their stored names, contiguous."""
        return {
            self.names[n]: t.clone(memory_format=torch.contiguous_format)
            for block, x in blocks.items()
            for n, t in block.split(x)
        }

    def change(self, new: Mapping[str, torch.Tensor]) -> float:
        """The largest change of any stored number."""
        return max(float((new[k].double() - v.double()).abs().max()) for k, v in self.stored.items())

    def drawn(self, names: list[str] | None, condition: float = 4.0) -> dict[str, torch.Tensor]:
        """The weights moved by a random element; drawn again while a small permutation group draws the identity."""
        for seed in range(1, 9):
            blocks, rng = self.fresh(), torch.Generator().manual_seed(seed)
            random_alignment(self.spec, self.blocks, rng, names, condition=condition).act(blocks)
            moved = self.named(blocks)
            if self.change(moved) > 1e-3:
                break
        return moved


def load_toy(name: str, folder: Path, spec: Spec | None = None) -> Toy:
    """Open a saved toy; with ``spec``, as that spec sees it."""
    opened = open_checkpoint(folder)
    shapes = {k: tuple(info.shape) for k, info in opened.tensors.items()}
    declared = spec or spec_for(opened.config, shapes=shapes)
    matches = coverage(declared, shapes)
    spec = spec or without_broken_ties(declared, by_canonical(matches), opened.config)
    stored = {k: opened.read(k) for k in opened.tensors}
    return Toy(name, folder, spec, gather_blocks(spec, matches), stored, by_canonical(matches))


def write_toy(toy: Toy, new: Mapping[str, torch.Tensor], out: Path, *, out_shard_size: int = 1 << 30) -> Path:
    """Write a checkpoint like the toy's with other weights, by the real writer."""
    plan = [OutTensor(n, dtype_code(t.dtype), tuple(t.shape)) for n, t in new.items()]
    name = weights_name(config_of(toy.folder))
    with CheckpointWriter(out, plan, key="toy", out_shard_size=out_shard_size, overwrite=True, name=name) as writer:
        for name, tensor in new.items():
            writer.write(name, tensor)
        return writer.finish({"config.json": toy.folder / "config.json"})

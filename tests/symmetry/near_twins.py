"""Near-twins, statement by statement: what is nearly a disguise, and another function (see `statements`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from depth import more
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import recognise
from isomerge.symmetry.bases import BASIS
from isomerge.symmetry.carried import CARRY
from isomerge.symmetry.norm_stage import FOLD, GAIN, MADE, SCALE, TIED
from isomerge.symmetry.reached import REACHES
from isomerge.symmetry.unheard import UNHEARD, Unheard
from symmetry.statements import HIDDEN, PADS, PLANTED, TABLES, biased_rows, other_order
from symmetry.twins import Moves, Weights, Write, changed, of_norms, of_spaces, within_layers, written
from toys import Toy, overwrite, tensors


@dataclass(frozen=True)
class NearTwin:
    """A toy, and a disguise that is wrong."""

    statement: str
    toy: str
    wrong: str
    """What is wrong; where `left`, the tensor that has not followed."""
    write: Write = field(repr=False)
    left: bool = False
    """Whether `write` makes a twin, of which one tensor is left behind then."""
    fingerprinted: bool = True
    """Whether fingerprints see it as well as `verify` (docs/lab/fingerprint.md)."""
    heard: bool = True
    """Whether the toy's inputs have what it shows in."""

    def __str__(self) -> str:
        return f"{self.statement}: {self.toy}: {self.wrong}"


def left(statement: str, moves: Moves, tensors: dict[str, str], **how: bool) -> list[NearTwin]:
    """Near-twins by some moves, of which one tensor of each toy has not followed."""
    write = written(moves)
    return [NearTwin(statement, toy, tensor, write, left=True, **how) for toy, tensor in tensors.items()]


def wrong(statement: str, toy: str, disguises: dict[str, Callable[[Toy], Weights]], **how: bool) -> list[NearTwin]:
    """Near-twins of a toy with other tensors, by what is wrong with them."""
    return [NearTwin(statement, toy, words, changed(change), **how) for words, change in disguises.items()]


def places_too_far(toy: Toy, out: Path) -> Path:
    """A trade of ViT's class token with its place, which another place has taken."""
    written(of_spaces("cp", "pp"))(toy, out)
    stored, new = recognise(toy.folder).names["embeddings.position_embeddings"], tensors(out)
    new[stored][:, 1] += new[stored][:, 0] - toy.stored[stored][:, 0]
    new[stored][:, 0] = toy.stored[stored][:, 0]
    overwrite(out, new)
    return out


def of_another_layer(toy: Toy, out: Path) -> Path:
    """A constant of values that no norm hears behind one layer, added in another."""
    written(of_norms(UNHEARD, size=10.0))(toy, out)
    model, new = recognise(toy.folder), tensors(out)
    constants = [reach for reach in free_under_layer_norm(model).reached if isinstance(reach, Unheard)]
    here, there = (model.names[constant.changed[0].canonical[0]] for constant in constants)
    overwrite(out, {**new, there: toy.stored[there] + new[here] - toy.stored[here]})
    return out


def multiplied(end: str, factors: Callable[[int], torch.Tensor]) -> Callable[[Toy], Weights]:
    """The first tensor whose name ends so, its rows multiplied by factors."""

    def change(toy: Toy) -> Weights:
        name = next(n for n in toy.stored if n.endswith(end))
        rows = factors(len(toy.stored[name])).to(toy.stored[name].dtype)
        return {name: toy.stored[name] * rows[:, None]}

    return change


def every_second(rows: int) -> torch.Tensor:
    """Twice every second row."""
    return 1 + (torch.arange(rows) % 2 == 0).double()


def latents_turned(reader: bool) -> Callable[[Toy], Weights]:
    """DeepSeek's latent rotated between gains that are not folded, at its reader as well or not."""

    def change(toy: Toy) -> Weights:
        rank, weights = toy.spec.sizes["lat"], toy.stored
        rng = torch.Generator().manual_seed(1)
        turn, _ = torch.linalg.qr(torch.randn(rank, rank, generator=rng, dtype=torch.float64))
        down = next(n for n in weights if "layers.0" in n and "kv_a_proj" in n and n.endswith("weight"))
        up, gain = (down.replace("kv_a_proj_with_mqa", part) for part in ("kv_b_proj", "kv_a_layernorm"))
        assert float(weights[gain].std()) > 0.01
        moved = {down: torch.cat([turn @ weights[down][:rank], weights[down][rank:]])}
        return {**moved, up: weights[up] @ turn.mT} if reader else moved

    return change


def filters(part: str) -> Callable[[Toy], Weights]:
    """Other factors of ConvBERT's filters, of which a part is wrong."""

    def change(toy: Toy) -> Weights:
        blocks = toy.fresh()
        of_spaces("f")(recognise(toy.folder)).act(blocks)
        weights, twin = toy.stored, toy.named(blocks)
        name = next(n for n in weights if n.endswith("depthwise.weight"))
        behind, bias = name.replace("depthwise", "pointwise"), name.replace("depthwise.weight", "bias")
        return {
            "the filters alone": {name: twin[name]},
            "one tap of a filter": {
                name: torch.cat([twin[name][..., :1], weights[name][..., 1:]], -1), behind: twin[behind],
            },
            "a bias as well": {name: twin[name], behind: twin[behind], bias: weights[bias] * 1.5},
        }[part]  # fmt: skip

    return change


def by_kind(toy: str, *pairs: tuple[str, str]) -> list[NearTwin]:
    """Near-twins of a toy, by kinds of moves of norms: the bias that has not been corrected."""
    return [near for kind, bias in pairs for near in left(f"norm {kind}", of_norms(kind), {toy: bias})]


PLACES = "embeddings.position_embeddings.weight"
NEAR_TWINS = [
    *by_kind(
        "bert", (GAIN, "encoder.layer.1.intermediate.dense.bias"), (FOLD, "encoder.layer.1.output.dense.bias"),
        (FOLD, "cls.predictions.bias"), (TIED, "cls.predictions.bias"), (TIED, "embeddings.token_type_embeddings.weight"),
        (SCALE, "encoder.layer.2.output.LayerNorm.bias"),
    ),
    *by_kind("gpt_neo", (FOLD, "h.1.attn.attention.q_proj.weight"), (MADE, "h.1.attn.attention.out_proj.bias")),
    *by_kind("squeezebert", (FOLD, "encoder.layers.1.intermediate.conv1d.bias")),
    *more(
        *by_kind(
            "bart", (GAIN, "decoder.layers.0.encoder_attn.q_proj.bias"), (GAIN, "decoder.layers.1.encoder_attn.v_proj.bias"),
            (FOLD, "decoder.layers.1.encoder_attn_layer_norm.bias"),
        ),
        *by_kind("gpt2", (GAIN, "h.1.mlp.c_fc.bias"), (FOLD, "h.1.attn.c_attn.bias")),
        *by_kind("modernbert-biased", (GAIN, "layers.0.attn.Wqkv.bias"), (FOLD, "layers.1.attn.Wqkv.bias")),
        *by_kind("xlnet", (GAIN, "layer.1.rel_attn.r_w_bias"), (GAIN, "layer.1.rel_attn.r_s_bias"), (FOLD, "layer.1.rel_attn.v")),
        *by_kind(
            "nomic_bert", (FOLD, "emb_ln.bias"), (FOLD, "encoder.layers.1.attn.Wqkv.weight"), (FOLD, "encoder.layers.1.mlp.fc12.weight")
        ),
        *by_kind("xlm", (GAIN, "ffns.1.lin1.bias"), (FOLD, "attentions.1.out_lin.bias")),
        *by_kind("wavlm", (GAIN, "encoder.layers.1.attention.q_proj.bias")),
        *by_kind("fnet", (FOLD, "encoder.layer.1.output.dense.bias"), (FOLD, "embeddings.projection.bias")),
        *by_kind(
            "deberta", (GAIN, "encoder.layer.1.attention.self.q_bias"), (FOLD, "encoder.layer.1.attention.self.v_bias"),
            (FOLD, "encoder.layer.1.attention.self.in_proj.weight"),
        ),
        *left("norm", within_layers(of_norms()), {
            "vit_mae": "decoder.decoder_embed.bias", "swin": "encoder.layers.0.blocks.0.layernorm_before.bias",
            "segformer": "encoder.block.0.0.attention.self.sr.bias", "led": "encoder.layers.0.fc1.bias",
            "mamba": "layers.0.mixer.conv1d.weight", "jamba": "layers.0.mamba.D",
        }),
        # streams between two others have no anchors, and taps of a convolution no others to meet
        *left("norm", within_layers(of_norms()), {
            "swin": "encoder.layers.0.downsample.reduction.weight", "mamba2": "layers.0.mixer.conv1d.weight",
        }, fingerprinted=False),
    ),
    *left("carry", of_norms(CARRY), {
        "openai-gpt": "h.0.attn.c_proj.bias",
        **dict(more(
            ("deberta-shared", "encoder.layer.1.attention.self.key_proj.bias"),
            ("deberta-unshared", "encoder.layer.1.attention.self.pos_query_proj.bias"),
            ("layoutlm", "embeddings.token_type_embeddings.weight"),
            ("clip_vision_model", "pre_layrnorm.bias"),
            ("yolos-deep", "encoder.layer.1.output.dense.bias"),
            ("layoutlmv3", "LayerNorm.bias"),
            ("layoutlmv3-words", "encoder.layer.0.attention.self.value.bias"),
            ("albert", "encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.bias"),
        )),
    }),
    *left("probe, reached", of_norms(*REACHES), {
        "siglip_vision_model": "head.attention.in_proj_bias",
        "electra": "encoder.layer.0.attention.self.value.bias",
        "albert": "encoder.embedding_hidden_mapping_in.weight",
        **dict(more(
            ("siglip2", "vision_model.head.probe"),
            ("rembert", "encoder.embedding_hidden_mapping_in.weight"),
            ("roformer", "encoder.layer.0.attention.self.query.weight"),
        )),
    }),
    *left("basis", of_norms(BASIS), {"deberta-long": "encoder.layer.1.attention.self.pos_q_proj.weight"}),
    *(NearTwin("unheard", name, "in another layer", of_another_layer) for name in
      ("stablelm-heads", *more("stablelm-unbiased", "nemotron-heads", "nomic_bert"))),
    *wrong("length", "gemma3n_text", {
        "one row alone": multiplied("altup_projections.1.weight", lambda rows: 1 + (torch.arange(rows) == 1).double()),
        "of what the layers norm": multiplied("linear_right.weight", every_second),
        "the other way round": multiplied("altup_projections.1.weight", lambda rows: -torch.ones(rows)),
    }),
    *(near for name in PADS for near in left("shift", of_spaces("pw"), {name: PLACES}, heard=False)),
    *(near for name, names in TABLES.items() for near in left("table", of_spaces(*names), {
        name: {"markuplm": "embeddings.xpath_embeddings.xpath_unitseq2_inner.bias",
               "lilt": "layout_embeddings.box_linear_embeddings.bias"}[name]
    })),
    NearTwin("shift of rows", "vit", "a place too far", places_too_far),
    *(near for name, (names, kept) in PLANTED.items() for near in left("hidden axis", of_spaces(*names), {name: kept}, fingerprinted=name != "bert-relu")),
    *(near for name in HIDDEN for near in wrong("order of a head", name, {"not undone": other_order(undone=False)}, fingerprinted=name != "xlm-roberta")),
    *(near for name in ("mixtral", *more("qwen3_moe", "gpt_oss")) for near in wrong("router", name, {"less": biased_rows(0.05)})),
    *wrong("latent", "deepseek_v3", {
        "gains stay between": latents_turned(reader=True), "the reader is not turned": latents_turned(reader=False),
    }),
    # fingerprints see no maps of streams that have no anchors
    *(near for tensor in more("decode_head.linear_c.0.proj.weight", "decode_head.linear_fuse.weight")
      for near in left("basis of a narrow map", of_spaces("c0"), {"segformer": tensor}, fingerprinted=False)),
    *wrong("channel factors", "convbert", {part: filters(part) for part in ("the filters alone", "one tap of a filter", "a bias as well")}),
]  # fmt: skip

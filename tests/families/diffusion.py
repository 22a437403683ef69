"""Diffusion transformers, as diffusers names them."""

from __future__ import annotations

from diffusion_models import DIFFUSION
from families.tables import Streams, Toy
from mutants import mutant
from unet_models import UNET_TOYS

TWICE = "linear.weight [res | res | res | res | res | res] => linear.weight [res | res | res | res | res | rows]"

MORE_TOYS: dict[str, Toy] = {**DIFFUSION, **UNET_TOYS}

STREAMS: dict[str, Streams] = {
    "dit": {"emb": "Perm"},
    **{key: {"res": "Perm", "cres": "Perm", "emb": "Perm"} for key in ["sd3", "sd3-later"]},
    "flux": {"res": "Perm", "emb": "Perm"},
    **{key: {"emb": "Perm"} for key in UNET_TOYS},
}

MUTANTS = [
    mutant(
        "dit",
        "the last projection reads another condition",
        "emb",
        "proj_out_1.weight modulation emb' => proj_out_1.weight modulation other",
    ),
    mutant("dit", "classes forgotten", "emb", "classes emb => classes other"),
    mutant("dit", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("sd3", "the text has heads of its own", "h", "add_q_proj.weight (h qk sg) => add_q_proj.weight rows"),
    mutant(
        "sd3",
        "a value bias free in a joint attention",
        "vb",
        *(
            f"transformer_blocks.{{l}}.attn2.to_{name} => transformer_blocks.{{l}}.attn.to_{name}"
            for name in ("v.bias -> ", "out.0.bias via", "out.0.weight if dual")
        ),
        "attn.to_out.0.weight if dual => attn.to_out.0.weight",
    ),
    mutant("sd3", "a gate does not follow", "res", "size emb = res => size emb = res\nsize rows = res", TWICE),
    mutant(
        "sd3-later",
        "the text's keys keep the factor",
        "t",
        "norm_added_k.weight (qk t') => norm_added_k.weight (qk t)",
    ),
    mutant(
        "sd3-later",
        "any matrix under norms",
        "qk2",
        "GL[l, h2] if dual and qk_norm == None => GL[l, h2]",
        "attn2.norm_q.weight (qk2 t2) => attn2.norm_q.weight gain",
        "attn2.norm_k.weight (qk2 t2') => attn2.norm_k.weight gain",
        'space sg2 as qk: Sign[l, h2, qk2] if dual and qk_norm == "rms_norm" => ',
        'space t2 as qk: Scale[l, qk2] if dual and qk_norm == "rms_norm" => ',
    ),
    mutant("flux", "half-split pairs", "t", "(pair c t) => (c pair t)", "(pair c t') => (c pair t')"),
    mutant(
        "flux",
        "text and patches in two orders",
        "res",
        "context_embedder.weight res text => context_embedder.weight other text",
    ),
    mutant("flux", "neurons before heads", "sff", "[sh sov' | sff'] => [sff' | sh sov']"),
    mutant(
        "unet-sized",
        "sizes of pictures written elsewhere",
        "emb",
        "add_embedding.linear_2.weight emb added' => add_embedding.linear_2.weight other added'",
    ),
    mutant(
        "unet-sized",
        "the middle reads the time step as it is stored",
        "emb",
        "mid_block.resnets.{r}.time_emb_proj.weight (m_g m_c m_s) emb' => mid_block.resnets.{r}.time_emb_proj.weight (m_g m_c m_s) other",
    ),
    mutant(
        "unet",
        "channels change places over groups",
        "d0_c",
        "size c = width // g => size c = width",
        "size g = norm_num_groups => size g = 1",
        part="unet_block",
    ),
    mutant("unet", "gains keep a sign", "d0_s", "norm2.weight (g c s) => norm2.weight (g c)", part="unet_block"),
    mutant("unet", "the gate is scaled", "d0_u", "[ff u | ff] => [ff | ff u]", part="unet_block"),
    mutant("unet", "the text's keys not dual", "d0_qk2", "(h2 qk2') text => (h2 qk2) text", part="unet_block"),
]

"""What texts of specs say beside spaces, statement by statement: the cases that `test_statements` holds to one law.
What is nearly such a disguise stands in `near_twins`.

- `CASES`: toys, each with a disguise that the statement makes a twin of.
- `WRONG_TEXTS`: texts of which the statement is wrong: moves by them make another function.
- `REFUSED`: statements that are refused, with the sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from depth import more
from isomerge.symmetry.bases import BASIS
from isomerge.symmetry.carried import CARRY
from isomerge.symmetry.centred import CENTRED, OFFSET
from isomerge.symmetry.lengths import LENGTH
from isomerge.symmetry.norm_stage import FOLD
from isomerge.symmetry.reached import REACHES
from isomerge.symmetry.unheard import UNHEARD
from symmetry.twins import (
    Moves,
    Weights,
    Write,
    changed,
    of_norms,
    of_spaces,
    turned,
    within_layers,
    written,
)
from toys import Toy


@dataclass(frozen=True)
class Case:
    """A toy, and a disguise that a statement makes a twin of."""

    statement: str
    toy: str
    write: Write = field(repr=False)
    keys: tuple[str, ...] = ()
    """How the keys of elements begin of which an alignment of the twin has all that the toy has."""
    keeps: float = 1e-5
    """How far outputs of what is the same function may be, relative to the largest."""
    apart: float = 0.5
    """How far some tensor of the twin is, at least, relative to its norm."""
    back: float = 1e-6
    """How far tensors of the aligned twin, and of its canonical form, may be from the toy's."""
    spaces: str | None = None
    """What is aligned and merged, where it is not the default."""
    align: bool | str = "auto"
    """Whether it is aligned without a look at how the two stand: where tables alone differ they stand in one basis."""
    anchors: tuple[str, ...] = ("first",)
    matched: bool = True
    """Whether all of the disguise is matched; what one stack reads of another's last norm is compared alone."""

    def __str__(self) -> str:
        return f"{self.statement}: {self.toy}"


@dataclass(frozen=True)
class WrongText:
    """A toy, a statement of its text, what is replaced in it by what, and the moves that the text then allows."""

    statement: str
    toy: str
    old: str
    new: str
    moves: Moves = field(repr=False)
    within: str = ""
    """How the line begins in which it is replaced; anywhere, where empty."""
    told: bool = False
    """Whether `verify` and fingerprints are asked as well."""

    def __str__(self) -> str:
        return f"{self.statement}: {self.toy}: {self.old} -> {self.new}"


@dataclass(frozen=True)
class Refused:
    """A toy, lines that its text has more, or in place of what a pattern matches, and the sentence."""

    toy: str
    lines: str
    sentence: str
    replaced: str = ""

    def __str__(self) -> str:
        return f"{self.toy}: {self.lines}"


CARRIED, HEADS, NARROW, SILENT, LENGTHS = (CARRY,), (CENTRED, OFFSET), REACHES, (UNHEARD,), (LENGTH,)


def norms(
    statement: str, *toys: str, kinds: tuple[str, ...], moves: Moves | None = None, **how: object
) -> list[Case]:
    """Cases of toys whose twin is moved by what norms leave free of some kinds, under random elements of all spaces
    inside the layers, or by some such moves."""
    write = written(moves or within_layers(of_norms(*kinds)))
    return [Case(statement, toy, write, kinds, **how) for toy in toys]  # type: ignore[arg-type]


def by_spaces(statement: str, toys: dict[str, list[str]], **how: object) -> list[Case]:
    """Cases of toys whose twin is moved by some spaces and shifts alone."""
    return [Case(statement, toy, written(of_spaces(*names)), **how) for toy, names in toys.items()]  # type: ignore[arg-type]


HIDDEN = {
    "xlm-roberta": ("classifier.dense", "classifier.out_proj", -1.0),
    "deberta-unshared": ("pooler.dense", "classifier", 1.0),
    "electra-wide": ("discriminator_predictions.dense", "discriminator_predictions.dense_prediction", 2.0),
}
"""Heads with hidden neurons: the first layer, what reads it, and whether tanh lets signs (-1) or ReLU factors (2)
through."""


def other_order(undone: bool = True) -> Callable[[Toy], Weights]:
    """A head's hidden neurons in another order, every second one with a factor, which readers undo or do not."""

    def reordered(toy: Toy) -> Weights:
        first, reader, factor = HIDDEN[toy.name]
        weight, bias, read = (toy.stored[n] for n in (f"{first}.weight", f"{first}.bias", f"{reader}.weight"))
        order = torch.randperm(len(bias), generator=torch.Generator().manual_seed(3))
        factors = torch.ones(len(bias), dtype=torch.float64)
        factors[::2] = factor
        return {
            f"{first}.weight": weight[order] * factors[:, None],
            f"{first}.bias": bias[order] * factors,
            f"{reader}.weight": read[:, order] / factors if undone else read,
        }

    return reordered


def biased_rows(wrong: float = 0.0) -> Callable[[Toy], Weights]:
    """One vector added to all rows of a router, of which softmax knows nothing; or to each a little less."""

    def added(toy: Toy) -> Weights:
        rng = torch.Generator().manual_seed(3)
        routers = {n: t for n, t in toy.stored.items() if n.endswith((".gate.weight", ".router.weight"))}
        vectors = {n: torch.randn(1, t.shape[1], generator=rng, dtype=torch.float64) for n, t in routers.items()}
        less = {n: 1 - wrong * torch.arange(len(t))[:, None] for n, t in routers.items()}
        assert routers
        return {n: t + vectors[n] * less[n] for n, t in routers.items()}

    return added


PADS = {name: ["pw", "wt", "pt"] for name in ("markuplm", *more("lilt", "layoutlmv3", "xlm-roberta"))}
BOXES = ["bx", "by", "bh", "bw", "bxc", "byc", "bhc", "bwc", "bp"]
TABLES = {"markuplm": ["unit", "tc", "sc"], **dict.fromkeys(more("lilt"), BOXES)}
PLANTED = {
    "bert-relu": (["pooled", "ps"], "classifier.weight"),
    "arcee": (["ff", "u"], "layers.0.mlp.down_proj.weight"),
    "gemma3_text": (["t"], "layers.0.self_attn.k_norm.weight"),
    "afmoe": (["ov", "os"], "layers.0.self_attn.o_proj.weight"),
    "qwen3_next": (["t", "rs", "rt", "os"], "layers.1.self_attn.o_proj.weight"),
}
"""By toy: spaces of hidden axes that are moved, and a tensor that a near-twin keeps as it was."""
FORMED = [
    "vit",
    "gptj",
    "modernbert",
    "bloom",
    "olmo",
    "gpt_neo",
    "codegen",
    "persimmon",
    "stablelm",
    "stablelm-heads",
    "nemotron",
    "nemotron-heads",
    "cohere2",
    "esm",
    "dinov2",
    "dinov3_vit",
    "beit",
    "vit_mae",
    "audio-spectrogram-transformer",
    "gpt_neox_japanese",
    "deberta",
    "deberta-shared",
    "deberta-unshared",
    "albert",
    "rembert",
    "roformer",
    "roformer-plain",
    "jina_embeddings_v3",
    "megatron-bert-words",
    "wav2vec2",
    "wav2vec2-stable",
    "hubert",
    "wavlm",
    "wavlm-stable",
    "unispeech",
    "unispeech-sat",
    "data2vec-audio",
    "sew",
    "convbert",
    "convbert-wide",
    "squeezebert",
    "squeezebert-relu",
    "dpt",
    "dpt-added",
    "dpt-labels",
    "depth_anything",
    "swin",
    "swin-three",
    "swin-one",
    "donut-swin",
    "clap",
    "clap-short",
    "vision-encoder-decoder-donut",
    "segformer",
    "segformer-labels",
    "markuplm",
    "layoutlmv3",
    "layoutlmv3-words",
    "fnet",
    "xlnet",
    "xlnet-relu",
    "xlm",
    "flaubert",
    "flaubert-before",
    "esm-rotary",
    "esmc",
    "gpt_neox-full",
    "modernbert-decoder",
    "biogpt",
    "gpt_bigcode",
    "roberta",
    "distilbert",
    "electra",
    "electra-wide",
    "mpnet",
    "longformer",
    "lilt",
    "gte",
    "nomic_bert",
    "xglm",
    "big_bird-sparse",
    "nystromformer",
    "openai-gpt",
    "deit",
    "yolos-plain",
    "siglip",
    "gpt_neox",
    "opt",
    "phi",
    "mpt",
    "falcon",
    "starcoder2",
    "clip",
]
"""More toys of which LayerNorm leaves something free."""
TWO_STACKS = [
    "bart",
    "led",
    "mbart",
    "plbart",
    "blenderbot",
    "whisper",
    "marian",
    "pegasus",
    "m2m_100",
    "speech_to_text",
]
LOOSE = {"back": 1e-4}
CASES = [
    # the moves are large, and some classes compute norms in float32
    *norms("norm", "gpt2", "bert", "modernbert-biased", *more(*FORMED), kinds=(), keeps=1e-4, apart=1.0),
    *norms("norm", *more(*TWO_STACKS), kinds=(), keeps=1e-4, apart=1.0, matched=False),
    *norms(
        "carry", "openai-gpt",
        *more(
            "deberta-shared", "deberta-unshared", "deberta-c2p", "layoutlm", "clip_vision_model", "albert", "yolos-deep", "layoutlmv3",
            "layoutlmv3-words",
        ),
        kinds=CARRIED, anchors=("first", "none"),
    ),
    *norms("fold", "nomic_bert", "xlnet", kinds=(FOLD,), moves=of_norms(FOLD)),
    *norms("centred", "persimmon", *more("phi-normed", "cohere-normed", "esmc", "stablelm-normed"), kinds=HEADS),
    *norms(
        "probe, reached", "siglip_vision_model", "electra", "albert", *more("siglip2", "rembert", "roformer"), kinds=NARROW,
        anchors=("first", "none"),
    ),
    *norms("length", "gemma3n_text", *more("gemma3n", "gemma3n-tied"), kinds=LENGTHS, **LOOSE),
    *norms("basis", "deberta-long", kinds=(BASIS,)),
    *norms("basis, carry", "deberta-long", kinds=(BASIS, CARRY)),
    # With biases of values; without; with more values than the stream is wide, each for two query heads; behind norms that the
    # order of lines names, the first layer of the last behind none. Of smaller constants up to three hundredths of the distance
    # stay: values' bases and what no norm hears are matched in turn, and settle elsewhere.
    *norms(
        "unheard", "stablelm-heads", *more("stablelm-unbiased", "nemotron-heads", "nomic_bert", "xlnet"), kinds=SILENT,
        moves=within_layers(of_norms(UNHEARD, seed=2, size=10.0)),
    ),
    *by_spaces("shift", PADS, align=True, **LOOSE),
    *by_spaces("table", TABLES, **LOOSE),
    *by_spaces("shift of rows", {"vit": ["cp", "pp"]}, spaces="cp,pp", align=True),
    *by_spaces("hidden axis", {name: PLANTED[name][0] for name in ("bert-relu", "arcee", *more("gemma3_text", "afmoe", "qwen3_next"))},
               apart=1e-2, **LOOSE),
    *(Case("order of a head", name, written_head) for name in HIDDEN for written_head in [changed(other_order())]),
    *(Case("router", name, changed(biased_rows()), spaces="all", apart=1e-2, align=True) for name in ("mixtral", *more("qwen3_moe", "gpt_oss"))),
    *(
        Case("latent", name, turned(streams=False, latents=True, gains=True), apart=0.1, **LOOSE)
        for name in (
            "deepseek_v3",
            *more("kimi_linear", "longcat_flash", "axk2", "hy_v4", "deepseek_v4", "bailing_hybrid", "segformer"),
        )
    ),
    *(Case("channel factors", name, written(of_spaces("f")), apart=0.1, **LOOSE) for name in ("convbert", *more("convbert-wide"))),
    *(Case("channel factors, spaces", name, turned(streams=False), apart=0.1, **LOOSE) for name in ("convbert", *more("convbert-wide"))),
    *(
        Case("channel factors, stream", name, turned(streams=True, seed=3), apart=0.1, spaces="all", **LOOSE)
        for name in ("convbert", *more("convbert-wide"))
    ),
    *(Case("latent, stream", name, turned(streams=True, latents=True, gains=True, seed=3), spaces="all") for name in ["deepseek_v3"]),
]  # fmt: skip


def texts(statement: str, moves: Moves, *edits: tuple[str, str, str], **how: object) -> list[WrongText]:
    """Wrong texts: toys, what is replaced, by what."""
    return [WrongText(statement, *edit, moves, **how) for edit in edits]  # type: ignore[arg-type]


HEAD, KEYS = "head.attention.in_proj_weight", "head.attention.in_proj_bias"
ASKED, PROBE = f"through {HEAD}#0 by {KEYS}", f"probe no: head.probe through {HEAD}#0 by {KEYS}#0"
FIRST, SECOND = (f"encoder.layer.{{l:{layer}}}.attention.self" for layer in (0, 1))
RUN = "encoder.albert_layer_groups.{g}.albert_layers.{i}"
STEM = "encoder.pos_conv_embed.conv.(parametrizations.weight.original"
WRONG_TEXTS = [
    *texts(
        "carry", of_norms(CARRY),
        ("openai-gpt", ", h.{l:0}.attn.c_proj.bias", ""),
        ("openai-gpt", "{l:0}", "{l}"),
        ("deberta-shared", "-1 embeddings.LayerNorm.(bias|beta), ", ""),
        *more(
            ("deberta-shared", ", encoder.layer.{l}.attention.output.dense.bias if aside and normed", " if aside and normed"),
            ("deberta-shared", "{l!num_hidden_layers-1}", "{l}"),
            ("layoutlm", "2 embeddings.token_type", "embeddings.token_type"),
            ("clip_vision_model", ".bias along res -> (pre", ".bias along res -> -1 (pre"),
            ("albert", "-1 encoder", "encoder"),
            ("layoutlmv3", "-1 LayerNorm.bias along res, ", ""),
            ("layoutlmv3", "types over res[3*edge:4*edge]", "types over res[2*edge:3*edge]"),
            ("layoutlmv3", "carry eb: embeddings.LayerNorm.bias along res -> -1", "carry eb: embeddings.LayerNorm.bias along res ->"),
            (
                "layoutlmv3-words",
                ", encoder.layer.{l:0}.attention.self.value.bias via encoder.layer.{l:0}.attention.self.value.weight", "",
            ),
            ("yolos-deep", ".bias -> encoder", ".bias -> 2 encoder"),
            ("yolos-deep", "{l:0..num_hidden_layers-1}", "{l:1..num_hidden_layers}"),
        ),
    ),
    *texts(
        "centred", of_norms(*HEADS),
        (
            "persimmon", "#0,1, layers.{l}.self_attn.query_key_value.bias#0,1", "#0, layers.{l}.self_attn.query_key_value.bias#0"
        ),
        *more(("phi-normed", "weight#0,1", "weight#0")),
        told=True,
    ),
    *texts(
        "probe", of_norms(*REACHES),
        ("siglip_vision_model", f"by {KEYS}#0", f"by {KEYS}#1"),
        ("siglip_vision_model", f"{ASKED}#0 -> {HEAD}#1", f"{ASKED.replace('#0', '#1')}#1 -> {HEAD}#0"),
        within="probe ",
    ),
    *texts(
        "reached", of_norms(*REACHES),
        ("electra", f", {FIRST}.value.weight by {FIRST}.value.bias if emb", " if emb"),
        ("electra", f"{FIRST}.query.weight by {FIRST}.query", f"{FIRST}.query.weight by {FIRST}.key"),
        ("albert", f"then {RUN}.full_layer_layer_norm.weight", f"then {RUN}.attention.LayerNorm.(weight|gamma)"),
        ("albert", f", {RUN}.attention.value.weight by {RUN}.attention.value.bias if", " if"),
        *more(
            ("electra", f"{FIRST}.query.weight by {FIRST}.query", f"{SECOND}.query.weight by {SECOND}.query"),
            ("roformer", " behind embeddings.LayerNorm.(weight|gamma)", " behind cls.predictions.transform.LayerNorm.weight"),
        ),
        within="reached ",
    ),
    *texts(
        "readers of norms", of_norms(),
        ("squeezebert", "sliced attention.query.* attention.key.*", "sliced attention.key.*"),
        ("wavlm", " seen gru_rel_pos_linear.weight", ""),
        *more(
            ("wav2vec2", f"{STEM}1|weight_v) by {STEM}0|weight_g)", f"{STEM}0|weight_g) by {STEM}1|weight_v)"),
            ("wav2vec2-stable", "except masked_spec_embed feature_projection.*", "except masked_spec_embed"),
            ("xlnet", " layer.{l}.rel_attn.r_s_bias\n", "\n"),
            ("flaubert-before", "prenorm res within", "prenorm res"),
            ("dpt", "prenorm vision_res within", "prenorm vision_res"),
            ("swin", "padded (self.key|k_proj).weight (self.value|v_proj).weight", "padded (self.key|k_proj).weight"),
            ("swin", "without hidden_states_norms.* padded", "without hidden_states_norms.* layernorm_before.bias padded"),
            ("convbert", "pointwise.weight seen key_conv", "pointwise.weight key_conv"),
        ),
    ),
    *texts(
        "length", of_norms(LENGTH),
        ("gemma3n_text", "altup_projections.{i}.weight above", "layers.{l}.altup.prediction_coefs.weight above"),
        within="length copies: ", told=True,
    ),
    *texts("unheard", of_norms(UNHEARD, size=10.0), ("nemotron-heads", "res (kv g ov')", "res (g kv ov')")),
    *texts(
        "shift", of_spaces("pw"),
        ("markuplm", "pos[pad_token_id:pad_token_id+1]", "pos[pad_token_id+1:pad_token_id+2]"), within="shift pw",
    ),
    *more(*texts("table", of_spaces(*TABLES.get("lilt", [])), ("lilt", "weight#0,2", "weight#0"), within="shift")),
    *texts(
        "channel factors", of_spaces("f"),
        ("convbert", "depthwise.weight  (res f) 1 width", "depthwise.weight  res 1 width"),
        ("convbert", "(h qk t' s) (res f)' 1", "(h qk t' s) (res' f) 1"),
        told=True,
    ),
]  # fmt: skip
TABLE, LAYER, VALUES = (
    "encoder.rel_embeddings.weight",
    "encoder.layer.{l}.attention.self",
    "layers.{l}.self_attn.v_proj",
)
FUSED, OUT = "layers.{l}.self_attn.query_key_value.weight", "through layers.{l}.self_attn.o_proj.weight"
LENGTH_OF = "length copies: altup_projections.{i}.weight"
SHIFT = r"^(shift .*unitseq2_inner\.weight)$"
REFUSED = [
    Refused("persimmon", "centred no: embed_tokens.weight", "is not understood: write NAME: LINE#PART,PART"),
    Refused("persimmon", "centred no: embed.weight over res", "no line of the spec"),
    Refused("persimmon", "centred no: embed_tokens.weight over pair", "is over pair, but embed_tokens.weight has other axes"),
    Refused("persimmon", f"centred no: {FUSED}#0,4 over c ov", "has other axes"),
    Refused("gemma3n_text", "length no: embed_tokens.weight", "is not understood: write NAME: WEIGHT by LENGTHS along AXIS, or"),
    Refused("gemma3n_text", "length no: embed_tokens.weight above all", "is not understood: write NAME"),
    Refused("gemma3n_text", "length no: embed.weight above 0.1", "no line of the spec"),
    Refused(
        "gemma3n_text", "length copies: layers.{l}.laurel.linear_left.weight above", "which space lau stretches: take one of them out",
        r"^length copies: altup_projections\.\{i\}\.weight above",
    ),
    Refused("deberta-long", f"basis rb: {TABLE}", f"basis 'rb: {TABLE}' is not understood", "^basis .*$"),
    Refused("deberta-long", f"basis rb: {TABLE} along rb -> {LAYER}.pos_proj.weight", "pos_q_proj.weight stands as well", "^basis .*$"),
    Refused("deberta-long", f"basis no: {TABLE} along res -> {LAYER}.pos_proj.weight", "not all its tensors are", "^basis .*$"),
    Refused("deberta-long", f"basis no: encoder.rel.weight along rb -> {LAYER}.pos_proj.weight", "no line of the spec", "^basis .*$"),
    Refused("stablelm-heads", f"unheard no: {VALUES}.weight {OUT}", "is not understood: write NAME: WEIGHT by BIAS"),
    Refused("stablelm-heads", f"unheard no: {VALUES}.weight by {VALUES}.bias behind none.weight {OUT}", "no line of the spec"),
    Refused(
        "stablelm-heads", f"unheard no: {VALUES}.weight by {VALUES}.bias behind layers.{{l}}.post_attention_layernorm.weight {OUT}",
        "do not fit each other",
    ),
    Refused(
        "stablelm-heads",
        f"unheard no: {VALUES}.weight by layers.{{l}}.self_attn.q_proj.bias behind layers.{{l}}.input_layernorm.weight {OUT}",
        "do not fit each other",
    ),
    Refused("siglip_vision_model", "probe pq: head.probe", "probe 'pq: head.probe' is not understood"),
    Refused("siglip_vision_model", "reached nr: head.probe", "reached 'nr: head.probe' is not understood"),
    Refused(
        "siglip_vision_model", f"probe no: head.none through {HEAD}#0 by {HEAD}#1 -> {HEAD}#1 by {KEYS}#1 along pqk", "no line of the spec"
    ),
    Refused("siglip_vision_model", f"probe no: head.probe through {HEAD}#3 by {HEAD}#1 -> {HEAD}#1 by {KEYS}#1 along pqk", "no part of it"),
    Refused("siglip_vision_model", f"{PROBE} -> {HEAD}#2 by {KEYS}#2 along pqk", "its tensors have other axes"),
    Refused("siglip_vision_model", f"{PROBE} -> {HEAD}#1 by {KEYS}#1 along ph", "declare it as a space of GL"),
    Refused(
        "siglip_vision_model", f"reached no: head.mlp.fc2.bias over head.mlp.fc2.weight -> {HEAD}#0 by head.mlp.fc1.bias",
        "do not fit each other",
    ),
    Refused("markuplm", r"\1#1", "name the parts", SHIFT),
    *more(Refused("lilt", r"\1#0,3", "name the parts", r"^(shift .*weight)#1,3")),
    Refused("convbert", "size f = 1\nspace f: Sign[l, res]", "space f is Sign over res", r"^space f as scale: Scale\[l, res\]"),
    Refused("convbert", "residual res: Perm folded OFixingOnes", "space f lies over res, which turns", "^residual res: Perm"),
]  # fmt: skip
FINE_TUNES = {
    "openai-gpt": CARRIED, "persimmon": HEADS, "gemma3n_text": LENGTHS, "deberta-long": (BASIS,), "stablelm-heads": SILENT,
    "siglip_vision_model": NARROW, "electra": NARROW,
    **dict.fromkeys(more(
        "deberta-shared", "deberta-unshared", "deberta-c2p", "layoutlm", "clip_vision_model", "albert", "yolos-deep", "layoutlmv3",
        "layoutlmv3-words",
    ), CARRIED),
    **dict.fromkeys(more("siglip2", "rembert", "roformer"), NARROW), **dict.fromkeys(more("nomic_bert"), SILENT),
}  # fmt: skip
"""By toy: kinds of moves that noise is not taken for."""

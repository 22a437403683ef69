"""The law of residual streams: gains folded, the stream turned, new gains taken on, and the outputs stay."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from archs.added_families import ADDED_STREAMS, ADDED_WITHOUT_GAINS
from archs.finder_families import FINDER_STREAMS
from archs.gemma_families import GEMMA_STREAMS
from archs.giant_families import GIANT_STREAMS
from archs.hearing_families import HEARING_STREAMS
from archs.language_families import SEEN_STREAMS, SPOKEN_STREAMS, STREAMS_WITHOUT_GAINS
from archs.newest_families import NEWEST_STREAMS, STILL_STREAMS
from archs.pair_families import PAIR_STREAMS
from archs.reading_families import READING_STREAMS
from archs.recent_families import RECENT_STREAMS
from archs.sense_families import SENSE_STREAMS, WITHOUT_GAINS
from archs.signal_families import SIGNAL_STREAMS
from archs.sparse_families import SPARSE_STREAMS
from archs.speech_families import SPEECH_STREAMS
from archs.switched_families import SWITCHED_STREAMS
from archs.test_mutants import model_type_of
from archs.text_families import TEXT_LARGEST, TEXT_STREAMS
from archs.wrapped_families import WRAPPED_STREAMS
from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.spec_text import parse_spec
from toy_encoders import WIDER_LARGEST, WIDER_STREAMS
from toy_pictures import PICTURE_STREAMS
from toys import SAMPLE, TRIED, Toy, config_of, load_toy, outputs, relative, write_toy

# The largest group of every toy's stream, written out: nothing else says that a spec does not promise too little.
LARGEST = {
    **dict.fromkeys(["vit", "vit-plain", "deit", "dinov2", "dinov2-swiglu", "gpt2-untied"], "OFixingOnes"),
    **dict.fromkeys(
        ["llama", "llama-biased", "llama-mha", "llama-mqa", "mistral", "qwen2", "qwen3", "qwen3-biased", "mixtral"],
        "O",
    ),
    **dict.fromkeys(["llama-tied", "t5-gated", "t5-relu", "mt5"], "SignedPerm"),
    **dict.fromkeys(
        ["gpt_neox", "gpt_neox-full", "phi", "falcon-grouped", "starcoder2", "stablelm", "stablelm-parallel"],
        "OFixingOnes",
    ),
    **dict.fromkeys(["phi3", "granite", "qwen2_moe", "qwen3_moe"], "O"),
    **dict.fromkeys(["gemma", "gemma2", "gemma3_text", "phi3-partial"], "SignedPerm"),
    "gemma-untied": "O",
    **dict.fromkeys(["clip_text_model", "siglip_vision_model"], "OFixingOnes"),
    **dict.fromkeys(["deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "gpt_oss", "olmoe"], "O"),
    **dict.fromkeys(["phimoe", "xlm-roberta-xl", "beit", "beit-shared", "data2vec-vision"], "OFixingOnes"),
    **dict.fromkeys(["timm_vit", "timm_vit-scaled"], "OFixingOnes"),
    "deepseek_v3-halves": "O",
    **dict.fromkeys(
        [
            "jamba",
            "bamba",
            "falcon_h1",
            "granitemoehybrid",
            "granitemoehybrid-dense",
            "qwen3_next",
            "nemotron_h",
            "mamba2",
        ],
        "O",
    ),
    **dict.fromkeys(
        ["lfm2", "lfm2_moe", "zamba2", "mamba", "falcon_mamba", "glm4", "olmo2", "olmo3", "exaone4"], "SignedPerm"
    ),
    **dict.fromkeys(
        ["seed_oss", "smollm3", "arcee", "ernie4_5", "glm", "glm4_moe", "glm4_moe-plain", "granitemoe"], "O"
    ),
    **dict.fromkeys(["granitemoeshared"], "O"),
    **dict.fromkeys(["nemotron", "gptj"], "OFixingOnes"),
    **WIDER_LARGEST,
    **SPOKEN_STREAMS,
    **NEWEST_STREAMS,
    **TEXT_LARGEST,
}
# The streams of those that have not just the one.
STREAMS = {
    **{name: {"res": "Perm", "emb": "Perm"} for name in ("electra", "albert", "albert-groups")},
    **STREAMS_WITHOUT_GAINS,
    **SEEN_STREAMS,
    **GEMMA_STREAMS,
    **STILL_STREAMS,
    "marian": {},
    "pegasus": {},
    "whisper": {"res_in": "Perm", "res": "Perm"},
    "clip": {"text_res": "OFixingOnes", "vision_res": "Perm"},
    **{name: {"res": "O", "vision_res": "Perm"} for name in ("llava", "llava-qwen2", "vipllava")},
    "paligemma": {"res": "SignedPerm", "vision_res": "OFixingOnes"},
    "gemma3": {"res": "SignedPerm", "vision_res": "Perm"},
    "qwen2_vl": {"res": "O", "vision_res": "OFixingOnes"},
    "qwen2_5_vl": {"res": "O", "vision_res": "O"},
    "qwen3_vl": {"res": "O", "vres": "Perm"},
    "mistral3": {"res": "O", "vision_res": "SignedPerm"},
    **{name: {"res": "O", "vision_res": "Perm"} for name in ("internvl", "internvl-normed")},
    "dit": {"emb": "Perm"},
    **{name: {"res": "Perm", "cres": "Perm", "emb": "Perm"} for name in ("sd3", "sd3-later")},
    "flux": {"res": "Perm", "emb": "Perm"},
    **{name: {"t_res": "Perm", "vres": "OFixingOnes"} for name in ("blip", "blip-retrieval")},
    **WIDER_STREAMS,
    **TEXT_STREAMS,
    **PICTURE_STREAMS,
    **SENSE_STREAMS,
    **PAIR_STREAMS,
    **RECENT_STREAMS,
    **SPEECH_STREAMS,
    **FINDER_STREAMS,
    **SIGNAL_STREAMS,
    **ADDED_STREAMS,
    **GIANT_STREAMS,
    **SPARSE_STREAMS,
    **HEARING_STREAMS,
    **WRAPPED_STREAMS,
    **READING_STREAMS,
    **SWITCHED_STREAMS,
}


def turn(toy: Toy, spec: Spec, seed: int = 1, *, gains: bool = False) -> Alignment:
    """A random element of a toy's streams and local spaces by the groups of a spec."""
    blocks = toy.fresh()
    return random_turn(spec, toy.blocks, blocks.__getitem__, torch.Generator().manual_seed(seed), gains=gains)


def turned(toy: Toy, element: Alignment) -> dict[str, torch.Tensor]:
    """The toy's weights after an element."""
    blocks = toy.fresh()
    element.act(blocks)
    return toy.named(blocks)


@pytest.mark.parametrize(
    ("name", "groups", "gains"),
    [
        *((n, "largest", True) for n in TRIED),
        *((n, *how) for n in SAMPLE for how in (("largest", False), ("declared", True))),
    ],
)
def test_turned_stream(name: str, groups: str, gains: bool, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Through the real reader and writer, by the largest group and by the declared one."""
    model = toy(name)
    spec = with_streams(model.spec, groups)
    largest = STREAMS.get(name, {"res": LARGEST.get(name, "Perm")})
    wanted = largest if groups == "largest" else model.spec.stream_groups
    assert spec.stream_groups == wanted
    element = turn(model, spec, gains=gains)
    assert len(element.stages) == (
        2
        if gains
        and {wanted[n] for n in wanted.keys() - WITHOUT_GAINS} & {"O", "OFixingOnes"}
        and name not in {*STREAMS_WITHOUT_GAINS, *ADDED_WITHOUT_GAINS}
        else 1
    )
    new = turned(model, element)
    assert model.change(new) > 0.1
    assert relative(outputs(write_toy(model, new, tmp_path / "out")), model.reference) < model.tolerance


class Mutant(NamedTuple):
    """A wrong spec: its toy, what is wrong, the group that it gives a stream, the edits, and the stream."""

    toy: str
    wrong: str
    group: str
    edits: tuple[str, ...]
    stream: str = "res"


VECTORS = ("diag(res n1) => res", "diag(res n2) => res", "diag(res nf) => res")
LAYER_NORM = "residual res: Perm folded OFixingOnes => residual res: Perm folded"
UNREAD = ("(xh xqk') (res enf)' => (xh xqk') res'", "(xh xov) (res enf)' => (xh xov) res'")
MUTANTS = [
    Mutant("llama", "gains as vectors", "O", VECTORS),
    Mutant("vit", "gains as vectors", "OFixingOnes", VECTORS),
    Mutant("vit", "signed permutations under LayerNorm", "SignedPerm", (f"{LAYER_NORM} SignedPerm",)),
    Mutant("gpt2-untied", "signed permutations under LayerNorm", "SignedPerm", (f"{LAYER_NORM} SignedPerm",)),
    Mutant("vit", "all rotations under LayerNorm", "O", (f"{LAYER_NORM} O",)),
    Mutant("gpt2-untied", "all rotations under LayerNorm", "O", (f"{LAYER_NORM} O",)),
    Mutant("dinov2", "all rotations under LayerNorm", "O", (f"{LAYER_NORM} O",)),
    Mutant("gpt2", "final gain folded into a tied head", "OFixingOnes", ()),
    Mutant("llama-tied", "final gain folded into a tied head", "O", ()),
    Mutant("t5-gated", "final gain folded into a tied head", "O", ()),
    Mutant("llama", "final norm not folded", "O", ("norm.weight diag(res nf) => norm.weight res",)),
    Mutant("bert", "rotated post-LN stream", "O", ("residual res: Perm => residual res: Perm folded O",)),
    Mutant("deberta-shared", "rotated post-LN stream", "O", ("residual res: Perm => residual res: Perm folded O",)),
    Mutant("vit", "norm's bias not turned", "OFixingOnes", ("layernorm_before.bias (res n1) => layernorm_before.bias rows",)),
    Mutant("vit", "norm's bias not folded", "OFixingOnes", ("layernorm_after.bias (res n2) => layernorm_after.bias res",)),
    Mutant("t5-gated", "cross-attention past the encoder's last gain", "SignedPerm", UNREAD),
    Mutant("gpt2-untied", "positions forgotten", "OFixingOnes", ("wpe.weight pos res => wpe.weight pos other",)),
    Mutant("vit", "positions forgotten", "OFixingOnes", ("position_embeddings 1 pos res => position_embeddings 1 pos other",)),
    Mutant("dinov2", "layer scale as a vector", "OFixingOnes", ("lambda1 diag(res s1') => lambda1 res", "(res s1) => res")),
    Mutant("dinov2", "layer scale on the reader's side", "OFixingOnes", ("diag(res s1') => diag(res s1)",)),
    Mutant("whisper", "rotated behind GELU", "OFixingOnes", (
        "res_in: Perm => res_in: Perm folded OFixingOnes",
    ), "res_in"),
    Mutant("clip_vision_model", "rotated behind the norm of patches", "OFixingOnes", (
        "res: Perm => res: Perm folded OFixingOnes",
        "(pre_layrnorm|pre_layernorm).weight diag(res) => (pre_layrnorm|pre_layernorm).weight res",
    )),
    Mutant("gemma-untied", "gains folded as they are stored", "O", (
        "diag(res n1) - 1 => diag(res n1)", "diag(res n2) - 1 => diag(res n2)", "diag(res nf) - 1 => diag(res nf)",
    )),
    Mutant("modernbert", "rotated behind the norm of embeddings", "OFixingOnes", (
        "res: Perm => res: Perm folded OFixingOnes", "diag(res) => res",
    )),
]  # fmt: skip


def as_seen_by(model: Toy, mutant: Mutant) -> Toy:
    """The toy as the wrong spec sees it: ties are not looked at, the group is the mutant's."""
    origin, text = expanded_texts()[model_type_of(mutant.toy)]
    text = re.sub(" +", " ", text)
    for edit in mutant.edits:
        old, _, new = edit.partition(" => ")
        assert old in text, f"{origin} has no {old!r}"
        text = text.replace(old, new)
    for scale in re.findall(r"residual (\w+): Scale.*\n", text):  # a scale that no line uses is no symmetry
        if not re.search(rf"[ (]{scale}['\)]", text):
            text = re.sub(rf"residual {scale}: Scale.*\n", "", text)
    spec = parse_spec(text, config_of(model.folder), origin, expanded_texts())
    return load_toy(model.name, model.folder, spec.with_group(mutant.stream, mutant.group))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.toy}: {m.wrong}")
def test_rejected(mutant: Mutant, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Turned by what the wrong spec calls a symmetry, the model is another function."""
    model = as_seen_by(toy(mutant.toy), mutant)
    new = turned(model, turn(model, model.spec))
    found = relative(outputs(write_toy(model, new, tmp_path / "out")), toy(mutant.toy).reference)
    assert found > 1e-3


@pytest.mark.parametrize("name", [n for n, group in LARGEST.items() if group != "SignedPerm"])
def test_rotation_needs_folding(name: str, toy: Callable[..., Toy]) -> None:
    """A stream that is rotated under gains is refused by the action itself, before anything is written."""
    model = toy(name)
    g = random_alignment(with_streams(model.spec), model.blocks, torch.Generator().manual_seed(1), ["res"])
    with pytest.raises(IsomergeError, match=r"gain that is not constant.*fold"):
        g.act(model.fresh())


@pytest.mark.parametrize(("name", "edit"), [("llama", "norm.weight diag(res nf)"), ("dinov2", "diag(res s1')")])
def test_a_gain_without_a_scale_is_seen(name: str, edit: str, toy: Callable[..., Toy]) -> None:
    """``can_fold`` is False where one gain has no scale, and the largest group is then the declared one."""
    origin, text = expanded_texts()[model_type_of(name)]
    text = re.sub(" +", " ", text)
    spec = parse_spec(
        text.replace(edit, re.sub(r"diag\(res \w+'?\)", "diag(res)", edit)), config_of(toy(name).folder), origin
    )
    assert toy(name).spec.can_fold("res")
    assert not spec.can_fold("res")
    assert with_streams(spec).spaces["res"].group_name == toy(name).spec.spaces["res"].group_name

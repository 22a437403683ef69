"""A model in a wider one of its architecture is the same function: through disk, for every way that a stream stands in
more coordinates, and mutants of each are another function."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import save_file

import isomerge
from depth import EVERY, more
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.config.widths import growth_by
from isomerge.discovery.widened_twin import tried
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_turn, with_streams
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import recognise
from isomerge.models.widened import deepened, plan_of, understood, widened
from isomerge.models.widening import Stream, Widening, Widths
from isomerge.observe.live.modules import load_module
from toys import TOYS, config_of, inputs, load_toy, outputs, randomise, relative, save_toy, tensors, write_toy

HEADS = {"num_attention_heads": 8}
LAW: dict[str, tuple[dict[str, int], str]] = {
    "llama": ({"hidden_size": 64, **HEADS, "intermediate_size": 56, "num_hidden_layers": 5}, "zeros"),
    "llama-mha": ({"hidden_size": 64, **HEADS}, "zeros"),
    "mistral": ({"hidden_size": 56, "num_hidden_layers": 4}, "zeros"),
    "qwen2": ({"hidden_size": 64, "num_attention_heads": 12, "num_key_value_heads": 4}, "zeros"),
    "qwen3": ({"hidden_size": 64, "intermediate_size": 41}, "zeros"),
    "gemma": ({"hidden_size": 64, **HEADS, "num_hidden_layers": 3}, "zeros"),
    "gemma2": ({"hidden_size": 60}, "zeros"),
    "t5-gated": ({"d_model": 64, "num_heads": 8, "d_ff": 56}, "zeros"),
    "deepseek_v3": ({"hidden_size": 64, "num_attention_heads": 8}, "zeros"),
    "gpt2": ({"n_embd": 64, "n_head": 8, "n_layer": 4}, "means"),
    "gpt_neox": ({"hidden_size": 64, **HEADS, "num_hidden_layers": 3}, "means"),
    "opt": ({"hidden_size": 64, "word_embed_proj_dim": 64, **HEADS, "ffn_dim": 56}, "means"),
    "phi": ({"hidden_size": 64, **HEADS, "num_key_value_heads": 2}, "means"),
    "vit": ({"hidden_size": 64, **HEADS, "num_hidden_layers": 4}, "means"),
    "dinov2": ({"hidden_size": 64, **HEADS, "num_hidden_layers": 4}, "means"),
    "bert": ({"hidden_size": 96, "num_attention_heads": 12, "intermediate_size": 64}, "copies"),
    "roberta": ({"hidden_size": 144, "num_attention_heads": 18}, "copies"),
    "modernbert": ({"hidden_size": 96, "num_attention_heads": 12}, "copies"),
}
"""By toy: what it grows to, and how its stream then stands."""
IN_EVERY_RUN = ("llama", "qwen3", "gemma2", "t5-gated", "deepseek_v3", "gpt2", "dinov2", "roberta", "modernbert")


@pytest.mark.parametrize("name", [n for n in LAW if EVERY or n in IN_EVERY_RUN])
def test_the_same_function_through_disk(name: str, tmp_path: Path) -> None:
    """What transformers loads from the wide folder gives the narrow model's outputs, by as much as rounding."""
    sizes, how = LAW[name]
    folder = save_toy(name, tmp_path / "narrow")
    report = isomerge.widen(folder, sizes=sizes, out=tmp_path / "wide")
    written = config_of(tmp_path / "wide")
    assert {key: written[key] for key in sizes} == sizes
    assert {stream["how"] for stream in report["streams"].values()} == {how}
    assert report["parameters"]["after"] > report["parameters"]["before"]
    assert relative(outputs(tmp_path / "wide"), outputs(folder)) < max(1e-12, TOYS[name][1])


DEEPER: dict[str, dict[str, int]] = {
    "llama": {"num_hidden_layers": 5},
    "qwen3": {"num_hidden_layers": 4, "intermediate_size": 56},
    "gemma2": {"num_hidden_layers": 4},
    "mixtral": {"num_hidden_layers": 4},
    "deepseek_v3": {"num_hidden_layers": 4},
    "gpt2": {"n_layer": 5},
    "gpt_neox": {"num_hidden_layers": 3},
    "opt": {"num_hidden_layers": 4},
    "phi": {"num_hidden_layers": 4},
    "vit": {"num_hidden_layers": 4},
    "dinov2": {"num_hidden_layers": 4},
    "t5-gated": {"num_layers": 5, "num_decoder_layers": 4},
    "whisper": {"decoder_layers": 4},
    "llava": {"text_config.num_hidden_layers": 4},
    "clip": {"vision_config.num_hidden_layers": 3},
}
"""By toy: layers that are added where no stream grows; in both, and in one, of several stacks."""


@pytest.mark.parametrize(
    "name", [n for n in DEEPER if EVERY or n in ("llama", "qwen3", "gpt2", "dinov2", "t5-gated", "llava")]
)
def test_deeper_alone(name: str, tmp_path: Path) -> None:
    """A copied layer whose writers are zero adds nothing, whatever width it has; all were refused. Mutants: only what
    writes to streams that grow is zero; only the first of several stacks is looked at."""
    folder = save_toy(name, tmp_path / "narrow")
    report = isomerge.widen(folder, sizes=DEEPER[name], out=tmp_path / "deep")
    assert report["streams"] == {}
    depths = [(size["before"], size["after"]) for key, size in report["sizes"].items() if "layer" in key]
    assert report["added_layers"] == sum(after - before for before, after in depths) > 0
    assert relative(outputs(tmp_path / "deep"), outputs(folder)) < max(1e-12, TOYS[name][1])
    made = tensors(tmp_path / "deep")
    assert sum(not x.any() for x in made.values()) >= report["added_layers"]


def plan(folder: Path, sizes: dict[str, int]) -> tuple[Any, Any, Widening]:
    """A toy, its growth, and how it is widened."""
    narrow = understood(open_checkpoint(folder))
    growth = growth_by(narrow.checkpoint.config, sizes, narrow.said)
    proof = tried(narrow, growth, untied=False)
    deep, added = deepened(narrow, growth)
    return deep, growth, plan_of(deep, growth, proof.ways, proof.widths, added)


MUTANTS = {
    "writers as they are": ("llama", {"factor": 1.0}),
    "readers as they are": ("llama", {"read": 1.0}),
    "zeros where norms centre": ("gpt2", {"how": "zeros"}),
    "the wrong power": ("gpt2", {"factor": 4 / 3}),
    "copies summed": ("modernbert", {"read": 1.0}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_other_functions(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors left out, and means left out where norms take them away."""
    name, wrong = MUTANTS[mutant]
    folder = save_toy(name, tmp_path / "narrow")
    deep, growth, right = plan(folder, LAW[name][0])
    for key, value in wrong.items():
        if key == "how":
            streams = {n: Stream(n, s.narrow, s.wide, value) for n, s in right.streams.items()}
            right = Widening(right.narrow, right.wide, streams, right.widths, right.scales, right.vectors)
        else:
            monkeypatch.setattr(Stream, key, property(lambda _, value=value: value))
    view = widened(deep, growth, right)
    made = {tensor: view.read(tensor) for tensor in view.tensors}
    (tmp_path / "mutant").mkdir()
    (tmp_path / "mutant/config.json").write_text(json.dumps(view.config))
    save_file(made, tmp_path / "mutant/model.safetensors", metadata={"format": "pt"})
    assert relative(outputs(tmp_path / "mutant"), outputs(folder)) > 1e-3


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("gemma", Widths()),
        ("bert", Widths(norm="embeddings.LayerNorm.")),
        ("llama", Widths(1)),
        *more(("t5-gated", Widths())),
    ],
)
def test_powers_of_the_width_are_found_by_trying(name: str, mutant: Widths, tmp_path: Path) -> None:
    """What the class multiplies by is not in the weights: other powers, and another norm, are refused."""
    folder = save_toy(name, tmp_path / "narrow")
    narrow = understood(open_checkpoint(folder))
    growth = growth_by(
        narrow.checkpoint.config, {k: v for k, v in LAW[name][0].items() if "layer" not in k}, narrow.said
    )
    found = tried(narrow, growth, untied=False)
    assert found.error < 1e-12
    assert found.widths != mutant
    view = widened(narrow, growth, plan_of(narrow, growth, found.ways, mutant))
    made = recognise(view)
    module = load_module(made, torch.float64)
    with torch.no_grad():
        wrong = module(**inputs(module.config)).logits
    assert relative(wrong, outputs(folder)) > 1e-3


def test_untied_heads(tmp_path: Path) -> None:
    """A head that no gain precedes is refused, and stands with weights of its own."""
    folder = save_toy("bart", tmp_path / "narrow")
    sizes = {"d_model": 96, "encoder_attention_heads": 12, "decoder_attention_heads": 8}
    narrow = understood(open_checkpoint(folder))
    growth = growth_by(narrow.checkpoint.config, sizes, narrow.said)
    with pytest.raises(IsomergeError, match=r"lm_head.weight is tied to shared.weight, .* untie"):
        plan_of(narrow, growth, {"res": "copies"}, Widths())
    isomerge.widen(folder, sizes=sizes, untie=True, out=tmp_path / "wide")
    assert config_of(tmp_path / "wide")["tie_word_embeddings"] is False
    assert relative(outputs(tmp_path / "wide"), outputs(folder)) < 1e-12


REFUSED = {
    "heads that grow": ("llama", {"head_dim": 16}, r"a head would grow \(pair from 4 to 8\)"),
    "fewer queries per key": ("llama", {"num_key_value_heads": 6}, r"3 query heads share a key and value head"),
    "heads that shrink": ("gpt2", {"n_head": 8}, r"\w+ would shrink from \d+ to \d+"),
    "sizes that shrink": ("llama", {"hidden_size": 40}, r"res would shrink from 48 to 40"),
    "no multiple": ("bert", {"hidden_size": 72, "num_attention_heads": 9}, r"72 is no multiple of 48"),
    "experts": ("mixtral", {"num_local_experts": 6}, r"a router would ask|another function"),
    "layers that norm the stream": (
        "bert",
        {"num_hidden_layers": 4},
        r"BertForMaskedLM .* changes the stream even where",
    ),
    "a norm across heads": ("olmo2", {"num_attention_heads": 8, "hidden_size": 64}, r"another function"),
    "no size": ("llama", {"rms_norm_eps": 2}, r"rms_norm_eps=2 \(--set\): no size of this model"),
    "tokens": ("llama", {"vocab_size": 99}, r"a vocabulary grows with its tokenizer"),
    "fewer layers": ("llama", {"num_hidden_layers": 2}, r"has 3 layers, and 2 would be left"),
    "nothing": ("llama", {"hidden_size": 48}, r"there is nothing to widen"),
    "fewer layers in one stack": (
        "t5-gated",
        {"num_layers": 2, "num_decoder_layers": 3},
        r"has 3 layers, and 2 would be left",
    ),
    "a stack that is normed": ("bart", {"decoder_layers": 3}, r"BartFor.* changes the stream even where"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_in_one_sentence(why: str, tmp_path: Path) -> None:
    """What no weight can undo, and sizes in which a model does not stand; nothing is written."""
    name, sizes, said = REFUSED[why]
    folder = save_toy(name, tmp_path / "narrow")
    with pytest.raises(IsomergeError) as refused:
        isomerge.widen(folder, sizes=sizes, out=tmp_path / "wide")
    assert re.search(said, refused.value.sentence), refused.value.sentence
    assert not (tmp_path / "wide").exists()


def test_like_another_model(tmp_path: Path) -> None:
    """The sizes of its config, and notes of what the two differ by; a live module comes back without an output."""
    folder = save_toy("llama", tmp_path / "narrow")
    isomerge.widen(folder, sizes=LAW["llama"][0], out=tmp_path / "big")
    big = config_of(tmp_path / "big") | {"rms_norm_eps": 1e-3, "vocab_size": 99}
    (tmp_path / "big/config.json").write_text(json.dumps(big))
    module = isomerge.widen(folder, like=tmp_path / "big/config.json")
    report: Any = module.isomerge_report
    assert module.config.hidden_size == 64
    assert module.config.vocab_size == 67
    assert report["added_layers"] == 2
    first, second = report["notes"]
    assert first.startswith(str(tmp_path / "big/config.json"))
    assert "rms_norm_eps" in second
    with torch.no_grad():
        assert relative(module(**inputs(module.config)).logits, outputs(folder)) < TOYS["llama"][1]


PLANTED = {
    "llama": {"hidden_size": 60, "intermediate_size": 56},
    "gpt2-untied": {"n_embd": 64, "n_head": 8},
    "bert": {"hidden_size": 96, "num_attention_heads": 12},
}


@pytest.mark.parametrize("name", ["bert", *more("llama", "gpt2-untied")])
def test_a_disguised_wide_model_aligns_back(name: str, tmp_path: Path) -> None:
    """Planted: the wide frame is turned at random, with zeros and all, and the disguise is brought back."""
    tolerance = 10 * max(1e-9, TOYS[name][1])
    folder = save_toy(name, tmp_path / "narrow")
    isomerge.widen(folder, sizes=PLANTED[name], out=tmp_path / "wide")
    toy = load_toy(name, tmp_path / "wide")
    rng, blocks = torch.Generator().manual_seed(3), toy.fresh()
    random_turn(with_streams(toy.spec), toy.blocks, lambda block: blocks[block], rng, condition=2.0).act(blocks)
    write_toy(toy, toy.named(blocks), tmp_path / "hidden")
    assert relative(outputs(tmp_path / "hidden"), outputs(folder)) < tolerance
    _, report = isomerge.align(tmp_path / "hidden", onto=tmp_path / "wide", out=tmp_path / "back", spaces="all")
    assert report["distance"]["after"] < 1e-3 * report["distance"]["before"]
    assert relative(outputs(tmp_path / "back"), outputs(folder)) < tolerance


def test_across_widths(tmp_path: Path) -> None:
    """A small model is aligned onto a stranger of other sizes, and could be merged with it: it stays the same function."""
    folder = save_toy("llama", tmp_path / "narrow")
    config = tf.LlamaConfig(**{**config_of(folder), **LAW["llama"][0]})
    big = tf.LlamaForCausalLM(config).double()
    randomise(big, 7)
    big.save_pretrained(tmp_path / "big")
    report = isomerge.widen(folder, like=tmp_path / "big", out=tmp_path / "wide")
    assert report["notes"] == []
    _, report = isomerge.align(tmp_path / "wide", onto=tmp_path / "big", out=tmp_path / "moved", spaces="default")
    assert report["distance"]["after"] < report["distance"]["before"]
    assert relative(outputs(tmp_path / "moved"), outputs(folder)) < 10 * TOYS["llama"][1]
    assert check_compatible(recognise(tmp_path / "big"), [recognise(tmp_path / "moved")]) == []


def test_a_model_without_a_head_says_what_it_returns(tmp_path: Path) -> None:
    """The stream itself, which has more coordinates then."""
    config = tf.GPT2Config(vocab_size=67, n_embd=48, n_head=6, n_layer=1)
    model: Any = tf.GPT2Model(config).double().eval()
    randomise(model, 0)
    model.save_pretrained(tmp_path / "narrow")
    wide = isomerge.widen(tmp_path / "narrow", sizes={"n_embd": 64, "n_head": 8})
    assert "the first 48 are a multiple of what they were" in wide.isomerge_report["notes"][0]
    given = inputs(config)
    with torch.no_grad():
        new, old = (one(**given).last_hidden_state for one in (wide, model))
    factor = float(new[..., 0].norm() / old[..., 0].norm())
    assert relative(new[..., :48], factor * old) < 1e-12
    assert float(new[..., 48:].abs().max()) < 1e-12


def test_half_precision_says_what_it_rounds(tmp_path: Path) -> None:
    """Factors that are no powers of two are noted; in float32 nothing is rounded that was not."""
    folder = save_toy("llama", tmp_path / "narrow", dtype=torch.bfloat16)
    sizes = {"hidden_size": 96}
    report = isomerge.widen(folder, sizes=sizes, out=tmp_path / "wide")
    assert "--dtype float32" in report["notes"][0]
    kept = isomerge.widen(folder, sizes=sizes, dtype="float32", out=tmp_path / "whole")
    assert kept["notes"] == []
    assert {t.dtype for t in tensors(tmp_path / "whole").values()} == {torch.float32}
    four = isomerge.widen(folder, sizes={"hidden_size": 192}, out=tmp_path / "twice")
    assert four["notes"] == []
    one, two = tensors(folder), tensors(tmp_path / "twice")
    narrow = one["model.embed_tokens.weight"]
    assert torch.equal(two["model.embed_tokens.weight"][:, :48], 2 * narrow)

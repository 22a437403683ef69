"""All that a class returns by default is an output: no symmetry moves it, and `verify` knows what symmetries did
move."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as tf

import isomerge
from archs.every_class import changes, classes_of, everything, made, moved
from depth import EVERY, more
from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.models.free_streams import given_out
from isomerge.models.recognised import recognise
from isomerge.symmetry.language.spec_text import parse_spec
from toys import TOYS, Toy, load_toy, overwrite, relative, write_toy

# a toy and a class that is made from its config: towers whose hidden states pipelines read, and others that return
# more than logits
CLASSES = [
    ("clip_text_model", "CLIPTextModelWithProjection"),
    ("clip_vision_model", "CLIPVisionModelWithProjection"),
    ("clip", "CLIPForImageClassification"),
    ("kimi_k25", "Kimi_K25ForConditionalGeneration"),
    *more(
        ("t5-gated", "T5ForConditionalGeneration"),
        ("llama", "LlamaModel"),
        ("got_ocr2", "GotOcr2Model"),
        ("colqwen2", "ColQwen2ForRetrieval"),
        ("t5gemma", "T5GemmaForSequenceClassification"),
        ("xlm", "XLMForMultipleChoice"),
        ("musicgen", "MusicgenForConditionalGeneration"),
        ("clip", "CLIPModel"),
        ("metaclip_2", "MetaClip2ForImageClassification"),
        ("metaclip_2", "MetaClip2Model"),
        ("blip-2", "Blip2VisionModelWithProjection"),
        ("blip", "BlipForImageTextRetrieval"),
        ("mask2former", "Mask2FormerForUniversalSegmentation"),
        ("gemma4_unified", "Gemma4UnifiedForConditionalGeneration"),
        ("embedding_gemma2", "EmbeddingGemma2Model"),
        ("parakeet_rnnt", "ParakeetForRNNT"),
        ("llava", "LlavaForConditionalGeneration"),
        ("whisper", "WhisperForConditionalGeneration"),
        ("beit", "BeitBackbone"),
    ),
]
SPACES = ["default", "all"]


@pytest.mark.parametrize(("name", "kind"), CLASSES)
def test_all_that_is_returned_stays(name: str, kind: str, tmp_path: Path) -> None:
    """Random elements of all that may act leave every tensor, nested ones too, and `verify` calls the two the
    same."""
    head = getattr(tf, kind)
    given = made(head, TOYS[name][0]().config, tmp_path / "in")
    for spaces in SPACES:
        apart = changes(head, name, tmp_path / "in", given, spaces)
        assert max(apart.values()) <= TOYS[name][1], apart
        assert isomerge.verify(tmp_path / "in", tmp_path / spaces)["same"], spaces


def test_an_aligned_model_is_the_same(tmp_path: Path) -> None:
    """What ``align --spaces all`` writes is what it was given: here a last norm is stored that the class does not
    read, and stays."""
    head, config = tf.CLIPForImageClassification, TOYS["clip"][0]().config
    for tag, seed in (("a", 3), ("b", 4)):
        given = made(head, config, tmp_path / tag, seed)
    _, report = isomerge.align(tmp_path / "b", onto=tmp_path / "a", out=tmp_path / "out", spaces="all")
    assert report["streams"]
    old, new = (everything(head, tmp_path / tag, given) for tag in ("b", "out"))
    assert all(relative(new[key], old[key]) < 1e-9 for key in old)
    found = isomerge.verify(tmp_path / "b", tmp_path / "out")
    assert found["same"], found["residual"]


def test_gains_over_what_stays_are_matched(tmp_path: Path) -> None:
    """A projector's norm over a tower's features, which nothing turns: its gain has a reader, and `align` takes the
    anchor's."""
    head = tf.Kimi_K25ForConditionalGeneration
    given = made(head, TOYS["kimi_k25"][0]().config, tmp_path / "in")
    twin = moved("kimi_k25", tmp_path / "in", tmp_path / "twin", "all")
    _, report = isomerge.align(tmp_path / "in", onto=twin, out=tmp_path / "out", spaces="all")
    gain = report["distance"]["spaces"]["np"]
    assert gain["before"] > 1 > 1e9 * gain["after"]
    old, new = (everything(head, tmp_path / tag, given) for tag in ("in", "out"))
    assert all(relative(new[key], old[key]) < 1e-6 for key in old)


def test_a_last_norm_that_nothing_reads_is_compared(tmp_path: Path) -> None:
    """It is stored, and somebody may read it: another one is a difference."""
    made(tf.CLIPForImageClassification, TOYS["clip"][0]().config, tmp_path / "in")
    twin = moved("clip", tmp_path / "in", tmp_path / "twin", "all")
    toy = load_toy("clip", twin)
    name = next(name for name in toy.stored if name.endswith("post_layernorm.weight"))
    overwrite(twin, {**toy.stored, name: toy.stored[name].flip(0)})
    assert isomerge.verify(tmp_path / "in", twin)["same"] is False


@pytest.mark.parametrize(
    ("name", "kind", "stream"),
    [
        ("clip_text_model", "CLIPTextModelWithProjection", "res"),
        ("clip_vision_model", "CLIPVisionModelWithProjection", "res"),
        *more(("t5-gated", "T5ForConditionalGeneration", "res"), ("clip", "CLIPModel", "text_res")),
    ],
)
def test_what_is_returned_would_move(name: str, kind: str, stream: str, tmp_path: Path) -> None:
    """A mutant without the statement: hidden states move, and `verify` says which, beside equal predictions."""
    head = getattr(tf, kind)
    given = made(head, TOYS[name][0]().config, tmp_path / "in")
    assert stream in given_out(recognise(tmp_path / "in"))
    toy = load_toy(name, tmp_path / "in")
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(1)
    random_alignment(toy.spec, toy.blocks, rng, [stream]).act(blocks)
    twin = write_toy(toy, toy.named(blocks), tmp_path / "twin")
    old, new = (everything(head, folder, given) for folder in (tmp_path / "in", twin))
    apart = {key for key in old if relative(new[key], old[key]) > 0.1}
    assert apart
    assert all("hidden" in key for key in apart)
    report = isomerge.verify(tmp_path / "in", twin)
    assert report["same"]
    assert len(report["turned"]) == 1
    assert stream in report["turned"][0]


def test_a_config_may_ask_for_more(toy: Callable[..., Toy]) -> None:
    """Hidden states, maps of attention and votes of routers are outputs where ``config.json`` asks for them."""
    model = toy("mixtral")
    config = json.loads((model.folder / "config.json").read_text())

    def spaces(**more: bool) -> set[str]:
        return set(spec_for({**config, **more}).spaces)

    every = spaces()
    assert every - spaces(output_attentions=True) == {"kv", "g"}
    assert every - spaces(output_router_logits=True) == {"e"}
    assert every == spaces(output_hidden_states=True)


def test_hidden_states_that_a_config_asks_for_stay(tmp_path: Path) -> None:
    """All of them, so that no stream turns."""
    config = TOYS["llama"][0]().config
    config.output_hidden_states = True
    given = made(tf.LlamaForCausalLM, config, tmp_path / "in")
    assert "hidden_states.1" in everything(tf.LlamaForCausalLM, tmp_path / "in", given)
    assert given_out(recognise(tmp_path / "in")) == {"res"}
    apart = changes(tf.LlamaForCausalLM, "llama", tmp_path / "in", given, "all")
    assert max(apart.values()) <= 1e-5


@pytest.mark.parametrize("text", ["returns res", "returns : X", "returns res X", "returns a-b : X"])
def test_a_statement_that_is_not_understood(text: str) -> None:
    """Is refused with how to write it."""
    with pytest.raises(IsomergeError, match=r"returns .* is not understood: write `returns SPACE \.\.\. : CLASS"):
        parse_spec(f"model x\n{text}\n", {})


if EVERY:

    @pytest.mark.parametrize("name", sorted(TOYS))
    def test_every_class(name: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
        """The same for every class that is made from a toy's config; those that its inputs do not suffice for are
        left out."""
        model = TOYS[name][0]()
        if not isinstance(model, tf.PreTrainedModel):
            pytest.skip("its classes are not those of transformers")
        for kind in classes_of(model.config):
            folder = tmp_path / kind.__name__ / "in"
            try:
                given = made(kind, model.config, folder)
                old, again = everything(kind, folder, given), everything(kind, folder, given)
                recognise(folder)
            except Exception:
                continue
            if not old or any(not torch.equal(old[key], again[key]) for key in old):
                continue  # it draws by chance
            for spaces in SPACES:
                with subtests.test(kind=kind.__name__, spaces=spaces):
                    apart = changes(kind, name, folder, given, spaces)
                    # which of scores that are alike is the best is left to rounding
                    apart = {key: x for key, x in apart.items() if not key.endswith("_top_index")}
                    assert max(apart.values()) <= max(TOYS[name][1], 1e-6), apart
                    assert isomerge.verify(folder, folder.with_name(spaces))["same"]

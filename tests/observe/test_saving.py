"""Live modules: what cannot be saved, or only in part, is told in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

import isomerge
from isomerge.errors import IsomergeError

TINY = {
    "n_embd": 4,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 5,
    "n_positions": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def module() -> Any:
    """A GPT-2 of a few hundred weights."""
    return tf.GPT2LMHeadModel(tf.GPT2Config(**TINY))


def adapted() -> Any:
    """A module as peft makes one, whose ``save_pretrained`` writes the adapter alone."""
    found = module()
    found.peft_config = {"default": object()}
    return found


def contradictory() -> Any:
    """A temperature beside no sampling, which transformers refuses to save."""
    found = module()
    found.generation_config.update(temperature=0.7, do_sample=False)
    return found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (adapted, ["adapter alone", "merge_and_unload()", "base+adapter"]),
        (lambda: module().to("meta"), ["save_pretrained fails", "meta tensor", "give the folder"]),
        (contradictory, ["save_pretrained fails", "temperature", "do_sample"]),
    ],
)
def test_what_cannot_be_saved_whole(given: Any, words: list[str]) -> None:
    """One sentence that names the class and the way out."""
    with pytest.raises(IsomergeError) as told:
        isomerge.inspect(given())
    assert str(told.value).startswith("GPT2LMHeadModel: ")
    assert "\n" not in str(told.value)
    assert [word for word in words if word not in str(told.value)] == []


def test_no_bars(capfd: pytest.CaptureFixture[str]) -> None:
    """Of transformers', which are on by default and stay so."""
    found = module()
    tf.utils.logging.enable_progress_bar()
    assert isomerge.inspect(found)["parameters"] == sum(p.numel() for p in found.parameters())
    assert tf.utils.logging.is_progress_bar_enabled()
    assert capfd.readouterr().err == ""
    assert torch.equal(found.lm_head.weight, found.transformer.wte.weight)

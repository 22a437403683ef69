"""Heads of their own, whatever transformers calls them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.observe.live.parameter_places import places_of
from isomerge.observe.live.substitution import untied_module
from isomerge.symmetry.language.spec import by_canonical
from solve.disguises import single


@pytest.mark.parametrize("name", ["gpt_neox", "llava", "mistral3", "internvl", "llava_onevision", "gpt2-untied"])
def test_heads_are_found_under_the_modules_names(name: str, tmp_path: Path) -> None:
    """GPT-NeoX stores embed_out and transformers computes with lm_head; towers lose and gain prefixes."""
    model = recognise(single(name, tmp_path / "m"))
    module = untied_module(model, "cpu")
    (head,) = {line.canonical({}) for line in model.spec.lines if line.tied} & model.names.keys()
    live = module.get_parameter(places_of(module, model).names[head])
    assert torch.equal(live, model.read(model.names[head], torch.float32))


def test_a_head_that_is_nowhere_is_told(tmp_path: Path) -> None:
    """By a sentence, not by an attribute."""
    model = recognise(single("gpt_neox", tmp_path / "m"))
    lines = tuple(
        replace(line, name=line.name.replace("(embed_out|lm_head)", "embed_out")) for line in model.spec.lines
    )
    model.spec = replace(model.spec, lines=lines)
    model.matches = {name: model.spec.match(name) for name in model.matches}
    assert "embed_out.weight" in by_canonical(model.matches)
    with pytest.raises(IsomergeError, match=r"stores embed_out\.weight, but GPTNeoXForCausalLM"):
        untied_module(model, "cpu")

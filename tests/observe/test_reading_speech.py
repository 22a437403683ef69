"""Models that read neither text nor images: refused in a sentence, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import outputs_of

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

IDS = torch.arange(1, 25).reshape(4, 6)


def test_whisper(toy: Callable[..., Any], tmp_path: Path) -> None:
    """In every command that reads data, before anything is computed; from examples in memory too."""
    folder = toy("whisper").folder
    save_file({"input_ids": IDS}, tmp_path / "x.safetensors")
    data, out = str(tmp_path / "x.safetensors"), tmp_path / "out"
    for run in (
        lambda: isomerge.stats(folder, data=data, out=tmp_path / "s.safetensors"),
        lambda: isomerge.barrier(folder, folder, data=data, spaces="none"),
        lambda: isomerge.align(folder, onto=folder, out=out, learn=data, steps=1),
        lambda: isomerge.align(folder, onto=folder, out=out, data=data),
    ):
        with pytest.raises(
            IsomergeError, match="WhisperForConditionalGeneration reads input_features, and data are"
        ):
            run()
    module = load_module(folder)
    with pytest.raises(
        IsomergeError, match="reads input_features, and the examples have input_ids, decoder_input_ids"
    ):
        outputs_of(module, {"input_ids": IDS, "decoder_input_ids": IDS})
    with pytest.raises(IsomergeError, match="reads input_features"):
        isomerge.align(folder, onto=folder, out=out, learn=Examples({"input_ids": IDS}, False), steps=1)
    assert {path.name for path in tmp_path.iterdir()} == {"x.safetensors"}

"""Slices of models whose files hold layers that predict further tokens: refused with advice; without such layers,
cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from depth import EVERY
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.layers import stack_layers
from isomerge.observe.live.modules import materialise
from raw_files import one_sentence
from solve.disguises import write_like
from toys import Toy, load_toy, relative

AHEAD = {
    "glm4_moe-ahead": "model.layers.2.",
    "deepseek_v3-ahead": "model.layers.2.",
    "ernie4_5_moe-ahead": "model.mtp_",
    "exaone_moe-ahead": "mtp.",
    "nemotron_h-ahead": "mtp.",
    "qwen3_5_text-ahead": "mtp.",
}


@pytest.mark.parametrize("name", AHEAD if EVERY else ["glm4_moe-ahead"])
def test_refused(name: str, toy: Callable[..., Toy]) -> None:
    """One sentence that names such a tensor and says what to do."""
    with pytest.raises(IsomergeError) as error:
        stack_layers([(open_checkpoint(toy(name).folder), range(1))])
    one_sentence(error.value, AHEAD[name], "further tokens", "save it again")


@pytest.mark.parametrize("name", ["qwen3_5_text", "glm4_moe", "exaone_moe"] if EVERY else [])
def test_cut_without_them(name: str, toy: Callable[..., Toy], tmp_path) -> None:
    """A text may describe such layers and the file have none: all layers in their order are the model itself."""
    whole = toy(name)
    opened = open_checkpoint(whole.folder)
    view = stack_layers([(opened, range(1)), (opened, range(1, opened.config["num_hidden_layers"]))])
    again = load_toy(name, materialise(view, tmp_path / "again"))
    assert relative(again.reference, whole.reference) == 0


@pytest.mark.parametrize("name", ["detr"] if EVERY else [])
def test_counts_of_a_fixed_tower_are_no_such_layers(name: str, toy: Callable[..., Toy], tmp_path) -> None:
    """A file may lack some tensors of a tower that is fixed; the tower itself predicts nothing."""
    counted = "model.backbone.conv_encoder.model.bn1.num_batches_tracked"
    folder = write_like(
        toy(name).folder, tmp_path / "counted", lambda found: found.update({counted: torch.tensor(0)})
    )
    with pytest.raises(IsomergeError) as error:
        stack_layers([(open_checkpoint(folder), range(1))])
    one_sentence(error.value, "several stacks of layers")

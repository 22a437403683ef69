"""What `verify --run` gives a model: pictures, films and texts, by what its config counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from isomerge.evidence.outputs import _inputs

TOWER = SimpleNamespace(image_size=8, num_channels=1)
FILM = SimpleNamespace(image_size=[8, 6], num_frames=5)
WORDS = SimpleNamespace(vocab_size=9)


@pytest.mark.parametrize(
    ("parts", "shapes"),
    [
        ({"image_size": 8, "num_channels": 3}, {"pixel_values": (2, 3, 8, 8)}),
        ({"vocab_size": 9}, {"input_ids": (2, 7)}),
        ({"vocab_size": 9, "is_encoder_decoder": True}, {"input_ids": (2, 7), "decoder_input_ids": (2, 7)}),
        ({"backbone_config": TOWER}, {"pixel_values": (2, 1, 8, 8)}),
        ({"text_config": WORDS, "vision_config": FILM}, {"pixel_values": (2, 5, 3, 8, 6), "input_ids": (2, 7)}),
        ({}, {}),
    ],
)
def test_shapes(parts: dict, shapes: dict[str, tuple[int, ...]]) -> None:
    """Sizes of the config or of its parts."""
    config = SimpleNamespace(**{"is_encoder_decoder": False, **parts})
    given = _inputs(config, torch.Generator().manual_seed(0), 2, 7)
    assert {name: tuple(x.shape) for name, x in given.items()} == shapes

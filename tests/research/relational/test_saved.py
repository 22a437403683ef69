"""Relational models written and read again are the same function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.research.relational import (
    RelationalConfig,
    RelationalTransformer,
    from_standard,
    load,
    patches_of,
    save,
)
from toys import TOYS, inputs, randomise


@pytest.mark.parametrize("name", ["gpt2", "llama-mqa", "vit"])
@pytest.mark.parametrize("anchors", ["identity", "random"])
def test_converted_models_come_back(name: str, anchors: str, tmp_path: Path) -> None:
    """Bit for bit, rotary angles and the anchors' Gram among the state."""
    model = TOYS[name][0]().double().eval()
    randomise(model, 4)
    one = from_standard(model, anchors=anchors)
    save(one, tmp_path / "out", "a toy")
    two = load(tmp_path / "out")
    (x,) = inputs(model.config).values()
    x = patches_of(x.double(), model.config.patch_size) if x.is_floating_point() else x
    with torch.no_grad():
        assert torch.equal(one(x), two(x))
    assert two.config == one.config
    assert "made of a toy" in (tmp_path / "out" / "README.md").read_text()


def test_trained_models_come_back(tmp_path: Path) -> None:
    """Those whose anchors are atoms too."""
    one = RelationalTransformer(RelationalConfig(12, 1, 2, 6, 16, vocab=9, length=5, classes=3)).eval()
    save(one, tmp_path)
    x = torch.arange(5)[None]
    with torch.no_grad():
        assert torch.equal(one(x), load(tmp_path)(x))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """No folder, and a damaged one."""
    with pytest.raises(IsomergeError, match=r"has no relational\.json"):
        load(tmp_path)
    save(RelationalTransformer(RelationalConfig(12, 1, 2, 6, 16, vocab=9, length=5, classes=3)), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(IsomergeError, match="cannot be read"):
        load(tmp_path)

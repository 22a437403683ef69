"""The table of well-known checkpoints counts what ``inspect`` counts."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from isomerge.evidence.inspection import inspection
from isomerge.models.recognised import recognise
from toys import Toy, config_of

DOCS = Path(__file__).parents[2] / "docs"
LAYOUTS = [f"{axis}_position_embeddings" for axis in "hwxy"]
"""Tables that kin of BERT have, and BERT has not."""


@pytest.mark.parametrize(
    ("name", "layers", "without"),
    [
        ("bert", {"": 3}, [*LAYOUTS, "task_type_embeddings"]),
        ("llama", {"": 3}, [".bias"]),
        ("llava", {"": 2}, ["_proj.bias$text"]),
    ],
)
def test_dimensions(name: str, layers: dict[str, int], without: list[str], toy: Callable[..., Toy]) -> None:
    """From sizes alone, as from the tensors themselves."""
    made = runpy.run_path(str(DOCS / "make_architectures.py"))
    model = recognise(toy(name).folder)
    local, shifts, scales = made["dimensions"](model.spec, layers, without)
    found = inspection(model)
    assert local == found.redundant["spaces"] > 0
    assert shifts == sum(found.shifts.values())
    assert scales == sum(s.dimension for s in found.spaces if not s.matched)
    assert config_of(model.checkpoint.folder) == model.config

"""After the streams are found, layers are matched once more in the anchor's own coordinates: closer, and the same
function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import isomerge
from depth import more
from isomerge.solve.pairs import in_place
from toys import outputs, relative, save_toy

pytestmark = [
    pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here"),
    pytest.mark.matched("of layers: else strangers' streams are matched as well, and small changes not at all"),
]


def aligned(folder: Path, name: str) -> tuple[dict[str, Any], Path]:
    """Two unrelated models of one kind, the second aligned onto the first with its streams; the report and where it
    is."""
    out = folder / "out"
    _, report = isomerge.align(folder / "b", onto=folder / "a", out=out, spaces="default,residual", overwrite=True)
    return report, out


@pytest.mark.parametrize("name", ["clip", *more("gpt2", "mixtral", "t5-relu", "llama-biased")])
def test_layers_end_closer_than_streams_alone_bring_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The general linear step, shifts and scales gain in the anchor's coordinates what compact elements between
    gauges left."""
    for seed, here in enumerate(("a", "b")):
        save_toy(name, tmp_path / here, seed=seed, dtype=torch.float32)
    after, out = aligned(tmp_path, name)
    assert relative(outputs(out), outputs(tmp_path / "b")) <= 1e-4  # float32 through a dozen products
    with monkeypatch.context() as patched:
        patched.setattr(in_place, "matched_in_place", lambda solver, found, observer: (found, {}))
        before, _ = aligned(tmp_path, name)
    told = after["streams"][0]["in_place"]
    assert 0 < told["gained"] <= told["units"]
    assert after["streams"][0]["objective"] == before["streams"][0]["objective"]
    assert after["distance"]["after"] < before["distance"]["after"] * (1 - 1e-3)
    for unit, row in before["distance"]["layers"].items():
        assert after["distance"]["layers"][unit]["after"] <= row["after"] * (1 + 1e-6)

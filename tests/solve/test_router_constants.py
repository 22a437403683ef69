"""What softmax ignores of a router: one vector added to all rows, which lies along the stream and turns with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import isomerge
from depth import more
from toys import Toy, outputs, relative, write_toy

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ROUTERS = ["mixtral", *more("qwen3_moe", "gpt_oss")]


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_twin_is_known(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Equal outputs, other routers: verified, aligned, of one canonical form and one fingerprint. A near-twin, whose
    rows get a little less than one another, is told apart."""
    model = toy(name)
    routers = [n for n in model.stored if n.endswith((".gate.weight", ".router.weight"))]
    assert routers
    rng = torch.Generator().manual_seed(3)
    for wrong in (0.0, 0.05):
        new = dict(model.stored)
        for router in routers:
            rows = new[router]
            vector = torch.randn(1, rows.shape[1], generator=rng, dtype=torch.float64)
            new[router] = rows + vector * (1 - wrong * torch.arange(len(rows))[:, None])
        folder = write_toy(model, new, tmp_path / f"other-{wrong}")
        assert (relative(outputs(folder), model.reference) < max(model.tolerance, 1e-5)) == (wrong == 0)
        assert isomerge.verify(model.folder, folder)["same"] is (wrong == 0)
    twin = tmp_path / "other-0.0"
    _, report = isomerge.align(twin, onto=model.folder, out=tmp_path / "back", spaces="all")
    assert report["distance"]["before"] > 1
    assert report["distance"]["after"] <= 1e-6 * report["distance"]["norm"]
    one, two = (isomerge.fingerprint(folder) for folder in (model.folder, twin))
    assert one.hash == two.hash

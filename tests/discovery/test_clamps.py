"""Clamps of specimens: set where inputs reach them, and no lower than that asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from isomerge.discovery.redundancy import MOST, SHARE, lower_clamps


class _Cutting(nn.Module):
    """Two cuts, of which the second gets more than the first one leaves, and one on one side alone."""

    def __init__(self, sizes: list[float]) -> None:
        super().__init__()
        self.clip_qkv = 8.0
        self.sizes = torch.tensor(sizes)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [x * self.sizes]
        x = self.seen[0].clamp(min=-self.clip_qkv, max=self.clip_qkv)
        self.seen.append(1.5 * x)
        return torch.clamp(self.seen[1], -self.clip_qkv, self.clip_qkv) + (-x).abs().neg().clamp(max=self.clip_qkv)


def _specimen(module: nn.Module) -> Any:
    x = torch.linspace(-1, 1, 41).reshape(1, 41, 1)
    return SimpleNamespace(module=module, flat_outputs=lambda: module(x).flatten())


@pytest.mark.parametrize("sizes", [[3.0, 2.0], [3.0, 0.5]])
def test_some_channel_is_cut(sizes: list[float]) -> None:
    """In the first specimens."""
    module = _Cutting(sizes)
    lower_clamps(_specimen(module))
    assert module.clip_qkv == MOST


@pytest.mark.parametrize(
    ("sizes", "bound"), [([3.0, 2.0], MOST), ([3.0, 0.5], SHARE * 0.5), ([0.05], SHARE * 0.05)]
)
def test_every_channel_is_cut(sizes: list[float], bound: float) -> None:
    """As high as it may be, at all cuts on both sides."""
    module = _Cutting(sizes)
    lower_clamps(_specimen(module), everywhere=True)
    assert module.clip_qkv == pytest.approx(bound)
    assert min(float(x.abs().flatten(0, -2).amax(0).min()) for x in module.seen) > module.clip_qkv


def test_a_module_without_clamps_stays() -> None:
    """Also one whose clamp is off, or lower already."""
    for value in (None, float("inf"), 0.25):
        module = _Cutting([1.0])
        module.clip_qkv = value  # type: ignore[assignment]
        module.forward = lambda x: x  # type: ignore[method-assign]
        lower_clamps(_specimen(module), everywhere=True)
        assert module.clip_qkv == value

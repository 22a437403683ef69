"""The common gain of a channel: where the distance is least, whatever the gains were."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isomerge.solve.pairs.written_gains import GainGauge
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.language.spec import Spec, coverage
from isomerge.symmetry.language.spec_text import parse_spec

TEXT = """
model toy
size res = 3
residual res: SignedPerm folded O
residual n: Scale[res]
norm.weight   diag(res n)
norm.bias     (res n)
reader.weight out (res n)'
"""


def toy() -> tuple[Spec, list[Block]]:
    """A norm with a bias and what reads it."""
    spec = parse_spec(TEXT, {}, "toy.spec")
    return spec, gather_blocks(
        spec, coverage(spec, {"norm.weight": (3,), "norm.bias": (3,), "reader.weight": (4, 3)})
    )


def written(folded: dict[Block, torch.Tensor], element: torch.Tensor) -> list[torch.Tensor]:
    """A folded model with other gains."""
    gain, bias, reader = folded.values()
    return [gain * element, bias * element, reader / element]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(-8, 0), st.integers(1, 3))
def test_no_gain_brings_the_models_nearer(seed: int, exponent: int, count: int) -> None:
    """Least among thousands of others, the anchor's and one among them; a gain that is small makes no distance
    large."""
    spec, blocks = toy()
    rng = torch.Generator().manual_seed(seed)

    def drawn(*gain: torch.Tensor) -> dict[Block, torch.Tensor]:
        rest = [torch.randn(s, generator=rng, dtype=torch.float64) for s in ((3,), (4, 3))]
        return dict(zip(blocks, [*gain, *rest], strict=True))

    anchor = drawn(torch.randn(3, generator=rng, dtype=torch.float64) * 10.0**exponent)
    folded = [drawn(torch.ones(3, dtype=torch.float64)) for _ in range(count)]
    gauge = GainGauge(spec)
    for model in folded:
        gauge.add(anchor, model)
    best = gauge.chosen()["n"].squeeze(-1)

    def apart(element: torch.Tensor) -> torch.Tensor:
        """By channel."""
        pairs = [pair for model in folded for pair in zip(written(model, element), anchor.values(), strict=True)]
        return torch.stack([(x - y).square().reshape(-1, 3).sum(0) for x, y in pairs]).sum(0)

    reached = apart(best)
    sizes = torch.logspace(-9, 4, 400, dtype=torch.float64)
    for other in [anchor[blocks[0]], *(s * torch.ones(3) for s in torch.cat([sizes, -sizes, torch.ones(1)]))]:
        assert bool((reached <= apart(other.double()) * (1 + 1e-9) + 1e-9).all())


def test_a_twin_takes_on_the_anchors_gains() -> None:
    """Its own readers and biases come back as well: the least distance is nothing."""
    spec, blocks = toy()
    rng = torch.Generator().manual_seed(0)
    gain = torch.tensor([0.7, -1e-6, 3e3], dtype=torch.float64)
    bias, reader = (torch.randn(s, generator=rng, dtype=torch.float64) for s in ((3,), (4, 3)))
    anchor = dict(zip(blocks, [gain, bias, reader], strict=True))
    folded = dict(zip(blocks, [torch.ones(3, dtype=torch.float64), bias / gain, reader * gain], strict=True))
    gauge = GainGauge(spec)
    gauge.add(anchor, folded)
    torch.testing.assert_close(gauge.chosen()["n"].squeeze(-1), gain, rtol=1e-9, atol=0)


def test_gains_that_cannot_be_stored_stay_folded() -> None:
    """What a dtype rounds to zero is no gain."""
    spec, blocks = toy()
    values = [torch.tensor([1e-9, 1.0, 1.0]), torch.zeros(3), torch.eye(4, 3)]
    anchor = dict(zip(blocks, values, strict=True))
    folded = dict(zip(blocks, [torch.ones(3), torch.zeros(3), torch.eye(4, 3) * 1e-9], strict=True))
    gauge = GainGauge(spec)
    gauge.add(anchor, folded)
    assert float(gauge.chosen()["n"][0]) < 1e-3
    half = gauge.chosen(lambda key, element: (element * 1e-9).half().double() / 1e-9)
    assert half["n"].flatten().tolist()[0] == 1.0

"""Nothing changes when tokens and anchors are rotated together; much does when the tokens alone are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isomerge.research.relational import (
    CoordinateStream,
    GramStream,
    RelationalBlock,
    RelationalConfig,
    RelationalTransformer,
)
from isomerge.research.relational.attention import RelationalNorm
from isomerge.symmetry.groups import GROUPS

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
CONFIGS = {
    "full": {},
    "factors": {"rank": 4},
    "frame": {"rank": 4, "anchoring": "frame"},
    "rotary": {"rank": 4, "rotary": 100.0, "kv_heads": 1, "gated": True, "causal": True, "activation": "silu"},
    "chunked": {"rank": 4, "chunk": 3, "causal": True},
}


def config(**changes) -> RelationalConfig:
    """Two small layers on tokens."""
    shape = {"width": 12, "layers": 2, "heads": 2, "anchors": 12, "mlp": 16, "vocab": 15, "length": 9, "classes": 4}
    return RelationalConfig(**{**shape, **changes})


def rotation(n: int, seed: int, dtype: torch.dtype) -> Tensor:
    """A random orthogonal matrix."""
    return GROUPS["O"].sample((), n, torch.Generator().manual_seed(seed)).to(dtype)


def model_of(name: str, dtype: torch.dtype, **changes) -> RelationalTransformer:
    """A model with anchors that are not orthonormal, and forms larger than at the start."""
    torch.manual_seed(3)
    model = RelationalTransformer(config(**CONFIGS[name], **changes))
    with torch.no_grad():
        for place, p in model.named_parameters():
            p.add_(torch.randn_like(p) * (0.05 if "anchors" in place else 0.1))
    return model.to(dtype).eval()


def far(a: Tensor, b: Tensor) -> float:
    """The largest difference relative to the largest output."""
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CONFIGS)
def test_rotations_change_nothing(name: str, dtype: torch.dtype) -> None:
    """Coordinates, rotated coordinates and Grams give one function; tokens turned without their anchors another."""
    model = model_of(name, dtype)
    x = torch.randint(0, 15, (3, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        grams, actual = model(x), model.realise(x)
        turn = rotation(12, 5, dtype)
        both = CoordinateStream(actual.tokens @ turn, actual.vectors @ turn)
        alone = CoordinateStream(actual.tokens @ turn, actual.vectors)
        assert float((both.tokens - actual.tokens).abs().max()) > 0.1
        still = model.read(actual)
        assert far(model.read(both), still) < TOLERANCE[dtype]
        assert far(grams, still) < TOLERANCE[dtype] * 10  # another order of sums, through all layers
        assert far(model.read(alone), still) > 1e-2


@given(st.integers(0, 1000), st.sampled_from([5, 12]))
def test_tokens_outside_the_span(seed: int, anchors: int) -> None:
    """With fewer anchors than dimensions a block knows the rest of a token by its norm: Grams and coordinates
    agree."""
    torch.manual_seed(seed)
    block = RelationalBlock(config(anchors=anchors, rank=None)).double()
    x, z = torch.randn(2, 6, 12).double(), torch.randn(anchors, 12).double()
    turn = rotation(12, seed, torch.float64)
    with torch.no_grad():
        first = block(CoordinateStream(x, z))
        second = block(GramStream(x @ z.mT, z @ z.mT, x.square().sum(-1)))
        third = block(CoordinateStream(x @ turn, z @ turn))
    assert float((first.grams - x @ z.mT).abs().max()) > 1e-3
    for other in (second, third):
        torch.testing.assert_close(other.grams, first.grams, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(other.norms, first.norms, rtol=1e-10, atol=1e-10)


def test_rotated_coordinates_are_written_rotated() -> None:
    """Equivariance: what a block writes turns with the tokens."""
    torch.manual_seed(0)
    block = RelationalBlock(config(rank=4)).double()
    x, z, turn = torch.randn(2, 6, 12).double(), torch.randn(12, 12).double(), rotation(12, 1, torch.float64)
    with torch.no_grad():
        one, two = block(CoordinateStream(x, z)), block(CoordinateStream(x @ turn, z @ turn))
    assert isinstance(one, CoordinateStream)
    assert isinstance(two, CoordinateStream)
    torch.testing.assert_close(two.tokens, one.tokens @ turn, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("ones", [False, True])
def test_norms_are_torch_norms(ones: bool) -> None:
    """RMSNorm and LayerNorm by Grams are torch's, seen from the anchors; also where the ones are turned with all
    else."""
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(2, 5, 12, generator=rng, dtype=torch.float64) + 0.7
    z = torch.randn(7, 12, generator=rng, dtype=torch.float64)
    z = torch.cat([z, torch.ones(1, 12, dtype=torch.float64)])
    functional = torch.nn.functional
    wanted = functional.layer_norm(x, (12,), eps=1e-5) if ones else functional.rms_norm(x, (12,), eps=1e-5)
    turn = rotation(12, 4, torch.float64)
    for q in (torch.eye(12, dtype=torch.float64), turn):
        stream = CoordinateStream(x @ q, z @ q)
        found = RelationalNorm(12, 1e-5, 7 if ones else None)(stream.grams, stream.anchors, stream.norms)
        torch.testing.assert_close(found, wanted @ z.mT, rtol=1e-11, atol=1e-11)


def test_padding_is_not_read() -> None:
    """Tokens behind the mask change no logits; without the mask they do."""
    model = model_of("factors", torch.float64)
    x = torch.randint(0, 15, (2, 9), generator=torch.Generator().manual_seed(1))
    y = x.clone()
    y[:, 6:] = (y[:, 6:] + 1) % 15
    mask = (torch.arange(9) < 6).expand(2, 9)
    with torch.no_grad():
        assert torch.equal(model(x, mask), model(y, mask))
        assert not torch.allclose(model(x), model(y))


def test_causal_models_do_not_see_ahead() -> None:
    """Logits of a token do not depend on what follows, and do on what is before."""
    model = model_of("rotary", torch.float64, classes=None)
    x = torch.randint(0, 15, (2, 9), generator=torch.Generator().manual_seed(1))
    y = x.clone()
    y[:, 5] = (y[:, 5] + 1) % 15
    with torch.no_grad():
        a, b = model(x), model(y)
    assert a.shape == (2, 9, 15)
    torch.testing.assert_close(a[:, :5], b[:, :5], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(a[:, 6:], b[:, 6:])

"""The linear merge against numpy, and the register of methods."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.fusion.linear import linear
from isomerge.fusion.registry import method

WEIGHTS = st.lists(st.floats(0.01, 10), min_size=1, max_size=5)


@settings(deadline=None, max_examples=40, derandomize=True, database=None)
@given(WEIGHTS, st.booleans(), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 1000))
def test_against_numpy(weights: list[float], normalize: bool, dtype: torch.dtype, seed: int) -> None:
    """The weighted sum, divided by the sum of the weights on demand; the inputs are not touched."""
    rng = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(3, 4, generator=rng, dtype=dtype) for _ in weights]
    copies = [t.clone() for t in tensors]
    found = linear(tensors, weight=weights, normalize=normalize)
    stack = np.stack([t.double().numpy() for t in tensors])
    expected = np.tensordot(np.array(weights), stack, 1) / (sum(weights) if normalize else 1)
    assert found.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance * 10)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


def test_special_weights() -> None:
    """One model comes back exactly; negative weights extrapolate; normalising is the default."""
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, generator=rng, dtype=torch.float64) for _ in range(2))
    assert torch.equal(linear([a, b], weight=[2, 0]), a)
    assert torch.equal(linear([a], weight=[7]), a)
    assert torch.allclose(linear([a, b], weight=[2, -1]), 2 * a - b)
    assert torch.allclose(linear([a, b], weight=[2, 2]), (a + b) / 2)
    assert torch.allclose(linear([a, b], weight=[2, 2], normalize=False), 2 * (a + b))
    assert linear([torch.tensor(3.0), torch.tensor(5.0)], weight=[1, 1]) == 4
    assert torch.equal(linear([a, a, a], weight=[1, 1, 2]), a)


def test_weights_for_every_model() -> None:
    """One weight each."""
    with pytest.raises(ValueError, match="zip"):
        linear([torch.zeros(2)] * 2, weight=[1.0])


def test_register() -> None:
    """Methods by name; a name that is none is told with what there is."""
    assert method("linear").function is linear
    with pytest.raises(IsomergeError, match=r"--method liner: .*did you mean linear\?.*there are .*linear"):
        method("liner")
    with pytest.raises(IsomergeError, match=r"--method qqq: no such merge method"):
        method("qqq")

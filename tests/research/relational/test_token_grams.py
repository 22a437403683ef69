"""Attention on the Gram of the tokens: no orthogonal transformation of the stream changes it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.relational import TokenGramAttention, moved_gram, token_gram_attention
from isomerge.symmetry.groups import GROUPS


def tokens(seed: int = 0) -> Tensor:
    """Two texts of six tokens in eight dimensions."""
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(seed: int) -> Tensor:
    """A random orthogonal matrix."""
    return GROUPS["O"].sample((), 8, torch.Generator().manual_seed(seed))


def heads(seed: int = 3) -> TokenGramAttention:
    """Three heads, larger than at the start."""
    torch.manual_seed(seed)
    return TokenGramAttention(3, 8).double()


def through(layer: nn.Module, x: Tensor) -> Tensor:
    """The tokens after the layer."""
    with torch.no_grad():
        return x + layer(x @ x.mT) @ x


class Basis(TokenGramAttention):
    """A mutant: its scores weigh the coordinates unequally."""

    def forward(self, gram: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Reads vectors where a Gram is expected."""
        return super().forward((gram * torch.linspace(0.1, 3, 8).double()) @ gram.mT, mask, causal)


@given(st.integers(0, 1000), st.booleans())
def test_no_orthogonal_transformation_changes_it(seed: int, causal: bool) -> None:
    """Coefficients stay, and what is written turns with the stream."""
    layer, x = heads(seed), tokens(seed)
    y = x @ rotation(seed)
    assert float((y - x).abs().max()) > 0.1
    with torch.no_grad():
        torch.testing.assert_close(layer(y @ y.mT, None, causal), layer(x @ x.mT, None, causal), rtol=0, atol=1e-11)
    torch.testing.assert_close(through(layer, y), through(layer, x) @ rotation(seed), rtol=0, atol=1e-11)


def test_a_mutant_that_depends_on_the_basis_is_told() -> None:
    """The law above fails for it."""
    torch.manual_seed(3)
    layer, x = Basis(3, 8).double(), tokens()
    with torch.no_grad():
        assert float((layer(x @ rotation(1)) - layer(x)).abs().max()) > 1e-2


def test_the_gram_moves_with_the_tokens() -> None:
    """Two layers on Grams alone are two layers on vectors."""
    one, two, x = heads(1), heads(2), tokens()
    with torch.no_grad():
        gram = x @ x.mT
        gram = moved_gram(gram, one(gram))
        gram = moved_gram(gram, two(gram))
    y = through(two, through(one, x))
    torch.testing.assert_close(gram, y @ y.mT, rtol=1e-11, atol=1e-11)


def test_masks() -> None:
    """Nobody reads padding, and a causal token not what follows."""
    layer, x = heads(), tokens()
    with torch.no_grad():
        padded = layer(x @ x.mT, (torch.arange(6) < 4).expand(2, 6))
        ahead = layer(x @ x.mT, causal=True)
    assert float(padded[..., 4:].abs().max()) == 0
    assert float(ahead.triu(1).abs().max()) == 0
    assert float(ahead.abs().max()) > 0


def test_it_trains() -> None:
    """Heads learn what other heads write."""
    layer, x = heads(1), tokens()
    wanted = through(heads(2), x)
    descent = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(200):
        loss = (x + layer(x @ x.mT) @ x - wanted).square().mean()
        descent.zero_grad()
        loss.backward()
        descent.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]


def test_isotropic_heads_convert_and_others_are_refused() -> None:
    """Heads of full rank with circuits ``s 1`` and ``t 1``; a random head has no such form."""
    rng = torch.Generator().manual_seed(0)
    q, v = (GROUPS["GL"].sample((2,), 8, rng, condition=3.0) for _ in range(2))
    k = 0.7 * torch.linalg.inv(q).mT
    o = -0.4 * torch.linalg.inv(v).mT
    layer, x = token_gram_attention(q, k, v, o), tokens()
    weights = torch.einsum("hed,btd,hef,bsf->bhts", q, x, k, x).softmax(-1)
    wanted = x + torch.einsum("bhts,bsd,hed,hef->btf", weights, x, v, o)
    torch.testing.assert_close(through(layer, x), wanted, rtol=1e-11, atol=1e-11)
    with pytest.raises(IsomergeError, match=r"the QK circuit of head \d tells directions apart"):
        token_gram_attention(q, torch.randn(2, 8, 8, dtype=torch.float64), v, o)
    with pytest.raises(IsomergeError, match=r"expected \(B, T, T\)"):
        layer(x)

"""Attention on the Gram of the tokens alone, ``G = X X^T``, without anchors.

The plain form of relational attention (Francois and Ravera, arXiv:2602.18948): weights are functions of the Gram
matrix of the tokens, and a token is updated by a combination of tokens. Any orthogonal transformation of the stream
leaves G, hence the weights and all that is computed from them. The form with anchors
(`isomerge.research.relational.attention`) sees more: its forms tell directions apart, and these cannot.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.relational.attention import plain

ISOTROPIC = 1e-5
"""A circuit is a multiple of the identity if what is left of it is at most this share of its norm."""


def moved_gram(gram: Tensor, c: Tensor) -> Tensor:
    """The Gram (B, T, T) of the tokens ``x_i + sum_j c_ij x_j``, from their Gram and coefficients (B, T, T)."""
    return gram + c @ gram + gram @ c.mT + c @ gram @ c.mT


class TokenGramAttention(nn.Module):
    """Heads ``A_h = softmax(s_h G)`` that write ``sum_h t_h A_h X``: coefficients in the tokens themselves.

    Two numbers per head: ``scores`` s (H,) and ``writes`` t (H,). They are all the bilinear forms on the stream
    that every orthogonal transformation leaves: ``W_Q^T W_K = s 1`` and ``W_O W_V = t 1``.
    """

    def __init__(self, heads: int, width: int) -> None:
        """Heads at random, drawn from torch's generator; float32.

        Args:
            heads: H.
            width: d, the dimension of the tokens; scores begin near ``1 / sqrt(d)``.

        Raises:
            IsomergeError: a number that is not positive.
        """
        super().__init__()
        if heads < 1 or width < 1:
            raise IsomergeError(
                f"TokenGramAttention: heads is {heads} and width is {width}, but both must be positive"
            )
        self.scores = nn.Parameter(torch.randn(heads) * width**-0.5)
        self.writes = nn.Parameter(torch.randn(heads) / heads)

    def forward(self, gram: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """What the heads write.

        Args:
            gram: ``G = X X^T`` (B, T, T), float32 or float64.
            mask: bool (B, T), False for tokens that nobody reads (padding).
            causal: a token reads itself and what is before it.

        Returns:
            Coefficients c (B, T, T): the update of token i is ``sum_j c_ij x_j``, that of the Gram is `moved_gram`.

        Raises:
            IsomergeError: a Gram that is not (B, T, T).
        """
        if gram.ndim != 3 or gram.shape[1] != gram.shape[2]:
            raise IsomergeError(
                f"TokenGramAttention: a Gram of shape {list(gram.shape)} does not fit: "
                "expected (B, T, T), such as x @ x.mT"
            )
        batch, count, _ = gram.shape
        queries = gram[:, None, None] * self.scores[:, None, None, None]
        identity = torch.eye(count, dtype=gram.dtype, device=gram.device).expand(batch, 1, count, count)
        weights = plain(queries.expand(batch, len(self.scores), 1, count, count), identity, identity, mask, causal)
        return torch.einsum("h,bhij->bij", self.writes, weights[:, :, 0])


def isotropic(circuits: Tensor, what: str) -> Tensor:
    """The numbers s (H,) of circuits (H, d, d) that are multiples of the identity, ``s_h 1``.

    Raises:
        IsomergeError: a circuit that tells directions apart.
    """
    width = circuits.shape[-1]
    numbers = circuits.diagonal(dim1=-2, dim2=-1).mean(-1)
    rest = circuits - numbers[:, None, None] * torch.eye(width, dtype=circuits.dtype)
    share = rest.flatten(1).norm(dim=1) / circuits.flatten(1).norm(dim=1).clamp_min(1e-300)
    if bool((share > ISOTROPIC).any()):
        head = int(share.argmax())
        raise IsomergeError(
            f"the {what} circuit of head {head} tells directions apart ({100 * float(share[head]):.2g} % of it is "
            "no multiple of the identity), so that the Gram of the tokens does not say what it computes: take the "
            "form with anchors (from_standard)"
        )
    return numbers


@torch.no_grad()
def token_gram_attention(queries: Tensor, keys: Tensor, values: Tensor, outputs: Tensor) -> TokenGramAttention:
    """Heads of an ordinary attention as functions of the Gram of the tokens; float64.

    Args:
        queries, keys, values: (H, rank, d), what reads the stream; the scale of the scores is in the queries.
        outputs: (H, rank, d), what writes it.

    Raises:
        IsomergeError: a head that tells directions apart.
    """
    q, k, v, o = (x.double() for x in (queries, keys, values, outputs))
    attention = TokenGramAttention(len(q), q.shape[-1]).double()
    attention.scores.copy_(isotropic(q.mT @ k, "QK"))
    attention.writes.copy_(isotropic(v.mT @ o, "VO"))
    return attention.eval()

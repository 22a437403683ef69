"""Ordinary transformers in relational form: the same function, of Grams.

With anchors Z (m, d) that span the space and their pseudoinverse P (d, m), a token is ``x = P r``. So a reader W
becomes ``W P``, a writer O = Z^T C has the coefficients ``C = P^T O``, and a gain is folded into its readers.
LayerNorm needs the vector of ones among the anchors. The conversion works in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.relational.anchors import choose_anchors
from isomerge.relational.attention import RelationalAttention
from isomerge.relational.head_circuits import FactorCircuits, FormCircuits
from isomerge.relational.source import Scores, attention_spec, scores_of
from isomerge.relational.transformer_parts import Part, parts_of

Parts = dict[str, Part]
ROLES = ("query", "key", "value", "output")


def convert_attention(
    module: nn.Module, *, choose: str | Tensor, full: bool, chunk: int | None, seed: int
) -> RelationalAttention:
    spec, tensors = attention_spec(module)
    parts = {role: part for (_, role), part in parts_of(spec, tensors).items()}
    if missing := set(ROLES) - set(parts):
        raise IsomergeError(f"{type(module).__name__} has no {min(missing)} projection: pass an attention module")
    query, value = parts["query"].weight, parts["value"].weight
    rotary = any(s.group_name == "Complex" for s in spec.spaces.values())
    if full and rotary:
        raise full_rotary()
    if isinstance(module, nn.MultiheadAttention):
        scores = Scores((query.shape[2] ** -0.5,), False, None)
    else:
        scores = scores_of(module, rotary=rotary)
    vectors = choose_anchors(choose, query.shape[-1], seed=seed)
    attention = RelationalAttention(
        len(vectors),
        query.shape[0] * query.shape[1],
        None if full else query.shape[2],
        kv_heads=None if full else query.shape[0],
        value_rank=value.shape[1],
        query_bias=True,
        key_bias=rotary,
        rotary=10000.0 if rotary else None,
        chunk=chunk,
    ).double()
    fill_attention(attention, parts, vectors, scores.scales[0], scores.angles)
    return attention.to(next(iter(tensors.values())).dtype).eval()


def full_rotary() -> IsomergeError:
    """What to say of full forms with rotary positions."""
    return IsomergeError("rotary positions have no one full form per head: convert without full=True")


@torch.no_grad()
def fill_attention(
    attention: RelationalAttention, parts: Parts, vectors: Tensor, scale: float, angles: Tensor | None
) -> None:
    """Put the parts of one ordinary attention layer into a relational one.

    Args:
        attention: float64, of the shapes of ``parts``, with a query bias and an output bias.
        parts: ``query``, ``key``, ``value`` and ``output``; see `parts_of`.
        vectors: anchors Z (m, d) that span the space.
        scale: of the scores.
        angles: rotary angles per position [rank / 2].
    """
    inverse = torch.linalg.pinv(vectors)
    # a reader W becomes W P, a writer O the coefficients P^T O: with O stored transposed, the same product
    q, k, v, o = (parts[role].weight @ inverse for role in ROLES)
    bias = parts["query"].bias
    bias = q.new_zeros(q.shape[:-1]) if bias is None else bias
    circuits = attention.circuits
    if isinstance(circuits, FormCircuits):
        form = torch.einsum("kgem,ken->kgmn", q, k) * scale
        circuits.scores.copy_(form.flatten(0, 1))
        circuits.outputs.copy_(torch.einsum("kgfm,kfn->kgmn", o, v).flatten(0, 1))
        assert circuits.query_bias is not None
        circuits.query_bias.copy_(torch.einsum("kge,ken->kgn", bias, k).flatten(0, 1) * scale)
    else:
        _fill_factors(circuits, (q, k, v, o), bias, scale, parts["key"].bias, angles)
    constant = parts["output"].bias
    constant = vectors.new_zeros(vectors.shape[1]) if constant is None else constant
    if parts["value"].bias is not None:  # weights of attention sum to one, so that it is constant as well
        constant = constant + torch.einsum("kgfd,kf->d", parts["output"].weight, parts["value"].bias)
    assert attention.output_bias is not None
    attention.output_bias.copy_(constant @ inverse)


def _fill_factors(
    circuits: FactorCircuits,
    factors: tuple[Tensor, ...],
    bias: Tensor,
    scale: float,
    key_bias: Tensor | None,
    angles: Tensor | None,
) -> None:
    q, k, v, o = factors
    share = scale / circuits.scale
    assert circuits.query_bias is not None
    for place, value in (
        (circuits.query, q * share),
        (circuits.query_bias, bias * share),
        (circuits.key, k),
        (circuits.value, v),
        (circuits.output, o),
    ):
        place.copy_(value)
    if circuits.key_bias is not None and key_bias is not None:
        circuits.key_bias.copy_(key_bias)
    if angles is not None and circuits.angles is not None:
        circuits.angles = angles.to(circuits.angles.dtype)

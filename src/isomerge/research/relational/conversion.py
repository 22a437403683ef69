"""Ordinary transformers in relational form: the same function, of Grams.

With anchors Z (m, d) that span the space and their pseudoinverse P (d, m), a token is ``x = P r``. So a reader W
becomes ``W P``, a writer O = Z^T C has the coefficients ``C = P^T O``, and a gain is folded into its readers.
LayerNorm needs the vector of ones among the anchors. The conversion works in float64: of attention modules, and of
whole pre-norm models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.research.relational.attention import RelationalAttention
from isomerge.research.relational.head_circuits import FactorCircuits, FormCircuits
from isomerge.research.relational.source import (
    Key,
    Part,
    Scores,
    attention_spec,
    config_of,
    eps_of,
    parts_of,
    scores_of,
    setting,
    without_form,
)
from isomerge.research.relational.transformer import (
    FixedGram,
    RelationalBlock,
    RelationalConfig,
    RelationalMLP,
    RelationalTransformer,
    patches_of,
)
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.language.spec import Spec

KINDS = ("identity", "random", "tokens")
CONDITION = 4.0
"""Of a random basis: rounding is amplified by its square."""


def choose_anchors(
    how: str | Tensor, width: int, atoms: Tensor | None = None, *, ones: bool = False, seed: int = 0
) -> Tensor:
    """Anchor vectors Z (m, d), float64, that span the tokens' space.

    Args:
        how: ``identity``, the coordinate axes; ``random``, a basis at random with singular values within a ratio of
            4; ``tokens``, as many atoms as there are dimensions, chosen one after the other by the largest part
            outside the span of those before (QR with pivoting); or the vectors themselves (m, d).
        width: d.
        atoms: the vectors to choose from (n, d).
        ones: whether the vector of ones is added as the last anchor, for LayerNorm.
        seed: of a random basis.

    Raises:
        IsomergeError: an unknown choice, vectors of another width, or that do not span the space.
    """
    if isinstance(how, Tensor):
        vectors = how.detach().to("cpu", torch.float64)
    elif how == "identity":
        vectors = torch.eye(width, dtype=torch.float64)
    elif how == "random":
        vectors = GROUPS["GL"].sample((), width, torch.Generator().manual_seed(seed), condition=CONDITION)
    elif how == "tokens":
        vectors = _pivots(atoms, width)
    else:
        raise IsomergeError(f"anchors {how!r} are not known: take {', '.join(KINDS)} or a matrix (m, {width})")
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise IsomergeError(f"anchors of shape {list(vectors.shape)} do not fit: expected (m, {width})")
    if int(torch.linalg.matrix_rank(vectors)) < width:
        raise IsomergeError(
            f"{len(vectors)} anchors of rank {int(torch.linalg.matrix_rank(vectors))} do not span the {width} "
            "dimensions: add anchors, or take anchors='identity'"
        )
    return torch.cat([vectors, torch.ones(1, width, dtype=torch.float64)]) if ones else vectors


def _pivots(atoms: Tensor | None, width: int) -> Tensor:
    """The ``width`` rows of ``atoms`` that QR with pivoting takes first."""
    from scipy.linalg import qr

    if atoms is None or len(atoms) < width:
        count = 0 if atoms is None else len(atoms)
        raise IsomergeError(
            f"{count} atoms cannot anchor {width} dimensions: take anchors='identity' or 'random', or give vectors"
        )
    vectors = atoms.detach().to("cpu", torch.float64)
    order = qr(vectors.numpy().T, mode="r", pivoting=True)[-1]
    chosen = vectors[torch.from_numpy(order[:width].copy()).long()]
    return chosen / chosen.norm(dim=1, keepdim=True)


NORMS = {"O": "rms", "OFixingOnes": "layer"}
"""The norm of a stream, by the rotations that commute with it once its gains are folded."""
TRIED = 9
"""Tokens of the trial input of a converted model."""
Parts = dict[str, Part]
ROLES = ("query", "key", "value", "output")


def convert_model(
    model: Any, *, anchors: str | Tensor, full: bool, chunk: int | None, seed: int
) -> RelationalTransformer:
    """See `isomerge.research.relational.from_standard`."""
    settings = config_of(model)
    tensors = {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}
    _check_numbers(tensors)
    spec = spec_for(settings, shapes={name: tuple(x.shape) for name, x in tensors.items()})
    norm = _norm_of(spec, settings)
    rotary = _is_rotary(spec, full=full)
    parts = parts_of(spec, tensors)
    scores = scores_of(model, rotary=rotary)
    atoms = _atoms_of(parts)
    vectors = choose_anchors(anchors, atoms.shape[1], atoms, ones=norm == "layer", seed=seed)
    config = _config(
        spec,
        settings,
        parts,
        scores,
        len(vectors),
        norm=norm,
        eps=eps_of(model, spec, settings),
        full=full,
        chunk=chunk,
    )
    relational = RelationalTransformer(config).double()
    _fill(relational, parts, vectors, atoms, scores)
    _try_out(model, relational)
    return relational.to(next(iter(tensors.values())).dtype).eval()


def _check_numbers(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are no floating-point numbers."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise IsomergeError(
                f"tensor {name} is {str(tensor.dtype).removeprefix('torch.')}, and weights are floating-point "
                "numbers: give the model that it was made from"
            )


@torch.no_grad()
def _try_out(model: Any, relational: RelationalTransformer) -> None:
    """Run both on one short random input: tensors do not say all that a model does (multipliers, parallel branches,
    layers without positions).

    Raises:
        IsomergeError: their logits differ.
    """
    first = next(model.parameters())
    rng, config = torch.Generator().manual_seed(0), relational.config
    if config.patch is None:
        x = torch.randint(0, config.vocab or 1, (1, min(TRIED, config.length)), generator=rng)
        ours, theirs = x, {"input_ids": x}
    else:
        size = int(config.length**0.5) * int(config.patch**0.5)
        if size**2 != config.length * config.patch:
            raise IsomergeError(
                f"{config.length} patches of {config.patch} pixels are no square picture: from_standard converts "
                "image classifiers of square pictures"
            )
        pixels = torch.randn(1, config.channels, size, size, generator=rng)
        ours, theirs = patches_of(pixels.double(), int(config.patch**0.5)), {"pixel_values": pixels.to(first.dtype)}
    training = model.training
    try:
        wanted = model.eval()(**{name: x.to(first.device) for name, x in theirs.items()}).logits.double().cpu()
    finally:
        model.train(training)
    apart = float((relational.eval()(ours) - wanted).norm() / wanted.norm().clamp_min(1e-300))
    if not apart <= (5e-2 if torch.finfo(first.dtype).bits < 32 else 1e-3):
        raise IsomergeError(
            f"{model.config.model_type} does something that its tensors do not say (such as a multiplier, a "
            "cap on scores, parallel branches, layers without positions or with others, another pooling), as its "
            f"relational form differs by {100 * apart:.2g} % on a trial: take a model such as GPT-2, ViT or Llama"
        )


def _norm_of(spec: Spec, settings: Mapping[str, Any]) -> str:
    """The norm of a whole model's stream.

    Raises:
        IsomergeError: saying what the model has that a relational one has not.
    """
    if any(space.role == "expert" for space in spec.spaces.values()):
        raise without_form(spec, "its layers have experts, and a relational block has one MLP")
    if settings.get("is_encoder_decoder") or len(spec.streams) != 1:
        raise without_form(spec, "it has several residual streams")
    space = spec.spaces[spec.streams[0]]
    kind = space.folded or space.group_name
    if kind not in NORMS:
        raise without_form(
            spec, "norms act on its stream itself or on what branches write (post-norm layers, normed embeddings)"
        )
    return NORMS[kind]


def _atoms_of(parts: Mapping[Key, Part]) -> Tensor:
    """All atoms (n, d) in the order of `isomerge.research.relational.transformer.Atoms`."""
    inputs = parts.get(((), "token")) or parts.get(((), "patch"))
    if inputs is None:
        raise IsomergeError("the model embeds neither tokens nor patches: pass a whole model")
    rows = [inputs.weight]
    starts, places = parts.get(((), "start")), parts.get(((), "position"))
    if starts is not None:
        rows.append(starts.weight)
    if places is not None:
        where = places.weight.clone()
        if inputs.bias is not None:  # every patch has it, and no class token
            where[0 if starts is None else len(starts.weight) :] += inputs.bias
        rows.append(where)
    return torch.cat(rows)


def _config(
    spec: Spec,
    settings: Mapping[str, Any],
    parts: Mapping[Key, Part],
    scores: Scores,
    anchors: int,
    *,
    norm: str,
    eps: float,
    full: bool,
    chunk: int | None,
) -> RelationalConfig:
    """The relational config with the function of an ordinary one."""
    first = ((0,), "query")
    if first not in parts or (((), "label") not in parts and ((), "logit") not in parts):
        raise IsomergeError(
            f"{spec.model_type}: from_standard needs a model with layers and a head, such as AutoModelForCausalLM "
            "or AutoModelForImageClassification give"
        )
    groups, shared, rank, width = parts[first].weight.shape
    labels, patch, token = (parts.get(((), role)) for role in ("label", "patch", "token"))
    if (labels is None) != (patch is None):
        raise IsomergeError(
            f"{spec.model_type}: of heads, only language models' and image classifiers' are converted"
        )
    starts, places = parts.get(((), "start")), parts.get(((), "position"))
    count = 0 if starts is None else len(starts.weight)
    channels = settings.get("num_channels", 1) if patch is not None else 1
    return RelationalConfig(
        width=width,
        layers=len(scores.scales),
        heads=groups * shared,
        anchors=anchors,
        mlp=len(parts[(0,), "down"].weight),
        rank=None if full else rank,
        vocab=None if token is None else len(token.weight),
        patch=None if patch is None else len(patch.weight) // channels,
        channels=channels,
        length=_length(settings) if places is None else len(places.weight) - count,
        classes=None if labels is None else len(labels.weight),
        causal=scores.causal,
        chunk=chunk,
        anchoring="given",
        norm=norm,
        eps=eps,
        activation=setting(spec, settings, "act"),
        gated=((0,), "gate") in parts,
        kv_heads=None if full else groups,
        value_rank=parts[(0,), "value"].weight.shape[1],
        rotary=None if scores.angles is None else 10000.0,
        starts=count,
        pool="first",
        tied=False,
    )


def _length(settings: Mapping[str, Any]) -> int:
    """The longest input: within a sliding window it does not slide."""
    return min(
        settings["max_position_embeddings"], settings.get("sliding_window") or settings["max_position_embeddings"]
    )


@torch.no_grad()
def _fill(
    model: RelationalTransformer, parts: Mapping[Key, Part], vectors: Tensor, atoms: Tensor, scores: Scores
) -> None:
    """Put all parts into a float64 model of their shapes, each once."""
    inverse = torch.linalg.pinv(vectors)
    model.atoms.free.copy_(atoms @ inverse)
    model.atoms.anchors = FixedGram(vectors @ vectors.mT)
    used = {((), role) for role in ("token", "patch", "start", "position", "label", "logit")}
    for number, block in enumerate(model.blocks):
        assert isinstance(block, RelationalBlock)
        own: Parts = {role: part for (scope, role), part in parts.items() if scope == (number,)}
        fill_attention(block.attention, own, vectors, scores.scales[number], scores.angles)
        _fill_neurons(block.mlp, own, inverse)
        used |= {((number,), role) for role in own}
    head = parts.get(((), "label")) or parts[(), "logit"]
    assert model.head is not None
    assert model.head_bias is not None
    model.head.copy_(head.weight @ inverse)
    _put(model.head_bias, head.bias)
    if left := set(parts) - used:
        raise IsomergeError(
            f"the model has {min(left)[1]} parts that no relational block has: it cannot be converted"
        )


def _fill_neurons(mlp: RelationalMLP, parts: Parts, inverse: Tensor) -> None:
    for name in ("up", "gate", "down"):
        place = getattr(mlp, name)
        if place is None:
            continue
        weight = parts[name].weight @ inverse
        place.copy_(weight.mT if name == "down" else weight)
    _put(mlp.up_bias, parts["up"].bias)
    _put(mlp.gate_bias, parts["gate"].bias if "gate" in parts else None)
    bias = parts["down"].bias
    _put(mlp.down_bias, None if bias is None else bias @ inverse)


def _put(place: nn.Parameter | None, value: Tensor | None) -> None:
    """Copy a bias; one that the source does not have stays zero."""
    if place is not None and value is not None:
        place.copy_(value)


def from_standard(
    model: nn.Module,
    *,
    anchors: str | Tensor = "identity",
    full: bool = False,
    chunk: int | None = None,
    seed: int = 0,
) -> Any:
    """A model, or one attention module, that computes the same from Grams.

    Args:
        model: a pre-norm transformer of Hugging Face whose architecture has a spec, with a language model's head or
            an image classifier (GPT-2, ViT, Llama, ...); one of its attention modules; or
            torch.nn.MultiheadAttention.
        anchors: ``identity``, ``random``, ``tokens`` (models only), or vectors (m, d); see `choose_anchors`.
        full: whether heads become full forms S_h and T_h, free of gauge, instead of factors. Not with rotary
            positions.
        chunk: tokens per chunk of the attention with memory linear in T; None for the plain one.
        seed: of a random basis.

    Returns:
        For a model a `RelationalTransformer`, to be called with tokens (B, T) or, by `patches_of`, with patches.
        For an attention module a `RelationalAttention` without norm: given the Grams ``x @ Z.T`` of its input it
        returns c with ``c @ Z`` its output. Both in eval mode, on the CPU, in the dtype of the original.

    Raises:
        IsomergeError: an architecture without a relational form here (post-norm, several streams, experts, ...), or
            anchors that do not span the space.
    """
    if hasattr(model, "base_model_prefix") and hasattr(model, "config"):
        return convert_model(model, anchors=anchors, full=full, chunk=chunk, seed=seed)
    return convert_attention(model, choose=anchors, full=full, chunk=chunk, seed=seed)


def convert_attention(
    module: nn.Module, *, choose: str | Tensor, full: bool, chunk: int | None, seed: int
) -> RelationalAttention:
    spec, tensors = attention_spec(module)
    _check_numbers(tensors)
    parts = {role: part for (_, role), part in parts_of(spec, tensors).items()}
    if missing := set(ROLES) - set(parts):
        raise IsomergeError(f"{type(module).__name__} has no {min(missing)} projection: pass an attention module")
    query, value = parts["query"].weight, parts["value"].weight
    rotary = _is_rotary(spec, full=full)
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


def _is_rotary(spec: Spec, *, full: bool) -> bool:
    """Whether positions turn queries and keys, which refuses full forms."""
    rotary = any(s.group_name == "Complex" for s in spec.spaces.values())
    if full and rotary:
        raise IsomergeError("rotary positions have no one full form per head: convert without full=True")
    return rotary


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

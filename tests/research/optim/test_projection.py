"""Horizontal updates are orthogonal to the orbit, exactly; and a projection with a wrong sign is noticed."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.research.optim import Quotient
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import gather_blocks
from isomerge.symmetry.language.spec import Spec
from research.optim.modules import LIVE, direction, drawn, inner, less, live, logits, loss, size
from toys import TOYS, relative

# float64: 1e-16 times a condition of some 1e3 of the toys' Grams
EXACT = 1e-10


@cache
def still(name: str) -> Quotient:
    """Of a toy that is not changed."""
    return Quotient(live(name))


def vertical(quotient: Quotient, seed: int) -> dict[str, torch.Tensor]:
    """A random direction of the orbit."""
    rng = torch.Generator().manual_seed(seed)
    return quotient.vertical(torch.randn(quotient.dimension, generator=rng, dtype=torch.float64))


def angle(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The cosine between two updates."""
    return abs(inner(one, two)) / (size(one) * size(two))


@pytest.mark.parametrize("name", LIVE)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_horizontal_is_orthogonal_to_the_orbit(name: str, seed: int) -> None:
    """To every direction; the projection is idempotent, linear, and takes vertical updates away entirely."""
    quotient = still(name)
    d, v = direction(quotient, seed), vertical(quotient, seed + 1)
    h = quotient.horizontal(d)
    assert 0.01 * size(d) < size(less(d, h)) < size(d)
    assert angle(h, v) < EXACT
    assert size(less(quotient.horizontal(h), h)) < EXACT * size(h)
    assert size(quotient.horizontal(v)) < EXACT * size(v)
    mixed = {n: d[n] + 3 * v[n] for n in d}
    assert size(less(quotient.horizontal(mixed), h)) < EXACT * size(mixed)


@pytest.mark.parametrize("name", LIVE)
def test_directions_are_those_of_the_orbit(name: str) -> None:
    """A small step along them changes the outputs by its square; an equally long one elsewhere by its length.

    Norms that compute in float32 hide what is smaller than 1e-7.
    """
    model = live(name)
    quotient, before = Quotient(model), logits(model).detach()
    v, d = vertical(quotient, 0), direction(quotient, 0)

    def change(update: dict[str, torch.Tensor], step: float) -> float:
        other = copy.deepcopy(model)
        with torch.no_grad():
            for n, p in Quotient(other).parameters.items():
                p += update[n] * (step / size(update))
        return relative(logits(other).detach(), before)

    assert change(d, 0.1) > 1e-3
    assert change(v, 0.1) < 0.1 * change(d, 0.1)
    assert change(v, 0.01) < 0.02 * change(v, 0.1) + 1e-6
    assert change(d, 0.01) > 0.05 * change(d, 0.1)


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "t5-gated"])
def test_equals_dense_least_squares(name: str) -> None:
    """The joint solution where spaces meet, against a projection with the whole matrix of directions."""
    import transformers as tf

    shapes = {
        "gpt2": lambda: tf.GPT2LMHeadModel(
            tf.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=8)
        ),
        "qwen3": lambda: tf.Qwen3ForCausalLM(
            tf.Qwen3Config(
                vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                head_dim=4, intermediate_size=6, max_position_embeddings=8, attention_bias=True,
            )
        ),
        "t5-gated": lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(
                vocab_size=9, d_model=8, d_kv=3, d_ff=6, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"
            )
        ),
    }  # fmt: skip
    torch.manual_seed(0)
    quotient = Quotient(shapes[name]().double())
    with torch.no_grad():
        for p in quotient.parameters.values():
            p.normal_()
    basis = torch.eye(quotient.dimension, dtype=torch.float64)
    columns = [torch.cat([t.flatten() for t in quotient.vertical(e).values()]) for e in basis]
    matrix = torch.stack(columns, 1)
    d = direction(quotient, 1)
    flat = torch.cat([t.flatten() for t in d.values()])
    wanted = flat - matrix @ torch.linalg.lstsq(matrix, flat.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    found = torch.cat([t.flatten() for t in quotient.horizontal(d).values()])
    assert float((found - wanted).norm()) < EXACT * float(flat.norm())
    assert float((flat - wanted).norm()) > 0.1 * float(flat.norm())


def test_one_space_is_a_sylvester_equation() -> None:
    """``xi A + B xi = C`` with the Grams of one head, solved by hand."""
    model = live("bert")
    quotient = Quotient(model, spaces=["qk"])
    d = direction(quotient, 2)
    h = quotient.horizontal(d)
    stem = "bert.encoder.layer.1.attention.self."
    own = dict(model.named_parameters())

    def head(tensors: dict[str, torch.Tensor], kind: str) -> torch.Tensor:
        """Rows of head 2, its bias as a further column."""
        weight, bias = (tensors[f"{stem}{kind}.{part}"].detach()[16:24] for part in ("weight", "bias"))
        return torch.cat([weight, bias[:, None]], 1)

    q, k, dq, dk = (head(t, kind) for t in (own, d) for kind in ("query", "key"))
    a, b, c = q @ q.mT, k @ k.mT, dq @ q.mT - k @ dk.mT
    eye = torch.eye(8, dtype=torch.float64)
    xi = torch.linalg.solve(torch.kron(eye, a.mT.contiguous()) + torch.kron(b, eye), c.flatten()).reshape(8, 8)
    assert float((head(h, "query") - (dq - xi @ q)).abs().max()) < EXACT
    assert float((head(h, "key") - (dk + xi.mT @ k)).abs().max()) < EXACT


@pytest.mark.parametrize("name", LIVE)
def test_gradients_are_horizontal(name: str) -> None:
    """Of any loss of the outputs: plain gradient descent never moves along the orbit."""
    model = live(name)
    quotient = Quotient(model)
    loss(model).backward()
    gradients = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in quotient.parameters.items()}
    assert sum(not g.any() for g in gradients.values()) <= 1  # a token for masked patches, where none is masked
    assert size(less(quotient.horizontal(gradients), gradients)) < 1e-7 * size(gradients)  # norms in float32
    signs = {n: g.sign() for n, g in gradients.items()}  # Adam's first step
    assert size(less(quotient.horizontal(signs), signs)) > 0.01 * size(signs)


@pytest.mark.parametrize("name", ["gpt2", "llama", "dinov2"])
def test_elements_act_as_alignments_do(name: str) -> None:
    """Moving a live module is the action that every other part of isomerge has."""
    model = live(name)
    twin = copy.deepcopy(model)
    quotient = Quotient(twin)
    elements = drawn(quotient, 5)
    space = quotient.vertical_space
    parts = {
        key: part for family in space.families for key, part in zip(family.keys, family.of(elements), strict=True)
    } | {key: part for shift in space.shifts for key, part in zip(shift.keys, shift.of(elements), strict=True)}
    quotient.move(elements)
    own, other = dict(model.named_parameters()), dict(twin.named_parameters())
    matches = {n: quotient.spec.match(n) for n in own}
    names = {m.canonical: n for n, m in matches.items()}
    blocks = gather_blocks(quotient.spec, matches)
    tensors = {b: b.assemble(lambda c: own[names[c]].detach().clone()).contiguous() for b in blocks}
    Alignment(quotient.spec, parts).act(tensors)
    for block, tensor in tensors.items():
        for canonical, part in block.split(tensor):
            assert torch.allclose(part, other[names[canonical]].detach(), atol=1e-12), canonical
    assert relative(logits(twin).detach(), logits(model).detach()) < TOYS[name][1]


def test_a_wrong_sign_of_the_dual_side_is_noticed() -> None:
    """The mutant's projection is one as well, but onto directions that change the function."""

    model = live("bert")
    good, bad = Quotient(model), Quotient(model)
    for family in bad.vertical_space.families:
        for at, touch in enumerate(family.touches):
            family.touches[at] = replace(touch, dual=False)
            if touch in bad.vertical_space.first:
                bad.vertical_space.first.add(family.touches[at])
    d = direction(good, 0)
    wrong = bad.horizontal(d)
    assert angle(wrong, vertical(good, 1)) > 1e-4
    assert angle(good.horizontal(d), vertical(good, 1)) < EXACT
    loss(model).backward()
    gradients = {n: p.grad for n, p in good.parameters.items() if p.grad is not None}
    assert size(less(bad.horizontal(gradients), gradients)) > 0.01 * size(gradients)


def test_dead_and_deficient_blocks() -> None:
    """A head that writes nothing, and one with equal rows: the projection is still one, with finite numbers."""
    model = live("vit")
    layer = model.vit.layers[0] if hasattr(model.vit, "layers") else model.vit.encoder.layer[0]
    weights = {n: p for n, p in layer.named_parameters() if p.ndim == 2}
    query = next(p for n, p in weights.items() if "query" in n or "q_proj" in n)
    output = next(p for n, p in weights.items() if "attention.output" in n or "o_proj" in n)
    with torch.no_grad():
        query[8:16] = query[8]
        output[:, :8] = 0
    quotient = Quotient(model)
    d, v = direction(quotient, 0), vertical(quotient, 1)
    h = quotient.horizontal(d)
    assert angle(h, v) < EXACT
    assert size(less(quotient.horizontal(h), h)) < EXACT * size(h)


def test_shifts_alone() -> None:
    """A key bias that softmax drops does not move; value and output biases move together only."""
    quotient = Quotient(live("bert"), spaces=["kb", "vb"])
    d = direction(quotient, 0)
    h = quotient.horizontal(d)
    stem = "bert.encoder.layer.2.attention."
    assert size({"key": h[f"{stem}self.key.bias"]}) == 0
    w = dict(quotient.parameters)[f"{stem}output.dense.weight"].detach()
    assert torch.allclose(h[f"{stem}self.value.bias"], w.mT @ h[f"{stem}output.dense.bias"], atol=1e-12)
    assert torch.equal(h[f"{stem}output.dense.weight"], d[f"{stem}output.dense.weight"])
    assert angle(h, vertical(quotient, 1)) < EXACT


def test_what_is_left_out_is_told() -> None:
    """Ties, frozen parameters and missing readers take spaces away; what remains is still a symmetry."""
    assert "shared" in Quotient(live("gpt2")).left_out["nf"]
    assert "nf" not in Quotient(live("gpt2-untied")).left_out
    model = live("llama")
    model.model.layers[1].self_attn.k_proj.weight.requires_grad_(False)
    quotient = Quotient(model)
    assert {"c", "n1"} <= quotient.left_out.keys()
    assert "ov" not in quotient.left_out
    import transformers as tf

    body = Quotient(tf.GPT2Model(tf.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)))
    assert "gives out" in body.left_out["nf"]


def test_errors_say_what_to_do() -> None:
    """Experts that are fused, wrappers, unknown spaces, wrong shapes, nothing to do."""
    with pytest.raises(IsomergeError, match="does not describe"):
        Quotient(live("mixtral"))
    with pytest.raises(IsomergeError, match="wrapper"):
        Quotient(torch.nn.Linear(2, 2))
    with pytest.raises(IsomergeError, match="no such continuous space; choose among"):
        Quotient(live("bert"), spaces=["h"])
    quotient = Quotient(live("bert"))
    name = next(iter(quotient.parameters))
    with pytest.raises(IsomergeError, match="expected"):
        quotient.horizontal({name: torch.zeros(2)})
    model = live("bert")
    model.requires_grad_(False)
    with pytest.raises(IsomergeError, match="no continuous symmetry"):
        Quotient(model)


def test_updates_by_parameter_and_dtype() -> None:
    """Parameters are keys as well as names; dtypes come back; what no symmetry moves stays."""
    model = live("bert", torch.float32)
    table = model.bert.embeddings.word_embeddings.weight
    quotient = Quotient(model)
    updates = {p: torch.ones_like(p) for p in model.parameters()}
    found = quotient.horizontal(updates)
    assert found.keys() == updates.keys()
    assert all(h.dtype == torch.float32 for h in found.values())
    assert torch.equal(Quotient(model, spaces=["qk"]).horizontal(updates)[table], updates[table])
    assert isinstance(quotient.spec, Spec)

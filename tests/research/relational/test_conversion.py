"""Ordinary models and attention layers, converted: equal outputs for every choice of anchors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

from isomerge.archs import expanded_texts, spec_for
from isomerge.errors import IsomergeError
from isomerge.research.relational import (
    CoordinateStream,
    RelationalTransformer,
    choose_anchors,
    from_standard,
    patches_of,
)
from isomerge.research.relational.attention import RelationalNorm
from isomerge.research.relational.source import parts_of
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.language.spec_text import parse_spec
from toys import TOYS, inputs, randomise, relative

MODELS = ("gpt2", "gpt2-untied", "vit", "vit-plain", "llama-biased", "llama-tied", "llama-mqa", "qwen2")
CHOICES = ("identity", "random", "tokens")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """RMSNorm and rotary angles in the model's own dtype: Hugging Face computes both in float32, whatever the
    input."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    def turn(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * self.inv_freq.double()
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    for module, name in ((tf.models.llama.modeling_llama, "Llama"), (tf.models.qwen2.modeling_qwen2, "Qwen2")):
        monkeypatch.setattr(getattr(module, f"{name}RMSNorm"), "forward", norm)
        monkeypatch.setattr(getattr(module, f"{name}RotaryEmbedding"), "forward", turn)


def standard(name: str, dtype: torch.dtype) -> Any:
    """A randomised toy: gains, offsets and biases are not trivial."""
    model = TOYS[name][0]().to(dtype).eval()
    randomise(model, 4)
    model.tie_weights()
    return model


def logits(model: Any) -> Tensor:
    """Of the original."""
    dtype = next(model.parameters()).dtype
    given = {k: x.to(dtype) if x.is_floating_point() else x for k, x in inputs(model.config).items()}
    with torch.no_grad():
        return model(**given).logits


def relational_logits(found: RelationalTransformer, model: Any) -> Tensor:
    """Of the converted model, for the same inputs."""
    (x,) = inputs(model.config).values()
    if x.is_floating_point():
        x = patches_of(x.to(next(model.parameters()).dtype), model.config.patch_size)
    with torch.no_grad():
        return found(x)


def condition(found: RelationalTransformer) -> float:
    """The condition number of the anchors, without the ones."""
    return float(torch.linalg.cond(found.atoms.anchors()[:48, :48].double()).sqrt())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("how", CHOICES)
@pytest.mark.parametrize("name", MODELS)
def test_models_agree(name: str, how: str, dtype: torch.dtype) -> None:
    """Logits of whole models, factorised heads."""
    model = standard(name, dtype)
    found = from_standard(model, anchors=how, chunk=4)
    assert found.atoms.free.dtype == dtype
    # chosen atoms are nearly dependent where there are few to choose from, and rounding grows with their condition
    # number
    room = 4 * torch.finfo(dtype).eps * condition(found)
    assert relative(relational_logits(found, model), logits(model)) < max(TOLERANCE[dtype], room)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("how", CHOICES)
@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_full_forms_agree(name: str, how: str, dtype: torch.dtype) -> None:
    """The same with S_h and T_h; chosen tokens are far from orthonormal, and forms square their condition
    number."""
    model = standard(name, dtype)
    found = from_standard(model, anchors=how, full=True)
    room = 10 if how == "tokens" else 1
    assert relative(relational_logits(found, model), logits(model)) < room * TOLERANCE[dtype]


def test_more_anchors_than_dimensions() -> None:
    """Anchors that depend on each other: their K has no inverse, and none is needed."""
    model = standard("gpt2", torch.float64)
    vectors = torch.randn(70, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = from_standard(model, anchors=vectors)
    assert found.config.anchors == 71
    assert relative(relational_logits(found, model), logits(model)) < 1e-10


def test_converted_models_are_invariant() -> None:
    """LayerNorm too, since the ones turn with the tokens; turning the tokens alone breaks it."""
    model = standard("vit", torch.float64)
    found = from_standard(model, anchors="random")
    x = patches_of(inputs(model.config)["pixel_values"], model.config.patch_size)
    turn = GROUPS["O"].sample((), found.config.anchors, torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = found.realise(x), found.realise(x, turn)
        assert float((a.tokens - b.tokens).abs().max()) > 0.1
        assert relative(found.read(b), logits(model)) < 1e-10
        assert relative(found.read(CoordinateStream(b.tokens, a.vectors)), logits(model)) > 1e-2


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_without_the_ones_layer_norm_is_lost(name: str) -> None:
    """A mutant: LayerNorm read as RMSNorm is another function, so that the test above can fail."""
    model = standard(name, torch.float64)
    found = from_standard(model)
    for module in found.modules():
        if isinstance(module, RelationalNorm):
            module.ones = None
    assert relative(relational_logits(found, model), logits(model)) > 1e-3


def test_the_original_is_not_touched() -> None:
    """Nor does the converted model share its tensors."""
    model = standard("gpt2", torch.float64)
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = from_standard(model)
    with torch.no_grad():
        for p in found.parameters():
            p.zero_()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


# ------------------------------------------------------------------ attention layers


def layer_of(name: str, dtype: torch.dtype) -> nn.Module:
    """The first attention module of a toy, or torch's own."""
    if name == "torch":
        torch.manual_seed(5)
        found = nn.MultiheadAttention(48, 6, batch_first=True).to(dtype).eval()
        for p in found.parameters():
            p.data = torch.randn_like(p) * 0.3
        return found
    model = standard(name, dtype)
    return next(m for m in model.modules() if type(m).__name__.endswith("Attention"))


def attended(name: str, layer: Any, x: Tensor) -> Tensor:
    """The output of an original layer, causal where its model is."""
    t = x.shape[1]
    mask = torch.full((t, t), -torch.inf, dtype=x.dtype).triu(1)[None, None]
    with torch.no_grad():
        if name == "torch":
            return layer(x, x, x)[0]
        if name == "vit":
            return layer(x)[0]
        if name == "gpt2":
            return layer(x, attention_mask=mask)[0]
        rotary = tf.models.llama.modeling_llama.LlamaRotaryEmbedding(layer.config)
        return layer(x, position_embeddings=rotary(x, torch.arange(t)[None]), attention_mask=mask)[0]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("how", ["identity", "random"])
@pytest.mark.parametrize("name", ["torch", "gpt2", "vit", "llama-biased"])
def test_layers_agree(name: str, how: str, dtype: torch.dtype) -> None:
    """Drop-in: ``c Z`` is the output of the original for the Grams of its input, factors and full forms."""
    layer = layer_of(name, dtype)
    x = torch.randn(2, 9, 48, generator=torch.Generator().manual_seed(6), dtype=torch.float64).to(dtype)
    wanted = attended(name, layer, x)
    z = choose_anchors(how, 48).to(dtype)
    for full in (False,) if name == "llama-biased" else (False, True):
        found = from_standard(layer, anchors=how, full=full)
        c = found(x @ z.mT, z @ z.mT, causal=name not in ("torch", "vit"))
        assert relative(c.detach() @ z, wanted) < TOLERANCE[dtype]


def test_layer_scales_are_folded() -> None:
    """A gain on the output of a branch goes into its writers, weights and bias."""
    model = standard("dinov2", torch.float64)
    tensors = {name: p.detach() for name, p in model.named_parameters() if not name.startswith("classifier")}
    part = parts_of(spec_for(model.config.to_dict()), tensors)[(0,), "down"]
    layer = model.dinov2.encoder.layer[0]
    assert float((layer.layer_scale2.lambda1.detach() - 1).abs().max()) > 0.1
    assert part.bias is not None
    with torch.no_grad():
        hidden = torch.randn(3, part.weight.shape[0], dtype=torch.float64)
        wanted = layer.layer_scale2(layer.mlp.fc2(hidden))
    torch.testing.assert_close(hidden @ part.weight + part.bias, wanted, rtol=1e-12, atol=1e-12)


def test_neurons_without_a_scale() -> None:
    """A spec may write neurons as ``ff`` alone: one reader is no gate."""
    model = standard("gpt2", torch.float64)
    config = model.config.to_dict()
    text = expanded_texts()["gpt2"][1].replace("(ff u)", "ff").replace("(ff u')", "ff")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("space u"))
    tensors = {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}
    one, two = (parts_of(spec, tensors) for spec in (parse_spec(text, config), spec_for(config)))
    assert set(one) == set(two)
    assert torch.equal(one[(1,), "up"].weight, two[(1,), "up"].weight)


# ------------------------------------------------------------------ what converts

CONVERTS = {
    *("gpt2", "gpt2-untied", "llama", "llama-biased", "llama-tied", "llama-mha", "llama-mqa", "qwen2", "phi3"),
    *(
        "gpt_neox-full",
        "starcoder2",
        "seed_oss",
        "arcee",
        "ernie4_5",
        "gpt_bigcode",
        "gpt_bigcode-heads",
        "internlm3",
    ),
    *("iquestcoder", "eurobert", "helium", "vit", "vit-plain", "vit_msn"),
}
"""The architectures that the page promises, by their toys."""
MORE = ("cohere", "gemma", "granite", "stablelm-parallel", "opt", "ministral3", "ijepa")
"""Architectures whose tensors look as if they converted, and that compute something else."""


@pytest.mark.parametrize("name", sorted(CONVERTS))
def test_what_the_page_promises(name: str) -> None:
    """One function, in float32."""
    model = standard(name, torch.float32)
    assert relative(relational_logits(from_standard(model), model), logits(model)) < 1e-4


def test_the_page_names_them() -> None:
    """By the model types of their configs."""
    page = (Path(__file__).parents[3] / "docs/lab/relational-attention.md").read_text()
    missing = {name.partition("-")[0] for name in CONVERTS if f"`{name.partition('-')[0]}`" not in page}
    assert not missing


@pytest.mark.parametrize("name", MORE)
def test_what_computes_something_else_is_refused(name: str) -> None:
    """By a trial, and the model is left as it was."""
    model = standard(name, torch.float32).train()
    with pytest.raises(IsomergeError, match=r"differs by .* % on a trial"):
        from_standard(model)
    assert model.training


# ------------------------------------------------------------------ refusals

REFUSED = {
    **dict.fromkeys(
        ("bert", "bloom", "olmo2", "gemma3_text"), r"norms act on its stream .*post-norm.*normed embeddings"
    ),
    **dict.fromkeys(
        ("gemma2", "glm4"), "post_.*layernorm.weight .* a gain on the stream itself or on what a branch"
    ),
    **dict.fromkeys(("mixtral", "qwen2_moe", "deepseek_v3"), "its layers have experts"),
    **dict.fromkeys(("phi", "gptj", "nemotron", "smollm3", "cohere2"), "do not turn the whole of every head"),
    **dict.fromkeys(("qwen3", "olmo-clipped", "mamba2"), "more than products of queries and keys"),
    "mamba": "no attention of queries, keys and values",
    **dict.fromkeys(("t5-relu", "bart", "clip"), "several residual streams"),
    **dict.fromkeys(("falcon", "mpt"), "no attention module that tells its scaling"),
    "olmo": "tell what they add below the root",
    "dinov2-swiglu": "which the spec of its checkpoints does not name",
    "deit": "no relational form",
    "mistral": "of heads, only",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_relational_form_is_refused(name: str) -> None:
    """In one sentence that says what the model has and a relational one has not, before anything is computed; no
    spec file would help, nor another version of transformers."""
    with pytest.raises(IsomergeError, match=REFUSED[name]) as error:
        from_standard(TOYS[name][0]())
    assert not re.search(r"spec FILE|config line|update|\n", str(error.value))


def test_a_tensor_of_another_kind_is_named_with_its_axes() -> None:
    """YOLOS is a pre-norm model of attention and neurons as well: that its tokens for objects are none of what a
    relational model has is what is said, and not what all such models are."""
    config = tf.YolosConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, image_size=[8, 8],
        patch_size=4, num_detection_tokens=3, num_channels=1,
    )  # fmt: skip
    words = r"embeddings.detection_tokens of yolos has no .* as its axes \(1 \w+ res\) are those of no query"
    with pytest.raises(IsomergeError, match=words):
        from_standard(tf.YolosForObjectDetection(config))


def test_messages() -> None:
    """Other mistakes of a user."""
    llama, gpt2 = TOYS["llama"][0](), TOYS["gpt2"][0]()
    with pytest.raises(IsomergeError, match="rotary positions have no one full form"):
        from_standard(llama, full=True)
    with pytest.raises(IsomergeError, match="anchors 'best' are not known"):
        from_standard(gpt2, anchors="best")
    with pytest.raises(IsomergeError, match="do not span the 48 dimensions"):
        from_standard(gpt2, anchors=torch.randn(30, 48))
    with pytest.raises(IsomergeError, match=r"expected \(m, 48\)"):
        from_standard(gpt2, anchors=torch.randn(48, 30))
    with pytest.raises(IsomergeError, match="atoms cannot anchor"):
        from_standard(llama.model.layers[0].self_attn, anchors="tokens")
    with pytest.raises(IsomergeError, match="no Hugging Face config"):
        from_standard(nn.Linear(3, 3))
    with pytest.raises(IsomergeError, match="no key projection"):
        from_standard(llama.model.layers[0].mlp)
    stranger: Any = nn.GRUCell(3, 3)
    stranger.config = gpt2.config
    with pytest.raises(IsomergeError, match="is no attention module of gpt2"):
        from_standard(stranger)
    with pytest.raises(IsomergeError, match="needs a model with layers and a head"):
        from_standard(gpt2.transformer)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_that_are_no_floating_point_numbers_are_refused(dtype: torch.dtype) -> None:
    """Of models and of attention modules."""
    model = TOYS["gpt2"][0]()
    attention = model.transformer.h[0].attn
    for parameter in model.parameters():
        parameter.requires_grad = False
        parameter.data = parameter.data.to(dtype)
    for module in (model, attention):
        with pytest.raises(IsomergeError, match="weights are floating-point numbers"):
            from_standard(module)

"""The order of linear layers, as one example shows it, and forward passes that end early."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.layer_sequence import find_order, linear_modules
from isomerge.observe.stats.taps import listening, run_until
from observe.test_statistics import examples_for
from solve.disguises import single


def paths(order) -> list[tuple[str, ...]]:
    """The groups by name, without what all names begin with."""
    return [tuple(layer.path for layer in group) for group in order.groups]


# per toy: what each layer's groups end with, the norm that every stream's writer is read by, and what is kept
ORDERS = {
    "vit": ("q_proj k_proj v_proj|o_proj|fc1|fc2", 6, set()),
    "gpt2": ("c_attn|attn.c_proj|c_fc|mlp.c_proj", 6, {"lm_head"}),
    "llama": ("q_proj k_proj v_proj|o_proj|gate_proj up_proj|down_proj", 6, set()),
    "bert": (
        "query key value|attention.output.dense|intermediate.dense|output.dense",
        6,
        {"cls.predictions.decoder"},
    ),
    "mixtral": ("q_proj k_proj v_proj|o_proj", 3, set()),
}


def test_what_is_given_by_name_is_seen() -> None:
    """As transformers' newer decoders call their layers; an output is told, and not replaced by what is told of
    it."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(input=x)

    module, x, seen = Named(), torch.ones(1, 2), {}
    with listening(module, [("a", "part", "in"), ("b", "part", "out")], seen.__setitem__):
        y = module(x)
    assert seen["a"] is x
    assert seen["b"] is y
    seen.clear()
    module(x)
    assert not seen


@pytest.mark.parametrize("name", ORDERS)
def test_order_of_execution(name: str, tmp_path) -> None:
    """Layer by layer; what reads one tensor is one group; writers know the norm after them; ties are kept."""
    module = load_module(single(name, tmp_path / "m"))
    order = find_order(module, examples_for(tmp_path / "m"))
    wanted, writers, kept = ORDERS[name]
    found = paths(order)
    ends = [group.split() for group in wanted.split("|")] * 3
    for group, end in zip(found, ends, strict=False):
        assert len(group) == len(end)
        assert all(path.endswith(last) for path, last in zip(group, end, strict=True)), group
    layers = [layer for group in order.groups for layer in group]
    assert sum(layer.completes for layer in layers) == writers
    assert len({layer.adds_to for layer in layers if layer.adds_to}) == writers
    assert set(order.kept) == kept
    heads = [layer.path for layer in layers if layer.head]
    assert heads == {"vit": ["classifier"], "llama": ["lm_head"], "mixtral": ["lm_head"]}.get(name, [])


def test_encoder_and_decoder(tmp_path) -> None:
    """All cross-attention keys and values read the encoder's output: one group, before the decoder's later
    layers."""
    module = load_module(single("t5-gated", tmp_path / "m"))
    found = paths(find_order(module, examples_for(tmp_path / "m")))
    cross = [g for g in found if any("EncDecAttention.k" in p for p in g)]
    assert [len(g) for g in cross] == [4]
    assert {p.rpartition(".")[2] for p in cross[0]} == {"k", "v"}
    first_feed_forward = next(k for k, g in enumerate(found) if "decoder.block.0.layer.2" in g[0])
    assert found.index(cross[0]) < first_feed_forward


class Parallel(nn.Module):
    """Attention-free blocks: two writers add to one stream, in place; one layer runs twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm, self.twice, self.unused = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        """Two writers, then a shared layer."""
        x = pixel_values.flatten(1).clone()
        one = self.first(x)
        two = self.second(x.view(-1, 6))
        x += one
        x += two
        x = self.norm(x)
        return SimpleNamespace(logits=self.head(self.twice(torch.tanh(self.twice(input=x)))))


def images(count: int = 40, seed: int = 0) -> Examples:
    """Inputs for `Parallel`."""
    return Examples(
        {"pixel_values": torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(seed))}, False
    )


def test_parallel_writers_and_shared_layers() -> None:
    """Only the last writer completes the stream; sums in place do not mislead; calls are counted."""
    order = find_order(Parallel(), images())
    assert paths(order) == [("first", "second"), ("twice",), ("head",)]
    by_name = {layer.path: layer for group in order.groups for layer in group}
    assert [(by_name[p].adds_to, by_name[p].completes) for p in ("first", "second")] == [
        ("norm", False),
        ("norm", True),
    ]
    assert (by_name["twice"].calls, list(by_name["twice"].rows.values()), by_name["head"].head) == (
        2,
        [(1, 1)],
        True,
    )
    assert order.kept == {"unused": "the first example does not reach it"}


def test_nothing_to_change() -> None:
    """A module without linear layers is refused."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(3)

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            return self.norm(pixel_values)

    with pytest.raises(IsomergeError, match="no linear layer"):
        find_order(Plain(), images())


def test_passes_end_early(tmp_path) -> None:
    """Layers after the last place that is asked for do not run; rows are float64, unpadded, in memory of their
    own."""
    folder = single("llama", tmp_path / "m")
    module, examples = load_module(folder), examples_for(folder, 5)
    batch = next(examples.batches(5))
    ran: list[str] = []
    for path, part in linear_modules(module).items():
        part.register_forward_hook(lambda *_, path=path: ran.append(path))
    with torch.no_grad():
        found = run_until(module, batch, {("model.layers.1.mlp.down_proj", "in"): 1})
    assert ran[-1] == "model.layers.1.mlp.up_proj"
    (rows,) = found.values()
    assert rows[0].dtype == torch.float64
    assert rows[0].shape == (int(batch["attention_mask"].sum()), 40)
    hooks = [h for part in module.modules() for h in part._forward_pre_hooks]
    assert hooks == []

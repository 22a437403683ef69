"""No padding is ever taken for text, however a module lays its tokens out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from depth import more
from isomerge.fusion.forward.repair import repair
from isomerge.fusion.forward.sequential_regression import regress
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import IGNORED, Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.gathering import gather
from isomerge.observe.stats.layer_sequence import Rewritten
from isomerge.observe.stats.taps import capture
from toys import save_toy

LENGTHS = (9, 5, 12, 5)


def ragged(folder: Path, *, written: bool) -> Path:
    """Texts of unequal lengths, and what a decoder writes of each."""
    rng = torch.Generator().manual_seed(3)
    rows = [torch.randint(4, 60, (n,), generator=rng).tolist() for n in LENGTHS]
    lines = [{"input_ids": row, **({"labels": row[::-2]} if written else {})} for row in rows]
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "x.jsonl"


def one(examples: Examples, k: int) -> Examples:
    """A single example, cut to its own tokens."""
    read = int(examples.tensors["attention_mask"][k].sum())
    wrote = int((examples.tensors["labels"][k] != IGNORED).sum()) if "labels" in examples.tensors else 0
    cut = {"input_ids": read, "decoder_input_ids": wrote}
    return Examples({name: examples.tensors[name][k : k + 1, :n] for name, n in cut.items() if n}, False)


@pytest.mark.parametrize("name", ["qwen2_moe", "t5-gated", *more("opt", "deepseek_v3")])
def test_statistics_of_many_are_those_of_each_alone(tmp_path: Path, name: str) -> None:
    """Tokens in one long row, decoders without a mask, axes between: a Gram of all is the mean of those of each."""
    from isomerge.observe.data.opening_data import open_data

    model = recognise(save_toy(name, tmp_path / "m", dtype=torch.float32))
    module = load_module(model)
    file = ragged(tmp_path, written=name.startswith("t5"))
    examples = open_data(str(file), tmp_path / "m", config=model.config)
    found = gather(model, module, examples, rows=20, batch_size=3)
    alone = [gather(model, module, one(examples, k), batch_size=1) for k in range(len(LENGTHS))]
    assert found.grams
    assert {"attention_mask"} < set(examples.tensors)
    for key, gram in found.grams.items():
        parts = [(x.tokens[key], x.grams[key]) for x in alone if key in x.grams]
        assert found.tokens[key] == sum(n for n, _ in parts) <= sum(LENGTHS), key
        wanted = sum(n * g for n, g in parts) / found.tokens[key]
        assert float((gram - wanted).abs().max()) < 1e-4 * float(wanted.abs().max()), key
    seen = capture(model, module, examples, rows=20, batch_size=3)
    assert seen.values.keys() == found.activations.values.keys()
    assert all(bool((x == found.activations.values[key]).all()) for key, x in seen.values.items())


@pytest.mark.parametrize("change", [repair, regress])
@pytest.mark.parametrize("name", ["t5-gated", "mixtral"])
def test_rewritten_layers_read_no_padding(name: str, change: Callable[..., Rewritten], tmp_path: Path) -> None:
    """Other numbers where nothing is read or written, and more room for them, change no layer and count nowhere."""
    from isomerge.observe.data.opening_data import open_data

    model = recognise(save_toy(name, tmp_path / "m", dtype=torch.float32))
    end = load_module(model)
    given = open_data(str(ragged(tmp_path, written=name.startswith("t5"))), tmp_path / "m", config=model.config)
    fills = {"labels": IGNORED, "attention_mask": 0}
    wide = {n: torch.nn.functional.pad(x, (0, 3), value=fills.get(n, 7)) for n, x in given.tensors.items()}
    found = []
    for tensors in (given.tensors, wide):
        merged = copy.deepcopy(end)
        with torch.no_grad():
            for k, p in enumerate(merged.parameters()):
                p.mul_(1 + 0.3 * torch.rand(p.shape, generator=torch.Generator().manual_seed(k)))
        found.append(
            (
                change(merged, [end], [1], Examples(tensors, False)),
                {n: p.detach() for n, p in merged.named_parameters()},
            )
        )
    (one, parameters), (two, others) = found
    read = sum(LENGTHS)
    wrote = sum(-(-n // 2) for n in LENGTHS)
    assert {row["tokens"] for row in one.layers if "expert" not in row["layer"]} <= {read, wrote}
    assert [row["tokens"] for row in one.layers] == [row["tokens"] for row in two.layers]
    assert one.layers
    assert one.kept == two.kept
    for key, x in parameters.items():
        assert torch.allclose(x, others[key], rtol=0, atol=1e-5 * float(x.abs().max())), key


def test_rows_are_shared_out_and_masks_with_holes_are_kept() -> None:
    """Every length has its share of rows; a mask that is no padding on the right stays, and no label goes along."""
    ids = torch.arange(24).reshape(4, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    examples = Examples({"input_ids": ids, "attention_mask": mask, "labels": ids}, True)
    found = list(examples.without_padding(2))
    assert [(len(x["input_ids"]), x["input_ids"].shape[1], "attention_mask" in x) for x in found] == [
        (1, 6, True), (2, 3, False), (1, 6, False),
    ]  # fmt: skip
    assert all("labels" not in x for x in found)
    assert sorted(int(i) for x in found for i in x["input_ids"][:, 0]) == [0, 6, 12, 18]
    assert [len(x["input_ids"]) for x in Examples({"input_ids": ids}, False).without_padding(3)] == [3, 1]


def test_routers_that_are_linear_by_class_are_no_linear_layers(tmp_path: Path) -> None:
    """What they give is scores and choices: statistics are gathered without their outputs."""
    model = recognise(save_toy("llama4_text", tmp_path / "m", dtype=torch.float32))
    examples = Examples({"input_ids": torch.arange(4, 24).reshape(2, 10)}, True)
    found = gather(model, load_module(model), examples)
    assert found.grams
    assert not any("router" in key for key in found.grams)

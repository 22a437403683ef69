"""Adapters of parameters (peft's ``target_parameters``) and of tokens' rows: what peft's ``merge_and_unload`` makes of
them (tests/merging/peft_reference.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge as package
from isomerge.errors import IsomergeError
from isomerge.models.conversions import conversion_of
from isomerge.models.recognised import recognise
from isomerge.models.references import open_model_ref
from merging.peft_reference import HERE, OF_BOTH, PARAMETERS, WEIGHTS, whole
from models.test_lora import adapter, halves
from raw_files import one_sentence

TOLERANCE = 1e-6
"""Of the largest entry, in float32: products are summed in another order than peft's."""
KINDS = [(name, layout) for name in PARAMETERS for layout in ("stored", "live")]


def place(name: str, number: int = 0) -> Path:
    """Where an adapter is."""
    return HERE / "parameters" / name.replace(" ", "_") / str(number)


def base(name: str, folder: Path, layout: str = "stored") -> Path:
    """The small model as transformers saves it, or its tensors as the class has them."""
    model = whole(name)
    model.save_pretrained(folder)
    if layout == "live":
        stored = {k: v.contiguous() for k, v in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            del stored["lm_head.weight"]
        save_file(stored, folder / "model.safetensors")
    return folder


def live(ref: str, name: str) -> dict[str, torch.Tensor]:
    """The tensors of a reference as the class has them."""
    view, model = open_model_ref(ref), whole(name)
    made = conversion_of(model, view.shapes)
    state = {to: view.read(stored) for stored, to in made.whole.items()}
    for to, pieces in made.fused.items():
        state[to] = torch.empty(model.state_dict()[to].shape)
        for stored, piece in pieces:
            piece.put(view.read(stored), state[to])
    return state


def apart(one: torch.Tensor, two: torch.Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((one - two).abs().max() / two.abs().max())


@pytest.mark.parametrize(("name", "layout"), KINDS)
def test_they_are_what_peft_makes(name: str, layout: str, tmp_path: Path) -> None:
    """Experts one by one in the file or together, inputs first or last, square ones too, several parameters of one
    module, rows of a table that is the head as well or not. With peft's rule for square ones turned, or the modules'
    nesting, gpt-oss and Dbrx differ; with the matrix slower than the rank in ``B``, all experts do."""
    ours = live(f"{base(name, tmp_path / 'base', layout)}+{place(name)}", name)
    theirs, before = load_file(place(name) / "merged.safetensors"), whole(name).state_dict()
    if name == "tokens":
        del theirs["lm_head.weight"]  # tied
    assert theirs.keys() <= ours.keys()
    for key, x in ours.items():
        assert apart(x, theirs[key] if key in theirs else before[key]) <= TOLERANCE, key


@pytest.mark.parametrize("name", OF_BOTH)
@pytest.mark.parametrize("method", ["cat", "svd", "linear"])
def test_adapters_of_experts_become_one(name: str, method: str, tmp_path: Path) -> None:
    """Matrix by matrix: ``cat`` and a full ``svd`` are the weighted sum of peft's updates, and ``linear`` takes halves
    as it does; the report says how far each is from the sum. Merged as one matrix, ``cat`` mixes experts."""
    more: dict[str, Any] = {"rank": 6} if method == "svd" else {}
    report = package.merge_lora(
        [place(name, k) for k in range(2)], out=tmp_path / "out", method=method, weights=WEIGHTS, **more
    )
    before = whole(name).state_dict()
    each = [load_file(place(name, k) / "merged.safetensors") for k in range(2)]
    wanted = {
        key: x + sum(w * (one[key] - x) for w, one in zip(WEIGHTS, each, strict=True) if key in one)
        for key, x in before.items()
    }
    ours = live(f"{base(name, tmp_path / 'base')}+{tmp_path / 'out'}", name)
    distance = sum(float((ours[key] - x).norm() ** 2) for key, x in wanted.items()) ** 0.5
    size = sum(float((x - before[key]).norm() ** 2) for key, x in wanted.items()) ** 0.5
    assert report["share"] == pytest.approx(distance / size, abs=1e-5)
    assert (report["share"] < 1e-5) == (method != "linear")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    said = json.loads((place(name) / "adapter_config.json").read_text())
    assert sorted(config["target_parameters"]) == sorted(said["target_parameters"])
    assert config["target_modules"] == (["model.layers.0.self_attn.q_proj"] if name == "qwen3_moe" else [])


def test_ranks_of_parameters(tmp_path: Path) -> None:
    """A rank of a parameter's own counts where the class tells which it is; without the base nobody knows."""
    lora = shutil.copytree(place("qwen3_moe"), tmp_path / "lora")
    file, config = lora / "adapter_model.safetensors", lora / "adapter_config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "rank_pattern": {"down_proj": 1}, "alpha_pattern": {"down_proj": 4}}))
    at, halved = "base_model.model.model.layers.0.mlp.experts.lora_{}.weight", load_file(file)
    halved[at.format("A")] = halved[at.format("A")].view(3, 2, -1)[:, :1].reshape(3, -1).contiguous()
    halved[at.format("B")] = halved[at.format("B")].view(16, 2, 3)[:, 0].contiguous()
    save_file(halved, file)
    name, key = "qwen3_moe", "model.layers.0.mlp.experts.down_proj"
    moved = live(f"{base(name, tmp_path / 'base')}+{lora}", name)
    left, right = halved[at.format("B")], halved[at.format("A")]
    wanted = whole(name).state_dict()[key] + 4 * torch.einsum("oe,ei->eoi", left, right)
    assert apart(moved[key], wanted) <= TOLERANCE
    gates = "model.layers.0.mlp.experts.gate_up_proj"
    assert apart(moved[gates], load_file(place(name) / "merged.safetensors")[gates]) <= TOLERANCE
    with pytest.raises(IsomergeError) as error:
        package.merge_lora([lora, lora], out=tmp_path / "out")
    one_sentence(error.value, "down_proj", "without the base", "BASE+ADAPTER")


def test_the_language_model_of_another_class(tmp_path: Path) -> None:
    """An adapter that was trained on the body finds the parameters of the class with a head, and as they are stored."""
    lora = shutil.copytree(place("qwen3_moe"), tmp_path / "lora")
    stored = load_file(lora / "adapter_model.safetensors")
    save_file(
        {k.replace("model.model.model.", "model.model.", 1): v for k, v in stored.items()},
        lora / "adapter_model.safetensors",
    )
    ref = f"{base('qwen3_moe', tmp_path / 'base')}+{lora}"
    theirs = load_file(place("qwen3_moe") / "merged.safetensors")
    assert all(apart(live(ref, "qwen3_moe")[key], x) <= TOLERANCE for key, x in theirs.items())
    assert recognise(ref).spec.model_type == "qwen3_moe"


BAD = {
    "rows": ({}, {"trainable_token_indices": [3, 99]}, ["99", "24 rows", "as many rows"]),
    "count": ({}, {"trainable_token_indices": [3]}, ["1 tokens", "[2, 16]"]),
    "twice": ({}, {"trainable_token_indices": [3, 3]}, ["trainable_token_indices", "embed_tokens"]),
    "unsaid": ({}, {"trainable_token_indices": {"lm_head": [3, 4]}}, ["trainable_token_indices", "embed_tokens"]),
    "none": (halves("mlp.experts", 16, 12), {"target_parameters": ["mlp.experts.up"]}, ["mlp.experts.up", "does not have"]),
    "shape": (halves("mlp.up_proj", 17, 12), {"target_parameters": ["mlp.up_proj.weight", "mlp.up_proj.bias"]}, ["none of the parameters", "[16, 16]"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit(case: str, tmp_path: Path) -> None:
    """One sentence, before any weight is read."""
    given, said, names = BAD[case]
    more = {f"model.layers.0.{key}": x for key, x in given.items()}
    rows = {} if given else {"model.embed_tokens.token_adapter.trainable_tokens_delta": torch.ones(2, 16)}
    folder = adapter(tmp_path / "lora", {**more, **rows}, **said)
    with pytest.raises(IsomergeError) as error:
        open_model_ref(f"{base('tokens', tmp_path / 'base')}+{folder}")
    one_sentence(error.value, *names)

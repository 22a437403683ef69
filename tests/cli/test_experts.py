"""Experts made of dense models, by both doors and through disk: copies are the dense model, rows are what prompts
say, disguised experts come back, and what cannot be is refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

import isomerge as package
from isomerge.archs.expert_targets import expert_targets
from solve.disguises import single, turn
from toys import config_of, randomise

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ROUNDING = 2e-6
"""Of outputs, as a share of the largest: classes take norms and the router's softmax in float32, whatever is stored."""
GATE = "model.layers.{}.mlp.gate_proj.weight"


def dense(folder: Path, kind: str = "Llama", seed: int = 0, *, words: bool = True, **more: Any) -> Path:
    """A random dense model in float64, with a tokenizer of single words."""
    config = getattr(tf, f"{kind}Config")(**{**SIZES, **more})
    model = getattr(tf, f"{kind}ForCausalLM")(config).double()
    randomise(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    if words:
        names = ["<unk>", "<s>", "</s>", *(f"w{k}" for k in range(3, 60))]
        made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(names)}, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tf.PreTrainedTokenizerFast(
            tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<s>"
        ).save_pretrained(folder)
    return folder


def recipe(path: Path, base: Path, experts: list[dict[str, Any]], **more: Any) -> Path:
    """A document of mergekit-moe."""
    experts = [{"source_model": str(base), **entry} for entry in experts]
    path.write_text(yaml.safe_dump({"base_model": str(base), "gate_mode": "random", "experts": experts, **more}))
    return path


def logits(folder: Path, **how: Any) -> Tensor:
    """What a model says of fixed tokens, through ``from_pretrained``; nothing may be missing."""
    load: Any = tf.AutoModelForCausalLM.from_pretrained
    model, info = load(folder, dtype=torch.float64, output_loading_info=True, experts_implementation="eager", **how)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        return model.eval()(torch.arange(1, 49).reshape(2, 24)).logits


def gap(one: Tensor, two: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one - two).abs().max() / two.abs().max())


NOTHING = {"residual_scale": 0.0}
HALF = {"residual_scale": 0.5}
COPIES: dict[str, tuple[str, dict[str, Any], str, list[dict[str, Any]], dict[str, Any]]] = {
    "mixtral": ("Llama", {}, "mixtral", [], {}),
    "mixtral-window": ("Mistral", {"sliding_window": 8}, "mixtral", [], {}),
    "mixtral-tied": ("Llama", {"tie_word_embeddings": True, "head_dim": 16}, "mixtral", [], {}),
    "deepseek": ("Llama", {"head_dim": 16, "attention_bias": False}, "granitemoeshared", [HALF], HALF),
    "deepseek-alone": ("Mistral", {"sliding_window": None}, "granitemoeshared", [], {}),
    "qwen2": ("Qwen2", {}, "qwen2_moe", [NOTHING], {}),
    "qwen2-of-llama": ("Llama", {"rms_norm_eps": 1e-3}, "qwen2_moe", [NOTHING], {}),
    "qwen3": ("Qwen3", {"head_dim": 8}, "qwen3_moe", [], {}),
}
"""Dense model, its config, the target, shared experts, and the experts' scale."""


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_the_dense_model(name: str, tmp_path: Path) -> None:
    """Whatever the router says, as it sums to one over the experts that it chooses."""
    kind, more, target, shared, scale = COPIES[name]
    base = dense(tmp_path / "base", kind, words=False, **more)
    listed = {"shared_experts": [{"source_model": str(base), **entry} for entry in shared]} if shared else {}
    made = recipe(tmp_path / "r.yml", base, [scale] * 4, architecture=target, **listed)
    report = package.merge(made, out=tmp_path / "out")
    found = config_of(tmp_path / "out")
    assert report["architecture"] == found["model_type"] == target
    assert found["num_experts_per_tok"] == 2
    assert gap(logits(tmp_path / "out"), logits(base)) < ROUNDING
    one = logits(tmp_path / "out", num_experts_per_tok=1)
    assert gap(one, logits(base)) < ROUNDING


def test_every_target_is_tried() -> None:
    """Above."""
    assert {target.model_type for target in expert_targets()} == {target for _, _, target, _, _ in COPIES.values()}


def test_experts_differ_and_tokens_go_to_them(tmp_path: Path) -> None:
    """Two models' MLPs, one expert per token: each token gets that of the row with the larger product."""
    base, other = (dense(tmp_path / name, seed=seed, words=False) for name, seed in (("a", 0), ("b", 1)))
    made = recipe(tmp_path / "r.yml", base, [{}, {"source_model": str(other)}], experts_per_token=1)
    report = package.merge(made, out=tmp_path / "out", seed=3)
    assert [row["model"] for row in report["experts"]] == [str(base), str(other)]
    assert [row["frame"] for row in report["experts"]] == ["base", "stored"]
    stored, mine, theirs = (load_file(f / "model.safetensors") for f in (tmp_path / "out", base, other))
    rows = torch.randn((2, 2, 32), generator=torch.Generator().manual_seed(3))
    model: Any = tf.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    for layer, block in enumerate(model.model.layers):
        gate = stored[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
        assert torch.equal(gate, rows[layer].double())
        other_mlp = model.model.layers[layer].mlp
        second: Any = type(other_mlp)(model.config).double()
        names = [f"model.layers.{layer}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
        second.load_state_dict({name.removeprefix(f"model.layers.{layer}.mlp."): theirs[name] for name in names})
        assert not torch.equal(mine[names[0]], theirs[names[0]])
        block.mlp.register_forward_hook(_chosen(gate, second))
    with torch.no_grad():
        wanted = model(torch.arange(1, 49).reshape(2, 24)).logits
    assert gap(logits(tmp_path / "out"), wanted) < ROUNDING


def _chosen(gate: Tensor, second: Any) -> Callable:
    """The second MLP's output where its row wins."""

    def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
        wins = (inputs[0] @ gate.T).argmax(-1, keepdim=True) == 1
        assert 0 < wins.sum() < wins.numel()
        return torch.where(wins, second(inputs[0]), output)

    return hook


# ------------------------------------------------------------------------------------------------ routers

POSITIVE = [["w3 w4 w5", "w6 w7"], ["w20 w21 w22 w23"], ["w30"], ["w40 w41"]]
NEGATIVE = [["w10", "w11 w12 w13"], [], ["w3 w4"], []]
PROMPTS = [
    {"positive_prompts": one, **({"negative_prompts": two} if two else {})}
    for one, two in zip(POSITIVE, NEGATIVE, strict=True)
]


def in_mergekits_way(base: Path, way: str, texts: list[str]) -> Tensor:
    """The rows of one expert's prompts before lengths are taken, in one batch padded on the left."""
    ids = [[1, *(int(word[1:]) for word in text.split())] for text in texts]
    longest = max(map(len, ids))
    batch = torch.tensor([[1] * (longest - len(row)) + row for row in ids])
    seen = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    model: Any = tf.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if way == "cheap_embed":
        one_hot = torch.nn.functional.one_hot(batch, 60).float()
        total = (one_hot @ model.get_input_embeddings().weight * seen[..., None]).sum((0, 1))
        return (total / total.norm()).expand(2, -1)
    with torch.no_grad():
        states = model(input_ids=batch, attention_mask=seen, output_hidden_states=True).hidden_states[:-1]
    every = torch.stack(states)
    if way == "hidden_avg":
        return ((every * seen[..., None]).sum(2) / seen.sum(1)[:, None]).mean(1)
    return every[:, :, -1].mean(1)


@pytest.mark.parametrize("way", ["hidden", "hidden_avg", "cheap_embed"])
def test_rows_are_what_prompts_say(way: str, tmp_path: Path) -> None:
    """By mergekit's formula; the shared expert's gate of Qwen2-MoE alike, and what it does with it."""
    base = dense(tmp_path / "base", "Llama")
    shared = [{"source_model": str(base), **PROMPTS[3], "residual_scale": 0.3}]
    made = recipe(
        tmp_path / "r.yml", base, PROMPTS[:3], gate_mode=way, shared_experts=shared, architecture="qwen moe"
    )
    package.merge(made, out=tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    for expert in range(4):
        row = in_mergekits_way(base, way, POSITIVE[expert])
        if NEGATIVE[expert]:
            row = row - in_mergekits_way(base, way, NEGATIVE[expert])
        row = row / row.norm(dim=-1, keepdim=True)
        for layer in range(2):
            name = "shared_expert_gate" if expert == 3 else "gate"
            found = stored[f"model.layers.{layer}.mlp.{name}.weight"][expert % 3]
            assert torch.allclose(found, row[layer].double(), atol=2e-6)
    model: Any = tf.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    for layer, block in enumerate(model.model.layers):
        gate = stored[f"model.layers.{layer}.mlp.shared_expert_gate.weight"][0]
        block.mlp.register_forward_hook(
            lambda _, x, y, gate=gate: y * (1 + 0.3 * torch.sigmoid(x[0] @ gate)[..., None])
        )
    with torch.no_grad():
        wanted = model(torch.arange(1, 49).reshape(2, 24)).logits
    assert gap(logits(tmp_path / "out"), wanted) < ROUNDING


def test_prompts_that_are_alike_are_told(tmp_path: Path) -> None:
    """The layers whose rows are, as mergekit warns."""
    base = dense(tmp_path / "base")
    alike = [{"positive_prompts": ["w3 w4 w5 w6"]}, {"positive_prompts": ["w3 w4 w5 w6 w6"]}]
    report = package.merge(
        recipe(tmp_path / "r.yml", base, alike, gate_mode="cheap_embed", experts_per_token=1), out=tmp_path / "out"
    )
    assert min(report["condition_numbers"]) > 5
    assert any("much alike in 2 of 2 layers" in note for note in report["notes"])


def test_noise_is_drawn_by_the_seed(tmp_path: Path) -> None:
    """Of its size, another for every expert and tensor, the same once more; the writer's scale is behind it."""
    base = dense(tmp_path / "base", words=False)
    noisy = {"noise_scale": 0.1, "residual_scale": 2.0}
    made = recipe(tmp_path / "r.yml", base, [noisy, noisy])
    for out, seed in (("one", 1), ("again", 1), ("other", 2)):
        package.merge(made, out=tmp_path / out, seed=seed)
    one, again, other = (load_file(tmp_path / out / "model.safetensors") for out in ("one", "again", "other"))
    assert all(torch.equal(one[name], again[name]) for name in one)
    start = load_file(base / "model.safetensors")
    place = "model.layers.1.block_sparse_moe.experts.{}.{}.weight"
    noise = [one[place.format(e, "w1")] - start[GATE.format(1)] for e in (0, 1)]
    assert 0.09 < float(noise[0].std()) < 0.11
    assert not torch.equal(*noise)
    assert not torch.equal(one[place.format(0, "w1")], other[place.format(0, "w1")])
    down = one[place.format(0, "w2")] / 2 - start["model.layers.1.mlp.down_proj.weight"]
    assert 0.09 < float(down.std()) < 0.11


# ---------------------------------------------------------------------------------------------- alignment


@pytest.mark.parametrize("toy", ["llama-tied", "qwen3"])
def test_disguised_experts_come_back(toy: str, tmp_path: Path) -> None:
    """The same function in another stream, as an expert: the dense model again where it is aligned, and something
    else, which is told, where it is not."""
    base = single(toy, tmp_path / "base")
    other = turn(toy, base, tmp_path / "other", 3)
    experts = [{}, {"source_model": str(other)}]
    found = {}
    for align in (False, "auto"):
        made = recipe(tmp_path / "r.yml", base, experts, align=align)
        report = package.merge(made, out=tmp_path / str(align))
        found[align] = gap(logits(tmp_path / str(align)), logits(base))
        assert report["experts"][1]["frame"] == ("stored" if align is False else "aligned")
        assert any("not in the coordinates of" in note for note in report["notes"]) is (align is False)
    assert found["auto"] < 1e-4
    assert found[False] > 0.1
    assert (tmp_path / "auto" / "alignment.safetensors").exists()


def test_experts_of_other_models_compute_what_they_did(tmp_path: Path) -> None:
    """A model that was trained apart: behind the base's norm an expert computes what the aligned model's MLP
    computes behind its own."""
    base, other = (dense(tmp_path / name, seed=seed, words=False) for name, seed in (("a", 0), ("b", 1)))
    made = recipe(tmp_path / "r.yml", base, [{}, {"source_model": str(other)}], align=True)
    report = package.merge(made, out=tmp_path / "out")
    assert report["experts"][1]["distance"]["after"] < report["experts"][1]["distance"]["before"]
    package.align(other, onto=base, out=tmp_path / "aligned", align=True, untie=False)
    stored, mine, theirs = (
        load_file(f / "model.safetensors") for f in (tmp_path / "out", base, tmp_path / "aligned")
    )
    x = torch.randn(32, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def mlp(gain: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        behind = gain[:, None] * x
        return down @ (torch.nn.functional.silu(gate @ behind) * (up @ behind))

    for layer in range(2):
        gain = f"model.layers.{layer}.post_attention_layernorm.weight"
        dense_names = [f"model.layers.{layer}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
        expert = [f"model.layers.{layer}.block_sparse_moe.experts.1.{part}.weight" for part in ("w1", "w3", "w2")]
        assert not torch.allclose(mine[gain], theirs[gain], atol=1e-3)
        assert not torch.allclose(stored[expert[0]], theirs[dense_names[0]], atol=1e-3)
        ours = mlp(mine[gain], *[stored[name] for name in expert])
        assert gap(ours, mlp(theirs[gain], *[theirs[name] for name in dense_names])) < 1e-10


def test_fine_tunes_stay_as_they_are(tmp_path: Path) -> None:
    """Aligned already: the same bytes as without alignment."""
    base = dense(tmp_path / "base", words=False)
    model: Any = tf.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    for weight in model.parameters():
        weight.data += 0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(5))
    model.save_pretrained(tmp_path / "tuned")
    for align in (False, "auto"):
        made = recipe(tmp_path / "r.yml", base, [{}, {"source_model": str(tmp_path / "tuned")}], align=align)
        report = package.merge(made, out=tmp_path / str(align))
    assert report["experts"][1]["frame"] == "same"
    one, two = (load_file(tmp_path / str(align) / "model.safetensors") for align in (False, "auto"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alignment and rows are not found anew, and the bytes are those of a run that was not killed."""
    base, other = (dense(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 1)))
    experts = [PROMPTS[0], {"source_model": str(other), **PROMPTS[1]}]
    made = recipe(tmp_path / "r.yml", base, experts, gate_mode="hidden", align=True)
    package.merge(made, out=tmp_path / "whole")

    def kill(unit: str, done: int, total: int) -> None:
        if unit.startswith("layers.1.block_sparse_moe"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        package.merge(made, out=tmp_path / "out", observer=kill)
    assert not (tmp_path / "out").exists()
    for place in ("run.alignment_runs.AlignPlan.run", "commands.experts.prompt_rows"):
        monkeypatch.delattr(f"isomerge.{place}")
    package.merge(made, out=tmp_path / "out")
    for name in ("model.safetensors", "alignment.safetensors", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# ------------------------------------------------------------------------------------------------ the doors


def test_by_the_command_line(isomerge: Callable, tmp_path: Path) -> None:
    """A plan, a run, its JSON, card and recipe, which makes the same again; a live module in Python."""
    base = dense(tmp_path / "base")
    other = dense(tmp_path / "other", seed=1)
    experts = [PROMPTS[0], {"source_model": {"model": {"path": str(other)}}, **PROMPTS[1]}]
    made, out, told = (
        recipe(tmp_path / "r.yml", base, experts, gate_mode="hidden", dtype="float32"),
        tmp_path / "out",
        tmp_path / "told.json",
    )
    planned = isomerge("merge", made, out, "--dry-run", "--json", told)
    assert (planned.code, out.exists()) == (0, False), planned.err
    plan = json.loads(told.read_text())
    assert plan["command"] == "dry-run"
    said = isomerge("merge", made, out, "--json", told, "--length", "3", "--seed", "4")
    assert said.code == 0, said.err
    assert said.err.count("--length is not used: no data are read") == 1
    assert said.err.count("--seed is not used: nothing is drawn") == 1
    assert "mixtral, router by hidden: " in said.out
    assert f"Wrote {out}: 2 experts a layer, 2 per token." in said.out
    assert "is not in the coordinates of" in said.err
    report = json.loads(told.read_text())
    assert {key: report[key] for key in ("experts", "parameters", "bytes")} == {
        key: plan[key] for key in ("experts", "parameters", "bytes")
    }
    stored = load_file(out / "model.safetensors")
    assert report["parameters"]["all"] == sum(t.numel() for t in stored.values())
    assert {t.dtype for t in stored.values()} == {torch.float32}
    assert isomerge("fsck", out).code == 0
    refused = isomerge("report", out)
    assert refused.code == 2
    assert "of which there is no page" in refused.err
    card = (out / "README.md").read_text()
    assert "expert 1, as it is stored" in card
    assert "- moe" in card
    assert isomerge("merge", out / "isomerge_recipe.yml", tmp_path / "again", "-q").code == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    live = package.merge(made)
    assert type(live).__name__ == "MixtralForCausalLM"
    assert live.isomerge_report["method"] == "moe"


def _prompts(text: str = "w3") -> dict[str, Any]:
    return {"positive_prompts": [text]}


WRONG: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "no experts": ([], {}, ["`experts` is empty"]),
    "too many per token": ([{}, {}], {"experts_per_token": 3}, ["`experts_per_token` is 3, of 2 experts"]),
    "one expert": ([{}], {}, ["`experts_per_token` is 2 by default, of 1 expert"]),
    "no prompts": ([_prompts(), {}], {"gate_mode": "hidden"}, ["`experts.1` has no `positive_prompts`", "random"]),
    "no prompts, cheap": ([{}, {}], {"gate_mode": "cheap_embed"}, ["`experts.0` has no `positive_prompts`"]),
    "same prompts": ([_prompts(), _prompts()], {"gate_mode": "hidden"}, ["the same prompts"]),
    "empty prompt": ([_prompts(""), _prompts()], {"gate_mode": "hidden"}, ["`experts.0` has an empty prompt"]),
    "gate": ([{}, {}], {"gate_mode": "hiden"}, ["`gate_mode`", "'hidden'"]),
    "key": ([{"positive_promts": ["a"]}, {}], {}, ["`experts.0.positive_promts`", "did you mean `positive_prompts`?"]),
    "method": ([{}, {}], {"merge_method": "ties"}, ["unknown key"]),
    "architecture": ([{}, {}], {"architecture": "glm"}, ["`architecture` is glm", "Mixtral (mixtral)", "qwen3_moe"]),
    "qwen3 of llama": ([{}, {}], {"architecture": "qwen3"}, ["Qwen3Moe is made of qwen3, and there is llama"]),
    "no shared expert": ([{}, {}], {"architecture": "qwen moe"}, ["Qwen2Moe has one shared expert", "shared_experts"]),
    "onto": ([{}, {}], {"align": {"onto": "x"}}, ["`align.onto` says nothing of experts"]),
    "negative noise": ([{"noise_scale": -0.1}, {}], {}, ["`experts.0`", "`noise_scale` is -0.1", "at least 0"]),
    "scale": ([{"noise_scale": float("nan")}, {}], {}, ["`experts.0`", "`noise_scale` is nan"]),
    "code": ([{}, {}], {"align": {"data": "os:getcwd"}}, ["`align.data`", "a recipe runs no code"]),
    "import": ([{}, {}], {"import": "os"}, ["`import` names os"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_recipes(name: str, refuses: Callable, stored: Callable, tmp_path: Path) -> None:
    """One sentence, nothing written."""
    experts, more, words = WRONG[name]
    made = recipe(tmp_path / "r.yml", stored("llama", 0), experts, **more)
    refuses("merge", made, tmp_path / "out", words=["r.yml", *words])


def test_models_that_do_not_fit(refuses: Callable, stored: Callable, tmp_path: Path) -> None:
    """Shapes, depths, vocabularies where they are aligned, functions, biases, windows, tokenizers."""
    base = dense(tmp_path / "base")
    made, out = tmp_path / "r.yml", tmp_path / "out"
    cases: list[tuple[str, dict[str, Any], bool, list[str]]] = [
        ("wide", {"intermediate_size": 64}, False, ["mlp.gate_proj.weight has shape [48, 32]", "[64, 32]"]),
        ("deep", {"num_hidden_layers": 3}, False, ["different numbers of layers (2 and 3)"]),
        ("words", {"vocab_size": 64}, True, ["different vocabularies (vocab is 60 and 64)", "transplant-tokenizer"]),
        ("act", {"hidden_act": "gelu"}, False, ["hidden_act is 'silu' and 'gelu'"]),
    ]  # fmt: skip
    for place, more, align, words in cases:
        other = dense(tmp_path / place, seed=1, words=False, **more)
        recipe(made, base, [{}, {"source_model": str(other)}], align=align)
        refuses("merge", made, out, words=words)
    recipe(made, stored("gpt2", 0), [{}, {}])
    refuses("merge", made, out, words=["no architecture with experts fits", "and there is gpt2"])
    recipe(made, dense(tmp_path / "biased", attention_bias=True), [{}, {}])
    refuses("merge", made, out, words=["cannot become Mixtral", "bias"])
    recipe(made, dense(tmp_path / "window", "Mistral", sliding_window=8), [{}, {}], architecture="deepseek")
    refuses("merge", made, out, words=["sliding_window=8", "GraniteMoeShared has no place"])
    recipe(made, stored("llama", 0), [_prompts(), _prompts("w4")], gate_mode="hidden")
    refuses("merge", made, out, words=["has no tokenizer"])
    recipe(made, base, [{}, {}])
    refuses("merge", made, out, "--method", "ties", words=["leave out --method"])
    refuses("merge", made, out, "--repair", "x.txt", words=["--repair", "experts"])


def test_vocabularies_may_differ_where_nothing_is_aligned(tmp_path: Path) -> None:
    """As in mergekit: the base's is written, and that is told."""
    base = dense(tmp_path / "base", words=False)
    other = dense(tmp_path / "other", seed=1, words=False, vocab_size=64)
    report = package.merge(
        recipe(tmp_path / "r.yml", base, [{}, {"source_model": str(other)}]), out=tmp_path / "out"
    )
    assert any("different vocabularies (vocab is 60 and 64)" in note for note in report["notes"])
    assert logits(tmp_path / "out").shape[-1] == 60

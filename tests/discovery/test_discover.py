"""End to end: specs found for classes that differ in everything, proven, and used on checkpoints of other sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from typer.testing import CliRunner

import isomerge
from discovery.specs import WANTED, found
from isomerge.cli.program import app
from isomerge.discovery.discover import Discovery, discover
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise
from isomerge.symmetry.axes import shape
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.spec_text import parse_spec
from toys import randomise, relative


def shown(discovery: Discovery) -> set[str]:
    """Spaces with their groups, and shifts."""
    spaces = discovery.draft.spaces.values()
    texts = {f"{s.name}: {s.group}" + (f" folded {s.folded}" if s.folded else "") for s in spaces}
    return texts | set(discovery.draft.shifts)


@pytest.mark.parametrize("kind", WANTED)
def test_found(kind: str) -> None:
    """All that there is, and the last proof is one of rounding."""
    discovery = found(kind)
    assert shown(discovery) >= WANTED[kind][1]
    assert discovery.errors["all"] < 1e-9
    assert {name for name in discovery.errors if not name.endswith("folded")} == {
        "all",
        "all, through disk", *discovery.draft.spaces, *discovery.draft.shifts,
    } - ({"n3"} if kind == "gpt2" else {"n1"} if kind == "bert" else set())  # fmt: skip
    refused = {v.name for v in discovery.record if not v.holds}
    assert refused if kind in ("gpt2", "gptj", "bert") else True


def test_what_is_refused_is_not_in_the_text() -> None:
    """GELU lets no factor through, LayerNorm no signs."""
    text = found("gpt2").text
    assert "PositiveScale" not in text
    assert "Signed" not in text
    assert not any("u: " in line for line in text.splitlines() if line.startswith("space"))


def save_gptj(folder: Path) -> Path:
    """A GPT-J of sizes that discovery never uses, as transformers saves it."""
    config = tf.GPTJConfig(vocab_size=71, n_embd=60, n_layer=4, n_head=5, rotary_dim=4, n_positions=32)
    model = tf.GPTJForCausalLM(config).double().eval()
    randomise(model, 3)
    model.save_pretrained(folder)
    return folder


def logits(folder: Path) -> torch.Tensor:
    """Of fixed tokens."""
    ids = torch.randint(1, 60, (3, 11), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        return tf.GPTJForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()(ids).logits


def test_from_a_checkpoint_to_a_moved_one(tmp_path: Path) -> None:
    """The command line writes a spec that ``--spec`` takes, and the law holds for the real weights through disk."""
    folder, spec, report = save_gptj(tmp_path / "gptj"), tmp_path / "gptj.spec", tmp_path / "report.json"
    done = CliRunner().invoke(app, ["discover", str(folder), "-o", str(spec), "--json", str(report)])
    assert done.exit_code == 0, done.output
    for part in ("proven", "rejected", "Complex", "describes all", "--spec"):
        assert part in done.output
    told = json.loads(report.read_text())
    assert told["spec"] == spec.read_text()
    assert told["class"] == "GPTJForCausalLM"
    assert {"rest", "c", "ov", "h", "ff", "res"} <= {entry["space"] for entry in told["proven"]}
    assert "lm_head.bias" in told["fixed"]
    assert told["coverage"] == len(recognise(folder, spec_file=spec).matches)
    assert "ff" in {space["name"] for space in isomerge.inspect(folder, spec=spec)["spaces"]}
    model = recognise(folder, spec_file=spec)
    g = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(1))
    moved = isomerge.apply(g, folder, out=tmp_path / "moved", spec=spec)
    assert moved["distance"]["after"] > 10
    assert relative(logits(tmp_path / "moved"), logits(folder)) < 1e-5  # its attention is float32
    assert isomerge.verify(folder, tmp_path / "moved", spec=spec)["same"]


def test_another_seed_finds_the_same() -> None:
    """Other weights, inputs and elements."""
    assert shown(discover({"model_type": "gpt2"}, seed=5)) == shown(found("gpt2"))


def test_config_alone(tmp_path: Path) -> None:
    """A folder with nothing but a config.json; the same seed gives the same text, byte by byte."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    told = isomerge.discover(tmp_path, out=tmp_path / "gpt2.spec")
    assert told["coverage"] is None
    assert told["spec"] == (tmp_path / "gpt2.spec").read_text() == found("gpt2").text
    assert told["checked"] == found("gpt2").errors
    assert all(entry["error"] < 1e-9 for entry in told["proven"])


@pytest.mark.parametrize("kind", WANTED)
def test_sizes_follow_the_real_config(kind: str) -> None:
    """Bound to the config at hand, every size is the real one, not one that a specimen had by chance."""
    from isomerge.discovery.building import real_config

    given = {"model_type": kind, **WANTED[kind][0]}
    config, sizes = real_config(given), parse_spec(found(kind).text, given).sizes
    heads = config.num_attention_heads
    kv = WANTED[kind][0].get("num_key_value_heads", heads)
    assert sizes["vocab"] == config.vocab_size
    assert sizes["res"] == config.hidden_size
    assert sizes["ff"] == (getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    assert sizes["kv" if kv < heads else "h"] == kv
    assert sizes["head"] == (getattr(config, "head_dim", None) or config.hidden_size // heads)


def test_choices_that_were_not_proven_are_refused() -> None:
    """A spec found for one activation says no to another."""
    text = found("gpt2").text
    parse_spec(text, {"model_type": "gpt2", "activation_function": "gelu_new"})
    with pytest.raises(IsomergeError, match=r"activation_function = gelu_new, run isomerge discover"):
        parse_spec(text, {"model_type": "gpt2", "activation_function": "relu"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "nonesuch"}, "transformers .* cannot make a model of model_type 'nonesuch'"),
        ({"model_type": "resnet"}, "no key for the width of the model is known"),
        ({}, "cannot make a model of model_type None"),
    ],
)
def test_refused(config: dict[str, Any], message: str) -> None:
    """What cannot be run is told in one sentence."""
    with pytest.raises(IsomergeError, match=message):
        isomerge.discover(config)


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    """Before anything is computed."""
    (tmp_path / "old.spec").write_text("mine")
    with pytest.raises(IsomergeError, match=r"old.spec exists: choose another"):
        isomerge.discover({"model_type": "gpt2"}, out=tmp_path / "old.spec")
    with pytest.raises(IsomergeError, match=r"no such folder"):
        isomerge.discover({"model_type": "gpt2"}, out=tmp_path / "nowhere" / "new.spec")


def tensors_of(discovery: Discovery, spec: Spec) -> dict[str, tuple[int, ...]]:
    """The shapes of the first layer's tensors, as a spec says them; what is tied is left out."""
    lines = {line.name: line for line in spec.lines if line.name not in discovery.draft.ties}
    shapes = {name: shape(line.axes or (), spec.sizes) for name, line in lines.items()}
    return {name.replace("{l}", "0"): tuple(n or 7 for n in found) for name, found in shapes.items()}


def test_a_tensor_that_nobody_runs_is_refused(tmp_path: Path) -> None:
    """Weights that the class does not have are not guessed; buffers of old checkpoints are let through."""
    from isomerge.discovery.checkpoint import covered

    discovery = found("gpt2")
    shapes = {"transformer.h.0.attn.bias": (1, 1, 8, 8), "transformer.h.0.attn.masked_bias": ()}
    spec = parse_spec(discovery.text, {"model_type": "gpt2"})
    tensors = {f"transformer.{n}": s for n, s in tensors_of(discovery, spec).items()}
    shapes |= tensors
    text, count = covered(discovery, {"model_type": "gpt2"}, shapes)
    assert count == len(shapes)
    assert "? h.{l}.attn.bias" in text.text
    with pytest.raises(IsomergeError, match=r"extra_head.weight is stored, but GPT2LMHeadModel"):
        covered(discovery, {"model_type": "gpt2"}, {**shapes, "extra_head.weight": (3, 768)})
    del shapes["transformer.wpe.weight"]
    with pytest.raises(IsomergeError, match=r"wpe.weight of GPT2LMHeadModel is not stored"):
        covered(discovery, {"model_type": "gpt2"}, shapes)


def test_positions_that_the_class_computes_keep_the_stream() -> None:
    """Sinusoids are no weights: the stream cannot be permuted under them, the inside of the layers can."""
    discovery = discover({"model_type": "xglm"})
    assert {"h: Perm", "qk: GL", "ov: GL", "ff: Perm"} <= shown(discovery)
    assert "res" not in discovery.draft.spaces
    assert any(v.name == "res" and v.error > 1e-3 for v in discovery.record)
    assert "embed_tokens.weight" in discovery.fixed

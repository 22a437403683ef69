"""The commands as a user runs them: what they print, write and return."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.main import get_command

import isomerge as api
from depth import more
from isomerge.archs import spec_texts
from isomerge.cli.mergekit_options import ALIKE, MERGEKITS, WITH_VALUE, in_own_words
from isomerge.cli.program import app
from progress_lines import without_progress
from solve.disguises import but_for_advice, disguise, files_of, perturb
from toys import config_of, outputs, relative, tensors

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

NAMES = ["gpt2", "bert", "llama"]


def read(path: Path) -> dict[str, Any]:
    """A report."""
    return json.loads(path.read_text())


@pytest.fixture
def twin(stored: Callable, tmp_path: Path) -> Path:
    """A disguised copy of the first GPT-2."""
    return disguise("gpt2", stored("gpt2", 0), tmp_path / "twin", 3)


@pytest.fixture
def tuned(stored: Callable, tmp_path: Path) -> Path:
    """A fine-tune, as it were, of the first GPT-2."""
    return perturb(stored("gpt2", 0), tmp_path / "tuned", 0.05)


# ------------------------------------------------------------------------------------------------- inspect


BERT = 3 * (6 * 8 * 8 + 6 * 8 * 8 + 48 + 48) + 34 + 3 * (48 + 1 + 40 + 1) + 3 * (144 + 40) + 48
"""The dimensions that all heads of the toy have: inside layers, and along and against the ones."""


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # 3 layers of 6 heads with GL(8) on queries and keys and GL(8) on values; key and value biases of 48. LayerNorm: positions,
        # types and layers along the ones; queries, keys, values, neurons and the head's map against them; the biases of 8 norms
        # and the gains of the last one. Positions trade a constant with types, which along the ones is free in both;
        # words, the head as well, trade one number with positions
        (
            "bert",
            BERT + 8 * 48 + 48 + 48 - 1 + 1,
        ),
        # ReLU neurons have a positive scale each; a pooler in the place of the head, which has no norm. No head reads the
        # words, so that they have a part along the ones as well, and trade a constant with types as positions do
        (
            "bert-relu",
            BERT + 3 * 40 + 7 * 48 + 48 + 67 + 2 * (48 - 1),
        ),
        # the same attention; LayerNorm leaves free what positions and layers write along the ones, what queries, keys,
        # values and neurons read against them, and two biases and the gains of norms (the last one's head is tied)
        ("gpt2", 3 * (6 * 8 * 8 + 6 * 8 * 8 + 48 + 48) + 32 + 3 * (48 + 1 + 40 + 1) + 3 * (144 + 40) + 3 * 4 * 48),
        # 2 key-value heads with 4 complex numbers on rotary pairs and GL(8) on values; gated neurons have a scale; the
        # gains of 7 norms, and the rotations of the stream
        ("llama", 3 * (2 * 4 * 2 + 2 * 8 * 8 + 40) + 7 * 48 + 48 * 47 // 2),
    ],
)
def test_inspect(name: str, count: int, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """The redundant dimensions, counted by hand."""
    folder = stored(name, 0)
    said = isomerge("inspect", folder, "--json", tmp_path / "report.json")
    assert (said.code, said.err) == (0, "")
    assert f"{count:,} continuous dimensions are redundant" in said.out
    report = read(tmp_path / "report.json")
    assert report["redundant_dimensions"] == count
    assert report["architecture"] == config_of(folder)["model_type"]
    weights = tensors(folder)
    assert report["tensors"] == len(weights)
    assert report["parameters"] == sum(t.numel() for t in weights.values())
    assert report["bytes"] == 4 * report["parameters"]
    assert report["dtypes"] == ["F32"]
    assert f"{report['parameters']:,} parameters in {len(weights)} tensors" in said.out
    heads = next(s for s in report["spaces"] if s["name"] in ("h", "kv"))
    assert heads["group"] == "Perm"
    assert heads["elements"] == 3
    assert not next(s for s in report["spaces"] if s["name"] == "res")["matched"]


def test_inspect_reads_headers_only(stored: Callable, isomerge: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight is read."""
    from isomerge.checkpoint.reader import Checkpoint

    monkeypatch.setattr(Checkpoint, "read", lambda self, name: pytest.fail(f"read {name}"))
    assert isomerge("inspect", stored("gpt2", 0)).code == 0


def test_print_spec(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """The printed spec is the text of the architecture, and works as a spec file of the user's own."""
    said = isomerge("inspect", stored("gpt2", 0), "--print-spec")
    assert said.out.rstrip("\n") == spec_texts()["gpt2"][1].rstrip("\n")
    (tmp_path / "mine.spec").write_text(said.out)
    report = tmp_path / "report.json"
    said = isomerge("inspect", stored("gpt2", 0), "--spec", tmp_path / "mine.spec", "--json", report, "-q")
    assert (said.code, said.out) == (0, "")
    assert read(report)["spec"].endswith("mine.spec")


@pytest.mark.parametrize("name", NAMES)
def test_inspect_verbose_shows_the_axes(
    name: str, stored: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-v prints every tensor line with its axes, brackets included."""
    monkeypatch.setattr("rich.console.Console.width", property(lambda self: 300, lambda self, value: None))
    said = isomerge("inspect", stored(name, 0), "-v", "--json", tmp_path / "report.json")
    for line, axes in read(tmp_path / "report.json")["lines"].items():
        assert line in said.out
        assert axes in said.out


# ------------------------------------------------------------------------------------------- merge and align


@pytest.mark.parametrize("name", ["gpt2", *more("bert", "llama")])
def test_merge(name: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """The command writes what the function writes, and reports it."""
    a, b = stored(name, 0), stored(name, 5)
    report, out = tmp_path / "report.json", tmp_path / "out"
    said = isomerge("merge", a, b, "-o", out, "--weights", "0.7,0.3", "--json", report)
    assert (said.code, "are unrelated" in said.err) == (0, True)
    assert f"Wrote {out}: linear merge of {a}, {b}." in said.out.replace("\n", "")
    assert "all tensors" in said.out
    assert "layer 0" not in said.out
    api.merge([a, b], out=tmp_path / "same", weights=[0.7, 0.3])
    written = files_of(out)
    assert f"Report: {out / 'report.html'}." in said.out.replace("\n", "")
    assert written.pop("report.html").startswith(b"<!doctype html>")
    assert written == files_of(tmp_path / "same")
    found = read(report)
    assert found == read(out / "isomerge.json")
    assert found["command"] == "merge"
    assert found["models"] == [str(a), str(b)]
    distance = found["distance"]
    assert distance["after"] < distance["before"]
    assert set(distance["layers"]) == {"0", "1", "2", "outside"}
    assert all(set(d) == {"before", "after", "norm"} for d in distance["spaces"].values())
    assert {"ff", "ov"} <= set(distance["spaces"])


def test_options_reach_the_run(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Layers, spaces, dtype and shard size."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    options = [
        "--no-report",
        "--layers",
        "tail:1",
        "--spaces",
        "ff",
        "--dtype",
        "bfloat16",
        "--out-shard-size",
        "30K",
    ]
    assert isomerge("merge", a, b, "-o", tmp_path / "out", *options).code == 0
    api.merge([a, b], out=tmp_path / "same", layers="tail:1", spaces="ff", dtype="bfloat16", out_shard_size=30_000)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "same")
    assert len(list((tmp_path / "out").glob("model-*"))) > 2


RECIPE = """
models:
  - model: {a}
    parameters:
      weight: 3
  - model: {b}   # weight 1 by default
merge_method: linear
dtype: float16
parameters:
  normalize: true
align:
  spaces: attention
  layers: 0-1
"""


@pytest.mark.parametrize("suffix", ["yml", "yaml"])
def test_merge_of_a_recipe(suffix: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A recipe is the options written down."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    recipe = tmp_path / f"recipe.{suffix}"
    recipe.write_text(RECIPE.format(a=a, b=b))
    said = isomerge("merge", recipe, "-o", tmp_path / "out", "--no-report")
    assert (said.code, "are unrelated" in said.err) == (0, True)
    api.merge([a, b], out=tmp_path / "same", weights=[3.0, 1.0], dtype="float16", spaces="attention", layers="0-1")
    assert but_for_advice(tmp_path / "out") == but_for_advice(tmp_path / "same")
    isomerge("merge", recipe, "-o", tmp_path / "wide", "--dtype", "float32")
    assert {t.dtype for t in tensors(tmp_path / "wide").values()} == {torch.float32}


def test_recipe_with_data(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Data in a recipe are --data; the streams move with them; the command line beats the recipe."""
    a, b = stored("llama", 0), stored("llama", 5)
    for k in (1, 2):
        found = torch.randint(1, 60, (6, 9), generator=torch.Generator().manual_seed(k))
        save_file({"input_ids": found}, tmp_path / f"{k}.safetensors")
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(
        f"models: [{{model: {a}}}, {{model: {b}}}]\nmerge_method: linear\n"
        f"align: {{data: {tmp_path / '1.safetensors'}, evidence: activations, limit: 5}}\n"
    )
    assert isomerge("merge", recipe, "-o", tmp_path / "one", "--no-report").code == 0
    api.merge([a, b], out=tmp_path / "same", data=tmp_path / "1.safetensors", evidence="activations", limit=5)
    assert but_for_advice(tmp_path / "one") == but_for_advice(tmp_path / "same")
    assert read(tmp_path / "one" / "isomerge.json")["streams"][0]["groups"] == {"res": "O"}
    again = ["--data", tmp_path / "2.safetensors", "--no-report"]
    assert isomerge("merge", recipe, *again, "-o", tmp_path / "two").code == 0
    api.merge([a, b], out=tmp_path / "other", data=tmp_path / "2.safetensors", evidence="activations", limit=5)
    assert but_for_advice(tmp_path / "two") == but_for_advice(tmp_path / "other")


def test_recipe_without_alignment(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """``align.enabled: false`` is --no-align, the warning included."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    text = f"models: [{{model: {a}}}, {{model: {b}}}]\nmerge_method: linear\nalign: {{enabled: false}}\n"
    (tmp_path / "recipe.yml").write_text(text)
    said = isomerge("merge", tmp_path / "recipe.yml", "-o", tmp_path / "out", "-q", "--no-report")
    assert said.err.startswith("warning: ")
    api.merge([a, b], out=tmp_path / "same", align=False)
    assert but_for_advice(tmp_path / "out") == but_for_advice(tmp_path / "same")


@pytest.mark.parametrize(
    "options", [["--no-align"], ["--weights", "0,1"], ["--spaces", "none"], ["--layers", "0"], ["--method", "zzz"]]
)
def test_options_beside_a_recipe(options: list[str], stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """An option that contradicts a recipe wins, or is refused; it is not ignored."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    (tmp_path / "recipe.yml").write_text(f"models: [{{model: {a}}}, {{model: {b}}}]\nmerge_method: linear\n")
    isomerge("merge", tmp_path / "recipe.yml", "-o", tmp_path / "plain")
    said = isomerge("merge", tmp_path / "recipe.yml", "-o", tmp_path / "out", *options)
    assert said.code == 2 or files_of(tmp_path / "out") != files_of(tmp_path / "plain")


@pytest.mark.parametrize(
    "options", [["--method", "linear"], ["--heads", "average"], ["--anchor", "first"], ["--align"], ["--no-align"]]
)
def test_defaults_beside_a_recipe(options: list[str], isomerge: Callable, tmp_path: Path) -> None:
    """What a recipe says is refused on the command line whatever its value, and named as it was written."""
    (tmp_path / "recipe.yml").write_text("models: [{model: a}, {model: b}]\nmerge_method: ties\nbase_model: c\n")
    said = isomerge("merge", tmp_path / "recipe.yml", "-o", tmp_path / "out", *options)
    assert said.code == 2
    assert f"a recipe says what is merged and how: leave out {options[0]}," in said.err


def test_align_and_apply(stored: Callable, twin: Path, isomerge: Callable, tmp_path: Path) -> None:
    """align brings the twin back; its saved alignment, applied, writes the same weights."""
    a = stored("gpt2", 0)
    report, patch = tmp_path / "report.json", tmp_path / "patch.safetensors"
    said = isomerge("align", twin, "--onto", a, "-o", tmp_path / "out", "--json", report, "--save-alignment", patch)
    assert (said.code, said.err) == (0, "")
    assert "-100.0%" in said.out
    found = read(report)
    assert found["command"] == "align"
    assert found["models"] == [str(a), str(twin)]
    assert found["distance"]["after"] < 1e-4 * found["distance"]["before"]
    assert found["dead_blocks"] == []
    assert patch.read_bytes() == (tmp_path / "out" / "alignment.safetensors").read_bytes()
    said = isomerge("apply", patch, twin, "-o", tmp_path / "again", "--json", report)
    assert (said.code, said.err) == (0, "")
    assert f"Wrote {tmp_path / 'again'}: moved by" in said.out.replace("\n", "")
    weights = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("out", "again")]
    assert weights[0] == weights[1]
    moved = read(report)["distance"]["after"]
    assert moved == pytest.approx(found["distance"]["before"], rel=1e-4)
    assert relative(outputs(tmp_path / "again"), outputs(a)) < 1e-5


def test_dead_blocks_are_told(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A head of zeros has no balanced gauge: the run says so and goes on."""
    from solve.disguises import write_like

    a, b = stored("bert", 0), stored("bert", 5)

    def kill(found: dict[str, torch.Tensor]) -> None:
        found["bert.encoder.layer.1.attention.self.value.weight"][:8] = 0

    dead = write_like(b, tmp_path / "dead", kill)
    said = isomerge(
        "align",
        dead,
        "--onto",
        a,
        "--spaces",
        "default",
        "-o",
        tmp_path / "out",
        "--json",
        tmp_path / "report.json",
    )
    assert said.code == 0
    assert said.err.startswith("warning: 1 blocks are rank-deficient")
    assert "ov[1]" in said.err
    assert read(tmp_path / "report.json")["dead_blocks"] == ["ov[1]"]
    assert relative(outputs(tmp_path / "out"), outputs(dead)) < 1e-5


# ------------------------------------------------------------------------------------------------- warnings


def test_no_align_warns_of_misaligned_models(
    stored: Callable, twin: Path, isomerge: Callable, tmp_path: Path
) -> None:
    """On stderr, also when quiet; one line for every such model; the merge is done nevertheless."""
    a, other = stored("gpt2", 0), stored("gpt2", 5)
    said = isomerge("merge", a, twin, other, "-o", tmp_path / "out", "--no-align", "-q")
    lines = said.err.splitlines()
    assert said.code == 0
    assert len(lines) == 2
    for line, model in zip(lines, (twin, other), strict=True):
        assert line.startswith(f"warning: {model.name} ")
        assert ("leave --no-align out" in line) == (model == twin), "it would not help strangers"
    assert (tmp_path / "out" / "model.safetensors").is_file()
    said = isomerge("merge", a, twin, "-o", tmp_path / "aligned")
    assert said.err == ""


@pytest.mark.parametrize("name", ["llama", *more("gpt2", "bert")])
def test_no_align_of_fine_tunes_is_silent(name: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Models of one base may be averaged as they are."""
    a = stored(name, 0)
    for number, size in enumerate((0.003, 0.03, 0.3)):
        tuned = perturb(a, tmp_path / f"tuned{number}", size, seed=number)
        said = isomerge("merge", a, tuned, "-o", tmp_path / f"out{number}", "--no-align")
        assert (said.code, said.err) == (0, "")
        assert "not aligned" in said.out


# --------------------------------------------------------------------------------------------- diff and verify


def test_diff(stored: Callable, twin: Path, tuned: Path, isomerge: Callable, tmp_path: Path) -> None:
    """Distances and the verdict, in words and as JSON; exit code 0 whatever the verdict."""
    a = stored("gpt2", 0)
    verdicts = {
        a: ("same", "has the weights of gpt2-0: all 40 tensors are equal"),
        twin: ("same", "is the same function as gpt2-0 in other weights"),
        tuned: ("aligned", "are aligned already, as fine-tunes of one base are"),
    }
    for model, (code, words) in verdicts.items():
        said = isomerge("diff", a, model, "--json", tmp_path / "report.json")
        assert (said.code, said.err) == (0, "")
        assert words in said.out
        report = read(tmp_path / "report.json")
        assert report["verdict"]["code"] == code
        assert report["command"] == "diff"
        assert report["models"] == [str(a), str(model)]
        assert {"before", "after", "norm", "spaces", "layers"} <= set(report["distance"])
        assert report["same"] == (code == "same")


def test_verify(stored: Callable, twin: Path, tuned: Path, isomerge: Callable, tmp_path: Path) -> None:
    """0 for the same function, 1 for another, 2 for what cannot be compared."""
    a = stored("gpt2", 0)
    report = tmp_path / "report.json"
    said = isomerge("verify", a, twin, "--json", report)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Same function")
    assert read(report)["same"] is True
    assert "outputs" not in read(report)
    said = isomerge("verify", a, tuned, "--json", report)
    assert (said.code, said.err) == (1, "")
    assert said.out.startswith("Not the same by the symmetries declared for gpt2: ")
    assert said.out.rstrip().endswith(" Outputs were not compared.")
    assert read(report)["same"] is False
    assert read(report)["residual"]["largest"] > read(report)["residual"]["tolerance"]
    stranger = isomerge("verify", a, stored("gpt2", 5), "-v", "--json", report)
    assert read(report)["refuted"]
    assert "fingerprints" in stranger.out
    # the head of a table of layers, none of which was matched
    assert "largest relative residual" not in stranger.out
    assert isomerge("verify", a, tuned, "-v").out.count("largest relative residual") == 2
    assert isomerge("verify", a, stored("bert", 0)).code == 2
    assert isomerge("verify", a, tmp_path / "none").code == 2


@pytest.mark.parametrize("name", ["vit", "t5-gated", *more("gpt2", "bert")])
def test_verify_run(name: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """--run compares outputs as well, of decoders, encoders, image models and sequence-to-sequence models."""
    a = stored(name, 0)
    report = tmp_path / "report.json"
    moved = disguise(name, a, tmp_path / "moved", 3)
    said = isomerge("verify", a, moved, "--run", "--json", report)
    assert said.code == 0
    assert "Outputs on random inputs differ by" in said.out
    assert read(report)["outputs"] < 1e-5
    other = isomerge("verify", a, stored(name, 5), "--run", "--json", report)
    assert (other.code, "Outputs were not compared" in other.out) == (1, False)
    assert read(report)["outputs"] > 0.1


# ------------------------------------------------------------------------------- dry run, quiet, verbose, help


def test_dry_run(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Prints the plan and its cost; nothing is written and no weight is read."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    said = isomerge("merge", a, b, "-o", tmp_path / "x" / "out", "--dry-run")
    assert (said.code, "are unrelated" in said.err) == (0, True)
    # per layer an attention unit and an MLP unit are matched
    assert (
        "6 of them aligned (attention heads, queries and keys, values and output, feed-forward neurons)" in said.out
    )
    assert "Nothing was written" in said.out
    assert isomerge("align", b, "--onto", a, "-o", tmp_path / "out", "--dry-run", "--layers", "tail:1").code == 0
    assert list(tmp_path.iterdir()) == []
    said = isomerge("merge", a, b, "-o", tmp_path / "out", "--dry-run", "--no-align")
    assert "0 of them aligned; about" in said.out
    said = isomerge("merge", a, b, "-o", tmp_path / "out", "--dry-run", "-q", "--json", tmp_path / "report.json")
    assert said.out == ""
    report = read(tmp_path / "report.json")
    assert report["matched"] == 6
    assert report["estimate"]["memory"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_dry_run_of_wide_models(isomerge: Callable, tmp_path: Path) -> None:
    """The time of an assignment of many neurons depends on whether they are related: both are said."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=64, intermediate_size=16384, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "wide")
    words = ["merge", tmp_path / "wide", tmp_path / "wide", "-o", tmp_path / "out", "--dry-run", "--align"]
    said = isomerge(*words, "--json", tmp_path / "report.json")
    cost = read(tmp_path / "report.json")["estimate"]
    assert 2 * cost["seconds_related"] < cost["seconds"]
    assert f"to {cost['seconds']:.0f} s (unrelated) on one core" in said.out


def test_dry_run_without_an_anchor(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Every model's star takes passes, and all models are in memory; what is not estimated is named."""
    words = ["merge", *(stored("llama", seed) for seed in (0, 5, 6)), "-o", tmp_path / "out", "--dry-run"]
    for spaces in ("default", "all"):
        cost = {}
        for anchor in ("first", "none"):
            how = ["--spaces", spaces, "--anchor", anchor, "--json", tmp_path / "report.json"]
            assert isomerge(*words, *how).code == 0
            cost[anchor] = read(tmp_path / "report.json")["estimate"]
            assert read(tmp_path / "report.json")["not_estimated"] == []
        assert cost["none"]["memory"] > cost["first"]["memory"]
        matched = {anchor: found["seconds"] - found["read"] / 1e9 for anchor, found in cost.items()}
        assert 5 * matched["first"] < matched["none"] < 100 * matched["first"]
    save_file({"input_ids": torch.randint(1, 60, (6, 9))}, tmp_path / "ids.safetensors")
    data = str(tmp_path / "ids.safetensors")
    more = ["--data", data, "--learn", data, "--search", "3", "--method", "fisher", "--repair", data]
    said = isomerge(*words, *more, "--json", tmp_path / "report.json")
    assert "Not estimated, and not in the time below: what data, search, learn, method fisher, repair" in said.out
    assert "repair" in read(tmp_path / "report.json")["not_estimated"]
    assert "with --anchor none they are learned towards a common point" in " ".join(said.err.split())
    for quiet in (["--anchor", "none"], ["--method", "ties", "--base-model", words[1]], ["--spaces", "all"]):
        learned = [] if "all" in quiet else ["--learn", data]
        assert "common point" not in isomerge(*words, *learned, *quiet).err


def test_models_are_named_as_they_were_given(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Matched onto their mean they have an order of their own, which is that of one of the two runs at most."""
    models = [str(stored("llama", seed)) for seed in (0, 5, 6)]
    for given in (models, models[::-1]):
        said = isomerge(
            "merge", *given, "-o", tmp_path / "out", "--anchor", "none", "--spaces", "ff", "--overwrite"
        )
        (wrote,) = [line for line in said.out.split("\n\n") if "Wrote" in line] or [said.out]
        assert f"linear merge of {', '.join(given)}." in " ".join(wrote.split()).replace("- ", "-")


def test_quiet_prints_nothing(stored: Callable, twin: Path, isomerge: Callable, tmp_path: Path) -> None:
    """-q of every command."""
    a = stored("gpt2", 0)
    for arguments in (
        ["merge", a, twin, "-o", tmp_path / "merged"],
        ["align", twin, "--onto", a, "-o", tmp_path / "aligned"],
        ["apply", tmp_path / "aligned" / "alignment.safetensors", twin, "-o", tmp_path / "applied"],
        ["diff", a, twin],
        ["verify", a, twin],
        ["inspect", a],
        ["merge", a, twin, "-o", tmp_path / "no", "--dry-run"],
    ):
        said = isomerge(*arguments, "-q")
        assert (said.code, said.out, said.err) == (0, "", "")


def test_verbose_prints_layers(stored: Callable, twin: Path, isomerge: Callable, tmp_path: Path) -> None:
    """-v adds a row per layer, and one for what is outside the layers."""
    a = stored("gpt2", 0)
    for arguments in (
        ["merge", a, twin, "-o", tmp_path / "merged"],
        ["align", twin, "--onto", a, "-o", tmp_path / "aligned"],
        ["diff", a, twin],
        ["verify", a, twin],
    ):
        assert "layer 2" not in isomerge(*arguments).out
        target = ["-o", tmp_path / f"{arguments[0]}-v"] if "-o" in arguments else []
        said = isomerge(*[x for x in arguments if x not in ("-o", *tmp_path.iterdir()) or x == twin], *target, "-v")
        assert said.code == 0
        assert all(f"layer {n}" in said.out for n in range(3))
        assert "outside" in said.out


@pytest.mark.parametrize("name", ["out [new]", "out[/b]", "out [red]", "ausgäbe"])
def test_names_are_printed_as_they_are(name: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Brackets in a path are no markup."""
    a, b = stored("gpt2", 0), stored("gpt2", 5)
    said = isomerge("merge", a, b, "-o", tmp_path / name)
    assert said.code == 0
    assert f"Wrote {tmp_path / name}:" in said.out


def test_kept_tensors_are_told(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Tensors that only the first model has are named."""
    from solve.disguises import write_like

    a, b = stored("bert", 0), stored("bert", 5)

    def strip(found: dict[str, torch.Tensor]) -> None:
        for name in [n for n in found if n.startswith("cls.")]:
            found.pop(name)

    bare = write_like(b, tmp_path / "bare", strip)
    said = isomerge("merge", a, bare, "-o", tmp_path / "out")
    assert "Kept from" in said.out
    assert "cls.predictions" in said.out
    said = isomerge("verify", a, bare)
    assert "Not compared, as only one model has them: cls.predictions" in said.out


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], ["merge", "--help"], ["inspect", "-h"]])
def test_help(arguments: list[str], isomerge: Callable) -> None:
    """Help and version."""
    said = isomerge(*arguments)
    assert (said.code, said.err) == (0, "")
    assert (
        said.out == f"isomerge {api.__version__}\n" if "--version" in arguments else "Usage: isomerge" in said.out
    )


@pytest.mark.parametrize(
    "arguments", [["merge"], ["merge", "a", "b"], ["align", "a", "-o", "x"], ["mrege"], ["merge", "a", "--nope"]]
)
def test_usage_errors(arguments: list[str], isomerge: Callable) -> None:
    """Arguments that the command line itself refuses: exit code 2 and no traceback."""
    said = isomerge(*arguments)
    assert said.code == 2
    assert "Traceback" not in said.err


def test_as_a_program(stored: Callable, twin: Path, tmp_path: Path) -> None:
    """The installed command, in a process of its own, without a terminal."""
    program = str(Path(sys.executable).with_name("isomerge"))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    a = stored("gpt2", 0)
    command = [program, "merge", str(a), str(twin), "--out", "out"]
    said = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert (said.returncode, without_progress(said.stderr)) == (0, "")
    assert "Wrote out: linear merge" in said.stdout
    assert relative(outputs(tmp_path / "out"), outputs(a)) < 1e-5


def test_canon(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """It writes a model that is the same function, says how clear it is, and twins come out alike."""
    model = stored("gpt2")
    said = isomerge("canon", model, "-o", tmp_path / "one", "--json", tmp_path / "report.json")
    assert said.code == 0, said.err
    assert "the same for every disguise" in said.out
    assert "eigenvalue" in said.out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["command"] == "canon"
    assert report["degeneracy"]["unique"]
    assert isomerge("verify", model, tmp_path / "one").code == 0
    again = isomerge("canon", tmp_path / "one", "-o", tmp_path / "two", "--quiet")
    assert (again.code, again.out) == (0, "")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)
    assert isomerge("canon", tmp_path / "nothing", "-o", tmp_path / "three").code == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--multi-gpu"], "--device cuda"),
        (["--no-copy-tokenizer"], "the tokenizer is always written"),
        (["--read-to-gpu"], "--device cuda"),
    ],
)
def test_mergekits_options(given: list[str], words: str, isomerge: Callable[..., Any]) -> None:
    """Whoever comes from mergekit-yaml is told what to give in their place; typer would name the option nearest in
    spelling."""
    said = isomerge("merge", "recipe.yml", "out", *given)
    assert said.code == 2
    assert said.err.startswith(f"isomerge: {given[0]} is mergekit's: ")
    assert words in said.err
    assert len(said.err.splitlines()) == 1


def test_mergekits_options_are_none_of_these() -> None:
    """What the table says is missing, is missing."""
    program: Any = get_command(app)
    own = {o for c in program.commands.values() for p in c.params for o in (*p.opts, *p.secondary_opts)}
    assert not own & {f"--{name}" for name in (*MERGEKITS, *ALIKE, *WITH_VALUE)}


def test_mergekits_harmless_options_are_noted(
    isomerge: Callable[..., Any], stored: Callable, tmp_path: Path
) -> None:
    """What changes nothing here is left out and told, in the report as well; an output that is not written is not."""
    words = [
        "--lazy-unpickle",
        "--no-async-write",
        "--copy-tokenizer",
        "--lora-merge-cache",
        "dir",
        "--num-threads=3",
    ]
    plain = ["merge", stored("gpt2"), stored("gpt2", 5), "--no-align", "--no-report"]
    said = isomerge(*plain, "-o", tmp_path / "out", *words, "--allow-crimes", "--json", tmp_path / "x.json")
    assert said.code == 0, said.err
    names = ("lazy-unpickle", "no-async-write", "copy-tokenizer", "lora-merge-cache", "num-threads", "allow-crimes")
    for where in (said.err.splitlines(), json.loads((tmp_path / "x.json").read_text())["notes"]):
        text = "\n".join(where)
        assert [name for name in names if f"--{name} is not used: " not in text] == []
    assert in_own_words(["a", "--", "--lazy-unpickle"]) == (["a", "--", "--lazy-unpickle"], {})
    assert isomerge("align", "a", "--onto", "b", "--lazy-unpickle").code == 2


def test_mergekits_options_that_a_merge_has_too(
    isomerge: Callable[..., Any], stored: Callable, tmp_path: Path
) -> None:
    """They are obeyed: the same seed gives the same bytes by both names."""
    words = ["--random-seed", "3", "a", "--random-seed=4", "--cuda", "--", "--cuda"]
    own = ["--seed", "3", "a", "--seed=4", "--device", "cuda", "--", "--cuda"]
    assert in_own_words(words) == (own, {})
    model = stored("llama")
    how = ["--method", "dare_linear", "--base-model", model, "-p", "density=0.5", "--no-align", "--no-report"]
    twin = perturb(model, tmp_path / "twin", 0.01)
    for number, seed in enumerate((["--seed", "3"], ["--random-seed", "3"], ["--random-seed=4"])):
        assert isomerge("merge", twin, "-o", tmp_path / str(number), *how, *seed).code == 0
    first, second, third = (files_of(tmp_path / str(number)) for number in range(3))
    name = "model.safetensors"
    assert first[name] == second[name] != third[name]


def test_json_on_standard_output(
    isomerge: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``-`` is no file of that name; quiet, it is all that is printed."""
    monkeypatch.chdir(tmp_path)
    said = isomerge("methods", "-q", "--json", "-")
    assert json.loads(said.out)["command"] == "methods"
    assert not list(tmp_path.iterdir())

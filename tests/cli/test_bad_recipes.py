"""Wrong merges beyond misspelt keys: recipes and options that contradict themselves or the models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cli.test_bad_input import refuses
from isomerge import api
from isomerge.errors import IsomergeError
from observe.data.checkpoints import save_tokenizer
from solve.disguises import single

TWO = "models: [{model: A}, {model: B}]\n"
SLERP = "merge_method: slerp\nbase_model: A\n"
LINEAR = "merge_method: linear\n"
RULE = TWO + LINEAR + "tokenizer: {source: base, tokens: {a: %s}}"
RECIPES = {
    # which models
    "one model": ("models: [{model: A}]\n" + LINEAR, ["at least two models", "`models`"]),
    "only the base": ("models: [{model: A}]\nmerge_method: ties\nbase_model: A", ["`models` has no model but the base"]),
    "only the base, in a slice": (
        "slices: [{sources: [{model: A, layer_range: [0, 1]}]}]\nmerge_method: ties\nbase_model: A",
        ["`slices.0` has no model but the base"],
    ),
    "method": (TWO + "merge_method: slurp", ["`merge_method`", "slurp", "did you mean slerp"]),
    "a method in capitals": (TWO + "merge_method: SLERP", ["recipe.yml: `merge_method` SLERP: no such merge method (did you mean slerp?); there are"]),
    "a long reference": (
        "models: [{model: {model: {path: A, branch: x}}}, {model: B}]\n" + LINEAR,
        ["`models.0.model`", "a model is a name"],
    ),
    "a key of a model that is a parameter": (
        "models: [{model: A, density: 1}, {model: B}]\n" + LINEAR,
        ["`models.0.density`", "write it under `parameters` there"],
    ),
    "a parameter of the recipe": (TWO + LINEAR + "select_topk: 0.1", ["`select_topk`", "under `parameters`"]),
    "a revision beside a model": ("models: [{model: A, revision: x}, {model: B}]\n" + LINEAR, ["`models.0.revision`", "org/name@REVISION"]),
    "an adapter beside a model": ("models: [{model: A, lora: x}, {model: B}]\n" + LINEAR, ["`models.0.lora`", "MODEL+LORA"]),
    "tabs": ("models:\n\t- model: A\n" + LINEAR, ["line 2", "spaces", "tabs"]),
    "no base": (TWO + "merge_method: slerp\nparameters: {t: 0.5}", ["slerp needs a base model", "`base_model`"]),
    "an adapter without a name": ("models: [{model: A+}, {model: B}]\n" + LINEAR, ["with both names"]),
    # parameters
    "one value for all": (
        "models: [{model: A, parameters: {normalize: true}}, {model: B}]\n" + LINEAR,
        ["`models.0.parameters.normalize` is one value for all models"],
    ),
    "the base's own entry": (
        "models: [{model: A, parameters: {wieght: 1}}, {model: B}]\nbase_model: A\nmerge_method: task_arithmetic\n",
        ["`models.0.parameters.wieght`", "`weight`"],
    ),
    "after the base": (
        "models: [{model: A}, {model: B, parameters: {wieght: 1}}]\nbase_model: A\nmerge_method: task_arithmetic\n",
        ["`models.1.parameters.wieght`", "`weight`"],
    ),
    "one value for all, in a slice": (
        "slices:\n- sources: [{model: A, layer_range: [0, 1]}, {model: B, layer_range: [0, 1], parameters: {t: "
        "1}}]\n"
        "- sources: [{model: A, layer_range: [1, 2]}, {model: B, layer_range: [1, 2]}]\n" + SLERP,
        ["`slices.0.sources.1.parameters.t`", "one value for all models"],
    ),
    "missing": (TWO + SLERP, ["slerp needs `t`", "under parameters"]),
    "mixed filters": (
        TWO + LINEAR + "parameters: {weight: [{filter: mlp, value: 1}, 2]}",
        ["`parameters.weight`", "stands among such alone"],
    ),
    "a filter without a value": (
        TWO + LINEAR + "parameters: {weight: [{filter: mlp}]}", ["`parameters.weight`", "keys `filter` and `value`"],
    ),
    "a gradient in a gradient": (
        TWO + SLERP + "parameters: {t: [{value: [0, [1]]}]}", ["`parameters.t`", "without lists in it"],
    ),
    "a comma for a point": (TWO + SLERP + "parameters: {t: '0,5'}", ["`parameters.t` is '0,5'", "write 0.5 with a point"]),
    "a comma for a point, of a match": (TWO + LINEAR + "align: {search: '0,5'}", ["`align.search`", "write 0.5 with a point"]),
    "a word": (TWO + SLERP + "parameters: {t: [0, half]}", ["`parameters.t` is 'half'", "a finite number"]),
    # layers
    "too deep": (
        "slices: [{sources: [{model: A, layer_range: [0, 9]}]}]\nmerge_method: passthrough",
        ["no layer 3", "ends at 3"],
    ),
    "backwards": (
        "slices: [{sources: [{model: A, layer_range: [2, 1]}]}]\nmerge_method: passthrough", ["`slices.0`", "at least one"],
    ),
    # statistics
    "half the files": (
        "models: [{model: A, stats: a.safetensors}, {model: B}]\nmerge_method: regmean",
        ["B has no `stats`", "one file per model"],
    ),
    "no statistics": (TWO + "merge_method: fisher_kfac", ["fisher_kfac needs statistics", "--kinds kfac"]),
    "files that are none": (
        "models: [{model: A, stats: A/config.json}, {model: B, stats: A/config.json}]\nmerge_method: regmean",
        ["config.json"],
    ),
    # vocabularies
    "a vocabulary of nobody": (TWO + LINEAR + "tokenizer_source: esperanto", ["esperanto"]),
    "padding": (TWO + LINEAR + "tokenizer: {pad_to_multiple_of: 0}", ["pad_to_multiple_of: 0", "1 or more"]),
    "padding without end": (
        TWO + LINEAR + "tokenizer: {pad_to_multiple_of: 3000000000}", ["recipe.yml: `tokenizer`: pad_to_multiple_of: 3000000000", "up to 65536"],
    ),
    "a token without a source": (RULE % "{force: true}", ["tokens", "source"]),
    "a token of a stranger": (RULE % "{source: C}", ["'C' is none of the models"]),
    "an unknown token": (
        RULE % "{source: {kind: model_token, model: B, token: zz}}", ["has no token 'zz'"],
    ),
    "a row too far": (
        RULE % "{source: {kind: model_token, model: B, token_id: 999}}", ["token_id: 999 is no row of B"],
    ),
    "a kind of source": (RULE % "{source: {kind: noise}}", ["{kind: zero}"]),
    "no tokenizer": ("models: [{model: A}, {model: NAKED}]\n" + LINEAR + "tokenizer_source: union", ["NAKED", "has no tokenizer"]),
    # alignment
    "an unknown match": (TWO + LINEAR + "align: {match: hungarian}", ["hungarian", "git-rebasin"]),
    "activations without data": (TWO + LINEAR + "align: {match: ot-acts}", ["`align.match` ot-acts", "add `align: {data: DATA}`"]),
    "a method that runs models": (TWO + "merge_method: regression\nalign: true", ["regression runs the models", "add `align: {data: DATA}`"]),
    "an anchor": (TWO + LINEAR + "align: {anchor: second}", ["`align.anchor`"]),
    "onto a stranger": (TWO + LINEAR + "align: {onto: C}", ["`align.onto`", "C"]),
    "data without alignment": (TWO + LINEAR + "align: {enabled: false, data: x}", ["recipe.yml: `align.data` x"]),
    "no time": (TWO + LINEAR + "align: {data: A, search: .nan}", ["recipe.yml: `align.search` nan: give a time in seconds"]),
    "no steps": (TWO + LINEAR + "align: {learn: A, steps: -1}", ["recipe.yml: `align.steps` -1"]),
    "no data": (TWO + LINEAR + "align: {data: lost.txt}", ["recipe.yml: `align.data` lost.txt"]),
    "no such effort": (TWO + LINEAR + "align: {learn: A, learn_effort: none}", ["recipe.yml: `align.learn_effort` none"]),
    "spaces": (TWO + LINEAR + "align: {spaces: qx}", ["recipe.yml: `align.spaces`", "qx"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models A and B, with tokenizers, and NAKED without."""
    folder = tmp_path_factory.mktemp("recipes")
    for name, seed in (("A", 0), ("B", 5), ("NAKED", 6)):
        single("gpt2", folder / name, seed)
        if name != "NAKED":
            save_tokenizer(folder / name)
    return folder


@pytest.mark.parametrize("case", RECIPES)
def test_wrong_recipe(
    case: str, placed: Path, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names what is wrong; no folder is left behind."""
    monkeypatch.chdir(placed)
    text, words = RECIPES[case]
    # aligned, as models that lie apart are warned about, on a line of its own
    (tmp_path / "recipe.yml").write_text(text if "align:" in text else f"{text.rstrip()}\nalign: true\n")
    refuses(isomerge, tmp_path, "merge", tmp_path / "recipe.yml", "-o", tmp_path / "out", words=words)


OPTIONS = {
    "too few weights": (["--weights", "1"], ["--weights: 2 finite numbers are needed"]),
    "weights that are no numbers": (["--weights", "1,b"], ["--weights 1,b", "0.7,0.3"]),
    "weights that cancel": (["--weights", "1,-1"], ["weights sum to zero", "normalize"]),
    "weights of no use": (["--method", "karcher", "--weights", "1,2"], ["karcher has no weights"]),
    "too few values": (
        ["--method", "ties", "--base-model", "NAKED", "-p", "density=1,1,1"],
        ["--parameter density: 2 numbers are needed"],
    ),
    "too few weights as a parameter": (["-p", "weight=1,2,3"], ["--parameter weight: 2 numbers are needed"]),
    "a parameter without a value": (["-p", "normalize"], ["--parameter normalize", "name=value"]),
    "a parameter of a wrong kind": (["-p", "normalize=7"], ["normalize", "true or false"]),
    "too few statistics": (["--method", "regmean", "--stats", "x"], ["--stats: 2 files are needed"]),
    "a base that is missing": (["--method", "ties"], ["ties needs a base model", "--base-model"]),
    "a value of a wrong size": (
        ["--method", "sce", "--base-model", "NAKED", "-p", "select_topk=3", "--dry-run"],
        ["from 0 to 1"],
    ),
    "too many models": (
        ["--method", "slerp", "--base-model", "NAKED", "-p", "t=1", "--dry-run"],
        ["slerp merges exactly 1 model"],
    ),
    "no such vocabulary": (["--tokenizer-source", "esperanto"], ["esperanto"]),
    "onto a stranger": (["--onto", "C"], ["--onto C", "A, B"]),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options(
    case: str, placed: Path, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for merges without a recipe."""
    monkeypatch.chdir(placed)
    how, words = OPTIONS[case]
    refuses(isomerge, tmp_path, "merge", "A", "B", "-o", tmp_path / "out", *how, words=words)


def test_options_beside_a_recipe(placed: Path, isomerge: Callable, tmp_path: Path) -> None:
    """What a recipe says is not said twice, and one folder is written."""
    recipe, out = tmp_path / "recipe.yml", tmp_path / "out"
    recipe.write_text(f"models: [{{model: {placed / 'A'}}}, {{model: {placed / 'B'}}}]\n{LINEAR}")
    for how in (["--weights", "1,2"], ["--method", "ties"], ["--no-align"], ["--spaces", "all"]):
        refuses(isomerge, tmp_path, "merge", recipe, "-o", out, *how, words=[str(recipe), how[0]])
    refuses(isomerge, tmp_path, "merge", recipe, out, "-o", out, words=["one folder"])
    refuses(isomerge, tmp_path, "merge", recipe, words=["-o OUT"])


def test_arguments_beside_a_recipe(placed: Path, tmp_path: Path) -> None:
    """The same from Python; how it is written may be said."""
    recipe, out = tmp_path / "recipe.yml", tmp_path / "out"
    recipe.write_text(f"models: [{{model: {placed / 'A'}}}, {{model: {placed / 'B'}}}]\n{LINEAR}")
    told: list[dict[str, Any]] = [{"weights": [1, 2]}, {"heads": "copy"}, {"base_model": "A"}]
    told += [{"align": False}, {"align": True}]
    for how in told:
        with pytest.raises(IsomergeError, match=f"recipe.yml: a recipe says .* put {next(iter(how))} into it"):
            api.merge(recipe, out=out, **how)
    assert not out.exists()
    api.merge(recipe, out=out, align="auto", method="linear", dtype="float16")
    assert out.exists()


def test_statistics_of_another_kind(placed: Path, isomerge: Callable, tmp_path: Path) -> None:
    """A file without what the method reads says how to make it again."""
    tokens, files = tmp_path / "tokens.safetensors", [tmp_path / f"{name}.safetensors" for name in "AB"]
    save_file({"input_ids": torch.arange(1, 41).reshape(4, 10)}, tokens)
    for name, file in zip("AB", files, strict=True):
        said = isomerge("stats", placed / name, "--data", tokens, "--kinds", "activations", "-o", file)
        assert said.code == 0, said.err
    models = [{"model": str(placed / n), "stats": str(f)} for n, f in zip("AB", files, strict=True)]
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(json.dumps({"models": models, "merge_method": "regmean", "align": True}))
    words = ["there is no regmean", "isomerge stats --kinds"]
    refuses(isomerge, tmp_path, "merge", recipe, "-o", tmp_path / "out", words=words)


def test_a_parameter_of_another_method_is_a_note(placed: Path, isomerge: Callable, tmp_path: Path) -> None:
    """Recipes carry parameters along: told, not refused."""
    recipe = tmp_path / "recipe.yml"
    models = f"models: [{{model: {placed / 'A'}}}, {{model: {placed / 'B'}}}]\n"
    recipe.write_text(f"{models}{LINEAR}parameters: {{density: 0.5}}")
    said = isomerge("merge", recipe, tmp_path / "out")
    assert said.code == 0
    assert "linear has no parameter `density`: it is left out" in said.err
    assert "has no parameter" not in said.out  # told once


def test_a_key_that_mergekit_does_nothing_with_is_a_note(placed: Path, isomerge: Callable, tmp_path: Path) -> None:
    """Told, not refused."""
    recipe = tmp_path / "recipe.yml"
    sources = ", ".join(f"{{model: {placed / name}, layer_range: [0, 3]}}" for name in "AB")
    recipe.write_text(f"slices: [{{sources: [{sources}], residual_weight: 0.5}}]\n{LINEAR}")
    said = isomerge("merge", recipe, tmp_path / "out")
    assert said.code == 0
    assert "`slices.0.residual_weight` is left out" in said.err


def test_a_report_that_cannot_be_written(placed: Path, isomerge: Callable, tmp_path: Path) -> None:
    """A folder in its place is told before anything is done."""
    how = ["merge", placed / "A", placed / "B", "-o", tmp_path / "out", "--json", tmp_path]
    refuses(isomerge, tmp_path, *how, words=[f"--json {tmp_path} is a folder"])


def test_given_defaults_win_over_a_recipe(placed: Path, isomerge: Callable, tmp_path: Path) -> None:
    """What is given on the command line wins also where it is the default."""
    save_file({"pixel_values": torch.zeros(2, 3)}, tmp_path / "x.safetensors")
    recipe, wrong = tmp_path / "recipe.yml", tmp_path / "x.safetensors"
    models = f"models: [{{model: {placed / 'A'}}}, {{model: {placed / 'B'}}}]\n{LINEAR}"
    for key, value, option, default in (
        ("device", "nowhere", "--device", "cpu"),
        ("length", "1", "--length", "128"),
        ("seed", "-1", "--seed", "0"),
        ("learn_target", "magic", "--learn-target", "auto"),
        ("functional", "false", "--functional", None),
        ("data", str(wrong), "--data", str(tmp_path / "good.safetensors")),
    ):
        save_file({"input_ids": torch.arange(1, 13).reshape(2, 6)}, tmp_path / "good.safetensors")
        block = {"data": str(tmp_path / "good.safetensors")} | {key: value}
        recipe.write_text(f"{models}align:\n" + "".join(f"  {k}: {v}\n" for k, v in block.items()))
        silent = isomerge("merge", recipe, "-o", tmp_path / "out", "--dry-run")
        assert silent.code == (0 if key == "functional" else 2), (key, silent.err)
        said = isomerge(
            "merge", recipe, "-o", tmp_path / "out", "--dry-run", *([option, default] if default else [option])
        )
        assert said.code == 0, (key, said.err)

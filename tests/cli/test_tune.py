"""`isomerge tune`: planted values are found, a killed search goes on as if it had not been, and what is written is what the recipe
says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge as library
from depth import more
from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from isomerge.solve.pairs.pair import PairSolver
from isomerge.tuning import operands, tuner
from isomerge.tuning.trial_model import TrialModel

AT = 0.7
"""How much of the task vector the target has, of which the labels are the outputs."""
RECIPE = "merge_method: task_arithmetic\nbase_model: base\nmodels: [{model: tuned}]\nparameters: {weight: %s}\n"
PAIR = "merge_method: linear\nmodels: [{model: base}, {model: tuned}]\nalign: true\n"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and a fine-tune; data whose labels the model between them gives; data that want more of the first layer."""
    from transformers import BertConfig, BertForSequenceClassification

    folder, rng = tmp_path_factory.mktemp("planted"), torch.Generator().manual_seed(0)
    kind: Any = BertConfig
    config = kind(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=40, num_labels=1,
        max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, problem_type="regression",
    )  # fmt: skip
    torch.manual_seed(0)
    models = {name: BertForSequenceClassification(config).eval() for name in ("target", "base", "tuned", "graded")}
    named = {name: dict(model.named_parameters()) for name, model in models.items()}
    ids = torch.randint(1, 40, (48, 8), generator=rng)
    with torch.no_grad():
        for name, x in named["target"].items():
            change = 0.2 * torch.randn(x.shape, generator=rng)
            named["base"][name].copy_(x - AT * change)
            named["tuned"][name].copy_(x + (1 - AT) * change)
            share = 0.1 if "layer.1" in name else 1.0
            named["graded"][name].copy_(named["base"][name] + share * change)
        for name in ("base", "tuned"):
            models[name].save_pretrained(folder / name)
        for name, data in (("target", "data"), ("graded", "graded")):
            labels = models[name](input_ids=ids).logits.squeeze(-1).contiguous()
            save_file({"input_ids": ids, "labels": labels}, folder / f"{data}.safetensors")
    save_file({"input_ids": ids, "labels": ids[:, :3].float()}, folder / "unfit.safetensors")
    return folder


@pytest.fixture
def here(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models and data, to write in."""
    for path in planted.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(text: str) -> Path:
    Path("r.yml").write_text(text)
    return Path("r.yml")


def searched(more: str = "{search: [0, 1.5]}") -> Path:
    return recipe(RECIPE % more)


def files(out: Path) -> dict[str, bytes]:
    """All that is written, but what names the folder's place."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name not in ("README.md",)}


def test_a_planted_weight_is_found(here: Path, isomerge: Callable) -> None:
    """Its merge is written with its recipe, which makes the same bytes; what was tried is told, and drawn."""
    said = isomerge(
        "tune", searched(), "--data", "data.safetensors", "-o", "out", "--trials", 20, "--json", "r.json"
    )
    assert said.code == 0, said.err
    report = json.loads(Path("r.json").read_text())
    found = report["tune"]
    assert found["best"]["values"]["weight"] == pytest.approx(AT, abs=0.05)
    assert found["start"]["values"] == {"weight": 1.0}
    assert found["best"]["judge"]["loss"] < 0.1 * found["start"]["judge"]["loss"]
    assert (len(found["trials"]), found["notes"]) == (20, [])
    assert "On the held-out examples the values found give" in said.out
    assert found["seconds"]["trial"] > 0
    assert found["reused"]["units_merged"] > 20
    assert json.loads(Path("out/tune.json").read_text()) == {
        k: v for k, v in found.items() if k not in ("seconds", "reused")
    }
    assert Path("out/tune.png").read_bytes().startswith(b"\x89PNG")
    assert "in 20 trials" in Path("out/README.md").read_text()
    assert isomerge("report", "out", "-o", "r.html").code == 0
    assert (
        f"of 20 trials on the {found['data']['search']['examples']} examples of the search"
        in Path("r.html").read_text()
    )
    again = isomerge("merge", "out/isomerge_recipe.yml", "-o", "again")
    assert again.code == 0, again.err
    for name in ("model.safetensors", "config.json", "isomerge_recipe.yml"):
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes()
    data = Examples(load_file("data.safetensors"), True)
    judge = data.split(0.5, seed=0)[1]
    assert evaluate(load_module("out"), judge).loss == pytest.approx(found["best"]["judge"]["loss"], rel=1e-5)
    assert isomerge("fsck", "out").code == 0


def test_groups_of_layers_have_values_of_their_own(here: Path) -> None:
    """Of a target with a tenth of the last layer's change: the recipe that is written has a gradient."""
    report = library.tune(
        searched("1"), out="out", data="graded.safetensors", search={"weight": (0, 1.5)}, layer_groups=2, trials=40,
        judge_data="graded.safetensors",
    )  # fmt: skip
    found = report["tune"]
    first, last = found["best"]["values"].values()
    assert list(found["best"]["values"]) == ["models.0.weight.0", "models.0.weight.1"]
    assert first > 0.8
    assert last < 0.4
    assert found["best"]["judge"]["loss"] < 0.1 * found["start"]["judge"]["loss"]
    assert f"weight: [{first}, {last}]" in Path("out/isomerge_recipe.yml").read_text()
    assert found["data"]["search"] == found["data"]["judge"]


class Killed(BaseException):
    """As a kill would end the process."""


def killed_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The process dies at the measurement after so many."""
    measure, left = TrialModel.measure, [count]

    def dying(self: TrialModel, *examples: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return measure(self, *examples)

    monkeypatch.setattr(TrialModel, "measure", dying)


@pytest.mark.parametrize("sampler", ["cmaes", *more("tpe")])
def test_a_killed_search_goes_on(here: Path, sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the trials that are left, to the same files as if it had never been killed."""
    how: dict[str, Any] = {"data": "data.safetensors", "sampler": sampler, "trials": 13}
    text = recipe(PAIR)
    library.tune(text, out="whole", search={"weight": (0, 1)}, **how)
    with monkeypatch.context() as patch:
        killed_after(patch, 6)
        with pytest.raises(Killed):
            library.tune(text, out="out", search={"weight": (0, 1)}, **how)
    assert not Path("out").exists()
    measured: list[Any] = []
    measure = TrialModel.measure
    monkeypatch.setattr(TrialModel, "measure", lambda self, *data: measured.append(data) or measure(self, *data))
    library.tune(text, out="out", search={"weight": (0, 1)}, **how)
    assert len(measured) == 14 - 6 + 2  # the recipe's own values and the trials; the judgement of two
    assert files(Path("out")) == files(Path("whole"))


def test_another_search_is_refused_until_it_is_finished(
    here: Path, refuses: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials are not thrown away, and not taken for those of something else."""
    how: dict[str, Any] = {"data": "data.safetensors", "trials": 6}
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(Killed):
            library.tune(searched(), out="out", **how)
    words = ("tune", "r.yml", "--data", "data.safetensors", "-o", "out")
    refuses(*words, "--seed", "4", words=["unfinished search", "another seed", "others of them held out"])
    refuses(*words[:3], "graded.safetensors", *words[4:], words=["unfinished search with other examples"])
    recipe(PAIR + "parameters: {weight: {search: [0, 1.5]}}\n")
    refuses(*words, words=["unfinished search with another recipe"])
    report = library.tune(searched(), out="out", **(how | {"trials": 7}))
    assert len(report["tune"]["trials"]) == 7  # more than were asked for at first


@pytest.mark.parametrize("room", [operands.ROOM, 0.0])
def test_models_are_aligned_once(here: Path, room: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no room for them in memory; and the merge is that of the recipe that is written."""
    solved: list[str] = []
    solve = PairSolver.solve
    monkeypatch.setattr(
        PairSolver, "solve", lambda self, unit, *a: solved.append(unit.key) or solve(self, unit, *a)
    )
    monkeypatch.setattr(operands, "ROOM", room)
    report = library.tune(recipe(PAIR), out="out", data="data.safetensors", trials=3)
    assert report["tune"]["reused"]["operands_on_disk"] == (room == 0)
    assert 0 < len(solved) == len(set(solved)) == report["tune"]["reused"]["aligned_units"]
    library.merge("out/isomerge_recipe.yml", out="again")
    assert Path("again/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()
    assert report["distance"]["after"] < report["distance"]["before"]


def test_what_did_not_change_is_left(here: Path) -> None:
    """Units whose parameters stay, and points that were tried; a grid ends where it has no more."""
    text = recipe(
        "merge_method: ties\nbase_model: base\nmodels: [{model: tuned}]\nparameters:\n"
        "  density: [{filter: layer.1., value: {choices: [0.2, 0.5, 0.8], start: 0.5}}, {value: 1}]\n"
    )
    report = library.tune(text, out="out", data="data.safetensors", sampler="grid", trials=9)
    found = report["tune"]
    assert [row["values"] for row in found["trials"]] == [{"density.0": x} for x in (0.2, 0.5, 0.8)]
    assert (found["reused"]["repeated_points"], found["trials"][1]["repeats"]) == (1, True)
    assert found["reused"]["units_left"] > found["reused"]["units_merged"]
    merged = json.loads(Path("out/isomerge.json").read_text())["tune"]["best"]["values"]["density.0"]
    assert f"value: {merged}" in Path("out/isomerge_recipe.yml").read_text()


def test_a_search_that_finds_nothing_says_so(here: Path, isomerge: Callable) -> None:
    """Where the recipe's own values are the best ones, and where a model alone is no worse than the merge."""
    words = ("--data", "data.safetensors", "--trials", 4, "-o")
    said = isomerge("tune", searched("{search: [0, 1.5], start: 0.7}"), *words, "own", "--json", "r.json")
    assert said.code == 0, said.err
    found = json.loads(Path("r.json").read_text())["tune"]
    assert found["best"]["trial"] == 0
    assert "no trial was better than the recipe's own values" in found["notes"][0]
    assert found["sentence"] in said.out
    said = isomerge("tune", searched("{search: [-1, -0.5]}"), *words, "ends", "--json", "r.json")
    found = json.loads(Path("r.json").read_text())["tune"]
    assert found["notes"][-1].startswith("on the held-out examples tuned alone")
    assert "alone" in said.out


def test_values_that_do_not_go_together_are_told(here: Path) -> None:
    """They are trials without a loss; the search goes on."""
    text = recipe(
        "merge_method: della_linear\nbase_model: base\nmodels: [{model: tuned}]\n"
        "parameters: {density: {choices: [0.5, 0.8], start: 0.5}, epsilon: {choices: [0.1, 0.4], start: 0.1}}\n"
    )
    found = library.tune(text, out="out", data="data.safetensors", sampler="grid")["tune"]
    refused = [row["values"] for row in found["trials"] if row["loss"] is None]
    assert refused == [{"density": 0.8, "epsilon": 0.4}]
    assert found["notes"][0].startswith("1 of 4 trials were refused, the first because: ")


def test_a_dry_run_writes_nothing(here: Path, isomerge: Callable) -> None:
    """It says what would be tried, and what that takes."""
    searched()
    before = sorted(here.iterdir())
    said = isomerge("tune", "r.yml", "--data", "data.safetensors", "-o", "out", "--trials", 5, "--dry-run")
    assert said.code == 0, said.err
    assert "5 trials (tpe) of weight; searched on 24 examples, judged on 24." in said.out
    assert "of memory" in said.out
    assert sorted(here.iterdir()) == before


def test_time_may_run_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best so far is written."""
    now = iter(range(10**6))
    monkeypatch.setattr(tuner.time, "monotonic", lambda: float(next(now)))
    found = library.tune(searched(), out="out", data="data.safetensors", trials=50, timeout=9)["tune"]
    assert 0 < len(found["trials"]) < 9
    assert f"{len(found['trials'])} of 50 trials were made: --timeout was over" in found["notes"]


def test_what_a_search_does_not_use_is_noted(here: Path) -> None:
    """They would change nothing."""
    text = recipe(RECIPE % "1" + "")
    report = library.tune(
        text,
        out="out",
        data="data.safetensors",
        search={"normalize": "true,false"},
        layer_groups=3,
        sampler="grid",
        task_path="own",
    )
    for word in ("--layer-groups", "--task-path"):
        assert any(note.startswith(f"{word} is not used") for note in report["notes"])
    assert [row["values"]["normalize"] for row in report["tune"]["trials"]] == [True, False]


SENTENCES = {
    "order": ("{search: [1, 0]}", [], ["`parameters.weight`", "[1, 0]", "first number must be less"]),
    "one number": ("{search: [1]}", [], ["give two finite numbers"]),
    "no numbers": ("{search: [a, b]}", [], ["give two finite numbers"]),
    "outside": ("0.5, density: {search: [0, 1]}", [], ["has no parameter `density`"]),
    "both": ("{search: [0, 1], choices: [1, 2]}", [], ["`search` is a range"]),
    "a key": ("{search: [0, 1], strat: 1}", [], ["unknown key `strat`", "did you mean `start`"]),
    "a start": ("{search: [0, 1], start: 2}", [], ["`start` is 2"]),
    "layers": ("{search: [0, 1], layers: 1}", [], ["`layers` is a whole number"]),
    "a flag": ("1, normalize: {search: [0, 1]}", [], ["list its values"]),
    "log": ("{search: [0, 1], log: true}", [], ["both must be above 0"]),
    "the method's limits": ("1, lambda: {choices: [x, y]}", [], ["`parameters.lambda`", "finite number"]),
    "an unknown name": ("1", ["--search", "wieght=0:1"], ["--search wieght", "did you mean `weight`"]),
    "no range": ("1", ["--search", "weight=0"], ["two or more"]),
    "twice": ("{search: [0, 1]}", ["--search", "weight=0:1"], ["says already what is searched for"]),
    "a sampler": ("{search: [0, 1]}", ["--sampler", "annealing"], ["tpe, cmaes, random, grid"]),
    "a grid": ("{search: [0, 1]}", ["--sampler", "grid"], ["searched in a range"]),
    "one dimension": ("{search: [0, 1]}", ["--sampler", "cmaes"], ["two or more numbers"]),
    "a share": ("{search: [0, 1]}", ["--judge-share", "1"], ["between 0 and 1"]),
    "groups": ("{search: [0, 1]}", ["--layer-groups", "1"], ["at least 2"]),
    "time": ("{search: [0, 1]}", ["--timeout", "0"], ["more than 0"]),
    "data": ("{search: [0, 1]}", ["--data", "nowhere.safetensors"], ["nowhere.safetensors"]),
    "data for others": ("{search: [0, 1]}", ["--data", "unfit.safetensors"], ["labels"]),
    "the output": ("{search: [0, 1]}", ["-o", "base"], ["base"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SENTENCES)
def test_refused(here: Path, refuses: Callable, case: str) -> None:
    """In one sentence, with nothing written."""
    value, options, words = SENTENCES[case]
    searched(value)
    given = {"--data": "data.safetensors", "-o": "out"}
    given = {name: word for name, word in given.items() if name not in options}
    refuses("tune", "r.yml", *(x for pair in given.items() for x in pair), *options, words=words)


def test_merges_that_no_trial_can_make_are_refused(here: Path, refuses: Callable) -> None:
    """A method that runs models, a mean that weights move, several steps, other heads than the merge's."""
    words = ("tune", "r.yml", "--data", "data.safetensors", "-o", "out")
    pair = PAIR.replace("align: true\n", "")
    recipe(pair.replace("linear", "regression") + "align: {data: data.safetensors}\n")
    refuses(*words, words=["the method regression runs the models"])
    recipe(pair + "align: {anchor: none}\n")
    refuses(*words, words=["a mean that depends on `weight`"])
    recipe(pair + "align: {repair: data.safetensors}\n")
    refuses(*words, words=["`align.repair`"])
    recipe(pair + "align: {heads: separate}\n")
    refuses(*words, words=["heads: separate"])
    recipe(pair + "---\nname: first\n" + pair)
    refuses(*words, words=["several steps"])
    refuses("tune", "base", *words[2:], words=["base is a folder"])


def test_without_optuna_a_sentence_says_what_to_install(
    here: Path, refuses: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grid needs none."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    refuses("tune", searched(), "--data", "data.safetensors", "-o", "out", words=["pip install 'isomerge[tune]'"])
    found = library.tune(searched("{choices: [0.5, 0.7]}"), out="out", data="data.safetensors", sampler="grid")
    assert found["tune"]["best"]["values"] == {"weight": 0.7}


def test_other_commands_name_this_one(here: Path, refuses: Callable) -> None:
    """A value that is searched for is none."""
    refuses("merge", searched(), "-o", "out", words=["`parameters.weight`", "isomerge tune"])
    with pytest.raises(IsomergeError, match="isomerge tune"):
        library.merge(["base", "tuned"], out="out", parameters={"weight": {"search": [0, 1]}})

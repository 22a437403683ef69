"""`isomerge tune --sampler gradient`: coefficients are learned through the merged model's outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call, grad

import isomerge as library
from depth import more
from isomerge.observe.live.modules import load_module
from isomerge.tuning.slopes import Slopes
from isomerge.tuning.trial_model import TrialModel
from solve.disguises import perturb, single

SHARES = {"one": 0.7, "two": 0.3}
"""How much of each task vector the target has, of which the labels are the outputs."""
RECIPE = """merge_method: %s
base_model: base
models: [{model: one}, {model: two}]
parameters: {weight: 0.5%s}
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and two fine-tunes; labels of models that have shares of both task vectors: equal shares of all layers
    (``data``), other ones of every layer (``graded``); and a classifier with its two fine-tunes."""
    from transformers import BertConfig, BertForSequenceClassification

    folder, rng = tmp_path_factory.mktemp("learned"), torch.Generator().manual_seed(0)
    kind: Any = BertConfig
    shape: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40,
        "max_position_embeddings": 12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    config = kind(**shape, num_labels=1, problem_type="regression")
    models = {
        name: BertForSequenceClassification(config).eval() for name in ("base", "one", "two", "target", "graded")
    }
    named = {name: dict(model.named_parameters()) for name, model in models.items()}
    with torch.no_grad():
        for name, base in named["base"].items():
            changes = {task: 0.15 * torch.randn(base.shape, generator=rng) for task in SHARES}
            for task, change in changes.items():
                named[task][name].copy_(base + change)
            named["target"][name].copy_(base + sum(SHARES[task] * change for task, change in changes.items()))
            turned = dict(zip(SHARES, reversed(SHARES.values()), strict=True)) if "layer.1" in name else SHARES
            named["graded"][name].copy_(base + sum(turned[task] * change for task, change in changes.items()))
        ids = torch.randint(1, 40, (32, 8), generator=rng)
        for name, data in (("target", "data"), ("graded", "graded")):
            labels = models[name](input_ids=ids).logits.squeeze(-1).contiguous()
            save_file({"input_ids": ids, "labels": labels}, folder / f"{data}.safetensors")
    for name in ("base", "one", "two"):
        models[name].save_pretrained(folder / name)
    save_file({"input_ids": ids}, folder / "unlabelled.safetensors")
    sorting = BertForSequenceClassification(kind(**shape, num_labels=3)).eval()
    sorting.save_pretrained(folder / "sorts")
    for k in (1, 2):
        perturb(folder / "sorts", folder / f"sorts{k}", 0.5, seed=k)
    with torch.no_grad():
        classes = sorting(input_ids=ids).logits.argmax(-1)
    save_file({"input_ids": ids, "labels": classes}, folder / "classes.safetensors")
    return folder


@pytest.fixture
def here(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models and data, to write in."""
    for path in planted.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(method: str = "task_arithmetic", more: str = "") -> Path:
    Path("r.yml").write_text(RECIPE % (method, more))
    return Path("r.yml")


def learned(out: str, data: str = "data.safetensors", **how: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"data": data, "judge_data": data, "sampler": "gradient", "trials": 25, **how}
    return library.tune(given.pop("recipe", "r.yml"), out=out, **given)["tune"]


def equal(one: str, two: str) -> bool:
    return Path(one, "model.safetensors").read_bytes() == Path(two, "model.safetensors").read_bytes()


def test_planted_coefficients_are_learned(here: Path, isomerge: Callable) -> None:
    """One per task; the recipe that is written makes the same checkpoint."""
    words = ("--data", "data.safetensors", "--sampler", "gradient", "--trials", 14, "--json", "r.json")
    said = isomerge("tune", recipe(), *words, "-o", "out")
    assert said.code == 0, said.err
    found = json.loads(Path("r.json").read_text())["tune"]
    assert list(found["best"]["values"]) == ["models.0.weight", "models.1.weight"]
    assert list(found["best"]["values"].values()) == pytest.approx(list(SHARES.values()), abs=0.06)
    assert found["best"]["judge"]["loss"] < 0.05 * found["start"]["judge"]["loss"]
    assert (found["sampler"], found["objective"], found["rate"]) == ("gradient", "loss", 0.03)
    library.merge("out/isomerge_recipe.yml", out="again")
    assert equal("out", "again")


def test_layers_have_coefficients_of_their_own(here: Path) -> None:
    """What lies before and after them as well; the recipe has them by name and layer."""
    recipe()
    layers = learned("layers", "graded.safetensors", by="layer", trials=16, rate=0.05)
    names = [f"models.{k}.weight.{where}" for k in (0, 1) for where in ("before", "layer.0", "layer.1", "after")]
    values = layers["best"]["values"]
    assert list(values) == names
    assert values["models.0.weight.layer.0"] - values["models.0.weight.layer.1"] > 0.2
    assert values["models.1.weight.layer.1"] > 0.6
    assert layers["best"]["judge"]["loss"] < 0.1 * layers["start"]["judge"]["loss"]
    library.merge("layers/isomerge_recipe.yml", out="again")
    assert equal("layers", "again")
    base, one, two, out = (load_file(Path(name, "model.safetensors")) for name in ("base", "one", "two", "layers"))
    for name, where in (("classifier.weight", "after"), ("bert.encoder.layer.1.output.dense.weight", "layer.1")):
        shares = [values[f"models.{k}.weight.{where}"] for k in (0, 1)]
        wanted = base[name] + shares[0] * (one[name] - base[name]) + shares[1] * (two[name] - base[name])
        torch.testing.assert_close(out[name], wanted)


def test_the_slopes_are_those_of_the_outputs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch differentiates the model at ``base + sum_k lambda_k tau_k``."""
    seen: list[Any] = []
    call = Slopes.__call__
    monkeypatch.setattr(Slopes, "__call__", lambda self, values, *a: seen.append((values, call(self, values, *a))) or seen[-1][1])  # fmt: skip
    recipe()
    learned("out", trials=1)
    values, slopes = seen[0]
    module, data = load_module("base"), load_file("data.safetensors")
    base, one, two = (dict(load_module(name).named_parameters()) for name in ("base", "one", "two"))

    def loss(shares: torch.Tensor) -> torch.Tensor:
        state = {n: x + shares[0] * (one[n] - x) + shares[1] * (two[n] - x) for n, x in base.items()}
        logits = functional_call(module, state, kwargs={"input_ids": data["input_ids"]}).logits
        return (logits.squeeze(-1) - data["labels"]).square().mean()

    wanted = grad(loss)(torch.tensor(list(values.values())))
    assert list(slopes.values()) == pytest.approx(wanted.tolist(), rel=1e-3)


@pytest.mark.parametrize("family", ["mixtral", *more("gpt2")])
def test_slopes_of_language_models(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied embeddings, transposed weights, experts that transformers fuses: as differences of the measured losses are,
    layer by layer."""
    base = single(family, tmp_path / "base")
    told = json.loads((base / "config.json").read_text())
    more = {"num_experts_per_tok": told.get("num_local_experts")}  # else losses leap where another expert is chosen
    (base / "config.json").write_text(json.dumps(told | (more if family == "mixtral" else {})))
    tuned = [perturb(base, tmp_path / f"tuned{k}", 0.3, seed=k) for k in (1, 2)]
    Path(tmp_path, "r.yml").write_text(
        f"merge_method: task_arithmetic\nbase_model: {base}\nmodels: [{{model: {tuned[0]}}}, {{model: {tuned[1]}}}]\n"
    )
    ids = torch.randint(1, 30, (8, 6), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, tmp_path / "data.safetensors")
    descent, numeric, step = TrialModel.descent, list[dict[str, float]](), 0.02

    def both(self: TrialModel, examples: Any, objective: str, slopes: Slopes, values: Any) -> Any:
        measure, found = descent(self, examples, objective, slopes, values)
        for name in found:
            losses = []
            for end in (values[name] + step, values[name] - step):
                self.merge(slopes.fusion_of({**values, name: end}))
                losses.append(self.measure(examples).loss)
            numeric.append({"slope": found[name], "difference": (losses[0] - losses[1]) / (2 * step)})
        return measure, found

    monkeypatch.setattr(TrialModel, "descent", both)
    data = str(tmp_path / "data.safetensors")
    learned(
        str(tmp_path / "out"), data, recipe=tmp_path / "r.yml", by="layer", trials=1, search={"weight": (0, 1.5)}
    )
    largest = max(abs(row["difference"]) for row in numeric)
    for row in numeric:
        assert row["slope"] == pytest.approx(row["difference"], abs=0.03 * largest)
    assert len({row["slope"] for row in numeric}) == len(numeric)


def test_entropy_needs_no_labels(here: Path, isomerge: Callable, refuses: Callable) -> None:
    """The mean entropy of the predictions falls; labels of the judge's examples tell what that is worth."""
    Path("r.yml").write_text(RECIPE.replace("one", "sorts1").replace("two", "sorts2").replace("base_model: base", "base_model: sorts") % ("task_arithmetic", ""))  # fmt: skip
    words = ("tune", "r.yml", "--data", "unlabelled.safetensors", "--trials", 5, "--objective", "entropy")
    gradient = ("--sampler", "gradient", "--json", "r.json")
    said = isomerge(*words, *gradient, "-o", "out", "--judge-data", "classes.safetensors")
    assert said.code == 0, said.err
    found = json.loads(Path("r.json").read_text())["tune"]
    assert found["best"]["search"] < found["start"]["search"]
    assert (found["unit"], found["search_unit"], found["notes"][-1:]) != ("nats", "nats", [])
    assert "searched on (nats of entropy)" in said.out
    assert found["best"]["judge"]["accuracy"] is not None
    logits = load_module("out")(input_ids=load_file("unlabelled.safetensors")["input_ids"]).logits.double()
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    assert found["best"]["search"] == pytest.approx(entropy.item(), rel=1e-4)
    said = isomerge(*words, *gradient, "-o", "alone")
    assert said.code == 0, said.err
    found = json.loads(Path("r.json").read_text())["tune"]
    assert found["unit"] == "nats of entropy"
    assert "whether they are right" in found["notes"][-1]
    refuses(*words[:-2], "-o", "none", words=["--data has no labels"])


@pytest.mark.parametrize("method", ["ties", "linear", *more("dare_linear", "breadcrumbs")])
def test_other_methods_have_coefficients_too(here: Path, method: str) -> None:
    """TIES' trimmed and elected task vectors, DARE's random ones: the loss falls from where it starts."""
    if method == "linear":
        Path("r.yml").write_text("merge_method: linear\nmodels: [{model: base}, {model: one}, {model: two}]\n")
    else:
        recipe(method, ", density: 0.7")
    found = learned("out", trials=6)
    assert found["best"]["search"] < 0.8 * found["start"]["search"]
    library.merge("out/isomerge_recipe.yml", out="again")
    assert equal("out", "again")


def test_a_killed_search_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the steps that are left, from the gradients that were kept, to the same values."""

    class Killed(BaseException):
        pass

    recipe()
    whole = learned("whole", trials=3)
    descent, left = TrialModel.descent, [2]

    def dying(self: TrialModel, *a: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return descent(self, *a)

    with monkeypatch.context() as patch:
        patch.setattr(TrialModel, "descent", dying)
        with pytest.raises(Killed):
            learned("out", trials=3)
    calls: list[int] = []
    monkeypatch.setattr(TrialModel, "descent", lambda self, *a: calls.append(1) or descent(self, *a))
    found = learned("out", trials=3)
    assert len(calls) == 4 - 2
    assert found["trials"] == whole["trials"]
    assert equal("out", "whole")


def test_what_has_no_gradient_is_refused(here: Path, refuses: Callable) -> None:
    """Methods without coefficients, words, options that do not go together."""
    words = ("tune", "r.yml", "--data", "data.safetensors", "-o", "out", "--sampler", "gradient")
    recipe("model_stock", "")
    Path("r.yml").write_text("merge_method: model_stock\nbase_model: base\nmodels: [{model: one}, {model: two}]\n")
    refuses(*words, words=["model_stock has no number"])
    recipe()
    refuses(*words, "--search", "normalize=true,false", words=["--sampler gradient", "`normalize` has choices"])
    refuses(*words, "--by", "layer", "--layer-groups", "2", words=["leave --layer-groups out"])
    refuses(*words, "--by", "head", words=["--by head", "task, layer"])
    refuses(*words, "--rate", "2", words=["--rate 2"])
    refuses(*words, "--objective", "accuracy", words=["loss, entropy"])
    refuses(*words, "--objective", "entropy", words=["predicts numbers"])
    recipe(more=", lambda: [{search: [0, 1]}, 1]")
    refuses(*words, "--by", "layer", words=["`lambda.0` has a place of its own"])


def test_a_dry_run_counts_gradients(here: Path, isomerge: Callable) -> None:
    """What is kept for them takes memory, and a pass with them three times as long; layers are told by name."""
    recipe()
    words = ("tune", "r.yml", "--data", "data.safetensors", "-o", "out", "--by", "layer", "--dry-run", "--json", "r.json")  # fmt: skip
    costs = {}
    for sampler in ("random", "gradient"):
        said = isomerge(*words, "--sampler", sampler)
        assert said.code == 0, said.err
        assert "models.1.weight.layer.1" in said.out
        costs[sampler] = json.loads(Path("r.json").read_text())["estimate"]
    assert costs["gradient"]["memory"] > costs["random"]["memory"]
    assert costs["gradient"]["seconds"] > costs["random"]["seconds"]

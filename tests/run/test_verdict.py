"""What is said of two models before and after a run, and what follows from it: every situation, by every door."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import depth
import isomerge
from evidence.runs import folder_of, run
from isomerge.evidence.barrier import LineReport
from isomerge.evidence.line import Line
from isomerge.evidence.relation import Pair
from isomerge.models.recognised import recognise
from isomerge.quotient.kinship import kinship
from isomerge.run.connectivity import barrier_verdict
from isomerge.run.run_verdict import planned_facts, verdict_on
from isomerge.solve.standing import standings
from solve.disguises import disguise, perturb, single, turn
from toys import outputs, relative, tensors

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

NAMES = ["bert", "gpt2", "t5-gated", "mixtral", *depth.more("llama", "vit", "deberta-shared")]


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, two fine-tunes, a twin, a twin whose stream is in another basis, and a stranger."""
    folder = tmp_path_factory.mktemp("llamas")
    a = single("llama", folder / "a")
    return {
        "a": a,
        "tuned": perturb(a, folder / "tuned", 0.05, seed=1),
        "sparse": only_queries(a, folder / "sparse"),
        "twin": disguise("llama", a, folder / "twin", 3),
        "turned": turn("llama", a, folder / "turned", 4),
        "stranger": single("llama", folder / "stranger", 5),
        "stranger-tuned": perturb(single("llama", folder / "s", 5), folder / "stranger-tuned", 0.05, seed=2),
    }


def copied(folder: Path, out: Path, weights: dict[str, torch.Tensor]) -> Path:
    """A checkpoint with other weights."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def only_queries(folder: Path, out: Path) -> Path:
    """A fine-tune of the query projections alone, in one layer."""
    weights = load_file(folder / "model.safetensors")
    name = next(n for n in weights if n.endswith("layers.1.self_attn.q_proj.weight"))
    rng = torch.Generator().manual_seed(9)
    weights[name] = weights[name] + 0.1 * weights[name].std() * torch.randn(weights[name].shape, generator=rng)
    return copied(folder, out, weights)


@pytest.mark.parametrize("name", NAMES)
def test_how_models_stand(name: str, tmp_path: Path) -> None:
    """Copies and fine-tunes are settled; twins, moved fine-tunes and strangers are not, and only relatives are
    kin."""
    a, other = single(name, tmp_path / "a"), single(name, tmp_path / "other", 5)
    twin, tuned = disguise(name, a, tmp_path / "twin", 3), perturb(a, tmp_path / "tuned", 0.05)
    moved = disguise(name, tuned, tmp_path / "moved", 4)
    turned = turn(name, tuned, tmp_path / "turned", 6)
    models = [recognise(path) for path in (a, a, tuned, twin, moved, turned, other)]
    found = standings(models[0], models[1:], torch.float32, kinship=kinship)
    assert [s.settled for s in found] == [True, True, False, False, False, False]
    assert [s.same_basis for s in found[2:4]] == [True, True]
    assert [s.kin for s in found[4:]] == [True, False]
    assert [s.look.same for s in found] == [True] + 5 * [False]
    assert [s.moved for s in found] == [False, False, False, False, True, False]
    assert [s.strange for s in found] == [False, False, False, False, False, True]


def test_aligned_fine_tunes_are_left(llamas: dict[str, Path], tmp_path: Path) -> None:
    """What training did not touch stays bit for bit, the distance does not rise, and one line says so; True matches
    all the same."""
    a, sparse = llamas["a"], llamas["sparse"]
    found = isomerge.merge([a, sparse], out=tmp_path / "auto")
    old, tuned, new = (tensors(path) for path in (a, sparse, tmp_path / "auto"))
    for name, tensor in new.items():
        if torch.equal(old[name], tuned[name]):
            assert torch.equal(tensor, old[name]), name
        else:
            assert torch.equal(tensor, (old[name] + tuned[name]) / 2), name
    assert found["verdict"]["code"] == "aligned"
    assert found["verdict"]["level"] == "good"
    assert found["verdict"]["next"] == []
    assert found["verdict"]["pairs"][0]["left_as_it_is"]
    assert found["distance"]["after"] == found["distance"]["before"]
    assert [note for note in found["notes"] if "left as they are" in note] == [found["verdict"]["sentence"]]
    isomerge.merge([a, sparse], out=tmp_path / "plain", align=False)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("auto", "plain")]
    assert files[0] == files[1]
    forced = isomerge.merge([a, sparse], out=tmp_path / "forced", align=True)
    assert not forced["verdict"]["pairs"][0]["left_as_it_is"]
    moved = tensors(tmp_path / "forced")
    assert any(not torch.equal(moved[n], t) for n, t in new.items()), "matching moves what training did not touch"
    with pytest.raises(isomerge.IsomergeError, match="auto"):
        isomerge.merge([a, sparse], out=tmp_path / "no", align="perhaps")


@pytest.mark.parametrize("more", [{"jobs": 1}, {"jobs": 3}, {"max_memory": "1GB"}, {"anchor": "none"}])
def test_the_decision_is_the_same(llamas: dict[str, Path], tmp_path: Path, more: dict[str, Any]) -> None:
    """Whatever the jobs, the memory and the anchor."""
    models = [llamas[name] for name in ("a", "tuned", "sparse")]
    isomerge.merge(models, out=tmp_path / "plain", align=False)
    found = isomerge.merge(models, out=tmp_path / "auto", **more)
    assert all(pair["left_as_it_is"] for pair in found["verdict"]["pairs"])
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("auto", "plain")]
    assert files[0] == files[1]


def test_one_of_several_is_matched(llamas: dict[str, Path], tmp_path: Path) -> None:
    """Fine-tunes are left, a twin beside them is brought home; among models onto a common mean all are moved, or
    none."""
    models = [llamas[name] for name in ("a", "tuned", "twin")]
    found = isomerge.merge(models, out=tmp_path / "out")
    assert [pair["left_as_it_is"] for pair in found["verdict"]["pairs"]] == [True, False]
    assert [pair["code"] for pair in found["verdict"]["pairs"]] == ["aligned", "same"]
    old, tuned, new = (tensors(path) for path in (models[0], models[1], tmp_path / "out"))
    for name, tensor in old.items():
        assert torch.allclose(new[name], (2 * tensor + tuned[name]) / 3, atol=1e-4), name
    mean = isomerge.merge(models, out=tmp_path / "mean", anchor="none")
    assert not any(pair["left_as_it_is"] for pair in mean["verdict"]["pairs"])


def test_align_leaves_what_is_aligned(llamas: dict[str, Path], tmp_path: Path) -> None:
    """`align` as well: the weights that are written are the source's."""
    alignment, found = isomerge.align(llamas["sparse"], onto=llamas["a"], out=tmp_path / "out")
    assert found["verdict"]["code"] == "aligned"
    assert not list(alignment)
    for name, tensor in tensors(llamas["sparse"]).items():
        assert torch.equal(tensor, tensors(tmp_path / "out")[name]), name
    forced, report = isomerge.align(llamas["sparse"], onto=llamas["a"], align=True)
    assert list(forced)
    assert report["distance"]["after"] < report["distance"]["before"]


def test_one_unit_out_of_place_is_matched(llamas: dict[str, Path], tmp_path: Path) -> None:
    """A fine-tune whose neurons were permuted in the last layer alone is not taken for one that is aligned."""
    weights = load_file(llamas["tuned"] / "model.safetensors")
    last = max(n.split(".mlp.")[0] for n in weights if ".mlp." in n)
    order = torch.randperm(
        weights[f"{last}.mlp.up_proj.weight"].shape[0], generator=torch.Generator().manual_seed(0)
    )
    for part, axis in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        name = f"{last}.mlp.{part}.weight"
        weights[name] = weights[name].index_select(axis, order).contiguous()
    out = tmp_path / "permuted"
    out.mkdir()
    for file in llamas["tuned"].iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    found = isomerge.merge([llamas["a"], out], out=tmp_path / "out")
    assert not found["verdict"]["pairs"][0]["left_as_it_is"]
    assert found["distance"]["after"] < 0.5 * found["distance"]["before"]


def test_a_relative_in_another_basis(llamas: dict[str, Path], tmp_path: Path) -> None:
    """The stream is matched without being asked for: the merge is the model. It stands in the notes, the card and
    the recipe, and a choice of the user's own wins, and is told of."""
    a, turned = llamas["a"], llamas["turned"]
    found = isomerge.merge([a, turned], out=tmp_path / "out")
    assert found["spaces"] == "all"
    assert found["verdict"]["code"] == "same"
    assert any("in another basis than that of" in note for note in found["notes"])
    assert "spaces: all" in (tmp_path / "out" / "isomerge_recipe.yml").read_text()
    assert found["verdict"]["sentence"] in (tmp_path / "out" / "README.md").read_text()
    assert relative(outputs(tmp_path / "out"), outputs(a)) <= 1e-4
    chosen = isomerge.merge([a, turned], out=tmp_path / "default", spaces="default")
    assert chosen["spaces"] == "default"
    assert chosen["verdict"]["code"] == "far"
    assert any("--spaces default leaves it there" in note for note in chosen["notes"])
    assert any("--spaces all" in step["command"] for step in chosen["verdict"]["next"])
    assert "spaces: default" in (tmp_path / "default" / "isomerge_recipe.yml").read_text()
    assert isomerge.align(turned, onto=a)[1]["spaces"] == "all"
    assert isomerge.diff(a, turned)["spaces"] == "all"


def test_one_distance_at_every_door(llamas: dict[str, Path], tmp_path: Path) -> None:
    """Fine-tunes are as far apart for diff as for a merge, matched, left alone or not aligned at all: over all
    tensors as they are stored (where diff took those that symmetry moves, gains about one made them nearer)."""
    pair = [llamas["a"], llamas["tuned"]]
    merges = [
        isomerge.merge(pair, out=tmp_path / f"{align}", align=align)["verdict"] for align in ("auto", True, False)
    ]
    said = {verdict["sentence"].partition(";")[0] for verdict in (*merges, isomerge.diff(*pair)["verdict"])}
    assert len(said) == 1, said
    assert "counterparts (0." in said.pop()


def advised(verdict: dict[str, Any], tmp_path: Path) -> list[list[str]]:
    """The commands that are advised, as a shell reads them."""
    return [shlex.split(step["command"]) for step in verdict["next"] if step["command"]]


def test_unrelated_models(llamas: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning before and after, how far, and what to do; with --no-align no advice to align."""
    a, stranger = llamas["a"], llamas["stranger"]
    for align in ("auto", True, False):
        caplog.clear()
        found = isomerge.merge([a, stranger], out=tmp_path / f"out-{align}", align=align)["verdict"]
        assert found["code"] == "unrelated"
        assert found["level"] == "poor"
        assert "will most likely not work" in found["sentence"]
        assert "1.41" in found["sentence"]
        ahead = [record.message for record in caplog.records if "will most likely not work" in record.message]
        assert len(ahead) == bool(align), "what takes its time is told before"
        words = advised(found, tmp_path)
        assert [w[1] for w in words] == ["merge", "merge", "barrier"]
        assert words[0][words[0].index("--learn") + 1] == "DATA"
        assert words[1][words[1].index("--learn") + 1] == "generate"
        card = (tmp_path / f"out-{align}" / "README.md").read_text()
        assert found["sentence"] in card
        assert all(re.sub(r"\S*/", "", step["command"]) in card for step in found["next"]), "cards name no folders"


@pytest.mark.parametrize(
    ("other", "align", "told"),
    [("tuned", "auto", "`align: true`"), ("stranger", "auto", "learn: DATA"), ("twin", None, "`align: true`")],
)
def test_a_recipe_is_told_in_its_keys(
    other: str, align: str | None, told: str, llamas: dict[str, Path], tmp_path: Path
) -> None:
    """Whoever wrote a recipe reads of its keys: verdicts, advice, notes and cards name no option of the command
    line, as those of the same models merged by options do; commands to run beside it stay as they are."""
    pair = [llamas["a"], llamas[other]]
    listed = "".join(f"  - model: {model}\n" for model in pair)
    recipe = tmp_path / "r.yml"
    recipe.write_text(f"models:\n{listed}merge_method: linear\nparameters:\n  weight: 0.5\n")
    if align is not None:
        recipe.write_text(f"{recipe.read_text()}align: {align}\n")
    found = isomerge.merge(recipe, out=tmp_path / "out")
    by_options = isomerge.merge(pair, out=tmp_path / "o", align=align or False)
    said = [
        [m["verdict"]["sentence"], *m["notes"], *(pair["sentence"] for pair in m["verdict"]["pairs"])]
        + [text for step in m["verdict"]["next"] for text in (step["text"], step["command"])]
        for m in (found, by_options)
    ]
    ours, theirs = (" ".join(t for t in texts if not t.startswith("isomerge barrier")) for texts in said)
    assert told in ours
    assert "--" not in ours
    assert "--" in theirs
    assert found["verdict"]["sentence"] in (tmp_path / "out" / "README.md").read_text()


def test_gains_of_one_make_no_relatives(
    llamas: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers whose gains are one, most of their norm, are as far apart after a match as their matrices are, also
    where fingerprints leave it open whether they are kin (by all tensors they were related)."""
    monkeypatch.setattr("isomerge.commands.merging._kinship", lambda anchor, model: None)
    pair = []
    for name in ("a", "stranger"):
        weights = load_file(llamas[name] / "model.safetensors")
        plain = {key: torch.ones_like(t) if t.ndim == 1 else 0.02 * t for key, t in weights.items()}
        pair.append(copied(llamas[name], tmp_path / name, plain))
    found = isomerge.merge(pair, out=tmp_path / "out")
    (told,) = found["verdict"]["pairs"]
    assert (
        told["after"] < 0.5 < 0.9 < found["distance"]["matrices"]["after"] / found["distance"]["matrices"]["norm"]
    )
    assert found["verdict"]["code"] == "unrelated"
    assert "their matrices are" in found["verdict"]["sentence"]


def test_advice_against_no_align_helps(llamas: dict[str, Path], tmp_path: Path) -> None:
    """Where alignment would bring the models together it is advised, and obeying does bring them together."""
    for name in ("twin", "turned"):
        found = isomerge.merge([llamas["a"], llamas[name]], out=tmp_path / name, align=False)
        assert found["verdict"]["level"] == "poor"
        assert "leave --no-align out" in found["verdict"]["sentence"]
        models = advised(found["verdict"], tmp_path)[0][2:4]
        after = isomerge.merge(models, out=tmp_path / f"{name}-again")
        assert after["distance"]["after"] < 1e-3 * found["distance"]["after"]
    assert (
        isomerge.merge([llamas["a"], llamas["tuned"]], out=tmp_path / "t", align=False)["verdict"]["level"]
        == "good"
    )


def test_a_base_that_is_none(llamas: dict[str, Path], tmp_path: Path) -> None:
    """Of task vectors, of those that are moved, and of what all are aligned onto."""
    a, tuned, sparse, stranger = (llamas[name] for name in ("a", "tuned", "sparse", "stranger"))
    for align in ("auto", False):
        wrong = isomerge.merge(
            [tuned, sparse], out=tmp_path / f"w{align}", method="task_arithmetic", base_model=stranger, align=align
        )
        assert wrong["verdict"]["code"] == "unrelated"
        assert "is no base of" in wrong["verdict"]["sentence"]
        assert "tuned from" in wrong["verdict"]["next"][0]["text"]
    right = isomerge.merge([tuned, sparse], out=tmp_path / "r", method="task_arithmetic", base_model=a)
    assert right["verdict"]["level"] == "good"
    moved = {"method": "task_arithmetic", "base_model": a}
    wrong = isomerge.merge([tuned], out=tmp_path / "s", source_bases=[stranger], **moved)
    assert "stranger is no base of tuned" in wrong["verdict"]["sentence"]
    onto = isomerge.merge([a, tuned, stranger], out=tmp_path / "o", onto=stranger)
    assert onto["verdict"]["level"] == "poor"
    assert "stranger" in onto["verdict"]["sentence"]


def test_no_false_alarm(llamas: dict[str, Path], tmp_path: Path) -> None:
    """Pruned and rounded copies, fine-tunes in half precision and adapters that were taken in are all left as they
    are."""
    rng = torch.Generator().manual_seed(8)
    for kind in ("pruned", "bfloat16", "quantised", "adapter of rank two"):
        out = tmp_path / kind
        out.mkdir()
        for file in llamas["tuned"].iterdir():
            (out / file.name).write_bytes(file.read_bytes())
        weights = load_file(llamas["tuned"] / "model.safetensors")
        for name, t in weights.items():
            if kind == "pruned" and t.ndim == 2:
                weights[name] = t * (t.abs() >= t.abs().flatten().median())
            elif kind == "bfloat16":
                weights[name] = t.bfloat16()
            elif kind == "quantised" and t.ndim == 2:
                step = t.abs().max() / 15
                weights[name] = (t / step).round() * step
            elif kind == "adapter of rank two" and name.endswith(("q_proj.weight", "v_proj.weight")):
                low = torch.randn(len(t), 2, generator=rng) @ torch.randn(2, t.shape[1], generator=rng)
                weights[name] = t + 0.5 * t.norm() / low.norm() * low
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        found = isomerge.merge([llamas["a"], out], out=tmp_path / f"{kind}-out")
        assert found["verdict"]["code"] == "aligned", kind
        assert found["verdict"]["pairs"][0]["left_as_it_is"], kind


def test_recipes_have_all_three(llamas: dict[str, Path], tmp_path: Path) -> None:
    """``align: auto`` (or a block) leaves what is aligned, true matches all, false nothing; what is written says
    the same."""
    listed = f"models: [{{model: {llamas['a']}}}, {{model: {llamas['tuned']}}}]\nmerge_method: linear\n"
    for said, left, written in (
        ("auto", True, "align: auto"),
        ("{heads: average}", True, "align: auto"),
        ("true", False, "align: true"),
        ("{enabled: true, layers: head:1}", False, "enabled: true"),
    ):
        recipe = tmp_path / "r.yml"
        recipe.write_text(f"{listed}align: {said}\n")
        out = tmp_path / f"o{abs(hash(said))}"
        found = isomerge.merge(recipe, out=out)
        assert found["verdict"]["pairs"][0]["left_as_it_is"] is left, said
        assert written in (out / "isomerge_recipe.yml").read_text(), said


@pytest.mark.parametrize("part", ["mlp", "layers.1.", "embed_tokens|lm_head", "norm"])
@pytest.mark.parametrize("align", ["auto", False])
def test_what_differs_is_named(llamas: dict[str, Path], tmp_path: Path, part: str, align: str | bool) -> None:
    """Of models of which one part differs, in either order, nothing says that the weights are the same."""
    a, b = llamas["a"], tmp_path / "b"
    weights, rng = load_file(a / "model.safetensors"), torch.Generator().manual_seed(3)
    changed = [name for name in weights if re.search(part, name)]
    for name in changed:
        noise = torch.randn(weights[name].shape, generator=rng)
        weights[name] = weights[name] + 0.3 * weights[name].std() * noise
    copied(a, b, weights)
    for number, models in enumerate([[a, b], [b, a]]):
        verdict = isomerge.merge(models, out=tmp_path / str(number), align=align)["verdict"]
        assert verdict["code"] == "aligned"
        kinds = verdict["pairs"][0]["look"]["kinds"]
        assert sum(row["differing"] for row in kinds) == len(changed)
        if 2 * len(changed) <= sum(row["tensors"] for row in kinds):
            assert "have the same weights but for" in verdict["sentence"]


def test_strangers_without_a_spec(tmp_path: Path) -> None:
    """Are none of one base, and their fine-tunes are."""
    paths = []
    for seed, start in ((0, None), (1, None), (2, 0)):
        rng = torch.Generator().manual_seed(seed)
        names = [f"layers.{i}.{n}.weight" for i in range(3) for n in ("q", "up")] + ["emb.weight"]
        weights = {name: torch.randn(32, 16, generator=rng) for name in names} | {"norm.weight": torch.ones(16)}
        if start is not None:
            base = load_file(paths[start] / "model.safetensors")
            weights = {name: base[name] + 0.1 * x for name, x in weights.items()}
        paths.append(tmp_path / str(seed))
        paths[-1].mkdir()
        save_file(weights, paths[-1] / "model.safetensors", metadata={"format": "pt"})
        config = {"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"]}
        (paths[-1] / "config.json").write_text(json.dumps(config))
    codes = {
        (one, two): isomerge.merge([paths[one], paths[two]], out=tmp_path / f"{one}{two}", align=False)["verdict"][
            "code"
        ]
        for one, two in ((0, 1), (1, 0), (0, 2), (2, 0))
    }
    assert codes == {(0, 1): "unknown", (1, 0): "unknown", (0, 2): "aligned", (2, 0): "aligned"}


@pytest.mark.parametrize(("name", "learned"), [("flux", False), ("bert", True)])
def test_what_nothing_runs_is_not_advised_to_run(name: str, learned: bool, toy: Any) -> None:
    """Parts of diffusion pipelines are told nothing about learning or measuring, whatever they are to each other."""
    models = [recognise(toy(name, seed).folder) for seed in (0, 1)]
    pairs = [Pair(models[0].ref, models[1].ref, 1.4, kin=False)]
    verdict = verdict_on(pairs, planned_facts("merge", [model.ref for model in models]), models)
    assert verdict is not None
    assert any("--learn" in step.command for step in verdict.next) == learned
    assert any("barrier" in step.command for step in verdict.next) == learned


@pytest.mark.parametrize(("rise", "level"), [(0.05, "good"), (2.0, "poor")])
def test_a_copy_that_learning_has_moved_is_judged_by_what_learning_measured(
    rise: float, level: str, toy: Any, tmp_path: Path
) -> None:
    """Its distance, which learning does not lessen, says nothing of a merge; of a copy that another way moved, or
    that was moved onto another model, it does."""
    models = [recognise(toy("bert", seed).folder) for seed in (0, 1)]
    matched = {"learned": {"barrier": rise, "examples": 64, "held_out": 16, "unit": "nats", "history": []}}
    for onto, taught in ((models[0].ref, True), (models[0].ref, False), (models[1].ref, True)):
        report = run(1.4, 1.4, command="align", paths=[str(onto), "b"], streams=[matched] if taught else [])
        moved = folder_of(tmp_path / f"{Path(onto).name}{taught}", report)
        refs = [models[0].ref, str(moved)]
        facts = replace(planned_facts("merge", refs), aligned=False)
        verdict = verdict_on([Pair(*refs, 1.4, kin=False, align=False)], facts)
        assert verdict is not None
        if taught and onto == models[0].ref:
            assert (verdict.level, verdict.code) == (level, "unrelated")
            assert verdict.sentence.startswith("On 16 examples that the match was not learned from")
        else:
            assert verdict.is_poor
        for step in verdict.next:  # of the models that were merged, and not of those of the run before it
            assert {models[0].ref, str(moved)} <= {*shlex.split(step.command)}


@pytest.mark.parametrize(("rise", "drop", "advised"), [(0.5, 0.0, True), (0.0, 0.5, True), (0.05, 0.01, False)])
def test_a_barrier_that_is_not_there_needs_no_advice(rise: float, drop: float, advised: bool, toy: Any) -> None:
    """Strangers by their weights, and what was measured between them."""
    models = [recognise(toy("bert", seed).folder) for seed in (0, 1)]
    pairs = [Pair(models[0].ref, models[1].ref, 1.4, kin=False)]
    for accuracies in ((1.0, 1.0 - drop, 1.0), (nan, nan, nan)):
        line = LineReport("as stored", line=Line((0.0, 0.5, 1.0), (1.0, 1.0 + rise, 1.0), accuracies))
        verdict = barrier_verdict(pairs, models, [line], "nats")
        assert verdict is not None
        assert bool(verdict.next) == (advised and (rise > 0.1 or not isnan(accuracies[1])))
    verdict = barrier_verdict(pairs, models)
    assert verdict is not None
    assert verdict.next, "before anything is measured"

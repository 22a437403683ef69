"""The verdict: by loss, by learning, by distance; and what to try next."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evidence.runs import POSSIBLE, barrier, folder_of, line, run, written
from isomerge.errors import IsomergeError
from isomerge.evidence.distance import SAME
from isomerge.evidence.relation import Level, Pair, Proof, Relation
from isomerge.evidence.report.advice import again, next_steps
from isomerge.evidence.report.contents import models_of, settings_of
from isomerge.evidence.report.facts import facts_of
from isomerge.evidence.report.folder import Written, read_output
from isomerge.evidence.report.loss_facts import MOVED, losses_of, read_losses
from isomerge.evidence.report.spaces import Wording
from isomerge.evidence.report.verdict import graded, verdict_of
from isomerge.solve.look import Look, Seen


def commands(found: Any) -> list[list[str]]:
    """The commands of a verdict's steps, as a shell reads them."""
    return [shlex.split(step.command) for step in found.steps]


def seen(*, lost: int = 0, unequal: int = 10) -> Look:
    """A look at ten tensors of one kind, some of which differ, with rows that are out of place."""
    return Look(tuple(Seen(f"w{n}", "w", 4, 4.0, 4.0, 0.1, n < unequal, 2, 2 * (n < lost)) for n in range(10)))


@pytest.mark.parametrize(
    ("how", "relation", "words"),
    [
        ({"look": seen(unequal=0)}, Relation.SAME, "b has the weights of a: all 10 tensors are equal"),
        ({"look": seen(unequal=0), "proof": Proof.OPEN, "doubt": "rope"}, None, "cannot tell whether b and a are one function: rope"),
        ({"after": 1e-7, "proof": Proof.SAME}, Relation.SAME, "b is the same function as a in other weights"),
        ({"after": 1e-7}, Relation.SAME, "b is the same function as a in other weights"),
        ({"after": 1e-3, "tolerance": SAME["BF16"]}, Relation.SAME, "b is a within what rounding to half precision explains"),
        ({"after": 1e-3, "tolerance": SAME["BF16"], "proof": Proof.SAME}, Relation.SAME, "b is the same function as a in other"),
        ({"after": 1e-7, "proof": Proof.OTHER}, Relation.RELATED, "b and a are related"),
        ({"after": 1e-7, "fixed": 0.1}, Relation.RELATED, "b and a are related"),
        ({"before": 0.05, "look": seen(unequal=1), "settled": True}, Relation.NEAR, "same weights but for w0 (1 tensor)"),
        ({"before": 0.05, "look": seen(), "settled": True}, Relation.NEAR, "fine-tunes of one base"),
        ({"before": 0.8, "after": 0.79, "look": seen()}, Relation.NEAR, "fine-tunes of one base"),
        ({"before": 0.7, "after": 0.69, "look": seen(lost=9)}, Relation.UNRELATED, "are unrelated"),
        ({"after": 0.5, "kin": True, "look": seen(lost=9)}, Relation.RELATED, "b and a are related"),
        ({"after": 0.8, "kin": False, "look": seen(lost=9)}, Relation.UNRELATED, "are unrelated"),
        ({"after": 0.8, "kin": True, "look": seen(lost=9)}, Relation.RELATED, "b and a are related"),
        ({"after": 0.3, "kin": False, "look": seen(lost=9)}, Relation.RELATED, "b and a are related"),
        ({"before": 0.46, "after": 0.4, "kin": False, "look": seen(lost=9)}, Relation.UNRELATED, "fingerprints tell no common base, and they are 0.40 of the norm apart after alignment (0.46 as stored)"),
        ({"before": 0.46, "after": 0.1, "kin": False, "look": seen(lost=9)}, Relation.RELATED, "b and a are related"),
        ({"before": 0.0, "after": 0.0, "fixed": 0.1, "look": seen(unequal=1)}, Relation.NEAR, "same weights but for w0 (1 tensor) (0.16 of the norm apart)"),
        ({"after": 1.2, "kin": True}, Relation.DERIVED, "common base with a, but they are 1.20 of the norm apart"),
        ({"after": 1.2, "same_basis": True}, Relation.DERIVED, "b and a have embeddings near each other, but they are"),
        ({"after": 1.2, "same_basis": True, "kin": False}, Relation.UNRELATED, "b and a are unrelated"),
        ({"after": 1.2}, Relation.UNRELATED, "are unrelated"),
        ({"kin": False}, Relation.UNRELATED, "are unrelated"),
        ({"kin": True}, Relation.RELATED, "has a common base with a, but lies in other coordinates"),
        ({"same_basis": True}, Relation.RELATED, "has a common base with a, but lies in other coordinates"),
        ({}, None, "whether they are related is not known"),
        ({"after": 0.3, "first": Relation.UNRELATED}, Relation.RELATED, "matched they seemed unrelated"),
        ({"after": 1.2, "matrices": (1.4, 1.3)}, Relation.UNRELATED, "their matrices are 1.30 of their norm apart after alignment (1.40 as stored, where 1.41"),
        ({"kin": False, "before": 1.4}, Relation.UNRELATED, "unrelated: 1.40 of the norm apart as stored (1.41 is"),
        ({"after": 1.2, "way": "--spaces all"}, Relation.UNRELATED, "1.20 of the norm apart after alignment with --spaces all"),
        ({"after": 0.3, "way": "--spaces all"}, Relation.RELATED, "0.30 after alignment with --spaces all"),
        # gains of about one are most of a small model's norm: strangers are told by their matrices
        ({"before": 0.35, "after": 0.29, "matrices": (1.42, 1.17)}, Relation.UNRELATED, "unrelated: their matrices are 1.17"),
        ({"after": 0.29, "matrices": (1.42, 1.17), "kin": True}, Relation.DERIVED, "but their matrices are 1.17 of"),
        ({"after": 0.29, "matrices": (1.42, 1.17), "kin": False}, Relation.UNRELATED, "and their matrices are 1.17 of"),
        ({"after": 0.29, "matrices": (1.42, 0.6)}, None, "fingerprints leave it open, and their matrices are 0.60"),
        ({"after": 0.29, "matrices": (1.42, 0.3)}, Relation.RELATED, "are related: 1.40 of the norm apart as stored, 0.29"),
        ({"after": 0.0, "matrices": (1.42, 0.0)}, Relation.SAME, "is the same function"),
        ({"after": 1.3, "first": Relation.RELATED}, Relation.UNRELATED, "matched they seemed related"),
    ],
)  # fmt: skip
def test_the_table(how: dict[str, Any], relation: Relation | None, words: str) -> None:
    """What follows from which evidence, and in which words. What strangers have is said of what is stored alone: a
    match in many dimensions brings them to 0.99 and less."""
    pair = Pair("a", "b", **{"before": 1.4, **how})
    assert pair.relation is relation
    assert words in pair.sentence({})
    for beside in re.findall(r"(.{0,20})1\.41 is", pair.sentence({})):
        assert beside.endswith(("as stored (", "as stored, where "))
    if pair.is_mutual:
        assert pair.sentence({}) == replace(pair, anchor="b", model="a").sentence({})


@pytest.mark.parametrize("helps", [True, False])
def test_a_large_update_may_be_no_move(helps: bool) -> None:
    """Rows that have no counterpart where they stand were moved or changed: where nothing was matched, and it is not
    known that a match would help, both are said."""
    pair = Pair("a", "b", 0.73, same_basis=True, align=False, helps=helps)
    said = pair.sentence({})
    assert ("or its weights were changed by much" in said, "may destroy both" in said) == (not helps, not helps)
    assert ("will most likely destroy both: leave --no-align out" in said) == helps


@pytest.mark.parametrize("loss_on", ["texts", "labelled examples", ""])
@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("relation", [Relation.NEAR, Relation.RELATED, Relation.DERIVED, Relation.UNRELATED, None])
@pytest.mark.parametrize("failed", [False, True])
def test_only_what_is_possible_is_advised(
    tmp_path: Path, loss_on: str, writes: bool, relation: Relation | None, failed: bool
) -> None:
    """Models that nothing can run, as parts of diffusion pipelines, are not advised to run them, in learning,
    measuring or writing; nor are those to learn that could not; and where it cannot be told how models stand, only
    measuring is advised."""
    told = facts_of(run(1.41, 1.4, streams=[{"groups": {}, **({"not_learned": "none"} if failed else {})}]))
    found = Written(told, tmp_path, wording=Wording(loss_on=loss_on, writes=writes and bool(loss_on)))
    steps = next_steps(found, relation, Level.POOR, measured=False)
    commands = [step.command for step in steps]
    assert any("--learn DATA" in words for words in commands) == (bool(loss_on and relation) and not failed)
    strangers = relation in (Relation.DERIVED, Relation.UNRELATED)
    assert any("generate" in words for words in commands) == (strangers and bool(loss_on and writes) and not failed)
    assert any("barrier" in words or "report" in words for words in commands) == bool(loss_on)
    assert any(loss_on in step.text for step in steps if "report" in step.command) == (
        any("report" in words for words in commands)
    )
    if not loss_on:
        assert commands == []


@pytest.mark.parametrize(
    ("before", "after", "changes", "level", "title", "options"),
    [
        (1.3, 0.0, {}, Level.GOOD, "same function", []),
        (0.3, 0.29, {}, Level.GOOD, "not needed", ["--no-align"]),
        (1.3, 0.4, {}, Level.GOOD, "brought the models together", []),
        (1.3, 1.1, {}, Level.POOR, "unrelated", ["--learn", "--learn", "barrier"]),
        (1.3, 1.1, {"streams": [{"groups": {"res": "O"}}]}, Level.POOR, "unrelated", ["--learn", "--learn", "barrier"]),
        (
            1.3, 1.1, {"match": {"name": "otfusion", "sources": []}}, Level.POOR, "unrelated",
            ["-o", "--learn", "--learn"],
        ),
        (0.3, 0.3, {"align": False}, Level.GOOD, "no alignment is needed", []),
        (1.3, 1.3, {"align": False}, Level.OPEN, "cannot be told", ["barrier"]),
        (1.3, 1.3, {"verdict": None}, Level.OPEN, "cannot be told", ["barrier"]),
    ],
)  # fmt: skip
def test_as_the_run_said(
    before: float, after: float, changes: dict[str, Any], level: Level, title: str, options: list[str]
) -> None:
    """Every case, its level, and the options of the commands that it advises."""
    found = verdict_of(written(before, after, **changes))
    assert found.level is level
    assert title in found.title
    for step, option in zip(found.steps, options, strict=True):
        assert option in shlex.split(step.command)


def test_streams_that_cannot_be_matched() -> None:
    """A model without a head must keep its residual stream: --spaces all is not advised."""
    far = written(1.3, 1.1, kin=True)
    fixed = Written(far.facts, wording=replace(POSSIBLE, free_streams=False))
    assert any("all" in words for words in commands(verdict_of(far)))
    assert not any("all" in words for words in commands(verdict_of(fixed)))


def test_models_are_read_by_the_spec_that_was_given() -> None:
    """By every command that is advised."""
    assert commands(verdict_of(written(1.3, 1.1)))
    assert all("--spec" not in words for words in commands(verdict_of(written(1.3, 1.1))))
    assert all(
        words[-2:] == ["--spec", "own.spec"] for words in commands(verdict_of(written(1.3, 1.1, spec="own.spec")))
    )


def test_a_common_mean_is_asked_for_again() -> None:
    """By every command that makes the merge anew; of a merge onto the first by none."""
    for anchor in ("none", "first"):
        anew = [words for words in commands(verdict_of(written(1.3, 1.1, anchor=anchor))) if words[1] == "merge"]
        assert anew
        assert all(("--anchor" in words) == (anchor == "none") for words in anew)


def test_fixed_tensors_do_not_count() -> None:
    """The verdict is on what alignment can move; the fixed tensor of `runs` is 0.5 of its norm off."""
    assert verdict_of(written(1.3, 0.0)).title == "The models are the same function"


def test_furthest_of_several() -> None:
    """One model of three that stays far decides."""
    near, far = run(1.2, 0.3)["distance"], run(1.3, 1.2)["distance"]
    for second, level in ((near, Level.GOOD), (far, Level.POOR)):
        sources = [{"model": "b", "distance": near}, {"model": "c", "distance": second}]
        assert verdict_of(written(1.2, 0.6, models=["a", "b", "c"], sources=sources)).level is level


@pytest.mark.parametrize(
    ("start", "kept", "level", "title"),
    [
        (0.9, 0.05, Level.GOOD, "Learning removed the barrier"),
        (0.9, -0.4, Level.GOOD, "Learning removed the barrier"),
        (-0.035, -0.904, Level.GOOD, "There was no barrier for learning to remove"),
        (0.05, 0.04, Level.GOOD, "There was no barrier for learning to remove"),
        (None, 0.05, Level.GOOD, "Learning left no barrier"),
        (0.9, 0.2, Level.FAIR, "Learning left a small barrier"),
        (2.0, 0.9, Level.POOR, "Learning left a barrier"),
    ],
)
@pytest.mark.parametrize("target", ["distill", "labels"])
def test_by_learning(start: float | None, kept: float, level: Level, title: str, target: str) -> None:
    """Held-out examples of the learner decide where nothing else was measured; what was removed must have been
    there before; and what labels taught is told from what a match can do."""
    history = [] if start is None else [{"step": 0, "barrier": start}, {"step": 300, "barrier": kept}]
    learned = {"barrier": kept, "history": history, "held_out": 7, "examples": 50, "target": target}
    found = verdict_of(written(1.3, 1.4, streams=[{"groups": {"res": "O"}, "learned": learned}], spaces="all"))
    assert (found.level, found.title) == (level, title)
    assert "7 examples" in found.text
    assert any("thorough" in words for words in commands(found)) == (level is not Level.GOOD)
    assert ("owed to the labels" in found.text) == (target == "labels" and kept < -0.1)


@pytest.mark.parametrize(("start", "steps"), [(2.0, 3000), (0.9, 300), (None, 300)])
def test_longer_learning_is_advised_where_learning_helped(start: float | None, steps: int) -> None:
    """Not after the longest, nor where it lowered nothing, nor where it is not known whether it did."""
    history = [] if start is None else [{"step": 0, "barrier": start}, {"step": steps, "barrier": 0.9}]
    learned = {"barrier": 0.9, "history": history, "held_out": 7, "examples": 50, "target": "distill"}
    found = verdict_of(written(1.3, 1.4, streams=[{"groups": {"res": "O"}, "learned": learned}], spaces="all"))
    assert found.level is Level.POOR
    assert not any("thorough" in words for words in commands(found))


@pytest.mark.parametrize(
    ("excess", "drop", "level"),
    [
        (0.0, 0.0, Level.GOOD), (-1.0, -1.0, Level.GOOD), (0.1, 0.02, Level.GOOD), (0.11, 0.0, Level.FAIR),
        (0.0, 0.03, Level.FAIR), (0.31, 0.0, Level.POOR), (0.0, 0.07, Level.POOR),
    ],
)  # fmt: skip
def test_grades(excess: float, drop: float, level: Level) -> None:
    """By loss or by accuracy, whichever is worse."""
    assert graded(excess, drop) is level


def test_values_have_a_scale_of_their_own() -> None:
    """A squared error rises slightly where it rises by a tenth; what was learned from values is not graded."""
    for middle, level in ((210.0, Level.GOOD), (240.0, Level.FAIR), (400.0, Level.POOR)):
        found = losses_of(barrier(line(MOVED, [200.0, middle, 200.0]), unit="squared units"))
        assert verdict_of(written(1.3, 1.1), [found]).level is level
    learned = {"barrier": 50.0, "history": [], "held_out": 7, "unit": "squared units"}
    streams = [{"groups": {"res": "O"}, "learned": learned}]
    assert "Learning" not in verdict_of(written(1.3, 1.4, streams=streams, spaces="all")).title


def test_by_loss() -> None:
    """The line after alignment decides; a barrier asks for more alignment."""
    stored = line("as stored", [0.1, 2.0, 0.1], [0.9, 0.1, 0.9])
    good = losses_of(barrier(stored, line(MOVED, [0.1, 0.12, 0.1])))
    found = verdict_of(written(1.3, 1.1), [good])
    assert (found.level, found.title, found.steps) == (Level.GOOD, "The merge works", ())
    assert "1.900" in found.text
    bad = losses_of(barrier(stored, line("aligned, default", [0.1, 1.5, 0.1], [0.9, 0.4, 0.9])))
    found = verdict_of(written(1.3, 1.1), [bad])
    assert found.level is Level.POOR
    assert "worse than either model" in found.title
    assert any("--learn" in words for words in commands(found))
    plain = verdict_of(written(1.3, 1.3, align=False), [bad])
    assert "1.9" in plain.text
    assert "2.000" in plain.text, "an unaligned merge is the line as stored"


@pytest.mark.parametrize(
    ("losses", "accuracies", "told"),
    [
        ([6.24, 6.23, 6.24], [0.004, 0.004, 0.004], False),
        ([6.0, 6.0, 6.0], [0.004, 0.004, 0.004], True),
        ([9.0, 9.0, 9.0], [0.4, 0.4, 0.4], True),  # often right, and too sure where it is not
        ([6.24, 3.0, 1.0], [0.004, 0.2, 0.6], True),  # one of them has learned
    ],
)
def test_models_that_guess_tell_nothing(losses: list[float], accuracies: list[float], told: bool) -> None:
    """Of a merge of models that are no better than chance nobody can say that it works."""
    measured = losses_of(barrier(line("as stored", losses, accuracies), chance=6.215))
    found = verdict_of(written(0.3, 0.3, align=False), [measured])
    assert (found.level is Level.OPEN) == ("cannot be told" in found.title) == (not told)
    assert ("no better than guessing (6.215)" in found.text) == (not told)


def test_alignment_that_was_not_needed() -> None:
    """No barrier before either."""
    flat = [line(name, [0.1, 0.1, 0.1]) for name in ("as stored", MOVED)]
    assert "not needed" in verdict_of(written(0.3, 0.29), [losses_of(barrier(*flat))]).text


def test_near_models_with_a_barrier() -> None:
    """Fine-tunes that do not merge: learning, and not less alignment."""
    bad = losses_of(barrier(line(MOVED, [0.1, 1.5, 0.1], [0.9, 0.4, 0.9])))
    words = commands(verdict_of(written(0.3, 0.29), [bad]))
    assert ["--learn" in w for w in words] == [True]


def test_the_output_counts_more_than_the_line() -> None:
    """A method that is not the mean is judged by what it wrote."""
    flat = line(MOVED, [0.1, 0.1, 0.1])
    found = verdict_of(
        written(1.3, 0.5, method="ties"), [losses_of(barrier(flat, merged={"loss": 3.0, "accuracy": 0.1}))]
    )
    assert found.level is Level.POOR
    assert "3.000" in found.text


def test_a_match_that_changes_functions() -> None:
    """It is said."""
    match = {"name": "ot-acts", "sources": [{"preserves_function": False}]}
    assert "does not preserve functions" in verdict_of(written(1.3, 0.5, match=match)).text


def test_commands_survive_hostile_names(tmp_path: Path) -> None:
    """A shell reads every name back as it is."""
    names = ["a b; rm -rf $HOME", 'it\'s `x` "y" \\ é']
    out = folder_of(tmp_path / "o u't", run(0.3, 0.29, models=names, method="ties", weights=[1.0, 0.5]))
    found = verdict_of(replace(read_output(out), wording=POSSIBLE))
    first, *_, last = commands(found)
    assert first[2:4] == names
    assert first[4:8] == ["--method", "ties", "--weights", "1,0.5"]
    assert last == ["isomerge", "report", str(out), "--data", "DATA"]


def test_base_model_in_commands() -> None:
    """The base is named as one."""
    found = verdict_of(written(1.3, 1.1, models=["base", "x", "y"], base=True, method="ties", weights=[2.0, 1.0]))
    words = commands(found)[1]
    assert words[:6] == ["isomerge", "merge", "x", "y", "--base-model", "base"]
    assert "2,1" in words


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            "models: [{model: x, parameters: {weight: 0.5, density: 0.3}}, {model: y, parameters: {weight: 0.5, density: 1.0}}]\n"
            "base_model: base\nmerge_method: ties\nparameters: {int8_mask: true}\ndtype: bfloat16\n",
            "--method ties --dtype bfloat16 --weights 0.5,0.5 -p density=0.3,1 -p int8_mask=true",
        ),
        ("models: [{model: x, parameters: {weight: [0, 1]}}, {model: y, parameters: {weight: 1}}]\n", None),
        ("models: [{model: x, parameters: {density: 0.5}}, {model: y}]\nmerge_method: ties\n", None),
        ("models: [{model: x}, {model: y}]\nmerge_method: ties\nparameters: {density: [0, 1]}\n", None),
        ("models: [{model: x}, {model: y, base_model: z}]\nmerge_method: ties\n", None),
        ("models: [{model: x}, {model: y}]\nmerge_method: ties\nchat_template: auto\n", None),
        ("models: [{model: x}, {model: y}]\nmerge_method: ties\ntokenizer_source: union\n", "--tokenizer-source union"),
    ],
)  # fmt: skip
def test_a_command_says_all_that_the_recipe_does(recipe: str, words: str | None) -> None:
    """Or there is none: weights that change from layer to layer, say, are no option."""
    far = written(1.3, 1.1, models=["base", "x", "y"], base=True, method="ties", weights=[1.0, 1.0])
    found = again(Written(far.facts, recipe=recipe, wording=POSSIBLE))
    assert words is None or f" {words} " in found
    assert (words is None) == (found == "")


@pytest.mark.parametrize(
    "recipe", ["models: [x, y]", "models: 3", "parameters: [1]", "models: [{model: x, parameters: 3}]", "{1: 2}"]
)
def test_a_recipe_in_another_form_has_no_command(recipe: str) -> None:
    """Nobody vouches for what lies in a folder."""
    assert again(Written(written(1.3, 1.1).facts, recipe=recipe, wording=POSSIBLE)) == ""


@pytest.mark.parametrize("recipe", ["a: &a [*a]", "a: 2001-99-99", "a: [", "- 1", "a: 1\n---\na: 2"])
def test_a_recipe_that_cannot_be_read_says_nothing(recipe: str) -> None:
    """The page is made all the same."""
    shown = Written(written(1.3, 1.1).facts, recipe=recipe, wording=POSSIBLE)
    assert shown.content == {}
    assert settings_of(shown)


def test_a_foreign_base_is_not_the_models_fault() -> None:
    """Nothing was seen of how the models stand to one another."""
    base = verdict_of(written(1.3, 1.1, models=["base", "x", "y"], base=True, method="ties"))
    assert base.title == "The base is not the base of every model"
    assert verdict_of(written(1.3, 1.1)).title == "The models are unrelated"


def test_parameters_that_differ_are_no_number() -> None:
    """A page shows of a gradient and of filters that they are, and not the value in the middle."""
    recipe = "models: [{model: x, parameters: {density: [0.3, 1.0]}}, {model: y, parameters: {density: 0.5}}]\n"
    roles = [{"model": "x", "varies": "by layer"}, {"model": "y"}]
    parameters = {"density": [0.7, 0.5], "int8_mask": True}
    told = facts_of(run(models=["x", "y"], parameters=parameters, roles=roles, weights=[0.2, 0.6]))
    shown = dict(settings_of(Written(told, recipe=recipe)))["Parameters"]
    assert (("0.7" in shown), ("as the recipe has it" in shown)) == (False, True)
    assert [words for _, words, _ in models_of(Written(told))] == [
        "anchor: it stays as it is, weight differs by layer",
        "aligned onto the anchor, weight 0.6",
    ]


def test_slices_have_no_command() -> None:
    """What a recipe with slices did cannot be said by options."""
    far = written(1.3, 1.1)
    assert (
        verdict_of(Written(far.facts, recipe="slices:\n- sources: []\n", wording=POSSIBLE)).steps[0].command == ""
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"command": "merge"}', '{"command": "barrier", "models": []}', ""])
def test_other_files_than_barriers(tmp_path: Path, text: str) -> None:
    """One sentence."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(IsomergeError, match="isomerge barrier") as error:
        read_losses(tmp_path / "x.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["points", "losses", "barrier", "name"])
def test_damaged_lines(key: str) -> None:
    """A line lacks something, or has too little of it."""
    found = line("x", [1.0, 2.0, 1.0])
    for damage in (
        {k: v for k, v in found.items() if k != key},
        {**found, "losses": [1.0]},
        {**found, "losses": None},
    ):
        with pytest.raises(IsomergeError, match="damaged"):
            losses_of(barrier(damage))


def test_infinite_losses_are_refused() -> None:
    """No plot shows them."""
    with pytest.raises(IsomergeError, match="not finite"):
        losses_of(barrier(line("x", [1.0, float("inf"), 1.0])))

"""The verdict: by loss, by learning, by distance; and what to try next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from evidence.runs import barrier, folder_of, line, run, written
from isomerge.errors import IsomergeError
from isomerge.evidence.relation import Level, Relation, relation_of
from isomerge.evidence.relation import verdict as words_of_diff
from isomerge.evidence.report.advice import next_steps
from isomerge.evidence.report.facts import facts_of
from isomerge.evidence.report.folder import Written, read_output
from isomerge.evidence.report.loss_facts import MOVED, losses_of, read_losses
from isomerge.evidence.report.spaces import Wording
from isomerge.evidence.report.verdict import graded, verdict_of

RELATIONS = {
    "same": Relation.SAME,
    "fine-tunes": Relation.NEAR,
    "related": Relation.RELATED,
    "derived": Relation.DERIVED,
    "unrelated": Relation.UNRELATED,
}


def commands(found: Any) -> list[list[str]]:
    """The commands of a verdict's steps, as a shell reads them."""
    return [shlex.split(step.command) for step in found.steps]


def test_relation_agrees_with_diff() -> None:
    """The same bounds as `isomerge diff` has, over a grid."""
    seen = set()
    for before in [k / 20 for k in range(1, 30)]:
        for after in [0.0, *(k / 20 for k in range(1, 30))]:
            for kin in (False, True):
                said = words_of_diff(after == 0, before, after, kin=kin)
                relation = relation_of(before, after, kin=kin)
                seen.add(relation)
                assert relation is RELATIONS[said.partition(" ")[0]], (before, after, kin, said)
    assert seen == set(Relation)


def test_strangers_that_a_match_brings_nearer_stay_strangers() -> None:
    """Where fingerprints find no common base, only a distance that relatives have says otherwise."""
    told = {kin: relation_of(1.41, 0.8, kin=kin) for kin in (None, True, False)}
    assert told == {None: Relation.RELATED, True: Relation.RELATED, False: Relation.UNRELATED}
    assert relation_of(1.41, 0.3, kin=False) is Relation.RELATED
    assert words_of_diff(False, 1.41, 0.8, kin=False).startswith("unrelated")


@pytest.mark.parametrize("generates", [True, False, None])
def test_examples_are_advised_where_they_can_be_made(generates: bool | None) -> None:
    """Not of models that neither write texts nor see images."""
    told = facts_of(run(1.41, 1.4, method="linear", weights=[0.5, 0.5], verdict={"code": "unrelated", "pairs": []}))
    steps = next_steps(
        Written(told, wording=Wording(generates=generates)), Relation.UNRELATED, Level.POOR, measured=False
    )
    advised = [step.command.split()[1] for step in steps]
    assert any("--learn generate" in step.command for step in steps) == (generates is not False)
    assert "barrier" in advised


@pytest.mark.parametrize(
    ("before", "after", "changes", "level", "title", "options"),
    [
        (1.3, 0.0, {}, Level.GOOD, "same function", []),
        (0.0, 0.0, {}, Level.GOOD, "are the same", []),
        (0.3, 0.29, {}, Level.GOOD, "not needed", ["--no-align", "--base-model"]),
        (1.3, 0.5, {}, Level.GOOD, "brought the models together", []),
        (1.3, 1.1, {}, Level.OPEN, "far apart", ["--spaces", "--learn"]),
        (1.3, 1.1, {"streams": [{"groups": {"res": "O"}}]}, Level.OPEN, "far apart", ["--learn"]),
        (
            1.3,
            1.1,
            {"match": {"name": "otfusion", "sources": []}},
            Level.OPEN,
            "far apart",
            ["--spaces", "--learn"],
        ),
        (0.3, 0.3, {"align": False}, Level.GOOD, "no alignment is needed", ["--base-model"]),
        (0.7, 0.7, {"align": False}, Level.FAIR, "open whether", ["--spaces"]),
        (1.3, 1.3, {"align": False}, Level.POOR, "different coordinates", ["--spaces", "--learn"]),
    ],
)
def test_by_distance(
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
    far = written(1.3, 1.1)
    fixed = Written(far.facts, wording=Wording(free_streams=False))
    assert any("all" in words for words in commands(verdict_of(far)))
    assert not any("all" in words for words in commands(verdict_of(fixed)))
    assert "residual" not in verdict_of(fixed).text


def test_fixed_tensors_do_not_count() -> None:
    """The verdict is on what alignment can move; the fixed tensor of `runs` is 0.5 of its norm off."""
    assert verdict_of(written(1.3, 0.0)).title == "The models are the same function"


def test_furthest_of_several() -> None:
    """One model of three that stays far decides."""
    near, far = run(1.2, 0.3)["distance"], run(1.3, 1.2)["distance"]
    for second, level in ((near, Level.GOOD), (far, Level.OPEN)):
        sources = [{"model": "b", "distance": near}, {"model": "c", "distance": second}]
        assert verdict_of(written(1.2, 0.6, models=["a", "b", "c"], sources=sources)).level is level


def test_by_learning() -> None:
    """Held-out examples of the learner decide where nothing else was measured; longer learning is advised."""
    for kept, level in ((0.05, Level.GOOD), (0.2, Level.FAIR), (0.9, Level.POOR)):
        learned = {"barrier": kept, "history": [], "held_out": 7, "examples": 50, "target": "distill"}
        found = verdict_of(written(1.3, 1.4, streams=[{"groups": {"res": "O"}, "learned": learned}], spaces="all"))
        assert found.level is level
        assert "7 examples" in found.text
        assert any("thorough" in words for words in commands(found)) == (level is not Level.GOOD)


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
    assert any("all" in words for words in commands(found))
    plain = verdict_of(written(1.3, 1.3, align=False), [bad])
    assert "1.9" in plain.text
    assert "2.000" in plain.text, "an unaligned merge is the line as stored"


def test_alignment_that_was_not_needed() -> None:
    """No barrier before either."""
    flat = [line(name, [0.1, 0.1, 0.1]) for name in ("as stored", MOVED)]
    assert "not needed" in verdict_of(written(0.3, 0.29), [losses_of(barrier(*flat))]).text


def test_near_models_with_a_barrier() -> None:
    """Fine-tunes that do not merge: task vectors or learning, and not less alignment."""
    bad = losses_of(barrier(line(MOVED, [0.1, 1.5, 0.1], [0.9, 0.4, 0.9])))
    words = commands(verdict_of(written(0.3, 0.29), [bad]))
    assert ["--method" in w for w in words] == [True, False]
    assert ["--learn" in w for w in words] == [False, True]


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
    out = folder_of(tmp_path / "o u't", run(1.3, 1.1, models=names, method="ties", weights=[1.0, 0.5]))
    found = verdict_of(read_output(out))
    first, *_, last = commands(found)
    assert first[2:4] == names
    assert first[4:8] == ["--method", "ties", "--weights", "1,0.5"]
    assert last == ["isomerge", "report", str(out), "--data", "DATA"]


def test_base_model_in_commands() -> None:
    """The base is named as one."""
    found = verdict_of(written(1.3, 1.1, models=["base", "x", "y"], base=True, method="ties", weights=[2.0, 1.0]))
    words = commands(found)[0]
    assert words[:6] == ["isomerge", "merge", "x", "y", "--base-model", "base"]
    assert "2,1" in words


def test_slices_have_no_command() -> None:
    """What a recipe with slices did cannot be said by options."""
    far = written(1.3, 1.1)
    assert verdict_of(Written(far.facts, recipe="slices:\n- sources: []\n")).steps[0].command == ""


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

"""What to try next: the options that a run left out, as commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from isomerge.evidence.relation import Level, Relation
from isomerge.evidence.report.facts import Facts
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.numerals import ratio
from isomerge.records import Json, Record, hidden
from isomerge.solve.learn.settings import EFFORTS
from isomerge.solve.match_options import OURS

NEW = "NEW"
"""Stands for the folder that a suggested command writes."""
FORM = {"dtype": "--dtype", "tokenizer_source": "--tokenizer-source"}
"""Keys of a recipe that are one option each."""
SAID = {*FORM, "models", "base_model", "merge_method", "parameters", "align", "checksums", "import"}
"""Keys of a recipe that options say, or that a command does without."""
STILL = 0.9
"""Alignment that leaves more than this part of a distance has brought nothing nearer."""


class Advice(Record):
    """One thing to try, and the command that does it (empty where no single command does)."""

    text: str
    command: str = ""
    options: tuple[str, ...] = hidden(())
    """What a run is told otherwise by it, where it is the same command."""


def next_steps(written: Written, relation: Relation | None, level: Level, *, measured: bool) -> tuple[Advice, ...]:
    """At most three things to try, the most promising first; nothing that is not known to be possible.

    Args:
        written: the output.
        relation: of the models that are furthest apart; None: it cannot be told, and advice is to measure.
        level: of the verdict.
        measured: whether the loss on the line is known.
    """
    facts = written.matched
    steps: list[Advice] = []
    if relation is Relation.NEAR:
        steps += _of_near(written, level)
    elif relation is not Relation.SAME and (level is not Level.GOOD or not facts.aligned):
        known = relation is Relation.DERIVED or relation is Relation.UNRELATED
        steps += _of_strangers(written, derived=relation is Relation.DERIVED) if known else ()
        steps += _of_relatives(written) if relation is Relation.RELATED else ()
        steps += () if measured or relation is Relation.RELATED else _of_the_line(written)
    on = written.wording.loss_on
    if not measured and relation is not Relation.SAME and written.folder is not None and on:
        text = f"See what the merge costs: measure the loss between the models on a few hundred {on}."
        steps.append(Advice(text, _command(facts, "report", str(written.folder), "--data", "DATA")))
    return tuple(steps[:3])


def _of_near(written: Written, level: Level) -> Iterator[Advice]:
    facts = written.matched
    before, after = facts.distance.movable.share or (0.0, 0.0)
    if facts.command == "merge" and facts.moved and level is Level.GOOD and after > STILL * before:
        text = f"Leave alignment out: the models were {ratio(before)} of their norm apart, and are {ratio(after)}."
        yield _otherwise(written, text, "--no-align")
    if level is not Level.GOOD:
        yield from _learning(written)


def _of_strangers(written: Written, *, derived: bool) -> Iterator[Advice]:
    facts = written.matched
    if facts.base:
        yield Advice(
            "Name the model that the others were tuned from as the base; isomerge fingerprint tells which it is."
        )
    if facts.match or derived:
        yield from _of_alignment(written)
    yield from _learning(written)
    if not facts.taught and facts.learns and written.wording.writes:
        text = "Without data for that, have the models write examples, and learn on those."
        yield _otherwise(written, text, "--learn generate")


def _of_relatives(written: Written) -> Iterator[Advice]:
    yield from _of_alignment(written)
    yield from _learning(written)


def _of_the_line(written: Written) -> Iterator[Advice]:
    """What tells whether two models can be merged at all."""
    facts = written.matched
    if not facts.base and len(facts.models) == 2 and written.wording.loss_on:
        text = "See whether a merge is possible at all: the loss on the way from one to the other."
        yield Advice(text, _command(facts, "barrier", *facts.models, "--data", "TEST"))


def _of_alignment(written: Written) -> Iterator[Advice]:
    """What alignment was left out."""
    facts = written.matched
    if not facts.aligned:
        yield Advice("Align the models before they are averaged.", again(written), ("--align",))
    elif facts.match:
        text = f"Match by isomerge itself instead of {facts.match}."
        yield Advice(text, again(written), (f"--match {OURS}",))
    elif not facts.streams and written.wording.free_streams:
        text = "Match the residual stream as well: the models may carry it in different bases."
        yield _otherwise(written, text, "--spaces all")


def _learning(written: Written) -> Iterator[Advice]:
    """To learn, where the models can; to learn longer, where that lowered what is left and the longest was not
    asked for."""
    facts = written.matched
    if not (facts.learns and written.wording.loss_on):
        return
    if not facts.taught:
        text = "Learn the match on examples of what the models do; they need no labels."
        yield _otherwise(written, text, "--learn DATA")
    elif any(t.helped and t.steps[-1] < EFFORTS["thorough"] for t in facts.taught):
        text = "Learn longer, and on more examples: a few thousand, of all that the models are for."
        yield _otherwise(written, text, "--learn DATA", "--learn-effort thorough")


def _otherwise(written: Written, text: str, *options: str) -> Advice:
    """To make an output again with other options."""
    return Advice(text, again(written, *" ".join(options).split()), options)


def again(written: Written, *more: str) -> str:
    """The command that makes an output again with other options; empty where options alone cannot say what it
    was."""
    facts, method = written.matched, _method(written)
    if facts.command == "align" and written.facts.command != "merge":
        return _command(facts, "align", facts.models[1], "--onto", facts.models[0], *more, "-o", NEW)
    if method is None:
        return ""
    if facts.command == "align":  # aligned first, merged then: one command does both
        return _command(facts, "merge", *facts.models, *method, *more, "-o", NEW)
    models = facts.models[1:] if facts.base else facts.models
    base = ["--base-model", facts.models[0]] if facts.base else []
    base += ["--anchor", "none"] if facts.common_mean else []
    return _command(facts, "merge", *models, *base, *method, *more, "-o", NEW)


def _method(written: Written) -> list[str] | None:
    """The options that say how models were merged, and in which form; None where options cannot."""
    facts, recipe = written.facts, written.content
    said = _of_recipe(recipe) if recipe else _settings(facts)
    if said is None or facts.varies:
        return None
    common, own = said
    method = str(recipe.get("merge_method", facts.method))
    words = [] if method in ("", "linear") else ["--method", method]
    words += [word for key, option in FORM.items() if key in recipe for word in (option, str(recipe[key]))]
    settings = common | {name: [each.get(name, common.get(name)) for each in own] for each in own for name in each}
    for name, value in sorted(settings.items(), key=lambda item: (item[0] != "weight", item[0])):
        values = value if any(name in each for each in own) else [value]
        if not all(isinstance(x, (bool, int, float, str)) for x in values):
            return None
        text = ",".join(str(x).lower() if isinstance(x, bool) else str(x).removesuffix(".0") for x in values)
        if name != "weight":
            words += ["-p", f"{name}={text}"]
        elif method not in ("", "linear") or len(set(values)) > 1 or common:
            words += ["--weights", text]
    return words


def _of_recipe(recipe: Json) -> tuple[Json, list[Json]] | None:
    """A recipe's values of parameters, of all models and of each; None where it says more than options can, or is
    in no such form."""
    entries = recipe.get("models") or []
    if not recipe.keys() <= SAID or not isinstance(entries, list):
        return None
    if not all(isinstance(each, dict) and each.keys() <= {"model", "parameters"} for each in entries):
        return None
    common, *own = [each.get("parameters") or {} for each in (recipe, *entries)]
    known = all(isinstance(each, dict) and all(isinstance(name, str) for name in each) for each in (common, *own))
    return (common, own) if known else None


def _settings(facts: Facts) -> tuple[Json, list[Json]]:
    """A run's own values of parameters, of all models and of each."""
    merged = _merged(facts)
    known = {
        n: v for n, v in (facts.parameters or {}).items() if v is not None and facts.method not in ("", "linear")
    }
    known |= {"weight": list(facts.weights[-merged:])} if len(set(facts.weights)) > 1 else {}
    known = {name: value for name, value in known.items() if not (isinstance(value, list) and None in value)}
    each = {name: value for name, value in known.items() if isinstance(value, list) and len(value) == merged}
    common = {name: value for name, value in known.items() if name not in each}
    return common, [{name: value[k] for name, value in each.items()} for k in range(merged)]


def _merged(facts: Facts) -> int:
    return len(facts.models) - facts.base


def _command(facts: Facts, *words: str) -> str:
    """A command line for a shell, which imports what the run has imported, and reads models by its spec."""
    given = [word for name in facts.imports for word in ("--import", name)]
    given += ["--spec", facts.spec] if facts.spec else []
    return shlex.join(["isomerge", *words, *given])

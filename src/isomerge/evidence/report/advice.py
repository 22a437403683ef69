"""What to try next: the options that a run left out, as commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from isomerge.evidence.relation import Level, Relation
from isomerge.evidence.report.facts import Facts
from isomerge.evidence.report.folder import Written

NEW = "NEW"
"""Stands for the folder that a suggested command writes."""


@dataclass(frozen=True)
class Advice:
    """One thing to try, and the command that does it (empty where no single command does)."""

    text: str
    command: str = ""


def next_steps(written: Written, relation: Relation | None, level: Level, *, measured: bool) -> tuple[Advice, ...]:
    """At most three things to try, the most promising first.

    Args:
        written: the output.
        relation: of the models that are furthest apart; None: it cannot be told.
        level: of the verdict.
        measured: whether the loss on the line is known.
    """
    facts = written.told
    steps: list[Advice] = []
    if relation is Relation.NEAR:
        steps += _of_near(written, level)
    elif relation is not Relation.SAME and (level is not Level.GOOD or not facts.aligned):
        known = relation is Relation.DERIVED or relation is Relation.UNRELATED
        steps += _of_strangers(written, derived=relation is Relation.DERIVED) if known else _of_far(written)
    if not measured and relation is not Relation.SAME and written.folder is not None:
        text = "See what the merge costs: measure the loss between the models on a few hundred labelled examples."
        steps.append(Advice(text, _command(facts, "report", str(written.folder), "--data", "DATA")))
    return tuple(steps[:3])


def _of_near(written: Written, level: Level) -> Iterator[Advice]:
    facts = written.told
    if facts.command == "merge" and facts.aligned and not facts.left and level is Level.GOOD:
        yield Advice(
            "Leave alignment out: the result is nearly the same, in less time.", again(written, "--no-align")
        )
    if level is not Level.GOOD:
        yield _learning(written)


def _of_strangers(written: Written, *, derived: bool) -> Iterator[Advice]:
    facts = written.told
    if facts.base:
        yield Advice(
            "Name the model that the others were tuned from as the base; isomerge fingerprint tells which it is."
        )
    if facts.match or derived:
        yield from _of_alignment(written)
    yield _learning(written)
    if not facts.taught and written.wording.generates is not False:
        text = "Without data for that, have the models write examples, and learn on those."
        yield Advice(text, again(written, "--learn", "generate"))
    if not facts.base and len(facts.models) == 2:
        text = "See whether a merge is possible at all: the loss on the way from one to the other."
        yield Advice(text, _command(facts, "barrier", *facts.models, "--data", "TEST"))


def _of_far(written: Written) -> Iterator[Advice]:
    yield from _of_alignment(written)
    yield _learning(written)


def _of_alignment(written: Written) -> Iterator[Advice]:
    """What alignment was left out."""
    facts = written.told
    if not facts.aligned:
        yield Advice("Align the models before they are averaged.", again(written))
    elif facts.match:
        yield Advice(f"Match by isomerge itself instead of {facts.match}.", again(written, "--spaces", "all"))
    elif not facts.streams and written.wording.free_streams is not False:
        text = "Match the residual stream as well: the models may carry it in different bases."
        yield Advice(text, again(written, "--spaces", "all"))


def _learning(written: Written) -> Advice:
    if not written.told.taught:
        text = "Learn the match on examples of what the models do; they need no labels."
        return Advice(text, again(written, "--learn", "DATA"))
    text = "Learn longer, and on more examples: a few thousand, of all that the models are for."
    return Advice(text, again(written, "--learn", "DATA", "--learn-effort", "thorough"))


def again(written: Written, *more: str) -> str:
    """The command that makes an output again with other options; empty where options alone cannot say what it
    was."""
    facts = written.told
    if facts.command == "align":
        if written.facts.command == "merge":  # aligned first, merged then: one command does both
            return _command(facts, "merge", *facts.models, *_method(written.facts), *more, "-o", NEW)
        return _command(facts, "align", facts.models[1], "--onto", facts.models[0], *more, "-o", NEW)
    if "slices:" in written.recipe:
        return ""
    models = facts.models[1:] if facts.base else facts.models
    base = ["--base-model", facts.models[0]] if facts.base else []
    return _command(facts, "merge", *models, *base, *_method(facts), *more, "-o", NEW)


def _method(facts: Facts) -> list[str]:
    words = [] if facts.method in ("", "linear") else ["--method", facts.method]
    if len(set(facts.weights)) > 1:
        words += ["--weights", ",".join(f"{w:g}" for w in facts.weights[-_merged(facts) :])]
    for name, value in sorted((facts.parameters or {}).items()):
        if facts.method not in ("", "linear") and isinstance(value, (bool, int, float, str)):
            words += ["-p", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return words


def _merged(facts: Facts) -> int:
    return len(facts.models) - facts.base


def _command(facts: Facts, *words: str) -> str:
    """A command line for a shell, which imports what the run has imported."""
    imports = [word for name in facts.imports for word in ("--import", name)]
    return shlex.join(["isomerge", *words, *imports])

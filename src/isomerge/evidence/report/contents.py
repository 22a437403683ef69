"""The words of a report around its figures: title, key figures, models, settings, remarks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from isomerge.evidence.report.facts import Facts
from isomerge.evidence.report.figure import Table
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.loss_facts import Losses
from isomerge.evidence.report.numerals import count, figure, nats, percent, ratio, size_text

KINDS = {"GOOD": "Good", "OPEN": "Not decided yet", "FAIR": "With care", "POOR": "Problem"}
"""The levels of a verdict in words, beside their colour."""
GLOSSARY = (
    (
        "Distance",
        "The Frobenius norm of the difference of two models' weights, in parts of the first one's norm. 0: the "
        "same weights. Matrices that have nothing in common are about 1.41 (the square root of 2) apart as stored, "
        "and nearer once they are aligned; so are all tensors together of such models, where gains of norms, which "
        "are about 1 in every model, make up much of the norm.",
    ),
    (
        "Space",
        "A set of weights that can be turned, reordered or rescaled together without changing what the model does: "
        "heads, queries with keys, values with outputs, neurons, the residual stream. Alignment picks, of all "
        "these equal models, the one that fits the first best.",
    ),
    (
        "Group",
        "What may act in a space: Perm reorders, SignedPerm also flips signs, O rotates, GL takes every invertible "
        "matrix, Scale rescales, shift moves a bias into the next one.",
    ),
    (
        "Barrier",
        "How far the loss on the straight line between two models rises above the straight line between their "
        "losses (Entezari et al. 2022). 0: their average can be expected to work.",
    ),
    (
        "Ensemble",
        "The mean of the models' predictions: what a merge could reach that kept what each of them knows. It costs "
        "as many models as went in; a merge costs one.",
    ),
)


def title_of(facts: Facts) -> str:
    """What the page is about."""
    names = facts.names
    if facts.command == "align":
        return f"{names[1]} aligned onto {names[0]}" if len(names) > 1 else "Aligned checkpoint"
    if facts.command == "diff":
        return f"{names[0]} and {names[1]}"
    merged = names[facts.base :]
    return f"Merge of {' and '.join(merged)}" if len(merged) < 3 else f"Merge of {len(merged)} models"


def subtitle_of(written: Written) -> str:
    """Architecture, method, size."""
    facts = written.facts
    parts = [facts.architecture, f"{facts.method} merge" if facts.method else ""]
    parts.append("" if written.size is None else f"{count(written.size.parameters)} parameters")
    return " · ".join(part for part in parts if part)


def tiles_of(written: Written, losses: Sequence[Losses]) -> list[tuple[str, str, str]]:
    """The key figures: label, value, remark."""
    facts = written.matched
    tiles = []
    if (share := facts.distance.movable.share) is not None:
        before, after = map(ratio, share)
        value = f"{before} → {after}" if facts.moved else before
        tiles.append(("Distance", value, "of the norm" + (", where symmetries act" if facts.moved else "")))
    lines = [(each, line) for each in losses if (line := each.line_of(facts.spaces, aligned=facts.aligned))]
    if lines:
        each, line = max(lines, key=lambda pair: pair[1].barrier)
        before = each.stored
        value = nats(line.barrier) if before in (None, line) else f"{nats(before.barrier)} → {nats(line.barrier)}"
        tiles.append(("Barrier", value, each.unit))
        point = next((e.merged for e in losses if e.merged is not None), None) or line.midpoint
        if point.accuracy is not None:
            models = " and ".join(percent(end.accuracy or 0.0) for end in line.ends)
            tiles.append(("Accuracy of the average" if point is line.midpoint else "Accuracy of the merge",
                          percent(point.accuracy), f"models: {models}"))  # fmt: skip
    elif facts.taught:
        worst = max(facts.taught, key=lambda t: t.kept)
        value = nats(worst.kept) if worst.start is None else f"{nats(worst.start)} → {nats(worst.kept)}"
        tiles.append(("Barrier, held out", value, f"{worst.unit}, while learning"))
    if written.size is not None:
        tiles.append(("Size", size_text(written.size.bytes), ", ".join(written.size.dtypes)))
    return tiles


def models_of(written: Written) -> list[tuple[str, str, str]]:
    """What went in: names, what became of them, and the references that were given."""
    facts = written.facts
    return [
        (name, ", ".join([_role(facts, written.earlier, number), *_weight(facts, number)]), ref)
        for number, (ref, name) in enumerate(zip(facts.models, facts.names, strict=True))
    ]


def _role(facts: Facts, earlier: Facts | None, number: int) -> str:
    if number == 0:
        if facts.base:
            return "base of the task vectors; anchor"
        stays = "anchor: it stays as it is" + (", but for norms' gains" if facts.common_gains else "")
        return "first model" if facts.common_mean or not facts.aligned else stays
    if facts.command == "diff":
        return "second model"
    if earlier is not None:
        return f"{earlier.names[1]}, aligned before onto {earlier.names[0]}"
    if not facts.aligned:
        return "merged as it is"
    if facts.models[number] in facts.left_alone:
        return "aligned already: left as it is"
    return "matched onto the common mean" if facts.common_mean else "aligned onto the anchor"


def _weight(facts: Facts, number: int) -> tuple[str, ...]:
    """The weight of a model in the merge; none of the base."""
    if not facts.weights:
        return ()
    first = len(facts.models) - len(facts.weights)
    differs = facts.varies.get(facts.models[number])
    weight = f"differs {differs}" if differs else figure(facts.weights[number - first])
    return (f"weight {weight}",) if number >= first else ()


def _varying(content: Any) -> set[str]:
    """The parameters in some part of a recipe that are gradients or have filters."""
    if not isinstance(content, dict):
        return set().union(*map(_varying, content)) if isinstance(content, list) else set()
    own = content.get("parameters")
    named = (
        {name for name, value in own.items() if isinstance(value, (list, dict))} if isinstance(own, dict) else set()
    )
    return named.union(*map(_varying, content.values()))


def settings_of(written: Written) -> list[tuple[str, str]]:
    """How it was done."""
    facts, report = written.facts, written.matched
    settings = []
    if facts.method:
        settings.append(("Method", facts.method))
    shown = {name: _plain(value) for name, value in (facts.parameters or {}).items() if value is not None}
    shown |= dict.fromkeys(
        shown.keys() & _varying(written.content), "as the recipe has it for each layer and tensor"
    )
    if shown:
        settings.append(("Parameters", ", ".join(f"{name} {words}" for name, words in sorted(shown.items()))))
    settings.append(("Aligned", "no" if not report.aligned else _alignment(report)))
    if report.aligned and report.looked_at:
        words = {
            "input_metric": "how outputs of layers change",
            "functional": "what merging pairs of neurons would cost",
            "search": "a forward search on data",
            "learned": "gradients on examples",
        }
        settings.append(("It also looked at", ", ".join(words[name] for name in report.looked_at)))
    if facts.heads:
        settings.append(("Classifier heads", facts.heads))
    if written.folder is not None:
        settings.append(("Written to", str(written.folder)))
    return settings


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _alignment(facts: Facts) -> str:
    onto = "onto the common mean" if facts.common_mean else f"onto {facts.names[0]}"
    how = f" by {facts.match}" if facts.match else ""
    where = f", layers {facts.layers}" if facts.layers else ""
    return f"{onto}{how}, spaces: {facts.spaces or 'default'}{where}"


def notes_of(written: Written) -> list[str]:
    """What else the reader should know."""
    facts = written.facts
    notes = [f"Note: {note}." for note in dict.fromkeys((*facts.notes, *written.matched.notes))]
    if used := dict.fromkeys((*facts.plug_ins, *written.matched.plug_ins)):
        notes.append(f"Plug-ins: {', '.join(used)}.")
    if kept := facts.kept_from_first:
        more = f" and {len(kept) - 4} more" if len(kept) > 4 else ""
        notes.append(f"Kept from {facts.names[0]}, as not all models have them: {', '.join(kept[:4])}{more}.")
    if facts.head_folders:
        notes.append(
            f"Every model's classifier head is written, each with the merged body: {', '.join(facts.head_folders)}."
        )
    if written.matched.dead_blocks:
        notes.append(f"{written.matched.dead_blocks} blocks are rank-deficient and were not balanced.")
    return notes


def distance_remarks(written: Written) -> list[str]:
    """What the reader of the distances should know."""
    remarks = []
    if written.earlier is not None:
        remarks.append(
            "The merge itself aligned nothing: its second model had been aligned before. The figures are those of "
            "that alignment."
        )
    if written.matched.taught and written.matched.distance.total.after > written.matched.distance.total.before:
        remarks.append(
            "The distance grew: a learned match looks for a low loss between the models, and not for weights that "
            "are near. The aligned model is still exactly the same function."
        )
    return remarks


def loss_remarks(written: Written, losses: Sequence[Losses]) -> list[str]:
    """Whether what was measured are other models than those that went in."""
    known = {os.path.realpath(os.path.expanduser(ref)) for ref in (*written.facts.models, *written.matched.models)}
    other = [
        ref
        for measured in losses
        for ref in measured.models
        if os.path.realpath(os.path.expanduser(ref)) not in known and ref not in written.facts.models
    ]
    if not other:
        return []
    return [
        f"These figures were measured on other models than those that went in: {', '.join(dict.fromkeys(other))}."
    ]


def source_table(facts: Facts) -> Table | None:
    """Where several models were aligned: how far each of them was."""
    if len(facts.sources) < 2:
        return None
    rows = []
    for name, (_, spread) in zip(facts.names[1:], facts.sources, strict=False):
        share = spread.movable.share
        rows.append((name, *(("–", "–") if share is None else map(ratio, share))))
    return Table("Distance in parts of the norm, where symmetries act", ("model", "before", "after"), tuple(rows))

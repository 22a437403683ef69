"""The model card of an output: front-matter as the Hub expects, what was done, how to do it again, and the
figures."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from isomerge.evidence.distances_figure import PICTURE, layer_distances
from isomerge.evidence.front_matter import front_matter, license_lines
from isomerge.evidence.markdown import cell, code, fenced
from isomerge.evidence.parents import Parent
from isomerge.plug_ins.command import sentences

RECIPE = "isomerge_recipe.yml"
"""The file of an output that says how to make it again."""
TUNED = "tune.json"
"""The file of an output that says what `isomerge tune` has tried."""
REPORT = "isomerge.json"
"""The file of an output that says what was done, with the checksums of all others."""

ELSEWHERE = (
    " Where you have the models elsewhere, write their folders, or their ids on the Hub, over those below: their "
    "weights are compared with `checksums`, and a difference is told. A checksum is the CRC-32 of a model's "
    "weights files, one after the other in the order of their names (`cat *.safetensors | crc32 /dev/stdin`)."
)


def alignment_file(number: int, count: int) -> str:
    """What the alignment of the ``number``-th model is called in the output, of ``count`` that were moved."""
    return "alignment.safetensors" if count == 1 else f"alignment-{number}.safetensors"


def recipe_command(imports: Sequence[str] = ()) -> str:
    """The command that makes a merge again by its recipe.

    Args:
        imports: the modules and files that it imports, which a recipe alone must not.
    """
    return " ".join(["isomerge merge", RECIPE, "OUT", *(f"--import {shlex.quote(name)}" for name in imports)])


def model_card(
    title: str,
    models: Sequence[str],
    text: str,
    report: dict[str, Any],
    *,
    parents: Sequence[Parent] = (),
    name: str = "merged",
    architectures: Sequence[str] = (),
    recipe: str | None = None,
    roles: Sequence[tuple[str, str]] = (),
) -> str:
    """A README.md.

    Args:
        title: the heading.
        models: the models whose weights went in, the anchor first.
        text: one paragraph on what this checkpoint is.
        report: the run's report.
        parents: what is known of them, for the front matter.
        name: of the output, for its measures: not of its folder, on which no byte depends.
        architectures: the classes that open it.
        recipe: the YAML that repeats a merge, also a file of the output.
        roles: all inputs and what each gave, in words; without them the models are listed alone.
    """
    front = front_matter(parents, report, name=name, architectures=architectures)
    lines = [*front, "", f"# {title}", "", text, ""]
    if folders := report.get("head_folders"):
        lines += ["Heads, each with the merged body: " + ", ".join(map(code, folders)) + ".", ""]
    listed = [f"{code(model)}: {text}" for model, text in roles] or list(map(code, models))
    lines += ["## Models", "", *(f"{number}. {line}" for number, line in enumerate(listed, 1)), ""]
    if plug_ins := report.get("plug_ins"):
        lines += [f"Plug-ins: {', '.join(sentences(plug_ins))}.", ""]
    if recipe is not None:
        lines += [
            "## Recipe",
            "",
            f"`{recipe_command(report.get('imports') or ())}` makes this checkpoint again.{ELSEWHERE}",
            "",
        ]
        lines += [*fenced(recipe, "yaml"), ""]
    lines += license_lines(parents)
    return "\n".join([*lines, *_verdict(report), *_measured(report), *_figures(report), ""])


def _verdict(report: dict[str, Any]) -> list[str]:
    """What the models are to each other, and what to try where the result most likely does not work."""
    verdict = report.get("verdict")
    if not verdict:
        return []
    lines = ["## Verdict", "", f"{verdict['sentence'].removesuffix('.')}.", ""]
    for step in verdict["next"]:
        command = f" `{step['command']}`" if step["command"] else ""
        lines.append(f"- {step['text']}{command}")
    return [*lines, ""] if verdict["next"] else lines


def _measured(report: dict[str, Any]) -> list[str]:
    """Losses of the models, the merge and the models' ensemble, where data were given."""
    measured = report.get("measured")
    if not measured:
        return []
    rows = [(cell(row["model"]), row) for row in measured["models"]] + [("this merge", measured["merged"])]
    rows += [("the models' ensemble", measured["ensemble"])] if measured["ensemble"] else []
    which = "that the match was not learned from" if measured["held_out"] else "of the data that were given"
    lines = [
        "## Measured", "", f"On {measured['examples']} examples {which} ({code(measured['data'])}).", "",
        f"| | loss ({measured['unit']}) | accuracy |", "|---|---|---|",
    ]  # fmt: skip
    for name, row in rows:
        accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
        lines.append(f"| {name} | {row['loss']:.4f} | {accuracy} |")
    return [*lines, ""]


def _figures(report: dict[str, Any]) -> list[str]:
    if (distance := report.get("distance")) is None:  # nothing was moved
        return []
    parts = distance.get("parts") or distance["spaces"]
    lines = [
        "## Distance to the first model",
        "",
        "| | before alignment | after |",
        "|---|---|---|",
        f"| all tensors | {distance['before']:.4f} | {distance['after']:.4f} |",
    ]
    lines += [f"| {name} | {d['before']:.4f} | {d['after']:.4f} |" for name, d in parts.items()]
    if layer_distances(report):
        lines += ["", f"![Distance per layer, before and after alignment]({PICTURE})"]
    return [
        *lines,
        "",
        "Frobenius norms; a row per part covers the tensors on which its symmetries act, so rows overlap. "
        "`isomerge.json` has the same per layer, `alignment*.safetensors` the elements that were applied.",
    ]

"""The model card of an output: front-matter as the Hub expects, what was done, how to do it again, and the
figures."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path, PurePath
from typing import Any

import yaml

from isomerge.checkpoint.hub import snapshot_of
from isomerge.evidence.markdown import cell, code, fenced
from isomerge.evidence.parents import Parent
from isomerge.evidence.pictures import PICTURE, is_moved, layer_distances
from isomerge.evidence.report.facts import last_parts
from isomerge.plug_ins.command import sentences
from isomerge.records import Json

RECIPE = "isomerge_recipe.yml"
"""The file of an output that says how to make it again."""
TUNED = "tune.json"
"""The file of an output that says what `isomerge tune` has tried."""
REPORT = "isomerge.json"
"""The file of an output that says what was done, with the checksums of all others."""

ELSEWHERE = (
    " The file has the folders of whoever made it, which are called by their last parts below: where you have the "
    "models elsewhere, write your folders, or their ids on the Hub, over them. Their weights are compared with "
    "`checksums`, and a difference is told. A checksum is the CRC-32 of a model's "
    "weights files, one after the other in the order of their names (`cat *.safetensors | crc32 /dev/stdin`)."
)
OTHER = "other"
"""What the Hub calls a license that is none of its list; ``license_name`` then says which."""
TASKS = {
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
}
"""The Hub's tasks, by how names of transformers' classes end."""
_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual|code", re.ASCII)
"""What the Hub refuses a card without: a parent's own, which was never there, may have anything."""
_DATA_SET = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?", re.ASCII)


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
    report: Json,
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
    lines = ["", f"# {title}", "", text, ""]
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
    body = "\n".join([*lines, *_verdict(report), *_measured(report), *_figures(report), ""])
    named = [*models, *(model for model, _ in roles), *(parent.name for parent in parents), *_texts_of(recipe)]
    return "\n".join([*front, _without_folders(body, named)])


def _texts_of(recipe: str | None) -> Iterator[str]:
    """The texts of a recipe that may name models or data; code is named as it is found."""
    content = yaml.safe_load(recipe or "{}")
    waiting: list[Any] = [value for key, value in content.items() if key != "import"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value


def _without_folders(text: str, refs: Iterable[str]) -> str:
    """A text in which what lies on this machine has a name: its id on the Hub, where it was loaded from there, else
    the last part of its path. Whom the card is for has other folders."""
    paths = {piece for ref in refs for piece in ref.split("+") if piece.startswith(("/", "~"))}
    ordered = sorted(paths, key=lambda path: (-len(path), path))
    for path, name in zip(ordered, last_parts(ordered), strict=True):
        snapshot = snapshot_of(Path(path))
        text = text.replace(path, name if snapshot is None else snapshot[0])
    return text


def _verdict(report: Json) -> list[str]:
    """What the models are to each other, and what to try where the result most likely does not work."""
    verdict = report.get("verdict")
    if not verdict:
        return []
    lines = ["## Verdict", "", f"{verdict['sentence'].removesuffix('.')}.", ""]
    for step in verdict["next"]:
        command = f" `{step['command']}`" if step["command"] else ""
        lines.append(f"- {step['text']}{command}")
    return [*lines, ""] if verdict["next"] else lines


def _measured(report: Json) -> list[str]:
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
    cells = []
    for name, row in rows:
        accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
        cells.append(f"| {name} | {row['loss']:.4f} | {accuracy} |")
    return [*lines, *dict.fromkeys(cells), ""]


def _figures(report: Json) -> list[str]:
    if (distance := report.get("distance")) is None:  # nothing was moved
        return []
    parts = distance.get("parts") or distance["spaces"]
    parts = {"all tensors": distance, **(parts if len(parts) > 1 else {})}  # one part alone is all
    columns = {"before": "before alignment", "after": "after"} if is_moved(report) else {"before": "as stored"}
    lines = ["## Distance to the first model", "", f"| | {' | '.join(columns.values())} |"]
    lines += ["|---" * (1 + len(columns)) + "|"]
    lines += [f"| {name} | {' | '.join(f'{d[key]:.4f}' for key in columns)} |" for name, d in parts.items()]
    if layer_distances(report):
        lines += ["", f"![Distance per layer, before and after alignment]({PICTURE})"]
    applied = "the elements that were applied."
    if report.get("gains"):
        applied = (
            "the elements that were applied to all models but the first. That one as well has taken on the norms' "
            "gains that all models have in common, which changes no function: the distances after alignment are "
            "between models with these gains, and not to the first one as it is stored."
        )
    return [
        *lines,
        "",
        "Frobenius norms; a row per part covers the tensors on which its symmetries act, so rows overlap. "
        f"`isomerge.json` has the same per layer, `alignment*.safetensors` {applied}",
    ]


def front_matter(
    parents: Sequence[Parent], report: Mapping[str, Any], *, name: str, architectures: Sequence[str] = ()
) -> list[str]:
    """The lines of the front matter, the rules around it included.

    Args:
        parents: the models whose weights went in.
        report: the run's; of a merge it may have the method, and what was measured.
        name: of the model that the measures are of.
        architectures: the classes that open it, for the task that was measured.
    """
    merged = report["command"] == "merge"
    tags = ["isomerge", *(["merge"] if merged else [])]
    content: Json = {"library_name": _library(parents), "tags": tags}
    if merged and report.get("method") not in (None, *tags):
        tags.append(report["method"])
    if bases := list(dict.fromkeys(base for parent in parents for base in parent.hub)):
        content["base_model"] = bases
        content |= {"base_model_relation": "merge"} if merged else {}
    content |= license_keys(parents)
    languages = {parent.said("language") for parent in parents}
    if len(languages) == 1 and (language := languages.pop()) and all(map(_LANGUAGE.fullmatch, language)):
        content["language"] = list(language)
    tasks = {task for parent in parents for task in parent.said("pipeline_tag") if _IDENTIFIER.fullmatch(task)}
    if len(tasks) == 1:
        content["pipeline_tag"] = tasks.pop()
    task = content.get("pipeline_tag") or _task(architectures)
    if (measured := report.get("measured")) and (metrics := _metrics(measured)):
        result = {"task": {"type": task}, "dataset": _data_set(measured), "metrics": metrics}
        content["model-index"] = [{"name": name, "results": [result]}]
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    return ["---", *text.rstrip("\n").split("\n"), "---"]


def license_keys(parents: Sequence[Parent]) -> dict[str, str | list[str]]:
    """``license`` and what goes with it: the parents' where they have one license; ``other``, named after all of
    theirs, where they differ; nothing where that of one is not known."""
    every = dict.fromkeys(license_of(parent) for parent in parents)
    if not every or () in every:
        return {}
    if len(every) == 1:
        (own,) = every
        if own[0] != OTHER and all(map(_IDENTIFIER.fullmatch, own)):
            return {"license": own[0] if len(own) == 1 else list(own)}
        if own[0] != OTHER:
            return {"license": OTHER, "license_name": _names(every)}
        link = {text for parent in parents for text in parent.said("license_link")}
        named = {"license_name": own[1]} if len(own) > 1 else {}
        return {"license": OTHER, **named, **({"license_link": link.pop()} if len(link) == 1 else {})}
    return {"license": OTHER, "license_name": _names(every)}


def _names(every: Iterable[tuple[str, ...]]) -> str:
    """Licenses as one identifier."""
    names = {re.sub(r"[^a-z0-9.]+", "-", license_text(own).lower()).strip("-") for own in every}
    return "-and-".join(sorted(names - {""})) or "unnamed"


def license_of(parent: Parent) -> tuple[str, ...]:
    """The licenses that a parent's card names; of one that is not on the Hub's list ``other`` and its name."""
    said = parent.said("license")
    return (*said, *parent.said("license_name")[:1]) if said == (OTHER,) else said


def license_text(own: tuple[str, ...]) -> str:
    """Licenses by name."""
    return own[-1] if own[0] == OTHER else ", ".join(own)


def license_lines(parents: Sequence[Parent]) -> list[str]:
    """The section of a card that says whose license is which, where the front matter cannot."""
    known = {parent.name: own for parent in parents if (own := license_of(parent))}
    unknown = [parent.name for parent in parents if parent.name not in known]
    if not unknown and len(set(known.values())) <= 1:
        return []
    lines = ["## License", ""]
    if known and not unknown:
        lines += ["The models have different licenses, and each of them applies:", ""]
    if known:
        lines += [*(f"- {code(name)}: {license_text(own)}" for name, own in known.items()), ""]
    if unknown:
        lines += [f"Not known of {', '.join(map(code, unknown))}: no card says it, so this one names none.", ""]
    return lines


def _library(parents: Sequence[Parent]) -> str:
    libraries = {parent.library for parent in parents}
    return (libraries.pop() if len(libraries) == 1 else None) or "transformers"


def _task(architectures: Sequence[str]) -> str:
    """What the Hub calls the task of a model, ``other`` where its class does not tell."""
    names = [task for name in architectures for end, task in TASKS.items() if name.endswith(end)]
    return names[0] if names else OTHER


def _metrics(measured: Mapping[str, Any]) -> list[Json]:
    """The measures of the output in the form of the Hub's model index."""
    merged = measured["merged"]
    metrics = [
        {"type": "loss", "value": merged["loss"], "name": f"Loss ({measured['unit']})"},
        {"type": "accuracy", "value": merged["accuracy"], "name": "Accuracy"},
    ]
    return [metric for metric in metrics if metric["value"] is not None and isfinite(metric["value"])]


def _data_set(measured: Mapping[str, Any]) -> Json:
    """Data by their id on the Hub, those of this machine by their name without its folder."""
    data = str(measured["data"])
    is_local = PurePath(data).suffix or any(map(os.path.exists, (data, data.rpartition(":")[0])))
    name = data if _DATA_SET.fullmatch(data) and not is_local else PurePath(data).name
    slug = re.sub(r"[^\w./-]+", "-", name, flags=re.ASCII).strip("-") or "data"
    return {
        "name": name,
        "type": slug,
        "args": {"examples": measured["examples"], "held_out": measured["held_out"]},
    }

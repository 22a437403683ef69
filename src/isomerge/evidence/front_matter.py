"""The YAML at the head of a model card, as the Hub reads it: where the model comes from, its license, what was
measured."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import PurePath
from typing import Any

import yaml

from isomerge.evidence.markdown import code
from isomerge.evidence.parents import Parent

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
    content: dict[str, Any] = {"library_name": _library(parents), "tags": tags}
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
        content["pipeline_tag"] = tasks.copy().pop()
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


def _metrics(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The measures of the output in the form of the Hub's model index."""
    merged = measured["merged"]
    metrics = [
        {"type": "loss", "value": merged["loss"], "name": f"Loss ({measured['unit']})"},
        {"type": "accuracy", "value": merged["accuracy"], "name": "Accuracy"},
    ]
    return [metric for metric in metrics if metric["value"] is not None and isfinite(metric["value"])]


def _data_set(measured: Mapping[str, Any]) -> dict[str, Any]:
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

"""The model card of an output."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from isomerge.checkpoint.hub import hub_name
from isomerge.evidence.card import model_card
from isomerge.evidence.parents import Parent, front_matter_of
from isomerge.evidence.pictures import distances_picture

FIGURES = {"before": 3.0, "after": 1.5, "norm": 10.0}


def report(command: str) -> dict[str, Any]:
    """The parts of a report that a card shows."""
    spaces = {"ov": FIGURES, "fixed": {"before": 1.0, "after": 1.0, "norm": 2.0}}
    return {"command": command, "distance": {**FIGURES, "spaces": spaces, "layers": {}}}


def front_matter(card: str) -> dict[str, Any]:
    """The YAML between the first two rules, read by the Hub's own parser as well."""
    from huggingface_hub import ModelCard

    opening, front, _ = card.split("---\n", 2)
    assert opening == ""
    assert ModelCard(card).data.to_dict() == yaml.safe_load(front)
    return yaml.safe_load(front)


def parents(*names: str, **cards: dict[str, Any]) -> list[Parent]:
    """Of models by name, each with what its card says."""
    return [Parent(name, tuple(filter(None, [hub_name(name)])), cards.get(name, {})) for name in names]


def test_one_part_alone_is_no_row_beside_all() -> None:
    """Where nothing is matched, all tensors are of one part."""
    for parts, rows in (({"rest": FIGURES}, 1), ({"rest": FIGURES, "heads": FIGURES}, 3)):
        given = {"command": "merge", "distance": {**FIGURES, "parts": parts, "spaces": parts, "layers": {}}}
        _, table = model_card("T", [], "x", given).split("## Distance to the first model")
        assert table.count("\n| ") - 1 == rows


@pytest.mark.parametrize("command", ["merge", "align", "apply"])
def test_front_matter(command: str) -> None:
    """Library and tags; the hub ids among the models are base models, without their revisions."""
    models = ["org/base", "/tmp/folder/model", "org/tuned@v1.0", "./a/b", "a/b/c", "~/x", "local"]
    card = model_card("Title", models, "Text.", report(command), parents=parents(*models))
    found = front_matter(card)
    assert found["library_name"] == "transformers"
    assert "isomerge" in found["tags"]
    assert ("merge" in found["tags"]) == (command == "merge")
    assert found["base_model"] == ["org/base", "org/tuned"]
    assert found.get("base_model_relation") == ("merge" if command == "merge" else None)
    assert "mergekit" not in card
    named = {"/tmp/folder/model": "model", "~/x": "x"}
    for number, model in enumerate(models, 1):
        assert f"{number}. `{named.get(model, model)}`" in card


def test_no_base_model_of_local_folders() -> None:
    """A path is not a model of the Hub."""
    card = model_card("T", ["/a/b", "../c"], "x", report("merge"), parents=parents("/a/b", "../c"))
    assert "base_model" not in front_matter(card)


def test_relative_folder_is_no_base_model(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``models/a`` on disk wins over the Hub when it is read, so it is no hub id in the card either."""
    (tmp_path / "models" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    card = model_card("T", ["models/a"], "x", report("merge"), parents=parents("models/a"))
    assert "base_model" not in front_matter(card)


def test_figures() -> None:
    """A table with a row for all tensors and one per space."""
    card = model_card("Merged checkpoint", ["a", "b"], "What it is.", report("merge"))
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \|$", card, re.MULTILINE)
    assert rows == [("all tensors", "3.0000", "1.5000"), ("ov", "3.0000", "1.5000"), ("fixed", "1.0000", "1.0000")]
    assert "# Merged checkpoint\n\nWhat it is.\n" in card
    assert card.endswith("\n")


def test_recipe_and_picture() -> None:
    """The recipe stands in the card as it is; a picture is linked where layers were compared, with equal bytes each
    time."""
    found = report("merge")
    assert distances_picture(found) is None
    found["distance"]["layers"] = {"0": FIGURES, "1": FIGURES, "outside": FIGURES}
    card = model_card("T", ["a", "b"], "x", found, recipe="models:\n- {model: a}\n")
    assert "```yaml\nmodels:\n- {model: a}\n```" in card
    assert "](distances.png)" in card
    assert "](distances.png)" not in model_card("T", ["a"], "x", report("merge"))
    picture = distances_picture(found)
    assert picture is not None
    assert picture.startswith(b"\x89PNG")
    assert picture == distances_picture(found)
    assert b"Software" not in picture
    assert distances_picture({**found, "command": "apply"}) is None
    assert distances_picture({**found, "align": False}) is None


LICENSES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "one license": ([{"license": "mit"}, {"license": "mit"}], {"license": "mit"}, []),
    "licenses in a list": ([{"license": ["mit", "gpl"]}] * 2, {"license": ["mit", "gpl"]}, []),
    "a license of its own": (
        [{"license": "other", "license_name": "llama3", "license_link": "LICENSE"}] * 2,
        {"license": "other", "license_name": "llama3", "license_link": "LICENSE"},
        [],
    ),
    "two licenses": (
        [{"license": "mit"}, {"license": "apache-2.0"}],
        {"license": "other", "license_name": "apache-2.0-and-mit"},
        ["each of them applies", "- `a`: mit", "- `b`: apache-2.0"],
    ),
    "two of their own": (
        [{"license": "other", "license_name": "Llama 3"}, {"license": "other", "license_name": "gemma"}],
        {"license": "other", "license_name": "gemma-and-llama-3"},
        ["- `a`: Llama 3", "- `b`: gemma"],
    ),
    "one unknown": ([{"license": "mit"}, {}], {}, ["- `a`: mit", "Not known of `b`: no card says it"]),
    "none of the Hub's form": (
        [{"license": "Apache 2.0!"}] * 2,
        {"license": "other", "license_name": "apache-2.0"},
        [],
    ),
    "no text": ([{"license": {"name": "mit"}}, {"license": ""}], {}, ["Not known of `a`, `b`"]),
}


@pytest.mark.parametrize("case", LICENSES)
def test_license(case: str) -> None:
    """The parents' where all have one; named after all where they differ; left out where one is not known; and the
    card says so."""
    cards, wanted, lines = LICENSES[case]
    both = parents("a", "b", a=cards[0], b=cards[1])
    card = model_card("T", ["a", "b"], "x", report("merge"), parents=both)
    found = front_matter(card)
    assert {key: value for key, value in found.items() if key.startswith("license")} == wanted
    assert [line for line in lines if line not in card] == []
    assert ("## License" in card) == bool(lines)


def test_language_and_task() -> None:
    """A language that all parents are of; a task that no parent contradicts."""
    one, two = {"language": ["no", "en"], "pipeline_tag": "text-generation"}, {"language": ["no", "en"]}
    found = front_matter(model_card("T", [], "x", report("merge"), parents=parents("a", "b", a=one, b=two)))
    assert found["language"] == ["no", "en"]
    assert found["pipeline_tag"] == "text-generation"
    other = {"language": "English, mostly", "pipeline_tag": "Text generation"}
    found = front_matter(model_card("T", [], "x", report("merge"), parents=parents("a", "b", a=other, b=other)))
    assert not {"language", "pipeline_tag"} & set(found)
    other = {"language": "de", "pipeline_tag": "fill-mask"}
    found = front_matter(model_card("T", [], "x", report("merge"), parents=parents("a", "b", a=one, b=other)))
    assert not {"language", "pipeline_tag"} & set(found)
    assert "language" not in front_matter(
        model_card("T", [], "x", report("merge"), parents=parents("a", "b", a=one))
    )


def measured(data: str, **merged: float | None) -> dict[str, Any]:
    """A report with measures."""
    rows = {"loss": 1.25, "accuracy": 0.5, **merged}
    more = {"data": data, "examples": 12, "held_out": True, "unit": "nats per example", "ensemble": None}
    return {**report("merge"), "method": "ties", "measured": {**more, "models": [], "merged": rows}}


def test_measures_are_read_by_the_hub() -> None:
    """As results of an evaluation, with data, task and figures; what is not a number is left out."""
    from huggingface_hub import ModelCard

    how: dict[str, Any] = {"name": "out: #1", "architectures": ["ViTForImageClassification"]}
    data: Any = ModelCard(model_card("T", [], "x", measured("/home/me/my digits.safetensors"), **how)).data
    assert data.model_name == "out: #1"
    assert data.tags == ["isomerge", "merge", "ties"]
    loss, accuracy = data.eval_results
    assert (loss.metric_type, loss.metric_value, loss.metric_name) == ("loss", 1.25, "Loss (nats per example)")
    assert (accuracy.metric_type, accuracy.metric_value) == ("accuracy", 0.5)
    assert (loss.dataset_name, loss.dataset_type) == ("my digits.safetensors", "my-digits.safetensors")
    assert (loss.task_type, loss.dataset_args) == ("image-classification", {"examples": 12, "held_out": True})
    data = ModelCard(model_card("T", [], "x", measured("owner/texts:test", accuracy=None))).data
    (loss,) = data.eval_results
    assert (loss.dataset_name, loss.task_type) == ("owner/texts:test", "other")
    card = model_card("T", [], "x", measured("generate", loss=float("inf"), accuracy=None))
    data = ModelCard(card).data
    assert data.eval_results is None


def test_names_of_every_kind_are_safe() -> None:
    """What means something in YAML or in Markdown is a name like any other."""
    from huggingface_hub import ModelCard

    names = ["a: b #c", "x`|`y", "- [*&!%@", "two\nlines", "'\"", "---", "```"]
    cards = {name: {"license": name, "language": "no"} for name in names}
    report_ = measured("a|b: `c`.jsonl")
    report_["measured"]["models"] = [{"model": name, "loss": 1.0, "accuracy": None} for name in names]
    recipe = "models:\n- {model: '```'}\n"
    both = parents(*names, **cards)
    card = model_card("T", names, "x", report_, parents=both, name=names[0], recipe=recipe)
    data: Any = ModelCard(card).data
    assert front_matter(card) == data.to_dict()
    assert data.model_name == names[0]
    assert data.language == ["no"]
    assert f"````yaml\n{recipe}````" in card
    table = card.partition("## Measured")[2].partition("| this merge")[0]
    rows = [line for line in table.splitlines() if "1.0000" in line]
    assert len(rows) == len(names)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)


def test_a_card_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """Nobody vouches for the cards of parents."""
    path = tmp_path / "README.md"
    assert front_matter_of(path) == {}
    os.mkfifo(tmp_path / "pipe")
    assert front_matter_of(tmp_path / "pipe") == {}
    for content in (
        b"",
        b"# no front",
        b"---\n: [\n---\n",
        b"---\n- a\n---\n",
        b"---\n" + b"[" * 5000 + b"\n---\n",
    ):
        path.write_bytes(content)
        assert front_matter_of(path) == {}
    path.write_bytes(b"---\r\nlanguage: no\r\nlicense: 2.0\r\n---\r\ntext")
    assert front_matter_of(path) == {"language": "no", "license": "2.0"}


@pytest.mark.parametrize("sentence", ["They are one", "They are one."])
def test_a_verdict_ends_once(sentence: str) -> None:
    """Whether its sentence is of the match or of what was measured."""
    found = {**report("merge"), "verdict": {"sentence": sentence, "next": []}}
    assert "\nThey are one.\n" in model_card("T", [], "x", found)

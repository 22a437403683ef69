"""The model card of an output."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from isomerge.evidence.card import model_card
from isomerge.evidence.distances_figure import distances_picture

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


@pytest.mark.parametrize("command", ["merge", "align", "apply"])
def test_front_matter(command: str) -> None:
    """Library and tags; the hub ids among the models are base models, without their revisions."""
    models = ["org/base", "/tmp/folder/model", "org/tuned@v1.0", "./a/b", "a/b/c", "~/x", "local"]
    card = model_card("Title", models, "Text.", report(command))
    found = front_matter(card)
    assert found["library_name"] == "transformers"
    assert "isomerge" in found["tags"]
    assert ("merge" in found["tags"]) == (command == "merge")
    assert found["base_model"] == ["org/base", "org/tuned"]
    assert found.get("base_model_relation") == ("merge" if command == "merge" else None)
    assert "mergekit" not in card
    for number, model in enumerate(models, 1):
        assert f"{number}. `{model}`" in card


def test_no_base_model_of_local_folders() -> None:
    """A path is not a model of the Hub."""
    assert "base_model" not in front_matter(model_card("T", ["/a/b", "../c"], "x", report("merge")))


def test_relative_folder_is_no_base_model(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``models/a`` on disk wins over the Hub when it is read, so it is no hub id in the card either."""
    (tmp_path / "models" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "base_model" not in front_matter(model_card("T", ["models/a"], "x", report("merge")))


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

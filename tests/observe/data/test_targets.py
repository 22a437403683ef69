"""Labels of every kind of prediction, from records and tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.opening_data import open_data
from observe.data.checkpoints import CLASSIFIER, IMAGES, picture, save_picture

ONE: dict[str, Any] = {**CLASSIFIER, "id2label": {"0": "LABEL_0"}}
THREE: dict[str, Any] = {
    **CLASSIFIER,
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
}
MULTI = {**THREE, "problem_type": "multi_label_classification"}
VALUES = {**THREE, "problem_type": "regression"}
TOKEN_VALUES = {**ONE, "architectures": ["LlamaForTokenClassification"]}
REPLACED = {**CLASSIFIER, "architectures": ["ElectraForPreTraining"]}


def opened(tmp_path: Path, config: dict[str, Any], *labels: Any) -> Any:
    """The labels of JSON lines."""
    rows = [{"input_ids": [1, 5, 6], **({} if label is None else {"label": label})} for label in labels]
    file = tmp_path / "x.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_data(str(file), tmp_path, config=config).tensors.get("labels")


def test_records(tmp_path: Path) -> None:
    """One value, several of them, several labels, and classes as before."""
    one = opened(tmp_path, ONE, 3.5, 2, "0.25", [1])
    assert one.tolist() == [3.5, 2.0, 0.25, 1.0]
    assert one.dtype == torch.float32
    assert opened(tmp_path, MULTI, [1, 0, True], [0, 0, 0.5]).tolist() == [[1, 0, 1], [0, 0, 0.5]]
    assert opened(tmp_path, VALUES, [1, -2.5, 7]).tolist() == [[1, -2.5, 7]]
    assert opened(tmp_path, THREE, [1.0, 0.0, 1.0]).tolist() == [[1, 0, 1]]
    ids = opened(tmp_path, THREE, "b", 2)
    assert ids.tolist() == [1, 2]
    assert ids.dtype == torch.int64
    assert opened(tmp_path, TOKEN_VALUES, [1, 2, 3], [0.5, 1, -100]).tolist() == [[1, 2, 3], [0.5, 1, -100]]
    assert opened(tmp_path, REPLACED, [0, 1, 0]).tolist() == [[0, 1, 0]]
    assert opened(tmp_path, REPLACED, None) is None
    assert opened(tmp_path, ONE, None) is None


BAD: list[tuple[dict[str, Any], Any, str]] = [
    (ONE, "good", "'good' is no number"),
    (ONE, [1, 2], "has 2 numbers, but the checkpoint has 1 outputs"),
    (MULTI, [1, 0], "has 2 numbers, but the checkpoint has 3 outputs"),
    (MULTI, 1, "has 1 numbers, but the checkpoint has 3 outputs"),
    (MULTI, [1, 0, 2], "must be from 0"),
    (THREE, [1, 0, 1], "set problem_type to multi_label_classification"),
    (THREE, 7, "label '7' is no class"),
    (VALUES, [1, None, 2], "'None' is no number"),
    (REPLACED, [0, 1, 5], "must be from 0"),
]


@pytest.mark.parametrize(("config", "label", "words"), BAD)
def test_bad_labels(config: dict[str, Any], label: Any, words: str, tmp_path: Path) -> None:
    """One sentence with the place."""
    with pytest.raises(IsomergeError) as caught:
        opened(tmp_path, config, label)
    assert words in str(caught.value)
    assert "x.jsonl" in str(caught.value)


def test_tensors(tmp_path: Path) -> None:
    """Files of tensors are read the same, whole numbers too."""
    ids = torch.full((4, 3), 5)

    def labels(config: dict[str, Any], given: torch.Tensor) -> torch.Tensor:
        save_file({"input_ids": ids, "labels": given}, tmp_path / "x.safetensors")
        return open_data(str(tmp_path / "x.safetensors"), tmp_path, config=config).tensors["labels"]

    several = torch.tensor([[1, 0, 1]] * 4)
    assert torch.equal(labels(MULTI, several), several.float())
    assert torch.equal(labels(THREE, several.float()), several.float())
    assert torch.equal(labels(ONE, torch.arange(4)), torch.arange(4).float())
    assert torch.equal(labels(ONE, torch.rand(4, 1) * 0), torch.zeros(4, 1))
    for config, given, words in (
        (THREE, several, "one class id each"),
        (VALUES, torch.ones(4), "3 numbers for each example"),
        (ONE, torch.full((4,), float("nan")), "NaN"),
        (THREE, torch.ones(4), "whole numbers"),
    ):
        with pytest.raises(IsomergeError, match=words):
            labels(config, given)


def test_folders_of_classes_have_no_values(tmp_path: Path) -> None:
    """Sub-folders are classes: to a regressor they are images without labels."""
    save_picture(tmp_path / "data" / "cats" / "x.png", picture(0))
    config = {**IMAGES, "label2id": {"LABEL_0": 0}, "id2label": {"0": "LABEL_0"}}
    assert set(open_data(str(tmp_path / "data"), tmp_path, config=config).tensors) == {"pixel_values"}


def test_pretraining(tmp_path: Path) -> None:
    """Tokens are hidden by models that read tokens; those that hide pieces of images at random are refused."""
    tasks = {"BertForPreTraining": "masked", "FunnelForPreTraining": "replaced", "BertForMaskedLM": "masked"}
    assert {k: Inputs({"architectures": [k], "vocab_size": 9}).task for k in tasks} == tasks
    save_picture(tmp_path / "x.png", picture(0))
    with pytest.raises(IsomergeError, match="ViTMAEForPreTraining hides parts of every image at random") as caught:
        open_data(str(tmp_path / "x.png"), tmp_path, config={**IMAGES, "architectures": ["ViTMAEForPreTraining"]})
    assert "without data" in str(caught.value)

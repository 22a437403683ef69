"""Checkpoints that read texts and images: texts alone, and with the images that JSON lines name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.opening_data import open_data
from observe.data.checkpoints import IMAGES, WORDS, ids, picture, save_picture, save_tokenizer

TOWER = {"image_size": 8, "patch_size": 4, "model_type": "clip_vision_model"}
WORDY = {"vocab_size": len(WORDS), "max_position_embeddings": 32, "pad_token_id": 0, "model_type": "llama"}
SEEING: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": WORDY, "vision_config": TOWER,
    "image_token_index": 3,
}  # fmt: skip
PAIRS: dict[str, Any] = {
    "architectures": ["CLIPModel"], "model_type": "clip", "text_config": WORDY, "vision_config": TOWER,
}  # fmt: skip


def lines(path: Path, *records: object) -> str:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What LLaVA's processor needs (the token of images is the one of masks), and pictures."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    made = save_tokenizer(tmp_path_factory.mktemp("seeing"), special=False)
    tokenizer = tf.AutoTokenizer.from_pretrained(made)
    resize = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    tf.LlavaProcessor(
        resize, tokenizer, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1, image_token="[MASK]",
    ).save_pretrained(made)  # fmt: skip
    for k in range(2):
        save_picture(made / f"{k}.png", picture(k, 11, 3))
    return made


def test_texts_alone(folder: Path, tmp_path: Path) -> None:
    """The part that reads text says how many tokens there are, and how long a text may be; every next token is
    predicted."""
    data = lines(tmp_path / "x.jsonl", {"text": "a b c"}, {"text": "d e"})
    examples = open_data(data, folder, config=SEEING)
    assert examples.labelled
    assert examples.tensors["input_ids"].tolist() == [ids("a b c"), [*ids("d e"), 0]]
    assert "pixel_values" not in examples.tensors
    (tmp_path / "x.csv").write_text("image,text\n,a b c\n")
    assert set(open_data(str(tmp_path / "x.csv"), folder, config=SEEING).tensors) == {"input_ids"}
    (tmp_path / "x.txt").write_text("a b " * 100)
    assert open_data(str(tmp_path / "x.txt"), folder, config=SEEING).tensors["input_ids"].shape == (6, 32)


def test_texts_with_images(folder: Path, tmp_path: Path) -> None:
    """Through the processor: an image stands where the text says, else before it, and nobody predicts its
    tokens."""
    paths = [str(folder / f"{k}.png") for k in range(2)]
    data = lines(
        tmp_path / "x.jsonl", {"text": "a b c", "image": paths[0]}, {"text": "d [MASK] e", "image": paths[1]}
    )
    examples = open_data(data, folder, config=SEEING)
    image = [3] * 4
    found = examples.tensors
    assert found["input_ids"].tolist() == [[*image, *ids("a b c")], [*ids("d"), *image, *ids("e"), 0]]
    assert found["labels"].tolist() == [[-100] * 3 + ids("a b c") + [-100], [-100] * 4 + ids("e") + [-100] * 2]
    assert found["pixel_values"].shape == (2, 3, 8, 8)
    assert bool((found["pixel_values"][0] != found["pixel_values"][1]).any())


def test_pairs(folder: Path, tmp_path: Path) -> None:
    """Where no token stands for an image, tokenizer and image processor each do their part."""
    data = lines(folder / "pairs.jsonl", {"text": "a b", "image": "0.png"}, {"text": "c", "image": "1.png"})
    examples = open_data(data, folder, config=PAIRS)
    assert set(examples.tensors) == {"pixel_values", "input_ids", "attention_mask"}
    assert not examples.labelled
    with pytest.raises(IsomergeError, match="reads texts with their images"):
        open_data(lines(folder / "alone.jsonl", {"text": "a b"}), folder, config=PAIRS)
    assert [len(x["pixel_values"]) for x in examples.without_padding(2)] == [1, 1]


def test_images_that_json_lines_name(tmp_path: Path) -> None:
    """A classifier of images reads them as well, by their path from the file."""
    save_picture(tmp_path / "sub" / "a.png", picture(0))
    examples = open_data(
        lines(tmp_path / "x.jsonl", {"image": "sub/a.png", "label": "owl"}), tmp_path, config=IMAGES
    )
    assert examples.tensors["labels"].tolist() == [2]
    assert examples.tensors["pixel_values"].shape == (1, 1, 8, 8)


def test_what_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    """Missing images, a missing processor, and texts that are too long with their image: a sentence each."""
    save_tokenizer(tmp_path / "bare", special=False)
    named = {"text": "a " * 10, "image": str(folder / "0.png")}
    for record, where, length, word in (
        ({**named, "image": "lost.png"}, folder, 64, r"line 1: the image lost\.png is not there"),
        (named, tmp_path / "bare", 64, r"has no processor \(preprocessor_config\.json\)"),
        (named, folder, 12, "text and image are 14 tokens, and no more than 12 are read"),
        ({**named, "text": "a [MASK] [MASK]"}, folder, 64, "refuses this text and image"),
        ({**named, "image": "A" * 5000}, folder, 64, r"line 1: the image A{80} is not there"),
        ({**named, "image": {"bytes": ""}}, folder, 64, "line 1: the image is a dict: give the path of a file"),
        (
            {**named, "img": ["0.png"], "image": None},
            folder,
            64,
            "line 1: the image is a list: give the path of a file",
        ),
    ):
        with pytest.raises(IsomergeError, match=word):
            open_data(lines(tmp_path / "x.jsonl", record), where, config=SEEING, length=length)


def test_paths_of_images_from_functions(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function has no folder from which paths count: an image that is not in memory is refused, and never left
    out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "naming_images.py").write_text('def rows():\n    return [{"text": "a", "image": "0.png"}]\n')
    with pytest.raises(IsomergeError, match=r"item 1: the image is a str: give an image in memory \(Pillow\)"):
        open_data("naming_images:rows", folder, config=SEEING)


def test_what_configs_leave_out() -> None:
    """A part of the config without the number of tokens has the one of its class; tokens of the whole come
    first."""
    bare = {
        "model_type": "gemma3",
        "text_config": {"hidden_size": 48},
        "vision_config": {},
        "eos_token_id": [1, 106],
    }
    found = Inputs({**bare, "architectures": ["Gemma3ForConditionalGeneration"]})
    assert found.vocabulary == tf.Gemma3Config().get_text_config().vocab_size
    assert (found.task, found.pairs, found.images, found.token("eos_token_id")) == ("causal", True, False, 1)
    assert Inputs({**PAIRS, "architectures": ["CLIPForImageClassification"]}).image_shape == (3, 8, 8)


def test_such_a_model_runs(folder: Path, tmp_path: Path) -> None:
    """Its loss on texts is the one that transformers computes."""
    from isomerge.models.recognised import recognise
    from isomerge.observe.live.modules import load_module
    from isomerge.observe.losses import evaluate
    from toys import save_toy

    model = recognise(save_toy("llava", tmp_path / "m", dtype=torch.float32))
    data = lines(tmp_path / "x.jsonl", {"input_ids": [7, 8, 9, 10]}, {"input_ids": [11, 12, 13, 14]})
    module, examples = load_module(model), open_data(data, tmp_path / "m", config=model.config)
    given = examples.tensors["input_ids"]
    with torch.no_grad():
        wanted = float(module(input_ids=given, labels=given).loss)
    assert abs(evaluate(module, examples).loss - wanted) < 1e-5

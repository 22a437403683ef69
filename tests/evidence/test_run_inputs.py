"""What `verify --run` gives a model (pictures, films and texts, by what its config counts) and compares of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.evidence.outputs import _difference, _inputs, compare_outputs, differences, returned
from isomerge.models.references import open_model_ref
from isomerge.observe.live.modules import materialise
from solve.disguises import single

TOWER = SimpleNamespace(image_size=8, num_channels=1)
FILM = SimpleNamespace(image_size=[8, 6], num_frames=5)
WORDS = SimpleNamespace(vocab_size=9)


@pytest.mark.parametrize(
    ("parts", "shapes"),
    [
        ({"image_size": 8, "num_channels": 3}, {"pixel_values": (2, 3, 8, 8)}),
        ({"vocab_size": 9}, {"input_ids": (2, 7)}),
        ({"vocab_size": 9, "is_encoder_decoder": True}, {"input_ids": (2, 7), "decoder_input_ids": (2, 7)}),
        ({"image_size": {"height": 8, "width": 6}}, {"pixel_values": (2, 3, 8, 6)}),
        ({"backbone_config": TOWER}, {"pixel_values": (2, 1, 8, 8)}),
        ({"text_config": WORDS, "vision_config": FILM}, {"pixel_values": (2, 5, 3, 8, 6), "input_ids": (2, 7)}),
        ({}, {}),
    ],
)
def test_shapes(parts: dict, shapes: dict[str, tuple[int, ...]]) -> None:
    """Sizes of the config or of its parts."""
    config = SimpleNamespace(**{"is_encoder_decoder": False, **parts})
    given = _inputs(config, torch.Generator().manual_seed(0), 2, 7)
    assert {name: tuple(x.shape) for name, x in given.items()} == shapes


def test_everything_that_is_returned_is_compared() -> None:
    """Every tensor by its path, also inside of other outputs; not what is only given back with the next token."""
    one, two, ids = torch.zeros(2), torch.ones(2), torch.ones(2, dtype=torch.long)
    found = {
        "logits": one,
        "encoder_last_hidden_state": two,
        "text_model_output": {"last_hidden_state": two, "pooler_output": None, "past_key_values": (one, two)},
        "kept": (one, [ids]),
        "past_key_values": ((one, two),),
        "mems": [one],
    }
    names = ["logits", "encoder_last_hidden_state", "text_model_output.last_hidden_state", "kept.0", "kept.1.0"]
    assert list(returned(found)) == names
    assert returned(found)["kept.1.0"] is ids


def test_a_tensor_of_one_model_alone_differs() -> None:
    """Or one of another shape, or numbers where the other has none; two that are no numbers in the same place
    agree."""
    one, nan = torch.tensor([1.0, 4.0]), torch.tensor([1.0, torch.nan])
    assert differences({"a": one}, {"a": one + torch.tensor([0.0, 1.0])}) == {"a": 0.25}
    assert differences({"a": one}, {}) == {"a": torch.inf}
    assert differences({"a": one}, {"a": one[:1]}) == {"a": torch.inf}
    assert differences({"a": one}, {"a": nan}) == {"a": torch.inf}
    assert differences({"a": nan}, {"a": nan}) == {"a": 0.0}


def test_numbers_that_stand_for_never() -> None:
    """Infinities in both are no difference, and hide none; in one alone they are one."""
    never = -torch.inf
    assert _difference(torch.tensor([2.0, never]), torch.tensor([2.0, never])) == 0
    assert _difference(torch.tensor([2.0, never]), torch.tensor([1.0, never])) == 0.5
    assert _difference(torch.tensor([2.0, never]), torch.tensor([2.0, 1.0])) == torch.inf


def test_both_ends_of_an_answer(tmp_path: Path) -> None:
    """A model that differs only in where answers end is another one; also where its config asks for tuples."""
    import transformers as tf

    config = tf.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = tf.BertForQuestionAnswering(config)
    model.config.return_dict = False
    model.save_pretrained(tmp_path / "a")
    with torch.no_grad():
        model.qa_outputs.weight[1] *= -1
    model.save_pretrained(tmp_path / "b")
    assert max(compare_outputs(tmp_path / "a", tmp_path / "a").values()) == 0
    assert max(compare_outputs(tmp_path / "a", tmp_path / "b").values()) > 0.1


def test_an_adapter_is_run_with_its_model(tmp_path: Path) -> None:
    """What is run is what was compared: a model with its adapter, not the model in the folder alone."""
    base, lora, module = single("gpt2", tmp_path / "a"), tmp_path / "lora", "transformer.h.0.mlp.c_fc"
    into, out = open_model_ref(base).tensors[f"{module}.weight"].shape
    lora.mkdir()
    halves = {"lora_A.weight": torch.ones(1, into), "lora_B.weight": torch.arange(1.0, out + 1)[:, None]}
    save_file({f"base_model.model.{module}.{n}": x for n, x in halves.items()}, lora / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "fan_in_fan_out": True}
    (lora / "adapter_config.json").write_text(json.dumps(told))
    whole = materialise(open_model_ref(f"{base}+{lora}"), tmp_path / "whole")
    found = isomerge.verify(f"{base}+{lora}", whole, run=True)
    assert (found["same"], found["outputs"], found["contradiction"]) == (True, 0, None)


@pytest.mark.parametrize("kind", ["nothing that transformers has", "vit"])
def test_models_that_cannot_be_run(kind: str, tmp_path: Path) -> None:
    """One sentence that says to leave out --run."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(IsomergeError, match=r"transformers cannot load this checkpoint .*: leave out --run$"):
        compare_outputs(tmp_path, tmp_path)

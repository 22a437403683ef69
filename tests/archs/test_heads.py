"""The law for every head that transformers has for an architecture, not only for that of its toy."""

from __future__ import annotations

import copy
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from depth import EVERY
from families.gemma_multimodal import filled
from isomerge.errors import IsomergeError
from toy_runs import in_double
from toys import TOYS, inputs, load_toy, randomise, relative, write_toy

FEW = ["bert", "nomic_bert", "xlm-roberta-xl"]
"""In `make test`: heads on pooled and on plain streams, with and without a norm before them."""
ASKING = ("MultipleChoice", "DoubleHeads")
"""Heads that are given several texts for one answer."""


def heads_of(model: tf.PreTrainedModel) -> list[type[tf.PreTrainedModel]]:
    """The classes with a head that share a toy's config."""
    module = sys.modules[type(model).__module__]
    return [
        kind
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
        and issubclass(kind, tf.PreTrainedModel)
        and getattr(kind, "config_class", None) is type(model.config)
        and ("For" in name.removeprefix("RoFormer") or "Head" in name)
        and "PreTrainedModel" not in name  # what other classes are made of
    ]


def asked(config: Any, kind: type) -> dict[str, torch.Tensor]:
    """What a head is asked: texts that end alike, several at once for a choice between them."""
    given = inputs(config)
    if "SequenceClassification" in kind.__name__ and config.is_encoder_decoder and config.eos_token_id is not None:
        given = {"input_ids": given["input_ids"]}
        given["input_ids"][given["input_ids"] == config.eos_token_id] += 1
        given["input_ids"][:, -1] = config.eos_token_id
    if any(word in kind.__name__ for word in ASKING):
        given = {name: tensor[None] for name, tensor in given.items()}
    known = inspect.signature(kind.forward).parameters
    return {name: tensor for name, tensor in given.items() if name in known or "kwargs" in known}


def answers(kind: Any, folder: Path, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The logits of a saved model."""
    model = kind.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    with torch.no_grad(), in_double(model.config):
        found = model(**given)
    return {name: value for name, value in found.items() if "logits" in name and torch.is_tensor(value)}


def saved_head(kind: Any, config: Any, folder: Path) -> dict[str, torch.Tensor] | None:
    """A random model of a class, saved; what it is asked. None where a toy's config or inputs are not enough for
    it."""
    config = copy.deepcopy(config)
    config.num_labels = 2 if "QuestionAnswering" in kind.__name__ else 4
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    try:
        model = filled(kind(config).double().eval())
        randomise(model, 3)
        model.tie_weights()
        model.save_pretrained(folder)
        given = asked(config, kind)
        return given if answers(kind, folder, given) else None
    except (
        AttributeError,
        IndexError,
        KeyError,
        NotImplementedError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ):
        return None


@pytest.mark.parametrize("name", [name for name in TOYS if EVERY or name in FEW])
def test_every_head(name: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """All spaces together leave what a head says, or the spec refuses it in a sentence."""
    model = TOYS[name][0]()
    tried = 0
    for kind in heads_of(model) if isinstance(model, tf.PreTrainedModel) else []:
        folder = tmp_path / kind.__name__
        given = saved_head(kind, model.config, folder)
        if given is None:
            continue
        try:
            toy = load_toy(name, folder)
        except IsomergeError:
            continue
        with subtests.test(head=kind.__name__):
            moved = toy.drawn(None)
            assert toy.change(moved) > 1e-3
            old = answers(kind, folder, given)
            new = answers(kind, write_toy(toy, moved, tmp_path / "out"), given)
            assert max(relative(new[key], old[key]) for key in old) < toy.tolerance
        tried += 1
    assert tried or name not in FEW

"""Gains that are stored less one, where parameters are taken as they are stored: said, not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as tf

import isomerge
from isomerge.errors import IsomergeError
from isomerge.research.optim.binding import bind
from isomerge.research.relational import from_standard
from solve.disguises import single, turn
from toy_settings import CAUSAL


def test_a_copy_with_folded_gains_is_the_same_model(tmp_path: Path) -> None:
    """Gemma with its gains folded, its stream rotated and other gains taken on: recognised, and brought home by
    --spaces all."""
    a = single("gemma-untied", tmp_path / "a")
    twin = turn("gemma-untied", a, tmp_path / "twin", 3)
    assert isomerge.verify(a, twin)["same"]
    _, report = isomerge.align(twin, onto=a, spaces="all")
    assert report["distance"]["before"] > 1
    assert report["distance"]["after"] <= 1e-4 * report["distance"]["before"]


def test_optimisers_and_relational_models_leave_them_out() -> None:
    """Generators act on stored parameters, and the relational form has no scaled embeddings."""
    model = tf.GemmaForCausalLM(tf.GemmaConfig(**CAUSAL)).to(torch.float64)
    bound = bind(model)
    assert {n for n, why in bound.left_out.items() if "is stored less 1" in why} == {"n1", "n2", "nf"}
    with pytest.raises(IsomergeError, match="gemma does something that its tensors do not say"):
        from_standard(model)

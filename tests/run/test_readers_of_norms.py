"""Texts that are wrong about who reads a norm, what writes before one alone, or what has lengths: what they leave
free is not free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from depth import more
from isomerge.archs import expanded_texts
from isomerge.models.recognised import recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from run.test_layer_norm_moves import free_moves
from toys import Toy, config_of, outputs, relative

WRONG = [
    ("squeezebert", "sliced attention.query.* attention.key.*", "sliced attention.key.*"),
    ("wavlm", " seen gru_rel_pos_linear.weight", ""),
    *more(
        (
            "wav2vec2",
            "(parametrizations.weight.original1|weight_v) by encoder.pos_conv_embed.conv.(parametrizations.weight.original0|weight_g)",
            "(parametrizations.weight.original0|weight_g) by encoder.pos_conv_embed.conv.(parametrizations.weight.original1|weight_v)",
        ),
        ("wav2vec2-stable", "except masked_spec_embed feature_projection.*", "except masked_spec_embed"),
        ("xlnet", " layer.{l}.rel_attn.r_s_bias\n", "\n"),
        ("flaubert-before", "prenorm res within", "prenorm res"),
        ("dpt", "prenorm vision_res within", "prenorm vision_res"),
        ("swin", "padded (self.key|k_proj).weight (self.value|v_proj).weight", "padded (self.key|k_proj).weight"),
        (
            "swin",
            "without hidden_states_norms.* padded",
            "without hidden_states_norms.* layernorm_before.bias padded",
        ),
        ("convbert", "pointwise.weight seen key_conv", "pointwise.weight key_conv"),
    ),
]


@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_a_wrong_text_is_another_function(
    name: str, old: str, new: str, toy: Callable[..., Toy], tmp_path: Path
) -> None:
    """Random moves of all that the text leaves free keep the outputs, and of all that a mutant does they do not."""
    first, spec = toy(name), tmp_path / "wrong.spec"
    text = dict(expanded_texts())[config_of(first.folder)["model_type"]][1]
    assert old in text
    for told, same in ((text, True), (text.replace(old, new), False)):
        spec.write_text(told)
        model = recognise(first.folder, spec_file=spec)
        run_apply(free_moves(model), model, Output(tmp_path / str(same)))
        apart = relative(outputs(tmp_path / str(same)), first.reference)
        assert apart < 1e-5 if same else apart > 1e-3

"""Composites: sizes that tell every part from every other, and specs of models that nobody has listed."""

from __future__ import annotations

from typing import Any

import pytest

from depth import more
from discovery.specs import found
from discovery.test_discover import shown
from isomerge.config.config_parts import flattened, parts_of
from isomerge.discovery.shrinking import SCALES, kind_of, shrunk_whole
from isomerge.symmetry.language.spec_text import parse_spec

TEXT = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32064,
}
TOWER = {"model_type": "clip_vision_model", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24}
CONFIG: dict[str, Any] = {
    "image_token_index": 32000, "hidden_size": 4096, "projection_dim": 512,
    "vision_config": {**TOWER, "intermediate_size": 4096, "image_size": [336, 336], "patch_size": 14, "out_hidden_size": 4096},
    "text_config": {**TEXT, "intermediate_size": 11008, "eos_token_id": 2},
    "quantization_config": {"bits": 4}, "attn_config": {"model_type": "", "alibi": True},
}  # fmt: skip


def test_parts() -> None:
    """Texts first; groups of keys that are no models stay keys."""
    assert list(parts_of(CONFIG)) == ["text_config", "vision_config"]
    keys = flattened(CONFIG)
    assert keys["text_config.hidden_size"] == 4096
    assert keys["quantization_config"] == {"bits": 4}
    assert keys["attn_config"]["alibi"]  # MPT's
    assert kind_of("vision_config.num_attention_heads", keys) == "heads"


def test_every_part_has_sizes_of_its_own() -> None:
    """No width, number of heads or of neurons is that of another part in both specimens; what must agree does."""
    one, two = (flattened(shrunk_whole(CONFIG, scale)) for scale in SCALES)
    for kind in ("width", "heads", "neurons"):
        lengths = {
            part: {(one[k], two[k]) for k in one if k.startswith(part) and kind_of(k, one) == kind}
            for part in ("text", "vision")
        }
        assert lengths["text"]
        assert lengths["vision"]
        assert not lengths["text"] & lengths["vision"]
    for small in (one, two):
        assert small["hidden_size"] == small["text_config.hidden_size"] == small["vision_config.out_hidden_size"]
        assert small["text_config.vocab_size"] - 8 <= small["image_token_index"] < small["text_config.vocab_size"]
        assert small["projection_dim"] not in (small["text_config.hidden_size"], small["vision_config.hidden_size"])
        assert len(small["vision_config.image_size"]) == 2


def test_towers_that_meet() -> None:
    """CLIP: both towers whole, and the space that they meet in fixed, for its vectors are stored."""
    discovery = found("clip")
    assert shown(discovery) >= {
        "h: Perm", "h2: Perm", "ov: GL", "ov2: GL", "qk: GL", "qk2: GL", "ff: Perm", "ff2: Perm", "kb", "kb2", "vb", "vb2",
        "res: Perm folded OFixingOnes", "res2: Perm",
    }  # fmt: skip
    text = discovery.text
    assert discovery.fixed == ("logit_scale",)
    assert any(line.split()[:2] == ["text_projection.weight", "rows"] for line in text.splitlines())
    given = {
        "model_type": "clip",
        "text_config": {"hidden_size": 640, "num_attention_heads": 10},
        "vision_config": {},
    }
    sizes = parse_spec(text, given).sizes
    assert (sizes["res"], sizes["h"], sizes["head"], sizes["res2"], sizes["h2"]) == (640, 10, 64, 768, 12)


@pytest.mark.parametrize("kind", ["gemma", *more("deepseek_v2")])
def test_gains_less_one_and_latents(kind: str) -> None:
    """Gains that are stored as w of 1 + w scale, so that the stream turns; latent attention is found whole."""
    discovery = found(kind)
    if kind == "gemma":
        assert shown(discovery) >= {"res: SignedPerm folded O", "n1: Scale", "n2: Scale", "n3: Scale"}
        assert discovery.text.count("- 1\n") == 3
        return
    assert shown(discovery) >= {
        "nope: GL", "c: Complex", "ov: GL", "h: Perm", "lat: SignedPerm folded O", "lg: Scale", "qlat: SignedPerm folded O", "qg: Scale",
        "res: SignedPerm folded O",
    }  # fmt: skip
    # the first layer is dense: what its norm scales is read by other matrices than in the next one
    readers = [line.split()[0] for line in discovery.text.splitlines() if "n2)'" in line]
    assert {"layers.{l}.mlp.gate_proj.weight", "layers.{l}.mlp.gate.weight"} <= set(readers)

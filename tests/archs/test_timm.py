"""Vision transformers that timm itself makes, stores, loads and runs; and that the stand-ins of the other tests
compute what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import isomerge
from depth import EVERY
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.models.recognised import recognise
from plain_models import TimmViT
from timm_models import SHAPE, answers, made, timm_at_hand
from toys import config_of, randomise, relative

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

TINY = "vit_tiny_patch16_224"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TINY, {}),
    "layer scales, mean of patches": (TINY, {"init_values": 0.1, "global_pool": "avg"}),
    "patches normed": ("vit_base_patch32_clip_224", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "registers": (TINY, {"reg_tokens": 2, "class_token": False, "global_pool": "avg"}),
    "DeiT III": ("deit3_small_patch16_224", {}),
    "no bias": (TINY, {"qkv_bias": False}),
    "features": (TINY, {"num_classes": 0}),
}


FEW = ["distilled", "features"]


@pytest.mark.parametrize("kind", KINDS if EVERY else FEW)
def test_what_timm_computes_is_kept(kind: str, tmp_path: Path) -> None:
    """A twin by every symmetry, merged with the model and aligned onto another: timm loads each, and it says the
    same."""
    architecture, args = KINDS[kind]
    a = made(tmp_path / "a", architecture, **args)
    b = made(tmp_path / "b", architecture, 5, **args)
    model, rng = recognise(a), torch.Generator().manual_seed(2)
    assert model.spec.model_type == "timm_vit"
    if kind == "features":  # its stream is what it says
        local = set(model.spec.spaces) - model.spec.residual_names
        g = random_alignment(model.spec, model.blocks, rng, sorted(local))
    else:
        g = random_turn(with_streams(model.spec), model.blocks, lambda x: model.assemble(x, torch.float64), rng)
    isomerge.apply(g, a, out=tmp_path / "twin")
    isomerge.merge([a, tmp_path / "twin"], out=tmp_path / "merged", spaces="all")
    isomerge.align(tmp_path / "twin", onto=b, out=tmp_path / "aligned", spaces="all")
    wanted = answers(a)
    for out in ("twin", "merged", "aligned"):
        assert relative(answers(tmp_path / out), wanted) < 2e-5, out
        assert config_of(tmp_path / out) == config_of(a)
    assert relative(answers(b), wanted) > 0.1
    assert isomerge.diff(a, tmp_path / "twin")["distance"]["before"] > 1


@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({}, {}),
        ({"scaled": True, "pooled": True}, {"init_values": 0.1, "global_pool": "avg"}),
    ],
)
def test_the_stand_in_is_timms(options: dict[str, bool], args: dict[str, Any]) -> None:
    """The same names, and the same logits of the same weights."""
    ours = TimmViT(**options).double().eval()
    randomise(ours, 3)
    pixels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    with timm_at_hand() as timm, torch.no_grad():
        real = timm.create_model(TINY, **SHAPE, **args).double().eval()
        real.load_state_dict(ours.state_dict())
        # timm's norms of transformers have an epsilon of 1e-6, torch's 1e-5
        for module in real.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-5
        assert relative(real(pixels), ours(pixels)) < 1e-12

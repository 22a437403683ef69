"""Every head that Hugging Face saves is covered, tensor by tensor, with the base model's prefix and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import transformers as tf

from depth import EVERY
from diffusion_models import DIFFUSION
from families import HALF, NAMES, NAMES_IN_EVERY_RUN
from isomerge.archs import spec_for, spec_texts
from isomerge.symmetry.blocks import gather_blocks
from isomerge.symmetry.language.spec import coverage
from isomerge.symmetry.units import elements_of
from toys import config_of, tensors

TRIED = NAMES if EVERY else NAMES_IN_EVERY_RUN
CLASSES = [pytest.param(family, kind, id=family + kind) for family, (_, kinds) in TRIED.items() for kind in kinds]
Saved = tuple[dict, dict[str, tuple[int, ...]]]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Saved]:
    """The config and the shapes of a model class as ``save_pretrained`` writes it."""

    @cache
    def make(family: str, kind: str) -> Saved:
        folder: Path = tmp_path_factory.mktemp(family + kind)
        config = getattr(tf, f"{family}Config")(**NAMES[family][0])
        getattr(tf, family + kind)(config).save_pretrained(folder)
        return config_of(folder), {name: tuple(t.shape) for name, t in tensors(folder).items()}

    return make


def other_prefix(prefixes: tuple[str, ...], shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The same tensors with the base model's prefix taken away or, where there is none, added."""
    has = any(name.startswith(prefixes) for name in shapes)
    bare = {name: next((name[len(p) :] for p in prefixes if name.startswith(p)), name) for name in shapes}
    return {bare[name] if has else prefixes[0] + name: shape for name, shape in shapes.items()}


@pytest.mark.parametrize(("family", "kind"), CLASSES)
def test_covered_as_saved(family: str, kind: str, saved: Callable[[str, str], Saved]) -> None:
    """Each tensor has one line, and each space that is no residual acts."""
    config, shapes = saved(family, kind)
    spec = spec_for(config, shapes=shapes)
    matches = coverage(spec, shapes)
    assert set(matches) == set(shapes)
    acting = {s.name for block in gather_blocks(spec, matches) for s in elements_of(spec, block).values()}
    idle = {n for n in spec.spaces if n.startswith(tuple(HALF.get(family + kind, "") or "-"))}
    assert acting | spec.residual_names == set(spec.spaces) - (idle - spec.residual_names)


@pytest.mark.parametrize(("family", "kind"), CLASSES)
def test_covered_with_the_other_prefix(family: str, kind: str, saved: Callable[[str, str], Saved]) -> None:
    """With and without the prefix, a tensor is the same tensor."""
    config, shapes = saved(family, kind)
    spec = spec_for(config, shapes=shapes)
    if not spec.prefixes:
        return
    canonical = {m.canonical for m in coverage(spec, shapes).values()}
    renamed = other_prefix(spec.prefixes, shapes)
    assert set(renamed) != set(shapes)
    assert {m.canonical for m in coverage(spec, renamed).values()} == canonical


def test_every_model_type_is_tried() -> None:
    """A packaged spec without a class here is an untested promise."""
    tried = {getattr(tf, f"{family}Config").model_type for family in NAMES}
    tried |= {make().config["_class_name"] for make, _ in DIFFUSION.values()}
    tried |= {"Transformer2DModel", "UNet2DConditionModel"}  # DiT's old name; see test_unet
    assert tried == set(spec_texts()) - {
        "timm_vit", "timm_wrapper",  # timm's own: see test_plain_torch
        "new",  # what published files call GTE 1.5: see test_a_model_under_its_published_type
        "exaone4_5_text",  # what published files call the language model of EXAONE 4.5
        "step3p5",  # the language model of Step-3.7-Flash, with which it is tried; alone its class is code of its publisher's
        "unet_block",  # the blocks of a UNet
        "qwen3_omni_moe_talker",  # a part that Qwen3-Omni's config gives no type
    }  # fmt: skip


def test_a_model_under_its_published_type(saved: Callable[[str, str], Saved]) -> None:
    """GTE 1.5 is published as `new`, with that prefix; its tensors are described by the same lines."""
    config, shapes = saved("Gte", "ForMaskedLM")
    published = {"new." + n.removeprefix("gte.") if n.startswith("gte.") else n: s for n, s in shapes.items()}
    assert set(published) != set(shapes)
    old, new = spec_for(config, shapes=shapes), spec_for({**config, "model_type": "new"}, shapes=published)
    names = [{m.canonical for m in coverage(spec, s).values()} for spec, s in ((old, shapes), (new, published))]
    assert names[0] == names[1]
    assert set(old.spaces) == set(new.spaces)


@pytest.mark.parametrize("old", ["gamma", "beta"])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "DebertaV2"])
def test_legacy_norm_names(family: str, old: str, saved: Callable[[str, str], Saved]) -> None:
    """Checkpoints of 2018 call the gains gamma and beta."""
    config, shapes = saved(family, "ForMaskedLM" if family != "DebertaV2" else "Model")
    spec = spec_for(config, shapes=shapes)
    new = {"gamma": "weight", "beta": "bias"}[old]
    renamed = {n.replace(f"LayerNorm.{new}", f"LayerNorm.{old}"): s for n, s in shapes.items()}
    assert set(renamed) != set(shapes)
    names = [{m.canonical for m in coverage(spec, s).values()} for s in (shapes, renamed)]
    assert names[0] == names[1]


def test_weight_norms_of_both_formats() -> None:
    """The convolution of positions in wav2vec 2.0: a fine-tune saved by a newer torch meets the names of the
    published file."""
    config = {
        "model_type": "wav2vec2",
        "hidden_size": 48,
        "num_attention_heads": 6,
        "intermediate_size": 40,
        "vocab_size": 67,
    }
    spec, place = spec_for(config), "wav2vec2.encoder.pos_conv_embed.conv."
    for old, new in (
        ("weight_g", "parametrizations.weight.original0"),
        ("weight_v", "parametrizations.weight.original1"),
    ):
        assert spec.match(place + old).canonical == spec.match(place + new).canonical

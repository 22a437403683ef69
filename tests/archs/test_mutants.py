"""Every checker has mutants it must reject: plausible wrong specs, made from the packaged texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from families import MUTANTS
from isomerge.archs import expanded_texts, spec_texts
from isomerge.symmetry.language.expansion import family_of
from isomerge.symmetry.language.spec_text import parse_spec
from mutants import Mutant
from toys import TRIED, Toy, config_of, load_toy
from unet_models import UNETS


def root_of(kind: str) -> str:
    """The text that the text of a model type is like, over any way; its own where it is written out."""
    name, text = spec_texts()[kind]
    return family_of(text, name, spec_texts())


def mutated(model: Toy, mutant: Mutant) -> Toy:
    """The toy as the wrong spec sees it: the text that is named is wrong, and all that are like it."""
    kind = model_type_of(model.name)
    named = mutant.part or kind
    texts = dict(expanded_texts())
    for other in [k for k in texts if root_of(k) == root_of(named)]:
        origin, text = texts[other]
        text = re.sub(" +", " ", text)  # edits do not depend on how columns are set
        for old, new in mutant.edits:
            assert old in text or other != named, f"{origin} has no {old!r}"
            text = text.replace(old, new)
        # constants of a table need all of its axes, which a mutant of another space may have taken out
        text = re.sub(rf"^shift (?!{mutant.space}:)\w+: \S+ along .*\n", "", text, flags=re.MULTILINE)
        texts[other] = (origin, text)
    shapes = {name: tuple(t.shape) for name, t in model.stored.items()}
    spec = parse_spec(texts[kind][1], config_of(model.folder), texts[kind][0], texts, shapes)
    wrong = load_toy(model.name, model.folder, spec)
    vars(wrong)["reference"] = model.reference  # the weights are the same
    return wrong


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.toy in TRIED], ids=lambda m: f"{m.toy}: {m.wrong}")
def test_rejected(mutant: Mutant, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Moved by what the wrong spec calls a symmetry, the model is another function."""
    assert 1e-3 < mutated(toy(mutant.toy), mutant).law([mutant.space], tmp_path / "out").error < math.inf


def test_every_text_has_two() -> None:
    """No text that is written out goes unchallenged; one that is like another shares its mutants."""
    texts = Counter(root_of(m.part or model_type_of(m.toy)) for m in MUTANTS)
    assert set(texts) == {root_of(kind) for kind in spec_texts()}
    assert min(texts.values()) >= 2


NAMED = {
    **dict.fromkeys(["deberta-shared", "deberta-unshared", "deberta-c2p", "deberta-conv"], "deberta-v2"), "dit": "DiTTransformer2DModel", "sd3": "SD3Transformer2DModel", "flux": "FluxTransformer2DModel",
    **dict.fromkeys(UNETS, "UNet2DConditionModel"),
}  # fmt: skip


def model_type_of(toy: str) -> str:
    """The ``model_type`` of a toy, from its name."""
    kind = toy
    while kind and kind not in spec_texts():
        kind = kind.rpartition("-")[0]
    return NAMED.get(toy) or kind or NAMED[toy.partition("-")[0]]

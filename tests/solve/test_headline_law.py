"""The headline law: a merge is a function of orbits. merge(g A, h B) computes what merge(A, B) computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import isomerge
from archs.test_mutants import model_type_of
from depth import more
from solve.disguises import disguise, perturb, single
from toy_runs import GEMMA_TYPES
from toys import FEW, STREAMS_ALONE, outputs, relative, save_toy

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)


def merged_outputs(
    name: str, folder: Path, condition: float, dtype: torch.dtype = torch.float32
) -> tuple[float, float]:
    """How far merge(g A, h B) is from merge(A, B), and how far the plain averages are from each other."""
    a, b = (save_toy(name, folder / tag, seed=seed, dtype=dtype) for tag, seed in (("a", 0), ("b", 5)))
    ga, hb = (disguise(name, f, folder / f"moved-{f.name}", s, condition) for s, f in ((11, a), (12, b)))
    found = {}
    for tag, pair in (("stored", (a, b)), ("moved", (ga, hb))):
        for align in (True, False):
            out = folder / f"{tag}-{align}"
            isomerge.merge(pair, out=out, align=align)
            found[tag, align] = outputs(out)
    return tuple(relative(found["moved", align], found["stored", align]) for align in (True, False))


@pytest.mark.parametrize("name", [n for n in FEW if n not in STREAMS_ALONE])
def test_merge_is_a_function_of_orbits(name: str, tmp_path: Path) -> None:
    """For every toy, by random elements of every block-local space and shift."""
    # the rounding of float32, through two towers and a language model, comes to 2e-5
    aligned, plain = merged_outputs(
        name, tmp_path, 4.0, torch.float64 if model_type_of(name) in GEMMA_TYPES else torch.float32
    )
    assert plain > 0.1
    assert aligned <= 1e-5


FAR = [
    ("llama", torch.float32),
    ("gpt2", torch.float64),
    *more(("gpt2", torch.float32), ("bert", torch.float32), ("bert", torch.float64)),
]


@pytest.mark.parametrize(("name", "dtype"), FAR)
def test_far_from_the_identity(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Elements of condition 100: rounding counts a hundredfold, and nothing else does, as float64 shows."""
    aligned, plain = merged_outputs(name, tmp_path, 100.0, dtype)
    assert plain > 0.1
    assert aligned <= (1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("name", ["gpt2", *more("bert")])
def test_three_models(name: str, tmp_path: Path) -> None:
    """The same for three models and unequal weights, the anchor disguised as well."""
    plain = [single(name, tmp_path / f"m{seed}", seed) for seed in range(3)]
    moved = [disguise(name, f, tmp_path / f"g{f.name}", 20 + k) for k, f in enumerate(plain)]
    for tag, models in (("stored", plain), ("moved", moved)):
        isomerge.merge(models, out=tmp_path / tag, weights=[0.5, 0.2, 0.3])
        for file in (tmp_path / tag).glob("alignment-*"):
            file.unlink()
    assert relative(outputs(tmp_path / "moved"), outputs(tmp_path / "stored")) <= 1e-5


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("phi3", "dare_ties"),
        ("deberta-shared", "della"),
        *more(("whisper", "della_linear"), ("llama-mqa", "dare_linear")),
    ],
)
def test_masks_are_drawn_in_the_anchors_coordinates(name: str, method: str, tmp_path: Path) -> None:
    """What is dropped at random of a task vector does not depend on the weights that its model is stored in."""
    base = save_toy(name, tmp_path / "base", seed=0, dtype=torch.float64)
    tuned = [perturb(base, tmp_path / f"tuned-{k}", 0.3, seed=k) for k in (1, 2)]
    moved = [disguise(name, folder, tmp_path / f"moved-{k}", 20 + k) for k, folder in enumerate(tuned)]
    for tag, models in (("stored", tuned), ("moved", moved)):
        isomerge.merge(models, out=tmp_path / tag, base_model=base, method=method, parameters={"density": 0.5})
    one, two = (load_file(tmp_path / tag / "model.safetensors") for tag in ("stored", "moved"))
    assert max(float((one[n] - two[n]).abs().max() / two[n].abs().max()) for n in one) <= 1e-12
    assert any(not torch.equal(one[n], x) for n, x in load_file(base / "model.safetensors").items())

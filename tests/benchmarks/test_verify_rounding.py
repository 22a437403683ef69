"""What `verify` and fingerprints say of models in half precision, and of configs that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import isomerge
from benchmarks.looks.pairs import KINDS, Kind, Root, rounded
from benchmarks.looks.roots import toy
from depth import more
from isomerge.checkpoint.in_memory import in_memory
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.quotient.similarity import ONE_BASE, OPEN_CONFIGS, SAME_FUNCTION, WITHIN_ROUNDING
from solve.disguises import local_names
from toys import config_of, load_toy, save_toy

CHANGES = {"one row a fifth longer", "noise 0.01", "8 bits a row"}
TWINS = {"as it is", "twin by all spaces", "twin by its neurons", "twin by its heads", "twin inside of heads"}


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A small Llama in half precision."""
    return rounded(toy("llama", tmp_path_factory.mktemp("llama")), request.param)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name in CHANGES | TWINS], ids=lambda kind: kind.name
)
def test_in_half_precision(half: Root, kind: Kind) -> None:
    """What was moved may be rounded anew; where nothing had to move, no entry differs by more than one rounding."""
    made = kind.change(half, torch.Generator().manual_seed(5))
    assert made is not None
    report = isomerge.verify(in_memory(half.weights, half.config), in_memory(*made))
    assert report["same"] is (kind.name in TWINS), report["residual"]
    said = report["fingerprints"]["verdict"]
    assert said in ({SAME_FUNCTION, WITHIN_ROUNDING} if kind.name in TWINS else {ONE_BASE, WITHIN_ROUNDING})


def test_one_rounding_is_none(tmp_path: Path) -> None:
    """A copy in half precision of a model in float32 is the same; one of which an entry is two roundings off is
    not."""
    root = toy("gpt2", tmp_path)
    copy = rounded(root, torch.bfloat16)
    first = in_memory(root.weights, root.config)
    assert isomerge.verify(first, in_memory(copy.weights, copy.config))["same"]
    name = next(name for name in copy.weights if name.endswith("mlp.c_fc.weight"))
    off = copy.weights | {name: copy.weights[name].clone()}
    off[name][0, 0] *= 1 + 2**-6
    report = isomerge.verify(in_memory(copy.weights, copy.config), in_memory(off, copy.config))
    assert report["same"] is False
    assert name.endswith(report["residual"]["tensor"].split(".", 2)[-1])


def twin(name: str, folder: Path, condition: float, dtype: torch.dtype, seed: int, *, streams: bool) -> list[Any]:
    """A toy, and the same function by ill-conditioned maps, rounded to a dtype."""
    toy_ = load_toy(name, save_toy(name, folder))
    rng, blocks = torch.Generator().manual_seed(seed), toy_.fresh()
    if streams:
        spec = with_streams(toy_.spec, "largest")
        random_turn(spec, toy_.blocks, lambda b: blocks[b].double(), rng, condition=condition, gains=True).act(
            blocks
        )
    else:
        random_alignment(toy_.spec, toy_.blocks, rng, local_names(toy_), condition=condition).act(blocks)
    config, own, moved = config_of(folder), toy_.named(toy_.fresh()), toy_.named(blocks)
    return [
        in_memory({n: x.to(dtype) if x.is_floating_point() else x for n, x in t.items()}, config)
        for t in (own, moved)
    ]


@pytest.mark.parametrize(
    ("name", "seed", "dtype"),
    [
        ("llama", 2, torch.bfloat16),
        ("vit", 1, torch.bfloat16),
        ("vit", 2, torch.float16),
        *more(("vit", 1, torch.float16), ("llama-mha", 1, torch.bfloat16)),
    ],
    ids=str,
)
def test_rounding_of_ill_conditioned_twins(name: str, seed: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """A basis of the stream is found from numbers that rounding has moved, so that what is left anywhere is no
    certain difference, whichever unit comes first. Mutant: only units before the first difference are judged."""
    report = isomerge.verify(*twin(name, tmp_path / "m", 1000.0, dtype, seed, streams=True))
    assert report["same"] is None, report["residual"]
    assert "rounding of the stored numbers" in report["reason"]


@pytest.mark.parametrize(("name", "seed"), [("llama", 1), ("vit", 1)])
def test_equal_hashes_are_not_called_derived(name: str, seed: int, tmp_path: Path) -> None:
    """Where nothing tells what was done. Mutant: `Similarity.verdict` without the hash."""
    said = isomerge.similarity(*twin(name, tmp_path / "m", 1e5, torch.float32, seed, streams=False))
    assert said["hashes_equal"], said
    assert said["difference"] > said["tolerance"]
    assert said["verdict"] == WITHIN_ROUNDING


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"rms_norm_eps": 1e-3}, False),
        ({"hidden_act": "relu"}, False),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, False),
        ({"max_position_embeddings": 4096}, None),
        ({"attention_dropout": 0.1}, True),
    ],
    ids=lambda value: str(value),
)
def test_configs(change: dict[str, Any], same: bool | None, tmp_path: Path) -> None:
    """Verify and fingerprints go by one rule; the key is named."""
    a = save_toy("llama", tmp_path / "a")
    b = save_toy("llama", tmp_path / "b")
    config = json.loads((b / "config.json").read_text())
    (b / "config.json").write_text(json.dumps(config | change))
    for first, second in ((a, b), (b, a)):
        report = isomerge.verify(first, second)
        assert report["same"] is same
        if not same:
            assert next(iter(change)).partition("_")[0] in report["reason"]
        said = isomerge.similarity(first, second)["verdict"]
        assert said == {True: SAME_FUNCTION, False: ONE_BASE, None: OPEN_CONFIGS}[same]

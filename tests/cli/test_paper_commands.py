"""The paper in one command each: its algorithm and its baselines with every method of fusion, its ablations, its
selection of layers; each equals the way in two steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge as library
from depth import EVERY
from isomerge.errors import IsomergeError
from isomerge.solve.match_names import BY_ACTIVATIONS, CENTRED

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

MATCHES = ("git-rebasin", "git-rebasin-acts", "otfusion", "ot-wts", "ot-acts", "ot-acts-emd")
METHODS = ("linear", "fisher", "regmean", "regression", "multislerp")
TABLE = [
    *(({"spaces": "paper"}, method) for method in METHODS),
    *(({"match": match}, method) for match in MATCHES for method in METHODS),
    *(({"match": match, "spaces": "paper"}, method) for match in MATCHES[3:] for method in METHODS),
    *(({"match": CENTRED}, method) for method in METHODS),
]
QUICK = [case for k, case in enumerate(TABLE) if k % 4 == 1 or case[0] == {"spaces": "paper"}]


@pytest.fixture(scope="module")
def models(stored: Callable) -> list[Path]:
    """Two image classifiers that were trained apart."""
    return [stored("vit", 0), stored("vit", 5)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled examples for them."""
    file = tmp_path_factory.mktemp("seen") / "seen.safetensors"
    rng = torch.Generator().manual_seed(0)
    save_file({"pixel_values": torch.randn(20, 3, 8, 8, generator=rng), "labels": torch.arange(20) % 5}, file)
    return file


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of an output."""
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(("how", "method"), TABLE if EVERY else QUICK, ids=str)
def test_every_match_with_every_method(
    how: dict[str, Any], method: str, models: list[Path], seen: Path, tmp_path: Path
) -> None:
    """Statistics are gathered on the way, and the result is measured; it is what matching first and fusing then
    gives, where the match is a model of its own."""
    report = library.merge(models, out=tmp_path / "out", method=method, data=seen, **how)
    assert report["measured"]["merged"]["loss"] > 0
    if how.get("match", "").startswith("ot-"):
        assert not report["match"]["sources"][0]["preserves_function"]
        assert ("first" in report["match"]["sources"][0]) == ("spaces" in how)
        return
    reads = {"data": seen} if how.get("match") in BY_ACTIVATIONS else {}
    library.align(models[1], onto=models[0], out=tmp_path / "moved", **how, **reads)
    # a merge matches unguarded, an alignment takes the nearest: both are the same where nothing is rescaled
    apart = library.merge(
        [models[0], tmp_path / "moved"], out=tmp_path / "two", method=method, data=seen, align=False
    )
    assert apart["measured"]["merged"]["loss"] == pytest.approx(report["measured"]["merged"]["loss"], rel=2e-3)
    one, two = weights(tmp_path / "out"), weights(tmp_path / "two")
    gap = sum(float((one[k] - two[k]).square().sum()) for k in one) ** 0.5
    assert gap <= 1e-2 * sum(float(x.square().sum()) for x in one.values()) ** 0.5


def test_transport_from_where_the_paper_moves(models: list[Path], tmp_path: Path) -> None:
    """--spaces paper --match ot-wts is the transport of the model that --spaces paper writes."""
    library.merge(models, out=tmp_path / "one", match="ot-wts", spaces="paper")
    library.merge(models, out=tmp_path / "plain", match="ot-wts")
    library.align(models[1], onto=models[0], out=tmp_path / "moved", spaces="paper")
    library.merge([models[0], tmp_path / "moved"], out=tmp_path / "two", match="ot-wts")
    one, two, plain = (weights(tmp_path / name) for name in ("one", "two", "plain"))
    assert all(torch.allclose(one[k], two[k], atol=1e-4) for k in one)
    assert any(not torch.allclose(one[k], plain[k], atol=1e-3) for k in one)


def test_settings_of_transport(models: list[Path], seen: Path, tmp_path: Path, isomerge: Callable) -> None:
    """Residual policies by their names; what is wrong is told."""
    found = {}
    for policy in ("averaging", "weighted_scalar", "weighted_matrix", "no_residual", "only_residual"):
        out = tmp_path / policy
        said = isomerge(
            "merge", *models, "-o", out, "--match", "ot-acts", "--data", seen, "--transport", f"residual={policy}"
        )
        assert said.code == 0, said.err
        found[policy] = json.loads((out / "isomerge.json").read_text())["distance"]["after"]
    assert len({round(after, 9) for after in found.values()}) == 5
    for setting, words in (
        ("residual=none", "transport residual 'none': choose from"),
        ("cost=weights", "--transport cost=weights: choose from residual"),
        ("heads", "write name=value"),
        ("regularisation=-1", "give a number above 0"),
    ):
        said = isomerge("merge", *models, "-o", tmp_path / "no", "--match", "ot-wts", "--transport", setting)
        assert said.code == 2
        assert words in said.err
    said = isomerge("merge", *models, "-o", tmp_path / "no", "--transport", "heads=within")
    assert "is a setting of --match ot-wts" in said.err


@pytest.mark.parametrize("match", BY_ACTIVATIONS)
def test_git_rebasin_by_activations_finds_a_permutation(
    match: str, models: list[Path], seen: Path, tmp_path: Path
) -> None:
    """A copy whose neurons, heads and stream stand in another order comes back; weights that lie do not mislead it."""
    from isomerge.evidence.law import random_alignment
    from isomerge.models.recognised import recognise
    from isomerge.research.baselines.permutations import in_declared_groups, permutation_spec

    model = recognise(models[0])
    spec = permutation_spec(model.spec)
    drawn = random_alignment(spec, model.blocks, torch.Generator().manual_seed(1))
    library.apply(in_declared_groups(model.spec, dict(drawn.elements)), models[0], out=tmp_path / "twin")
    before = library.diff(models[0], tmp_path / "twin", spaces="none")["distance"]["before"]
    _, report = library.align(
        tmp_path / "twin", onto=models[0], out=tmp_path / "back", match=match, data=seen, align=True
    )
    assert before > 1
    assert report["distance"]["after"] < 1e-4 * before
    assert report["match"]["sources"][0]["after"] == pytest.approx(1, abs=1e-4)
    with pytest.raises(IsomergeError, match="compares activations"):
        library.align(models[1], onto=models[0], match=match)


def test_git_rebasin_by_activations_as_published(models: list[Path], seen: Path, tmp_path: Path) -> None:
    """Neurons by an assignment on the inner products of what they give behind the nonlinearity, as it is; the variant
    by another one."""
    from scipy.optimize import linear_sum_assignment
    from transformers import ViTForImageClassification

    from isomerge.models.recognised import recognise
    from isomerge.symmetry.alignment import Alignment

    images = load_file(seen)["pixel_values"]
    given: list[list[torch.Tensor]] = []
    for folder in models:
        module, parts = ViTForImageClassification.from_pretrained(folder).eval(), []
        readers = [m for name, m in module.named_modules() if name.endswith(("output.dense", "mlp.fc2"))]
        readers = [m for m in readers if m.in_features != m.out_features]
        for reader in readers:
            reader.register_forward_pre_hook(lambda _, x, parts=parts: parts.append(x[0].flatten(0, -2).double()))
        with torch.no_grad():
            module(pixel_values=images)
        given.append(parts)
    best = [
        linear_sum_assignment((x.mT @ y).numpy(), maximize=True)[1].tolist() for x, y in zip(*given, strict=True)
    ]
    assert best
    moved = {}
    for match in BY_ACTIVATIONS:
        library.align(models[1], onto=models[0], out=tmp_path / match, match=match, data=seen, align=True)
        alignment = Alignment.load(tmp_path / match / "alignment.safetensors", recognise(models[1]).declared)
        moved[match] = [alignment[f"ff[{layer}]"].tolist() for layer in range(len(best))]
    assert moved["git-rebasin-acts"] == best
    assert moved["git-rebasin-acts-centred"] != best


def test_ablations(models: list[Path], tmp_path: Path) -> None:
    """Without attention, FFN, rescaling and rotation: each leaves out its own, and the whole is nearest."""
    after, parts = {}, {}
    for name in ("", "-no-attention", "-no-ffn", "-no-rescale", "-no-rotation"):
        report = library.merge(models, out=tmp_path / f"out{name}", spaces=f"paper{name}")
        after[name], parts[name] = report["distance"]["after"], set(report["distance"]["parts"])
    before = report["distance"]["before"]
    assert "queries and keys" not in parts["-no-attention"]
    assert "feed-forward neurons" not in parts["-no-ffn"]
    assert after[""] < after["-no-rescale"] < before
    assert after[""] < min(after["-no-attention"], after["-no-ffn"], after["-no-rotation"])
    assert after["-no-rotation"] < after["-no-attention"]  # rescaling alone gains a little


def test_the_paper_without_an_anchor(stored: Callable, tmp_path: Path) -> None:
    """All models are matched onto their common mean: nearer to it than when matched onto the first."""
    models = [stored("vit", seed) for seed in (0, 5, 8)]
    report = library.merge(models, out=tmp_path / "out", spaces="paper", anchor="none")
    objective = report["mean"]["objective"]
    assert objective[-1] < objective[0] == min(anchor["objective"] for anchor in report["mean"]["anchors"])
    spread = {}
    for how in ("none", "first"):
        read = library.merge(models, out=tmp_path / how, spaces="paper", anchor=how)["models"]
        mean = weights(tmp_path / how)
        moved = [weights(Path(read[0]))]
        for k in (2, 3):
            library.apply(tmp_path / how / f"alignment-{k}.safetensors", read[k - 1], out=tmp_path / f"{how}{k}")
            moved.append(weights(tmp_path / f"{how}{k}"))
        spread[how] = sum(float((m[n] - mean[n]).square().sum()) for m in moved for n in mean)
    assert spread["none"] < spread["first"]


def test_layers_by_validation(models: list[Path], seen: Path, tmp_path: Path, isomerge: Callable) -> None:
    """The best of every choice of layers by the data; the merge that is written is that one, and measures the same."""
    out = tmp_path / "out"
    said = isomerge(
        "merge", *models, "-o", out, "--spaces", "paper", "--select-layers", "validation", "--data", seen
    )
    assert said.code == 0, said.err
    report = json.loads((out / "isomerge.json").read_text())
    scan = report["layer_scan"]
    assert [row["layers"] for row in scan["candidates"]] == ["none", "all", "0", "1", "2", "head:2", "tail:2"]
    best = min(scan["candidates"], key=lambda row: (-row["accuracy"], row["loss"]))
    assert scan["chosen"] == best["layers"]
    assert report["measured"]["merged"]["loss"] == pytest.approx(best["loss"], rel=1e-6)
    for row in scan["candidates"]:
        how = {"align": False} if row["layers"] == "none" else {"spaces": "paper"}
        how |= {"layers": row["layers"]} if row["layers"] not in ("none", "all") else {}
        alone = library.merge(models, out=tmp_path / row["layers"].replace(":", ""), data=seen, **how)
        assert alone["measured"]["merged"]["loss"] == pytest.approx(row["loss"], rel=1e-6)
    assert (out / "layers.png").read_bytes().startswith(b"\x89PNG")
    assert f"{scan['chosen']} (chosen)" in said.out


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"select_layers": "training"}, "choose validation"),
        ({"select_layers": "validation"}, "add data=DATA"),
        ({"select_layers": "validation", "data": "seen", "layers": "0"}, "leave layers and align=False out"),
        ({"select_layers": "validation", "data": "seen", "align": False}, "leave layers and align=False out"),
        ({"select_layers": "validation", "data": "seen", "learn": "seen"}, "leave learn"),
    ],
)
def test_selections_that_cannot_be(
    how: dict[str, Any], words: str, models: list[Path], seen: Path, tmp_path: Path
) -> None:
    """Refused before anything is read."""
    how = {name: seen if value == "seen" else value for name, value in how.items()}
    with pytest.raises(IsomergeError, match=words):
        library.merge(models, out=tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()

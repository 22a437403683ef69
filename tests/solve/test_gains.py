"""Models whose gains are small: brought near without a division by them, in few bits as well; merges compare what
means something."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaModel

import isomerge
from depth import more
from isomerge.solve.pairs import in_place
from isomerge.solve.pairs import stream_descent as streams
from solve.disguises import keep_streams, single
from toys import outputs, overwrite, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

SMALL = 2.0**-13
"""About 1e-4, and a power of two: factors of it round nothing."""
READERS = ("q_proj.weight", "k_proj.weight", "v_proj.weight")


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here needs unrelated models to settle."""
    monkeypatch.setattr(streams, "SWEEPS", 1)


def shallow(name: str, out: Path, seed: int = 0, layers: int = 1) -> Path:
    """A toy's first layers: what is shown of one layer costs a third."""
    whole = single(name, out.with_name(f"{out.name}-whole"), seed)
    out.mkdir()
    config = json.loads((whole / "config.json").read_text())
    config |= {key: layers for key in ("num_hidden_layers", "n_layer") if key in config}
    config |= {"layer_types": config["layer_types"][:layers]} if config.get("layer_types") else {}
    (out / "config.json").write_text(json.dumps(config))
    deeper = {name: re.search(r"\.(?:layers|h)\.(\d+)\.", name) for name in tensors(whole)}
    kept = {n: t for n, t in tensors(whole).items() if (at := deeper[n]) is None or int(at[1]) < layers}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    return out


def changed(folder: Path, out: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Path:
    """A model with some tensors changed."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    overwrite(out, {name: change(name, t.clone()) for name, t in tensors(folder).items()})
    return out


def set_gain(folder: Path, out: Path, gain: float) -> Path:
    """A model of another function: one gain of the first norm is another."""

    def change(name: str, t: torch.Tensor) -> torch.Tensor:
        if name.endswith(("layers.0.input_layernorm.weight", "h.0.ln_1.weight")):
            t[3] = gain
        return t

    return changed(folder, out, change)


def rescaled(folder: Path, out: Path, factor: float) -> Path:
    """The same function: one gain of the first norm is smaller, and its readers are larger."""

    def change(name: str, t: torch.Tensor) -> torch.Tensor:
        if name.endswith("layers.0.input_layernorm.weight"):
            t[3] *= factor
        elif "layers.0.self_attn" in name and name.endswith(READERS):
            t[:, 3] /= factor
        return t

    return changed(folder, out, change)


def wide(folder: Path) -> torch.Tensor:
    """What a stored model computes in float64."""
    out = folder.parent / f"{folder.name}-wide"
    if not out.exists():
        changed(folder, out, lambda name, t: t.double())
    return outputs(out)


@pytest.mark.parametrize("name", ["llama", *more("gpt2-untied", "qwen3")])
def test_a_small_gain_of_the_anchor_makes_no_large_distance(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever one gain of the anchor is, the distance falls as far, and in bfloat16 the function stays. To take on
    the anchor's gains makes a distance that is told to have risen."""
    a = changed(shallow(name, tmp_path / "a"), tmp_path / "a16", lambda n, t: t.bfloat16())
    b = changed(shallow(name, tmp_path / "b", 5), tmp_path / "b16", lambda n, t: t.bfloat16())
    reached = []
    for gain in (1.0, 1e-5):
        anchor, out = set_gain(a, tmp_path / f"a{gain}", gain), tmp_path / f"out{gain}"
        _, report = isomerge.align(b, onto=anchor, out=out, spaces="all")
        distance = report["distance"]
        assert distance["after"] < distance["before"]
        assert not any("rose" in note for note in report["notes"])
        assert 1e-4 < report["rounding"]["error"] < 5e-3 < report["rounding"]["tolerance"]
        assert relative(wide(out), wide(b)) < 0.03
        reached.append(distance["after"] / distance["before"])
    assert reached[1] == pytest.approx(reached[0], rel=0.05)
    monkeypatch.setattr(in_place, "with_common_gains", lambda pair, found, observer: found)
    _, theirs = isomerge.align(b, onto=tmp_path / "a1e-05", spaces="all")
    assert theirs["distance"]["after"] > 10 * theirs["distance"]["before"]
    (note,) = (note for note in theirs["notes"] if "rose" in note)
    assert "the distance rose from" in note
    assert "gains folded" in note


def test_a_merge_is_one_function_and_its_numbers_are_sane(tmp_path: Path) -> None:
    """Models are fused with gains in common: a small gain of the first in its stored gauge changes nothing."""
    a, b = shallow("llama", tmp_path / "a"), shallow("llama", tmp_path / "b", 5)
    small = rescaled(a, tmp_path / "small", SMALL)
    assert relative(outputs(small), outputs(a)) < 1e-4
    merged, reports = [], []
    for k, first in enumerate((a, small, set_gain(a, tmp_path / "bare", SMALL))):
        reports.append(isomerge.merge([first, b], out=tmp_path / f"m{k}", spaces="all"))
        merged.append(tmp_path / f"m{k}")
    assert relative(outputs(merged[1]), outputs(merged[0])) < 1e-4
    usual, _, there = (max(float(t.abs().max()) for t in tensors(m).values()) for m in merged)
    assert there < 2 * usual
    assert reports[2]["distance"]["after"] < 1.1 * reports[0]["distance"]["after"]
    twin = isomerge.merge([small, a], out=tmp_path / "twin", spaces="all")
    assert twin["distance"]["after"] < 1e-3 * twin["distance"]["before"]
    assert relative(outputs(tmp_path / "twin"), outputs(a)) < 1e-4


@pytest.mark.parametrize("method", ["ties", *more("breadcrumbs", "della", "dare_ties", "sce", "nearswap", "slerp")])
def test_small_gains_do_not_change_which_entries_survive(method: str, tmp_path: Path) -> None:
    """Where streams are turned, entries are compared with gains folded: the base's gauge of gains is not seen."""
    base = shallow("llama", tmp_path / "base")
    rng = torch.Generator().manual_seed(1)
    tuned = [
        changed(base, tmp_path / f"t{k}", lambda n, t: t + 0.02 * torch.randn(t.shape, generator=rng))
        for k in range(1 if method in ("nearswap", "slerp") else 2)
    ]
    given = {
        "ties": {"density": 0.3},
        "della": {"density": 0.5},
        "sce": {"select_topk": 0.3},
        "nearswap": {"t": 0.01},
    }
    options = {"density": 0.5} if method in ("breadcrumbs", "dare_ties") else given.get(method, {"t": 0.4})
    merged = []
    for k, first in enumerate((base, rescaled(base, tmp_path / "small", SMALL))):
        out = tmp_path / f"m{k}"
        isomerge.merge(
            [*tuned],
            base_model=first,
            out=out,
            method=method,
            spaces="res:SignedPerm",
            parameters=options,
            align=True,
        )
        merged.append(outputs(out))
    assert relative(merged[1], merged[0]) < 1e-4


@pytest.mark.parametrize("spaces", ["all", "default"])
def test_a_merge_says_that_the_first_model_takes_on_other_gains(spaces: str, tmp_path: Path) -> None:
    """Where streams are turned: what is measured, and where the alignment leads, is a copy of the first model with
    the gains that all have in common; the JSON, the notes, the card and the page say so, and of no other merge."""
    a, b, out = shallow("llama", tmp_path / "a"), shallow("llama", tmp_path / "b", 5), tmp_path / "out"
    a = changed(a, tmp_path / "spread", lambda n, t: t * torch.linspace(0.5, 2, len(t)) if "norm" in n else t)
    report = isomerge.merge([a, b], out=out, spaces=spaces, align=True)
    isomerge.apply(out / "alignment.safetensors", b, out=tmp_path / "moved")
    merged, moved, stored = (tensors(folder) for folder in (out, tmp_path / "moved", a))
    met = changed(a, tmp_path / "met", lambda n, t: 2 * merged[n] - moved[n])
    apart = {
        name: sum(float((there[n] - moved[n]).double().square().sum()) for n in moved) ** 0.5
        for name, there in (("met", tensors(met)), ("stored", stored))
    }
    assert apart["met"] == pytest.approx(report["distance"]["after"], rel=1e-3)
    assert relative(outputs(met), outputs(a)) < 1e-3
    is_other = apart["stored"] > 1.01 * apart["met"]
    assert is_other is (spaces == "all")
    card, page = (out / "README.md").read_text(), isomerge.report(out).html
    said = [report.get("gains") == "common", any("gains of norms" in note for note in report["notes"])]
    said += ["not to the first one as it is stored" in card, "it stays as it is, but for" in page]
    assert said == [is_other] * 4


def test_gains_inside_layers_where_the_stream_is_given_out(tmp_path: Path) -> None:
    """A model without a head keeps its stream; other gains inside its layers are matched all the same, in chosen
    layers alone if asked."""
    whole = shallow("llama", tmp_path / "whole", layers=2)
    LlamaModel.from_pretrained(whole).save_pretrained(tmp_path / "a")
    a, spaces = tmp_path / "a", "all"
    twin = keep_streams("llama", a, tmp_path / "twin", 3)
    gain = "layers.1.input_layernorm.weight"
    assert float((tensors(a)[gain] - tensors(twin)[gain]).abs().max()) > 0.1
    _, report = isomerge.align(twin, onto=a, out=tmp_path / "aligned", spaces=spaces)
    assert report["distance"]["after"] < 1e-6 * report["distance"]["before"]
    for anchor in ("first", "none"):
        isomerge.merge([a, twin], out=tmp_path / anchor, spaces=spaces, anchor=anchor)
        assert relative(outputs(tmp_path / anchor), outputs(a)) < 1e-5
    isomerge.align(twin, onto=a, out=tmp_path / "one", spaces=spaces, layers="0")
    moved, before = tensors(tmp_path / "one"), tensors(twin)
    assert not torch.equal(moved[gain.replace("1", "0")], before[gain.replace("1", "0")])
    assert torch.equal(moved[gain], before[gain])

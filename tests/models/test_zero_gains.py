"""Gains of zero: the same function has a gain of one there, and what read the channel reads nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import isomerge
from depth import more
from isomerge.errors import IsomergeError
from isomerge.models import zero_gains
from isomerge.models.recognised import recognise
from isomerge.observe.live.module_state import state_of
from observe.aligned import aligned_module
from solve.disguises import disguise, single
from solve.test_gains import READERS, changed
from toys import outputs, relative, tensors

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")

CHANNELS = [1, 5]
ROUNDED = 1e-5
"""Of outputs and forms of models stored in float32."""
NORM, LAST = "layers.1.input_layernorm.weight", "norm.weight"


def with_zeros(folder: Path, out: Path) -> Path:
    """Two channels of a norm inside, and of the last norm, are multiplied by zero."""
    less = float("gemma" in folder.name)

    def change(name: str, t: torch.Tensor) -> torch.Tensor:
        if name.endswith(NORM) or name.removeprefix("model.") == LAST:
            t[CHANNELS] = -less
        return t

    return changed(folder, out, change)


def with_other_readers(folder: Path, out: Path) -> Path:
    """The same function, where gains of the norm inside are zero: what reads these channels reads something else of
    nothing."""

    def change(name: str, t: torch.Tensor) -> torch.Tensor:
        if "layers.1.self_attn" in name and name.endswith(READERS):
            t[:, CHANNELS] = 7 * t[:, CHANNELS] + 1
        return t

    return changed(folder, out, change)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A model with zeros among its gains, and another one."""
    a, b = single(request.param, tmp_path / f"{request.param}-a"), single(request.param, tmp_path / "b", 5)
    zero = with_zeros(a, tmp_path / f"{request.param}-zero")
    assert relative(outputs(zero), outputs(a)) > 1e-3
    return zero, b


@pytest.mark.parametrize("pair", ["llama", "gemma", *more("qwen3")], indirect=True)
@pytest.mark.parametrize("zeros", ["of the source", "of the anchor"])
def test_streams_are_turned_past_zeros(zeros: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The function stays, the distance falls, and `verify` calls both the same."""
    source, anchor = pair if zeros == "of the source" else pair[::-1]
    alignment, report = isomerge.align(source, onto=anchor, out=tmp_path / "out", spaces="all")
    assert report["streams"]
    assert report["distance"]["after"] < 0.95 * report["distance"]["before"]
    assert relative(outputs(tmp_path / "out"), outputs(source)) < ROUNDED
    assert isomerge.verify(source, tmp_path / "out")["same"]
    moved = tensors(tmp_path / "out")
    (gain,) = (t for name, t in moved.items() if name.endswith(NORM))
    if zeros == "of the source":
        assert bool((gain + float("gemma" in source.name)).ne(0).all())
    isomerge.apply(alignment, source, out=tmp_path / "again")
    assert all(torch.equal(t, moved[name]) for name, t in tensors(tmp_path / "again").items())
    model = recognise(source)
    state = state_of(aligned_module(model, alignment), model)
    assert all(torch.equal(t, moved[name]) for name, t in state.items())


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
def test_what_nothing_reads_is_nothing(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin whose hidden columns are others: one function to `verify`, `fingerprint` and `canon`, and for a merge,
    disguised or not."""
    a, b = pair
    twin = with_other_readers(a, tmp_path / "twin")
    disguised = disguise("llama", twin, tmp_path / "disguised", 3)
    assert relative(outputs(disguised), outputs(a)) < ROUNDED
    assert isomerge.fingerprint(a).hash == isomerge.fingerprint(twin).hash
    for other in (twin, disguised):
        assert isomerge.verify(a, other)["same"]
    forms = []
    for k, model in enumerate((a, twin)):
        isomerge.canon(model, out=tmp_path / f"form{k}")
        forms.append(tensors(tmp_path / f"form{k}"))
    assert all(torch.allclose(t, forms[1][name], atol=ROUNDED) for name, t in forms[0].items())
    merged = []
    for k, model in enumerate((a, twin)):
        isomerge.merge([b, model], out=tmp_path / f"merged{k}", spaces="all")
        merged.append(outputs(tmp_path / f"merged{k}"))
    assert relative(merged[0], merged[1]) < ROUNDED
    # without a look at zeros the twin is another model, and nothing can be turned
    monkeypatch.setattr(zero_gains, "_zeros", lambda model, scales: {})
    assert not isomerge.verify(a, twin)["same"]
    with pytest.raises(IsomergeError, match="zero"):
        isomerge.align(a, onto=b, spaces="all")


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
def test_jobs_and_a_kept_stream(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Workers read the same function; where no stream is turned, zeros are written as they are stored."""
    a, b = pair
    for jobs in (1, 2):
        isomerge.merge([a, b], out=tmp_path / f"jobs{jobs}", spaces="all", jobs=jobs)
    one, two = (tensors(tmp_path / f"jobs{jobs}") for jobs in (1, 2))
    assert all(torch.equal(t, two[name]) for name, t in one.items())
    isomerge.align(a, onto=b, out=tmp_path / "kept", spaces="default")
    stored, kept = tensors(a), tensors(tmp_path / "kept")
    (name,) = (name for name in stored if name.endswith(NORM))
    assert torch.equal(kept[name], stored[name])
    assert not bool(kept[name][CHANNELS].any())


@pytest.mark.parametrize("name", ["gpt2"])
def test_channels_that_a_layer_norm_drops(name: str, tmp_path: Path) -> None:
    """Where a LayerNorm's bias is zero beside its gain, what reads the channel reads nothing of it: a twin that reads
    it otherwise is one function to `fingerprint`, `verify` and `canon`. (A factor without an end made no number of
    that bias.)"""

    def dropped(name: str, t: torch.Tensor) -> torch.Tensor:
        if ".1.ln_2." in f".{name}":
            t[CHANNELS] = 0
        return t

    def read_otherwise(name: str, t: torch.Tensor) -> torch.Tensor:
        if name.endswith(".1.mlp.c_fc.weight"):
            t[CHANNELS] = 7 * t[CHANNELS] + 1
        return t

    a = changed(single(name, tmp_path / "whole"), tmp_path / "a", dropped)
    twin = changed(a, tmp_path / "twin", read_otherwise)
    assert relative(outputs(twin), outputs(a)) < ROUNDED
    assert isomerge.fingerprint(a).hash == isomerge.fingerprint(twin).hash
    assert isomerge.verify(a, twin)["same"]
    for k, model in enumerate((a, twin)):
        isomerge.canon(model, out=tmp_path / f"form{k}")
    forms = [tensors(tmp_path / f"form{k}") for k in range(2)]
    assert all(torch.allclose(t, forms[1][name], atol=ROUNDED) for name, t in forms[0].items())


def test_a_stream_that_is_given_out_keeps_its_zeros(tmp_path: Path) -> None:
    """A gain of zero outside of the layers of a base class is an output of zero, whatever a pooler reads there: another
    function for `verify` and the fingerprint."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=8, patch_size=4)).double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
        model.layernorm.bias[3] = 0
        model.pooler.dense.weight[:, 3] = 0
        model.save_pretrained(tmp_path / "one")
        model.layernorm.weight[3] = 0
        model.save_pretrained(tmp_path / "zero")
    assert isomerge.verify(tmp_path / "one", tmp_path / "zero")["same"] is False
    assert isomerge.fingerprint(tmp_path / "one").hash != isomerge.fingerprint(tmp_path / "zero").hash

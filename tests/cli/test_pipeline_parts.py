"""Pipelines compared: `diff`, `verify` and `fingerprint` part by part, in lines and in JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import isomerge as library
from isomerge.errors import IsomergeError
from pipeline_models import save, stable_diffusion
from solve.disguises import disguise
from toys import tensors


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pipeline, and the same whose U-Net was moved by a random element."""
    root = tmp_path_factory.mktemp("pipelines")
    a = save(stable_diffusion(0, checked=False), root / "a")
    b = shutil.copytree(a, root / "b")
    shutil.rmtree(b / "unet")
    shutil.move(disguise("unet", a / "unet", root / "unet", 3), b / "unet")
    return a, b


def test_verify(isomerge: Callable, two: tuple[Path, Path], tmp_path: Path) -> None:
    """Moved, it is the same by every part; with another bias in the text encoder it is not; another VAE, which has no spec,
    leaves it open. Fails where the parts of equal bytes are all that is looked at."""
    a, b = two
    said = isomerge("verify", a, b, "--json", tmp_path / "j.json")
    assert said.code == 0, said.err
    assert "text_encoder: the same bytes." in said.out
    assert "unet: compared." in said.out
    assert "The pipelines: the same by every part." in said.out
    report = json.loads((tmp_path / "j.json").read_text())
    assert report["same"] is True
    assert report["parts"]["unet"]["report"]["same"] is True
    for part, code in (("vae", 3), ("unet", 1)):
        other = shutil.copytree(b, tmp_path / part)
        (file,) = (other / part).glob("*.safetensors")
        stored = tensors(other / part)
        name = "decoder.conv_out.bias" if part == "vae" else "conv_out.bias"
        save_file({**stored, name: stored[name] + 1}, file, metadata={"format": "pt"})
        assert isomerge("verify", a, other).code == code
    assert isomerge("verify", a, b / "unet").code == 2


def refusal(call: Callable[[], Any]) -> str:
    """What Python's door says."""
    with pytest.raises(IsomergeError) as refused:
        call()
    return str(refused.value)


def test_diff_and_fingerprint(isomerge: Callable, two: tuple[Path, Path], tmp_path: Path) -> None:
    """Every part has its verdict, and its hash, which the moved U-Net shares."""
    a, b = two
    said = isomerge("diff", a, b, "--json", tmp_path / "j.json")
    assert said.code == 0, said.err
    report = json.loads((tmp_path / "j.json").read_text())
    assert report["parts"]["vae"] == {"said": "the same bytes", "same": True}
    assert report["parts"]["unet"]["report"]["relative"]["before"] > 0.1
    said = isomerge("fingerprint", a, b, "--json", tmp_path / "f.json")
    assert said.code == 0, said.err
    prints = json.loads((tmp_path / "f.json").read_text())["parts"]
    assert set(prints) == {"unet", "text_encoder"}
    assert prints["unet"]["compared"][0]["verdict"] == "same function"
    assert "vae: no fingerprint, as there is no spec for its class." in said.out
    assert isomerge("fingerprint", a, b / "unet").code == 2
    said = isomerge("fingerprint", a, "--out", tmp_path / "p.json")
    assert said.code == 2
    for refused in (
        said.err,
        *(refusal(f) for f in (lambda: library.fingerprint(a), lambda: library.similarity(a, b))),
    ):
        assert f"{a} is a pipeline, and a" in refused
        assert f"name one of its parts, such as {a}" in refused

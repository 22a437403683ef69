"""Where tensors lie in their files decides nothing: copies whose headers are padded give the same bytes out of
every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isomerge
from depth import EVERY
from isomerge import arithmetic
from isomerge.checkpoint.reader import Checkpoint
from observe.test_fisher_information import labelled
from solve.disguises import disguise, perturb, single

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

PADS = range(8, 64, 8) if EVERY else (8,)
NAMES = ["bert", *(["t5-gated", "gpt2", "llama", "vit", "mixtral"] if EVERY else [])]
Inputs = dict[str, Path]


def padded(path: Path, out: Path, pad: int) -> Path:
    """A copy of a safetensors file, or of a folder of them, whose header ends in that many more spaces."""
    if path.is_dir():
        out.mkdir()
        for file in path.iterdir():
            padded(file, out / file.name, pad)
        return out
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        end = 8 + int.from_bytes(content[:8], "little")
        assert json.loads(content[8:end])
        content = (end - 8 + pad).to_bytes(8, "little") + content[8:end] + b" " * pad + content[end:]
    out.write_bytes(content)
    return out


def merged(**how: Any) -> Callable[[Inputs, Path], Any]:
    """A merge of two models, with whichever of the inputs its options name."""
    return lambda given, out: isomerge.merge(
        [given["a"], given["b"]],
        out=out,
        **{key: [given[n] for n in x] if isinstance(x, list) else given.get(x, x) for key, x in how.items()},
    )


COMMANDS: dict[str, Callable[[Inputs, Path], Any]] = {
    "align": lambda given, out: isomerge.align(given["b"], onto=given["a"], out=out),
    "align, all": lambda given, out: isomerge.align(given["b"], onto=given["a"], out=out, spaces="all"),
    "linear": merged(),
    "ties": merged(method="ties", base_model="base"),
    "fisher": merged(method="fisher", spaces="h,ff", stats=["stats a", "stats b"]),
    "canon": lambda given, out: isomerge.canon(given["b"], out=out),
    "apply": lambda given, out: isomerge.apply(given["alignment"], given["b"], out=out),
}


def written(folder: Path) -> dict[str, bytes]:
    """The weights and the alignment, but not the report, which names the files that were read."""
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}


@pytest.fixture(scope="module", params=NAMES)
def inputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Inputs]:
    """By padding: a model, its disguised relative, a base, statistics and an alignment."""
    name, folder = request.param, tmp_path_factory.mktemp("offsets")
    given = {"base": single(name, folder / "base"), "stats a": folder / "a.stats.safetensors"}
    given |= {"stats b": folder / "b.stats.safetensors", "alignment": folder / "moves.safetensors"}
    given["a"] = perturb(given["base"], folder / "a", 0.1)
    given["b"] = disguise(name, perturb(given["base"], folder / "near", 0.2, seed=1), folder / "b", 3)
    for key in "ab":
        data = labelled(given[key], 2)
        isomerge.stats(given[key], data=data, out=given[f"stats {key}"], kinds="fisher")
    isomerge.align(given["b"], onto=given["a"])[0].save(given["alignment"])
    found = {0: given}
    for pad in PADS:
        (folder / f"{pad}").mkdir()
        found[pad] = {key: padded(path, folder / f"{pad}" / path.name, pad) for key, path in given.items()}
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_padded_headers_change_no_byte(command: str, inputs: dict[int, Inputs], tmp_path: Path) -> None:
    """By as many spaces as move tensors to every place that a processor treats in its own way."""
    COMMANDS[command](inputs[0], tmp_path / "0")
    wanted = written(tmp_path / "0")
    assert "model.safetensors" in wanted
    for pad in PADS:
        COMMANDS[command](inputs[pad], tmp_path / f"{pad}")
        assert written(tmp_path / f"{pad}") == wanted, pad


def test_without_the_mode_tensors_are_copied(
    inputs: dict[int, Inputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next best, where torch had computed before: what is read is where torch has put it, and the report says
    so."""
    COMMANDS["linear"](inputs[0], tmp_path / "0")
    places: list[int] = []
    read = Checkpoint.read

    def seen(self: Checkpoint, name: str, **how: Any) -> Any:
        found = read(self, name, **how)
        places.append(found.data_ptr() % 64)
        return found

    monkeypatch.setattr(Checkpoint, "read", seen)
    monkeypatch.setattr(arithmetic, "mkl_mode", lambda: "AUTO")
    report = COMMANDS["linear"](inputs[8], tmp_path / "8")
    assert set(places) != {0}  # pages of the file, which computes with other addresses
    assert report["arithmetic"]["mkl"] == "AUTO"
    assert report["notes"] == []
    places.clear()
    monkeypatch.setattr(arithmetic, "mkl_mode", lambda: arithmetic.OFF)
    report = COMMANDS["linear"](inputs[8], tmp_path / "off")
    assert set(places) == {0}
    assert report["arithmetic"]["mkl"] == "OFF"
    assert "copied to aligned memory" in report["notes"][-1]
    assert written(tmp_path / "off") == written(tmp_path / "0")

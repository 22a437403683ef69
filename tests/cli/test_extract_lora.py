"""``isomerge extract-lora``: fine-tunes as adapters through the program, and back by ``merge base+adapter``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import isomerge as package
from cli.test_bad_input import refuses
from solve.disguises import single
from toys import overwrite


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Llama, and a fine-tune: its matrices moved by rank 3, one norm moved."""
    folder = tmp_path_factory.mktemp("tuned")
    base, tuned = single("llama", folder / "base"), single("llama", folder / "fine")
    rng = torch.Generator().manual_seed(2)
    weights = load_file(base / "model.safetensors")
    for name, x in weights.items():
        if "proj" in name:
            a, b = (torch.randn(n, 3, generator=rng) for n in x.shape)
            weights[name] = x + 0.05 * a @ b.T
    weights["model.norm.weight"] += 0.25
    overwrite(tuned, weights)
    return tuned, base


def change(out: Path, wanted: Path) -> float:
    """The largest difference of a weight."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, wanted))
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - theirs[n]).abs().max()) for n in ours)


def test_there_and_back(tuned: tuple[Path, Path], isomerge: Callable, tmp_path: Path) -> None:
    """At the rank of the difference, nothing is lost but float32 rounding; below it, what the report says."""
    fine, base = tuned
    lora, report = tmp_path / "lora", tmp_path / "report.json"
    said = isomerge("extract-lora", fine, base, "-o", lora, "--rank", 4, "--save-modules", "--json", report)
    assert said.code == 0, said.err
    found = json.loads(report.read_text())
    assert (found["command"], found["rank"], found["models"]) == ("extract-lora", 3, [str(fine), str(base)])
    assert found["share"] < 1e-5
    assert f"Wrote {lora}: 21 weights by factors of rank 3 or less, 1 tensors whole; 0.00%" in said.out
    one = ["--method", "passthrough", "--no-align"]
    said = isomerge("merge", f"{base}+{lora}", "-o", tmp_path / "back", *one, "-q")
    assert (said.code, said.out) == (0, "")
    assert change(tmp_path / "back", fine) <= 1e-5
    assert change(base, fine) > 0.1


def test_what_is_left_out_is_told(tuned: tuple[Path, Path], isomerge: Callable, tmp_path: Path) -> None:
    """Modules by regular expressions, a smaller rank, a share of energy; the norm is named as lost."""
    fine, base = tuned
    how = ["--include", "mlp|norm", "--exclude", "gate", "--rank", "2", "--energy", "0.999", "-v"]
    said = isomerge("extract-lora", fine, base, "-o", tmp_path / "lora", *how)
    assert said.code == 0, said.err
    assert "6 weights by factors of rank 2 or less" in said.out
    assert "Not described: " in said.out
    assert "model.norm.weight" in said.out
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert {name.rpartition(".")[2] for name in config["target_modules"]} == {"up_proj", "down_proj"}
    assert (config["r"], config["base_model_name_or_path"]) == (2, str(base))


def test_python_replaces_only_when_told(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    """The same by `isomerge.extract_lora`; ``overwrite`` replaces a folder."""
    fine, base = tuned
    first = package.extract_lora(fine, base, out=tmp_path / "lora", rank=1)
    with pytest.raises(package.IsomergeError, match="lora"):
        package.extract_lora(fine, base, out=tmp_path / "lora", rank=3)
    second = package.extract_lora(fine, base, out=tmp_path / "lora", rank=3, overwrite=True)
    assert first["lost"] > second["lost"]
    assert second["tensors"]["model.norm.weight"]["kept"] == "lost"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (["--rank", "0"], ["--rank 0", "1 or more"]),
        (["--energy", "1.5"], ["--energy 1.5", "(0, 1]"]),
        (["--sv-epsilon", "1"], ["--sv-epsilon 1", "[0, 1)"]),
        (["--include", "("], ["--include", "no regular expression"]),
        (["--exclude", "["], ["--exclude", "no regular expression"]),
    ],
)
def test_wrong_options(
    how: list[str], words: list[str], tuned: tuple[Path, Path], isomerge: Callable, tmp_path: Path
) -> None:
    """One line, nothing written."""
    refuses(isomerge, tmp_path, "extract-lora", *tuned, "-o", tmp_path / "lora", *how, words=words)


def test_wrong_models(tuned: tuple[Path, Path], stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Equal models, and models of other architectures."""
    fine, base = tuned
    out = tmp_path / "lora"
    refuses(isomerge, tmp_path, "extract-lora", base, base, "-o", out, words=["equal weights"])
    refuses(
        isomerge, tmp_path, "extract-lora", fine, stored("gpt2", 0), "-o", out, words=["different architectures"]
    )

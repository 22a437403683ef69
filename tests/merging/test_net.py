"""What a method cannot explain stops a run before the output appears: streaming, resumed, on a cluster, by units,
after running models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import isomerge
from isomerge.errors import IsomergeError
from isomerge.fusion import registry
from isomerge.fusion.linear import MIXED
from isomerge.fusion.registry import methods
from isomerge.models.recognised import recognise
from merging.test_merging import tokens
from run.parcel_engine import ParcelEngine, use
from solve.disguises import perturb, single

BAD = {"nan": float("nan"), "infinite": float("inf"), "huge": 1e9}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A toy and three near ones."""
    folder = tmp_path_factory.mktemp("net")
    first = single("gpt2", folder / "a")
    return [first, *(perturb(first, folder / name, 0.05 * k) for k, name in enumerate("bcd", 1))]


def broken(
    name: str, bad: float, monkeypatch: pytest.MonkeyPatch, when: Callable[[Tensor], bool] = lambda t: True
) -> None:
    """From now on a method's result has one entry that is wrong."""
    method = methods()[name]

    def spoilt(*args: Any, **how: Any) -> Any:
        out = method.function(*args, **how)
        x = next(iter(out.values()), torch.empty(0)) if isinstance(out, dict) else out
        if when(x) and x.numel():
            x.view(-1)[x.numel() // 2] = bad
        return out

    monkeypatch.setitem(registry._METHODS, name, replace(method, function=spoilt, entries=None))


def refused(models: Sequence[Path], out: Path, name: str, **how: Any) -> str:
    """The sentence; nothing is left."""
    with pytest.raises(IsomergeError, match=rf"tensor \S+ .*method {name}") as caught:
        isomerge.merge(list(models), out=out, method=name, **how)
    assert not out.exists()
    assert not list(out.parent.glob(".*partial*"))
    return str(caught.value)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("align", [True, False])
def test_streaming(
    models: list[Path], bad: str, align: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weighted sum, a method of pieces, which go to their place in the file, and one of whole tensors."""
    linear = replace(methods()["linear"], entries=lambda *_, **how: MIXED([[1.0], [1e9]]))
    monkeypatch.setitem(registry._METHODS, "linear", linear)
    refused(models[:2], tmp_path / "out", "linear", align=align)
    broken("linear", BAD[bad], monkeypatch, lambda t: t.numel() > 500)
    refused(models[:2], tmp_path / "out", "linear", align=align)
    broken("karcher", BAD[bad], monkeypatch, lambda t: t.numel() > 500)
    refused(models[:3], tmp_path / "out", "karcher", align=align)


def test_a_method_that_fills_files_itself(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TIES writes pieces on its own."""
    from isomerge.fusion import task_vectors

    plain = task_vectors.add_task_vectors
    monkeypatch.setattr(task_vectors, "add_task_vectors", lambda *a, **k: plain(*a, **{**k, "lambda_": 1e9}))
    refused(models[1:3], tmp_path / "out", "ties", base_model=models[0], align=False)
    refused(models[1:3], tmp_path / "out", "ties", base_model=models[0])


def test_layers_as_a_whole(models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of units."""
    broken("circuits", 1e9, monkeypatch)
    refused(models[:2], tmp_path / "out", "circuits")


def test_on_a_cluster(models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers compute is checked there."""
    use(ParcelEngine(), monkeypatch)
    isomerge.merge(models[:2], out=tmp_path / "good", engine="ray")
    broken("karcher", 1e9, monkeypatch)
    with pytest.raises(IsomergeError, match=r"tensor \S+ .*method karcher"):
        isomerge.merge(models[:2], out=tmp_path / "out", method="karcher", engine="ray")


def test_a_run_that_goes_on(models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before the interruption was checked; what comes after it is."""
    seen: list[str] = []

    def stop(unit: str, done: int, total: int) -> None:
        seen.extend([unit] if "aligned already" not in unit else [])
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isomerge.merge(models[:2], out=tmp_path / "out", observer=stop, jobs=1)
    assert list(tmp_path.glob(".*"))
    broken("linear", 1e9, monkeypatch)
    refused(models[:2], tmp_path / "out", "linear", jobs=1)


def test_filters_and_many_models(models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights that a recipe asks for, for some tensors alone, are explained; the same numbers elsewhere are
    not."""
    weights = "[{filter: mlp, value: 4000}, {value: 1}]"
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(
        "merge_method: linear\nparameters: {normalize: false}\ndtype: float32\nmodels:\n"
        + "".join(f"  - model: {m}\n    parameters: {{weight: {weights}}}\n" for m in models)
    )
    isomerge.merge(recipe, out=tmp_path / "out")
    tensors = recognise(models[0]).checkpoint.tensors
    size = next(prod(info.shape) for name, info in tensors.items() if name.endswith("attn.c_attn.weight"))
    broken("linear", 4000.0, monkeypatch, lambda t: t.numel() == size)
    assert "c_attn" in refused_recipe(recipe, tmp_path / "other")


def refused_recipe(recipe: Path, out: Path) -> str:
    """The sentence."""
    with pytest.raises(IsomergeError, match="explain no more than") as caught:
        isomerge.merge(recipe, out=out)
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize("name", ["linear", "regression", "greedy_soup"])
def test_models_that_are_run(
    name: str, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression, soups, and REPAIR after any method: the module is checked before it is written."""
    from isomerge.merging import forward_fusion

    plain = forward_fusion.state_of

    def spoilt(module: Any, first: Any) -> dict[str, Tensor]:
        state = {key: x.clone() for key, x in plain(module, first).items()}
        key = next(k for k in state if k.endswith("mlp.c_fc.weight"))
        state[key][0, 0] = 1e9
        return state

    how = {"repair": tokens(tmp_path)} if name == "linear" else {"data": tokens(tmp_path)}
    if name == "linear":
        isomerge.merge(models[:2], out=tmp_path / "good", method=name, **how)
    monkeypatch.setattr(forward_fusion, "state_of", spoilt)
    refused(models[:2], tmp_path / "out", name, **how)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_what_is_averaged_instead_is_told(
    engine: str, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two short texts and no damping: the notes name the tensors, also on a cluster, and nothing is far from its
    inputs."""
    use(ParcelEngine(), monkeypatch)
    data = tmp_path / "few.safetensors"
    from safetensors.torch import save_file

    save_file({"input_ids": torch.arange(1, 9).reshape(2, 4)}, data)
    stats = []
    for k, model in enumerate(models[:2]):
        stats.append(tmp_path / f"{k}.safetensors")
        isomerge.stats(model, data=data, out=stats[-1], kinds=["kfac", "regmean"])
    report = isomerge.merge(
        models[:2], out=tmp_path / "out", method="regmean", stats=stats, parameters={"alpha": 1.0}, engine=engine
    )
    told = [note for note in report["notes"] if "averaged" in note]
    assert len(told) == 1
    assert told[0].startswith("tensor")
    assert "weight" in told[0]

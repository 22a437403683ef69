"""Task masks: one merged model and a light file per task give each task's model back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.fusion.registry import methods
from solve.disguises import disguise, perturb, single


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of a folder of one file."""
    return load_file(folder / "model.safetensors")


def merged(folder: Path, method: str = "emr") -> tuple[Path, list[Path], Path]:
    """A base, two fine-tunes and what they are merged to."""
    base = single("llama", folder / "base")
    tuned = [perturb(base, folder / f"tuned{k}", 0.1, seed=k) for k in (1, 2)]
    isomerge.merge(tuned, out=folder / "merged", method=method, base_model=base, align=False)
    return base, tuned, folder / "merged"


def test_a_task_comes_back(tmp_path: Path) -> None:
    """Nearer to its fine-tune than the base and the merged model are; by the formula; and the file is small."""
    base, tuned, out = merged(tmp_path)
    origin, unified = weights(base), weights(out)
    for k, model in enumerate(tuned):
        file, back = tmp_path / f"mask{k}.safetensors", tmp_path / f"task{k}"
        report = isomerge.task_mask(out, base, model, out=file)
        assert file.stat().st_size < 0.1 * (out / "model.safetensors").stat().st_size
        isomerge.restore_task(out, base, file, out=back)
        there, own = weights(back), weights(model)
        gaps = {
            tag: sum(float((state[n] - own[n]).square().sum()) for n in own) ** 0.5
            for tag, state in {"back": there, "base": origin, "merged": unified}.items()
        }
        assert report["error"] == pytest.approx(gaps["back"] / gaps["base"], rel=1e-3)
        assert gaps["back"] < 0.8 * min(gaps["base"], gaps["merged"])
        assert report["notes"] == []
        for n, start in origin.items():
            mask = (own[n] - start) * (unified[n] - start) > 0
            torch.testing.assert_close(there[n], start + report["factor"] * mask * (unified[n] - start))
        assert (back / "config.json").exists()


def test_a_single_task_is_itself(tmp_path: Path) -> None:
    """One model's unified task vector is its own: nothing is lost; TALL masks keep all of it too."""
    base = single("llama", tmp_path / "base")
    tuned = perturb(base, tmp_path / "tuned", 0.1, seed=1)
    for kind in ("emr", "tall"):
        report = isomerge.task_mask(tuned, base, tuned, out=tmp_path / f"{kind}.safetensors", kind=kind)
        assert report["factor"] == pytest.approx(1.0)
        assert report["error"] < 1e-3
        isomerge.restore_task(tuned, base, tmp_path / f"{kind}.safetensors", out=tmp_path / kind)
        for n, tensor in weights(tmp_path / kind).items():
            torch.testing.assert_close(tensor, weights(tuned)[n])


def test_a_task_in_other_coordinates_is_told(tmp_path: Path) -> None:
    """A disguised fine-tune agrees with nothing: the report says so; aligned, it comes back."""
    base, (one, two), _ = merged(tmp_path)
    hidden = disguise("llama", one, tmp_path / "hidden", 7)
    isomerge.merge([hidden, two], out=tmp_path / "aligned", method="emr", base_model=base, align=True)
    how = {"base": base, "merged": tmp_path / "aligned"}
    wrong = isomerge.task_mask(task=hidden, out=tmp_path / "wrong.safetensors", **how)
    assert "aligned" in wrong["notes"][0]
    isomerge.align(hidden, onto=base, out=tmp_path / "moved", align=True)
    right = isomerge.task_mask(task=tmp_path / "moved", out=tmp_path / "right.safetensors", **how)
    assert right["notes"] == []
    assert right["error"] < 0.8 < wrong["error"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """One sentence each, and nothing is written."""
    base, (one, two), out = merged(tmp_path)
    file, other = tmp_path / "mask.safetensors", single("gpt2", tmp_path / "other")
    wrong = [
        ((out, base, one), {"kind": "ems"}, "give one of emr, tall"),
        ((out, base, one), {"kind": "tall", "tall_lambda": -1.0}, "at least 0"),
        ((out, base, base), {}, "equal weights"),
        ((out, base, other), {}, "is missing|shape"),
    ]
    for models, how, words in wrong:
        with pytest.raises(IsomergeError, match=words):
            isomerge.task_mask(*models, out=file, **how)
        assert not file.exists()
    isomerge.task_mask(out, base, one, out=file)
    with pytest.raises(IsomergeError, match="exists"):
        isomerge.task_mask(out, base, two, out=file)
    for models, mask, words in (
        ((two, base), file, "made for other models"),
        ((out, base), out / "model.safetensors", "no task mask"),
        ((out, base), out / "config.json", "cannot be read as a task mask"),
    ):
        with pytest.raises(IsomergeError, match=words):
            isomerge.restore_task(*models, mask, out=tmp_path / "back")
        assert not (tmp_path / "back").exists()


def test_experts_in_one_tensor_are_merged_one_by_one(tmp_path: Path) -> None:
    """gpt-oss: each expert is a matrix to TSV-M, and its fused biases, one per expert, are vectors."""
    base = single("gpt_oss", tmp_path / "base")
    tuned = [perturb(base, tmp_path / f"tuned{k}", 0.1, seed=k) for k in (1, 2)]
    isomerge.merge(tuned, out=tmp_path / "out", method="tsv_m", base_model=base, align=False)
    origin, models, found = weights(base), [weights(t) for t in tuned], weights(tmp_path / "out")
    fuse = methods()["tsv_m"].fuse
    names = [n for n in origin if "experts" in n]
    assert any(origin[n].ndim == 3 for n in names)
    for n in names:
        each = [fuse([m[n][k] for m in models], {}, base=origin[n][k]) for k in range(len(origin[n]))]
        torch.testing.assert_close(found[n], torch.stack(each), rtol=1e-4, atol=1e-5)


def test_masks_that_lack_or_add_tensors_are_refused(tmp_path: Path) -> None:
    """A file that was cut or joined; and thresholds that are no numbers."""
    base, tuned, out = merged(tmp_path)
    file = tmp_path / "mask.safetensors"
    for number in (float("nan"), float("inf"), -1.0):
        with pytest.raises(IsomergeError, match="give a finite number of at least 0"):
            isomerge.task_mask(out, base, tuned[0], out=file, kind="tall", tall_lambda=number)
    isomerge.task_mask(out, base, tuned[0], out=file)
    with safe_open(str(file), "pt") as stored:
        header, masks = stored.metadata(), {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    name = "model.layers.0.mlp.up_proj.weight"
    deeper = {**masks, "model.layers.9.mlp.up_proj.weight": masks[name].clone()}
    for content, says in (
        ({n: x for n, x in masks.items() if n != name}, f"lacks tensor {name}"),
        (deeper, "has tensor"),
    ):
        save_file(content, file, header)
        with pytest.raises(IsomergeError, match=says):
            isomerge.restore_task(out, base, file, out=tmp_path / "back")

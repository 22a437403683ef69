"""Parameters of every tensor are looked at before any is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import isomerge
from isomerge.errors import IsomergeError
from isomerge.fusion import registry
from isomerge.merging.fusing import Fuser
from solve.disguises import single
from toys import tensors


def merge(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """The merge of two random models."""
    models = [single(name, folder / str(seed), seed) for seed in (1, 2)]
    return isomerge.merge(models, out=folder / "out", align=False, **options)


def only(name: str, value: float, *rest: float) -> list[dict[str, Any]]:
    """A value for tensors with this part in their names, and perhaps one for the others."""
    return [{"filter": name, "value": value}, *({"value": other} for other in rest)]


REFUSED = {
    "no value for some tensors": (
        "llama",
        {"method": "slerp", "parameters": {"t": only("mlp", 0.5)}},
        "`t` has no value for tensor model.embed_tokens.weight: add one without a filter",
    ),
    "weights of the last expert": (
        "mixtral",
        {"parameters": {"weight": only("experts.1.w3", 0.0, 1.0)}},
        r"tensor .*layers.0.*experts\.1\.w3\.weight: linear: the weights sum to zero",
    ),
    "weights of another method": (
        "llama",
        {"method": "multislerp", "parameters": {"weight": only("down_proj", 0.0, 1.0)}},
        r"tensor model\.layers\.0\.mlp\.down_proj\.weight: multislerp: the weights sum to zero",
    ),
    "windows that filters of several options make": (
        "llama",
        {"method": "della", "parameters": {"density": only("down", 0.95, 1.0), "epsilon": only("mlp", 0.2, 0.1)}},
        r"tensor model\.layers\.0\.mlp\.down_proj\.weight: `epsilon` is 0\.2 with a density of 0\.95",
    ),
    "one value for what is merged together": (
        "mixtral",
        {"method": "regmean", "parameters": {"alpha": only("experts.1.", 0.5, 0.9)}, "data": "lost.txt"},
        r"regmean merges all experts of a layer at once, but parameters differ from those of .*experts\.0",
    ),
    "one value for the model": (
        "llama",
        {"method": "regression", "parameters": {"ridge": only("mlp", 0.5, 0.1)}, "data": "lost.txt"},
        "regression merges whole models at once, but parameters differ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_merged(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that names the tensor; nothing is written."""
    monkeypatch.setattr(Fuser, "fuse", lambda *_, **__: pytest.fail("something was merged"))
    name, options, words = REFUSED[case]
    if options.get("method") in ("slerp", "della"):
        options = {**options, "base_model": tmp_path / "1"}
    with pytest.raises(IsomergeError, match=words):
        merge(tmp_path, name, **options)
    assert not (tmp_path / "out").exists()


def test_filters_that_name_every_tensor(tmp_path: Path) -> None:
    """A parameter without a default needs no value beside its filters where they leave out nothing."""
    t = [*only("mlp", 1.0), *only("attn", 0.0), *only("norm", 0.0), *only("embed", 0.0), *only("head", 0.0)]
    merge(tmp_path, "llama", method="slerp", base_model=tmp_path / "1", parameters={"t": t})
    one, two, out = (tensors(tmp_path / name) for name in ("1", "2", "out"))
    for name in one:
        assert (out[name] - (two if "mlp" in name else one)[name]).abs().max() < 1e-5


def test_methods_of_others_see_what_they_merge_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not tried on numbers that are no weights: shapes may matter to them, and calls may count."""
    seen: list[tuple[int, ...]] = []

    def counted(tensors: list[Any]) -> Any:
        seen.append(tuple(tensors[0].shape))
        return tensors[0]

    monkeypatch.setitem(registry._METHODS, "counted", registry.Method("counted", counted, {}, "none", False, None))
    merge(tmp_path, "llama", method="counted")
    assert len(seen) == len(isomerge.open(tmp_path / "out").tensors)
    assert (8,) not in seen

"""Adapters merged with one another: what peft makes of them (tests/merging/peft_reference.py), and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import isomerge as package
from isomerge.checkpoint.adapter import open_adapter
from isomerge.errors import IsomergeError
from isomerge.fusion import adapter_merges
from isomerge.merging.adapter import merge_lora as writer
from isomerge.models.references import open_model_ref
from merging.peft_reference import DENSITY, HERE, MERGES, WEIGHTS
from models.test_lora import adapter, draw, halves
from toys import save_toy

PEFT = load_file(HERE / "merged.safetensors")
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.2.mlp.down_proj"


def updates(folder: Path) -> dict[str, tuple[Tensor, Tensor, float]]:
    """``B, A`` and the scaling of every module, as `open_adapter` reads them."""
    found = open_adapter(folder)
    read = found.tensors.read
    return {n: (read(u.parts["B"]), read(u.parts["A"]), u.scaling) for n, u in found.updates.items()}


def total(folder: Path) -> dict[str, Tensor]:
    """The update of every module, [out, in], in float64."""
    return {n: s * b.flatten(1).double() @ a.flatten(1).double() for n, (b, a, s) in updates(folder).items()}


def with_pefts_masks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws what peft drew: its generator is torch's global one, so that seeds alone cannot be the same."""

    def mask(_: Tensor, density: float, key: Any) -> Tensor:
        assert density == DENSITY
        return PEFT[f"{name}/{key}"]

    monkeypatch.setattr(writer, "_drawn", lambda _, module: lambda what, k: f"{module}.mask.{what}.{k}")
    monkeypatch.setattr(adapter_merges, "random_entries", mask)


@pytest.mark.parametrize("name", MERGES)
def test_it_is_what_peft_makes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every combination, module by module: halves as they are, products where they are cut (signs of singular vectors
    are nobody's)."""
    how = MERGES[name]
    method = how["combination_type"]
    given: dict[str, Any] = {"method": method, "weights": WEIGHTS, "rank": how.get("svd_rank")}
    given["majority_sign"] = how.get("majority_sign_method", "total")
    given["density"] = DENSITY if method.startswith(("ties", "dare", "magnitude")) else None
    with_pefts_masks(name, monkeypatch)
    report = package.merge_lora([HERE / key for key in how["adapters"]], out=tmp_path / "out", **given)
    ours = updates(tmp_path / "out")
    assert set(ours) == set(report["modules"]) == {"q", "up", "down", "table", "conv"}
    for module, (b, a, scaling) in ours.items():
        theirs = {half: PEFT[f"{name}/{module}.{half}"] for half in "AB"}
        assert scaling == 1
        if method.endswith("svd"):
            wanted = theirs["B"].flatten(1) @ theirs["A"].flatten(1)
            assert a.shape[0] <= theirs["A"].shape[0]
            # singular vectors are as accurate as rounding over the gaps of singular values, here some 1e-2
            assert float((b.flatten(1) @ a.flatten(1) - wanted).abs().max() / wanted.abs().max()) < 2e-5
        else:
            rank = len(a)  # which peft fills up with zeros
            torch.testing.assert_close(a, theirs["A"][:rank], rtol=2e-6, atol=1e-7)
            torch.testing.assert_close(b, theirs["B"][:, :rank], rtol=2e-6, atol=1e-7)
            assert theirs["A"][rank:].abs().sum() == theirs["B"][:, rank:].abs().sum() == 0


def test_the_sum_is_exact_and_the_rest_says_how_far_it_is(tmp_path: Path) -> None:
    """``cat`` is the weighted sum; a full-rank ``svd`` too; the report measures the others against it."""
    pair = [HERE / "one", HERE / "wide"]
    one, two = map(total, pair)
    wanted = {n: sum(w * x[n] for w, x in zip(WEIGHTS, (one, two), strict=True) if n in x) for n in {**one, **two}}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("cat", {}),
        ("svd", {"rank": 99}),
        ("svd", {"rank": 2}),
        ("linear", {}),
    ]
    for method, more in cases:
        models = pair if method != "linear" else [HERE / "one", HERE / "two"]
        out = tmp_path / f"{method}{more}"
        report = package.merge_lora(models, out=out, method=method, weights=WEIGHTS, **more)
        found = total(out)
        if method == "linear":
            assert report["share"] > 0.1
            continue
        norm = sum(float((torch.as_tensor(x) ** 2).sum()) for x in wanted.values()) ** 0.5
        apart = sum(float(((found[n] - wanted[n]) ** 2).sum()) for n in wanted) ** 0.5
        assert report["share"] == pytest.approx(apart / norm, abs=1e-6)
        assert (report["share"] < 1e-6) == (more != {"rank": 2})


def test_draws_depend_on_the_seed_alone(tmp_path: Path) -> None:
    """The same bytes again; other entries with another seed; none left out at a density of 1."""
    pair, bytes_of = [HERE / "one", HERE / "two"], {}
    for name, more in {"0": {}, "again": {}, "1": {"seed": 1}, "all": {"density": 1.0}}.items():
        given = {"method": "dare_linear", "density": 0.5, **more}
        package.merge_lora(pair, out=tmp_path / name, **given)
        bytes_of[name] = (tmp_path / name / "adapter_model.safetensors").read_bytes()
    assert bytes_of["0"] == bytes_of["again"]
    package.merge_lora(pair, out=tmp_path / "linear", method="linear")
    assert bytes_of["all"] == (tmp_path / "linear" / "adapter_model.safetensors").read_bytes()
    assert len(set(bytes_of.values())) == 3


def test_it_merges_into_the_base(tmp_path: Path) -> None:
    """``base+merged`` is the base with both updates, through disk; halves keep their dtype."""
    base = save_toy("llama", tmp_path / "base", dtype=torch.float32)
    made = {"q": halves(Q, 48, 48, 2, seed=1), "both": {**halves(Q, 48, 48, 3, seed=2), **halves(DOWN, 48, 40, 3)}}
    folders = []
    for name, given in made.items():
        given = {key: (x * 0.1).to(torch.bfloat16) for key, x in given.items()}
        folders.append(
            adapter(tmp_path / name, given, base_model_name_or_path=str(base), use_rslora=name == "both")
        )
    package.merge_lora(folders, out=tmp_path / "out", method="cat", weights=[1.0, 0.5])
    assert {x.dtype for x in load_file(tmp_path / "out" / "adapter_model.safetensors").values()} == {torch.bfloat16}
    plain, both = open_model_ref(base).read, open_model_ref(tmp_path / "out").read  # which names its base
    for name, change in {Q: True, DOWN: True, "model.layers.1.self_attn.q_proj": False}.items():
        moved = (both(f"{name}.weight") - plain(f"{name}.weight")).double()
        wanted = torch.zeros_like(moved)
        for w, folder in zip((1, 0.5), folders, strict=True):
            wanted += w * total(folder).get(name, torch.zeros_like(moved))
        assert float((moved - wanted).abs().max()) <= 0.01 * float(wanted.abs().max() if change else 0)


RECIPE = """
merge_method: ties_svd
models:
  - model: {one}
    parameters: {{weight: 0.7}}
  - model: {two}
    parameters: {{weight: -0.4}}
parameters: {{density: 0.5, rank: 3, majority_sign: frequency}}
"""


def test_a_recipe_says_the_same(tmp_path: Path) -> None:
    """mergekit's keys; and the options of the command line."""
    one, two = HERE / "one", HERE / "wide"
    (tmp_path / "r.yml").write_text(RECIPE.format(one=one, two=two))
    report = package.merge_lora(tmp_path / "r.yml", out=tmp_path / "a")
    how = {"method": "ties_svd", "density": 0.5, "rank": 3, "majority_sign": "frequency"}
    package.merge_lora([one, two], out=tmp_path / "b", weights=WEIGHTS, **how)
    assert report["weights"] == WEIGHTS
    assert report["adapters"] == [str(one), str(two)]
    written = [(tmp_path / x / "adapter_model.safetensors").read_bytes() for x in "ab"]
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ties_svd", "slerp", "`merge_method` slerp: adapters are merged by svd, cat"),
        ("density: 0.5", "density: high", "`parameters.density` is 'high': give a number"),
        ("rank: 3", "rank: 3.5", "`parameters.rank` is 3.5: give a whole number"),
        ("rank: 3", "ranks: 3", "unknown key `parameters.ranks`"),
        ("{weight: -0.4}", "{}", "give every adapter a `weight`"),
        ("{weight: -0.4}", "{density: 0.1}", "`models.1` has `density`"),
        ("parameters: {density", "base_model: x\nparameters: {density", "`base_model` has no meaning"),
    ],
)
def test_wrong_recipes(old: str, new: str, words: str, tmp_path: Path) -> None:
    """One sentence with the key."""
    text = RECIPE.format(one=HERE / "one", two=HERE / "wide").replace(old, new)
    (tmp_path / "r.yml").write_text(text)
    with pytest.raises(IsomergeError) as error:
        package.merge_lora(tmp_path / "r.yml", out=tmp_path / "out")
    assert words in str(error.value)
    assert "r.yml: " in str(error.value)
    assert not (tmp_path / "out").exists()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "slerp"}, "merge_lora(..., method='slerp'): adapters are merged by svd"),
    "weights": ({"weights": [1.0]}, "2 finite numbers are needed"),
    "density": ({"method": "ties"}, "keeps a share of the entries"),
    "share": ({"method": "ties", "density": 2.0}, "from 0 to 1"),
    "rank": ({"rank": 0}, "give 1 or more"),
    "sign": ({"method": "ties", "density": 0.5, "majority_sign": "mean"}, "one of total, frequency"),
    "ranks": ({"method": "linear"}, "halves of different ranks have no sum"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options(name: str, tmp_path: Path) -> None:
    """Nothing is written."""
    given, words = WRONG[name]
    with pytest.raises(IsomergeError) as error:
        package.merge_lora([HERE / "one", HERE / "wide"], out=tmp_path / "out", **given)
    assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def _dora(folder: Path) -> None:
    _with(folder, {"base_model.model.q.lora_magnitude_vector": torch.ones(12)})


def _with(folder: Path, tensors: dict[str, Tensor], **config: Any) -> None:
    """Add tensors and settings to an adapter."""
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({**weights, **tensors}, folder / "adapter_model.safetensors")
    said = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**said, **config}))


def _other_shape(folder: Path) -> None:
    _with(folder, {"base_model.model.q.lora_A.weight": draw(4, 17)})


def _endless(folder: Path) -> None:
    _with(folder, {"base_model.model.q.lora_A.weight": torch.full((4, 16), torch.nan)})


DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "dora": (_dora, "is a magnitude of DoRA"),
    "saved": (
        lambda f: _with(f, {"base_model.model.head.weight": torch.ones(2, 2)}),
        "takes the place of the base's",
    ),
    "bias": (lambda f: _with(f, {"base_model.model.q.lora_B.bias": torch.ones(12)}), "moves a bias of the base"),
    "shape": (_other_shape, "are the adapters for one base?"),
    "nan": (_endless, "values that are no numbers"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_needs_the_base_is_refused(name: str, tmp_path: Path) -> None:
    """In one sentence that names the tensor, and nothing is written; so are adapters that do not fit together."""
    damage, words = DAMAGED[name]
    damage(shutil.copytree(HERE / "two", tmp_path / "two"))
    with pytest.raises(IsomergeError) as error:
        package.merge_lora([HERE / "one", tmp_path / "two"], out=tmp_path / "out")
    assert words in str(error.value)
    assert "two" in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["two"]


def test_different_bases_are_told(tmp_path: Path) -> None:
    """In the report; the first one's is written."""
    folders = [shutil.copytree(HERE / name, tmp_path / name) for name in ("one", "two")]
    for folder in folders:
        _with(folder, {}, base_model_name_or_path=f"org/{folder.name}", revision="v1")
    report = package.merge_lora(folders, out=tmp_path / "out")
    assert "different bases (org/one, org/two)" in report["notes"][0]
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/one", "v1")


def test_tokens_of_two_tokenizers_are_no_partners(tmp_path: Path) -> None:
    """Updates of rows that are of other tokens are refused; what one tokenizer alone knows is told."""
    folders = [shutil.copytree(HERE / name, tmp_path / name) for name in ("one", "two")]

    def tokens(*orders: str) -> str:
        for folder, order in zip(folders, orders, strict=True):
            vocab = {"model": {"vocab": {token: row for row, token in enumerate(order)}}}
            (folder / "tokenizer.json").write_text(json.dumps(vocab))
        return f"the tokenizers of {folders[0]} and {folders[1]} differ in "

    said = tokens("ab", "abc")
    report = package.merge_lora(folders, out=tmp_path / "out")
    assert report["notes"][0] == f"{said}1 row: row 2 is nothing and 'c'; rows are taken by their numbers"
    said = tokens("ab", "ba")
    with pytest.raises(IsomergeError) as error:
        package.merge_lora(folders, out=tmp_path / "again")
    assert str(error.value).startswith(f"{said}2 rows: row 0 is 'a' and 'b', and table has such rows")

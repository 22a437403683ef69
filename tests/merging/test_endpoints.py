"""Merges that run the aligned models: their endpoints are what was aligned, in full precision, whatever the anchor
and the heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.discovery.proofs import remember
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import fusion_of
from isomerge.merging.merge_plan import plan_merge
from isomerge.merging.merge_request import MergeRequest
from isomerge.models.recognised import recognise
from isomerge.run.writing_run import Output
from isomerge.solve.match_options import Matching
from merging.test_merging import tokens
from solve.disguises import disguise, single, write_like
from toy_settings import BODY_OF_THREE
from toys import config_of, outputs, randomise, relative, save_toy

ARCHS = Path(isomerge.__file__).parent / "archs"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, its twin, another model and its twin, examples, and statistics of all; read only."""
    folder = tmp_path_factory.mktemp("endpoints")
    a, b = single("llama", folder / "a"), single("llama", folder / "b", 5)
    twins = {f"{m.name} twin": disguise("llama", m, folder / f"twin-{m.name}", 4) for m in (a, b)}
    made = {"a": a, "b": b, **twins, "data": tokens(folder)}
    for name in ("a", "b", *twins):
        made[f"{name} stats"] = folder / f"{name}.stats.safetensors"
        isomerge.stats(
            made[name], data=made["data"], out=made[f"{name} stats"], kinds=["activations", "regmean"], rows=32
        )
    return made


def merged(models: list[Path], out: Path, **how: Any) -> torch.Tensor:
    """The outputs of a merge."""
    isomerge.merge(models, out=out, **{"spaces": "default", **how})
    for file in out.glob("alignment*"):
        file.unlink()
    return outputs(out)


@pytest.mark.parametrize(
    "how",
    [{"repair": "data"}, {"method": "fisher_kfac", "data": "data"}, {"method": "regmean", "data": "data", "repair": "data"}],
    ids=["repair", "statistics", "both"],
)  # fmt: skip
def test_a_twin_onto_which_all_is_moved_gives_the_model_back(
    how: dict, found: dict[str, Path], tmp_path: Path
) -> None:
    """The second pass fuses the moved first model, not the stored one."""
    given = {name: found.get(value, value) for name, value in how.items()}
    got = merged([found["a"], found["a twin"]], tmp_path / "out", onto=found["a twin"], **given)
    assert relative(got, outputs(found["a"])) <= 1e-4


@pytest.mark.parametrize("how", [{"method": "linear", "repair": 1}, {"method": "regression", "data": 1}])
def test_models_in_float64_are_run_in_float64(how: dict[str, Any], tmp_path: Path) -> None:
    """Of a model and its copy REPAIR and regression leave what they were given, to the rounding of float64, images
    of float32 or not."""
    a = save_toy("vit", tmp_path / "a")
    rng = torch.Generator().manual_seed(0)
    save_file({"pixel_values": torch.randn(24, 3, 8, 8, generator=rng)}, tmp_path / "data.safetensors")
    given = {name: tmp_path / "data.safetensors" if value == 1 else value for name, value in how.items()}
    options = {"parameters": {"ridge": 0}} if how["method"] == "regression" else {}
    isomerge.merge([a, a], out=tmp_path / "out", align=False, **given, **options)
    assert relative(outputs(tmp_path / "out"), outputs(a)) <= 1e-10


def test_statistics_files_follow_endpoints(found: dict[str, Path], tmp_path: Path) -> None:
    """Files are of the models as they are stored: where REPAIR has these moved first, the statistics are moved as
    well."""
    got = []
    for other in ("b", "b twin"):
        files = [found["a stats"], found[f"{other} stats"]]
        how = {"method": "regmean", "stats": files, "repair": found["data"]}
        got.append(merged([found["a"], found[other]], tmp_path / other, **how))
    assert relative(got[1], got[0]) <= 1e-4


def test_files_of_the_match_are_the_anchors_first(found: dict[str, Path], tmp_path: Path) -> None:
    """A method takes its statistics from the match's files in the run's order, whichever model is the anchor."""
    how = {"stats_anchor": found["b stats"], "stats_src": [found["a stats"]], "onto": found["b"]}
    merged([found["a"], found["b"]], tmp_path / "match", method="regmean", **how)
    files = [found["a stats"], found["b stats"]]
    merged([found["a"], found["b"]], tmp_path / "own", method="regmean", stats=files, **how)
    one, two = (load_file(tmp_path / tag / "model.safetensors") for tag in ("match", "own"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_anchor_without_alignment_changes_nothing(found: dict[str, Path], tmp_path: Path) -> None:
    """Weights belong to the models as they are listed."""
    how = {"weights": [1.0, 3.0], "repair": found["data"], "align": False, "spaces": None}
    models = [found["a"], found["b"]]
    plain, onto = merged(models, tmp_path / "one", **how), merged(models, tmp_path / "two", onto=models[1], **how)
    assert torch.equal(plain, onto)


@pytest.mark.parametrize(
    "how", [{"repair": "data"}, {"method": "regmean", "data": "data"}], ids=["repair", "statistics"]
)
def test_half_precision_is_rounded_once(how: dict, found: dict[str, Path], tmp_path: Path) -> None:
    """Models in bfloat16 give in float32 what the same numbers in float32 give: no endpoint is rounded on the
    way."""
    narrow = [save_toy("llama", tmp_path / str(k), seed=k, dtype=torch.bfloat16) for k in (0, 1)]
    wide = [
        write_like(f, tmp_path / f"wide{f.name}", lambda x: x.update({k: v.float() for k, v in x.items()}))
        for f in narrow
    ]
    given = {name: found.get(value, value) for name, value in how.items()}
    for models, out in ((narrow, "one"), (wide, "two")):
        isomerge.merge(models, out=tmp_path / out, dtype="float32", spaces="default", **given)
    one, two = (load_file(tmp_path / out / "model.safetensors") for out in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-7)


def of_no_known_type(folder: Path, out: Path) -> Path:
    """The model under a type that no spec knows."""
    write_like(folder, out, lambda tensors: None)
    (out / "config.json").write_text(json.dumps({**config_of(folder), "model_type": "mine"}))
    return out


def test_a_spec_of_the_users_own_describes_endpoints(found: dict[str, Path], tmp_path: Path) -> None:
    """What is made of a model is recognised by the spec that it was recognised by."""
    spec = tmp_path / "my.spec"
    spec.write_text((ARCHS / "decoders" / "llama.spec").read_text().replace("\nmodel llama", "\nmodel mine llama"))
    a, b = (of_no_known_type(found[name], tmp_path / name) for name in ("a", "a twin"))
    # transformers builds no class of this type: the text is Llama's, and proven there
    remember(spec.read_text(), config_of(a), {"proven": True, "refuted": None})
    isomerge.merge([a, b], out=tmp_path / "out", spec=spec, spaces="default", repair=found["data"])
    one, two = (load_file(f / "model.safetensors") for f in (tmp_path / "out", a))
    assert relative(one["lm_head.weight"], two["lm_head.weight"]) <= 1e-4


@pytest.mark.parametrize("onto", [0, 1])
def test_heads_that_were_untied(onto: int, found: dict[str, Path], tmp_path: Path) -> None:
    """The stored models of the control have heads of their own as the aligned ones do, whichever of them is
    aligned."""
    model = single("llama-tied", tmp_path / "model")
    models = [model, disguise("llama-tied", model, tmp_path / "twin", 4)]
    how = {"method": "regression", "data": found["data"], "untie": True, "onto": models[onto]}
    assert relative(merged(models, tmp_path / "out", **how), outputs(model)) <= 1e-3


def test_a_tied_head_that_one_model_stores_as_well(found: dict[str, Path], tmp_path: Path) -> None:
    """The anchor, and a model that is moved, may lack the copy that the first one stores."""
    model = single("gpt2", tmp_path / "model")
    twin = disguise("gpt2", model, tmp_path / "twin", 4)

    def store(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()

    stored = write_like(model, tmp_path / "stored", store)
    for tag, how in (("plain", {"onto": twin}), ("repaired", {"repair": found["data"]})):
        assert relative(merged([stored, twin], tmp_path / tag, **how), outputs(model)) <= 1e-4


def test_a_layer_that_one_model_lacks(tmp_path: Path) -> None:
    """What the first model lacks is left out; what another lacks is told of before anything is run."""
    folders = []
    for seed, kind in enumerate((tf.BertForMaskedLM, tf.BertForPreTraining)):
        module = kind(tf.BertConfig(**{**BODY_OF_THREE, "num_hidden_layers": 1}))
        randomise(module, seed)
        module.tie_weights()
        module.save_pretrained(tmp_path / str(seed))
        folders.append(tmp_path / str(seed))
    ids = torch.randint(1, 60, (12, 10), generator=torch.Generator().manual_seed(3))
    save_file({"input_ids": ids, "labels": ids.where(ids % 3 == 0, -100)}, tmp_path / "data.safetensors")
    how = {"repair": tmp_path / "data.safetensors", "spaces": "default"}
    isomerge.merge(folders, out=tmp_path / "out", **how)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    with pytest.raises(IsomergeError, match=r"0: tensor pooler.dense.weight is missing.*repair=.*name .*0 first"):
        isomerge.merge(folders[::-1], out=tmp_path / "no", **how)
    assert not (tmp_path / "no").exists()


def test_models_in_memory_are_run(found: dict[str, Path], tmp_path: Path) -> None:
    """Without a folder there is no tokenizer, and examples as tensors need none."""
    models: list[Any] = [(load_file(found[k] / "model.safetensors"), config_of(found[k])) for k in ("a", "a twin")]
    got = merged(models, tmp_path / "out", repair=found["data"])
    assert relative(got, outputs(found["a"])) <= 1e-4


def test_what_a_merge_reads_is_part_of_its_key(found: dict[str, Path], tmp_path: Path) -> None:
    """Other data of REPAIR under the same name, another tokenizer, a base of another model: another run."""
    models = [recognise(found["a"]), recognise(found["b"]), recognise(found["a twin"])]
    anchor = recognise(single("llama", tmp_path / "anchor"))
    file = tmp_path / "x.safetensors"

    def keys() -> list[str]:
        ways: list[tuple[list, dict]] = [
            ([models[0], models[1]], {"repair": str(file)}),
            ([anchor, models[1]], {"repair": str(file)}),
            ([models[1], anchor], {"onto": 1, "matching": Matching(data=str(file))}),
        ]
        output = Output(tmp_path / "out")
        asked = [
            (MergeRequest(models=(), fusion=fusion_of(2), align=True, spaces="default", **how), m)
            for m, how in ways
        ]
        return [plan_merge(request, m, output).key() for request, m in asked]

    save_file({"input_ids": torch.ones(4, 5, dtype=torch.long)}, file)
    first, again = keys(), keys()
    assert first == again
    (tmp_path / "anchor" / "tokenizer.json").write_text("{}")
    other = keys()
    assert [one == two for one, two in zip(first, other, strict=True)] == [True, False, False]
    save_file({"input_ids": torch.ones(5, 5, dtype=torch.long)}, file)
    assert not set(keys()) & set(other)
    by_base = set()
    for bases in ([models[2], None], [None, models[2]]):
        fusion = fusion_of(2, method="task_arithmetic", base=True)
        request = MergeRequest(models=(), fusion=fusion, align=True, spaces="default")
        by_base.add(plan_merge(request, [anchor, *models[:2]], Output(tmp_path / "out"), bases=bases).key())
    assert len(by_base) == 2

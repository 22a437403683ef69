"""Pipelines of diffusers merged: they load and sample; components by methods of their own; what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import isomerge as door
from isomerge.commands import pipeline_merges
from isomerge.commands.merge_door import MergeDoor
from isomerge.errors import IsomergeError
from pipeline_models import PIPELINES, picture, save, stable_diffusion, vae
from raw_files import one_sentence
from solve.disguises import disguise
from toys import config_of, overwrite, relative, tensors

MODELS = ("unet", "transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3", "safety_checker")


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Two random pipelines of a kind, which tests leave as they are."""
    root = tmp_path_factory.mktemp("pipelines")

    def make(kind: str) -> tuple[Path, Path]:
        folders = (root / f"{kind}-a", root / f"{kind}-b")
        for seed, folder in zip((0, 10), folders, strict=True):
            if not folder.exists():
                save(PIPELINES[kind](seed), folder)
        return folders

    return make


@pytest.fixture
def two(pipelines: Callable[[str], tuple[Path, Path]]) -> tuple[Path, Path]:
    """Two of Stable Diffusion 1."""
    return pipelines("sd")


def recipe(folder: Path, content: dict[str, Any]) -> Path:
    """A recipe's file."""
    path = folder / "recipe.yml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("kind", list(PIPELINES))
def test_the_mean_of_two_loads_and_samples(kind: str, pipelines: Callable, tmp_path: Path) -> None:
    """Every component that holds weights is the mean of both, all else the first one's, and diffusers makes a
    picture of it that is neither's."""
    a, b = pipelines(kind)
    report = door.merge([a, b], out=tmp_path / "out", align=False)
    out = tmp_path / "out"
    beside = {"isomerge_pipeline.json", "isomerge_recipe.yml", "README.md"}
    assert {path.name for path in a.iterdir()} == {p.name for p in out.iterdir()} - beside
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: diffusers\n")
    assert all(f"\n- {name}: " in card for name in report["components"])
    assert str(a) not in card
    assert "[how](vae/README.md)" in card
    assert (out / "model_index.json").read_bytes() == (a / "model_index.json").read_bytes()
    for name in (path.name for path in a.iterdir() if path.name in MODELS):
        one, other, merged = (tensors(folder / name) for folder in (a, b, out))
        for key, tensor in one.items():
            assert torch.allclose(merged[key], (tensor + other[key]) / 2, atol=1e-6), (name, key)
        assert config_of(out / name) == config_of(a / name)
    for path in (a / "tokenizer").iterdir():
        assert (out / "tokenizer" / path.name).read_bytes() == path.read_bytes()
    seen, first, second = map(picture, (out, a, b))
    assert bool(seen.isfinite().all())
    assert min(relative(seen, first), relative(seen, second)) > 0.05
    assert report["components"]["vae"]["how"] == "merged"
    if kind == "sd":
        assert report["components"]["safety_checker"]["how"] == "copied"
        assert "safety_checker: copied, as all have the same bytes." in report["notes"]
    told = json.loads((out / "isomerge_pipeline.json").read_text())
    assert told["components"].keys() == report["components"].keys()


def test_aligned_with_a_moved_copy_it_is_the_same_pipeline(two: tuple[Path, Path], tmp_path: Path) -> None:
    """A pipeline whose UNet was moved by a random element is the pipeline again, merged with it."""
    a, _ = two
    shutil.copytree(a, tmp_path / "moved")
    moved = disguise("unet", a / "unet", tmp_path / "unet", 3)
    shutil.rmtree(tmp_path / "moved" / "unet")
    shutil.move(moved, tmp_path / "moved" / "unet")
    report = door.merge([a, tmp_path / "moved"], out=tmp_path / "out")
    assert [name for name, row in report["components"].items() if row["how"] == "merged"] == ["unet"]
    for key, tensor in tensors(a / "unet").items():
        assert torch.allclose(tensors(tmp_path / "out" / "unet")[key], tensor, atol=1e-4), key
    assert relative(picture(tmp_path / "out"), picture(a)) < 1e-3
    with pytest.raises(IsomergeError, match=r"is a pipeline, of which every merged component .* such as .*unet"):
        door.fsck(tmp_path / "out")
    assert door.fsck(tmp_path / "out" / "unet")["sound"]


def test_where_a_pipeline_is_pushed_to_is_told(
    isomerge: Callable, two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one model: once, behind all else."""
    pushed: list[tuple[Path, str]] = []
    monkeypatch.setattr("isomerge.commands.pipeline_runs.check_push", lambda repo: None)
    monkeypatch.setattr(
        "isomerge.commands.pipeline_runs.push", lambda folder, repo, **_: pushed.append((folder, repo))
    )
    a, b = map(str, two)
    kept = dict.fromkeys(("unet", "text_encoder", "vae"), f"keep:{a}")
    content = {"merge_method": "linear", "models": [{"model": a}, {"model": b}], **kept}
    said = isomerge("merge", recipe(tmp_path, content), tmp_path / "out", "--push-to-hub", "team/merged")
    assert said.code == 0, said.err
    assert pushed == [(tmp_path / "out", "team/merged")]
    assert said.out.count("Pushed to team/merged.") == 1
    assert said.out.endswith("Pushed to team/merged.\n")


@pytest.mark.parametrize("way", ["beside", "modules"])
def test_components_by_methods_of_their_own(
    way: str, isomerge: Callable, two: tuple[Path, Path], tmp_path: Path
) -> None:
    """A recipe's words for one component count before those for all; kept ones are whole."""
    a, b = map(str, two)
    own = {
        "unet": {"merge_method": "task_arithmetic", "base_model": a, "parameters": {"lambda": 0.25}},
        "text_encoder": {"parameters": {"t": 0.75}},
        "vae": f"keep:{b}",
    }
    content = {
        "merge_method": "slerp",
        "base_model": a,
        "models": [{"model": a}, {"model": b}],
        "parameters": {"t": 0.5},
    }
    content |= own if way == "beside" else {"modules": own}
    said = isomerge("merge", recipe(tmp_path, content), tmp_path / "out", "--no-report")
    assert said.code == 0, said.err
    out, told = tmp_path / "out", " ".join(f"{said.out} {said.err}".split())
    again = isomerge("merge", out / "isomerge_recipe.yml", tmp_path / "again", "--no-report")
    assert again.code == 0, again.err
    for name in ("unet", "text_encoder", "vae"):
        one, two_ = tensors(out / name), tensors(tmp_path / "again" / name)
        assert all(torch.equal(two_[key], tensor) for key, tensor in one.items()), name
    assert f"vae: kept from {b}." in told
    assert "safety_checker: copied, as all have the same bytes." in told
    assert (out / "vae" / "diffusion_pytorch_model.safetensors").read_bytes() == (
        Path(b) / "vae" / "diffusion_pytorch_model.safetensors"
    ).read_bytes()
    one, other, merged = (tensors(Path(folder) / "unet") for folder in (a, b, out))
    for key, tensor in one.items():
        assert torch.allclose(merged[key], tensor + 0.25 * (other[key] - tensor), atol=1e-6), key
    door.merge([Path(a) / "text_encoder", Path(b) / "text_encoder"], out=tmp_path / "apart", align=False,
        method="slerp", base_model=Path(a) / "text_encoder", parameters={"t": 0.75})  # fmt: skip
    apart, merged = tensors(tmp_path / "apart"), tensors(out / "text_encoder")
    assert all(torch.equal(merged[key], tensor) for key, tensor in apart.items())
    assert bool(picture(out).isfinite().all())


def test_a_stopped_run_is_gone_on_with(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Components that are complete are not merged again; the output is not there before all are."""
    calls: list[str] = []
    run = MergeDoor.of_models

    def stopped(self: MergeDoor, models: Any, out: Path, *rest: Any) -> Any:
        calls.append(Path(out).name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(self, models, out, *rest)

    monkeypatch.setattr(MergeDoor, "of_models", stopped)
    with pytest.raises(KeyboardInterrupt):
        door.merge(two, out=tmp_path / "out", align=False)
    assert not (tmp_path / "out").exists()
    door.merge(two, out=tmp_path / "out", align=False)
    first, second, *rest = calls
    assert rest[0] == second
    assert first not in rest
    assert bool(picture(tmp_path / "out").isfinite().all())
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


Refuses = Callable[..., None]


@pytest.fixture
def refuses(isomerge: Callable, tmp_path: Path) -> Refuses:
    """Both doors say so in one sentence, the command with code 2, and nothing is written."""

    def check(models: Any, *words: str, option: str = "") -> None:
        before = sorted(tmp_path.iterdir())
        names = [models] if isinstance(models, Path) else models
        said = isomerge("merge", *names, "-o", tmp_path / "out", *option.split())
        assert said.code == 2
        told = " ".join(said.err.split())
        assert all(word in told for word in words), told
        if not option:
            with pytest.raises(IsomergeError):
                door.merge(models, out=tmp_path / "out")
        assert sorted(path for path in tmp_path.iterdir() if path.suffix != ".lock") == before

    return check


def test_as_a_step_of_a_recipe_of_several(two: tuple[Path, Path], tmp_path: Path) -> None:
    """A pipeline that a step makes is merged by the next, and kept where it is there already."""
    a, b = map(str, two)
    text = [{"model": name} for name in ("mean", b)]
    steps = [
        {"name": "mean", "merge_method": "linear", "models": [{"model": a}, {"model": b}], "unet": "keep"},
        {"merge_method": "linear", "models": text, "unet": "keep:mean", "vae": "keep"},
    ]
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump_all(steps))
    report = door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    assert [step["kept"] for step in report["steps"]] == [False, False]
    one, two_, merged = (tensors(Path(folder) / "text_encoder") for folder in (a, b, tmp_path / "out"))
    for key, tensor in one.items():
        assert torch.allclose(merged[key], 0.25 * tensor + 0.75 * two_[key], atol=1e-6), key
    shutil.rmtree(tmp_path / "out")
    report = door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    assert [step["kept"] for step in report["steps"]] == [True, False]


def test_later_steps_are_checked_before_the_first_is_written(
    two: tuple[Path, Path], pipelines: Callable, tmp_path: Path
) -> None:
    """Pipelines of another class, and such with a component of another class, beside the output of an earlier step. (It was seen
    when that was there.)"""
    a, b = map(str, two)
    xl, _ = pipelines("sdxl")
    shutil.copytree(b, tmp_path / "other")
    index = json.loads((tmp_path / "other" / "model_index.json").read_text())
    index["vae"] = ["diffusers", "AutoencoderTiny"]
    (tmp_path / "other" / "model_index.json").write_text(json.dumps(index))
    first = {"name": "mean", "merge_method": "linear", "models": [{"model": a}, {"model": b}]}
    for bad, said in ((xl, "only pipelines of one class"), (tmp_path / "other", "a AutoencoderTiny")):
        second = {"merge_method": "linear", "models": [{"model": "mean"}, {"model": str(bad)}]}
        (tmp_path / "recipe.yml").write_text(yaml.safe_dump_all([first, second]))
        with pytest.raises(IsomergeError) as error:
            door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
        one_sentence(error.value, "the step without a name", said)
        assert not (tmp_path / "out.steps").exists()


def test_a_step_of_models_is_known_to_a_step_of_pipelines(
    two: tuple[Path, Path], pipelines: Callable, tmp_path: Path
) -> None:
    """What a step of plain models writes stands in a later pipeline: before anything is merged it is seen that it is
    of another class than the component. (It was seen when that was there.)"""
    a, b = two
    wide, _ = pipelines("sdxl")
    whole = {
        "merge_method": "linear",
        "models": [{"model": str(a)}, {"model": str(b)}],
        "vae": "keep",
        "unet": "keep",
    }
    for parts, kind in (
        ((a / "vae", b / "vae"), "AutoencoderKL"),
        ((wide / "text_encoder_2",) * 2, "CLIPTextModelWithProjection"),
    ):
        first = {"name": "part", "merge_method": "linear", "models": [{"model": str(part)} for part in parts]}
        first |= {"align": False}
        (tmp_path / "recipe.yml").write_text(yaml.safe_dump_all([first, {**whole, "text_encoder": "keep:part"}]))
        with pytest.raises(IsomergeError) as error:
            door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
        one_sentence(error.value, "the step without a name", f"gives a {kind}", "is a CLIPTextModel")
        assert not (tmp_path / "out.steps").exists()
    encoders = [{"model": str(folder / "text_encoder")} for folder in two]
    first = {"name": "part", "merge_method": "linear", "models": encoders, "align": False}
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump_all([first, {**whole, "text_encoder": "keep:part"}]))
    door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    merged, one, other = (tensors(f / "text_encoder") for f in (tmp_path / "out", a, b))
    for key, tensor in merged.items():
        assert torch.allclose(tensor, (one[key] + other[key]) / 2, atol=1e-6), key


def test_plans(isomerge: Callable, two: tuple[Path, Path], tmp_path: Path) -> None:
    """A dry run plans every component and writes nothing; without a folder there is no pipeline."""
    said = isomerge("merge", *two, "-o", tmp_path / "out", "--dry-run", "--no-align")
    assert said.code == 0, said.err
    told = " ".join(f"{said.out} {said.err}".split())
    assert all(f"{name}:" in told for name in ("unet", "vae", "text_encoder"))
    assert not (tmp_path / "out").exists()
    assert isomerge("merge", *two, "-o", tmp_path / "out", "--dry-run", "--json", tmp_path / "j.json").code == 2
    with pytest.raises(IsomergeError, match="is a pipeline, which is merged into a folder"):
        door.merge(list(two))


def test_what_does_not_fit_is_refused(
    two: tuple[Path, Path], pipelines: Callable, refuses: Refuses, tmp_path: Path
) -> None:
    """Classes, components, shapes, and models that are no pipelines."""
    a, b = two
    xl, _ = pipelines("sdxl")
    refuses([a, xl], "StableDiffusionPipeline", "StableDiffusionXLPipeline", "one class")
    refuses([a, b / "unet"], str(b / "unet"), "model_index.json", "pipelines alone")
    refuses([a, b], "--tokenizer-source", "several", option="--tokenizer-source union")
    other = tmp_path / "other"
    shutil.copytree(b, other)
    index = json.loads((other / "model_index.json").read_text())

    def with_index(**changed: Any) -> None:
        (other / "model_index.json").write_text(json.dumps({**index, **changed}))

    with_index(unet=["diffusers", "UNet3DConditionModel"])
    refuses([a, other], "unet of", "UNet2DConditionModel", "UNet3DConditionModel")
    with_index(unet=["diffusers"])
    refuses([a, other], "model_index.json", "a library and a class")
    with_index(extra=["diffusers", "AutoencoderKL"])
    refuses([a, other], str(other / "extra"), "missing")
    with_index()
    shorter = tensors(other / "vae")
    shorter["decoder.conv_out.bias"] = shorter["decoder.conv_out.bias"][:2].clone()
    overwrite(other / "vae", shorter)
    (other / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    refuses([a, other], "decoder.conv_out.bias", "[3]", "[2]")


def test_a_model_of_its_own_takes_a_parts_place(two: tuple[Path, Path], refuses: Refuses, tmp_path: Path) -> None:
    """`vae: keep:FOLDER` puts an autoencoder into the pipeline, which makes pictures with it; a model of another class
    is refused. Fails where only pipelines are looked for."""
    a, b = map(str, two)
    alone = tmp_path / "alone"
    vae(40).save_pretrained(alone)
    content = {
        "merge_method": "linear",
        "models": [{"model": a}, {"model": b}],
        "text_encoder": "keep",
        "unet": "keep",
    }
    refuses(recipe(tmp_path, {**content, "vae": f"keep:{a}/unet"}), "gives a UNet2DConditionModel", "AutoencoderKL")
    refuses(recipe(tmp_path, {**content, "vae": f"keep:{tmp_path}/none"}), "the folder of a AutoencoderKL", "none")
    door.merge(recipe(tmp_path, {**content, "vae": f"keep:{alone}"}), out=tmp_path / "out")
    for name in ("config.json", "diffusion_pytorch_model.safetensors"):
        assert (tmp_path / "out" / "vae" / name).read_bytes() == (alone / name).read_bytes()
    seen = picture(tmp_path / "out")
    assert bool(seen.isfinite().all())
    assert relative(seen, picture(two[0])) > 0.05


def test_equal_parts_of_another_calling_class_merge(two: tuple[Path, Path], tmp_path: Path) -> None:
    """A pipeline for images of images has the same parts as one for images of text: what is merged are parts. Fails
    where the classes of pipelines are compared."""
    other = shutil.copytree(two[1], tmp_path / "other")
    index = json.loads((other / "model_index.json").read_text())
    index["_class_name"] = "StableDiffusionImg2ImgPipeline"
    (other / "model_index.json").write_text(json.dumps(index))
    merge = planned([two[0], other], tmp_path)
    assert {one.name for one in merge.components if one.source is not None} == {"unet", "vae", "text_encoder"}


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"modules": {"unett": {"merge_method": "ties"}}}, "`modules.unett`: the pipelines have no such component"),
        ({"unett": {"merge_method": "ties"}}, "`unett`: the pipelines have no such component; there are"),
        ({"autoencoder": "keep:x"}, "`autoencoder`: the pipelines have no such component; there are"),
        ({"unet": {}, "modules": {"unet": {}}}, "`unet` stands beside `modules.unet`"),
        ({"vae": "drop"}, "`vae` is 'drop': write a mapping"),
        ({"vae": "keep:C"}, "`vae` is keep:C: name a pipeline that has it, or the folder of a AutoencoderKL"),
        ({"unet": {"merge_methud": "ties"}}, "(component unet)"),
    ],
)
def test_recipes_that_are_wrong(
    own: dict[str, Any], says: str, two: tuple[Path, Path], refuses: Refuses, tmp_path: Path
) -> None:
    """Keys and words."""
    content = {"merge_method": "linear", "models": [{"model": str(path)} for path in two], **own}
    refuses(recipe(tmp_path, content), says)


def test_what_a_pipeline_lacks_is_kept_from_another(two: tuple[Path, Path], tmp_path: Path) -> None:
    """A safety checker that one of two has is in the output, whichever is first, and that is said; so is what a recipe
    keeps. Fails where the first pipeline alone says which components there are."""
    bare = save(stable_diffusion(20, checked=False), tmp_path / "bare")
    for models in ([bare, two[0]], [two[0], bare]):
        merge = planned(models, tmp_path)
        assert {"feature_extractor", "safety_checker"} <= {part.name for part in merge.components}
        assert f"safety_checker: kept from {two[0]}, as {bare} has none." in merge.lines()
        content = {"merge_method": "linear", "models": [{"model": str(model)} for model in models]}
        kept = planned(recipe(tmp_path, {**content, "safety_checker": "keep"}), tmp_path)
        assert f"safety_checker: kept from {two[0]}." in kept.lines()


def planned(models: Any, tmp_path: Path) -> pipeline_merges.PipelineMerge:
    """What becomes of the components."""
    from isomerge.options import AligningOptions, FusingOptions, OpeningOptions, OutputOptions, SpacesOptions

    how: dict[str, Any] = {"moving": SpacesOptions(), "opening": OpeningOptions(), "writing": OutputOptions()}
    fusing = FusingOptions(aligning=AligningOptions(align=False))
    found = pipeline_merges.pipeline_merge(models, tmp_path / "out", fusing=fusing, **how, more={})
    assert found is not None
    return found


def test_text_encoders_of_other_tokens_are_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    """One number is another word by the pipelines' tokenizers; what all but text encoders need is merged."""
    a, b = two
    shutil.copytree(b, tmp_path / "b")
    file = next(
        path for path in (tmp_path / "b" / "tokenizer").iterdir() if path.name in ("vocab.json", "tokenizer.json")
    )
    content = json.loads(file.read_text())
    words = content if file.name == "vocab.json" else content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    file.write_text(json.dumps(content))
    with pytest.raises(IsomergeError) as error:
        door.merge([a, tmp_path / "b"], out=tmp_path / "out", align=False)
    one_sentence(error.value, "differ in 2 rows", "text_encoder", "text_encoder: keep")
    assert not (tmp_path / "out").exists()
    models = [{"model": str(folder)} for folder in (a, tmp_path / "b")]
    kept = {"merge_method": "linear", "models": models, "parameters": {"weight": 1}, "text_encoder": "keep"}
    report = door.merge(recipe(tmp_path, kept), out=tmp_path / "out")
    assert report["components"]["text_encoder"]["how"] != "merged"

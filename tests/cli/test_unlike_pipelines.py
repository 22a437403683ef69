"""Pipelines and single files that are not alike: of other input channels, without a part, of another form, of variants;
what is copied is written in the dtype that is asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import isomerge as door
import single_file_layouts
from isomerge.checkpoint.pipeline import open_pipeline
from isomerge.errors import IsomergeError
from pipeline_models import inpainting, picture, save, stable_diffusion
from single_file_models import single_file
from toys import tensors

FIRST = "model.diffusion_model.input_blocks.0.0.weight"
"""What reads the input channels in a single file."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A Stable Diffusion, another one, and one for inpainting, whose U-Net reads nine channels."""
    root = tmp_path_factory.mktemp("unlike")
    folders = [
        save(stable_diffusion(seed, checked=False), root / name) for seed, name in ((0, "base"), (10, "photo"))
    ]
    wide = save(inpainting(20, checked=False), root / "inpaint")
    index = json.loads((wide / "model_index.json").read_text())
    (wide / "model_index.json").write_text(json.dumps({**index, "_class_name": "StableDiffusionInpaintPipeline"}))
    return folders[0], folders[1], wide


def files(folder: Path) -> list[Path]:
    """Single files: a base, a fine-tune, and one with nine input channels."""
    made = [single_file("sd1", folder / f"{name}.safetensors", 0, change) for name, change in
            (("base", 0.0), ("photo", 0.02), ("inpaint", 0.03))]  # fmt: skip
    stored = load_file(made[2])
    behind = torch.randn(len(stored[FIRST]), 5, 3, 3, generator=torch.Generator().manual_seed(0))
    save_file({**stored, FIRST: torch.cat([stored[FIRST], behind], 1)}, made[2])
    return made


@pytest.mark.parametrize("order", [(2, 1), (1, 2)])
def test_a_file_for_inpainting(order: tuple[int, int], tmp_path: Path) -> None:
    """`inpaint + (photo - base)` in single files, whatever comes first: a file with nine channels, exact in each. Fails
    where the base says how tensors are stored."""
    every = files(tmp_path)
    door.merge([every[k] for k in order], base_model=every[0], out=tmp_path / "out", method="task_arithmetic")
    base, photo, wide = map(load_file, every)
    merged = load_file(tmp_path / "out" / "inpaint.safetensors")
    assert merged.keys() == wide.keys()
    for name, tensor in merged.items():
        wanted = wide[name].clone()
        place = wanted[:, : base[name].shape[1]] if name == FIRST else wanted
        place += photo[name] - base[name]
        assert torch.allclose(tensor, wanted, atol=1e-5), name
    assert not [path.name for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.parametrize("kept", [False, True])
def test_the_class_is_that_of_the_channels(kept: bool, three: tuple[Path, ...], tmp_path: Path) -> None:
    """A U-Net of nine channels stands in a pipeline for inpainting, merged or kept, in the index, the report and the card.
    Fails where the first pipeline gives the class."""
    base, photo, wide = map(str, three)
    content: dict[str, Any] = {
        "merge_method": "task_arithmetic",
        "base_model": base,
        "models": [{"model": wide}, {"model": photo}],
    }
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump({**content, **({"unet": f"keep:{wide}"} if kept else {})}))
    report = door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "unet" / "config.json").read_text())["in_channels"] == 9
    assert report["pipeline"] == open_pipeline(tmp_path / "out").kind == "StableDiffusionInpaintPipeline"
    assert "A StableDiffusionInpaintPipeline of" in (tmp_path / "out" / "README.md").read_text()
    assert any("whose input channels it has" in note for note in report["notes"])
    merged, one, other, zero = (tensors(Path(f) / "unet") for f in (tmp_path / "out", wide, photo, base))
    wanted = one["conv_in.weight"].clone()
    wanted[:, :4] += 0 if kept else other["conv_in.weight"] - zero["conv_in.weight"]
    assert torch.allclose(merged["conv_in.weight"], wanted, atol=1e-5)


def test_channels_of_no_pipeline_are_refused(three: tuple[Path, ...], tmp_path: Path) -> None:
    """A U-Net of nine channels that stands alone is of a pipeline that nobody named."""
    shutil.copytree(three[2] / "unet", tmp_path / "unet")
    content = {
        "merge_method": "linear",
        "models": [{"model": str(f)} for f in three[:2]],
        "unet": f"keep:{tmp_path}/unet",
    }
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(content))
    with pytest.raises(IsomergeError, match="4 input channels and what is kept in its place 9"):
        door.merge(tmp_path / "recipe.yml", out=tmp_path / "out")


@pytest.mark.parametrize("first", [0, 1])
def test_without_an_autoencoder(first: int, three: tuple[Path, ...], tmp_path: Path) -> None:
    """Whichever comes first, the one that there is makes the pictures, and that is said. Fails where a merge stops, or
    leaves it out."""
    bare = shutil.copytree(three[1], tmp_path / "bare")
    shutil.rmtree(bare / "vae")
    index = json.loads((bare / "model_index.json").read_text())
    (bare / "model_index.json").write_text(json.dumps({**index, "vae": [None, None]}))
    models = [bare, three[0]] if first else [three[0], bare]
    report = door.merge(models, out=tmp_path / "out", align=False)
    assert f"vae: kept from {three[0]}, as {bare} has none." in report["notes"]
    assert bool(picture(tmp_path / "out").isfinite().all())


@pytest.mark.parametrize("first", [0, 1])
def test_constants_of_the_steps(first: int, tmp_path: Path) -> None:
    """What one file has of them is kept, whichever comes first, and a recipe may name what is not there. Fails where they
    are taken for weights."""
    a, b = (single_file("sd1", tmp_path / f"{name}.safetensors", 0, 0.1 * k) for k, name in enumerate("ab"))
    save_file({n: t for n, t in load_file(a).items() if n != "alphas_cumprod"}, a)
    save_file({**load_file(b), "betas": torch.rand(10)}, b)
    models = [b, a] if first else [a, b]
    content = {"merge_method": "linear", "models": [{"model": str(m)} for m in models], "schedule": "keep"}
    (tmp_path / "recipe.yml").write_text(yaml.safe_dump(content))
    for source in (models, tmp_path / "recipe.yml"):
        report = door.merge(source, out=tmp_path / "out", overwrite=True)
        assert any(note.startswith(f"schedule: kept from {b}") for note in report["notes"])
        merged = load_file(tmp_path / "out" / models[0].name)
        assert all(torch.equal(merged[name], load_file(b)[name]) for name in ("betas", "alphas_cumprod"))


def test_copied_weights_have_the_dtype(three: tuple[Path, ...], tmp_path: Path) -> None:
    """`--dtype` is of all weights of a pipeline and of a file; constants and numbers of places stay. Fails where bytes are
    copied."""
    equal = shutil.copytree(three[1], tmp_path / "equal")
    shutil.rmtree(equal / "vae")
    shutil.copytree(three[0] / "vae", equal / "vae")
    door.merge([three[0], equal], out=tmp_path / "out", align=False, dtype="float16")
    for name in ("unet", "text_encoder", "vae"):
        assert {t.dtype for t in tensors(tmp_path / "out" / name).values() if t.is_floating_point()} == {
            torch.float16
        }
    kept, stored = tensors(tmp_path / "out" / "vae"), tensors(three[0] / "vae")
    assert all(torch.equal(kept[name], tensor.half()) for name, tensor in stored.items())
    assert (tmp_path / "out" / "vae" / "config.json").read_bytes() == (
        three[0] / "vae" / "config.json"
    ).read_bytes()
    a, b = (single_file("sd1", tmp_path / f"{name}.safetensors", 0, 0.1 * k) for k, name in enumerate("ab"))
    for path in (a, b):
        own = {n: t for n, t in load_file(path).items() if not n.startswith("first_stage_model.")}
        save_file({**own, **single_file_layouts.vae(1, "first_stage_model.")}, path)
    door.merge([a, b], out=tmp_path / "file", align=False, dtype="float16")
    merged = load_file(tmp_path / "file" / "a.safetensors")
    assert {n for n, t in merged.items() if t.dtype == torch.float32} == {"alphas_cumprod"}
    assert {path.name for path in (tmp_path / "file" / "reports").iterdir()} == {"unet"}


def test_a_file_and_a_folder(three: tuple[Path, ...], tmp_path: Path) -> None:
    """What one has beside the parts of the other makes no other class, neither the rest of a file nor an autoencoder: the
    parts that both have are compared. Parts that tell are named. Fails where all parts must be there."""
    file = single_file("sd1", tmp_path / "a.safetensors", 0)
    with pytest.raises(IsomergeError) as error:
        door.merge([file, three[0]], out=tmp_path / "out")
    assert f"{file}:unet" in error.value.sentence
    other = single_file("xl", tmp_path / "b.safetensors", 0)
    stored = {n.replace("conditioner.embedders.0.", "other."): t for n, t in load_file(other).items()}
    save_file(stored, other)
    with pytest.raises(IsomergeError) as error:
        door.merge([other, three[0]], out=tmp_path / "out")
    assert (
        "whose parts differ (none; text_encoder is a CLIPTextModel, vae is a AutoencoderKL)" in error.value.sentence
    )


def test_a_part_of_another_class_comes_with_it(three: tuple[Path, ...], tmp_path: Path) -> None:
    """A pipeline for depth has a model for that, which goes where its input channels go. Fails where pipelines must have
    the same parts."""
    deep = shutil.copytree(three[2], tmp_path / "deep")
    shutil.copytree(deep / "text_encoder", deep / "depth_estimator")
    index = json.loads((deep / "model_index.json").read_text())
    index |= {
        "_class_name": "StableDiffusionDepth2ImgPipeline",
        "depth_estimator": ["transformers", "CLIPTextModel"],
    }
    (deep / "model_index.json").write_text(json.dumps(index))
    door.merge([three[0], deep], out=tmp_path / "out", align=False)
    assert open_pipeline(tmp_path / "out").kind == "StableDiffusionDepth2ImgPipeline"
    assert tensors(tmp_path / "out" / "depth_estimator").keys() == tensors(deep / "depth_estimator").keys()


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ("vae", "has a vae alone"),
        ("ckpt", "is a pickle"),
        ("lora", "is a LoRA and no model"),
        ("other", "is no folder of a pipeline"),
    ],
)
def test_what_is_no_pipeline_is_called_what_it_is(
    beside: str, says: str, three: tuple[Path, ...], tmp_path: Path
) -> None:
    """A file beside a pipeline: an autoencoder, a pickle, a LoRA, anything else, with the way out. Fails where each file is
    taken for a LoRA."""
    path = tmp_path / f"x.{'ckpt' if beside == 'ckpt' else 'safetensors'}"
    content: dict[str, Any] = {
        "vae": {n: t.contiguous() for n, t in single_file_layouts.vae(3, "").items()},
        "lora": {"lora_unet_a.lora_down.weight": torch.ones(1, 2), "lora_unet_a.lora_up.weight": torch.ones(2, 1)},
        "other": {"a.weight": torch.ones(2)},
    }
    torch.save({}, path) if beside == "ckpt" else save_file(content[beside], path)
    with pytest.raises(IsomergeError) as error:
        door.merge([three[0], path], out=tmp_path / "out")
    assert says in error.value.sentence
    if beside == "vae":
        assert f"`vae: keep:{path}`" in error.value.sentence


def test_a_strength_is_no_part(three: tuple[Path, ...], tmp_path: Path) -> None:
    """`+FILE:0.8` is answered with the way to a strength; another word is not."""
    content = {"lora_unet_a.lora_down.weight": torch.ones(1, 2), "lora_unet_a.lora_up.weight": torch.ones(2, 1)}
    save_file(content, tmp_path / "l.safetensors")
    for part, says in (("0.8", "--method task_arithmetic --weights 0.8 -o OUT"), ("vae", "there are model")):
        with pytest.raises(IsomergeError) as error:
            door.merge([f"{three[0]}+{tmp_path}/l.safetensors:{part}"], out=tmp_path / "out", method="passthrough")
        assert error.value.sentence.endswith(says)


def variant(folder: Path, out: Path) -> Path:
    """A pipeline as diffusers saves its variant fp16."""
    shutil.copytree(folder, out)
    for path in out.glob("*/*.safetensors"):
        path.rename(path.with_suffix(".fp16.safetensors"))
    return out


def test_variants_are_read(three: tuple[Path, ...], tmp_path: Path) -> None:
    """Where one variant is all that there is it is read, and the output is loaded without a word for it, what is copied
    too; of two none is taken. Fails where a copy keeps the variant's name."""
    a, b = (variant(folder, tmp_path / folder.name) for folder in three[:2])
    shutil.rmtree(b / "vae")
    shutil.copytree(a / "vae", b / "vae")
    door.merge([a, b], out=tmp_path / "out", align=False)
    assert bool(picture(tmp_path / "out").isfinite().all())
    one, other, merged = (tensors(folder / "unet") for folder in (*three[:2], tmp_path / "out"))
    assert all(torch.allclose(merged[name], (t + other[name]) / 2, atol=1e-6) for name, t in one.items())
    file = next((a / "unet").glob("*.fp16.safetensors"))
    shutil.copyfile(file, file.with_name(file.name.replace("fp16", "bf16")))
    with pytest.raises(IsomergeError, match="weights of the variants bf16, fp16 alone"):
        door.merge([a / "unet", b / "unet"], out=tmp_path / "none", align=False)


def test_pages_on_parts_name_folders_that_last(isomerge: Callable, three: tuple[Path, ...], tmp_path: Path) -> None:
    """A page on a component says where it will stand; of a file's part nothing is said to be written there. Fails with the
    folder in which the output grows."""
    said = isomerge("merge", *three[:2], "-o", tmp_path / "out", "--no-align")
    assert said.code == 0, said.err
    page = (tmp_path / "out" / "unet" / "report.html").read_text()
    assert ".partial" not in page
    assert str(tmp_path / "out" / "unet") in page
    assert "Wrote" not in "".join(line for line in said.out.splitlines() if "linear merge of" in line)

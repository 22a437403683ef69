"""LoRAs of image models as they are published: merged into pipelines, components and single files they give the weights
that diffusers fuses (`image_lora_reference.py`); merged with each other; extracted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors.torch import load_file, save_file

import isomerge as door
import single_file_layouts
from image_loras import FORMS, lora, pipeline_of
from isomerge.errors import IsomergeError
from isomerge.models.references import open_assembled, open_model_ref
from merging.image_lora_reference import HERE, NOTED, probes
from toys import overwrite, tensors

TOLERANCE = 2e-6
"""Of a change times random numbers, relative to the largest of a model's: diffusers adds products in float32, and folds
alphas into the halves."""


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """Pipelines, in memory and saved, by a name of `FORMS`."""
    root = tmp_path_factory.mktemp("pipelines")
    known: dict[str, tuple[Any, Path]] = {}

    def made(name: str) -> tuple[Any, Path]:
        kind = name.split("-")[0]
        if kind not in known:
            pipeline = pipeline_of(name)
            pipeline.save_pretrained(root / kind)
            known[kind] = pipeline, root / kind
        return known[kind]

    return made


def saved(path: Path, name: str, pipeline: Any, **how: Any) -> Path:
    """The file of a LoRA."""
    content, metadata = lora(name, pipeline, **how)
    save_file(content, path, metadata=metadata or None)
    return path


def apart(mine: dict[str, float], wanted: dict[str, float]) -> list[str]:
    """Of the same tensors those that did not change as much."""
    assert mine.keys() == wanted.keys()
    size = max(map(abs, wanted.values()), default=0.0)
    return [n for n, x in wanted.items() if abs(mine[n] - x) > TOLERANCE * size]


def views(ref: str, *parts: str) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of a pipeline's components, adapters merged in; nothing is written."""
    components = open_assembled(ref).components
    opened = {part: open_model_ref(components[part].ref) for part in parts if part in components}
    return {part: {name: one.read(name) for name in one.tensors} for part, one in opened.items()}


@pytest.mark.parametrize("name", list(FORMS))
def test_it_is_what_diffusers_fuses(name: str, pipelines: Callable, tmp_path: Path) -> None:
    """Every form, of every part: the same tensors change, each as it does by `load_lora_weights` and `fuse_lora`. Fails
    with an alpha that does not count, rows or halves in another order, or a part at another encoder."""
    pipeline, folder = pipelines(name)
    file = saved(tmp_path / "lora.safetensors", name, pipeline)
    wanted = json.loads(HERE.read_text())[name]
    before, after = views(str(folder), *NOTED), views(f"{folder}+{file}", *NOTED)
    for part, values in wanted.items():
        assert apart(probes(before[part], after[part]), values) == [], part


def test_into_a_pipeline_and_a_component(pipelines: Callable, tmp_path: Path) -> None:
    """`merge PIPELINE+LORA` writes a pipeline that diffusers loads, with the parts that the LoRA has; a U-Net alone takes
    its part of a folder, and a part may be named."""
    pipeline, folder = pipelines("sd-kohya")
    (tmp_path / "lora").mkdir()
    file = saved(tmp_path / "lora" / "pytorch_lora_weights.safetensors", "sd-kohya", pipeline)
    report = door.merge([f"{folder}+{tmp_path / 'lora'}"], out=tmp_path / "out", method="passthrough")
    how = {name: row["how"] for name, row in report["components"].items()}
    assert {name for name, each in how.items() if each == "merged"} == {"unet", "text_encoder"}
    wanted = views(f"{folder}+{file}", "unet")["unet"]
    model: Any = UNet2DConditionModel.from_pretrained(tmp_path / "out" / "unet", low_cpu_mem_usage=False)
    assert all(torch.equal(tensor, wanted[key]) for key, tensor in model.state_dict().items())
    for ref in (f"{folder / 'unet'}+{tmp_path / 'lora'}", f"{folder / 'unet'}+{file}:model"):
        view = open_model_ref(ref)
        assert all(torch.equal(view.read(key), tensor) for key, tensor in wanted.items())
    with pytest.raises(IsomergeError, match=r"no part 'text_encoder_2': there are text_encoder, model"):
        open_model_ref(f"{folder / 'unet'}+{file}:text_encoder_2")
    with pytest.raises(IsomergeError, match=r"layer lora_te_\w+ is none of .*unet"):
        open_model_ref(f"{folder / 'unet'}+{file}:text_encoder")
    with pytest.raises(IsomergeError, match=r"none of .*vae"):
        open_model_ref(f"{folder / 'vae'}+{file}")


def test_a_recipe_of_pipelines_with_loras(pipelines: Callable, tmp_path: Path) -> None:
    """In recipes a pipeline with a LoRA is a model like any other, also where a part of it is kept."""
    pipeline, folder = pipelines("sd-peft")
    file = saved(tmp_path / "lora.safetensors", "sd-peft", pipeline)
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(
        f"merge_method: linear\nmodels: [{{model: {folder}}}, {{model: {folder}+{file}}}]\ntext_encoder: keep:{folder}+{file}\n"
    )
    door.merge(recipe, out=tmp_path / "out")
    before, after = views(str(folder), "unet"), views(f"{folder}+{file}", "unet", "text_encoder")
    for key, tensor in tensors(tmp_path / "out" / "unet").items():
        assert torch.allclose(tensor, (before["unet"][key] + after["unet"][key]) / 2, atol=1e-6), key
    kept = tensors(tmp_path / "out" / "text_encoder")
    assert all(torch.equal(kept[key], tensor) for key, tensor in after["text_encoder"].items())


def test_into_a_single_file(tmp_path: Path) -> None:
    """FLUX as Black Forest Labs stores it, with a LoRA for rows of its tensors: the sum is in these rows, whether the
    file's layers or diffusers' are named. Fails where the rows of queries, keys and values are not told apart."""
    tensors = single_file_layouts.flux(0)
    save_file(tensors, tmp_path / "flux.safetensors")
    rng = torch.Generator().manual_seed(3)
    content, changes = {}, {}
    for layer in ("double_blocks.1.img_attn.qkv", "single_blocks.0.linear1", "final_layer.adaLN_modulation.1"):
        out, into = tensors[f"{layer}.weight"].shape
        down, up = torch.randn(2, into, generator=rng), torch.randn(out, 2, generator=rng)
        stem = f"lora_unet_{layer.replace('.', '_')}"
        content |= {
            f"{stem}.lora_down.weight": down,
            f"{stem}.lora_up.weight": up,
            f"{stem}.alpha": torch.tensor(1.0),
        }
        changes[f"{layer}.weight"] = 0.5 * up @ down
    save_file(content, tmp_path / "lora.safetensors")
    ref = f"{tmp_path}/flux.safetensors+{tmp_path}/lora.safetensors"
    door.merge([ref], out=tmp_path / "out", method="passthrough")
    merged = load_file(tmp_path / "out" / "flux.safetensors")
    for name, tensor in tensors.items():
        torch.testing.assert_close(merged[name], tensor + changes.get(name, torch.zeros(())))
    del content["lora_unet_single_blocks_0_linear1.lora_up.weight"]
    save_file(content, tmp_path / "lora.safetensors")
    with pytest.raises(IsomergeError, match="lacks its lora_B"):
        open_assembled(ref)


@pytest.mark.parametrize(
    ("kind", "other"),
    [("sd-kohya", "sd-kohya"), ("sd-peft", "sd-lora.down"), ("sd-kohya", "sd-peft"), ("sd-metadata", "sd-kohya")],
)
def test_merged_with_each_other(kind: str, other: str, pipelines: Callable, tmp_path: Path) -> None:
    """`merge-lora --method cat` gives the weighted sum of what both do, of one form or two; peft's adapters are another
    kind. A layer is one whatever the file calls it: fails where ``text_model`` makes two of it, or an alpha does not
    count."""
    pipeline, folder = pipelines(kind)
    files = [saved(tmp_path / f"{k}.safetensors", name, pipeline, seed=k) for k, name in enumerate((kind, other))]
    report = door.merge_lora(files, out=tmp_path / "out", weights=[0.5, 2.0], method="cat")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pytorch_lora_weights.safetensors"]
    assert report["share"] < 1e-6
    if "sd-kohya" in (kind, other):
        flat = {name.rpartition(".lora_")[0] for name in load_file(files[(kind, other).index("sd-kohya")])} - {""}
        assert len(report["modules"]) == len(flat)
    before, one, two, both = (
        views(ref, "unet", "text_encoder")
        for ref in (str(folder), *(f"{folder}+{x}" for x in (*files, tmp_path / "out")))
    )
    for part, stored in before.items():
        for key, x in stored.items():
            wanted = x + 0.5 * (one[part][key] - x) + 2.0 * (two[part][key] - x)
            assert torch.allclose(both[part][key], wanted, atol=2e-5), (part, key)


def test_what_is_no_lora_of_images(pipelines: Callable, tmp_path: Path) -> None:
    """Other kinds of adapters, layers that the model lacks, halves that do not fit, two files in a folder: one sentence,
    which names the tensor."""
    pipeline, folder = pipelines("sd-kohya")
    content, _ = lora("sd-kohya", pipeline)
    first = next(iter(content)).removesuffix(".lora_down.weight")

    def refuses(changed: dict[str, Any], words: str) -> None:
        save_file({k: v for k, v in {**content, **changed}.items() if v is not None}, tmp_path / "x.safetensors")
        with pytest.raises(IsomergeError, match=words):
            views(f"{folder}+{tmp_path}/x.safetensors", "unet", "text_encoder")

    refuses({"lora_unet_mid.hada_w1_a": torch.ones(2, 2)}, r"'lora_unet_mid.hada_w1_a' is of no LoRA that is known")
    refuses({f"{first}.lora_up.weight": None}, r"lacks its lora_B")
    refuses({f"{first}.lora_up.weight": torch.ones(8, 3)}, r"the other half has rank 2")
    refuses({f"{first}.lora_up.weight": torch.ones(99, 2)}, r"do not fit tensor")
    refuses(
        {
            "lora_unet_nowhere.lora_down.weight": torch.ones(2, 4),
            "lora_unet_nowhere.lora_up.weight": torch.ones(4, 2),
        },
        r"layer lora_unet_nowhere is none of",
    )
    refuses({f"{first}.dora_scale": torch.ones(1, 4)}, "a magnitude for every input")
    twice = {"unet.a.lora_A.weight": torch.ones(2, 2), "unet.a.lora.down.weight": torch.ones(2, 2)}
    save_file(twice, tmp_path / "x.safetensors")
    with pytest.raises(IsomergeError, match="are the same part of one layer"):
        door.merge_lora([tmp_path / "x.safetensors"], out=tmp_path / "out")
    save_file(content, tmp_path / "y.safetensors")
    with pytest.raises(IsomergeError, match="holds 2 LoRAs"):
        door.merge_lora([tmp_path], out=tmp_path / "out")


def test_kernels_over_ranks(tmp_path: Path) -> None:
    """A convolution of three factors (LyCORIS): down, a kernel over ranks, up."""
    UNet2DConditionModel(
        block_out_channels=(8,), norm_num_groups=4, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), cross_attention_dim=8,
        attention_head_dim=4, layers_per_block=1,
    ).save_pretrained(tmp_path / "unet")  # fmt: skip
    rng = torch.Generator().manual_seed(0)
    down, mid, up = (torch.randn(shape, generator=rng) for shape in ((2, 4, 1, 1), (2, 2, 3, 3), (8, 2, 1, 1)))
    content = {"down": down, "mid": mid, "up": up}
    save_file(
        {f"lora_unet_conv_in.lora_{word}.weight": x for word, x in content.items()}, tmp_path / "x.safetensors"
    )
    view, stored = (
        open_model_ref(f"{tmp_path}/unet+{tmp_path}/x.safetensors"),
        open_model_ref(str(tmp_path / "unet")),
    )
    wanted = torch.einsum("oi,ijxy,jk->okxy", up[..., 0, 0], mid, down[..., 0, 0])
    assert torch.allclose(view.read("conv_in.weight"), stored.read("conv_in.weight") + wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["sd-kohya", "sdxl-kohya", "flux-kohya"])
def test_extracted_from_two_pipelines(name: str, pipelines: Callable, tmp_path: Path) -> None:
    """A pipeline with a LoRA minus the pipeline is a LoRA in diffusers' form, whatever form the first has: layers of U-Nets
    and transformers, convolutions, and those of CLIP that diffusers takes; with it the pipeline is the first again."""
    pipeline, folder = pipelines(name)
    file = saved(tmp_path / "lora.safetensors", name, pipeline)
    report = door.extract_lora(f"{folder}+{file}", folder, out=tmp_path / "out", rank=16)
    assert {row["kept"] for row in report["tensors"].values()} == {"lora"}
    assert {row["rank"] for row in report["tensors"].values()} == {2}
    names = list(load_file(tmp_path / "out" / "pytorch_lora_weights.safetensors"))
    assert {name.split(".")[0] for name in names} <= {"unet", "transformer", "text_encoder", "text_encoder_2"}
    assert all(".text_model." in name for name in names if name.startswith("text_encoder"))
    one, two = (views(f"{folder}+{each}", *NOTED) for each in (file, tmp_path / "out"))
    for part, stored in one.items():
        for key, x in stored.items():
            assert torch.allclose(two[part][key], x, atol=2e-5), (part, key)


def test_extracted_from_names_of_two_versions(pipelines: Callable, tmp_path: Path) -> None:
    """A text encoder whose tensors have ``text_model`` before their names, and numbers of places beside them, minus one
    without: what merges can be extracted. Fails where stored names are compared."""
    _, folder = pipelines("sd-kohya")
    other = shutil.copytree(folder, tmp_path / "other")
    stored = {name.removeprefix("text_model."): tensor for name, tensor in tensors(other / "text_encoder").items()}
    for start in ("text_model.", ""):
        own = {f"{start}{name}": tensor for name, tensor in stored.items()}
        tuned = f"{start}encoder.layers.0.mlp.fc1.weight"
        own[tuned] = own[tuned] + 0.1
        own[f"{start}embeddings.position_ids"] = torch.arange(8)[None]
        (other / "text_encoder" / "model.safetensors").unlink()
        save_file(own, other / "text_encoder" / "model.safetensors", metadata={"format": "pt"})
        for one, two in ((other, folder), (folder, other)):
            report = door.extract_lora(one, two, out=tmp_path / "out", overwrite=True)
            assert [row["kept"] for row in report["tensors"].values()] == ["lora"]
        before, after = (views(ref, "text_encoder") for ref in (str(other), f"{other}+{tmp_path}/out"))
        assert torch.allclose(after["text_encoder"][tuned], before["text_encoder"][tuned] - 0.1, atol=1e-5)


def test_extracted_from_two_unets(pipelines: Callable, tmp_path: Path) -> None:
    """Of two U-Nets it is for the U-Net of a pipeline; what has no factors is told as lost, equal models are refused."""
    _, folder = pipelines("sd-kohya")
    unet = shutil.copytree(folder / "unet", tmp_path / "unet")
    stored = tensors(unet)
    stored["conv_in.weight"] = stored["conv_in.weight"] + 0.1
    stored["conv_in.bias"] = stored["conv_in.bias"] + 0.1
    overwrite(unet, stored)
    report = door.extract_lora(unet, folder / "unet", out=tmp_path / "out")
    assert {name: row["kept"] for name, row in report["tensors"].items()} == {
        "unet.conv_in.weight": "lora",
        "unet.conv_in.bias": "lost",
    }
    assert set(load_file(tmp_path / "out" / "pytorch_lora_weights.safetensors")) == {
        "unet.conv_in.lora_A.weight",
        "unet.conv_in.lora_B.weight",
    }
    with pytest.raises(IsomergeError, match="weights are equal"):
        door.extract_lora(folder / "unet", folder / "unet", out=tmp_path / "other")
    with pytest.raises(IsomergeError, match="no model differs"):
        door.extract_lora(folder, folder, out=tmp_path / "other")
    with pytest.raises(IsomergeError, match="is a pipeline, and the other is none"):
        door.extract_lora(folder, folder / "unet", out=tmp_path / "other")

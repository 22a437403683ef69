"""U-Nets of which one reads further channels (inpainting, depth, instructions), and what is merged with it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors.torch import save_file

import isomerge as door
from isomerge.errors import IsomergeError
from isomerge.models.input_channels import of_equal_channels
from isomerge.models.lora import with_adapter
from isomerge.models.references import open_model_ref
from toys import config_of, tensors

CONFIG: dict[str, Any] = {
    "block_out_channels": (8,), "norm_num_groups": 4, "down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",),
    "cross_attention_dim": 8, "attention_head_dim": 4, "layers_per_block": 1,
}  # fmt: skip

CONV = "conv_in.weight"


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """A base, a fine-tune of it, and an inpainting model of nine channels."""
    names = []
    for seed, (name, channels) in enumerate((("base", 4), ("anime", 4), ("inpaint", 9))):
        torch.manual_seed(seed)
        UNet2DConditionModel(**CONFIG, in_channels=channels).save_pretrained(tmp_path / name)
        names.append(str(tmp_path / name))
    return names


def pipeline(unet: str, kind: str) -> str:
    """A pipeline of this U-Net alone."""
    folder = Path(unet).parent / f"p-{Path(unet).name}"
    folder.mkdir()
    Path(unet).rename(folder / "unet")
    index = {"_class_name": kind, "unet": ["diffusers", "UNet2DConditionModel"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    return str(folder)


@pytest.mark.parametrize("whole", [False, True])
def test_task_vectors_are_on_the_first_channels(whole: bool, three: list[str], tmp_path: Path) -> None:
    """inpaint + (anime - base): the further channels are inpaint's, whatever class calls the U-Nets, and it is told. Fails
    where the further channels are zero in the base, as then they count twice."""
    first = {name: tensors(Path(name)) for name in three}
    base, anime, inpaint = (first[name] for name in three)
    if whole:
        kinds = ("StableDiffusionPipeline", "StableDiffusionPipeline", "StableDiffusionInpaintPipeline")
        three = [pipeline(unet, kind) for unet, kind in zip(three, kinds, strict=True)]
    report = door.merge(
        [three[2], three[1]], out=tmp_path / "out", base_model=three[0], method="task_arithmetic", align=False
    )
    out = tmp_path / "out" / "unet" if whole else tmp_path / "out"
    notes = report["components"]["unet"]["report"]["notes"] if whole else report["notes"]
    assert any("has 4 input channels and" in note and "on the first 4" in note for note in notes)
    if not whole:  # the base, which has inpaint's further channels, keeps its own files' checksum
        files = (Path(three[k]) / "diffusion_pytorch_model.safetensors" for k in (0, 2, 1))
        sums = [f"crc32:{zlib.crc32(file.read_bytes()):08x}" for file in files]
        assert [row["checksum"] for row in report["checksums"]] == sums
    merged = tensors(out)
    wanted = inpaint["conv_in.weight"].clone()
    wanted[:, :4] += anime["conv_in.weight"] - base["conv_in.weight"]
    torch.testing.assert_close(merged["conv_in.weight"], wanted)
    name = "conv_out.weight"
    torch.testing.assert_close(merged[name], inpaint[name] + anime[name] - base[name])
    assert config_of(out)["in_channels"] == 9
    model: Any = UNet2DConditionModel.from_pretrained(out, low_cpu_mem_usage=False)
    seen = model(torch.ones(1, 9, 8, 8), 3, torch.ones(1, 2, 8)).sample
    assert bool(seen.isfinite().all())


def test_updates_are_not_rounded_with_further_channels(tmp_path: Path) -> None:
    """A model with a LoRA beside one of more channels: of an update of a hundredth of float16's rounding nothing is
    left where either is read as it is stored."""
    for name, channels in (("base", 4), ("inpaint", 9)):
        UNet2DConditionModel(**CONFIG, in_channels=channels).half().save_pretrained(tmp_path / name)
    stored = [open_model_ref(tmp_path / name) for name in ("base", "inpaint")]
    updated = [
        with_adapter(stored[k], conv_in_lora(tmp_path / f"{n}.safetensors", n)) for k, n in enumerate((4, 9))
    ]
    for few, many, changed in ((updated[0], stored[1], slice(0, 4)), (stored[0], updated[1], slice(4, 9))):
        seen = of_equal_channels([few, many])[0]
        plain = torch.cat([stored[0].read(CONV), stored[1].read(CONV)[:, 4:]], 1).float()
        gap = seen.read(CONV, exact=True).float() - plain
        torch.testing.assert_close(gap[:, changed], torch.full_like(gap[:, changed], 1e-6), rtol=0.1, atol=0)
        assert seen.read(CONV).dtype == torch.float16


def conv_in_lora(file: Path, channels: int) -> Path:
    """An update of the first layer that adds a little everywhere."""
    halves = {"lora_A": torch.ones(1, channels, 3, 3), "lora_B": torch.full((8, 1, 1, 1), 1e-6)}
    save_file({f"unet.conv_in.{half}.weight": x for half, x in halves.items()}, file)
    return file


def test_other_shapes_are_refused_as_ever(three: list[str], tmp_path: Path) -> None:
    """Output channels that differ as well, and a mean of models that are equal but for the channels."""
    UNet2DConditionModel(**CONFIG, in_channels=9, out_channels=8).save_pretrained(tmp_path / "other")
    with pytest.raises(IsomergeError, match="in_channels is 4 and 9"):
        door.merge([three[0], tmp_path / "other"], out=tmp_path / "out", align=False)
    door.merge([three[1], three[2]], out=tmp_path / "out", align=False)
    merged, anime, inpaint = (tensors(path)["conv_in.weight"] for path in (tmp_path / "out", *map(Path, three[1:])))
    torch.testing.assert_close(merged[:, :4], (anime + inpaint[:, :4]) / 2)
    torch.testing.assert_close(merged[:, 4:], inpaint[:, 4:])

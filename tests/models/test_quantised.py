"""Quantised checkpoints are read as the weights that they stand for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import isomerge
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.errors import IsomergeError
from isomerge.merging.merge_request import request_of_models
from isomerge.merging.opened_models import opened
from isomerge.models.quantised import dequantised
from toys import config_of, outputs, save_toy

FP8 = {"quant_method": "fp8", "weight_block_size": [16, 12]}


def stored(folder: Path, weights: dict[str, Tensor], how: dict[str, Any], dtype: str = "float32") -> Path:
    """A checkpoint that says how it is quantised."""
    folder.mkdir(exist_ok=True)
    save_file(
        {n: t.contiguous() for n, t in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "x", "dtype": dtype, "quantization_config": how}))
    return folder


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors, through the view."""
    checkpoint = dequantised(open_checkpoint(folder))
    return {name: checkpoint.read(name) for name in checkpoint.tensors}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("factors", "how"),
    [
        ((2, 3), FP8),
        ((3, 32), {"quant_method": "compressed-tensors", "_": "groups of columns, no size stated"}),
        ((24, 1), {"quant_method": "fbgemm_fp8"}),
        ((24,), {"quant_method": "compressed-tensors"}),
        ((), {"quant_method": "modelopt"}),
        ((1,), {"quant_method": "modelopt"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("narrow", [torch.float8_e4m3fn, torch.int8])
def test_factors(factors: tuple[int, ...], how: dict[str, Any], narrow: torch.dtype, tmp_path: Path) -> None:
    """For blocks (the last ones cut short), groups, rows and whole tensors: entry by entry."""
    weight = (10 * drawn(24, 32)).to(narrow)
    scale = drawn(*factors, seed=1).abs() + 0.1
    end = "_scale_inv" if how is FP8 else "_scale"
    tensors = {
        "p.weight": weight,
        f"p.weight{end}": scale,
        "p.input_scale": torch.ones(()),
        "n": drawn(4).bfloat16(),
    }
    found = read(stored(tmp_path / "q", tensors, how))
    assert set(found) == {"p.weight", "n"}
    assert torch.equal(found["n"], tensors["n"])
    rows, columns = how.get("weight_block_size", (None, None))
    wide = scale.reshape(*scale.shape, *(1,) * (2 - scale.ndim))
    for i in range(24):
        for j in range(32):
            row = i // rows if rows else i * wide.shape[0] // 24
            column = j // columns if columns else j * wide.shape[1] // 32
            assert found["p.weight"][i, j] == weight[i, j].float() * wide[row, column]


def test_zero_points_and_stacks(tmp_path: Path) -> None:
    """Integers count from their zero point; experts in one tensor have blocks each; bfloat16 is rounded to once."""
    weight = torch.randint(-128, 127, (3, 8, 6), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    scale, zero = drawn(3, 8, 1).abs(), torch.full((3, 8, 1), 5, dtype=torch.int8)
    tensors = {"e": weight, "e_scale": scale, "e_zero_point": zero}
    found = read(stored(tmp_path / "q", tensors, {"quant_method": "compressed-tensors"}, "bfloat16"))
    assert torch.equal(found["e"], ((weight.float() - 5) * scale).bfloat16())
    eighths = drawn(3, 32, 24).to(torch.float8_e5m2)
    powers = torch.randint(120, 130, (3, 2, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    found = read(stored(tmp_path / "p", {"e": eighths, "e_scale_inv": powers}, FP8))
    assert torch.equal(found["e"][2, 17, 13], eighths[2, 17, 13].float() * powers[2, 1, 1].float())
    assert len({float(p) for p in powers.float().flatten()}) > 1


def test_microscaled_blocks(tmp_path: Path) -> None:
    """As transformers unpacks gpt-oss."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2, 6, 3, 16), generator=rng, dtype=torch.uint8)
    scales = torch.randint(118, 130, (2, 6, 3), generator=rng, dtype=torch.uint8)
    tensors = {"e.down_proj_blocks": blocks, "e.down_proj_scales": scales}
    found = read(stored(tmp_path / "q", tensors, {"quant_method": "mxfp4"}, "bfloat16"))
    assert found.keys() == {"e.down_proj"}
    assert found["e.down_proj"].shape == (2, 96, 6)
    assert torch.equal(found["e.down_proj"], convert_moe_packed_tensors(blocks, scales))


def quantised(folder: Path, out: Path) -> tuple[Path, Path]:
    """A model with its projections in 8 bits; and the same function with plain weights."""
    narrow, plain = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        plain[name] = narrow[name] = tensor
        if "proj" in name:
            blocks = torch.nn.functional.max_pool2d(tensor.abs()[None], (16, 12), ceil_mode=True)[0] / 400
            wide = blocks.repeat_interleave(16, 0)[: len(tensor)].repeat_interleave(12, 1)[:, : tensor.shape[1]]
            narrow[name] = (tensor / wide).to(torch.float8_e4m3fn)
            narrow[f"{name}_scale_inv"] = blocks
            plain[name] = narrow[name].float() * wide
    found = []
    for weights, tag, more in ((narrow, "narrow", {"quantization_config": FP8}), (plain, "plain", {})):
        stored(out / tag, weights, FP8)
        (out / tag / "config.json").write_text(json.dumps({**config_of(folder), **more}))
        found.append(out / tag)
    return found[0], found[1]


def test_they_are_merged(tmp_path: Path) -> None:
    """Aligned and merged as the weights that they stand for; the output is plain, and says what it was made
    from."""
    other = save_toy("llama", tmp_path / "other", seed=1, dtype=torch.float32)
    narrow, plain = quantised(save_toy("llama", tmp_path / "a", dtype=torch.float32), tmp_path)
    for tag, model in (("from-narrow", narrow), ("from-plain", plain)):
        report = isomerge.merge([other, model], out=tmp_path / tag)
    said = json.loads((tmp_path / "from-narrow" / "isomerge.json").read_text())
    assert any("stored as fp8" in note for note in said["notes"])
    assert not any("stored as" in note for note in report["notes"])
    assert "quantization_config" not in config_of(tmp_path / "from-narrow")
    one, two = (load_file(tmp_path / tag / "model.safetensors") for tag in ("from-narrow", "from-plain"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.isfinite(outputs(tmp_path / "from-narrow")).all()
    assert isomerge.verify(narrow, plain)["same"]


def test_slices_of_an_open_checkpoint(tmp_path: Path) -> None:
    """It stands for the same weights as its folder."""
    narrow, plain = quantised(save_toy("llama", tmp_path / "a", dtype=torch.float32), tmp_path)
    model = isomerge.open(narrow)
    job = replace(request_of_models([model, model]), stacks=(((model, (0, 2)),), ((model, (1, 3)),)))
    wanted = open_checkpoint(plain)
    for at, view in enumerate(opened(job)):
        name = "model.layers.{}.mlp.up_proj.weight"
        assert torch.equal(view.read(name.format(1)), wanted.read(name.format(1 + at)))


PACKED = {
    "p.qweight": torch.zeros(4, 8, dtype=torch.int32),
    "p.qzeros": torch.zeros(1, 1, dtype=torch.int32),
    "p.scales": torch.ones(1, 8),
}
WRONG = {
    "gptq": (PACKED, {"quant_method": "gptq"}, r"model.safetensors: tensor p.qweight is packed \(I32\) by gptq"),
    "nothing stated": (PACKED, {}, r"packed \(I32\) by an unnamed method"),
    "too few factors": (
        {"p.weight": torch.zeros(24, 32, dtype=torch.int8), "p.weight_scale": torch.ones(5, 1)},
        {"quant_method": "compressed-tensors"},
        r"p.weight_scale of shape \[5, 1\] has no factors for p.weight of shape \[24, 32\]",
    ),
    "blocks and their factors": (
        {"p_blocks": torch.zeros(2, 6, 3, 16, dtype=torch.uint8), "p_scales": torch.zeros(2, 6, dtype=torch.uint8)},
        {"quant_method": "mxfp4"},
        r"p_scales of shape \[2, 6\] has no factors for p_blocks",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_refused(case: str, tmp_path: Path) -> None:
    """Before a weight is read, in a sentence."""
    tensors, how, words = WRONG[case]
    folder = stored(tmp_path / "q", tensors, how)
    with pytest.raises(IsomergeError, match=words):
        dequantised(open_checkpoint(folder))
    with pytest.raises(IsomergeError, match=words):
        isomerge.merge([folder, folder], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_not_quantised_stays(tmp_path: Path) -> None:
    """Configs that only speak of quantisation, for weights that are plain, keep it: their classes may need it."""
    checkpoint = open_checkpoint(stored(tmp_path / "q", {"p.weight": drawn(3, 4)}, {"quant_method": "bitnet"}))
    assert dequantised(checkpoint) is checkpoint


@pytest.mark.parametrize("how", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "awq"}, FP8, {}], ids=str)
def test_plain_weights_that_are_said_to_be_packed(how: dict[str, Any], tmp_path: Path) -> None:
    """transformers makes modules that have no place for them: the key, the tensor and what to do are named."""
    folder = stored(tmp_path / "plain", {"a.weight": drawn(8, 8), "a.bias": drawn(8)}, how)
    with pytest.raises(
        IsomergeError, match=r"quantization_config \(.*but a\.weight and all.*\(F32\).*take quantization_config out"
    ):
        dequantised(open_checkpoint(folder))


@pytest.mark.parametrize(
    "how",
    [{"load_in_8bit": True}, {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "unheard"}],
    ids=str,
)
def test_plain_weights_that_are_rounded_when_loaded(how: dict[str, Any], tmp_path: Path) -> None:
    """By methods that take plain numbers, or of which transformers takes no notice: they are let pass."""
    assert read(stored(tmp_path / "plain", {"a.weight": drawn(8, 8)}, how))

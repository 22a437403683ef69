"""Models of plain torch, with the names under which they are stored: timm's vision transformers, and torch's own
transformer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class PlainModel(nn.Module):
    """What `toys` asks of a model: saved with a config.json, and loaded again by it."""

    config: dict[str, Any]

    def save_pretrained(self, folder: Path) -> None:
        """Weights and config.json, as a hub's folder has them."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({n: t.contiguous() for n, t in self.state_dict().items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))


class Scaled(nn.Module):
    """A layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class FusedAttention(nn.Module):
    """Attention with one projection, block by block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = self.qkv(x).reshape(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = (q @ k.mT / (width // self.heads) ** 0.5).softmax(-1) @ v
        return self.proj(seen.transpose(1, 2).reshape(count, length, width))


class Feedforward(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class PatchBlock(nn.Module):
    """A pre-LN block, with layer scales or without."""

    def __init__(self, width: int, heads: int, hidden: int, scaled: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = FusedAttention(width, heads), Feedforward(width, hidden)
        self.ls1, self.ls2 = (Scaled(width), Scaled(width)) if scaled else (nn.Identity(), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class Patches(nn.Module):
    """The embedding of patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).mT


class TimmViT(PlainModel):
    """A vision transformer under timm's names: the head's norm is ``norm``, or ``fc_norm`` behind a mean over
    patches."""

    def __init__(self, *, scaled: bool = False, normed: bool = False, pooled: bool = False, **more: Any) -> None:
        super().__init__()
        width, heads, hidden = 48, 6, 40
        args = {"num_heads": heads, "scaled": scaled, "normed": normed, "pooled": pooled}
        self.config = {"architecture": "vit_small_patch4_8", "num_classes": 5, "num_features": width, **more}
        self.config["model_args"] = args
        self.patch_embed = Patches(width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, width))
        self.norm_pre = nn.LayerNorm(width) if normed else nn.Identity()
        self.blocks = nn.Sequential(*(PatchBlock(width, heads, hidden, scaled) for _ in range(2)))
        self.norm = nn.Identity() if pooled else nn.LayerNorm(width)
        self.fc_norm = nn.LayerNorm(width) if pooled else nn.Identity()
        self.head = nn.Linear(width, 5)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patch_embed(pixel_values)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        x = self.norm(self.blocks(self.norm_pre(x)))
        pooled = x[:, 1:].mean(1) if self.config["model_args"]["pooled"] else x[:, 0]
        return self.head(self.fc_norm(pooled))


class TorchTransformer(PlainModel):
    """`torch.nn.Transformer` between embeddings and a head: nothing but torch's own layers, and an empty
    config.json."""

    def __init__(self, *, norm_first: bool = False) -> None:
        super().__init__()
        self.config = {}
        self.source, self.target = nn.Embedding(67, 48), nn.Embedding(67, 48)
        self.positions = nn.Embedding(16, 48)
        self.transformer = nn.Transformer(48, 6, 2, 2, 40, 0.0, batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(48, 67)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        here = [table(ids) + self.positions.weight[: ids.shape[1]] for table, ids in (
            (self.source, input_ids), (self.target, decoder_input_ids),
        )]  # fmt: skip
        mask = nn.Transformer.generate_square_subsequent_mask(decoder_input_ids.shape[1], dtype=here[0].dtype)
        return self.head(self.transformer(*here, tgt_mask=mask))


def load_plain(folder: Path) -> PlainModel | None:
    """The model of a folder that `PlainModel` wrote; None where it is another's."""
    config = json.loads((folder / "config.json").read_text())
    if config and "architecture" not in config:
        return None
    args = config.get("model_args", {})
    model = TimmViT(**{k: args[k] for k in ("scaled", "normed", "pooled")}) if args else TorchTransformer()
    stored = load_file(folder / "model.safetensors")
    model.to(stored["head.weight"].dtype).load_state_dict(stored)
    return model.eval()


def plain_outputs(model: PlainModel) -> Tensor:
    """The outputs of a plain model on fixed inputs."""
    rng = torch.Generator().manual_seed(7)
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        if isinstance(model, TimmViT):
            return model(torch.randn(3, 3, 8, 8, generator=rng, dtype=torch.float64).to(dtype))
        return model(*(torch.randint(1, 60, (3, length), generator=rng) for length in (11, 7)))

"""Image sets as `{train,test}.safetensors`: `images` uint8 [n, height, width] and `labels` int64 [n]."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FASHION_FILES = {  # file -> sha256 of its content, unpacked
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
IMAGES_HEADER, LABELS_HEADER = 16, 8  # bytes of an idx file before the numbers


def write_split(path: Path, images: Tensor, labels: Tensor) -> None:
    from safetensors.torch import save_file

    save_file({"images": images.contiguous(), "labels": labels.long().contiguous()}, path)


def fashion_mnist(content: Path, out: Path) -> None:
    """Write Fashion-MNIST with its own split of 60000 and 10000."""
    import torch

    for split, prefix in (("train", "train"), ("test", "t10k")):
        pixels, labels = (
            torch.frombuffer(
                bytearray((content / f"{prefix}-{kind}-ubyte").read_bytes()[header:]), dtype=torch.uint8
            )
            for kind, header in (("images-idx3", IMAGES_HEADER), ("labels-idx1", LABELS_HEADER))
        )
        write_split(out / f"{split}.safetensors", pixels.view(-1, 28, 28), labels)

"""Train the two small vision transformers that the demo merges.

Each is a Hugging Face `ViTForImageClassification` trained from scratch on scikit-learn's 8x8 scanned digits:

    python examples/train_digits.py --seed 0 --out examples/digits/vit-a
    python examples/train_digits.py --seed 1 --out examples/digits/vit-b
    python examples/train_digits.py --compare examples/digits/vit-a examples/digits/vit-b

The seed sets the initialisation, the order of the images and the augmentation, so two seeds share nothing but
the architecture and the training images. The weights kept are those of the last step: the test split takes no
part in training or in choosing anything (`--validate` is what the settings below were chosen with).
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil
from transformers.utils import logging

EPOCHS = 300
BATCH_SIZE = 64
PEAK_LR = 2e-3
WARMUP_EPOCHS = 8
WEIGHT_DECAY = 0.05
LABEL_SMOOTHING = 0.02
MAX_SHIFT = 0.6  # pixels
MAX_TURN_DEGREES = 15.0
MAX_STRETCH = 0.15
MAX_SLANT = 0.2
PIXEL_MAX = 16.0
BACKGROUND = -1.0


def load_split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `(train_x, train_y, test_x, test_y)`, the same for every seed.

    Images are float32 `[n, 1, 8, 8]` and labels int64 `[n]`. A pixel p of 0..16 becomes
    `(p / 16 - 0.5) / 0.5`: paper is -1, full ink is +1, and nothing is estimated from the data. The split is
    `train_test_split(range(1797), test_size=0.25, random_state=0, stratify=labels)` of scikit-learn: 1347
    training images and 450 test images, in the order that call returns them.
    """
    digits = load_digits()
    images = (torch.tensor(digits.images, dtype=torch.float32) / PIXEL_MAX - 0.5) / 0.5
    images, labels = images.unsqueeze(1), torch.tensor(digits.target, dtype=torch.int64)
    indices = range(len(labels))
    train, test = train_test_split(indices, test_size=0.25, random_state=0, stratify=digits.target)
    return images[train], labels[train], images[test], labels[test]


def build_model(seed: int) -> ViTForImageClassification:
    """Return a freshly initialised classifier; `seed` alone decides its weights."""
    names = {label: str(label) for label in range(10)}
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_act="gelu",
        image_size=8,
        patch_size=2,
        num_channels=1,
        layer_norm_eps=1e-6,
        initializer_range=0.1,
        id2label=names,
        label2id={name: label for label, name in names.items()},
    )
    torch.manual_seed(seed)
    return ViTForImageClassification(config)


def build_processor() -> ViTImageProcessorPil:
    """Return the image processor that repeats the scaling of `load_split` on 8x8 pixels of 0..16."""
    return ViTImageProcessorPil(
        do_resize=False,
        size={"height": 8, "width": 8},
        do_rescale=True,
        rescale_factor=1.0 / PIXEL_MAX,
        do_normalize=True,
        image_mean=[0.5],
        image_std=[0.5],
    )


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images under small random affine maps (shift, turn, stretch, slant) on a blank page."""

    def draw(limit: float) -> Tensor:
        return (torch.rand(len(images), generator=generator) * 2 - 1) * limit

    turn, slant = draw(math.radians(MAX_TURN_DEGREES)), draw(MAX_SLANT)
    stretch_x, stretch_y = 1 + draw(MAX_STRETCH), 1 + draw(MAX_STRETCH)
    shift = MAX_SHIFT * 2 / images.shape[-1]  # affine_grid measures the image as 2 units wide
    row_x = torch.stack([turn.cos() * stretch_x, slant - turn.sin() * stretch_x, draw(shift)], dim=-1)
    row_y = torch.stack([turn.sin() * stretch_y, turn.cos() * stretch_y, draw(shift)], dim=-1)
    grid = F.affine_grid(torch.stack([row_x, row_y], dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images - BACKGROUND, grid, align_corners=False) + BACKGROUND


def build_optimizer(model: ViTForImageClassification) -> torch.optim.AdamW:
    """Return AdamW that decays the matrices and leaves biases, norms and embeddings alone."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        decays = parameter.ndim >= 2 and "embeddings" not in name
        (matrices if decays else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.99))


def learning_rate_factor(epoch: float) -> float:
    """Return the share of the peak learning rate at `epoch`: linear warm-up, then a cosine down to zero."""
    if epoch < WARMUP_EPOCHS:
        return epoch / WARMUP_EPOCHS
    return 0.5 * (1 + math.cos(math.pi * (epoch - WARMUP_EPOCHS) / (EPOCHS - WARMUP_EPOCHS)))


def train(seed: int, images: Tensor, labels: Tensor) -> ViTForImageClassification:
    """Train a model on `images` from scratch and return it as it stands after the last step."""
    model = build_model(seed).train()
    optimizer = build_optimizer(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor((step + 1) / math.ceil(len(labels) / BATCH_SIZE))
    )
    generator = torch.Generator().manual_seed(1000 + seed)
    started = time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for batch in torch.randperm(len(labels), generator=generator).split(BATCH_SIZE):
            logits = model(pixel_values=augment(images[batch], generator)).logits
            loss = F.cross_entropy(logits, labels[batch], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(batch)
        if epoch % 20 == 0 or epoch == 1:
            spent = time.perf_counter() - started
            print(f"epoch {epoch:3d}/{EPOCHS}  loss {total / len(labels):.4f}  {spent:5.1f} s", flush=True)
    return model.eval()


@torch.no_grad()
def evaluate(model: ViTForImageClassification, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy (natural log, no smoothing)."""
    logits = model.eval()(pixel_values=images).logits
    accuracy = (logits.argmax(-1) == labels).double().mean().item()
    return accuracy, F.cross_entropy(logits.double(), labels).item()


def report(title: str, model: ViTForImageClassification, images: Tensor, labels: Tensor) -> None:
    """Print one line of results."""
    accuracy, loss = evaluate(model, images, labels)
    right = round(accuracy * len(labels))
    print(f"{title:28s} accuracy {accuracy:7.2%} ({right}/{len(labels)})  cross-entropy {loss:.4f}")


def compare(first: Path, second: Path) -> None:
    """Print the test results of two saved models and of points on the straight line between their weights."""
    _, _, test_x, test_y = load_split()
    a, b = (ViTForImageClassification.from_pretrained(path) for path in (first, second))
    report(str(first), a, test_x, test_y)
    report(str(second), b, test_x, test_y)
    mixed = ViTForImageClassification(a.config)
    for weight in (0.25, 0.5, 0.75):
        state_b = b.state_dict()
        mixed.load_state_dict({k: torch.lerp(v, state_b[k], weight) for k, v in a.state_dict().items()})
        report(f"plain average, {weight:.2f} of B", mixed, test_x, test_y)


def train_and_save(seed: int, out: Path) -> None:
    """Train on the whole training split, save the checkpoint, and report it as reloaded from disk."""
    train_x, train_y, test_x, test_y = load_split()
    model = train(seed, train_x, train_y)
    model.save_pretrained(out)
    build_processor().save_pretrained(out)
    saved = ViTForImageClassification.from_pretrained(out)
    report("training split", saved, train_x, train_y)
    report("test split", saved, test_x, test_y)


def validate(seed: int) -> None:
    """Train on four fifths of the training split and report on the rest; the test split is not touched."""
    images, labels, _, _ = load_split()
    fit, held = train_test_split(range(len(labels)), test_size=0.2, random_state=1, stratify=labels)
    report("validation", train(seed, images[fit], labels[fit]), images[held], labels[held])


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="initialisation, image order and augmentation")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="train and save the checkpoint in this folder")
    action.add_argument("--validate", action="store_true", help="train on part of the training split; save nothing")
    action.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="evaluate two saved models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    logging.disable_progress_bar()
    if arguments.compare:
        compare(*arguments.compare)
    elif arguments.validate:
        validate(arguments.seed)
    else:
        train_and_save(arguments.seed, arguments.out)


if __name__ == "__main__":
    main()

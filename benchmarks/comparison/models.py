"""The models that methods are compared on: fine-tunes of one ancestor on two tasks, and models trained apart.

Small ones, trained here in a few minutes: vision transformers of digits, Llama-like models that read bytes, and
ModernBERTs that fill in bytes which are hidden from them. A seed sets the ancestor's initialisation and the order of its data. Its fine-tunes learn one task each, of which the
ancestor can do neither; models that are trained apart are the ancestors of two seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM, ModernBertConfig, ModernBertForMaskedLM, ViTForImageClassification

from benchmarks.barrier.data import BARRIER, WINDOW, load_images, load_text, windows
from benchmarks.barrier.train import llama, plan, vit_digits
from examples import train_digits

DATA = BARRIER.parent / "comparison"
TEXTS = ("novel", "capitals")
TASKS = {"vit": ("turned", "inverted"), "llama": TEXTS, "modernbert": TEXTS}
"""Digits lying on their side and white on black; Moby Dick, and speeches in capital letters."""
PLAIN = "plain"
LENGTHS = {"vit": (2500, 250), "llama": (1500, 200), "modernbert": (1000, 200)}
"""Steps of an ancestor, and of a fine-tune."""
WIDTH = 64
RATES = (2e-3, 1e-3)
HELD_OUT = 192
"""Windows of text that a score is the mean of."""
MASK, HIDDEN, NO_LABEL = 256, 0.15, -100
"""The token behind the bytes that stands for a hidden one, the share of bytes that are, and the label of the others."""


@dataclass(frozen=True)
class Kind:
    """How models of one family learn and are scored."""

    batch: Callable[[str, torch.Generator], dict[str, Tensor]]
    loss: Callable[[Any, dict[str, Tensor]], Tensor]
    held_out: Callable[[str], dict[str, Tensor]]
    build: Callable[[int], Any]


def loss_of_images(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of classes."""
    return F.cross_entropy(logits, batch["labels"])


def loss_of_text(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of the next bytes."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())


def loss_of_hidden(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of the bytes that were hidden."""
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=NO_LABEL)


def seen(task: str, images: Tensor) -> Tensor:
    """Images as a task shows them."""
    return {PLAIN: images, "turned": images.transpose(-1, -2), "inverted": -images}[task].contiguous()


@cache
def text_of(task: str, split: str) -> Tensor:
    """The bytes of a task; the last twelfth of the novel is held out."""
    if task == "novel":
        whole = load_text("moby-dick")
        border = len(whole) * 11 // 12
        return whole[:border] if split == "train" else whole[border:]
    speeches = load_text("train" if split == "train" else "heldout")
    if task == PLAIN:
        return speeches
    small = (speeches >= ord("a")) & (speeches <= ord("z"))
    return torch.where(small, speeches - 32, speeches)


def image_batch(task: str, rng: torch.Generator) -> dict[str, Tensor]:
    """64 training images of a task, moved and turned a little."""
    images, labels = load_images("digits", "train")
    chosen = torch.randint(len(labels), (64,), generator=rng)
    return {"pixel_values": seen(task, train_digits.augment(images[chosen], rng)), "labels": labels[chosen]}


def text_batch(task: str, rng: torch.Generator) -> dict[str, Tensor]:
    """8 windows of a task's text."""
    text = text_of(task, "train")
    return {"input_ids": windows(text, torch.randint(len(text) - WINDOW + 1, (8,), generator=rng))}


def hidden_batch(task: str, rng: torch.Generator) -> dict[str, Tensor]:
    """8 windows of a task's text, with bytes hidden."""
    return _hidden(text_batch(task, rng)["input_ids"], rng)


def _hidden(ids: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
    here = torch.rand(ids.shape, generator=rng) < HIDDEN
    return {"input_ids": torch.where(here, MASK, ids), "labels": torch.where(here, ids, NO_LABEL)}


@cache
def held_out_images(task: str) -> dict[str, Tensor]:
    """The digits that nobody learned from."""
    images, labels = load_images("digits", "test")
    return {"pixel_values": seen(task, images), "labels": labels}


@cache
def held_out_text(task: str) -> dict[str, Tensor]:
    """Windows evenly over the text that nobody learned from."""
    text = text_of(task, "test")
    return {"input_ids": windows(text, torch.linspace(0, len(text) - WINDOW, HELD_OUT).long())}


@cache
def held_out_hidden(task: str) -> dict[str, Tensor]:
    """The same windows with bytes hidden, always the same ones."""
    return _hidden(held_out_text(task)["input_ids"], torch.Generator().manual_seed(0))


def modernbert(seed: int) -> ModernBertForMaskedLM:
    """A ModernBERT of bytes: every other layer sees all of a window, the others 16 bytes of it. (A BERT of this size
    says after a thousand steps what bytes are frequent, and no more.)"""
    torch.manual_seed(seed)
    ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    config = ModernBertConfig(
        vocab_size=MASK + 1, hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, intermediate_size=2 * WIDTH,
        max_position_embeddings=WINDOW, global_attn_every_n_layers=2, local_attention=16, **ends,
    )  # fmt: skip
    return ModernBertForMaskedLM(config)


KINDS = {
    "vit": Kind(
        image_batch, lambda model, batch: model(pixel_values=batch["pixel_values"]).logits, held_out_images,
        lambda seed: vit_digits(plan("vit-digits", seed, WIDTH, None)),
    ),
    "llama": Kind(
        text_batch, lambda model, batch: model(input_ids=batch["input_ids"], use_cache=False).logits, held_out_text,
        lambda seed: llama(plan("llama", seed, WIDTH, None)),
    ),
    "modernbert": Kind(
        hidden_batch, lambda model, batch: model(input_ids=batch["input_ids"]).logits, held_out_hidden, modernbert
    ),
}  # fmt: skip
LOSSES = {"vit": loss_of_images, "llama": loss_of_text, "modernbert": loss_of_hidden}


def fitted(family: str, model: Any, task: str, steps: int, rate: float, seed: int) -> Any:
    """A model after so many steps on a task: AdamW, a short warm-up, a line down to zero."""
    kind, rng = KINDS[family], torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        batch = kind.batch(task, rng)
        return LOSSES[family](kind.loss(model, batch), batch)

    return descended(model, loss, steps, rate)


def descended(model: Any, loss: Callable[[], Tensor], steps: int, rate: float) -> Any:
    """A model after so many steps down a loss, which draws a batch when it is called."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=rate, weight_decay=0.05)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50) * (1 - step / steps)
        here = loss()
        optimizer.zero_grad()
        here.backward()
        optimizer.step()
    return model.eval()


def trained(family: str, seed: int) -> dict[str, Path]:
    """The ancestor of a seed and its fine-tunes, by task; made once."""
    steps, folders = LENGTHS[family], {PLAIN: DATA / family / f"{seed}-{PLAIN}"}
    if not folders[PLAIN].exists():
        made = fitted(family, KINDS[family].build(seed), PLAIN, steps[0], RATES[0], 1000 + seed)
        made.save_pretrained(folders[PLAIN])
    for number, task in enumerate(TASKS[family], 1):
        folders[task] = DATA / family / f"{seed}-{task}"
        if not folders[task].exists():
            start = CLASSES[family].from_pretrained(folders[PLAIN])
            made = fitted(family, start, task, steps[1], RATES[1], 1000 * number + seed)
            made.save_pretrained(folders[task])
    return folders


def labelled(file: Path) -> Path:
    """The same examples as `examples` gives, with their labels."""
    return file.with_name(f"{file.stem}-labelled.safetensors")


def examples(family: str, tasks: tuple[str, ...], seed: int) -> Path:
    """Training examples of some tasks without their labels, in a file: what methods and learning may look at. Hidden
    bytes are no labels: they are the text itself."""
    file = DATA / family / f"{seed}-{'-'.join(tasks)}.safetensors"
    if not labelled(file).exists():
        rng = torch.Generator().manual_seed(7 + seed)
        count = 8 if family == "vit" else 64
        batches = [KINDS[family].batch(task, rng) for task in tasks for _ in range(count)]
        whole = {name: torch.cat([b[name] for b in batches]).contiguous() for name in batches[0]}
        shown = whole if family == "modernbert" else {name: x for name, x in whole.items() if name != "labels"}
        save_file(shown, file)
        save_file(whole, labelled(file))
    return file


Said = dict[str, tuple[Tensor, dict[str, Tensor]]]
"""By task what a model says of held-out examples, and these."""
CLASSES = {"vit": ViTForImageClassification, "llama": LlamaForCausalLM, "modernbert": ModernBertForMaskedLM}


@torch.no_grad()
def said_by(family: str, folder: Path, tasks: tuple[str, ...]) -> Said:
    """What a model says of the held-out examples of some tasks."""
    model, kind = CLASSES[family].from_pretrained(folder).eval(), KINDS[family]
    batches = {task: kind.held_out(task) for task in tasks}
    return {task: (kind.loss(model, batch), batch) for task, batch in batches.items()}


def score(family: str, folder: Path, tasks: tuple[str, ...]) -> dict[str, float]:
    """Of every task the accuracy of images, or the loss of text in nats per byte; and their mean."""
    return scores(family, said_by(family, folder, tasks))


def scores(family: str, said: Said) -> dict[str, float]:
    """The same from what a model says."""
    found = {}
    for task, (logits, batch) in said.items():
        if family == "vit":
            found[task] = float((logits.argmax(-1) == batch["labels"]).double().mean())
        else:
            found[task] = float(LOSSES[family](logits.double(), batch))
    return {**found, "mean": sum(found.values()) / len(found)}


def ensemble(family: str, folders: list[Path], tasks: tuple[str, ...]) -> dict[str, float]:
    """The score of the mean of several models' probabilities."""
    every = [said_by(family, folder, tasks) for folder in folders]
    means = {task: torch.stack([said[task][0].softmax(-1) for said in every]).mean(0).log() for task in tasks}
    return scores(family, {task: (mean, every[0][task][1]) for task, mean in means.items()})

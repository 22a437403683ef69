"""Train the endpoints of the loss-barrier benchmark: small transformers, from scratch, from different seeds.

    python benchmarks/barrier/train.py all                    # every model of the committed results, one core, many hours
    python benchmarks/barrier/train.py all --list             # what that is, and what is done
    python benchmarks/barrier/train.py llama --seed 0         # one model
    python benchmarks/barrier/train.py vit-digits --seed 0 --width 128
    python benchmarks/barrier/train.py vit-digits --seed 0 --half 0

A model goes to `benchmarks/data/barrier/<family>/seed-<n>` (`width-<d>-seed-<n>`, `half-<h>-seed-<n>`), in the
layout of Hugging Face, with `training.json` beside it. The seed sets the initialisation, the order of the data and
the augmentation: two seeds share the architecture and the training data and nothing else, two halves not even
those. Models of width 512 and more take their products in bfloat16 (weights, gradients and the optimizer's state
stay float32): processors with such instructions need half the time. The weights are those of the last step: the
test data take no part in training. They did in one choice: the initial scale and the learning rate of the language
models come from seven runs of about a minute, seed 0, scored on the held-out speeches. A folder appears when it is
complete; a run that was killed goes on from `<folder>.state`, written every minute, and ends with the same weights
as one that was not.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.barrier.data import BARRIER, WINDOW, held_out_windows, load_images, load_text, windows
from benchmarks.barrier.studies import STUDIES
from benchmarks.harness import ROOT, quiet
from examples import train_digits

WEIGHT_DECAY = 0.05
BFLOAT16_FROM_WIDTH = 512
TEXT_STEPS_PER_EPOCH = 100  # of a language model; between two of these its state can be stored
SECONDS_BETWEEN_STATES = 60


@dataclass(frozen=True)
class Run:
    """One model to train."""

    family: str
    seed: int
    width: int
    steps: int
    half: int | None = None

    @property
    def folder(self) -> Path:
        name, usual = f"seed-{self.seed}", FAMILIES[self.family]
        if self.half is not None:
            name = f"half-{self.half}-{name}"
        if self.width != usual.width:
            name = f"width-{self.width}-{name}"
        if self.steps != usual.steps_at(self.width):
            name = f"steps-{self.steps}-{name}"
        return BARRIER / self.family / name


Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Draws changes of a batch of images."""


class Images:
    """Classify images; an epoch is every training image once."""

    def __init__(self, name: str, half: int | None, batch_size: int, augment: Augment, smoothing: float):
        self.images, self.labels = load_images(name, "train", half)
        self.name, self.batch_size, self.augment, self.smoothing = name, batch_size, augment, smoothing

    def epoch(self, generator: torch.Generator) -> Iterator[Tensor]:
        """The indices of each batch of the next epoch."""
        yield from torch.randperm(len(self.labels), generator=generator).split(self.batch_size)

    def loss(self, model: PreTrainedModel, batch: Tensor, generator: torch.Generator) -> Tensor:
        logits = model(pixel_values=self.augment(self.images[batch], generator)).logits
        return F.cross_entropy(logits, self.labels[batch], label_smoothing=self.smoothing)

    def test(self, model: PreTrainedModel) -> dict[str, float]:
        images, labels = load_images(self.name, "test")
        logits = torch.cat([model(pixel_values=part).logits.double() for part in images.split(500)])
        right = (logits.argmax(-1) == labels).double().mean()
        return {"loss": float(F.cross_entropy(logits, labels)), "accuracy": float(right), "count": len(labels)}


class Text:
    """Predict the next byte; every batch is windows that begin anywhere."""

    def __init__(self, half: int | None, batch_size: int):
        self.text = load_text("train" if half is None else f"train-half-{half}")
        self.batch_size = batch_size

    def epoch(self, generator: torch.Generator) -> Iterator[Tensor]:
        shape = (TEXT_STEPS_PER_EPOCH, self.batch_size)
        yield from torch.randint(len(self.text) - WINDOW + 1, shape, generator=generator)

    def loss(self, model: PreTrainedModel, batch: Tensor, generator: torch.Generator) -> Tensor:
        tokens = windows(self.text, batch)
        logits = model(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def test(self, model: PreTrainedModel) -> dict[str, float]:
        loss, right, count = 0.0, 0, 0
        for tokens in held_out_windows().split(64):
            logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].flatten(0, 1).double()
            targets = tokens[:, 1:].flatten()
            loss += float(F.cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(-1) == targets).sum())
            count += len(targets)
        return {"loss": loss / count, "accuracy": right / count, "count": count}


Task = Images | Text
"""The data of a run: batches of an epoch, the loss on one, and loss in nats and accuracy on test data."""


def vit(run: Run, image_size: int, patch_size: int, mlp: int, spread: float) -> PreTrainedModel:
    """A fresh pre-LN vision transformer with 4 layers and 4 heads for ten classes of grey images; activations begin
    as large at every width.
    """
    names = {label: str(label) for label in range(10)}
    config = ViTConfig(
        hidden_size=run.width, num_hidden_layers=4, num_attention_heads=4, intermediate_size=mlp * run.width,
        hidden_act="gelu", image_size=image_size, patch_size=patch_size, num_channels=1, layer_norm_eps=1e-6,
        initializer_range=spread * math.sqrt(64 / run.width), id2label=names,
        label2id={name: label for label, name in names.items()},
    )  # fmt: skip
    torch.manual_seed(run.seed)
    return ViTForImageClassification(config)


def llama(run: Run) -> PreTrainedModel:
    """A fresh LLaMA that reads bytes: 4 layers, 8 query and 2 key-value heads, untied."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=run.width, intermediate_size=344 * run.width // 128, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, head_dim=run.width // 8, max_position_embeddings=256,
        tie_word_embeddings=False, initializer_range=0.06 * math.sqrt(128 / run.width), bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(run.seed)
    return LlamaForCausalLM(config)


def gpt2(run: Run) -> PreTrainedModel:
    """A fresh GPT-2 that reads bytes: 4 layers, 4 heads, tied embeddings."""
    config = GPT2Config(
        vocab_size=256, n_embd=run.width, n_layer=4, n_head=4, n_positions=WINDOW, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.06 * math.sqrt(128 / run.width), bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(run.seed)
    return GPT2LMHeadModel(config)


def mirror(images: Tensor, generator: torch.Generator) -> Tensor:
    """The images, each mirrored left to right or not."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def fashion_processor() -> ViTImageProcessorPil:
    """The image processor that repeats the scaling of the data on 28x28 pixels of 0..255."""
    size = {"height": 28, "width": 28}
    return ViTImageProcessorPil(do_resize=False, size=size, do_normalize=True, image_mean=[0.5], image_std=[0.5])


@dataclass(frozen=True)
class Family:
    """What the runs of a family have in common."""

    width: int
    steps: int
    warmup: float  # share of the steps
    peak_lr: float  # at the usual width and below; wider models take less in proportion
    build: Callable[[Run], PreTrainedModel]
    task: Callable[[Run], Task]
    processor: Callable[[], ViTImageProcessorPil] | None = None
    other_steps: tuple[tuple[int, int], ...] = ()  # (width, steps) where it is not the usual number

    def steps_at(self, width: int) -> int:
        return dict(self.other_steps).get(width, self.steps)


DIGITS_STEPS = 300 * 22  # 300 epochs of 1347 images in batches of 64
FAMILIES = {
    "vit-digits": Family(
        64, DIGITS_STEPS, train_digits.WARMUP_EPOCHS / train_digits.EPOCHS, train_digits.PEAK_LR,
        build=lambda run: vit(run, 8, 2, 2, 0.1),  # the model of the example
        task=lambda run: Images(
            "digits", run.half, train_digits.BATCH_SIZE, train_digits.augment, train_digits.LABEL_SMOOTHING
        ),
        processor=train_digits.build_processor, other_steps=((256, 200 * 22),),
    ),
    "vit-fashion": Family(
        64, 16 * 938, 0.03, 2e-3,
        build=lambda run: vit(run, 28, 7, 4, 0.05),  # 16 patches of 7x7 pixels
        task=lambda run: Images("fashion", run.half, 64, mirror, 0.02),
        processor=fashion_processor, other_steps=((256, 8 * 938),),
    ),
    "llama": Family(128, 5000, 0.03, 2e-3, build=llama, task=lambda run: Text(run.half, 8)),
    "gpt2": Family(128, 5000, 0.03, 4e-3, build=gpt2, task=lambda run: Text(run.half, 8)),
}  # fmt: skip
ALL = tuple(dict.fromkeys(model for study in STUDIES for model in study.models))
EXAMPLES = {0: "vit-a", 1: "vit-b"}  # seed of vit-digits -> the model of the demo, made by the same steps


def plan(family: str, seed: int, width: int | None, half: int | None, steps: int | None = None) -> Run:
    """The run with what was not said filled in."""
    width = width or FAMILIES[family].width
    return Run(family, seed, width, steps or FAMILIES[family].steps_at(width), half)


def learning_rate(run: Run, step: int) -> float:
    """The learning rate of a step, counted from 1: linear warm-up, then a cosine down to zero."""
    family = FAMILIES[run.family]
    peak = family.peak_lr * min(1.0, family.width / run.width)
    if run.family == "vit-digits":  # rounds as the example does
        return peak * train_digits.learning_rate_factor(step / (run.steps / train_digits.EPOCHS))
    warmup = family.warmup * run.steps
    return peak * min(step / warmup, 0.5 * (1 + math.cos(math.pi * max(0.0, step - warmup) / (run.steps - warmup))))


def build_optimizer(model: PreTrainedModel) -> torch.optim.AdamW:
    """AdamW that decays the matrices and leaves biases, norms and embeddings alone."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        embeds = any(part in name for part in ("embed", "wte", "wpe"))
        (matrices if parameter.ndim >= 2 and not embeds else others).append(parameter)
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99))


def fit(run: Run, task: Task, state_file: Path) -> tuple[PreTrainedModel, float]:
    """Train to the last step, from the stored state if there is one; return the model and the seconds it took."""
    model = FAMILIES[run.family].build(run).train()
    optimizer = build_optimizer(model)
    generator = torch.Generator().manual_seed(1000 + run.seed)
    step, spent = 0, 0.0
    state = torch.load(state_file, weights_only=True) if state_file.exists() else None
    if state and state["run"] == asdict(run):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"])
        step, spent = state["step"], state["spent"]
        print(f"  goes on from step {step}", flush=True)
    stored = time.perf_counter()
    started = stored - spent
    while step < run.steps:
        total, count = 0.0, 0
        for batch in task.epoch(generator):
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(run, step)
            with torch.autocast("cpu", torch.bfloat16, enabled=run.width >= BFLOAT16_FROM_WIDTH):
                loss = task.loss(model, batch, generator)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total, count = total + loss.item(), count + 1
            if step == run.steps:
                break
        now = time.perf_counter()
        if now - stored > SECONDS_BETWEEN_STATES and step < run.steps:
            stored = now
            print(f"  step {step}/{run.steps}  loss {total / count:.4f}  {now - started:.0f} s", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"generator": generator.get_state(), "step": step, "spent": now - started, "run": asdict(run)}
            unfinished = state_file.with_name(state_file.name + ".tmp")
            torch.save(state, unfinished)
            unfinished.replace(state_file)
    return model.eval(), time.perf_counter() - started


def make(run: Run) -> None:
    """Train one model and store it; nothing is done when it is there."""
    if (run.folder / "training.json").is_file():
        return
    print(f"{run.folder.relative_to(BARRIER)}: {run.steps} steps", flush=True)
    family = FAMILIES[run.family]
    task = family.task(run)
    state_file = run.folder.with_name(run.folder.name + ".state")
    unfinished = run.folder.with_name(run.folder.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    record: dict[str, object] = asdict(run)
    if run == plan("vit-digits", run.seed, None, None) and run.seed in EXAMPLES:
        example = Path("examples") / "digits" / EXAMPLES[run.seed]
        shutil.copytree(ROOT / example, unfinished, dirs_exist_ok=True)
        record |= {"seconds": None, "copied_from": example.as_posix()}
    else:
        torch.use_deterministic_algorithms(True)
        try:
            model, seconds = fit(run, task, state_file)
        finally:
            torch.use_deterministic_algorithms(False)
        model.save_pretrained(unfinished)
        if family.processor:
            family.processor().save_pretrained(unfinished)
        record["seconds"] = round(seconds, 1)
    saved = type(family.build(run)).from_pretrained(unfinished).eval()
    with torch.no_grad():
        record["test"] = task.test(saved)
    record |= {"parameters": saved.num_parameters()}
    record |= {"torch": torch.__version__, "transformers": transformers.__version__}
    (unfinished / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    shutil.rmtree(run.folder, ignore_errors=True)
    unfinished.rename(run.folder)
    state_file.unlink(missing_ok=True)
    print(f"  done in {record['seconds']} s: {record['test']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=[*FAMILIES, "all"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="instead of the family's number")
    parser.add_argument("--width", type=int, help="instead of the family's width")
    parser.add_argument("--half", type=int, choices=(0, 1), help="train on one of two disjoint halves of the data")
    parser.add_argument("--list", action="store_true", help="print what would be trained and whether it is done")
    arguments = parser.parse_args()
    quiet()
    if arguments.family == "all":
        runs = [plan(*entry) for entry in ALL]
    else:
        runs = [plan(arguments.family, arguments.seed, arguments.width, arguments.half, arguments.steps)]
    for run in runs:
        if arguments.list:
            done = (run.folder / "training.json").is_file()
            print(f"{run.folder.relative_to(BARRIER)}: {'done' if done else f'{run.steps} steps to train'}")
        else:
            make(run)


if __name__ == "__main__":
    main()

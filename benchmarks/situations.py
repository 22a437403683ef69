"""The six situations that people come with, each through ``merge A B -o OUT [--data D]`` alone: what was decided, what came
out, the losses, the seconds.

    python -m benchmarks.situations            # trains two small language models (some minutes each), then measures
    python -m benchmarks.situations --again    # measures anew

Models: the digit classifiers that ship with isomerge, and byte-level Llamas trained on Python's own documentation
(``pydoc_data``), 90 % of it; losses are on the held-out digits and on the last 10 % of the text. Nothing is downloaded.
Writes benchmarks/results/situations.json and the table of docs/lab/situations.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from isomerge.checkpoint.opening import open_checkpoint
from isomerge.evidence.barrier import ensemble
from isomerge.evidence.digits import example_models, held_out_digits, training_digits
from isomerge.evidence.law import random_turn, with_streams
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "situations"
RESULTS = HERE / "results" / "situations.json"
PAGE = HERE.parent / "docs" / "lab" / "situations.md"
LENGTH, BATCH, STEPS, TUNED = 64, 16, 600, 60
"""Bytes per example, examples per step, and the steps of a training and of a fine-tuning."""


@dataclass(frozen=True)
class Situation:
    """Two models and what is given beside them."""

    name: str
    models: tuple[str, str]
    words: tuple[str, ...] = ()
    """What the command line has beside the models and the output."""
    text: bool = True
    """Whether they are language models."""


SITUATIONS = (
    Situation("a disguised twin", ("vit-a", "vit-a-twin"), text=False),
    Situation("two fine-tunes of one base", ("llama-0-first", "llama-0-second"), ("--data", "train.safetensors")),
    Situation("a relative in another basis", ("llama-0", "llama-0-first-turned"), ("--data", "train.safetensors")),
    Situation("two ViTs trained apart, no data", ("vit-a", "vit-b"), text=False),
    Situation("two ViTs trained apart, data", ("vit-a", "vit-b"), ("--data", "digits.safetensors"), text=False),
    Situation("two language models trained apart, no data", ("llama-0", "llama-1")),
    Situation("two language models trained apart, their own texts", ("llama-0", "llama-1"), ("--data", "generate")),
    Situation("two language models trained apart, data", ("llama-0", "llama-1"), ("--data", "train.safetensors")),
    Situation("different vocabularies", ("llama-0", "llama-0-wider"), ("--data", "train.safetensors")),
)


def corpus() -> torch.Tensor:
    """Python's documentation as bytes, int64 [n]."""
    from pydoc_data import topics

    return torch.tensor(list("\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()))


def parts() -> tuple[torch.Tensor, torch.Tensor]:
    """Examples int64 [n, length] to train on and to test on."""
    rows = corpus()
    rows = rows[: len(rows) // LENGTH * LENGTH].reshape(-1, LENGTH)
    cut = int(0.9 * len(rows))
    return rows[:cut], rows[cut:]


def train(model: Any, rows: torch.Tensor, steps: int, seed: int, rate: float) -> None:
    """Next-byte prediction by AdamW, the rate falling to nought."""
    rng = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: min(1, (k + 1) / 50) * (1 - k / steps))
    for step in range(steps):
        batch = rows[torch.randint(len(rows), (BATCH,), generator=rng)]
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"  step {step}: {loss.item():.3f} nats", flush=True)


def tokenizer(extra: Sequence[str] = ()) -> Tokenizer:
    """One token per byte, and others behind them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    found = Tokenizer(models.BPE(vocab={letter: k for k, letter in enumerate(letters)}, merges=[]))
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    found.add_tokens(list(extra))
    return found


def save(model: Any, folder: Path, extra: Sequence[str] = ()) -> None:
    """A checkpoint with its tokenizer; complete or not there."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer(extra).save(str(partial / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (partial / "tokenizer_config.json").write_text(json.dumps(about))
    partial.rename(folder)


def made(name: str, make: Callable[[Path], None]) -> None:
    """Make a checkpoint that is not there yet."""
    if not (DATA / name).exists():
        print(f"making {name}", flush=True)
        make(DATA / name)


def prepare() -> None:
    """All models and data."""
    DATA.mkdir(parents=True, exist_ok=True)
    rows, test = parts()
    save_file({"input_ids": rows[:: max(1, len(rows) // 1024)].clone()}, DATA / "train.safetensors")
    save_file({"input_ids": test.clone()}, DATA / "test.safetensors")
    save_file({name: x.contiguous() for name, x in training_digits()[0].items()}, DATA / "digits.safetensors")
    for name, folder in zip(("vit-a", "vit-b"), example_models(), strict=True):
        made(name, lambda out, folder=folder: shutil.copytree(folder, out) and None)
    made("vit-a-twin", lambda out: turned(DATA / "vit-a", out))
    for seed in (0, 1):
        made(f"llama-{seed}", lambda out, seed=seed: trained(seed, rows, out))
    half = len(rows) // 2
    for name, piece in (("first", rows[:half]), ("second", rows[half:])):
        made(f"llama-0-{name}", lambda out, piece=piece: tuned(piece, out))
    made("llama-0-first-turned", lambda out: turned(DATA / "llama-0-first", out))
    made("llama-0-wider", lambda out: tuned(rows[:half], out, extra=("<note>", "<code>", "<end>")))


def trained(seed: int, rows: torch.Tensor, out: Path) -> None:
    """A byte-level Llama from scratch."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    train(model, rows, STEPS, seed, 2e-3)
    save(model, out)


def tuned(rows: torch.Tensor, out: Path, extra: Sequence[str] = ()) -> None:
    """The first Llama, trained a little more on some of the text; with more tokens where there are ``extra``."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(DATA / "llama-0")
    if extra:
        model.resize_token_embeddings(256 + len(extra))
    train(model, rows, TUNED, 7, 2e-4)
    save(model, out, extra)


def turned(folder: Path, out: Path) -> None:
    """The same function in other weights: all that its symmetries move is moved at random, its stream turned."""
    model = recognise(folder)
    spec = with_streams(model.spec)
    element = random_turn(
        spec, model.blocks, lambda block: model.assemble(block, torch.float64), torch.Generator().manual_seed(3)
    )
    run_apply(element, model, Output(out, dtype="float32"))


def examples(situation: Situation) -> Examples:
    """What losses are measured on."""
    if situation.text:
        return Examples({"input_ids": parts()[1]}, True)
    images, labels = held_out_digits()
    return Examples({"pixel_values": images, "labels": labels}, True)


def measure(situation: Situation) -> dict[str, Any]:
    """Run the command as a person would, and measure what came out."""
    out, report = DATA / "out", DATA / "report.json"
    shutil.rmtree(out, ignore_errors=True)
    command = ["isomerge", "merge", *situation.models, "-o", "out", *situation.words]
    began = time.monotonic()
    run = [sys.executable, "-m", "isomerge", *command[1:], "--json", "report.json"]
    done = subprocess.run(run, cwd=DATA, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    row: dict[str, Any] = {"name": situation.name, "command": " ".join(command), "seconds": seconds}
    if done.returncode:
        return {**row, "refused": done.stderr.strip()}
    found = json.loads(report.read_text())
    data = examples(situation)
    paths = [DATA / name for name in situation.models]
    modules = [load_module(path) for path in paths]
    wide = len({open_checkpoint(path).config.get("vocab_size") for path in paths}) > 1
    losses = {name: evaluate(module, data).loss for name, module in zip(situation.models, modules, strict=True)}
    return {
        **row,
        "decided": None
        if found["decided"] is None
        else f"{found['decided']['what']}, as {found['decided']['why']}",
        "verdict": found["verdict"]["code"],
        "losses": losses,
        "merged": evaluate(load_module(out), data).loss,
        "ensemble": None if wide else ensemble(modules, data).loss,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The page's table."""
    lines = [
        "| situation | command | decided | loss of A, B | merged | ensemble | seconds |", "|---|---|---|---|---:|---:|---:|",
    ]  # fmt: skip
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['name']} | `{row['command']}` | refused: {row['refused']} | | | | |")
            continue
        losses = ", ".join(f"{loss:.3f}" for loss in row["losses"].values())
        together = "" if row["ensemble"] is None else f"{row['ensemble']:.3f}"
        lines.append(
            f"| {row['name']} | `{row['command']}` | {row['decided']} | {losses} | {row['merged']:.3f} | {together} | "
            f"{row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def write(rows: Sequence[dict[str, Any]]) -> None:
    """Results, and the page's table between its marks."""
    RESULTS.write_text(json.dumps(list(rows), indent=1) + "\n")
    text = PAGE.read_text()
    begin, end = "<!-- situations: begin -->", "<!-- situations: end -->"
    PAGE.write_text(re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{table(rows)}\n{end}", text, flags=re.DOTALL))


def main() -> None:
    """Prepare what is missing, measure what is missing, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="measure all anew")
    again = parser.parse_args().again
    torch.set_num_threads(1)
    prepare()
    kept = {} if again or not RESULTS.is_file() else {row["name"]: row for row in json.loads(RESULTS.read_text())}
    rows = []
    for situation in SITUATIONS:
        print(situation.name, flush=True)
        rows.append(kept.get(situation.name) or measure(situation))
        write(rows)


if __name__ == "__main__":
    main()

"""What alignment brings where experts are made of dense models, measured on small language models that read bytes.

    python benchmarks/experts.py [--seeds 0 1 2]     # writes benchmarks/results/experts.json and the tables of docs/lab/experts.md

For every seed, four Llamas of 4 layers and width 128: one trained on speeches (*base*), one trained on a novel from another
initialisation (*apart*), the base trained on the novel for a while (*fine-tune*), and that fine-tune moved by a random
symmetry (*moved*: the same function). Mixtures of the base and one of them, routed by hidden states of 8
prompts each, are judged by their loss in nats per byte on both texts, on windows that no model was trained on: as
they are made, and after a short training of all weights on both texts. It takes about a quarter
of an hour per seed on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import isomerge
from benchmarks.barrier.data import WINDOW, held_out_windows, load_text, windows
from benchmarks.fetch import DATA
from isomerge.evidence.law import random_turn, with_streams
from isomerge.models.recognised import recognise

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "experts.json"
PAGE = HERE.parent / "docs" / "lab" / "experts.md"
MARKS = ("<!-- made by benchmarks/experts.py -->", "<!-- end -->")
STEPS, TUNING, AFTER, BATCH = 600, 150, 100, 8
PEAK, PEAK_TUNING = 2e-3, 5e-4
TESTED = 256
"""Windows of each text that losses are taken of."""
PROMPTS = 8
TEXTS = ("speeches", "novel")


def texts() -> dict[str, tuple[Tensor, Tensor]]:
    """Of both texts, the bytes to train on and the windows to test on."""
    novel = load_text("moby-dick")
    cut = len(novel) * 9 // 10
    rest = novel[cut:]
    starts = torch.arange(TESTED) * ((len(rest) - WINDOW) // (TESTED - 1))
    speeches = held_out_windows()
    return {
        "speeches": (load_text("train"), speeches[:: len(speeches) // TESTED]),
        "novel": (novel[:cut], windows(rest, starts)),
    }


def bytes_tokenizer() -> Any:
    """A tokenizer whose ids are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + k) for k, b in enumerate(others)}
    made = Tokenizer(models.BPE({letters[b]: b for b in range(256)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def fresh(seed: int) -> Any:
    """A Llama as those of the barriers."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=344,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            initializer_range=0.06,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def trained(model: Any, data: Sequence[Tensor], steps: int, peak: float, seed: int) -> Any:
    """Train on windows of texts in turn: warm-up, then a cosine to zero."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.99), weight_decay=0.05)
    generator = torch.Generator().manual_seed(1000 + seed)
    for step in range(1, steps + 1):
        warm = 0.03 * steps
        factor = min(step / warm, 0.5 * (1 + math.cos(math.pi * max(0.0, step - warm) / (steps - warm))))
        for group in optimizer.param_groups:
            group["lr"] = peak * factor
        text = data[step % len(data)]
        tokens = windows(text, torch.randint(len(text) - WINDOW + 1, (BATCH,), generator=generator))
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def losses(model: Any, data: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Nats per byte on both texts."""
    found = {}
    for name, (_, test) in data.items():
        total = 0.0
        with torch.no_grad():
            for tokens in test.split(64):
                logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].flatten(0, 1).double()
                total += float(F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum"))
        found[name] = total / (test.shape[0] * (WINDOW - 1))
    return found


def saved(model: Any, folder: Path) -> Path:
    """A model with its tokenizer, on disk."""
    model.save_pretrained(folder)
    bytes_tokenizer().save_pretrained(folder)
    return folder


def moved(source: Path, folder: Path, seed: int) -> Path:
    """The same function in other weights: stream, heads, neurons and gains moved at random."""
    model = recognise(source)
    spec = with_streams(model.spec, "largest")
    rng = torch.Generator().manual_seed(seed)
    g = random_turn(spec, model.blocks, lambda block: model.assemble(block, torch.float64), rng)
    isomerge.apply(g, source, out=folder)
    return folder


def prompts(data: dict[str, tuple[Tensor, Tensor]], seed: int) -> dict[str, list[str]]:
    """Windows of what is trained on."""
    rng = torch.Generator().manual_seed(seed)
    found = {}
    for name, (text, _) in data.items():
        starts = torch.randint(len(text) - WINDOW + 1, (PROMPTS,), generator=rng)
        found[name] = [bytes(row.tolist()).decode("ascii", "ignore") for row in windows(text, starts)]
    return found


def mixture(folder: Path, base: Path, other: Path, said: dict[str, list[str]], align: Any) -> dict[str, Any]:
    """The mixture of two models in ``folder / mixture``; its report."""
    experts = [
        {"source_model": str(model), "positive_prompts": said[name]}
        for model, name in zip((base, other), TEXTS, strict=True)
    ]
    content = {"base_model": str(base), "gate_mode": "hidden", "experts": experts, "align": align}
    recipe = folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(content))
    begun = time.process_time()
    report = isomerge.merge(recipe, out=folder / "mixture", overwrite=True)
    report["seconds"] = time.process_time() - begun
    return report


def loaded(folder: Path, per_token: int) -> Any:
    """A mixture whose tokens go to so many experts."""
    how = {"dtype": torch.float32, "experts_implementation": "eager", "num_experts_per_tok": per_token}
    return AutoModelForCausalLM.from_pretrained(folder / "mixture", **how)


def one_seed(seed: int, folder: Path) -> list[dict[str, Any]]:
    """All rows of one seed."""
    data = texts()
    speeches, novel = (data[name][0] for name in TEXTS)
    at = {name: folder / name for name in ("base", "apart", "fine-tune", "moved")}
    if not at["moved"].exists():
        base = trained(fresh(2 * seed), [speeches], STEPS, PEAK, 2 * seed)
        saved(base, at["base"])
        saved(trained(fresh(2 * seed + 1), [novel], STEPS, PEAK, 2 * seed + 1), at["apart"])
        saved(trained(base, [novel], TUNING, PEAK_TUNING, 2 * seed), at["fine-tune"])
        moved(at["fine-tune"], at["moved"], seed)
    rows: list[dict[str, Any]] = []
    for name, place in at.items():
        rows.append({"seed": seed, "what": name, **losses(LlamaForCausalLM.from_pretrained(place), data)})
        print(json.dumps(rows[-1]), flush=True)
    said = prompts(data, seed)
    corpus = folder / "data.txt"
    corpus.write_bytes(bytes(torch.cat([speeches[:200_000], novel[:200_000]]).tolist()))
    for other, ways in CASES.items():
        for way in ways:
            align = {"learn": str(corpus), "limit": 1024} if way == "learned" else way
            report = mixture(folder, at["base"], at[other], said, align)
            row: dict[str, Any] = {
                "seed": seed, "what": f"base + {other}", "align": way, "frame": report["experts"][1]["frame"],
                "distance": report["experts"][1].get("distance"), "seconds": round(report["seconds"], 1),
            }  # fmt: skip
            for per_token in (1, 2):
                row[f"per_token_{per_token}"] = losses(loaded(folder, per_token).eval(), data)
            if (other, way) in TRAINED:
                after = trained(loaded(folder, 2), [speeches, novel], AFTER, PEAK_TUNING, seed)
                row["after_training"] = losses(after, data)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


CASES: dict[str, tuple[Any, ...]] = {
    "base": (False,),
    "fine-tune": (False, True),
    "moved": (False, True),
    "apart": (False, True, "learned"),
}
"""What is put beside the base, and how it is aligned."""
TRAINED = {("base", False), ("fine-tune", False), ("apart", False), ("apart", True), ("apart", "learned")}
"""What is trained on: the others are the same as one of these, or hopeless."""


def main() -> None:
    """Measure, and write results and tables."""
    words = argparse.ArgumentParser()
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--tables", action="store_true", help="write the tables of the results that are there")
    given = words.parse_args()
    torch.set_num_threads(1)
    if not given.tables:
        for seed in given.seeds:
            if any(row["seed"] == seed for row in kept_rows()):
                continue
            found = one_seed(seed, DATA / "experts" / f"seed-{seed}")
            rows = sorted([*kept_rows(), *found], key=lambda row: row["seed"])  # others may have written since
            settings = {"steps": STEPS, "tuning": TUNING, "after": AFTER, "batch": BATCH, "prompts": PROMPTS}
            RESULTS.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
    write_tables(json.loads(RESULTS.read_text())["rows"])


def kept_rows() -> list[dict[str, Any]]:
    """The rows that are there."""
    return json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []


def write_tables(rows: list[dict[str, Any]]) -> None:
    """The table of the page, between its marks."""
    lines = [
        "| | aligned | one expert per token: speeches | novel | two: speeches | novel | trained on: speeches | novel |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    names = {None: "", False: "no", True: "by weights", "learned": "learned on text"}
    for what, align in dict.fromkeys((row["what"], row.get("align")) for row in rows):
        here = [row for row in rows if (row["what"], row.get("align")) == (what, align)]
        cells = [what, names[align]]
        for kind in ("per_token_1", "per_token_2", "after_training"):
            measured = [
                row.get(kind) or (row if "align" not in row and kind == "per_token_1" else {}) for row in here
            ]
            cells += [_spread([row[name] for row in measured if name in row]) for name in TEXTS]
        lines.append(f"| {' | '.join(cells)} |")
    text = PAGE.read_text()
    before, _, rest = text.partition(MARKS[0])
    PAGE.write_text("\n".join([before + MARKS[0], *lines, MARKS[1]]) + rest.partition(MARKS[1])[2])


def _spread(values: list[float]) -> str:
    """Mean and range."""
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"{mean:.3f} ({min(values):.3f}–{max(values):.3f})"


if __name__ == "__main__":
    main()

"""What is said of two models, what saying it costs, and whether what it advises helps.

python benchmarks/pairs_told.py     writes benchmarks/results/pairs_told.json (ten minutes on one core)

The digit transformers of examples/: apart, in disguise, tuned, and beside a base that is none. Two byte-level
Llamas trained apart here, on the texts of Python's own library: the loss of each, of the merge, and of the merge
that the verdict's first line advises. And two Llamas of 52 million parameters with drawn weights, in which looking
costs what it costs in models of a size that people merge.
"""

from __future__ import annotations

import json
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.models.recognised import recognise
from isomerge.solve import standing

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "examples" / "digits"
STEPS, BATCH, LENGTH = 500, 16, 96
"""Of training a byte-level Llama: about two minutes on one core."""
SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
LARGE = {
    **SMALL,
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
}


def tuned(model: Path, out: Path, seed: int) -> Path:
    """A copy with noise of a twentieth, as a light fine-tune leaves."""
    out.mkdir()
    for file in model.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    rng, weights = torch.Generator().manual_seed(seed), load_file(model / "model.safetensors")
    for name, t in weights.items():
        if t.ndim > 1:
            weights[name] = t + 0.05 * t.std() * torch.randn(t.shape, generator=rng)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def situations(folder: Path) -> dict[str, tuple[list[Path], dict[str, Any]]]:
    """Models and options by name."""
    a, b = MODELS / "vit-a", MODELS / "vit-b"
    model = recognise(a)
    local = {
        *(n for n in model.spec.spaces if n not in model.spec.residual_names),
        *(s.name for s in model.spec.shifts),
    }
    twin = random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(1), local)
    isomerge.apply(twin, a, out=folder / "twin")
    frame = with_streams(model.spec, "largest")
    turn = random_turn(
        frame, model.blocks, lambda x: model.assemble(x, torch.float64), torch.Generator().manual_seed(2)
    )
    isomerge.apply(turn, a, out=folder / "turned")
    one, two = tuned(a, folder / "one", 3), tuned(a, folder / "two", 4)
    return {
        "trained apart": ([a, b], {}),
        "trained apart, not aligned": ([a, b], {"align": False}),
        "two fine-tunes": ([one, two], {}),
        "two fine-tunes, --align": ([one, two], {"align": True}),
        "in disguise": ([a, folder / "twin"], {}),
        "in disguise, not aligned": ([a, folder / "twin"], {"align": False}),
        "in another basis": ([a, folder / "turned"], {}),
        "a base that is none": ([one, two], {"method": "task_arithmetic", "base_model": b}),
    }


def library(parts: slice) -> torch.Tensor:
    """Some of the texts of Python's library as rows of bytes, int64 [rows, LENGTH]."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[parts]
    text = b"".join(file.read_bytes() for file in files)
    return (
        torch.frombuffer(bytearray(text), dtype=torch.uint8).long()[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    )


def llama(shape: dict[str, Any], seed: int) -> Any:
    """A Llama with drawn weights."""
    import transformers

    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, bos_token_id=0, eos_token_id=0))


def trained(seed: int, rows: torch.Tensor) -> Any:
    """A byte-level Llama, trained on its own order of the texts from its own start."""
    model, rng = llama(SMALL, seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, STEPS)
    for _ in range(STEPS):
        batch = rows[torch.randint(len(rows), (BATCH,), generator=rng)]
        optimiser.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def loss_of(folder: Path, rows: torch.Tensor) -> float:
    """Nats per byte."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return round(
        sum(float(model(input_ids=part, labels=part).loss) for part in rows.split(64)) / len(rows.split(64)), 3
    )


def languages(folder: Path) -> dict[str, Any]:
    """Two language models trained apart: what is said, and the losses of the merge and of what is advised."""
    rows, test = library(slice(0, None, 2)), library(slice(1, None, 2))[:256]
    names = [folder / "llama-a", folder / "llama-b"]
    for seed, name in enumerate(names):
        trained(seed, rows).save_pretrained(name)
    save_file({"input_ids": rows[:: len(rows) // 1024][:1024].contiguous()}, folder / "DATA.safetensors")
    found = measured(names, {}, folder / "llamas")
    losses = {name.name: loss_of(name, test) for name in (*names, folder / "llamas")}
    isomerge.merge(names, out=folder / "learned", learn=folder / "DATA.safetensors")
    return found | {"losses": losses | {"advised: --learn DATA": loss_of(folder / "learned", test)}}


def large(folder: Path) -> dict[str, dict[str, Any]]:
    """Models of a size at which seconds count: trained apart as far as weights tell, and fine-tunes."""
    names = [folder / "large-a", folder / "large-b"]
    for seed, name in enumerate(names):
        llama(LARGE, seed).save_pretrained(name)
    near = tuned(names[0], folder / "large-tuned", 5)
    return {
        "52 million parameters, apart": measured(names, {}, folder / "out-apart"),
        "52 million parameters, apart, --spaces all": measured(names, {"spaces": "all"}, folder / "out-all"),
        "52 million parameters, fine-tunes": measured([names[0], near], {}, folder / "out-near"),
    }


def measured(models: list[Path], options: dict[str, Any], out: Path) -> dict[str, Any]:
    """The words, and the seconds of processor time, of the whole run and of looking how the models stand."""
    spent, look = [0.0], standing.standings

    def timed(*given: Any, **how: Any) -> Any:
        start = time.process_time()
        found = look(*given, **how)
        spent[0] += time.process_time() - start
        return found

    from isomerge.merging import merge_plan

    merge_plan.standings = timed
    start = time.process_time()
    report = isomerge.merge(models, out=out, **options)
    seconds = time.process_time() - start
    merge_plan.standings = look
    verdict = report["verdict"]
    return {
        "code": verdict["code"],
        "level": verdict["level"],
        "sentence": verdict["sentence"],
        "spaces": report["spaces"],
        "next": [
            step["command"].replace(f"{MODELS}/", "").replace(f"{out.parent}/", "") for step in verdict["next"]
        ],
        "in_card": verdict["sentence"] in (out / "README.md").read_text(),
        "seconds": round(seconds, 3),
        "seconds_of_looking": round(spent[0], 3),
    }


def main() -> None:
    """Every situation, twice: what is loaded once is not counted."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = situations(folder)
        for turn in range(2):
            found = {k: measured(*case, folder / f"out-{turn}-{n}") for n, (k, case) in enumerate(cases.items())}
        found["language models trained apart"] = languages(folder)
        found |= large(folder)
    path = ROOT / "benchmarks" / "results" / "pairs_told.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        print(
            f"{name}: {row['code']}, {row['seconds']} s, of them {row['seconds_of_looking']} looking. "
            f"{row['sentence']}"
        )


if __name__ == "__main__":
    main()

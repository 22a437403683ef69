"""What is said of two models, and what saying it costs: the digit transformers of examples/ apart, in disguise, tuned, and beside a base that is none.

python benchmarks/pairs_told.py     writes benchmarks/results/pairs_told.json
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.engine import standing
from isomerge.engine.models import recognise
from isomerge.evidence.law import random_alignment, random_turn, with_streams

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "examples" / "digits"


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


def measured(models: list[Path], options: dict[str, Any], out: Path) -> dict[str, Any]:
    """The words, and the seconds of processor time, of the whole run and of looking how the models stand."""
    spent, look = [0.0], standing.standings

    def timed(*given: Any, **how: Any) -> Any:
        start = time.process_time()
        found = look(*given, **how)
        spent[0] += time.process_time() - start
        return found

    from isomerge.engine.merge import merging

    merging.standings = timed
    start = time.process_time()
    report = isomerge.merge(models, out=out, **options)
    seconds = time.process_time() - start
    merging.standings = look
    verdict = report["verdict"]
    return {
        "code": verdict["code"], "level": verdict["level"], "sentence": verdict["sentence"], "spaces": report["spaces"],
        "next": [step["command"].replace(f"{MODELS}/", "").replace(f"{out.parent}/", "") for step in verdict["next"]],
        "in_card": verdict["sentence"] in (out / "README.md").read_text(),
        "seconds": round(seconds, 3), "seconds_of_looking": round(spent[0], 3),
    }  # fmt: skip


def main() -> None:
    """Every situation, twice: what is loaded once is not counted."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = situations(folder)
        for turn in range(2):
            found = {k: measured(*case, folder / f"out-{turn}-{n}") for n, (k, case) in enumerate(cases.items())}
    path = ROOT / "benchmarks" / "results" / "pairs_told.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        print(
            f"{name}: {row['code']}, {row['seconds']} s, of them {row['seconds_of_looking']} looking. {row['sentence']}"
        )


if __name__ == "__main__":
    main()

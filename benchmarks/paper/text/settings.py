"""How large the text benchmark is: `cpu` for one slow core, `gpu` for a device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.fetch import DATA

ROOT = Path(__file__).resolve().parents[3]
MODELS = DATA / "paper" / "text"
BASE = DATA / "minilm"


@dataclass(frozen=True)
class Preset:
    """Sizes and hyper-parameters of a whole run of the benchmark."""

    name: str
    train: int
    """Sentences per domain that a model is tuned on, at most."""
    test: int
    """Sentences per domain that are kept for tests; none of their documents is trained on."""
    scored: int
    """Of these, how many every merged model is tested on."""
    epochs: int
    lr: float
    batch: int
    length: int
    """Word pieces per sentence; longer ones are cut."""
    seeds: tuple[int, ...]
    statistics: int
    """Training sentences per model for Grams and for matching by activations."""
    fisher: int
    """Training sentences per model for diagonal Fishers: each is run backwards alone."""
    device: str = "cpu"
    warmup: float = 0.06
    """Share of the steps, as in the paper."""

    def settings(self) -> dict[str, Any]:
        """What results depend on."""
        return asdict(self)


PRESETS = {
    "cpu": Preset(
        "cpu", train=1600, test=400, scored=200, epochs=2, lr=1e-4, batch=16, length=48, seeds=(0, 1, 2),
        statistics=128, fisher=64,
    ),
    "gpu": Preset(
        "gpu", train=20000, test=1000, scored=1000, epochs=5, lr=5e-5, batch=16, length=128, seeds=(0, 1, 2, 3, 4),
        statistics=2048, fisher=1024, device="cuda",
    ),
}  # fmt: skip

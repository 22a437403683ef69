"""Which parametrisation of a relational transformer trains best: handwritten digits of 8 x 8 pixels, tiny models.

    python benchmarks/relational/parametrisation.py      # writes results/relational/parametrisation.json

Every model has 2 layers, 4 heads, width 32 and sees the same batches; of each, the learning rate with the least
training loss counts. The comparison with standard and quotient training on real tasks is
benchmarks/relational/compare.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn

from isomerge.relational import RelationalConfig, RelationalTransformer, patches_of

RESULTS = Path(__file__).parents[1] / "results" / "relational" / "parametrisation.json"
SEEDS, RATES, EPOCHS, BATCH = range(3), (1e-3, 3e-3, 1e-2), 15, 64
SHAPE = {"width": 32, "layers": 2, "heads": 4, "anchors": 32, "mlp": 64, "patch": 4, "length": 16, "classes": 10}


class Standard(nn.Module):
    """torch's pre-norm encoder of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.positions = nn.Linear(4, 32), nn.Parameter(0.02 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, 10) of patches (B, 16, 4)."""
        return self.head(self.layers(self.patches(x) + self.positions).mean(1))


def relational(**changes: object) -> Callable[[], nn.Module]:
    """A constructor of a relational model."""
    return lambda: RelationalTransformer(RelationalConfig(**SHAPE, **changes))  # pyright: ignore[reportArgumentType]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "standard": Standard,
    "atoms, rank 8": relational(rank=8),
    "atoms, full forms": relational(),
    "frame, rank 8": relational(rank=8, anchoring="frame"),
    "frame, full forms": relational(anchoring="frame"),
}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Patches and labels, to train and to test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = patches_of(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 16 - 0.3, 2)
    y = torch.tensor(labels)[order]
    return x[:1300], y[:1300], x[1300:], y[1300:]


def run(name: str, rate: float, seed: int) -> dict[str, float]:
    """Train one model: its last training loss and its test accuracy."""
    x, y, test, answers = digits()
    torch.manual_seed(seed)
    model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    steps = EPOCHS * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    rng, losses = torch.Generator().manual_seed(seed), []
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x), generator=rng)[: steps // EPOCHS * BATCH].split(BATCH):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
    with torch.no_grad():
        accuracy = float((model(test).argmax(-1) == answers).float().mean())
    return {"rate": rate, "seed": seed, "loss": mean(losses[-20:]), "accuracy": accuracy}


def main() -> None:
    """Train all and write the results."""
    torch.set_num_threads(1)
    found = {}
    for name, make in MODELS.items():
        runs = [run(name, rate, seed) for rate in RATES for seed in SEEDS]
        best = min(RATES, key=lambda rate: mean(r["loss"] for r in runs if r["rate"] == rate))
        chosen = [r for r in runs if r["rate"] == best]
        found[name] = {
            "parameters": sum(p.numel() for p in make().parameters()),
            "rate": best,
            "loss": mean(r["loss"] for r in chosen),
            "accuracy": mean(r["accuracy"] for r in chosen),
            "runs": runs,
        }
        print(name, {key: value for key, value in found[name].items() if key != "runs"}, flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

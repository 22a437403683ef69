"""Which pairs of models are measured, in which ways, and what each way is.

`train.py all` trains every model that is named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.barrier.data import BARRIER

IMAGES = {"vit-digits": "digits", "vit-fashion": "fashion"}
LIMITS = {
    "vit-digits": {"look": 512, "learn": None, "test": None},
    "vit-fashion": {"look": 512, "learn": 10_000, "test": 2_000},
    "llama": {"look": 64, "learn": 20_000, "test": 256},
    "gpt2": {"look": 64, "learn": 20_000, "test": 256},
}
"""Examples for activations and search, examples to learn from, test examples."""
IMAGE_STEPS: dict[str, Any] = {"steps": 1000}
TEXT_STEPS: dict[str, Any] = {"steps": 1900, "batch_size": 16}
WIDE_FROM = 512
WIDE: dict[str, Any] = {"steps": 600, "precision": "bfloat16"}
"""Wide models learn in fewer steps, of which each takes longer, and take their products in bfloat16."""
GENERATED = 2048
"""Examples that no data went into: texts that the pair wrote, or noise."""
ROWS = (
    "stored", "paper", "default", "all", "activations", "search", "learned", "learned-quick", "distilled-quick",
    "distilled", "thorough", "generated", "generated-distilled",
)  # fmt: skip
"""Ways to match, in the order in which they are measured."""
ALL_PAIRS = ("0-1", "0-2", "1-2")
LOCAL = ("stored", "paper", "default", "all", "activations", "search")
FEW = ("stored", "paper", "all", "activations")
LARGE = ("stored", "paper", "default", "all", "activations", "distilled-quick", "distilled")


@dataclass(frozen=True)
class Study:
    """One file of results.

    Args:
        family: of architecture and data.
        rows: the ways to match that every pair is measured in.
        pairs: seeds, such as 0-1.
        more: further ways of some pairs.
        width: None: the family's usual one.
        half: whether the models saw disjoint halves of the data, and the seed of each is its half.
        points: of the line, its ends included.
    """

    family: str
    rows: tuple[str, ...]
    pairs: tuple[str, ...] = ALL_PAIRS
    more: tuple[tuple[str, tuple[str, ...]], ...] = ()
    width: int | None = None
    half: bool = False
    points: int = 25

    @property
    def name(self) -> str:
        """Of the file, without its ending."""
        return self.family + (f"-width-{self.width}" if self.width else "") + ("-halves" if self.half else "")

    def rows_of(self, pair: str) -> tuple[str, ...]:
        """The ways that a pair is measured in, in their order."""
        wanted = (*self.rows, *dict(self.more).get(pair, ()))
        return tuple(row for row in ROWS if row in wanted)

    @property
    def models(self) -> list[tuple[str, int, int | None, int | None]]:
        """Family, seed, width and half of every model that is needed, as `train.plan` takes them."""
        seeds = sorted({int(seed) for pair in self.pairs for seed in pair.split("-")})
        return [(self.family, seed, self.width, seed if self.half else None) for seed in seeds]

    @property
    def learning(self) -> dict[str, Any]:
        """How the learned rows are learned, where a row does not say otherwise."""
        return (IMAGE_STEPS if self.family in IMAGES else TEXT_STEPS) | (
            WIDE if (self.width or 0) >= WIDE_FROM else {}
        )

    def data(self, split: str) -> str:
        """What the models were trained on, ``train``, or what no model and no matching has seen, ``test``."""
        folder = IMAGES.get(self.family)
        text = {"train": "train.txt", "test": "heldout.txt"}[split]
        return str(BARRIER / folder / f"{split}.safetensors" if folder else BARRIER / "corpus" / text)

    def options(self, row: str) -> dict[str, Any]:
        """The arguments of `isomerge.align` for a row; those of generated examples lack the file."""
        train, limits = self.data("train"), LIMITS[self.family]
        look = {"data": train, "limit": limits["look"], "spaces": "all"}
        learn = {"learn": train, "limit": limits["learn"], "spaces": "all", **self.learning}
        rows: dict[str, dict[str, Any]] = {
            "paper": {"spaces": "paper"}, "default": {"spaces": "default"}, "all": {"spaces": "all"},
            "activations": look, "search": {**look, "search": 60.0},
            "learned": {**learn, "learn_target": "labels"},
            "learned-quick": {**learn, "learn_target": "labels", "steps": 300},
            "distilled-quick": {**learn, "learn_target": "distill", "steps": 300},
            "distilled": {**learn, "learn_target": "distill"},
            "thorough": {**learn, "steps": 3000, "learn_target": "distill"},
            "generated": {"limit": GENERATED // 4, "spaces": "all"},
            "generated-distilled": {**learn, "learn_target": "distill", "steps": 300},
        }  # fmt: skip
        tied = {"untie": True} if self.family == "gpt2" and row not in ("paper", "default") else {}
        seeded = {"seed": 0} if rows[row].keys() & {"learn", "search"} else {}
        return {**rows[row], **tied, **seeded}


STUDIES = (
    Study("vit-digits", (*LOCAL, "learned", "distilled", "thorough")),
    Study("vit-digits", (*FEW, "distilled"), ("0-1",), width=32),
    Study("vit-digits", (*FEW, "distilled"), ("0-1",), width=128),
    Study("vit-digits", (*FEW, "distilled", "generated"), width=256),
    Study("vit-digits", (*LOCAL, "learned", "distilled", "thorough"), ("0-1",), half=True),
    Study("vit-digits", ("stored", "all", "activations", "distilled"), ("0-1",), width=256, half=True),
    Study("vit-fashion", (*LOCAL, "learned-quick", "distilled", "thorough", "generated", "generated-distilled")),
    Study("vit-fashion", (*FEW, "distilled-quick", "generated"), ("0-1",), width=256),
    Study("llama", (*LOCAL, "learned-quick", "distilled-quick"), more=(("0-1", ("learned",)),)),
    Study("llama", LARGE, more=(("0-1", ("generated", "generated-distilled")),), width=256),
    Study("llama", (*FEW, "distilled-quick"), ("0-1",), width=512, points=11),
    Study("gpt2", (*LOCAL, "learned-quick", "distilled-quick")),
    Study("gpt2", LARGE, more=(("0-1", ("generated", "generated-distilled")), ("0-2", ("generated",))), width=256),
)
"""Cheap ones of a family first."""

"""What the committed results of the barrier benchmarks are made of: their commands, in order, and the models that
these need.

``python -m benchmarks.barrier`` runs what is missing, `train.py all` trains every model that is named here, and a
test compares this list with the files in ``benchmarks/results/barrier``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.barrier.cost import KINDS, SIZES

RESULTS = Path(__file__).resolve().parents[1] / "results" / "barrier"

Model = tuple[str, int, int | None, int | None]
"""Family, seed, width (None for the usual one) and half of the data (None for all of it), as `train.py` takes
them."""
Key = tuple[str, ...]
"""Where a figure stands in its file."""
Lines = tuple[tuple[str, ...], tuple[str, ...]]
"""Pairs of seeds, and rows that are measured of each."""

ALL_PAIRS = ("0-1", "0-2", "1-2")
LOCAL = ("stored", "paper", "default", "all", "activations", "search")
WEIGHTS_TO_ACTIVATIONS = ("stored", "paper", "all", "activations")
PARTS = ("all", "embeddings and head", "attention", "mlp")


@dataclass(frozen=True)
class Measurement:
    """One file of results.

    Args:
        name: of the file, without its ending.
        commands: scripts of this folder with their arguments, in the order in which they are run.
        models: what must be trained before.
        keys: the figures that the file holds when all is measured.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    models: tuple[Model, ...]
    keys: tuple[Key, ...]

    @property
    def file(self) -> Path:
        """Where the results go."""
        return RESULTS / f"{self.name}.json"

    def missing(self) -> list[Key]:
        """The figures that the file lacks."""
        found = json.loads(self.file.read_text()) if self.file.exists() else {}
        return [key for key in self.keys if not _holds(found, key)]

    def seconds(self) -> float:
        """How long what the file holds took: matching and merging, without training and without measuring lines."""
        return sum(_seconds(json.loads(self.file.read_text()))) if self.file.exists() else 0.0


def _holds(found: dict[str, Any], key: Key) -> bool:
    for part in key:
        if part not in found:
            return False
        found = found[part]
    return True


def _seconds(found: Any) -> list[float]:
    """The seconds of every row, in which those of its parts are; the summary repeats them."""
    if not isinstance(found, dict):
        return []
    for kind in ("seconds", "cpu_seconds"):
        if kind in found:
            return [found[kind] or 0.0]
    return [s for key, part in found.items() if key != "summary" for s in _seconds(part)]


def lines(
    family: str, *chosen: Lines, width: int | None = None, half: bool = False, points: int = 25
) -> Measurement:
    """What `run.py` measures of a family: each of ``chosen`` by a command of its own."""
    shape = (*(("--width", str(width)) if width else ()), *(("--half",) if half else ()))
    fine = () if points == 25 else ("--points", str(points))
    seeds = sorted({int(seed) for pairs, _ in chosen for pair in pairs for seed in pair.split("-")})
    return Measurement(
        name=family + (f"-width-{width}" if width else "") + ("-halves" if half else ""),
        commands=tuple(
            ("run.py", family, *shape, "--pairs", *pairs, "--rows", *rows, *fine) for pairs, rows in chosen
        ),
        models=tuple((family, seed, width, seed if half else None) for seed in seeds),
        keys=tuple(("pairs", pair, "rows", row) for pairs, rows in chosen for pair in pairs for row in rows),
    )


def diagnosis() -> Measurement:
    """Which parts the barrier of one pair of each family sits in."""
    layers = tuple(f"{part} {layer}" for part in ("attention", "mlp") for layer in (0, 3))
    parts = {"llama": PARTS, "vit-digits": PARTS, "vit-fashion": PARTS + layers}
    return Measurement(
        name="diagnosis",
        commands=tuple(("diagnose.py", family, "--parts", *some) for family, some in parts.items()),
        models=tuple((family, seed, None, None) for family in parts for seed in (0, 1)),
        keys=tuple((f"{family} 0-1", part) for family, some in parts.items() for part in some),
    )


def several() -> Measurement:
    """Three and five models at once."""
    last = (
        "anchor 0, learned",
        "sequence, learned",
        "mean, learned",
    )  # rows are measured in order, these at the end
    return Measurement(
        name="many",
        commands=(("many.py",),),
        models=tuple(("vit-digits", seed, None, None) for seed in range(5)),
        keys=tuple((count, "rows", row) for count in ("3", "5") for row in last),
    )


def apart() -> Measurement:
    """Neurons that stand apart in a wider MLP."""
    shares = ("0.0", "0.125", "0.25", "0.5", "1.0")
    rows = (("llama", "activations", ("0-1",)), ("vit-digits", "activations", ("0-1",)))
    middles = (*rows, ("vit-digits", "all", ("0-1",)), ("vit-digits", "distilled-quick", ("0-1",)))
    told = [(one, "middle", ()) for one in middles] + [(one, LEARNED_APART, ("--learn", "300")) for one in rows]
    return Measurement(
        name="neurons",
        commands=tuple(
            ("neurons.py", family, "--row", row, *more, "--pairs", *pairs) for (family, row, pairs), _, more in told
        ),
        models=tuple((family, seed, None, None) for family in ("llama", "vit-digits") for seed in range(2)),
        keys=tuple(
            (f"{family}, {row}", pair, kind, share)
            for (family, row, pairs), kind, _ in told
            for pair in pairs
            for share in shares
        ),
    )


LEARNED_APART = "learned, 300 steps"
SIMPLEX_STEPS = "300"


def inside() -> Measurement:
    """The loss inside the simplex between three and five models."""
    return Measurement(
        name="simplex",
        commands=(("simplex.py", "--steps", SIMPLEX_STEPS),),
        models=tuple(("vit-digits", seed, None, None) for seed in range(5)),
        keys=tuple(
            (count, SIMPLEX_STEPS, row) for count in ("3", "5") for row in ("matched by weights", "learned")
        ),
    )


def sides() -> Measurement:
    """One model moved, or both."""
    seeds = {"vit-digits": range(3), "llama": range(1)}
    return Measurement(
        name="two-sided",
        commands=(("two_sided.py",),),
        models=tuple((family, seed, None, None) for family in seeds for seed in (0, 1)),
        keys=tuple(
            (family, way, str(k)) for family, some in seeds.items() for way in ("one", "both") for k in some
        ),
    )


def of_other_data() -> Measurement:
    """Models that have learned different things; the script trains them."""
    last = "300 steps onto the ensemble, from the first model"
    keys = tuple((case, seed, last) for case in ("digits", "texts") for seed in ("0", "1", "2"))
    return Measurement("other-data", (("other_data.py",),), (), keys)


def costs() -> Measurement:
    """Time and memory of each kind of matching; its models are random."""
    sizes = [" ".join(f"{k} {v}" for k, v in size.items()) for size in SIZES]
    return Measurement("cost", (("cost.py",),), (), tuple(("rows", size, kind) for size in sizes for kind in KINDS))


MEASUREMENTS = (
    lines("vit-digits", (ALL_PAIRS, (*LOCAL, "learned", "distilled", "thorough"))),
    lines("vit-digits", (("0-1",), (*WEIGHTS_TO_ACTIVATIONS, "distilled")), width=32),
    lines("vit-digits", (("0-1",), (*WEIGHTS_TO_ACTIVATIONS, "distilled")), width=128),
    lines("vit-digits", (ALL_PAIRS, (*WEIGHTS_TO_ACTIVATIONS, "distilled", "generated")), width=256),
    lines("vit-digits", (("0-1",), (*LOCAL, "learned", "distilled", "thorough")), half=True),
    lines("vit-digits", (("0-1",), ("stored", "all", "activations", "distilled")), width=256, half=True),
    lines(
        "vit-fashion",
        (ALL_PAIRS, (*LOCAL, "learned-quick", "distilled", "thorough", "generated", "generated-distilled")),
    ),
    lines("vit-fashion", (("0-1",), (*WEIGHTS_TO_ACTIVATIONS, "distilled-quick", "generated")), width=256),
    lines("llama", (ALL_PAIRS, (*LOCAL, "learned-quick", "distilled-quick")), (("0-1",), ("learned",))),
    lines(
        "llama",
        (ALL_PAIRS, ("stored", "paper", "default", "all", "activations", "distilled-quick", "distilled")),
        (("0-1",), ("generated", "generated-distilled")),
        width=256,
    ),
    lines("llama", (("0-1",), (*WEIGHTS_TO_ACTIVATIONS, "distilled-quick")), width=512, points=11),
    lines("gpt2", (ALL_PAIRS, (*LOCAL, "learned-quick", "distilled-quick"))),
    lines(
        "gpt2",
        (ALL_PAIRS, ("stored", "paper", "default", "all", "activations", "distilled-quick", "distilled")),
        (("0-1", "0-2"), ("generated",)),
        (("0-1",), ("generated-distilled",)),
        width=256,
    ),
    several(),
    diagnosis(),
    apart(),
    sides(),
    inside(),
    of_other_data(),
    costs(),
)
"""Every file of results, cheap ones of a family first."""

"""Every way to bring the second model of a pair to the first that a table or figure names, each done once per pair.

    python -m benchmarks.paper.vision.matching [NAME ...]      # all that are missing

The aligned checkpoints are kept in `benchmarks/data/paper/vision/aligned`, so that the tables share them. What each
took and how far apart the models are then is in `benchmarks/results/paper/matching.json`, one cell per `NAME/PAIR`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import isomerge
from benchmarks.paper.results import Results
from benchmarks.paper.vision.endpoints import ENDPOINTS, MADE, PAIRS, RESULTS, TRAIN, ends, prepare
from isomerge.symmetry.alignment import Alignment

LOOK = {"data": TRAIN, "limit": 512}
LEARN = {"learn": TRAIN, "limit": 10_000, "spaces": "all", "seed": 0}
MATCHINGS: dict[str, dict[str, Any]] = {
    "none": {},
    # the seed paper's Algorithm 1, Hungarian assignment and Eq. 12
    "paper": {"spaces": "paper"},
    "paper-no-rescale": {"spaces": "paper-no-rescale"},
    "paper-joint": {"spaces": "paper-joint"},
    # published baselines
    "git-rebasin": {"match": "git-rebasin"},
    "git-rebasin-inside": {"match": "git-rebasin", "spaces": "default"},
    "otfusion": {"match": "otfusion"},
    "otfusion-ffn": {"match": "otfusion", "spaces": "ff"},
    # ours: weights alone; 512 images; gradients
    "default": {"spaces": "default"},
    "all": {"spaces": "all"},
    "activations": {"spaces": "all", **LOOK},
    "learned": {**LEARN, "learn_target": "labels", "steps": 300},
    # ours with parts left away
    "activations-ffn": {"spaces": "residual,ffn", **LOOK},
    "activations-attention": {"spaces": "residual,attention", **LOOK},
    "activations-inside": {"spaces": "default", **LOOK},
    # general linear maps of heads, nothing else
    "linear": {"spaces": "qk,ov"},
}
PARTS = {  # an algorithm without some of its elements: (matching, spaces that stay)
    "paper-ffn": ("paper", {"ff"}),
    "paper-attention": ("paper", {"qk", "ov"}),
    "rotations": ("paper-no-rescale", {"qk", "ov"}),
    "joint-attention": ("paper-joint", {"qk", "ov"}),
}


def portable(settings: Any) -> Any:
    """Settings without the folders of one machine."""
    if isinstance(settings, dict):
        return {key: portable(value) for key, value in settings.items()}
    return Path(settings).name if settings == TRAIN else settings


def costs() -> Results:
    """What every matching took."""
    return Results(RESULTS / "matching.json", ENDPOINTS)


def folder(name: str, pair: str) -> Path:
    """Where a source that was aligned lies; the source itself without matching."""
    return ends(pair)[1] if name == "none" else MADE / "aligned" / name / pair


def options(name: str) -> Any:
    """What a matching is, for the cell that tells what it took."""
    return portable(MATCHINGS[name]) if name in MATCHINGS else [PARTS[name][0], sorted(PARTS[name][1])]


def part(alignment: Alignment, keep: set[str]) -> Alignment:
    """An alignment without the elements of other spaces: the modules that they act on stay as they are."""
    return Alignment(alignment.spec, {key: g for key, g in alignment.items() if space(key) in keep})


def space(key: str) -> str:
    """The space of an element's key, ``2:qk[0]``."""
    return key.rpartition(":")[2].partition("[")[0]


def move(name: str, pair: str, out: Path) -> dict[str, Any]:
    """Align one pair into a folder; what that took."""
    anchor, source = ends(pair)
    began, worked = time.perf_counter(), time.process_time()
    if name in PARTS:
        whole, keep = PARTS[name]
        alignment, report = isomerge.align(source, onto=anchor, align=True, **MATCHINGS[whole])
        isomerge.apply(part(alignment, keep), source, out=out)
    else:
        _, report = isomerge.align(source, onto=anchor, out=out, align=True, **MATCHINGS[name])
    seconds, work = time.perf_counter() - began, time.process_time() - worked
    return {
        "options": options(name),
        "seconds": round(seconds, 2),
        "processor_seconds": round(work, 2),
        "distance_stored": report["distance"]["before"],
        "distance": isomerge.diff(anchor, out, spaces="none")["distance"]["before"],
    }


def aligned(name: str, pair: str) -> Path:
    """The source of a pair, matched; done on the first call, read from disk afterwards."""
    out, found = folder(name, pair), costs()
    known = found.get(f"{name}/{pair}", {}).get("options") == options(name)
    if name == "none" or (out.is_dir() and known):
        return out
    with tempfile.TemporaryDirectory(dir=MADE) as temporary:
        cost = move(name, pair, Path(temporary) / "moved")
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        (Path(temporary) / "moved").rename(out)
    found.put(f"{name}/{pair}", cost)
    print(
        f"{name:24s} {pair}  {cost['distance_stored']:.2f} -> {cost['distance']:.2f}  {cost['seconds']} s",
        flush=True,
    )
    return out


def main() -> None:
    """Align all pairs in every way, or in those that are named."""
    prepare()
    for name in sys.argv[1:] or [*MATCHINGS, *PARTS]:
        for pair in PAIRS:
            aligned(name, pair)


if __name__ == "__main__":
    main()

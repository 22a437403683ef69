"""How an anchor and a matched source become one model: the rows of Table 2, and what isomerge adds to them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import isomerge
from benchmarks.paper.vision.endpoints import MADE, TRAIN, measured
from isomerge.observe.data.examples import Examples

STATISTICS = {"kinds": "fisher,regmean", "fisher_labels": "sampled", "limit": 1000, "seed": 0}
LOOK = {"data": TRAIN, "limit": 512}
PAPER_ROWS = ("simple", "fisher", "regmean", "ot-acts-emd", "ot-acts", "ot-wts")
OUR_ROWS = ("repair", "regression")
ROWS: dict[str, dict[str, Any]] = {
    "simple": {},
    "fisher": {"method": "fisher"},
    "regmean": {"method": "regmean"},
    "ot-acts-emd": {"match": "ot-acts-emd", "spaces": "all", **LOOK},
    "ot-acts": {"match": "ot-acts", "spaces": "all", **LOOK},
    "ot-wts": {"match": "ot-wts", "spaces": "all"},
    "repair": {"repair": TRAIN, "limit": 1024},
    "regression": {"method": "regression", "data": TRAIN, "limit": 1024},
}
SETTINGS = {"statistics": STATISTICS, "transport_images": 512, "repair_and_regression_images": 1024}


def statistics(model: Path) -> Path:
    """Fisher information and Grams of a model, gathered on the first call. It is of the model as it is: the matched
    source is run, since a diagonal Fisher cannot follow a rotation."""
    name = "-".join(model.parts[-2:])
    out = MADE / "statistics" / f"{name}.safetensors"
    if not out.is_file() or out.stat().st_mtime < (model / "model.safetensors").stat().st_mtime:
        out.parent.mkdir(parents=True, exist_ok=True)
        isomerge.stats(model, data=TRAIN, out=out, overwrite=True, **STATISTICS)
    return out


def fuse(row: str, anchor: Path, source: Path, out: Path, **more: Any) -> None:
    """Merge a matched source into its anchor. The fusions by optimal transport transport what was matched
    before."""
    options = {**ROWS[row], **more}
    if options.get("method") in ("fisher", "regmean"):
        options["stats"] = [statistics(anchor), statistics(source)]
    isomerge.merge([anchor, source], out=out, align="match" in options, **options)


def merged(row: str, anchor: Path, source: Path, on: Examples | None = None, **more: Any) -> dict[str, Any]:
    """Loss and accuracy of one merge on the test images, or on other ones."""
    with tempfile.TemporaryDirectory(dir=MADE) as temporary:
        out = Path(temporary) / "merged"
        fuse(row, anchor, source, out, **more)
        return measured(out, on)

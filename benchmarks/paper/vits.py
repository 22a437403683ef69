"""The ViTs of Table 2, Figures 3 to 6 and the reviewers' questions: how pairs are matched and merged, and every cell.

Three ViTs that were trained from scratch on Fashion-MNIST from seeds 0, 1 and 2 (`benchmarks/barrier/train.py`), in
three pairs; the first of a pair is the anchor. A merge is tested on all 10,000 test images (loss in nats and
accuracy); matching and statistics see training images alone. Matched models are kept in
`benchmarks/data/paper/vision/aligned`, so that all tables share them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import isomerge
from benchmarks.harness import DATA, Benchmark, quiet
from isomerge.models.recognised import recognise

BARRIER = DATA / "barrier"
MADE = DATA / "paper" / "vision"  # aligned models and statistics; ignored by git
FAMILY = "vit-fashion"
TRAIN = str(BARRIER / "fashion" / "train.safetensors")
TEST = str(BARRIER / "fashion" / "test.safetensors")
PAIRS = ("0-1", "0-2", "1-2")
DEPTH = 4
BATCH = 500
ENDPOINTS = {"models": FAMILY, "pairs": list(PAIRS), "tested_on": "all 10000 test images of Fashion-MNIST"}

LOOK = {"data": TRAIN, "limit": 512}
LEARN = {"learn": TRAIN, "limit": 10_000, "spaces": "all", "seed": 0, "learn_target": "labels", "steps": 300}


@dataclass(frozen=True)
class Matching:
    """A way to bring the second model of a pair to the first, and how it looks on the page."""

    label: str
    options: Mapping[str, Any]
    """Of `isomerge.align`."""
    colour: str = ""
    stays: tuple[str, ...] = ()
    """The spaces whose elements stay where a part of the alignment is left out; none: it is whole."""

    def stored(self) -> Any:
        """What it is, without the folders of one machine, for the cell that tells what it took."""
        return [self.options["spaces"], [*self.stays]] if self.stays else portable(self.options)


MATCHINGS = {
    "none": Matching("no matching", {}, "0.45"),
    # the seed paper's Algorithm 1, Hungarian assignment and Eq. 12; parts of it
    "paper": Matching("the paper", {"spaces": "paper"}, "#a50f15"),
    "paper-no-rescale": Matching("the paper, w/o rescaling", {"spaces": "paper-no-rescale"}, "#a6761d"),
    "paper-joint": Matching("the paper, joint optimum", {"spaces": "paper-joint"}),
    "paper-ffn": Matching("the paper, w/o attention", {"spaces": "paper"}, "#e6ab02", ("ff",)),
    "paper-attention": Matching("the paper, w/o FFN", {"spaces": "paper"}, "#d95f02", ("ov", "qk")),
    "rotations": Matching("rotations of heads", {"spaces": "paper-no-rescale"}, "", ("ov", "qk")),
    "joint-attention": Matching("heads, joint optimum", {"spaces": "paper-joint"}, "", ("ov", "qk")),
    # published baselines
    "git-rebasin": Matching("Git Re-Basin", {"match": "git-rebasin"}, "#e7298a"),
    "git-rebasin-inside": Matching(
        "Git Re-Basin, inside layers", {"match": "git-rebasin", "spaces": "default"}, "#fbb4d9"
    ),
    "otfusion": Matching("OTFusion", {"match": "otfusion"}, "#fd8d3c"),
    "otfusion-ffn": Matching("OTFusion, FFN only", {"match": "otfusion", "spaces": "ff"}, "#fdbe85"),
    # ours: weights alone; 512 images; gradients; parts left away
    "default": Matching("ours, inside layers", {"spaces": "default"}, "#bcbddc"),
    "all": Matching("ours, data-free", {"spaces": "all"}, "#7570b3"),
    "activations": Matching("ours, activations", {"spaces": "all", **LOOK}, "#1f78b4"),
    "learned": Matching("ours, learned (300 steps)", LEARN, "#1b9e77"),
    "activations-ffn": Matching("ours, w/o attention", {"spaces": "residual,ffn", **LOOK}),
    "activations-attention": Matching("ours, w/o FFN", {"spaces": "residual,attention", **LOOK}),
    "activations-inside": Matching("ours, w/o residual stream", {"spaces": "default", **LOOK}),
    # general linear maps of heads, nothing else
    "linear": Matching("invertible maps", {"spaces": "qk,ov"}),
}


@dataclass(frozen=True)
class Row:
    """A way to merge a matched pair, and what the paper's Table 2 says of it."""

    label: str
    options: Mapping[str, Any]
    """Of `isomerge.merge`."""
    printed: tuple[float, ...] = ()
    """The paper's accuracies in percent: without matching, without rescaling, whole."""


STATISTICS = {"kinds": "fisher,regmean", "fisher_labels": "sampled", "limit": 1000, "seed": 0}
PAPER_ROWS = {
    "simple": Row("Simple", {}, (7.60, 10.22, 10.19)),
    "fisher": Row("Fisher", {"method": "fisher"}, (17.96, 18.61, 18.58)),
    "regmean": Row("RegMean", {"method": "regmean"}, (14.24, 15.31, 15.35)),
    "ot-acts-emd": Row("OT-ACTS-EMD", {"match": "ot-acts-emd", "spaces": "all", **LOOK}, (32.08, 32.50, 32.53)),
    "ot-acts": Row("OT-ACTS", {"match": "ot-acts", "spaces": "all", **LOOK}, (61.15, 61.23, 61.25)),
    "ot-wts": Row("OT-WTS", {"match": "ot-wts", "spaces": "all"}, (57.11, 57.16, 57.17)),
}
ROWS = PAPER_ROWS | {
    "repair": Row("Simple + REPAIR", {"repair": TRAIN, "limit": 1024}),
    "regression": Row("Regression, layer by layer", {"method": "regression", "data": TRAIN, "limit": 1024}),
}
FUSIONS = {"statistics": STATISTICS, "transport_images": 512, "repair_and_regression_images": 1024}

COLUMNS = ("none", "paper-no-rescale", "paper", "all", "activations", "learned")
ABLATED = ("none", "paper-ffn", "paper-attention", "paper-no-rescale", "paper")
ABLATED_OURS = ("activations-ffn", "activations-attention", "activations-inside", "activations")
DISTANT = ("none", "otfusion-ffn", "otfusion", "git-rebasin-inside", "git-rebasin", "paper-no-rescale", "paper")
DISTANT += ("default", "all", "activations", "learned")
LINES = ("none", "paper-attention", "paper-ffn", "paper")
LINES_OURS = ("all", "activations", "learned")
POINTS, LINE_IMAGES = 25, 2000
PARTLY = ("paper", "activations", "learned")
HEADS = {"average": "averaged", "copy": "the anchor's", "keep:2": "the matched source's"}
HEADS_MATCHED = ("none", "paper", "all", "activations", "learned")
OPTIMA = {
    "none": "no matching",
    "rotations": "rotations (the paper without rescaling)",
    "paper-attention": "rotations, then rescaling (the paper, Eq. 12)",
    "joint-attention": "rotations and rescaling together (certified optimum)",
    "linear": "invertible maps (GL)",
}


def prepare(asked: Namespace | None = None) -> None:
    """One thread, quiet libraries, and the folder of what is made."""
    quiet()
    MADE.mkdir(parents=True, exist_ok=True)


def ends(pair: str) -> tuple[Path, Path]:
    """The anchor and the source of a pair.

    Raises:
        SystemExit: a model is not trained yet; the sentence says how it is.
    """
    anchor, source = (BARRIER / FAMILY / f"seed-{number}" for number in pair.split("-"))
    for folder in (anchor, source):
        if not (folder / "model.safetensors").is_file():
            number = folder.name.removeprefix("seed-")
            sys.exit(f"{folder} is not trained yet: python benchmarks/barrier/train.py {FAMILY} --seed {number}")
    return anchor, source


# ------------------------------------------------------------------------------------------------------- matching


def portable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the folders of one machine."""
    return {key: Path(word).name if word == TRAIN else word for key, word in settings.items()}


def place(key: str) -> tuple[str, int | None]:
    """The space and the layer of an element's key, ``2:qk[3]``; no layer where it acts in all of them."""
    space, bracket, index = key.rpartition(":")[2].partition("[")
    return space, int(index.split(",")[0].rstrip("]")) if bracket else None


def part(alignment: isomerge.Alignment, stays: Callable[[str, int | None], bool]) -> isomerge.Alignment:
    """An alignment without the elements whose space and layer do not stay; it is a symmetry as before."""
    return isomerge.Alignment(alignment.spec, {key: g for key, g in alignment.items() if stays(*place(key))})


def in_layers(alignment: isomerge.Alignment, layers: Collection[int]) -> isomerge.Alignment:
    """The elements of these layers, and those of the residual stream with its gains."""
    streams = alignment.spec.residual_names
    return part(alignment, lambda space, layer: space in streams or layer is None or layer in layers)


def move(matching: str, pair: str) -> dict[str, Any]:
    """Align a pair, keep the moved model, and tell what that took and how far apart the two are."""
    (anchor, source), how = ends(pair), MATCHINGS[matching]
    folder = MADE / "aligned" / matching / pair
    shutil.rmtree(folder, ignore_errors=True)
    began, worked = time.perf_counter(), time.process_time()
    out = {} if how.stays else {"out": folder}
    alignment, report = isomerge.align(source, onto=anchor, align=True, **out, **how.options)
    if how.stays:
        isomerge.apply(part(alignment, lambda space, layer: space in how.stays), source, out=folder)
    return {
        "options": how.stored(),
        "seconds": round(time.perf_counter() - began, 2),
        "processor_seconds": round(time.process_time() - worked, 2),
        "distance_stored": report["distance"]["before"],
        "distance": isomerge.diff(anchor, folder, spaces="none")["distance"]["before"],
    }


def is_moved(cell: Mapping[str, Any], settings: Mapping[str, str]) -> bool:
    """Whether a matching was measured as it is defined, and the model that it moved is there."""
    matching, pair = settings["matching"], settings["pair"]
    return cell["options"] == MATCHINGS[matching].stored() and (MADE / "aligned" / matching / pair).is_dir()


def aligned(matching: str, pair: str) -> Path:
    """The source of a pair, matched; done on the first call, read from disk afterwards."""
    if matching == "none":
        return ends(pair)[1]
    results, key, settings = MATCHING.results(), f"{matching}/{pair}", {"matching": matching, "pair": pair}
    if not MATCHING.is_there(results, key, settings):
        results.put(key, move(matching, pair))
    return MADE / "aligned" / matching / pair


# -------------------------------------------------------------------------------------------------------- merging


def measured(folder: Path) -> dict[str, float]:
    (model,) = isomerge.evaluate([folder], data=TEST, batch_size=BATCH)["models"]
    return {"loss": model["loss"], "accuracy": model["accuracy"]}


def statistics(model: Path) -> Path:
    """Fisher information and Grams of a model, gathered on the first call. They are of the model as it is: the
    matched source is run, since a diagonal Fisher cannot follow a rotation."""
    out = MADE / "statistics" / f"{'-'.join(model.parts[-2:])}.safetensors"
    if not out.is_file() or out.stat().st_mtime < (model / "model.safetensors").stat().st_mtime:
        out.parent.mkdir(parents=True, exist_ok=True)
        isomerge.stats(model, data=TRAIN, out=out, overwrite=True, **STATISTICS)
    return out


def merged(
    pair: str, matching: str, row: str, layers: Collection[int] | None = None, **more: Any
) -> dict[str, Any]:
    """One merge of an anchor with a source that is matched, in all layers or in some. The fusions by optimal
    transport transport what was matched before."""
    (anchor, _), source = ends(pair), aligned(matching, pair)
    began = time.perf_counter()
    how = {**ROWS[row].options, **more}
    with tempfile.TemporaryDirectory(dir=MADE) as temporary:
        if layers is not None:
            source = moved_in(layers, ends(pair)[1], source / "alignment.safetensors", Path(temporary) / "moved")
        if how.get("method") in ("fisher", "regmean"):
            how["stats"] = [statistics(anchor), statistics(source)]
        out = Path(temporary) / "merged"
        isomerge.merge([anchor, source], out=out, align="match" in how, **how)
        return {**measured(out), "seconds": round(time.perf_counter() - began, 2)}


def moved_in(layers: Collection[int], source: Path, file: Path, out: Path) -> Path:
    """A source that is moved by a stored alignment in these layers alone."""
    whole = isomerge.Alignment.load(file, recognise(source).declared)
    isomerge.apply(in_layers(whole, layers), source, out=out)
    return out


def unmerged(pair: str, what: str) -> Any:
    """Loss and accuracy of the models of a pair, or of the mean of their probabilities."""
    if what == "endpoints":
        return [measured(folder) for folder in ends(pair)]
    report = isomerge.barrier(*ends(pair), data=TEST, spaces="none", points=3, batch_size=BATCH)
    return {name: report["ensemble"][name] for name in ("loss", "accuracy")}


def table2_cell(**settings: Any) -> Any:
    return unmerged(**settings) if "what" in settings else merged(**settings)


def line(pair: str, matching: str) -> dict[str, Any]:
    """The losses along the line from the anchor to the matched source."""
    anchor, source, began = ends(pair)[0], aligned(matching, pair), time.perf_counter()
    settings = {"points": POINTS, "limit": LINE_IMAGES, "batch_size": BATCH}
    (losses,) = isomerge.barrier(anchor, source, data=TEST, spaces="none", **settings)["lines"]
    kept = {name: losses[name] for name in ("points", "losses", "accuracies", "barrier", "midpoint")}
    return {**kept, "seconds": round(time.perf_counter() - began, 2)}


# ---------------------------------------------------------------------------------------------------------- cells


def layer_choices(depth: int, step: int) -> dict[str, list[tuple[int, ...]]]:
    """The layers that Figure 6 matches: each one alone, the last ones, the first ones."""
    counts, layers = range(0, depth + 1, step), tuple(range(depth))
    return {
        "single": [(layer,) for layer in layers],
        "tail": [layers[depth - count :] for count in counts],
        "head": [layers[:count] for count in counts],
    }


CHOICES = layer_choices(DEPTH, 1)


def layers_key(layers: Collection[int]) -> str:
    """A set of layers in a cell's key."""
    return "+".join(map(str, sorted(layers))) or "none"


def said(cell: Any) -> str:
    if "barrier" in cell:
        return f"barrier {cell['barrier']['entezari']:.3f}"
    if "distance" in cell:
        return f"{cell['distance_stored']:.2f} -> {cell['distance']:.2f}"
    models = [model for model in (cell if isinstance(cell, list) else [cell]) if "accuracy" in model]
    return ", ".join(f"{100 * model['accuracy']:.2f} % {model['loss']:.3f} nats" for model in models)


def benchmark(
    name: str, cells: Mapping[str, Any], settings: Mapping[str, Any], measure: Any = merged, **more: Any
) -> Benchmark:
    """One results file of the paper: the cells ``KEY/PAIR`` of all pairs of ViTs."""
    over = {f"{key}/{pair}": {"pair": pair, **cell} for key, cell in cells.items() for pair in PAIRS}
    more |= {"settings": {**ENDPOINTS, **settings}, "before": prepare, "said": said}
    return Benchmark(f"paper/{name}", lambda asked: over, measure, **more)


def merges(matchings: Collection[str], rows: Collection[str]) -> dict[str, dict[str, Any]]:
    """Every row, by matching."""
    return {f"{row}/{name}": {"matching": name, "row": row} for name in matchings for row in rows}


def simple(matchings: Collection[str], key: str = "{}", **more: Any) -> dict[str, dict[str, Any]]:
    """The plain mean, by matching."""
    return {key.format(name): {"matching": name, "row": "simple", **more} for name in matchings}


MATCHING = benchmark(
    "matching", {name: {"matching": name} for name in MATCHINGS if name != "none"}, {}, move, complete=is_moved
)  # fmt: skip
TABLE2 = benchmark(
    "table2",
    {what: {"what": what} for what in ("endpoints", "ensemble")} | merges(COLUMNS, ROWS),
    {**FUSIONS, "matchings": {name: portable(MATCHINGS[name].options) for name in COLUMNS}},
    table2_cell,
)
BESIDE_TABLE2 = [name for name in (*ABLATED, *ABLATED_OURS) if name not in COLUMNS]
FIGURE3 = benchmark("ablation", merges(BESIDE_TABLE2, PAPER_ROWS), FUSIONS)
FIGURE4 = benchmark("distances", simple([name for name in DISTANT if name not in COLUMNS]), {})
FIGURE5 = benchmark(
    "lines",
    {name: {"matching": name} for name in (*LINES, *LINES_OURS)},
    {"points": POINTS, "tested_on": f"{LINE_IMAGES} test images"},
    line,
)
PARTS = [layers for kind in CHOICES.values() for layers in kind]
FIGURE6 = benchmark(
    "layers",
    {k: s for layers in PARTS for k, s in simple(PARTLY, f"{{}}/{layers_key(layers)}", layers=layers).items()},
    {},
)
QUESTIONS = benchmark(
    "reviewers",
    {k: s for heads in HEADS for k, s in simple(HEADS_MATCHED, f"classifier/{heads}/{{}}", heads=heads).items()}
    | simple(OPTIMA, "optimum/{}"),
    {},
)

"""Beyond the paper's models: ViTs of 24 layers, T5, and checkpoints that others have trained.

Deep ViTs, of seeds 0 and 1: Figure 6 at the depth of the paper's models; cells `end N` and `MATCHING/LAYERS`. T5: the
line between two by matching, the loss per byte on held-out speeches; cells `training/SEED` and `MATCHING`.

Checkpoints of others: MiniLM and a fine-tune for site reliability; a BERT of chemical reactions (rxnfp) and two
fine-tunes. Of every pair the distance as stored and after matching (`distance/SPACES/PAIR`), and what the mean does:
for rxnfp the share of tokens of reactions that the base's own head fills in when one is hidden at a time
(`masked/SPACES/PAIR`), for MiniLM, which has no head, the cosine of sentence embeddings of the mean and of its
parents (`cosine/SPACES/PAIR`).
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.barrier.data import load_text
from benchmarks.harness import DATA, Benchmark, Cells
from benchmarks.paper import trained
from benchmarks.paper.vits import MADE, layer_choices, layers_key, moved_in, prepare, said
from benchmarks.twins import PAIRS, embed
from isomerge.errors import IsomergeError

# ------------------------------------------------------------------------------------------------ ViTs of 24 layers

DIGITS = str(DATA / "barrier" / "digits" / "train.safetensors")
DEEP_CHOICES = layer_choices(trained.DEPTH, 4) | {"single": layer_choices(trained.DEPTH, 1)["single"]}
DEEP_MATCHINGS: dict[str, dict[str, Any]] = {
    "paper": {"spaces": "paper"},
    "activations": {"spaces": "all", "data": DIGITS, "limit": 512},
    "learned": {"spaces": "all", "learn": DIGITS, "steps": 300, "seed": 0},
}


def deep_cells(asked: Namespace) -> Cells:
    """Both models, and every choice of layers by every matching."""
    merges = {
        f"{matching}/{layers_key(layers)}": {"matching": matching, "layers": layers}
        for matching in DEEP_MATCHINGS
        for kind in ("single", "tail", "head")
        for layers in DEEP_CHOICES[kind]
    }
    return {f"end {seed}": {"seed": seed} for seed in (0, 1)} | merges


def deep_cell(seed: int = 0, matching: str | None = None, layers: Collection[int] = ()) -> dict[str, float]:
    """A model, or the mean of both where the second is matched in these layers alone."""
    if matching is None:
        return trained.digits_scores(trained.deep_vit(seed))
    anchor, source = (trained.deep_vit(number) for number in (0, 1))
    out = MADE / f"deep-{matching}"
    if not out.exists():
        isomerge.align(source, onto=anchor, out=out, align=True, **DEEP_MATCHINGS[matching])
    with tempfile.TemporaryDirectory(dir=MADE) as folder:
        moved = moved_in(layers, source, out / "alignment.safetensors", Path(folder) / "moved")
        isomerge.merge([anchor, moved], out=Path(folder) / "mean", align=False)
        return trained.digits_scores(Path(folder) / "mean")


DEEP = Benchmark(
    "paper/deep-layers", deep_cells, deep_cell, before=prepare, said=said,
    settings={
        "models": f"two digits ViTs of {trained.DEPTH} layers, width {trained.WIDTH}", "steps": trained.VIT_STEPS,
        "tested_on": "450 test images",
    },
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------- T5

# transformers ties the head of every T5 to the embeddings: streams are permuted, not rotated
T5_MATCHINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "paper": {"spaces": "paper"},
    "default": {"spaces": "default"},
    "all": {"spaces": "all"},
    "activations": {"spaces": "all", "data": "train", "limit": 128},
    "learned": {
        "spaces": "all", "learn": "train", "limit": 4000, "steps": 300, "learn_target": "labels", "seed": 0,
    },
}  # fmt: skip


def t5_cell(seed: int | None = None, matching: str = "none") -> dict[str, Any]:
    """What training a model took, or the line between the anchor and the second model, matched."""
    if seed is not None:
        record = json.loads((trained.t5(seed) / "training.json").read_text())
        return {name: record[name] for name in ("seconds", "processor_seconds", "parameters")}
    anchor, source, cost = trained.t5(0), trained.t5(1), {}
    how = dict(T5_MATCHINGS[matching])
    how |= {name: trained.t5_examples(how[name]) for name in ("data", "learn") if name in how}
    began = time.perf_counter()
    if matching != "none":
        moved = trained.MADE / "t5" / f"aligned-{matching}"
        _, report = isomerge.align(source, onto=anchor, out=moved, align=True, overwrite=True, **how)
        cost = {"distance": report["distance"]["after"], "distance_stored": report["distance"]["before"]}
        source = moved
    matched = time.perf_counter() - began
    report = isomerge.barrier(
        anchor, source, data=trained.t5_examples("heldout"), spaces="none", points=13, batch_size=64
    )
    (line,) = report["lines"]
    return {
        **cost,
        **{name: line[name] for name in ("barrier", "midpoint", "losses", "points", "ends")},
        "ensemble": report["ensemble"],
        "matching_seconds": round(matched, 2),
        "seconds": round(time.perf_counter() - began, 2),
    }


def t5_cells(asked: Namespace) -> Cells:
    """Both models, and the line by every matching."""
    return {f"training/{seed}": {"seed": seed} for seed in (0, 1)} | {n: {"matching": n} for n in T5_MATCHINGS}


T5 = Benchmark(
    "paper/t5", t5_cells, t5_cell, before=prepare, said=said,
    settings={
        "steps": trained.T5_STEPS, "batch": trained.T5_BATCH, "bytes_read": trained.READ,
        "bytes_written": trained.WRITE, "tested_on": trained.HELD_OUT,
    },
)  # fmt: skip

# -------------------------------------------------------------------------------------------- checkpoints of others

FAMILIES = PAIRS
SPACES = ("none", "paper", "default")
WITH_HEAD = FAMILIES[1:3]
"""Pairs with the base of rxnfp: the fine-tunes have no head that fills in tokens."""
MASKED = ("only first", "only second", *SPACES)
SENTENCES = 128
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|>>|[A-Za-z0-9().=#\-+\\/:~@?>*$]")
REACTIONS = (  # textbook reactions, written for this file
    "CC(=O)O.OCC>>CC(=O)OCC",
    "CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1",
    "OB(O)c1ccccc1.Brc1ccc(C)cc1>>Cc1ccc(-c2ccccc2)cc1",
    "O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1",
    "O=C(O)c1ccccc1.NCCN>>NCCNC(=O)c1ccccc1",
    "CC(C)(C)OC(=O)NCc1ccccc1>>NCc1ccccc1",
    "Clc1ncccn1.C1COCCN1>>c1cnc(N2CCOCC2)nc1",
    "O=[N+]([O-])c1ccc(F)cc1>>Nc1ccc(F)cc1",
)


def distance(pair: tuple[str, str], spaces: str) -> dict[str, Any]:
    """How far apart two checkpoints are, as stored and matched."""
    report = isomerge.diff(*(DATA / name for name in pair), spaces=spaces, allow_pickle=True)
    return {
        **{key: report["distance"][key] for key in ("before", "after", "norm")},
        "verdict": report["verdict"]["code"],
    }


def mean(pair: tuple[str, str], spaces: str, out: Path) -> Path:
    """The mean of two checkpoints that are matched in these spaces, or one of them under the base's head."""
    weights = {"only first": (1.0, 0.0), "only second": (0.0, 1.0)}.get(spaces, (1.0, 1.0))
    how: dict[str, Any] = {"align": True, "spaces": spaces} if spaces in ("paper", "default") else {"align": False}
    isomerge.merge([DATA / name for name in pair], out=out, weights=weights, allow_pickle=True, **how)
    return out


def filled(folder: Path) -> dict[str, Any]:
    """Accuracy and loss (nats) of a masked language model on every token of the reactions, hidden one at a time."""
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(folder).eval()
    vocabulary = (DATA / "rxnfp-pretrained" / "vocab.txt").read_text().splitlines()
    number = {word: k for k, word in enumerate(vocabulary)}
    right, loss, count = 0, 0.0, 0
    for reaction in REACTIONS:
        ids = [number[t] for t in ("[CLS]", *TOKEN.findall(reaction), "[SEP]")]
        rows = torch.tensor(ids).repeat(len(ids) - 2, 1)
        places = torch.arange(1, len(ids) - 1)
        rows[places - 1, places] = number["[MASK]"]
        with torch.no_grad():
            logits = model(input_ids=rows).logits[places - 1, places].double()
        truth = torch.tensor(ids)[places]
        right += int((logits.argmax(-1) == truth).sum())
        loss += float(torch.nn.functional.cross_entropy(logits, truth, reduction="sum"))
        count += len(places)
    return {"accuracy": right / count, "loss": loss / count, "tokens": count}


def embeddings(folder: Path) -> torch.Tensor:
    """Sentence embeddings of length one, of pieces of the State of the Union addresses."""
    text = bytes(load_text("heldout").numpy()).decode("utf8", "replace")
    return embed(folder, [s.strip() for s in text.split(".") if 40 < len(s.strip()) < 300][:SENTENCES])


def cosines(pair: tuple[str, str], merge: Path) -> dict[str, Any]:
    """Mean cosines between embeddings of the mean and of its parents."""
    first, second, middle = (embeddings(folder) for folder in (DATA / pair[0], DATA / pair[1], merge))
    products = {"parents": first * second, "first": first * middle, "second": second * middle}
    return {key: float(product.sum(-1).mean()) for key, product in products.items()}


def family_cells(asked: Namespace) -> Cells:
    """Distances, cosines and tokens that are filled in."""
    cells = [("distance", spaces, pair) for pair in FAMILIES for spaces in ("paper", "default", "all")]
    cells += [("cosine", spaces, FAMILIES[0]) for spaces in SPACES]
    cells += [("masked", spaces, pair) for pair in WITH_HEAD for spaces in MASKED]
    return {f"{kind}/{s}/{'+'.join(pair)}": {"kind": kind, "spaces": s, "pair": pair} for kind, s, pair in cells}


def family_cell(kind: str, spaces: str, pair: tuple[str, str]) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            if kind == "distance":
                cell = distance(pair, spaces)
            else:
                out = mean(pair, spaces, Path(folder) / "merged")
                cell = cosines(pair, out) if kind == "cosine" else filled(out)
    except IsomergeError as error:
        cell = {"refused": str(error).replace(f"{DATA}/", "")}
    return {**cell, "seconds": round(time.perf_counter() - began, 2)}


REAL = Benchmark(
    "paper/families", family_cells, family_cell, before=prepare,
    settings={"reactions": len(REACTIONS), "sentences": SENTENCES},
)  # fmt: skip

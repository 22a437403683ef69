"""Real checkpoints: MiniLM and its disguised twin, and fine-tunes of one base.

    python -m benchmarks.twins       # fetches what is missing; about two minutes

The twin is MiniLM moved by a random element of every default space of every layer (heads, neurons, QK and VO
general linear of the stated condition number, bias shifts). Sentences: the English descriptions of scikit-learn's
data sets.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, BertModel

import isomerge
from benchmarks.fetch import DATA, fetch
from benchmarks.harness import Benchmark, Cells, quiet
from isomerge.evidence.law import random_alignment
from isomerge.matching.selection import select_spaces
from isomerge.models.recognised import recognise

PAIRS = (
    ("minilm", "minilm-sre"),
    ("rxnfp-pretrained", "rxnfp-ft"),
    ("rxnfp-pretrained", "rxnfp-ft-10k"),
    ("rxnfp-ft", "rxnfp-ft-10k"),
)
"""Fine-tunes of one base."""


def sentences() -> list[str]:
    """Real English sentences that a package carries."""
    from sklearn import datasets

    loaders = (
        datasets.load_digits, datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer,
        datasets.load_diabetes,
    )  # fmt: skip
    text = " ".join(str(loader().DESCR) for loader in loaders)
    parts = re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text))
    return [p for p in parts if 40 <= len(p) <= 300 and sum(c.isalpha() or c == " " for c in p) > 0.85 * len(p)]


def embed(folder: Path, texts: list[str]) -> torch.Tensor:
    """Mean-pooled sentence embeddings [n, d], as all-MiniLM computes them."""
    tokenizer = AutoTokenizer.from_pretrained(DATA / "minilm")
    model = AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def twins(folder: Path, condition: float, seed: int) -> dict[str, float]:
    """Merge MiniLM with its twin, with and without alignment; cosines to MiniLM's own embeddings."""
    model = recognise(DATA / "minilm")
    spec = select_spaces(model.spec, "default").spec
    disguise = random_alignment(spec, model.blocks, torch.Generator().manual_seed(seed), condition=condition)
    isomerge.apply(disguise, DATA / "minilm", out=folder / "twin", overwrite=True)
    aligned = isomerge.merge([DATA / "minilm", folder / "twin"], out=folder / "merged", overwrite=True)
    isomerge.merge([DATA / "minilm", folder / "twin"], out=folder / "average", align=False, overwrite=True)
    texts = sentences()
    truth = embed(DATA / "minilm", texts)
    figures: dict[str, float] = {"condition": condition, "seed": seed, "sentences": len(texts)}
    for name in ("twin", "merged", "average"):
        cosine = (embed(folder / name, texts) * truth).sum(-1)
        figures |= {f"{name}_cosine_min": float(cosine.min()), f"{name}_cosine_mean": float(cosine.mean())}
    figures["distance_before"], figures["distance_after"] = (
        aligned["distance"]["before"],
        aligned["distance"]["after"],
    )
    check = isomerge.verify(DATA / "minilm", folder / "twin")
    figures["verify_same"], figures["verify_residual"] = check["same"], check["residual"]["largest"]
    return figures


def fine_tunes(folder: Path, a: str, b: str) -> dict[str, Any]:
    """Same-base pairs: distances as stored, aligned, and in the merge; does the merge load?"""
    out = folder / "fine-tunes"
    report = isomerge.diff(DATA / a, DATA / b, allow_pickle=True)
    merged = isomerge.merge([DATA / a, DATA / b], out=out, align=True, allow_pickle=True, overwrite=True)
    distance = report["distance"]
    return {
        "pair": f"{a} + {b}", "verdict": report["verdict"]["code"], "before": distance["before"], "aligned": distance["after"],
        "merged": merged["distance"]["after"], "norm": distance["norm"],
        "loads": BertModel.from_pretrained(out).config.hidden_size > 0,
    }  # fmt: skip


def measure(kind: str, **settings: Any) -> dict[str, Any]:
    fetch("minilm", "minilm-sre", "rxnfp")
    with tempfile.TemporaryDirectory() as folder:
        return {"twin": twins, "fine-tunes": fine_tunes}[kind](Path(folder), **settings)


def cells(asked: argparse.Namespace) -> Cells:
    pairs = {f"{a} + {b}": {"kind": "fine-tunes", "a": a, "b": b} for a, b in PAIRS}
    return {
        **{
            f"twin, condition {condition:g}, seed {seed}": {"kind": "twin", "condition": condition, "seed": seed}
            for condition in (4.0, 100.0)
            for seed in range(3)
        },
        **pairs,
    }


BENCHMARK = Benchmark("twins", cells, measure)

if __name__ == "__main__":
    quiet()
    BENCHMARK.main()

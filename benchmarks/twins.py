"""Real checkpoints: MiniLM and its disguised twin, and fine-tunes of one base.

    python benchmarks/twins.py       # fetches what is missing; about two minutes; writes results/twins.json

The twin is MiniLM moved by a random element of every default space of every layer (heads, neurons, QK and VO
general linear of the stated condition number, bias shifts). Sentences: the English descriptions of scikit-learn's
data sets.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer, BertModel
from transformers.utils import logging

import isomerge
from fetch import DATA, PACKAGES, fetch
from isomerge.evidence.law import random_alignment
from isomerge.matching.selection import select_spaces
from isomerge.models.recognised import recognise

RESULTS = Path(__file__).parent / "results" / "twins.json"


def sentences() -> list[str]:
    """Real English sentences that a package carries."""
    from sklearn import datasets

    loaders = (
        datasets.load_digits,
        datasets.load_iris,
        datasets.load_wine,
        datasets.load_breast_cancer,
        datasets.load_diabetes,
    )
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
    found: dict[str, float] = {"condition": condition, "seed": seed, "sentences": len(texts)}
    for name in ("twin", "merged", "average"):
        cosine = (embed(folder / name, texts) * truth).sum(-1)
        found |= {f"{name}_cosine_min": float(cosine.min()), f"{name}_cosine_mean": float(cosine.mean())}
    found["distance_before"], found["distance_after"] = aligned["distance"]["before"], aligned["distance"]["after"]
    check = isomerge.verify(DATA / "minilm", folder / "twin")
    found["verify_same"], found["verify_residual"] = check["same"], check["residual"]["largest"]
    return found


def fine_tunes(folder: Path) -> list[dict[str, object]]:
    """Same-base pairs: distances as stored, aligned, and in the merge; does the merge load?"""
    pairs = [
        ("minilm", "minilm-sre"),
        ("rxnfp-pretrained", "rxnfp-ft"),
        ("rxnfp-pretrained", "rxnfp-ft-10k"),
        ("rxnfp-ft", "rxnfp-ft-10k"),
    ]
    found = []
    for a, b in pairs:
        report = isomerge.diff(DATA / a, DATA / b, allow_pickle=True)
        merged = isomerge.merge(
            [DATA / a, DATA / b], out=folder / "fine-tunes", align=True, allow_pickle=True, overwrite=True
        )
        loaded = BertModel.from_pretrained(folder / "fine-tunes")
        row = {"pair": f"{a} + {b}", "verdict": report["verdict"], "before": report["distance"]["before"]}
        row |= {
            "aligned": report["distance"]["after"],
            "merged": merged["distance"]["after"],
            "norm": report["distance"]["norm"],
        }
        found.append({**row, "loads": loaded.config.hidden_size > 0})
        print(found[-1])
    return found


def main() -> None:
    """Run everything and write the results."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for package in PACKAGES:
        fetch(package)
    with tempfile.TemporaryDirectory() as temporary:
        results = {"twins": [], "fine_tunes": []}
        for condition in (4.0, 100.0):
            for seed in range(3):
                results["twins"].append(twins(Path(temporary), condition, seed))
                print(results["twins"][-1])
        results["fine_tunes"] = fine_tunes(Path(temporary))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

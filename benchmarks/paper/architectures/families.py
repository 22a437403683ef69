"""Checkpoints that others have trained: fine-tunes of one base, before and after matching.

    python -m benchmarks.paper.architectures.families

MiniLM and a fine-tune for site reliability; a BERT of chemical reactions (rxnfp) and two fine-tunes. Of every pair:
the distance as stored and after matching (cells `distance/SPACES/PAIR`), and what the mean does: for rxnfp, the
share of tokens of reactions that the base's own head fills in when one is hidden at a time (`masked/SPACES/PAIR`);
for MiniLM, which has no head, the cosine of sentence embeddings of the mean and of its parents
(`cosine/SPACES/PAIR`). Written to `benchmarks/results/paper/families.json`.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.barrier.data import load_text
from benchmarks.paper.results import Results
from benchmarks.paper.vision.endpoints import RESULTS, ROOT, prepare
from isomerge.errors import IsomergeError

DATA = ROOT / "benchmarks" / "data"
PAIRS = (
    ("minilm", "minilm-sre"),
    ("rxnfp-pretrained", "rxnfp-ft"),
    ("rxnfp-pretrained", "rxnfp-ft-10k"),
    ("rxnfp-ft", "rxnfp-ft-10k"),
)
SPACES = ("none", "paper", "default")
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


def cells() -> Results:
    """Every measurement."""
    return Results(RESULTS / "families.json", {"reactions": len(REACTIONS), "sentences": SENTENCES})


def name_of(pair: tuple[str, str]) -> str:
    """The pair in a cell's key."""
    return "+".join(pair)


def distance(pair: tuple[str, str], spaces: str) -> dict[str, Any]:
    """How far apart, as stored and matched."""
    one, two = (DATA / name for name in pair)
    found = isomerge.diff(one, two, spaces=spaces, allow_pickle=True)
    parts = {key: found["distance"][key] for key in ("before", "after", "norm")}
    return {**parts, "verdict": found["verdict"]}


def merge(pair: tuple[str, str], spaces: str, out: Path, weights: tuple[float, float] = (1.0, 1.0)) -> None:
    """The mean of a pair, matched in these spaces."""
    how: dict[str, Any] = {"align": False} if spaces == "none" else {"align": True, "spaces": spaces}
    isomerge.merge(
        [DATA / name for name in pair], out=out, weights=weights, allow_pickle=True, overwrite=True, **how
    )


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
    """Mean-pooled sentence embeddings of length one, of pieces of the State of the Union addresses."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(DATA / "minilm"), AutoModel.from_pretrained(folder).eval()
    text = bytes(load_text("heldout").numpy()).decode("utf8", "replace")
    pieces = [s.strip() for s in text.split(".") if 40 < len(s.strip()) < 300][:SENTENCES]
    batch = tokenizer(pieces, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def cosines(pair: tuple[str, str], spaces: str, out: Path) -> dict[str, Any]:
    """Mean cosines between embeddings of the mean and of its parents."""
    merge(pair, spaces, out)
    one, two, mean = (embeddings(folder) for folder in (DATA / pair[0], DATA / pair[1], out))
    cosine = {"parents": one * two, "first": one * mean, "second": two * mean}
    return {key: float(x.sum(-1).mean()) for key, x in cosine.items()}


def measure(kind: str, pair: tuple[str, str], spaces: str) -> dict[str, Any]:
    """One cell."""
    if kind == "distance":
        return distance(pair, spaces)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "merged"
        if kind == "cosine":
            return cosines(pair, spaces, out)
        if spaces.startswith("only"):  # the base's head on one of the two
            merge(pair, "none", out, (1.0, 0.0) if spaces == "only first" else (0.0, 1.0))
        else:
            merge(pair, spaces, out)
        return filled(out)


def main() -> None:
    """Measure what is missing."""
    prepare()
    found = cells()
    asked = [("distance", pair, spaces) for pair in PAIRS for spaces in ("paper", "default", "all")]
    asked += [("cosine", PAIRS[0], spaces) for spaces in SPACES]
    # the fine-tunes have no head of this kind: only pairs with the base can be tested
    asked += [("masked", pair, spaces) for pair in PAIRS[1:3] for spaces in ("only first", "only second", *SPACES)]
    for kind, pair, spaces in asked:
        if found.has(key := f"{kind}/{spaces}/{name_of(pair)}"):
            continue
        began = time.perf_counter()
        try:
            cell = measure(kind, pair, spaces)
        except IsomergeError as error:
            cell = {"refused": str(error)}
        found.put(key, {**cell, "seconds": round(time.perf_counter() - began, 2)})
        print(key, cell, flush=True)


if __name__ == "__main__":
    main()

"""What the first look says of labelled pairs of models: how often it is right, wrong, or cannot tell.

    python -m benchmarks.looks                  # some forty minutes on one core
    python -m benchmarks.looks --page           # the page alone, from the results

A cell is a model: one of the tests' small ones, one that transformers initialised, or one that was trained here,
in one dtype, with a spec or without. Every change of `pairs.KINDS` is made of it, and what has nothing in common with
it stands beside it. Each pair is looked at in both orders.
"""

from __future__ import annotations

import re
import tempfile
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from benchmarks.harness import Benchmark, Cells, Section, main
from benchmarks.looks.pairs import ALLOWED, KINDS, Kind, Root, Weights, opened, rounded, without_spec
from benchmarks.looks.roots import TOYS, UNTRAINED, families, toy, trained, untrained
from isomerge.evidence.relation import CODES
from isomerge.models.recognised import Model, working_dtype
from isomerge.quotient.fingerprint import fingerprint
from isomerge.quotient.kinship import kinship, kinship_score
from isomerge.quotient.similarity import FOREIGN, KIN, VERDICTS, similarity
from isomerge.run.run_verdict import pairs_of
from isomerge.solve.standing import standings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NO_SPEC = ("gpt2", "llama", "bert", "t5-gated", "mixtral", "vit", "clip", "swin")
"""Toys that are looked at as a type that no text describes as well."""


def cells(asked: Namespace) -> Cells:
    """All models."""
    every: dict[str, dict[str, Any]] = {}
    for name in TOYS:
        every |= {f"{name}, {dtype}": {"kind": "toy", "name": name, "dtype": dtype} for dtype in DTYPES}
    for name in NO_SPEC:
        how = {"kind": "toy", "name": name, "spec": False}
        every |= {f"{name}, no spec, {dtype}": {**how, "dtype": dtype} for dtype in DTYPES}
    for name, width in UNTRAINED:
        how = {"kind": "untrained", "name": name, "width": width}
        every |= {
            f"{name}-{width}, untrained, {dtype}": {**how, "dtype": dtype} for dtype in ("float32", "bfloat16")
        }
    for name, width in families():
        how = {"kind": "trained", "name": name, "width": width}
        every |= {f"{name}-{width}, trained, {dtype}": {**how, "dtype": dtype} for dtype in ("float32", "bfloat16")}
    return every


def root_of(kind: str, name: str, folder: Path, dtype: str, width: int = 0, *, spec: bool = True) -> Root:
    """The model of a cell."""
    made = {"toy": lambda: toy(name, folder), "untrained": lambda: untrained(name, width), "trained": lambda: trained(name, width)}  # fmt: skip
    root = made[kind]()
    return rounded(root if spec else without_spec(root), DTYPES[dtype])


def pairs(root: Root, kinds: list[Kind] = KINDS) -> Iterator[tuple[str, str, Weights, dict[str, Any]]]:
    """Name, label and the second model of every pair of a root."""
    for kind in kinds:
        rng = torch.Generator().manual_seed(crc32(f"{root.name} {kind.name}".encode()))
        if (made := kind.change(root, rng)) is not None:
            yield kind.name, kind.label, *made
    for name, weights in root.tuned:
        yield name, "tuned", weights, root.config
    for name, weights in root.strangers:
        yield name, "strangers", weights, root.config


def stands(first: Model, second: Model) -> tuple[str, str]:
    """What is said of two models before anything is matched: the code, and in which part alone they differ."""
    standing = standings(first, [second], working_dtype([first, second]), kinship=kinship)
    (pair,) = pairs_of(standing, [first, second])
    return ("unknown" if pair.relation is None else CODES[pair.relation]), pair.look.but


def wrong(label: str, code: str, but: str, changed: int) -> bool:
    """Whether what is said is not so: the code, or the number of tensors that differ."""
    counts = sum(map(int, re.findall(r"\((\d+) tensors?\)", but)))
    return code not in ALLOWED[label] or (bool(but) and "more kind" not in but and counts != changed)


def judged(root: Root, kinds: list[Kind] = KINDS, *, prints: bool) -> dict[str, Any]:
    """All pairs of a model: how often which code was said, what was wrong, and what scores and fingerprints say."""
    first, said = root.model, defaultdict[str, Counter[str]](Counter)
    cell: dict[str, Any] = {"pairs": 0, "said": said, "wrong": [], "other_order": [], "scores": {}, "prints": {}}
    own = fingerprint(first) if prints else None
    for pair, label, weights, config in pairs(root, kinds):
        second = opened(weights, config)
        (code, but), (back, _) = stands(first, second), stands(second, first)
        changed = sum(not torch.equal(t, root.weights[n]) for n, t in weights.items())
        cell["pairs"] += 1
        said[label][code] += 1
        if wrong(label, code, but, changed):
            cell["wrong"].append([pair, label, code, but])
        if code != back:
            cell["other_order"].append([pair, code, back])
        if own is not None and label in ("same", "strangers", "tuned", "moved"):
            score, told = kinship_score(first, second), similarity(own, fingerprint(second))
            cell["scores"].setdefault(label, []).append(None if score is None else round(score, 3))
            by_print = None if told.score is None else round(told.score, 3)
            cell["prints"].setdefault(label, []).append([told.verdict, by_print])
    return cell


def measure(kind: str, name: str, dtype: str, width: int = 0, *, spec: bool = True) -> dict[str, Any]:
    """All pairs of a cell's model."""
    with tempfile.TemporaryDirectory() as folder:
        root = root_of(kind, name, Path(folder), dtype, width, spec=spec)
    return judged(root, prints=spec)


LABELS = {
    "same": "copies", "but": "equal but for a part", "tuned": "fine-tunes, rounded and pruned copies",
    "worn": "with noise as large as the weights, or twice", "moved": "the same function in other weights, and its fine-tunes",
    "strangers": "nothing in common",
}  # fmt: skip
SAID = {
    "same": "same weights", "aligned": "same but for, or fine-tunes", "related": "relatives in other coordinates",
    "unrelated": "unrelated", "unknown": "not known before a match",
}  # fmt: skip


def page(measured: dict[str, Any]) -> str:
    """What was said of how many pairs, what was wrong, and the scores of kinship."""
    every = list(measured.items())
    said: dict[str, Counter[str]] = {label: Counter() for label in LABELS}
    prints: dict[str, Counter[str]] = {label: Counter() for label in LABELS}
    for _, cell in every:
        for label, codes in cell["said"].items():
            said[label].update(codes)
        for label, verdicts in cell["prints"].items():
            prints[label].update(verdict for verdict, _ in verdicts)
    lines = [
        f"{sum(cell['pairs'] for _, cell in every):,} pairs of {len(every)} models, each in both orders. Wrong: "
        f"{sum(len(cell['wrong']) for _, cell in every)}; other words in the other order: "
        f"{sum(len(cell['other_order']) for _, cell in every)}. Made by `python -m benchmarks.looks`.",
        "",
        f"| what they are | {' | '.join(SAID.values())} |",
        f"|---{'|---' * len(SAID)}|",
        *(
            f"| {LABELS[label]} | {' | '.join(str(codes[code]) for code in SAID)} |"
            for label, codes in said.items()
        ),
        "",
        "What fingerprints say of the same pairs, where models have a spec:",
        "",
        f"| what they are | {' | '.join(VERDICTS)} |",
        f"|---{'|---' * len(VERDICTS)}|",
        *(
            f"| {LABELS[label]} | {' | '.join(str(verdicts[each]) for each in VERDICTS)} |"
            for label, verdicts in prints.items()
            if verdicts
        ),
        "",
        "Kinship, the mean cosine of circuits from a few layers, which decides nothing between "
        f"{FOREIGN} and {KIN}: the lowest score of fine-tunes and moved copies, and the highest of strangers.",
        "",
        "| models | fine-tunes, moved copies | strangers |",
        "|---|---|---|",
    ]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, cell in every:
        model = name.partition(",")[0]
        kind = "untrained" if "untrained" in name else model if "trained" in name else "the tests' models"
        groups[kind].append(cell["scores"])
    for kind, cells_of in groups.items():
        kin = [
            x for scores in cells_of for label in ("tuned", "moved") for x in scores.get(label, []) if x is not None
        ]
        far = [x for scores in cells_of for x in scores.get("strangers", []) if x is not None]
        lowest, highest = (f"{end(scores):.3f}" if scores else "–" for end, scores in ((min, kin), (max, far)))
        lines.append(f"| {kind} | {lowest} | {highest} |")
    wrongs = [
        f"{name}: {pair} ({label}): {code} {but}".strip()
        for name, cell in every
        for pair, label, code, but in cell["wrong"]
    ]
    return "\n".join([*lines, *(["", "Wrong:", "", *(f"- {each}" for each in wrongs)] if wrongs else [])])


if __name__ == "__main__":
    main(
        Benchmark(
            "looks", cells, measure, sections=(Section("lab/measured-looks.md", "looks", page),),
            said=lambda cell: f"{cell['pairs']} pairs, wrong: {cell['wrong']}, other order: {cell['other_order']}",
        ),
        about=__doc__,
    )  # fmt: skip

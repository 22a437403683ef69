"""Fingerprints of real checkpoints and of what is made of them: who is kin?

    python -m benchmarks.fingerprints.run    # about ten minutes; writes results/fingerprints.json and docs/measured-fingerprints.md

Every model is hidden behind its own random element of every symmetry space before its fingerprint is taken (conditions of 4 for
general linear maps, new gains, the streams' largest groups). Pairs of one root are derived, pairs of two roots are independent;
pairs that no fingerprint compares (other shapes, nothing in common) are counted apart. Twins: 200 random disguises per
architecture of the tests' small models, in float32, and the same rounded to bfloat16.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from benchmarks.fetch import DATA, fetch
from benchmarks.fingerprints.derive import DERIVATIONS, applies, disguised, read
from benchmarks.fingerprints.page import write_page
from benchmarks.fingerprints.tune import TUNED
from isomerge.checkpoint.memory import in_memory
from isomerge.engine.models import recognise
from isomerge.quotient.fingerprint import Fingerprint, fingerprint
from isomerge.quotient.similarity import DERIVED, similarity

RESULT = Path(__file__).parents[1] / "results" / "fingerprints.json"
BARRIER, TEXT = DATA / "barrier", DATA / "paper" / "text" / "cpu"
TWINS = 200


@dataclass
class Entry:
    """One model of the zoo."""

    root: str
    how: str
    print: Fingerprint


def roots() -> dict[str, list[tuple[str, Path]]]:
    """Checkpoints by what they come from, the root first; what is not on this machine is left out."""
    found = {"minilm": [("as it is", DATA / "minilm"), ("fine-tuned", DATA / "minilm-sre")]}
    found["minilm"] += [("fine-tuned", path) for path in sorted(TEXT.glob("*/*-seed-*"))]
    found["rxnfp"] = [("as it is", DATA / "rxnfp-pretrained")]
    found["rxnfp"] += [("fine-tuned", DATA / name) for name in ("rxnfp-ft", "rxnfp-ft-10k")]
    for family, seeds in {"vit-digits": 5, "vit-fashion": 3, "gpt2": 3, "llama": 3}.items():
        for seed in range(seeds):
            found[f"{family}-{seed}"] = [("as it is", BARRIER / family / f"seed-{seed}")]
            found[f"{family}-{seed}"] += [("fine-tuned", TUNED / f"{family}-{seed}")]
    for seed in (0, 1):
        found[f"t5-{seed}"] = [("as it is", DATA / "paper" / "t5" / f"seed-{seed}")]
    here = {root: [(how, p) for how, p in paths if (p / "config.json").is_file()] for root, paths in found.items()}
    return {root: paths for root, paths in here.items() if paths and paths[0][0] == "as it is"}


def zoo() -> list[Entry]:
    """Every root, its fine-tunes, and what else is made of the root, each in a disguise of its own."""
    entries: list[Entry] = []
    for root, paths in roots().items():
        begin = time.time()
        for how, path in paths:
            model = recognise(path)
            weights, config = read(model), model.config
            for name, derive in DERIVATIONS.items() if how == "as it is" else [(how, DERIVATIONS["as it is"])]:
                if applies(name, config):
                    made, changed = derive(weights, config, len(entries))
                    entries.append(Entry(root, name, fingerprint(disguised(made, changed, len(entries)))))
        print(f"{root}: {sum(e.root == root for e in entries)} models in {time.time() - begin:.0f} s", flush=True)
    return entries


def auc(derived: list[float], independent: list[float]) -> float:
    """The probability that a derived pair scores higher than an independent one."""
    if not derived or not independent:
        return float("nan")
    below = torch.searchsorted(torch.tensor(sorted(independent)), torch.tensor(derived))
    return float(below.double().mean() / len(independent))


def pairs_of(entries: list[Entry]) -> dict[str, object]:
    """Scores of all pairs, what they say at the threshold of the tool, and per derivation."""
    derived: list[float] = []
    independent: list[float] = []
    against_root: dict[str, list[float]] = {}
    rows, silent, wrong_hash, wrong_same = [], {"derived": 0, "independent": 0}, 0, 0
    for one, two in combinations(entries, 2):
        found = similarity(one.print, two.print)
        kin = one.root == two.root
        wrong_hash += found.hashes_equal
        wrong_same += found.same and not kin
        if found.score is None:
            silent["derived" if kin else "independent"] += 1
            continue
        (derived if kin else independent).append(found.score)
        if kin and one.how == "as it is":
            against_root.setdefault(two.how, []).append(found.score)
        rows.append((found.score, kin, f"{one.root} {one.how} - {two.root} {two.how}"))
    hard = [r for r in sorted(rows) if r[1]][:3] + [r for r in sorted(rows, reverse=True) if not r[1]][:3]
    return {
        "models": len(entries),
        "roots": len({e.root for e in entries}),
        "derived_pairs": len(derived),
        "independent_pairs": len(independent),
        "not_compared": silent,
        "auc": auc(derived, independent),
        "threshold": DERIVED,
        "false_accept": sum(s >= DERIVED for s in independent) / len(independent),
        "false_reject": sum(s < DERIVED for s in derived) / len(derived),
        "lowest_derived": min(derived),
        "highest_independent": max(independent),
        "equal_hashes": wrong_hash,
        "taken_for_same": wrong_same,
        "hardest": [{"score": s, "derived": kin, "pair": pair} for s, kin, pair in hard],
        "against_root": {
            how: {"pairs": len(v), "lowest": min(v), "median": sorted(v)[len(v) // 2]}
            for how, v in sorted(against_root.items())
        },
    }


def twins() -> dict[str, dict[str, float]]:
    """Random twins of every small model of the tests: hashes that agree, and the largest differences."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from toys import TOYS, save_toy

    found = {}
    for name in TOYS:
        with tempfile.TemporaryDirectory() as folder:
            model = recognise(save_toy(name, Path(folder) / "a", dtype=torch.float32))
            weights, config, first = read(model), model.config, fingerprint(model)
        equal, largest, coarse, half = 0, 0.0, 0.0, 0
        for seed in range(TWINS):
            twin = disguised(weights, config, seed)
            other = similarity(first, seen := fingerprint(twin))
            equal, largest = equal + (seen.hash == first.hash), max(largest, other.difference or 0.0)
            if seed < TWINS // 10:
                rounded = {n: t.bfloat16() if t.is_floating_point() else t for n, t in read(twin).items()}
                near = similarity(first, fingerprint(recognise(in_memory(rounded, config))))
                coarse, half = max(coarse, near.difference or 0.0), half + near.same
        found[name] = {"equal": equal, "of": TWINS, "largest": largest, "bfloat16": coarse, "bfloat16_same": half}
        print(f"{name}: {found[name]}", flush=True)
    return found


def main() -> None:
    """Measure what was asked for, and write it beside what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("pairs", "twins"), help="measure one half, keep the other's results")
    only = parser.parse_args().only
    result = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    if only != "twins":
        fetch("minilm", "minilm-sre", "rxnfp")
        begin = time.time()
        entries = zoo()
        result["pairs"] = {**pairs_of(entries), "seconds": round(time.time() - begin)}
        result["bytes"] = {e.root: len(json.dumps(e.print.document())) for e in entries if e.how == "as it is"}
    if only != "pairs":
        result["twins"] = twins()
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    if "pairs" in result and "twins" in result:
        write_page(result)


if __name__ == "__main__":
    main()

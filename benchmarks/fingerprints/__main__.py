"""Fingerprints of real checkpoints and of what is made of them: who is kin, what was done, and what evades?

    python -m benchmarks.fingerprints                   # an hour on one core
    python -m benchmarks.fingerprints --only twins      # one half

Every model is hidden behind its own random element of every symmetry space before its fingerprint is taken
(conditions of 4 for general linear maps, new gains, the streams' largest groups); the first root of a family is
looked at undisguised as well, for what is told of zeros, levels and dtypes, which disguises hide. Pairs of one root
are derived, pairs of two roots of one family (equal shapes, other seeds) or of two architectures are independent.
Fingerprints are kept in benchmarks/data/fingerprints/prints; what is there is not made again. Twins: random
disguises of the tests' small models, in float32, and some rounded to bfloat16.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from benchmarks.fetch import DATA, fetch
from benchmarks.fingerprints.derive import DERIVATIONS, Derivation, disguised, read
from benchmarks.fingerprints.tune import TUNED, trained, tune_all
from benchmarks.harness import Benchmark, Section, quiet, reach_tests
from isomerge.checkpoint.in_memory import in_memory
from isomerge.models.recognised import recognise
from isomerge.quotient.fingerprint import Fingerprint, fingerprint
from isomerge.quotient.record import read_fingerprint
from isomerge.quotient.similarity import ALIKE, KIN, TAMPERED, Similarity, similarity

PRINTS = TUNED / "prints"
TEMPLATE = Path(__file__).with_name("page.md")
TEXT = DATA / "paper" / "text" / "cpu"
MADE = {**DERIVATIONS, "fine-tuned": Derivation(DERIVATIONS["as it is"].change, "relations between weights differ")}
"""What models of the zoo are: what is made here, and what others trained."""
MOST = 150
"""Pairs of strangers of one family, and of kin that are no roots, that are compared: drawn at random."""


@dataclass
class Entry:
    """One model of the zoo."""

    family: str
    root: str
    how: str
    plain: bool
    """Whether it is undisguised."""
    print: Fingerprint


def roots() -> list[tuple[str, str, list[tuple[str, Path]], bool]]:
    """Family, root, checkpoints (the root first), and whether everything is made of it; what is not on this machine
    is left out."""
    every = [("bert", "minilm", [("as it is", DATA / "minilm"), ("fine-tuned", DATA / "minilm-sre")], False)]
    every[0][2].extend(("fine-tuned", path) for path in sorted(TEXT.glob("*/*-seed-*")))
    tuned = [("fine-tuned", DATA / name) for name in ("rxnfp-ft", "rxnfp-ft-10k")]
    every.append(("bert", "rxnfp", [("as it is", DATA / "rxnfp-pretrained"), *tuned], False))
    every.append(("albert", "rxnmapper", [("as it is", DATA / "rxnmapper")], False))
    for family, seeds in {"vit-digits": 5, "vit-fashion": 3, "gpt2": 3, "llama": 3}.items():
        for seed in range(seeds):
            paths = [("as it is", trained(family, seed)), ("fine-tuned", TUNED / f"{family}-{seed}")]
            every.append((family, f"{family}-{seed}", paths, seed == 0))
    for seed in (0, 1):
        every.append(("t5", f"t5-{seed}", [("as it is", DATA / "paper" / "t5" / f"seed-{seed}")], seed == 0))
    there = [
        (f, r, [(how, p) for how, p in paths if (p / "config.json").is_file()], all_) for f, r, paths, all_ in every
    ]
    return [root for root in there if root[2] and root[2][0][0] == "as it is"]


def zoo() -> list[Entry]:
    """Every root, its fine-tunes, and what else is made of the root, each in a disguise of its own."""
    entries: list[Entry] = []
    PRINTS.mkdir(parents=True, exist_ok=True)
    for family, root, paths, full in roots():
        begin = time.time()
        for number, (how, path) in enumerate(paths):
            model = recognise(path)
            names = [n for n, how in DERIVATIONS.items() if full or how.often] if number == 0 else ["as it is"]
            jobs = [(n, plain) for n in names for plain in ([False, True] if full else [False])]
            for seed, (name, plain) in enumerate(jobs):
                if DERIVATIONS[name].fits(model.config):
                    made = _print(
                        model, f"{root} {number} {name}{' plain' * plain}", name, 1000 * len(entries) + seed, plain
                    )
                    entries.append(Entry(family, root, name if number == 0 else how, plain, made))
        print(f"{root}: {sum(e.root == root for e in entries)} models in {time.time() - begin:.0f} s", flush=True)
    return entries


def _print(model: Any, label: str, how: str, seed: int, plain: bool) -> Fingerprint:
    """One fingerprint, from its file where it was made before."""
    file = PRINTS / f"{label}.json"
    if not file.is_file():
        made, changed = DERIVATIONS[how].change(read(model), dict(model.config), seed)
        moved = recognise(in_memory(made, changed)) if plain else disguised(made, changed, seed)
        fingerprint(moved).save(file)
    return read_fingerprint(file)


def pairs_of(entries: list[Entry]) -> dict[str, Any]:
    """Every derived model with its root, pairs of derived ones, and pairs of two roots."""
    kin, strange = [], []
    for one, two in combinations(entries, 2):
        (kin if one.root == two.root else strange).append((one, two))
    families: dict[str, list[tuple[Entry, Entry]]] = {}
    for pair in strange:
        families.setdefault(pair[0].family if pair[0].family == pair[1].family else "two families", []).append(pair)
    rng = random.Random(0)
    strange = [p for name in sorted(families) for p in rng.sample(families[name], min(MOST, len(families[name])))]
    to_root = [pair for pair in kin if pair[0].how == "as it is" and not pair[0].plain]
    among = rng.sample(rest := [pair for pair in kin if pair not in to_root], min(MOST, len(rest)))
    return {
        "models": len(entries),
        "roots": {e.root: sum(x.root == e.root for x in entries) for e in entries},
        "to_root": _to_root([(one, two, similarity(one.print, two.print)) for one, two in to_root]),
        "among": _told([(a, b, similarity(a.print, b.print)) for a, b in among]),
        "independent": _told([(a, b, similarity(a.print, b.print)) for a, b in strange]),
        "threshold": KIN,
        "alike": ALIKE,
    }


Compared = list[tuple[Entry, Entry, Similarity]]


def _to_root(found: Compared) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for how in dict.fromkeys(two.how for _, two, _ in found):
        here = [(two, s) for _, two, s in found if two.how == how]
        made = MADE[how]
        told = [_says(s, made.tells) for two, s in here if made.tells and (two.plain or not made.hidden)]
        rows[how] = {
            "pairs": len(here),
            "lowest_score": min((s.score for _, s in here if s.score is not None), default=None),
            "lowest_spectra": min((v for _, s in here if (v := s.witnesses["spectra"]) is not None), default=None),
            "verdicts": dict(Counter(s.verdict for _, s in here)),
            "told": [sum(told), len(told)],
            "equal_hashes": sum(s.hashes_equal for _, s in here),
            "directed": dict(Counter(str(s.source) for _, s in here)),
        }
    return rows


def _says(s: Similarity, words: str) -> bool:
    document = s.document()
    return any(words in text for text in (*document["changes"], document["conflict"] or ""))


def _told(found: Compared) -> dict[str, Any]:
    """Verdicts, and the scores that come nearest to the thresholds."""
    anchors = [(s.score, f"{a.root} {a.how} - {b.root} {b.how}") for a, b, s in found if s.score is not None]
    spectra = [
        (v, f"{a.root} {a.how} - {b.root} {b.how}")
        for a, b, s in found
        if (v := s.witnesses["spectra"]) is not None
    ]
    return {
        "pairs": len(found),
        "verdicts": dict(Counter(s.verdict for _, _, s in found)),
        "wrong": [f"{a.root} {a.how} - {b.root} {b.how}: {s.verdict}" for a, b, s in found if _wrong(a, b, s)][:20],
        "highest_scores": sorted(anchors, reverse=True)[:5],
        "highest_spectra": sorted(spectra, reverse=True)[:5],
        "equal_hashes": sum(s.hashes_equal for _, _, s in found),
    }


def _wrong(one: Entry, two: Entry, s: Similarity) -> bool:
    """Whether a verdict is not what was made: kin of strangers, or a stranger or a tampered model of kin that are
    neither; that it cannot be told is not wrong."""
    if one.root != two.root:
        return s.derived
    if s.verdict == TAMPERED:
        return not (MADE[one.how].exchanged or MADE[two.how].exchanged)
    return s.kin is False


def twins(count: int) -> dict[str, dict[str, float]]:
    """Random twins of small models of the tests: hashes that agree, and the largest differences."""
    reach_tests()
    from toys import SAMPLE, save_toy

    rows = {}
    for name in SAMPLE:
        with tempfile.TemporaryDirectory() as folder:
            model = recognise(save_toy(name, Path(folder) / "a", dtype=torch.float32))
            weights, config, first = read(model), model.config, fingerprint(model)
        rounded = max(1, count // 10)
        row = {"equal": 0, "of": count, "largest": 0.0, "bfloat16": 0.0, "bfloat16_same": 0, "bfloat16_of": rounded}
        for seed in range(count):
            twin = disguised(weights, config, seed)
            other = similarity(first, print_ := fingerprint(twin))
            row["equal"] += print_.hash == first.hash
            row["largest"] = max(row["largest"], other.difference or 0.0)
            if seed < rounded:
                coarse = {n: t.bfloat16() if t.is_floating_point() else t for n, t in read(twin).items()}
                near = similarity(first, fingerprint(recognise(in_memory(coarse, config))))
                row["bfloat16"] = max(row["bfloat16"], near.difference or 0.0)
                row["bfloat16_same"] += near.same
        rows[name] = row
        print(f"{name}: {row}", flush=True)
    return rows


def measure(kind: str, count: int) -> dict[str, Any]:
    if kind == "twins":
        return twins(count)
    fetch("minilm", "minilm-sre", "rxnfp", "rxnmapper")
    tune_all()
    began, entries = time.time(), zoo()
    return {**pairs_of(entries), "seconds": round(time.time() - began)}


def page(cells: dict[str, Any]) -> str:
    """docs/lab/measured-fingerprints.md but for its title."""
    pairs, rows = cells["pairs"], cells["twins"]
    among, strange, kin = pairs["among"], pairs["independent"], Counter(pairs["among"]["verdicts"])
    for row in pairs["to_root"].values():
        kin.update(row["verdicts"])
    verdicts = [
        f"| *{name}* | {kin[name]} | {strange['verdicts'].get(name, 0)} |"
        for name in dict.fromkeys((*kin, *strange["verdicts"]))
    ]
    wrong = [*among["wrong"], *strange["wrong"]]
    against = sum(row["directed"].get("1", 0) for row in pairs["to_root"].values())
    never = "the root was never said to be made from what was made of it"
    ways = f"{against} times against what was made" if against else never
    equal, total, same, rounded = (
        int(sum(row[key] for row in rows.values())) for key in ("equal", "of", "bfloat16_same", "bfloat16_of")
    )
    return TEMPLATE.read_text(encoding="utf-8").format(
        pairs=pairs,
        among=among,
        strange=strange,
        root_count=len(pairs["roots"]),
        roots=", ".join(f"{name} {count}" for name, count in pairs["roots"].items()),
        kin_pairs=among["pairs"] + sum(row["pairs"] for row in pairs["to_root"].values()),
        verdicts="\n".join(verdicts),
        kin_wrong=len(among["wrong"]),
        strange_wrong=len(strange["wrong"]),
        wrong="Wrong: " + "; ".join(wrong) + "." if wrong else "",
        hardest_scores=_hardest(strange["highest_scores"]),
        hardest_spectra=_hardest(strange["highest_spectra"]),
        ways=ways,
        against_root="\n".join(_against_root(how, row) for how, row in pairs["to_root"].items()),
        equal=equal,
        total=total,
        architectures=len(rows),
        rounded=rounded,
        same=same,
        twin_rows="\n".join(
            f"| {name} | {row['equal']:.0f} of {row['of']:.0f} | {row['largest']:.1e} | {row['bfloat16']:.1e} |"
            for name, row in rows.items()
        ),
    )


def _hardest(rows: list[tuple[float, str]]) -> str:
    return "\n".join(f"| {pair} | {score:.3f} |" for score, pair in rows[:3])


def _against_root(how: str, row: dict[str, Any]) -> str:
    verdicts = ", ".join(
        f"{verdict.removeprefix('the witnesses disagree: ')} {count}" for verdict, count in row["verdicts"].items()
    )
    told = "{} of {}".format(*row["told"]) if row["told"][1] else ""
    lowest = ("" if row[key] is None else f"{row[key]:.3f}" for key in ("lowest_score", "lowest_spectra"))
    way = f"{row['directed'].get('0', 0)} of {row['pairs']}"
    return f"| {' | '.join([how, str(row['pairs']), *lowest, verdicts, told, way])} |"


BENCHMARK = Benchmark(
    "fingerprints", lambda asked: {kind: {"kind": kind, "count": asked.twins} for kind in ("pairs", "twins")},
    measure, inside="", sections=(Section("lab/measured-fingerprints.md", "fingerprints", page),),
    said=lambda cell: f"{len(cell)} rows",
    options=lambda parser: parser.add_argument("--twins", type=int, default=200, help="of every small model"),
)  # fmt: skip

if __name__ == "__main__":
    quiet()
    BENCHMARK.main()

"""The page of measured fingerprints, from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "measured-fingerprints.md"


def write_page(result: dict[str, Any]) -> None:
    """Write docs/lab/measured-fingerprints.md."""
    pairs, twins = result["pairs"], result["twins"]
    among, strange = pairs["among"], pairs["independent"]
    text = f"""# Measured fingerprints

{pairs["models"]} models from {len(pairs["roots"])} roots: MiniLM with a fine-tune from another package, rxnfp with its two, RXNMapper's ALBERT, and small
models that were trained for [the barriers](measured-barriers.md), or for fewer steps where these were not on the machine ({_roots(pairs["roots"])}), with
fine-tunes of their own as far as they are there (150 steps at a rate of 1e-3 on other text, or on pictures upside down with labels counted backwards), and
what is made of every root: everything of the first of a family, a few things of the others. Each is hidden behind its own random element of every space
before its fingerprint is taken; of the first root of a family there is everything undisguised as well. Made by
`python -m benchmarks.fingerprints.tune` and `python -m benchmarks.fingerprints.run`, which write this page and [the
results](../../benchmarks/results/fingerprints.json).

## Kin or not

| | derived from one root | two roots |
|---|---|---|
| pairs compared (drawn at random where there are more) | {among["pairs"] + sum(r["pairs"] for r in pairs["to_root"].values())} | {strange["pairs"]} |
{_verdicts(pairs)}
| wrong verdicts | {len(among["wrong"])} beside the table below | {len(strange["wrong"])} |
| pairs with equal hashes | {among["equal_hashes"]} | {strange["equal_hashes"]} |

*Tampered?* is right where rows were exchanged for the eyes of fingerprints alone, and nowhere else. Thresholds: a score of anchors of {pairs["threshold"]}
(the highest of two roots is {strange["highest_scores"][0][0]:.3f}), a likeness of spectra of {pairs["alike"]} (the highest of two roots is
{strange["highest_spectra"][0][0]:.3f}). {_wrong(among, strange)}

The hardest strangers:

| pair | score |
|---|---|
{_hardest(strange["highest_scores"][:3])}

| pair | likeness of spectra |
|---|---|
{_hardest(strange["highest_spectra"][:3])}

## What was made of a root, against the root

The score is the highest of the draws of anchors, spectra are the second witness. *Told* is how often the words name what was done; levels, zeros and
coarser dtypes, which a disguise hides, are asked of undisguised models alone. *Way* is how often the direction is told, and always rightly:
{_ways(pairs["to_root"])}.

| | pairs | lowest score | lowest likeness of spectra | verdicts | told | way |
|---|---|---|---|---|---|---|
{_against_root(pairs["to_root"])}

## Twins

{_twins(twins)}

| small model of the tests | equal hashes | largest difference, float32 | largest, bfloat16 |
|---|---|---|---|
{_twin_rows(twins)}
"""
    PAGE.write_text(text)


def _roots(roots: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in roots.items())


def _verdicts(pairs: dict[str, Any]) -> str:
    """A row for every verdict: among kin (the table against the root counted in), and among strangers."""
    kin = dict(pairs["among"]["verdicts"])
    for row in pairs["to_root"].values():
        for verdict, count in row["verdicts"].items():
            kin[verdict] = kin.get(verdict, 0) + count
    strange = pairs["independent"]["verdicts"]
    return "\n".join(
        f"| *{verdict}* | {kin.get(verdict, 0)} | {strange.get(verdict, 0)} |"
        for verdict in dict.fromkeys((*kin, *strange))
    )


def _wrong(among: dict[str, Any], strange: dict[str, Any]) -> str:
    wrong = [*among["wrong"], *strange["wrong"]]
    return "" if not wrong else "Wrong: " + "; ".join(wrong) + "."


def _hardest(rows: list[tuple[float, str]]) -> str:
    return "\n".join(f"| {pair} | {score:.3f} |" for score, pair in rows)


def _ways(rows: dict[str, Any]) -> str:
    """Whether a direction was ever told against what was made."""
    wrong = sum(row["directed"].get("1", 0) for row in rows.values())
    return (
        f"{wrong} times against what was made"
        if wrong
        else "the root was never said to be made from what was made of it"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _against_root(rows: dict[str, Any]) -> str:
    lines = []
    for how, row in rows.items():
        verdicts = ", ".join(
            f"{verdict.removeprefix('the witnesses disagree: ')} {count}"
            for verdict, count in row["verdicts"].items()
        )
        told = "{} of {}".format(*row["told"]) if row["told"][1] else ""
        way = f"{row['directed'].get('0', 0)} of {row['pairs']}"
        lines.append(
            f"| {how} | {row['pairs']} | {_number(row['lowest_score'])} | {_number(row['lowest_spectra'])} | "
            f"{verdicts} | {told} | {way} |"
        )
    return "\n".join(lines)


def _twins(twins: dict[str, dict[str, float]]) -> str:
    equal, total, same, rounded = (
        int(sum(row[key] for row in twins.values())) for key in ("equal", "of", "bfloat16_same", "bfloat16_of")
    )
    return (
        f"{equal} of {total} random disguises in float32 ({len(twins)} architectures) have the hash of their "
        f"model. {rounded} of "
        f"them were rounded to bfloat16: {same} are within the tolerance of bfloat16."
    )


def _twin_rows(twins: dict[str, dict[str, float]]) -> str:
    return "\n".join(
        f"| {name} | {row['equal']:.0f} of {row['of']:.0f} | {row['largest']:.1e} | {row['bfloat16']:.1e} |"
        for name, row in twins.items()
    )

"""The page of measured fingerprints, from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "measured-fingerprints.md"


def write_page(result: dict[str, Any]) -> None:
    """Write docs/measured-fingerprints.md."""
    pairs, twins = result["pairs"], result["twins"]
    silent = pairs["not_compared"]
    text = f"""# Measured fingerprints

{pairs["models"]} models from {pairs["roots"]} roots, all real: MiniLM with its fine-tunes (one from a package, the others made for [the paper's
tables](measured-paper.md)), rxnfp with its two, the ViTs, GPT-2-like and Llama-like models and T5 of [the barriers](measured-barriers.md) with fine-tunes of
their own (150 steps at a rate of 1e-3 on other text, or on pictures upside down with labels counted backwards), and what is made of every root.
Each is hidden behind its own random element of every space before its fingerprint is taken. Made by `python -m
benchmarks.fingerprints.tune` and `python -m benchmarks.fingerprints.run`, which write this page and [the
results](../benchmarks/results/fingerprints.json).

## Kin or not

| | |
|---|---|
| derived pairs (one root) | {pairs["derived_pairs"]} |
| independent pairs (two roots) | {pairs["independent_pairs"]} |
| area under the curve | {pairs["auc"]:.4f} |
| false accepts at a score of {pairs["threshold"]} | {pairs["false_accept"]:.2%} |
| false rejects there | {pairs["false_reject"]:.2%} |
| lowest score of a derived pair | {pairs["lowest_derived"]:.3f} |
| highest score of an independent pair | {pairs["highest_independent"]:.3f} |
| pairs of two models with equal hashes | {pairs["equal_hashes"]} |
| independent pairs taken for one function | {pairs["taken_for_same"]} |
| pairs with nothing to compare (derived, independent) | {silent["derived"]}, {silent["independent"]} |

The hardest:

| pair | | score |
|---|---|---|
{_hardest(pairs["hardest"])}

What was made of a root, against the root:

| | pairs | lowest score | median |
|---|---|---|---|
{_against_root(pairs["against_root"])}

## Twins

{_twins(twins)}

| small model of the tests | equal hashes | largest difference, float32 | largest, bfloat16 |
|---|---|---|---|
{_twin_rows(twins)}
"""
    PAGE.write_text(text)


def _hardest(rows: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"| {r['pair']} | {'derived' if r['derived'] else 'independent'} | {r['score']:.3f} |" for r in rows
    )


def _against_root(rows: dict[str, dict[str, float]]) -> str:
    return "\n".join(
        f"| {how} | {row['pairs']} | {row['lowest']:.3f} | {row['median']:.3f} |" for how, row in rows.items()
    )


def _twins(twins: dict[str, dict[str, float]]) -> str:
    equal, total = (int(sum(row[key] for row in twins.values())) for key in ("equal", "of"))
    within = all(row["bfloat16_same"] == row["of"] // 10 for row in twins.values())
    said = (
        "all of them are within the tolerance of bfloat16"
        if within
        else "not all of them are within the tolerance of bfloat16"
    )
    return (
        f"{equal} of {total} random disguises in float32 ({len(twins)} architectures) have the hash of their model. A tenth of "
        f"them were rounded to bfloat16: {said}."
    )


def _twin_rows(twins: dict[str, dict[str, float]]) -> str:
    return "\n".join(
        f"| {name} | {row['equal']:.0f} of {row['of']:.0f} | {row['largest']:.1e} | {row['bfloat16']:.1e} |"
        for name, row in twins.items()
    )

"""The page's section on checkpoints that others have trained. Every sentence is computed."""

from __future__ import annotations

from benchmarks.paper.architectures import families
from benchmarks.paper.results import Results
from benchmarks.paper.sentences import best, duration, markdown, spent


def real() -> list[str]:
    """Checkpoints that others have trained."""
    found = families.cells()
    if not found.cells:
        return []
    rows = []
    for pair in families.PAIRS:
        cells = {
            spaces: found.get(f"distance/{spaces}/{families.name_of(pair)}", {})
            for spaces in ("paper", "default", "all")
        }
        told = [
            f"{100 * (1 - c['after'] / c['before']):.3f} %" if "after" in c else "refused" for c in cells.values()
        ]
        first = next((c for c in cells.values() if "after" in c), None)
        if first:
            rows.append([" + ".join(pair), f"{first['before'] / first['norm']:.4f}", *told, first["verdict"]])
    return [
        "## Checkpoints that others have trained",
        "",
        "Fine-tunes of one base, from packages: MiniLM and a fine-tune for site reliability, and a BERT of "
        "chemical reactions with two fine-tunes. "
        f"Distances are relative to the norm of the first; then what matching takes off. Measured in "
        f"{duration(spent(found.cells))}.",
        "",
        *markdown(["pair", "distance", "the paper", "ours, inside layers", "ours, data-free", "verdict"], rows),
        *refused(found),
        *masked(found),
        *cosine(found),
    ]


def refused(found: Results) -> list[str]:
    """What cannot be matched, in its own words."""
    said = sorted({c["refused"] for c in found.cells.values() if "refused" in c})
    return [*(f"Refused: {sentence}." for sentence in said), ""] if said else []


def masked(found: Results) -> list[str]:
    """Tokens of reactions filled in by means of rxnfp models."""
    rows, gaps, tokens = [], [], 0
    for pair in families.PAIRS[1:3]:
        here = {
            s: found.get(f"masked/{s}/{families.name_of(pair)}")
            for s in ("only first", "only second", *families.SPACES)
        }
        if all(here.values()):
            rows.append(
                [" + ".join(pair), *(f"{100 * c['accuracy']:.1f} (loss {c['loss']:.3f})" for c in here.values())]
            )
            gaps.append(abs(here["default"]["accuracy"] - here["none"]["accuracy"]) * 100)
            tokens = here["none"]["tokens"]
    if not rows:
        return []
    return [
        f"Tokens of {found.settings['reactions']} textbook reactions filled in by the base's head, one hidden "
        f"at a time, in percent (of {tokens} tokens: one "
        f"is {100 / tokens:.1f} points; a smoke test, not a benchmark):",
        "",
        *markdown(
            ["pair", "the first alone", "the second alone", "mean", "mean, the paper", "mean, ours inside layers"],
            rows,
        ),
        f"Matching changes the mean by at most {max(gaps):.1f} points, of {found.settings['reactions']} reactions"
        + (
            ": fine-tunes of one base share its coordinates, and there is next to nothing to match."
            if max(gaps) < 1
            else "."
        ),
        "",
    ]


def cosine(found: Results) -> list[str]:
    """Sentence embeddings of the mean of MiniLM and its fine-tune."""
    pair = families.name_of(families.PAIRS[0])
    here = {s: found.get(f"cosine/{s}/{pair}") for s in families.SPACES}
    if not all(here.values()):
        return []
    names = {"none": "as stored", "paper": "the paper", "default": "ours, inside layers"}
    rows = [[names[s], f"{c['first']:.5f}", f"{c['second']:.5f}"] for s, c in here.items()]
    nearest = best({s: [c["first"]] for s, c in here.items()})
    return [
        f"Mean cosine of sentence embeddings ({found.settings['sentences']} sentences; between the parents "
        f"{here['none']['parents']:.5f}); "
        f"the mean is nearest to the base when matched “{names[nearest]}”, in the last digits only:",
        "",
        *markdown(["mean of both", "to the base", "to the fine-tune"], rows),
    ]

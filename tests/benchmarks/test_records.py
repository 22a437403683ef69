"""What the documentation says of benchmarks: commands and scripts that it names are there, or it names the commit
where they last stood; the tables of records are those of the committed results."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

from benchmarks.__main__ import benchmarks

ROOT = Path(__file__).resolve().parents[2]
LAST = "e499e080"
"""The last commit with the scripts of records."""
NAMED = re.compile(
    r"python -m (benchmarks(?:\.\w+)+)|(benchmarks/[\w/-]+\.(?:py|spec|json|png|svg|md))|make (bench[\w-]*)"
)


def pages() -> list[Path]:
    """All pages that name commands."""
    return [
        *sorted((ROOT / "docs").rglob("*.md")),
        *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING", "SECURITY")),
    ]


def missing(paragraph: str) -> list[str]:
    """Commands, files and targets of a paragraph that are not there."""
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    gone = []
    for module, file, target in NAMED.findall(paragraph):
        path = ROOT / module.replace(".", "/")
        if module and not (path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()):
            gone.append(module)
        if file and not (ROOT / file).is_file():
            gone.append(file)
        if target and target not in targets:
            gone.append(target)
    return gone


def test_what_is_named_is_there() -> None:
    """Or the paragraph says where it last stood."""
    wrong = {
        page.relative_to(ROOT).as_posix(): gone
        for page in pages()
        for paragraph in page.read_text(encoding="utf-8").split("\n\n")
        if LAST not in paragraph and (gone := missing(paragraph))
    }
    assert wrong == {}
    assert missing("`python -m benchmarks.gone`, benchmarks/gone.py, `make bench-gone`") == [
        "benchmarks.gone",
        "benchmarks/gone.py",
        "bench-gone",
    ]


def test_every_benchmark_says_what_it_measures() -> None:
    """In one sentence or two."""
    assert all(len(about) > 30 for about in benchmarks().values())
    assert {"verify", "barrier", "performance", "paper"} <= benchmarks().keys()


def test_the_comparison_has_the_numbers_of_its_results() -> None:
    """Unaligned and aligned fine-tunes of images, every method: means and deviations over seeds, in per cent."""
    page = (ROOT / "docs/lab/comparison.md").read_text(encoding="utf-8")
    seeds = json.loads((ROOT / "benchmarks/results/comparison.json").read_text())["vit"]["fine-tunes"].values()
    methods = next(iter(seeds))["unaligned"]
    assert len(methods) > 30
    for name in methods:
        shown = []
        for way in ("unaligned", "aligned"):
            for which in ("default", "best"):
                figures = [100 * seed[way][name][which]["mean"] for seed in seeds]
                shown.append(f"{statistics.fmean(figures):.1f} ± {statistics.stdev(figures):.1f}")
        assert f"| `{name}` | {' | '.join(shown)} |" in page

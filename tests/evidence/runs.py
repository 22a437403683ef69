"""Reports of runs that never ran, and a reader of the pages made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from isomerge.evidence.distance import summarise
from isomerge.evidence.relation import Pair
from isomerge.evidence.report.facts import facts_of, spread_of
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.spaces import Wording
from isomerge.matching.distances import TensorGap
from isomerge.run.run_verdict import verdict_on

POSSIBLE = Wording(free_streams=True, loss_on="labelled examples", writes=True)
VOID = {"meta", "link", "br", "hr", "img", "input"}


def distances(
    before: float, after: float, *, layers: int = 2, spaces: Iterable[str] = ("h", "ff")
) -> dict[str, Any]:
    """Every tensor of these spaces at these distances in parts of its norm, and a fixed one at 0.5."""
    rows = [
        TensorGap("t", [space], layer, 4.0, 4 * before**2, 4 * after**2)
        for layer in range(layers)
        for space in spaces
    ]
    return summarise([*rows, TensorGap("t", [], None, 1.0, 0.25, 0.25)]).document()


def run(before: float = 1.2, after: float = 0.3, *, kin: bool | None = None, **changes: Any) -> dict[str, Any]:
    """The report of a merge of two models, which may have a common base."""
    found: dict[str, Any] = {
        "command": "merge", "models": ["org/one", "org/two"], "architecture": "toy", "align": True, "spaces": "default",
        "layers": None, "method": "linear", "weights": [1.0, 1.0], "parameters": {"normalize": True}, "base": False,
        "seed": None, "streams": [], "notes": [], "kept_from_first": [], "dead_blocks": [],
        "versions": {"isomerge": "0.1.0", "torch": "2.0"}, "distance": distances(before, after),
    }  # fmt: skip
    report = {**found, **changes}
    if "verdict" not in report:
        verdict = verdict_on([replace(pair, kin=kin) for pair in pairs_in(report)], facts_of(report))
        report["verdict"] = None if verdict is None else verdict.document()
    return report


def pairs_in(report: dict[str, Any]) -> list[Pair]:
    """What a run would know of its models whose distances these are: in one place where they are near."""
    anchor, *others = report["models"]
    apart = [
        spread_of(s["distance"]).movable.share for s in report.get("sources") or [{"distance": report["distance"]}]
    ]
    return [
        Pair(anchor, model, before, after if report["align"] else None, settled=before < 0.5, align=report["align"])
        for model, (before, after) in zip(others, filter(None, apart), strict=False)
    ]


def written(*given: float, **changes: Any) -> Written:
    """The same, as read, of models that can be run and write texts; without a folder."""
    return Written(facts_of(run(*given, **changes)), wording=POSSIBLE)


def folder_of(path: Path, report: dict[str, Any]) -> Path:
    """A folder with this report, and nothing beside it."""
    path.mkdir(parents=True)
    (path / "isomerge.json").write_text(json.dumps(report))
    return path


def line(name: str, losses: list[float], accuracies: list[float] | None = None) -> dict[str, Any]:
    """A line as `isomerge barrier` reports it."""
    from isomerge.evidence.barrier import LineReport
    from isomerge.evidence.line import Line

    n = len(losses)
    at = tuple(k / (n - 1) for k in range(n))
    return LineReport(name, line=Line(at, tuple(losses), tuple(accuracies or [0.9] * n))).document()


def barrier(
    *lines: dict[str, Any], models: tuple[str, ...] = ("org/one", "org/two"), **more: Any
) -> dict[str, Any]:
    """A report of `isomerge barrier`."""
    data = {"examples": 100, "fingerprint": "x"}
    together = {"loss": 0.1, "accuracy": 0.95}
    return {
        "command": "barrier", "models": list(models), "data": data, "unit": "nats", "ensemble": together,
        "lines": list(lines), **more,
    }  # fmt: skip


@dataclass
class Element:
    """An element of a page."""

    name: str
    attributes: dict[str, str | None]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, name: str) -> list[Element]:
        """Its descendants of a name, in order."""
        found = [child for child in self.children if child.name == name]
        for child in self.children:
            found += child.all(name)
        return found

    def words(self) -> str:
        """All text in it."""
        return self.text + "".join(child.words() for child in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("root", {})
        self.open = [self.root]
        self.order: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        self.order.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].text += data


def parsed(html: str) -> tuple[Element, list[Element]]:
    """The tree of a page, and its elements in order; every tag must be closed in its place."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root, reader.order

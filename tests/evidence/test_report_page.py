"""The page: self-contained, safe, accessible, the same for the same run, and small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from evidence.runs import Element, barrier, distances, folder_of, line, parsed, run, written
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.evidence.report.advice import Level
from isomerge.evidence.report.facts import facts_of
from isomerge.evidence.report.folder import Written, read_output
from isomerge.evidence.report.loss_facts import Losses, losses_of
from isomerge.evidence.report.notebook import Report
from isomerge.evidence.report.page import Page, page_of
from isomerge.evidence.report.spaces import wording_of
from isomerge.matching.selection import select_spaces
from isomerge.symmetry.alignment import Alignment

LEARNED = {
    "barrier": -0.01, "examples": 40, "held_out": 4, "target": "labels",
    "history": [{"step": s, "barrier": b} for s, b in ((0, 1.0), (5, 0.4), (9, -0.01))],
}  # fmt: skip
HOSTILE = "</script><script>alert(1)</script><img src=http://x.test/i onerror=alert(2)>\"'&{{ 7*7 }}{% raw %}"
EVENTS = re.compile(r"^on[a-z]+$")


def measured(**more: Any) -> Losses:
    """A line as stored and aligned, the ensemble and the merge."""
    lines = [line("as stored", [0.1, 2.0, 0.2]), line("after alignment", [0.1, 0.15, 0.2])]
    return losses_of(barrier(*lines, merged={"loss": 0.2, "accuracy": 0.9}, **more))


def plane(name: str) -> dict[str, Any]:
    """A plane as `isomerge barrier` reports it."""
    corners = [{"x": x, "y": y, "loss": 0.1, "accuracy": 0.9} for x, y in ((0, 0), (2, 0), (1, 1))]
    return {
        "name": name, "xs": [0.0, 1.0, 2.0], "ys": [0.0, 1.0], "losses": [[0.1, 1.0, 0.1], [0.5, 0.1, 0.6]],
        "corners": corners, "centroid": {"loss": 0.7, "accuracy": 0.5},
    }  # fmt: skip


def tune(*figures: float | None, name: str = "lambda", key: str = "loss") -> dict[str, Any]:
    """What `isomerge.tune` reports of a search: of the recipe's own values, and of trials, some of them refused."""
    rows = [{"values": {name: k / 8}, key: x} for k, x in enumerate(figures)]
    return {
        "objective": "tasks" if key == "score" else "loss", "search_unit": "score" if key == "score" else "nats",
        "start": {"values": rows[0]["values"], "search": figures[0]}, "trials": rows[1:],
        "data": {"search": {"examples": 24}}, "sentence": "On the held-out examples it is no better.",
    }  # fmt: skip


def pages() -> dict[str, Page]:
    """One of every kind."""
    three = run(models=["a", "b", "c"])
    three["sources"] = [{"model": m, "distance": three["distance"]} for m in ("b", "c")]
    flat = losses_of({**barrier(models=("a", "b", "c")), "lines": [], "planes": [plane("as stored"), plane("x")]})
    old = run()
    for layer in old["distance"]["layers"].values():
        del layer["spaces"]
    hostile = run(models=[HOSTILE, f"x/{HOSTILE}"], notes=[HOSTILE], method=HOSTILE, kept_from_first=[HOSTILE])
    hostile |= {"versions": {HOSTILE: HOSTILE}, "parameters": {HOSTILE: HOSTILE}, "architecture": HOSTILE}
    hostile["tune"] = tune(0.5, None, 0.4, name=HOSTILE)
    hostile["distance"] = distances(1, 0.5, spaces=[HOSTILE, "ff"])
    hostile["head_folders"], hostile["heads"], hostile["spaces"] = [HOSTILE], HOSTILE, HOSTILE
    losses = [measured(models=(HOSTILE, "two"))]
    losses += [losses_of(barrier(line(HOSTILE, [0.1, 0.2, 0.1]), unit=HOSTILE))]
    return {
        "plain": page_of(written()),
        "measured": page_of(written(streams=[{"groups": {"res": "O"}, "learned": LEARNED}]), [measured()]),
        "searched": page_of(written(tune=tune(0.5, 0.7, None, 0.4, 0.45))),
        "scored": page_of(written(tune=tune(0.5, 0.7, None, 0.9, 0.85, key="score"))),
        "three": page_of(Written(facts_of(three)), [flat]),
        "old": page_of(Written(facts_of(old))),
        "bare": page_of(
            Written(facts_of({**old, "command": "align", "distance": {"before": 1, "after": 1, "norm": 2}}))
        ),
        "not aligned": page_of(Written(facts_of(run(align=False, distance=distances(1.2, 1.2, spaces=["fixed"]))))),
        "hostile": page_of(Written(facts_of(hostile), Path(HOSTILE), recipe=HOSTILE), losses),
        "tall": page_of(Written(facts_of(run(distance=distances(0.02, 0.01, layers=30))))),
    }


PAGES = pages()
every_page = pytest.mark.parametrize("page", list(PAGES.values()), ids=list(PAGES))


@every_page
def test_nothing_is_fetched(page: Page) -> None:
    """No address that a browser would ask for, and a policy that forbids it to."""
    _, elements = parsed(page.html)
    for element in elements:
        assert element.name not in ("iframe", "object", "embed", "base", "form", "audio", "video", "source", "img")
        for name, value in element.attributes.items():
            assert not EVENTS.match(name), f"{element.name} {name}"
            assert name not in ("style", "srcset", "action", "xlink:href", "ping"), f"{element.name} {name}"
            if name in ("src", "href"):
                assert re.fullmatch(r"#[a-z]+|data:,", value or ""), value
    style = next(e for e in elements if e.name == "style").text
    assert "url(" not in style
    assert "@import" not in style
    assert [e.attributes for e in elements if e.name == "script"] == [{}]
    policy = next(
        e.attributes["content"] for e in elements if e.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for kind in ("style", "script"):
        inner = next(e for e in elements if e.name == kind).text
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert "</" not in inner
    assert len(page.html.encode()) < 1_000_000


@every_page
def test_figures_have_words(page: Page) -> None:
    """Every picture has a text alternative, or is hidden beside words that say the same; every figure has its
    data."""
    root, _ = parsed(page.html)
    figures = root.all("figure")
    assert figures
    for svg in root.all("svg"):
        if svg.attributes.get("aria-hidden") == "true":
            assert not svg.all("title")
        else:
            assert svg.attributes["role"] == "img"
            assert len(svg.attributes["aria-label"] or "") > 20
    for figure in figures:
        assert any(len(svg.all("title")) > 0 for svg in figure.all("svg")), "tooltips"
        tables = figure.all("table")
        assert len(tables) == 1
        assert tables[0].all("caption")[0].words()
        widths = {len(row.children) for row in tables[0].all("tr")}
        assert len(widths) == 1
        assert len(tables[0].all("tr")) > 1


@every_page
def test_structure(page: Page) -> None:
    """One h1, headings in order, landmarks with names, identifiers once, links that lead somewhere."""
    root, elements = parsed(page.html)
    levels = [int(e.name[1]) for e in elements if re.fullmatch(r"h[1-6]", e.name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(new <= old + 1 for old, new in pairwise(levels))
    identifiers = [e.attributes["id"] for e in elements if "id" in e.attributes]
    assert len(set(identifiers)) == len(identifiers)
    for e in elements:
        if (e.attributes.get("href") or "").startswith("#"):
            assert (e.attributes["href"] or "")[1:] in identifiers
        if "aria-labelledby" in e.attributes:
            assert e.attributes["aria-labelledby"] in identifiers
    assert {"main", "header", "footer", "nav"} <= {e.name for e in elements}
    for e in elements:
        if e.name == "th":
            assert e.attributes.get("scope") in ("col", "row")
    html = root.all("html")[0]
    assert html.attributes["lang"] == "en"
    assert root.all("title")[0].words()


@every_page
def test_pictures_are_svg(page: Page) -> None:
    """An XML reader takes every one of them, and every coordinate is a number."""
    found = re.findall(r"<svg.*?</svg>", page.html, re.DOTALL)
    assert found
    for svg in found:
        root = ElementTree.fromstring(svg)
        for element in root.iter():
            for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"):
                if name in element.attrib:
                    assert abs(float(element.attrib[name])) < 5000
            assert "nan" not in element.attrib.get("d", "")


def test_hostile_names_are_words() -> None:
    """A name that is markup, a template or a script is shown as it is, everywhere."""
    root, elements = parsed(PAGES["hostile"].html)
    assert sum(e.name == "script" for e in elements) == 1
    assert not root.all("img")
    assert "49" not in root.all("h1")[0].words()
    body = root.all("body")[0].words()
    assert body.count("{{ 7*7 }}") > 8
    assert body.count("alert(2)") > 8
    fragment, _ = parsed(PAGES["hostile"].fragment)
    assert not fragment.all("script")
    assert not fragment.all("img")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A path of bytes that are no UTF-8 is written, and read back as UTF-8."""
    report = run(models=["caf\udce9", "x"])
    out = folder_of(tmp_path / "out", report)
    file = page_of(read_output(out)).save(tmp_path / "x.html")
    assert "caf?" in file.read_text(encoding="utf-8")


def test_same_bytes(tmp_path: Path) -> None:
    """Twice the same page, whatever the order of keys in the report."""
    report = run(streams=[{"groups": {"res": "O"}, "learned": LEARNED}])
    texts = set()
    for number, sort in enumerate((True, False, True)):
        out = tmp_path / str(number) / "out"
        out.mkdir(parents=True)
        (out / "isomerge.json").write_text(json.dumps(report, sort_keys=sort))
        read = read_output(out)
        texts.add(page_of(Written(read.facts, wording=read.wording), [measured()]).html)
    assert len(texts) == 1


def test_large_models_stay_small() -> None:
    """130 layers of 16 spaces, before and after, with a table of them."""
    tall = run(distance=distances(1.234, 0.567, layers=130, spaces=[f"s{k}" for k in range(16)]))
    page = page_of(Written(facts_of(tall)))
    assert len(page.html.encode()) < 1_000_000
    root, _ = parsed(page.html)
    assert len(root.all("figure")[1].all("rect")) >= 2 * 130 * 16


def test_values_in_the_figures() -> None:
    """The heat maps, the curves and the tables have the figures of the report."""
    root, _ = parsed(PAGES["measured"].html)
    loss, learned, spaces, layers = root.all("figure")
    tips = [t.words() for t in layers.all("title")]
    assert "layer 0, ff: 1.20 before alignment" in tips
    assert "layer 1, h: 0.30 after alignment" in tips
    assert any("outside the layers, all other tensors: 0.50" in t for t in tips)
    assert "1.20 → 0.30" in layers.all("table")[0].words()
    assert "h: 1.20 → 0.30 of the norm" in [t.words() for t in spaces.all("title")]
    tips = [t.words() for t in loss.all("title")]
    assert "after alignment, at 0.50: loss 0.150, accuracy 90.0 %" in tips
    assert "the merged model: loss 0.200, accuracy 90.0 %" in tips
    assert "1.850" in loss.all("table")[0].words(), "the barrier of 0.1, 2.0, 0.2"
    assert [t.words() for t in learned.all("title")] == [
        "two, step 0: 1.000 nats",
        "two, step 5: 0.400 nats",
        "two, step 9: −0.010 nats",
    ]


@pytest.mark.parametrize(
    ("figures", "key", "better"),
    [
        ((0.5, 0.7, None, 0.4, 0.45), "loss", [0, 3, 4]),
        ((0.5, 0.7, None, 0.9, 0.85), "score", [0, 1, 3, 4]),
        ((0.5, 0.7, 0.6), "loss", [0, 2]),
        ((0.5, None, 0.5, 0.5), "loss", [0, 3]),
        ((2.0, 1e30, 1.9, 1.8, 1.7), "loss", [0, 2, 3, 4]),
        ((-3.0, -1e30, -2.0, -4.0, -1.0), "score", [0, 2, 4]),
    ],
)
def test_a_search_is_drawn(figures: tuple[float | None, ...], key: str, better: list[int]) -> None:
    """A mark for every trial that was not refused, with its values; steps of the best so far, which go down for a
    loss and up for a score; a trial that is far worse than the others takes none of their room. A notebook has the
    same figure."""
    report = run(tune=tune(*figures, key=key))
    page = parsed(page_of(Written(facts_of(report))).html)[0]
    assert [e.attributes["href"] for e in page.all("nav")[0].all("a")].count("#search") == 1
    search = next(e for e in page.all("section") if e.attributes.get("id") == "search")
    drawn = search.all("figure")[0]
    assert drawn.words() in parsed(Report(report)._repr_html_() or "")[0].words()
    plot = next(svg for svg in drawn.all("svg") if svg.attributes.get("role") == "img")
    tips = [mark.all("title")[0].words() for mark in plot.all("g")]
    for k, x in enumerate(figures):
        told = [tip for tip in tips if tip.startswith(f"trial {k}, lambda {k / 8:.4g}: ")]
        assert bool(told) == (x is not None and k > 0)
    assert sum("refused" in row.words() for row in drawn.all("tr")) == figures.count(None)
    assert "On the held-out examples it is no better." in drawn.words()
    label = "Score" if key == "score" else "Loss (nats)"
    assert f"{label} of {sum(x is not None for x in figures[1:])} trials on the 24" in drawn.words()
    assert [li.words().strip() for li in drawn.all("li")] == ["trials", "best so far", "the recipe's own values"]
    (path,) = [p.attributes["d"] or "" for p in plot.all("path") if "curve" in (p.attributes["class"] or "")]
    ys = [float(y) for y in re.findall(r"[ V]([\d.]+)", path)]
    xs = [float(x) for x in re.findall(r"[MH]([\d.]+)", path)]
    room = (xs[-1] - xs[0]) / (len(figures) - 1)
    assert xs == pytest.approx([xs[0] + k * room for k in better], abs=0.1)
    assert ys == sorted(ys, reverse=key == "score")
    if max(x for x in map(abs, filter(None, figures))) > 1e9:
        assert max(ys) - min(ys) > 40
        assert "at the edge" in drawn.words()


def _classes(root: Element) -> set[str]:
    return {c for e in root.all("rect") for c in (e.attributes.get("class") or "").split()}


def test_colours_follow_distance() -> None:
    """Equal models are palest, unrelated ones darkest, and a row without numbers is neither."""
    for share, step in ((0.0, "s0"), (1.49, "s8"), (30.0, "s8")):
        report = run(distance=distances(1.5, share, layers=1, spaces=["h"]))
        root, _ = parsed(page_of(Written(facts_of(report))).html)
        after = root.all("figure")[1].all("svg")[1]
        assert step in _classes(after)
    report = run()
    report["distance"]["layers"]["0"]["spaces"]["h"] = {"before": 1.0, "after": 0.0, "norm": 0.0}
    root, _ = parsed(page_of(Written(facts_of(report))).html)
    tips = [t.words() for t in root.all("title")]
    assert "layer 0, h: nothing to compare" in tips


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6});", css))


def _contrast(one: str, two: str) -> float:
    """WCAG 2.2's ratio of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_in_light_and_dark() -> None:
    """AA: 4.5 for words, 3 for what is drawn; the scale runs one way in lightness, so that it needs no colour
    vision."""
    css = re.sub(r"\s+", " ", PAGES["plain"].html.partition("<style>")[2].partition("</style>")[0])
    light, dark = css.partition("@media screen and (prefers-color-scheme: dark)")[::2]
    schemes = [_colours(light), _colours(light) | _colours(dark.partition("} }")[0])]
    assert schemes[0]["ground"] != schemes[1]["ground"]
    for colours in schemes:
        for ground in ("ground", "card", "code"):
            assert _contrast(colours["ink"], colours[ground]) > 7
        for words in ("soft", "accent", "good", "open", "fair", "poor"):
            assert _contrast(colours[words], colours["card"]) >= 4.5, words
        assert _contrast(colours["soft"], colours["ground"]) >= 4.5
        for drawn in ("mute", "accent", "l2", "l3", "l4", "l5"):
            assert _contrast(colours[drawn], colours["card"]) >= 3, drawn
        for step in range(9):
            assert _contrast(colours[f"t{step}"], colours[f"s{step}"]) >= 4.5, step
        against = [_contrast(colours[f"s{step}"], colours["card"]) for step in range(9)]
        assert against == sorted(against)
    assert "@media print" in css


def test_an_anchor_of_zeros() -> None:
    """There is nothing to compare with: a page without figures, and no verdict that the models are near."""
    report = run(distance={"before": 1.0, "after": 1.0, "norm": 0.0})
    page = page_of(Written(facts_of(report)))
    assert page.verdict.level is Level.OPEN
    assert not parsed(page.html)[0].all("figure")


def test_saving(tmp_path: Path) -> None:
    """Complete or not at all; a folder that is not there is one sentence."""
    page = PAGES["plain"]
    file = page.save(tmp_path / "x.html")
    assert file.read_bytes() == page.html.encode()
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(IsomergeError, match=r"writing .*x\.html failed.*check the path"):
        page.save(tmp_path / "nothing" / "x.html")
    assert page._repr_html_() == page.fragment


def test_reports_are_dicts_that_draw_themselves() -> None:
    """In every way a dict; a notebook gets figures for distances and losses, a table for the rest, and a dict if it
    is damaged."""
    report = Report(run())
    assert report == run()
    assert json.loads(json.dumps(report)) == run()
    shown = report._repr_html_()
    assert shown is not None
    root, elements = parsed(shown)
    assert not root.all("script")
    assert len(root.all("figure")) == 2
    assert [e for e in elements if e.name in ("html", "head", "body")] == []
    assert "brought the models together" in root.words()
    diff = Report({**run(), "command": "diff", "same": False})._repr_html_()
    assert "one and two" in parsed(diff or "")[0].words()
    loss = Report(barrier(line("as stored", [0.1, 1.0, 0.1])))._repr_html_()
    assert len(parsed(loss or "")[0].all("figure")) == 1
    verify = Report({"command": "verify", "models": ["a", "<b>"], "same": True, "residual": {"largest": 1e-9}})
    words = parsed(verify._repr_html_() or "")[0].words()
    assert "a, <b>" in words
    assert "yes" in words
    assert Report({**run(), "distance": None})._repr_html_() is None
    assert Report({})._repr_html_() is not None


def test_an_alignment_shows_what_it_moves(toy: Any) -> None:
    """Space by space: groups, elements, and which are not the identity; identities are told from what moves."""
    model = toy("gpt2")
    spec = select_spaces(model.spec, "default").spec
    drawn = random_alignment(spec, list(model.blocks), torch.Generator().manual_seed(0))
    layers, heads = 3, spec.sizes["h"]
    moved = drawn.moved()
    assert moved["qk"] == ("GL", layers * heads, layers * heads)
    assert moved["shift.vb"] == ("shift", layers, layers)
    still = Alignment(spec, {"qk[0]": spec.spaces["qk"].group.identity((heads,), spec.sizes["qk"])})
    assert still.moved() == {"qk": ("GL", heads, 0)}
    assert repr(still) == "<Alignment of gpt2: 1 elements of qk>"
    shown = drawn._repr_html_()
    assert "a symmetry of gpt2" in shown
    assert f"<td>qk</td><td>GL</td><td>{layers * heads}</td><td>{layers * heads}</td>" in shown
    assert "<td>shift.vb</td>" in shown


def test_words_of_an_architecture(tmp_path: Path, toy: Any) -> None:
    """Spaces of a checkpoint go by their role, streams are told from gains; of an unknown folder nothing is
    known."""
    found = wording_of(toy("vit").folder)
    assert found.words("qk").label == "queries and keys (qk)"
    assert found.words("res").label == "residual stream (res)"
    assert found.words("n1").label == "norm gains (n1)"
    assert found.words("kb").group == "shift"
    assert (found.free_streams, found.loss_on, found.writes) == (True, "labelled examples", False)
    assert found.ordered(["fixed", "res", "ff", "h", "unheard"]) == ["h", "ff", "res", "unheard", "fixed"]
    nothing = wording_of(tmp_path)
    assert nothing.words("qk").label == "qk"
    assert nothing.words("fixed").label == "all other tensors"
    assert (nothing.free_streams, nothing.loss_on, nothing.writes) == (False, "", False)

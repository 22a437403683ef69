"""The report in a real browser: nothing is fetched, nothing complains, it fits, and every value is within reach of
keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evidence.test_report_page import PAGES

WIDTHS = (1280, 768, 390, 320)
FOCUSED = "[...document.querySelectorAll('[data-plot][tabindex]')].indexOf(document.activeElement)"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of page as a file."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: page.save(folder / f"{name.replace(' ', '-')}.html") for name, page in PAGES.items()}


@pytest.mark.parametrize("name", list(PAGES))
def test_quiet_and_alone(name: str, files: dict[str, Path], opened: Callable) -> None:
    """The file is all that is asked for; no message, no error, no dialog, also of names that are scripts."""
    page = opened(files[name])
    for plot in page.tab.query_selector_all("[data-plot]"):
        plot.focus()
        page.tab.keyboard.press("ArrowRight")
    page.tab.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert page.requests == [page.url]
    assert page.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", list(PAGES))
def test_no_sideways_scrolling(name: str, scheme: str, files: dict[str, Path], opened: Callable) -> None:
    """From a wide screen to a small phone, with all tables open; every picture lies within the page."""
    page = opened(files[name], color_scheme=scheme)
    page.tab.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    for width in WIDTHS:
        page.tab.set_viewport_size({"width": width, "height": 800})
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
        right = (
            "Math.max(...[...document.querySelectorAll('main svg')].map((s) => s.getBoundingClientRect().right))"
        )
        assert page.tab.evaluate(right) <= width


def _tip(tab: Any) -> str | None:
    tip = tab.locator(".tip")
    return tip.inner_text() if tip.is_visible() else None


def test_values_by_keyboard(files: dict[str, Path], opened: Callable) -> None:
    """Tab reaches every figure; arrows go from value to value, Home and End to the ends, Escape closes."""
    page = opened(files["measured"])
    tab = page.tab
    told = {}
    for _ in range(40):
        tab.keyboard.press("Tab")
        if (number := tab.evaluate(FOCUSED)) >= 0:
            told[number] = _tip(tab)
    assert list(told) == list(range(6)), "in the order of the page"
    assert all(told.values())
    heat = tab.locator("[data-plot]", has_text="After alignment")
    heat.focus()
    tab.keyboard.press("Home")
    assert _tip(tab) == "layer 0, ff: 0.30 after alignment"
    tab.keyboard.press("ArrowRight")
    assert _tip(tab) == "layer 0, h: 0.30 after alignment"
    tab.keyboard.press("ArrowDown")
    assert _tip(tab) == "layer 1, h: 0.30 after alignment"
    tab.keyboard.press("ArrowLeft")
    assert _tip(tab) == "layer 1, ff: 0.30 after alignment"
    tab.keyboard.press("ArrowLeft")
    assert _tip(tab) == "layer 1, ff: 0.30 after alignment", "the edge is the end"
    tab.keyboard.press("Escape")
    assert _tip(tab) is None
    tab.keyboard.press("ArrowUp")
    assert _tip(tab) == "layer 0, ff: 0.30 after alignment"
    tab.keyboard.press("Tab")
    assert _tip(tab) is None


def test_every_value_is_within_reach(files: dict[str, Path], opened: Callable) -> None:
    """From the first field of a heat map, right and down lead to all of them."""
    tab = opened(files["measured"]).tab
    heat = tab.locator("[data-plot]", has_text="After alignment")
    heat.focus()
    seen = set()
    for row in range(3):
        tab.keyboard.press("Home")
        for _ in range(row):
            tab.keyboard.press("ArrowDown")
        for _ in range(3):
            seen.add(_tip(tab))
            tab.keyboard.press("ArrowRight")
    assert len(seen) == heat.locator(".mark").count() == 9


@pytest.mark.parametrize("width", [1280, 390])
def test_values_by_pointer(width: int, files: dict[str, Path], opened: Callable) -> None:
    """A tip beside what is pointed at, inside the screen, and one at a time."""
    page = opened(files["measured"], width=width)
    marks = page.tab.locator("[data-plot] .mark")
    assert page.tab.locator("[data-plot] .mark title").count() == 0, "the browser's own tip would be a second one"
    for number in range(0, marks.count(), 7):
        mark = marks.nth(number)
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        page.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        if (tip := page.tab.locator(".tip")).is_visible():
            here = tip.bounding_box()
            assert here["x"] >= 0
            assert here["x"] + here["width"] <= width
            assert here["y"] >= 0
            assert page.tab.locator(".mark.on").count() == 1
    page.tab.mouse.move(1, 1)
    assert _tip(page.tab) is None


def test_roles_and_names(files: dict[str, Path], opened: Callable) -> None:
    """What a screen reader finds: landmarks, headings, pictures with words, tables with captions."""
    tab = opened(files["measured"]).tab
    for role in ("banner", "main", "contentinfo"):
        assert tab.get_by_role(role).count() == 1, role
    assert tab.get_by_role("navigation", name="Sections").count() == 1
    assert tab.get_by_role("heading", level=1).inner_text() == "Merge of one and two"
    assert tab.get_by_role("region", name="The merge works").count() == 1
    assert tab.get_by_role("img", name=re.compile("Loss .* on the line from one to two")).count() == 1
    tab.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert tab.get_by_role("table", name="Loss and accuracy").count() == 1
    assert tab.get_by_role("rowheader", name="the merged model").count() == 1


def test_skip_link(files: dict[str, Path], opened: Callable) -> None:
    """The first stop leads past the navigation, and is seen when it is reached."""
    tab = opened(files["plain"]).tab
    tab.keyboard.press("Tab")
    link = tab.get_by_role("link", name="Skip to the report")
    assert link.bounding_box()["x"] >= 0
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#main")


def test_light_and_dark(files: dict[str, Path], opened: Callable) -> None:
    """The scheme of the system is followed, in the text and in the plots."""
    found = {}
    for scheme in ("light", "dark"):
        tab = opened(files["measured"], color_scheme=scheme).tab
        found[scheme] = tab.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            " getComputedStyle(document.querySelector('rect.s1')).fill]"
        )
    ground, ink, low = (
        [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in pair]
        for pair in zip(found["light"], found["dark"], strict=True)
    )
    assert ground[0] > 600 > 150 > ground[1]
    assert ink[0] < 150 < 600 < ink[1]
    assert low[0] > low[1]


def test_on_paper(files: dict[str, Path], opened: Callable) -> None:
    """Black on white whatever the scheme, without what is for the screen; some pages of PDF."""
    tab = opened(files["measured"], color_scheme="dark").tab
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.get_by_role("navigation").is_visible()
    assert tab.get_by_role("heading", level=1).is_visible()
    pdf = tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page[^s]", pdf)) <= 8


def test_without_scripts(files: dict[str, Path], opened: Callable) -> None:
    """All is there: the browser's own tips, and the tables."""
    page = opened(files["measured"], java_script_enabled=False)
    assert page.complaints == []
    assert page.tab.locator(".mark title").count() > 30
    page.tab.locator("summary").first.click()
    assert page.tab.get_by_role("table", name="Loss and accuracy").is_visible()


def test_the_policy_holds(files: dict[str, Path], opened: Callable) -> None:
    """Even markup that got into the page could neither ask the network nor run."""
    page = opened(files["plain"])
    refused = page.tab.evaluate(
        """new Promise((done) => {
          const found = [];
          addEventListener('securitypolicyviolation', (event) => {
            found.push(event.effectiveDirective);
            if (found.length === 3) done(found.sort());
          });
          document.body.insertAdjacentHTML('beforeend',
            '<img src="http://isomerge.invalid/x.png" onerror="window.ran = 1"><p style="color: red">x</p>');
          const script = document.createElement('script');
          script.textContent = 'window.ran = 1';
          document.body.append(script);
        })"""
    )
    assert refused == ["img-src", "script-src-elem", "style-src-attr"]
    assert page.tab.evaluate("window.ran") is None


def test_fragment_in_a_notebook(tmp_path: Path, opened: Callable) -> None:
    """Two outputs on one page, in a narrow cell: they fit, and leave what is around them as it is."""
    fragment = PAGES["measured"].fragment
    text = f"<!doctype html><meta charset=utf-8><h2 id=own>Mine</h2><div style='width: 600px'>{fragment}{fragment}</div>"
    (tmp_path / "notebook.html").write_text(text, encoding="utf-8")
    page = opened(tmp_path / "notebook.html", width=700)
    assert page.complaints == []
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 700
    assert page.tab.get_by_role("img").count() == 2 * fragment.count('role="img"')
    plain = page.tab.evaluate("getComputedStyle(document.querySelector('#own')).fontFamily")
    assert "system-ui" not in plain

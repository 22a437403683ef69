"""The pages as the tests read them: fences with the comments above them, links, anchors and navigation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MARK = re.compile(r"<!-- *([a-z ]+?)(?:: *(.*?))? *-->")
MARKS = {"not run", "file", "output", "within"}
"""The comments that say what the tests do with the fence below; README of them: docs/writing.md."""


@dataclass(frozen=True)
class Fence:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def tokens(page: Path) -> list[Token]:
    """A page, parsed."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def fences(page: Path) -> Iterator[Fence]:
    """The fenced blocks in their order, each with the marks of the comments right above it."""
    marks: dict[str, str] = {}
    for token in tokens(page):
        if token.type == "html_block":
            marks |= {key: words or "" for key, words in MARK.findall(token.content) if key in MARKS}
        elif token.type == "fence":
            assert token.map is not None
            yield Fence(page, token.map[0] + 1, token.info.strip(), token.content, marks)
            marks = {}
        elif not token.hidden:
            marks = {}


def links(page: Path) -> Iterator[str]:
    """The targets of links and pictures."""
    for token in tokens(page):
        for child in token.children or ():
            target = child.attrGet("href" if child.type == "link_open" else "src")
            if child.type in ("link_open", "image") and target:
                yield str(target)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as code forges and MyST make them."""
    found: dict[str, int] = {}
    every = set()
    for token, inside in zip(tokens(page), tokens(page)[1:], strict=False):
        if token.type == "heading_open":
            text = "".join(c.content for c in inside.children or () if c.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            count = found[slug] = found.get(slug, -1) + 1
            every.add(f"{slug}-{count}" if count else slug)
    return frozenset(every)


def pages() -> list[Path]:
    """Every page of the site."""
    return sorted(DOCS.rglob("*.md"))


def navigation(page: Path) -> Iterator[Path]:
    """The pages below a page in the site's navigation, from its toctrees; a pattern stands for what it matches."""
    for fence in fences(page):
        if fence.language == "{toctree}":
            entries = [line.strip() for line in fence.text.splitlines() if line.strip() and line[0] != ":"]
            for entry in entries:
                name = re.sub(r".*<(.*)>$", r"\1", entry)
                found = sorted(page.parent.glob(f"{name}.md"))
                assert found, f"{fence}: {entry} is no page"
                for below in found:
                    yield below.resolve()
                    yield from navigation(below.resolve())

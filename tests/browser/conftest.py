"""A headless Chromium for the pages. Without one (or without playwright) these tests are skipped; `make
test-browser` sets ISOMERGE_BROWSER=required, and then they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def _absent(why: str) -> None:
    if os.environ.get("ISOMERGE_BROWSER") == "required":
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser of playwright's, in a new profile."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _absent("playwright is not installed: pip install playwright (its own browsers are not needed)")
        return
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        _absent(f"no browser on the PATH; looked for {', '.join(NAMES)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=OPTIONS)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page in a tab, and what happened while it was open."""

    tab: Any
    url: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Console messages, errors and dialogs."""


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Opened]]:
    """``opened(path, width=390, color_scheme="dark")``: the file in a tab of its own."""
    contexts = []

    def open_page(path: Path, *, width: int = 1280, height: int = 900, **options: Any) -> Opened:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        tab = context.new_page()
        found = Opened(tab, path.as_uri())
        tab.on("request", lambda request: found.requests.append(request.url))
        tab.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: found.complaints.append(str(error)))

        def refuse(dialog: Any) -> None:
            found.complaints.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        tab.on("dialog", refuse)
        tab.goto(found.url)
        return found

    yield open_page
    for context in contexts:
        context.close()

"""The page: everything that is known of a run, in one file that asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge import __version__
from isomerge.evidence.card import recipe_command
from isomerge.evidence.distance import FIXED
from isomerge.evidence.report.contents import (
    GLOSSARY,
    KINDS,
    distance_remarks,
    loss_remarks,
    models_of,
    notes_of,
    settings_of,
    source_table,
    subtitle_of,
    tiles_of,
    title_of,
)
from isomerge.evidence.report.distance_figures import distance_figure, layer_figure
from isomerge.evidence.report.figure import Figure
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.loss_facts import Losses
from isomerge.evidence.report.loss_figures import learning_figure, loss_figure, plane_figure, search_figure
from isomerge.evidence.report.verdict import Verdict, verdict_of
from isomerge.files import write_whole
from isomerge.records import Json

if TYPE_CHECKING:
    from jinja2 import Environment

HOME = "isomerge.evidence.report"
PAGE = "report.html"
"""What the page of an output is called in its folder."""


@dataclass(frozen=True)
class Page:
    """A report: the text of an HTML file, and what it says of the run."""

    html: str
    verdict: Verdict
    fragment: str
    """The same without head and script, for a notebook."""
    measured: tuple[Json, ...] = ()
    """Reports of `isomerge.barrier` that were made for it."""

    def save(self, path: str | Path) -> Path:
        """Write the page; an old file is replaced when the new one is complete.

        Raises:
            IsomergeError: it cannot be written.
        """
        file = Path(os.path.expanduser(path))
        write_whole(file, self.html.encode())
        return file

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.fragment

    def __repr__(self) -> str:
        return f"Page({self.verdict.title!r}, {len(self.html)} characters; save(path) writes it)"


def page_of(written: Written, losses: Sequence[Losses] = (), *, measured: Sequence[Json] = ()) -> Page:
    """The report on an output.

    Args:
        written: the output.
        losses: measured on data, for these models or others; the first one leads.
        measured: what they were read from, to be kept with the page.
    """
    verdict = verdict_of(written, losses)
    distances, curves = distance_figures(written), loss_figures(written, losses)
    script, style = _file("tooltip.js"), _file("page.css")
    sections = [("verdict", "Verdict"), ("merged", "Models")]
    search = search_figure(written.facts.search)
    sections += [("search", "Search")] if search else []
    sections += [("loss", "Loss")] if curves else []
    sections += [("distance", "Distance"), *([("again", "Recipe")] if written.recipe.strip() else [])]
    facts = written.facts
    context: Json = {
        "title": title_of(facts),
        "subtitle": subtitle_of(written),
        "tiles": tiles_of(written, losses),
        "what_title": "What was merged" if facts.command == "merge" else "What was aligned",
        "models": models_of(written),
        "settings": settings_of(written),
        "notes": notes_of(written),
        "distance_remarks": distance_remarks(written),
        "sources": source_table(written.matched),
        "loss_remarks": loss_remarks(written, losses),
        "recipe": written.recipe.strip(),
        "recipe_command": recipe_command(facts.imports),
        "glossary": GLOSSARY,
        "version": __version__,
        "versions": ", ".join(f"{name} {number}" for name, number in facts.versions),
        "verdict": verdict,
        "distances": distances,
        "losses": curves,
        "search": search,
        "sections": sections,
        "interactive": True,
        "style": _markup(style),
        "style_hash": _hash(style),
        "script": _markup(script),
        "script_hash": _hash(script),
    }
    figures = [*filter(None, [search]), *curves, *distances]
    fragment = fragment_of(context["title"], context["subtitle"], verdict, figures)
    return Page(render("page.html.jinja", context), verdict, fragment, tuple(measured))


def distance_figures(written: Written) -> list[Figure]:
    """By space, and by layer; where no space is known of, by layer alone."""
    spaces, layers = distance_figure(written), layer_figure(written)
    known = set(written.matched.distance.spaces) > {FIXED} or layers is None
    return [figure for figure in (spaces if known else None, layers) if figure is not None]


def loss_figures(written: Written, losses: Sequence[Losses]) -> list[Figure]:
    """The curves of what was measured, and of what learning measured."""
    figures = [loss_figure(each) for each in losses if each.lines]
    figures += [plane_figure(each) for each in losses if each.planes]
    learned = learning_figure(written.matched.taught, written.matched.names[1:])
    return [*figures, *([learned] if learned is not None else [])]


def fragment_of(
    title: str,
    subtitle: str = "",
    verdict: Verdict | None = None,
    figures: Sequence[Figure] = (),
    tables: Sequence[Any] = (),
) -> str:
    """A part of a page, for a notebook: it has the style sheet with it, and no script."""
    context = {
        "title": title, "subtitle": subtitle, "verdict": verdict, "figures": figures, "tables": tables,
        "style": _markup(_file("page.css")), "interactive": False,
    }  # fmt: skip
    return render("fragment.html.jinja", context)


def render(name: str, context: Json) -> str:
    """A template with everything escaped that is not marked as markup; unknown names are errors."""
    markup = _environment().get_template(name).render(kinds=KINDS, **context).strip() + "\n"
    return markup.encode(errors="replace").decode()  # names of files need not be text


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _markup(words: str) -> Any:
    from markupsafe import Markup

    return Markup(words)


@cache
def _file(name: str) -> str:
    return (files(HOME) / "templates" / name).read_text(encoding="utf-8").strip()


def _hash(words: str) -> str:
    """The source expression of a Content-Security-Policy that allows this text alone."""
    return "sha256-" + base64.b64encode(hashlib.sha256(words.encode()).digest()).decode()

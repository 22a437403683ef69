"""The documents agree with the code: pages that scripts write, links, navigation, and nothing public is left
out."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import isomerge
from docs.markdown import DOCS, ROOT, anchors, links, navigation, pages
from isomerge.errors import guide
from isomerge.symmetry.language.spec_text import parse_spec

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *pages()]


def test_table_of_architectures_is_current() -> None:
    """docs/reference/architectures.md is what its script writes."""
    made = runpy.run_path(str(DOCS / "make_architectures.py"))["page"]()
    assert (DOCS / "reference" / "architectures.md").read_text() == made


def test_reference_is_current() -> None:
    """docs/reference is what its script writes, and has no other page."""
    made = runpy.run_path(str(DOCS / "make_reference.py"))["every_page"]()
    assert set((DOCS / "reference").rglob("*.md")) - {DOCS / "reference" / "architectures.md"} == set(made), (
        "run make docs"
    )
    for file, text in made.items():
        assert file.read_text() == text, f"{file.relative_to(ROOT)} is stale: run make docs"


def test_reference_leaves_nothing_out() -> None:
    """Every public name, command, recipe key and merge method has its place there."""
    from isomerge.cli.program import app
    from isomerge.fusion.registry import methods
    from isomerge.merging.recipe.schema import AlignBlock, Recipe, keys_of

    reference = DOCS / "reference"
    python, recipes = ((reference / f"{name}.md").read_text() for name in ("python", "recipes"))
    assert [n for n in isomerge.__all__ if not re.search(rf"auto\w+:: isomerge\.{n}\n", python)] == []
    commands: Any = typer.main.get_command(app)
    names = list(commands.commands)
    assert len(names) > 5
    assert [n for n in names if not (reference / "commands" / f"{n}.md").is_file()] == []
    keys = [*keys_of(Recipe), *keys_of(AlignBlock)]
    assert [key for key in keys if f"| `{key}` |" not in recipes] == []
    assert set(methods()) <= anchors(reference / "methods.md")


def test_sentences_name_pages_that_readers_have() -> None:
    """Whoever has the wheel has no docs: what is said names pages by the address in the package's metadata, and
    there are such pages."""
    named: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(file.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                assert not re.search(r"docs/\w+", node.value), f"{file}:{node.lineno}: {node.value}"
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "guide":
                named |= {ast.literal_eval(argument) for argument in node.args}
    assert named
    assert all((DOCS / "guide" / f"{page}.md").is_file() for page in named)
    assert re.fullmatch(r"https://\S+/docs/guide/learned\.md", guide("learned"))


def dead_links(page: Path) -> Iterator[str]:
    """The relative links and pictures of a page that do not exist, or whose heading does not."""
    for link in links(page):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield link


def test_local_links_lead_somewhere() -> None:
    """Every relative link and picture of every page exists, and so does the heading that it names."""
    dead = {str(page.relative_to(ROOT)): list(dead_links(page)) for page in PAGES}
    assert len(dead) > 80
    assert {page: wrong for page, wrong in dead.items() if wrong} == {}


def test_wrong_links_are_noticed(tmp_path: Path) -> None:
    """In links, pictures and references, not in code; and headings that a page does not have."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c\n\n## A `b` c\n\n[x](y.md#z) ![p](q.png) [r][s] `[no](link)` [h](#a-b-c) [n](#z)\n\n[s]: t.md\n"
    )
    assert list(links(page)) == ["y.md#z", "q.png", "t.md", "#a-b-c", "#z"]
    assert anchors(page) == {"a-b-c", "a-b-c-1"}
    assert list(dead_links(page)) == ["y.md#z", "q.png", "t.md", "#z"]


def test_every_page_is_in_the_navigation() -> None:
    """Once, below the index."""
    entries = list(navigation(DOCS / "index.md"))
    assert sorted(entries) == [page for page in pages() if page != DOCS / "index.md"]


def test_pictures_have_a_text_alternative() -> None:
    """For who cannot see them; an SVG has title and description of its own."""
    for page in PAGES:
        assert "![](" not in page.read_text(), page
    for picture in (DOCS / "images").glob("*.svg"):
        text = picture.read_text()
        assert "<title" in text
        assert "<desc" in text
        assert "http" not in text.replace("http://www.w3.org/", ""), "pictures load nothing"


def test_example_spec_is_read() -> None:
    """The spec that the tutorial writes is the one beside it, and it is one."""
    config = {
        "model_type": "opt", "hidden_size": 48, "num_attention_heads": 6, "ffn_dim": 40, "vocab_size": 67,
        "word_embed_proj_dim": 48, "activation_function": "relu", "do_layer_norm_before": True,
    }  # fmt: skip
    text = (DOCS / "examples" / "opt.spec").read_text()
    assert text in (DOCS / "guide" / "add-an-architecture.md").read_text()
    spec = parse_spec(text, config, "opt.spec")
    assert {"h", "qk", "ov", "ff"} <= spec.spaces.keys()

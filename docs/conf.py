"""The documentation site: ``make docs`` runs Sphinx on these pages, with every warning an error.

Nothing is loaded from the network when a page is viewed: Furo ships its styles and scripts and uses the system's fonts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform

from isomerge import __version__

HERE = Path(__file__).parent
LOADED = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')

project = "isomerge"
author = "The isomerge authors"
copyright = "the isomerge authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static", "examples", "images"]
# Anchors of headings as code forges make them; pictures and files of the repository that pages link are copied.
myst_heading_anchors = 4

# Docstrings: Google's sections; a single backtick is code, as in Markdown.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["flwr"]
# signatures have the options of groups, which the source does not show
autodoc_preserve_defaults = False
napoleon_use_rtype = False
maximum_signature_line_length = 100

smartquotes = False  # --option is no dash

html_theme = "furo"
html_title = f"isomerge {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False


class RepositoryLinks(SphinxPostTransform):
    """Links that lead somewhere on a code forge and not here: folders of the repository become text, the README the index."""

    default_priority = 8  # before MyST resolves links, at 9

    def run(self, **kwargs: Any) -> None:
        """Replace them."""
        for node in list(self.document.findall(addnodes.pending_xref)):
            target = Path(node["reftarget"])
            if node.get("refdomain") == "doc" and target.name == "README":
                node["reftarget"], node["reftargetid"] = "index", None
            elif node["reftype"] == "myst" and node.get("refdomain") != "doc" and self._is_folder(node, target):
                node.replace_self(nodes.inline("", "", *node.children))

    @staticmethod
    def _is_folder(node: addnodes.pending_xref, target: Path) -> bool:
        """Whether a link leads to a folder of the repository."""
        return (HERE / node.get("refdoc", "")).parent.joinpath(target).is_dir()


def refuse_network(app: Sphinx, failure: Exception | None) -> None:
    """A page that loads something from elsewhere is an error, such as fonts or scripts of a theme's next version.

    Raises:
        ExtensionError: naming the first such page.
    """
    for page in () if failure else sorted(Path(app.outdir).rglob("*.html")):
        found = LOADED.search(page.read_text(encoding="utf-8"))
        if found:
            raise ExtensionError(f"{page}: {found[0]} is loaded from the network")


def setup(app: Sphinx) -> None:
    """Sphinx's entry point."""
    app.add_post_transform(RepositoryLinks)
    app.connect("build-finished", refuse_network)

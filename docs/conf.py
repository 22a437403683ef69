"""The documentation site: ``make docs`` runs Sphinx on these pages, with every warning an error."""

from __future__ import annotations

from isomerge import __version__

project = "isomerge"
author = "The isomerge authors"
copyright = "the isomerge authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static", "examples", "images"]
nitpicky = False

# Markdown as on a code forge: `#anchors` of headings; pictures and links to files of the repository are copied.
myst_heading_anchors = 4
myst_enable_extensions = []

# Docstrings: Google's sections; a single backtick is code, as in Markdown.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["flwr"]
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"isomerge {release}"
html_static_path = ["_static"]
html_show_sourcelink = False
html_copy_source = False

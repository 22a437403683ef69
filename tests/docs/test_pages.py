"""The documents agree with the code: generated pages, links, and the examples they show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from isomerge.archs import spec_texts
from isomerge.symmetry.spec_text import parse_spec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_table_of_architectures_is_current() -> None:
    """docs/architectures.md is what its script writes."""
    made = runpy.run_path(str(ROOT / "docs" / "make_architectures.py"))["page"]()
    assert (ROOT / "docs" / "architectures.md").read_text() == made


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture exists."""
    links = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    local = [t for t in links if t and "://" not in t]
    assert [t for t in local if not (page.parent / t).exists()] == []


def test_example_spec_is_read() -> None:
    """The spec that the tutorial writes is one."""
    config = {
        "model_type": "opt", "hidden_size": 48, "num_attention_heads": 6, "ffn_dim": 40, "vocab_size": 67,
        "word_embed_proj_dim": 48, "activation_function": "relu", "do_layer_norm_before": True,
    }  # fmt: skip
    spec = parse_spec((ROOT / "docs" / "examples" / "opt.spec").read_text(), config, "opt.spec")
    assert {"h", "qk", "ov", "ff"} <= spec.spaces.keys()


def test_readme_names_every_architecture_family() -> None:
    """The list in the README forgets none of the packaged specs."""
    text = (ROOT / "README.md").read_text().lower().replace("-", "").replace(" ", "")
    missing = [kind for kind in spec_texts() if kind.replace("-", "").replace("_", "") not in text]
    assert missing == []

"""The model card of an output: front-matter as the Hub expects, what was done, and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def model_card(title: str, models: Sequence[str], text: str, report: dict[str, Any]) -> str:
    """A README.md.

    Args:
        title: the heading.
        models: the models that went in, the anchor first; those of hub form are listed as base models.
        text: one paragraph on what this checkpoint is.
        report: the run's report.
    """
    hub = [m for m in models if m.count("/") == 1 and not m.startswith((".", "/", "~")) and not Path(m).exists()]
    front = ["---", "library_name: transformers", "tags:", "- isomerge"]
    if report["command"] == "merge":
        front += ["- merge"]
    if hub:
        front += ["base_model:", *(f"- {m.partition('@')[0]}" for m in hub)]
    lines = [*front, "---", "", f"# {title}", "", text, "", "## Models", ""]
    lines += [f"{number}. `{model}`" for number, model in enumerate(models, 1)]
    distance = report["distance"]
    lines += [
        "",
        "## Distance to the first model",
        "",
        "| | before alignment | after |",
        "|---|---|---|",
        f"| all tensors | {distance['before']:.4f} | {distance['after']:.4f} |",
    ]
    lines += [f"| {name} | {d['before']:.4f} | {d['after']:.4f} |" for name, d in distance["spaces"].items()]
    lines += [
        "",
        "Frobenius norms; a row per space covers the tensors that the space acts on, so rows overlap. "
        "`isomerge.json` has the same per layer, `alignment*.safetensors` the elements that were applied.",
        "",
    ]
    return "\n".join(lines)

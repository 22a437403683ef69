"""Write docs/reference/architectures.md from the spec texts: ``python docs/make_architectures.py``."""

from __future__ import annotations

import json
import re
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import isomerge.archs
from isomerge.archs import spec_for, spec_texts
from isomerge.models.tied_tensors import without_broken_ties
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.language.expansion import expanded
from isomerge.symmetry.language.spec import Line, Match, Spec
from isomerge.symmetry.stage import find_shifts, shift_shape
from isomerge.symmetry.units import elements_of

PAGE = Path(__file__).parent / "reference" / "architectures.md"
ARCHS = Path(isomerge.archs.__file__).parent
SOURCES = "../../src/isomerge/archs"
CHECKPOINTS = PAGE.with_name("checkpoints.json")
"""Well-known checkpoints: the sizes in their config.json, the depth of their stacks, and the tensors that they lack."""
SPACE = re.compile(r"(\w+)(?: as (\w+))?: (\w+)(?:\[(.*?)\])?(?: folded (\w+))?$")
HEAD = """# Architectures

*Made from the spec texts in `src/isomerge/archs/` by `python docs/make_architectures.py`; do not edit by hand. A text begins with
what the architecture is, and what stays fixed and why. `isomerge inspect M` shows the same for one checkpoint, with sizes.*

How to read the tables: `GL [l, h]` is one invertible matrix per layer `l` and head `h`. *Roles* are what `--spaces` also
accepts. A *free bias* can be dropped, or moved into an output bias, without changing the function.

What stays fixed, everywhere, and why:

* **the residual stream** (`res` and the gains over it), unless `--spaces all` or `residual` is asked for: one basis for the whole
  network, matched in sweeps over all layers ([residual.md](../lab/residual.md)). *Folded* names the larger group that acts
  once every gain over the stream is folded into its readers or writers;
* **the outside**: vocabulary, positions, pixels and labels mean something to the user, so nothing may reorder them;
* **tensors listed as fixed** touch nothing but these two. They are averaged as they are;
* **parts left fixed**: state spaces, gated convolutions and the like, each named in its spec with a reason. Their side of the residual
  stream follows the stream, their inside stays as it is and is averaged as it is. Every command that aligns names them in
  a warning;
* **anything undeclared**: a tensor that no line describes is refused, never guessed at.
"""

WELL_KNOWN = """## Well-known checkpoints

How many dimensions of their parameters symmetry makes redundant, computed from the sizes in their `config.json`
([checkpoints.json](checkpoints.json)): continuous spaces and free biases of the blocks, and the scales of gains over the streams. What is
matched is under *spaces*; what stays fixed, and why, is in the text of the spec.

| checkpoint | spec | spaces | redundant dimensions | of gains |
| --- | --- | --- | --- | --- |"""


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def dimensions(spec: Spec, layers: dict[str, int], without: list[str]) -> tuple[int, int, int]:
    """The redundant dimensions of block-local spaces, of free biases, and of residual scales, from sizes alone."""
    elements: dict[str, int] = {}
    stored = blocks_of(spec, layers, without)
    for block in stored:
        for key, space in elements_of(spec, block).items():
            count = prod(spec.sizes[i] for i in spec.batch(space))
            elements[key] = count * space.group.dimension(spec.sizes[space.name])
    local = sum(n for key, n in elements.items() if key.partition("[")[0] not in spec.residual_names)
    shifts = sum(prod(shift_shape(spec, shift)) for shift, _, _ in find_shifts(spec, stored))
    return local, shifts, sum(elements.values()) - local


def blocks_of(spec: Spec, layers: dict[str, int], without: list[str]) -> list[Block]:
    """The blocks of a checkpoint of this depth: ``layers`` by what names contain, the last entry for all others."""
    found = {}
    for line in (line for line in spec.lines if not any(_lacks(line, words) for words in without)):
        depth = next(depth for part, depth in layers.items() if part in line.name)
        ranges = [range(spec.sizes.get(i, depth)) for i in line.indices]
        for values in product(*ranges):
            match = Match(line, dict(zip(line.indices, values, strict=True)))
            found[match.canonical] = match
    return gather_blocks(spec, found)


def _lacks(line: Line, words: str) -> bool:
    """Whether a name has all of these words, and none of a tower's when they end in ``$text``."""
    word, _, part = words.partition("$")
    return word in line.name and not (part == "text" and "vision" in line.name)


def known_row(entry: dict[str, Any]) -> str:
    """The line of a well-known checkpoint."""
    spec = spec_for(entry["config"])
    layers, without = entry["layers"], entry.get("without", [])
    present = {name for block in blocks_of(spec, layers, [*without, "lm_head"]) for name in block.canonical}
    spec = without_broken_ties(spec, present, entry["config"])
    local, shifts, scales = dimensions(spec, layers, without)
    spaces = {n: s.group_name for n, s in spec.spaces.items() if n not in spec.residual_names}
    groups = ", ".join(f"{n} {group}" for n, group in spaces.items())
    return row(entry["checkpoint"], spec.origin.replace(".spec", ""), groups, f"{local + shifts:,}", f"{scales:,}")


def table(folder: Path) -> list[str]:
    """The texts of one folder."""
    parts = [
        row("model types", "text", "local spaces", "free biases", "residual stream", "left fixed"),
        row(*["---"] * 6),
    ]
    for file in sorted(folder.glob("*.spec")):
        lines = file.read_text(encoding="utf-8").splitlines()
        models = next(line.split()[1:] for line in lines if line.startswith("model "))
        statements = list(expanded("\n".join(lines), file.name, spec_texts()))
        names = {
            word: list(dict.fromkeys(s.name for s in statements if s.word == word)) for word in ("space", "shift")
        }
        kept = [f"`{s.body.partition(': ')[0].split()[0]}*`" for s in statements if s.word == "fixed"]
        streams = [m for s in statements if s.word == "residual" and (m := SPACE.match(s.body)) and m[3] != "Scale"]
        stream = [f"{m[3]}, folded {m[5]}" if m[5] else m[3] for m in streams]
        text = f"[{file.name}]({SOURCES}/{folder.name}/{file.name})"
        parts.append(row(", ".join(models), text, *map(", ".join, (names["space"], names["shift"], stream, kept))))
    return parts


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for folder in sorted(path for path in ARCHS.iterdir() if any(path.glob("*.spec"))):
        parts += [f"## {folder.name.capitalize()}", "", *table(folder), ""]
    parts += [WELL_KNOWN, *map(known_row, json.loads(CHECKPOINTS.read_text(encoding="utf-8"))), ""]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Write docs/architectures.md from the spec texts: ``python docs/make_architectures.py``."""

from __future__ import annotations

import json
import re
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from isomerge.archs import spec_for, spec_texts
from isomerge.models.ties import without_broken_ties
from isomerge.symmetry.axes import atoms, parse
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.fixed import joined
from isomerge.symmetry.language.spec import Line, Match, Spec
from isomerge.symmetry.language.statements import FixedPart, read_fixed
from isomerge.symmetry.stage import find_shifts, shift_atoms
from isomerge.symmetry.units import elements_of

PAGE = Path(__file__).with_name("architectures.md")
CHECKPOINTS = Path(__file__).with_name("checkpoints.json")
"""Well-known checkpoints: the sizes in their config.json, the depth of their stacks, and the tensors that they lack."""
STATEMENT = re.compile(
    r"(model|space|residual|shift|require|numbered|prefix|size|depth|layers|config|default|include|headed|returns|fixed) +(.*)"
)
INCLUDE = re.compile(r"(\w+)(?: as (\w+))?.*?(?: of (\S+))?(?: without .*)?$")
SPACE = re.compile(r"(\w+)(?: as (\w+))?: (\w+)(?:\[(.*?)\])?(?: folded (\w+))?(?: if (.*))?$")
GROUPS = {
    "Perm": "permutations",
    "GL": "all invertible matrices",
    "Complex": "a complex number per RoPE pair",
    "Scale": "a non-zero factor",
    "PositiveScale": "a positive factor",
    "Sign": "a sign",
    "SignedPerm": "permutations with signs",
    "O": "rotations and reflections",
    "OFixingOnes": "rotations and reflections that keep the vector of ones",
}
HEAD = """# Architectures

*Made from the spec texts in `src/isomerge/archs/` by `python docs/make_architectures.py`; do not edit by hand. The prose of a
section is the first comment of its spec text. `isomerge inspect M` shows the same for one checkpoint, with sizes.*

How to read the tables: `GL [l, h]` is one invertible matrix per layer `l` and head `h`. *Roles* are what `--spaces` also
accepts. A *free bias* can be dropped, or moved into an output bias, without changing the function.

What stays fixed, everywhere, and why:

* **the residual stream** (`res` and the gains over it), unless `--spaces all` or `residual` is asked for: one basis for the whole
  network, matched in sweeps over all layers ([residual.md](residual.md)). *Folded* names the larger group that acts
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
matched is under *spaces*; what stays fixed, and why, is in the section of the spec.

| checkpoint | spec | spaces | redundant dimensions | of gains |
| --- | --- | --- | --- | --- |"""


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def section(origin: str, text: str) -> list[str]:
    """One architecture family."""
    lines = text.splitlines()
    intro = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    prose = " ".join(line.lstrip("# ") for line in lines[:intro])
    said: dict[str, list[str]] = {}
    tensors = []
    for line in (line for line in lines if line and not line.startswith("#")):
        found = STATEMENT.match(line)
        if found:
            said.setdefault(found[1], []).append(found[2])
        else:
            tensors.append(line)
    out = [f"## {', '.join(' '.join(said['model']).split())}", "", f"{prose} (`{origin}`)", ""]
    out += [included_text(said["include"]), ""] if "include" in said else []
    if "space" in said or "shift" in said:
        out += [row("space", "role", "group", "condition"), row("---", "---", "---", "---")]
    moved, taken = set(), set()
    for name, role, group, index, _, condition in (
        SPACE.match(s).groups(default="") for s in said.get("space", ())
    ):
        moved.add(name)
        form = f"`{group}{f' [{index}]' if index else ''}`: {GROUPS[group]}"
        out.append(row(f"`{name}`", role or name, form, f"`{condition}`" if condition else ""))
    for shift in said.get("shift", ()):
        shift, _, condition = shift.partition(" if ")
        name, _, rest = shift.partition(": ")
        bias, _, into = rest.partition(" -> ")
        into = into.partition(" via ")[0]
        taken.add(into)
        how = f"`{bias}`" + (f" into `{into}`" if into else " is free")
        out.append(row(f"`{name}`", "bias", how, f"`{condition}`" if condition else ""))
    out += ["", residual_text(said["residual"]), ""] if "residual" in said else [""]
    out += [returned_text(said["returns"]), ""] if "returns" in said else []
    parts = [read_fixed(statement) for statement in said.get("fixed", ())]
    fixed = []
    for line in (t.partition(" if ")[0] for t in tensors if not t.startswith("?")):
        name, _, pattern = line.partition(" ")
        axes = parse(re.sub(r" (- \d+|infinite)$", "", pattern.partition("=")[0].strip()))
        here = {a.name for a in atoms(axes or ())} | set(re.findall(r"{(\w+)}", name))
        part = any(name.startswith(part.beginnings) for part in parts)
        if axes is not None and name not in taken and not moved & here and not part:
            fixed.append(f"`{name}`")
    out += fixed_text(parts, [t.lstrip("? ").split(" ")[0] for t in tensors])
    out += [f"Fixed tensors: {', '.join([*dict.fromkeys(fixed), 'task heads and poolers'])}.", ""]
    refused = [r.rpartition(" : ")[2] for r in said.get("require", ())]
    out += [f"Refused: {'; '.join(refused)}.", ""] if refused else []
    return out


def returned_text(statements: list[str]) -> str:
    """What classes return beside their predictions, which keeps its basis."""
    found = []
    for names, _, classes in (statement.partition(" if ")[0].partition(" : ") for statement in statements):
        given = ", ".join(f"`{name}`" for name in names.split() if name != "nothing")
        found.append(f"{', '.join(f'`{kind}`' for kind in classes.split())}: {given or 'no stream'}")
    return f"Returned by default, so that it keeps its basis, by {'; by '.join(found)}."


def fixed_text(parts: list[FixedPart], names: list[str]) -> list[str]:
    """The parts that alignment leaves as they are: their tensors, and why; a list with an empty line behind."""
    found = []
    for part in parts:
        here = joined(list(dict.fromkeys(name for name in names if name.startswith(part.beginnings))))
        found.append(f"* `{here}`: {part.reason}.")
    return ["Left fixed, by name:", "", *found, ""] if found else []


def included_text(statements: list[str]) -> str:
    """The specs that a composite takes in."""
    found = []
    for group, name, model in (INCLUDE.match(s).groups() for s in statements):
        what = f"the spec of `{model}`" if model else "the spec of its own `model_type`"
        found.append(f"`{group}`, by {what}" + (f", its names with `{name}_` before them" if name else ""))
    return f"Included: {'; '.join(found)}."


def residual_text(statements: list[str]) -> str:
    """What acts on the streams, and the gains that are folded for it."""
    found = [SPACE.match(s).groups(default="") for s in statements]
    parts = []
    for name, _, group, _, folded, _ in found:
        if group == "Scale":
            continue
        larger = f"; folded `{folded}`: {GROUPS[folded]}" if folded else ""
        parts.append(f"`{name}` `{group}`: {GROUPS[group]}{larger}")
    gains = [f"`{name}`" for name, _, group, *_ in found if group == "Scale"]
    return f"Residual stream: {'. '.join(parts)}." + (f" Gains: {', '.join(gains)}." if gains else "")


def dimensions(spec: Spec, layers: dict[str, int], without: list[str]) -> tuple[int, int, int]:
    """The redundant dimensions of block-local spaces, of free biases, and of residual scales, from sizes alone."""
    elements: dict[str, int] = {}
    stored = blocks_of(spec, layers, without)
    for block in stored:
        for key, space in elements_of(spec, block).items():
            count = prod(spec.sizes[i] for i in spec.batch(space))
            elements[key] = count * space.group.dimension(spec.sizes[space.name])
    local = sum(n for key, n in elements.items() if key.partition("[")[0] not in spec.residual_names)
    shifts = sum(
        prod(spec.sizes[a.name] for a in shift_atoms(spec, shift)) for shift, _, _ in find_shifts(spec, stored)
    )
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


def page() -> str:
    """The whole page."""
    texts = dict(spec_texts().values())
    parts = [
        HEAD,
        row("model types", "local spaces", "free biases", "residual stream", "left fixed"),
        row(*["---"] * 5),
    ]
    for _, text in sorted(texts.items()):
        found = [m for m in map(STATEMENT.match, text.splitlines()) if m]
        names = {
            kind: dict.fromkeys(re.split("[ :]", m[2])[0] for m in found if m[1] == kind)
            for kind in ("space", "shift")
        }
        models = ", ".join(" ".join(m[2] for m in found if m[1] == "model").split())
        kept = ", ".join(f"`{read_fixed(m[2]).beginnings[0]}*`" for m in found if m[1] == "fixed")
        streams = [s for s in (SPACE.match(m[2]) for m in found if m[1] == "residual") if s[3] != "Scale"]
        stream = ", ".join(f"{s[3]}, folded {s[5]}" if s[5] else s[3] for s in streams)
        parts.append(row(models, ", ".join(names["space"]), ", ".join(names["shift"]), stream, kept))
    parts += ["", WELL_KNOWN, *map(known_row, json.loads(CHECKPOINTS.read_text(encoding="utf-8"))), ""]
    for origin, text in sorted(texts.items()):
        parts += section(origin, text)
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

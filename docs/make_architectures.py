"""Write docs/architectures.md from the spec texts: ``python docs/make_architectures.py``."""

from __future__ import annotations

import re
from pathlib import Path

from isomerge.archs import spec_texts
from isomerge.symmetry.axes import atoms, parse

PAGE = Path(__file__).with_name("architectures.md")
STATEMENT = re.compile(r"(model|space|residual|shift|require|prefix|size|config) +(.*)")
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
* **anything undeclared**: a tensor that no line describes is refused, never guessed at.
"""


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
    out += [row("space", "role", "group", "condition"), row("---", "---", "---", "---")]
    moved, taken = set(), set()
    for name, role, group, index, _, condition in (SPACE.match(s).groups(default="") for s in said["space"]):
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
    out += ["", residual_text(said["residual"]), ""]
    fixed = []
    for line in (t.partition(" if ")[0] for t in tensors if not t.startswith("?")):
        name, _, pattern = line.partition(" ")
        axes = parse(pattern.partition("=")[0].strip())
        here = {a.name for a in atoms(axes or ())} | set(re.findall(r"{(\w+)}", name))
        if axes is not None and name not in taken and not moved & here:
            fixed.append(f"`{name}`")
    out += [f"Fixed tensors: {', '.join(dict.fromkeys(fixed))}; task heads and poolers.", ""]
    refused = [r.rpartition(" : ")[2] for r in said.get("require", ())]
    out += [f"Refused: {'; '.join(refused)}.", ""] if refused else []
    return out


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


def page() -> str:
    """The whole page."""
    texts = dict(spec_texts().values())
    parts = [HEAD, row("model types", "local spaces", "free biases", "residual stream"), row(*["---"] * 4)]
    for _, text in sorted(texts.items()):
        found = [m for m in map(STATEMENT.match, text.splitlines()) if m]
        names = {
            kind: dict.fromkeys(re.split("[ :]", m[2])[0] for m in found if m[1] == kind)
            for kind in ("space", "shift")
        }
        models = ", ".join(" ".join(m[2] for m in found if m[1] == "model").split())
        streams = [s for s in (SPACE.match(m[2]) for m in found if m[1] == "residual") if s[3] != "Scale"]
        stream = ", ".join(f"{s[3]}, folded {s[5]}" if s[5] else s[3] for s in streams)
        parts.append(row(models, ", ".join(names["space"]), ", ".join(names["shift"]), stream))
    parts.append("")
    for origin, text in sorted(texts.items()):
        parts += section(origin, text)
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

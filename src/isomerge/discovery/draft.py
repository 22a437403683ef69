"""Drafts: a spec in the making, as data from which the text is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from isomerge.discovery.lines import LineFound

FREE = ("rows", "columns", "depth", "height", "width")
"""What axes are called that nothing is known of: of any length, touched by nothing."""


@dataclass(frozen=True)
class SpaceDraft:
    """A proposed space, in the words of a spec text."""

    name: str
    group: str
    index: tuple[str, ...] = ()
    role: str = ""
    residual: bool = False
    folded: str | None = None

    def text(self) -> str:
        """The statement that declares it."""
        kind = "residual" if self.residual else "space"
        role = f" as {self.role}" if self.role and self.role != self.name else ""
        index = f"[{', '.join(self.index)}]" if self.index else ""
        folded = f" folded {self.folded}" if self.folded else ""
        return f"{kind} {self.name}{role}: {self.group}{index}{folded}"


@dataclass(frozen=True)
class Draft:
    """Lines with the axes known so far, and the spaces and shifts proposed for them."""

    lines: tuple[LineFound, ...]
    model_type: str
    prefix: str = ""
    sizes: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """(line, axis) -> pattern."""
    spaces: Mapping[str, SpaceDraft] = field(default_factory=dict)
    shifts: Mapping[str, str] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    untouched: frozenset[str] = frozenset()
    """Lines that are declared ``*``."""
    buffers: tuple[str, ...] = ()
    """Names of constants that a checkpoint carries beside its weights."""
    comments: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    config: tuple[str, ...] = ()

    def typed(self, axes: Mapping[tuple[str, int], str]) -> Draft:
        """With more axes known."""
        return replace(self, axes={**self.axes, **axes})

    def sized(self, **sizes: str) -> Draft:
        """With more sizes."""
        return replace(self, sizes={**self.sizes, **sizes})

    def with_space(self, *spaces: SpaceDraft) -> Draft:
        """With more spaces, or others of these names."""
        return replace(self, spaces={**self.spaces, **{s.name: s for s in spaces}})

    def free(self, line: LineFound, axis: int) -> bool:
        """Whether nothing is known of an axis."""
        return (line.name, axis) not in self.axes

    def pattern(self, line: LineFound) -> str:
        """The axes of a line as a spec text writes them."""
        rank = len(line.shapes[0])
        known = [self.axes.get((line.name, axis)) for axis in range(rank)]
        if line.name in self.untouched or not line.uniform or not (any(known) or line.expert):
            return "*"
        names: list[str] = list(FREE)
        if line.name in self.optional and rank <= 2:
            names[line.out or 0] = "labels"  # heads of tasks
        return " ".join(pattern or names[min(axis, len(FREE) - 1)] for axis, pattern in enumerate(known))

    def text(self) -> str:
        """The spec text."""
        parts = [*(f"# {comment}" for comment in self.comments), f"model {self.model_type}"]
        parts += [f"prefix {self.prefix}"] if self.prefix else []
        parts += [f"config {' '.join(self.config)}"] if self.config else []
        parts += ["", *(f"size {name} = {value}" for name, value in self.sizes.items())]
        parts += [*self.requires, "", *(space.text() for space in self.spaces.values()), ""]
        parts += [f"shift {name}: {value}" for name, value in self.shifts.items()]
        parts += [""] if self.shifts else []
        names = [("? " if line.name in self.optional else "") + line.name for line in self.lines]
        width = max(map(len, names), default=0)
        for name, line in zip(names, self.lines, strict=True):
            tied = f" = {self.ties[line.name]}" if line.name in self.ties else ""
            parts.append(f"{name:{width}} {self.pattern(line)}{tied}")
        parts += [f"{'? ' + name:{width}} *" for name in self.buffers]
        return "\n".join(parts) + "\n"

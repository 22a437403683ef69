"""Spec texts: an architecture in one line per tensor.

A spec text is data (``--spec FILE`` reads the same format as the files in ``archs/``). Its statements:

==============================================  ==========================================================
``model NAME ...``                              the ``model_type`` values that it describes
``prefix NAME. ...``                            base-model prefixes that tensor names may have or lack
``size NAME = EXPR``                            the size of an index, from the keys of ``config.json``
``require EXPR : MESSAGE``                      refuse configs that the spec does not describe
``config KEY ...``                              keys that must agree between two models to be merged
``space NAME [as ROLE]: GROUP[INDEX] [if E]``   a symmetry; several elements, one per value of the indices
``residual NAME: GROUP[INDEX] [if E]``          a space of the residual stream (not matched block by block)
``residual NAME: GROUP folded GROUP [if E]``    the same, with the larger group that acts once gains are folded
``shift NAME: BIAS [if E]``                     a bias that no output depends on
``shift NAME: BIAS -> OUT via WEIGHT [if E]``   adding d to BIAS and subtracting WEIGHT d from OUT is free
``[?] NAME  AXES [= TIED] [if EXPR]``           one tensor: its on-disk name and its typed axes
==============================================  ==========================================================

In names, ``{l}`` is an index and ``(a|b)`` are alternatives. ``?`` marks tensors that one of two models may lack
(task heads, poolers, buffers); ``= TIED`` names the tensor that stands in when the config ties them. A ``BIAS``
may end in ``#1``: the second block of a concatenation. An index with a ``size`` is an axis; one without (``l``) is
a scope: it numbers the layers.

In axes, ``diag(a n)`` is the diagonal of a matrix from ``a`` to itself: the gain of a norm over a stream ``a``, which the
scale ``n`` can take into the gain's readers (``diag(a n)`` there, ``(a n)'`` here), or a layer scale, which ``n'`` can take
into its writers. Only what is declared so can be folded, and only a folded stream is acted on by its ``folded`` group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import atoms, leaf_atoms, parse
from isomerge.symmetry.expressions import evaluate
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.spec import Line, Shift, Space, Spec

_STATEMENT = re.compile(r"(model|prefix|size|require|config|space|residual|shift)\s+(.*)")
_SPACE = re.compile(
    r"(\w+)(?:\s+as\s+(\w+))?\s*:\s*(\w+)\s*(?:\[([\w\s,]*)\])?\s*(?:folded\s+(\w+))?\s*(?:if\s+(.+))?$"
)
_SHIFT = re.compile(r"(\w+)\s*:\s*(\S+)(?:\s*->\s*(\S+)\s+via\s+(\S+))?\s*(?:if\s+(.+))?$")
_DEFAULT_SIZES = {"Scale": 1, "PositiveScale": 1, "Complex": 2}


def parse_spec(text: str, config: Mapping[str, Any], origin: str = "spec") -> Spec:
    """Read a spec text and bind it to a config.

    Args:
        text: the statements described above.
        config: the parsed ``config.json``.
        origin: what to call the text in messages, such as its file name.

    Raises:
        IsomergeError: a statement is not understood, or the config is not one that the spec describes.
    """
    reader = _Reader(dict(config), origin)
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#(\s.*|$)", "", raw).strip()
        if line:
            try:
                reader.statement(line)
            except IsomergeError as error:
                raise IsomergeError(f"{origin}, line {number}: {error}") from None
    return reader.finish()


class _Reader:
    """Collects the statements of one text."""

    def __init__(self, config: dict[str, Any], origin: str) -> None:
        self.config, self.origin = config, origin
        self.models: list[str] = []
        self.prefixes: list[str] = []
        self.sizes: dict[str, int] = {}
        self.spaces: dict[str, Space] = {}
        self.lines: list[Line] = []
        self.shifts: list[Shift] = []
        self.keys: list[str] = []

    def names(self) -> dict[str, Any]:
        return {**self.config, **self.sizes}

    def holds(self, condition: str | None) -> bool:
        return condition is None or bool(evaluate(condition, self.names()))

    def statement(self, line: str) -> None:
        found = _STATEMENT.match(line)
        if not found:
            return self.tensor(line)
        getattr(self, f"read_{found[1]}")(found[2])
        return None

    def read_model(self, rest: str) -> None:
        self.models += rest.split()

    def read_prefix(self, rest: str) -> None:
        self.prefixes += rest.split()

    def read_config(self, rest: str) -> None:
        self.keys += rest.split()

    def read_size(self, rest: str) -> None:
        name, _, expression = rest.partition("=")
        value = evaluate(expression, self.names())
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise IsomergeError(f"config.json: size {name.strip()} ={expression} is {value!r}, not a whole number")
        self.sizes[name.strip()] = value

    def read_require(self, rest: str) -> None:
        condition, _, message = rest.rpartition(" : ")
        if not evaluate(condition, self.names()):
            raise IsomergeError(f"config.json: {message.strip()}")

    def read_residual(self, rest: str) -> None:
        self.read_space(rest, residual=True)

    def read_space(self, rest: str, residual: bool = False) -> None:
        found = _SPACE.match(rest)
        if not found:
            raise IsomergeError(f"space {rest!r} is not understood: write NAME: GROUP[index, ...]")
        name, role, group, index, folded, condition = found.groups()
        for wanted in filter(None, (group, folded)):
            if wanted not in GROUPS:
                raise IsomergeError(f"space {name}: no group {wanted!r}; there are {', '.join(GROUPS)}")
        self.sizes.setdefault(name, _DEFAULT_SIZES.get(group, 0))
        if self.holds(condition) and group != "Fixed":
            indices = tuple(re.findall(r"\w+", index or ""))
            self.spaces[name] = Space(name, group, indices, role or name, residual, folded)

    def read_shift(self, rest: str) -> None:
        found = _SHIFT.match(rest)
        if not found:
            raise IsomergeError(f"shift {rest!r} is not understood: write NAME: BIAS [-> OUT via WEIGHT]")
        name, bias, into, via, condition = found.groups()
        bias, _, block = bias.partition("#")
        if self.holds(condition):
            self.shifts.append(Shift(name, bias, int(block) if block else None, into, via))

    def tensor(self, line: str) -> None:
        optional = line.startswith("?")
        line, _, condition = line.lstrip("? ").partition(" if ")
        if not self.holds(condition or None):
            return
        name, _, rest = line.partition(" ")
        pattern, _, tied = rest.partition("=")
        self.lines.append(Line(name, parse(pattern.strip()), optional, tied.strip() or None))

    def finish(self) -> Spec:
        missing = [s.name for s in self.spaces.values() if not self.sizes[s.name]]
        if missing:
            raise IsomergeError(f"{self.origin}: space {missing[0]} has no size: add `size {missing[0]} = ...`")
        model = str(self.config.get("model_type") or (self.models or ["model"])[0])
        spec = Spec(
            model,
            tuple(self.prefixes),
            self.sizes,
            self.spaces,
            tuple(self.lines),
            tuple(self.shifts),
            tuple(self.keys),
            self.origin,
        )
        check_legality(spec)
        return spec


def check_legality(spec: Spec) -> None:
    """Refuse declarations that nothing executes or that cannot act.

    Raises:
        IsomergeError: a space that no line uses, an index that a line does not offer or offers twice, a shift of
            unknown lines.
    """
    used: set[str] = set()
    for line in spec.lines:
        here = {a.name for a in atoms(line.axes or ())} | set(line.indices)
        for name in sorted(here & spec.spaces.keys()):
            used.add(name)
            lacking = [i for i in spec.spaces[name].index if i not in here and i not in line.indices]
            if lacking:
                raise IsomergeError(
                    f"{spec.origin}: line {line.name} uses space {name}, but has no index {lacking[0]}"
                )
        for leaf in leaf_atoms(line.axes or ()):
            names = [a.name for a in leaf]
            for name in (n for n in names if n in spec.spaces):
                if twice := [i for i in spec.spaces[name].index if names.count(i) > 1]:
                    raise IsomergeError(
                        f"{spec.origin}: line {line.name} has {twice[0]} twice, so that it is not clear which of "
                        f"them {name} lies over: leave {name} out of this line, and of all others"
                    )
    if unused := [name for name in spec.spaces if name not in used]:
        raise IsomergeError(f"{spec.origin}: space {unused[0]} is declared, but no line uses it")
    names = {line.name for line in spec.lines}
    for shift in spec.shifts:
        for part in (shift.bias, shift.into, shift.via):
            if part is not None and part not in names:
                raise IsomergeError(f"{spec.origin}: shift {shift.name} names {part}, which is no line of the spec")

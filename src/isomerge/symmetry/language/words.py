"""The words of the language: a declaration of each. What they mean: ``docs/lab/spec-language.md``.

A word is declared here: how its statements are written and taken apart, what they are about, and what reads them into which
field of a spec. The types of that field and of the records in it say how names change where the model is a part of another
(`isomerge.symmetry.language.names`). What has no reader here decides what later statements come to, or says several things:
``read_WORD`` of `isomerge.symmetry.language.spec_text`, or that of texts that are like others (`expansion`), reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.names import Groups, Reading
from isomerge.symmetry.language.statements import (
    MAP,
    read_basis,
    read_biased,
    read_carry,
    read_centred,
    read_fixed,
    read_length,
    read_probe,
    read_reached,
    read_returned,
    read_unheard,
)

BEHIND_PADDING = "behind padding"
NOTHING, NAMED, STREAM = "", "name", "stream"
"""What statements are about: nothing that has a name; what they begin with; a stream, under some condition."""
_NAME = r"(\w+)\s*:\s*"
_ALONG = r"(?:\s+along\s+(\w+)(?:\[(\S*?):(\S*?)\])?)?"


@dataclass(frozen=True)
class Word:
    """A word with which statements begin."""

    name: str
    form: str
    """How what follows it is written."""
    pattern: str = "(.*)$"
    """The same, as a regular expression."""
    field: str = ""
    """Of a spec, which keeps what is read."""
    read: Callable[[Groups, Reading], object] | None = None
    """What the field keeps of what the pattern took apart; a list of such; None where it is not understood."""
    about: str = NAMED
    conditional: bool = True
    """Whether ``if E`` may end it."""

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def apart(self, rest: str) -> Groups:
        """What follows the word, taken apart.

        Raises:
            IsomergeError: it is not understood.
        """
        if (match := self._compiled.match(rest)) is None:
            raise self.refused(rest)
        return match.groups()

    def said(self, rest: str, text: Reading) -> list[object] | None:
        """What the field keeps of a statement; None where `spec_text` reads it. Raises as `apart` does."""
        if self.read is None:
            return None
        if (read := self.read(self.apart(rest), text)) is None:
            raise self.refused(rest)
        return read if isinstance(read, list) else [read]

    def refused(self, rest: str) -> IsomergeError:
        """The error of what is not understood."""
        return IsomergeError(f"{self.name} {rest!r} is not understood: write {self.form}")


def _names(groups: Groups, text: Reading) -> list[str]:
    return groups[0].split()


def _stacks(groups: Groups, text: Reading) -> tuple[str, ...]:
    return tuple(groups[0].split())


_DECLARED = (
    Word("model", "NAME ...", field="models", read=_names, about=NOTHING, conditional=False),
    Word("prefix", "NAME. ...", about=NOTHING, conditional=False),
    Word("size", "NAME = EXPR"),
    Word(
        "layers", "NAME = FIRST..LAST [where E]", r"([A-Za-z_]\w*)\s*=\s*(.+?)\.\.(.+?)(?:\s+where\s+(.+))?$"),
    Word("depth", "STACK = EXPR, or STACK = EXPR .. EXPR", "(.*?)=(.*)$"),
    Word("require", "EXPR : MESSAGE", about=NOTHING, conditional=False),
    Word("numbered", "EXPR : REASON", about=NOTHING, conditional=False),
    Word("config", "KEY ...", field="config_keys", read=_names, about=NOTHING, conditional=False),
    Word("default", "KEY = EXPR", "(.*?)=(.*)$"),
    Word(
        "include", "GROUP [as NAME] [at PREFIX] [of MODEL] [with KEY=EXPR, ...] [without SPACE ...] [if E]",
        r"(\w+)(\s+or\s+whole)?(?:\s+as\s+(\w+))?(?:\s+at\s+(\S+))?(?:\s+of\s+(\S+))?(?:\s+with\s+(\w+=.+?))?"
        r"(?:\s+without\s+(\w+(?:\s+\w+)*))?$"),
    Word(
        "space", "NAME: GROUP[index, ...]",
        r"(\w+)(?:\s+as\s+(\w+))?\s*:\s*(\w+)\s*(?:\[([\w\s,]*)\])?\s*(?:folded\s+(\w+))?$"),
    Word("residual", "NAME: GROUP[index, ...]"),
    Word(
        "shift", "NAME: BIAS [along AXIS] [-> OUT via WEIGHT | -> OUT [along AXIS]]",
        rf"{_NAME}(\S+){_ALONG}(?:\s*->\s*(\S+)(?:\s+via\s+([^\s#]+(?:#\d+(?:,\d+)*)?)|{_ALONG}))?"
        r"(?:\s+with\s+(\S+))?(?:\s+against\s+(\S+))?$"),
    Word(
        "carry",
        "NAME: LINE [along AXIS] -> [FACTOR] LINE [along AXIS] [over AXIS[a:b]] [at LAYERS] [via WEIGHT], ...",
        rf"{_NAME}(.+?)\s*->\s*(.+)$", "carries", read_carry),
    Word(
        "probe", "NAME: PROBE through WEIGHT#PART by BIAS#PART -> KEY#PART by BIAS#PART along AXIS",
        rf"{_NAME}(\S+)\s+through\s+{MAP}\s*->\s*{MAP}\s+along\s+(\w+)$", "probes", read_probe),
    Word(
        "reached", "NAME: BIAS over MAP [behind GAIN] [then NORM] -> WEIGHT by BIAS, ...",
        rf"{_NAME}(\S+)\s+over\s+(\S+)(?:\s+behind\s+(\S+))?(?:\s+then\s+(\S+))?\s*->\s*(.+)$",
        "reaches", read_reached),
    Word(
        "unheard", "NAME: WEIGHT by BIAS [behind GAIN] through OUT",
        rf"{_NAME}{MAP}(?:\s+behind\s+(\S+))?\s+through\s+(\S+)$", "mutes", read_unheard),
    Word(
        "basis", "NAME: TABLE along AXIS -> WEIGHT, ...", rf"{_NAME}(\S+)\s+along\s+(\w+)\s*->\s*(\S.*)$",
        "bases", read_basis),
    Word(
        "centred", "NAME: LINE#PART,PART, ... over AXIS ...", rf"{_NAME}(\S.*?)\s+over\s+(\w[\w\s]*)$",
        "head_norms", read_centred),
    Word(
        "length", "NAME: WEIGHT by LENGTHS along AXIS, or NAME: WEIGHT above LEAST",
        rf"{_NAME}(\S+)\s+(?:by\s+(\S+)\s+along\s+(\w+)|above\s+([\d.]+(?:e-?\d+)?))$", "lengths", read_length),
    Word(
        "biased", "WEIGHT#PART by BIAS, or WEIGHT by BIAS ...", r"([^\s#]+)(?:#(\d+))?\s+by\s+(\S.*)$",
        "biased", read_biased, NOTHING),
    Word("together", "STACK STACK ...", field="together", read=_stacks, about=NOTHING),
    Word("prenorm", "STREAM [plain] [returned]", about=STREAM),
    Word("postnorm", "STREAM [again]", about=STREAM),
    Word("headed", "CLASS ...", field="headed", read=_names, about=NOTHING, conditional=False),
    Word(
        "returns", "`returns SPACE ... : CLASS ...`, or `returns nothing : CLASS ...`",
        r"([\w\s]+?)\s*:\s*([\w*?\s]+)$", "returned", read_returned, NOTHING),
    Word("fixed", "NAME ... : REASON", field="fixed", read=read_fixed, about=NOTHING),
    Word("tied", "REASON", about=NOTHING, conditional=False),
    Word("positions", f"`positions {BEHIND_PADDING}`", f"{BEHIND_PADDING}$", about=NOTHING, conditional=False),
    Word("like", "MODEL", about=NOTHING, conditional=False),
    Word("drop", "NAME ..., or WORD NAME ..., or WORD", about=NOTHING, conditional=False),
    Word("after", "NAME", about=NOTHING, conditional=False),
)  # fmt: skip
WORDS = {word.name: word for word in _DECLARED}
"""With what a statement may begin; every other one describes a tensor."""

"""Spec texts: an architecture in one line per tensor.

A spec text is data (``--spec FILE`` reads the same format as the files in ``archs/``). Its statements begin with a word
(`isomerge.symmetry.language.words`), or are of one tensor, ``[?] NAME  AXES [= TIED] [if EXPR]``: its on-disk name and its
typed axes. What each says is written in ``docs/lab/spec-language.md``.

In names, ``{l}`` is an index, ``{a,b}`` one number that factors (``a`` slow, ``b`` fast; both are axes), ``{l:E}``
and ``{l!E}`` a number that must or must not be (in) E (``E..E``: from one up to another), ``{l:E,r}`` one of the
layers that r lists, which are an axis of layer E, and ``(a|b)`` are alternatives (see
`isomerge.symmetry.language.names`). ``?`` marks tensors that one of two models may lack (task heads, poolers,
buffers); ``= TIED`` names the tensor that stands in when the config ties them. A ``BIAS`` may end in ``#1``: the
second block of a concatenation. An index with a ``size`` is an axis; one without (``l``) is a scope: it numbers the
layers.

``include`` is for models that are made of others (see `isomerge.symmetry.language.inclusion`).

In axes, ``diag(a n)`` is the diagonal of a matrix from ``a`` to itself: the gain of a norm over a stream ``a``,
which the scale ``n`` can take into the gain's readers (``diag(a n)`` there, ``(a n)'`` here), or a layer scale,
which ``n'`` can take into its writers. Only what is declared so can be folded, and only a folded stream is acted on
by its ``folded`` group. ``diag(a n) - 1`` is a gain that is stored less one (``w`` where the norm multiplies by ``1
+ w``). ``* infinite`` is a tensor whose infinities are meant: everywhere else they are damage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Annotated, Any, get_origin, get_type_hints

from isomerge.errors import IsomergeError
from isomerge.records import Json
from isomerge.symmetry.axes import atoms, parse
from isomerge.symmetry.groups import GROUPS, SCALES
from isomerge.symmetry.language.expansion import LINE, Statement, Texts, expanded, family_of
from isomerge.symmetry.language.expressions import evaluate
from isomerge.symmetry.language.inclusion import check_apart, included, read_inclusion
from isomerge.symmetry.language.names import MOST_LAYERS, bound, chosen, first_alternatives, read_layers
from isomerge.symmetry.language.spec import BESIDE, Line, Shift, Space, Spec
from isomerge.symmetry.language.statements import Rows
from isomerge.symmetry.language.words import WORDS
from isomerge.symmetry.legality import check_legality
from isomerge.symmetry.returned import task_of, without_returned

_INFINITE = " infinite"
RETURNED, PLAIN, WITHIN, AGAIN, RAW = " returned", " plain", " within", " again", " raw"
_OFFSET = re.compile(r"(.*[)\]]'?)\s+-\s*(\d+)$")
_OF_PARTS = tuple(n for n, t in get_type_hints(Spec, include_extras=True).items() if get_origin(t) is not Annotated)
"""What a spec knows that it has of its parts as well."""
_NOTHING_SAID = Spec("", (), {}, {}, ())
_DEFAULT_SIZES = {**dict.fromkeys(SCALES, 1), "Complex": 2, "Turn": 2}


def parse_spec(
    text: str,
    config: Mapping[str, Any],
    origin: str = "spec",
    texts: Texts | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Spec:
    """Read a spec text and bind it to a config.

    Args:
        text: statements, a line each.
        config: the parsed ``config.json``.
        origin: what to call the text in messages, such as its file name.
        texts: the specs that it may include, by ``model_type``.
        shapes: of the stored tensors, by name, which expressions know as ``tensors`` (by their names without a
            prefix).

    Raises:
        IsomergeError: a statement is not understood, or the config is not one that the spec describes.
    """
    reader = _Reader(dict(config), origin, texts or {}, shapes or {})
    reader.families.append(family_of(text, origin, texts or {}))
    for statement in expanded(text, origin, texts or {}):
        try:
            reader.place = statement.place
            reader.statement(statement)
        except IsomergeError as error:
            raise IsomergeError(f"{statement.place}: {error}") from None
    return reader.finish()


class _Reader:
    """Collects the statements of one text."""

    def __init__(self, config: Json, origin: str, texts: Texts, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.config, self.origin, self.texts, self.shapes = config, origin, texts, shapes
        self.tensors = dict(shapes)
        self.place = origin
        self.parts: list[str] = []
        self.families: list[str] = []
        self.layers: dict[str, tuple[int, ...]] = {}
        self.read_behind_norms: set[str] = set()
        """Streams of which this text says itself that norms stand before what reads them."""
        self.theirs: list[tuple[str, set[str], set[Line]]] = []
        """Streams of parts, the part's gains and its lines."""
        empty = {field.name: getattr(_NOTHING_SAID, field.name) for field in fields(Spec)}
        self.said: Json = {name: list(x) if isinstance(x, tuple) else copy(x) for name, x in empty.items()}
        """The fields of the spec; those that are tuples are lists."""
        self.said["models"] = []  # of which a spec keeps one
        self.sizes: dict[str, int] = self.said["sizes"]
        self.spaces: dict[str, Space] = self.said["spaces"]
        self.lines: list[Line] = self.said["lines"]

    def names(self) -> Json:
        known = {**self.config, **self.sizes, **self.layers, "tensors": self.tensors}
        return {**known, "task": None if "whole" in self.config else task_of(self.config)}

    def value(self, expression: str, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
        return evaluate(expression, {**self.names(), **more})

    def holds(self, condition: str | None) -> bool:
        return condition is None or bool(self.value(condition))

    def statement(self, statement: Statement) -> None:
        if statement.word == LINE:
            self.check_statement(statement.body.split()[0])
        if statement.word in ("space", "residual"):  # an axis even where nothing acts on it
            self.read_space(statement)
        elif self.holds(statement.condition):
            word = WORDS.get(statement.word)
            if word is None or (said := word.said(statement.body, self)) is None:
                getattr(self, f"read_{statement.word}")(statement.body)
            else:
                self.said[word.field] += said

    def check_statement(self, word: str) -> None:
        """Refuse a first word that is a statement misspelt: a plain word that no stored tensor is called by."""
        if not word.isalpha() or word in self.tensors:
            return
        near = get_close_matches(word, WORDS, 1)
        if near:
            raise IsomergeError(f"no statement {word!r}; did you mean `{near[0]}`?")
        if self.shapes:
            raise IsomergeError(
                f"{word!r} is no statement ({', '.join(WORDS)}), and no tensor of the checkpoint is called so: "
                "correct it, or put `? ` before the name of a tensor that may be missing"
            )

    def read_prefix(self, rest: str) -> None:
        self.said["prefixes"] += rest.split()
        for prefix in self.said["prefixes"]:
            self.tensors |= {n.removeprefix(prefix): s for n, s in self.shapes.items() if n.startswith(prefix)}

    def read_default(self, rest: str) -> None:
        name, expression = WORDS["default"].apart(rest)
        if self.config.get(name.strip()) is None:
            self.config[name.strip()] = self.value(expression)

    def read_include(self, rest: str) -> None:
        """Everything that the included spec declares, under the names that it has here."""
        inclusion = read_inclusion(rest)
        config = inclusion.config(self.config, self.value)
        name, text = inclusion.text(config, self.texts)
        part = included(inclusion, parse_spec(text, config, name, self.texts, inclusion.stored(self.tensors)))
        check_apart(inclusion, part, self.sizes)
        if inclusion.name is None and "vocab" in part.sizes:
            self.said["language"] = inclusion.at, {key: value for key, value in config.items() if key != "whole"}
        self.parts.append(part.origin)
        self.families.append(part.family)
        for name in _OF_PARTS:
            mine, theirs = self.said[name], getattr(part, name)
            mine.update(theirs) if isinstance(mine, dict) else mine.extend(theirs)
        if inclusion.stands_in(self.config):
            # what transformers reads may be flat as well (DPT), or have the group (Qwen2-VL)
            self.said["config_keys"] += (key.removeprefix(f"{inclusion.group}.") for key in part.config_keys)
        self.theirs += [(stream, {*part.gains}, {*part.lines}) for stream in part.streams]

    def read_size(self, rest: str) -> None:
        name, _, expression = rest.partition("=")
        value = self.value(expression)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise IsomergeError(f"config.json: size {name.strip()} ={expression} is {value!r}, not a whole number")
        self.sizes[name.strip()] = value

    def read_depth(self, rest: str) -> None:
        stack, expression = WORDS["depth"].apart(rest)
        least, upto, most = expression.partition(" .. ")
        first = self.value(least)
        if first is None:
            return  # the config leaves it to the library that loads the model
        last = self.value(most) if upto and type(first) is int else first
        for text, value in ((least, first), (most, last)):
            if type(value) is not int or not 0 <= value <= MOST_LAYERS:
                raise IsomergeError(f"config.json: {text.strip()} is {value!r:.80}, not a number of layers")
        self.said["depths"][stack.strip()] = (first, last)

    def read_layers(self, rest: str) -> None:
        name, layers = read_layers(WORDS["layers"].apart(rest), self)
        self.layers[name], self.sizes[name] = layers, len(layers)

    def read_require(self, rest: str) -> None:
        condition, _, message = rest.rpartition(" : ")
        if not self.value(condition):
            raise IsomergeError(f"config.json: {message.strip()}")

    def read_numbered(self, rest: str) -> None:
        expression, _, reason = rest.rpartition(" : ")
        depth = max((most for _, most in self.said["depths"].values()), default=0)
        self.said["numbered"][reason.strip()] = [self.value(expression, {"l": layer}) for layer in range(depth)]

    def read_space(self, statement: Statement) -> None:
        name, role, group, index, folded = WORDS["space"].apart(statement.body)
        for wanted in filter(None, (group, folded)):
            if wanted not in GROUPS:
                raise IsomergeError(f"space {name}: no group {wanted!r}; there are {', '.join(GROUPS)}")
        self.sizes.setdefault(name, _DEFAULT_SIZES.get(group, 0))
        # of a stream that nothing turns, the text names the norms alone
        still = group == "Fixed" and statement.word != "residual"
        if self.holds(statement.condition) and not still:
            indices = tuple(re.findall(r"\w+", index or ""))
            self.spaces[name] = Space(name, group, indices, role or name, statement.word == "residual", folded)

    def read_by_the_whole(self) -> list[str]:
        """The streams of parts that a line of the whole reads, or norms, without a gain of the part, and of which the
        whole does not say that this is through the part's last norm (``prenorm STREAM``)."""
        streams = []
        for stream, gains, lines in (part for part in self.theirs if part[0] not in self.read_behind_norms):
            axes = [axis for line in self.lines if line not in lines for axis in line.axes or ()]
            leaves = [[*atoms((axis,))] for axis in axes]
            met = [leaf for leaf in leaves if any(a.name == stream and (a.dual or a.diag) for a in leaf)]
            if any(gains.isdisjoint(a.name for a in leaf) for leaf in met):
                streams.append(stream)
        return streams

    def read_shift(self, rest: str) -> None:
        name, bias, along, first, last, into, via, into_along, *ends = WORDS["shift"].apart(rest)
        into_first, into_last, *more = ends
        rows, into_rows = self.rows(first, last), self.rows(into_first, into_last)
        bias, _, block = bias.partition("#")
        into, _, into_block = (into or "").partition("#")
        via, _, reads = (via or "").partition("#")
        names = (part and self.named(part) for part in (bias, into, via or None, *more))
        bias, into, via, beside, against = names
        assert bias is not None
        block, into_block = (int(number) if number else None for number in (block, into_block))
        trade = (into_block, into_along, rows, into_rows, against)
        parts = tuple(map(int, reads.split(","))) if reads else (0,)
        shift = Shift(name, bias, block, into or None, via, along, *trade, parts, beside)
        self.said["shifts" if against is None else "tied_trades"].append(shift)

    def named(self, name: str) -> str:
        """The name of a line with its layers written into it."""
        return chosen(name, self.value, self.layers)

    def rows(self, first: str | None, last: str | None) -> Rows | None:
        """The rows between two expressions; an empty one is the end."""
        return None if first is None else (int(self.value(first or "0")), int(self.value(last)) if last else None)

    def read_prenorm(self, rest: str) -> None:
        rest = self.asides(rest)
        if rest.endswith(RAW):
            self.said["seen_raw"].append(self.stream("prenorm", rest.removesuffix(RAW)))
            return
        words = rest.removesuffix(RETURNED).removesuffix(WITHIN)
        name = self.stream("prenorm", words.removesuffix(PLAIN))
        self.read_behind_norms.add(name)
        self.said["prenorm"].append(name)
        self.said["plain"] += [name] if words.endswith(PLAIN) else []
        self.said["within"] += [name] if rest.endswith(WITHIN) else []
        self.said["normed_out"] += [name] if rest.endswith(RETURNED) else []

    def read_postnorm(self, rest: str) -> None:
        rest = self.asides(rest)
        name = self.stream("postnorm", rest.removesuffix(AGAIN))
        self.said["postnorm"].append(name)
        self.said["again"] += [name] if rest.endswith(AGAIN) else []

    def asides(self, rest: str) -> str:
        """Keep what lines a statement of norms says are no common ones, and give the rest of it."""
        stream = rest.partition(" ")[0]
        for word in BESIDE:
            rest, _, names = rest.partition(f" {word} ")
            if misplaced := {*names.split()} & {*BESIDE}:
                order = ", ".join(f"`{each}`" for each in reversed(BESIDE))
                raise IsomergeError(f"{misplaced.pop()!r} stands behind {word!r}: write {order} in this order")
            self.said["beside"] += [(stream, word, self.named(name)) for name in names.split()]
        return rest

    def stream(self, word: str, name: str) -> str:
        space = self.spaces.get(name)
        if space is None or not (space.residual or (word == "prenorm" and space.folded)):
            raise IsomergeError(
                f"{word} {name!r} is not understood: name a residual stream that is declared before, or behind "
                f"prenorm a latent that folds"
            )
        return name

    def read_positions(self, rest: str) -> None:
        WORDS["positions"].apart(rest)

    def read_tied(self, rest: str) -> None:
        self.said["tied"] = rest

    def read_line(self, line: str) -> None:
        optional = line.startswith("?")
        name, _, rest = line.lstrip("? ").partition(" ")
        pattern, _, tied = rest.partition("=")
        finite = pattern.strip().removesuffix(_INFINITE)
        infinite = finite != pattern.strip()
        less = _OFFSET.match(finite)
        axes = parse(less[1] if less else finite)
        offset = int(less[2]) if less else 0
        name = bound(name, self.value, self.sizes, self.layers)
        self.lines.append(
            Line(name, axes, optional, first_alternatives(tied.strip()) or None, offset, infinite, self.place)
        )

    def finish(self) -> Spec:
        missing = [s.name for s in self.spaces.values() if not self.sizes[s.name]]
        if missing:
            raise IsomergeError(f"{self.origin}: space {missing[0]} has no size: add `size {missing[0]} = ...`")
        models = [*self.said["models"], "model"]
        self.said["seen_raw"] += self.read_by_the_whole()
        said = {field.name: self.said[field.name] for field in fields(Spec)}
        said |= {name: tuple(values) for name, values in said.items() if isinstance(values, list)}
        model = str(self.config.get("model_type") or models[0])
        origin = f"{self.origin} with {', '.join(dict.fromkeys(self.parts))}" if self.parts else self.origin
        family = " with ".join(self.families)
        spec = Spec(**{**said, "model_type": model, "origin": origin, "family": family})
        check_legality(spec)
        return spec if "whole" in self.config else without_returned(spec, self.config)

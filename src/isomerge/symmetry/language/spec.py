"""Specs: what every tensor of an architecture is, bound to one config.

A spec is made by reading a text (`isomerge.symmetry.language.spec_text`); this file says what it knows: spaces,
lines, shifts, sizes, and how a checkpoint's tensors are matched to its lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Annotated, Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom, Axis, TypedAxes, atoms, shape, show
from isomerge.symmetry.element_key import SHIFT, ElementKey
from isomerge.symmetry.groups import GROUPS, Group
from isomerge.symmetry.language.names import (
    Alone,
    IndexName,
    KeyName,
    LineName,
    Number,
    OwnName,
    Reason,
    SpaceName,
    expression,
    filled,
    numbers,
)
from isomerge.symmetry.language.statements import (
    Carry,
    FixedPart,
    HeadNorm,
    Length,
    Mute,
    Probe,
    Reach,
    Returned,
    Rows,
    TableBasis,
)

# What a group may be restricted to (--spaces res:Perm).
SUBGROUPS = {"SignedPerm": ("Perm", "Sign"), "O": ("Perm", "SignedPerm"), "OFixingOnes": ("Perm",), "GL": ("O",)}

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""What torch puts before the names of a model that it was wrapped around: to run it on several devices, or
compiled."""


@dataclass(frozen=True)
class Space:
    """One symmetry: a group and the indices that number its elements."""

    name: OwnName
    group_name: str
    index: tuple[IndexName, ...] = ()
    role: str = ""
    residual: bool = False
    folded: str | None = None
    """The larger group that acts once every gain over this space is folded."""

    @property
    def group(self) -> Group:
        """The group that acts."""
        return GROUPS[self.group_name]

    @property
    def is_folded(self) -> bool:
        """Whether the larger group acts."""
        return self.group_name == self.folded

    @property
    def keeps_lengths(self) -> bool:
        """Whether every element of the group is an isometry, so that nothing of it is left to be balanced."""
        return self.group.compact == self.group_name != "Complex"

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of all groups that may act: the declared one, its subgroups, and the one after folding."""
        declared = [self.group_name, *([self.folded] if self.folded else [])]
        known = dict.fromkeys(g for name in declared for g in (*SUBGROUPS.get(name, ()), name))
        return tuple(known)


@dataclass(frozen=True)
class Line(TypedAxes):
    """One tensor line: a name pattern and its axes (None: any shape, untouched)."""

    name: LineName
    axes: tuple[Annotated[Axis, "axis"], ...] | None
    optional: bool = False
    tied: Annotated[str, "tied"] | None = None
    """The canonical name of the tensor that stands in when the config ties the two."""
    less: int = 0
    """What is stored is the tensor that the axes describe less this: 1 for gains of norms that multiply by 1 +
    w."""
    infinite: bool = False
    """Whether infinities are meant, as where bounds say that nothing is clipped."""
    place: str = field(default="", compare=False, repr=False)
    """The file and the number of the line."""

    @property
    def shown(self) -> str:
        """The axes as they are written in a text."""
        return " ".join(map(show, self.axes or ())) or "*"

    @property
    def stack(self) -> str:
        """What the name begins with, up to its first number: equal for the lines of one stack of layers."""
        return self.name.partition("{")[0]

    @cached_property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers of the name, in order."""
        return tuple(numbers(self.name))

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """The indices bound by the name, in order."""
        return tuple(index for number in self.numbers for index in number.indices)

    def axis_over(self, name: str) -> int | None:
        """The axis of this name that is no part of another; None where there is none."""
        named = (k for k, axis in enumerate(self.axes or ()) if isinstance(axis, Atom) and axis.name == name)
        return next(named, None)

    def canonical(self, binding: Mapping[str, int]) -> str:
        """The name without prefix, first alternatives taken: equal for two checkpoints' same tensor."""
        return filled(self.name, binding)

    def binding(self, values: Mapping[str, int]) -> dict[str, int]:
        """The indices from the numbers that stand in a name."""
        return {k: v for number in self.numbers for k, v in number.binding(values[number.index]).items()}


BESIDE = ("tiled", "padded", "seen", "sliced", "without", "except", "across")
"""What statements of norms say of some lines, the last word first.

- ``tiled``: a convolution whose windows tile what a norm gives: none of them meets a zero or leaves anything out;
- ``padded``: it reads what a norm gives filled up with zeros: of these it gives its bias alone, which pays for nothing;
- ``seen``: without the stream's axes, it reads what a norm gives: slices of it, or one coordinate each;
- ``sliced``: without the stream's axes, a map in groups: the rows of each read their slice of a norm;
- ``without``: it has the axes of a stream, and nothing to do with its norms;
- ``except``: it is none of those that write before norms alone, or read a norm and nothing else;
- ``across``: it reads what the stack of layers before its own gives.
"""


@dataclass(frozen=True)
class Shift:
    """An additive gauge; ``bias``, ``into`` and ``via`` are line names.

    With ``along`` what is free of ``bias`` is not the whole tensor, but a constant along that axis: softmax ignores
    what is added to all that it compares, and a bias pays for what a weight makes of a constant of a table that it
    reads. Without ``via``, what ``bias`` has more ``into`` has less: both are added to one stream, such as two tables
    of embeddings, each by a constant along its own axis, or along some rows of it (a class token is added to the first
    position alone).
    """

    name: OwnName
    bias: LineName
    block: int | None = None
    into: LineName | None = None
    via: LineName | None = None
    along: OwnName | None = None
    into_block: int | None = None
    into_along: OwnName | None = None
    rows: Rows | None = None
    into_rows: Rows | None = None
    against: LineName | None = None
    """Of a table that is the head as well: the gain of the norm that the head reads. Then only what lies along the
    reciprocals of its gains is free, and the head's bias pays."""

    reads: tuple[int, ...] = (0,)
    """The parts of the concatenation that ``via`` reads, where it reads it several times."""
    beside: LineName | None = None
    """What takes the place of ``bias`` now and then, such as a token for patches that are masked or the values of
    tokens that see all, and so has as much more as it has."""

    @property
    def trades(self) -> bool:
        """Whether two tensors trade a constant."""
        return self.into is not None and self.via is None

    @property
    def ends(self) -> set[str | None]:
        """The names of what it changes."""
        return {self.bias, self.into, self.beside}

    @property
    def constant(self) -> bool:
        """Whether what is free is a constant, along an axis or between two tensors, and not a bias by itself."""
        return self.along is not None or self.trades

    def swapped(self) -> Shift:
        """A trade, from the other tensor's side."""
        other = replace(self, into=self.bias, into_block=self.block, into_along=self.along, into_rows=self.rows)
        return replace(
            other, bias=self.into or "", block=self.into_block, along=self.into_along, rows=self.into_rows
        )


@dataclass(frozen=True)
class Match:
    """A tensor name, recognised."""

    line: Line
    binding: dict[str, int]

    @property
    def canonical(self) -> str:
        """See `Line.canonical`."""
        return self.line.canonical(self.binding)


@lru_cache(1 << 15)  # the lines of many architectures: `re` itself keeps a few hundred
def _compiled(prefix: str, name: str) -> re.Pattern[str]:
    """What the names of a bound line's tensors match."""
    return re.compile(f"^{prefix}{expression(name)}$")


@dataclass(frozen=True)
class Spec:
    """A spec bound to a config: every size is a number, every condition is decided.

    The types of its fields say of what strings are the names, and so what they become where a model of which this one is a
    part includes it (`isomerge.symmetry.language.inclusion`).
    """

    model_type: Alone[str]
    prefixes: Alone[tuple[str, ...]]
    sizes: dict[OwnName, int]
    spaces: dict[SpaceName, Space]
    lines: tuple[Line, ...]
    shifts: tuple[Shift, ...] = ()
    config_keys: tuple[KeyName, ...] = ()
    origin: Alone[str] = "spec"
    family: Alone[str] = ""
    """The text that this one is like, and those of its parts: models of one family can be brought together (see
    `kin`)."""
    fixed: tuple[FixedPart, ...] = ()
    """The parts that alignment leaves as they are, and why."""
    depths: dict[LineName, tuple[int, int]] = field(default_factory=dict)
    """The least and the most layers of stacks (see `Line.stack`), where the config says them."""
    numbered: dict[Reason, list[object]] = field(default_factory=dict)
    """What layers are by their numbers, whatever config and tensors say: why, and a value for every layer."""
    headed: Alone[tuple[str, ...]] = ()
    """Classes that are named like base classes, and have heads: they return what these make of the streams."""
    returned: Alone[tuple[Returned, ...]] = ()
    """What classes return by default beside their predictions."""
    tied: Alone[str] = ""
    """What else the classes of transformers read from the tie of head and embeddings, without a key of its own:
    such heads stay tied."""
    prenorm: tuple[SpaceName, ...] = ()
    """Streams that are read through LayerNorms alone, beside those of which a group after folding says so."""
    normed_out: tuple[SpaceName, ...] = ()
    """Those of which a class returns what a norm gives."""
    postnorm: tuple[SpaceName, ...] = ()
    """The streams whose norms stand behind what they normalise; their lines stand in the order in which they act."""
    again: tuple[SpaceName, ...] = ()
    """Those of them whose one layer runs again and again: what reads its first tensors reads its last norm as well."""
    seen_raw: tuple[OwnName, ...] = ()
    """Streams of parts that the whole reads otherwise than through the part's own norms: what LayerNorm leaves
    free in the part alone shows there."""
    plain: tuple[SpaceName, ...] = ()
    """Those of `prenorm` whose norms have no tensors."""
    beside: tuple[tuple[SpaceName, str, str], ...] = ()
    """Lines that statements of norms tell apart: the stream, the word (of `BESIDE`), and how the names of lines end."""
    tied_trades: tuple[Shift, ...] = ()
    """What tables that are heads as well trade with others (`Shift.against`): moves of the norm that the head reads."""
    biased: tuple[tuple[LineName, int | None, LineName], ...] = ()
    """Parts of lines, or whole lines (None), that have biases of their own, each of which is added to all that is
    read: the line, the number of the part, the bias's line."""
    language: Alone[tuple[str, Mapping[str, Any]] | None] = None
    """Of a model that is made of others the part that has the vocabulary: what its names begin with (as `at` of an
    inclusion has it), and its config."""
    within: tuple[SpaceName, ...] = ()
    """Those of `prenorm` whose norms are inside of branches, beside what all classes give out as it is."""
    carries: tuple[Carry, ...] = ()
    """Constants that may stand in one tensor or in others, of whatever layers."""
    together: tuple[tuple[LineName, ...], ...] = ()
    """Stacks of which the modules of one number are one layer."""
    probes: tuple[Probe, ...] = ()
    """Constants that ask, and the keys that they ask."""
    lengths: tuple[Length, ...] = ()
    """Weights of which the directions of slices count, and what has their lengths."""
    reaches: tuple[Reach, ...] = ()
    """What narrower maps reach of a stream, and who reads nothing else."""
    mutes: tuple[Mute, ...] = ()
    """Values of which constants may be unheard."""
    bases: tuple[TableBasis, ...] = ()
    """Tables of which the columns stand in any basis."""
    head_norms: tuple[HeadNorm, ...] = ()
    """LayerNorms over the coordinates of heads, and what they read."""

    def stack_of(self, line: Line) -> str:
        """The stack of layers that a line belongs to: the first of those that stand together."""
        return next((stacks[0] for stacks in self.together if line.stack in stacks), line.stack)

    def says(self, word: str, line: Line, stream: str | None = None) -> bool:
        """Whether statements of norms say a word of `BESIDE` of a line: of the norms of a stream, or of whatever
        stream or latent."""
        named = (*self.streams, *self.normed_latents) if stream is None else (stream,)
        return any(w == word and s in named and fnmatchcase(line.name, f"*{name}") for s, w, name in self.beside)

    def parts_apart(self, stream: str, line: Line) -> set[int]:
        """The parts of a reader that read another thing."""
        asides = [name.partition("#") for s, word, name in self.beside if (s, word) == (stream, "except")]
        return {int(part) for name, _, part in asides if part and fnmatchcase(line.name, f"*{name}")}

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Line]]:
        prefix = f"(?:{'|'.join(map(re.escape, self.prefixes))})?" if self.prefixes else ""
        return [(_compiled(prefix, line.name), line) for line in self.lines]

    def match(self, name: str) -> Match:
        """The one line that a tensor name matches.

        Raises:
            IsomergeError: none or several do.
        """
        hits = [(m, line) for pattern, line in self._patterns if (m := pattern.match(name))]
        if len(hits) != 1:
            how = "is not described by any line" if not hits else "matches several lines"
            fix = (
                "add one line for it to a spec file and pass --spec FILE"
                if not hits
                else "make the lines exclusive"
            )
            if (wrapped := name.partition(".")[0]) in WRAPPERS and not hits:
                fix = f"save the model itself, not what was wrapped around it, or take {wrapped}. off the names"
            raise IsomergeError(f"tensor {name} {how} of the spec for {self.model_type} ({self.origin}): {fix}")
        hit, line = hits[0]
        return Match(line, line.binding({k: int(v) for k, v in hit.groupdict().items()}))

    def check_shape(self, name: str, match: Match, actual: tuple[int, ...]) -> None:
        """Raise an IsomergeError that names tensor and axis when a shape is not the one declared."""
        if match.line.axes is None:
            return
        try:
            wanted = shape(match.line.axes, self.sizes)
        except IsomergeError as error:
            raise IsomergeError(f"{match.line.place or self.origin}: tensor {name}: {error}") from None
        if len(wanted) != len(actual):
            raise IsomergeError(
                f"tensor {name} has {len(actual)} dimensions {list(actual)}, but the spec for {self.model_type} "
                f"declares {len(wanted)}: check that config.json and the spec belong to these weights"
            )
        for axis, want, have in zip(match.line.axes, wanted, actual, strict=True):
            if want is not None and want != have:
                if have == 0:
                    raise IsomergeError(
                        f"tensor {name}: axis {show(axis)} is empty: the spec for {self.model_type} "
                        f"({self.origin}) does not describe models without this part"
                    )
                raise IsomergeError(
                    f"tensor {name}: axis {show(axis)} has length {have}, but config.json says {want}: "
                    "check that config.json and the spec belong to these weights"
                )

    @property
    def kin(self) -> str:
        """Equal for models that can be of one architecture: the family of their texts."""
        return self.family or self.origin

    @property
    def describes(self) -> bool:
        """Whether anything is said of the tensors but their names."""
        return any(line.axes is not None for line in self.lines)

    def space_of(self, key: str) -> Space:
        """The space of an element, by its key."""
        return self.spaces[ElementKey.of(key).name]

    def shift_of(self, key: str) -> Shift:
        """The additive gauge of an element, by its key."""
        name = ElementKey.of(key).name
        return next(shift for shift in self.shifts if SHIFT + shift.name == name)

    def scope(self, space: Space) -> tuple[str, ...]:
        """The indices of a space that number layers (no axis, no size)."""
        return tuple(i for i in space.index if i not in self.sizes)

    def batch(self, space: Space) -> tuple[str, ...]:
        """The indices of a space that are axes."""
        return tuple(i for i in space.index if i in self.sizes)

    def depth(self, name: str) -> int:
        """How deep a space is nested in others: 0 for a space whose indices are no spaces."""
        if name not in self.spaces:
            return -1
        return 1 + max((self.depth(i) for i in self.spaces[name].index), default=-1)

    @cached_property
    def ordered(self) -> tuple[str, ...]:
        """All spaces, bases before the fibres over them."""
        return tuple(sorted(self.spaces, key=lambda name: (self.depth(name), list(self.spaces).index(name))))

    def restrict(self, names: Iterable[str]) -> Spec:
        """The same spec with only the named spaces and shifts active."""
        kept = set(names)
        return replace(
            self,
            spaces={n: s for n, s in self.spaces.items() if n in kept},
            shifts=tuple(s for s in self.shifts if s.name in kept),
        )

    def without(self, names: Collection[str]) -> Spec:
        """The same spec without some spaces and shifts."""
        return self.restrict(n for n in (*self.spaces, *(s.name for s in self.shifts)) if n not in names)

    def with_group(self, name: str, group: str) -> Spec:
        """The same spec with one space acted on by another of its `Space.groups`."""
        return replace(self, spaces={**self.spaces, name: replace(self.spaces[name], group_name=group)})

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The residual streams: residual spaces that are no fibres and have no index."""
        return tuple(n for n, s in self.spaces.items() if s.residual and not s.index and s.group_name != "Scale")

    @cached_property
    def latents(self) -> tuple[str, ...]:
        """The spaces inside layers that are read through a norm: a larger group acts on them as well once its gains
        are folded."""
        return tuple(n for n, s in self.spaces.items() if not s.residual and s.folded)

    @cached_property
    def normed_latents(self) -> tuple[str, ...]:
        """Those that are read through LayerNorms alone."""
        return tuple(n for n in self.latents if n in self.prenorm)

    def gains_over(self, stream: str) -> tuple[str, ...]:
        """The scales of the gains of norms: those over a latent, or `gains` of a stream."""
        if stream not in self.normed_latents:
            return self.gains
        return tuple(n for n, s in self.spaces.items() if s.group_name == "Scale" and stream in s.index)

    @cached_property
    def turned_latents(self) -> tuple[str, ...]:
        """Those of them on which that group acts here."""
        return tuple(n for n in self.latents if self.spaces[n].is_folded)

    def turning(self, names: Iterable[str]) -> Spec:
        """The same spec with some streams or latents acted on by their larger groups, where they have one and the
        gains over them can be folded."""
        spec = self
        for name in names:
            if (folded := self.spaces[name].folded) and self.can_fold(name):
                spec = spec.with_group(name, folded)
        return spec

    def turning_latents(self) -> Spec:
        """The same of every latent."""
        return self.turning(self.latents)

    @cached_property
    def gains(self) -> tuple[str, ...]:
        """The scales of the gains that folding takes into their readers, one for every coordinate: over residual
        streams, and over latents that are turned."""
        over = {*self.turned_latents}
        scales = ((n, s) for n, s in self.spaces.items() if s.group_name == "Scale")
        return tuple(n for n, s in scales if s.residual or over & {*s.index})

    @property
    def stream_groups(self) -> dict[str, str]:
        """The group that acts on every residual stream."""
        return {name: self.spaces[name].group_name for name in self.streams}

    def can_fold(self, stream: str) -> bool:
        """Whether every gain over a stream has a scale that can take it into its readers."""
        return not self.unfolded(stream)

    def unfolded(self, stream: str) -> dict[str, bool]:
        """The lines of a stream's gains that no scale can take into their readers, and whether a tie is why.

        A tie is why where a scale is written but not active, and a tied line has it as well
        (`isomerge.models.tied_tensors`).
        """
        tied = {a.name for line in self.lines if line.tied for a in line.atoms}
        gains = {}
        for line in self.lines:
            for axis in line.axes or ():
                axis_atoms = list(atoms((axis,)))
                if any(a.diag and a.name == stream for a in axis_atoms):
                    scales = [
                        a for a in axis_atoms if a.name in self.spaces and stream in self.spaces[a.name].index
                    ]
                    if not scales:
                        gains[line.name] = bool(({a.name for a in axis_atoms} - self.spaces.keys()) & tied)
        return gains

    @cached_property
    def residual_names(self) -> frozenset[str]:
        """The spaces of the residual stream: streams, and the gains over them. A factor that lies over a stream and is
        none of its gains (of a filter for each channel) acts inside a layer, whatever the stream does."""
        return frozenset(n for n, s in self.spaces.items() if s.residual)


def coverage(spec: Spec, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Match]:
    """Match every tensor of a checkpoint to exactly one line, names and shapes.

    Raises:
        IsomergeError: naming the first tensor that does not fit, or that two tensors are the same one.
    """
    matches: dict[str, Match] = {}
    owner: dict[str, str] = {}
    for name, actual in shapes.items():
        match = spec.match(name)
        spec.check_shape(name, match, tuple(actual))
        if match.canonical in owner:
            raise IsomergeError(f"tensors {owner[match.canonical]} and {name} are the same tensor under two names")
        owner[match.canonical] = name
        matches[name] = match
    return matches


def by_canonical(matches: Mapping[str, Match]) -> dict[str, str]:
    """From canonical names to a checkpoint's own."""
    return {match.canonical: name for name, match in matches.items()}

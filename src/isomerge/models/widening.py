"""The same function in more coordinates: how every tensor of a model stands in those of a wider one.

Heads, neurons and all other axes are filled with zeros: a head that reads and writes nothing adds nothing. A
residual stream x of d coordinates stands in d' of them in one of three ways (`How`), such that a norm of the wide
model does to it what the norm did:

* ``zeros``: x' = k (x, 0) with k = sqrt(d' / d). RMSNorm divides by the root of the mean square plus eps; the mean
  of k^2 x^2 over d' coordinates is the mean of x^2 over d. So norm'(x') = k (norm(x), 0), with the same eps and the
  same gains, and all that is in coordinates of the stream is k times what it was: writers are multiplied by k,
  readers divided.
* ``means``: x' = k (x, m, .., m), where m is the mean of x: every writer W gets rows that are the mean of its own.
  The mean over d' coordinates is m again, the variance is d / d' of k^2 var(x), which is var(x), and what LayerNorm
  takes the mean away from is zero in the new coordinates: norm'(x') = k (norm(x), 0). Nothing has to be centred.
* ``copies``: x' = (x, .., x), where d' is a multiple of d: means, variances and whatever acts on single coordinates
  stay, also where a norm's output *is* the stream (BERT); readers divide by the number of copies.

A head that is tied to the embeddings reads by what writes. Where the gain in front of it has a scale, that scale
takes the difference, and with it all that reads behind the same norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from isomerge.config.widths import TOKENS
from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom, size, views
from isomerge.symmetry.language.spec import Line, Match, Spec
from isomerge.symmetry.layer_norms import CENTRED

How = Literal["zeros", "means", "copies"]


@dataclass(frozen=True)
class Stream:
    """How one residual stream stands in more coordinates."""

    name: str
    narrow: int
    wide: int
    how: How

    @property
    def factor(self) -> float:
        """What it is multiplied by."""
        return 1.0 if self.how == "copies" else sqrt(self.wide / self.narrow)

    @property
    def read(self) -> float:
        """What its readers are multiplied by."""
        return self.narrow / self.wide if self.how == "copies" else 1 / self.factor


@dataclass(frozen=True)
class Widths:
    """What a class multiplies by a power of its width, beside what its weights say: found by trying."""

    embedding: float = 0
    """Embeddings of tokens, by the width to this power (Gemma: 1/2)."""
    head: float = 0
    """What the head reads, by the width to minus this power (T5's tied head: 1/2)."""
    scores: float = 0
    """Scores of attention, by the width of a head to minus this power (most: 1/2; T5: 0)."""
    norm: str = ""
    """The norm that a tied head alone reads, by what its tensors' lines begin with, where its gain has no scale."""


Added = Mapping[str, tuple[str, range]]
"""Stacks of layers that are longer in a wide model, by what their lines begin with (`Line.stack`): the index of
their layers, and those that are added."""


@dataclass(frozen=True)
class Widening:
    """How the tensors of a model stand in those of a wider one; see the module."""

    narrow: Spec
    wide: Spec
    streams: Mapping[str, Stream]
    widths: Widths = Widths()
    scales: Mapping[str, float] = field(default_factory=dict)
    """What gains are multiplied by, by the names of their scales, and what reads behind them is divided by."""
    vectors: Mapping[str, float] = field(default_factory=dict)
    """What the gain and the bias of a norm that a tied head alone reads are multiplied by, by their lines."""
    added: Added = field(default_factory=dict)
    """The layers that are added: nothing is written by them."""

    def shape(self, match: Match, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a tensor in the wide model; axes of free length keep theirs."""
        if match.line.axes is None:
            return stored
        lengths = zip(match.line.axes, stored, strict=True)
        return tuple(have if (want := size(axis, self.wide.sizes)) is None else want for axis, have in lengths)

    def is_added(self, match: Match) -> bool:
        """Whether a tensor is of a layer that the narrow model does not have."""
        index, layers = self.added.get(match.line.stack, ("", range(0)))
        return match.binding.get(index) in layers

    def layer_scale(self, match: Match) -> str:
        """The scale of the gain behind what a tensor writes, where that needs it: its new rows are a mean of what
        stands behind it. Empty where there is none."""
        writes = [a.name for a in match.line.atoms if not (a.dual or a.diag)]
        if not any(name in self.streams and self.streams[name].how == "means" for name in writes):
            return ""
        return next((name for name in writes if name in self.of_branches), "")

    def applied(self, tensor: Tensor, match: Match, shape: tuple[int, ...], behind: Tensor | None = None) -> Tensor:
        """One tensor of the wide model.

        Args:
            tensor: the stored one, any dtype.
            match: its line.
            shape: in the wide model: that of `shape`, or longer in axes of free length.
            behind: the gain behind what it writes, where there is a `layer_scale`.

        Returns:
            A contiguous tensor in float64, where it is floating point; rounded by whoever stores it.
        """
        line = match.line
        if line.axes is None or not tensor.is_floating_point():
            return tensor
        whole = tensor.double().contiguous() + line.less
        made = torch.zeros(shape, dtype=torch.float64)
        stored = views((whole,), line.axes, self.narrow.sizes)
        for ((part,), leaf_atoms), ((room,), _) in zip(
            stored, views((made,), line.axes, self.wide.sizes), strict=True
        ):
            made_part = self._leaf(part, leaf_atoms, tuple(room.shape), self.is_added(match), behind)
            room.copy_(made_part * self.vectors.get(line.name, 1.0))
        return made - line.less

    def _leaf(
        self, part: Tensor, leaf_atoms: tuple[Atom, ...], shape: tuple[int, ...], added: bool, behind: Tensor | None
    ) -> Tensor:
        """One block of a tensor, every axis of which is an atom."""
        gains = {a.name for a in leaf_atoms if a.name in self.narrow.gains} - self.of_branches
        factor = self._times(leaf_atoms)
        for at, atom in enumerate(leaf_atoms):
            writes = not (atom.dual or atom.diag)
            if added and writes and not gains and atom.name in self.narrow.streams:
                factor = 0
            stream = self.streams.get(atom.name)
            if stream is None:
                part = _filled(part, at, shape[at])
                continue
            factor *= 1 if atom.diag else stream.factor if writes else stream.read
            if stream.how == "copies":
                part = part.repeat([stream.wide // stream.narrow if k == at else 1 for k in range(part.ndim)])
            elif atom.diag:  # behind it is zero, so that any gain will do: one of their size
                part = _filled(part, at, shape[at], part.square().mean(at, keepdim=True).sqrt())
            elif stream.how == "means" and writes and not gains:
                part = _filled(part, at, shape[at], _mean(part, at, behind))
            else:
                part = _filled(part, at, shape[at])
        return part * factor

    def _times(self, leaf_atoms: tuple[Atom, ...]) -> float:
        """What a block is multiplied by beside what its streams are: the scales of gains, and powers of widths."""
        factor = 1.0
        for atom in leaf_atoms:
            scale = self.scales.get(atom.name, 1.0)
            factor *= 1 / scale if atom.dual else scale
            space = self.narrow.spaces.get(atom.name)
            if space is not None and space.role == "qk" and not atom.dual and atom.name not in self.streams:
                grown = self.wide.sizes[atom.name] / max(1, self.narrow.sizes[atom.name])
                factor *= grown**self.widths.scores
        return factor * self._of_tokens(leaf_atoms)

    def _of_tokens(self, leaf_atoms: tuple[Atom, ...]) -> float:
        """What takes away the powers of the width by which a table of tokens, or a head, is multiplied."""
        if not any(atom.name in TOKENS for atom in leaf_atoms):
            return 1.0
        factor = 1.0
        for atom in leaf_atoms:
            if (stream := self.streams.get(atom.name)) is not None:
                power = self.widths.head if atom.dual else -self.widths.embedding
                factor *= (stream.wide / stream.narrow) ** power
        return factor

    @cached_property
    def of_branches(self) -> set[str]:
        """The scales of gains on what branches write: a writer has them beside the stream."""
        every = (a for line in self.narrow.lines for a in line.atoms)
        return {a.name for a in every if a.diag and a.dual} & {*self.narrow.gains}


def _mean(part: Tensor, at: int, behind: Tensor | None) -> Tensor:
    """The mean along an axis, one long there; of what a gain behind it makes of it, before that makes it so: the
    gain's own new entries are the root of its mean square (see `Widening.applied`)."""
    if behind is None:
        return part.mean(at, keepdim=True)
    gain = behind.double().reshape([-1 if k == at else 1 for k in range(part.ndim)])
    size = gain.square().mean().sqrt()
    return (part * gain).mean(at, keepdim=True) / size.clamp_min(torch.finfo(torch.float64).tiny)


def _filled(part: Tensor, at: int, length: int, value: Tensor | None = None) -> Tensor:
    """A tensor that is longer along an axis, filled with zeros or with a value that is one long there."""
    more = length - part.shape[at]
    if not more:
        return part
    if value is None:
        value = part.new_zeros([1 if k == at else n for k, n in enumerate(part.shape)])
    return torch.cat([part, value.expand([more if k == at else n for k, n in enumerate(part.shape)])], at)


def ways_of(narrow: Spec, wide: Spec) -> dict[str, list[How]]:
    """How every stream that grows may stand in more coordinates, the likeliest way first.

    Raises:
        IsomergeError: a stream of which only copies would do, and the wide one is no multiple.
    """
    ways_by_stream: dict[str, list[How]] = {}
    for name in narrow.streams:
        d, more = narrow.sizes[name], wide.sizes[name]
        if d == more:
            continue
        space = narrow.spaces[name]
        ways: list[How] = []
        if CENTRED in (space.group_name, space.folded):
            if narrow.can_fold(name):
                ways.append("means")
        elif space.folded is not None or space.group_name == "SignedPerm":
            ways.append("zeros")
        if more % d == 0:
            ways.append("copies")
        if not ways:
            raise IsomergeError(
                f"what enters the residual stream {name} of {narrow.model_type} passes a norm or a nonlinearity by "
                f"coordinates, which only copies of all of them keep, and {more} is no multiple of {d}: choose a "
                f"multiple"
            )
        ways_by_stream[name] = ways
    return ways_by_stream


def check_growth(narrow: Spec, wide: Spec, matches: Mapping[str, Match]) -> None:
    """Refuse sizes in which a model does not stand.

    Raises:
        IsomergeError: naming the size.
    """
    used = {a.name for m in matches.values() for a in m.line.atoms} & narrow.sizes.keys()
    grown = {name for name in used if wide.sizes.get(name, 0) != narrow.sizes[name]}
    for name in sorted(used):
        have, want = narrow.sizes[name], wide.sizes.get(name, 0)
        if want >= have or name in TOKENS:
            continue
        space = narrow.spaces.get(name)
        heads = space if space is not None and space.group.compact == "Perm" else None
        over = [] if heads is None else [base for base in heads.index if base in grown]
        if over:
            raise IsomergeError(
                f"{have} query heads share a key and value head, and {want} would ({name}, while {over[0]} grows "
                f"from {narrow.sizes[over[0]]} to {wide.sizes[over[0]]}): choose numbers of heads whose ratio is "
                f"{have} or more"
            )
        raise IsomergeError(
            f"{name} would shrink from {have} to {want}: a model stands in sizes that are no smaller"
        )
    for space in narrow.spaces.values():
        pairs = [i for i in space.index if i in grown and i not in narrow.spaces]
        if pairs and space.role == "qk" and space.group_name != "GL":
            i = pairs[0]
            raise IsomergeError(
                f"a head would grow ({i} from {narrow.sizes[i]} to {wide.sizes[i]}), and rotary positions turn "
                f"every pair at a speed that depends on how many there are: keep the size of a head (head_dim), "
                f"and let the number of heads grow"
            )
    for match in matches.values():
        named = [i for i in match.line.indices if i in grown]
        if named:
            raise IsomergeError(
                f"{named[0]} would grow from {narrow.sizes[named[0]]} to {wide.sizes[named[0]]}: a router would "
                f"ask experts that are added, so keep their number"
            )


@dataclass(frozen=True)
class Tied:
    """A head that is tied to the embeddings, and what it reads by in a wide model beside what is stored."""

    head: Line
    table: Line
    factor: float
    scale: str
    """The scale of the gain in front of it; empty where that has none."""


def tied_factors(
    narrow: Spec, streams: Mapping[str, Stream], ties: Iterable[tuple[Line, Line]], widths: Widths
) -> list[Tied]:
    """The heads that would read by other weights than the embeddings write by.

    Args:
        narrow: as it is declared, before ties have taken spaces.
        streams: those that grow.
        ties: heads, each with the line that stands in.
        widths: what the class multiplies by powers of its width.
    """
    factors = []
    for head, table in ties:
        reads = [a for a in head.atoms if a.dual and a.name in streams]
        if not reads or not any(not a.dual and a.name in streams for a in table.atoms):
            continue
        stream = streams[reads[0].name]
        ratio = stream.wide / stream.narrow
        factor = stream.read * ratio**widths.head / (stream.factor * ratio**-widths.embedding)
        scales = [a.name for a in head.atoms if a.name in narrow.gains]
        if abs(factor - 1) > 1e-12:
            factors.append(Tied(head, table, factor, scales[0] if scales else ""))
    return factors


def norms_of(narrow: Spec, streams: Iterable[str]) -> list[str]:
    """What the lines begin with of the norms outside of layers whose gains have no scale: a tied head may read what
    one of them gives out."""
    streamed = [[name] for name in streams]
    plain = {
        line.name.rpartition(".")[0] + "."
        for line in narrow.lines
        if not line.indices and line.axes is not None and [a.name for a in line.atoms] in streamed
    }
    return [
        name
        for name in sorted(plain)
        if sum(line.name.startswith(name) and not line.indices for line in narrow.lines) == 2
        and all(len(line.axes or ()) == 1 for line in narrow.lines if line.name.startswith(name))
    ]

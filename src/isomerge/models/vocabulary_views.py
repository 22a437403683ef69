"""Checkpoints whose embeddings, heads and output biases are in the order of another vocabulary, gathered when
read.

Vectors for tokens that a model lacks are sums of vectors of its own: which ones, and how much of each, is seen in
a model that has the token. Both models know some tokens. Where a donor writes a token's vector as a sparse sum of
the vectors of tokens that both know, the model has the same sum of its own vectors for it. Widths and bases of the
two need not agree: coefficients alone are carried over. The sum is computed by orthogonal matching pursuit (Pati,
Rezaiifar and Krishnaprasad 1993; for tokenizers: Goddard and Fernandes Neto 2025, "Training-free tokenizer
transplantation via orthogonal matching pursuit"), or it is of the nearest tokens by cosine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.archs import spec_for
from isomerge.checkpoint.companions import tokenizer_files
from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.reader import VOCABULARY as IN_VOCABULARY
from isomerge.checkpoint.reader import Checkpoint, Derived, Lent, made_from
from isomerge.checkpoint.vocabulary import AVERAGE, NEIGHBOURS, Row, Vocabulary, decide_vocabulary, digest
from isomerge.config.config_parts import KeyPath, counts, renumbered, with_values
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.models.tied_tensors import is_tied
from isomerge.records import Json
from isomerge.symmetry.axes import VOCABULARY, Atom
from isomerge.symmetry.language.spec import Match, Spec, coverage

OTHERS = ("talk_vocab", "vision_vocab")
"""Axes over what is no token of the tokenizer: sounds, and pieces of images."""
_GENERATION = "generation_config.json"
BATCH = 256
"""Tokens that are looked at together."""
LEFT = 1e-6
"""The share of a target that a sum may leave of it."""


def with_vocabulary(
    models: Sequence[Checkpoint],
    *,
    source: str = "union",
    base: int | None = None,
    tokens: Mapping[str, Any] | None = None,
    pad_to_multiple_of: int | None = None,
    missing: str = "copy",
    neighbours: int = NEIGHBOURS,
    spec_file: str | Path | None = None,
) -> tuple[list[Checkpoint], Vocabulary]:
    """Views of all models with one vocabulary, whose tokenizer is among their companion files; reads no weights.

    A model that needs no change is returned as it is. For the arguments see `decide_vocabulary`; ``spec_file`` is a
    spec text of the user's own.

    Raises:
        IsomergeError: see `decide_vocabulary`; or models whose tables of tokens are not alike but for their rows.
    """
    tables = [_Tables(model, spec_file) for model in models]
    vocabulary = decide_vocabulary(
        models,
        [table.size for table in tables],
        source=source,
        base=base,
        tokens=tokens,
        pad_to_multiple_of=pad_to_multiple_of,
        missing=missing,
        neighbours=neighbours,
    )
    views = [_view(k, tables, vocabulary, vocabulary.owner == k) for k in range(len(tables))]
    return views, vocabulary


def with_moved_ids(config: Mapping[str, Any], rows: Sequence[int], fallback: Mapping[str, Any]) -> Json:
    """A config whose ids of tokens follow rows that are moved: row k was ``rows[k]``; ``fallback`` has those of
    tokens that are gone."""
    return renumbered(config, {row: at for at, row in enumerate(rows)}, fallback, ())


@dataclass(frozen=True)
class _Table:
    """One tensor with an axis over tokens."""

    name: str
    axis: int
    canonical: str


class _Tables:
    """All tensors of a checkpoint with an axis over tokens."""

    def __init__(self, checkpoint: Checkpoint, spec_file: str | Path | None) -> None:
        self.checkpoint, self.spec_file = checkpoint, spec_file
        try:
            shapes = checkpoint.shapes
            self.spec: Spec = spec_for(checkpoint.config, spec_file, shapes)
            self.matches = coverage(self.spec, shapes)
        except IsomergeError as error:
            raise IsomergeError(f"{checkpoint.ref}: {error}") from None
        if VOCABULARY not in self.spec.sizes:
            raise IsomergeError(
                f"{checkpoint.ref}: the spec for {self.spec.model_type} has no tokens (size {VOCABULARY})"
            )
        self.size = self.spec.sizes[VOCABULARY]
        tables = [self._table(name, match) for name, match in self.matches.items()]
        self.tables = {table.canonical: table for table in tables if table is not None}

    def check_others(self) -> None:
        """Refuse tables whose rows are for tokens, too, and would stay where they are while ids change."""
        read = False
        for name, match in self.matches.items():
            axes, info = match.line.axes, self.checkpoint.tensors[name]
            every = match.line.atoms
            read |= len(every) > 1 and VOCABULARY in match.line.names and not any(x.dual for x in every)
            second = any(VOCABULARY in x.name and x.name not in (VOCABULARY, *OTHERS) for x in every)
            # what no symmetry moves: integers, such as the experts of every token
            hashed = axes is None and tuple(info.shape[:1]) == (self.size,) and info.dtype.startswith(("I", "U"))
            if second or hashed:
                raise IsomergeError(
                    f"{self.checkpoint.ref}: tensor {name} is a second table of tokens, which cannot be changed "
                    "together with the first: give models of one vocabulary"
                )
        if not read:
            raise IsomergeError(
                f"{self.checkpoint.ref}: the embeddings of {self.spec.model_type} have other rows than one for "
                "every token, so its vocabulary cannot be changed: give models of one vocabulary"
            )

    @cached_property
    def counts(self) -> list[KeyPath]:
        """Where the config says how many tokens there are."""

        def bound(config: Mapping[str, Any]) -> int | None:
            try:
                return spec_for(config, self.spec_file, self.checkpoint.shapes).sizes.get(VOCABULARY)
            except IsomergeError:
                return None

        return counts(self.checkpoint.config, self.size, bound)

    def _table(self, name: str, match: Match) -> _Table | None:
        axes = match.line.axes or ()
        at = [k for k, names in enumerate(match.line.names_by_axis) if VOCABULARY in names]
        if not at:
            return None
        if len(at) > 1 or not isinstance(axes[at[0]], Atom):
            raise IsomergeError(f"{self.checkpoint.ref}: tensor {name} has no single axis over tokens to gather")
        info = self.checkpoint.tensors[name]
        if info.dtype not in ("F32", "F16", "BF16", "F64"):
            raise IsomergeError(f"{info.file}: tensor {name!r} is {info.dtype} (quantised): rows cannot be mixed")
        return _Table(name, at[0], match.canonical)

    @cached_property
    def spec_names(self) -> set[str]:
        """The canonical names of all lines that may be tables."""
        return {line.canonical(dict.fromkeys(line.indices, 0)) for line in self.spec.lines}

    def find(self, canonical: str) -> _Table | None:
        """A table, or the one that stands in for it while the config ties the two."""
        if canonical in self.tables or not is_tied(self.checkpoint.config, stored=False):
            return self.tables.get(canonical)
        line = next(line for line in self.spec.lines if line.canonical(dict.fromkeys(line.indices, 0)) == canonical)
        return self.tables.get(line.tied or "")


def _view(model: int, every: Sequence[_Tables], vocabulary: Vocabulary, own_files: bool) -> Checkpoint:
    tables, checkpoint, rows = every[model], every[model].checkpoint, vocabulary.rows[model]
    stays = vocabulary.unchanged(model) and len(rows) == tables.size
    if stays and own_files:
        return checkpoint
    moved, config = _places(model, vocabulary), dict(checkpoint.config)
    fallback = {} if vocabulary.owner is None else every[vocabulary.owner].checkpoint.config
    if not stays:
        tables.check_others()
        counted = tables.counts
        config = renumbered(with_values(config, dict.fromkeys(counted, vocabulary.size)), moved, fallback, counted)
    companions = checkpoint.companions()
    theirs = tokenizer_files(companions)  # code among them may be the model's as well
    companions = {name: x for name, x in companions.items() if name not in theirs or name.endswith(".py")}
    generation = companions.get(_GENERATION)
    if generation is not None and not stays:
        settings = (
            read_object(generation, remedy="save it again", unique=False)
            if isinstance(generation, Path)
            else json.loads(generation)
        )
        companions[_GENERATION] = (json.dumps(renumbered(settings, moved, fallback, ()), indent=2) + "\n").encode()
    derived = {} if stays else {t.name: _derived(model, t, every, vocabulary) for t in tables.tables.values()}
    return checkpoint.derive(
        derived,
        lenders=[other.checkpoint for other in every],
        origin=f"{IN_VOCABULARY}{digest(vocabulary, model)} of {[other.checkpoint.identity() for other in every]}",
        config=config,
        companions={**companions, **vocabulary.files},
        lent=_lent(model, every, vocabulary),
    )


def _lent(model: int, every: Sequence[_Tables], vocabulary: Vocabulary) -> Lent | None:
    """The rows of a model that are others' own rows of the same number, a mean with such rows in it, or zero."""
    summed = vocabulary.sums[model] if vocabulary.sums else {}
    rows = {
        at: tuple(every[m].checkpoint.ref for m, _ in sources if m != AVERAGE[0]) if sources else None
        for at, sources in enumerate(vocabulary.rows[model])
        if at not in summed
        and (sources == [AVERAGE] or all(m != model and vocabulary.rows[m][at] == [(m, k)] for m, k in sources))
    }
    return Lent(rows) if rows else None


def of_common_tokens(models: Sequence[Model]) -> list[Model]:
    """Models that are matched by the tokens that all have: the rows of the others, which some model has of another,
    are the mean of these, as whatever moves rows alike moves their mean. They keep the whole tables beside
    (`Lent.whole`)."""
    rows = sorted({row for model in models if model.checkpoint.lent for row in model.checkpoint.lent.rows})
    return [_without(model, rows) for model in models] if rows else list(models)


def _without(model: Model, rows: Sequence[int]) -> Model:
    checkpoint, at = model.checkpoint, torch.tensor(rows)
    derived = {
        name: checkpoint.made_of(name, partial(_evened, axis, at))
        for name, match in model.matches.items()
        if (axis := match.line.axis_over(VOCABULARY)) is not None
    }
    lent = Lent({} if checkpoint.lent is None else checkpoint.lent.rows, checkpoint, frozenset(rows))
    origin = f"without the rows {hashlib.sha256(str(rows).encode()).hexdigest()}"
    return replace(model, checkpoint=checkpoint.derive(derived, origin=origin, lent=lent))


def _evened(axis: int, rows: Tensor, table: Tensor) -> Tensor:
    table = table.movedim(axis, 0).clone()
    common = torch.ones(len(table), dtype=torch.bool).index_fill(0, rows, False)
    work = torch.float64 if table.dtype == torch.float64 else torch.float32
    table[rows] = table[common].to(work).sum(0).div(common.sum().clamp_min(1)).to(table.dtype)
    return table.movedim(0, axis)


def with_moved_rows(models: Sequence[Model], aligned: Sequence[Model]) -> list[Model]:
    """Models that were moved, with the rows that they lack where the models are moved to that lend them.

    Args:
        models: of common tokens (`of_common_tokens`), in the order of the run.
        aligned: the same where they are moved to; those that stay are taken whole.
    """
    every = [model.checkpoint.lent for model in models]
    whole = [
        replace(model, checkpoint=lent.whole) if model is there and lent is not None and lent.whole else there
        for model, there, lent in zip(models, aligned, every, strict=True)
    ]
    place = {model.checkpoint.ref: k for k, model in reversed([*enumerate(models)])}
    return [
        _borrowing(k, whole, every, place) if (lent := every[k]) is not None and lent.rows else model
        for k, model in enumerate(whole)
    ]


def _borrowing(
    number: int, models: Sequence[Model], every: Sequence[Lent | None], place: Mapping[str, int]
) -> Model:
    model, mine = models[number], [lent if k == number else None for k, lent in enumerate(every)]
    checkpoint, derived = model.checkpoint, {}
    for name, match in model.matches.items():
        if (axis := match.line.axis_over(VOCABULARY)) is not None:
            tables = [(other.checkpoint, other.source_of(match.canonical, match) or name) for other in models]
            how = partial(_borrowed, tables, number, axis, mine, place)
            derived[name] = made_from(checkpoint.tensors[name], tables, how)
    others = [other.checkpoint for other in models if other is not model]
    view = checkpoint.derive(derived, lenders=others, origin=f"rows of {[x.identity() for x in others]}")
    return replace(model, checkpoint=view)


def _borrowed(
    tables: Sequence[tuple[Checkpoint, str]],
    number: int,
    axis: int,
    every: Sequence[Lent | None],
    place: Mapping[str, int],
    *,
    exact: bool,
) -> Tensor:
    stored = [checkpoint.read(name, exact=exact) for checkpoint, name in tables]
    code, work = stored[number].dtype, torch.promote_types(stored[number].dtype, torch.float32)
    made = with_lent_rows([table.to(work) for table in stored], axis, every, place)[number]
    return made if exact else made.to(code)


def with_lent_rows(
    own: Sequence[Tensor], axis: int, every: Sequence[Lent | None], place: Mapping[str, int]
) -> list[Tensor]:
    """A table of all models, with the rows that a model lacks from those that lend them.

    Args:
        own: of every model, where it is moved to; shapes are equal.
        axis: over tokens.
        every: what each model lacks.
        place: the models that are there, by `Checkpoint.ref`; rows of others stay as they are.
    """
    tables = list(own)
    for k, lent in enumerate(every):
        if lent is None or not lent.rows:
            continue
        groups: dict[tuple[str, ...] | None, list[int]] = {}
        for row, refs in lent.rows.items():
            if refs is None or place.keys() >= {*refs}:
                groups.setdefault(refs, []).append(row)
        made, mean, zero = own[k].movedim(axis, 0).clone(), groups.pop((), []), groups.pop(None, [])
        for refs, rows in groups.items():
            made[rows] = torch.stack([own[place[ref]].movedim(axis, 0)[rows] for ref in refs or ()]).mean(0)
        made[[*mean, *zero]] = 0
        if mean:
            made[mean] = made.sum(0) / (len(made) - len(mean))
        tables[k] = made.movedim(0, axis).contiguous()
    return tables


def _places(model: int, vocabulary: Vocabulary) -> dict[int, int]:
    """The output's ids of a model's tokens, by their own: that a rule gives a token another row does not move its
    id.

    Of a model's rows without a token in the output, the first place that has the row.
    """
    rows = enumerate(vocabulary.rows[model])
    places = {at[0][1]: k for k, at in reversed(list(rows)) if len(at) == 1 and at[0][0] == model}
    ids = {
        at: vocabulary.tokens[token] for token, at in vocabulary.models[model].items() if token in vocabulary.tokens
    }
    return places | {at: k for at, k in ids.items() if k < vocabulary.size}


def _derived(model: int, table: _Table, every: Sequence[_Tables], vocabulary: Vocabulary) -> Derived:
    """The recipe of one table; the shapes of all tables that it reads from are compared here, before any is
    read."""
    checkpoint, rows = every[model].checkpoint, vocabulary.rows[model]
    stored = checkpoint.tensors[table.name]
    sources: dict[int, _Table] = {}
    for other in sorted({m for row in rows for m, _ in row} - {model, AVERAGE[0]}):
        theirs = every[other].find(table.canonical)
        if theirs is None:
            raise IsomergeError(
                f"{every[other].checkpoint.ref} has no tensor {table.canonical}, but tokens of {checkpoint.ref} "
                "would get rows of it; choose a vocabulary whose tokens both have"
            )
        shape = every[other].checkpoint.tensors[theirs.name].shape
        if _across(shape, theirs.axis) != _across(stored.shape, table.axis):
            raise IsomergeError(
                f"tensor {table.canonical} has shape {list(stored.shape)} in {checkpoint.ref} and {list(shape)} in "
                f"{every[other].checkpoint.ref}: only their numbers of tokens may differ"
            )
        sources[other] = theirs
    shape = (*stored.shape[: table.axis], len(rows), *stored.shape[table.axis + 1 :])
    reads = {m: (every[m].checkpoint, t) for m, t in {**sources, model: table}.items()}
    made = _sums(model, table, every, vocabulary)
    gather = partial(_gathered, reads, rows, table.axis, stored.dtype, _across(shape, table.axis), made)
    tables = [(source, theirs.name) for source, theirs in reads.values()]
    return made_from(replace(stored, shape=shape), tables, gather)


@dataclass(frozen=True)
class Sum:
    """Rows of a table that are sums of others of its rows, as another model has it for them."""

    rows: list[int]
    """In the output."""
    own: tuple[Checkpoint, _Table]
    donor: tuple[Checkpoint, _Table]
    """The table in which coefficients are sought."""
    targets: list[int]
    """The donor's rows of the tokens."""
    shared: list[tuple[int, int]]
    """The own and the donor's rows of the tokens that both know."""
    method: str
    neighbours: int

    def made(self, dtype: torch.dtype) -> Tensor:
        """The rows, [n, ...] in this dtype."""
        mine, theirs = (torch.tensor(rows) for rows in zip(*self.shared, strict=True))
        table = _table_of(*self.donor).flatten(1)
        solve = matching_pursuit if self.method == "omp" else nearest
        chosen, coefficients = solve(table[self.targets].to(dtype), table[theirs].to(dtype), self.neighbours)
        return summed(_table_of(*self.own), mine[chosen], coefficients)


def _table_of(checkpoint: Checkpoint, table: _Table) -> Tensor:
    """A table, tokens first."""
    return checkpoint.read(table.name, exact=True).movedim(table.axis, 0)


def _sums(model: int, table: _Table, every: Sequence[_Tables], vocabulary: Vocabulary) -> list[Sum]:
    """The sums of one table, donor by donor; a vector of biases is summed as the embeddings are."""
    by_donor: dict[int, dict[int, int]] = {}
    for at, (donor, row) in (vocabulary.sums[model] if vocabulary.sums else {}).items():
        by_donor.setdefault(donor, {})[at] = row
    sums = []
    for donor, rows in by_donor.items():
        tables, own = every[donor], every[model].checkpoint
        source = tables.find(table.canonical) if table.canonical in {*tables.spec_names} else None
        wide = (t for t in tables.tables.values() if len(tables.checkpoint.tensors[t.name].shape) > 1)
        if source is None or len(own.tensors[table.name].shape) < 2:
            source = next(wide)
        how = (vocabulary.shared[model, donor], vocabulary.missing, vocabulary.neighbours)
        sums.append(Sum([*rows], (own, table), (tables.checkpoint, source), [*rows.values()], *how))
    return sums


def _across(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _gathered(
    reads: Mapping[int, tuple[Checkpoint, _Table]],
    rows: list[list[Row]],
    axis: int,
    code: str,
    across: tuple[int, ...],
    made: Sequence[Sum],
    *,
    exact: bool,
) -> Tensor:
    """Rows of several tables in a new order, tables one by one; means in float32 (float64 where that is stored).

    ``across`` is the shape of one row; ``made`` are sums of rows of the table itself; ``code`` is of the result,
    but where it is ``exact``.
    """
    work = torch.float64 if code == "F64" else torch.float32
    dtype = work if exact else torch_dtype(code)
    shared = [len(gathered) > 1 for gathered in rows]  # rows that are a mean of several
    place = {at: k for k, at in enumerate(k for k, mean in enumerate(shared) if mean)}
    gathered, sums = torch.zeros(len(rows), *across, dtype=dtype), torch.zeros(len(place), *across, dtype=work)
    for model, (checkpoint, table) in sorted(reads.items()):
        tensor = checkpoint.read(table.name, exact=True).movedim(table.axis, 0)
        single = [(k, at[0][1]) for k, at in enumerate(rows) if len(at) == 1 and at[0][0] == model]
        if single:
            to, take = torch.tensor(single).T
            gathered[to] = tensor[take].to(dtype)
        several = [(place[k], row) for k, at in enumerate(rows) if shared[k] for m, row in at if m == model]
        if several:
            to, take = torch.tensor(several).T
            sums.index_add_(0, to, tensor[take].to(work))
    if place:
        counts = torch.tensor([len(rows[k]) for k in place], dtype=work)
        gathered[list(place)] = (sums / counts.reshape(-1, *[1] * (sums.ndim - 1))).to(dtype)
    for summed in made:
        gathered[summed.rows] = summed.made(work).to(dtype)
    padding = [k for k, at in enumerate(rows) if at == [AVERAGE]]
    if padding:
        # they are zero so far
        gathered[padding] = (gathered.sum(0, dtype=work) / (len(rows) - len(padding))).to(dtype)
    return gathered.movedim(0, axis)


def matching_pursuit(targets: Tensor, dictionary: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Every target as a sum of few rows of a dictionary, by orthogonal matching pursuit.

    Row by row that row is taken whose cosine with what is left is the largest in size; all coefficients are then
    those of least squares. It ends where what is left is less than `LEFT` of the target, or nothing is new.

    Args:
        targets: [n, d], floating point.
        dictionary: [m, d].
        terms: how many rows, at most.

    Returns:
        The rows taken, int64 [n, terms], and their coefficients [n, terms], zero where fewer were taken.
    """
    terms = min(terms, len(dictionary), dictionary.shape[1])
    lengths = dictionary.norm(dim=1)
    unit = dictionary / lengths.clamp_min(torch.finfo(dictionary.dtype).tiny)[:, None]
    parts = [_pursued(part, unit, lengths, terms) for part in targets.split(BATCH)]
    rows, coefficients = (torch.cat(batches) for batches in zip(*parts, strict=True))
    return rows, coefficients


def _pursued(targets: Tensor, unit: Tensor, lengths: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """One batch: rows are made orthogonal one by one, which is least squares by QR."""
    n, d = targets.shape
    left, every = targets.clone(), torch.arange(n)
    rows = torch.zeros(n, terms, dtype=torch.long)
    basis, upper = targets.new_zeros(n, terms, d), targets.new_zeros(n, terms, terms)
    seen, along = targets.new_zeros(n, terms), torch.ones(n, dtype=torch.bool)
    enough = LEFT * targets.norm(dim=1)
    for term in range(terms):
        scores = (left @ unit.T).abs()
        if term:
            scores.scatter_(1, rows[:, :term], -1)
        best = scores.argmax(1)
        new = unit[best]
        for _ in range(2):  # twice is enough (Giraud, Langou and Rozloznik 2005)
            inside = torch.einsum("nkd,nd->nk", basis[:, :term], new)
            upper[:, :term, term] += inside
            new = new - torch.einsum("nkd,nk->nd", basis[:, :term], inside)
        size = new.norm(dim=1)
        along &= (left.norm(dim=1) > enough) & (size > 1e-6) & (lengths[best] > 0)
        upper[every, term, term] = torch.where(along, size, torch.ones_like(size))
        upper[:, :term, term] *= along[:, None]
        basis[:, term] = torch.where(along[:, None], new / size.clamp_min(1e-30)[:, None], torch.zeros_like(new))
        rows[:, term] = torch.where(along, best, torch.zeros_like(best))
        seen[:, term] = (basis[:, term] * left).sum(1)
        left = left - basis[:, term] * seen[:, term, None]
        if not along.any():
            break
    diagonal = upper.diagonal(dim1=1, dim2=2)
    diagonal.masked_fill_(diagonal == 0, 1)  # of terms that were not needed
    solution = torch.linalg.solve_triangular(upper, seen[..., None], upper=True)[..., 0]
    return rows, solution / lengths[rows].clamp_min(torch.finfo(lengths.dtype).tiny)


def nearest(targets: Tensor, dictionary: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Every target as a weighted mean of the rows of a dictionary that are nearest to it by cosine.

    Args:
        targets: [n, d], floating point.
        dictionary: [m, d].
        terms: how many rows, at most.

    Returns:
        The rows taken, int64 [n, terms], and their weights [n, terms]: cosines, of which negative ones count as
        nothing, that sum to one.
    """
    terms = min(terms, len(dictionary))
    tiny = torch.finfo(dictionary.dtype).tiny
    unit = dictionary / dictionary.norm(dim=1, keepdim=True).clamp_min(tiny)
    rows, weights = [], []
    for part in targets.split(BATCH):
        cosines = (part / part.norm(dim=1, keepdim=True).clamp_min(tiny)) @ unit.T
        closest = cosines.topk(terms, dim=1)
        positive = closest.values.clamp_min(0) + tiny
        rows.append(closest.indices)
        weights.append(positive / positive.sum(1, keepdim=True))
    return torch.cat(rows), torch.cat(weights)


def summed(table: Tensor, rows: Tensor, coefficients: Tensor) -> Tensor:
    """Weighted sums of rows of a table [m, ...], [n, ...] in the dtype of the coefficients."""
    flat = table.reshape(len(table), -1).to(coefficients.dtype)
    parts = [
        torch.einsum("nk,nkd->nd", c, flat[r])
        for r, c in zip(rows.split(BATCH), coefficients.split(BATCH), strict=True)
    ]
    made = torch.cat(parts) if parts else flat.new_zeros(0, flat.shape[1])
    return made.reshape(len(rows), *table.shape[1:])

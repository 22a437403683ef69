"""What rows of a model stand for, and models brought to one order of them: tokens, by their tokenizers; classes, by
the names that their configs give them (by tokens, where classes are tokens: CTC).

Rows of one number may mean different things in two models of equal shapes. One of them is then read with its rows
in the order of the other: the same function of texts, or of class names. A row that means what no row of the other
means has no partner: it stays at its number where that is free.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from isomerge.archs import spec_for
from isomerge.checkpoint.companions import VOCABULARY_FILES, ids_of_tokens, tokenizer_files
from isomerge.checkpoint.reader import Checkpoint
from isomerge.config.keys import LABELS as LABEL_KEYS
from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model, recognise
from isomerge.symmetry.axes import LABELS, VOCABULARY
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec

CLASSIFIERS = re.compile("Classification|Detection|Segmentation|Parsing")
"""What is in the names of classes whose config names what they tell apart."""
CTC = "ForCTC"
"""How the names of classes end whose outputs are tokens."""
UNNAMED = re.compile(r"label_\d+")
"""The names that transformers gives to classes without names."""
Names = Mapping[str, int]
"""What rows are called, and their numbers."""
Use = Literal["compared", "averaged", "replaced"]
"""What becomes of rows of one number: they are compared, averaged, or the later model's take the first one's place.
Rows without a partner are free where they are compared, and refused where they would be averaged; where they take
others' places they may stay where they are."""
WAYS_OUT = {
    VOCABULARY: "give models of one vocabulary (isomerge transplant-tokenizer makes them so)",
    LABELS: "where they mean the same, give them one name (id2label in config.json); merge keeps heads apart with "
    "--heads copy, keep:MODEL or separate",
}
"""What to do about rows without partners."""


@dataclass(frozen=True)
class Difference:
    """How two lists of names of rows differ."""

    count: int
    """Rows that are not called the same in both."""
    row: int
    """The first of them."""
    said: tuple[str | None, str | None]
    """What it is called in the two; None: it has no name."""
    reordered: bool
    """Whether both have the same names."""
    opposed: bool
    """Whether a name has two rows, or a row two names: else one has names for rows of which the other says
    nothing."""

    @property
    def sentence(self) -> str:
        """How they differ, behind what they are."""
        first, second = ("nothing" if name is None else repr(name[:40]) for name in self.said)
        return f"{self.count} {'row' if self.count == 1 else 'rows'}: row {self.row} is {first} and {second}"


def difference(mine: Names, theirs: Names) -> Difference | None:
    """How names of rows differ; None where they are equal."""
    if mine == theirs:
        return None
    left, right = ({row: name for name, row in names.items()} for names in (mine, theirs))
    rows = {row for name, row in mine.items() if theirs.get(name) != row}
    rows |= {row for name, row in theirs.items() if mine.get(name) != row}
    opposed = any(theirs.get(name, row) != row for name, row in mine.items())
    opposed |= any(left.get(row, name) != name for name, row in theirs.items())
    first = min(rows)
    return Difference(len(rows), first, (left.get(first), right.get(first)), mine.keys() == theirs.keys(), opposed)


def described(checkpoint: Checkpoint, spec_file: str | Path | None) -> Spec | None:
    """The spec of a checkpoint; None where there is none that fits."""
    with suppress(IsomergeError):
        return spec_for(checkpoint.config, spec_file, checkpoint.shapes)
    return None


def stored_ids(checkpoint: Checkpoint) -> Names | None:
    """The tokens of a checkpoint's tokenizer with their ids, from its files where that can be, as loading one takes
    seconds; None where it has none, or none that can be read."""
    files = checkpoint.companions()
    if "tokenizer.json" in files:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # no tokenizer, whatever it is
            return ids_of_tokens(files)
    elif any(name in VOCABULARY_FILES for name in files):
        from isomerge.checkpoint.tokenizer import load_tokenizer, token_ids

        with suppress(IsomergeError):
            return token_ids(load_tokenizer(checkpoint))
    return None


def token_rows(checkpoint: Checkpoint, spec: Spec | None) -> Names | None:
    """The tokens that have rows; None where a model has no rows of tokens, or no tokenizer that can be read."""
    size = Inputs(checkpoint.config).vocabulary if spec is None else spec.sizes.get(VOCABULARY, 0)
    ids = stored_ids(checkpoint) if size else None
    return None if ids is None else {token: row for token, row in ids.items() if row < size}


def _token_rows(model: Model) -> Names | None:
    return token_rows(model.checkpoint, None if _is_undescribed(model) else model.spec)


def class_rows(model: Model) -> Names | None:
    """The names of the classes that a head tells apart, in small letters; None where its model has no such head,
    or nobody has named them."""
    inputs = Inputs(model.config)
    if inputs.architecture.endswith(CTC):
        return stored_ids(model.checkpoint)
    if inputs.architecture and not CLASSIFIERS.search(inputs.architecture):
        return None
    by_id, by_name = (model.config.get(key) or {} for key in LABEL_KEYS)
    listed = dict(enumerate(model.config.get("label_names") or ()))  # timm's key
    for names in (by_id, {row: name for name, row in by_name.items()}, listed):
        rows: dict[str, int] = {}
        for row, name in sorted(zip(map(int, names), map(str, names.values()), strict=True)):
            name = name.strip().casefold()
            rows[name if name not in rows else f"{name} ({row})"] = row
        if [*rows.values()] == [*range(len(rows))] and not any(map(UNNAMED.fullmatch, rows)) and len(rows) > 1:
            return rows
    return None


@dataclass(frozen=True)
class InOrder:
    """Models whose rows stand for the same things; the first that names them is as it is."""

    models: list[Model]
    notes: list[str]
    """What was done, and what cannot be told."""
    orders: list[dict[str, tuple[int, list[int]]]]
    """For every model: by canonical names of tensors, the axis of the rows and which stored row each was."""

    def as_stored(self, number: int, block: Block, tensor: Tensor) -> Tensor:
        """A block of a model with its rows where they are stored."""
        order = self.orders[number].get(block.canonical[0])
        if order is None:
            return tensor
        axis, rows = order
        return tensor.index_select(axis, torch.tensor(rows, device=tensor.device).argsort())


def in_order(models: Sequence[Model], *, tokens: bool = True, use: Use = "compared") -> InOrder:
    """Models with their rows in the order of the first one's.

    Args:
        models: of one architecture.
        tokens: whether rows of tokens are looked at, beside those of classes.
        use: what becomes of rows of one number.

    Raises:
        IsomergeError: rows have no partners, and may not be free.
    """
    made = InOrder(list(models), [], [{} for _ in models])
    if tokens:
        known = [_token_rows(model) for model in models]
        made.notes.extend(unknown_tokens(dict(zip([m.ref for m in models], known, strict=True))))
        _bring(made, "tokenizers", known, VOCABULARY, use)
    tables = [_tables(model, LABELS) for model in models]
    headed = [bool(table) or _is_undescribed(model) for table, model in zip(tables, models, strict=True)]
    named = [class_rows(model) if has else None for model, has in zip(models, headed, strict=True)]
    heads = [model for model, has in zip(models, headed, strict=True) if has]
    if any(named) and (nameless := [m.ref for m in heads if named[models.index(m)] is None]):
        others = [m.ref for m in heads if m.ref not in nameless]
        made.notes.append(
            f"the classes of {' and '.join(nameless)} have no names that could be compared with those of "
            f"{' and '.join(others)}: rows of heads are taken by their numbers"
        )
    tasks = {Inputs(model.config).task: model.ref for model in reversed(heads)}
    if len(tasks) > 1:
        refs = " and ".join(f"{ref} ({task})" for task, ref in tasks.items())
        made.notes.append(f"the heads of {refs} are of other tasks: their rows are taken by their numbers")
    _bring(made, "classes", named, LABELS, use)
    return made


def of_all_tokens(models: Sequence[Model]) -> InOrder:
    """Models that are averaged, read as `isomerge.merge` reads them: with the tokens of all, where their tokenizers
    differ, and with classes in one order.

    Raises:
        IsomergeError: rows of different tokens that cannot be brought together, or classes with other names.
    """
    from isomerge.models.vocabulary_views import with_vocabulary

    made = in_order(models, tokens=False, use="averaged")
    known = {model.ref: _token_rows(model) for model in models}
    notes = unknown_tokens(known)
    if apart := unlike_tokens(known):
        views, _ = with_vocabulary([m.checkpoint for m in made.models], spec_file=models[0].spec_file)
        notes.append(f"{apart[0].said}; rows are averaged by token")
        for k, view in enumerate(views):
            opened = recognise(view, spec_file=models[k].spec_file)
            made.models[k] = replace(opened, unties=models[k].unties)
    return replace(made, notes=[*made.notes, *notes])


def with_tokens_of(output: Model, models: Sequence[Model]) -> list[Model]:
    """Models as they read the texts of another one: in its vocabulary, where theirs has other tokens or another
    number of rows.

    Raises:
        IsomergeError: rows of different tokens that cannot be brought together.
    """
    from isomerge.models.vocabulary_views import with_vocabulary

    every = [output, *models]
    sizes = {model.spec.sizes.get(VOCABULARY) for model in every}
    if len(sizes) == 1 and not unlike_tokens({f"{k}": _token_rows(model) for k, model in enumerate(every)}):
        return list(models)
    views, _ = with_vocabulary([m.checkpoint for m in every], source="first", spec_file=output.spec_file)
    return [
        replace(recognise(view, spec_file=model.spec_file), unties=model.unties)
        for view, model in zip(views[1:], models, strict=True)
    ]


@dataclass(frozen=True)
class Unlike:
    """A model whose tokens have other rows than those of the first one that has a tokenizer."""

    ref: str
    how: Difference
    said: str
    """That they differ, and in what."""


def unlike_tokens(known: Mapping[str, Names | None]) -> list[Unlike]:
    """Every model whose tokens have other rows than those of the first that has a tokenizer, from the tokens of
    all by their names."""
    (first, mine), *others = [(ref, ids) for ref, ids in known.items() if ids is not None] or [("", {})]
    return [
        Unlike(ref, how, f"the tokenizers of {first} and {ref} differ in {how.sentence}")
        for ref, ids in others
        if (how := difference(mine, ids)) is not None
    ]


def unknown_tokens(known: Mapping[str, Names | None]) -> list[str]:
    """What to tell where some models have a tokenizer, and of others nobody knows which tokens their rows are."""
    lacking = [ref for ref, tokens in known.items() if tokens is None]
    if not lacking or len(lacking) == len(known):
        return []
    having = next(ref for ref, tokens in known.items() if tokens is not None)
    have = "has" if len(lacking) == 1 else "have"
    return [
        f"{' and '.join(lacking)} {have} no tokenizer that can be read: the rows are taken to be of the tokens of "
        f"{having}"
    ]


def _bring(made: InOrder, what: str, known: Sequence[Names | None], axis: str, use: Use) -> None:
    """Bring rows of one kind into the order of the first model that names them."""
    first = next((k for k, names in enumerate(known) if names is not None), len(known))
    for k in range(first + 1, len(known)):
        mine, theirs = known[first], known[k]
        if mine is None or theirs is None or (apart := difference(mine, theirs)) is None:
            continue
        anchor, other = made.models[first], made.models[k]
        said = f"the {what} of {anchor.ref} and {other.ref} differ in {apart.sentence}"
        stays = use == "replaced" and all(theirs.get(name, row) == row for name, row in mine.items())
        if not (use == "compared" or apart.reordered or stays or (axis == VOCABULARY and not apart.opposed)):
            raise IsomergeError(f"{said}, so that rows have no partners: {WAYS_OUT[axis]}")
        if stays:
            made.notes.append(f"{said}; rows are taken by their numbers, and are what {other.ref} calls them")
            continue
        if apart.opposed and _is_undescribed(other):
            raise IsomergeError(
                f"{said}, and nothing says which tensors of {other.config.get('model_type')} have such rows: give "
                "both models one order"
            )
        tables = {
            name: (at, rows)
            for name, (at, rows) in _tables(other, axis).items()
            if rows in (len(theirs), len(theirs) + 1) or axis == VOCABULARY
        }
        # a table and its bias have one order, which is long
        by_count = {rows: partners(mine, theirs, rows) for rows in {rows for _, rows in tables.values()}}
        orders = {name: (at, by_count[rows]) for name, (at, rows) in tables.items()}
        if not apart.opposed or not orders:
            made.notes.append(f"{said}; rows are taken by their numbers")
            continue
        made.models[k] = replace(other, checkpoint=_reordered(other, orders, anchor.checkpoint, axis))
        made.orders[k].update({other.matches[name].canonical: order for name, order in orders.items()})
        lone = sum(name not in theirs for name in mine)
        rest = f"; {lone} of them have no partner" if lone else ""
        made.notes.append(f"{said}; rows are taken by what they mean, in the order of {anchor.ref}{rest}")


def partners(mine: Names, theirs: Names, count: int) -> list[int]:
    """For every row of one model, the other's row of the same name; of those without one, the row of that number
    where it is free, and the next one that is."""
    rows: dict[int, int] = {}
    free = dict.fromkeys(range(count))
    named = [(row, theirs[name]) for name, row in mine.items() if name in theirs]
    for row, partner in (*named, *((row, row) for row in range(count))):
        if row < count and row not in rows and partner in free:
            rows[row] = partner
            del free[partner]
    rest = iter(free)
    return [rows[row] if row in rows else next(rest) for row in range(count)]


def _tables(model: Model, name: str) -> dict[str, tuple[int, int]]:
    """The stored tensors with an axis of this name that is no part of another: which one, and its length."""
    return {
        stored: (axis, model.checkpoint.tensors[stored].shape[axis])
        for stored, match in model.matches.items()
        if (axis := match.line.axis_over(name)) is not None
    }


def _is_undescribed(model: Model) -> bool:
    """Whether its tensors are taken as they are stored, without a word on their axes."""
    return all(match.line.axes is None for match in model.matches.values())


def _reordered(
    model: Model, orders: Mapping[str, tuple[int, list[int]]], like: Checkpoint, axis: str
) -> Checkpoint:
    """A view with rows in the order of another checkpoint, with its labels or its tokenizer."""
    checkpoint, config = model.checkpoint, dict(model.config)
    derived = {name: checkpoint.made_of(name, partial(_rows_of, *order)) for name, order in orders.items()}
    companions = None
    if axis == VOCABULARY or Inputs(config).architecture.endswith(CTC):
        companions = {**checkpoint.companions(), **tokenizer_files(like.companions())}
    if axis == VOCABULARY:
        from isomerge.models.vocabulary_views import with_moved_ids

        longest = max((rows for _, rows in orders.values()), key=len)
        config = with_moved_ids(config, longest, like.config)
    else:
        config |= {key: like.config[key] for key in LABEL_KEYS if key in like.config}
    digest = hashlib.sha256()
    for name, (at, rows) in sorted(orders.items()):
        digest.update(f"{name} {at} {len(rows)} ".encode() + torch.tensor(rows).numpy().tobytes())
    return checkpoint.derive(derived, origin=f"rows {digest.hexdigest()}", config=config, companions=companions)


def _rows_of(axis: int, rows: list[int], tensor: Tensor) -> Tensor:
    return tensor.index_select(axis, torch.tensor(rows))

"""Models of one vocabulary: which tokens the output has, and every model as if it had been trained with them.

The rules are mergekit's (0.1.5, ``tokenizer``), applied to every axis that a spec calls ``vocab``. A token that a
model has keeps its row. A token that it lacks gets, in this order: what ``tokens`` says; the row of the only model
that has it; the base model's row; the mean of all models that have it. A token that no model has gets zeros. Where
tokens end and rows go on (padding), a vocabulary that was some model's keeps that model's rows; new padding is the
mean of all rows (Hewitt 2021).

What a token gets that a model lacks may be said otherwise (``missing``, `MISSING`): sums of the model's own rows.
Tokens of the output are then the model's own also where its tokenizer writes them in another way, or where they
mark the same (the end of a text).

Differences: no row is ever cut silently (``pad_to_multiple_of`` only adds), a model without a tokenizer is an
error, ids of special tokens in the configs follow their tokens, and ids of a union do not depend on the order of a
hash table.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companions import tokenizer_files
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.tokenizer import extended, load_tokenizer, saved_files, token_ids, tokenizer_alone
from isomerge.errors import IsomergeError

Row = tuple[int, int]
"""A model's number and one of its rows."""
MISSING = ("copy", "omp", "nearest", "subword", "mean", "zero")
"""What a token gets that a model lacks: rows of models that have it (mergekit's rule); the sum of own rows that
orthogonal matching pursuit, or nearness, finds in a model that has it (`isomerge.models.vocabulary_views`); the
mean of the rows of its pieces by the model's own tokenizer; the mean of all rows; zeros. Sums without such a model
are of pieces, and pieces where there are none are the mean."""
NEIGHBOURS = 64
"""How many rows are summed, at most."""
MOST_PADDING = 65_536
"""The largest number whose multiple rows are padded to, and the most rows that ids make without tokens."""
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""What tokens mark, beside what they spell; the first roles of a token count."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>$")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


@dataclass(frozen=True)
class TokenRule:
    """Where the row of one token comes from: a model (its own token), a row of a model, or zeros (None, None).

    ``force`` sets it in models that have the token as well.
    """

    model: int | None = None
    token: str | None = None
    row: int | None = None
    zero: bool = False
    force: bool = False


@dataclass
class Vocabulary:
    """What the output's tokens are, and where every model's rows come from; made by `decide_vocabulary`."""

    tokens: dict[str, int]
    """The output's tokens and their ids."""
    size: int
    """The output's rows."""
    files: dict[str, bytes | Path]
    """The output's tokenizer: file name to content or path."""
    owner: int | None
    """The model whose vocabulary it is, if it is one's."""
    models: list[dict[str, int]] = field(repr=False)
    """Every model's own tokens that have rows."""
    rows: list[list[list[Row]]] = field(repr=False)
    """For every model and every output row, the rows whose mean it is; empty for zeros, ``[AVERAGE]`` for
    padding."""

    sums: list[dict[int, Row]] = field(default_factory=list, repr=False)
    """For every model, output rows that are sums of its own, each with the row of a model that has the token."""
    shared: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict, repr=False)
    """For a model and one that it learns sums from, the rows of the tokens that both have."""
    missing: str = "copy"
    """What tokens get that a model lacks, as it was asked for (`MISSING`)."""
    neighbours: int = NEIGHBOURS
    counts: list[dict[str, int]] = field(default_factory=list)
    """For every model, how many tokens have its own row (``own``), and how many what else."""

    def unchanged(self, model: int) -> bool:
        """Whether a model's rows stay as they are."""
        return all(sources == [(model, at)] for at, sources in enumerate(self.rows[model]))

    def filled(self, model: int) -> int:
        """How many tokens a model gets from elsewhere."""
        if self.counts:
            return sum(number for how, number in self.counts[model].items() if how != "own")
        return sum(sources != [AVERAGE] and all(m != model for m, _ in sources) for sources in self.rows[model])


AVERAGE: Row = (-1, -1)
"""In place of a row: the mean of the rows of all tokens."""


def decide_vocabulary(
    models: Sequence[Checkpoint],
    sizes: Sequence[int],
    *,
    source: str = "union",
    base: int | None = None,
    tokens: Mapping[str, Any] | None = None,
    pad_to_multiple_of: int | None = None,
    missing: str = "copy",
    neighbours: int = NEIGHBOURS,
) -> Vocabulary:
    """The output's vocabulary; reads tokenizers, no weights.

    Args:
        models: the models, in the order of the recipe.
        sizes: the rows of their embeddings.
        source: ``union``, ``base`` (the base model's, or the first's when there is none), ``first``, a model's
            ``ref``, or any folder or hub id with a tokenizer.
        base: the number of the base model among ``models``, whose rows come before means of several.
        tokens: for single tokens ``{source, force}`` as in mergekit's ``tokenizer.tokens``: ``source`` is a model's
            ``ref``, ``{kind: model_token, model, token | token_id}`` or ``{kind: zero}``. Unknown tokens are added.
        pad_to_multiple_of: rows are added until their number is a multiple of this, at most `MOST_PADDING`.
        missing: what a token gets that a model lacks, one of `MISSING`.
        neighbours: how many rows are summed, at most, by ``omp`` and ``nearest``.

    Raises:
        IsomergeError: a model has no tokenizer, ``source`` is none, a rule is not understood or names a token or
            model that is not there, or the multiple is none.
    """
    check_multiple(pad_to_multiple_of)
    check_missing(missing, neighbours)
    loaded = [load_tokenizer(model) for model in models]
    theirs = [{t: at for t, at in token_ids(x).items() if at < size} for x, size in zip(loaded, sizes, strict=True)]
    rules = {token: _rule(token, rule, models, theirs, sizes) for token, rule in (tokens or {}).items()}
    refs = [model.ref for model in models]
    first = 0 if base is None else base
    keeper = {"union": first, "base": first, "first": 0}.get(source, refs.index(source) if source in refs else None)
    try:
        giver = models[keeper] if keeper is not None else tokenizer_alone(source)
    except IsomergeError as error:
        raise IsomergeError(f"--tokenizer-source: choose base, union or a model ({error.sentence})") from None
    tokenizer = loaded[keeper] if keeper is not None else load_tokenizer(giver)
    if keeper is None and missing != "copy":  # a model's own tokens keep its padding, too
        keeper = next((k for k, x in enumerate(loaded) if token_ids(x) == token_ids(tokenizer)), None)
    others = [(x, sizes[k]) for k, x in enumerate(loaded) if k != keeper] if source == "union" else []
    own = token_ids(tokenizer)
    _check_gap(own, 0 if keeper is None else sizes[keeper], giver.ref)
    new = [token for token in rules if token not in own]
    files = tokenizer_files(giver.companions())
    if new or (source == "union" and any(token not in own for tokens in theirs for token in tokens)):
        tokenizer = extended(tokenizer, others, new, giver.ref)
        files = saved_files(tokenizer)
    ids = token_ids(tokenizer)
    grown = ids != own
    size = sizes[keeper] if keeper is not None and not grown else max(ids.values(), default=-1) + 1
    size = max(size, sizes[keeper]) if keeper is not None else size
    multiple = 1 if pad_to_multiple_of is None else pad_to_multiple_of
    size = -(-size // multiple) * multiple
    made = Vocabulary(
        ids, size, files, None if grown else keeper, theirs, [], missing=missing, neighbours=neighbours
    )
    if missing == "copy":
        made.rows = [_rows(m, ids, size, theirs, sizes, rules, base, keeper) for m in range(len(models))]
        return made
    own = [_own_rows(tokenizer, x, tokens) for x, tokens in zip(loaded, theirs, strict=True)]
    for m in range(len(models)):
        others = set().union(*(own[k] for k in range(len(own)) if k != m))
        lacking = {t: at for t, at in ids.items() if t not in own[m] and (missing == "subword" or t not in others)}
        none = missing in ("mean", "zero") or not lacking
        pieces = {} if none else pieces_of(tokenizer, lacking, loaded[m], sizes[m])
        _fill(made, m, own, sizes, rules, base, keeper, pieces)
    return made


def _check_gap(ids: Mapping[str, int], rows: int, ref: str) -> None:
    """Refuse ids so far beyond the tokens, and beyond the rows that are there, that a table would be padding."""
    token = max(ids, key=ids.__getitem__, default="")
    if ids and ids[token] >= rows and ids[token] + 1 - len(ids) > MOST_PADDING:
        raise IsomergeError(
            f"{ref}: its tokenizer has {len(ids)} tokens and gives {token[:40]!r} the id {ids[token]}: more than "
            f"{MOST_PADDING} rows would be of no token; give its tokens ids without such a gap"
        )


def check_missing(missing: str, neighbours: int) -> None:
    """Refuse what is no way to make up rows.

    Raises:
        IsomergeError: naming the option.
    """
    if missing not in MISSING:
        raise IsomergeError(
            f"missing: {missing!r} is no way to make up rows of tokens; choose from {', '.join(MISSING)}"
        )
    if neighbours < 1:
        raise IsomergeError(f"neighbours: {neighbours} is no number of rows to sum; give 1 or more")


def _own_rows(tokenizer: Any, own: Any, rows: Mapping[str, int]) -> dict[str, int]:
    """From the output's tokens to the rows of a model that are theirs."""
    same = same_tokens(tokenizer, own)
    return {token: rows[mine] for token, mine in same.items() if mine in rows}


def _fill(
    made: Vocabulary,
    model: int,
    own: Sequence[Mapping[str, int]],
    sizes: Sequence[int],
    rules: Mapping[str, TokenRule],
    base: int | None,
    keeper: int | None,
    pieces: Mapping[str, list[int]],
) -> None:
    """Where the output rows of one model come from, where those that it lacks are made of its own."""
    theirs = made.models
    same = keeper is not None and theirs[model] == theirs[keeper]
    rows: list[list[Row]] = [[(model, at)] if same and at < sizes[model] else [AVERAGE] for at in range(made.size)]
    sums: dict[int, Row] = {}
    counts = {"own": 0}
    for token, at in made.tokens.items():
        if at >= made.size:
            continue
        rule, mine = rules.get(token), own[model].get(token)
        donors = [m for m in range(len(own)) if m != model and token in own[m]]
        if rule and (mine is None or rule.force):
            rows[at], how = _ruled(token, rule, theirs), "rule"
        elif mine is not None:
            rows[at], how = [(model, mine)], "own"
        elif donors and made.missing in ("omp", "nearest"):
            donor = base if base in donors else donors[0]
            rows[at], sums[at], how = [], (donor, own[donor][token]), made.missing
            if (model, donor) not in made.shared:
                shared = [(row, own[donor][t]) for t, row in own[model].items() if t in own[donor]]
                made.shared[model, donor] = shared
        elif made.missing == "zero":
            rows[at], how = [], "zero"
        elif token in pieces:
            rows[at], how = [(model, row) for row in pieces[token]], "subword"
        else:
            rows[at], how = [AVERAGE], "mean"
        counts[how] = counts.get(how, 0) + 1
    for pair, shared in made.shared.items():
        if pair[0] == model and not shared:
            raise IsomergeError(
                "the two tokenizers share no token, so that no sum can be carried from one to the other: take "
                "subword, mean or zero"
            )
    made.rows.append(rows)
    made.sums.append(sums)
    made.counts.append(counts)


def check_multiple(pad_to_multiple_of: int | None) -> None:
    """Refuse a multiple that is no number of rows, or so large that padding would fill time and memory.

    Raises:
        IsomergeError: naming the option.
    """
    if pad_to_multiple_of is not None and not 1 <= pad_to_multiple_of <= MOST_PADDING:
        raise IsomergeError(
            f"pad_to_multiple_of: {pad_to_multiple_of} is no number of rows to pad to; give 1 or more, up to "
            f"{MOST_PADDING}"
        )


def _rows(
    model: int,
    output: Mapping[str, int],
    size: int,
    theirs: Sequence[Mapping[str, int]],
    sizes: Sequence[int],
    rules: Mapping[str, TokenRule],
    base: int | None,
    keeper: int | None,
) -> list[list[Row]]:
    """Where the output rows of one model come from."""
    rows = [_padding(model, at, theirs, sizes, keeper) for at in range(size)]
    for token, at in output.items():
        if at >= size:
            continue
        rule = rules.get(token)
        own = theirs[model].get(token)
        if own is not None and not (rule and rule.force):
            rows[at] = [(model, own)]
        elif rule:
            rows[at] = _ruled(token, rule, theirs)
        else:
            owners = [m for m, tokens in enumerate(theirs) if token in tokens]
            if base in owners and len(owners) > 1:
                owners = [m for m in owners if m == base]
            rows[at] = [(m, theirs[m][token]) for m in owners]
    return rows


def _padding(
    model: int, at: int, theirs: Sequence[Mapping[str, int]], sizes: Sequence[int], keeper: int | None
) -> list[Row]:
    """A row without a token: the model's own where its tokenizer is the keeper's, else the keeper's, else the
    mean."""
    if keeper is None or at >= sizes[keeper]:
        return [AVERAGE]
    same = theirs[model] == theirs[keeper]
    return [(model if same and at < sizes[model] else keeper, at)]


def _ruled(token: str, rule: TokenRule, theirs: Sequence[Mapping[str, int]]) -> list[Row]:
    if rule.zero or rule.model is None:
        return []
    return [(rule.model, rule.row if rule.row is not None else theirs[rule.model][rule.token or token])]


def _rule(
    token: str, entry: Any, models: Sequence[Checkpoint], theirs: Sequence[Mapping[str, int]], sizes: Sequence[int]
) -> TokenRule:
    """One entry of ``tokens``, checked."""
    where = f"tokenizer.tokens.{token}"
    if not isinstance(entry, Mapping) or not set(entry) <= {"source", "force"} or "source" not in entry:
        raise IsomergeError(f"{where}: give `source` and, if every model is to have it, `force: true`")
    force, source = entry.get("force", False), entry["source"]
    if not isinstance(force, bool):
        raise IsomergeError(f"{where}.force: {force!r} is neither true nor false")
    kind = source.get("kind") if isinstance(source, Mapping) else "model"
    if kind == "zero" and set(source) == {"kind"}:
        return TokenRule(zero=True, force=force)
    name, want, row = source, token, None
    if kind == "model_token" and len(source) == 3 and set(source) <= {"kind", "model", "token", "token_id"}:
        name, want, row = source.get("model"), source.get("token"), source.get("token_id")
    elif kind != "model":
        raise IsomergeError(
            f"{where}.source: give a model, {{kind: zero}}, or {{kind: model_token, model: ..., token: ...}} "
            "(or token_id)"
        )
    refs = [model.ref for model in models]
    if name not in refs:
        raise IsomergeError(f"{where}.source: {name!r} is none of the models ({', '.join(refs)})")
    model = refs.index(name)
    if row is None and want not in theirs[model]:
        raise IsomergeError(f"{where}.source: {name} has no token {want!r}; name a token of its tokenizer")
    if row is not None and not (type(row) is int and 0 <= row < sizes[model]):
        raise IsomergeError(f"{where}.source.token_id: {row!r} is no row of {name}, which has {sizes[model]}")
    return TokenRule(model, want, row, force=force)


def digest(vocabulary: Vocabulary, model: int) -> str:
    """A digest of where a model's rows come from."""
    decided: list[Any] = [vocabulary.rows[model]]
    if vocabulary.sums and vocabulary.sums[model]:
        shared = [[k, v] for k, v in vocabulary.shared.items() if k[0] == model]
        decided += [vocabulary.missing, vocabulary.neighbours, sorted(vocabulary.sums[model].items()), shared]
    return hashlib.sha256(json.dumps(decided if len(decided) > 1 else decided[0]).encode()).hexdigest()


@cache
def _bytes_of_letters() -> dict[str, int]:
    """The letter by which byte-level BPE writes every byte (Radford et al. 2019): printable ones by themselves, the
    others by the letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + k): byte for k, byte in enumerate(rest)}


def spelled(tokenizer: Any) -> dict[str, bytes]:
    """What every ordinary token of a tokenizer spells, in bytes; of those that were added, nothing."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    letters = _bytes_of_letters() if _is_byte_level(tokenizer) else None
    spelling = {}
    for token in tokenizer.get_vocab():
        if token in added:
            continue
        if letters is not None:
            if all(letter in letters for letter in token):
                spelling[token] = bytes(letters[letter] for letter in token)
        elif (byte := _BYTE.match(token)) is not None:
            spelling[token] = bytes([int(byte[1], 16)])
        else:
            spelling[token] = token.replace(_SPACE, " ").encode()
    return spelling


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether letters stand for bytes; asked of its decoder, as SentencePiece's byte tokens are none of these."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "ByteLevel" in repr(getattr(backend, "decoder", None)) if backend is not None else False


def same_tokens(wanted: Any, own: Any) -> dict[str, str]:
    """From tokens of one tokenizer to those of another that are the same: by name, by what they spell, or by what
    they mark (the end of a text)."""
    mine = own.get_vocab()
    pairs = {token: token for token in wanted.get_vocab() if token in mine}
    by_bytes: dict[bytes, str] = {}
    for token, content in spelled(own).items():
        by_bytes.setdefault(content, token)
    for token, content in spelled(wanted).items():
        if token not in pairs and content in by_bytes:
            pairs[token] = by_bytes[content]
    for role in ROLES:
        their_special, own_special = (getattr(tokenizer, f"{role}_token", None) for tokenizer in (wanted, own))
        if (
            their_special is not None
            and own_special is not None
            and str(their_special) not in pairs
            and str(own_special) in mine
        ):
            pairs[str(their_special)] = str(own_special)
    return pairs


def pieces_of(wanted: Any, tokens: Mapping[str, int], own: Any, rows: int) -> dict[str, list[int]]:
    """For tokens of one tokenizer, the ids of what another makes of their text: of those that have a row, and
    without what it adds to texts. Tokens that spell nothing are left out."""
    texts = {
        token: content.decode(errors="ignore") for token, content in spelled(wanted).items() if token in tokens
    }
    pieces = {}
    unknown = own.unk_token_id
    for token, text in texts.items():
        ids = own(text, add_special_tokens=False)["input_ids"] if text else []
        known = [at for at in ids if at < rows and at != unknown]
        if known:
            pieces[token] = known
    return pieces

"""A fingerprint of a checkpoint modulo symmetry: small, and the same for every disguise of a model.

It holds relations between vectors that have names (`isomerge.quotient.stream_anchors`,
`isomerge.quotient.relations`), spectra of circuits, which no vocabulary touches (`isomerge.quotient.spectra`), and
what the config says of the function, made in one pass over the weights, a unit at a time. Two fingerprints tell
whether two models are the same function, derived from one base, or independent (`isomerge.quotient.similarity`);
the hash is a name for the function.

Tensors that no product reaches, or whose products have no end with a name, count by their lengths: in the
canonical gauge, with gains folded, all that is left to act keeps lengths, so that the length of a tensor at every
place that has a name is the same number in all twins. It says less than a relation, but of every tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import hypot, isfinite, log, prod
from typing import Any

import torch
from torch import Tensor

from isomerge.config.agreement import as_transformers_reads, config_value
from isomerge.config.keys import ASIDE, LABELS
from isomerge.errors import OVERFLOW, IsomergeError
from isomerge.matching.alternation import trees
from isomerge.matching.balance import balance_powers, canonical_gauge, fold_biases
from isomerge.matching.gram import along, is_gain_of_latent
from isomerge.models.free_streams import given_out
from isomerge.models.layer_norm_form import LayerNormForm, form_of, in_layer_norm_form
from isomerge.models.recognised import Model, Moved, coarsest_dtype, working_dtype
from isomerge.models.unit_plan import make_plan, with_progress
from isomerge.progress import Observer, quiet
from isomerge.quotient.draws import salted, signs, sketch
from isomerge.quotient.record import BASIS, FORMAT, Fingerprint, Relation, View, read_fingerprint
from isomerge.quotient.relations import WAYS, Related, relations
from isomerge.quotient.spectra import Spectrum, spectra
from isomerge.quotient.storage import Look
from isomerge.quotient.stream_anchors import EVERY, LENGTHS, Draws, anchors_of
from isomerge.solve.canonical.canonical_frame import free_folding
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks, layer_of, leaves
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import elements_of

__all__ = ["Fingerprint", "fingerprint", "read_fingerprint"]

STEP = 5e-3
"""What a hash rounds to. Twins in float32 are up to 1e-6 apart, so that some model in 300 lies at an edge."""
NOISE = 1e-2
"""The least norm of what begins at one line, as a share of all of its kind: biases may be nothing but rounding."""
SUMS = 32
"""Numbers in a hash. All of them see every relation: a change that leaves every one within a step is rare."""

LENGTH = "length"
"""The kind of what is known of a tensor that no product reaches."""
RelationsByDraw = dict[tuple[str, str, str], tuple[Block, Related]]
"""Relations by draw, block and kind."""


def fingerprint(model: Model, observer: Observer = quiet, *, salt: str = "") -> Fingerprint:
    """The fingerprint of a model, in one pass over its weights and one more over its embeddings and gains.

    Memory: one unit (the tensors of a layer's attention, or of its MLP), or the table of embeddings, in float32 (in
    float64 for checkpoints of full precision).

    Args:
        model: what is read.
        observer: told of every unit.
        salt: what anchors are drawn with: nobody who does not know it can tell which rows count. Fingerprints of
            one salt compare.

    Raises:
        IsomergeError: there are no tensors, or numbers so large that their products overflow.
    """

    if not model.checkpoint.tensors:
        raise IsomergeError(
            f"{model.ref} has no tensors, so there is nothing to tell it by: is its file of weights lost?"
        )
    exact, name = working_dtype([model]) == torch.float64 or not _halves(model), ""
    for dtype in (torch.float64,) if exact else (torch.float32, torch.float64):
        try:
            return _made(model, observer, dtype, salt)
        except OverflowError as error:
            name = str(error)
    raise IsomergeError(
        f"{model.ref}: products of tensor {name} overflow even in float64, so that nothing can be told of them: is "
        "the checkpoint damaged?"
    )


def _made(model: Model, observer: Observer, dtype: torch.dtype, salt: str) -> Fingerprint:
    """The fingerprint in one dtype, without what LayerNorm leaves free. Raises OverflowError with the name
    of the block whose numbers are too large."""
    model = in_layer_norm_form(model)
    local = make_plan(model, [], "default")
    shifts, spec = local.selection.inner, model.spec.turning_latents()
    fold = free_folding(model, dtype)
    draws, tables = anchors_of(model, dtype, fold, salt)
    form, stored = form_of(model), model.without(LayerNormForm)
    by_draw: RelationsByDraw = {}
    spectra_by_key: dict[str, Spectrum] = {}
    look = Look(salt)
    for unit in with_progress(model, local.units, observer):
        floats = {
            block: _moved(stored, form, block, dtype, fold, look) for block in unit.blocks if _counts(model, block)
        }
        floats = {block: t for block, t in floats.items() if t.is_floating_point()}
        meet = trees(shifts, floats)
        dead = _balanced(shifts, floats) if meet or _chained(shifts, floats) else None
        if dead is None:
            fold_biases(shifts, floats)
            balance_powers(shifts, floats)
        related = _related(spec, floats, draws, salt)
        by_draw |= related
        covered = {key for _, x in related.values() for key in x.blocks}
        if silent := [b for b in floats if b.key not in covered and b.axes is not None]:
            dead = _balanced(shifts, floats) if dead is None else dead
            clear = {b: floats[b] for b in silent if dead.isdisjoint(elements_of(shifts, b))}
            by_draw |= {(EVERY, b.key, LENGTH): (b, x) for b, x in lengths(spec, shifts, clear, salt).items()}
        of_unit = spectra(shifts, floats)
        if meet:  # what reads a latent has no relation to the stream: spectra speak for it
            for key, x in of_unit.items():
                values = x.data.flatten().sort(descending=True).values
                by_draw["", unit.blocks[0].key, f"{ElementKey.of(key).name}:spectrum"] = (
                    unit.blocks[0],
                    Related(values, ()),
                )
        spectra_by_key |= of_unit
    by_draw |= _bases(model, draws, fold, salt)
    _check_finite(by_draw, spectra_by_key)
    asked = {key: value for key, value in model.config.items() if key not in ASIDE}
    return Fingerprint(
        spec.model_type,
        _hash(model, by_draw, salt),
        look.storage(coarsest_dtype(model)),
        salted(salt),
        json.loads(json.dumps(asked, default=str)),
        spec.config_keys,
        dict(spec.sizes),
        {
            draw: {s: View(a.names, (a.rows @ a.rows.mT).float()) for s, a in streams.items()}
            for draw, streams in draws.items()
        },
        tables,
        [
            Relation(draw, *_place(block), kind, _narrow(x.data), x.ends)
            for (draw, _, kind), (block, x) in sorted(by_draw.items(), key=lambda r: r[0])
        ],
        spectra_by_key,
        look.entries,
        model.ref,
    )


def _narrow(x: Tensor) -> Tensor:
    """As float32, where that holds it."""
    narrow = x.float()
    return narrow if bool(narrow.isfinite().all()) else x


def _place(block: Block) -> tuple[str, str, int | None]:
    """The block's name, its stack and its layer."""
    return block.key, *layer_of(block)


def _counts(model: Model, block: Block) -> bool:
    """Whether a block is told of: a head that is the embeddings is not, stored or not, nor is what a model can do
    without and no symmetry knows (masks, frequencies)."""
    return not (block.line.tied and not model.has_own_head) and not (block.axes is None and block.line.optional)


def _moved(
    stored: Model, form: LayerNormForm | None, block: Block, dtype: torch.dtype, fold: Alignment, look: Look
) -> Tensor:
    """A block in the working dtype, in a form and with gains folded, looked at as it is stored."""
    before = cache(lambda block: stored.assemble(block, dtype))
    tensor = before(block)
    if tensor.is_floating_point():
        look.at(block, tensor)
        if form is not None:
            tensor = form.applied(block, before)
        fold.act_linearly(block, tensor)
    return tensor


def _balanced(shifts: Spec, floats: Blocks) -> set[str]:
    """Moves a unit to its canonical gauge; the keys of the elements that have none."""
    dead = canonical_gauge(shifts, floats)[1]
    balance_powers(shifts, floats)
    return {*dead}


def _related(spec: Spec, floats: dict[Block, Tensor], draws: Draws, salt: str) -> RelationsByDraw:
    """The relations of one unit from every draw: all of them from the draw that sees every row, or where there is
    none; circuits from the others."""
    first = {block.key: block for block in floats}
    by_draw: RelationsByDraw = {}
    for draw, anchors in (draws or {EVERY: {}}).items():
        seen = relations(spec, floats, anchors, circuits=draw != EVERY, salt=salt)
        by_draw |= {(draw, key, kind): (first[key], x) for (key, kind), x in seen.items()}
    for block, tensor in floats.items():
        if block.axes is None:
            data = sketch(f"{block.key} places", tensor.flatten(), tensor.dtype, salt)
            by_draw[EVERY, block.key, "rows"] = block, Related(data, ())
    return by_draw


def _bases(model: Model, draws: Draws, fold: Alignment, salt: str) -> RelationsByDraw:
    """Where the coordinates of every stream lie that the model gives out: there another basis is another function,
    which no relation shows. By a few sums of the anchors' coordinates with random signs; without anchors, by how
    long the first map of the stream is at every coordinate."""
    bases: RelationsByDraw = {}
    anchors = draws.get(EVERY, {})
    for stream in sorted(given_out(model)):
        maps = [b for b in model.blocks if stream in b.names]
        if stream in anchors:
            rows = anchors[stream].rows
            x = rows @ signs(f"{stream} basis", WAYS, rows.shape[1], salt).to(rows).mT
        elif maps := [b for b in maps if _keeps_lengths(model.spec, b)]:
            whole = model.seen(Moved(fold)).assemble(maps[0], torch.float64)
            x = along_stream(model.spec, stream, maps[0], whole)
        else:
            continue
        bases[BASIS, maps[0].key, stream] = maps[0], Related(x, ())
    return bases


def _keeps_lengths(spec: Spec, block: Block) -> bool:
    """Whether all that acts on a matrix, but for gains, keeps lengths."""
    acting = {a.name for leaf in block.parts for a in leaf if a.name in spec.spaces}
    return len(block.axes or ()) > 1 and all(spec.spaces[n].keeps_lengths for n in acting - {*spec.gains})


def _check_finite(by_draw: RelationsByDraw, spectra: dict[str, Spectrum]) -> None:
    """Raises OverflowError with the name of the first block whose relations are not finite."""
    related = ((key, x.data) for (_, key, _), (_, x) in by_draw.items())
    for key, data in (*related, *((key, x.data) for key, x in spectra.items())):
        if not bool(data.isfinite().all()):
            raise OverflowError(key)


def _chained(spec: Spec, blocks: Iterable[Block]) -> bool:
    """Whether factors, or bases, meet over one axis of a tensor: in front of a convolution and behind it, say. The
    spectrum of each then depends on the gauge of the other."""
    loose = {name for name, space in spec.spaces.items() if not space.keeps_lengths}
    return any(len(loose & {a.name for a in leaf}) > 1 for block in blocks for leaf in block.parts)


def _halves(model: Model) -> bool:
    """Whether every float tensor is stored in half precision or coarser."""
    kinds = {info.dtype for info in model.checkpoint.tensors.values()}
    return not kinds & {"F32", "F64"}


# -------------------------------------------------------------------------- the hash


def _hash(model: Model, by_draw: RelationsByDraw, salt: str) -> str:
    """A name for the function: what the config says of it, and `SUMS` sums with random signs over all relations,
    rounded to `STEP`.

    Relations that begin at one line of the spec count as shares of their norm, so that large numbers do not drown
    the others; the logarithm of that norm counts as well, or all of them scaled would be the same.
    """
    kinds: dict[str, dict[str, list[tuple[str, Tensor]]]] = {}
    for (draw, key, kind), (block, x) in sorted(by_draw.items(), key=lambda r: r[0]):
        if draw != LENGTHS:  # rows of nearly one length may change places under rounding
            lines = kinds.setdefault(f"{draw} {kind}", {})
            lines.setdefault(block.line.name, []).append((f"{draw}|{key}|{kind}", x.data.double().flatten()))
    sums, count = [0.0] * SUMS, sum(map(len, kinds.values()))
    for kind, lines in kinds.items():
        norms = {line: hypot(*(float(x.norm()) for _, x in parts)) for line, parts in lines.items()}
        least = NOISE * hypot(*norms.values()) or 1.0
        for line, parts in lines.items():
            norm = max(norms[line], least)
            parts = [(name, x / norm) for name, x in parts]
            parts.append((f"{kind}|{line}|norm", torch.tensor([log(norm)], dtype=torch.float64)))
            sums = [a + b for a, b in zip(sums, _summed(parts, salt), strict=True)]
    if not all(map(isfinite, sums)):
        raise IsomergeError(f"{model.ref} has no fingerprint: {OVERFLOW}")
    values = [round(v / max(count, 1) ** 0.5 / STEP) for v in sums]
    text = json.dumps([FORMAT, salted(salt), model.spec.model_type, _function(model), values])
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _summed(parts: Sequence[tuple[str, Tensor]], salt: str) -> list[float]:
    """`SUMS` sums of all entries of vectors, with signs that depend on the name, the place and the salt alone."""
    total = [0.0] * SUMS
    for name, x in parts:
        drawn = signs(name, SUMS, len(x), salt).double()
        total = [a + b for a, b in zip(total, (drawn @ x).tolist(), strict=True)]
    return total


def _function(model: Model) -> list[Any]:
    """What changes the function beside the weights: the sizes of the spec, and the keys of the config that it
    names, as transformers reads them."""
    config = {key: value for key, value in model.config.items() if key not in LABELS}
    config = as_transformers_reads(config) or config
    asked = {key: _plain(config_value(config, key)) for key in sorted(set(model.spec.config_keys))}
    return [dict(sorted(model.spec.sizes.items())), asked]


def _plain(value: Any) -> Any:
    """A value of a config in one form: numbers that are equal are one number."""
    if isinstance(value, dict):
        return {str(key): _plain(x) for key, x in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 1 << 53 else str(value)
    return value if value is None or isinstance(value, (str, bool, float)) else str(value)


def lengths(spec: Spec, shifts: Spec, tensors: Mapping[Block, Tensor], salt: str = "") -> dict[Block, Related]:
    """The lengths of tensors of one unit.

    Args:
        spec: the full spec.
        shifts: the one of what acts inside the unit.
        tensors: the blocks, in the canonical gauge, with gains folded.
        salt: what signs are drawn with.

    Returns:
        Sums with random signs over named places of lengths, and of the sums of the lengths of every neuron or
        head; nothing of a block that something acts on which no gauge balances.
    """
    parts = {block: list(_lengths_of(spec, shifts, block, tensor, salt)) for block, tensor in tensors.items()}
    return {block: Related(torch.cat(of_leaves), ()) for block, of_leaves in parts.items() if of_leaves}


def along_stream(spec: Spec, stream: str, block: Block, tensor: Tensor) -> Tensor:
    """How long a matrix is at every coordinate of a stream, float64 [width]."""
    x, _ = next(iter(along(spec, stream, {block: tensor})))
    return x.norm(dim=1)


def _lengths_of(spec: Spec, shifts: Spec, block: Block, tensor: Tensor, salt: str) -> Iterator[Tensor]:
    """The lengths of every leaf of a block, [numbers]."""
    for (view,), atoms, number in leaves(spec, block, tensor):
        acting = {a.name for a in atoms if a.name in spec.spaces}
        loose = {name for name in acting if not spec.spaces[name].keeps_lengths}
        if loose - {*shifts.spaces, *spec.gains} or any(is_gain_of_latent(spec, atom) for atom in atoms):
            continue
        named = [at for at, a in enumerate(atoms) if a.name not in acting]
        permuted = [at for at, a in enumerate(atoms) if a.name in acting and _is_permuted(spec, a)]
        turned = [at for at in range(len(atoms)) if at not in {*named, *permuted}]
        x = (view + block.line.less).double().permute(*named, *permuted, *turned)
        places, parts = (prod(view.shape[at] for at in side) for side in (named, permuted))
        each = x.reshape(places, parts, -1).norm(dim=-1)
        sizes = torch.stack([each.norm(dim=-1), each.sum(-1) / parts**0.5], -1)
        yield sketch(f"{block.key} {number} {LENGTH}", sizes, torch.float64, salt).flatten()


def _is_permuted(spec: Spec, atom: Atom) -> bool:
    """Whether nothing else acts on an axis. (A stream may be turned in another twin.)"""
    return spec.spaces[atom.name].group_name == "Perm" and not spec.spaces[atom.name].residual

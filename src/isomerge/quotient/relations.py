"""Relations of a model: products of its weights in which no coordinate is left.

A contraction of two tensors over an axis is invariant where the two ends are dual (``isomerge.symmetry.axes``), or
where what acts keeps lengths. What contracts so are the circuits of a layer: ``W_Q^T W_K``, ``W_O W_V``, the
products of an MLP. Their last axes lie in the residual stream; there the rows of the embeddings of fixed tokens,
positions or patches stand (*anchors*, which turn as the stream does), so that ``Z W_Q^T W_K Z^T`` is the same
number whatever the basis (Francois and Ravera 2026; Zeng et al. 2024, HuRef). Nothing is solved and nothing is
balanced: it is as exact as products are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from isomerge.matching.gram import is_gain_of_latent
from isomerge.quotient.draws import signs, sketch
from isomerge.quotient.stream_anchors import Anchors
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.language.spec import Spec


@dataclass(frozen=True)
class _Leaf:
    """A leaf with its stream axes replaced by anchors."""

    block: Block
    data: Tensor
    atoms: tuple[Atom, ...]
    """One per dimension; ``@1`` (and ``@2``) is an axis of anchors."""
    reads: bool
    """Whether it reads the stream."""
    streams: tuple[str, ...] = ()
    """The stream of every axis of anchors."""

    @property
    def end(self) -> str:
        """What it does to the stream: ``r`` reads it, ``w`` writes it, ``b`` neither."""
        return "b" if not self.streams else "r" if self.reads else "w"

    def count(self, name: str) -> int:
        """How many axes have a name."""
        return sum(a.name == name for a in self.atoms)

    @property
    def inner(self) -> dict[str, Atom]:
        """The axes that are not anchors."""
        return {a.name: a for a in self.atoms if not a.name.startswith("@")}


@dataclass(frozen=True)
class Related:
    """One relation."""

    data: Tensor
    ends: tuple[str, ...]
    """The stream whose anchors stand along every dimension; of what no anchor stands along, none."""
    blocks: frozenset[str] = frozenset()
    """The keys of the blocks that it is made of."""


CIRCUITS = ("qk:rr", "ov:rw", "scale:rw")
"""The relations that tell kinship: products of two maps in which nothing but directions of the stream is left."""
WAYS = 8
"""Ways in which the parts of two relations are weighed when they are compared."""
Relations = dict[tuple[str, str], Related]
"""By the first block that they are of, and the kind: what they relate."""
Parts = dict[tuple[str, tuple[str, ...]], "Tensor"]
"""How much of a relation every head, neuron or expert holds, [`WAYS`, *axes], by the kind and the permuted axes."""


def relations(
    spec: Spec,
    tensors: Mapping[Block, Tensor],
    anchors: Mapping[str, Anchors],
    *,
    circuits: bool = False,
    salt: str = "",
) -> Relations:
    """The relations of one unit.

    Args:
        spec: the full spec.
        tensors: the unit's blocks with gains folded and free biases moved (where folding is possible).
        anchors: of every stream.
        circuits: `CIRCUITS` alone.
        salt: what signs are drawn with.

    Returns:
        (block key, kind) -> a tensor [anchors, anchors], [anchors] or [] with the streams of its ends. A kind is
        the role of the space that is contracted and what stands at its two ends: ``r`` reads the stream, ``w``
        writes it, ``b`` is a bias; ``qk:rr``, ``ov:rw``. The product of a tensor with itself has one end and a
        square: ``ff:r2``. ``rows`` are the rows of a tensor that nothing acts on but the stream, few or in sums.
        ``joint`` holds what two relations share head by head, or neuron by neuron: their sums alone would not know
        which query belongs to which value.
    """
    related: Relations = {}
    parts: Parts = {}
    seen = [
        leaf
        for block, tensor in tensors.items()
        for (view,), atoms, _ in leaves(spec, block, tensor)
        if not any(is_gain_of_latent(spec, atom) for atom in atoms)
        if (leaf := _anchored(spec, block, view, atoms, anchors)) is not None
    ]
    for k, first in enumerate(seen):
        if not circuits and not spec.spaces.keys() & first.inner.keys():
            key = "rows" if first.inner else "stream"
            x = Related(_rows(first, salt), first.streams, frozenset({first.block.key}))
            _add(related, (first.block.key,), key, x)
        if not circuits:
            parts |= _alone(spec, k, first, salt)
        if first.streams and (not first.inner or len(first.streams) == 2):
            continue  # a gain or a bias; a convolution along the stream, whose products with itself have four ends
        for second in seen[k:]:
            if second is not first and first.end == second.end == "b":
                continue  # one number, which may be a difference of large ones
            if not _invariant(spec, first, second) or _differ_in_length(first, second):
                continue
            key, ends = _kind(spec, first, second), first.streams + second.streams
            if not circuits:
                for place, x in _by_part(spec, key, first, second, salt).items():
                    parts[place] = parts[place] + x if place in parts else x
            elif key not in CIRCUITS:
                continue
            both = frozenset({first.block.key, second.block.key})
            _add(related, (first.block.key, second.block.key), key, Related(_contract(first, second), ends, both))
    if parts:
        related[next(iter(tensors)).key, "joint"] = Related(_joint(parts, salt), ())
    return related


def _add(related: Relations, homes: Sequence[str], key: str, new: Related) -> None:
    """Adds to what has equal ends; attention between several streams has circuits that do not add up."""
    places = product((key, *(f"{key} {n}" for n in range(2, 9))), homes)
    free = next((k, kind) for kind, k in places if (k, kind) not in related)
    alike = (at for at, x in related.items() if at[0] in homes and at[1].split()[0] == key and x.ends == new.ends)
    place = next((at for at in alike if related[at].data.shape == new.data.shape), free)
    if place in related:
        new = Related(related[place].data + new.data, new.ends, related[place].blocks | new.blocks)
    related[place] = new


def _rows(leaf: _Leaf, salt: str) -> Tensor:
    """What a leaf holds at places that have names: all of them, or sums with random signs, [places, *anchors]."""
    inner = [at for at, a in enumerate(leaf.atoms) if not a.name.startswith("@")]
    data = leaf.data.movedim(inner, list(range(len(inner))))
    if not inner:
        return data
    return sketch(f"{leaf.block.key} places", data.flatten(0, len(inner) - 1), data.dtype, salt)


def _by_part(spec: Spec, key: str, first: _Leaf, second: _Leaf, salt: str) -> Parts:
    """How much of a relation every head, neuron or expert holds; nothing where no axis is permuted, or one end is a
    bias.

    (Biases may be nothing but rounding, which a share would show; what they meet tells them.)
    """

    both = {**first.inner, **second.inner}
    kept = _parts_of(spec, both)
    if not kept or "b" in (first.end, second.end):
        return {}
    letters = {name: chr(ord("a") + k) for k, name in enumerate(both)}
    x, y = (_weighed(leaf, f"{key} {side}", salt) for side, leaf in enumerate((first, second)))
    # by atoms, as in `_contract`: two axes of one name (the sides of a patch) are one
    left, right = ("".join(letters[a.name] for a in leaf.atoms if a.name in letters) for leaf in (first, second))
    return {(key, kept): torch.einsum(f"W{left},W{right}->W{''.join(letters[n] for n in kept)}", x, y)}


def _parts_of(spec: Spec, axes: Collection[str]) -> tuple[str, ...]:
    """The permuted axes among some, and before them the ones by which each has an order of its own, though nothing
    permutes these (experts that a table asks for): over them no sum is the same in all twins."""
    permuted = tuple(n for n in spec.ordered if n in axes and spec.spaces[n].group_name == "Perm")
    numbered = dict.fromkeys(i for n in permuted for i in spec.batch(spec.spaces[n]) if i in axes)
    return (*(i for i in numbered if i not in spec.spaces), *permuted)


def _alone(spec: Spec, number: int, leaf: _Leaf, salt: str) -> Parts:
    """What a leaf by itself holds of every head, neuron or expert, where nothing but permutations acts on it, or
    factors that are positive, which are divided out. Products see a stream twice, and not its sign; nor the sign of
    a table that meets none."""
    acting = {n: spec.spaces[n].group_name for n in leaf.inner if n in spec.spaces}
    kept = _parts_of(spec, leaf.inner)
    if not kept or set(acting.values()) - {"Perm", "PositiveScale"}:
        return {}
    twice = [n for n in kept if sum(a.name == n for a in leaf.atoms) > 1]
    if twice and (len(twice) > 1 or acting.keys() - {*kept}):
        return {}
    data, names = leaf.data, [a.name for a in leaf.atoms]
    if twice:
        data, names = _summed_over(data, names, twice[0])
    at = [names.index(n) for n in (*kept, *(n for n in acting if n not in kept))]
    data = data.movedim(at, list(range(len(at))))
    rest = data.reshape(*data.shape[: len(kept)], -1)
    if acting.keys() - {*kept}:
        if rest.shape[-1] == 1:  # of one number nothing but its sign would be left, which rounding turns near zero
            return {}
        rest = rest / rest.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    key = f"{leaf.block.key} {number}"
    weights = signs(key, WAYS, rest.shape[-1], salt).to(rest)
    return {(key, kept): (rest @ weights.mT).movedim(-1, 0)}


def _summed_over(data: Tensor, names: Sequence[str], twice: str) -> tuple[Tensor, list[str]]:
    """What neurons that meet all others of their layer (of an LSTM, the gates of a state) give and take: the sums
    over the other ones, and those of squares, in place of a second axis of one name; and the names of all axes."""
    first = names.index(twice)
    second = names.index(twice, first + 1)
    sides = (data, data.transpose(first, second))
    sums = [x.sum(second) for side in sides for x in (side, side.square())]
    return torch.stack(sums, -1), [*names[:second], *names[second + 1 :], "@sums"]


def _weighed(leaf: _Leaf, key: str, salt: str) -> Tensor:
    """A leaf [`WAYS`, *inner]: the sums over its anchors, with as many random signs."""
    ends = [at for at, a in enumerate(leaf.atoms) if a.name.startswith("@")]
    data = leaf.data.movedim(ends, list(range(len(ends))))
    size = prod(data.shape[: len(ends)])
    weights = signs(key, WAYS, size, salt).to(data)
    return (weights @ data.reshape(size, -1)).reshape(WAYS, *data.shape[len(ends) :])


def _joint(parts: Parts, salt: str) -> Tensor:
    """The sums over heads, neurons or experts of what relations hold of them, each alone and every two, as shares,
    all in one [`WAYS`]."""

    sums = torch.zeros(WAYS, dtype=torch.float64)
    shares = {key: x.double() / x.double().norm().clamp_min(1e-300) for key, x in parts.items()}
    for (kind, names), x in shares.items():
        sums += signs(kind, 1, WAYS, salt)[0] * x.flatten(1).sum(1)
        for (other, theirs), y in shares.items():
            if set(names) & set(theirs):
                letters = {name: chr(ord("a") + n) for n, name in enumerate(dict.fromkeys((*names, *theirs)))}
                left, right = ("".join(letters[n] for n in side) for side in (names, theirs))
                sums += signs(f"{kind} x {other}", 1, WAYS, salt)[0] * torch.einsum(f"W{left},W{right}->W", x, y)
    return sums


def _anchored(
    spec: Spec, block: Block, view: Tensor, atoms: tuple[Atom, ...], anchors: Mapping[str, Anchors]
) -> _Leaf | None:
    """A leaf with anchors in place of streams; None where a stream has none."""

    reads, ends = False, ()
    inner = [spec.spaces[a.name] for a in atoms if a.name in spec.spaces and a.name not in spec.gains]
    held = {index for space in inner for index in space.index}  # with factors of their own, of which no sums stand
    for at, atom in enumerate(atoms):
        if atom.name not in anchors or atom.name in held:
            if atom.name in spec.streams:
                return None
            continue
        side, ends = anchors[atom.name], (*ends, atom.name)
        rows = side.rows
        # the gain and the bias of a norm that is read by a table's own rows, with what these have along the ones
        heard = not atom.dual and any(a.name in side.heads for a in atoms)
        read = rows + side.means if heard and side.means is not None else rows
        if atom.diag:  # a gain that stays: the matrix that it is the diagonal of
            gains = (
                (view + block.line.less).movedim(at, -1).reshape(-1, view.shape[at]).sum(0)
            )  # of layers along an axis
            view = (rows * gains) @ read.mT
            return _Leaf(block, view, (Atom("@1"), Atom("@2")), reads=False, streams=ends * 2)
        view = torch.matmul(view.movedim(at, -1), read.mT).movedim(-1, at)
        atoms = (*atoms[:at], Atom(f"@{len(ends)}"), *atoms[at + 1 :])
        reads = reads or atom.dual or (side.unmarked and at > 0)
    # axes of length one: scales of gains, which are folded, and those that this model does not have
    gone = {*spec.gains, *(n for n, size in spec.sizes.items() if size == 1 and n not in spec.spaces)}
    kept = [at for at, a in enumerate(atoms) if a.name not in gone]
    view = view.reshape([view.shape[at] for at in kept])
    return _Leaf(block, view, tuple(atoms[at] for at in kept), reads, ends)


def _invariant(spec: Spec, first: _Leaf, second: _Leaf) -> bool:
    """Whether the contraction of two leaves over all but their anchors is the same on the whole orbit."""
    if not {*first.inner} & {*second.inner}:
        return False
    for name in {**first.inner, **second.inner}:
        both = name in first.inner and name in second.inner
        space = spec.spaces.get(name)
        if space is not None and not space.keeps_lengths:
            if not both or first.inner[name].dual == second.inner[name].dual:
                return False
        elif not both and (space is None or space.group.compact != "Perm"):
            return False  # sums over an axis are invariant where it is permuted, and nowhere else
        if space is not None and not _on_diagonals(space.group.compact, first.count(name), second.count(name)):
            return False
    return True


def _on_diagonals(group: str, *counts: int) -> bool:
    """Whether a sum over an axis that leaves have so often (diagonals, where it is more than once) is the same for
    all elements of a group."""
    if max(counts) <= 1:
        return True
    return group in ("Perm", "Fixed") or (group in ("Sign", "SignedPerm") and sum(counts) % 2 == 0)


def _differ_in_length(first: _Leaf, second: _Leaf) -> bool:
    """Whether an axis of one name is of another length in the other: places of one table, and of another."""
    lengths = dict(zip((a.name for a in first.atoms), first.data.shape, strict=True))
    return any(
        a.name in first.inner and lengths[a.name] != n for a, n in zip(second.atoms, second.data.shape, strict=True)
    )


def _contract(first: _Leaf, second: _Leaf) -> Tensor:
    """The sum over all axes but the anchors'."""

    letters = {name: chr(ord("a") + k) for k, name in enumerate({**first.inner, **second.inner})}
    ends = iter("WXYZ")
    terms, out = [], ""
    for leaf in (first, second):
        term = ""
        for atom in leaf.atoms:
            letter = letters.get(atom.name) or next(ends)
            term, out = term + letter, out + (letter if atom.name not in letters else "")
        terms.append(term)
    return torch.einsum(f"{terms[0]},{terms[1]}->{out}", first.data, second.data)


def _kind(spec: Spec, first: _Leaf, second: _Leaf) -> str:
    """The role of what is contracted, and the two ends."""
    names = [n for n in spec.ordered if n in first.inner and n in second.inner]
    if not names:
        return "table:2" if first is second else "table"
    tight = [n for n in names if not spec.spaces[n].keeps_lengths]
    deepest = (tight or names)[-1]
    ends = "".join(sorted(leaf.end for leaf in (first, second)))
    return f"{spec.spaces[deepest].role or deepest}:{first.end + '2' if first is second else ends}"

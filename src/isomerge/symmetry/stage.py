"""One stage of an alignment: elements that act at once, shifts first, then fibres, then the bases under them.

Shifts are additive gauges, biases that can be moved or dropped without changing the function:

* A key bias without rotary or relative-position terms adds a constant to every row of scores: softmax drops it.
* Attention rows sum to one, so a value bias d passes through as W_O d: it can live in the output bias instead.
* What softmax compares may all be raised alike: a constant along the experts of a router, or along the distances of
  a table of relative positions.

A shift's element is a tensor of the bias block's shape (its atoms in order), of length one along an axis where it
is constant, in the source's own coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom, leaf_atoms
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.element_key import SHIFT, ElementKey
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.groups.discrete import Sign
from isomerge.symmetry.language.spec import Shift, Space, Spec


def element_key(spec: Spec, space: Space, scope: Mapping[str, int]) -> str:
    """``name`` or ``name[layer]``: one stacked element."""
    return ElementKey.at(space.name, (scope[i] for i in spec.scope(space)))


def scope_of(spec: Spec, key: str) -> dict[str, int]:
    """The scope (layer) that an element key names.

    Raises:
        IsomergeError: a key that is none, as in a file that was edited.
    """
    return ElementKey.of(key).scope(spec.scope(spec.space_of(key)))


def joined(first: Spec, second: Spec) -> Spec:
    """The spec with the spaces and shifts of both; what one holds fixed is moved as in the other.

    Raises:
        IsomergeError: a space acts by different groups in them.
    """
    if first is second:
        return first
    for name, space in first.spaces.items():
        groups = {space.group_name, second.spaces[name].group_name} if name in second.spaces else set()
        if len(groups) > 1 and FIXED not in groups:
            raise IsomergeError(
                f"space {name} acts by {space.group_name} in one alignment and by {second.spaces[name].group_name} "
                "in the other: they cannot be composed"
            )
    held = {name for name, space in second.spaces.items() if space.group_name == FIXED and name in first.spaces}
    spaces = first.spaces | {name: space for name, space in second.spaces.items() if name not in held}
    shifts = {s.name: s for s in (*first.shifts, *second.shifts)}
    return replace(first, spaces=spaces, shifts=tuple(shifts.values()))


FIXED = "Fixed"
"""The trivial group."""

# The groups whose elements renumber what lies over them; others mix the labels.
MONOMIAL = {"Perm", "SignedPerm", "Fixed", "Sign"}


class Stage(Mapping[str, "Tensor"]):
    """Element key -> stacked element; missing keys are identities.

    Elements are labelled by the blocks as they are before the stage (head 2, wherever it is moved to).
    """

    def __init__(self, spec: Spec, elements: Mapping[str, Tensor] | None = None) -> None:
        self.spec = spec
        # the layout is part of the arithmetic: a loaded element must act bit for bit like the one that was saved
        self.elements: dict[str, Tensor] = {key: g.contiguous() for key, g in (elements or {}).items()}

    def __getitem__(self, key: str) -> Tensor:
        return self.elements[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def element(self, name: str, scope: Mapping[str, int]) -> Tensor | None:
        """The element of a space at a scope, None for the identity."""
        space = self.spec.spaces.get(name)
        if space is None or space.group_name == FIXED:
            return None
        return self.elements.get(element_key(self.spec, space, scope))

    # ------------------------------------------------------------------ action

    def act(self, tensors: dict[Block, Tensor]) -> None:
        """Apply to the blocks of one unit, in place. Float tensors, contiguous, all blocks of every shift."""
        add_shifts(self.spec, self.elements, tensors)
        for block, tensor in tensors.items():
            self.act_linearly(block, tensor)

    def applied(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """What `act` makes of the blocks of one unit, in new tensors; those that nothing moves are the given
        ones."""
        shifted = shifted_blocks(self.spec, self.elements, list(tensors))
        moved = {block: t.clone() if block in shifted else t for block, t in tensors.items()}
        add_shifts(self.spec, self.elements, moved)
        return {block: self._applied(block, t) for block, t in moved.items()}

    def _applied(self, block: Block, tensor: Tensor) -> Tensor:
        """A block after the spaces: what acts on the whole of it makes a new tensor at once, without a copy
        before."""
        scope, parts = dict(block.scope), list(leaves(self.spec, block, tensor))
        if not any(self.element(a.name, scope) is not None for _, atoms, _ in parts for a in atoms):
            return tensor
        (view,), atoms, _ = parts[0]
        if len(parts) > 1 or view.numel() != tensor.numel() or block.line.less:
            copy = tensor.clone()
            self.act_linearly(block, copy)
            return copy
        for axis in self._acting(atoms, scope):
            view = self._acted(view, atoms, axis, scope).contiguous()
        return view.reshape(tensor.shape)

    def act_linearly(self, block: Block, tensor: Tensor) -> None:
        """Apply the spaces (not the shifts) to one block, in place."""
        scope = dict(block.scope)
        less = block.line.less if block.line.less and self._rescales(block) else 0
        if less:
            tensor += less
        for (view,), atoms, _ in leaves(self.spec, block, tensor):
            self.act_on_view(view, atoms, scope)
        if less:
            tensor -= less

    def _rescales(self, block: Block) -> bool:
        """Whether something acts on a block that is no renumbering: only then must what is stored less one be
        whole."""
        scope, spaces = dict(block.scope), self.spec.spaces
        acting = (a.name for a in block.atoms if self.element(a.name, scope) is not None)
        return any(spaces[name].group_name not in MONOMIAL for name in acting)

    def changed(self, blocks: Iterable[Block]) -> set[Block]:
        """The blocks whose numbers it may change; renumbering and signs change none."""
        every = list(blocks)
        return shifted_blocks(self.spec, self.elements, every) | {b for b in every if self._rescales(b)}

    def only(self, blocks: Iterable[Block]) -> Stage:
        """The part that acts on some blocks."""
        every, spaces = list(blocks), self.spec.spaces
        keys = {key for _, key, _ in find_shifts(self.spec, every)}
        keys |= {element_key(self.spec, spaces[n], dict(b.scope)) for b in every for n in b.names & spaces.keys()}
        return Stage(self.spec, {key: g for key, g in self.elements.items() if key in keys})

    def act_on_view(self, view: Tensor, atoms: tuple[Atom, ...], scope: Mapping[str, int]) -> None:
        """Apply the spaces to one tensor whose axes are atoms, in place: fibres first, then their bases."""
        for axis in self._acting(atoms, scope):
            if not self._multiplied(view, atoms, axis, scope):
                view.copy_(self._acted(view, atoms, axis, scope))

    def _acting(self, atoms: tuple[Atom, ...], scope: Mapping[str, int]) -> list[int]:
        """The axes that something acts on, in the order of action."""
        moved = [i for i, a in enumerate(atoms) if self.element(a.name, scope) is not None]
        return sorted(moved, key=lambda i: -self.spec.depth(atoms[i].name))

    def _multiplied(self, view: Tensor, atoms: tuple[Atom, ...], axis: int, scope: Mapping[str, int]) -> bool:
        """Multiply in place where the element is factors: a new tensor of a layer's size takes longer than the
        arithmetic."""
        space, g, order = self._there(atoms, axis, scope)
        if not isinstance(space.group, Sign) or g.requires_grad:
            return False
        factors = space.group.factors(g, atoms[axis].dual).to(view.dtype)
        rest = view.ndim - factors.ndim
        view.permute(order).mul_(factors.reshape(*factors.shape[:-1], *[1] * rest, factors.shape[-1]))
        return True

    def _there(
        self, atoms: tuple[Atom, ...], axis: int, scope: Mapping[str, int]
    ) -> tuple[Space, Tensor, tuple[int, ...]]:
        """The space of an axis that something acts on, its element, and the axes in order: its batch, all others,
        itself."""
        space = self.spec.spaces[atoms[axis].name]
        g = self.element(space.name, scope)
        assert g is not None
        names = [a.name for a in atoms]
        batch = [names.index(i) for i in self.spec.batch(space)]
        return space, g, (*batch, *(k for k in range(len(atoms)) if k not in batch and k != axis), axis)

    def _acted(self, view: Tensor, atoms: tuple[Atom, ...], axis: int, scope: Mapping[str, int]) -> Tensor:
        """A view with one axis acted on, a new tensor of its shape."""
        space, g, order = self._there(atoms, axis, scope)
        batch, atom = self.spec.batch(space), atoms[axis]
        x = view.permute(order)
        flat = x.reshape(*x.shape[: len(batch)], -1, x.shape[-1])
        if g.requires_grad:  # the gradient needs what the result overwrites
            flat = flat.clone()
        act = space.group.act_diagonal if atom.diag else space.group.act
        back = sorted(range(view.ndim), key=order.__getitem__)
        return act(g, flat, atom.dual).reshape(x.shape).permute(back)

    # ------------------------------------------------------------------- group

    def __matmul__(self, other: Stage) -> Stage:
        """``(g @ h)`` acts like h first, then g."""
        linear = {k: g for k, g in other.elements.items() if not ElementKey.of(k).is_shift}
        for key, g in self.elements.items():
            if ElementKey.of(key).is_shift:
                continue
            g = self._relabel(key, g, other, inverse=True)
            group = self.spec.space_of(key).group
            linear[key] = group.compose(g, linear[key]) if key in linear else g
        return Stage(joined(other.spec, self.spec), {**linear, **compose_shifts(self, other)})

    def follows(self, other: Stage) -> bool:
        """Whether this stage and one before it are one stage: nothing here lies over what the other has rotated."""
        if type(other) is not type(self):
            return False
        rotated = {
            name
            for key in other.elements
            if (name := ElementKey.of(key).name) in other.spec.spaces
            and other.spec.spaces[name].group_name not in MONOMIAL
        }
        return not any(rotated & set(self._bases(key)) for key in self.elements)

    def _bases(self, key: str) -> tuple[str, ...]:
        """The indices of the space of an element."""
        space = self.spec.spaces.get(ElementKey.of(key).name)
        return space.index if space is not None else ()

    def split(self) -> tuple[Stage, ...]:
        """The stage as one or two whose inverses are stages: fibres over a rotated base come before it."""
        if self.follows(self):
            return (self,)
        rest = {
            k: g for k, g in self.elements.items() if not ElementKey.of(k).is_shift and not self._over_rotated(k)
        }
        first = {k: g for k, g in self.elements.items() if k not in rest}
        return Stage(self.spec, first), Stage(self.spec, rest)

    def _over_rotated(self, key: str) -> bool:
        rotated = {b for b in self._bases(key) if b in self.spec.spaces}
        acting = {ElementKey.of(k).name for k in self.elements}
        return any(b in acting and self.spec.spaces[b].group_name not in MONOMIAL for b in rotated)

    def inverse(self) -> Stage:
        """The stage that undoes this one, which must be one (see `split`)."""
        back = self.inverse_spaces()
        return Stage(self.spec, {**back.elements, **invert_shifts(self)})

    def inverse_spaces(self) -> Stage:
        """The inverse of the spaces alone, without the shifts."""
        linear = {}
        for key, g in self.elements.items():
            if not ElementKey.of(key).is_shift:
                group = self.spec.space_of(key).group
                linear[key] = self._relabel(key, group.inverse(g), self, inverse=False)
        return Stage(self.spec, linear)

    def renumbered(self, spec: Spec, key: str, g: Tensor) -> Tensor:
        """An element of a space of ``spec`` in the labels after this stage has acted."""
        return Stage(spec)._relabel(key, g, self, inverse=False)

    def _relabel(self, key: str, g: Tensor, moved_by: Stage, *, inverse: bool) -> Tensor:
        """Renumber a fibre's element when the bases under it are permuted.

        With ``inverse`` the labels after ``moved_by`` become the labels before it; without, the other way round.
        """
        space = self.spec.space_of(key)
        scope = scope_of(self.spec, key)
        batch = self.spec.batch(space)
        for at, base in enumerate(batch):
            p = moved_by.element(base, scope)
            if p is None or moved_by.spec.spaces[base].group_name not in MONOMIAL:
                continue
            p = p.abs() - 1 if moved_by.spec.spaces[base].group_name == "SignedPerm" else p
            if not inverse:  # the base's own labels have moved as well, outermost first
                there = element_key(moved_by.spec, moved_by.spec.spaces[base], scope)
                p = moved_by._relabel(there, p, moved_by, inverse=False)
            index = GROUPS["Perm"].inverse(p) if inverse else p
            own = moved_by.spec.batch(moved_by.spec.spaces[base])
            view = [1] * g.ndim
            for axis, name in enumerate(own):
                view[batch.index(name)] = index.shape[axis]
            view[at] = index.shape[-1]
            order = sorted(range(index.ndim), key=lambda k: at if k == index.ndim - 1 else batch.index(own[k]))
            full = index.permute(order).reshape(view)
            g = g.gather(at, full.expand([*g.shape]))
        return g


def shift_key(shift: Shift, scope: Mapping[str, int]) -> str:
    """``shift.name[layer]``."""
    return ElementKey.at(SHIFT + shift.name, scope.values())


def find_shifts(spec: Spec, blocks: list[Block]) -> list[tuple[Shift, str, dict[str, Block]]]:
    """The shifts whose tensors are all there: the shift, its element key, and its blocks by line name."""
    by_scope: dict[tuple[tuple[str, int], ...], dict[str, Block]] = {}
    for block in blocks:
        by_scope.setdefault(block.scope, {})[block.line.name] = block
    shifts = []
    for shift in spec.shifts:
        for scope, by_name in by_scope.items():
            names = [n for n in (shift.bias, shift.into, shift.via) if n is not None]
            names += [shift.beside] if shift.beside in by_name else []  # not every class has it
            if all(n in by_name for n in names):
                shifts.append((shift, shift_key(shift, dict(scope)), {n: by_name[n] for n in names}))
    return shifts


def bias_view(spec: Spec, shift: Shift, block: Block, tensor: Tensor) -> tuple[Tensor, tuple[Atom, ...]]:
    """The part of a bias tensor that a shift moves, and its atoms; of an axis whose rows are named those alone."""
    for (view,), atoms, number in leaves(spec, block, tensor):
        if number == (shift.block or 0):
            if shift.rows is not None:
                at = [a.name for a in atoms].index(shift.along or "")
                view = view[(slice(None),) * at + (slice(*shift.rows),)]
            return view, atoms
    raise AssertionError(f"shift {shift.name}: block {shift.block} of {block.key}")


def as_traded(shift: Shift, delta: Tensor, atoms: tuple[Atom, ...], there: tuple[Atom, ...]) -> Tensor:
    """A shift's element, with some atoms, along those of what it trades with: one long where it is constant."""
    single = [a.name == shift.along or a.name.isdigit() for a in atoms]
    kept = [a.name for a, constant in zip(atoms, single, strict=True) if not constant]
    plain = delta.squeeze([k for k, constant in enumerate(single) if constant])
    names = [a.name for a in there if a.name in kept]
    ordered = plain.permute([kept.index(name) for name in names])
    return ordered[tuple(slice(None) if a.name in kept else None for a in there)]


def projection(
    spec: Spec, via: Block, weight: Tensor, atoms: tuple[Atom, ...], into: Block, parts: tuple[int, ...] = (0,)
) -> Tensor:
    """The matrix [output, bias] through which a bias reaches the output: W, summed over heads that share values,
    and over the parts of a concatenation that read it."""
    matrices = []
    for (view,), axes, number in leaves(spec, via, weight):
        if number in parts:
            names = [a.name for a in axes]
            out = [names.index(a.name) for a in into.atoms]
            bias = [names.index(a.name) for a in atoms]
            rest = [k for k in range(view.ndim) if k not in (*out, *bias)]
            ordered = view.permute(*out, *bias, *rest).flatten(0, len(out) - 1).flatten(1, len(bias))
            matrices.append(ordered.flatten(2).sum(-1) if rest else ordered)
    return sum(matrices[1:], start=matrices[0])


def paid_through(
    spec: Spec, shift: Shift, parts: Mapping[str, Block], weight: Tensor, atoms: tuple[Atom, ...]
) -> Tensor:
    """The matrix through which a shift's element, flat, reaches the output that pays for it (`projection`).

    Args:
        spec: whose shift it is.
        shift: one with ``via``.
        parts: its blocks by name of line.
        weight: that of ``via``, in the dtype of sums.
        atoms: of what it moves; a constant has none along its axis.
    """
    assert shift.via is not None
    assert shift.into is not None
    kept = tuple(a for a in atoms if a.name != shift.along)
    return projection(spec, parts[shift.via], weight, kept, parts[shift.into], shift.reads)


def shifted_blocks(spec: Spec, elements: Mapping[str, Tensor], blocks: list[Block]) -> set[Block]:
    """The blocks that the shifts among ``elements`` change."""
    acting = ((shift, parts) for shift, key, parts in find_shifts(spec, blocks) if key in elements)
    return {block for shift, parts in acting for block in shift_ends(shift, parts)}


def shift_ends(shift: Shift, parts: Mapping[str, Block]) -> list[Block]:
    """Those of a shift's blocks, by name of line, that it changes."""
    return [block for name, block in parts.items() if name in shift.ends]


def add_shifts(spec: Spec, elements: Mapping[str, Tensor], tensors: dict[Block, Tensor]) -> None:
    """Apply the shifts among ``elements`` to the blocks of one unit, in place."""
    for shift, key, blocks in find_shifts(spec, list(tensors)):
        delta = elements.get(key)
        if delta is None:
            continue
        bias = blocks[shift.bias]
        view, atoms = bias_view(spec, shift, bias, tensors[bias])
        if shift.trades:
            other = shift.swapped()
            room, there = bias_view(spec, other, blocks[other.bias], tensors[blocks[other.bias]])
            if not view.numel() or not room.numel():  # a table may have no rows but those of tokens
                continue
            room -= as_traded(shift, delta, atoms, there).to(room.dtype)
        if shift.beside in blocks:
            (stead,), stead_atoms, _ = next(leaves(spec, blocks[shift.beside], tensors[blocks[shift.beside]]))
            stead += as_traded(shift, delta, atoms, stead_atoms).to(stead.dtype)
        view += delta.to(view.dtype)
        if shift.into is not None and shift.via is not None:
            into = blocks[shift.into]
            w = paid_through(spec, shift, blocks, tensors[blocks[shift.via]], atoms)
            tensors[into] -= (w @ delta.to(w.dtype).flatten()).reshape(tensors[into].shape)


def shift_atoms(spec: Spec, shift: Shift) -> tuple[Atom, ...]:
    """The atoms of the bias (or of the part of it) that a shift moves."""
    line = next(line for line in spec.lines if line.name == shift.bias)
    assert line.axes is not None
    lead = [Atom(index) for index in line.indices if index in spec.sizes]
    return list(leaf_atoms((*lead, *line.axes)))[shift.block or 0]


def shift_shape(spec: Spec, shift: Shift) -> tuple[int, ...]:
    """The shape of a shift's element: that of what it moves, of length one where it is constant."""
    atoms = shift_atoms(spec, shift)
    return tuple(1 if a.name == shift.along or a.name == "1" else spec.sizes[a.name] for a in atoms)


def free_part(shift: Shift, view: Tensor, atoms: tuple[Atom, ...]) -> Tensor:
    """What of a bias no output depends on, of the shape of the shift's element: all of it, or its mean along an
    axis."""
    if shift.along is None:
        return view
    at = [a.name for a in atoms].index(shift.along)
    # of the rows that are named, a table may have none
    return view.mean(at, keepdim=True) if view.numel() else view.sum(at, keepdim=True)


def canonical_part(spec: Spec, shift: Shift, view: Tensor, atoms: tuple[Atom, ...]) -> Tensor:
    """What a canonical form takes away of a bias: its free part (`free_part`); of a table of which some rows trade
    a constant of their own, such as a word that pads, the mean of the other rows, so that no trade changes what the
    next one takes away."""
    mine = (shift.bias, shift.block or 0, shift.along)
    sides = [side for other in spec.shifts for side in (other, *([other.swapped()] if other.trades else ()))]
    named = [side.rows for side in sides if (side.bias, side.block or 0, side.along) == mine and side.rows]
    if shift.along is None or shift.rows is not None or not named:
        return free_part(shift, view, atoms)
    at = [a.name for a in atoms].index(shift.along)
    others = torch.ones(view.shape[at], dtype=torch.bool, device=view.device)
    for rows in named:
        others[slice(*rows)] = False
    return free_part(shift, view.index_select(at, others.nonzero().flatten()), atoms)


def shift_scope(spec: Spec, shift: Shift, key: str) -> dict[str, int]:
    """The layer that a shift's element key names; raises IsomergeError as `isomerge.symmetry.stage.scope_of`."""
    line = next(line for line in spec.lines if line.name == shift.bias)
    names = [i for i in line.indices if i not in spec.sizes]
    return ElementKey.of(key).scope(names)


def carried_shift(g: Stage, spec: Spec, key: str, delta: Tensor) -> Tensor:
    """A shift of ``spec`` in the coordinates after the spaces of ``g`` have acted."""
    shift = spec.shift_of(key)
    moved = delta.clone()
    view, atoms = moved, shift_atoms(spec, shift)
    if shift.along is not None:  # what moves this axis renumbers it, which a constant does not feel
        at = [a.name for a in atoms].index(shift.along)
        view, atoms = moved.squeeze(at), (*atoms[:at], *atoms[at + 1 :])
    g.act_on_view(view, atoms, shift_scope(spec, shift, key))
    return moved


def compose_shifts(g: Stage, h: Stage) -> dict[str, Tensor]:
    """Shifts of ``g @ h``: h's own, and g's pulled back through h's spaces."""
    shifts = {k: v for k, v in h.elements.items() if ElementKey.of(k).is_shift}
    back = h.inverse_spaces()
    for key, delta in g.elements.items():
        if ElementKey.of(key).is_shift:
            pulled = carried_shift(back, g.spec, key, delta)
            shifts[key] = shifts[key] + pulled if key in shifts else pulled
    return shifts


def invert_shifts(g: Stage) -> dict[str, Tensor]:
    """Shifts of the inverse: the negative, in the coordinates after g."""
    return {k: -carried_shift(g, g.spec, k, v) for k, v in g.elements.items() if ElementKey.of(k).is_shift}

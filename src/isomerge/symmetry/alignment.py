"""The group element: what moves a checkpoint along its symmetry orbit, and its patch file.

An alignment maps element keys (``ov[3]``: space ov, layer 3; ``shift.vb[3]``: an additive gauge) to tensors. It acts
by its shifts first, then by its spaces, fibres before the bases they sit over. Elements are labelled by the source's
own blocks (head 2 of the source, wherever it is moved to), so that ``g @ h`` and ``g.inverse()`` are exact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "isomerge-alignment-1"


def element_key(spec: Spec, space: Space, scope: Mapping[str, int]) -> str:
    """``name`` or ``name[layer]``: one stacked element."""
    values = [str(scope[i]) for i in spec.scope(space)]
    return f"{space.name}[{','.join(values)}]" if values else space.name


def scope_of(spec: Spec, key: str) -> dict[str, int]:
    """The scope (layer) that an element key names."""
    name, _, rest = key.partition("[")
    values = [int(v) for v in rest.rstrip("]").split(",")] if rest else []
    return dict(zip(spec.scope(spec.spaces[name]), values, strict=True))


class Alignment(Mapping[str, "Tensor"]):
    """An element of the symmetry group of one architecture: element key -> stacked element.

    Missing keys are identities. ``spec`` must have every space that occurs active.
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
        return None if space is None else self.elements.get(element_key(self.spec, space, scope))

    # ------------------------------------------------------------------ action

    def act(self, tensors: dict[Block, Tensor]) -> None:
        """Apply to the blocks of one unit, in place. Float tensors, contiguous, all blocks of every shift."""
        from isomerge.symmetry.shifts import add_shifts

        add_shifts(self.spec, self.elements, tensors)
        for block, tensor in tensors.items():
            self.act_linearly(block, tensor)

    def act_linearly(self, block: Block, tensor: Tensor) -> None:
        """Apply the spaces (not the shifts) to one block, in place."""
        scope = dict(block.scope)
        for (view,), atoms, _ in leaves(self.spec, block, tensor):
            self.act_on_view(view, atoms, scope)

    def act_on_view(self, view: Tensor, atoms: tuple[Atom, ...], scope: Mapping[str, int]) -> None:
        """Apply the spaces to one tensor whose axes are atoms, in place: fibres first, then their bases."""
        moved = [(i, a) for i, a in enumerate(atoms) if self.element(a.name, scope) is not None]
        for axis, _ in sorted(moved, key=lambda pair: -self.spec.depth(pair[1].name)):
            self._act_on_axis(view, atoms, axis, scope)

    def _act_on_axis(self, view: Tensor, atoms: tuple[Atom, ...], axis: int, scope: Mapping[str, int]) -> None:
        atom = atoms[axis]
        space = self.spec.spaces[atom.name]
        g = self.element(atom.name, scope)
        assert g is not None
        names = [a.name for a in atoms]
        batch = [names.index(i) for i in self.spec.batch(space)]
        rest = [k for k in range(view.ndim) if k not in batch and k != axis]
        x = view.permute(*batch, *rest, axis)
        flat = x.reshape(*x.shape[: len(batch)], -1, x.shape[-1])
        view.permute(*batch, *rest, axis).copy_(space.group.act(g, flat, atom.dual).reshape(x.shape))

    # ------------------------------------------------------------------- group

    def __matmul__(self, other: Alignment) -> Alignment:
        """``(g @ h)`` acts like h first, then g."""
        from isomerge.symmetry.shifts import compose_shifts

        linear = {k: g for k, g in other.elements.items() if not k.startswith("shift.")}
        for key, g in self.elements.items():
            if key.startswith("shift."):
                continue
            g = self._relabel(key, g, other, inverse=True)
            group = self.spec.spaces[key.partition("[")[0]].group
            linear[key] = group.compose(g, linear[key]) if key in linear else g
        return Alignment(self.spec, {**linear, **compose_shifts(self, other)})

    def inverse(self) -> Alignment:
        """The alignment that undoes this one."""
        from isomerge.symmetry.shifts import invert_shifts

        back = self.inverse_spaces()
        return Alignment(self.spec, {**back.elements, **invert_shifts(self)})

    def inverse_spaces(self) -> Alignment:
        """The inverse of the spaces alone, without the shifts."""
        linear = {}
        for key, g in self.elements.items():
            if not key.startswith("shift."):
                group = self.spec.spaces[key.partition("[")[0]].group
                linear[key] = self._relabel(key, group.inverse(g), self, inverse=False)
        return Alignment(self.spec, linear)

    def _relabel(self, key: str, g: Tensor, moved_by: Alignment, *, inverse: bool) -> Tensor:
        """Renumber a fibre's element when the bases under it are permuted.

        With ``inverse`` the labels after ``moved_by`` become the labels before it; without, the other way round.
        """
        from isomerge.symmetry.groups import GROUPS

        space = self.spec.spaces[key.partition("[")[0]]
        scope = scope_of(self.spec, key)
        batch = self.spec.batch(space)
        for at, base in enumerate(batch):
            p = moved_by.element(base, scope)
            if p is None:
                continue
            p = p.abs() - 1 if self.spec.spaces[base].group_name == "SignedPerm" else p
            if not inverse:  # the base's own labels have moved as well, outermost first
                p = moved_by._relabel(
                    element_key(self.spec, self.spec.spaces[base], scope), p, moved_by, inverse=False
                )
            index = GROUPS["Perm"].inverse(p) if inverse else p
            own = self.spec.batch(self.spec.spaces[base])
            view = [1] * g.ndim
            for axis, name in enumerate(own):
                view[batch.index(name)] = index.shape[axis]
            view[at] = index.shape[-1]
            order = sorted(range(index.ndim), key=lambda k: at if k == index.ndim - 1 else batch.index(own[k]))
            full = index.permute(order).reshape(view)
            g = g.gather(at, full.expand([*g.shape]))
        return g

    # -------------------------------------------------------------------- file

    def digest(self) -> str:
        """A digest of every element, for telling one alignment from another of the same keys."""
        found = hashlib.sha256()
        for key, g in sorted(self.elements.items()):
            found.update(key.encode())
            found.update(g.numpy().tobytes())
        return found.hexdigest()

    def save(self, path: str | Path, **about: Any) -> None:
        """Write the patch file: safetensors, float64 and int64, with the spaces and sizes in its metadata."""
        from safetensors.torch import save_file

        header = {
            "format": FORMAT,
            "model_type": self.spec.model_type,
            "about": about,
            "spaces": {n: [s.group_name, list(s.index)] for n, s in self.spec.spaces.items()},
            "sizes": self.spec.sizes,
        }
        # one key: safetensors writes several in an order that changes from run to run
        metadata = {"isomerge": json.dumps(header, sort_keys=True)}
        save_file({k: v.contiguous() for k, v in sorted(self.elements.items())}, str(path), metadata=metadata)

    @classmethod
    def load(cls, path: str | Path, spec: Spec) -> Alignment:
        """Read a patch file for models of ``spec``.

        Raises:
            IsomergeError: not a patch file, or one for another architecture or other sizes.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "pt") as file:
                text = (file.metadata() or {}).get("isomerge", "{}")
                elements = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise IsomergeError(
                f"{path}: not a readable alignment file ({error}): save one with --save-alignment"
            ) from None
        meta = _header(text)
        kinds = {"model_type": str, "spaces": dict, "sizes": dict}
        if meta.get("format") != FORMAT or not all(isinstance(meta.get(k), kind) for k, kind in kinds.items()):
            raise IsomergeError(
                f"{path}: not an alignment of isomerge (format {meta.get('format')}, expected {FORMAT})"
            )
        if meta["model_type"] != spec.model_type:
            raise IsomergeError(f"{path}: made for {meta['model_type']}, but the model is {spec.model_type}")
        active = _with_groups(spec, meta["spaces"], meta["sizes"], elements, path)
        for key, g in elements.items():
            _check_element(active, key, g, path)
        return cls(active, elements)


def _header(text: str) -> dict[str, Any]:
    """The header of a patch file; empty when it is not ours."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _check_element(spec: Spec, key: str, g: Tensor, path: Any) -> None:
    """Refuse what is no element of its group: a wrong shape, numbers that are not finite, no inverse."""
    from isomerge.symmetry.shifts import shift_atoms

    if key.startswith("shift."):
        shift = next(s for s in spec.shifts if s.name == key.removeprefix("shift.").partition("[")[0])
        wanted = tuple(spec.sizes[a.name] for a in shift_atoms(spec, shift))
        good = tuple(g.shape) == wanted and bool(g.isfinite().all())
    elif (name := key.partition("[")[0]) not in spec.spaces:
        good = False
    else:
        space = spec.spaces[name]
        batch = tuple(spec.sizes[i] for i in spec.batch(space))
        identity = space.group.identity(batch, spec.sizes[space.name])
        good = tuple(g.shape) == tuple(identity.shape) and space.group.contains(g)
    if not good:
        raise IsomergeError(
            f"{path}: element {key} is no element of its group: this alignment is damaged, make it again"
        )


def _with_groups(
    spec: Spec, spaces: dict[str, Any], sizes: dict[str, int], elements: Mapping[str, Tensor], path: Any
) -> Spec:
    """The spec with exactly the patch's spaces active, checked against what the patch was made for."""
    for key in elements:
        name = key.removeprefix("shift.").partition("[")[0]
        known = spec.spaces if not key.startswith("shift.") else {s.name for s in spec.shifts}
        if name not in known:
            raise IsomergeError(f"{path}: element {key} is of no space of the spec for {spec.model_type}")
    for name in spaces:
        wanted = [n for n in (name, *spaces[name][1]) if n in sizes and sizes[n] != spec.sizes.get(n)]
        if wanted:
            raise IsomergeError(
                f"{path}: made for {wanted[0]} = {sizes[wanted[0]]}, but the model has {spec.sizes.get(wanted[0])}"
            )
    return spec.restrict([*spaces, *(s.name for s in spec.shifts)])

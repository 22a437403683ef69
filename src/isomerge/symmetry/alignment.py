"""The group element: what moves a checkpoint along its symmetry orbit, and its patch file.

An alignment maps element keys (``ov[3]``: space ov, layer 3; ``shift.vb[3]``: an additive gauge) to tensors. It acts
in stages, nearly always a single one: by its shifts first, then by its spaces, fibres before the bases they sit over.
A rotated residual stream needs two: gains folded and the stream rotated, then the anchor's gains taken on.
Elements are labelled by the blocks as they are before their stage (head 2, wherever it is moved to), so that
``g @ h`` and ``g.inverse()`` are exact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.spec import Spec
from isomerge.symmetry.stage import Stage, element_key, joined, scope_of

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "isomerge-alignment-1"
MAX_HEADER = 10_000_000
"""Longest record of a patch file that is read, in characters."""
__all__ = ["Alignment", "Stage", "element_key", "scope_of"]


class Alignment(Mapping[str, "Tensor"]):
    """An element of the symmetry group of one architecture: element key -> stacked element.

    Missing keys are identities. Keys of stages after the first begin with their number (``2:n1[0]``). ``spec`` must
    have every space that occurs active.
    """

    def __init__(self, spec: Spec, elements: Mapping[str, Tensor] | None = None) -> None:
        parts: dict[int, dict[str, Tensor]] = {1: {}}
        for key, g in (elements or {}).items():
            number, _, name = key.rpartition(":")
            parts.setdefault(int(number or 1), {})[name] = g
        self.spec = spec
        self.stages = tuple(Stage(spec, parts[number]) for number in sorted(parts))

    @classmethod
    def of(cls, stages: Sequence[Stage], spec: Spec) -> Alignment:
        """The alignment that acts by these stages, the first one first; neighbours are joined where they can be."""
        short: list[Stage] = []
        for stage in stages:
            spec = joined(spec, stage.spec)
            if short and stage.follows(short[-1]):
                short[-1] = stage @ short[-1]
            elif stage.elements:
                short.append(stage)
        found = cls(spec)
        found.stages = tuple(Stage(spec, s.elements) for s in short) or found.stages
        return found

    @property
    def elements(self) -> dict[str, Tensor]:
        """All elements, the keys of later stages with their number."""
        return {
            (key if number == 1 else f"{number}:{key}"): g
            for number, stage in enumerate(self.stages, 1)
            for key, g in stage.elements.items()
        }

    def __getitem__(self, key: str) -> Tensor:
        return self.elements[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.elements)

    def __len__(self) -> int:
        return sum(map(len, self.stages))

    # ------------------------------------------------------------------ action

    def act(self, tensors: dict[Block, Tensor]) -> None:
        """Apply to the blocks of one unit, in place. Float tensors, contiguous, all blocks of every shift."""
        for stage in self.stages:
            stage.act(tensors)

    def applied(self, tensors: Mapping[Block, Tensor]) -> dict[Block, Tensor]:
        """What `act` makes of the blocks of one unit, bit for bit, in new tensors; those that nothing moves are the given ones."""
        found = dict(tensors)
        for stage in self.stages:
            found = stage.applied(found)
        return found

    def act_linearly(self, block: Block, tensor: Tensor) -> None:
        """Apply the spaces (not the shifts) to one block, in place."""
        for stage in self.stages:
            stage.act_linearly(block, tensor)

    def act_on_view(self, view: Tensor, atoms: tuple[Atom, ...], scope: Mapping[str, int]) -> None:
        """Apply the spaces to one tensor whose axes are atoms, in place."""
        for stage in self.stages:
            stage.act_on_view(view, atoms, scope)

    # ------------------------------------------------------------------- group

    def __matmul__(self, other: Alignment) -> Alignment:
        """``(g @ h)`` acts like h first, then g."""
        return Alignment.of((*other.stages, *self.stages), joined(other.spec, self.spec))

    def inverse(self) -> Alignment:
        """The alignment that undoes this one."""
        parts = [part.inverse() for stage in self.stages for part in stage.split()]
        return Alignment.of(parts[::-1], self.spec)

    def to(self, device: str) -> Alignment:
        """The same alignment with its elements on a device of torch."""
        return Alignment(self.spec, {key: g.to(device) for key, g in self.elements.items()})

    # -------------------------------------------------------------------- show

    def moved(self) -> dict[str, tuple[str, int, int]]:
        """Per space (or shift): its group, how many elements there are, and how many of them are not the identity."""
        found: dict[str, tuple[str, int, int]] = {}
        for key, g in self.elements.items():
            name = key.rpartition(":")[2].partition("[")[0]
            if name.startswith("shift."):
                group, here, still = "shift", 1, not bool(g.any())
            else:
                space = self.spec.spaces[name]
                batch = tuple(g.shape[: len(self.spec.batch(space))])
                group, identity = space.group_name, space.group.identity(batch, self.spec.sizes[name])
                apart = (g != identity).reshape(*batch, -1).any(-1)
                here, still = apart.numel(), apart.numel() - int(apart.sum())
            _, count, not_still = found.get(name, (group, 0, 0))
            found[name] = (group, count + here, not_still + here - still)
        return found

    def __repr__(self) -> str:
        return f"<Alignment of {self.spec.model_type}: {len(self)} elements of {', '.join(self.moved()) or 'no space'}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: how much of every space is moved."""
        rows = [("space", "group", "elements", "not the identity")]
        rows += [(name, group, str(count), str(moved)) for name, (group, count, moved) in self.moved().items()]
        head, *body = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        caption = f"Alignment: a symmetry of {escape(self.spec.model_type)}, the same function in other weights"
        table = "".join(f"<tr>{row}</tr>" for row in body)
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>"

    # -------------------------------------------------------------------- file

    def digest(self) -> str:
        """A digest of every element, for telling one alignment from another of the same keys."""
        found = hashlib.sha256()
        for key, g in sorted(self.elements.items()):
            found.update(key.encode())
            found.update(g.numpy().tobytes())
        return found.hexdigest()

    def save(self, path: str | Path, **about: Any) -> None:
        """Write the patch file: safetensors, float64 and int64, with the spaces and sizes in its metadata.

        An alignment that is there is replaced once the new one is whole.

        Raises:
            IsomergeError: see `check_patch_file`.
        """
        from isomerge.files import write_tensors

        header = {
            "format": FORMAT,
            "model_type": self.spec.model_type,
            "about": about,
            "spaces": {n: [s.group_name, list(s.index)] for n, s in sorted(self.spec.spaces.items())},
            "sizes": self.spec.sizes,
        }
        check_patch_file(Path(path), str(path))
        write_tensors(Path(path), self.elements, header)

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
        if not all(map(_is_space, meta["spaces"].values())):
            raise IsomergeError(f"{path}: its list of spaces is damaged: make this alignment again")
        if meta["model_type"] != spec.model_type:
            raise IsomergeError(f"{path}: made for {meta['model_type']}, but the model is {spec.model_type}")
        active = _with_groups(spec, meta["spaces"], meta["sizes"], elements, path)
        for key, g in elements.items():
            _check_element(active, key.rpartition(":")[2], g, path)
        return cls(active, elements)


def check_patch_file(path: Path, name: str) -> None:
    """Refuse a file that no alignment can be saved to, before anything is computed for it.

    Args:
        path: the file.
        name: what errors call it.

    Raises:
        IsomergeError: see `isomerge.files.check_file`; or weights, statistics or examples that it would replace.
    """
    from safetensors import SafetensorError, safe_open

    from isomerge.files import check_file

    check_file(path, name, force=True)
    try:
        with safe_open(str(path), "pt") as file:
            found = _header((file.metadata() or {}).get("isomerge", "{}"))
    except (OSError, SafetensorError):
        return  # nothing there, or nothing that could be read
    if found.get("format") != FORMAT:
        raise IsomergeError(f"{name} has tensors that are no alignment, and would be replaced: choose another file")


def _header(text: str) -> dict[str, Any]:
    """The header of a patch file; empty when it is not ours."""
    try:
        found = json.loads(text) if len(text) <= MAX_HEADER else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_space(entry: Any) -> bool:
    """Whether a header's entry is a group's name and the indices of a space."""
    match entry:
        case [str(), [*indices]]:
            return all(isinstance(index, str) for index in indices)
    return False


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
    for key in (k.rpartition(":")[2] for k in elements):
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
    found = spec.restrict([*spaces, *(s.name for s in spec.shifts)])
    for name, (group, *_) in spaces.items():
        space = found.spaces.get(name)
        if space is not None and group != space.group_name:
            if group not in space.groups:
                raise IsomergeError(
                    f"{path}: space {name} acts by {group}, but this model allows {' or '.join(space.groups)}"
                )
            found = found.with_group(name, group)
    return found

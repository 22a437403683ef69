"""Patch files: an alignment in a safetensors file, checked against the spec of the model that it is to move."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from isomerge.arithmetic import aligned
from isomerge.errors import IsomergeError
from isomerge.files import check_file, write_tensors
from isomerge.records import Json
from isomerge.symmetry.element_key import SHIFT, ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.norm_stage import check_norm_element, is_norm_key, kind_of
from isomerge.symmetry.stage import FIXED, shift_shape

FORMAT = "isomerge-alignment-1"
MAX_HEADER = 10_000_000
"""Longest record of a patch file that is read, in characters."""


def write_patch(path: Path, spec: Spec, elements: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the patch file: safetensors, float64 and int64, with the spaces and sizes in its metadata.

    An alignment that is there is replaced once the new one is whole.

    Args:
        path: the file.
        spec: of the alignment, its spaces active.
        elements: by element key, those of stages after the first with their number.
        about: what is kept beside them.

    Raises:
        IsomergeError: see `check_patch_file`.
    """
    header = {
        "format": FORMAT,
        "model_type": spec.model_type,
        "about": dict(about),
        "spaces": {n: [s.group_name, list(s.index)] for n, s in sorted(spec.spaces.items())},
        "sizes": spec.sizes,
    }
    check_patch_file(path, str(path))
    write_tensors(path, elements, header)


def read_patch(path: Path, spec: Spec) -> tuple[Spec, dict[str, Tensor]]:
    """The spec with exactly the patch's spaces active, and the elements by their keys.

    Args:
        path: the file.
        spec: of the model that is to be moved.

    Raises:
        IsomergeError: not a patch file, or one for another architecture or other sizes.
    """
    try:
        with safe_open(str(path), "pt") as file:
            text = (file.metadata() or {}).get("isomerge", "{}")
            elements = {key: aligned(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = "a folder" if path.is_dir() else error
        raise IsomergeError(
            f"{path}: not a readable alignment file ({reason}): save one with --save-alignment"
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
    _check_stages(elements, path)
    active = _with_groups(spec, meta["spaces"], meta["sizes"], elements, path)
    for key, g in elements.items():
        _check_element(active, ElementKey.of(key).in_stage, g, path)
    return active, elements


def check_patch_file(path: Path, name: str) -> None:
    """Refuse a file that no alignment can be saved to, before anything is computed for it.

    Args:
        path: the file.
        name: what errors call it.

    Raises:
        IsomergeError: see `isomerge.files.check_file`; or weights, statistics or examples that it would replace.
    """
    check_file(path, name, overwrite=True)
    try:
        with safe_open(str(path), "pt") as file:
            header = _header((file.metadata() or {}).get("isomerge", "{}"))
    except (OSError, SafetensorError):
        return  # nothing there, or nothing that could be read
    if header.get("format") != FORMAT:
        raise IsomergeError(f"{name} has tensors that are no alignment, and would be replaced: choose another file")


def _header(text: str) -> Json:
    """The header of a patch file; empty when it is not ours."""
    try:
        header = json.loads(text) if len(text) <= MAX_HEADER else {}
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def _is_space(entry: Any) -> bool:
    """Whether a header's entry is a group's name and the indices of a space."""
    match entry:
        case [str(), [*indices]]:
            return all(isinstance(index, str) for index in indices)
    return False


def _check_stages(elements: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a stage whose elements have no order: moves of norms beside others."""
    kinds: dict[str, str] = {}
    for key in map(ElementKey.of, elements):
        kind = kind_of(key.in_stage)
        if kinds.setdefault(key.stage or "1", kind) != kind:
            raise IsomergeError(
                f"{path}: stage {key.stage or 1} has elements of two kinds, {key.in_stage} among them: this "
                "alignment is damaged, make it again"
            )


def _check_element(spec: Spec, key: str, g: Tensor, path: Path) -> None:
    """Refuse what is no element of its group: a wrong shape, numbers that are not finite, no inverse."""
    if is_norm_key(key):
        good = check_norm_element(spec, key, g)
    elif ElementKey.of(key).is_shift:
        wanted = shift_shape(spec, spec.shift_of(key))
        good = tuple(g.shape) == wanted and bool(g.isfinite().all())
    elif (name := ElementKey.of(key).name) not in spec.spaces:
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
    spec: Spec, spaces: Json, sizes: dict[str, int], elements: Mapping[str, Tensor], path: Path
) -> Spec:
    """The spec with exactly the patch's spaces active, checked against what the patch was made for."""
    for key in map(ElementKey.of, elements):
        known = spec.spaces if not key.is_shift else {SHIFT + shift.name for shift in spec.shifts}
        if not is_norm_key(key.name) and key.name not in known:
            raise IsomergeError(f"{path}: element {key.in_stage} is of no space of the spec for {spec.model_type}")
    for name in spaces:
        wanted = [n for n in (name, *spaces[name][1]) if n in sizes and sizes[n] != spec.sizes.get(n)]
        if wanted:
            raise IsomergeError(
                f"{path}: made for {wanted[0]} = {sizes[wanted[0]]}, but the model has {spec.sizes.get(wanted[0])}"
            )
    active = spec.restrict([*spaces, *(s.name for s in spec.shifts)])
    for name, (group, *_) in spaces.items():
        space = active.spaces.get(name)
        if space is not None and group != space.group_name:
            if group not in (*space.groups, FIXED):
                raise IsomergeError(
                    f"{path}: space {name} acts by {group}, but this model allows {' or '.join(space.groups)}"
                )
            active = active.with_group(name, group)
    return active

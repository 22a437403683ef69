"""What a checkpoint is: architecture, spaces, units, and how many of its dimensions are redundant.

The dimensions of the whole declared group, streams and gains included, are counted by formula, from headers alone:
the same number as the rank of the declared tangents (`isomerge.discovery.redundancy`), which needs numbers. What
two parts have in common is counted once: a vector that two tables trade is, along the ones, what LayerNorm takes
away from each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import lgamma, log, prod

from isomerge.evidence.report.spaces import plain_names
from isomerge.matching.stream_groups import choose_frame
from isomerge.models.free_streams import given_out, why_given_out, without_streams
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import block_size
from isomerge.records import Record
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.fixed import FixedPart, fixed_parts
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.norms import LayerNorms, free_dimensions
from isomerge.symmetry.stage import find_shifts, shift_shape
from isomerge.symmetry.units import elements_of, plan_units


class SpaceSize(Record):
    """A space, and how large its group is."""

    name: str
    role: str
    group: str
    index: Sequence[str]
    size: int
    elements: int
    dimension: int
    """Continuous dimensions, of all elements."""
    log10_permutations: float
    matched: bool
    """Whether it is matched by default."""
    words: str


class StreamSize(Record):
    """What may act on a residual stream."""

    name: str
    declared: str
    group: str | None
    """That ``--spaces all`` takes; None: it must keep its basis."""
    folded: bool
    """Whether gains are folded for it."""
    why: str


class Inspection(Record, kw_only=True):
    """What a checkpoint is."""

    command: str = "inspect"
    model: str
    architecture: str
    spec: str
    tensors: int
    parameters: int
    bytes: int
    dtypes: Sequence[str]
    lines: Mapping[str, str]
    units: int
    units_matched: int
    spaces: Sequence[SpaceSize]
    streams: Sequence[StreamSize]
    fixed: Sequence[FixedPart]
    shifts: Mapping[str, int]
    norms: int
    """Dimensions that LayerNorm leaves free."""
    redundant: Mapping[str, int]
    """Parts of the parameters that symmetry removes, those of the whole declared group."""
    redundant_dimensions: int


def inspection(model: Model) -> Inspection:
    """What a checkpoint is, from headers and config alone."""
    spec, spaces = model.spec, _spaces(model)
    shifts: dict[str, int] = defaultdict(int)
    for shift, _, _ in find_shifts(spec, model.blocks):
        shifts[shift.name] += prod(shift_shape(spec, shift))
    parts = whole_group(model)
    local = spec.restrict([s.name for s in spaces if s.matched] + [s.name for s in spec.shifts])
    units = plan_units(local, model.blocks)
    tensors = model.checkpoint.tensors.values()
    return Inspection(
        model=model.ref,
        architecture=spec.model_type,
        spec=spec.origin,
        tensors=len(model.matches),
        parameters=sum(prod(i.shape) for i in tensors),
        bytes=model.checkpoint.nbytes,
        dtypes=sorted({i.dtype for i in tensors}),
        lines={m.line.name: m.line.shown for m in model.matches.values()},
        units=len(units),
        units_matched=sum(bool(u.elements or u.votes) for u in units),
        spaces=spaces,
        streams=_streams(model),
        fixed=fixed_parts(spec, model.matches.values()),
        shifts=dict(shifts),
        norms=parts["norms"],
        redundant=parts,
        redundant_dimensions=sum(parts.values()),
    )


def _spaces(model: Model) -> list[SpaceSize]:
    """Every space with elements in the model: how many, and how large its group is."""
    spec, words = model.spec, plain_names(model.spec)
    elements: dict[str, set[str]] = {}
    for block in model.blocks:
        for key, space in elements_of(spec, block).items():
            elements.setdefault(space.name, set()).add(key)
    rows = []
    for name, keys in elements.items():
        space, n = spec.spaces[name], spec.sizes[name]
        count = len(keys) * prod(spec.sizes[i] for i in spec.batch(space))
        discrete = count * lgamma(n + 1) / log(10) if "Perm" in space.group_name else 0.0
        dimension, matched = count * space.group.dimension(n), name not in spec.residual_names
        named = (name, space.role, space.group_name, space.index)
        rows.append(SpaceSize(*named, n, count, dimension, discrete, matched, words[name]))
    return rows


def _streams(model: Model) -> list[StreamSize]:
    """What may act on every residual stream, and why it is no more."""
    frame, notes = choose_frame(model.spec, ["all"])
    if frame is None:
        return []
    rows = []
    for name in frame.streams:
        space, declared = frame.spaces[name], model.spec.spaces[name]
        why = next((note for note in notes if note.startswith(f"{name} ")), "")
        group: str | None = space.group_name
        if name in given_out(model):
            group, why = None, why_given_out(model, name)
        folded = group is not None and group == declared.folded and group != declared.group_name
        rows.append(StreamSize(name, declared.group_name, group, folded, why))
    return rows


def whole_group(model: Model) -> dict[str, int]:
    """The dimensions of the whole declared group, by parts that add up to it.

    That is the rank at a generic point, for every type that was counted (docs/lab/completeness.md). Where weights
    are special it is less: a gain of zero, or a norm's bias of zeros before readers without one, leaves less free.
    Rows of tables that no input reaches, and tensors that the class does not run, count as they are stored.

    Returns:
        ``spaces``: inside the layers; ``shifts``: of biases and tables; ``norms``: what LayerNorm leaves free, with
        what tables that are heads as well trade; ``gains``: the scales between norms and what reads them;
        ``streams``: the largest groups of the residual streams that no class gives out; ``common``: what shifts and
        LayerNorm's moves have in common, counted twice before, so that it is at most zero.
    """
    spec, free = _largest(model), free_under_layer_norm(model)
    sizes = dict.fromkeys(("spaces", "shifts", "norms", "gains", "streams"), 0)
    for key, dimension in _dimensions(model, spec).items():
        name = ElementKey.of(key).name
        sizes["streams" if name in spec.streams else "gains" if name in spec.gains else "spaces"] += dimension
    sizes["shifts"] = sum(prod(shift_shape(spec, shift)) for shift, _, _ in find_shifts(spec, model.blocks))
    sizes["norms"] = free_dimensions(free, model.declared, lambda block: block_size(model, block))
    return {**sizes, "common": -_common(model, spec, free)}


def _largest(model: Model) -> Spec:
    """The spec with every stream and every latent acted on by its largest group, without the streams that the class
    gives out and the gains over them outside of layers."""
    frame, _ = choose_frame(model.spec, ["all"])
    return (model.spec if frame is None else without_streams(frame, given_out(model))).turning_latents()


def _dimensions(model: Model, spec: Spec) -> dict[str, int]:
    """The dimensions of every element."""
    dimensions = {}
    for block in model.blocks:
        for key, space in elements_of(spec, block).items():
            batch = prod(spec.sizes[i] for i in spec.batch(space))
            dimensions[key] = batch * space.group.dimension(spec.sizes[space.name])
    return dimensions


def _common(model: Model, spec: Spec, free: LayerNorms) -> int:
    """The shifts that trade a constant between two writers under LayerNorm: along the ones both have anything."""
    shifts = find_shifts(spec, model.blocks)
    traded = [[parts.get(name) for name in (shift.bias, shift.into) if name] for shift, _, parts in shifts]
    common = sum(len(tables) == 2 and all(table in free.writers for table in tables) for tables in traded)
    plain = [vector for vector in free.carried if vector.shape and vector.plainly == vector.blocks]
    return common + sum(all(block in free.writers for block in vector.blocks) for vector in plain)

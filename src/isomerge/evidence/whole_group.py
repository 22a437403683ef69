"""How many dimensions the whole declared group has, streams and gains included: by formula, from headers alone.

The same number as the rank of the declared tangents (`isomerge.discovery.redundancy`), which needs numbers. What
two parts have in common is counted once: a vector that two tables trade is, along the ones, what LayerNorm takes
away from each of them.
"""

from __future__ import annotations

from math import prod

from isomerge.matching.stream_groups import choose_frame
from isomerge.models.free_streams import given_out, without_streams
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import block_size
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.norms import LayerNorms, free_dimensions
from isomerge.symmetry.stage import find_shifts, shift_shape
from isomerge.symmetry.units import elements_of


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
    sizes = {"spaces": 0, "gains": 0, "streams": 0}
    for key, dimension in _dimensions(model, spec).items():
        name = ElementKey.of(key).name
        sizes["streams" if name in spec.streams else "gains" if name in spec.gains else "spaces"] += dimension
    shifts = sum(prod(shift_shape(spec, shift)) for shift, _, _ in find_shifts(spec, model.blocks))
    norms = free_dimensions(free, model.declared, lambda block: block_size(model, block))
    return {
        "spaces": sizes["spaces"],
        "shifts": shifts,
        "norms": norms,
        "gains": sizes["gains"],
        "streams": sizes["streams"],
        "common": -_common(model, spec, free),
    }


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
    plain = [one for one in free.carried if one.shape and one.plainly == one.blocks]
    return common + sum(all(block in free.writers for block in one.blocks) for one in plain)

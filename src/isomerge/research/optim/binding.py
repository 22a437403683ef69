"""A live module, recognised by its spec: parameters in blocks, and the continuous symmetries that it really has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Set
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from isomerge.archs import spec_for
from isomerge.checkpoint.in_memory import config_of, in_memory
from isomerge.errors import IsomergeError
from isomerge.matching.stream_groups import returned_streams
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model
from isomerge.models.tied_tensors import SELF_DUAL, has_language_head
from isomerge.observe.live.modules import parameter_names
from isomerge.observe.live.parameter_places import names_of_each
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Line, Space, Spec
from isomerge.symmetry.layer_norms import NORMS, under_layer_norm
from isomerge.symmetry.norms import LayerNorms
from isomerge.symmetry.stage import find_shifts

CONTINUOUS = ("GL", "Scale", "PositiveScale", "Complex")


@dataclass(frozen=True)
class Binding:
    """The parameters of a module by canonical names, and the spec with its continuous symmetries alone."""

    spec: Spec
    blocks: list[Block]
    """Every parameter's block; a parameter that is used in several places is there once."""
    parameters: dict[str, nn.Parameter]
    """By canonical name."""
    names: dict[str, str]
    """From canonical names to the module's own."""
    left_out: dict[str, str]
    """Continuous spaces and shifts of the architecture that do not act, and why."""
    free: LayerNorms
    """What LayerNorm leaves free among what is trained (`isomerge.symmetry.layer_norms`)."""


def bind(
    module: nn.Module,
    *,
    spaces: Collection[str] | None = None,
    trained: Collection[nn.Parameter] | None = None,
    spec_file: str | Path | None = None,
) -> Binding:
    """Recognise a live module.

    Args:
        module: a module of transformers, with its ``config``.
        spaces: names of the spaces and shifts that shall act, and "norms" for what LayerNorm leaves free; all by
            default.
        trained: the parameters that are trained; those that require gradients by default.
        spec_file: a spec for an architecture that isomerge does not know.

    Raises:
        IsomergeError: no config, an unknown architecture, a parameter that no line describes, or an unknown space.
    """
    if not hasattr(module, "config"):
        raise IsomergeError(
            f"{type(module).__name__} has no config: give the transformers module itself, not a wrapper around it"
        )
    config = {**config_of(module.config, type(module).__name__), "architectures": [type(module).__name__]}
    spec = spec_for(config, spec_file, {name: tuple(t.shape) for name, t in module.state_dict().items()})
    names = parameter_names(module, spec)
    own = dict(module.named_parameters(remove_duplicate=False))
    parameters = {canonical: own[name] for canonical, name in names.items()}
    matches = {}
    for canonical, name in names.items():
        matches[canonical] = spec.match(name)
        spec.check_shape(name, matches[canonical], tuple(parameters[canonical].shape))
    left_out = _broken_by_sharing(module, spec)
    kept = spec.without({shift.name for shift in spec.shifts} & left_out.keys())
    model = Model(in_memory({}, config, ref=type(module).__name__), kept, matches, kept)
    blocks, chosen = model.blocks, _chosen(spec, spaces)
    tied = has_language_head(config) and any(len(of_one) > 1 for of_one in names_of_each(module))
    if given := returned_streams(spec, list(names), config, tied):
        ends = (n for n, s in spec.spaces.items() if s.residual and not spec.scope(s) and {n, *s.index} & given)
        left_out |= dict.fromkeys(ends, "the module gives out what this norm does")
    trains = {id(p) for p in (parameters.values() if trained is None else trained) if p.requires_grad}
    frozen = {canonical for canonical, p in parameters.items() if id(p) not in trains}
    active = spec.restrict(chosen - left_out.keys())
    left_out |= _frozen(active, blocks, frozen) | _one_sided(active, blocks) | _affine(active)
    free = LayerNorms()
    if NORMS in chosen:
        free = _trained(free_under_layer_norm(model), frozen | _shared(module, spec))
        left_out |= {} if free else {NORMS: "what it leaves free is given out, shared, or not trained"}
    why = {n: text for n, text in left_out.items() if n in chosen}
    return Binding(spec.restrict(chosen - left_out.keys()), blocks, parameters, names, why, free)


def _chosen(spec: Spec, spaces: Collection[str] | None) -> set[str]:
    """The names of the continuous spaces and shifts that are asked for."""
    shifts = {shift.name for shift in spec.shifts}
    continuous = {name for name, space in spec.spaces.items() if space.group_name in CONTINUOUS} | shifts
    continuous |= {NORMS} if under_layer_norm(spec) else set()
    if spaces is None:
        return continuous
    if unknown := sorted(set(spaces) - continuous):
        raise IsomergeError(
            f"spaces={unknown[0]!r}: {spec.model_type} has no such continuous space; "
            f"choose among {', '.join(sorted(continuous))}"
        )
    return set(spaces)


def _affine(spec: Spec) -> dict[str, str]:
    """The spaces that act on a parameter less one: generators here act on parameters as they are stored."""
    stored = [line for line in spec.lines if line.less]
    return {n: f"{line.name} is stored less {line.less}" for line in stored for n in _acting(spec, line)}


def _broken_by_sharing(module: nn.Module, spec: Spec) -> dict[str, str]:
    """The spaces that would move a shared parameter in one of its places only."""
    broken: dict[str, str] = {}
    for names in names_of_each(module):
        first, *others = (spec.match(name) for name in names)
        for other in others:
            ours, theirs = _acting(spec, first.line), _acting(spec, other.line)
            same = {n for n in ours & theirs if spec.spaces[n].group_name in SELF_DUAL or first.line == other.line}
            if (
                first.binding != other.binding
            ):  # one tensor in two layers: an element of one layer alone would tear it
                same = {n for n in same if not spec.scope(spec.spaces[n])}
            ends = {first.line.name, other.line.name} if first.line != other.line else set[str]()
            trades = {s.name for s in spec.shifts if s.trades and s.against is None and s.ends & ends}
            broken |= dict.fromkeys((ours | theirs | trades) - same, f"{names[0]} is shared with another place")
    return broken


def _acting(spec: Spec, line: Line) -> frozenset[str]:
    return line.names & spec.spaces.keys()


def _frozen(spec: Spec, blocks: list[Block], frozen: set[str]) -> dict[str, str]:
    """What would move a parameter that is not trained: its orbit leaves the set of reachable weights."""
    stuck: dict[str, str] = {}
    for block in blocks:
        if still := sorted(frozen & set(block.canonical)):
            stuck |= dict.fromkeys(_acting(spec, block.line), f"{still[0]} is not trained")
    for shift, _, parts in find_shifts(spec, blocks):
        if still := sorted(frozen & {name for part in parts.values() for name in part.canonical}):
            stuck[shift.name] = f"{still[0]} is not trained"
    return stuck


def _shared(module: nn.Module, spec: Spec) -> set[str]:
    """The canonical names of parameters that have several places, other than those that the spec ties."""
    places = (map(spec.match, names) for names in names_of_each(module))
    apart = ([match.canonical for match in matches if match.line.tied is None] for matches in places)
    return {canonical for names in apart if len(names) > 1 for canonical in names}


def _trained(free: LayerNorms, still: Set[str]) -> LayerNorms:
    """What LayerNorm leaves free without what would move a tensor that stays."""

    def stays(block: Block | None) -> bool:
        return block is not None and not still.isdisjoint(block.canonical)

    for norm in free.norms:
        biases = {reader: bias for bias, reader in norm.reader_biases.items()}
        parted = norm.bare.keys() | norm.apart.keys()  # of which some rows are free in another way: they hold still
        parted |= (
            {reader for reader, k in Counter(norm.reader_biases.values()).items() if k > 1}
            | (set() if norm.folds else norm.unheard)
            | norm.sliced.keys()
            | norm.tiled
        )
        held = {reader for reader in norm.readers if stays(reader) or stays(biases.get(reader))}
        norm.bound |= held | parted
        norm.sealed |= bool(parted) or norm.through is not None or norm.level or any(map(stays, norm.blocks))
    moves = [norm for norm in free.norms if norm.slack or norm.folds or norm.scales]
    carried = [vector for vector in free.carried if not any(map(stays, vector.blocks))]
    return LayerNorms({block: k for block, k in free.writers.items() if not stays(block)}, moves, carried)


def _one_sided(spec: Spec, blocks: list[Block]) -> dict[str, str]:
    """Spaces of one side, such as that of a last norm which nothing reads; shifts without their tensors."""
    sides: dict[str, set[bool]] = {name: set() for name in spec.spaces}
    for block in blocks:
        for atom in block.atoms:
            if atom.name in sides:
                sides[atom.name].add(atom.dual)
    there = {shift.name for shift, _, _ in find_shifts(spec, blocks)}
    refused = {name: "the module has only one side of it" for name, side in sides.items() if len(side) < 2}
    paid = [s for s in spec.shifts if s.via is not None]
    refused |= {s.name: "it moves two biases at once" for s in paid if s.beside is not None}
    refused |= {s.name: "it moves a table and a bias at once" for s in paid if s.along is not None}
    return refused | {s.name: "the module lacks its tensors" for s in spec.shifts if s.name not in there}


def scopes_of(spec: Spec, space: Space, blocks: Collection[Block]) -> list[tuple[int, ...]]:
    """The layers in which a space acts, in order."""
    scopes = {
        tuple(dict(block.scope)[i] for i in spec.scope(space)) for block in blocks if space.name in block.names
    }
    return sorted(scopes)

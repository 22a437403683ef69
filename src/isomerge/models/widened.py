"""Wider and deeper views: a checkpoint as if it had been trained with more coordinates, of which it uses few."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from isomerge.archs import spec_for
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.config.config_parts import with_values
from isomerge.config.widths import Growth, Said
from isomerge.errors import IsomergeError
from isomerge.models.layers import Part, Stack, stack_layers
from isomerge.models.stored_form import cast, out_code
from isomerge.models.tied_tensors import tied_lines, untie
from isomerge.models.transformers_reading import reading_of
from isomerge.models.widening import Added, How, Stream, Widening, Widths, check_growth, tied_factors
from isomerge.symmetry.axes import size
from isomerge.symmetry.language.spec import Match, Spec, by_canonical, coverage


class TiedHeadError(IsomergeError):
    """A head that is the embeddings cannot stay so in a wider model."""


@dataclass(frozen=True)
class Narrow:
    """A checkpoint that is to be widened, understood."""

    checkpoint: Checkpoint
    spec: Spec
    """As it is declared, before ties have taken spaces from it."""
    matches: Mapping[str, Match]
    spec_file: str | Path | None = None

    def said(self, config: Mapping[str, Any]) -> Said | None:
        """What the spec makes of another config for these tensors; None where it refuses it."""
        with suppress(IsomergeError):
            spec = spec_for(config, self.spec_file, self.checkpoint.shapes)
            return Said(spec.sizes, spec.depths)
        return None


def understood(checkpoint: Checkpoint, spec_file: str | Path | None = None, *, untied: bool = False) -> Narrow:
    """A checkpoint with its spec; with ``untied``, heads that are the embeddings get weights of their own.

    Raises:
        IsomergeError: no spec, or a tensor that it does not describe.
    """
    spec = spec_for(checkpoint.config, spec_file, checkpoint.shapes)
    matches = coverage(spec, checkpoint.shapes)
    if not untied:
        return Narrow(checkpoint, spec, matches, spec_file)
    names = by_canonical(matches)
    ties = [head for head, table in tied_lines(spec, names, checkpoint.config) if head.axes != table.axes]
    if not ties:
        return Narrow(checkpoint, spec, matches, spec_file)
    untied_heads = untie(spec, names, checkpoint.config, ties)
    return understood(checkpoint.with_copies(untied_heads.copies, **untied_heads.config), spec_file)


def deepened(narrow: Narrow, growth: Growth) -> tuple[Narrow, Added]:
    """A checkpoint with as many layers as are asked for: those that are added repeat layers of its own, until what
    they write is zero; with the stacks that grow, the index of each one's layers, and those that are added.

    Raises:
        IsomergeError: fewer layers, or layers that would be of another kind.
    """
    if not growth.depths:
        return narrow, {}
    stack = Stack(narrow.checkpoint, narrow.spec_file)
    if len(stack.places) == 1:
        deep, layers = _deepened(narrow, None, max(growth.depths.values()))
        return deep, {stack.place[1]: (stack.index, layers)}
    said = narrow.said(with_values(narrow.checkpoint.config, growth.depths))
    if said is None:
        raise IsomergeError(
            f"{narrow.checkpoint.ref}: its spec refuses a config with these numbers of layers ({growth.shown()}): "
            f"keep them"
        )
    added: dict[str, tuple[str, range]] = {}
    for index, name in sorted(stack.places):
        if (wanted := said.depths.get(name)) != narrow.spec.depths.get(name) and wanted is not None:
            narrow, layers = _deepened(narrow, Part(name, (name,)), wanted[1])
            added[name] = index, layers
    return narrow, added


def _deepened(narrow: Narrow, part: Part | None, wanted: int) -> tuple[Narrow, range]:
    """A checkpoint with so many layers in one stack, and those that are added."""
    depth, ref = Stack(narrow.checkpoint, narrow.spec_file, part).depth, narrow.checkpoint.ref
    if wanted < depth:
        raise IsomergeError(
            f"{ref} has {depth} layers, and {wanted} would be left: a model stands in no fewer layers"
        )
    refused: IsomergeError | None = None
    for added in ([depth - 1] * (wanted - depth), [n % depth for n in range(depth, wanted)]):
        parts = [(narrow.checkpoint, range(depth)), *((narrow.checkpoint, range(n, n + 1)) for n in added)]
        try:
            view = stack_layers(parts, narrow.checkpoint, spec_file=narrow.spec_file, part=part)
        except IsomergeError as error:
            refused = refused or error
            continue
        return understood(replace(view, ref=ref), narrow.spec_file), range(depth, wanted)
    assert refused is not None
    raise refused


def plan_of(
    narrow: Narrow, growth: Growth, ways: Mapping[str, How], widths: Widths, added: Added | None = None
) -> Widening:
    """How every tensor stands in the wide model.

    Args:
        narrow: with all layers that it will have.
        growth: the sizes.
        ways: how every stream that grows stands.
        widths: what the class multiplies by powers of its width.
        added: of `deepened`.

    Raises:
        IsomergeError: sizes that shrink or in which the model does not stand, or a tied head that has none to take
            the difference.
    """
    checkpoint, spec = narrow.checkpoint, narrow.spec
    wide = spec_for(growth.config(checkpoint.config), narrow.spec_file, checkpoint.shapes)
    check_growth(spec, wide, narrow.matches)
    streams = {name: Stream(name, spec.sizes[name], wide.sizes[name], how) for name, how in ways.items()}
    ties = tied_lines(spec, by_canonical(dict(narrow.matches)), checkpoint.config)
    tied = tied_factors(spec, streams, ties, widths)
    for tie in tied:
        if not (tie.scale or widths.norm):
            raise TiedHeadError(
                f"{tie.head.canonical({})} is tied to {tie.table.canonical({})}, and no gain in front of it can "
                "take what the two differ by in a wider model: add --untie, which gives the head weights of its own"
            )
    scales = {tie.scale: tie.factor for tie in tied if tie.scale}
    rest = [tie.factor for tie in tied if not tie.scale]
    own = [line.name for line in spec.lines if rest and widths.norm and line.name.startswith(widths.norm)]
    return Widening(spec, wide, streams, widths, scales, dict.fromkeys(own, *rest[:1]), added or {})


def widened(narrow: Narrow, growth: Growth, plan: Widening, dtype: str | None = None) -> Checkpoint:
    """The view: every tensor is made when it is read. No weights are read here.

    ``dtype`` is what weights are rounded to, once; what they are stored in when None.

    Raises:
        IsomergeError: see `plan_of`.
    """
    checkpoint = narrow.checkpoint
    config = growth.config(checkpoint.config)
    shapes = _shapes(narrow, config, plan)
    derived, scales = {}, _layer_scales(narrow, plan)
    for name, match in narrow.matches.items():
        shape, stored = shapes[name], checkpoint.tensors[name]
        code = out_code(stored.dtype, dtype)
        info = replace(stored, dtype=code, shape=shape)
        derived[name] = Derived(info, partial(_made, checkpoint, name, plan, match, shape, code, scales.get(name)))
    identity = [
        config,
        [[s.name, s.how] for s in plan.streams.values()],
        str(plan.widths),
        dict(plan.scales),
        dict(plan.vectors),
        dict(plan.added),
        dtype,
    ]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return checkpoint.derive(derived, sources=[checkpoint], origin=f"widened {digest}", config=config)


def _made(
    checkpoint: Checkpoint,
    name: str,
    plan: Widening,
    match: Match,
    shape: tuple[int, ...],
    code: str,
    behind: str | None,
) -> Tensor:
    gain = None if behind is None else checkpoint.read(behind, exact=True)
    return cast(plan.applied(checkpoint.read(name, exact=True), match, shape, gain), code, name)


def _layer_scales(narrow: Narrow, plan: Widening) -> dict[str, str]:
    """The gains behind what tensors write, by the tensors' names."""

    def scope(match: Match) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((i, v) for i, v in match.binding.items() if i not in narrow.spec.sizes))

    gains = {
        (atom.name, scope(match)): name
        for name, match in narrow.matches.items()
        for atom in match.line.atoms
        if atom.diag and atom.dual and atom.name in plan.of_branches
    }
    wanted = {name: (plan.layer_scale(match), scope(match)) for name, match in narrow.matches.items()}
    return {name: gains[key] for name, key in wanted.items() if key in gains}


def _shapes(narrow: Narrow, config: Mapping[str, Any], plan: Widening) -> dict[str, tuple[int, ...]]:
    """The shapes of the wide model's tensors; where an axis has a free length, that of transformers' class."""
    stored = narrow.checkpoint.shapes
    shapes = {name: plan.shape(match, stored[name]) for name, match in narrow.matches.items()}
    reading = reading_of(config, shapes)
    for name, shape in (reading.reshaped if reading is not None else {}).items():
        axes = narrow.matches[name].line.axes
        if axes is None or len(shape) != len(axes):
            continue
        free = [size(axis, plan.wide.sizes) is None for axis in axes]
        if all(free[k] or shape[k] == shapes[name][k] for k in range(len(shape))) and all(
            shape[k] >= stored[name][k] for k in range(len(shape))
        ):
            shapes[name] = tuple(shape)
    return shapes

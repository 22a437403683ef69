"""A widening tried on a tiny random model of the same class: what a spec does not say of sizes shows in outputs.

Specs describe tensors. What a class computes from its sizes beside them (Gemma multiplies its embeddings by the
root of the width, T5 what its tied head reads by the inverse root), what a norm does across heads, and what a layer
is that writes nothing, is the class's own. So the widening is tried on a tiny model, whose outputs must stay, and
the powers of the width that a class multiplies by are those with which they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from isomerge.archs import spec_for
from isomerge.checkpoint.in_memory import in_memory
from isomerge.config.agreement import as_transformers_reads
from isomerge.config.widths import Growth, grown_twin
from isomerge.discovery.building import make_specimen, real_config
from isomerge.discovery.proving import PROVEN
from isomerge.discovery.shrinking import SCALES
from isomerge.discovery.specimen import Specimen, double_precision, loaded, run
from isomerge.errors import IsomergeError, first_line
from isomerge.evidence.outputs import differences, returned
from isomerge.models.widened import Narrow, TiedHeadError, deepened, plan_of, understood, widened
from isomerge.models.widening import How, Widths, norms_of, ways_of

EMBEDDINGS, HEADS, SCORES = (0.0, 0.5), (0.0, 0.5, 1.0), (0.5, 0.0)
"""The powers of widths that are tried, the likeliest first."""


@dataclass(frozen=True)
class Tried:
    """How a model stands in a wider one of its class, proven on a tiny one."""

    ways: Mapping[str, How]
    widths: Widths
    error: float
    """The largest relative change of outputs of the tiny model, float64."""
    module: str
    """Its class."""


def tried(narrow: Narrow, growth: Growth, *, untied: bool) -> Tried:
    """The first way to widen a model that leaves the outputs of a tiny random one of its class as they are.

    Args:
        narrow: the model.
        growth: what it will grow to.
        untied: whether its tied head gets weights of its own.

    Raises:
        IsomergeError: no way does; or sizes in which the model does not stand, or no tiny model can be built.
    """
    deep, added = deepened(narrow, growth)
    ways = _ways(narrow, growth)
    specimen = make_specimen(real_config(narrow.checkpoint.config), SCALES[0], 0, untied=False)
    tiny = understood(in_memory(specimen.stored, specimen.config), narrow.spec_file, untied=untied)
    real = as_transformers_reads(narrow.checkpoint.config) or narrow.checkpoint.config
    small = grown_twin(specimen.config, growth, real)
    refused: TiedHeadError | None = None
    least = float("inf")
    for way, widths in _trials(ways, bool(small.sizes), _norms(narrow, growth, ways)):
        try:
            plan_of(deep, growth, way, widths, added)
        except TiedHeadError as refusal:  # other powers, or another norm, may leave the tie
            refused = refused or refusal
            continue
        try:
            error = change(specimen, tiny, small, way, widths)
        except TiedHeadError:
            continue
        except IsomergeError as refusal:
            kind = type(specimen.module).__name__
            raise IsomergeError(
                f"{narrow.checkpoint.ref}: it cannot be tried on a tiny {kind} of the same proportions "
                f"({refusal.sentence}): choose other sizes"
            ) from None
        if error < PROVEN:
            return Tried(way, widths, error, type(specimen.module).__name__)
        least = min(least, error)
    if refused is not None:
        raise refused
    raise IsomergeError(_why(narrow, specimen, tiny, small, least))


def _ways(narrow: Narrow, growth: Growth) -> dict[str, list[How]]:
    config = growth.config(narrow.checkpoint.config)
    return ways_of(narrow.spec, spec_for(config, narrow.spec_file, narrow.checkpoint.shapes))


def _norms(narrow: Narrow, growth: Growth, ways: Mapping[str, list[How]]) -> list[str]:
    """The norms that a tied head may read, where some way leaves a tie that no scale takes; else none."""
    for way in product(*ways.values()):
        try:
            plan_of(narrow, growth, dict(zip(ways, way, strict=True)), Widths())
        except TiedHeadError:
            return norms_of(narrow.spec, ways)
        except IsomergeError:
            continue
    return []


def _trials(
    ways: Mapping[str, list[How]], wider: bool, norms: Sequence[str] = ()
) -> Iterator[tuple[dict[str, How], Widths]]:
    """All that is tried, the likeliest first."""
    powers = sorted(product(SCORES, HEADS, EMBEDDINGS), key=lambda p: (SCORES.index(p[0]), p[1] + p[2]))
    for scores, head, embedding in powers if wider else powers[:1]:
        for chosen in product(*ways.values()):
            for norm in ("", *norms) if (scores, head, embedding) == powers[0] else ("",):
                yield dict(zip(ways, chosen, strict=True)), Widths(embedding, head, scores, norm)


def change(specimen: Specimen, tiny: Narrow, growth: Growth, ways: Mapping[str, How], widths: Widths) -> float:
    """The largest change of the outputs of a tiny model that is widened, relative to the largest output.

    Raises:
        IsomergeError: sizes in which it does not stand, or transformers does not build the wide one.
    """
    deep, added = deepened(tiny, growth)
    plan = plan_of(deep, growth, ways, widths, added)
    view = widened(deep, growth, plan)
    made = real_config(view.config)
    made.architectures = [type(specimen.module).__name__]
    made._attn_implementation = "eager"
    made._experts_implementation = "eager"
    tensors = {name: view.read(name) for name in view.tensors}
    try:
        module = loaded(type(specimen.module), made, tensors)
        with double_precision(), torch.no_grad():
            pairs = [(returned(run(specimen.module, x)), returned(run(module, x))) for x in specimen.inputs[:2]]
    except Exception as error:  # whatever the code of a model raises for sizes that it refuses
        raise IsomergeError(
            f"transformers does not build or run a {type(specimen.module).__name__} of these sizes "
            f"({type(error).__name__}: {first_line(error)})"
        ) from None
    return max((_differences(narrow, wide) for narrow, wide in pairs), default=float("inf"))


def _differences(narrow: Mapping[str, Tensor], wide: Mapping[str, Tensor]) -> float:
    """The largest relative difference; what is given out in coordinates that grew is compared in the narrow
    ones, up to a factor."""
    before, after = {name: x.double() for name, x in narrow.items() if x.is_floating_point()}, dict[str, Tensor]()
    for name, x in before.items():
        if (y := wide.get(name)) is not None and y.ndim == x.ndim:
            y = y.double()
            if y.shape != x.shape and not any(b < a for a, b in zip(x.shape, y.shape, strict=True)):
                y = y[tuple(slice(0, n) for n in x.shape)]
                y = y * ((x * y).sum() / y.square().sum().clamp_min(1e-30))
            after[name] = y
    return max(differences(before, after).values(), default=0.0)


def _why(narrow: Narrow, specimen: Specimen, tiny: Narrow, small: Growth, least: float) -> str:
    """Why nothing that was tried is the same function: the layers or the sizes, one by one."""
    kind = type(specimen.module).__name__
    said = f"{narrow.checkpoint.ref}: a tiny random {kind} that is widened alike is another function"
    culprits = []
    parts = [Growth(sizes={path: new}) for path, new in small.sizes.items()]
    parts += [Growth(depths={path: new}) for path, new in small.depths.items()]
    for part in parts if len(parts) > 1 else []:
        with suppress(IsomergeError):
            ways = _ways(tiny, part)
            errors = [change(specimen, tiny, part, way, widths) for way, widths in _trials(ways, bool(part.sizes))]
            if errors and min(errors) >= PROVEN:
                culprits.append(part.shown().partition("=")[0])
    if not small.sizes:
        return (
            f"{said} (outputs change by {least:.1g}): a layer of this class changes the stream even where it "
            f"writes nothing, as where the stream itself passes a norm; keep the number of layers"
        )
    which = f", by {' and '.join(culprits)} alone as well" if culprits else ""
    return (
        f"{said} (outputs change by {least:.1g}{which}): the class computes from these sizes what no weight can "
        f"undo, such as a norm across heads or layers that norm the stream; keep such sizes as they are"
    )

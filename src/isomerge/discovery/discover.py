"""The whole of discovery: two specimens, a draft, and one proof after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from isomerge.discovery.attention_spaces import Attention, prove_attention
from isomerge.discovery.biases import prove_shifts
from isomerge.discovery.building import real_config, specimens
from isomerge.discovery.conditions import with_conditions
from isomerge.discovery.draft import Draft
from isomerge.discovery.gains import prove_gains
from isomerge.discovery.latent import prove_latent
from isomerge.discovery.lines import LineFound, find_lines
from isomerge.discovery.moments import moments
from isomerge.discovery.neurons import prove_experts, prove_neurons
from isomerge.discovery.projectors import prove_projectors
from isomerge.discovery.proving import PROVEN, Court, Verdict
from isomerge.discovery.shrinking import kind_of
from isomerge.discovery.specimen import Specimen
from isomerge.discovery.streams import prove_folded, prove_stream
from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import atoms, parse

COUNT = 48
"""Random outputs whose moments are compared: more than an attention has chunks of heads."""


@dataclass(frozen=True)
class Discovery:
    """A spec that was found, and how."""

    draft: Draft
    record: tuple[Verdict, ...]
    fixed: tuple[str, ...]
    """Lines that nothing acts on."""
    errors: Mapping[str, float]
    """The largest change of outputs of fresh specimens under every space alone, and under all (``all``)."""
    module: str
    """The class of transformers that was run."""

    @property
    def text(self) -> str:
        """The spec text."""
        return self.draft.text()


def discover(
    config: Mapping[str, Any], *, seed: int = 0, say: Callable[[str], None] = lambda step: None
) -> Discovery:
    """Derive the spec of an architecture and prove every space of it.

    Args:
        config: the parsed ``config.json``.
        seed: of the specimens' weights and inputs.
        say: told what is being looked for.

    Raises:
        IsomergeError: the installed transformers cannot build or run a tiny model of this class, or what was proven
            does not hold for other specimens.
    """
    from transformers import PretrainedConfig

    real = real_config(config)
    say("building specimens")
    pair = specimens(real, seed)
    court = Court(pair)
    products = moments(pair[0], list(pair[0].stored), COUNT, seed + 2)
    draft = _proposed(_start(pair, str(real.model_type), products), court, products, say)
    draft = with_conditions(_tidied(draft), config, real.to_dict(), PretrainedConfig().to_dict())
    say("proving it once more on fresh specimens")
    errors = proven_again(replace(draft, requires=()), specimens(real, seed + 100, untied=False))
    fixed = [line.name for line in draft.lines if not _acted_on(draft, line)]
    return Discovery(
        replace(draft, comments=_comments(real, pair[0], fixed)),
        tuple(court.record),
        tuple(fixed),
        errors,
        type(pair[0].module).__name__,
    )


def _proposed(draft: Draft, court: Court, moments: dict[str, Tensor], say: Callable[[str], None]) -> Draft:
    """The draft with every space that is found and proven, from the inside of the layers to the streams."""
    pair = court.specimens
    stacks = list(dict.fromkeys(line.stack for line in draft.lines))
    attentions: list[Attention] = []
    for stack in [stack for stack in stacks if stack]:
        say(f"attention in {stack}")
        draft = prove_latent(draft, court, stack)
        draft, made = prove_attention(draft, court, stack, moments)
        attentions += made
    widths = _lengths(pair, "width")
    for stack in stacks:
        say(f"neurons in {stack or 'the rest'}")
        draft = prove_experts(draft, court, stack)
        draft = prove_neurons(draft, court, stack, {*widths, *_lengths(pair, "vocabulary", "positions")})
    draft = prove_projectors(draft, court)
    say("residual streams")
    streams = {f"res{number}" if number > 1 else "res": lengths for number, lengths in enumerate(widths, 1)}
    for name, lengths in streams.items():
        draft = prove_stream(draft, court, lengths, name)
    for attention in attentions:
        draft = prove_shifts(draft, court, attention)
    for name in streams:
        draft = prove_gains(draft, court, name, moments)
        draft = prove_folded(draft, court, name)
    return draft


def proven_again(draft: Draft, pair: Sequence[Specimen]) -> dict[str, float]:
    """Every space and shift of a draft alone, all together, and the folded streams, on specimens that it has not
    seen.

    Raises:
        IsomergeError: one of them does not hold.
    """
    court = Court(pair, seeds=(11, 12))
    names = [*draft.spaces, *draft.shifts]
    moving = [n for n in names if not court.idle(draft, n)]
    errors = {name: court.error(draft, [name], quick=False) for name in moving}
    if moving:
        errors["all"] = court.error(draft, moving, quick=False)
        errors["all, through disk"] = court.error(draft, moving, quick=False, disk=True)
    for name, space in draft.spaces.items():
        if space.folded:
            errors[f"{name} folded"] = court.turned(draft)
    wrong = {
        name: error
        for name, error in errors.items()
        if not error < (10 * PROVEN if name.startswith("all") else PROVEN)
    }
    if wrong:
        name = max(wrong, key=lambda n: wrong[n])
        raise IsomergeError(
            f"what was found does not hold for other specimens: {name} changes outputs by {wrong[name]:.1e}: "
            f"write this spec "
            "by hand (docs/guide/add-an-architecture.md)"
        )
    return errors


def _comments(real: Any, specimen: Specimen, fixed: list[str]) -> tuple[str, ...]:
    """The head of the text: where it comes from, and what stays as it is."""
    import transformers

    kind = type(specimen.module).__name__
    first = (
        f"{real.model_type}: discovered by isomerge on a tiny random {kind} of transformers "
        f"{transformers.__version__}; every"
    )
    lines = [first, "space was proven by the law: random elements of it leave the outputs unchanged."]
    return (*lines, *(f"stays fixed: {name}" for name in fixed))


def _start(pair: tuple[Specimen, Specimen], kind: str, moments: dict[str, Tensor]) -> Draft:
    used = {name for name, moment in moments.items() if bool((moment != 0).any())}
    lines = find_lines(*pair, used)
    keys = pair[0].keys
    there = {line.lengths(a) for line in lines for a in range(len(line.shapes[0]))}
    vocabulary = next(
        (k for k in keys if kind_of(k, keys) == "vocabulary" and (keys[k], pair[1].keys.get(k)) in there), ""
    )
    tokens = {
        (line.name, a): "vocab"
        for line in lines
        for a in range(len(line.shapes[0]))
        if vocabulary and line.lengths(a) == (keys[vocabulary], pair[1].keys[vocabulary]) and line.uniform
    }
    ties = {}
    # ties are told by the names of parameters, which may be others on disk
    places = {stored: place.parameter for stored, place in pair[0].places.items()}
    names = {places.get(line.samples[0], line.samples[0]): line.name for line in lines}
    tied = getattr(pair[0].module, "_tied_weights_keys", None)
    for parameter, other in tied.items() if isinstance(tied, dict) else ():
        if parameter in names and other in names and names[parameter] != names[other]:
            ties[names[parameter]] = names[other]
    check_reached(lines, set(moments), used, type(pair[0].module).__name__)
    heads = {line.name for line in lines if pair[0].prefix and not line.samples[0].startswith(pair[0].prefix)}
    buffers = {line.name for line in lines if line.samples[0] not in pair[0].places}
    return Draft(
        tuple(lines),
        kind,
        pair[0].prefix,
        {"vocab": vocabulary} if tokens else {},
        tokens,
        ties=ties,
        optional=frozenset(heads | buffers),
        # no output of a specimen depends on these, so that nothing is proven of them; on what others are tied to it
        # will
        untouched=frozenset(
            buffers | {line.name for line in lines if not used.intersection(line.names)} - set(ties.values())
        ),
    )


def check_reached(lines: Sequence[LineFound], known: set[str], used: set[str], module: str) -> None:
    """Refuse a specimen in which some matrix does nothing in any layer: what is proven around it may be wrong where
    it does.

    Raises:
        IsomergeError: naming the matrix.
    """
    for line in lines:
        if (
            line.layered
            and len(line.shapes[0]) > 1
            and known.issuperset(line.names)
            and not used.intersection(line.names)
        ):
            raise IsomergeError(
                f"no output of a tiny {module} depends on {line.name}: discovery does not know the inputs that "
                f"it is for, so that "
                "nothing around it can be proven: write this spec by hand (docs/guide/add-an-architecture.md)"
            )


def _lengths(pair: Sequence[Specimen], *kinds: str) -> list[tuple[int, int]]:
    """The values of all keys of some kinds in the two specimens."""
    first, second = (s.keys for s in pair)
    return list(dict.fromkeys((first[k], second[k]) for k in first if kind_of(k, first) in kinds and k in second))


def _acted_on(draft: Draft, line: LineFound) -> bool:

    names = (
        {a.name for a in atoms(parse(draft.pattern(line).removesuffix(" - 1")) or ())}
        | set(line.indices)
        | ({"e"} if line.expert else set())
    )
    return bool(names & draft.spaces.keys())


def _tidied(draft: Draft) -> Draft:
    """Without sizes that no line and no other size uses."""

    used = " ".join(draft.pattern(line) for line in draft.lines) + " " + " ".join(line.name for line in draft.lines)
    used += " ".join(s.text() for s in draft.spaces.values())
    sizes = dict(draft.sizes)
    while True:
        words = set(re.findall(r"\w+", used + " " + " ".join(sizes.values())))
        unused = [name for name in sizes if name not in words]
        if not unused:
            return replace(draft, sizes=sizes)
        for name in unused:
            del sizes[name]

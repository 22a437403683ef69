"""The whole of discovery: two specimens, a draft, one proof after the other, and what the spec demands of a
config: the choices under which it was proven, and keys that its sizes may lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from isomerge.config.config_parts import flattened, split
from isomerge.config.keys import ROTARY
from isomerge.discovery.attention_spaces import Attention, prove_attention, prove_shifts
from isomerge.discovery.building import real_config, specimens
from isomerge.discovery.draft import Draft
from isomerge.discovery.latent import prove_latent
from isomerge.discovery.lines import LineFound, find_lines
from isomerge.discovery.moments import moments
from isomerge.discovery.neurons import prove_experts, prove_neurons, prove_projectors
from isomerge.discovery.proving import Court, bound, laws
from isomerge.discovery.shrinking import kind_of
from isomerge.discovery.specimen import Specimen
from isomerge.discovery.streams import prove_folded, prove_gains, prove_stream
from isomerge.errors import IsomergeError, guide
from isomerge.evidence.law import Law
from isomerge.records import Json, Record, as_json
from isomerge.symmetry.axes import atoms, parse

COUNT = 48
"""Random outputs whose moments are compared: more than an attention has chunks of heads."""
IRRELEVANT = re.compile(
    r".*(dropout|pdrop|drop_prob|drop_path|initializer|init_std|_std|_token_id|use_cache|gradient|output_|return_|label"
    r"|problem_type|summary|tie_word_embeddings|architectures|dtype|version|attn_implementation|quantization|name"
    r"|tokenizer).*|auto_map|task_.*"
)
"""Keys that do not change what a model computes from its weights."""


class Discovery(Record):
    """A spec that was found, and how."""

    draft: Draft
    record: tuple[Law, ...]
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

    @property
    def proven(self) -> dict[tuple[str, str], Law]:
        """The laws that hold, by space and group."""
        kept = {*self.draft.spaces, *self.draft.shifts}
        return {(law.name, law.group): law for law in self.record if law.holds and law.name in kept}

    @property
    def rejected(self) -> dict[tuple[str, str], Law]:
        """Those that do not, of what none holds."""
        proven, failed = self.proven, [law for law in self.record if not law.holds]
        return {(law.name, law.group): law for law in failed if (law.name, law.group) not in proven}

    def document(self) -> Json:
        """As reports have it; see `isomerge.discover`."""
        return {
            "model_type": self.draft.model_type,
            "class": self.module,
            "spec": self.text,
            "proven": as_json([*self.proven.values()]),
            "rejected": as_json([*self.rejected.values()]),
            "fixed": list(self.fixed),
            "checked": dict(self.errors),
        }


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
    names = [*draft.spaces, *draft.shifts]
    every = [bound(draft, specimen) for specimen in pair]
    said = list(laws([(seen, {n: seen.spec.spaces.get(n) for n in names if not seen.idle(n)}) for seen in every]))
    if wrong := [law for law in said if not law.holds]:
        worst = max(wrong, key=lambda law: law.error)
        raise IsomergeError(
            f"what was found does not hold for other specimens: {worst.name} changes outputs by {worst.error:.1e}: "
            f"write this spec by hand ({guide('add-an-architecture')})"
        )
    return {law.name: law.error for law in said}


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
                f"nothing around it can be proven: write this spec by hand ({guide('add-an-architecture')})"
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


def with_conditions(
    draft: Draft, config: Mapping[str, Any], full: Mapping[str, Any], common: Mapping[str, Any]
) -> Draft:
    """The draft with its ``require`` and ``config`` statements, and sizes that hold where a config leaves keys out.

    Args:
        draft: the proven draft.
        config: the parsed ``config.json`` that it was made for.
        full: the same with defaults filled in.
        common: the keys that every config of transformers has.
    """
    config, full = flattened(config), flattened(full)
    sizes = {name: _filled(text, config, full) for name, text in draft.sizes.items()}
    bases = {k: split(k)[1] for k in full}
    own = {
        k: v
        for k, v in full.items()
        if bases[k] not in common and not IRRELEVANT.fullmatch(bases[k]) and bases[k] not in ROTARY
    }
    requires = [_required(k, v, config) for k, v in own.items() if v is None or isinstance(v, (str, bool))]
    requires += _shared(draft, full)
    agree = [
        k
        for k, v in own.items()
        if isinstance(v, (str, bool, float, list)) or (v is not None and k.endswith(("window", "_layer")))
    ]
    rope = list(dict.fromkeys(f"{split(k)[0]}rope" for k in full if bases[k] in ROTARY))
    return replace(draft, sizes=sizes, requires=tuple(r for r in requires if r), config=(*agree, *rope))


def _required(key: str, value: Any, config: Mapping[str, Any]) -> str | None:
    """A choice that was proven and no other; a config without the key has the default, as the one at hand."""
    if isinstance(value, str) and not re.fullmatch(r"[\w .+/-]*", value):
        return None
    test = f"{key} == {value!r}" if key in config or value is None else f"{key} in (None, {value!r})"
    return f"require {test} : this spec was discovered with {key} = {value}, run isomerge discover on this model"


def _shared(draft: Draft, full: Mapping[str, Any]) -> list[str]:
    """One key and value for every query head, or for all of them, where that is what was proven."""
    grouped = " ".join(text for name, text in draft.sizes.items() if re.match(r"(kv|g)\d*$", name))
    conditions = []
    for key in [k for k in full if kind_of(k, full) == "shared"]:
        heads = next((k for k in full if kind_of(k, full) == "heads" and split(k)[0] == split(key)[0]), None)
        if not heads or heads in grouped or full[key] not in (1, full[heads]):
            # where several query heads share a key and none of them was found, nothing depends on their number
            continue
        what = heads if full[key] == full[heads] else "1"
        conditions.append(
            f"require {key} in (None, {what}) : this spec was discovered with {key} = {what}, run isomerge "
            f"discover on this model"
        )
    return conditions


def _filled(text: str, config: Mapping[str, Any], full: Mapping[str, Any]) -> str:
    """An expression in which keys that the config leaves out have their default: another size, or a number."""

    def with_default(match: re.Match[str]) -> str:
        key = match[0]
        if key not in full or config.get(key) is not None or isinstance(full[key], bool):
            return key
        return f"({key} or {_filled(_default(key, full), config, full)})"

    filled = re.sub(r"[A-Za-z_][\w.]*", with_default, text)
    whole = re.fullmatch(r"\(([^()]*)\)", filled)
    return whole[1] if whole else filled


def _default(key: str, full: Mapping[str, Any]) -> str:
    kind, value = kind_of(key, full), full[key]
    own = [k for k in full if split(k)[0] == split(key)[0]]
    width = next((k for k in own if kind_of(k, full) == "width"), None)
    heads = next((k for k in own if kind_of(k, full) == "heads"), None)
    if heads and kind == "shared" and value == full[heads]:
        return heads
    if heads and width and kind == "head" and value * full[heads] == full[width]:
        return f"{width} // {heads}"
    return repr(value)

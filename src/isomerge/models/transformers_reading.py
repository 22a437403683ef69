"""What transformers reads of a checkpoint: its class built without values, and the stored tensors that have a place
in it.

`from_pretrained` leaves out what it has no place for, and draws at random what is not stored. Both are decided by
``config.json`` (``attention_bias``, ``qkv_bias``, ``use_conv_bias``, ...), in as many ways as there are classes. So
the class itself is asked: it is built on torch's device ``meta``, which takes no memory and some hundredths of a
second, and its list of tensors decides.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from isomerge import remembered
from isomerge.config.agreement import read_by_transformers
from isomerge.config.keys import LABELS
from isomerge.errors import IsomergeError
from isomerge.models.transformers_classes import class_of
from isomerge.progress import silent
from isomerge.records import Config, Json
from isomerge.symmetry.language.spec import Match, Spec

Shapes = Mapping[str, tuple[int, ...]]
KEPT = "readings"
"""What answers are kept under (see `isomerge.remembered`)."""
NAMING = ("model_type", "architectures")
"""Keys that say which class is meant."""
ALWAYS_COMPUTED = r"rotary_emb\.inv_freq|(^|\.)position_ids$"
"""Buffers of old files that transformers computes now, whatever the config says."""


@dataclass(frozen=True)
class Reading:
    """What a class of transformers, made of a config, does with stored tensors."""

    kind: str
    """The class."""
    ignored: dict[str, str]
    """Stored tensors that it has no place for, and what they would be called in it."""
    lacking: tuple[str, ...]
    """Its own weights, by its own names, of which nothing is stored and which it would draw at random."""
    reshaped: dict[str, tuple[int, ...]]
    """Stored tensors of another shape than it has, and its shape."""
    modules: frozenset[str]
    """The names of its modules."""
    body: str
    """The module that a head is put upon; empty where there is none."""
    read: frozenset[str]
    """Its tensors, by its own names, of which something is stored."""


@dataclass(frozen=True)
class _Question:
    """A config, and its text, by which answers are kept."""

    text: str
    config: Config = field(compare=False)


def reading_of(config: Config, shapes: Shapes) -> Reading | None:
    """What transformers reads of a checkpoint; None where it does not know the architecture or cannot build its
    class.

    Args:
        config: the parsed ``config.json``.
        shapes: of the stored tensors, by name.
    """
    made = _asked(_question(config), tuple(sorted(shapes.items())))
    return made if isinstance(made, Reading) else None


def refusal_of(config: Config, shapes: Shapes) -> str | None:
    """Why transformers, which knows the architecture of a config, does not make a model of it; None where it does,
    or is not known to."""
    made = _asked(_question(config), tuple(sorted(shapes.items())))
    return made if isinstance(made, str) else None


def _question(config: Config) -> _Question:
    """Of classes with names their number counts, where they are named as transformers does it."""
    by_id, by_name = (config.get(key) for key in LABELS)
    if (
        isinstance(by_id, dict)
        and isinstance(by_name, dict)
        and all(str(row).isdecimal() for row in by_id)
        and {*map(type, by_id.values())} == {str}
        and {*map(type, by_name.values())} == {int}
    ):
        asked = {**config, **dict.fromkeys(LABELS, len(by_id))}
    else:
        asked = config
    return _Question(json.dumps(asked, sort_keys=True, default=str), config)


@lru_cache(64)  # models are recognised more than once in a run, and by the same config
def _asked(asked: _Question, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Reading | str | None:
    """What is read, or why it is refused; kept between runs, for importing the code of a class takes seconds."""
    question = [asked.text, shapes]
    if (kept := _decoded(remembered.recall(KEPT, question))) is not None:
        return kept
    stored, answer = dict(shapes), None
    with contextlib.suppress(IsomergeError):  # no such class, or a version of transformers that hides how it loads
        module = skeleton(asked.config, stored)
        answer = _compared(module, stored) if module is not None and not isinstance(module, str) else module
    if answer is not None:  # another package may bring the class some day
        remembered.remember(KEPT, question, _encoded(answer))
    return answer


def _encoded(answer: Reading | str) -> Json:
    """An answer as plain values."""
    if isinstance(answer, str):
        return {"refused": answer}
    return {key: sorted(value) if isinstance(value, frozenset) else value for key, value in vars(answer).items()}


def _decoded(kept: Any) -> Reading | str | None:
    """An answer from what was kept; None where that is no answer."""
    if isinstance(kept, dict) and isinstance(kept.get("refused"), str):
        return kept["refused"]
    with contextlib.suppress(TypeError, AttributeError):
        reading = Reading(**kept)
        return replace(
            reading,
            lacking=tuple(reading.lacking),
            reshaped={name: tuple(shape) for name, shape in reading.reshaped.items()},
            modules=frozenset(reading.modules),
            read=frozenset(reading.read),
        )
    return None


def skeleton(config: Config, shapes: Shapes) -> nn.Module | str | None:
    """The module that transformers would load, on the device ``meta``.

    Returns:
        What transformers says where it refuses the config; None where it does not know the architecture, or the
        class cannot be built here (it needs another package, or numbers that ``meta`` does not have).

    Raises:
        IsomergeError: the config names a class that transformers does not have.
    """
    from transformers import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        return None
    plain = {k: v for k, v in config.items() if k != "quantization_config"}  # weights are plain numbers by now
    with silent(), contextlib.ExitStack() as stack:
        kind = class_of(plain, tuple(shapes), "")
        try:
            made = configuration(kind, plain)
            stack.enter_context(torch.device("meta"))
            _enter_safe_creation(stack)
            return kind.from_config(made) if hasattr(kind, "_model_mapping") else kind(made)
        except (ImportError, NotImplementedError, RuntimeError):
            return None
        except Exception as error:  # as many types as there are ways not to fit
            said = " ".join(str(error).split()).rstrip(".")
            # one that says no more than a word (a key that is not known) has its type as well
            return said if " " in said else f"{type(error).__name__}: {said}".rstrip(": ")


def configuration(kind: Any, config: Config) -> Any:
    """The configuration object of a class: that of a part, where the class is one of a part and the config of a
    whole."""
    made = read_by_transformers(config)
    wanted = getattr(kind, "config_class", None)
    if wanted is None or isinstance(made, wanted):
        return made
    part = config.get(getattr(wanted, "base_config_key", "") or "")
    return wanted.from_dict(dict(part) if isinstance(part, Mapping) else config)


def _enter_safe_creation(stack: contextlib.ExitStack) -> None:
    """What lets constructors ask for numbers on the device ``meta``, where transformers has it."""
    with contextlib.suppress(ImportError, AttributeError):
        from transformers import initialization

        stack.enter_context(initialization.meta_device_safe_creation_ops())


def _compared(module: Any, shapes: Shapes) -> Reading:
    # a class of transformers is built where no answer is kept
    from isomerge.models.conversions import live_names

    places = live_names(module, shapes)
    state = module.state_dict(keep_vars=True)
    live = {name: tuple(tensor.shape) for name, tensor in state.items()}
    buffers = {name for name, _ in module.named_buffers()}
    unwanted = [*(getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()), ALWAYS_COMPUTED]
    unneeded = [*(getattr(module, "_keys_to_ignore_on_load_missing", None) or ())]
    ignored = {
        stored: place.names[0]
        for stored, place in places.items()
        if not any(name in live or name in buffers for name in place.names) and not _any(unwanted, place.names[0])
    }
    read = frozenset(name for place in places.values() for name in place.names if name in live)
    tied = {*(getattr(module, "all_tied_weights_keys", None) or {})}
    weights = {name for name, tensor in state.items() if tensor.is_floating_point() or tensor.is_complex()}
    lacking = [name for name in weights - read - tied if not _any(unneeded, name)]
    reshaped = {
        stored: live[place.names[0]]
        for stored, place in places.items()
        if place.pattern is None and live.get(place.names[0], shapes[stored]) != tuple(shapes[stored])
    }
    modules = frozenset(name for name, _ in module.named_modules())
    prefix = getattr(module, "base_model_prefix", "")
    body = prefix if prefix in modules else ""
    return Reading(type(module).__name__, ignored, tuple(sorted(lacking)), reshaped, modules, body, read)


def _any(patterns: list[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


class Decision(NamedTuple):
    """A switch of a config on which it hangs whether a tensor is read."""

    key: str
    value: bool
    """What it is."""
    tensor: str

    def __str__(self) -> str:
        return f"{self.key}={json.dumps(self.value)}"


def deciding(config: Config, shapes: Shapes, ignored: Collection[str], lacking: Collection[str]) -> Decision | None:
    """The first switch of a config that, turned, makes transformers read one of the tensors, or no longer lack one.

    Args:
        config: the parsed ``config.json``; switches that it leaves out come last, with their defaults.
        shapes: of the stored tensors, by name.
        ignored: stored tensors that are not read.
        lacking: tensors, by their names in the class, that are not stored.
    """
    try:
        whole = read_by_transformers(config).to_dict()
    except Exception:  # as many types as there are ways not to fit
        return None
    written = dict(switches(config))
    for path, value in (written | {p: v for p, v in switches(whole) if p not in written}).items():
        other = reading_of(turned({**whole, **config}, path, not value), shapes)
        if other is None:
            continue
        kept, lost = other.ignored.keys(), {*other.lacking}
        tensor = next((n for n in ignored if n not in kept), None) or next(
            (n for n in lacking if n not in lost), None
        )
        if tensor is not None:
            return Decision(".".join(path), value, tensor)
    return None


def switches(config: Config, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The paths and values of all truth values of a config."""
    for key, value in config.items():
        if isinstance(value, bool):
            yield (*at, key), value
        elif isinstance(value, Mapping):
            yield from switches(value, (*at, key))


def turned(config: Config, path: tuple[str, ...], value: bool) -> Json:
    """A config with one switch set."""
    key, *rest = path
    below = config.get(key)
    return {
        **config,
        key: turned(below if isinstance(below, Mapping) else {}, tuple(rest), value) if rest else value,
    }


def check_read(ref: str, config: Config, shapes: Shapes, spec: Spec, matches: Mapping[str, Match]) -> None:
    """Refuse a checkpoint whose config.json makes transformers leave stored weights out, or draw weights that are
    not stored.

    A tensor that the spec demands, or whose other half (the weight of a bias) is read, is refused where its part of
    the class is there. Any other (a head of another class, a buffer) is refused where a switch of the config
    decides that it is not read. What the class has no place for whatever the config says is let pass, and so are
    layers behind the last that runs, where the spec knows of them.

    Args:
        ref: what the user called the checkpoint.
        config: its parsed config.json.
        shapes: of the stored tensors, by name.
        spec: bound to the config.
        matches: the line of every stored tensor.

    Raises:
        IsomergeError: naming the tensor and, where a switch of the config decides it, the switch; or the key of
            which transformers makes no model.
    """
    reading = reading_of(config, shapes)
    if reading is None:
        _check_made(ref, config, shapes)
        return
    for stored, shape in reading.reshaped.items():
        raise IsomergeError(
            f"{ref}: config.json makes {stored} of {reading.kind} {list(shape)}, but the file holds "
            f"{list(shapes[stored])}: correct config.json, or name the weights that it belongs to"
        )
    ignored = [stored for stored in reading.ignored if not _is_ahead(spec, matches[stored])]
    certain = [stored for stored in ignored if _is_denied(reading, matches[stored], reading.ignored[stored])]
    if certain:
        raise _denied(ref, reading, certain, deciding(config, shapes, certain, ()))
    demanded = [live for live in reading.lacking if _is_demanded(reading, spec, live)]
    if demanded:
        raise _demanded(ref, reading, demanded, deciding(config, shapes, (), demanded))
    if (ignored or reading.lacking) and config.get("architectures"):  # else no class is meant
        decision = deciding(config, shapes, ignored, reading.lacking)
        if decision is not None:
            raise (_denied if decision.tensor in ignored else _demanded)(ref, reading, [decision.tensor], decision)


def _check_made(ref: str, config: Config, shapes: Shapes) -> None:
    """Refuse a config of which transformers makes no model.

    Without ``architectures`` no class is meant. Code of its own (``auto_map``), and what a newer version of
    transformers wrote, is not for the installed one to judge.

    Raises:
        IsomergeError: naming the key that stands in the way, where it is one.
    """
    refusal = refusal_of(config, shapes)
    if refusal is None or not config.get("architectures") or config.get("auto_map") or _is_newer(config):
        return
    without = {key: {k: v for k, v in config.items() if k != key} for key in config if key not in NAMING}
    key = next((key for key, other in without.items() if reading_of(other, shapes) is not None), None)
    said = "" if key is None else f" says {key}={json.dumps(config[key], default=str)[:80]}, and"
    raise IsomergeError(
        f"{ref}: config.json{said}{' is such that' if key is None else ''} transformers makes no model of it "
        f"({refusal[:300]}): correct "
        f"{'it' if key is None else key}, or name the config.json that these weights belong to"
    )


def _is_newer(config: Config) -> bool:
    """Whether a newer version of transformers wrote a config than is installed."""
    from transformers import __version__

    def numbers(version: Any) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", str(version or ""))[:2]]

    return numbers(config.get("transformers_version")) > numbers(__version__)


def _is_denied(reading: Reading, match: Match, live: str) -> bool:
    return _other_half(live) in reading.read or (
        not match.line.optional and _part(reading, live) in reading.modules
    )


def _is_demanded(reading: Reading, spec: Spec, live: str) -> bool:
    if _other_half(live) in reading.read:
        return True
    try:
        match = spec.match(live)
    except IsomergeError:  # what transformers makes of several tensors
        return False
    part = _part(reading, live)
    return not match.line.optional and any(n == part or n.startswith(f"{part}.") for n in reading.read)


def _other_half(live: str) -> str:
    """The weight of a bias, and the bias of a weight."""
    stem, _, half = live.rpartition(".")
    return f"{stem}.{'weight' if half == 'bias' else 'bias'}" if half in ("weight", "bias") else ""


def _part(reading: Reading, live: str) -> str:
    """The part of a class that a tensor belongs to: its first module, or the second, where the first is the body of
    a head."""
    first, _, rest = live.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == reading.body and "." in rest else first


def _is_ahead(spec: Spec, match: Match) -> bool:
    """Whether a tensor is of a layer behind the last that runs, which the spec says may be stored."""
    least, most = spec.depths.get(match.line.stack, (0, 0))
    return least < most and next(iter(match.binding.values()), 0) >= least


def _denied(ref: str, reading: Reading, names: Sequence[str], decision: Decision | None) -> IsomergeError:
    held = _named(names, decision)
    if decision is None:
        return IsomergeError(
            f"{ref}: the file holds {held}, for which {reading.kind} of transformers has no place: correct "
            "config.json, or take out of the file what is not meant"
        )
    return IsomergeError(
        f"{ref}: config.json says {decision}, but the file holds {held}, which {reading.kind} of transformers then "
        "ignores; which is it? Correct config.json, or take out of the file what is not meant"
    )


def _demanded(ref: str, reading: Reading, names: Sequence[str], decision: Decision | None) -> IsomergeError:
    lost = _named(names, decision)
    if decision is None:
        return IsomergeError(
            f"{ref}: {reading.kind} of transformers needs {lost}, and would draw it at random, for the file does "
            "not hold it: is a shard lost?"
        )
    return IsomergeError(
        f"{ref}: config.json says {decision}, but the file does not hold {lost}, which {reading.kind} of "
        "transformers would draw at random; which is it? Correct config.json, or find the tensor"
    )


def _named(names: Sequence[str], decision: Decision | None) -> str:
    first = names[0] if decision is None else decision.tensor
    return f"{first} (and {len(names) - 1} more)" if len(names) > 1 else first

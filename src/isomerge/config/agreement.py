"""What two ``config.json`` say of the function, whatever format each is written in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from isomerge.config.keys import ASIDE, LABELS, MODEL_KINDS, TIE
from isomerge.progress import silent
from isomerge.records import Config, Json

ROPE_TYPES = {"su": "longrope", "mrope": "default"}
"""Rotary positions that are called by another name now; mrope is told by its sections."""
ROPE_KEYS = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor", "type": "rope_type"}
"""Rotary parameters that are called by another name now."""
RETUNED = {
    "rope",
    "sliding_window",
    "use_sliding_window",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
}
"""Keys that fine-tunes set anew (longer positions, no window), as Mistral's 0.2 does: weights still mean the
same."""
UNSEEN = re.compile(
    r"drop|init|^std$|_std$|loss|_coef|_cost$|_weight_decay|label_smoothing|^mask_(time|feature)_|^apply_spec_augment$|"
    r"^(use_cache|cache_implementation|output_attentions|output_hidden_states|output_scores|return_dict|return_dict_in_generate|"
    r"torchscript|chunk_size_feed_forward|gradient_checkpointing|tokenizer_class|name_or_path|prefix|auto_map|pretraining_tp|"
    r"decoder_start_token_id|forced_.*_token_id|max_length|min_length|num_beams|temperature|top_k|top_p|do_sample|"
    r"transformers\.js_config|unsloth.*|_commit_hash|_attn_implementation.*|_experts_implementation.*)$"
)
"""Keys by which models are trained, begun or sampled from: what a model says of inputs does not depend on them."""
TURNED = ("partial_rotary_factor", "mrope_section")
"""Rotary parameters that say which coordinates turn, and by what."""
SUMMARISING = ("ForSequenceClassification", "ForMultipleChoice", "DoubleHeadsModel")
"""How the names of classes end that may read a summary of the stream: to all others ``summary_*`` says nothing."""
LONGEST = 120
"""Characters of a value that are told."""


class Difference(NamedTuple):
    """A key on which two configs disagree, and what each says."""

    key: str
    mine: Any
    theirs: Any

    @property
    def said(self) -> str:
        """Both values, long ones cut."""
        values = (x if len(x) <= LONGEST else f"{x[:LONGEST]}..." for x in (repr(self.mine), repr(self.theirs)))
        return " and ".join(values)

    @property
    def sentence(self) -> str:
        """The key, and what both say."""
        return f"{self.key} is {self.said}"

    @property
    def retuned(self) -> bool:
        """Whether it is a key of `RETUNED`, of a part or of the whole, and no other coordinates turn."""
        turned = [[said.get(k) for k in TURNED] for said in (self.mine, self.theirs) if isinstance(said, dict)]
        return self.key.rpartition(".")[2] in RETUNED and turned[:1] == turned[1:]


def disagreement(a: Config, b: Config, keys: Iterable[str]) -> Difference | None:
    """The first of the keys on which two configs disagree; see `disagreements`."""
    return next(iter(disagreements(a, b, keys)), None)


def disagreements(a: Config, b: Config, keys: Iterable[str]) -> list[Difference]:
    """All of the keys on which two configs disagree, in their order.

    Formats come and go (``rope_theta`` beside the other keys became one of ``rope_parameters``, a window that is
    not used became none), and what is a default may be left out. So what counts is what transformers reads in each
    of the two; where it cannot read one, keys that either leaves out are not compared.
    """
    keys = [key for key in keys if not key.startswith("summary_") or any(map(_may_summarise, (a, b)))]
    a, b, _ = _both(a, b)
    differences = []
    for key in keys:
        mine, theirs = config_value(a, key), config_value(b, key)
        known = key.rpartition(".")[2] == "rope" or (has_key(a, key) and has_key(b, key))
        if known and mine != theirs:
            differences.append(Difference(key, mine, theirs))
    return differences


def undeclared_differences(a: Config, b: Config, keys: Iterable[str]) -> list[Difference]:
    """Where two configs disagree beside ``keys``, in what a function may depend on.

    Both are taken as transformers reads them; where it cannot read one, keys that either leaves out are not
    compared. Of ``keys`` those count that one of two types of models does not know, which `disagreements` leaves
    out. Keys of `ASIDE` and `UNSEEN` are left out.
    """
    a, b, are_read = _both(a, b)
    mine, theirs = dict(_leaves(a)), dict(_leaves(b))
    both = mine.keys() | theirs.keys() if are_read else mine.keys() & theirs.keys()
    if are_read and a.get("model_type") != b.get("model_type"):
        keys = [key for key in keys if key == "rope" or has_key(a, key) == has_key(b, key)]
    return _unlike(mine, theirs, both, tuple(keys))


def _may_summarise(config: Config) -> bool:
    """Whether a class may read a summary of the stream: one that a config does not name may."""
    names = config.get("architectures") or [""]
    return any(not name or str(name).endswith(SUMMARISING) for name in names)


def _both(a: Config, b: Config) -> tuple[Config, Config, bool]:
    """Two configs as they are compared: without names of classes, of which there may be very many; as transformers
    reads them, where they differ and it can read both; and whether it has."""
    a, b = (_plain({key: x for key, x in config.items() if key not in LABELS}) for config in (a, b))
    if all(a.get(key) == b.get(key) for key in (set(a) | set(b)) - ASIDE):
        return {}, {}, False
    first, second = map(as_transformers_reads, (a, b))
    return (a, b, False) if first is None or second is None else (first, second, True)


def _unlike(mine: Config, theirs: Config, paths: Iterable[str], declared: tuple[str, ...]) -> list[Difference]:
    return [
        Difference(path, mine.get(path), theirs.get(path))
        for path in sorted(paths)
        if mine.get(path) != theirs.get(path)
        and not _is_declared(path, declared)
        and not any(map(UNSEEN.search, path.split(".")))
    ]


def decisive_differences(a: Config, b: Config, keys: Iterable[str]) -> list[Difference]:
    """Where two configs say other things of the function for certain: in the keys that a spec declares, and in those
    that count in any architecture. What `verify` and fingerprints go by. Whether a head is tied is how it is
    stored."""
    return [each for each in disagreements(a, b, _declared(keys)) if each.key != TIE]


def open_differences(a: Config, b: Config, keys: Iterable[str]) -> list[Difference]:
    """Where they differ in other keys, of which nobody knows whether the function depends on them."""
    return undeclared_differences(a, b, _declared(keys))


def written_differences(a: Config, b: Config, keys: Iterable[str]) -> list[Difference]:
    """Those of `open_differences` that both configs state, as they are written; transformers is not asked."""
    mine, theirs = dict(_leaves(a)), dict(_leaves(b))
    return _unlike(mine, theirs, mine.keys() & theirs.keys(), _declared(keys))


def _declared(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*keys, *MODEL_KINDS)))


def _leaves(config: Config, at: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a config that are no groups of keys, by their paths; those of `ASIDE` are left out."""
    for key, value in config.items():
        if key in ASIDE:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _is_declared(path: str, keys: tuple[str, ...]) -> bool:
    return any(
        path == key or path.startswith((f"{key}.", f"{key}_") if key.endswith("rope") else f"{key}.")
        for key in keys
    )


def as_transformers_reads(config: Config) -> Json | None:
    """A config in the newest format, with every default; None where the installed transformers cannot read it."""
    try:
        return _plain(read_by_transformers(config).to_dict())
    except Exception:  # as many types as there are ways not to fit
        return None


def read_by_transformers(config: Config) -> Any:
    """The configuration object that transformers makes of a config; raises whatever its class does where it
    cannot."""
    from transformers import AutoConfig

    with silent():  # of old formats it warns, and goes on
        return AutoConfig.for_model(**_plain(config))


def _plain(value: Any) -> Any:
    """A copy in which tuples are lists, and infinity, for which JSON has no word, is a number again."""
    if isinstance(value, Mapping):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {k: dict(v) if k in LABELS and isinstance(v, Mapping) else _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def has_key(config: Config, key: str) -> bool:
    """Whether a config says anything of a key; ``a.b`` is the key ``b`` of the group of keys ``a``."""
    group, _, rest = key.partition(".")
    return group in config and (not rest or (isinstance(config[group], dict) and has_key(config[group], rest)))


def config_value(config: Config, key: str) -> Any:
    """A config value in a form that can be compared; ``rope`` gathers the rotary parameters of every format.

    ``a.b`` is the key ``b`` of the group of keys ``a``.
    """
    if key != "rope":
        group, _, rest = key.partition(".")
        value = config.get(group)
        if rest:
            return config_value(value, rest) if isinstance(value, dict) else None
        return value.split("|") if key == "pos_att_type" and isinstance(value, str) else value
    rope: Json = {"rope_type": "default"}
    for part in (config, config.get("rope_scaling"), config.get("rope_parameters")):
        items = part.items() if isinstance(part, dict) else ()
        named = {ROPE_KEYS.get(k, k): v for k, v in items if v is not None}
        rope |= {
            k: v for k, v in named.items() if part is not config or k in ("rope_theta", "partial_rotary_factor")
        }
    rope["rope_type"] = ROPE_TYPES.get(rope["rope_type"], rope["rope_type"])
    rope["rope_theta"] = float(rope.get("rope_theta") or 10000.0)
    return rope

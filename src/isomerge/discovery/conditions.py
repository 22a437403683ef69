"""What a found spec demands of a config: the choices under which it was proven, and keys that its sizes may
lack."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isomerge.config.config_parts import flattened, split
from isomerge.config.keys import ROTARY
from isomerge.discovery.draft import Draft
from isomerge.discovery.shrinking import kind_of

IRRELEVANT = re.compile(
    r".*(dropout|pdrop|drop_prob|drop_path|initializer|init_std|_std|_token_id|use_cache|gradient|output_|return_|label"
    r"|problem_type|summary|tie_word_embeddings|architectures|dtype|version|attn_implementation|quantization|name"
    r"|tokenizer).*|auto_map|task_.*"
)
"""Keys that do not change what a model computes from its weights."""


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

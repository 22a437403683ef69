"""The ``adapter_config.json`` of merged adapters: a scaling of 1 everywhere, and every module's own rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from isomerge.checkpoint.adapter import BASE, MAX_PATTERNS, Adapter
from isomerge.errors import IsomergeError
from isomerge.records import Json


def merged_config(adapters: Sequence[Adapter], ranks: Mapping[str, int], wide: int | None) -> Json:
    """The configuration of an adapter whose modules have these ranks; ``wide`` is that of all parameters, None
    where there are none.

    The base, its revision and the task are the first adapter's. ``use_rslora`` is off: the scaling ``alpha / r`` of
    1 would be ``sqrt(r)`` with it.

    Raises:
        IsomergeError: so many modules have ranks of their own that no reader takes so many patterns.
    """
    first = adapters[0].config
    top = Counter(ranks.values()).most_common(1)[0][0] if ranks else wide or 1
    said = sorted({name for adapter in adapters for name in adapter.config.get("target_parameters") or ()})
    patterns = {**(dict.fromkeys(said, wide) if wide not in (None, top) else {}), **_patterns(ranks, top)}
    if len(patterns) > MAX_PATTERNS:
        raise IsomergeError(
            f"{adapters[0].file}: {len(patterns)} modules would have ranks of their own, and at most "
            f"{MAX_PATTERNS} patterns can say so: merge adapters that have the same modules, or give "
            "--method svd with --rank"
        )
    tasks = {adapter.config.get("task_type") for adapter in adapters}
    return {
        "peft_type": "LORA",
        "task_type": tasks.pop() if len(tasks) == 1 else None,
        "auto_mapping": first.get("auto_mapping"),
        BASE: first.get(BASE),
        "revision": first.get("revision"),
        "inference_mode": True,
        "r": top,
        "lora_alpha": top,
        "rank_pattern": patterns,
        "alpha_pattern": patterns,
        "use_rslora": False,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(adapter.config.get("fan_in_fan_out") for adapter in adapters),
        "target_modules": sorted(ranks),
        **({} if wide is None else {"target_parameters": said}),
        "modules_to_save": None,
    }


def _patterns(ranks: Mapping[str, int], top: int) -> dict[str, int]:
    """Ranks that are not ``top``, by the ends of modules' names: the last part where all that end so have one."""
    by_end: dict[str, set[int]] = {}
    for module, rank in ranks.items():
        by_end.setdefault(module.rpartition(".")[2], set()).add(rank)
    patterns: dict[str, int] = {}
    for module, rank in ranks.items():
        end = module.rpartition(".")[2]
        if len(by_end[end]) == 1:
            if rank != top:
                patterns[end] = rank
        elif rank != top or any(other.endswith(f".{module}") for other in ranks):
            patterns[module] = rank
    # the first pattern that fits counts: of two names, one the end of the other, the longer comes first
    return dict(sorted(patterns.items(), key=lambda item: (-item[0].count("."), item[0])))

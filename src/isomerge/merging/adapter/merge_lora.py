"""LoRA adapters merged into one adapter, with a scaling of 1 and every module's own rank: their base is not read.

A recipe of them has mergekit's keys, and peft's names of the methods."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor

from isomerge.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE, MAX_PATTERNS, PREFIX, Adapter, Update
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.checkpoint.image_lora import IMAGE_WEIGHTS, WrittenNames, open_lora, written_names
from isomerge.checkpoint.output_folder import written_at_once
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors
from isomerge.fusion.adapter_merges import KINDS, Combination, Drawn, LowRank, combined, distance_from_sum, joined
from isomerge.merging.fusing import generator
from isomerge.merging.recipe.schema import Recipe, read_recipe
from isomerge.models.row_meanings import stored_ids, unlike_tokens
from isomerge.pieces import wide_dtype
from isomerge.records import Json, Record
from isomerge.symmetry.groups.singular import check_finite

HEADS = re.compile(r"(^|\.)(lm_head|embed_out|output_projection)$")
"""Modules whose outputs are tokens."""
SIGNS = ("total", "frequency")
"""Whose sign is elected: that of the sum, or that of the most adapters."""
ACCEPTED = ("models", "merge_method", "parameters", "name")
PARAMETERS = {"weight": float, "density": float, "rank": int, "majority_sign": str, "seed": int}
"""What stands under ``parameters``; ``weight`` may stand under every model."""


@dataclass(frozen=True)
class Asked:
    """What a merge of adapters is asked for: the method by its name, weights, a density and a rank where they are
    said, the election of signs, a seed."""

    adapters: tuple[str | Path, ...]
    method: str = "svd"
    weights: tuple[float, ...] | None = None
    density: float | None = None
    rank: int | None = None
    majority_sign: str = "total"
    seed: int = 0

    def check(self) -> None:
        """Raises IsomergeError where an option is out of range or missing."""
        count = len(self.adapters)
        if not count:
            raise IsomergeError("merge-lora needs adapters: name their folders or hub ids")
        if self.method not in KINDS:
            raise IsomergeError(f"--method {self.method}: adapters are merged by {', '.join(KINDS)}")
        if self.weights is not None and (len(self.weights) != count or not all(map(math.isfinite, self.weights))):
            raise IsomergeError(f"--weights: {count} finite numbers are needed, got {list(self.weights)}")
        if self.density is not None and not 0 <= self.density <= 1:
            raise IsomergeError(f"--density {self.density}: give the share of entries that is kept, from 0 to 1")
        if KINDS[self.method].pruned and self.density is None:
            raise IsomergeError(
                f"--method {self.method} keeps a share of the entries: say which by --density, such as 0.5"
            )
        if self.rank is not None and self.rank < 1:
            raise IsomergeError(f"--rank {self.rank}: give 1 or more")
        if self.majority_sign not in SIGNS:
            raise IsomergeError(f"--majority-sign {self.majority_sign}: give one of {', '.join(SIGNS)}")

    def weighted(self) -> tuple[float, ...]:
        """The weights: by default a mean's, and 1 each where signs are elected, as what agrees is averaged."""
        count = len(self.adapters)
        return self.weights or (1.0 if KINDS[self.method].elects else 1 / count,) * count


class MergedModule(Record):
    """How a module was merged."""

    adapters: Sequence[int]
    """That have it, by their numbers."""
    rank: int
    distance: float
    """Of the merged update from the weighted sum of the updates (Frobenius)."""
    norm: float


class MergedLora(Record):
    """How adapters were merged; distances and norms as of a module, over all of them."""

    method: str
    weights: Sequence[float]
    rank: int
    modules: Mapping[str, MergedModule]
    distance: float
    norm: float
    share: float
    notes: Sequence[str]


def merge_lora(
    asked: Asked,
    out: str | Path,
    *,
    allow_pickle: bool = False,
    overwrite: bool = False,
    reads: Sequence[Path] = (),
) -> MergedLora:
    """Merge LoRA adapters into one in peft's format, or LoRAs of image models into one.

    One module is in memory at a time. Sums are float32 (float64 for float64 adapters), and the halves are rounded
    once, to the widest dtype that the module has in the adapters. The result has a scaling of 1 for every module
    and the first adapter's base.

    Args:
        asked: what is merged and how.
        out: the folder, complete or not there at all.
        reads: what was read beside the adapters and must not be replaced.

    Raises:
        IsomergeError: an option is out of range, an adapter cannot be opened or holds what needs the base to be
            merged (DoRA's magnitudes, whole tensors, biases), updates of one module do not fit together, or ``out``
            exists.
    """
    asked.check()
    adapters = [open_lora(ref, allow_pickle=allow_pickle) for ref in asked.adapters]
    form = _form(adapters)
    for adapter in adapters:
        _check_base_free(adapter)
    notes = _check_tokens(adapters)
    modules = list(dict.fromkeys(name for adapter in adapters for name in adapter.updates))
    how = _combination(asked, adapters)
    for module in modules:
        _check_fitting(module, adapters, how)
    files = [place for adapter in adapters for place in adapter.tensors.places]
    with written_at_once(Path(out), overwrite=overwrite, reads=[*files, *reads]) as folder:
        file = GrowingFile(folder.blobs / "tensors")
        wide = _parameter_rank(adapters, how)
        rows = {module: _write(file, module, adapters, asked, how, wide, form) for module in modules}
        if form is None:
            own = {u.module for adapter in adapters for u in adapter.updates.values() if u.parameters}
            ranks = {module: made.rank for module, made in rows.items() if module not in own}
            config = _merged_config(adapters, ranks, wide if own else None)
            with disk_errors(folder.model):
                (folder.model / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        file.finish(folder.model / (ADAPTER_WEIGHTS if form is None else IMAGE_WEIGHTS))
    apart, size = (math.hypot(*(getattr(made, key) for made in rows.values())) for key in ("distance", "norm"))
    return MergedLora(
        asked.method,
        weights=asked.weighted(),
        rank=max(made.rank for made in rows.values()),
        modules=rows,
        distance=apart,
        norm=size,
        share=apart / size if size else 0.0,
        notes=[*notes, *_other_bases(adapters)],
    )


def _form(adapters: Sequence[Adapter]) -> WrittenNames | None:
    """What the layers of image LoRAs are called in the output; None for adapters of peft.

    Raises:
        IsomergeError: there are some of both kinds, or image LoRAs with names of two layouts.
    """
    image = [adapter for adapter in adapters if adapter.starts]
    if image and len(image) < len(adapters):
        other = next(adapter for adapter in adapters if not adapter.starts)
        raise IsomergeError(
            f"{image[0].ref} is a LoRA of image models and {other.ref} an adapter of peft: give those of one kind"
        )
    return written_names(adapters) if image else None


def _combination(asked: Asked, adapters: Sequence[Adapter]) -> Combination:
    top = max(update.rank for adapter in adapters for update in adapter.updates.values())
    density = 1.0 if asked.density is None else asked.density
    sign = cast(Literal["total", "frequency"], asked.majority_sign)
    return Combination(KINDS[asked.method], density, asked.rank or top, sign, asked.seed)


def _parameter_rank(adapters: Sequence[Adapter], how: Combination) -> int:
    """The rank that all merged updates of parameters get, as patterns name parameters and the file modules."""
    ranks: dict[str, list[int]] = {}
    for update in (u for adapter in adapters for u in adapter.updates.values() if u.parameters):
        ranks.setdefault(update.module, []).append(update.rank)
    of_form = {"products": lambda _: how.rank, "beside": sum, "halves": max}[how.kind.form]
    return max((of_form(each) for each in ranks.values()), default=0)


def _check_base_free(adapter: Adapter) -> None:
    """Refuse what cannot be merged without the weights that it is for."""
    remedy = (
        "merge BASE+ADAPTER models by isomerge merge instead (isomerge extract-lora makes an adapter of the result)"
    )
    for update in adapter.updates.values():
        if update.uncertain:
            raise IsomergeError(
                f"{adapter.file}: the parameters {' and '.join(update.parameters)} have different ranks or "
                f"alphas, and without the base nobody knows which one {update.module} is: {remedy}"
            )
        if "magnitude" in update.parts:
            raise IsomergeError(
                f"{adapter.file}: tensor {update.parts['magnitude']!r} is a magnitude of DoRA, which is one of the "
                f"base's weights and the update together: {remedy}"
            )
        if "bias" in update.parts:
            raise IsomergeError(
                f"{adapter.file}: tensor {update.parts['bias']!r} moves a bias of the base: {remedy}"
            )
    for key in (*adapter.saved.values(), *(key for key, _ in adapter.tokens.values())):
        raise IsomergeError(
            f"{adapter.file}: tensor {key!r} takes the place of the base's (a saved module, rows, or a bias), "
            f"and without the base nobody knows by how much it differs: {remedy}"
        )


def _check_tokens(adapters: Sequence[Adapter]) -> list[str]:
    """Refuse updates of rows that are of other tokens by the adapters' tokenizers; what to tell of tokenizers that
    differ where no such rows are updated."""
    known = {adapter.ref: stored_ids(adapter.tensors) for adapter in adapters}
    first = next((adapter for adapter in adapters if known[adapter.ref] is not None), None)
    notes = []
    for apart in unlike_tokens(known):
        pair = [adapter for adapter in adapters if adapter is first or adapter.ref == apart.ref]
        rows = [u for a in pair for u in a.updates.values() if u.embedding or HEADS.search(u.module)]
        if apart.how.opposed and rows:
            raise IsomergeError(
                f"{apart.said}, and {rows[0].module} has such rows: give adapters that were trained with one "
                "tokenizer"
            )
        notes.append(
            f"{apart.said}; {'rows are taken by their numbers' if rows else 'no rows of tokens are merged'}"
        )
    return notes


def _check_fitting(module: str, adapters: Sequence[Adapter], how: Combination) -> None:
    """Refuse updates of one module that cannot be merged."""
    having = [adapter for adapter in adapters if module in adapter.updates]
    first = _shapes(having[0], module)
    for adapter in having[1:]:
        shapes = _shapes(adapter, module)
        key = adapter.updates[module].parts["A"]
        if (shapes[0][1:], shapes[1][:1], shapes[1][2:]) != (first[0][1:], first[1][:1], first[1][2:]):
            raise IsomergeError(
                f"{adapter.file}: tensors of module {module} have shapes {list(map(list, shapes))} (A, B), but "
                f"{having[0].file} has {list(map(list, first))}: are the adapters for one base?"
            )
        own, others = (each.updates[module] for each in (adapter, having[0]))
        if (own.stack, sorted(own.parameters)) != (others.stack, sorted(others.parameters)):
            raise IsomergeError(
                f"{adapter.file}: target_parameters or the number of matrices of {module} are not those of "
                f"{having[0].file}, so that nobody knows which updates belong together: merge BASE+ADAPTER "
                "models by isomerge merge instead"
            )
        if adapter.updates[module].embedding != having[0].updates[module].embedding:
            raise IsomergeError(
                f"{adapter.file}: tensor {key!r} is of a table, but {having[0].file} has a layer there"
            )
        if how.kind.form == "halves" and shapes[0][0] != first[0][0]:
            raise IsomergeError(
                f"{adapter.file}: tensor {key!r} has rank {shapes[0][0]} (axis 0), but {having[0].file} has rank "
                f"{first[0][0]}: halves of different ranks have no sum, so give --method svd or cat"
            )


def _shapes(adapter: Adapter, module: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    parts, infos = adapter.updates[module].parts, adapter.tensors.tensors
    return infos[parts["A"]].shape, infos[parts["B"]].shape


def _write(
    file: GrowingFile,
    module: str,
    adapters: Sequence[Adapter],
    asked: Asked,
    how: Combination,
    wide: int,
    form: WrittenNames | None,
) -> MergedModule:
    """Merge and write one module, with rank ``wide`` where it is one of parameters."""
    having = [(number, adapter) for number, adapter in enumerate(adapters) if module in adapter.updates]
    halves = [_halves(adapter, adapter.updates[module]) for _, adapter in having]
    dtype = reduce(torch.promote_types, (half.dtype for pair in halves for half in pair))
    work = wide_dtype([half for pair in halves for half in pair])
    parts = [
        LowRank(a.to(work), b.to(work), adapter.updates[module].scaling, asked.weighted()[number], number)
        for (a, b), (number, adapter) in zip(halves, having, strict=True)
    ]
    update = having[0][1].updates[module]
    each = list(zip(*(part.matrices(update.stack) for part in parts), strict=True))
    if how.kind.form == "halves":  # as peft prunes them: over all matrices together
        b, a = combined(parts, how, _drawn(asked.seed, module))
        made = [(x.b, x.a) for x in LowRank(a, b).matrices(update.stack)]
    else:
        names = [module, *(f"{module}.{k}" for k in range(1, update.stack))]
        made = [combined(own, how, _drawn(asked.seed, name)) for own, name in zip(each, names, strict=True)]
    distances = [distance_from_sum(*halves, own) for halves, own in zip(made, each, strict=True)]
    apart, size = (math.hypot(*column) for column in zip(*distances, strict=True))
    b, a = joined(made, wide) if update.parameters else made[0]
    label = "lora_embedding_{}" if update.embedding else "lora_{}.weight"
    for half, x in (("A", a), ("B", b)):
        name = f"{PREFIX}{module}.{label.format(half)}" if form is None else form.of(module, half)
        file.add(name, _rounded(x, dtype, module, half))
    rank = len(a) // update.stack
    if form is not None and form.kohya:  # whose readers take the rank for it where there is none
        file.add(form.of(module, "alpha"), torch.tensor(float(rank), dtype=dtype))
    return MergedModule([number for number, _ in having], rank, apart, size)


def _halves(adapter: Adapter, update: Update) -> tuple[Tensor, Tensor]:
    """``A, B`` as stored; refuses numbers that are none."""
    a, b = (adapter.tensors.read(update.parts[part]) for part in "AB")
    for half in (a, b):
        try:
            check_finite(half)
        except RuntimeError:
            raise IsomergeError(
                f"{adapter.file}: module {update.module} has values that are no numbers; check the adapter"
            ) from None
    return a, b


def _drawn(seed: int, module: str) -> Drawn:
    def of(what: str, number: int) -> Generator:
        return generator(seed, module, what, str(number))

    return of


def _rounded(x: Tensor, dtype: torch.dtype, module: str, half: str) -> Tensor:
    rounded = x.to(dtype)
    if not bool(rounded.isfinite().all()):
        raise IsomergeError(
            f"module {module}: the merged lora_{half} has values that {str(dtype).removeprefix('torch.')} cannot "
            "hold; save one of the adapters in float32, or give smaller --weights"
        )
    return rounded


def _other_bases(adapters: Sequence[Adapter]) -> list[str]:
    """What is to be told of adapters that were trained on different bases."""
    bases = list(dict.fromkeys(str(base) for a in adapters if (base := a.config.get(BASE))))
    if len(bases) < 2:
        return []
    own = None if adapters[0].starts else adapters[0].config.get(BASE)  # a merged image LoRA names none
    names = f", and the merged one names {own}" if own else ""
    told = f"the adapters name different bases ({', '.join(bases)}): an update fits the base that it was trained on"
    return [told + names]


def _merged_config(adapters: Sequence[Adapter], ranks: Mapping[str, int], wide: int | None) -> Json:
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


def asked_of_recipe(path: str | Path) -> Asked:
    """What a recipe asks for.

    Raises:
        IsomergeError: the recipe cannot be read, or says what adapters have no part of.
    """
    path = os.path.expanduser(path)
    recipe = read_recipe(path)
    if other := sorted({Recipe.model_fields[name].alias or name for name in recipe.model_fields_set} - {*ACCEPTED}):
        raise IsomergeError(
            f"{path}: `{other[0]}` has no meaning where adapters are merged without their base: a recipe of "
            f"merge-lora has {', '.join(f'`{key}`' for key in ACCEPTED)}"
        )
    if recipe.merge_method not in KINDS:
        raise IsomergeError(
            f"{path}: `merge_method` {recipe.merge_method}: adapters are merged by {', '.join(KINDS)}"
        )
    common = {name: _value(path, f"parameters.{name}", value) for name, value in recipe.parameters.items()}
    weights: list[float | None] = []
    for k, entry in enumerate(recipe.models or ()):
        place = f"models.{k}"
        if beside := sorted(
            (entry.model_fields_set - {"model", "parameters"}) | (entry.parameters.keys() - {"weight"})
        ):
            raise IsomergeError(
                f"{path}: `{place}` has `{beside[0]}`, but an adapter has a `weight` of its own alone: write "
                "what else there is under the recipe's `parameters`"
            )
        own = entry.parameters.get("weight")
        weights.append(common.get("weight") if own is None else _value(path, f"{place}.parameters.weight", own))
    common.pop("weight", None)
    said = [weight for weight in weights if weight is not None]
    if said and len(said) < len(weights):
        raise IsomergeError(f"{path}: `models`: give every adapter a `weight`, or none of them")
    models = tuple(entry.model for entry in recipe.models or ())
    return Asked(models, recipe.merge_method, tuple(said) or None, **common)


def _value(path: str, place: str, value: Any) -> Any:
    """A parameter of the kind that it has."""
    name = place.rpartition(".")[2]
    if name not in PARAMETERS:
        raise IsomergeError(f"{path}: unknown key `{place}`: known are {', '.join(PARAMETERS)}")
    kind: Any = PARAMETERS[name]
    kinds = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        words = {float: "a number", int: "a whole number", str: "a word"}[kind]
        raise IsomergeError(f"{path}: `{place}` is {value!r}: give {words}")
    return kind(value)

"""What a merge is asked for, whoever asks: models in the run's order, the fusion, how they are aligned.

A run's first model gives config and tokenizer, and is what the others are aligned onto: the base where one is
named, else the first model listed, always.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.errors import IsomergeError, with_points
from isomerge.fusion.fusion import Fusion, fusion_of
from isomerge.fusion.method_parameters import of_every_model
from isomerge.fusion.registry import Method
from isomerge.fusion.registry import method as merge_method
from isomerge.merging.recipe.recipe_words import in_keys, told_in_keys
from isomerge.options import AligningOptions, SpacesOptions
from isomerge.records import Json, Record, inline
from isomerge.solve.match_options import WEIGHTS, Matching

if TYPE_CHECKING:
    from isomerge.merging.recipe.schema import Recipe
    from isomerge.observe.losses import Figures

Layers = tuple[Any, tuple[int, int]]
"""A model, and some of its layers ``[first, last)``."""


class Candidate(Record):
    """A merge with only some layers matched."""

    layers: str
    figures: Figures = inline()


class LayerScan(Record):
    """Merges with only some layers matched, and which was chosen."""

    by: str
    candidates: Sequence[Candidate]
    chosen: str


class MergeRequest(AligningOptions, SpacesOptions):
    """A merge, before any model is opened: arguments and recipes give the same record. Options of how models are
    aligned, and what may move, it has as they are said.

    With ``anchor="none"`` all models are matched onto their common mean (`isomerge.solve.many.mean_solver`), which
    is written in the coordinates of one of them, in any order the same (`isomerge.solve.standing.own_order`).
    """

    models: tuple[Any, ...]
    """References, open checkpoints or modules, in the run's order; with slices, the first of every stack."""
    fusion: Fusion
    stacks: tuple[tuple[Layers, ...], ...] = ()
    """Per model of the run, the layers that it is stacked of; empty for whole models."""
    module: str | None = None
    """Of models of several stacks of layers, the module whose layers ``stacks`` are."""
    kept_layers: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """By module, which layers all models keep of it."""
    stats: tuple[str, ...] = ()
    """Files of `isomerge stats` for a method that asks for statistics, one per model that is fused, in the run's
    order; without them those of the match are taken, or the statistics are gathered on its data."""
    source_bases: tuple[Any, ...] = ()
    """What the models that are fused were tuned from, in the run's order; None where it is the base. Empty: all of
    them."""
    merge_base: bool = True
    """Whether a base that is not among the models may be merged with them."""
    base_named: bool = False
    """Whether a base is named: it is the run's first model, also where the method knows no base."""
    tokenizer: Mapping[str, Any] | None = None
    """The output's vocabulary; None: all models have one."""
    chat_template: tuple[str, str] | None = None
    """The output's chat template: how a recipe names it, and its text, which is empty for ``auto``; None: the first
    model's own."""
    recipe: Recipe | None = None
    checksums: tuple[str | None, ...] = ()
    """Of the weights files that a recipe was made with, of the models and then of the source bases; empty: none are
    known."""
    files: tuple[str, ...] = ()
    """What is read beside models, data and statistics: the recipe, and its chat template."""
    onto: int = 0
    """The number of the model that the others are aligned onto."""
    repair: Any = None
    """Data for REPAIR (`isomerge.fusion.forward.repair`), which re-normalises the merged model's activations."""
    matching: Matching = WEIGHTS
    said: Mapping[str, Any] = field(default_factory=dict)
    """The options of the match that were said, for the recipe that is kept."""
    spec: str | Path | None = None
    dtype: str | None = None
    scan: LayerScan | None = None
    """What was tried, where they were."""
    parents: bool = True
    """Whether the models that go in are measured as well."""

    @property
    def every(self) -> list[Any]:
        """All models that are read, some of them several times: what models were tuned from, and of what they are
        stacked, too."""
        bases = [base for base in self.source_bases if base is not None]
        return [*self.models, *bases, *(ref for stack in self.stacks for ref, _ in stack)]

    def reads(self) -> list[Any]:
        """What is read, by name."""
        of_recipe = () if self.recipe is None else self.recipe.align.matching().values()
        return [self.models, self.stacks, self.stats, self.source_bases, list(of_recipe)]

    def worded(self, own: Iterable[str] = ()) -> AbstractContextManager[None]:
        """Errors inside name a recipe's keys, where there is one; a command's ``own`` options keep their names."""
        path = None if self.recipe is None else self.files[0]
        return told_in_keys(path, self.recipe, {**self._options, **dict.fromkeys(own, self)})

    @property
    def say(self) -> Callable[[str], str] | None:
        """How a recipe's keys are said in a sentence; None where there is no recipe."""
        if self.recipe is None:
            return None
        return partial(in_keys, block=self.recipe.align, options=self._options)

    @property
    def _options(self) -> Json:
        return {**self.said, "repair": self.repair}

    @property
    def looks(self) -> list[str]:
        """What the run takes time for beside matching and averaging, and shapes do not tell."""
        method = self.fusion.method
        looked = [f"method {method.name}"] if method.forward or (method.statistics and not self.stats) else []
        return looked if self.repair is None else [*looked, "repair"]


def request_of_models(
    models: Sequence[Any],
    *,
    method: str = "linear",
    weights: Sequence[float] | None = None,
    parameters: Mapping[str, Any] | None = None,
    base_model: Any = None,
    stats: Sequence[str | Path] = (),
    tokenizer_source: str | None = None,
    source_bases: Sequence[Any] = (),
    merge_base: bool = True,
    seed: int = 0,
) -> MergeRequest:
    """The merge of whole models.

    Args:
        models: those that are merged; the base may be among them.
        method: its name.
        weights: one per model.
        parameters: of the method; a list has one number per model.
        base_model: the base, named as among the models or another one.
        merge_base: whether methods that know no base merge one that is not among the models with them, as mergekit
            does; else it gives config and tokenizer alone.
        stats: statistics files for the method, one per model.
        source_bases: what the models were tuned from, one for all or one per model, where that is not
            ``base_model``.
        tokenizer_source: the vocabulary of the output, where the models' differ: ``base``, ``union`` or a model.
        seed: of random methods.

    Raises:
        IsomergeError: see `fusion_of`.
    """
    chosen = merge_method(method)
    listed = list(models)
    # numpy and torch have numbers and lists of their own
    settings = {n: v.tolist() if hasattr(v, "tolist") else v for n, v in dict(parameters or {}).items()}
    if weights is not None and len(weights) != len(listed):
        got = f"{list(weights)}{with_points(weights)}"
        raise IsomergeError(f"--weights: {len(listed)} finite numbers are needed, got {got}")
    if base_model is None and chosen.base == "required" and chosen.models == (1, 1) and len(listed) == 2:
        base_model = listed[0]  # of two models that one is between, the first is where it starts
    if len(listed) == 1 and base_model is None and method == "linear" and _has_adapter(listed[0]):
        method = "passthrough"  # a model with its adapter merged in
        chosen = merge_method(method)
    at = None if base_model is None else next((k for k, m in enumerate(listed) if _same(m, base_model)), None)
    notes: list[str] = []
    if base_model is not None and at is None and merge_base and joins(chosen):
        _check_joining(base_model, chosen, len(listed), weights, settings, stats)
        at, listed = 0, [base_model, *listed]
        notes.append(joined(base_model, "--base-model", "--no-merge-base takes"))
    files = [str(file) for file in ([stats] if isinstance(stats, (str, Path)) else stats)]
    if files and len(files) != len(listed):
        raise IsomergeError(f"--stats: {len(listed)} files are needed, one per model, got {len(files)}")
    source_bases = [source_bases] if isinstance(source_bases, (str, Path)) else source_bases
    origins = list(source_bases) * (len(listed) if len(source_bases) == 1 else 1)
    if origins and len(origins) != len(listed):
        raise IsomergeError(
            f"--source-base: give one for all, or one for each of {len(listed)} models, got {len(origins)}"
        )
    if at is not None:  # a base that is listed comes first; methods of task vectors take it for the base alone
        order = [k for k in range(len(listed)) if k != at]
        order = order if chosen.base != "none" else [at, *order]
        for name, value in settings.items():
            if of_every_model(chosen, name, value) and len(value) == len(listed):
                settings[name] = [value[k] for k in order]
        weights = None if weights is None else [weights[k] for k in order]
        listed, files, origins = ([each[k] for k in order] if each else [] for each in (listed, files, origins))
    named = base_model is not None and (at is None or chosen.base != "none")
    fusion = fusion_of(len(listed), method=method, weights=weights, parameters=settings, base=named, seed=seed)
    fusion = replace(fusion, notes=(*fusion.notes, *notes))
    tokenizer = None if tokenizer_source is None else {"source": str(tokenizer_source)}
    return MergeRequest(
        models=tuple([base_model, *listed] if named else listed),
        fusion=fusion,
        stats=tuple(files),
        tokenizer=tokenizer,
        source_bases=tuple(origins),
        merge_base=merge_base,
        base_named=base_model is not None,
    )


def of_align() -> list[str]:
    """The keys of a recipe's `align` that requests have as they are."""
    return ["merge_base", "repair", *MergeRequest.recipe_keys()]


def joins(method: Method) -> bool:
    """Whether a base that is not among the models is merged with them by a method, as mergekit does: by those that
    know no base."""
    return method.base == "none" and method.models[1] != 1


def joined(base: Any, said: str, instead: str) -> str:
    """The note on a base that is merged with the models.

    Args:
        base: what it is called.
        said: how it was named, as an option or a key.
        instead: what takes its config and tokenizer alone, up to the verb.
    """
    return (
        f"{base}, the {said}, is merged as one of the models, as mergekit does where they lack it ({instead} its "
        "config and tokenizer alone)"
    )


def _check_joining(
    base: Any,
    method: Method,
    count: int,
    weights: Sequence[float] | None,
    parameters: Mapping[str, Any],
    stats: Sequence[Any] | str | Path,
) -> None:
    """Refuse to guess what a base that joins the models has of what every one of them has of its own."""
    own = [
        name for name, value in parameters.items() if of_every_model(method, name, value) and len(value) == count
    ]
    own = [*(["--weights"] if weights is not None else []), *(f"--parameter {n}" for n in own)]
    if own := [*own, *(["--stats"] if stats else [])]:
        raise IsomergeError(
            f"--base-model {base}: the method {method.name} knows no base and merges it as one of the models, as "
            f"mergekit does, but {own[0]} has nothing for it: name it among the models as well, with a value of "
            "its own, or give --no-merge-base, with which it gives config and tokenizer alone"
        )


def number_of(onto: Any, request: MergeRequest) -> int:
    """Which of the models all are aligned onto.

    Raises:
        IsomergeError: none of them.
    """
    numbers = [k for k, model in enumerate(request.models) if _same(model, onto)]
    if onto is not None and not numbers:
        raise IsomergeError(f"--onto {onto}: name one of the models, {', '.join(map(str, request.models))}")
    return numbers[0] if numbers else 0


def _has_adapter(model: Any) -> bool:
    return isinstance(model, (str, Path)) and "+" in str(model)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (str, Path)) and isinstance(b, (str, Path)):
        return str(a) == str(b) or (os.path.isdir(a) and os.path.isdir(b) and os.path.samefile(a, b))
    return a is b

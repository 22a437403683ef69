"""Models merged, and fine-tunes written as adapters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.api.opening import destination, dtype_name, recognised
from isomerge.errors import IsomergeError
from isomerge.evidence.report.notebook import Report
from isomerge.merging.merge_job import joins
from isomerge.observe.data.examples import Examples
from isomerge.options.unused import MATCHING, defaults_of, note_idle
from isomerge.progress import Observer, quiet
from isomerge.run.absolute_names import absolute_ref
from isomerge.run.arguments import checked
from isomerge.solve.standing import AUTO, check_align

if TYPE_CHECKING:
    from isomerge.merging.merge_job import MergeJob
    from isomerge.merging.merge_plan import MergePlan
    from isomerge.models.recognised import Model
    from isomerge.solve.match_options import Matching


@checked(rest="isomerge.solve.match_checks.matching_of", settled=False)
def merge(
    models: Sequence[Any] | str | Path,
    *,
    out: str | Path,
    method: str = "linear",
    weights: Sequence[float] | None = None,
    parameters: Mapping[str, Any] | None = None,
    base_model: Any = None,
    merge_base: bool = True,
    stats: Sequence[str | Path] = (),
    repair: str | Path | Examples | None = None,
    heads: str = "average",
    tokenizer_source: str | None = None,
    source_bases: Sequence[Any] = (),
    align: bool | str = AUTO,
    anchor: str = "first",
    onto: Any = None,
    spaces: str | None = None,
    layers: str | None = None,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: Any = None,
    force: bool = False,
    jobs: int | None = None,
    max_memory: str | int | None = None,
    engine: str = "local",
    address: str | None = None,
    observer: Observer = quiet,
    **matching: Any,
) -> dict[str, Any]:
    """Align every model onto the first (or, with ``anchor="none"``, onto their common mean), merge them into ``out``, and
    return the report.

    Args:
        models: folders, hub ids (``org/name@revision+adapter``), open checkpoints or live modules; or one recipe file, which
            says all that the other arguments say but ``out`` and how it is written.
        out: the folder to write.
        method: see ``isomerge methods``.
        weights: one per model, for methods that have the parameter ``weight``.
        parameters: of the method, by name; a list has one number per model.
        base_model: what task vectors are taken from; it gives config and tokenizer, and is what all are aligned onto. Methods that
            know no base merge it with the models, as mergekit does.
        merge_base: False: such methods take its config and tokenizer alone.
        stats: for methods that need statistics, one file of `isomerge.stats` per model; without them, ``data`` is read on the
            aligned models.
        repair: data on which the merged model's activations are re-normalised to the models' (REPAIR, Jordan et al. 2023).
        source_bases: what the models were tuned from (one for all, or one per model), where that is not ``base_model``: their
            task vectors are moved onto it.
        heads: classifier heads: ``average`` fuses them like all else, ``copy`` keeps the first model's, ``keep:MODEL`` that of
            a model (its number from 1, or its reference), ``separate`` writes a checkpoint with every model's head under
            ``heads/``. With any but ``average`` the numbers of labels may differ.
        tokenizer_source: the vocabulary of the output, where the models' differ: ``base``, ``union`` or one of the models.
        align: ``auto``: models that are aligned already, as fine-tunes of one base are, are left as they are, and all others are
            aligned; True: all are aligned; False: none.
        onto: the model that the others are aligned onto, where it is not the first.
        jobs, max_memory, engine, address: see `align`.
        matching: see `align`; ``spaces`` (by default what the models need), ``layers`` and ``untie`` are those of `align`. ``seed`` is that of random methods
            as well.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    from isomerge.merging.merge_job import job_of_models, number_of
    from isomerge.merging.merge_run import run_plan
    from isomerge.merging.recipe.merge_recipe import recipe_text
    from isomerge.merging.recipe.recipe_job import job_of_recipe
    from isomerge.merging.recipe.recipe_words import told_in_keys
    from isomerge.observe.data.refused_data import check_given
    from isomerge.solve.match_checks import matching_of

    how: dict[str, Any] = {"align": align, "anchor": anchor, "spaces": spaces, "layers": layers, "heads": heads}
    check_given(repair, "--repair")
    if out is None:
        raise IsomergeError("merge needs a folder to write: give out=FOLDER")
    dtype = dtype_name(dtype)
    seed = matching.get("seed")
    fused: dict[str, Any] = {
        "method": method, "weights": weights, "parameters": parameters, "base_model": base_model, "stats": stats,
        "merge_base": merge_base,
        "tokenizer_source": tokenizer_source, "source_bases": source_bases,
    }  # fmt: skip
    if isinstance(models, (str, Path)):
        _alone_with_recipe(models, {**how, **fused, "onto": onto, "untie": untie})
        job = job_of_recipe(models, seed=seed)
        how = {name: job.options[name] for name in (*how, "onto")}
        spec = spec or job.options["spec"]
        untie, dtype, repair = job.options["untie"], dtype or job.options["dtype"], repair or job.options["repair"]
        matching = {**job.matching, **matching}
    else:
        job = job_of_models(models, **fused, seed=seed or 0)
        how["onto"] = number_of(onto, job)
    with told_in_keys(models, job.recipe, {**matching, "repair": repair}):
        match = matching_of(**matching)
        how |= {"repair": repair}

        def recipe(refs: list[str], spaces: str, firm: bool) -> str:
            implied = spaces in ("none", match.spaces(None)) and how["spaces"] != "none"
            said = None if implied and not firm else spaces
            return recipe_text(
                job, refs, {**how, "untie": untie, "dtype": dtype, "spec": spec, "spaces": said}, matching
            )

        options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
        options |= {"jobs": jobs, "max_memory": max_memory, "engine": engine, "address": address}
        opening = {"spec": spec, "allow_pickle": allow_pickle, "untie": untie}
        with planned(job, how, match, out, options, opening, recipe) as plan:
            return Report(run_plan(plan))


@contextmanager
def planned(
    job: MergeJob,
    how: Mapping[str, Any],
    match: Matching,
    out: str | Path,
    options: dict[str, Any],
    opening: Mapping[str, Any],
    recipe: Callable[[list[str], str, bool], str] | None = None,
) -> Iterator[MergePlan]:
    """A merge as it will be run: opened, checked and planned, and nothing is written.

    Args:
        job: what is merged.
        how: ``align``, ``anchor``, ``onto`` (a number from 0), ``spaces``, ``layers``, ``heads`` and ``repair``.
        match: what is looked at beside the weights.
        out, options: where to and how it is written, see `destination`.
        opening: ``spec``, ``allow_pickle`` and ``untie``.
        recipe: what is kept with the output, from what the models are called, the spaces that are matched, and whether they must stand
            in it.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong.
    """
    from isomerge.merging.merge_options import MergeOptions
    from isomerge.merging.merge_plan import MergePlan
    from isomerge.quotient.kinship import kinship
    from isomerge.solve.match_checks import files_of_matching

    check_align(how["align"])
    note_idle("merge", _asked(job, how, match, out), _by_default())
    reads = (opening["spec"], how["repair"], *files_of_matching(match), *job.stats, *job.files)
    with (
        _models_of(job, unmoved=not how["align"], **opening) as (found, origins),
        destination(out, options, [*found, *(base for base in origins if base is not None)], *reads) as output,
    ):
        named = [
            absolute_ref(m) if isinstance(m, (str, Path)) else f.ref for m, f in zip(job.models, found, strict=True)
        ]
        kept = None if recipe is None else partial(recipe, named)
        more = {"matching": match, "stats": job.stats, "source_bases": origins, "recipe": kept, "kinship": kinship}
        yield MergePlan(found, output, job.fusion, MergeOptions(**how, **more))


def _asked(job: MergeJob, how: Mapping[str, Any], match: Matching, out: Any) -> dict[str, Any]:
    """A merge's arguments by whatever door, and what decides whether they act: for `note_idle`."""
    method = job.fusion.method
    given = {name: getattr(match, name) for name in MATCHING if hasattr(match, name)}
    given |= {name: how[name] for name in ("align", "onto", "spaces", "layers", "repair")}
    seed = match.settings.seed if match.settings else 0
    return given | {
        "out": out, "seed": seed or job.fusion.seed, "merge_base": job.merge_base, "stats": job.stats, "method": method.name,
        "base_model": job.base_named or None,
        "base_role": job.fusion.first if joins(method) else "model",
        "random": method.random,
        "method_statistics": method.statistics,
        "method_reads": method.forward or (method.statistics is not None and not job.stats),
    }  # fmt: skip


def _by_default() -> dict[str, Any]:
    """What `_asked` gives where nothing is said."""
    from isomerge.solve.match_checks import matching_of

    return {**defaults_of(matching_of, merge), "onto": 0}


@contextmanager
def _models_of(
    job: MergeJob, *, spec: str | Path | None, allow_pickle: bool, untie: bool, unmoved: bool
) -> Iterator[tuple[list[Model], list[Model | None]]]:
    """The models of a merge, recognised, and what those that are fused were tuned from."""
    from isomerge.merging.job_models import opened

    refs = opened(job, spec=spec, allow_pickle=allow_pickle)
    bases = [base for base in job.source_bases if base is not None]
    with recognised([*refs, *bases], spec, allow_pickle, untie, unmoved=unmoved) as every:
        rest = iter(every[len(refs) :])
        yield every[: len(refs)], [None if base is None else next(rest) for base in job.source_bases]


def _alone_with_recipe(path: str | Path, said: Mapping[str, Any]) -> None:
    """Refuse arguments of `merge` that a recipe has keys for, where they are not the defaults."""
    defaults = {name: parameter.default for name, parameter in signature(merge).parameters.items()}
    told = [k for k, v in said.items() if type(v) is not type(defaults[k]) or v != defaults[k]]
    if told:
        raise IsomergeError(f"{path}: a recipe says what is merged and how; put {', '.join(told)} into it")


@checked()
def extract_lora(
    finetuned: Any,
    base: Any,
    *,
    out: str | Path,
    rank: int | None = None,
    energy: float = 1.0,
    epsilon: float = 0.0,
    include: str | None = None,
    exclude: str | None = None,
    embeddings: bool = False,
    save_modules: bool = False,
    seed: int = 0,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Write ``finetuned`` minus ``base`` as a LoRA adapter in peft's format; ``base+out`` is then the fine-tune.

    Args:
        finetuned, base: folders, hub ids, open checkpoints or live modules of one architecture and equal shapes.
        out: the adapter's folder.
        rank: the largest rank of a layer (16 where neither it nor ``energy`` is given); ``energy`` keeps the fewest ranks with this share of the squared singular
            values, ``epsilon`` drops singular values below this share of the largest.
        include, exclude: regular expressions for module names.
        embeddings: describe tables of tokens by factors as well.
        save_modules: keep whole what has no factors and differs.

    Returns:
        ``rank``, per tensor that differs ``kept`` (``lora``, ``saved`` or ``lost``), ``rank``, ``norm`` and ``lost``, and over
        all of them ``norm``, ``lost`` and ``share`` (Frobenius); see `isomerge.merging.adapter.extract_lora`.

    Raises:
        IsomergeError: the models do not fit together or are equal, or an option is wrong; nothing is written.
    """
    from isomerge.merging.adapter.extract_lora import extract_lora as extract

    folder = Path(os.path.expanduser(out))
    with recognised([finetuned, base], spec, allow_pickle, proven=False) as (one, two):
        report = extract(
            one, two, folder, rank=rank, energy=energy, epsilon=epsilon, include=include, exclude=exclude,
            embeddings=embeddings, save_modules=save_modules, force=force, seed=seed,
        )  # fmt: skip
        return Report({"command": "extract-lora", "models": [one.ref, two.ref], **report})

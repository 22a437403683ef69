"""The Python API: the commands as functions, on paths, hub ids, open checkpoints or live modules."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.reader import Checkpoint, open_checkpoint
from isomerge.data.examples import Examples
from isomerge.engine.models import Model, check_compatible, recognise, working_dtype
from isomerge.engine.run import Observer, Output
from isomerge.errors import IsomergeError
from isomerge.evidence.report.notebook import Report
from isomerge.symmetry.alignment import Alignment

if TYPE_CHECKING:
    from isomerge.evidence.report.page import Page


def _quiet(what: str, done: int, total: int) -> None:
    """An observer that says nothing."""


def open(model: str | Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Open a checkpoint lazily: a folder, or a hub id such as ``org/name@revision``; headers are checked.

    Raises:
        IsomergeError: it is missing, truncated or not safe to read.
    """
    return open_checkpoint(model, allow_pickle=allow_pickle)


@contextlib.contextmanager
def _recognised(
    models: Sequence[Any], spec: str | Path | None, allow_pickle: bool, untie: bool = False
) -> Iterator[list[Model]]:
    """Recognise models of every kind; live modules are saved to a temporary folder first."""
    with contextlib.ExitStack() as stack:
        found = []
        for model in models:
            name = None
            if hasattr(model, "save_pretrained"):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="isomerge-"))
                model.save_pretrained(folder)
                name, model = type(model).__name__, folder
            elif isinstance(model, tuple) and len(model) == 2:
                from isomerge.checkpoint.memory import in_memory

                model = in_memory(*model)
            elif not isinstance(model, (str, Path, Checkpoint)):
                raise IsomergeError(
                    f"{type(model).__name__} is no model: give a folder, a hub id, or a transformers module"
                )
            found.append(recognise(model, spec_file=spec, allow_pickle=allow_pickle, untie=untie))
            found[-1].checkpoint.ref = name or found[-1].ref
        yield found


@contextlib.contextmanager
def _destination(out: str | Path | None, options: dict[str, Any]) -> Iterator[Output]:
    """The output folder; a temporary one when the caller wants no checkpoint."""
    from isomerge.checkpoint.size import parse_size

    options = {**options, "shard_size": parse_size(options.get("shard_size") or "5GB")}
    if out is not None:
        yield Output(Path(os.path.expanduser(out)), **options)
        return
    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder:
        yield Output(Path(folder) / "out", **options)


def align(
    source: Any,
    *,
    onto: Any,
    out: str | Path | None = None,
    spaces: str | None = None,
    layers: str | None = None,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: str | None = None,
    force: bool = False,
    observer: Observer = _quiet,
    **matching: Any,
) -> tuple[Alignment, dict[str, Any]]:
    """The element of the symmetry group that brings ``source`` closest to ``onto``, and a report.

    Args:
        source, onto: folders, hub ids, open checkpoints or live transformers modules of one architecture.
        out: where to write the moved source; nothing is written when None.
        spaces: what may move (see ``isomerge align --help``); by default ``default``, and ``all`` when data are given.
        layers: ``0-4``, ``head:5`` or ``tail:3``; all by default.
        untie: give a head that is tied to the embeddings weights of its own, where a symmetry needs that.
        spec: a spec file for an architecture that isomerge does not know.
        matching: what is looked at beside the weights: ``data``, ``evidence``, ``search``, ``learn``, ``steps`` and so
            on (see `isomerge.engine.solutions.matching_of`); ``data`` and ``learn`` are examples, or what
            `isomerge.data.opening.open_data` opens for the anchor.

    Returns:
        The alignment (``save``, ``inverse``, ``@``) and the report: ``distance.before`` and ``distance.after``
        (Frobenius), per space and layer.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    from isomerge.engine.commands import run_align
    from isomerge.engine.solutions import matching_of

    how = matching_of(**matching)
    options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
    with _recognised([source, onto], spec, allow_pickle, untie) as (a, b), _destination(out, options) as output:
        alignment, report = run_align(a, b, output, spaces=how.spaces(spaces), layers=layers, matching=how)
        return alignment, Report(report)


def apply(
    alignment: Alignment | str | Path,
    model: Any,
    *,
    out: str | Path,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: str | None = None,
    force: bool = False,
    observer: Observer = _quiet,
) -> dict[str, Any]:
    """Write ``model`` moved by an alignment (an object or a patch file): the same function in other weights.

    An alignment that was made with ``untie`` is applied with it.

    Raises:
        IsomergeError: the alignment was made for another architecture or other sizes.
    """
    from isomerge.engine.commands import run_apply

    options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
    with _recognised([model], spec, allow_pickle, untie) as (found,), _destination(out, options) as output:
        name = "given" if isinstance(alignment, Alignment) else str(alignment)
        patch = alignment if isinstance(alignment, Alignment) else Alignment.load(alignment, found.declared)
        return Report(run_apply(patch, found, output, name=name))


def merge(
    models: Sequence[Any] | str | Path,
    *,
    out: str | Path,
    method: str = "linear",
    weights: Sequence[float] | None = None,
    parameters: Mapping[str, Any] | None = None,
    base_model: Any = None,
    stats: Sequence[str | Path] = (),
    repair: str | Path | Examples | None = None,
    heads: str = "average",
    tokenizer_source: str | None = None,
    source_bases: Sequence[Any] = (),
    align: bool = True,
    anchor: str = "first",
    onto: Any = None,
    spaces: str | None = None,
    layers: str | None = None,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: str | None = None,
    force: bool = False,
    observer: Observer = _quiet,
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
        base_model: what task vectors are taken from; it gives config and tokenizer, and is what all are aligned onto.
        stats: for methods that need statistics, one file of `isomerge.stats` per model; without them, ``data`` is read on the
            aligned models.
        repair: data on which the merged model's activations are re-normalised to the models' (REPAIR, Jordan et al. 2023).
        source_bases: what the models were tuned from (one for all, or one per model), where that is not ``base_model``: their
            task vectors are moved onto it.
        heads: classifier heads: ``average`` fuses them like all else, ``copy`` keeps the first model's, ``keep:MODEL`` that of
            a model (its number from 1, or its reference), ``separate`` writes a checkpoint with every model's head under
            ``heads/``. With any but ``average`` the numbers of labels may differ.
        tokenizer_source: the vocabulary of the output, where the models' differ: ``base``, ``union`` or one of the models.
        align: whether to align at all.
        onto: the model that the others are aligned onto, where it is not the first.
        matching: see `align`; ``spaces``, ``layers`` and ``untie`` are those of `align`. ``seed`` is that of random methods
            as well.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    from isomerge.engine.merge_job import job_of_models, job_of_recipe, number_of, opened
    from isomerge.engine.merge_recipe import recipe_text
    from isomerge.engine.merging import run_merge
    from isomerge.engine.solutions import matching_of

    how: dict[str, Any] = {"align": align, "anchor": anchor, "spaces": spaces, "layers": layers, "heads": heads}
    seed = int(matching.get("seed", 0))
    if isinstance(models, (str, Path)):
        said = {**how, "method": method, "weights": weights, "parameters": parameters, "base_model": base_model}
        said |= {"stats": stats, "tokenizer_source": tokenizer_source, "source_bases": source_bases, "onto": onto}
        _alone_with_recipe(models, {**said, "untie": untie})
        job = job_of_recipe(models, seed=seed)
        how = {name: job.options[name] for name in (*how, "onto")}
        untie, dtype, repair = job.options["untie"], dtype or job.options["dtype"], repair or job.options["repair"]
        matching = {**job.matching, **matching}
    else:
        job = job_of_models(
            models,
            method=method,
            weights=weights,
            parameters=parameters,
            base_model=base_model,
            stats=stats,
            tokenizer_source=tokenizer_source,
            source_bases=source_bases,
            seed=seed,
        )
        how["onto"] = number_of(onto, job)
    match = matching_of(**matching)
    how |= {"spaces": match.spaces(how["spaces"]), "repair": repair}
    asked = {**how, "untie": untie, "dtype": dtype}
    asked["spaces"] = None if how["spaces"] == match.spaces(None) else how["spaces"]
    options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
    models = opened(job, spec=spec, allow_pickle=allow_pickle)
    bases = [base for base in job.source_bases if base is not None]
    with _recognised([*models, *bases], spec, allow_pickle, untie) as every, _destination(out, options) as output:
        found, rest = every[: len(models)], iter(every[len(models) :])
        origins = [None if base is None else next(rest) for base in job.source_bases]
        named = [str(m) if isinstance(m, (str, Path)) else f.ref for m, f in zip(job.models, found, strict=True)]
        recipe = recipe_text(job, named, asked, matching)
        report = run_merge(
            found,
            output,
            fusion=job.fusion,
            matching=match,
            stats=job.stats,
            source_bases=origins,
            recipe=recipe,
            **how,
        )
        return Report(report)


def canon(
    model: Any,
    *,
    out: str | Path | None = None,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: str | None = None,
    force: bool = False,
    observer: Observer = _quiet,
) -> tuple[Alignment, dict[str, Any]]:
    """The canonical representative of a model: the same function, and the same weights whatever symmetries were applied
    to them (Francois and Ravera 2026: a dressing field).

    Args:
        model: a folder, a hub id, an open checkpoint or a live module.
        out: where to write it; nothing is written when None.
        untie: give a head that is tied to the embeddings weights of its own, where a symmetry needs that.

    Returns:
        The alignment that moves the model there, and the report: ``degeneracy`` tells how clear every choice was (the
        smallest gap per space, and by how much the other choice would move the weights), and whether the representative is
        ``unique`` at the precision of float32.

    Raises:
        IsomergeError: a model that cannot be read, or a gain of zero, which cannot be folded.
    """
    from isomerge.quotient.canonical import run_canon

    options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
    with _recognised([model], spec, allow_pickle, untie) as (found,), _destination(out, options) as output:
        alignment, report = run_canon(found, output)
        return alignment, Report(report)


def _alone_with_recipe(path: str | Path, said: Mapping[str, Any]) -> None:
    """Refuse arguments of `merge` that a recipe has keys for, where they are not the defaults."""
    defaults = {name: parameter.default for name, parameter in signature(merge).parameters.items()}
    told = [k for k, v in said.items() if type(v) is not type(defaults[k]) or v != defaults[k]]
    if told:
        raise IsomergeError(f"{path}: a recipe says what is merged and how; put {', '.join(told)} into it")


def distance(
    one: Any,
    two: Any,
    *,
    spaces: str = "default",
    layers: str | None = None,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    observer: Observer = _quiet,
) -> dict[str, Any]:
    """Raw distance and distance after alignment of ``two`` onto ``one``, per space and layer, with a verdict."""
    from isomerge.evidence.verify import compare

    with _solver(one, two, spaces, layers, spec, allow_pickle, guard=True) as solver:
        refs = [solver.anchor.ref, solver.source.ref]
        return Report({"command": "diff", "models": refs, **compare(solver, observer)})


def verify(
    one: Any,
    two: Any,
    *,
    run: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    observer: Observer = _quiet,
) -> dict[str, Any]:
    """Whether two models are the same function modulo symmetry, algebraically; ``run`` compares outputs as well."""
    from isomerge.evidence.outputs import compare_outputs
    from isomerge.evidence.verify import prove

    with _solver(one, two, "default", None, spec, allow_pickle, guard=False) as solver:
        report = {"command": "verify", "models": [solver.anchor.ref, solver.source.ref], **prove(solver, observer)}
        if run:
            report["outputs"] = compare_outputs(solver.anchor.checkpoint.folder, solver.source.checkpoint.folder)
        return Report(report)


def barrier(
    one: Any,
    two: Any,
    third: Any = None,
    *,
    data: str | Path | Examples,
    points: int = 25,
    grid: int = 21,
    spaces: str | Sequence[str] = "default",
    aligned: Sequence[Any] = (),
    batch_size: int = 32,
    limit: int | None = None,
    length: int = 128,
    device: str = "cpu",
    png: str | Path | None = None,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    observer: Observer = _quiet,
) -> dict[str, Any]:
    """The loss on the line between two models, or on the plane through three: whether their average can work.

    Args:
        one, two, third: models of one architecture; the first is the anchor, onto which the others are aligned.
        data: labelled examples, or what `isomerge.data.opening.open_data` opens for the first model.
        points: along a line, both ends included; odd.
        grid: points along each side of a plane.
        spaces: after alignment in these spaces (one selection, or several), beside the models as stored; ``none`` for
            those alone.
        aligned: checkpoints that were aligned onto the first by other means; two models only.
        batch_size, device: how the models are run, in float32.
        limit, length: examples, and tokens per example; see `open_data`.
        png: where to draw it.

    Returns:
        A report: ``lines`` (``barrier`` in nats by definition, ``midpoint``, ``highest``, ``losses``, ...) or
        ``planes``, and ``ensemble``, the mean of the models' probabilities.

    Raises:
        IsomergeError: models or data do not fit together, or an option is wrong.
    """
    from isomerge.data.opening import open_data
    from isomerge.engine.connectivity import BarrierOptions, run_barrier

    given = [one, two] if third is None else [one, two, third]
    options = BarrierOptions(
        points=points,
        grid=grid,
        spaces=[spaces] if isinstance(spaces, str) else list(spaces),
        batch_size=batch_size,
        device=device,
        png=Path(os.path.expanduser(png)) if png is not None else None,
        observer=observer,
    )
    with _recognised([*given, *aligned], spec, allow_pickle) as found:
        models, others = found[: len(given)], found[len(given) :]
        options.check(models, others)
        anchor = models[0].checkpoint
        if not isinstance(data, Examples):
            data = open_data(str(data), anchor.folder, limit=limit, length=length, config=anchor.config)
        return Report(run_barrier(models, data, options, others))


def report(
    out: str | Path,
    *,
    barrier: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]] = (),
    data: str | Path | Examples | None = None,
    points: int = 11,
    batch_size: int = 32,
    limit: int | None = None,
    length: int = 128,
    device: str = "cpu",
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    observer: Observer = _quiet,
) -> Page:
    """The page for people on what `merge` or `align` wrote; nothing is matched anew.

    Args:
        out: the folder that was written.
        barrier: reports of `barrier` on its models, or the files that ``isomerge barrier --json`` wrote.
        data: labelled examples: the loss between the models, as stored and as they were moved, and that of the merge, are
            measured on them. The models that went in must still be where they were.
        points, batch_size, limit, length, device: of that measurement; see `barrier`.
        spec: of an architecture that isomerge does not know.

    Returns:
        A page: ``save(path)`` writes it, ``html`` is its text, ``verdict`` what it says; a notebook shows it. ``measured``
        are the reports that `barrier` gave.

    Raises:
        IsomergeError: nothing that isomerge wrote, or models and data do not fit together.
    """
    from isomerge.engine.connectivity import BarrierOptions
    from isomerge.evidence.report.folder import read_output
    from isomerge.evidence.report.losses import losses_of, read_losses
    from isomerge.evidence.report.measure import measure
    from isomerge.evidence.report.page import page_of

    written = read_output(out, spec=spec)
    given = [barrier] if isinstance(barrier, (str, Path, Mapping)) else barrier
    losses = [losses_of(found) if isinstance(found, Mapping) else read_losses(found) for found in given]
    measured: list[dict[str, Any]] = []
    if data is not None:
        options = BarrierOptions(points=points, batch_size=batch_size, device=device, observer=observer)
        measured = measure(written, data, options, limit=limit, length=length, spec=spec, allow_pickle=allow_pickle)
    return page_of(written, [*map(losses_of, measured), *losses], measured=measured)


def stats(
    model: Any,
    *,
    data: str | Path | Examples,
    out: str | Path,
    rows: int = 1024,
    limit: int | None = None,
    length: int = 128,
    batch_size: int = 16,
    device: str = "cpu",
    dtype: str = "float32",
    kinds: str | Sequence[str] = "activations,regmean",
    fisher_labels: str | None = None,
    seed: int = 0,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    force: bool = False,
    observer: Observer = _quiet,
) -> dict[str, Any]:
    """Run a model over data once and write the statistics that matching and merging need, one file per model.

    Args:
        model: a folder, hub id, open checkpoint or live module.
        data: examples, or what `isomerge.data.opening.open_data` opens; no labels needed but for ``fisher_labels="given"``.
        out: the safetensors file; see `docs/activations.md` for what is in it.
        rows: rows of activations that are kept of every place; models to be matched need equal data, ``rows`` and
            ``batch_size``.
        dtype: of the rows, ``float32`` or ``float16``.
        kinds: what is gathered: ``activations`` and ``regmean`` (Grams), which matching reads; ``fisher`` (diagonal) and
            ``kfac`` (Kronecker factors), for which the model is run backwards on every example alone.
        fisher_labels: ``given`` (the data's; the default where there are some), ``sampled`` from the model's prediction,
            or ``expected`` over all classes; see `isomerge.engine.likelihoods`.
        seed: of sampled labels.
        limit, length: examples, and tokens per example; see `open_data`.
        device: where the model runs, in float32.
        force: replace ``out``.

    Returns:
        A report: ``taps``, ``rows``, ``tokens`` by tap, ``kinds``, ``fisher``, ``examples``, ``bytes``.

    Raises:
        IsomergeError: model or data do not fit together, or an option is wrong; nothing is written.
    """
    from isomerge.data.opening import open_data
    from isomerge.engine.gathering import StatsOptions, parse_kinds, run_stats

    path, chosen = Path(os.path.expanduser(out)), parse_kinds(kinds)
    options = StatsOptions(
        path, rows, batch_size, device, dtype, force, observer, kinds=chosen, labels=fisher_labels, seed=seed
    )
    options.check()
    with _recognised([model], spec, allow_pickle) as (found,):
        if not isinstance(data, Examples):
            data = open_data(str(data), found.checkpoint.folder, limit=limit, length=length, config=found.config)
        return Report(run_stats(found, data, options))


def extract_lora(
    finetuned: Any,
    base: Any,
    *,
    out: str | Path,
    rank: int = 16,
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
        rank: the largest rank of a layer; ``energy`` keeps the fewest ranks with this share of the squared singular
            values, ``epsilon`` drops singular values below this share of the largest.
        include, exclude: regular expressions for module names.
        embeddings: describe tables of tokens by factors as well.
        save_modules: keep whole what has no factors and differs.

    Returns:
        ``rank``, per tensor that differs ``kept`` (``lora``, ``saved`` or ``lost``), ``rank``, ``norm`` and ``lost``, and over
        all of them ``norm``, ``lost`` and ``share`` (Frobenius); see `isomerge.engine.extract_lora`.

    Raises:
        IsomergeError: the models do not fit together or are equal, or an option is wrong; nothing is written.
    """
    from isomerge.engine.extract_lora import extract_lora as extract

    folder = Path(os.path.expanduser(out))
    with _recognised([finetuned, base], spec, allow_pickle) as (one, two):
        report = extract(
            one, two, folder, rank=rank, energy=energy, epsilon=epsilon, include=include, exclude=exclude,
            embeddings=embeddings, save_modules=save_modules, force=force, seed=seed,
        )  # fmt: skip
        return Report({"command": "extract-lora", "models": [one.ref, two.ref], **report})


@contextlib.contextmanager
def _solver(one: Any, two: Any, spaces: str, layers: str | None, spec: Any, allow_pickle: bool, *, guard: bool):
    from isomerge.engine.pair import PairSolver
    from isomerge.engine.plan import make_plan

    with _recognised([one, two], spec, allow_pickle) as (a, b):
        if _tied(a) != _tied(b):  # a model and its copy that was moved with untie: nothing is written here
            a, b = (recognise(m.checkpoint, spec_file=spec, untie=True) for m in (a, b))
        check_compatible(a, [b])
        plan = make_plan(a, [b], spaces, layers)
        yield PairSolver(a, b, plan, working_dtype([a, b]), guard=guard)


def _tied(model: Model) -> bool:
    """Whether a config ties the head to the embeddings, as its architecture does when it is silent."""
    return model.config.get("tie_word_embeddings") is not False


def inspect(model: Any, *, spec: str | Path | None = None, allow_pickle: bool = False) -> dict[str, Any]:
    """Architecture, spaces with groups and dimensions, units, and the redundant dimensions; headers only."""
    from isomerge.evidence.inspection import inspection

    with _recognised([model], spec, allow_pickle) as (found,):
        return Report(inspection(found))

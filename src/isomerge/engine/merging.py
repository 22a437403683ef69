"""Merging: align every model onto one (or onto their common mean), fuse unit by unit, write an ordinary checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isomerge.engine.baselines import OURS, SOFT, prepare_transport
from isomerge.engine.forward_fusion import fuse_forward
from isomerge.engine.fusing import Fuser, Fusion, fusion_of
from isomerge.engine.heads import (
    apart_names,
    arrange,
    check_heads,
    head_lines,
    heads_of,
    separate_heads,
    write_kept,
)
from isomerge.engine.inputs import shown
from isomerge.engine.many_solutions import check_anchor, prepare_mean
from isomerge.engine.merge_checks import check_aligned, check_transplant, file_identity, statistics_of
from isomerge.engine.models import Model, check_compatible, working_dtype
from isomerge.engine.pair import PairSolver
from isomerge.engine.plan import make_plan
from isomerge.engine.run import Output, StreamWriter, report_of, run_key
from isomerge.engine.solutions import WEIGHTS, Matching, prepare_solutions
from isomerge.engine.streaming import UnitSolver, elements_of_results, prepare_votes, stream_units, write_alone
from isomerge.engine.transplant import TransplantSolver
from isomerge.errors import IsomergeError
from isomerge.evidence.card import RECIPE, model_card
from isomerge.symmetry.alignment import Alignment

if TYPE_CHECKING:
    pass


def run_merge(
    models: Sequence[Model],
    output: Output,
    *,
    fusion: Fusion | None = None,
    align: bool = True,
    spaces: str = "default",
    layers: str | None = None,
    matching: Matching = WEIGHTS,
    anchor: str = "first",
    onto: int = 0,
    source_bases: Sequence[Model | None] = (),
    stats: Sequence[str] = (),
    repair: Any = None,
    heads: str = "average",
    recipe: str | None = None,
) -> dict[str, Any]:
    """Align every model onto the first (or another: ``onto`` is its number), fuse them, and write the result in the first
    model's names, with its config; returns the report.

    With ``anchor="none"`` all models are matched onto their common mean instead (`isomerge.engine.many`), which is
    written in the first model's coordinates. ``stats`` are files of `isomerge stats` for methods that ask for statistics,
    one per model that is fused; without them those of the match are taken, or the statistics are gathered on its data.
    ``source_bases`` are what the models that are fused were tuned from, where that is not the base (`TransplantSolver`).
    ``repair`` are data for REPAIR (`isomerge.engine.repair`), which re-normalises the merged model's activations.
    ``heads`` says whose classifier heads are written (`isomerge.engine.heads`); ``recipe`` is the YAML that is kept with the
    output.
    """
    fusion = fusion or fusion_of(len(models))
    check_anchor(anchor, matching, spaces)
    if anchor != "first" and onto:
        raise IsomergeError(
            "--onto names an anchor, and --anchor none says that there is none: leave one of them away"
        )
    if matching.match in SOFT and (fusion.method.forward or fusion.method.statistics or repair is not None):
        raise IsomergeError(
            f"--match {matching.match} does not preserve functions, which the method {fusion.method.name} needs: choose another"
        )
    donor, *others = models
    check_transplant(
        fusion, source_bases, onto=onto, anchor=anchor, align=align, repair=repair, match=matching.match
    )
    check_compatible(donor, [base for base in source_bases if base is not None])
    wanted = heads_of(heads, models)
    check_compatible(donor, others, apart=head_lines(donor.spec) if wanted.apart else ())
    chosen = spaces if align else "none"
    template, plan = arrange(wanted, models, make_plan(donor, others, chosen, layers))
    if any(source_bases) and plan.selection.frame is not None:
        raise IsomergeError(
            f"--spaces {spaces} folds the gains of the base that --source-base names, which are not the fine-tune's: choose "
            "spaces inside the layers, such as --spaces default"
        )
    dtype = working_dtype(models)
    # unguarded: the merge must be a function of the orbits, whatever gauges the checkpoints are stored in
    target, sources = models[onto], [model for k, model in enumerate(models) if k != onto]
    bases = [*[None] * fusion.start, *source_bases] if source_bases else [None] * len(models)
    tuned_from = {id(model): base for model, base in zip(models, bases, strict=True)}
    solvers = [PairSolver(target, tuned_from[id(s)] or s, plan, dtype, guard=False) for s in sources]
    check_aligned(align, matching, fusion)
    matching.check(len(others), chosen)
    matching.check_files(models)
    statistics = statistics_of(fusion, stats or matching.stats, models, matching)
    settings = (
        list(map(file_identity, stats)),
        chosen,
        layers,
        output.dtype,
        output.shard_size,
        matching.key(donor),
        anchor,
        onto,
        shown(repair),
        heads,
        recipe,
    )
    key = run_key("merge", [*models, *(base for base in bases if base is not None)], *fusion.key(), *settings)
    fuser = Fuser(fusion, plan, donor, statistics, dtype)
    # the anchor comes first in what solvers give; the fusion wants the run's order
    fuser.places = [0 if k == onto else 1 + k - (k > onto) for k in range(len(models))]
    gathers = fusion.method.statistics is not None and statistics is None
    runs = fusion.method.forward or gathers or repair is not None
    check_heads(wanted, matching.match, runs=runs)
    with StreamWriter(template, output, key, apart=apart_names(wanted, donor)) as stream:
        weights = fusion.weights(len(models))
        mean = prepare_mean(stream, solvers, matching, weights) if align and anchor == "none" else None
        used: Sequence[UnitSolver] = solvers
        streams: list[dict[str, Any]] = []
        if align and matching.match in SOFT:
            used, streams = prepare_transport(stream, solvers, matching)
        elif align and mean is None:
            streams = prepare_solutions(stream, solvers, matching)
        if not streams and mean is None:
            prepare_votes(stream, solvers)
        if any(source_bases):
            used = [
                TransplantSolver(u, s) if tuned_from[id(s)] else u for u, s in zip(solvers, sources, strict=True)
            ]
        ours = matching.match == OURS
        how: dict[str, Any] = {
            "align": align,
            "spaces": chosen,
            "layers": layers,
            "streams": streams if ours else [],
            **({"heads": heads} if wanted.apart else {}),
        }
        how |= {} if ours else {"match": {"name": matching.match, "sources": streams}}
        how |= {"anchor": "none", "mean": mean} if mean is not None else {}
        if runs:
            results = fuse_forward(stream, solvers, fuser, matching, key, aligned=align, repair=repair)
            how |= {"forward": fuser.report}
        else:
            results = stream_units(stream, used, plan, fuser.fuse, target)
        moved = solvers[0].alignment(elements_of_results(results[0])) if onto and align else None
        write_alone(stream, plan, donor, dtype, moved)
        report = report_of("merge", [target, *sources], results, **fuser.described(len(models)), **how)
        exact = align and matching.match not in SOFT
        found = (
            [s.alignment(elements_of_results(r)) for s, r in zip(solvers, results, strict=True)] if exact else []
        )
        alignments = {alignment_file(k, len(found)): alignment for k, alignment in enumerate(found, 2)}
        by: list[Alignment | None] = [None] * len(models)
        for source, alignment in zip(sources, found, strict=False):
            by[models.index(source)] = alignment
        write_kept(stream, wanted, models, by, dtype)
        more: dict[str, Any] = {} if recipe is None else {RECIPE: recipe.encode()}
        links: dict[str, str] = {}
        if wanted.how == "separate":
            folders, links = separate_heads(stream, models, by, dtype)
            more |= folders
            report["head_folders"] = sorted({name.rpartition("/")[0] for name in links})
        stream.finish(report, alignments, _card(fusion, models, report, recipe), more=more, links=links)
    return report


def alignment_file(number: int, count: int) -> str:
    """What the alignment of the ``number``-th model is called in the output, of ``count`` that were moved."""
    return "alignment.safetensors" if count == 1 else f"alignment-{number}.safetensors"


def _card(fusion: Fusion, models: Sequence[Model], report: dict[str, Any], recipe: str | None) -> str:
    how = "They were not aligned. "
    if report["align"]:
        how = "Each was first aligned onto the first along its symmetries. "
        if "mean" in report:
            how = "All were first matched onto their common mean along their symmetries. "
    weights = f", with weights {report['weights']}" if report["weights"] else ""
    text = f"The `{fusion.method.name}` merge of the models below{weights}. {how}Made by isomerge."
    return model_card("Merged checkpoint", [m.ref for m in models], text, report, recipe=recipe)

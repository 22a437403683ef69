"""Merging: align every model onto one (or onto their common mean), fuse unit by unit, write an ordinary checkpoint."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from isomerge.engine.baselines import OURS, SOFT, prepare_transport
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
from isomerge.engine.models import Model, check_compatible, working_dtype
from isomerge.engine.pair import Blocks, PairSolver, UnitResult
from isomerge.engine.plan import Plan, layer_of, make_plan, stacks_of
from isomerge.engine.run import (
    Output,
    StreamWriter,
    UnitSolver,
    elements_of_results,
    prepare_votes,
    report_of,
    run_key,
    stream_units,
    write_alone,
)
from isomerge.engine.solutions import WEIGHTS, Matching, prepare_solutions
from isomerge.engine.transplant import TransplantSolver
from isomerge.errors import IsomergeError
from isomerge.evidence.card import RECIPE, model_card
from isomerge.fusion.parameters import Parameters, of_models
from isomerge.fusion.registry import STATISTICS, Method
from isomerge.fusion.registry import method as merge_method
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor

    from isomerge.engine.endpoints import Forward
    from isomerge.engine.fusion_statistics import FusionStatistics


@dataclass(frozen=True)
class Fusion:
    """How the aligned tensors of a run's models become one."""

    method: Method
    parameters: Parameters
    first: str = "model"
    """What the run's first model is, whose config and tokenizer are written: one of the models that are fused, the
    method's base, or neither (``donor``)."""
    seed: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def start(self) -> int:
        """The number of the first model that is fused."""
        return 0 if self.first == "model" else 1

    def key(self) -> list[Any]:
        """What determines the result beside the models: for the key of a run."""
        return [self.method.name, repr(self.parameters), self.first, self.seed if self.method.random else None]

    def weights(self, count: int) -> list[float]:
        """How much each of a run's models counts, for a common mean: by the method's weights in the middle of the stack."""
        if "weight" not in self.method.options:
            return [1.0] * count
        found = self.parameters.at(self.method, "", 1, depth=3)["weight"]
        return [1.0] * self.start + [1.0 if w is None else float(w) for w in found][: count - self.start]


def fusion_of(
    count: int,
    *,
    method: str = "linear",
    weights: Sequence[float] | None = None,
    parameters: dict[str, Any] | None = None,
    base: bool = False,
    seed: int = 0,
) -> Fusion:
    """The fusion of whole models, checked before anything is read.

    Args:
        count: how many models are merged, the base left out.
        weights: one per model.
        parameters: of the method.
        base: whether a base model is named.

    Raises:
        IsomergeError: too few models, an unknown method, a base that is missing or of no use, or parameters that cannot
            be used.
    """
    chosen = merge_method(method)
    first = role_of_base(chosen, base)
    if count + base < 2 and method != "passthrough":
        raise IsomergeError("merge needs at least two models: name another one")
    if weights is not None:
        weights = [float(w) for w in weights]
        if len(weights) != count or not all(map(isfinite, [*weights, sum(weights)])) or sum(weights) == 0:
            raise IsomergeError(f"--weights: {count} numbers are needed that do not sum to zero, got {weights}")
    found = of_models(chosen, count, weights=weights, given=parameters)
    return Fusion(chosen, found, first, seed)


def role_of_base(method: Method, named: bool) -> str:
    """What a named base is to a method; ``model`` when none is named.

    Raises:
        IsomergeError: the method needs one.
    """
    if named:
        return "donor" if method.base == "none" else "base"
    if method.base == "required":
        raise IsomergeError(
            f"the method {method.name} needs a base model: name it with --base-model, or base_model in a recipe"
        )
    return "model"


def check_aligned(align: bool, matching: Matching, fusion: Fusion) -> None:
    """Refuse to look at data for a match that is not made, and a method that runs models without data.

    Raises:
        IsomergeError: naming the option.
    """
    if fusion.method.forward and matching.data is None:
        raise IsomergeError(f"the method {fusion.method.name} runs the models: add --data DATA")
    if not align and matching.needs_models and not (fusion.method.forward or fusion.method.statistics):
        raise IsomergeError("--no-align leaves nothing to match by data: leave it away, or the data")


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
    check_transplant(fusion, source_bases, onto, anchor, align)
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
        alignments: dict[str, Alignment] = {}
        by: list[Alignment | None] = [None] * len(models)
        if align and matching.match not in SOFT:
            for k, (solver, source, result) in enumerate(zip(solvers, sources, results, strict=True), 2):
                name = "alignment.safetensors" if len(solvers) == 1 else f"alignment-{k}.safetensors"
                alignments[name] = solver.alignment(elements_of_results(result))
                by[models.index(source)] = alignments[name]
        write_kept(stream, wanted, models, by, dtype)
        more: dict[str, Any] = {} if recipe is None else {RECIPE: recipe.encode()}
        links: dict[str, str] = {}
        if wanted.how == "separate":
            folders, links = separate_heads(stream, models, by, dtype)
            more |= folders
            report["head_folders"] = sorted({name.rpartition("/")[0] for name in links})
        stream.finish(report, alignments, _card(fusion, models, report, recipe), more=more, links=links)
    return report


def fuse_forward(
    stream: StreamWriter,
    solvers: Sequence[PairSolver],
    fuser: Fuser,
    matching: Matching,
    key: str,
    *,
    aligned: bool,
    repair: Any = None,
) -> list[list[UnitResult]]:
    """Fuse by running the aligned models, and write the result; returns what moved the sources.

    Methods of statistics gather them on the aligned models; others give the merged parameters themselves. ``repair`` are
    the data of REPAIR, which then has the last word.
    """
    from isomerge.engine.endpoints import Forward, write_endpoints, write_fused
    from isomerge.engine.inputs import open_given
    from isomerge.engine.live import state_of
    from isomerge.engine.modules import load_module

    fusion, donor, observer = fuser.fusion, stream.donor, stream.output.observer
    device = matching.settings.device if matching.settings else "cpu"
    stored = [solvers[0].anchor, *(solver.source for solver in solvers)] if solvers else [donor]
    stored = [stored[k] for k in fuser.places]
    models, results = stored, [[] for _ in solvers]
    if aligned:
        models, results = write_endpoints(stream, solvers, key)
        models, fuser.places = [models[k] for k in fuser.places], list(range(len(models)))
    examples = open_given(repair if matching.data is None else matching.data, donor, matching)
    run = Forward(models[fusion.start :], stored[fusion.start :], examples, device, observer, aligned)
    if fusion.method.forward:
        module, fuser.report = fusion.method.function(run, **{o.keyword: v for o, v in fuser.options(None)})
    else:
        if fusion.method.statistics is not None and fuser.statistics is None:
            fuser.statistics = _gathered(stream, run, fusion)
        still = make_plan(donor, models[1:], "none")
        again = [PairSolver(donor, model, still, fuser.dtype, guard=False) for model in models[1:]]
        if repair is None:
            stream_units(stream, again, still, fuser.fuse, donor)
            return results
        module = load_module(write_fused(stream, again, still, fuser.fuse, key), device=device)
    if repair is not None:
        from isomerge.engine.repair import repair as repaired

        found = repaired(
            module, run.endpoints, fusion.weights(len(models))[fusion.start :], open_given(repair, donor, matching),
            observer=observer,
        )  # fmt: skip
        fuser.report = {**fuser.report, "repair": {"layers": found.layers, "kept": found.kept}}
    ready = state_of(module, donor)
    for unit in fuser.plan.units:
        if stream.done(unit.key) is None:
            for block in unit.blocks:
                stream.put(block, _ready(donor, block, ready, fuser.dtype))
            stream.writer.commit(unit.key, {})
    return results


def _gathered(stream: StreamWriter, run: Forward, fusion: Fusion) -> FusionStatistics:
    """The statistics that a method asks for, of the aligned models on the match's data."""
    from isomerge.engine.fusion_statistics import FusionStatistics

    folder = stream.writer.blob("statistics")
    folder.mkdir(exist_ok=True)
    assert fusion.method.statistics is not None
    kinds = [STATISTICS[fusion.method.statistics]]
    return FusionStatistics.gathered(
        run.models, [run.examples], kinds, folder, device=run.device, observer=run.observer
    )


def _ready(donor: Model, block: Block, ready: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """A block of a merged module; what the module has no parameter for is the donor's."""
    own = donor.assemble(block, dtype)
    if not own.is_floating_point() or not all(donor.names.get(c, "") in ready for c in block.canonical):
        return own
    return block.assemble(lambda canonical: ready[donor.names[canonical]].to("cpu", dtype))


def check_transplant(
    fusion: Fusion, source_bases: Sequence[Model | None], onto: int, anchor: str, align: bool
) -> None:
    """Refuse to move task vectors to a new base where there is none, or by a method that has none.

    Raises:
        IsomergeError: naming the option.
    """
    if not any(source_bases):
        return
    if fusion.first != "base" or fusion.method.statistics is not None:
        raise IsomergeError(
            f"--source-base moves task vectors to another base, and the method {fusion.method.name} has none: choose one "
            "that takes --base-model, such as task_arithmetic"
        )
    if onto or anchor != "first" or not align:
        raise IsomergeError(
            "--source-base aligns the source's base onto the base: leave --onto, --anchor and --no-align away"
        )


def statistics_of(
    fusion: Fusion, files: Sequence[str], models: Sequence[Model], matching: Matching
) -> FusionStatistics | None:
    """The statistics that a method asks for, from files, one per model that is fused; None for other methods, and where they
    are to be gathered on the match's data.

    Raises:
        IsomergeError: neither files nor data are given, or files lack a kind or belong to other models.
    """
    if fusion.method.statistics is None:
        return None
    from isomerge.engine.fusion_statistics import FusionStatistics

    kind = STATISTICS[fusion.method.statistics]
    if files:
        return FusionStatistics.open(files, models[fusion.start :], [kind])
    if matching.data is not None:
        return None
    raise IsomergeError(
        f"the method {fusion.method.name} needs statistics: give --stats FILE for every model, made by isomerge stats MODEL "
        f"--kinds {kind} --data DATA, or --data DATA to gather them now"
    )


def file_identity(path: str) -> list[Any]:
    """Path, size and date (ns) of a file."""
    found = os.stat(path)
    return [os.path.realpath(path), found.st_size, found.st_mtime_ns]


def _card(fusion: Fusion, models: Sequence[Model], report: dict[str, Any], recipe: str | None) -> str:
    how = "They were not aligned. "
    if report["align"]:
        how = "Each was first aligned onto the first along its symmetries. "
        if "mean" in report:
            how = "All were first matched onto their common mean along their symmetries. "
    weights = f", with weights {report['weights']}" if report["weights"] else ""
    text = f"The `{fusion.method.name}` merge of the models below{weights}. {how}Made by isomerge."
    return model_card("Merged checkpoint", [m.ref for m in models], text, report, recipe=recipe)


class Fuser:
    """Applies a fusion to work units.

    Args:
        fusion: the method and its parameters.
        plan: the run's plan.
        donor: the model that names tensors.
        statistics: of the run's models, where the method asks for them.
        dtype: the working dtype.
    """

    def __init__(
        self, fusion: Fusion, plan: Plan, donor: Model, statistics: FusionStatistics | None, dtype: torch.dtype
    ) -> None:
        self.fusion, self.plan, self.donor, self.statistics, self.dtype = fusion, plan, donor, statistics, dtype
        self.places: list[int] = []
        """Where the run's models are in what solvers give, the anchor first; empty: in the same order."""
        self.report: dict[str, Any] = {}
        """What a method that runs models has to tell."""
        self._depths = stacks_of(donor.blocks)
        ranks = {line.name: number for number, line in enumerate(donor.spec.lines)}
        stacked = [ranks[block.line.name] for block in donor.blocks if layer_of(block)[1] is not None]
        self._after = {name for name, rank in ranks.items() if stacked and rank > min(stacked)}

    def fuse(self, unit: Unit, blocks: list[Blocks], by: list[Alignment | None]) -> Blocks:
        """The blocks that are written of one unit, from those of every model in the run's order and what moved them."""
        if self.places:
            blocks, by = [blocks[k] for k in self.places], [by[k] for k in self.places]
        found = self._by_unit(unit, blocks) if self.fusion.method.unit else {}
        for block in unit.blocks:
            tensors = [part[block] for part in blocks]
            if not tensors[0].is_floating_point():
                found[block] = tensors[0]
            elif block not in found:
                found[block] = self._by_tensor(block, tensors, by)
        return found

    def parameters(self, block: Block) -> dict[str, Any]:
        """The method's parameters for a block."""
        stack, layer = layer_of(block)
        name = self.donor.names.get(block.canonical[0], block.canonical[0])
        after, depth = block.line.name in self._after, self._depths.get(stack, 1)
        return self.fusion.parameters.at(self.fusion.method, name, layer, after=after, depth=depth)

    def _count(self, block: Block) -> int:
        return self.fusion.parameters.count(layer_of(block)[1], after=block.line.name in self._after)

    def _by_tensor(self, block: Block, tensors: list[Tensor], by: list[Alignment | None]) -> Tensor:
        fusion, given = self.fusion, self.parameters(block)
        here = tensors[fusion.start :][: self._count(block)]
        base = tensors[0] if fusion.first == "base" else None
        if fusion.method.unit:  # what a method of units leaves is averaged
            from isomerge.fusion.linear import linear

            return linear(here, weight=given.get("weight", [1.0] * len(here)))
        rng = generator(fusion.seed, fusion.method.name, block.key) if fusion.method.random else None
        seen = None
        if self.statistics is not None and fusion.method.statistics is not None:
            seen = self.statistics.given(fusion.method.statistics, block, by[fusion.start :])[: len(here)]
        return fusion.method.fuse(here, given, base=base, rng=rng, statistics=seen)

    def _by_unit(self, unit: Unit, blocks: list[Blocks]) -> Blocks:
        first = next((block for block in unit.blocks if layer_of(block)[1] is not None), unit.blocks[0])
        given = {o.keyword: v for o, v in self.options(first)}
        return self.fusion.method.function(
            self.donor.spec, blocks[self.fusion.start :][: self._count(first)], **given
        )

    def options(self, block: Block | None) -> list[tuple[Any, Any]]:
        """The method's options and their values, for a block or for a whole model."""
        given = (
            self.fusion.parameters.at(self.fusion.method, "", None, depth=1)
            if block is None
            else self.parameters(block)
        )
        return [(option, given[name]) for name, option in self.fusion.method.options.items()]

    def described(self, count: int) -> dict[str, Any]:
        """What a report says of the fusion of ``count`` models."""
        fusion = self.fusion
        middle = fusion.parameters.at(fusion.method, "", 1, depth=3)
        weights = fusion.weights(count) if "weight" in fusion.method.options else None
        return {
            "method": fusion.method.name,
            "weights": weights,
            "parameters": {name: value for name, value in middle.items() if name != "weight"},
            "base": fusion.first == "base",
            "seed": fusion.seed if fusion.method.random else None,
            "kept_from_first": [block.key for block in self.plan.alone],
            "notes": [*self.plan.selection.notes, *fusion.notes],
        }


def generator(seed: int, *names: str) -> Generator:
    """A generator of its own for a tensor: the draws do not depend on what else is drawn, or by whom."""
    import torch

    digest = hashlib.sha256(" ".join((str(seed), *names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)

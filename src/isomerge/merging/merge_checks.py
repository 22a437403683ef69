"""What a merge refuses before anything is written, and the statistics that its method asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.checkpoint.dtypes import STORED_FLOATS
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import Fusion
from isomerge.fusion.registry import STATISTICS
from isomerge.merging.merge_request import MergeRequest
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import Plan
from isomerge.solve.match_checks import check_anchor
from isomerge.solve.match_names import SOFT
from isomerge.solve.match_options import OURS, Matching

if TYPE_CHECKING:
    from isomerge.merging.fusion_statistics import FusionStatistics


def notes_before(request: MergeRequest) -> list[str]:
    """What to tell before anything is opened: of several models that are each learned onto the first one alone.

    Raises:
        IsomergeError: options that contradict each other.
    """
    with request.worded():
        check_aligned(request, request.matching)
        check_anchor(request.anchor, request.matching, request.spaces or "")
    together = request.anchor == "none" or len(request.models) < 3 or request.fusion.first == "base"
    if not request.align or request.matching.learn is None or together:
        return []
    return [
        "each model is learned onto the first one alone, which brings the others no nearer to each other: with "
        "--anchor none they are learned towards a common point"
    ]


def check_aligned(request: MergeRequest, matching: Matching) -> None:
    """Refuse to look at data for a match that is not made, and a method that runs models without data.

    Args:
        request: whether models are matched, and the method, which may look at data itself.
        matching: by what they are matched.

    Raises:
        IsomergeError: naming the options.
    """
    method, align = request.fusion.method, bool(request.align)
    if method.forward and matching.data is None:
        raise IsomergeError(f"the method {method.name} runs the models: add --data DATA")
    if align and len(request.models) > 1:
        return
    matched_by = {
        "--stats-src": bool(matching.stats) and not method.statistics,
        "--input-metric": matching.input_metric,
        "--search": matching.search is not None,
        "--learn": matching.learn is not None,
        "--match": matching.match != OURS,
        "--anchor": request.anchor != "first",
    }
    if set_options := " and ".join(option for option, is_set in matched_by.items() if is_set):
        if not align:
            raise IsomergeError(f"--no-align leaves nothing to match: leave it out, or {set_options}")
        raise IsomergeError(
            f"one model alone has nothing to be matched with: leave {set_options} out, or name another model"
        )


def check_options(request: MergeRequest, donor: Model, matching: Matching, bases: Sequence[Model | None]) -> None:
    """Refuse what does not go together, once models are opened.

    Args:
        request: what is asked for.
        donor: the first model.
        matching: as it counts.
        bases: what the models were tuned from, where that is not the base.

    Raises:
        IsomergeError: naming the option.
    """
    _check_described(request, donor)
    check_anchor(request.anchor, matching, request.spaces or "")
    if request.anchor != "first" and request.onto:
        raise IsomergeError(
            "--onto names an anchor, and --anchor none says that there is none: leave one of them out"
        )
    if matching.match in SOFT and request.stats:  # theirs must be gathered
        raise IsomergeError(
            f"--match {matching.match} makes other models of the sources, whose statistics are in no file: give "
            f"--data DATA instead of --stats, and they are gathered on the way"
        )
    if any(bases):
        _check_transplant(request, matching)
        check_compatible(donor, [base for base in bases if base is not None])


def _check_described(request: MergeRequest, donor: Model) -> None:
    """Refuse what looks into layers where a model is merged as it is stored, of which no more is known than
    names."""
    method = request.fusion.method
    inside = bool(method.unit or method.statistics or method.forward)
    if (inside or request.repair is not None) and not donor.spec.describes:
        what = f"the method {method.name}" if inside else "--repair"
        raise IsomergeError(
            f"{donor.ref}: {what} needs to know what the layers are made of, and there is no spec for model_type "
            f"{donor.spec.model_type!r}; derive one (isomerge discover), or choose a method that needs none, "
            f"such as linear"
        )


def check_runs(models: Sequence[Model], plan: Plan, request: MergeRequest) -> None:
    """Refuse methods that compare the insides of running models where one lacks layers of the first.

    Raises:
        IsomergeError: naming a tensor and the option.
    """
    method, donor = request.fusion.method, models[0]
    if not method.forward and request.repair is None:
        return
    for name in (canonical for block in plan.alone for canonical in block.canonical):
        info = donor.checkpoint.tensors[donor.names[name]]
        lacking = next((model.ref for model in models[1:] if model.source_of(name) is None), None)
        if lacking is not None and info.dtype in STORED_FLOATS:
            what = f"the method {method.name}" if method.forward else "--repair"
            raise IsomergeError(
                f"{lacking}: tensor {name} is missing, but {donor.ref} has it, and {what} runs both: name "
                f"{lacking} first"
            )


def check_framed(source_bases: Sequence[Model | None], plan: Plan, spaces: str) -> None:
    """Refuse to fold the gains of one model and move another.

    Raises:
        IsomergeError: naming the option.
    """
    if any(source_bases) and plan.selection.frame is not None:
        raise IsomergeError(
            f"--spaces {spaces} folds the gains of the base that --source-base names, which are not the "
            "fine-tune's: choose spaces inside the layers, such as --spaces default"
        )


def _check_transplant(request: MergeRequest, matching: Matching) -> None:
    """Refuse to move task vectors to a new base where there is none, or by a method that has none."""
    fusion = request.fusion
    if fusion.first != "base" or fusion.method.statistics is not None:
        raise IsomergeError(
            f"--source-base moves task vectors to another base, and the method {fusion.method.name} has none: "
            "choose one that takes --base-model, such as task_arithmetic"
        )
    if request.repair is not None or matching.match in SOFT:
        raise IsomergeError(
            "--source-base moves task vectors by an exact alignment, and nothing is run: leave --repair and "
            "soft --match out"
        )
    if request.onto or request.anchor != "first" or not request.align:
        raise IsomergeError(
            "--source-base aligns the source's base onto the base: leave --onto, --anchor and --no-align out"
        )


def statistics_of(
    fusion: Fusion, files: Sequence[str], models: Sequence[Model], matching: Matching
) -> FusionStatistics | None:
    """The statistics that a method asks for, from files, one per model that is fused; None for other methods, and
    where they are to be gathered on the match's data.

    Raises:
        IsomergeError: neither files nor data are given, or files lack a kind or belong to other models.
    """
    if fusion.method.statistics is None:
        return None

    kind = STATISTICS[fusion.method.statistics]
    if files:
        # few methods ask for statistics
        from isomerge.merging.fusion_statistics import FusionStatistics

        return FusionStatistics.open(files, models[fusion.start :], [kind])
    if matching.data is not None:
        return None
    raise IsomergeError(
        f"the method {fusion.method.name} needs statistics: give --stats FILE for every model, made by isomerge "
        f"stats MODEL --kinds {kind} --data DATA, or --data DATA to gather them now"
    )

"""What a merge refuses before anything is written, and the statistics that its method asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.dtypes import STORED_FLOATS
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import Fusion
from isomerge.fusion.registry import STATISTICS
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import Plan
from isomerge.solve.match_checks import check_anchor
from isomerge.solve.match_names import SOFT
from isomerge.solve.match_options import OURS, Matching

if TYPE_CHECKING:
    from isomerge.merging.fusion_statistics import FusionStatistics


def check_aligned(align: bool, matching: Matching, fusion: Fusion, count: int, anchor: str = "first") -> None:
    """Refuse to look at data for a match that is not made, and a method that runs models without data.

    Args:
        align: whether models are matched.
        matching: by what.
        fusion: the method, which may look at data itself.
        count: how many models there are.
        anchor: what they are matched onto.

    Raises:
        IsomergeError: naming the options.
    """
    method = fusion.method
    if method.forward and matching.data is None:
        raise IsomergeError(f"the method {method.name} runs the models: add --data DATA")
    if align and count > 1:
        return
    matched_by = {
        "--stats-src": bool(matching.stats) and not method.statistics,
        "--input-metric": matching.input_metric,
        "--search": matching.search is not None,
        "--learn": matching.learn is not None,
        "--match": matching.match != OURS,
        "--anchor": anchor != "first",
    }
    if set_options := " and ".join(option for option, is_set in matched_by.items() if is_set):
        if not align:
            raise IsomergeError(f"--no-align leaves nothing to match: leave it out, or {set_options}")
        raise IsomergeError(
            f"one model alone has nothing to be matched with: leave {set_options} out, or name another model"
        )


def learned_apart(align: bool, matching: Matching, fusion: Fusion, count: int, anchor: str) -> list[str]:
    """What to tell of several models that are each learned onto the first one alone, before it takes its time.

    Args:
        align, matching, fusion, count, anchor: see `check_aligned`.
    """
    if not align or matching.learn is None or anchor == "none" or count < 3 or fusion.first == "base":
        return []
    return [
        "each model is learned onto the first one alone, which brings the others no nearer to each other: with "
        "--anchor none they are learned towards a common point"
    ]


def check_anchors(anchor: str, onto: int, matching: Matching, spaces: str) -> None:
    """Refuse an anchor beside none, and what a common mean cannot do.

    Raises:
        IsomergeError: naming the option.
    """
    check_anchor(anchor, matching, spaces)
    if anchor != "first" and onto:
        raise IsomergeError(
            "--onto names an anchor, and --anchor none says that there is none: leave one of them out"
        )


def check_described(donor: Model, fusion: Fusion, repair: Any) -> None:
    """Refuse what looks into layers where a model is merged as it is stored, of which no more is known than names.

    Raises:
        IsomergeError: naming the method.
    """
    method = fusion.method
    inside = bool(method.unit or method.statistics or method.forward)
    if (inside or repair is not None) and not donor.spec.describes:
        what = f"the method {method.name}" if inside else "--repair"
        raise IsomergeError(
            f"{donor.ref}: {what} needs to know what the layers are made of, and there is no spec for model_type "
            f"{donor.spec.model_type!r}; derive one (isomerge discover), or choose a method that needs none, "
            f"such as linear"
        )


def check_runs(models: Sequence[Model], plan: Plan, fusion: Fusion, repair: Any) -> None:
    """Refuse methods that compare the insides of running models where one lacks layers of the first.

    Raises:
        IsomergeError: naming a tensor and the option.
    """
    if not fusion.method.forward and repair is None:
        return
    donor = models[0]
    for name in (canonical for block in plan.alone for canonical in block.canonical):
        info = donor.checkpoint.tensors[donor.names[name]]
        lacking = next((model.ref for model in models[1:] if model.source_of(name) is None), None)
        if lacking is not None and info.dtype in STORED_FLOATS:
            what = f"the method {fusion.method.name}" if fusion.method.forward else "--repair"
            raise IsomergeError(
                f"{lacking}: tensor {name} is missing, but {donor.ref} has it, and {what} runs both: name "
                f"{lacking} first"
            )


def check_soft(match: str, stats: Sequence[str]) -> None:
    """Refuse files of statistics after a match that makes other models of the sources: theirs must be gathered.

    Raises:
        IsomergeError: naming the option.
    """
    if match in SOFT and stats:
        raise IsomergeError(
            f"--match {match} makes other models of the sources, whose statistics are in no file: give --data DATA "
            f"instead of --stats, and they are gathered on the way"
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


def check_transplant(
    fusion: Fusion,
    source_bases: Sequence[Model | None],
    *,
    onto: int,
    anchor: str,
    align: bool,
    repair: Any,
    match: str,
) -> None:
    """Refuse to move task vectors to a new base where there is none, or by a method that has none.

    Raises:
        IsomergeError: naming the option.
    """
    if not any(source_bases):
        return
    if fusion.first != "base" or fusion.method.statistics is not None:
        raise IsomergeError(
            f"--source-base moves task vectors to another base, and the method {fusion.method.name} has none: "
            "choose one that takes --base-model, such as task_arithmetic"
        )
    if repair is not None or match in SOFT:
        raise IsomergeError(
            "--source-base moves task vectors by an exact alignment, and nothing is run: leave --repair and "
            "soft --match out"
        )
    if onto or anchor != "first" or not align:
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

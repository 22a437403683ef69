"""``--select-layers validation``: validation data decide which layers are matched, as in Table 2 of the paper.

Every layer alone, the first and the last so many, all, and none are matched in turn; each merge is measured on the
data, and the best one's layers are those of the merge that is written.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from isomerge.commands.merging import planned_merge
from isomerge.commands.opening import Means
from isomerge.errors import IsomergeError
from isomerge.merging.merge_request import Candidate, LayerScan, MergeRequest
from isomerge.merging.merge_run import run_plan
from isomerge.progress import quiet
from isomerge.symmetry.blocks import stacks_of

VALIDATION = "validation"
NONE, ALL = "none", "all"


def candidates(count: int) -> list[str]:
    """The choices of layers of a stack: none, all, each alone, the first k and the last k."""
    ends = [f"{kind}:{k}" for kind in ("head", "tail") for k in range(2, count)]
    return [NONE, ALL, *map(str, range(count)), *ends]


def check_selection(merge: MergeRequest) -> None:
    """Refuse what cannot be selected, before anything is opened.

    Raises:
        IsomergeError: naming the option.
    """
    if merge.select_layers not in (None, VALIDATION):
        raise IsomergeError(f"--select-layers {merge.select_layers}: choose validation, or name --layers")
    if merge.select_layers is None:
        return
    if merge.matching.data is None:
        raise IsomergeError("--select-layers validation needs validation data: add --data DATA")
    if merge.layers is not None or not merge.align:
        raise IsomergeError("--select-layers chooses what is matched: leave --layers and --no-align out")
    if merge.matching.learn is not None or merge.matching.search is not None:
        raise IsomergeError("--select-layers matches single layers: leave --learn and --search out")


def with_selected_layers(merge: MergeRequest, means: Means) -> MergeRequest:
    """The merge with the layers that are best on its data, and with the scan that told them; the merge itself where
    nothing is to be selected.

    Raises:
        IsomergeError: see `check_selection`; or the models have no layers, or the data no labels.
    """
    check_selection(merge)
    if merge.select_layers is None:
        return merge
    plain = replace(merge.matching, decides=False, may_learn=False)
    base = replace(merge, select_layers=None, matching=plain, spaces=merge.spaces or "default", parents=False)
    writing = replace(means.writing, overwrite=True, push_to_hub=None, private=False)
    scratch = replace(means, writing=writing, observer=quiet)
    tried: list[Candidate] = []
    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder:
        out = Path(folder) / "candidate"
        with planned_merge(base, out, scratch) as planned:
            stacks = stacks_of([block for unit in planned.plan.units for block in unit.blocks])
        if not stacks:
            raise IsomergeError(f"{merge.models[0]}: no layers, of which --select-layers could choose")
        choices = candidates(max(stacks.values()))
        for number, layers in enumerate(choices):
            means.observer(f"selecting layers: {layers}", number, len(choices))
            with planned_merge(_with_layers(base, layers), out, scratch) as planned:
                report = run_plan(planned)
            if report.measured is None:
                raise IsomergeError(f"--select-layers validation: {report.notes[-1]}")
            tried.append(Candidate(layers, figures=report.measured.merged))
    best = max(tried, key=lambda each: (each.figures.accuracy or 0.0, -each.figures.loss))
    scan = LayerScan(VALIDATION, tried, best.layers)
    return replace(_with_layers(base, best.layers), scan=scan, parents=True)


def _with_layers(merge: MergeRequest, layers: str) -> MergeRequest:
    if layers == NONE:
        return replace(merge, align=False, spaces=None)
    return replace(merge, layers=None if layers == ALL else layers)

"""The greedy soup as a merge method: see `isomerge.fusion.forward.soup`."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from isomerge.fusion.bounds import convex
from isomerge.fusion.forward.running import Forward
from isomerge.fusion.forward.soup import candidates_of, make_soup
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import forward_method


@forward_method
@limited(metric=("loss", "accuracy"), bound=convex)
def greedy_soup(run: Forward, *, metric: str = "loss") -> tuple[nn.Module, dict[str, Any]]:
    """The best model, averaged with each next best one that does not make the average worse on labelled examples.

    Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves accuracy without
    increasing inference time", Recipe 1. The examples decide, so measure the result on others.

    Args:
        run: the aligned models, live, and labelled examples that none of them was trained on.
        metric: ``loss`` or ``accuracy``.
    """

    module = copy.deepcopy(run.endpoints[0])
    soup = make_soup(module, candidates_of(run.endpoints), run.examples, metric=metric, observer=run.observer)
    history = [{"model": t.candidate, "score": t.score, "taken": t.taken} for t in soup.history]
    return module, {"chosen": list(soup.chosen), "score": soup.score, "history": history}

"""Greedy soup: which models of many are worth averaging (Wortsman et al. 2022, recipe 1), by labelled examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import convex
from isomerge.fusion.forward.running import Forward
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import forward_method
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.parameter_places import put_mean, weights_of
from isomerge.observe.losses import evaluate
from isomerge.progress import Observer, quiet
from isomerge.records import Json


@dataclass(frozen=True)
class Trial:
    """One candidate's turn."""

    candidate: int
    score: float
    """Of the average of what was chosen before and this candidate."""
    taken: bool


@dataclass(frozen=True)
class Soup:
    """What a greedy soup is made of."""

    chosen: tuple[int, ...]
    """Candidates in the order in which they were taken; the best one first."""
    score: float
    history: tuple[Trial, ...]


def chosen_greedily(scores: Sequence[float], evaluate: Callable[[tuple[int, ...]], float]) -> Soup:
    """Take the best candidate, then each next best one unless the average of all that are taken gets worse.

    Candidates are tried once, from the highest score of their own to the lowest; equal ones in the order in which
    they are given. An average as good as the one before is taken, as in the paper.

    Args:
        scores: of every candidate alone, higher is better (an accuracy, or a negative loss); NaN counts as the
            worst.
        evaluate: the score of the average of some candidates, in the order given, on the same data. It is not asked
            for one candidate alone. NaN is never taken.

    Raises:
        IsomergeError: no candidates, or none whose score is a number.
    """
    known = [-inf if isnan(score) else float(score) for score in scores]
    if not known or max(known) == -inf:
        raise IsomergeError("a soup needs at least one candidate with a score that is a number")
    first, *others = sorted(range(len(known)), key=lambda k: -known[k])
    chosen, best = (first,), known[first]
    history = [Trial(first, best, True)]
    for k in others:
        score = float(evaluate((*chosen, k)))
        taken = score >= best
        if taken:
            chosen, best = (*chosen, k), score
        history.append(Trial(k, score, taken))
    return Soup(chosen, best, tuple(history))


METRICS = ("loss", "accuracy")


def make_soup(
    module: nn.Module,
    candidates: Sequence[Mapping[str, Tensor]],
    examples: Examples,
    *,
    metric: str = "loss",
    observer: Observer = quiet,
) -> Soup:
    """Choose candidates greedily, and leave their average in the module.

    The examples decide, so a score on them is no estimate for others: measure the soup on data of its own.

    Args:
        module: a live module of the candidates' class, in eval mode; its weights are overwritten.
        candidates: aligned weights, as `weights_of` gives them; never changed.
        examples: labelled, and held out from training.
        metric: ``loss`` (lower is better) or ``accuracy``.

    Returns:
        Candidates by their number; scores are accuracies, or losses in nats with a minus.

    Raises:
        IsomergeError: an unknown metric, no candidates, candidates with other weights, or examples without labels.
    """
    if metric not in METRICS:
        raise IsomergeError(f"metric {metric}: choose from {', '.join(METRICS)}")
    _check(module, candidates)
    done = 0

    def score(which: tuple[int, ...]) -> float:
        nonlocal done
        observer("tasting", done, 2 * len(candidates))
        done += 1
        _put(module, candidates, which)
        measure = evaluate(module, examples)
        value = measure.accuracy if metric == "accuracy" else -measure.loss
        if value is None:
            raise IsomergeError("these examples have no accuracy: choose the metric loss")
        return value

    soup = chosen_greedily([score((k,)) for k in range(len(candidates))], score)
    _put(module, candidates, soup.chosen)
    observer("", 1, 1)
    return soup


def _put(module: nn.Module, candidates: Sequence[Mapping[str, Tensor]], which: Sequence[int]) -> None:
    put_mean(module, [candidates[k] for k in which], [1 / len(which)] * len(which))


def _check(module: nn.Module, candidates: Sequence[Mapping[str, Tensor]]) -> None:
    for number, state in enumerate(candidates):
        for name, tensor in weights_of(module).items():
            if name not in state or state[name].shape != tensor.shape:
                state_of = "missing" if name not in state else f"of shape {list(state[name].shape)}"
                raise IsomergeError(
                    f"candidate {number}: tensor {name} is {state_of}, but the module has one of shape "
                    f"{list(tensor.shape)}: give weights of one architecture, by the module's names"
                )


@forward_method
@limited(metric=METRICS, bound=convex)
def greedy_soup(run: Forward, *, metric: str = "loss") -> tuple[nn.Module, Json]:
    """The best model, averaged with each next best one that does not make the average worse on labelled examples.

    Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves accuracy without
    increasing inference time", Recipe 1. The examples decide, so measure the result on others.

    Args:
        run: the aligned models, live, and labelled examples that none of them was trained on.
        metric: ``loss`` or ``accuracy``.
    """
    module = copy.deepcopy(run.endpoints[0])
    soup = make_soup(
        module, [weights_of(model) for model in run.endpoints], run.examples, metric=metric, observer=run.observer
    )
    history = [{"model": t.candidate, "score": t.score, "taken": t.taken} for t in soup.history]
    return module, {"chosen": list(soup.chosen), "score": soup.score, "history": history}

"""Learned matching of several models: one after the other onto the mean of those before it, then all together.

In the middle of many models that nothing has brought together yet, the loss says little about any one of them:
learned all at once, five digits ViTs ended at 69 % (docs/guide/many-models.md). The mean of those that are together
already is a model that works, and on the line to it the next one finds its place as one of two does. What is then
learned together is little, at low rates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from isomerge.observe.data.examples import Examples
from isomerge.progress import Observer
from isomerge.solve.learn.elements import LearnedElements
from isomerge.solve.learn.learner import Learned, Learner
from isomerge.solve.learn.simplex import MatchedSimplex

GENTLY = 0.1
"""The rates of what is learned together, as parts of the usual ones: at these, three models were torn apart
again."""


def learn_together(
    simplex: MatchedSimplex, examples: Examples, blob: Callable[[str], Path], observer: Observer
) -> Learned:
    """What is learned of every model but the first; as many steps for each that joins as for all together.

    Args:
        simplex: between the models as they are matched, in the order in which they join.
        examples: what it is learned from.
        blob: where a state of some name is kept for a run that is interrupted.
        observer: told of the steps done of all.

    Raises:
        IsomergeError: see `Learner`.
    """
    count, steps = len(simplex.shares), simplex.settings.steps
    if count == 2:
        learned = Learner(simplex, examples, blob("learning-all.safetensors"), observer).run()
        learned.report["points"] = simplex.points()
        return learned
    joined: list[LearnedElements] = []
    reports = []
    for m in range(1, count):
        line = simplex.joining(m, [elements.stages()[0] for elements in joined])
        tell = partial(_tell, observer, f"model {m + 1} of {count}: ", steps * (m - 1), steps * count)
        learner = Learner(line, examples, blob(f"learning-{m}.safetensors"), tell)
        reports.append(learner.run().report)
        joined.append(learner.elements)
    tell = partial(_tell, observer, "all together: ", steps * (count - 1), steps * count)
    learner = Learner(simplex.gently(GENTLY), examples, blob("learning-all.safetensors"), tell)
    learner.elements.join([elements.state() for elements in joined])
    learned = learner.run()
    learned.report |= {"points": simplex.points(), "joining": reports}
    return learned


def _tell(observer: Observer, what: str, before: int, total: int, text: str, done: int, _: int) -> None:
    observer(what + text, before + done, total)

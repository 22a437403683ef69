"""`isomerge.tune`: the parameters of a recipe, searched for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from isomerge.api.live_inputs import with_examples
from isomerge.commands.tuning import planned_tune, tuning_recipe
from isomerge.merging.finishing import MergeReport
from isomerge.merging.recipe.recipe_request import request_of_recipe
from isomerge.options.requests import tuning as asked_for
from isomerge.progress import Observer
from isomerge.run.arguments import checked


@checked(asked_for.Tune)
def tune(asked: asked_for.Tune, observer: Observer) -> MergeReport:
    """Search for the parameters of a recipe on a loss or on tasks, and write the merge with the best ones. The
    models are aligned once; trials are merged and measured in memory. A run that was killed goes on with the trials
    that are left.

    Args:
        recipe: a recipe file. In the place of a value it may say ``{search: [LOW, HIGH]}`` or
            ``{choices: [A, B]}``, with ``start`` (the recipe's own value), ``log``, ``layers`` (how many values
            over the layers) and ``every`` (one for so many layers).
            mergekit-evolve's configurations are read as well.
        out: the folder to write: the merged checkpoint, its recipe, ``tune.json`` and ``tune.png``.
        data: labelled examples, or text for language models: a path, examples, batches, texts, a function. A share
            of them is held out, and the result judged on it. ``tasks`` of lm-evaluation-harness (texts as on the
            command line, or ``{"name": ..., "metric": ..., "weight": ...}``) may take their place.
        options: what is searched for, in how many trials, and how models are read, run and written. ``search`` is
            a mapping from parameters to ``(LOW, HIGH)``, or to what a recipe would say.

    Returns:
        The report of the merge with ``tune``: ``searched``, ``start``, ``best`` (``values``, ``search``: the loss
        that was searched on, ``judge``: loss, accuracy and perplexity on held-out examples; of tasks the score and
        the metrics), ``models`` (each alone), ``trials`` (``values``, ``loss``; of tasks ``score`` and ``tasks``),
        ``sentence``, ``seconds`` (``aligning``, ``trials``, ``trial``) and ``reused``.

    Raises:
        IsomergeError: the recipe, a range or the data are wrong, the method runs models on data, or Optuna is not
            installed; nothing is written.
    """
    data, tuning, examples = asked.data, asked.tuning, asked.examples
    if not isinstance(data, (str, Path, type(None))) or not isinstance(tuning.judge_data, (str, Path, type(None))):
        first = request_of_recipe(tuning_recipe(asked.recipe, tuning).filled()).models[0]
        given = {"data": data, "judge_data": tuning.judge_data, "limit": examples.limit, "length": examples.length}
        ready = with_examples(given, ("data", "judge_data"), first)
        asked = replace(asked, data=ready["data"], tuning=replace(tuning, judge_data=ready["judge_data"]))
    with planned_tune(asked, observer) as plan:
        return plan.run()

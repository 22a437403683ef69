"""`isomerge.evaluate`: models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isomerge.api.live_inputs import opened_data, own_models
from isomerge.commands.evaluating import evaluate_models
from isomerge.evidence.report.notebook import Report
from isomerge.options import ExamplesOptions, OpeningOptions
from isomerge.progress import Observer, quiet
from isomerge.run.arguments import checked


@checked(ExamplesOptions, OpeningOptions)
def evaluate(
    models: Sequence[Any],
    *,
    data: Any = None,
    tasks: Sequence[str] = (),
    batch_size: int = 32,
    loss: Callable[..., Any] | None = None,
    tokenizer: Any = None,
    observer: Observer = quiet,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate models side by side, such as the parents of a merge and the merge.

    Args:
        models: folders, hub ids, open checkpoints or live modules that read the same data.
        data: labelled examples, or text for language models: a path, batches, a loader, a function.
        tasks: of lm-evaluation-harness, which must be installed; every model is then a folder or a hub id.
        batch_size: examples that are run at a time.
        loss, tokenizer: of modules of one's own, and of texts; see `isomerge.merge`.
        observer: told of progress.
        options: how many examples, how long, where models run, and how they are opened.

    Returns:
        ``models``: a row for each with ``loss``, ``accuracy`` and ``perplexity`` on the data, and ``tasks`` with
        the numbers of each; ``unit`` of the loss and ``examples``.

    Raises:
        IsomergeError: neither data nor tasks, data without labels, or no harness.
    """
    models = own_models(models, loss)
    if models and data is not None:
        how = ExamplesOptions.of(options)
        data = opened_data(data, models[0], tokenizer, limit=how.limit, length=how.length)
    return Report(
        evaluate_models(
            models,
            data=data,
            tasks=tasks,
            batch_size=batch_size,
            examples=ExamplesOptions.of(options),
            opening=OpeningOptions.of(options),
            observer=observer,
        )
    )

"""``isomerge eval``: models side by side on data, or on the tasks of lm-evaluation-harness."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import ExamplesOptions, OpeningOptions, TellingOptions


@grouped
def evaluate(
    models: Annotated[list[str], typer.Argument(help="Models: folders or hub ids, such as parents and a merge.")],
    data: Annotated[
        str | None, typer.Option(help="Labelled examples, or text for language models (as of isomerge merge).")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks of lm-evaluation-harness, with commas: pip install 'lm-eval[hf]'.")
    ] = None,
    *,
    examples: ExamplesOptions,
    batch_size: Annotated[int, typer.Option(help="Examples that are run at a time.")] = 32,
    opening: OpeningOptions,
    telling: TellingOptions,
) -> None:
    """Evaluate models side by side: loss, accuracy and perplexity on DATA, or tasks, in one table."""
    import isomerge
    from isomerge.cli.console import Voice, write_json

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("evaluating") as observer:
        report = isomerge.evaluate(
            models,
            data=data,
            tasks=[task.strip() for task in (tasks or "").split(",") if task.strip()],
            batch_size=batch_size,
            limit=examples.limit,
            length=examples.length,
            device=examples.device,
            spec=opening.spec,
            allow_pickle=opening.allow_pickle,
            observer=observer,
        )
    if "unit" in report:
        rows = [[row["model"], f"{row['loss']:.4f}", *_more(row)] for row in report["models"]]
        columns = [f"{report['examples']} examples", f"loss ({report['unit']})", "accuracy", "perplexity"]
        voice.table("", columns, rows)
    for task in report["tasks"]:
        names = list(dict.fromkeys(name for row in report["models"] for name in row["tasks"][task]))
        rows = [[row["model"], *_numbers(row["tasks"][task], names)] for row in report["models"]]
        voice.table("", [task, *names], rows)
    write_json(telling.json, report)


def _more(row: dict[str, Any]) -> list[str]:
    accuracy, perplexity = row["accuracy"], row["perplexity"]
    return [
        "" if accuracy is None else f"{100 * accuracy:.1f} %",
        "" if perplexity is None else f"{perplexity:.4g}",
    ]


def _numbers(result: dict[str, float], names: list[str]) -> list[str]:
    return [f"{result[name]:.4f}" if name in result else "" for name in names]

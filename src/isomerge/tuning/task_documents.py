"""Documents of tasks in the place of examples: what a search is told of them, and the score of a module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import nn

from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.tokenizer import load_tokenizer
from isomerge.errors import IsomergeError
from isomerge.models.transformers_classes import class_of
from isomerge.observe.losses import Measure
from isomerge.run.forward_cost import Reading
from isomerge.tuning.harness import check_metrics, load_tasks, quiet_harness, requests_of, run_tasks, version
from isomerge.tuning.wanted_tasks import WantedTask

SCORE = "score"
"""What a search on tasks raises, and the unit of its figures."""


class Score(Measure):
    """How well a module does its tasks; ``loss`` is the score below 0, which a search lowers."""

    tasks: Mapping[str, float] = field(default_factory=dict)
    """The metric of every summand, by its text."""


@dataclass(frozen=True, eq=False)
class TaskDocuments:
    """Some documents of the tasks of a search."""

    wanted: tuple[WantedTask, ...]
    loaded: Mapping[str, Any] = field(repr=False)
    """See `isomerge.tuning.harness.load_tasks`."""
    tokenizer: Any = field(repr=False)
    chosen: Mapping[str, list[int]] = field(repr=False)
    """Which documents, by the names of all tasks, sorted."""
    fingerprint: str
    """Of all that models are asked, and of how answers are told from one another."""
    requests: int
    """How many texts a model reads for them, or writes."""
    length: int
    """Tokens of the longest one, about."""
    labelled: bool = True

    @property
    def reading(self) -> Reading:
        """What a model reads of them."""
        return Reading(self.requests, self.length, 0.0)

    def __len__(self) -> int:
        return sum(map(len, self.chosen.values()))

    def measured(self, module: nn.Module, batch_size: int) -> Score:
        """The score of a module, and the metrics that it is the sum of.

        Raises:
            IsomergeError: logits or a metric that are no numbers.
        """
        results = run_tasks(module, self.tokenizer, self.loaded, self.chosen, batch_size)
        scores, total = dict[str, float](), 0.0
        for task in self.wanted:
            value = results[task.name].get(task.metric)
            number = float(value) if isinstance(value, (int, float)) else float("nan")
            if not isfinite(number):
                raise IsomergeError(f"--task {task}: {task.metric} is {value} on these documents, and no number")
            scores[f"{task.name}:{task.metric}"], total = number, total + task.weight * number
        return Score(-total, None, None, len(self), SCORE, tasks=scores)


def split_tasks(
    wanted: Sequence[WantedTask],
    checkpoint: Checkpoint,
    *,
    path: Any,
    limit: int | None,
    share: float,
    seed: int,
) -> tuple[TaskDocuments, TaskDocuments]:
    """The documents that are searched on, and those that are held out: of every task a share, which a seed draws.

    Args:
        wanted: the tasks.
        checkpoint: whose tokenizer reads them.
        path: see `isomerge.tuning.harness.load_tasks`.
        limit: no more than so many documents of a task, the first ones.
        share: of them that are held out.
        seed: of what is held out.

    Raises:
        IsomergeError: see there; a checkpoint that writes no text; a task with too few documents.
    """
    _check_writes(checkpoint)
    loaded = load_tasks(wanted, path)
    check_metrics(wanted, loaded)
    tokenizer = load_tokenizer(checkpoint)
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise IsomergeError(
            f"{checkpoint.ref}: its tokenizer has neither a token for the beginning of a text nor one for its end, "
            f"and lm-evaluation-harness needs one"
        )
    search: dict[str, list[int]] = {}
    judge: dict[str, list[int]] = {}
    for name, task in loaded["tasks"].items():
        search[name], judge[name] = _parted(name, len(task.eval_docs), limit, share, seed)
    searched, judged = (_documents(tuple(wanted), loaded, tokenizer, chosen) for chosen in (search, judge))
    return searched, judged


def _parted(name: str, count: int, limit: int | None, share: float, seed: int) -> tuple[list[int], list[int]]:
    """The numbers of a task's documents in two parts, each in order."""
    count = count if limit is None else min(count, limit)
    first = round(count * (1 - share))
    if not 0 < first < count:
        raise IsomergeError(
            f"--task {name}: {count} documents cannot be split with --judge-share {share:g}, one part would be "
            f"empty: give another share, or a larger --limit"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:first].sort().values.tolist(), order[first:].sort().values.tolist()


def _documents(
    wanted: tuple[WantedTask, ...], loaded: Mapping[str, Any], tokenizer: Any, chosen: Mapping[str, list[int]]
) -> TaskDocuments:
    """The documents with what they ask, which is read once here."""
    digest, count, longest, written = hashlib.sha256(), 0, "", 0
    digest.update(json.dumps([version(), [task.document() for task in wanted]]).encode())
    for name, requests in requests_of(loaded, chosen):
        config = loaded["tasks"][name].dump_config()
        digest.update(json.dumps([name, config, chosen[name]], sort_keys=True, default=_shown).encode())
        for request in requests:
            said = [request.request_type, list(request.arguments), request.doc]
            digest.update(json.dumps(said, sort_keys=True, default=_shown).encode())
            texts = [part for part in request.arguments if isinstance(part, str)]
            settings = next((part for part in request.arguments if isinstance(part, dict)), {})
            longest, written = max(longest, "".join(texts), key=len), max(written, _written(settings))
            count += 1
    with quiet_harness():
        length = len(tokenizer.encode(longest)) + written
    return TaskDocuments(wanted, loaded, tokenizer, chosen, digest.hexdigest(), count, length)


def _written(settings: Mapping[str, Any]) -> int:
    """How many tokens a request asks for, where it says it."""
    number = settings.get("max_gen_toks")
    return number if isinstance(number, int) else 0


def _shown(value: Any) -> str:
    """What JSON does not have, without its place in memory."""
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def _check_writes(checkpoint: Checkpoint) -> None:
    """Refuse models that no task of text can be given to."""
    own = checkpoint.own
    kind: Any = (
        class_of(checkpoint.config, tuple(checkpoint.tensors), checkpoint.folder)
        if own is None
        else type(own.module)
    )
    writes = getattr(kind, "can_generate", None) if own is None else None
    auto = kind.__name__ in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
    if not auto and (writes is None or not writes()):
        raise IsomergeError(
            f"{checkpoint.ref} is of {kind.__name__}, which writes no text: --task is for language models"
        )

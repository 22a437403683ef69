"""Options that a run does not use: one table says of every option of every command when it acts, and what does not
is noted.

Notes go to the report (``notes``) and, on the command line, to stderr. A new option needs an entry here: a test
compares the table with the signatures of both doors, and tries every entry where it cannot act.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from isomerge.errors import IsomergeError

ALWAYS = "always"
"""It acts in every run, or it allows or bounds something, or says how to tell what was done."""
REFUSED = "refused"
"""Where it cannot act, whoever reads it refuses it."""
LATE = "late"
"""What the models or data are decides: `note` is called where that is known."""
OPTIONS = {

    "parameters": "parameter", "source_bases": "source-base",
    "align": "no-align", "functional": "no-functional", "merge_base": "no-merge-base",
}  # fmt: skip
"""The command line's names of options that Python calls otherwise, or that are switched off."""

_told: ContextVar[dict[str, None] | None] = ContextVar("told", default=None)


class Asked:
    """The arguments of a command, by Python's names; what it does not have is None."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._given = arguments

    def __getattr__(self, name: str) -> Any:
        return self._given.get(name)


Acts = Callable[[Asked], str | None]
"""Why an option does nothing; None where it acts."""


def note(name: str, reason: str) -> None:
    """Tell that an option is not used, once.

    Args:
        name: the argument, by Python's name.
        reason: the end of the sentence.
    """
    if (notes_of_run := _told.get()) is not None:
        notes_of_run[f"--{OPTIONS.get(name, name.replace('_', '-'))} is not used: {reason}"] = None


def is_noting() -> bool:
    """Whether a door has been opened, whose notes are collected."""
    return _told.get() is not None


def notes() -> list[str]:
    """What has been told in this command so far."""
    return list(_told.get() or ())


@contextmanager
def noting() -> Iterator[dict[str, None]]:
    """The notes of a command; one within another, as a door within a door, shares them."""
    outer = _told.get()
    if outer is not None:
        yield outer
        return
    mark = _told.set(own := {})
    try:
        yield own
    finally:
        _told.reset(mark)


def note_idle(command: str, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Note every option that is not what it is by default and that cannot act.

    Args:
        command: by its name in Python.
        given: all of its arguments.
        defaults: those that have some.

    Raises:
        IsomergeError: an option that contradicts another one.
    """
    asked = Asked(arguments)
    for name, acts in TABLE[command].items():
        if isinstance(acts, str) or name not in arguments or _same(arguments[name], defaults.get(name)):
            continue
        if (reason := acts(asked)) is not None:
            note(name, reason)


def with_notes(result: Any, *, outermost: bool) -> Any:
    """What a function of the API returns, with the notes in its report; where it has none, they are Python's
    warnings, unless another door tells them."""
    texts = notes()
    report = next(
        (part for part in (result if isinstance(result, tuple) else (result,)) if isinstance(part, dict)), None
    )
    if report is not None and texts:
        report["notes"] = [
            *report.get("notes", ()),
            *(text for text in texts if text not in report.get("notes", ())),
        ]
    elif outermost:
        for text in texts:
            warnings.warn(text, stacklevel=4)
    return result


def defaults_of(*functions: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of functions' arguments."""
    parameters = [
        parameter for function in functions for parameter in inspect.signature(function).parameters.values()
    ]
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(value) == list(default)
    return type(value) is type(default) and bool(value == default)


# ------------------------------------------------------------------------------------------------- when options act

RUN_DATA = ("git-rebasin-acts", "git-rebasin-acts-centred", "ot-acts", "ot-acts-emd")
"""Baselines that read activations."""


def _reads(a: Asked) -> bool:
    """Whether models are run on data of a match, of a method or of a repair."""
    return a.data is not None or a.learn is not None or a.repair is not None


def _own(a: Asked) -> bool:
    """Whether it is our match, and no published one."""
    return a.match in (None, "isomerge")


def _aligned(a: Asked) -> str | None:
    return "nothing is aligned" if a.align is False else None


def _data(a: Asked) -> str | None:
    if a.method_reads or a.align is False:
        return None  # where no method reads them either they are refused
    if not _own(a) and a.match not in RUN_DATA:
        if a.method is not None:  # a merge is measured on them
            return None
        raise IsomergeError(
            f"--match {a.match} reads no data, so that --data does not go with it: leave one of them out"
        )
    idle = a.evidence == "weights" and a.search is None and not a.input_metric
    return "--evidence weights counts no activations, and nothing else reads them" if idle else None


def _evidence(a: Asked) -> str | None:
    return None if _own(a) else f"--match {a.match} has evidence of its own"


def _functional(a: Asked) -> str | None:
    if not _own(a) or a.align is False or (a.data is None and a.learn is None):
        return "it takes away a step of matching by data (--data, --learn), which this run does not have"
    return None if a.evidence == "both" else f"--evidence {a.evidence} has no such step"


def _examples(a: Asked) -> str | None:
    return None if _reads(a) else "no data are read"


def _rows(a: Asked) -> str | None:
    kept = (a.data is not None or a.learn is not None) and a.align is not False
    return None if kept and (_own(a) or a.match in RUN_DATA) else "no activations are kept"


def _seed(a: Asked) -> str | None:
    learned = a.learn is not None or (a.data is not None and a.may_learn)
    matched = learned or a.search is not None or a.match == "git-rebasin"
    return None if a.random or (matched and a.align is not False) else "nothing is drawn"


def _device(a: Asked) -> str | None:
    return (
        None
        if a.align is not False or a.method_reads or a.repair is not None
        else "nothing is matched, and no model is run"
    )


def _layers(a: Asked) -> str | None:
    return "--spaces none leaves nothing to match" if a.spaces == "none" else _aligned(a)


def _merge_base(a: Asked) -> str | None:
    if a.base_model is None:
        return "no --base-model is named"
    return None if a.base_role == "donor" else "the base would not be merged with the models in any case"


def _statistics(a: Asked) -> str | None:
    return None if a.method_statistics else f"the method {a.method} reads no statistics"


def _written(a: Asked) -> str | None:
    return "no checkpoint is written" if a.out is None else None


def _dressed(a: Asked) -> str | None:
    return "no model is run (--activations)" if a.activations is None else None


def _pushed(a: Asked) -> str | None:
    return "nothing is pushed (--push-to-hub)" if a.push_to_hub is None else _written(a)


def _kinds(a: Asked) -> tuple[str, ...]:
    return tuple(part.strip() for part in a.kinds.split(",")) if isinstance(a.kinds, str) else tuple(a.kinds)


def _with_fisher(a: Asked) -> str | None:
    return None if {"fisher", "kfac"} & set(_kinds(a)) else "--kinds has neither fisher nor kfac"


def _with_activations(a: Asked) -> str | None:
    return None if "activations" in _kinds(a) else "--kinds has no activations"


def _sampled(a: Asked) -> str | None:
    return _with_fisher(a) or (
        None if a.fisher_labels == "sampled" else "labels are not sampled (--fisher-labels sampled)"
    )


def _measured(a: Asked) -> str | None:
    return "nothing is measured without --data" if a.data is None else None


def _judged(a: Asked) -> str | None:
    return None if a.judge_data is None else "--judge-data says what the result is judged on"


def _with_tasks(a: Asked) -> str | None:
    return None if a.tasks else "no --task is named"


def _read_length(a: Asked) -> str | None:
    """Examples say whether it acts (`LATE`)."""
    return "tasks say themselves how long their texts are" if a.tasks else None


def _descends(a: Asked) -> str | None:
    return None if a.sampler == "gradient" else f"--sampler {a.sampler} takes no steps along a gradient"


def _prunes(a: Asked) -> str | None:
    prunes = a.method.startswith(("ties", "dare", "magnitude"))
    return None if prunes else f"the method {a.method} keeps all entries"


def _tall(a: Asked) -> str | None:
    return None if a.kind == "tall" else "masks of EMR have no threshold"


def _cuts(a: Asked) -> str | None:
    return None if a.method.endswith("svd") else f"the method {a.method} cuts nothing to a rank"


def _elects(a: Asked) -> str | None:
    return None if "ties" in a.method else f"the method {a.method} elects no signs"


def _draws(a: Asked) -> str | None:
    # large products are cut by a randomised range finder; the sum of svd is cut by its halves
    cut = a.method.endswith("_svd")
    return None if cut or a.method.startswith("dare") else "nothing is drawn"


def _file(a: Asked) -> str | None:
    return "no file is written (--out)" if a.out is None else None


def _of_module(a: Asked) -> str | None:
    own = a.module is not None or hasattr(a.model, "named_parameters")
    return None if own else "transformers builds the tiny models, which are run on inputs of their own"


_OPENING: dict[str, Any] = {"spec": ALWAYS, "allow_pickle": ALWAYS, "imports": ALWAYS, "observer": ALWAYS}
_RUNNING: dict[str, Any] = {"jobs": ALWAYS, "max_memory": ALWAYS, "engine": ALWAYS, "address": REFUSED}
_OUTPUT: dict[str, Any] = {
    "out": ALWAYS,
    "out_shard_size": _written,
    "dtype": _written,
    "overwrite": _written,
    "push_to_hub": _written,
    "private": _pushed,
}
_EXAMPLES: dict[str, Any] = {
    "limit": ALWAYS,
    "length": LATE,
    "batch_size": ALWAYS,
    "device": ALWAYS,
    "max_memory": ALWAYS,
}
_LEARNING = dict.fromkeys(
    ("steps", "learn_permutations", "batch_size", "precision", "gradient_checkpointing", "learn_target"), REFUSED
)
MATCHING: dict[str, Any] = {
    "data": _data,
    "stats_src": REFUSED,
    "stats_anchor": REFUSED,
    "evidence": _evidence,
    "search": REFUSED,
    "learn": REFUSED,
    "learn_effort": LATE,
    "functional": _functional,
    "input_metric": REFUSED,
    "match": REFUSED,
    "transport": REFUSED,
    "device": _device,
    "limit": _examples,
    "length": _examples,
    "rows": _rows,
    "seed": _seed,
    **_LEARNING,
}
_LIVE: dict[str, Any] = {"loss": REFUSED, "tokenizer": LATE}
"""Of modules and texts in memory: Python's alone."""
_SHOWN: dict[str, Any] = {"json": ALWAYS, "quiet": ALWAYS, "verbose": ALWAYS, "dry_run": ALWAYS}


def _basis(a: Asked) -> str | None:
    return None if a.anchors == "random" else "only random anchors are drawn"


COMMAND_LINE: dict[str, dict[str, Any]] = {
    "align": {"save_alignment": ALWAYS}, "merge": {"report": ALWAYS}, "inspect": {"print_spec": ALWAYS},
    "report": {"page": ALWAYS}, "fingerprint": {"others": ALWAYS}, "demo": {"out": ALWAYS},
}  # fmt: skip
"""What only the command line has, beside what tells of a run (`_SHOWN`)."""
TABLE: dict[str, dict[str, Any]] = {
    "align": {
        "source": ALWAYS,
        "onto": ALWAYS,
        **_OPENING,
        **_OUTPUT,
        **_RUNNING,
        **_LIVE,
        "align": ALWAYS,
        "spaces": ALWAYS,
        "layers": _layers,
        "untie": LATE,
        **MATCHING,
        "match": ALWAYS,
        "learn": ALWAYS,
        "device": ALWAYS,
    },
    "merge": {
        "models": ALWAYS,
        "intermediate_dir": LATE,
        **_OPENING,
        **_OUTPUT,
        **_RUNNING,
        "method": ALWAYS,
        "weights": REFUSED,
        "parameters": REFUSED,
        "base_model": ALWAYS,
        "merge_base": _merge_base,
        "stats": _statistics,
        "repair": ALWAYS,
        **_LIVE,
        "heads": LATE,
        "tokenizer_source": LATE,
        "source_bases": REFUSED,
        "align": ALWAYS,
        "anchor": REFUSED,
        "select_layers": REFUSED,
        "onto": _aligned,
        "spaces": _aligned,
        "layers": _layers,
        "untie": LATE,
        **MATCHING,
    },
    "tune": {
        **dict.fromkeys(("recipe", "out", "data", "trials", "search", "sampler", "timeout", "seed"), ALWAYS),
        **dict.fromkeys(("by", "objective"), ALWAYS),
        "rate": _descends,
        "layer_groups": LATE,
        "judge_data": ALWAYS,
        "judge_share": _judged,
        "tasks": ALWAYS,
        "task_path": _with_tasks,
        **_OPENING,
        **_OUTPUT,
        **_RUNNING,
        **_EXAMPLES,
        "length": _read_length,
    },
    "apply": {"alignment": ALWAYS, "model": ALWAYS, "inverse": ALWAYS, "untie": LATE, **_OPENING, **_OUTPUT},
    "canon": {
        "model": ALWAYS,
        "untie": LATE,
        "activations": ALWAYS,
        "data": REFUSED,
        "limit": _dressed,
        "length": _dressed,
        **_OPENING,
        **_OUTPUT,
    },
    "transplant_tokenizer": {
        **dict.fromkeys(("model", "tokenizer", "missing", "pad_to_multiple_of"), ALWAYS),
        "neighbours": LATE,
        "data": ALWAYS,
        "limit": _measured,
        **_OPENING,
        **_OUTPUT,
    },
    "widen": {"model": ALWAYS, "like": ALWAYS, "sizes": ALWAYS, "untie": LATE, **_OPENING, **_OUTPUT},
    "relational": {
        **dict.fromkeys(("model", "out", "anchors", "full", "chunk", "overwrite"), ALWAYS),
        "seed": _basis,
    },
    "diff": {"one": ALWAYS, "two": ALWAYS, "spaces": ALWAYS, "layers": _layers, **_OPENING},
    "orbit_distance": {"one": ALWAYS, "two": ALWAYS, "streams": ALWAYS, **_OPENING},
    "verify": {"one": ALWAYS, "two": ALWAYS, "run": ALWAYS, **_OPENING},
    "similarity": {"one": ALWAYS, "two": ALWAYS, "salt": ALWAYS, **_OPENING},
    "fingerprint": {"model": ALWAYS, "out": ALWAYS, "salt": ALWAYS, **_OPENING},
    "prove": {
        "model": ALWAYS,
        "spec": ALWAYS,
        "module": ALWAYS,
        "inputs": _of_module,
        "forward": _of_module,
        "seed": ALWAYS,
        "imports": ALWAYS,
        "observer": ALWAYS,
    },
    "inspect": {"model": ALWAYS, **_OPENING},
    "methods": {"imports": ALWAYS},
    "architectures": {"imports": ALWAYS},
    "open": {"model": ALWAYS, "allow_pickle": ALWAYS},
    "fsck": {"out": ALWAYS, **_OPENING},
    "discover": {"model": ALWAYS, "out": ALWAYS, "seed": ALWAYS, "overwrite": _file, "observer": ALWAYS},
    "generate": {
        "models": ALWAYS,
        "out": ALWAYS,
        "overwrite": ALWAYS,
        "seed": ALWAYS,
        **_OPENING,
        **_EXAMPLES,
        "batch_size": LATE,
    },
    "stats": {
        "model": ALWAYS,
        "data": ALWAYS,
        "out": ALWAYS,
        "overwrite": ALWAYS,
        **_OPENING,
        **_EXAMPLES,
        "tokenizer": LATE,
        "kinds": ALWAYS,
        "rows": _with_activations,
        "dtype": _with_activations,
        "fisher_labels": _with_fisher,
        "seed": _sampled,
    },
    "evaluate": {
        "models": ALWAYS,
        "data": ALWAYS,
        "tasks": ALWAYS,
        **_LIVE,
        **_OPENING,
        **{name: acts for name, acts in _EXAMPLES.items() if name != "max_memory"},
    },
    "barrier": {
        "one": ALWAYS,
        "two": ALWAYS,
        "third": ALWAYS,
        "data": ALWAYS,
        **_LIVE,
        "points": REFUSED,
        "grid": REFUSED,
        "spaces": ALWAYS,
        "aligned": REFUSED,
        "png": ALWAYS,
        **_OPENING,
        **_EXAMPLES,
    },
    "report": {
        "out": ALWAYS,
        "barrier": ALWAYS,
        "data": ALWAYS,
        "points": _measured,
        "limit": _measured,
        "length": _measured,
        "batch_size": _measured,
        "device": _measured,
        **_OPENING,
        "allow_pickle": _measured,
    },
    "extract_lora": {
        "finetuned": ALWAYS,
        "base": ALWAYS,
        "out": ALWAYS,
        "overwrite": ALWAYS,
        "rank": ALWAYS,
        "energy": ALWAYS,
        "sv_epsilon": ALWAYS,
        "include": ALWAYS,
        "exclude": ALWAYS,
        "embeddings": ALWAYS,
        "save_modules": ALWAYS,
        "seed": ALWAYS,
        **_OPENING,
    },
    "task_mask": {
        **dict.fromkeys(("merged", "base", "task", "out", "overwrite", "kind"), ALWAYS),
        "tall_lambda": _tall,
        **_OPENING,
    },
    "restore_task": {**dict.fromkeys(("merged", "base", "mask", "out", "overwrite"), ALWAYS), **_OPENING},
    "surgery": {
        **dict.fromkeys(
            ("merged", "task", "data", "out", "overwrite", "rank", "steps", "rate", "judge_share"), ALWAYS
        ),
        "seed": ALWAYS,
        **_OPENING,
        **{name: acts for name, acts in _EXAMPLES.items() if name != "max_memory"},
        "tokenizer": LATE,
    },
    "merge_lora": {
        **dict.fromkeys(("adapters", "out", "overwrite", "allow_pickle", "method", "weights"), ALWAYS),
        "density": _prunes,
        "rank": _cuts,
        "majority_sign": _elects,
        "seed": _draws,
    },
}
"""By the function of Python's door and its arguments: when each acts."""

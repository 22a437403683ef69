"""Models made larger: wider or deeper without a change of what they compute, and with other tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isomerge.api.live import written
from isomerge.api.live_inputs import own_models
from isomerge.commands.transplanting import planned_transplant
from isomerge.commands.widening import planned_widen
from isomerge.options.requests import widening as asked_for
from isomerge.progress import Observer
from isomerge.run.arguments import checked


@checked(asked_for.Widen)
def widen(asked: asked_for.Widen, observer: Observer) -> Any:
    """``model`` as a wider or deeper model of its architecture that is the same function. It is written to ``out``,
    and the report comes back; without ``out`` a live module comes back, as of `isomerge.merge`.

    Heads, neurons and layers that are added write nothing; the residual stream stands in its new coordinates such
    that norms do to it what they did (`isomerge.models.widening`). It is first tried on a tiny random model of the
    class.

    Args:
        model: a folder, a hub id, an open checkpoint or a live transformers module.

    Returns:
        The report: ``sizes`` and ``parameters`` before and after, ``streams`` (``how``: ``zeros``, ``means`` or
        ``copies``; ``factor``), ``added_layers``, ``powers_of_width`` that the class multiplies by, ``proof``
        (``class``, ``error``: the relative change of the tiny model's outputs) and ``notes``.

    Raises:
        IsomergeError: sizes in which the model does not stand (they shrink, rotary heads grow, query heads per key
            head become fewer, experts are added), or whose change no weight can undo.
    """
    (model,) = own_models([asked.model])
    return written(planned_widen, replace(asked, model=model), observer)


@checked(asked_for.TransplantTokenizer)
def transplant_tokenizer(asked: asked_for.TransplantTokenizer, observer: Observer) -> Any:
    """``model`` with another tokenizer: embeddings, head, config and tokenizer files fit the new tokens. It is
    written to ``out``, and the report comes back; without ``out`` a live module comes back, as of `isomerge.merge`.

    Args:
        model: a folder, a hub id or an open checkpoint, with a tokenizer of its own.
        tokenizer: a model whose tokenizer it gets, or a folder with a tokenizer alone.

    Returns:
        The report: ``rows`` before and after, ``tokens``, ``missing`` and ``neighbours``, and ``filled``: how many
        tokens have the model's own vector (``own``), and how many what else; with ``data`` also ``loss``:
        ``before`` (the model with its own tokenizer) and ``after``, each ``nats_per_byte`` and ``tokens``, and
        ``texts`` and ``bytes``.

    Raises:
        IsomergeError: a tokenizer that cannot be read, a way that needs weights where there are none, or a model
            whose tables of tokens cannot be changed.
    """
    (model,) = own_models([asked.model])
    return written(planned_transplant, replace(asked, model=model), observer)

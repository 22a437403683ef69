"""Models moved along their orbits: aligned, by an alignment that is given, to their canonical form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isomerge.api.live import written
from isomerge.api.live_inputs import own_models, with_examples
from isomerge.commands.aligning import planned_align, planned_apply, planned_canon
from isomerge.options import MatchingOptions
from isomerge.options.requests import moving as asked_for
from isomerge.options.requests.moving import DressingOptions
from isomerge.progress import Observer
from isomerge.quotient.canonical import Canonicity
from isomerge.run.alignment_runs import AlignReport, ApplyReport
from isomerge.run.arguments import checked
from isomerge.symmetry.alignment import Alignment


@checked(asked_for.Align)
def align(asked: asked_for.Align, observer: Observer) -> tuple[Alignment, AlignReport]:
    """The element of the symmetry group that brings ``source`` closest to ``onto``, and a report.

    Args:
        source, onto: folders, hub ids, open checkpoints or live transformers modules of one architecture.
        out: where to write the moved source; no checkpoint is written when None (and the report has no checksums of
            files).
        align: ``auto``: a source that is aligned already, as a fine-tune of the same base is, is left as it is;
            True: it is matched.
        options: what may move, what is looked at beside the weights (``data`` and ``learn`` are examples, or what
            `isomerge.observe.data.opening_data.open_data` opens for the anchor), and how it is read, written and
            run.

    Returns:
        The alignment (``save``, ``inverse``, ``@``) and the report: ``distance.before`` and ``distance.after``
        (Frobenius), per space and layer.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    source, onto = own_models([asked.source, asked.onto], asked.live.loss)
    matching = with_examples(asked.matching.given(), ("data", "learn"), onto, asked.live.tokenizer)
    asked = replace(asked, source=source, onto=onto, matching=MatchingOptions(**matching))
    with planned_align(asked, observer) as plan:
        return plan.run()


@checked(asked_for.Apply)
def apply(asked: asked_for.Apply, observer: Observer) -> Any:
    """``model`` moved by an alignment (an object or a patch file): the same function in other weights. It is
    written to ``out``, and the report comes back; without ``out`` a live module comes back, as of `isomerge.merge`.

    An alignment that was made with ``untie`` is applied with it. ``inverse`` undoes it: what was aligned, and
    perhaps trained on, comes back to the coordinates that it had before.

    Raises:
        IsomergeError: the alignment was made for another architecture or other sizes.
    """
    return written(planned_apply, asked, observer)


@checked(asked_for.Canon)
def canon(asked: asked_for.Canon, observer: Observer) -> tuple[Alignment, ApplyReport[Canonicity]]:
    """The canonical representative of a model: the same function, and the same weights whatever symmetries were
    applied to them (Francois and Ravera 2026: a dressing field).

    Args:
        model: a folder, a hub id, an open checkpoint or a live module.
        out: where to write it; no checkpoint is written when None.
        options: how it is read and written; with ``activations`` and ``data`` the layers' activations are written
            in the canonical frame, where they are equal for all disguises (`isomerge.quotient.dressing`).

    Returns:
        The alignment that moves the model there, and the report: ``degeneracy`` tells how clear every choice was
        (the smallest gap per space, and by how much the other choice would move the weights), and whether the
        representative is ``unique`` at the precision of float32.

    Raises:
        IsomergeError: a model that cannot be read, or a gain of zero, which cannot be folded.
    """
    (model,) = own_models([asked.model])
    dressing = DressingOptions(**with_examples(asked.dressing.given(), ("data",), model))
    with planned_canon(replace(asked, model=model, dressing=dressing), observer) as plan:
        return plan.run()

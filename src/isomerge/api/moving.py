"""Models moved along their orbits: aligned, by an alignment that is given, to their canonical form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.api.opening import destination, recognised
from isomerge.errors import IsomergeError
from isomerge.evidence.report.notebook import Report
from isomerge.progress import Observer, quiet
from isomerge.run.arguments import checked
from isomerge.solve.standing import AUTO, check_align
from isomerge.symmetry.alignment import Alignment


@checked(rest="isomerge.solve.match_checks.matching_of")
def align(
    source: Any,
    *,
    onto: Any,
    out: str | Path | None = None,
    align: bool | str = AUTO,
    spaces: str | None = None,
    layers: str | None = None,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: Any = None,
    force: bool = False,
    jobs: int | None = None,
    max_memory: str | int | None = None,
    engine: str = "local",
    address: str | None = None,
    observer: Observer = quiet,
    **matching: Any,
) -> tuple[Alignment, dict[str, Any]]:
    """The element of the symmetry group that brings ``source`` closest to ``onto``, and a report.

    Args:
        source, onto: folders, hub ids, open checkpoints or live transformers modules of one architecture.
        out: where to write the moved source; no checkpoint is written when None (and the report has no checksums of files).
        align: ``auto``: a source that is aligned already, as a fine-tune of the same base is, is left as it is; True: it is matched.
        spaces: what may move (see ``isomerge align --help``); by default ``default``, and ``all`` when data are given, or where the
            source is a relative whose residual stream is in another basis.
        layers: ``0-4``, ``head:5`` or ``tail:3``; all by default.
        untie: give a head that is tied to the embeddings weights of its own, where a symmetry needs that.
        spec: a spec file for an architecture that isomerge does not know.
        jobs: units that are worked on at once, each by one thread; the bytes that are written do not depend on it.
        max_memory: what the run may take, such as ``8GB``, by the estimate of ``--dry-run``; fewer units at once if need be. On a
            cluster, what one worker may take.
        engine: ``local``, or ``ray``: the units are tasks of a Ray cluster, and checkpoints and output are on storage that all
            of its machines share.
        address: of the cluster: ``auto`` or ``host:port``; by default Ray is started on this machine alone.
        matching: what is looked at beside the weights: ``data``, ``evidence``, ``search``, ``learn``, ``steps`` and so
            on (see `isomerge.solve.match_checks.matching_of`); ``data`` and ``learn`` are examples, or what
            `isomerge.observe.data.opening_data.open_data` opens for the anchor.

    Returns:
        The alignment (``save``, ``inverse``, ``@``) and the report: ``distance.before`` and ``distance.after``
        (Frobenius), per space and layer.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
    """
    from isomerge.quotient.kinship import kinship
    from isomerge.run.alignment_runs import run_align
    from isomerge.solve.match_checks import files_of_matching, matching_of

    check_align(align)
    if align is False:
        raise IsomergeError("align=False leaves nothing to do: give True or 'auto'")
    how = matching_of(**matching)
    options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
    options |= {"jobs": jobs, "max_memory": max_memory, "engine": engine, "address": address}
    reads = (spec, *files_of_matching(how))
    with (
        recognised([source, onto], spec, allow_pickle, untie) as (a, b),
        destination(out, options, [a, b], *reads) as output,
    ):
        alignment, report = run_align(
            a, b, output, spaces=spaces, layers=layers, matching=how, align=align, kinship=kinship
        )
        return alignment, Report(report)


@checked()
def apply(
    alignment: Alignment | str | Path,
    model: Any,
    *,
    out: str | Path,
    inverse: bool = False,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: Any = None,
    force: bool = False,
    observer: Observer = quiet,
) -> dict[str, Any]:
    """Write ``model`` moved by an alignment (an object or a patch file): the same function in other weights.

    An alignment that was made with ``untie`` is applied with it. ``inverse`` undoes it: what was aligned, and perhaps trained
    on, comes back to the coordinates that it had before.

    Raises:
        IsomergeError: the alignment was made for another architecture or other sizes.
    """
    from isomerge.run.alignment_runs import run_apply

    options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
    reads = (spec, alignment)
    with (
        recognised([model], spec, allow_pickle, untie) as (found,),
        destination(out, options, [found], *reads) as output,
    ):
        name = "given" if isinstance(alignment, Alignment) else str(alignment)
        patch = alignment if isinstance(alignment, Alignment) else Alignment.load(alignment, found.declared)
        return Report(run_apply(patch.inverse() if inverse else patch, found, output, name=name))


@checked()
def canon(
    model: Any,
    *,
    out: str | Path | None = None,
    untie: bool = False,
    spec: str | Path | None = None,
    allow_pickle: bool = False,
    shard_size: str | int | None = None,
    dtype: Any = None,
    force: bool = False,
    observer: Observer = quiet,
) -> tuple[Alignment, dict[str, Any]]:
    """The canonical representative of a model: the same function, and the same weights whatever symmetries were applied
    to them (Francois and Ravera 2026: a dressing field).

    Args:
        model: a folder, a hub id, an open checkpoint or a live module.
        out: where to write it; no checkpoint is written when None.
        untie: give a head that is tied to the embeddings weights of its own, where a symmetry needs that.

    Returns:
        The alignment that moves the model there, and the report: ``degeneracy`` tells how clear every choice was (the
        smallest gap per space, and by how much the other choice would move the weights), and whether the representative is
        ``unique`` at the precision of float32.

    Raises:
        IsomergeError: a model that cannot be read, or a gain of zero, which cannot be folded.
    """
    from isomerge.quotient.canonical import run_canon

    options = {"shard_size": shard_size, "dtype": dtype, "force": force, "observer": observer}
    with (
        recognised([model], spec, allow_pickle, untie) as (found,),
        destination(out, options, [found], spec) as output,
    ):
        alignment, report = run_canon(found, output)
        return alignment, Report(report)

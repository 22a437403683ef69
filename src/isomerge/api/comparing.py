"""Models compared by their weights: distances, sameness, fingerprints; and what one model is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.commands.opening import pair_solver, recognised
from isomerge.commands.pipeline_parts import PairReport, PartsReport, by_parts
from isomerge.errors import IsomergeError
from isomerge.evidence.inspection import Inspection, inspection
from isomerge.evidence.outputs import compare_outputs, predictions
from isomerge.evidence.relation import Proof, Relation
from isomerge.evidence.report.facts import facts_of
from isomerge.evidence.verify import (
    Compared,
    Comparison,
    Differences,
    compare,
    contradiction,
    doubt_of_configs,
    doubted,
    prove,
    reconsidered,
    refute,
    unlike_kinds,
    unlike_settings,
)
from isomerge.files import check_file, check_not_read
from isomerge.models.references import check_one_model
from isomerge.models.unit_plan import make_plan
from isomerge.models.zero_gains import open_zero_gains
from isomerge.observe.live.modules import on_disk
from isomerge.observe.read_files import files_read
from isomerge.options.requests import comparing as asked_for
from isomerge.progress import Observer
from isomerge.quotient.fingerprint import Fingerprint, read_fingerprint
from isomerge.quotient.fingerprint import fingerprint as print_of
from isomerge.quotient.orbit_distance import orbit_distance as distance_of
from isomerge.quotient.record import is_print_file
from isomerge.quotient.similarity import Similarity
from isomerge.quotient.similarity import similarity as compare_prints
from isomerge.records import Change, Json, OfModels, Record, inline
from isomerge.run.arguments import checked
from isomerge.run.run_verdict import RunVerdict, measured, pairs_of, verdict_on
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.standing import chosen_spaces, standings


class DiffReport(PairReport):
    """How two models differ, and what that means."""

    models: Sequence[str]
    spaces: str
    relative: Change
    """Of the tensors that symmetry moves, in parts of their norm."""
    matrices: Change | None
    """Of the matrices among them: gains of about one make strangers alike."""
    fingerprints: Similarity
    verdict: RunVerdict | None = None
    command: str = "diff"
    about: Differences = inline()

    @property
    def same(self) -> bool | None:
        """See `PairReport.same`."""
        return self.about.compared.proof.same


@checked(asked_for.Diff)
def diff(asked: asked_for.Diff, observer: Observer) -> DiffReport | PartsReport[DiffReport]:
    """Raw distance and distance after alignment of ``two`` onto ``one``, per space and layer, with a verdict; and
    what their fingerprints say of them, which do not depend on any alignment. ``spaces`` are by default those
    inside the layers, and the residual stream as well where it is a relative's in another basis. What their configs
    say otherwise of the function is named in ``reason``. Of two pipelines ``parts`` has what there is to say of
    each (`isomerge.commands.pipeline_parts`)."""
    return by_parts("diff", asked, lambda pair: _diff(pair, observer))


def _diff(asked: asked_for.Diff, observer: Observer) -> DiffReport:
    spaces, layers = asked.moving.spaces, asked.moving.layers
    with pair_solver(asked.one, asked.two, spaces or "default", layers, asked.opening, guard=True) as (
        solver,
        said,
    ):
        pair = solver.anchor, solver.source
        prints = compare_prints(*(print_of(model, observer) for model in pair))
        standing = standings(pair[0], [pair[1]], solver.dtype, kinship=lambda a, b: prints.kin, observer=observer)
        fixed = "only some layers are matched" if layers is not None else ""
        chosen, notes = chosen_spaces(spaces, standing, pair[0], [pair[1]], fixed=fixed)
        plan = make_plan(pair[0], [pair[1]], chosen, layers)
        if plan.selection.frame is not None:
            open_zero_gains(pair, plan.selection.frame.gains)
        notes = [*plan.selection.notes, *said, *notes]
        solver = replace(solver, plan=replace(plan, selection=replace(plan.selection, notes=tuple(notes))))
        about = compare(solver, observer)
        known = [
            replace(each, kin=prints.kin if each.kin is None else each.kin) for each in pairs_of(standing, pair)
        ]
        (stand,) = measured(known, [about.distance])
        found = about.compared.proof
        proof = {True: Proof.SAME, False: Proof.OTHER, None: Proof.OPEN}[found.same]
        stand = replace(stand, proof=proof, doubt=found.reason or "")
        if stand.relation is Relation.DERIVED and stand.same_basis:  # no match explains it: what was done may
            doubts = [stand.doubt, *(change.words for change in prints.changes)]
            stand = replace(stand, doubt="; ".join(filter(None, doubts)))
        alone = None if stand.matrices is None else Change(*stand.matrices)
        relative, refs = Change(stand.before, stand.after), [m.ref for m in pair]
        report = DiffReport(refs, chosen, relative, alone, prints, about=about)
        return replace(report, verdict=verdict_on([stand], facts_of(report.document()), pair))


class Weighed(Record):
    """What is known of models whose weights were compared."""

    fingerprints: Similarity
    kinds: str | None


class Outputs(Record):
    """How far outputs on random inputs are apart."""

    outputs: float
    output: str
    outputs_by_name: Mapping[str, float]
    contradiction: str | None


class VerifyReport(PairReport, kw_only=True):
    """Whether two models are one function; see `verify`."""

    command: str = "verify"
    models: Sequence[str]
    model_type: str
    about: Compared = inline()
    algebra: bool | None
    notes: Sequence[str]
    refuted: bool = False
    weighed: Weighed | None = inline(None)
    layer_norm_form: bool = False
    run: Outputs | None = inline(None)

    @property
    def same(self) -> bool | None:
        """See `PairReport.same`."""
        return self.about.proof.same


@checked(asked_for.Verify)
def verify(asked: asked_for.Verify, observer: Observer) -> VerifyReport | PartsReport[VerifyReport]:
    """Whether two models are the same function modulo symmetry, algebraically; ``run`` compares outputs as well.

    Models whose configs differ in what decides the function (rotary positions, epsilons, activations) are not the
    same, whatever their weights are, which are not compared; those that their fingerprints tell apart as a whole
    are ``refuted`` without matching. Of all others every tensor is matched and compared. What is not the same as it
    is stored is compared once more without what LayerNorm takes away by itself (`isomerge.models.layer_norm_form`).
    Where a class returns hidden states beside its predictions, models that differ by the basis of these alone are
    the same, and ``turned`` says so in a sentence for each. Two pipelines are verified part by part, as ``parts``
    says (`isomerge.commands.pipeline_parts`).

    Returns:
        ``same``: True; False, which is not the same by the symmetries that the spec declares, or because of the
        configs, as ``reason`` says then; or None where it cannot be told, and ``reason`` says why: rounding of the
        stored numbers (``residual`` says where), configs that differ in a key of which the spec says nothing or of
        which transformers makes no model, or, with ``run``, outputs that contradict algebra. ``algebra`` is the
        verdict of the weights alone, ``layer_norm_form`` whether it needed what LayerNorm takes away. With ``run``,
        ``outputs`` is how far outputs are apart (predictions, where hidden states are ``turned``), ``output`` the
        name of the one that is furthest, ``outputs_by_name`` all of them, and ``contradiction`` a sentence where
        this speaks against algebra.
    """
    return by_parts("verify", asked, lambda pair: _verify(pair, observer))


def _verify(asked: asked_for.Verify, observer: Observer) -> VerifyReport:
    with pair_solver(asked.one, asked.two, "default", None, asked.opening, guard=False) as (solver, notes):
        refs, kind = [solver.anchor.ref, solver.source.ref], solver.anchor.spec.model_type
        if (unlike := unlike_settings(solver.anchor, solver.source)) is not None:
            return VerifyReport(models=refs, model_type=kind, about=unlike.of(solver), algebra=None, notes=notes)
        apart: dict[str, float] = {}
        if asked.run and (own := solver.anchor.checkpoint.own) is not None:
            raise IsomergeError(
                f"--run draws inputs for classes of transformers: leave it out, and compare what both modules of "
                f"{type(own.module).__name__} give for inputs of yours"
            )
        if asked.run:  # first: a class that does not run on random inputs is told of before tensors are matched
            with on_disk(solver.anchor.checkpoint) as left, on_disk(solver.source.checkpoint) as right:
                apart = compare_outputs(left, right)
        proof, prints = _proof(solver, observer)
        formed = None if proof.same or prints.apart else solver.in_form()
        if formed is not None:
            again, agreeing = _proof(formed, observer)
            nearer = again.same or (again.same is None and proof.same is False)
            formed = formed if nearer else None
            proof, prints = (proof, prints) if formed is None else (again, agreeing)
        counted = (predictions(apart) if proof.turned else apart) or {"": 0.0}
        output = max(counted, key=counted.__getitem__)
        kinds = unlike_kinds(solver.anchor, solver.source)
        doubt = doubt_of_configs(solver.anchor, solver.source) if proof.same else None
        contradicted = contradiction(proof, counted[output], doubt) if asked.run and kinds is None else None
        return VerifyReport(
            models=refs,
            model_type=kind,
            about=doubted(doubted(proof, doubt), contradicted).of(solver),
            algebra=proof.same,
            notes=notes,
            refuted=prints.apart,
            weighed=Weighed(prints, kinds),
            layer_norm_form=formed is not None,
            run=Outputs(counted[output], output, apart, contradicted) if asked.run else None,
        )


def _proof(solver: PairSolver, observer: Observer) -> tuple[Comparison, Similarity]:
    """Whether two models are the same function, by what they are read as, and their fingerprints."""
    prints = compare_prints(*(print_of(model, observer) for model in (solver.anchor, solver.source)))
    if prints.apart:
        return refute(prints.difference or 0.0, prints.tensor, prints.tolerance), prints
    proof = prove(solver, observer)
    agree = prints.equal and not prints.conflict  # whatever basis returned streams are in
    return reconsidered(solver, proof, prints.difference or 0.0) if agree else proof, prints


A_PRINT = "a fingerprint"


@checked(asked_for.Fingerprint)
def fingerprint(asked: asked_for.Fingerprint, observer: Observer) -> Fingerprint:
    """What a model is modulo symmetry, in a file of some megabytes at most: equal for every disguise of it.

    Args:
        model: a folder, a hub id, an open checkpoint or a live module.
        out: a JSON file to write it to.
        salt: a text of your own that decides which rows and sums of the vocabulary are looked at: who does not know
            it cannot prepare a model for them. Only fingerprints of one salt compare.

    Returns:
        The fingerprint: ``hash`` names the function (in float32 and float64), ``similarity`` compares two.

    Raises:
        IsomergeError: a model that cannot be read, or that has no tensors; a pipeline, whose parts have one each.
    """
    check_one_model(asked.model, A_PRINT)
    path, opening = None if asked.out is None else Path(os.path.expanduser(asked.out)), asked.opening
    if path is not None:
        check_file(path, f"--out {path}", overwrite=True)
    with recognised([asked.model], opening) as (opened,):
        if path is not None:
            check_not_read(path, f"--out {path}", files_read([opened], opening.spec))
        made = print_of(opened, observer, salt=asked.salt)
    if path is not None:
        made.save(path)
    return made


@checked(asked_for.Similarity)
def similarity(asked: asked_for.Similarity, observer: Observer) -> OfModels[Similarity]:
    """Whether two models are one function, derived from one base, or independent, by their fingerprints alone.

    Args:
        one, two: models, fingerprints, or JSON files of fingerprints; they may differ in architecture, width, depth
            and vocabulary.
        salt: what models are fingerprinted with; fingerprints that are given must have been made with the same.

    Returns:
        ``verdict`` (same function, derived from one base, independent, cannot tell whether they have one base, or
        another one of docs/lab/fingerprint.md), ``score`` (the mean cosine of the circuits: 1 for one function,
        near 0 for independent models; None where the models have nothing to compare), ``witnesses`` (what every
        draw of anchors and the spectra say), ``changes`` (what was done, in sentences), ``source`` (0 or 1: the
        model that the other was made from, where the data decide it), ``shared`` (kinds of tensors of which both
        hold the same numbers), ``conflict`` (why witnesses disagree), ``doubt`` (what leaves the verdict open),
        ``difference`` (the largest relative one of any relation), ``tensor``, ``tolerance``, ``hashes_equal``.

    Raises:
        IsomergeError: a model that cannot be read, a file that is no fingerprint, or another salt.
    """

    def print_or_file(model: Any) -> Fingerprint:
        if isinstance(model, Fingerprint):
            return model
        if isinstance(model, (str, Path)) and is_print_file(model):
            return read_fingerprint(Path(os.path.expanduser(model)), salt=asked.salt or None)
        check_one_model(model, A_PRINT)
        with recognised([model], asked.opening) as (opened,):
            return print_of(opened, observer, salt=asked.salt)

    prints = [print_or_file(model) for model in (asked.one, asked.two)]
    return OfModels("fingerprint", [p.ref for p in prints], about=compare_prints(*prints))


@checked(asked_for.OrbitDistance)
def orbit_distance(asked: asked_for.OrbitDistance, observer: Observer) -> Json:
    """The distance between the orbits of two models: a metric on models modulo their block-local symmetries.

    Args:
        one, two: models of one architecture.
        streams: match the residual streams as well; the distance is then an upper bound (see
            `isomerge.quotient.orbit_distance`).

    Returns:
        ``distance`` and ``norm`` (Frobenius, of balanced representatives), per space and per layer as well.

    Raises:
        IsomergeError: the models do not fit together.
    """
    with pair_solver(asked.one, asked.two, "default", None, asked.opening, guard=False) as (solver, notes):
        distance = distance_of(solver, observer, streams=asked.streams)
        return {"models": [solver.anchor.ref, solver.source.ref], **distance, "notes": notes}


@checked(asked_for.Inspect)
def inspect(asked: asked_for.Inspect) -> Inspection:
    """Architecture, spaces with groups and dimensions, units, and the redundant dimensions; headers only."""
    with recognised([asked.model], asked.opening, proven=False) as (opened,):
        return inspection(opened)

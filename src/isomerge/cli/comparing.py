"""What the command line says of models that are compared: ``isomerge diff``, ``verify``, ``fingerprint`` and
``inspect``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.cli.console import Voice, distance_table, stream_table, tell_verdict, warn_fixed
from isomerge.cli.door import call_of
from isomerge.errors import IsomergeError
from isomerge.evidence.report.numerals import size_text
from isomerge.options.requests import comparing as asked_for
from isomerge.progress import Observer
from isomerge.records import OfModels, Record

if TYPE_CHECKING:
    from isomerge.api.comparing import DiffReport, VerifyReport
    from isomerge.evidence.inspection import Inspection, StreamSize
    from isomerge.quotient.similarity import Similarity

UNTOLD = 3
"""The exit code of verify where it cannot be told: rounding, configs or outputs leave the question open. 1 is not
the same, 2 a question that makes no sense."""
DISAGREE = 3
"""The exit code of fingerprint where the witnesses of a pair disagree: somebody must look."""


def tell_diff(voice: Voice, asked: asked_for.Diff, report: Any) -> None:
    """How far apart two models are, and what that means."""
    if _tell_parts(voice, report, lambda part: tell_diff(voice, asked, part)):
        return
    diff: DiffReport = report
    about, relative, prints = diff.about, diff.relative, diff.fingerprints
    warn_fixed(voice, about.fixed)
    stream_table(voice, about.notes, about.streams, diff.verdict)
    distance_table(voice, about.distance)
    turned = any(stream["groups"] for stream in about.streams)
    modulo = "symmetry and basis of the stream" if turned else "block-local symmetry"
    if relative.after is not None:
        voice.say(
            f"Tensors that symmetry moves: {relative.before:.3g} of their norm apart as stored, "
            f"{relative.after:.3g} modulo {modulo}."
        )
    if (alone := diff.matrices) is not None:
        voice.say(
            f"Matrices among them: {alone.before:.3g} apart as stored (1.41 is uncorrelated), {alone.after:.3g} "
            f"modulo {modulo}."
        )
    _tell_alone(voice, about.compared.only_in_one)
    if prints.score is not None:
        voice.say(f"Fingerprints: {prints.verdict} (score {prints.score:.2f}; 1 is one function, 0 independent).")
    tell_verdict(voice, diff.verdict)


def tell_verify(voice: Voice, asked: asked_for.Verify, report: Any) -> int | None:
    """Whether two models are one function, and how that is known."""
    from isomerge.evidence.verify import AGREEING

    if _tell_parts(voice, report, lambda part: tell_verify(voice, asked, part)):
        words = {True: "the same by every part", False: "not the same", None: f"cannot tell ({report.reason})"}
        voice.say(f"The pipelines: {words[report.same]}.")
        return _code(report.same)
    verified: VerifyReport = report
    about, proof, residual = verified.about, verified.about.proof, verified.about.proof.residual
    allows = f"rounding allows {residual.tolerance:.0e}"
    one = "of an entry " if residual.of_entry else ""
    how = f"largest relative residual {one}{residual.largest:.2g} in {residual.tensor}, {allows}"
    prints = verified.weighed
    if verified.refuted and prints is not None:
        how = (
            f"their fingerprints ({prints.fingerprints.verdict}) differ, the relation in {residual.tensor} by "
            f"{residual.largest:.2g}, {allows}"
        )
    voice.say(*(f"Note: {note}." for note in verified.notes))
    if proof.same is None:
        more = "" if asked.run or (prints is not None and prints.kinds) else " --run compares outputs."
        voice.say(f"Cannot tell: {proof.reason}.{more}")
    elif proof.same:
        taken = ", and without what LayerNorm takes away by itself" if verified.layer_norm_form else ""
        voice.say(f"Same {'predictions' if proof.turned else 'function'} modulo symmetry{taken}: {how}.")
        voice.say(*(f"{sentence[0].upper()}{sentence[1:]}." for sentence in proof.turned))
    elif proof.reason:
        voice.say(f"Not the same: {proof.reason}. The weights were not compared.")
    else:
        unseen = "" if asked.run else " Outputs were not compared."
        voice.say(f"Not the same by the symmetries declared for {verified.model_type}: {how}.{unseen}")
    if voice.verbose and residual.layers:
        rows = [[f"layer {n}" if n != "outside" else n, f"{r:.2g}"] for n, r in residual.layers.items()]
        voice.table(["largest relative residual", ""], rows)
    _tell_alone(voice, about.only_in_one)
    if (run := verified.run) is not None:
        place = f", in {run.output}" if run.outputs > AGREEING else ""
        voice.say(f"Outputs on random inputs differ by {run.outputs:.2g} of the largest output{place}.")
    return _code(proof.same)


def _tell_alone(voice: Voice, names: Sequence[str]) -> None:
    """What tensors were not compared."""
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        voice.say(f"Not compared, as only one model has them: {', '.join(names[:4])}{more}.")


def _code(same: bool | None) -> int | None:
    return None if same else UNTOLD if same is None else 1


def _tell_parts(voice: Voice, report: Any, tell: Callable[[Any], Any]) -> bool:
    """What is said of every part of two pipelines; False where they are none."""
    from isomerge.commands.pipeline_parts import PartsReport

    if not isinstance(report, PartsReport):
        return False
    for name, part in report.parts.items():
        voice.say(f"{name}: {part.said}.")
        if part.report is not None:
            tell(part.report)
    return True


class Unread(Record):
    """A model that could not be compared."""

    model: str
    error: str


class PrintsReport(Record):
    """Fingerprints, and how they are related to the first one."""

    models: Sequence[str]
    hashes: Sequence[str]
    compared: Sequence[OfModels[Similarity]]
    unread: Sequence[Unread]
    notes: Sequence[str]
    command: str = "fingerprint"


class PartPrints(Record):
    """The same of pipelines, part by part."""

    models: Sequence[str]
    parts: Mapping[str, PrintsReport]
    command: str = "fingerprint"


def run_fingerprint(voice: Voice, asked: asked_for.Fingerprint) -> PrintsReport | PartPrints:
    """The first model's fingerprint, written, and compared with those of the others; of pipelines part by part."""
    from isomerge.models.references import is_assembled

    if not is_assembled(asked.model):
        return _fingerprints(voice, asked)
    from isomerge.archs import without_spec
    from isomerge.models.references import check_one_model, open_assembled

    if asked.out is not None:
        check_one_model(asked.model, "a file's fingerprint")
    sources = [asked.model, *(asked.others or ())]
    if (other := next((source for source in sources if not is_assembled(source)), None)) is not None:
        raise IsomergeError(f"{asked.model} is a pipeline and {other} none: compare pipelines, or models")
    whole = [open_assembled(source).components for source in sources]
    parts: dict[str, PrintsReport] = {}
    for name, component in whole[0].items():
        if component.has_weights and not without_spec(component.config()):
            refs = [each[name].ref for each in whole if name in each]
            parts[name] = _fingerprints(voice, replace(asked, model=refs[0], others=refs[1:]))
            tell_fingerprint(voice, asked, parts[name])
        elif component.has_weights:
            voice.say(f"{name}: no fingerprint, as there is no spec for its class.")
    return PartPrints(sources, parts)


def _fingerprints(voice: Voice, asked: asked_for.Fingerprint) -> PrintsReport:
    """Of models."""
    from isomerge.files import check_file

    others = asked.others or ()
    if asked.out is not None:
        check_file(Path(asked.out), f"--out {asked.out}", overwrite=True)
    prints: dict[int, Any] = {}
    unread: list[Unread] = []
    with voice.progress(asked.progress) as observer:
        for number, source in enumerate((asked.model, *others)):
            try:
                prints[number] = _print_of(replace(asked, model=source, out=None), observer)
            except IsomergeError as error:
                if not others or (number == 0 and asked.out is not None):
                    raise
                unread.append(Unread(source, str(error)))
    voice.say(*(f"{each.hash}  {each.ref} ({each.model_type}, {each.dtype})" for each in prints.values()))
    if asked.out is not None:
        prints[0].save(asked.out)
        voice.say(f"Wrote {asked.out}: {len(prints[0].relations)} relations and {len(prints[0].spectra)} spectra.")
    compared = _compared(prints, unread)
    conflicts = [f"{each.models[1]}: {each.about.conflict}" for each in compared if each.about.conflict]
    notes = conflicts + [f"{failure.model} could not be read" for failure in unread]
    refs, hashes = [each.ref for each in prints.values()], [each.hash for each in prints.values()]
    return PrintsReport(refs, hashes, compared, unread, notes)


def tell_fingerprint(
    voice: Voice, asked: asked_for.Fingerprint, report: PrintsReport | PartPrints
) -> int | IsomergeError | None:
    """How the models are related to the first one; of pipelines that was told by part."""
    if isinstance(report, PartPrints):
        conflicts = (each.about.conflict for part in report.parts.values() for each in part.compared)
        return DISAGREE if any(conflicts) else None
    compared, unread = report.compared, report.unread
    if compared:
        voice.table(["compared with", "", "score", "difference"], [_cells(each) for each in compared])
    for each in compared:
        _tell_pair(voice, each)
    voice.warn(*(f"{failure.model} is left out: {failure.error}" for failure in unread))
    if unread:
        names = " and ".join(failure.model for failure in unread)
        return IsomergeError(
            f"{len(unread)} of {1 + len(asked.others or ())} models could not be compared: {names}; mend them, or "
            f"leave them out"
        )
    return DISAGREE if any(each.about.conflict for each in compared) else None


def _print_of(asked: asked_for.Fingerprint, observer: Observer) -> Any:
    """A fingerprint from a file, or of a model."""
    import isomerge
    from isomerge.quotient.record import is_print_file, read_fingerprint

    if is_print_file(asked.model):
        return read_fingerprint(Path(asked.model), salt=asked.salt or None)
    return call_of(isomerge.fingerprint)(asked, observer)


def _compared(prints: dict[int, Any], unread: list[Unread]) -> list[OfModels[Similarity]]:
    """The first fingerprint with every other; one of another salt is added to what could not be read."""
    from isomerge.quotient.similarity import similarity

    rows = []
    for number, other in prints.items():
        if number and 0 in prints:
            try:
                rows.append(OfModels("fingerprint", [prints[0].ref, other.ref], about=similarity(prints[0], other)))
            except IsomergeError as error:
                unread.append(Unread(other.ref, str(error)))
    return rows


def _cells(pair: OfModels[Similarity]) -> list[str]:
    about = pair.about
    score = "" if about.score is None else f"{about.score:.3f}"
    difference = "" if about.difference is None else f"{about.difference:.1e}"
    return [pair.models[1], about.verdict, score, difference]


def _tell_pair(voice: Voice, pair: OfModels[Similarity]) -> None:
    """What was done, which way, and what speaks against it."""
    (first, other), about = pair.models, pair.about
    if about.said:
        made = {None: other, 0: f"{other}, made from {first}", 1: f"{first}, made from {other}"}[about.source]
        voice.say(f"{made}: {'; '.join(about.said)}.")
    if about.conflict:
        voice.warn(f"{other}: {about.conflict}.")
    if about.doubt:
        voice.say(f"{other}: {about.doubt}.")
    if voice.verbose:
        said = ", ".join(f"{name} {value:.2f}" for name, value in about.witnesses.items() if value is not None)
        voice.say(
            f"{other}: {said or 'no witness sees anything'}; the largest difference is in "
            f"{about.tensor or 'no relation of both'}."
        )


def tell_inspect(voice: Voice, asked: asked_for.Inspect, report: Inspection) -> None:
    """What a checkpoint is and what of it is redundant; or its spec text alone."""
    from isomerge.archs import spec_texts
    from isomerge.evidence.report.spaces import ROLES
    from isomerge.symmetry.layer_norms import NORMS

    if asked.print_spec:
        print(
            spec_texts()[report.architecture][1]
            if asked.opening.spec is None
            else Path(asked.opening.spec).read_text(encoding="utf-8")
        )
        return
    voice.say(
        f"{report.model}: {report.architecture} ({report.spec}), {report.parameters:,} parameters in "
        f"{report.tensors} tensors, {size_text(report.bytes)} of {', '.join(report.dtypes)}"
    )
    rows = [
        [
            s.words, s.name, s.group + (f"({s.size})" if s.size > 1 else ""),
            f"{s.elements:,}", f"{s.dimension:,}",
            f"10^{s.log10_permutations:.0f}" if s.log10_permutations else "",
            "yes" if s.matched else "with --spaces all",
        ]
        for s in report.spaces
    ]  # fmt: skip
    shifts = [(ROLES["bias"], name, n) for name, n in report.shifts.items()]
    shifts += [(ROLES[NORMS], NORMS, report.norms)] if report.norms else []
    rows += [[words, name, "translation", "", f"{n:,}", "", "yes"] for words, name, n in shifts]
    head = ["what symmetry moves", "its name", "group", "times", "dimensions", "permutations", "is matched"]
    voice.table(head, rows)
    warn_fixed(voice, report.fixed)
    voice.say(*map(_stream_text, report.streams))
    voice.say(
        f"{report.units} parts that are aligned one by one, {report.units_matched} of them with symmetries; "
        f"{report.redundant_dimensions:,} continuous dimensions are redundant{_parts_text(report.redundant)}"
    )
    if voice.verbose:
        voice.table(["tensor", "axes"], [[name, axes] for name, axes in report.lines.items()])


PARTS = {
    "spaces": "inside the layers",
    "shifts": "of shifts",
    "norms": "that LayerNorm leaves free",
    "gains": "of norms' gains",
    "streams": "of the residual streams",
}
"""What is said of the parts of a model's redundant dimensions."""


def _parts_text(parts: Mapping[str, int]) -> str:
    """The parts of the redundant dimensions, the whole declared group's, behind a colon."""
    counts = ", ".join(f"{parts[name]:,} {words}" for name, words in PARTS.items() if parts[name])
    twice = f", less {-parts['common']:,} that shifts and LayerNorm have in common" if parts["common"] else ""
    return f": {counts}{twice}" if counts else ""


def _stream_text(stream: StreamSize) -> str:
    """One residual stream in a sentence: what acts on it, and why it is no more."""
    name, group, why = stream.name, stream.group, stream.why
    if group is None:
        return f"residual stream {name}: stays as it is ({why})"
    how = "once norms' gains are folded into what reads them" if stream.folded else "as it is"
    return f"residual stream {name}: {group} {how}, with --spaces all" + (f" ({why})" if why else "")

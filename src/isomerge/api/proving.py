"""Spec texts proven by the law and its mutants, on tiny random models; and found, where nobody has written one."""

from __future__ import annotations

import os
from pathlib import Path

from isomerge.archs import plug_in_parts
from isomerge.checkpoint.companions import files_of_model
from isomerge.checkpoint.own_class import own_config
from isomerge.checkpoint.reader import Checkpoint
from isomerge.commands.proof import text_of
from isomerge.discovery.building import module_specimens, real_config, specimens
from isomerge.discovery.checkpoint import covered, read_config
from isomerge.discovery.completeness import Completeness, try_completeness
from isomerge.discovery.discover import Discovery
from isomerge.discovery.discover import discover as find
from isomerge.discovery.proofs import remember
from isomerge.discovery.specimen import Specimen
from isomerge.discovery.trial import Trial, try_spec
from isomerge.errors import IsomergeError
from isomerge.files import check_file, check_not_read, write_whole
from isomerge.observe.read_files import paths_read
from isomerge.options.requests import proving as asked_for
from isomerge.progress import Observer
from isomerge.records import Json, Record, inline
from isomerge.run.arguments import checked


class ProveReport(Record):
    """What was proven of a spec; see `prove`."""

    model: str
    spec: str | None
    verdict: str
    command: str = "prove"
    trial: Trial = inline()
    completeness: Completeness = inline()


@checked(asked_for.Prove)
def prove(asked: asked_for.Prove, observer: Observer) -> ProveReport:
    """Prove that a spec's symmetries are symmetries: random elements of every space leave the outputs of tiny
    random models of the same class unchanged, and texts made wrong on purpose change them.

    The weights of ``model`` are not read. A proof is remembered: `isomerge.align` and all that takes ``spec``
    demand it once.

    Args:
        model: a folder, a config.json, a hub id, an open checkpoint, a config as a dict; or a live module of
            transformers, or of plain torch with ``inputs``.
        spec: a text of one's own; else the built-in or plug-in one of the model's ``model_type`` is tried.
        module: a tiny module of plain torch (or of remote code) that stands for the class of ``model``, where
            transformers does not build it; needs ``inputs``.

    Returns:
        ``verdict`` (``proven``, with all that is not declared or was not counted behind it, or ``refuted``),
        ``proven`` (whether all that is declared is), ``refuted`` (why not, or None), ``model_type``, ``class``,
        ``laws`` (``space``, ``role``, ``group``, ``index``, ``error``: the largest relative change of outputs in
        float64, None where an element could not act; ``holds``),
        ``mutants`` (``count``, ``rejected``, ``survivors``), ``larger`` (spaces whose next larger group holds as
        well), ``unread`` (lines that no output depends on), ``kept`` (streams that the class returns, and gains
        over them: they keep their bases), ``redundancy`` (``parameters`` of a tiny model, ``true``: the dimensions
        that change no output, ``declared``: those that the spec's groups explain, ``left``: what is not declared,
        by tensors; None with ``redundancy_note`` where it could not be counted), ``inner`` (axes of their own
        between two modules, on which no space is declared) and ``complete`` (nothing is missing; None where that
        was not counted).

    Raises:
        IsomergeError: no tiny model of the class can be built or run, or the text does not describe its tensors.
    """
    spec, module = asked.spec, asked.module
    if spec is not None:
        text_of(spec)  # read before models are built
    ref, config, made = _specimens(asked, observer)
    others = [plug_in.file for plug_in, part in plug_in_parts(config) if part is config]
    text, spec_of = text_of(spec if spec is not None else next(iter(others), None))

    observer("the law and its mutants", 1, 0)
    try:
        trial = try_spec(spec_of, made)
    except IsomergeError as error:
        raise IsomergeError(f"{ref}: {error}") from None
    observer("what is not declared", 2, 0)
    own = made[0] if module is not None or asked.inputs is not None else None
    completeness = Completeness(None, "the law refutes the text", ())
    if trial.proven:
        completeness = try_completeness(spec_of, config, own, asked.seed)
    verdict = "; ".join(["proven", *completeness.doubts]) if trial.proven else "refuted"
    said = None if spec is None else str(spec)
    report = ProveReport(ref, said, verdict, trial=trial, completeness=completeness)
    if text is not None:  # built-in texts are proven by isomerge's tests
        remember(text, config, report.document())
    return report


def _specimens(asked: asked_for.Prove, observer: Observer) -> tuple[str, Json, tuple[Specimen, ...]]:
    """What the user calls the model, its config, and tiny random models of its class."""
    model, module, inputs, seed = asked.model, asked.module, asked.inputs, asked.seed
    if module is None and inputs is not None and hasattr(model, "named_parameters"):
        module = model
    if module is not None and module is model:
        ref, config = type(model).__name__, own_config(model)
    else:
        ref, config, _ = read_config(model)
    if module is not None and inputs is None:
        raise IsomergeError(f"prove: a module of one's own is run: give inputs= for {type(module).__name__}")
    observer("building tiny random models", 0, 0)
    if module is not None:
        return ref, config, module_specimens(module, config, inputs, asked.forward, seed)
    try:
        return ref, config, specimens(real_config(config), seed, untied=False)
    except IsomergeError as error:
        raise IsomergeError(
            f"{ref}: {error}; or give a tiny module of your own (--module FILE.py:FUNCTION)"
        ) from None


class DiscoverReport(Record):
    """A spec that was found; see `discover`."""

    model: str
    coverage: int | None
    command: str = "discover"
    about: Discovery = inline()


@checked(asked_for.Discover)
def discover(asked: asked_for.Discover, observer: Observer) -> DiscoverReport:
    """Derive the spec of an architecture that isomerge does not know, and prove every space of it by the law.

    Tiny random models of the same configuration class are built and run on the CPU; the weights of ``model`` are
    not read.

    Args:
        model: a folder (with weights, or with config.json alone), a config.json, a hub id, an open checkpoint, or a
            config as a dict.

    Returns:
        ``spec`` (the text), ``model_type``, ``class``, ``proven`` and ``rejected`` (``space``, ``role``, ``group``,
        ``index``, ``error``: the largest relative change of outputs), ``fixed`` (lines that nothing acts on),
        ``checked`` (the errors on fresh models, space by space and all together), ``coverage`` (how many tensors of
        the checkpoint the text describes; None for a config alone).

    Raises:
        IsomergeError: transformers cannot build a tiny model of this class, its tensors are not those of the
            checkpoint, or ``out`` exists.
    """
    model, path = asked.model, None if asked.out is None else Path(os.path.expanduser(asked.out))
    if path is not None:
        check_file(path, str(path), overwrite=asked.overwrite)
        folders = model.folder if isinstance(model, Checkpoint) else model
        check_not_read(path, str(path), [file for place in paths_read(folders) for file in files_of_model(place)])
    ref, config, shapes = read_config(model)
    steps = 0

    def say(step: str) -> None:
        nonlocal steps
        steps += 1
        observer(step, steps, 0)

    try:
        derived = find(config, seed=asked.seed, say=say)
        derived, count = covered(derived, config, shapes)
    except IsomergeError as error:
        raise IsomergeError(f"{ref}: {error}") from None
    if path is not None:
        write_whole(path, derived.text.encode())
    return DiscoverReport(ref, count, about=derived)

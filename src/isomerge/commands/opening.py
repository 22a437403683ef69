"""What commands are given, opened: models of every kind, and the place for the output."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isomerge.archs import plug_in_parts, without_spec
from isomerge.checkpoint.dtypes import FLOATS, SHORT
from isomerge.checkpoint.in_memory import as_reference
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.shard_plan import parse_size
from isomerge.commands.proof import demand_proof
from isomerge.errors import IsomergeError
from isomerge.models.compatible import check_compatible, check_tie, unlike
from isomerge.models.recognised import Model, recognise, working_dtype
from isomerge.models.references import model_type_of
from isomerge.models.row_meanings import in_order
from isomerge.models.unit_plan import make_plan
from isomerge.observe.read_files import paths_read
from isomerge.options import OpeningOptions, OutputOptions, RunningOptions
from isomerge.options.unused import note
from isomerge.progress import Observer, quiet
from isomerge.run.engines import engine_of
from isomerge.run.writing_run import Output
from isomerge.solve.pairs.pair import PairSolver


@dataclass(frozen=True)
class Means:
    """How models are opened, written and worked on, and who is told of progress."""

    opening: OpeningOptions
    writing: OutputOptions
    running: RunningOptions
    observer: Observer = quiet


@contextlib.contextmanager
def recognised(
    models: Sequence[Any],
    opening: OpeningOptions,
    untie: bool = False,
    *,
    unmoved: bool = False,
    proven: bool = True,
) -> Iterator[list[Model]]:
    """Recognise models of every kind (see `recognise`); live modules are saved to a temporary folder first.

    A spec text of the user's own or of a plug-in must be ``proven`` (see `isomerge.prove`), unless nothing is moved
    or compared by it.
    """
    spec = opening.spec
    read = partial(recognise, spec_file=spec, allow_pickle=opening.allow_pickle, untie=untie, unmoved=unmoved)
    with contextlib.ExitStack() as stack:
        opened, references = [], []
        for model in models:
            name = None
            if hasattr(model, "save_pretrained"):
                from isomerge.observe.live.modules import save_module

                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="isomerge-"))
                save_module(model, folder)
                name, model = type(model).__name__, folder
            else:
                model = as_reference(model)
            references.append(model)
            try:
                opened.append(read(model))
            except IsomergeError:
                _check_one_kind(models, spec)
                raise
            opened[-1].checkpoint.ref = name or opened[-1].ref
        _tell_apart(models, opened)
        apart = set().union(*(opened[0].names.keys() ^ m.names.keys() for m in opened))
        if any("experts" in name for name in apart):  # they are fused in some of the models and not in others
            for k, (model, reference) in enumerate(zip(opened, references, strict=True)):
                with contextlib.suppress(IsomergeError):
                    other = read(reference, as_files=True)
                    if other.names.keys() != model.names.keys():
                        other.checkpoint.ref, opened[k] = model.ref, other
        if proven and not unmoved:
            for each in opened:
                others = [(text.file, part) for text, part in plug_in_parts(each.config)]
                for file, config in others if spec is None else [(spec, each.config)]:
                    demand_proof(file, each.ref, config, own=each.checkpoint.own is not None)
        if untie and not any(model.unties for model in opened):
            note("untie", "no head is tied to the embeddings where that stands in the way of a symmetry")
        yield opened


def dtype_name(dtype: Any) -> str | None:
    """The name of a dtype that may be given as torch's object or numpy's.

    Raises:
        IsomergeError: it is none that weights are written in.
    """
    name = None if dtype is None else str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
    if name not in (None, *FLOATS):
        near = SHORT.get(str(name).lower())
        raise IsomergeError(
            f"--dtype {name}: {f'did you mean {near}? ' if near else ''}choose from {', '.join(FLOATS)}"
        )
    return name


def bytes_of(max_memory: str | int | None) -> int | None:
    """``--max-memory`` as a number of bytes; None: no bound. Raises IsomergeError for what is no size."""
    return None if max_memory is None else parse_size(max_memory)


def _check_one_kind(models: Sequence[Any], spec: str | Path | None) -> None:
    """Refuse models of several architectures, one of which has no spec, as what they are; headers are not read."""
    kinds = {str(m): kind for m in models if isinstance(m, (str, Path)) and (kind := model_type_of(str(m)))}
    if spec is None and len(kinds) > 1 and any(without_spec({"model_type": kind}) for kind in kinds.values()):
        first, *others = kinds
        if other := next((ref for ref in others if kinds[ref] != kinds[first]), None):
            raise unlike(f"{first} and {other}", kinds[first], kinds[other])


def _tell_apart(given: Sequence[Any], opened: Sequence[Model]) -> None:
    """Number live models that have one name, that of their class."""
    live = {
        id(thing): model.ref
        for thing, model in zip(given, opened, strict=True)
        if not isinstance(thing, (str, Path, Checkpoint))
    }
    for thing, model in zip(given, opened, strict=True):
        alike = [key for key, ref in live.items() if ref == live.get(id(thing))]
        if len(alike) > 1:
            model.checkpoint.ref = f"{live[id(thing)]} ({alike.index(id(thing)) + 1})"


@contextlib.contextmanager
def destination(
    out: str | Path | None,
    writing: OutputOptions,
    models: Iterable[Model],
    *reads: Any,
    running: RunningOptions | None = None,
    observer: Observer = quiet,
) -> Iterator[Output]:
    """The output folder; when the caller wants no checkpoint, a temporary one for what a run notes while it lasts.

    ``models`` are those that are read, and ``reads`` what is read beside them, by name: no folder that holds some
    of it is replaced, and none is made in it.

    Raises:
        IsomergeError: an option is wrong, or the folder is not apart from what is read.
    """
    running = running or RunningOptions()
    if running.jobs is not None and running.jobs < 1:
        raise IsomergeError(f"--jobs {running.jobs}: expected a number of units to work on at once, from 1")
    with contextlib.ExitStack() as stack:
        if dropped := out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isomerge-"))) / "out"
        output = Output(
            Path(os.path.expanduser(out)),
            out_shard_size=parse_size("5GB" if writing.out_shard_size is None else writing.out_shard_size),
            dtype=dtype_name(writing.dtype),
            overwrite=writing.overwrite,
            observer=observer,
            jobs=running.jobs,
            max_memory=bytes_of(running.max_memory),
            engine=stack.enter_context(engine_of(running.engine, running.address)),
            reads=paths_read(*reads),
            dropped=dropped,
        )
        output.check_apart(models)
        if writing.push_to_hub is not None:
            from isomerge.checkpoint.pushing import check_push

            check_push(writing.push_to_hub)
        yield output
        if writing.push_to_hub is not None and output.published:
            from isomerge.checkpoint.pushing import push

            observer(f"pushing to {writing.push_to_hub}", 0, 1)
            message = f"Made by isomerge: {output.out.name}"
            push(output.out, writing.push_to_hub, private=writing.private, message=message)


@contextlib.contextmanager
def pair_solver(
    first: Any,
    second: Any,
    spaces: str,
    layers: str | None,
    opening: OpeningOptions,
    *,
    guard: bool,
) -> Iterator[tuple[PairSolver, list[str]]]:
    """Two models recognised, their rows in one order (`isomerge.models.row_meanings`): what solves their units, and
    what is to be told of rows. What their configs say of the function may differ."""
    with recognised([first, second], opening) as (a, b):
        # a model and its copy that was moved with untie: nothing is written here
        if a.has_own_head != b.has_own_head:
            check_tie(a)
            check_tie(b)
            a, b = (recognise(m.checkpoint, spec_file=opening.spec, untie=True) for m in (a, b))
        check_compatible(a, [b], settings=False)
        rows = in_order([a, b])
        a, b = rows.models
        plan = make_plan(a, [b], spaces, layers)
        yield PairSolver(a, b, plan, working_dtype([a, b]), guard=guard), rows.notes

"""Runs that write a checkpoint: aligning, merging, replaying a patch. Units are read once and written once."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.engine.models import Model, working_dtype
from isomerge.engine.pair import PairSolver, UnitResult
from isomerge.engine.plan import Plan, unit_bytes
from isomerge.errors import DiskFullError, IsomergeError
from isomerge.evidence.distance import summarise
from isomerge.evidence.distances_figure import PICTURE, distances_picture
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Observer = Callable[[str, int, int], None]
"""Told of progress: what is done now, bytes done, bytes in all."""
Fuse = Callable[[Unit, "list[dict[Block, Tensor]]", "list[Alignment | None]"], "dict[Block, Tensor]"]
"""From the blocks of a unit, the anchor's and the moved ones of every source, and what moved them (None: the anchor), to
those that are written."""
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


@dataclass
class Output:
    """Where and how a checkpoint is written."""

    out: Path
    shard_size: int = 5_000_000_000
    dtype: str | None = None
    force: bool = False
    observer: Observer = field(default=lambda what, done, total: None)


def out_code(stored: str, dtype: str | None) -> str:
    """The safetensors dtype that a tensor is written in; integers are kept."""
    return DTYPES[dtype] if dtype and stored in DTYPES.values() else stored


def planned_tensors(donor: Model, dtype: str | None) -> list[OutTensor]:
    """The donor's tensors, as they will be written."""
    if dtype is not None and dtype not in DTYPES:
        raise IsomergeError(f"--dtype {dtype}: choose from {', '.join(DTYPES)}")
    return [OutTensor(i.name, out_code(i.dtype, dtype), tuple(i.shape)) for i in donor.checkpoint.tensors.values()]


def run_key(what: str, models: Sequence[Model], *settings: Any) -> str:
    """A digest of everything that determines an output: tool, inputs' files and dates, specs, settings."""
    from isomerge import __version__

    parts: list[Any] = [__version__, what, *settings]
    for model in models:
        parts += model.checkpoint.identity()
        spec = model.spec
        parts += [model.config, repr((spec.spaces, spec.lines, spec.shifts, spec.sizes, spec.prefixes))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class StreamWriter:
    """A checkpoint being written unit by unit, with its report and alignments."""

    def __init__(self, donor: Model, output: Output, key: str, *, apart: frozenset[str] = frozenset()) -> None:
        self.donor, self.output, self.apart = donor, output, apart
        self.partial = output.out.absolute().parent / f".{output.out.name}.partial"
        self.writer = CheckpointWriter(
            output.out,
            planned_tensors(donor, output.dtype),
            key=key,
            shard_size=output.shard_size,
            force=output.force,
            apart=apart,
        )

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.writer.close()
        # bad input leaves nothing behind; a full disk or a kill leaves a folder to resume from
        if kind is not None and issubclass(kind, IsomergeError) and not issubclass(kind, DiskFullError):
            shutil.rmtree(self.partial, ignore_errors=True)

    def done(self, unit: str) -> dict[str, Any] | None:
        """The record of a unit that an earlier, interrupted run has written."""
        return self.writer.done.get(unit)

    def put(self, block: Block, tensor: Tensor) -> None:
        """Write one block under the donor's names, in the output dtype."""
        for name, part in self.named(self.donor, {block: tensor}).items():
            self.writer.write(name, part)

    def named(self, model: Model, blocks: Mapping[Block, Tensor]) -> dict[str, Tensor]:
        """Blocks under a model's names, in the output dtype, or in that in which the model stores them."""
        found = {}
        for block, tensor in blocks.items():
            for canonical, part in block.split(tensor):
                name = model.names[canonical]
                found[name] = cast(part, out_code(model.checkpoint.tensors[name].dtype, self.output.dtype), name)
        return found

    def config(self) -> dict[str, Any]:
        """The config that is written."""
        changes: dict[str, Any] = {}
        if self.output.dtype:
            changes = {k: self.output.dtype for k in ("dtype", "torch_dtype") if k in self.donor.config} or {
                "dtype": self.output.dtype
            }
        # `transformers_weights` names the donor's weights file, which the output does not have
        config = {key: value for key, value in self.donor.config.items() if key != "transformers_weights"}
        return {**config, **changes}

    def finish(
        self,
        report: dict[str, Any],
        alignments: Mapping[str, Alignment],
        card: str,
        *,
        more: Mapping[str, bytes | Path] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> Path:
        """Companion files, config, report, card, alignments and ``more`` files; then the rename.

        ``links`` are further names for the weights files (see `CheckpointWriter.finish`).
        """
        files: dict[str, bytes | Path] = self.donor.checkpoint.companions()
        files["config.json"] = config_bytes(self.config())
        if (picture := distances_picture(report)) is not None:
            files[PICTURE] = picture
        files["README.md"] = card.encode()
        files["isomerge.json"] = (json.dumps(report, indent=2, sort_keys=True) + "\n").encode()
        for name, alignment in alignments.items():
            path = self.writer.blob(name)
            alignment.save(path)
            files[name] = path
        return self.writer.finish({**files, **(more or {})}, links)


def cast(tensor: Tensor, code: str, name: str) -> Tensor:
    """Convert to a stored dtype; a value that does not fit is an error, never an infinity."""
    import torch

    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
    if code not in dtypes or tensor.dtype == dtypes[code]:
        return tensor
    found = tensor.to(dtypes[code])
    if not all(bool((x - x).sum() == 0) for x in found.reshape(-1).split(1 << 16)):  # as in Model.read
        raise IsomergeError(
            f"tensor {name} does not fit into {code}: its largest value is {float(tensor.abs().max()):.3g}; use --dtype float32"
        )
    return found


class UnitSolver(Protocol):
    """What brings the units of a source to an anchor: `PairSolver`, or one that transports."""

    @property
    def source(self) -> Model:
        """The model that is moved."""
        ...

    def load(self, model: Model, unit: Unit, *, stored: bool = False) -> dict[Block, Tensor]:
        """A unit's blocks of one model in the working dtype, or as they are stored."""
        ...

    def moves(self, unit: Unit) -> bool:
        """Whether a unit's blocks are changed, on loading or by solving."""
        ...

    def solve(
        self, unit: Unit, anchor: dict[Block, Tensor], source: dict[Block, Tensor]
    ) -> tuple[UnitResult, dict[Block, Tensor]]:
        """What was found for a unit, and its blocks moved."""
        ...

    def alignment(self, elements: dict[str, Tensor]) -> Alignment | None:
        """The group element of the whole model; None where what moves it is none."""
        ...


def stream_units(
    stream: StreamWriter,
    solvers: Sequence[UnitSolver],
    plan: Plan,
    fuse: Fuse,
    anchor: Model,
) -> list[list[UnitResult]]:
    """Match, fuse and write every unit; returns the results of every solver."""
    results: list[list[UnitResult]] = [[] for _ in solvers]
    models = [anchor, *(s.source for s in solvers)]
    sizes = [sum(unit_bytes(m, unit) for m in models) for unit in plan.units]
    seen, total = 0, sum(sizes)
    for number, (unit, size) in enumerate(zip(plan.units, sizes, strict=True)):
        stream.output.observer(unit.key, seen, total)
        record = stream.done(unit.key)
        if record is not None:
            for k, result in enumerate(record["results"]):
                results[k].append(_restored(stream, result, f"{number}-{k}.safetensors"))
        else:
            found = _one_unit(stream, solvers, unit, fuse, anchor)
            for k, result in enumerate(found):
                if result.elements:
                    _save_elements(stream.writer.blob(f"{number}-{k}.safetensors"), result.elements)
                results[k].append(result)
            stream.writer.commit(unit.key, {"results": [{**r.record(), "moved": bool(r.elements)} for r in found]})
        seen += size
    stream.output.observer("", total, total)
    return results


def _one_unit(
    stream: StreamWriter,
    solvers: Sequence[UnitSolver],
    unit: Unit,
    fuse: Fuse,
    anchor: Model,
) -> list[UnitResult]:
    # what nothing moves is half as large as it is stored
    stored = not any(solver.moves(unit) for solver in solvers)
    if solvers:
        base = solvers[0].load(anchor, unit, stored=stored)
    else:  # one model alone
        base = {block: anchor.assemble(block, working_dtype([anchor])) for block in unit.blocks}
    found, moved = [], []
    for solver in solvers:
        result, blocks = solver.solve(unit, base, solver.load(solver.source, unit, stored=stored))
        found.append(result)
        moved.append(blocks)
    by: list[Alignment | None] = [None, *(s.alignment(r.elements) for s, r in zip(solvers, found, strict=True))]
    for block, tensor in fuse(unit, [base, *moved], by).items():
        stream.put(block, tensor)
    return found


def write_alone(
    stream: StreamWriter, plan: Plan, donor: Model, dtype: torch.dtype, moved_by: Alignment | None = None
) -> None:
    """The donor's own tensors, which no other model has: copied, and moved with the donor where it is moved."""
    for block in plan.alone:
        key = f"alone {block.key}"
        if stream.done(key) is None:
            tensor = donor.assemble(block, dtype)
            if moved_by is not None and tensor.is_floating_point():
                moved_by.act_linearly(block, tensor)
            stream.put(block, tensor)
            stream.writer.commit(key, {})


def prepare_votes(stream: StreamWriter, solvers: Sequence[PairSolver]) -> None:
    """The stack-wide spaces of every source, kept across a resume."""
    from safetensors.torch import load_file

    for k, solver in enumerate(solvers):
        if not solver.plan.votes:
            continue
        path = stream.writer.blob(f"votes-{k}.safetensors")
        if stream.done(f"votes {k}") is not None:
            solver.votes = load_file(path)
        else:
            _save_elements(path, solver.collect_votes())
            stream.writer.commit(f"votes {k}", {})


def _save_elements(path: Path, elements: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in elements.items()}, str(path))


def _restored(stream: StreamWriter, record: dict[str, Any], blob: str) -> UnitResult:
    from safetensors.torch import load_file

    elements = load_file(stream.writer.blob(blob)) if record["moved"] else {}
    return UnitResult(record["unit"], record["layer"], record["blocks"], record["dead"], elements)


def rows_of(results: Iterable[UnitResult]) -> list[dict[str, Any]]:
    """Per-tensor rows of a report."""
    return [{**row, "layer": result.layer} for result in results for row in result.blocks]


def elements_of_results(results: Iterable[UnitResult]) -> dict[str, Tensor]:
    """All elements of one source."""
    found: dict[str, Tensor] = {}
    for result in results:
        found |= result.elements
    return found


def report_of(
    what: str, models: Sequence[Model], results: Sequence[list[UnitResult]], **more: Any
) -> dict[str, Any]:
    """The report of a run: ``distance`` over all sources, and ``sources`` one by one."""
    import torch

    from isomerge import __version__

    each = [summarise(rows_of(r)) for r in results]
    report: dict[str, Any] = {
        "command": what,
        "models": [m.ref for m in models],
        "architecture": models[0].spec.model_type,
        "versions": {"isomerge": __version__, "torch": torch.__version__, "transformers": version("transformers")},
        "distance": each[0] if len(each) == 1 else summarise([row for r in results for row in rows_of(r)]),
        "dead_blocks": sorted({key for r in results for unit in r for key in unit.dead}),
        **more,
    }
    if len(each) > 1:
        report["sources"] = [{"model": m.ref, "distance": d} for m, d in zip(models[1:], each, strict=True)]
    return report

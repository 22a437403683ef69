"""Fusion by optimal transport: solvers whose aligned source is no element of an orbit, but a soft average of
neurons.

Maps are computed from what every branch writes into a residual stream. Matching by symmetries reads the stream at
its norms (`isomerge.observe.stats.taps`), where it is a sum of many writers. Transport maps are made writer by
writer, and weighted by how large a branch is beside the stream that it joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.matching.distances import TensorGap, squared_distance, squared_norm
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import unit_layer
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.accelerator import CPU
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.taps import Activations, Tap, captured, plain, plan_taps, whole_weights
from isomerge.progress import Observer, quiet
from isomerge.records import Json
from isomerge.research.baselines.permutations import in_declared_groups
from isomerge.research.baselines.transport_flow import Step, TransportFlow
from isomerge.research.baselines.transport_maps import METHODS, TransportSettings
from isomerge.solve.match_inputs import open_given
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs.pair import PairSolver, UnitResult
from isomerge.solve.unfinished_run import UnfinishedRun, load_parts, save_parts
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import atoms
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.units import Unit, elements_of


class TransportSolver:
    """Transports the units of a source to the places of an anchor; stands where a `PairSolver` does.

    Args:
        pair: the two models, the plan and the working dtype. Its ``plan.selection`` says what is transported;
            residual streams are with ``--spaces all``.
        settings: the method.
    """

    device = CPU
    """Maps are computed and applied in main memory."""

    def __init__(self, pair: PairSolver, settings: TransportSettings) -> None:
        self.pair, self.settings = pair, settings
        self.anchor, self.source, self.plan, self.dtype = pair.anchor, pair.source, pair.plan, pair.dtype
        self.votes: dict[str, Tensor] = {}
        self.given: Alignment | None = None
        """The maps as an alignment, where they are one symmetry."""
        self.flow: TransportFlow | None = None

    def prepare(
        self, observer: Observer = quiet, activations: tuple[Activations, Activations] | None = None
    ) -> Json:
        """Make the maps, in one pass over both models; returns the report.

        Args:
            observer: told of progress.
            activations: of the anchor and of the source, from `capture_branches`.

        Raises:
            IsomergeError: settings that contradict each other, or activations of different examples.
        """
        if activations is not None and activations[0].fingerprint != activations[1].fingerprint:
            raise IsomergeError(
                f"{self.anchor.ref} and {self.source.ref}: their activations are of different data: read the "
                f"same for both"
            )
        flow = TransportFlow(self.pair, self.settings, observer, activations)
        report = flow.run()
        self.flow = flow
        if report["preserves_function"]:
            self.given = in_declared_groups(self.anchor.spec, flow.permutations())
        return report

    def load(self, model: Model, unit: Unit, *, mapped: bool = False) -> Blocks:
        """A unit's blocks of one model in the working dtype; see `UnitSolver.load`."""
        return self.pair.load(model, unit, mapped=mapped)

    def moves(self, unit: Unit) -> bool:
        """Every unit: it is transported."""
        return True

    def solve(self, unit: Unit, anchor: Blocks, source: Blocks) -> tuple[UnitResult, Blocks]:
        """Transport one unit; the source's blocks come back aligned, as new tensors.

        Raises:
            IsomergeError: before `prepare`.
        """
        if self.flow is None:
            raise IsomergeError("transport maps are made in a pass of their own: call prepare first")
        result = UnitResult(unit.key)
        aligned: Blocks = {}
        for block in unit.blocks:
            aligned[block] = self.flow.moved(block, source[block])
            gap = TensorGap(
                block.key,
                [space.name for space in elements_of(self.flow.spec, block).values()],
                unit_layer(unit),
                squared_norm(anchor[block]),
                squared_distance(anchor[block], source[block]),
                squared_distance(anchor[block], aligned[block]),
            )
            result.blocks.append(gap)
        return result, aligned

    def still(self, unit: Unit, squares: Mapping[Block, tuple[float, float]]) -> UnitResult:
        """As of the pair; no unit is still (see `moves`)."""
        return self.pair.still(unit, squares)

    def alignment(self, elements: dict[str, Tensor]) -> Alignment | None:
        """The maps as an element of the symmetry group; None where they are none and the function is not
        preserved."""
        return self.given

    def alignment_as_read(self, elements: dict[str, Tensor]) -> Alignment | None:
        """The same: nothing is carried before."""
        return self.given

    def save(self, path: Path, report: Json) -> None:
        """Write the maps (safetensors, float32) with a report, complete or not at all; an alignment goes beside
        them."""
        assert self.flow is not None
        if self.given is not None:
            self.given.save(_beside(path))
        steps = {name: [asdict(step) for step in of_part] for name, of_part in self.flow.maps.steps.items()}
        maps = self.flow.maps.tensors
        about = {"steps": steps, "maps": list(maps), "report": report}
        save_parts(path, {"maps": {str(k): x for k, x in enumerate(maps.values())}}, about)

    def restore(self, path: Path) -> Json:
        """Take the maps from where `save` has written them; returns the report."""
        kept = load_parts(path)
        assert kept is not None, "what is journalled has been checked"
        parts, about = kept
        flow = TransportFlow(self.pair, self.settings, check=False)
        flow.maps.tensors |= {name: parts["maps"][str(k)] for k, name in enumerate(about["maps"])}
        flow.maps.steps |= {
            name: [Step(tuple(s["batch"]), tuple(s["axes"]), s["map"]) for s in of_part]
            for name, of_part in about["steps"].items()
        }
        self.flow = flow
        if about["report"]["preserves_function"]:
            self.given = Alignment.load(_beside(path), self.source.spec)
        return about["report"]


def _beside(path: Path) -> Path:
    """Where the alignment of a file of maps is."""
    return path.with_name(f"{path.stem}-alignment.safetensors")


def match_by_transport(
    pair: PairSolver, settings: TransportSettings = METHODS["otfusion"], observer: Observer = quiet
) -> tuple[Alignment, Json]:
    """The exact alignment of a transport flow that is one symmetry (``otfusion``), and the report.

    Raises:
        IsomergeError: settings whose maps are no symmetry.
    """
    if not settings.exact:
        raise IsomergeError(
            "an alignment needs hard maps that are one symmetry: coupling emd, residual only_residual, heads "
            "within, queries shared"
        )
    solver = TransportSolver(pair, settings)
    report = solver.prepare(observer)
    assert solver.given is not None
    return solver.given, report


def transport_solutions(
    run: UnfinishedRun, solvers: Sequence[TransportSolver], matching: Matching | None = None
) -> list[Json]:
    """Make the maps of every source once, kept across a resume; returns a report per source.

    Args:
        run: the unfinished output.
        solvers: one per source, in order.
        matching: its ``data`` (or ``learn``) are what activations are read from, where settings ask for them.
    """
    reports = []
    for k, solver in enumerate(solvers):
        path, key = run.blob(f"transport-{k}.safetensors"), f"transport {k}"
        run.blob(_beside(path).name)  # flushed with the maps, where there is one
        record = run.done(key)
        if record is None:
            record = solver.prepare(run.observer, _activations(solver, matching))
            solver.save(path, record)
            run.commit(key, record)
        else:
            solver.restore(path)
        reports.append(record)
    return reports


def _activations(solver: TransportSolver, matching: Matching | None) -> tuple[Activations, Activations] | None:
    """Of both models over the same examples, where the settings look at any."""
    settings = solver.settings
    if settings.cost == "weights" and not settings.residual.startswith("weighted"):
        return None
    ref = matching and (matching.data or matching.learn)
    if matching is None or ref is None:
        return None  # the settings' own check says what is missing

    examples = open_given(ref, solver.anchor, matching)
    examples = examples.head(min(len(examples), matching.rows))
    device = matching.settings.device if matching.settings else "cpu"
    a, b = (
        capture_branches(model, load_module(model, device=device), examples, rows=matching.rows)
        for model in (solver.anchor, solver.source)
    )
    return a, b


def plan_branches(model: Model, module: nn.Module) -> Iterator[tuple[Tap, str]]:
    """The outputs of what writes into a stream (linear layers, embeddings, patches), and the inputs of norms.

    Yields:
        The taps beside those of `isomerge.observe.stats.taps.plan_taps`, with the names of their submodules.
    """
    for block, axes, path in whole_weights(model, module):
        stream_atoms = [a for a in atoms(axes) if a.name in model.spec.streams]
        if len(axes) == 1 and stream_atoms:
            yield Tap(f"{block.key}:in", block.key, plain(axes[0]), block.scope, "in"), path
        elif len(stream_atoms) == 1 and not stream_atoms[0].dual:
            axis = next(axis for axis in axes if stream_atoms[0] in atoms((axis,)))
            yield Tap(f"{block.key}:out", block.key, plain(axis), block.scope, "out"), path


def capture_branches(model: Model, module: nn.Module, examples: Examples, *, rows: int) -> Activations:
    """Run a module over examples and keep up to ``rows`` rows of every tap: `plan_taps` and `plan_branches`.

    Equal examples give equal rows for every model of one architecture, as in `isomerge.observe.stats.taps.capture`.
    """
    places = [*plan_taps(model, module), *plan_branches(model, module)]
    images = {tap.key for tap, path in places if isinstance(module.get_submodule(path), torch.nn.Conv2d)}
    return captured(module, places, examples, rows, 16, images)

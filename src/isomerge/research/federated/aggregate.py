"""One round: clients' parameters are aligned along their symmetries onto an anchor, then averaged with weights.

The average of federated learning (McMahan et al. 2017, FedAvg) takes equal positions for equal meanings. That holds
for clients that start from one model and stay near it; it fails for clients that were trained apart. Matching
before averaging is due to Yurochkin et al. 2019 and Wang et al. 2020 (FedMA), for the neurons of simple networks;
here the solvers of `isomerge.merge` move every tensor of a transformer along all of its symmetries, residual
streams included.

Everything happens in memory, and nobody has to send more than parameters; rounds that look at more have
activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.checkpoint.in_memory import in_memory
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError, first_line
from isomerge.evidence.distance import summarise
from isomerge.fusion.linear import linear
from isomerge.models.compatible import check_compatible
from isomerge.models.onto_anchor import read_onto
from isomerge.models.recognised import Model, recognise, working_dtype
from isomerge.models.stored_form import StoredForm, cast
from isomerge.models.transformers_classes import class_of
from isomerge.models.unit_plan import Plan, make_plan
from isomerge.observe.data.examples import Examples
from isomerge.observe.stats.taps import ROWS, Activations, capture
from isomerge.progress import quiet, silent
from isomerge.records import Json, as_json
from isomerge.run.streaming import elements_of_results
from isomerge.solve.canonical.canonical_units import CanonicalUnits
from isomerge.solve.many.mean_solutions import shares_of, undisguised
from isomerge.solve.many.mean_solver import ManySolver
from isomerge.solve.match_options import SHARES
from isomerge.solve.pairs.pair import Blocks, PairSolver, UnitResult, gaps_of
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.solve.pairs.written_gains import CommonGains, gains_of_merge
from isomerge.solve.standing import own_order
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.fixed import fixed_parts

Parameters = Mapping[str, Any] | Sequence[Any]
"""One model: a ``state_dict`` (name -> torch tensor or numpy array), or arrays in the order of ``names``."""


@dataclass(frozen=True)
class Aligned:
    """The updates of a round in one coordinate system."""

    updates: list[Any]
    """Each as it was given (same container, names, types), the same function in other weights."""
    alignments: list[Alignment]
    """What moved each; empty where an update is the anchor itself."""
    report: Json
    """``distance`` before and after (Frobenius, to the anchor, over all updates), per space and layer, and
    ``updates``: the same for each."""


def align_updates(
    updates: Sequence[Parameters],
    *,
    anchor: Parameters | str,
    config: Any,
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    spaces: str = "default",
    layers: str | None = None,
    activations: Sequence[Activations] | None = None,
    evidence: str = "both",
    guard: bool = True,
    spec: str | Path | None = None,
) -> Aligned:
    """Bring clients' parameters into one coordinate system, without averaging: for servers that combine them their
    own way.

    For the arguments see `aggregate`; ``weights`` matter here only for ``largest`` and ``none``.

    Raises:
        IsomergeError: parameters that do not fit together, or an option that is wrong.
    """
    how = Matching(config, names, spaces, layers, evidence, guard, spec)
    clients = Round.of(updates, anchor, weights, how, activations)
    tensors: list[dict[str, Tensor]] = [{} for _ in updates]
    for donor, moved in clients.units():
        for k, blocks in enumerate(moved):
            tensors[k] |= clients.stored(blocks, donor)
    each = [like(update, names, part) for update, part in zip(updates, tensors, strict=True)]
    return Aligned(each, clients.alignments(), clients.report())


def aggregate(
    updates: Sequence[Parameters],
    *,
    anchor: Parameters | str,
    config: Any,
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    spaces: str = "default",
    layers: str | None = None,
    activations: Sequence[Activations] | None = None,
    evidence: str = "both",
    guard: bool = True,
    spec: str | Path | None = None,
) -> Any:
    """The weighted average of clients' parameters, each aligned onto the anchor first.

    Args:
        updates: one model per client: a ``state_dict`` (name -> torch tensor or numpy array), or a list of arrays.
            All of one architecture, with equal names, types and shapes. Not changed.
        anchor: what all are aligned onto: the server's current parameters (of the kind of the updates, not averaged
            in), one of the updates (``first``, or ``largest`` by weight), or ``none``: their common mean, in the
            first one's coordinates (generalised Procrustes analysis, see `isomerge.solve.many.mean_solver`). Where
            clients started from different models, server parameters that nobody trained are no anchor: take another
            one in the first round.
        config: the model's ``config``, or the content of its config.json.
        weights: numbers of examples; all alike when None.
        names: of the arrays, in their order (``list(model.state_dict())``), where updates are lists.
        spaces: what may move (``isomerge align --help``); ``all`` includes the residual streams.
        layers: ``0-4``, ``head:5`` or ``tail:3``; all by default.
        activations: what every model gives for equal examples (`isomerge.research.federated.activations_of`), in
            the order of the updates; the anchor's before them where the anchor is parameters. None: weights alone
            decide.
        evidence: with activations: ``activations`` or ``both`` (with weights).
        guard: never move an update farther from the anchor than it is, for block-local spaces and weights alone.
            With False the result is a function of the updates' orbits, as that of `isomerge.merge` is.
        spec: a spec file for an architecture that isomerge does not know.

    Returns:
        Parameters in the form of the first update. Accumulated in float32 or float64, stored in the updates' types.
        Tensors that are no floating-point numbers are the anchor's (the first update's with ``none``).

    Raises:
        IsomergeError: parameters that do not fit together, or an option that is wrong.
    """
    how = Matching(config, names, spaces, layers, evidence, guard, spec)
    clients = Round.of(updates, anchor, weights, how, activations)
    gains = clients.gains()
    tensors: dict[str, Tensor] = {}
    for donor, moved in clients.units():
        mean = {
            block: linear([blocks[block] for blocks in moved], weight=clients.shares)
            if x.is_floating_point()
            else x
            for block, x in donor.items()
        }
        tensors |= clients.stored(mean if gains is None else gains.written.applied(mean), donor)
    return like(updates[0], names, tensors)


ANCHORS = ("first", "largest", "none")


@dataclass(frozen=True)
class Matching:
    """How the updates of a round are matched; see `isomerge.research.federated.aggregate`."""

    config: Any
    names: Sequence[str] | None = None
    spaces: str = "default"
    layers: str | None = None
    evidence: str = "both"
    guard: bool = True
    spec: str | Path | None = None


def weights_of(weights: Sequence[float] | None, count: int) -> list[float]:
    """One weight per update, checked.

    Raises:
        IsomergeError: another number of them, negative ones, or none above zero.
    """
    if count < 1:
        raise IsomergeError("there are no updates to average: wait for at least one client")
    shares = [1.0] * count if weights is None else [float(w) for w in weights]
    if len(shares) != count or not all(isfinite(w) and w >= 0 for w in shares) or not sum(shares):
        raise IsomergeError(f"weights: {count} numbers of examples are needed, not all zero, got {shares}")
    return shares


@dataclass
class Round:
    """The models of a round, solved: the donor stays where it is, every source has a solver."""

    models: list[Model]
    """The donor first."""
    places: list[int]
    """Where every update is among the models."""
    plan: Plan
    dtype: torch.dtype
    """The working type: float32 or float64."""
    solvers: list[PairSolver]
    shares: list[float]
    """One weight per update."""
    results: list[list[UnitResult]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        updates: Sequence[Parameters],
        anchor: Parameters | str,
        weights: Sequence[float] | None,
        how: Matching,
        activations: Sequence[Activations] | None = None,
    ) -> Round:
        """Recognise the models, check them, and solve what takes passes over whole models.

        Args:
            updates, anchor, weights, activations: see `isomerge.research.federated.aggregate`.
            how: what else it is told.
        """
        if how.evidence not in SHARES:
            raise IsomergeError(f"evidence {how.evidence!r}: choose from {', '.join(SHARES)}")
        shares = weights_of(weights, len(updates))
        refs, order = _in_order(updates, anchor, shares)
        each = [*updates] if isinstance(anchor, str) else [anchor, *updates]
        models = recognised({refs[k]: each[k] for k in order}, how.config, how.names, how.spec)
        together = isinstance(anchor, str) and anchor == "none"
        if together:  # whoever reports first is no anchor either
            own = own_order(models)
            models, order = [models[k] for k in own], [order[k] for k in own]
        plan, dtype = make_plan(models[0], models[1:], how.spaces, how.layers), working_dtype(models)
        solvers = [PairSolver(models[0], source, plan, dtype, guard=how.guard) for source in models[1:]]
        seen = _paired(activations, order, how.spaces)
        if plan.norms:
            for solver in solvers:
                read_onto(solver.anchor, solver.source)
        if together and solvers:
            solvers = _solve_mean(solvers, [shares[k] for k in order], seen, how)
        else:
            solvers = _solve_pairs(solvers, seen, how.evidence)
        places = [order.index(k) for k in range(len(each) - len(updates), len(each))]
        return cls(models, places, plan, dtype, solvers, shares, [[] for _ in solvers])

    def units(self) -> Iterator[tuple[Blocks, list[Blocks]]]:
        """Every unit: the donor's blocks, and those of every update, moved."""
        donor = self.models[0]
        for unit in self.plan.units:
            own = donor.unit(unit.blocks, self.dtype)
            moved = [own]
            for k, solver in enumerate(self.solvers):
                result, blocks = solver.solve(unit, own, solver.load(solver.source, unit))
                self.results[k].append(result)
                moved.append(blocks)
            yield own, [moved[at] for at in self.places]

    def gains(self) -> CommonGains | None:
        """The gains that the average is written in, as `isomerge.merge` chooses them; None: the donor's, which
        moved updates have."""
        return gains_of_merge(self.solvers, StoredForm(self.models[0], None), quiet)

    def stored(self, blocks: Blocks, donor: Blocks) -> dict[str, Tensor]:
        """A unit's tensors by name, in the stored types; integers are the donor's."""
        first = self.models[0]
        tensors = {}
        for block, x in blocks.items():
            for canonical, part in block.split(x if x.is_floating_point() else donor[block]):
                name = first.names[canonical]
                tensors[name] = cast(part, first.checkpoint.tensors[name].dtype, name).clone()
        return tensors

    def alignments(self) -> list[Alignment]:
        """What moved every update, after all units."""
        alignments = [Alignment(self.models[0].spec)]
        alignments += [s.alignment(elements_of_results(r)) for s, r in zip(self.solvers, self.results, strict=True)]
        return [alignments[at] for at in self.places]

    def report(self) -> Json:
        """Distances to the donor, after all units."""
        gaps = [[], *map(gaps_of, self.results)]
        each = [summarise(gaps[at]).total for at in self.places]
        return {
            "anchor": self.models[0].ref,
            "distance": summarise(gap for part in gaps for gap in part).document(),
            "updates": [{"before": total.before, "after": total.after} for total in each],
            "notes": list(self.plan.selection.notes),
            "fixed": as_json(fixed_parts(self.models[0].spec, self.models[0].matches.values())),
        }


def _in_order(
    updates: Sequence[Parameters], anchor: Parameters | str, weights: Sequence[float]
) -> tuple[list[str], list[int]]:
    """What the models are called (the anchor before the updates where it is parameters), and their order, donor
    first."""
    refs = [f"update {k}" for k in range(1, len(updates) + 1)]
    if not isinstance(anchor, str):
        return ["the anchor", *refs], list(range(len(refs) + 1))
    if anchor not in ANCHORS:
        raise IsomergeError(f"anchor {anchor!r}: give the server's parameters, or one of {', '.join(ANCHORS)}")
    donor = weights.index(max(weights)) if anchor == "largest" else 0
    return refs, [donor, *(k for k in range(len(refs)) if k != donor)]


def _paired(
    activations: Sequence[Activations] | None, order: Sequence[int], spaces: str
) -> list[Activations] | None:
    """Centred activations, the donor's first."""
    if activations is None:
        return None
    if len(activations) != len(order):
        raise IsomergeError(
            f"there are activations of {len(activations)} models, but {len(order)} models: give those of every "
            "update, after the anchor's where it is parameters"
        )
    if len({rows.fingerprint for rows in activations}) > 1:
        raise IsomergeError("activations are of different examples: run every model on the same ones")
    if spaces.startswith("paper"):
        raise IsomergeError(f"spaces {spaces} is an algorithm of weights alone: leave activations out")
    return [activations[k].centred() for k in order]


def _solve_pairs(
    solvers: Sequence[PairSolver], seen: Sequence[Activations] | None, evidence: str
) -> list[PairSolver]:
    """The solvers of all sources, solved by passes over each and the donor where one unit at a time does not do."""
    solved = list(solvers)
    for k, solver in enumerate(solvers, 1):
        if solver.plan.selection.frame is not None or seen is not None:
            pair = None if seen is None else (seen[0], seen[k])
            looked = solver.undisguised() if seen is None else solver
            solved[k - 1] = replace(solver, given=StreamSolver(looked, quiet, pair, evidence).solve().alignment)
        elif solver.plan.votes:
            solved[k - 1] = replace(solver, votes=solver.collect_votes())
    return solved


def _solve_mean(
    solvers: Sequence[PairSolver], shares: Sequence[float], seen: Sequence[Activations] | None, how: Matching
) -> list[PairSolver]:
    """The solvers of all sources, solved at once, towards the common mean."""
    if how.spaces.startswith("paper"):
        raise IsomergeError(
            f"spaces {how.spaces!r} are matched onto one anchor here: give the server's parameters as the "
            f"anchor, or choose other spaces"
        )
    first = solvers[0]
    stored = [first.anchor, *(solver.source for solver in solvers)]
    models = stored if seen is not None else undisguised(solvers) or stored
    units = CanonicalUnits(models, first.plan, first.dtype, shares_of(shares), seen, how.evidence)
    many = ManySolver(units, quiet)
    many.solve()
    return [replace(solver, given=many.alignment(m)) for m, solver in enumerate(solvers, 1)]


def named(parameters: Parameters, names: Sequence[str] | None, ref: str) -> Mapping[str, Any]:
    """Parameters by name.

    Raises:
        IsomergeError: a list without names, or of another length than its names.
    """
    if isinstance(parameters, Mapping):
        return parameters
    if names is None:
        raise IsomergeError(f"{ref} is a list of arrays: give their names, names=list(model.state_dict())")
    if len(parameters) != len(names):
        raise IsomergeError(
            f"{ref} has {len(parameters)} arrays, but there are {len(names)} names: give one for each"
        )
    return dict(zip(names, parameters, strict=True))


def like(original: Parameters, names: Sequence[str] | None, tensors: Mapping[str, Tensor]) -> Any:
    """Tensors in the form of what was given: its container, its order, its kind of array, its devices."""
    if isinstance(original, Mapping):
        return {name: _as(old, tensors[name]) for name, old in original.items()}
    return [_as(old, tensors[name]) for name, old in zip(names or (), original, strict=True)]


def _as(old: Any, new: Tensor) -> Any:
    return new.to(old.device) if hasattr(old, "device") and hasattr(old, "detach") else new.numpy()


def recognised(
    each: Mapping[str, Parameters], config: Any, names: Sequence[str] | None = None, spec: str | Path | None = None
) -> list[Model]:
    """The models of one round, every tensor understood, all with the same names, types and shapes.

    Args:
        each: the parameters by what they are called in messages, the donor first.
        config: of all of them: the content of config.json, or a transformers configuration.
        names: of the arrays, where parameters are lists.
        spec: a spec file for an architecture that isomerge does not know.

    Raises:
        IsomergeError: an unknown architecture, or a name, type or shape that does not fit.
    """
    models = [
        recognise(in_memory(named(parameters, names, ref), config, ref=ref), spec_file=spec)
        for ref, parameters in each.items()
    ]
    first = models[0].checkpoint
    for other in (model.checkpoint for model in models[1:]):
        for a, b in ((first, other), (other, first)):
            if lacking := [name for name in a.tensors if name not in b.tensors]:
                raise IsomergeError(
                    f"{b.ref}: tensor {lacking[0]} is missing, but {a.ref} has it: send whole state_dicts "
                    f"of one model"
                )
        for name, info in first.tensors.items():
            theirs = other.tensors[name]
            if (info.dtype, info.shape) != (theirs.dtype, theirs.shape):
                raise IsomergeError(
                    f"{other.ref}: tensor {name} is {theirs.dtype} {list(theirs.shape)}, but {info.dtype} "
                    f"{list(info.shape)} in {first.ref}: all parameters must be of one model"
                )
    check_compatible(models[0], models[1:])
    return models


def activations_of(
    parameters: Parameters,
    examples: Examples,
    *,
    config: Any,
    names: Sequence[str] | None = None,
    rows: int = ROWS,
    batch_size: int = 16,
    spec: str | Path | None = None,
    ref: str = "a client",
) -> Activations:
    """What one model's layers give for some examples: up to ``rows`` rows at every place that matching looks at.

    Rows of two models belong together only where both read equal examples. So they are a small set that everybody
    may see, such as public or synthetic inputs without labels: never a client's own data. Whoever averages has all
    weights and can run them; clients can as well, and send ``values`` (float32 [rows, width] by place).

    Args:
        parameters: one model, float32 or wider; run on the CPU in float32.
        examples: equal for all models of a round.
        config, names, spec: see `isomerge.research.federated.aggregate`.
        rows: of every place, spread over examples and positions; a thousand suffice.
        batch_size: examples at a time; equal for all models of a round.
        ref: what to call the model in messages.

    Raises:
        IsomergeError: parameters or examples that do not fit.
    """
    (model,) = recognised({ref: parameters}, config, names, spec)
    head = examples.head(min(len(examples), rows))
    return capture(model, _module(model.checkpoint), head, rows=rows, batch_size=batch_size)


def _module(checkpoint: Checkpoint) -> nn.Module:
    """The transformers module of parameters in memory, float32, in eval mode."""
    import transformers

    config = {key: value for key, value in checkpoint.config.items() if key not in ("dtype", "torch_dtype")}
    kind: Any = class_of(checkpoint.config, tuple(checkpoint.tensors), checkpoint.folder)
    state = {name: checkpoint.read(name) for name in checkpoint.tensors}
    with silent():
        try:
            settings = transformers.AutoConfig.for_model(**config)
            if not issubclass(kind, transformers.PreTrainedModel):  # an auto class needs a folder
                with torch.device("meta"):  # nothing is allocated, nothing drawn
                    kind = type(kind.from_config(settings))
            loaded: Any = kind.from_pretrained(
                None, config=settings, state_dict=state, dtype=torch.float32, output_loading_info=True
            )
        except Exception as error:  # as many types as there are ways not to fit
            raise IsomergeError(
                f"{checkpoint.ref}: transformers cannot run these parameters ({first_line(error)}); check config"
            ) from error
    module, info = loaded
    if missing := sorted(info.get("missing_keys") or ()):
        raise IsomergeError(
            f"{checkpoint.ref}: {kind.__name__} needs {missing[0]}, which was not given: check config"
        )
    return module.eval()

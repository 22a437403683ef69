"""A model written as a wider or deeper one of its architecture, which is the same function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log2, prod
from typing import Any

from isomerge.commands.opening import destination, recognised
from isomerge.config.agreement import disagreements
from isomerge.config.config_parts import flattened
from isomerge.config.widths import Growth, growth_by, growth_to
from isomerge.discovery.checkpoint import read_config
from isomerge.discovery.widened_twin import Tried, tried
from isomerge.errors import IsomergeError
from isomerge.models.compatible import compared_keys
from isomerge.models.free_streams import given_out
from isomerge.models.recognised import Model, recognise
from isomerge.models.widened import Narrow, deepened, plan_of, understood, widened
from isomerge.models.widening import Widening
from isomerge.options.requests.widening import Widen
from isomerge.options.unused import note
from isomerge.progress import Observer, quiet
from isomerge.records import Change, Record, named
from isomerge.run.view_writing import ViewReport, write_view
from isomerge.run.writing_run import Output

WIDENED = "The same function as the model below in more coordinates, of which it uses its own. Made by isomerge."
HALVES = ("F16", "BF16")


class WiderStream(Record):
    """A residual stream in a wider model."""

    before: int
    after: int
    how: str
    factor: float


class TinyProof(Record):
    """That a tiny random model, widened alike, is the same function."""

    error: float
    """The largest relative change of its outputs."""
    module: str = named("class")


class Wider(Record):
    """What becomes of a model that is widened."""

    like: str | None
    sizes: Mapping[str, Change]
    streams: Mapping[str, WiderStream]
    powers_of_width: Mapping[str, float]
    added_layers: int
    parameters: Change
    proof: TinyProof


@dataclass(frozen=True)
class Widened:
    """A model that will be widened: proven on a tiny one, nothing written."""

    model: Model
    wide: Model
    plan: Widening
    growth: Growth
    proof: Tried
    output: Output
    like: str | None
    notes: tuple[str, ...] = field(default=())

    @property
    def about(self) -> Wider:
        """What becomes of the model."""
        before, after = (
            sum(prod(info.shape) for info in model.checkpoint.tensors.values()) for model in (self.model, self.wide)
        )
        said = flattened(self.model.config)
        now = flattened(self.wide.config)
        changed = [".".join(path) for path in (*self.growth.sizes, *self.growth.depths)]
        return Wider(
            self.like,
            sizes={key: Change(said.get(key), now.get(key)) for key in changed},
            streams={name: WiderStream(s.narrow, s.wide, s.how, s.factor) for name, s in self.plan.streams.items()},
            powers_of_width={"embeddings": self.plan.widths.embedding, "head": self.plan.widths.head},
            added_layers=sum(len(layers) for _, layers in self.plan.added.values()),
            parameters=Change(before, after),
            proof=TinyProof(self.proof.error, module=self.proof.module),
        )

    def run(self) -> ViewReport[Wider]:
        """Write it; the report."""
        how = ("widen", "Widened checkpoint", WIDENED)
        return write_view(self.wide, self.output, *how, self.about, self.notes)


@contextmanager
def planned_widen(asked: Widen, observer: Observer = quiet) -> Iterator[Widened]:
    """`isomerge.widen` up to where something is written.

    Raises:
        IsomergeError: sizes in which the model does not stand, or no tiny model of its class that proves it.
    """
    if asked.like is None and not asked.sizes:
        raise IsomergeError("widen: give the sizes, by --like MODEL or by --set KEY=NUMBER")
    with (
        recognised([asked.model], asked.opening) as (model,),
        destination(asked.out, asked.writing, [model], asked.opening.spec, observer=observer) as output,
    ):
        if model.checkpoint.own is not None:
            raise IsomergeError(f"{model.ref} is a module of one's own, of which no wider one can be built")
        narrow = understood(model.checkpoint, asked.opening.spec, untied=asked.untie)
        if asked.untie and narrow.checkpoint is model.checkpoint:
            note("untie", "no head is tied to the embeddings")
        ref, config = (None, None) if asked.like is None else read_config(asked.like)[:2]
        growth = _growth(model, narrow, ref, config, asked.sizes)
        observer("a tiny model of the class", 0, 0)
        proof = tried(narrow, growth, untied=asked.untie)
        deep, added = deepened(narrow, growth)
        plan = plan_of(deep, growth, proof.ways, proof.widths, added)
        view = widened(deep, growth, plan, output.dtype)
        wide = recognise(view, spec_file=asked.opening.spec)
        notes = (*_notes(model, wide, plan, growth, ref, config),)
        yield Widened(model, wide, plan, growth, proof, output, ref, notes)


def _growth(
    model: Model, narrow: Narrow, ref: str | None, like: Mapping[str, Any] | None, sizes: Mapping[str, int] | None
) -> Growth:
    """What is asked for.

    Raises:
        IsomergeError: another architecture, keys that say no sizes, or nothing that grows.
    """
    config = narrow.checkpoint.config
    growth = Growth()
    if like is not None:
        if like.get("model_type") != config.get("model_type"):
            raise IsomergeError(
                f"{model.ref} is a {config.get('model_type')} and {ref} a {like.get('model_type')}: a model is "
                f"widened to the sizes of one of its own architecture"
            )
        growth = growth_to(config, like, narrow.said)
    by_sizes = growth_by(config, sizes or {}, narrow.said)
    growth = Growth({**growth.sizes, **by_sizes.sizes}, {**growth.depths, **by_sizes.depths}, growth.tokens)
    if not growth:
        raise IsomergeError(f"{model.ref} has these sizes already: there is nothing to widen")
    return growth


def _notes(
    model: Model, wide: Model, plan: Widening, growth: Growth, ref: str | None, like: Mapping[str, Any] | None
) -> Iterator[str]:
    """What is to be said of the result."""
    if growth.tokens:
        yield (
            f"{ref} has another number of tokens, and the vocabulary stays that of {model.ref}: isomerge "
            f"transplant-tokenizer gives it the other's"
        )
    for name in sorted(given_out(model) & plan.streams.keys()):
        stream = plan.streams[name]
        yield (
            f"{model.ref} returns the residual stream {name} itself: in the wide model it has {stream.wide} "
            f"coordinates, of which the first {stream.narrow} are a multiple of what they were"
        )
    stored = {info.dtype for info in wide.checkpoint.tensors.values()} & {*HALVES}
    factors = [s.factor if s.factor != 1 else s.read for s in plan.streams.values()]
    if stored and any(log2(factor) % 1 for factor in factors):
        shown = ", ".join(f"{factor:.4g}" for factor in factors)
        yield (
            f"weights are multiplied by {shown}, which half precision rounds once more: --dtype float32 keeps the "
            f"function exactly"
        )
    for difference in disagreements(wide.config, like, compared_keys(wide)) if like is not None else ():
        yield (
            f"config.json: {difference.sentence} in {ref}: "
            f"the two compute other functions of equal weights, and are not aligned or merged"
        )

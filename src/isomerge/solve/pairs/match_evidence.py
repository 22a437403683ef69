"""What a match looks at beside weights, read once for all sources: examples, and the models' activations on
them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.read_files import shown
from isomerge.observe.stats.gathering import gather
from isomerge.observe.stats.statistics import Statistics, check_same_data, read_activations, read_statistics
from isomerge.observe.stats.taps import Activations, capture, enough
from isomerge.progress import Observer
from isomerge.solve.match_inputs import open_given
from isomerge.solve.match_names import AS_PUBLISHED
from isomerge.solve.match_options import Matching


class MatchEvidence:
    """The data and statistics of one run, opened when they are first asked for.

    Args:
        matching: what is given.
        anchor: its tokenizer or image processor reads the data.
        observer: told of models that are run.
    """

    def __init__(self, matching: Matching, anchor: Model, observer: Observer) -> None:
        self.matching, self.anchor, self.observer = matching, anchor, observer
        self._ran: dict[int, Statistics] = {}

    @cached_property
    def examples(self) -> Examples | None:
        """What models are compared on: ``data``, else what is learned from."""
        ref = None if self.matching.for_method else self.matching.data or self.matching.learn
        return open_given(ref, self.anchor, self.matching) if ref else None

    @cached_property
    def learned_from(self) -> Examples | None:
        """What is learned from."""
        data, learn = self.matching.data, self.matching.learn
        if learn is None or not data or shown(data) == shown(learn):
            return None if learn is None else self.examples
        return open_given(learn, self.anchor, self.matching)

    @cached_property
    def of_anchor(self) -> Activations | None:
        """Activations of the anchor, from its file or from a run; None where weights decide alone. All but those of
        Git Re-Basin as published are centred."""
        return self._activations(self.anchor, 0)

    def of_source(self, source: Model, number: int) -> Activations | None:
        """As `of_anchor`, of the source with this number, the first being 0; not kept.

        Raises:
            IsomergeError: its statistics are of other data than the anchor's.
        """
        anchor, activations = self.of_anchor, self._activations(source, number + 1)
        if self.matching.stats and anchor is not None and activations is not None:
            files = (self.matching.stats[0], self.matching.stats[number + 1])
            check_same_data(files, (anchor.fingerprint, activations.fingerprint))
        return activations

    @cached_property
    def moments_of_anchor(self) -> Statistics:
        """The Grams of what the anchor's layers read, from its file or from a run."""
        return self._moments(self.anchor, 0)

    def moments_of_source(self, source: Model, number: int) -> Statistics:
        """As `moments_of_anchor`, of the source with this number, the first being 0; not kept longer than until
        then."""
        moments = self._moments(source, number + 1)
        self._ran.pop(number + 1, None)
        return moments

    def _moments(self, model: Model, place: int) -> Statistics:
        """Of the model whose statistics have this place among the files."""
        how = self.matching
        if how.stats:
            statistics = read_statistics(Path(how.stats[place]), model)
            if not statistics.inputs:
                raise IsomergeError(
                    f"{how.stats[place]} has no Grams, which --input-metric needs: make it with --kinds "
                    f"activations,regmean"
                )
            return statistics.of_inputs()
        return self._both(model, place)

    def _both(self, model: Model, place: int) -> Statistics:
        """Rows, and Grams of what reads a stream, of a model from one run."""

        if place not in self._ran:
            how, examples = self.matching, self.examples
            assert examples is not None
            examples, module = examples.head(min(len(examples), how.rows)), load_module(model, device=how.device)
            statistics = gather(model, module, examples, rows=how.rows, observer=self.observer)
            self._ran[place] = replace(statistics.of_inputs(), activations=statistics.activations)
        return self._ran[place]

    def _activations(self, model: Model, place: int) -> Activations | None:
        """Of the model whose statistics have this place among the files."""
        how = self.matching
        if how.stats:
            return read_activations(Path(how.stats[place]), model).centred()
        if self.examples is None:
            return None
        if how.input_metric:
            return self._both(model, place).activations.centred()

        examples = enough(self.examples, how.rows)
        self.observer(f"reading activations of {model.ref}", 0, 1)
        activations = capture(model, load_module(model, device=how.device), examples, rows=how.rows)
        return activations if how.match == AS_PUBLISHED else activations.centred()

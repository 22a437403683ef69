"""A model written with the tokenizer of another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from isomerge.checkpoint.companion_folder import companion_folder
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.vocabulary import MISSING, NEIGHBOURS, Vocabulary
from isomerge.checkpoint.weights import find_weights
from isomerge.commands.opening import destination, recognised
from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model, recognise
from isomerge.models.references import open_model_ref
from isomerge.models.vocabulary_views import with_vocabulary
from isomerge.observe.data.text import text_encoder
from isomerge.observe.live.modules import load_module
from isomerge.observe.text_losses import WINDOW, TextLoss, check_predicts_text, text_loss, texts_of
from isomerge.options.requests.widening import TransplantTokenizer
from isomerge.options.unused import note
from isomerge.progress import Observer, quiet
from isomerge.records import Change, Record, optional
from isomerge.run.view_writing import ViewReport, write_view
from isomerge.run.writing_run import Output

SOUGHT = ("omp", "nearest")
"""Ways that seek sums in the vectors of another model."""
TEXT = (
    "The model below with another tokenizer: tokens that both have kept their vectors, and the others were given "
    "some. Made by isomerge."
)


class TextLosses(Record):
    """The loss of a model on texts, with its own tokenizer and with the other."""

    before: TextLoss
    after: TextLoss
    texts: int
    bytes: int


class Tokens(Record):
    """What becomes of a model's tokens."""

    tokenizer: str
    rows: Change
    tokens: int
    missing: str
    """How tokens are given vectors that the model has none of."""
    neighbours: int | None
    filled: Mapping[str, int]
    loss: TextLosses | None = optional()


@dataclass(frozen=True)
class Transplant:
    """A model that will get another tokenizer; nothing written."""

    model: Model
    made: Model
    vocabulary: Vocabulary
    tokenizer: str
    missing: str
    before: int
    output: Output
    texts: tuple[str, ...] = ()
    """On which the loss is measured, before and after."""

    @property
    def about(self) -> Tokens:
        """What becomes of the tokens."""
        return Tokens(
            self.tokenizer,
            rows=Change(self.before, self.vocabulary.size),
            tokens=len(self.vocabulary.tokens),
            missing=self.missing,
            neighbours=self.vocabulary.neighbours if self.missing in SOUGHT else None,
            filled=self.vocabulary.counts[0],
        )

    def run(self) -> ViewReport[Tokens]:
        """Write it, and measure it where there are texts; the report."""
        how = ("transplant-tokenizer", "Checkpoint with another tokenizer", TEXT)
        before = self._measured(self.model) if self.texts else None
        report = write_view(self.made, self.output, *how, self.about)
        if before is None:
            return report
        after = self._measured(recognise(open_model_ref(str(self.output.out)), spec_file=self.model.spec_file))
        size = sum(len(text.encode()) for text in self.texts)
        loss = TextLosses(before, after, texts=len(self.texts), bytes=size)
        return replace(report, about=replace(report.about, loss=loss))

    def _measured(self, model: Model) -> TextLoss:
        """The loss of a model on the texts, by its own tokenizer."""
        self.output.observer(f"measuring {model.ref}", 0, 1)
        with companion_folder(model.checkpoint) as folder:
            encoder = text_encoder(folder, Inputs(model.checkpoint.config), WINDOW)
        return text_loss(load_module(model), encoder, self.texts)


@contextmanager
def planned_transplant(asked: TransplantTokenizer, observer: Observer = quiet) -> Iterator[Transplant]:
    """`isomerge.transplant_tokenizer` up to where something is written.

    Raises:
        IsomergeError: a tokenizer that cannot be read, a way that needs weights where there are none, or a model
            whose tables of tokens cannot be changed.
    """
    missing, opening = asked.missing, asked.opening
    ways = [way for way in MISSING if way != "copy"]
    if missing is not None and missing not in ways:
        raise IsomergeError(f"--missing {missing}: choose from {', '.join(ways)}")
    ref = str(asked.tokenizer)
    with (
        recognised([asked.model], opening, proven=False) as (model,),
        destination(asked.out, asked.writing, [model], opening.spec, ref, observer=observer) as output,
    ):
        donor = None if missing in ("subword", "mean", "zero") else _donor(ref, opening.allow_pickle)
        if donor is None and missing in SOUGHT:
            raise IsomergeError(
                f"--missing {missing} looks for sums in the vectors of {ref}, which has no weights: name a model "
                f"that was trained with this tokenizer, or take --missing subword"
            )
        missing = missing or ("subword" if donor is None else "omp")
        if missing not in SOUGHT and asked.neighbours != NEIGHBOURS:
            note("neighbours", f"--missing {missing} sums no rows of neighbours")
        (view, *_), vocabulary = with_vocabulary(
            [model.checkpoint, *([] if donor is None else [donor])],
            source=ref if donor is None else donor.ref,
            missing=missing,
            neighbours=asked.neighbours,
            pad_to_multiple_of=asked.pad_to_multiple_of,
            spec_file=opening.spec,
        )
        made = recognise(view, spec_file=opening.spec)
        before = model.spec.sizes["vocab"]
        texts = _texts(model, asked)
        yield Transplant(model, made, vocabulary, ref, missing, before, output, texts)


def _texts(model: Model, asked: TransplantTokenizer) -> tuple[str, ...]:
    """The texts on which the loss is measured.

    Raises:
        IsomergeError: there are none, or the model does not predict text.
    """
    if asked.data is None:
        return ()
    inputs = Inputs(model.checkpoint.config)
    check_predicts_text(inputs, model.ref)
    with companion_folder(model.checkpoint) as folder:
        return tuple(texts_of(asked.data, folder, inputs, asked.limit))


def _donor(ref: str, allow_pickle: bool) -> Checkpoint | None:
    """The model that has a tokenizer; None where there are no weights beside it."""
    folder = local_folder(ref, allow_pickle=allow_pickle)
    with suppress(IsomergeError):
        if find_weights(folder, allow_pickle=True):
            return open_model_ref(ref, allow_pickle=allow_pickle)
    return None

"""Models of images merged with language models like the one inside: what is merged are the language models, and all
else of the model of images is kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.opening import CONFIG, open_checkpoint
from isomerge.checkpoint.pipeline import LIBRARIES, Component, Pipeline
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.shard_plan import parse_size
from isomerge.checkpoint.single_file import LANGUAGE
from isomerge.commands.opening import dtype_name
from isomerge.errors import IsomergeError
from isomerge.models.compatible import VOCABULARY
from isomerge.models.language_part import LanguagePart, language_part
from isomerge.models.recognised import recognise
from isomerge.models.references import open_model_ref
from isomerge.models.row_meanings import described
from isomerge.options import FusingOptions, OpeningOptions, OutputOptions
from isomerge.run.view_writing import write_view
from isomerge.run.writing_run import Output

NAME = LANGUAGE.removeprefix(":")
TITLE = "Merged language model in a model of images"
TEXT = "Its language model is a merge, which `reports/language_model` describes; all else is {whole}'s."


@dataclass(frozen=True)
class _Files(Component):
    """The files that a model is read from."""

    read: tuple[Path, ...]

    def files(self, *, allow_pickle: bool = False) -> list[Path]:
        """All of them."""
        return list(self.read)


@dataclass(frozen=True)
class _Single(Pipeline):
    """One model in a folder."""

    @property
    def index(self) -> Path:
        """Its config."""
        return self.folder / CONFIG


@dataclass(frozen=True)
class Composite(_Single):
    """A model of images whose language model is merged."""

    part: LanguagePart
    writing: OutputOptions

    @property
    def is_whole(self) -> bool:
        """Its parts lie in one checkpoint."""
        return True

    def write(self, out: Path, merged: Mapping[str, Path], copied: Mapping[str, Component]) -> None:
        """Write the whole beside its config ``out``, with the language model that was merged."""
        model = recognise(self.part.holding(open_checkpoint(merged[NAME])))
        place = out.parent.with_name("whole")
        shutil.rmtree(place, ignore_errors=True)
        size = parse_size(self.writing.out_shard_size or "5GB")
        notes = [f"the language model is a merge, which reports/{NAME} describes"]
        write_view(
            model,
            Output(place, size, dtype_name(self.writing.dtype)),
            "merge",
            TITLE,
            TEXT.format(whole=self.ref),
            None,
            notes,
        )
        for path in place.iterdir():
            os.rename(path, out.parent / path.name)


@dataclass(frozen=True)
class Inside:
    """Which of several models has a language model inside that the others are like."""

    whole: str
    pipelines: tuple[Pipeline, ...]
    tokens: str | None
    """Whose tokens the language models must have before they are merged; None: they have the same number."""

    def within(self, ref: Any) -> Any:
        """A reference, of the whole that of its language model."""
        return f"{ref}{LANGUAGE}" if str(ref) == self.whole else ref

    def fusing(self, fusing: FusingOptions) -> FusingOptions:
        """How the language models are merged: onto the whole's, for which all else of it is made.

        Raises:
            IsomergeError: another anchor is asked for.
        """
        onto = fusing.onto
        if fusing.aligning.anchor == "none" or (onto is not None and str(onto) != self.whole):
            raise IsomergeError(
                f"{self.whole} keeps all but its language model, which the others are brought onto: leave --anchor "
                f"and --onto out, or merge {self.whole}{LANGUAGE} as a language model"
            )
        base = fusing.base_model
        if base is not None and str(base) != self.whole and fusing.aligning.align is not False:
            onto = self.whole
        return replace(
            fusing,
            base_model=self.within(base),
            onto=self.within(onto),
            source_bases=[self.within(source) for source in fusing.source_bases],
            tokenizer_source=fusing.tokenizer_source or self.tokens,
        )

    @property
    def said(self) -> str:
        """What becomes of the parts."""
        others = ", ".join(other.ref for other in self.pipelines[1:])
        return f"merged with {others}, and all else of {self.whole} is kept"


def inside(refs: Sequence[str], first: str, opening: OpeningOptions, writing: OutputOptions) -> Inside | None:
    """The one model of images among language models that are like its own; None where there is no such one.

    Args:
        refs: all that are merged, and the base.
        first: whose kind the result has.

    Raises:
        IsomergeError: a model that cannot be opened, or the first is a language model.
    """
    opened = {ref: open_model_ref(ref, allow_pickle=opening.allow_pickle) for ref in refs}
    specs = {ref: described(checkpoint, None) for ref, checkpoint in opened.items()}
    wholes = [ref for ref, spec in specs.items() if spec is not None and spec.language is not None]
    if len(wholes) != 1 or None in specs.values():
        return None
    whole = wholes[0]
    part = language_part(opened[whole])
    others = [ref for ref in refs if ref != whole]
    like = [spec for ref, spec in specs.items() if ref != whole and spec is not None]
    if any(spec.kin != part.spec.kin for spec in like):
        return None
    if first != whole:
        raise IsomergeError(
            f"{whole} is a model of images, and {first} a language model like the one inside: name "
            f"{whole}{LANGUAGE} where the result is to be a language model, or {whole} first where it is to be one "
            "of images"
        )
    sizes = {spec.sizes.get(VOCABULARY) for spec in (part.spec, *like)}
    kind = str((opened[whole].config.get("architectures") or [opened[whole].config.get("model_type")])[0])
    first_of_all = Composite(whole, opened[whole].folder, kind, {NAME: _files(opened[whole])}, part, writing)
    rest = [_Single(ref, opened[ref].folder, kind, {NAME: _files(opened[ref])}) for ref in others]
    return Inside(whole, (first_of_all, *rest), whole if len(sizes) > 1 else None)


def _files(checkpoint: Checkpoint) -> _Files:
    return _Files(NAME, checkpoint.folder, LIBRARIES[1], NAME, tuple(checkpoint.files))

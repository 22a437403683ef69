"""Stable Diffusion or FLUX in one safetensors file: its parts as checkpoints of their own,
``FILE.safetensors:PART``.

The UNet of Stable Diffusion 1, 2 and XL, the transformers of Stable Diffusion 3 and FLUX.1, text towers of CLIP,
T5's encoder and the autoencoder have the names and the config that diffusers and transformers give them;
``schedule`` are the constants of the steps, and ``rest`` is everything else, by the names of the file. What no
tensor tells of the config is known from the width of the text: the number of heads (8 in Stable Diffusion 1, heads
of 64 coordinates elsewhere).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.file_piece import Part, Piece, together, wholes
from isomerge.checkpoint.header import TensorInfo, read_header
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.opening import open_checkpoint, read_config
from isomerge.checkpoint.pipeline import LIBRARIES, Component, Pipeline
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.checkpoint.stamps import stamps_of
from isomerge.checkpoint.weights import weights_name
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors, write_tensors
from isomerge.records import Json

REST = "rest"
SCHEDULE = "schedule"
CONSTANTS = ("denoiser.", "edm_vpred.", "edm_mean.")
"""How names begin of constants that are not beside the models, with names without dots, as ``alphas_cumprod``."""
SUFFIX = ".safetensors"
LANGUAGE = ":language_model"
"""What stands behind a model where its language model alone is meant."""
Shapes = Mapping[str, tuple[int, ...]]


def is_single_file(ref: Any) -> bool:
    """Whether a reference is a file of a Stable Diffusion or a FLUX: of its U-Net or transformer at least."""
    if not isinstance(ref, str | os.PathLike) or not str(ref).endswith(SUFFIX):
        return False
    path = Path(os.path.expanduser(ref))
    if not path.is_file():
        return False
    # what knows the layouts of such files is loaded for a file alone: every reference is asked
    from isomerge.checkpoint.single_file_names import UNET
    from isomerge.checkpoint.single_file_transformers import layout_of

    names = read_header(path)[0]
    return layout_of(names) is not None or any(name.startswith(UNET) for name in names)


def split_part(ref: Any) -> tuple[Path, str] | None:
    """The file and the part that a reference names; None where it is none of that form."""
    text = os.path.expanduser(os.fspath(ref)) if isinstance(ref, str | os.PathLike) else ""
    file, colon, part = text.rpartition(":")
    return (Path(file), part) if colon and file.endswith(SUFFIX) and os.path.isfile(file) else None


def whole_of_language(ref: Any) -> str | None:
    """The model whose language model alone a reference means, ``MODEL:language_model``; None where it is none."""
    text = os.fspath(ref) if isinstance(ref, str | Path) else ""
    whole = text.removesuffix(LANGUAGE)
    return whole if whole != text and not os.path.exists(os.path.expanduser(text)) else None


def parts_of(path: Path) -> dict[str, Part]:
    """The parts of a file, by name: ``unet``, ``transformer``, ``text_encoder`` (``_2``, ``_3``), ``vae``,
    ``schedule``, ``rest``; those that there are."""
    from isomerge.checkpoint.single_file_names import unet
    from isomerge.checkpoint.single_file_text import text_encoders
    from isomerge.checkpoint.single_file_transformers import transformer
    from isomerge.checkpoint.single_file_vae import autoencoder

    shapes = {name: tuple(info.shape) for name, info in read_header(path)[0].items()}
    parts: dict[str, Part] = {}
    for known in (
        partial(_alone, "unet", unet),
        partial(_alone, "transformer", transformer),
        text_encoders,
        partial(_alone, "vae", autoencoder),
    ):
        with suppress(KeyError, IndexError, ZeroDivisionError):  # names of such a model, and shapes that none has
            parts |= dict(known(shapes))
    taken = {old for part in parts.values() for old in part.names.values()}
    left = [name for name in shapes if name not in taken]
    steps = [name for name in left if ("." not in name or name.startswith(CONSTANTS)) and len(shapes[name]) < 2]
    for word, names in ((SCHEDULE, steps), (REST, [name for name in left if name not in steps])):
        if names:
            parts[word] = Part(word, {"_class_name": word}, wholes({name: name for name in names}, shapes))
    return parts


def _alone(name: str, known: Callable[[Shapes], Part | None], shapes: Shapes) -> Iterator[tuple[str, Part]]:
    """A part of which a file has one at most, under its name."""
    if (part := known(shapes)) is not None:
        yield name, part


def open_part(ref: str | Path) -> Checkpoint:
    """A part as a checkpoint; no weights are read.

    Raises:
        IsomergeError: the file has no such part.
    """
    place = split_part(ref)
    assert place is not None
    path, name = place
    parts = parts_of(path)
    if name not in parts:
        raise IsomergeError(f"{path} has no part {name!r:.100}: there are {', '.join(parts)}")
    stamps = stamps_of([path])
    stored, part = read_header(path)[0], parts[name]
    tensors = {new: piece.info(new, stored[piece.name]) for new, piece in part.pieces.items() if not piece.turn}
    checkpoint = Checkpoint(str(ref), path, dict(part.config), tensors, stamps, _companions={}, in_folder=False)
    return _with_turned(checkpoint, {new: piece for new, piece in part.pieces.items() if piece.turn}, stored)


def _with_turned(part: Checkpoint, turned: Mapping[str, Piece], stored: Mapping[str, TensorInfo]) -> Checkpoint:
    """A part with those tensors that are not in the file as the part has them."""
    if not turned:
        return part
    raw = {new: replace(piece, shape=None).info(new, stored[piece.name]) for new, piece in turned.items()}
    as_stored = replace(part, tensors=raw)

    def reading(new: str, piece: Piece) -> Derived:
        info = replace(raw[new], shape=piece.shape or piece.stored)
        return Derived(info, lambda: piece.turned(as_stored.read(new)))

    derived = {new: reading(new, piece) for new, piece in turned.items()}
    return part.derive(derived, sources=[as_stored], origin=f"turned {', '.join(turned)}")


@dataclass(frozen=True)
class FilePart(Component):
    """One part of a file, as a component of a pipeline; ``folder`` is the file."""

    part: Part
    beside: Component | None = None
    """What it takes the place of in a folder, whose config and other files go with it there."""

    @property
    def has_weights(self) -> bool:
        """All do but constants."""
        return self.part.kind != SCHEDULE

    @property
    def is_variant(self) -> bool:
        """A file has one name."""
        return False

    @property
    def place(self) -> str:
        """See `open_part`."""
        return f"{self.folder}:{self.name}"

    def config(self) -> Json:
        """What the shapes of its tensors tell."""
        return dict(self.part.config)

    def files(self, *, allow_pickle: bool = False) -> list[Path]:
        """The file."""
        return [self.folder]

    def companions(self, *, allow_pickle: bool = False) -> dict[str, Path]:
        """Those of what it takes the place of; none in a single file."""
        return {} if self.beside is None else self.beside.companions(allow_pickle=allow_pickle)

    def equals(self, other: Component, *, allow_pickle: bool = False) -> bool:
        """Whether all tensors are equal under the same names, and no adapter changes them."""
        first, second = self.opened(), other.opened()
        if self.adapters or other.adapters or first.shapes != second.shapes:
            return False
        for name in first.tensors:
            mine, theirs = first.read(name, mapped=True), second.read(name, mapped=True)
            if mine.dtype != theirs.dtype or not mine.equal(theirs):
                return False
        return True

    def opened(self) -> Checkpoint:
        """Its tensors."""
        return open_part(self.place)

    def copy(self, out: Path, *, allow_pickle: bool = False) -> None:
        """Its tensors with the files of what it takes the place of; nothing in a single file: who writes the whole
        takes its tensors from here."""
        if self.beside is None or isinstance(self.beside, FilePart):
            return
        with disk_errors(out):
            out.mkdir()
            write_companions(out, self.companions(allow_pickle=allow_pickle))
        source = self.opened()
        tensors = {name: source.read(name, mapped=True) for name in source.tensors}
        write_tensors(out / weights_name(self.beside.config()), tensors, metadata={"format": "pt"})

    def described(self) -> str:
        """What it holds, by the beginnings of names."""
        starts = Counter(name.partition(".")[0] for name in self.part.names)
        return ", ".join(f"{n} of {start}" for start, n in sorted(starts.items()))


@dataclass(frozen=True)
class SingleFile(Pipeline):
    """A whole model in one file; ``folder`` is the file."""

    @property
    def index(self) -> Path:
        """The file."""
        return self.folder

    @property
    def is_whole(self) -> bool:
        """They do."""
        return True

    def write(self, out: Path, merged: Mapping[str, Path], copied: Mapping[str, Component]) -> None:
        """Write a file of the same names."""
        tensors: Json = {}
        opened: list[Checkpoint] = []
        for name, component in self.components.items():
            assert isinstance(component, FilePart)
            source = open_checkpoint(merged[name]) if name in merged else copied[name].opened()
            opened.append(source)
            stored: dict[str, list[tuple[Piece, Any]]] = {}
            for new, piece in component.part.pieces.items():
                stored.setdefault(piece.name, []).append((piece, source.read(new, mapped=True)))
            tensors |= {old: together(pieces) for old, pieces in stored.items()}
        write_tensors(out, tensors, metadata={"format": "pt"})
        for source in opened:
            for name in source.tensors:
                source.check_unchanged(name)


def open_single_file(ref: str | Path) -> SingleFile:
    """The file, with its parts as components."""
    path = Path(os.path.expanduser(ref))
    components = {name: FilePart(name, path, "diffusers", part.kind, part) for name, part in parts_of(path).items()}
    flux = any(part.kind.startswith("Flux") for part in components.values())
    return SingleFile(str(ref), path, f"{'FLUX' if flux else 'Stable Diffusion'} in one file", components)


def alone(name: str, ref: str) -> Component:
    """A model of its own as a component of this name: a folder or hub id, a file with such a part, or its part.

    Raises:
        IsomergeError: there is none.
    """
    path = Path(os.path.expanduser(ref))
    file, part = split_part(ref) or (path, name)
    if file.suffix == SUFFIX and file.is_file() and (known := parts_of(file).get(part)) is not None:
        return FilePart(part, file, "diffusers", known.kind, known)
    folder = local_folder(ref)
    config = read_config(folder)
    kind = config.get("_class_name") or next(iter(config.get("architectures") or ()), config.get("model_type"))
    return Component(name, folder, LIBRARIES[0], str(kind))

"""Pipelines of diffusers: a folder whose ``model_index.json`` names components, each in a folder of its own."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.companions import WEIGHTS, check_link
from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.opening import CONFIG, PIPELINE, open_checkpoint, read_config
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import VARIANT, find_weights, is_plain_name, is_weights
from isomerge.errors import IsomergeError
from isomerge.files import disk_errors
from isomerge.records import Json

LIBRARIES = ("diffusers", "transformers")
"""Where the classes of components come from whose configs say what they are; others are a pipeline's own."""
BESIDE = (".json", ".txt", ".model", ".jinja")
"""Endings of a component's files beside its weights: configs and vocabularies."""
_REMEDY = "download the pipeline again, or save it with save_pretrained"


@dataclass(frozen=True)
class Component:
    """One component of a pipeline."""

    name: str
    folder: Path
    library: str
    kind: str
    """Its class."""
    adapters: tuple[str, ...] = field(default=(), kw_only=True)
    """LoRAs that are merged into it: files and their parts."""

    @property
    def place(self) -> str:
        """What names it as a model, without adapters."""
        return str(self.folder)

    @property
    def ref(self) -> str:
        """What names it as a model."""
        return "+".join((self.place, *self.adapters))

    def config(self) -> Json:
        """Its parsed config.json."""
        return read_config(self.folder)

    @property
    def has_weights(self) -> bool:
        """Whether it holds weights: models do, tokenizers and schedulers do not."""
        return any(path.name.endswith(WEIGHTS) for path in self.folder.iterdir())

    def files(self, *, allow_pickle: bool = False) -> list[Path]:
        """The files that make it: the weights that would be loaded, configs and vocabularies.

        Raises:
            IsomergeError: weights that cannot be read (see `find_weights`), or a link that leads elsewhere.
        """
        files = sorted(path for path in self.folder.iterdir() if path.is_file() and path.name.endswith(BESIDE))
        if self.has_weights:
            weights = find_weights(self.folder, allow_pickle=allow_pickle)
            files = [path for path in files if not is_weights(path.name)]
            files += dict.fromkeys((*weights.files, weights.source))
        for path in files:
            check_link(self.folder.parent, path)
        return files

    @property
    def is_variant(self) -> bool:
        """Whether its weights have the names of a variant, which are not loaded unless that is asked for."""
        files = self.files(allow_pickle=True) if self.has_weights else []
        return any(VARIANT.fullmatch(path.name) for path in files)

    def companions(self, *, allow_pickle: bool = False) -> dict[str, Path]:
        """Its files beside the weights, by name; see `files`."""
        files = {path.name: path for path in self.files(allow_pickle=allow_pickle)}
        return {name: path for name, path in files.items() if not is_weights(name)}

    def equals(self, other: Component, *, allow_pickle: bool = False) -> bool:
        """Whether weights and configs are the same bytes under the same names, and no adapter changes them."""
        if self.adapters or other.adapters:
            return False
        mine, theirs = (component.files(allow_pickle=allow_pickle) for component in (self, other))
        if self.kind != other.kind or [path.name for path in mine] != [path.name for path in theirs]:
            return False
        with disk_errors(self.folder, "reading"):
            return all(
                filecmp.cmp(component, two, shallow=False) for component, two in zip(mine, theirs, strict=True)
            )

    def opened(self) -> Checkpoint:
        """Its weights as they are stored."""
        return open_checkpoint(self.folder)

    def copy(self, out: Path, *, allow_pickle: bool = False) -> None:
        """Copy its files into a new folder."""
        files = self.files(allow_pickle=allow_pickle)
        with disk_errors(out):
            out.mkdir()
            write_companions(out, {path.name: path for path in files})


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, opened: nothing of its components is read yet."""

    ref: str
    folder: Path
    kind: str
    components: Mapping[str, Component]

    @property
    def index(self) -> Path:
        """The file that names its components."""
        return self.folder / PIPELINE

    @property
    def reads(self) -> list[Path]:
        """What it is read from: its folder, and files of adapters."""
        adapters = {name for part in self.components.values() for name in part.adapters}
        return [self.folder, *(Path(name.rpartition(":")[0]) for name in sorted(adapters))]

    @property
    def is_whole(self) -> bool:
        """Whether its components lie in one checkpoint, and in no folders of their own."""
        return False

    def write(self, out: Path, merged: Mapping[str, Path], copied: Mapping[str, Component]) -> None:
        """Write the whole of one checkpoint, where it is one.

        Args:
            out: the file like `index`.
            merged: the folders of parts that were merged.
            copied: where the others come from.
        """
        raise NotImplementedError(self.kind)

    @property
    def models(self) -> dict[str, str]:
        """The classes of those components that are merged: they hold weights, and are no pipeline's own."""
        parts = self.components.items()
        return {name: part.kind for name, part in parts if part.library in LIBRARIES and part.has_weights}


def is_pipeline(ref: Any) -> bool:
    """Whether a reference is the folder of a pipeline."""
    if not isinstance(ref, str | os.PathLike):
        return False
    folder = Path(os.path.expanduser(ref))
    return (folder / PIPELINE).is_file() and not (folder / CONFIG).is_file()


def open_pipeline(ref: str | Path) -> Pipeline:
    """The pipeline in a folder.

    Raises:
        IsomergeError: its ``model_index.json`` is damaged, or names a component that is not there.
    """
    folder = Path(os.path.expanduser(ref))
    index = folder / PIPELINE
    content = read_object(index, remedy=_REMEDY)
    kind = content.get("_class_name")
    if not isinstance(kind, str):
        raise IsomergeError(f"{index} must name the pipeline's class as _class_name; {_REMEDY}")
    components: dict[str, Component] = {}
    for name, value in content.items():
        if name.startswith("_") or not isinstance(value, list) or value == [None, None]:
            continue  # a setting, or a component that this pipeline goes without
        if not is_plain_name(name) or len(value) != 2 or not all(isinstance(word, str) for word in value):
            raise IsomergeError(
                f"{index}: component {name!r:.100} is {value!r:.100}, expected a library and a class; {_REMEDY}"
            )
        if not (folder / name).is_dir():
            raise IsomergeError(f"{folder / name} is missing, and {index.name} names this component; {_REMEDY}")
        components[name] = Component(name, folder / name, *value)
    if not components:
        raise IsomergeError(f"{index} names no component; {_REMEDY}")
    return Pipeline(str(ref), folder, kind, components)

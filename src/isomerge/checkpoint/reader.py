"""An open checkpoint, whose tensors are read one at a time."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.arithmetic import is_reproducible
from isomerge.checkpoint.checksums import Checksum, Sums, file_checksum, tensor_place, weights_checksum
from isomerge.checkpoint.companions import companion_files
from isomerge.checkpoint.disk import read_ahead, read_into
from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.mapped_files import map_private
from isomerge.checkpoint.own_class import OwnClass
from isomerge.checkpoint.stamps import Stamp, stamps_here
from isomerge.checkpoint.stored_tensor import as_described, as_tensor, changed, read_errors, stored_dtype
from isomerge.errors import IsomergeError
from isomerge.files import open_fd
from isomerge.records import Json

if TYPE_CHECKING:
    import torch

VOCABULARY = "vocabulary "
"""Begins what `Checkpoint.origin` says of a view in another vocabulary."""
Recipe = Callable[[], "torch.Tensor"]
"""Computes one tensor: on the CPU, in memory of its own, of the dtype and shape that its `TensorInfo` says."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A recipe of a tensor that is computed more finely than it is stored."""

    exact: Recipe
    """As it is computed, of another dtype than its `TensorInfo` says."""
    rounded: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self) -> torch.Tensor:
        return self.rounded(self.exact())


@dataclass(frozen=True, slots=True)
class Derived:
    """One tensor of a view: ``info`` describes it, ``read`` computes it.

    ``info.file`` is the file that makes it differ (an adapter's, another model's), so that whoever watches the
    files of a checkpoint's tensors notices a change. Its name, bytes and offset are the view's to say.
    """

    info: TensorInfo
    read: Recipe

    def exact(self) -> torch.Tensor:
        """The tensor as it is computed, which may be more finely than it is stored."""
        return self.read.exact() if isinstance(self.read, Rounded) else self.read()


@dataclass(frozen=True, slots=True)
class Lent:
    """Rows of the tables of tokens of a view that are other models'."""

    rows: Mapping[int, tuple[str, ...] | None]
    """Those that the model lacks, and the models (`Checkpoint.ref`) of whose rows of this number they are the
    mean; of none: the mean of all other rows; None: zero."""
    whole: Checkpoint | None = None
    """The same view with all rows; None: it has them."""
    uncommon: frozenset[int] = frozenset()
    """Rows that some model of the run lacks, where this view is without them."""


@dataclass(eq=False, repr=False)
class Checkpoint:
    """An open checkpoint: its configuration and the description of every tensor; no weights in memory.

    ``ref`` is what the user gave, ``folder`` where the files are, ``config`` the parsed
    config.json, and ``tensors`` the stored tensors in the order of the files and their bytes.

    A view (see `derive`) is a checkpoint some of whose tensors are computed when they are read: ``recipes`` has
    these, and ``origin`` says in words how they were made. It is read like any other.
    """

    ref: str
    folder: Path
    config: Json
    tensors: dict[str, TensorInfo]
    _stamps: dict[Path, Stamp] = field(repr=False)
    _pickled: dict[str, torch.Tensor] | None = field(default=None, repr=False)
    recipes: Mapping[str, Recipe] = field(default_factory=dict, repr=False)
    origin: tuple[str, ...] = ()
    in_folder: bool = True
    """Whether who reads ``folder`` gets the same function: not of a view with other tensors or another config.
    A head that was untied lies in no file, but who asks for it unties it again."""
    _companions: Mapping[str, bytes | Path] | None = field(default=None, repr=False)
    _sums: dict[tuple[Path, int], Checksum] = field(default_factory=dict, repr=False)
    """Of the tensors that were read; shared with the copies and views of this checkpoint."""
    _lent: tuple[Mapping[tuple[Path, int], Checksum], ...] = field(default=(), repr=False)
    """The same of the sources of a view, which sum what its recipes read."""
    _borrowed: frozenset[Path] = frozenset()
    own: OwnClass | None = field(default=None, repr=False)
    """What runs the tensors, where that is a module of one's own; None: what transformers builds."""
    lent: Lent | None = field(default=None, repr=False)
    """What of its tables is in the bases of other models; None: nothing."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref}: {', '.join(f'{n} {name}'.strip() for name, n in self._told())}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(n)}</td></tr>" for name, n in self._told())
        return f"<table><caption>Checkpoint {escape(self.ref)}</caption><tbody>{rows}</tbody></table>"

    def _told(self) -> list[tuple[str, str]]:
        """What a line and a table say of it."""
        kinds = " and ".join(sorted({info.dtype for info in self.tensors.values()}))
        parts = [("", str(self.config.get("model_type") or "no model_type")), ("tensors", str(len(self.tensors)))]
        return [*parts, ("", kinds or "empty"), ("MB", f"{self.nbytes / 1e6:.4g}"), *(("", o) for o in self.origin)]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def places(self) -> list[Path]:
        """Its files and their folder, which no output may replace; none of tensors in memory."""
        return [*self.files, self.folder] if self.files else []

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, by name."""
        return {name: tuple(info.shape) for name, info in self.tensors.items()}

    def with_copies(self, copies: Mapping[str, str], **config: Any) -> Checkpoint:
        """The same checkpoint with further tensors that are copies of stored ones (new name -> stored name).

        ``config`` are the keys of the configuration that change with it.
        """
        extra = {name: replace(self.tensors[stored], name=name) for name, stored in copies.items()}
        pickled = self._pickled
        if pickled is not None:
            pickled = {**pickled, **{name: pickled[stored] for name, stored in copies.items()}}
        recipes = {**self.recipes, **{new: self.recipes[old] for new, old in copies.items() if old in self.recipes}}
        return replace(
            self,
            config={**self.config, **config},
            tensors={**self.tensors, **extra},
            _pickled=pickled,
            recipes=recipes,
        )

    def derive(
        self,
        derived: Mapping[str, Derived],
        *,
        sources: Iterable[Checkpoint] = (),
        lenders: Iterable[Checkpoint] = (),
        origin: str,
        ref: str | None = None,
        config: Mapping[str, Any] | None = None,
        drop: Iterable[str] = (),
        companions: Mapping[str, bytes | Path] | None = None,
        lent: Lent | None = None,
    ) -> Checkpoint:
        """A view of this checkpoint, with tensors that are computed when they are read, one at a time.

        Args:
            derived: the tensors that are new or take the place of a stored one, which keeps its position.
            sources: the checkpoints whose tensors the recipes read: their files are then among `files`.
            lenders: the same of other models, whose files are not among `own_files`.
            origin: how they were made, complete: with `files` it must tell two views apart.
            ref: what to call the view; what this one is called when None.
            config: the parsed config.json of the view; this one's when None.
            drop: tensors that the view does not have.
            companions: the files beside the weights (name to content or path); those of ``folder`` when None.
            lent: the rows that the view has of other models; as this one when None.
        """
        gone = set(drop)
        infos = self.tensors | {name: derived[name].info.computed(name) for name in derived}
        recipes = {**self.recipes, **{name: d.read for name, d in derived.items()}}
        stamps, theirs, own = dict(self._stamps), list(self._lent), set(self.own_files)
        sources = list(sources)
        for source in (*sources, *lenders):
            stamps |= source._stamps
            theirs += [source._sums, *source._lent]
        own.update(*(source.own_files for source in sources))
        same = not derived and not gone and (config is None or dict(config) == self.config)
        return replace(
            self,
            ref=self.ref if ref is None else ref,
            in_folder=self.in_folder and same,
            config=self.config if config is None else dict(config),
            tensors={name: info for name, info in infos.items() if name not in gone},
            recipes={name: recipe for name, recipe in recipes.items() if name not in gone},
            origin=(*self.origin, origin),
            _stamps=stamps,
            _lent=tuple({id(sums): sums for sums in theirs if sums is not self._sums}.values()),
            _companions=self._companions if companions is None else companions,
            lent=lent or self.lent,
            _borrowed=frozenset(stamps) - own,
        )

    @property
    def files(self) -> list[Path]:
        """Every file that the tensors depend on, sorted; for a view, those of adapters and other models as well."""
        return sorted(self._stamps)

    @property
    def own_files(self) -> list[Path]:
        """Those of `files` that are the model's (its adapters', its slices'), and not of one that lends it rows."""
        return [file for file in self.files if file not in self._borrowed]

    def identity(self) -> list[Any]:
        """What determines the tensors, in JSON: path, size and date (ns) of every file when it was opened, and
        ``origin``."""
        return [
            *(
                [os.fspath(file.resolve()), self._stamps[file].size, self._stamps[file].modified_ns]
                for file in self.files
            ),
            *self.origin,
        ]

    @property
    def has_own_files(self) -> bool:
        """Whether `companions` are the files of ``folder``, and not a view's own."""
        return self._companions is None

    def companions(self) -> dict[str, bytes | Path]:
        """The files that travel with the weights (see `companion_files`): name to content or path."""
        return dict(companion_files(self.folder) if self._companions is None else self._companions)

    def read(self, name: str, *, mapped: bool = False, exact: bool = False) -> torch.Tensor:
        """The tensor ``name``: stored dtype and shape, contiguous, on the CPU, in memory of its own.

        With ``mapped``, in pages of its file where that can be, which are copied only when they are written to:
        nothing is read twice or copied. The caller must call `check_unchanged` after its last use. With ``exact``,
        one that is computed more finely than it is stored (`is_finer`) is not rounded.

        Raises IsomergeError when there is no such tensor, when its file changed since it was opened, when
        it cannot be read, or when torch has no such dtype.
        """
        info = self._info(name)
        if (recipe := self.recipes.get(name)) is not None:
            if exact and isinstance(recipe, Rounded):
                return recipe.exact().contiguous()
            return as_described(recipe(), info)
        pages = self.pages(name) if mapped else None
        if pages is None:
            return self._read(info)
        self._sum(info, pages)
        return as_tensor(pages, info)

    def is_finer(self, name: str) -> bool:
        """Whether a tensor is computed more finely than it is stored."""
        return isinstance(self.recipes.get(name), Rounded)

    def made_of(self, name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Derived:
        """A tensor of a view that ``make`` makes of one of this checkpoint, in the dtype in which it is given it;
        as finely as that is computed."""
        info, recipe = self.tensors[name], self.recipes.get(name)
        if isinstance(recipe, Rounded):
            return Derived(info, replace(recipe, exact=partial(_made, recipe.exact, make)))
        return Derived(info, partial(_made, partial(self.read, name), make))

    def as_it_is(self, name: str) -> Derived:
        """A tensor of a view that has it as this checkpoint does."""
        return Derived(self.tensors[name], self.recipes[name] if self.is_finer(name) else partial(self.read, name))

    def pages(self, name: str) -> memoryview | None:
        """The stored bytes of the tensor ``name`` in pages of its file, which are copied only when they are written
        to.

        They are not summed: whoever reads all of them tells `summed`, and asks `check_unchanged` then. None where
        the tensor is not stored as it is read: computed, pickled, without entries, or at an odd place; and where
        results would depend on its place in the file (`isomerge.arithmetic`).

        Raises IsomergeError as `read` does.
        """
        info = self._info(name)
        if name in self.recipes or self._pickled is not None or not info.nbytes:
            return None
        if info.offset % stored_dtype(info).itemsize or not is_reproducible():
            return None
        with read_errors(info), open_fd(info.file) as fd:
            self._check_unchanged(info, os.fstat(fd))
            return map_private(fd, info.offset, info.nbytes)

    def is_summed(self, name: str) -> bool:
        """Whether the checksum of the stored tensor ``name`` is known."""
        return tensor_place(self.tensors[name]) in self._sums

    def summed(self, name: str, crc32: int) -> None:
        """Take over the checksum of a tensor whose `pages` were read."""
        info = self.tensors[name]
        self._sums.setdefault(tensor_place(info), Checksum(info.nbytes, crc32))

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            near = difflib.get_close_matches(name, self.tensors, n=1)
            hint = f"did you mean {near[0]!r}" if near else "its tensors are those that its headers list"
            raise IsomergeError(f"{self.ref} ({self.folder}) has no tensor {name!r}; {hint}")
        return info

    def expect(self, name: str) -> None:
        """Has the system begin to read the tensor from the disk, if it is not in memory; returns at once."""
        info = self.tensors[name]
        if name in self.recipes or self._pickled is not None:
            return
        with suppress(OSError), open_fd(info.file) as fd:  # reading it will say what is wrong
            read_ahead(fd, info.offset, info.nbytes)

    def check_unchanged(self, name: str) -> None:
        """Raises IsomergeError when the tensor's file is not as it was when the checkpoint was opened."""
        info = self.tensors[name]
        if name not in self.recipes and self._pickled is None:
            try:
                self._check_unchanged(info, os.stat(info.file))
            except OSError:
                raise changed(info) from None

    def _read(self, info: TensorInfo) -> torch.Tensor:
        import torch

        with read_errors(info), open_fd(info.file) as fd:
            self._check_unchanged(info, os.fstat(fd))
            if self._pickled is not None:
                return self._pickled[info.name].clone(memory_format=torch.contiguous_format)
            dtype = stored_dtype(info)
            raw = torch.empty(info.nbytes, dtype=torch.uint8)
            if read_into(fd, raw.numpy().data, info.offset) < info.nbytes:
                raise changed(info)
            self._check_unchanged(info, os.fstat(fd))
        self._sum(info, raw.numpy().data)
        return raw.view(dtype).reshape(info.shape)

    def _sum(self, info: TensorInfo, content: memoryview) -> None:
        """Sums a tensor when it is read for the first time; the file is watched for changes anyway."""
        place = tensor_place(info)
        if place not in self._sums:
            self._sums[place] = Checksum.of(content)

    def checksums(self) -> dict[Path, Checksum]:
        """The checksums of all `files`; of safetensors, tensors that were read before are not read again.

        Raises IsomergeError when a file changed since the checkpoint was opened, or cannot be read.
        """
        checksums, known = (
            {},
            {place: checksum for sums in (*self._lent, self._sums) for place, checksum in sums.items()},
        )
        for file in self.files:
            stored = file.suffix == ".safetensors"
            checksums[file] = weights_checksum(file, known) if stored else file_checksum(file)
            with suppress(OSError):
                if Stamp.of(file.stat()) == self._stamps[file]:
                    continue
            raise IsomergeError(
                f"{file} changed after it was opened; let the program that writes it finish, start again"
            )
        return checksums

    def sums(self, names: Iterable[str]) -> Sums:
        """The checksums of those of the tensors that were read here from their files."""
        places = [tensor_place(self.tensors[name]) for name in names]
        sums = [(place, self._sums[place]) for place in places if place in self._sums]
        return [(str(file), offset, check.nbytes, check.crc32) for (file, offset), check in sums]

    def add_sums(self, sums: Sums) -> str | None:
        """Take over the checksums of tensors that another process has read; the first file of which that process
        has read other bytes than were known, None where all agree.
        """
        for file, offset, nbytes, crc32 in sums:
            if self._sums.setdefault((Path(file), offset), check := Checksum(nbytes, crc32)) != check:
                return file
        return None

    def __setstate__(self, state: Json) -> None:
        """Unpickled, on another machine perhaps: raises IsomergeError where its files are others
        (`stamps_here`)."""
        self.__dict__.update(state)
        self._stamps = stamps_here(self._stamps)

    def _check_unchanged(self, info: TensorInfo, now: os.stat_result) -> None:
        if Stamp.of(now) != self._stamps[info.file]:
            raise changed(info)


def made_from(
    info: TensorInfo, sources: Iterable[tuple[Checkpoint, str]], make: Callable[..., torch.Tensor]
) -> Derived:
    """A tensor of a view that ``make`` makes of several tensors, which lie in these checkpoints under these names;
    as finely as any of them is computed. ``make`` is told whether it reads them ``exact``, as they are computed:
    what it makes is rounded then."""
    if not any(source.is_finer(name) for source, name in sources):
        return Derived(info, partial(make, exact=False))
    return Derived(info, Rounded(partial(make, exact=True), partial(_stored_as, info.dtype)))


def _made(read: Recipe, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return make(read())


def _stored_as(code: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch_dtype(code))

"""Statistics of a model: what its activations and gradients say, gathered once and read by every later match and
merge.

One safetensors file per model. Keys are ``<kind>/<place>``. ``rows`` are activations [rows, width] at every tap
(pairs of rows of two models give the cross-Grams that matching needs), ``mean`` [width] and ``gram`` [width,
width] are E x and E x x^T over every token, in the model's own coordinates. What linear layers read is there by
its Gram alone, once where several read the same. ``fisher`` and ``kfac`` are of blocks
(`isomerge.observe.stats.fisher_information`). Further kinds can be added beside these: a reader takes the kinds
that it knows.

A file belongs to one model, known by a digest of its weights, and moves along with it instead of being made again.
For a group element g that acts on weights, activations x move as x -> g x and gradients as grad -> g^-T grad. So a
Gram moves to g G g^T, exactly, for every group. A diagonal Fisher E grad_i^2 is no tensor: it stays diagonal only
where g takes every coordinate to one coordinate (permutations, signs, scales, and products of them).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from isomerge.arithmetic import aligned
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.errors import IsomergeError
from isomerge.files import write_tensors
from isomerge.models.recognised import Model
from isomerge.observe.stats.fisher_information import FisherInformation
from isomerge.observe.stats.taps import Activations, Tap, plain
from isomerge.records import Json
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom, length, size
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.groups import SCALES
from isomerge.symmetry.language.spec import Shift, Space
from isomerge.symmetry.stage import MONOMIAL, Stage, shift_atoms, shift_key

FORMAT = "isomerge-statistics"
VERSION = 1


def read_statistics_header(path: str | Path, model: Model) -> tuple[Json, frozenset[str]]:
    """The header of a statistics file and the names of its tensors; no tensor is read, nor a weight of the model.

    Raises:
        IsomergeError: no such file, none of ours, one of another version, or one for another architecture than
            ``model``'s.
    """
    try:
        with safe_open(str(path), "pt") as file:
            header = json.loads((file.metadata() or {}).get("isomerge", "{}"))
            names = frozenset(file.keys())
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise IsomergeError(
            f"{path}: not a readable statistics file ({error}): make one with isomerge stats"
        ) from None
    header = header if isinstance(header, dict) else {}
    if header.get("format") != FORMAT:
        raise IsomergeError(f"{path}: not a statistics file of isomerge: make one with isomerge stats")
    if header.get("version") != VERSION:
        raise IsomergeError(
            f"{path}: version {header.get('version')} of the format, but this program reads {VERSION}: make it "
            "again with isomerge stats"
        )
    if header.get("model_type") != model.spec.model_type:
        raise IsomergeError(
            f"{path}: made for {header.get('model_type')}, but {model.ref} is {model.spec.model_type}"
        )
    return header, names


def check_statistics(files: Sequence[str], models: Sequence[Model]) -> None:
    """Read the headers of statistics files, one per model, before anything is written.

    Raises:
        IsomergeError: see `read_statistics_header`; or files of different data.
    """
    headers = [read_statistics_header(file, model)[0] for file, model in zip(files, models, strict=True)]
    check_same_data(files, [header.get("rows_of") for header in headers])


def check_same_data(files: Sequence[str], rows_of: Sequence[Any]) -> None:
    """Refuse statistics files whose rows do not belong together.

    Args:
        files: of statistics.
        rows_of: which rows each one has (`isomerge.observe.stats.taps.pairing`).

    Raises:
        IsomergeError: naming the first file and the one that differs from it.
    """
    for file, rows in zip(files[1:], rows_of[1:], strict=True):
        if rows == rows_of[0]:
            continue
        if lacking := [name for name, named in ((files[0], rows_of[0]), (file, rows)) if not named]:
            raise IsomergeError(
                f"{lacking[0]} has no rows of activations: make it with --kinds activations,regmean"
            )
        if str(rows).split()[1:] != str(rows_of[0]).split()[1:]:
            raise IsomergeError(
                f"{files[0]} and {file} have rows that were chosen otherwise: make both with the same --rows "
                f"and --batch-size"
            )
        raise IsomergeError(
            f"{files[0]} and {file} are of different data: make both with the same --data, --limit and --length"
        )


KINDS = {"activations": "rows", "regmean": "gram", "fisher": "fisher", "kfac": "kfac"}
"""From the kinds that `isomerge stats` is asked for to the first word of their keys; readers ignore other words."""
SIZED_BY_TAP = ("rows", "mean", "gram")


def weights_digest(model: Model) -> str:
    """The sha256 of every stored tensor's name, type, shape and bytes, in the order of names; read one by one.

    How tensors are spread over files does not matter, nor does a head that `recognise` untied.
    """
    digest = hashlib.sha256()
    seen: set[tuple[Any, int]] = set()
    names = []
    for name, info in model.checkpoint.tensors.items():
        place = (info.file, info.offset)
        if info.offset < 0 or info.nbytes == 0 or place not in seen:
            names.append(name)
        seen.add(place)
    for name in sorted(names):
        tensor = model.checkpoint.read(name)
        digest.update(f"{name} {model.checkpoint.tensors[name].dtype} {list(tensor.shape)}\n".encode())
        digest.update(content_of(tensor))
    return digest.hexdigest()


def axis_number(tap: Tap, axes: Any) -> int:
    """Which axis of a weight a tap has, exchanged or as it is."""
    return [plain(axis, flip=tap.side == "in") for axis in axes].index(tap.axis)


class StatisticsFile:
    """A file and the model that it was made of.

    Raises:
        IsomergeError: not a statistics file, one of another model, or damaged.
    """

    def __init__(self, path: str | Path, model: Model) -> None:
        self.path, self.model = Path(path), model
        self.header, self.names = read_statistics_header(self.path, model)
        if self.header.get("model") != weights_digest(model):
            raise IsomergeError(
                f"{self.path}: made for another model than {model.ref}: make one of this one with isomerge stats"
            )
        self.blocks = {block.key: block for block in model.blocks}
        self.taps = self._read_taps()

    @property
    def kinds(self) -> set[str]:
        """The kinds that it holds, by the names of ``--kinds``."""
        words = {name.partition("/")[0] for name in self.names}
        return {kind for kind, word in KINDS.items() if word in words}

    def read(self, name: str) -> Tensor:
        """One tensor, checked against the model: its shape, and that its numbers are finite.

        Raises:
            IsomergeError: it is damaged.
        """
        try:
            with safe_open(str(self.path), "pt") as file:
                x = aligned(file.get_tensor(name))
        except (OSError, SafetensorError) as error:
            raise IsomergeError(f"{self.path}: {name} cannot be read ({error}): make the file again") from None
        if not (x.is_floating_point() and self._fits(name, list(x.shape)) and bool(x.isfinite().all())):
            raise IsomergeError(
                f"{self.path}: {name} is not what a tap of {self.model.ref} gives: this file is damaged, make "
                f"it again"
            )
        return x

    @cached_property
    def linears(self) -> Mapping[str, tuple[str, int]]:
        """From weights of linear layers (block keys) to the tap of their input and the axis that reads it.

        Older files tell of readers of the residual stream; the others have taps of their own.
        """
        linears: dict[str, tuple[str, int]] = {}
        try:
            for block, (tap, axis) in self.header.get("linears", {}).items():
                linears[block] = (str(tap), int(axis))
            if "linears" not in self.header:
                own = {t.block: k for k, t in self.taps.items() if t.side == "in" and f"gram/{k}" in self.names}
                for block, tap in {**own, **self.header.get("inputs", {})}.items():
                    axes: Any = self.blocks[block].axes
                    linears[block] = (tap, [plain(axis, flip=True) for axis in axes].index(self.taps[tap].axis))
            good = all(
                f"gram/{tap}" in self.names and self._reads(b, tap, axis) for b, (tap, axis) in linears.items()
            )
        except (AttributeError, TypeError, ValueError, KeyError):
            good = False
        if not good:
            raise IsomergeError(
                f"{self.path}: its list of linear layers does not fit {self.model.ref}: make it again"
            )
        return linears

    def _reads(self, block: str, tap: str, axis: int) -> bool:
        """Whether a weight has two axes, one of which reads what a tap sees."""
        axes = self.blocks[block].axes
        return axes is not None and len(axes) == 2 and axis in (0, 1) and tap in self.taps

    def _fits(self, name: str, shape: list[int]) -> bool:
        """Whether a tensor has a shape that its name allows."""
        kind, _, key = name.partition("/")
        if kind in SIZED_BY_TAP:
            tap = self.taps.get(key)
            wanted = None if tap is None else size(tap.axis, self.model.spec.sizes)
            if tap is None or (wanted is not None and shape[-1:] != [wanted]):
                return False
            return kind != "gram" or (len(shape) == 2 and shape[0] == shape[1])
        block = self.blocks.get(key)
        if block is None:
            return False
        stored = self.model.checkpoint.tensors[self.model.names[block.canonical[0]]].shape
        if kind == "fisher":
            return shape == [*block.lead, *stored]
        axis = self.linears.get(key, ("", 0))[1]
        return kind == "kfac" and len(stored) == 2 and shape in ([stored[1 - axis]], [stored[1 - axis]] * 2)

    def _read_taps(self) -> dict[str, Tap]:
        taps = {}
        try:
            for key, block, side, at in self.header.get("taps", ()):
                axes: Any = self.blocks[block].axes
                taps[key] = Tap(key, block, plain(axes[at], flip=side == "in"), self.blocks[block].scope, side)
        except (TypeError, ValueError, KeyError, IndexError):
            raise IsomergeError(
                f"{self.path}: its list of taps does not fit {self.model.ref}: make it again"
            ) from None
        return taps


DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Statistics:
    """What was gathered of the activations of one model, in its own coordinates."""

    activations: Activations
    """Paired rows of the taps that matching looks at."""
    taps: Mapping[str, Tap] = field(default_factory=dict)
    """Every tap that has a Gram."""
    grams: Mapping[str, Tensor] = field(default_factory=dict)
    """E x x^T over all tokens, float64 [width, width], by tap."""
    means: Mapping[str, Tensor] = field(default_factory=dict)
    """E x, float64 [width], by tap."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """How many rows a Gram is the mean of: tokens without padding, or patches, or examples."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """From linear layers that read a residual stream (block keys) to the tap whose Gram is that of their input."""
    linears: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """From every linear layer to the tap whose Gram is that of its input, and which axis of its weight reads it."""

    def of_inputs(self) -> Statistics:
        """The Grams of what reads a residual stream, alone: those of neurons are far larger."""
        kept = {key: self.taps[key] for key in self.taps if key in set(self.inputs.values())}
        grams, means = ({key: of[key] for key in kept} for of in (self.grams, self.means))
        return replace(self, activations=Activations({}, {}, ""), taps=kept, grams=grams, means=means, linears={})

    def moved(self, alignment: Alignment) -> Statistics:
        """Those of the moved model, exactly; rows up to what shifts of biases add."""
        grams, means = {}, {}
        for key, tap in self.taps.items():
            grams[key], means[key] = moved_moments(alignment, tap, self.grams[key], self.means[key])
        return replace(self, activations=self.activations.moved(alignment), grams=grams, means=means)


def write_statistics(
    path: Path,
    statistics: Statistics,
    model: Model,
    *,
    dtype: str = "float32",
    fisher: FisherInformation | None = None,
) -> Json:
    """Write a statistics file, complete or not at all; equal statistics give equal bytes. Returns its header.

    Args:
        path: the file.
        statistics: of the model's activations.
        dtype: of the rows, ``float32`` or ``float16`` (half the size, 3 digits). Grams, Fishers and factors are
            float32, means float64.
        fisher: of its gradients.

    Raises:
        IsomergeError: rows that do not fit into float16, an unknown dtype, or a file that cannot be written.
    """
    if dtype not in DTYPES:
        raise IsomergeError(f"--dtype {dtype}: choose from {', '.join(DTYPES)}")
    acts = statistics.activations
    tensors = {f"rows/{key}": x.to(getattr(torch, dtype)).contiguous() for key, x in acts.values.items()}
    for key, x in tensors.items():
        if not bool(x.isfinite().all()):
            raise IsomergeError(f"{path}: {key} has values that {dtype} cannot hold: choose --dtype float32")
    tensors |= {f"gram/{key}": x.float().contiguous() for key, x in statistics.grams.items()}
    tensors |= {f"mean/{key}": x.contiguous() for key, x in statistics.means.items()}
    if fisher is not None:
        tensors |= {f"fisher/{key}": x.float().contiguous() for key, x in fisher.fishers.items()}
        tensors |= {f"kfac/{key}": x.float().contiguous() for key, x in fisher.factors.items()}
    header = _header(statistics, fisher, model)
    write_tensors(path, tensors, header)
    return header


def _header(statistics: Statistics, fisher: FisherInformation | None, model: Model) -> Json:
    """Everything of a file that is no tensor."""
    axes: Json = {block.key: block.axes for block in model.blocks}
    every = {**statistics.activations.taps, **statistics.taps}
    header: Json = {
        "format": FORMAT,
        "version": VERSION,
        "model_type": model.spec.model_type,
        "model": weights_digest(model),
        "rows_of": statistics.activations.fingerprint,
        "taps": [[k, t.block, t.side, axis_number(t, axes[t.block])] for k, t in every.items()],
        "tokens": dict(statistics.tokens),
        "inputs": dict(statistics.inputs),
        "linears": {block: list(place) for block, place in statistics.linears.items()},
    }
    if fisher is not None:
        norm = sum(float(x.square().sum()) for x in fisher.fishers.values()) ** 0.5
        header["fisher"] = {
            "labels": fisher.labels,
            "samples": fisher.samples,
            "norm": norm,
            "tie": not model.has_own_head,
            "tied": dict(fisher.tied),
        }
    return header


def read_activations(path: Path, model: Model) -> Activations:
    """The paired rows of a statistics file.

    Raises:
        IsomergeError: not a statistics file, one of another model, or damaged.
    """
    return _activations(StatisticsFile(path, model))


def _activations(file: StatisticsFile) -> Activations:
    values = {key: file.read(f"rows/{key}").float() for key in file.taps if f"rows/{key}" in file.names}
    if not values:
        raise IsomergeError(
            f"{file.path}: there are no activations in this file: make it again with isomerge stats"
        )
    return Activations({key: file.taps[key] for key in values}, values, str(file.header.get("rows_of")))


def read_statistics(path: Path, model: Model) -> Statistics:
    """What a statistics file says of activations.

    Raises:
        IsomergeError: see `read_activations`.
    """
    file = StatisticsFile(path, model)
    grams = {key: file.read(f"gram/{key}").double() for key in file.taps if f"gram/{key}" in file.names}
    means = {key: file.read(f"mean/{key}") for key in grams if f"mean/{key}" in file.names}
    tokens, inputs = file.header.get("tokens", {}), file.header.get("inputs", {})
    if (
        means.keys() != grams.keys()
        or not grams.keys() <= tokens.keys()
        or not set(inputs.values()) <= grams.keys()
    ):
        raise IsomergeError(f"{path}: means or Grams are missing: this file is damaged, make it again")
    taps = {key: file.taps[key] for key in grams}
    return Statistics(_activations(file), taps, grams, means, tokens, inputs, file.linears)


# Groups whose every element takes coordinates to coordinates; of others, single elements may.
COORDINATEWISE = MONOMIAL | {*SCALES}
# Matrix entries below this count as zeros, shifts below it as none: elements carry rounding of float32 weights.
ZERO = 1e-6


def moved_moments(alignment: Alignment, tap: Tap, gram: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """E x x^T [width, width] and E x [width] at a tap of the moved model, exactly, shifts of biases included.

    A shift d of a value bias adds d to what the output projection reads (attention weights sum to one), and to what
    the biased layer gives: E (x + d)(x + d)^T = G + m d^T + d m^T + d d^T.
    """
    gram, mean = gram.clone(), mean.clone()
    for stage in alignment.stages:
        for d in _shifts_at(stage, tap):
            d = d.to(gram.dtype)
            gram = gram + mean.outer(d) + d.outer(mean) + d.outer(d)
            mean = mean + d
        gram = _act(stage, tap, _act(stage, tap, gram).mT).mT.contiguous()
        mean = _act(stage, tap, mean[None])[0]
    return gram, mean


def moved_factor(alignment: Alignment, tap: Tap, factor: Tensor) -> Tensor:
    """E g g^T [width, width] of the gradient at a tap (`gradient_tap`) of the
    moved model.

    A diagonal [width] belongs to an axis that nothing moves, and stays.
    """
    if factor.ndim == 1:
        return factor
    for stage in alignment.stages:
        factor = _act(stage, tap, _act(stage, tap, factor).mT).mT.contiguous()
    return factor


def moved_fisher(alignment: Alignment, block: Block, fisher: Tensor, ref: str = "") -> Tensor:
    """The diagonal Fisher of a block of the moved model, exactly: W' = s W has F' = F / s^2.

    With a monomial g, ``(g^-T grad)_i^2 = (g^-T sqrt(F))_i^2``: so the elements act on square roots as on
    gradients.

    Args:
        alignment: must take every coordinate of the block to one coordinate.
        block: whose tensor it is.
        fisher: E grad^2 in the shape of the block, before the alignment.
        ref: what the user calls the model, for the message.

    Raises:
        IsomergeError: a rotation or a shift mixes coordinates of this tensor; naming it, the space and the way out.
    """
    check_closed(alignment, block, ref)
    moved = fisher.clamp_min(0).sqrt().contiguous()
    for (view,), view_atoms, _ in leaves(alignment.spec, block, moved):
        dual = tuple(a if a.name.isdigit() else replace(a, dual=not a.dual) for a in view_atoms)
        alignment.act_on_view(view, dual, dict(block.scope))
    return moved.square_()


def check_closed(alignment: Alignment, block: Block, ref: str = "") -> None:
    """Refuse an alignment under which the diagonal Fisher of a block does not stay diagonal.

    Raises:
        IsomergeError: see `moved_fisher`.
    """
    for stage in alignment.stages:
        mixing = _mixing_space(stage, block) or _mixing_shift(stage, block)
        if mixing:
            raise IsomergeError(
                f"{ref + ': ' if ref else ''}the diagonal Fisher of {block.key} cannot follow {mixing}, which "
                "mixes its coordinates: use the method fisher_kfac (isomerge stats --kinds kfac), choose --spaces "
                "of permutations and scales alone (such as h,ff,scale), or give --data, so that it is computed on "
                "the aligned model"
            )


def _mixing_space(stage: Stage, block: Block) -> str | None:
    """The first space whose element at a block is not monomial."""
    for name in dict.fromkeys(a.name for a in block.atoms if a.name in stage.spec.spaces):
        space = stage.spec.spaces[name]
        g = stage.element(name, dict(block.scope))
        if g is not None and space.group_name not in COORDINATEWISE and not _is_monomial(space, g, stage):
            return f"the space {name} ({space.group_name})"
    return None


def _is_monomial(space: Space, g: Tensor, stage: Stage) -> bool:
    """Whether elements [*b, ...] have one entry other than zero in every row and column, as matrices."""
    n, batch = stage.spec.sizes[space.name], tuple(stage.spec.sizes[i] for i in stage.spec.batch(space))
    matrices = g.ndim == len(batch) + 2
    eye = None if matrices else torch.eye(n, dtype=torch.float64).expand(*batch, n, n)
    sizes = (g if eye is None else space.group.act(g, eye, False)).abs()
    big = sizes > ZERO * sizes.amax((-2, -1), keepdim=True)
    return bool((big.sum(-1) == 1).all() and (big.sum(-2) == 1).all())


def _mixing_shift(stage: Stage, block: Block) -> str | None:
    """A shift that changes what a block reads: its gradient then takes up the gradient of the bias."""
    for shift, key in _shifts(stage, block.scope):
        reads = shift.via is not None and _key(stage, shift.via, block.scope) == block.key
        if reads and bool((stage.elements[key].abs() > ZERO).any()):
            return f"the shift {shift.name}"
    return None


def _shifts(stage: Stage, scope: tuple[tuple[str, int], ...]) -> list[tuple[Shift, str]]:
    """The shifts of a stage at a scope, with their element keys."""
    keys = [(shift, shift_key(shift, dict(scope))) for shift in stage.spec.shifts]
    whole = [(shift, key) for shift, key in keys if shift.via is not None or not shift.constant]
    return [(shift, key) for shift, key in whole if key in stage.elements]


def _key(stage: Stage, line: str, scope: tuple[tuple[str, int], ...]) -> str | None:
    """The key of the block of a line at a scope."""
    spec_line = next((x for x in stage.spec.lines if x.name == line), None)
    return (
        spec_line.canonical(dict(scope))
        if spec_line is not None and set(spec_line.indices) == dict(scope).keys()
        else None
    )


def _shifts_at(stage: Stage, tap: Tap) -> list[Tensor]:
    """What the shifts of a stage add to every row at a tap: [width], float64."""
    shifts = []
    for shift, key in _shifts(stage, tap.scope):
        bias = _key(stage, shift.bias, tap.scope) or ""
        if tap.side == "in" and shift.via is not None and _key(stage, shift.via, tap.scope) == tap.block:
            parts = shift.reads
        elif tap.side == "out" and f"{bias.removesuffix('.bias')}.weight" == tap.block:  # of one module
            parts = (shift.block or 0,)
        else:
            continue
        row = torch.zeros(1, length(tap.axis, stage.spec.sizes), dtype=torch.float64)
        named = [a.name for a in shift_atoms(stage.spec, shift)]
        delta = stage.elements[key]
        if shift.along is not None:
            delta = delta.squeeze(named.index(shift.along))
        kept = [name for name in named if name != shift.along]
        for part in parts:
            (view,), view_atoms = list(tap.leaves(stage.spec, row))[part]
            view[0] += _spread(delta, kept, view_atoms[1:])
        shifts.append(row[0])
    return shifts


def _spread(delta: Tensor, names: list[str], tap_atoms: tuple[Atom, ...]) -> Tensor:
    """A shift with axes ``names`` along the atoms of a tap; what several query heads read, they all read."""
    order = [names.index(a.name) for a in tap_atoms if a.name in names]
    spread = delta.permute(order)
    for at, atom in enumerate(tap_atoms):
        if atom.name not in names:
            spread = spread.unsqueeze(at)
    return spread


def _act(stage: Stage, tap: Tap, x: Tensor) -> Tensor:
    """Rows [n, width] at a tap, moved by the spaces of one stage."""
    scope: Mapping[str, Any] = dict(tap.scope)
    moved = x.clone().contiguous()
    for (view,), view_atoms in tap.leaves(stage.spec, moved):
        stage.act_on_view(view, view_atoms, scope)
    return moved

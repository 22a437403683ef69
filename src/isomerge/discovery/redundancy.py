"""Is the declared symmetry group the whole one? The completeness law, at a generic point of a tiny random model.

The null space of d(outputs)/d(parameters) at a generic point is the tangent space of the orbit of *all* continuous
symmetries of the function. The declared groups span a part of it: the derivative of their action, taken through
the real action. Where its dimension is the smaller one, symmetries are missing from the spec, and what they move
is named.

Everything is float64 (see `precision`): norms and softmaxes in float32 would leave 1e-6, in which directions hide.
The overall scale of a residual stream is nearly a symmetry, broken by the norms' eps: its singular value is 1e-4
of the largest, nine orders of magnitude above that of a true symmetry, and it does not count.

Clamps of a specimen are set where some inputs reach them. A clamp that no input reaches hides that factors of what
it cuts are no symmetries; one that no input reaches in one channel hides it there. One that cuts most inputs
leaves too few to tell parameters apart: it stands high.

What no declared group explains is named by the fewest lines of a spec that it moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import field, replace
from itertools import combinations
from math import comb, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from isomerge.discovery.building import make_specimen
from isomerge.discovery.proving import BoundSpecimen
from isomerge.discovery.redundancy_point import ENOUGH, Point
from isomerge.discovery.shrinking import FALLBACKS, Scale, kind_of
from isomerge.discovery.specimen import Specimen
from isomerge.discovery.specimen_inputs import InputsOf
from isomerge.errors import IsomergeError, first_line
from isomerge.records import Record
from isomerge.symmetry.axes import show
from isomerge.symmetry.language.spec import Line

NULL = 1e-10
"""Pivots of the Jacobian at most this share of the largest one are zero: rounding leaves 1e-15 to 1e-12, what is
nearly a symmetry 1e-5 and more."""
TINY = Scale(2, 2, 1, 4, 0, 12, 2, 22, 6, 14, labels=8)
"""How small the specimens are: about 1,500 parameters. Of two experts both are asked: one that is asked for few
tokens would look redundant. A classifier has as many labels as its stream is wide: of two it would take four times
the inputs."""
WIDER = replace(TINY, head=8)
"""Where a quarter of a head of four would be turned."""
MORE_HEADS = replace(TINY, heads=4, head=2)
"""Where heads stand in four groups."""
SIDE = 12
"""Of an image: of two patches across, half a turn apart either way, rotary positions tell nothing (DINOv3)."""
TOKENS = 50
"""How many where a layer reads single tokens alone: of twenty-two it is a table, which leaves much of it free."""
LENGTHS = (14, 12, 11, 10, 9, 8)
"""Lengths of inputs that are tried: the longest one reaches all places."""
CLEAR, ROUNDING = 1e3, 1e-13
NEURONS = "n_inner"
"""A key that, where it is empty, stands for four times the width: more neurons than a few tokens tell apart."""
EPS_NAMES, EPS = ("eps", "variance_epsilon", "epsilon"), 1e-3
"""What norms call the number that they add to a variance, and the least one with which redundancy is counted: under
1e-12 (BERT) the scale of what is normed cannot be told from a symmetry."""
OTHER_EPS = 4.0
"""By what eps is multiplied to tell what holds for one alone."""
ROWS = 40
"""Rows of the input at least."""
AT_ONCE = 16
"""Rows that are derived at once: combinations of their outputs alone are derived through them alone, which takes as
many times less as there are such parts."""
NAMES = ("limit", "swiglu_limit", "clip_qkv")
"""What modules call the number beyond which they cut."""
MOST = 0.6
"""The largest number at which a specimen's clamps are left: some inputs reach it."""
SHARE = 0.9
"""Of what the channel that is least in size comes to, where a clamp is to cut in every channel."""
ROUNDS = 8
"""How often: where the first layers cut, less arrives at the next."""
_CLAMPS = {torch.clamp, torch.clip, Tensor.clamp, Tensor.clip}
NONE = 1e-6
"""Lengths of parts of vectors of length one at most this are zero: tangents come from differences,
exact to 1e-8."""
INDEPENDENT = 1e-9
"""Squared singular values above this count, of rows of length one; the error of tangents, squared, is 1e-16."""
TOGETHER = 3
"""The most lines that are looked at together."""
GROUPS = 600
"""The most groups of lines that are looked at: each takes a hundredth of a second."""


class Redundancy(Record):
    """How many dimensions of the parameters change no output, and how many the declared groups explain."""

    also = ("complete", "clear")

    parameters: int
    true: int
    declared: int
    layer_norm: int
    """How many of the declared ones only LayerNorm explains (`isomerge.models.layer_norm_form`), no space."""
    gap: tuple[float, float]
    """The least singular value that is not zero, and the largest that is, as shares of the largest of all."""
    unread: tuple[str, ...]
    """The tensors that the class stores and does not run, such as a pooler that its head does not read: in neither
    count."""
    left: tuple[Left, ...]

    @property
    def clear(self) -> bool:
        """Whether what counts and what does not are told apart beyond doubt: by three orders of magnitude."""
        return self.gap[0] > CLEAR * max(self.gap[1], ROUNDING)

    @property
    def complete(self) -> bool:
        """Whether no continuous symmetry is missing."""
        return self.true == self.declared


def tiny_specimen(config: Any, seed: int = 0, tiny: Scale = TINY, *, cut: bool = False) -> Specimen:
    """A specimen small enough for its Jacobian, whose last input covers its parameters.

    Args:
        config: the real configuration object (see `isomerge.discovery.building.real_config`).
        seed: of weights and inputs.
        tiny: how small.
        cut: whether clamps cut something in every channel, not only somewhere.

    Raises:
        IsomergeError: no such model can be built or run.
    """
    grouped = (getattr(config.get_text_config(), "n_group", None) or 1) > 1
    scale = replace(tiny, experts=4) if grouped else tiny
    if getattr(config, NEURONS, 0) is None:
        config = deepcopy(config)
        setattr(config, NEURONS, 4 * config.hidden_size)
    wider = lambda scale: replace(scale, head=2 * scale.head)  # noqa: E731  before more heads: four times the numbers
    in_six = lambda scale: replace(scale, head=6)  # noqa: E731  LiLT, whose boxes have six numbers
    specimen = make_specimen(config, scale, seed, untied=False, fallbacks=(wider, in_six, *FALLBACKS))
    for module, name, eps in norms_of(specimen.module):
        setattr(module, name, max(EPS, eps))
    parameters = sum(t.numel() for t in specimen.module.parameters() if t.is_floating_point())
    inputs = InputsOf.of(specimen.module, specimen.module.config)
    first: Exception | None = None
    for length in LENGTHS:
        try:
            specimen.inputs[2:] = inputs.covering(scale.vocabulary, seed, ROWS, length)
            with torch.no_grad():
                each = specimen.flat_outputs().numel() / ROWS
            rows = ROWS + int((ENOUGH + 0.3) * parameters / each)
            specimen.inputs[2:] = inputs.covering(scale.vocabulary, seed, rows, length)
            with torch.no_grad():
                specimen.flat_outputs()
        except Exception as error:  # whatever the code of a model raises for lengths that it refuses
            first = first or error
            continue
        lower_clamps(specimen, everywhere=cut)
        centre_neurons(specimen)
        specimen.inputs[2:] = [part for whole in specimen.many for part in in_parts(whole)]
        return specimen
    raise IsomergeError(
        f"a tiny {type(specimen.module).__name__} does not run on many inputs ({type(first).__name__}: "
        f"{first_line(first) if first else ''})"
    )


def in_parts(inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The rows of inputs, a few at once; all of them where some tensor has another number of rows (patches of all
    images in one row)."""
    rows = {len(value) for value in inputs.values()}
    count = max(rows)
    for start in range(0, count, AT_ONCE if len(rows) == 1 else count):
        yield {name: value[start : start + AT_ONCE] if len(rows) == 1 else value for name, value in inputs.items()}


def norms_of(module: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """The modules that add an eps to a variance, what they call it, and how much it is."""
    pairs = ((part, name, getattr(part, name, None)) for part in module.modules() for name in EPS_NAMES)
    return [(part, name, eps) for part, name, eps in pairs if isinstance(eps, float) and eps > 0]


def centre_neurons(specimen: Specimen) -> None:
    """Give neurons that have biases the mean zero over the last input, those of heads too: under ReLU one that all
    inputs switch on is linear, so that its bias may as well stand in the next one, and one that none does is not
    there."""
    keys = specimen.keys
    widths = {keys[key] for key in keys if kind_of(key, keys) == "width"}
    sizes = {keys[key] for key in keys if kind_of(key, keys) == "neurons"}
    sizes |= {4 * width for width in widths}  # where no key counts them (MarkupLM)

    def centred(module: nn.Linear, inputs: Any, output: Tensor) -> Tensor:
        mean = output.reshape(-1, output.shape[-1]).mean(0)
        module.bias.sub_(mean)
        return output - mean

    biased = {n: m for n, m in specimen.module.named_modules() if isinstance(m, nn.Linear) and m.bias is not None}
    heads = (m for n, m in biased.items() if m.out_features in widths and not any(map(str.isdigit, n.split("."))))
    layers = dict.fromkeys([*(m for m in biased.values() if m.out_features in sizes), *heads])
    handles = [layer.register_forward_hook(centred) for layer in layers]
    with torch.no_grad():
        specimen.flat_outputs()
    for handle in handles:
        handle.remove()
    for name in {**specimen.places, **specimen.joined} if handles else ():
        if specimen.stored[name].is_floating_point():
            specimen.stored[name] = specimen.part_of(name, specimen.parameters).detach().clone().contiguous()


class Count:
    """What changes no output of a specimen, and what of it is declared; nothing that is left is named yet.

    Args:
        seen: a specimen of at most `MOST` parameters, of which the last input has more outputs than there are
            parameters. Its module is left with its gains folded into their readers.

    Raises:
        IsomergeError: the model is too large, some of its tensors are stored otherwise than the class computes with
            them, or a declared tangent changes outputs (the law does not hold).
    """

    def __init__(self, seen: BoundSpecimen) -> None:
        self.point = point = Point(seen)
        jacobian = point.jacobian()
        self.null, self.gap, largest = _null_space(jacobian)
        tangents = point.tangents()
        _check(point, jacobian @ tangents.mT / largest, [f"the declared space {owner}" for owner in point.owners])
        formed = point.form_tangents()
        _check(point, jacobian @ formed.mT / largest, ["what LayerNorm is said to leave free"] * len(formed))
        self.by_spaces = len(span_of(tangents))
        self.declared = span_of(torch.cat([tangents, formed]))
        if self.missing:
            self.null = torch.cat([self.declared, self._kept_by_any_eps(largest)])

    def _kept_by_any_eps(self, largest: float) -> Tensor:
        """What is not declared and changes no output whatever the norms' eps is [dimensions, parameters].

        A table that is normed at once, such as that of relative positions, can make up for another gain or bias of
        its norm by what eps leaves of its rows' lengths: by a thousandth of them, or a ten-millionth, and no more.
        """
        rest, norms = beyond(self.null, self.declared), norms_of(self.point.seen.specimen.module)
        if not norms:
            return rest
        try:
            for module, name, eps in norms:
                setattr(module, name, OTHER_EPS * eps)
            changes = self.point.changes(rest) / largest
        finally:
            for module, name, eps in norms:
                setattr(module, name, eps)
        _, values, vectors = torch.linalg.svd(changes, full_matrices=True)
        return vectors[(values <= NONE * max(1.0, float(values.max()))).nonzero().flatten()] @ rest

    @property
    def missing(self) -> int:
        """Dimensions that are not declared."""
        return len(self.null) - len(self.declared)

    def named(self) -> Redundancy:
        """The count, with what is left by tensors."""
        left = tuple(unexplained(self.point, self.null, self.declared))
        norms = len(self.declared) - self.by_spaces
        unread = tuple(self.point.unread)
        return Redundancy(self.point.size, len(self.null), len(self.declared), norms, self.gap, unread, left)


def _check(point: Point, changes: Tensor, owners: list[str]) -> None:
    """Refuse a declared direction that changes outputs."""
    if changes.numel() and float(changes.norm(dim=0).max()) > NONE:
        worst = owners[int(changes.norm(dim=0).argmax())]
        raise IsomergeError(
            f"{worst} changes outputs to first order: it is no symmetry of "
            f"{type(point.seen.specimen.module).__name__} (isomerge prove tells more)"
        )


def _null_space(jacobian: Tensor) -> tuple[Tensor, tuple[float, float], float]:
    """An orthonormal basis [dimensions, parameters] of what changes no output, the gap, and the largest pivot.

    By QR with pivoting, a tenth of the time of singular values: the pivots show the gap as these do.
    """
    from scipy.linalg import qr, solve_triangular

    if not bool(jacobian.isfinite().all()):
        raise IsomergeError("the derivatives of a tiny model's outputs are not finite: nothing can be counted")
    decomposition: Any = qr(jacobian.numpy(), mode="r", pivoting=True, check_finite=False)
    triangle, order = decomposition
    pivots = abs(triangle.diagonal())
    rank = int((pivots > NULL * pivots[0]).sum())
    gap = (float(pivots[rank - 1] / pivots[0]), float(pivots[rank] / pivots[0]) if rank < len(pivots) else 0.0)
    count = triangle.shape[1] - rank
    basis = torch.zeros(triangle.shape[1], count, dtype=torch.float64)
    if count:
        carried = solve_triangular(triangle[:rank, :rank], triangle[:rank, rank:], check_finite=False)
        basis[torch.from_numpy(order[:rank])] = -torch.from_numpy(carried)
        basis[torch.from_numpy(order[rank:]), torch.arange(count)] = 1
        basis = torch.linalg.qr(basis).Q
    return basis.mT.contiguous(), gap, float(pivots[0])


def lower_clamps(specimen: Specimen, *, everywhere: bool = False) -> None:
    """Set the clamps of a specimen's modules where its inputs reach them.

    Args:
        specimen: with the inputs that count.
        everywhere: whether what is cut on both sides is cut in every channel.
    """
    held, bound = list(_held(specimen.module)), MOST
    for _ in range(ROUNDS if held else 0):
        for module, name in held:
            setattr(module, name, bound)
        with torch.no_grad(), _Cut(bound) as seen:
            specimen.flat_outputs()
        if seen.least > bound or not everywhere:
            return
        bound = SHARE * seen.least


def _held(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules that cut, and what they call the number."""
    for part in module.modules():
        for name in NAMES:
            if isinstance(bound := getattr(part, name, None), float) and MOST < bound < float("inf"):
                yield part, name


class _Cut(TorchFunctionMode):
    """What is cut at a bound on both sides while it is entered: the least that a channel comes to."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound, self.least = bound, float("inf")

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        arguments = {**dict(zip(("input", "min", "max"), args, strict=False)), **(kwargs or {})}
        sides = (arguments.get("min"), arguments.get("max"))
        if func in _CLAMPS and sides == (-self.bound, self.bound) and arguments["input"].numel():
            sizes = arguments["input"].detach().abs().flatten(0, -2).amax(0)
            self.least = min(self.least, float(sizes.min()))
        return func(*args, **(kwargs or {}))


class Left(Record):
    """Dimensions that no declared group explains, by the lines that they move."""

    dimensions: int
    lines: tuple[str, ...]
    constant_along: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By line: the axes along which what moves is constant (a mean that a norm takes away)."""


def span_of(rows: Tensor) -> Tensor:
    """An orthonormal basis [rank, parameters] of what rows span, each of length one before."""
    sizes = rows.norm(dim=1, keepdim=True)
    moving = (sizes > NONE**2).squeeze(1)
    return beyond(rows[moving] / sizes[moving], rows[:0])


def beyond(rows: Tensor, known: Tensor) -> Tensor:
    """An orthonormal basis of what rows of length one span modulo an orthonormal basis of what is known."""
    if not len(rows):
        return rows
    rest = rows - (rows @ known.mT) @ known
    values, vectors = torch.linalg.eigh(rest @ rest.mT)
    kept = values > INDEPENDENT
    basis = (vectors[:, kept].mT @ rest) / values[kept].sqrt()[:, None]
    return torch.linalg.qr(basis.mT).Q.mT if len(basis) else basis


def unexplained(point: Point, null: Tensor, declared: Tensor) -> Iterator[Left]:
    """What is not explained, by the fewest lines that it can be moved in; what is constant along an axis first."""
    known, lines = declared, point.lines()
    for line, axis, constant in _constants(point, lines):
        if len(known) == len(null):
            return
        more = beyond(_met(null, constant), known)
        if len(more):
            yield Left(len(more), (line.name,), {line.name: (axis,)})
            known = torch.cat([known, more])
    parts = {line: null[:, mask] @ null[:, mask].mT for line, mask in lines.items()}
    identity = torch.eye(len(null), dtype=null.dtype)
    for count in range(1, TOGETHER + 1):
        if comb(len(lines), count) > GROUPS:
            break
        for group in combinations(lines, count):
            if len(known) == len(null):
                return
            values, vectors = torch.linalg.eigh(identity - torch.stack([parts[line] for line in group]).sum(0))
            more = beyond(vectors[:, values < NONE**2].mT @ null, known)
            if len(more):
                yield Left(len(more), tuple(line.name for line in group))
                known = torch.cat([known, more])
    if rest := len(null) - len(known):
        yield Left(rest, ())


def _met(null: Tensor, constant: Tensor) -> Tensor:
    """An orthonormal basis of what two orthonormal bases have in common."""
    values, vectors = torch.linalg.eigh((null @ constant.mT) @ (constant @ null.mT))
    return vectors[:, values > 1 - NONE**2].mT @ null


def _constants(point: Point, lines: Mapping[Line, Tensor]) -> Iterator[tuple[Line, str, Tensor]]:
    """For every line and axis, an orthonormal basis of what is constant along that axis of that line's tensors."""
    for line in lines:
        names = [n for n in point.names if point.seen.matches[n].line is line]
        for k, axis in enumerate(line.axes or ()):
            rows = []
            for name in names:
                shape = point.seen.specimen.stored[name].shape
                if k >= len(shape) or shape[k] < 2 or 0 in shape:
                    continue
                rest = [n for i, n in enumerate(shape) if i != k]
                count = prod(rest)
                tensor = torch.eye(count, dtype=torch.float64).reshape(count, *rest).unsqueeze(k + 1)
                directions = torch.zeros(count, point.whole, dtype=torch.float64)
                directions[:, point.spans[name]] = tensor.expand(count, *shape).reshape(count, -1) / shape[k] ** 0.5
                rows.append(directions[:, point.read])
            if rows:
                whole = torch.cat(rows)
                yield line, show(axis), whole[whole.norm(dim=1) > 0.99]

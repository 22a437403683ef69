"""The options of merge methods: their kinds, and what a signature cannot say: which values they take, alone and
together, where those are searched for that nobody says, how many models a method merges, and how large its result
can be; and the value of an option for one tensor.

    @merge_method
    @limited(density=SHARE, consensus_method=CONSENSUS, models=(2, None))
    def ...

A value outside of a method's limits is refused before anything is read (`isomerge.fusion.method_parameters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from math import inf, isfinite
from typing import Any, TypeVar, cast

from isomerge.errors import IsomergeError, with_points
from isomerge.fusion.bounds import Bound

KINDS = (bool, int, float, str)
Values = dict[str, Any]
"""A method's options by name, of whatever kinds they are."""
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Range:
    """The numbers from ``least`` to ``most``, both included."""

    least: float = -inf
    most: float = inf

    def __contains__(self, value: Any) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"of at least {self.least:g}" if self.most == inf else f"from {self.least:g} to {self.most:g}"


SHARE = Range(0, 1)
NOT_NEGATIVE = Range(least=0)
CONSENSUS = ("sum", "count")
"""How TIES elects signs: `isomerge.fusion.task_vectors.add_task_vectors`."""


@dataclass(frozen=True)
class Option:
    """One parameter of a method."""

    name: str
    """As users write it."""
    keyword: str
    """As the function has it."""
    per_model: bool
    default: Any
    kind: type
    required: bool
    values: Range | tuple[str, ...] | None = None
    """Which numbers or words it takes; None: all."""


@dataclass(frozen=True)
class Together:
    """What values of several options must fulfil together."""

    options: tuple[str, ...]
    check: Callable[..., None]
    """Takes one value of each, in their order, and raises IsomergeError."""


@dataclass(frozen=True)
class Limits:
    """What a method's signature cannot say."""

    values: Mapping[str, Range | tuple[str, ...]] = field(default_factory=dict)
    models: tuple[int, int | None] = (1, None)
    """The least and the most models that it merges, the base not counted."""
    together: Together | None = None
    bound: Bound | None = None
    """How large a result can be: `isomerge.fusion.bounds`."""


def limited(
    *,
    models: tuple[int, int | None] = (1, None),
    together: Together | None = None,
    bound: Bound | None = None,
    **values: Range | tuple[str, ...],
) -> Callable[[Function], Function]:
    """Give a function limits, before it is registered: values of its options by name, and the other fields of
    `Limits`. Whoever calls it, it then refuses other values, and another number of ``tensors``."""

    def put(function: Function) -> Function:
        function.__dict__["limits"] = Limits(values, models, together, bound)
        counted = next(iter(signature(function).parameters), "") == "tensors"

        @wraps(function)
        def within(*operands: Any, **options: Any) -> Any:
            if counted and operands:
                check_count(len(operands[0]), function.__name__, models)
            for name, given in ((keyword.rstrip("_"), given) for keyword, given in options.items()):
                for value in given if is_list(given) else [given]:
                    if name in values and value is not None:
                        _check_value(name, value, values[name])
            return function(*operands, **options)

        return cast(Function, within)

    return put


def limits_of(function: Callable[..., Any]) -> Limits:
    """A function's limits; none where it was not given any."""
    return getattr(function, "limits", Limits())


def check_kind(option: Option, value: Any, place: str) -> None:
    """Refuse a value of another kind than an option's, or one that it does not take; whole numbers are numbers, and
    1 and 0 flags, as in mergekit.

    Raises:
        IsomergeError: naming the place.
    """
    if value is None and option.default is None and not option.required:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # texts can have whole numbers of any length; those that no tensor takes are no finite numbers either
    number = number and (abs(value) < 2**63 if isinstance(value, int) else isfinite(float(value or 0)))
    good = {
        bool: isinstance(value, bool) or value in (0, 1),
        float: number,
        int: number and float(value or 0).is_integer(),
        str: isinstance(value, str),
    }
    if not good[option.kind]:
        words = {bool: "true or false", float: "a finite number", int: "a whole number", str: "a word"}
        wanted = words[option.kind] if option.values is None else _expected(option.values)
        raise IsomergeError(f"`{place}` is {value!r}: give {wanted}{with_points(value)}")
    if option.values is not None:
        _check_value(place, value, option.values)


def _check_value(place: str, value: Any, values: Range | tuple[str, ...]) -> None:
    if value not in values:
        raise IsomergeError(f"`{place}` is {value}: give {_expected(values)}")


def _expected(values: Range | tuple[str, ...]) -> str:
    return f"a number {values}" if isinstance(values, Range) else f"one of {', '.join(values)}"


def check_count(count: int, method: str, models: tuple[int, int | None]) -> None:
    """Refuse too few or too many models (the base is not counted).

    Args:
        count: how many there are.
        method: its name.
        models: the least and the most that it merges.

    Raises:
        IsomergeError: saying how many the method takes.
    """
    least, most = models
    if count >= least and (most is None or count <= most):
        return
    wanted = f"{least} or more models" if most is None else f"exactly {least} model{'s' if least > 1 else ''}"
    raise IsomergeError(
        f"--method {method} merges {wanted} (a base not counted), but {count} were given: change the list of models"
    )


def is_list(setting: Any) -> bool:
    """Whether a setting lists several: bytes are no numbers."""
    return isinstance(setting, Sequence) and not isinstance(setting, (str, bytes, bytearray, memoryview))


def is_for(entry: Mapping[str, Any], name: str) -> bool:
    """Whether the filter of a setting's entry fits a tensor."""
    wanted = entry.get("filter")
    return wanted in (None, "*") or str(wanted) in name


def resolve(setting: Any, name: str, t: float, *, numeric: bool) -> Any:
    """The value of a setting for a tensor at ``t`` in [0, 1] of its slice; None where no filter fits."""
    if isinstance(setting, Mapping):
        setting = [setting]
    if not is_list(setting):
        return setting
    if all(isinstance(entry, Mapping) for entry in setting):
        for entry in setting:
            if is_for(entry, name):
                return resolve(entry["value"], name, t, numeric=numeric)
        return None
    if not numeric:  # flags and words are not interpolated
        return setting[int(t * (len(setting) - 1))]
    setting = [float(value) for value in setting]
    place = t * (len(setting) - 1)
    low = int(place)
    high, share = min(len(setting) - 1, low + 1), place - low
    return (1 - share) * setting[low] + share * setting[high]


TOLERANCE = 1e-3
"""A default below this is a step or a tolerance of the computation: nothing that a merge is chosen by."""


def is_chosen_by(option: Option) -> bool:
    """Whether an option is searched for where nothing else is said: numbers that are no counts, tolerances or
    steps."""
    if option.kind is not float:
        return False
    return not isinstance(option.default, (int, float)) or option.default == 0 or abs(option.default) >= TOLERANCE


def natural_range(option: Option) -> Range | None:
    """The limits of an option where it has both; else from nothing to twice its default, within its limits. A float
    without a default lies between 0 and 1; None for other options, and for words and flags."""
    if option.kind not in (int, float):
        return None
    limits = option.values if isinstance(option.values, Range) else Range()
    if isfinite(limits.least) and isfinite(limits.most):
        return limits
    default = option.default if isinstance(option.default, (int, float)) else None
    if not default:
        return None if option.kind is int else Range(max(limits.least, 0.0), min(limits.most, 1.0))
    ends = sorted((0.0, 2.0 * default))
    return Range(max(limits.least, ends[0]), min(limits.most, ends[1]))

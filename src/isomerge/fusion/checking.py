"""Values of a method's options that cannot be used together, refused before anything is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.fusion.options import Option
from isomerge.fusion.registry import Method
from isomerge.fusion.resolving import is_list, resolve

Level = tuple[Mapping[str, Any], str]
"""Settings, and where they stand."""


def check_together(method: Method, levels: Sequence[Level]) -> None:
    """Refuse values that a method does not take together, for one model of one slice.

    They are tried at every value of a gradient, for tensors that no filter fits and for those that one does. Where several
    options have filters, and other ones, which tensors have which values is not known yet: then the method itself refuses.

    Args:
        method: what they are for.
        levels: the model's settings, the slice's and the recipe's, the nearest first.

    Raises:
        IsomergeError: naming a place.
    """
    together = method.together
    given = [] if together is None else [name for name in together.options if any(name in s for s, _ in levels)]
    if together is None or not given:
        return
    options = [method.options[name] for name in together.options]
    known = [[s[option.name] for s, _ in levels if option.name in s] for option in options]
    filters = [{f for setting in settings for f in _filters(setting)} for settings in known]
    if len({frozenset(found) for found in filters if found}) > 1:
        return
    place = next(f"{where}.{given[0]}" for settings, where in levels if given[0] in settings)
    breaks = {t for settings in known for setting in settings for t in _breaks(setting)} | {0.0}
    for name in sorted(set().union(*filters) | {""}):
        for t in sorted(breaks):
            try:
                together.check(*(_value(o, values, name, t) for o, values in zip(options, known, strict=True)))
            except IsomergeError as error:
                raise IsomergeError(f"`{place}`: {error}") from None


def _value(option: Option, settings: Sequence[Any], name: str, t: float) -> Any:
    found = (resolve(setting, name, t, numeric=True) for setting in settings)
    return next((value for value in found if value is not None), option.default)


def _parts(setting: Any) -> list[Any]:
    if isinstance(setting, Mapping):
        return [setting]
    return list(setting) if is_list(setting) else []


def _filters(setting: Any) -> Iterator[str]:
    for part in _parts(setting):
        if isinstance(part, Mapping) and part.get("filter") not in (None, "*"):
            yield str(part["filter"])


def _breaks(setting: Any) -> Iterator[float]:
    """Where in a slice, from 0 to 1, a setting's gradients have their values."""
    parts = _parts(setting)
    for part in parts:
        if isinstance(part, Mapping):
            yield from _breaks(part["value"])
    if len(parts) > 1 and not isinstance(parts[0], Mapping):
        yield from (k / (len(parts) - 1) for k in range(len(parts)))

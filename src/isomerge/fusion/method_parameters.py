"""Parameters of a merge: mergekit's scalars, gradients and filters, resolved for every tensor, and refused before
anything is read where they cannot be used together.

A setting is a scalar, a gradient (a list of numbers, interpolated from the first layer of a slice to its last), or
a list of ``{filter: part of a tensor's name, value: scalar or gradient}``, the first that fits. Of several settings
the nearest counts: that of a slice's source (or of a model), of the slice, of the recipe; one whose filters do not
fit is passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.fusion.method_options import Option, Values, check_count, is_list, resolve
from isomerge.fusion.registry import Method, methods

NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
EXACT = 15
"""Characters of a whole number that is a float exactly."""


def numbers_of(method: Method, settings: Mapping[str, Any]) -> Values:
    """Settings with numbers in place of texts that say one, where the method's option is a number."""
    numeric = {name for name, option in method.options.items() if option.kind in (int, float)}
    return {name: as_number(value) if name in numeric else value for name, value in settings.items()}


def as_number(setting: Any) -> Any:
    """A scalar, gradient or list of filters with its texts read as numbers; what is no number stays for those who
    refuse it."""
    if isinstance(setting, Mapping):
        return {key: as_number(value) if key == "value" else value for key, value in setting.items()}
    if isinstance(setting, str):
        if not NUMBER.fullmatch(setting):
            return setting
        return int(setting) if len(setting) <= EXACT and setting.strip().lstrip("+-").isdigit() else float(setting)
    return [as_number(entry) for entry in setting] if is_list(setting) else setting


Level = tuple[Mapping[str, Any], str]
"""Settings, and where they stand."""


def check_together(method: Method, levels: Sequence[Level]) -> None:
    """Refuse values that a method does not take together, for one model of one slice.

    They are tried at every value of a gradient, for tensors that no filter fits and for those that one does. Where
    several options have filters, and other ones, which tensors have which values is not known yet: then the method
    itself refuses.

    Args:
        method: what they are for.
        levels: the model's settings, the slice's and the recipe's, the nearest first.

    Raises:
        IsomergeError: naming a place.
    """
    together = method.together
    mentioned = [] if together is None else [name for name in together.options if any(name in s for s, _ in levels)]
    if together is None or not mentioned:
        return
    options = [method.options[name] for name in together.options]
    known = [[s[option.name] for s, _ in levels if option.name in s] for option in options]
    filters = [{f for setting in settings for f in filter_names(setting)} for settings in known]
    if len({frozenset(filters_of) for filters_of in filters if filters_of}) > 1:
        return
    place = next(f"{where}.{mentioned[0]}" for settings, where in levels if mentioned[0] in settings)
    breaks = {t for settings in known for setting in settings for t in _breaks(setting)} | {0.0}
    for name in sorted(set().union(*filters) | {""}):
        for t in sorted(breaks):
            try:
                together.check(*(_value(o, values, name, t) for o, values in zip(options, known, strict=True)))
            except IsomergeError as error:
                raise IsomergeError(f"`{place}`: {error}") from None


def _value(option: Option, settings: Sequence[Any], name: str, t: float) -> Any:
    resolved = (resolve(setting, name, t, numeric=True) for setting in settings)
    return next((value for value in resolved if value is not None), option.default)


def _parts(setting: Any) -> list[Any]:
    if isinstance(setting, Mapping):
        return [setting]
    return list(setting) if is_list(setting) else []


def filter_names(setting: Any) -> Iterator[str]:
    """The filters of a setting, but for those that fit every tensor."""
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


Settings = Mapping[str, Any]
FILTER_KEYS = {"filter", "value"}
SEARCH_KEYS = {"search", "choices"}
"""Keys of a value that `isomerge tune` finds."""


@dataclass(frozen=True)
class SliceParameters:
    """The settings of one slice: of its sources, in the order of the tensors, and its own."""

    layers: int
    """How many layers it has."""
    sources: tuple[Settings, ...]
    own: Settings = field(default_factory=dict)
    places: tuple[str, ...] = ()
    """Where the sources stand in the recipe, for messages."""
    of_base: tuple[Settings, str] = field(default_factory=lambda: ({}, ""))
    """What the base's own entry says, which only a method that fuses it reads, and where it stands."""
    starts: tuple[int, ...] = ()
    """The first layer that is taken of every source; empty where the output's layers are the sources' own."""


@dataclass(frozen=True)
class Parameters:
    """All settings of a merge."""

    slices: tuple[SliceParameters, ...]
    common: Settings = field(default_factory=dict)
    pieces: tuple[str, ...] = ()
    """Of models of several stacks of layers, what is in the names of those that slices are of, one of them; empty:
    the slices are of all."""

    def with_numbers(self, method: Method) -> Parameters:
        """The same with numbers where the recipe or the command line has texts that say one."""

        def read(part: SliceParameters) -> SliceParameters:
            sources = tuple(numbers_of(method, settings) for settings in part.sources)
            of_base = (numbers_of(method, part.of_base[0]), part.of_base[1])
            return replace(part, sources=sources, own=numbers_of(method, part.own), of_base=of_base)

        return Parameters(tuple(map(read, self.slices)), numbers_of(method, self.common), self.pieces)

    def at(self, method: Method, name: str, layer: int | None, *, after: bool = False, depth: int) -> Values:
        """The method's parameters for one tensor.

        Filters of what has one value per model look into the name that the tensor has in that model, as mergekit's
        do: of a slice's sources, with the number of their own layer.

        Args:
            method: what they are for.
            name: the tensor's name in the output, which all other filters look into; empty for tensors that no
                filter fits.
            layer: its layer in the output; None outside the stack.
            after: whether it comes after the stack (norms, heads) rather than before it.
            depth: the number of layers of its stack, where there is one slice alone.

        Returns:
            By name; a list of one value per source where the parameter has one per model. Defaults are filled in.

        Raises:
            IsomergeError: a parameter that has no default has no value for this tensor.
        """
        part, t, offset = self._place(layer, after, depth)
        names = [name] * len(part.sources)
        if layer is not None and part.starts:
            names = [renumbered(name, layer, start + offset) for start in part.starts]
        return {key: self._value(option, part, name, names, t) for key, option in method.options.items()}

    def depth(self, layer: int | None, *, after: bool = False, depth: int) -> float:
        """Where in its slice a layer lies, from 0 to 1; 0 outside of the layers. Arguments as of `at`."""
        return self._place(layer, after, depth)[1]

    def count(self, layer: int | None, *, after: bool = False) -> int:
        """How many sources a layer has."""
        return len(self._place(layer, after, 1)[0].sources)

    def spread(self, option: Option, source: int) -> tuple[bool, bool]:
        """Whether a source's value of an option differs from layer to layer, and from tensor to tensor in one."""
        slices = [part for part in self.slices if source < len(part.sources)]
        known = [
            [s[option.name] for s in (part.sources[source], part.own, self.common) if option.name in s]
            for part in slices
        ]
        every = [setting for settings in known for setting in settings]
        names = {name for setting in every for name in filter_names(setting)} | {""}
        places = {t for setting in every for t in _breaks(setting)} | {0.0}
        rows = [[_value(option, settings, name, t) for name in sorted(names)] for settings in known for t in places]
        return any(row != rows[0] for row in rows), any(len(set(row)) > 1 for row in rows)

    def check(self, method: Method, where: str) -> list[str]:
        """Refuse unknown parameters, values that the method does not take, alone or together, and missing ones.

        Returns:
            Notes on parameters that other methods have and this one does not: recipes often carry them along.

        Raises:
            IsomergeError: naming the parameter and its place.
        """
        notes: dict[str, None] = {}
        for settings, place, of_model in self._all():
            for name, value in settings.items():
                if name not in method.options and any(name in other.options for other in methods().values()):
                    notes[f"the method {method.name} has no parameter `{name}`: it is left out"] = None
                    continue
                at = f"{place}.{name}" if place else name
                try:
                    for single in scalars(value, f"`{at}`"):
                        method.check_value(name, single, at)
                except IsomergeError as error:
                    raise IsomergeError(f"{where}: {error}") from None
                if of_model and not method.options[name].per_model:
                    raise IsomergeError(
                        f"{where}: `{at}` is one value for all models: put it under the recipe's own parameters"
                    )
        self._check_missing(method, where)
        for levels in self._levels():
            try:
                check_together(method, levels)
            except IsomergeError as error:
                raise IsomergeError(f"{where}: {error}") from None
        return list(notes)

    def _levels(self) -> Iterator[tuple[tuple[Settings, str], ...]]:
        """For every model of every slice, the settings that count for it, the nearest first, and where they
        stand."""
        for k, part in enumerate(self.slices):
            wider = ((part.own, f"slices.{k}.parameters"), (self.common, "parameters"))
            for settings, place in zip(part.sources, part.places or ["models"] * len(part.sources), strict=True):
                yield (settings, f"{place}.parameters"), *wider

    def _check_missing(self, method: Method, where: str) -> None:
        for option in method.options.values():
            for part in self.slices:
                holders = part.sources if option.per_model else ({},)
                for settings in holders:
                    stated = [s[option.name] for s in (settings, part.own, self.common) if option.name in s]
                    if option.required and not stated:
                        raise IsomergeError(
                            f"{where}: the method {method.name} needs `{option.name}`"
                            f"{' for every model' if option.per_model else ''}: give it under parameters"
                        )

    def _all(self) -> Iterator[tuple[Settings, str, bool]]:
        """Settings, where they stand, and whether they are one model's."""
        yield self.common, "parameters", False
        for k, part in enumerate(self.slices):
            yield part.own, f"slices.{k}.parameters", False
            places = part.places or tuple(f"models.{j}" for j in range(len(part.sources)))
            for settings, place in (*zip(part.sources, places, strict=True), part.of_base):
                yield settings, f"{place}.parameters", True

    def _place(self, layer: int | None, after: bool, depth: int) -> tuple[SliceParameters, float, int]:
        """The slice of a layer, where in it the layer lies (from 0 to 1), and how many of its layers come
        before."""
        if layer is None:  # as mergekit: what lies outside the layers takes a gradient's first value
            return self.slices[-1 if after else 0], 0.0, 0
        if len(self.slices) == 1:
            return self.slices[0], layer / (depth - 1) if depth > 1 else 1.0, layer
        for part in self.slices:
            if layer < part.layers:
                return part, layer / (part.layers - 1) if part.layers > 1 else 1.0, layer
            layer -= part.layers
        raise AssertionError("a layer beyond the last slice")

    def _value(self, option: Option, part: SliceParameters, name: str, names: Sequence[str], t: float) -> Any:
        def first(*settings: Settings, name: str = name) -> Any:
            for setting in settings:
                if option.name in setting:
                    value = resolve(setting[option.name], name, t, numeric=option.kind in (int, float))
                    if value is not None:
                        return bool(value) if option.kind is bool else value
            if option.required and name:
                raise IsomergeError(f"`{option.name}` has no value for tensor {name}: add one without a filter")
            return None if option.required else option.default

        if option.per_model:
            return [
                first(settings, part.own, self.common, name=own)
                for settings, own in zip(part.sources, names, strict=True)
            ]
        return first(part.own, self.common)


def renumbered(name: str, layer: int, own: int) -> str:
    """A tensor's name with another number of its layer, the first number of this value in it."""
    return re.sub(rf"(?<![^.]){layer}(?![^.])", str(own), name, count=1)


def is_search(entry: Any) -> bool:
    """Whether a part of a setting says where its value is searched for, in place of a value."""
    return isinstance(entry, Mapping) and bool(SEARCH_KEYS & entry.keys())


def scalars(setting: Any, where: str) -> Iterator[Any]:
    """Every scalar of a setting.

    Raises:
        IsomergeError: it is not a scalar, a gradient or a list of filters.
    """
    if isinstance(setting, Mapping):
        setting = [setting]
    if not is_list(setting):
        yield setting
        return
    if any(is_search(entry) for entry in setting):
        raise IsomergeError(
            f"{where} is searched for (`search`, `choices`), and this command takes values: give one, or run "
            f"isomerge tune, which finds it"
        )
    if not setting:
        raise IsomergeError(f"{where} is an empty list: give a value, a gradient such as [0, 0.5, 1], or filters")
    for entry in setting:
        if isinstance(entry, Mapping):
            if (
                not set(entry) <= FILTER_KEYS
                or "value" not in entry
                or len({isinstance(e, Mapping) for e in setting}) > 1
            ):
                raise IsomergeError(
                    f"{where}: a filtered value has the keys `filter` and `value`, and stands among such alone"
                )
            yield from scalars(entry["value"], where)
        elif is_list(entry):
            raise IsomergeError(f"{where}: a gradient is a list of numbers, without lists in it")
        else:
            yield entry


def of_every_model(method: Method, name: str, value: Any) -> bool:
    """Whether a parameter given by the command line or Python has one value per model: a list of numbers where the
    parameter has one per model, and neither a gradient of one for all models nor a list of filters."""
    option = method.options.get(name)
    listed = isinstance(value, (list, tuple)) and not any(isinstance(entry, Mapping) for entry in value)
    return option is not None and option.per_model and listed


def of_models(
    method: Method, count: int, *, weights: Sequence[float] | None = None, given: Settings | None = None
) -> Parameters:
    """The parameters of a merge of whole models, as the command line and Python give them.

    Args:
        method: what they are for.
        count: how many models it merges, the base left out.
        weights: of the models, where the method has the parameter ``weight``.
        given: by name; a list of ``count`` numbers is one per model where the parameter is.

    Raises:
        IsomergeError: unknown parameters, values that the method does not take, another number of values, or too
            many or too few models.
    """
    check_count(count, method.name, method.models)
    given = dict(given or {})
    if weights is not None:
        if "weight" not in method.options:
            raise IsomergeError(f"--weights: the method {method.name} has no weights; leave them out")
        given["weight"] = list(weights)
    each: list[Values] = [{} for _ in range(count)]
    common: Values = {}
    for name, value in given.items():
        if of_every_model(method, name, value):
            if len(value) != count:
                raise IsomergeError(
                    f"--{'weights' if name == 'weight' and weights is not None else f'parameter {name}'}: {count} "
                    f"numbers are needed, got {list(value)}"
                )
            for settings, single in zip(each, value, strict=True):
                settings[name] = single
        else:
            common[name] = value
    parsed = Parameters((SliceParameters(0, tuple(each)),), common).with_numbers(method)
    parsed.check(method, "--parameter")
    return parsed

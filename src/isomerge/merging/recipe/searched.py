"""Recipes some of whose parameters are searched for (`isomerge tune`).

In the place of a value stands where it is searched for:

    parameters:
      lambda: {search: [0, 2]}                     # from 0 to 2, both included
      density: {search: [0.1, 1], start: 0.5}      # the recipe's own value, which is tried as well
      weight: {search: [0, 1], layers: 3}          # three values, interpolated from the first layer to the last
      weight: {search: [0, 1], every: 8}           # one value for every eight consecutive layers
      normalize: {choices: [true, false]}

``log: true`` searches orders of magnitude evenly, ``smooth: true`` interpolates between the groups of ``every``.
All other commands refuse such a recipe. A document of mergekit-evolve is one (`isomerge.merging.recipe.genome`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from isomerge.checkpoint.yaml_text import plain_value, read_yaml
from isomerge.errors import IsomergeError
from isomerge.fusion.method_options import Option, is_chosen_by, is_list, natural_range, resolve
from isomerge.fusion.method_parameters import as_number, is_search
from isomerge.fusion.registry import Method
from isomerge.fusion.registry import method as merge_method
from isomerge.merging.recipe.dimensions import Dimension, Place, middle, place_text, value_at, with_values
from isomerge.merging.recipe.genome import Evolution, as_recipe, evolution
from isomerge.merging.recipe.recipe_modules import of_one_module
from isomerge.merging.recipe.recipe_request import request_of_recipe
from isomerge.merging.recipe.recipe_steps import Step
from isomerge.merging.recipe.schema import Recipe, read_recipe
from isomerge.options.unused import note
from isomerge.records import Json

KEYS = ("search", "choices", "start", "log", "layers", "every", "smooth")
PARAMETERS = "parameters"


class Filled(Step):
    """A recipe with a value in every place."""

    def __str__(self) -> str:
        """As messages name it: the file."""
        return self.path


@dataclass(frozen=True)
class SearchedRecipe:
    """A recipe, and what of it is searched for."""

    path: str
    content: Mapping[str, Any]
    """With the recipe's own value in every place."""
    dimensions: tuple[Dimension, ...]
    evolved: Evolution | None = None
    """The document of mergekit-evolve that it was."""

    def filled(self, values: Mapping[str, Any] | None = None) -> Filled:
        """The recipe with values by the names of the dimensions; with its own, when None."""
        chosen = [(d, d.start if values is None else values[d.name]) for d in self.dimensions]
        by_place = {place: value for d, value in chosen for place in (d.place, *d.also)}
        return Filled(self.path, None, with_values(self.content, by_place))

    @property
    def start(self) -> Json:
        """The recipe's own values."""
        return {d.name: d.start for d in self.dimensions}


def searched_recipe(
    path: str | Path, said: Mapping[str, Any] | None = None, groups: int | None = None, preferred: str | None = None
) -> SearchedRecipe:
    """Read a recipe and what is searched for in it: what it says, what is said beside it, or, where neither says
    anything, all numbers that its method has (`isomerge.fusion.method_options`), in every model's own place.

    Args:
        path: the recipe.
        said: by the names of the method's parameters, ``LOW:HIGH``, ``A,B,C``, a pair of numbers, a mapping as in a
            recipe, or nothing (None, an empty text) for what is natural.
        groups: how many values a parameter has over the layers, where it does not say that itself.
        preferred: what alone is searched for where nothing is said, of methods that have it.

    Raises:
        IsomergeError: the recipe is wrong, a place or a range is, or nothing can be searched for.
    """
    path = os.path.expanduser(path)
    if groups is not None and groups < 2:
        raise IsomergeError(f"--layer-groups {groups}: give at least 2, or leave it out for one value")
    content, evolved = _content(path)
    entries = dict(_entries(content))
    blank = with_values(content, {place: _any_value(entry) for place, entry in entries.items()})
    recipe = read_recipe(Filled(path, None, blank))
    method = _method_of(recipe, Filled(path, None, blank))
    wanted = {place: Wish(path, method, place, entry, groups) for place, entry in entries.items()}
    names = dict(said or {})
    if not wanted and not names:
        names = {name: None for name, option in method.options.items() if is_chosen_by(option)}
        names = {preferred: None} if preferred in names else names
        if not names:
            raise IsomergeError(
                f"{path}: the method {method.name} has no number that could be searched for: name another method, "
                f"or what to search by --search"
            )
    for name, spec in names.items():
        entry = _entry_of(name, spec)
        twice = next((place for place, wish in wanted.items() if place in entries and wish.name == name), None)
        if twice is not None:
            raise IsomergeError(
                f"--search {name}: {path} says already what is searched for, as `{place_text(twice)}`: leave one "
                f"of them out"
            )
        for place in _places(path, recipe, method, name):
            wanted[place] = Wish(
                path, method, place, entry, groups, _own_value(path, content, recipe, method, place)
            )
    dimensions = tuple(d for wish in wanted.values() for d in wish.dimensions())
    gradients = {d.place[:-1]: [] for d in dimensions if d.place not in wanted}
    searched = SearchedRecipe(path, with_values(blank, gradients), dimensions, evolved)
    if groups is not None and not any(wish.groups for wish in wanted.values()):
        note("layer_groups", "nothing that is searched for is a number that could differ among layers")
    request_of_recipe(searched.filled())
    return searched


def _content(path: str) -> tuple[Json, Evolution | None]:
    """The recipe's text, and the document of mergekit-evolve that it is made of; one that is none, or several, is
    refused."""
    if os.path.isdir(path):
        raise IsomergeError(f"{path} is a folder: tune takes a recipe, which names the models (RECIPE.yml)")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise IsomergeError(f"{path}: a recipe is a mapping with `models` and `merge_method`")
    if (evolved := evolution(path, content)) is not None:
        return as_recipe(path, evolved.genome), evolved
    return of_one_module(path, content), None


def _method_of(recipe: Recipe, source: Filled) -> Method:
    """The method of a recipe."""
    try:
        return merge_method(recipe.merge_method)
    except IsomergeError:
        request_of_recipe(source)  # says it in the recipe's words
        raise


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Every place where a recipe says that something is searched for."""
    for place in _holders(content):
        settings = value_at(content, place)
        if isinstance(settings, Mapping):
            for name, setting in settings.items():
                yield from _within(setting, (*place, str(name)))


def _holders(content: Mapping[str, Any]) -> Iterator[Place]:
    """Where parameters may stand."""
    yield (PARAMETERS,)
    for k, _ in enumerate(_listed(content.get("models"))):
        yield ("models", k, PARAMETERS)
    for k, part in enumerate(_listed(content.get("slices"))):
        yield ("slices", k, PARAMETERS)
        sources = part.get("sources") if isinstance(part, Mapping) else None
        for j, _ in enumerate(_listed(sources)):
            yield ("slices", k, "sources", j, PARAMETERS)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []


def _within(setting: Any, place: Place) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    if is_search(setting):
        yield place, setting
    elif isinstance(setting, Mapping):
        yield from _within(setting.get("value"), (*place, "value"))
    elif isinstance(setting, list):
        for k, part in enumerate(setting):
            yield from _within(part, (*place, k))


def setting_of(place: Place) -> Place | None:
    """The parameter whose value stands at a place, alone or behind a filter; None of a value in a gradient."""
    setting = place[: place.index(PARAMETERS) + 2]
    beyond = place[len(setting) :]
    alone = beyond in ((), ("value",)) or (len(beyond) == 2 and isinstance(beyond[0], int) and beyond[1] == "value")
    return setting if alone else None


def _any_value(entry: Mapping[str, Any]) -> Any:
    """A value for a place until its start is known."""
    for key in ("search", "choices"):
        if isinstance(entry.get(key), list) and entry[key]:
            return entry.get("start", entry[key][-1])
    return 0


def _entry_of(name: str, spec: Any) -> Mapping[str, Any]:
    """What ``--search`` says of a parameter, as a recipe would write it.

    Raises:
        IsomergeError: it is not written like that.
    """
    wrong = IsomergeError(f"--search {name}: write {name}=LOW:HIGH, such as {name}=0:1, or choices, {name}=A,B,C")
    if spec is None or spec == "":
        return {}
    if isinstance(spec, Mapping):
        return spec
    if isinstance(spec, str):
        try:
            parts = [plain_value(part) for part in spec.split(":" if ":" in spec else ",")]
        except ValueError:
            raise wrong from None
        return {"search": parts} if ":" in spec else {"choices": parts}
    if is_list(spec) and len(spec) == 2:
        return {"search": list(spec)}
    raise wrong


def _places(path: str, recipe: Recipe, method: Method, name: str) -> list[Place]:
    """Where a parameter of the method's stands: with every model that is fused where each has its own, else with
    the recipe's own parameters.

    Raises:
        IsomergeError: the method has no such parameter, or slices have values of their own.
    """
    option = _option(method, name, f"--search {name}")
    if not option.per_model:
        own = [k for k, part in enumerate(recipe.slices or ()) if name in part.parameters]
        if own:
            raise IsomergeError(
                f"{path}: `slices.{own[0]}.parameters.{name}` has a value of its own: write what is searched for "
                f"there, as {name}: {{search: [LOW, HIGH]}}"
            )
        return [(PARAMETERS, name)]
    places: list[Place] = []
    apart = method.base != "none"
    for k, entry in enumerate(recipe.models or ()):
        if not (apart and entry.model == recipe.base_model):
            places.append(("models", k, PARAMETERS, name))
    for k, part in enumerate(recipe.slices or ()):
        base = part.base_model or recipe.base_model
        for j, source in enumerate(part.sources):
            if not (apart and source.model == base):
                places.append(("slices", k, "sources", j, PARAMETERS, name))
    return places


def _own_value(path: str, content: Mapping[str, Any], recipe: Recipe, method: Method, place: Place) -> Any:
    """The recipe's value for a place: its own, or the nearest of wider ones; None where there is none.

    Raises:
        IsomergeError: it has filters.
    """
    name = str(place[-1])
    wider: list[Place] = [place]
    if place[0] == "slices":
        wider.append(("slices", place[1], PARAMETERS, name))
    values = [value_at(content, at) for at in (*wider, (PARAMETERS, name))]
    own = as_number(next((value for value in values if value is not None), None))
    if isinstance(own, Mapping) or (is_list(own) and any(isinstance(part, Mapping) for part in own)):
        raise IsomergeError(
            f"{path}: `{name}` has filters: write what is searched for into the recipe, in the place of a value"
        )
    return own


def _option(method: Method, name: str, place: str) -> Option:
    if name not in method.options:
        near = get_close_matches(name, method.options, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(method.options) or 'none'}"
        raise IsomergeError(f"{place}: the method {method.name} has no parameter `{name}`; {hint}")
    return method.options[name]


class Wish:
    """What is searched for at one place of a recipe, checked.

    Args:
        path: the recipe.
        method: its method.
        place: the place.
        entry: what is said of it.
        groups: over how many values of a gradient, where it does not say that itself.
        own: the recipe's value, where it has one beside what is said.

    Raises:
        IsomergeError: naming the place.
    """

    def __init__(
        self, path: str, method: Method, place: Place, entry: Mapping[str, Any], groups: int | None, own: Any = None
    ) -> None:
        self.path, self.method, self.place, self.entry, self.own = path, method, place, entry, own
        self.name = next(str(place[k + 1]) for k, part in enumerate(place) if part == PARAMETERS)
        self.option = _option(method, self.name, f"{path}: `{place_text(place)}`")
        self._check_keys()
        self.log, self.choices = bool(entry.get("log")), tuple(entry.get("choices") or ())
        self.low, self.high = (0.0, 1.0) if self.choices else self._range()
        numbers = self.option.kind is float and not isinstance(place[-1], int)
        numbers = numbers and not any(isinstance(c, (str, bool)) for c in self.choices)
        if "layers" in entry and not numbers:
            raise self._error("only a number may have several values over the layers: leave `layers` out")
        self.every, self.smooth = entry.get("every", 0), entry.get("smooth", False)
        alone = numbers and place[0] != "slices" and setting_of(place) is not None
        if self.every and (not alone or "layers" in entry):
            raise self._error(
                "`every` is for a number of a model or of all that stands alone or behind a filter, not in a slice "
                "or a gradient: leave it out"
            )
        self.groups = entry.get("layers", None if self.every else groups) if numbers else None
        for value in (*self.choices, *(() if self.choices else (self.low, self.high)), *self._said_start()):
            try:
                method.check_value(self.name, value, place_text(place))
            except IsomergeError as error:
                raise IsomergeError(f"{path}: {error}") from None

    def dimensions(self) -> list[Dimension]:
        """One, or one for each value of a gradient."""
        starts, places = [self._start()], [self.place]
        if self.groups:
            places = [(*self.place, k) for k in range(self.groups)]
            starts = [resolve(starts[0], "", k / (self.groups - 1), numeric=True) for k in range(self.groups)]
        elif is_list(starts[0]):  # a gradient of the recipe's is kept as long as it is
            starts = list(starts[0])
            places = [(*self.place, k) for k in range(len(starts))]
        return [
            Dimension(
                place,
                self.name,
                start,
                float(self.low),
                float(self.high),
                self.choices,
                self.option.kind is int and not self.choices,
                self.log,
                every=self.every,
                smooth=self.smooth,
            )
            for place, start in zip(places, starts, strict=True)
        ]

    def _error(self, words: str) -> IsomergeError:
        return IsomergeError(f"{self.path}: `{place_text(self.place)}`: {words}")

    def _check_keys(self) -> None:
        entry = self.entry
        if unknown := next((key for key in entry if key not in KEYS), None):
            near = get_close_matches(str(unknown), KEYS, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(KEYS)}"
            raise self._error(f"unknown key `{unknown}` beside what is searched for: {hint}")
        if "search" in entry and "choices" in entry:
            raise self._error("`search` is a range and `choices` are single values: give one of them")
        if "choices" in entry and (not isinstance(entry["choices"], list) or len(entry["choices"]) < 2):
            raise self._error("`choices` lists two or more values")
        for key in ("log", "smooth"):
            if not isinstance(entry.get(key, False), bool):
                raise self._error(f"`{key}` is true or false")
        for key, least, what in (("layers", 2, "values"), ("every", 1, "layers")):
            number = entry.get(key, least)
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise self._error(f"`{key}` is a whole number of {what}, from {least}")
        if entry.get("smooth") and "every" not in entry:
            raise self._error("`smooth` interpolates between the groups of `every`: say how many layers these have")

    def _range(self) -> tuple[float, float]:
        """From where to where; whatever is said, within finite numbers."""
        natural = natural_range(self.option)
        if "search" not in self.entry:
            if natural is None:
                raise self._error(
                    f"say where it is searched for, as {self.name}: {{search: [LOW, HIGH]}} or {{choices: [A, B]}}"
                )
            return natural.least, natural.most
        entry = self.entry["search"]
        pair = entry if is_list(entry) and len(entry) == 2 else [None, None]
        low, high = as_number(list(pair))
        if self.option.kind not in (int, float):
            raise self._error("it is no number: list its values, as {choices: [A, B]}")
        if not all(isinstance(n, (int, float)) and not isinstance(n, bool) and abs(n) < 1e300 for n in (low, high)):
            raise self._error(f"`search` is {entry!r:.80}: give two finite numbers, [LOW, HIGH]")
        if low >= high:
            raise self._error(f"`search` is [{low}, {high}]: the first number must be less than the second")
        if self.log and low <= 0:
            raise self._error(f"`search` is [{low}, {high}]: with `log`, both must be above 0")
        return low, high

    def _said_start(self) -> Sequence[Any]:
        if "start" not in self.entry:
            return ()
        start = as_number(self.entry["start"])
        probe = Dimension(self.place, self.name, start, self.low, self.high, self.choices)
        if any(value not in probe for value in (start if is_list(start) and start else [start])):
            raise self._error(f"`start` is {start!r:.80}, which is none of the values that are searched")
        return start if is_list(start) else (start,)

    def _start(self) -> Any:
        if "start" in self.entry:
            return as_number(self.entry["start"])
        if self.own is not None:
            return self.own
        default = None if self.option.required else self.option.default
        if default in Dimension(self.place, self.name, None, self.low, self.high, self.choices):
            return default
        if self.choices:
            return self.choices[0]
        return middle(self.low, self.high, whole=self.option.kind is int, log=self.log)

"""Arguments of Python's functions, checked against their annotations: a wrong kind is one sentence, before anything is read."""

from __future__ import annotations

import collections.abc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, wraps
from importlib import import_module
from inspect import Parameter, signature
from operator import index
from pathlib import Path
from types import NoneType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

from isomerge.errors import IsomergeError

P = ParamSpec("P")
R = TypeVar("R")
WORDS = {
    str: "a text",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    NoneType: "None",
    collections.abc.Mapping: "a dict whose keys are texts",
    collections.abc.Callable: "a function",
}
SHOWN = 80
"""How much of a wrong value a sentence shows."""


class _WrongKindError(TypeError):
    """A value is not of an annotation's kind."""


def checked(rest: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: arguments are checked against the function's annotations, and handed on in Python's own kinds.

    Numbers of numpy and torch become Python's, iterables lists, and one text or path where a list is asked for a list of one.
    What is annotated as ``Any``, or by a name that is there for type checkers only, is not looked at.

    Args:
        rest: ``module.function`` that takes the further keywords; it is imported when there are some.

    Raises:
        IsomergeError: by the decorated function, of a wrong kind or of a keyword that does not exist.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            own = signature(function)
            kinds = dict(_kinds(function))
            known = [n for n, p in own.parameters.items() if p.kind is not Parameter.VAR_KEYWORD]
            if rest is not None and any(name not in known for name in named):
                home, _, name = rest.rpartition(".")
                more = getattr(import_module(home), name)
                kinds |= _kinds(more)
                known += signature(more).parameters
            for name in named:
                if name not in known:
                    near = get_close_matches(name, known, n=1)
                    hint = f"did you mean {near[0]}" if near else f"there are {', '.join(known)}"
                    raise IsomergeError(f"{name}: {function.__name__} has no such argument; {hint}")
            bound = own.bind(*args, **named)
            for name, value in bound.arguments.items():
                if own.parameters[name].kind is Parameter.VAR_KEYWORD:
                    bound.arguments[name] = {n: _as_kind(n, v, kinds[n]) for n, v in value.items()}
                else:
                    bound.arguments[name] = _as_kind(name, value, kinds[name])
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


@lru_cache
def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's annotations, evaluated one by one: those that only type checkers know are ``Any``."""
    found = {}
    for name, parameter in signature(function).parameters.items():
        kind = parameter.annotation
        try:
            found[name] = eval(kind, function.__globals__) if isinstance(kind, str) else kind
        except NameError:
            found[name] = Any
    return found


def _as_kind(name: str, value: Any, kind: Any) -> Any:
    """A value as an annotation wants it."""
    kinds = _alternatives(kind)
    for alone in (False, True):  # one text is a list of one only where nothing else takes texts
        for one in kinds:
            try:
                return _converted(value, one, alone=alone)
            except _WrongKindError:
                continue
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
    example = _example(value, kinds)
    raise IsomergeError(f"{name}={shown}: give {_words(kinds)}{example and f', such as {example}'}")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union; another kind alone."""
    return get_args(kind) if type(kind).__name__ in ("UnionType", "Union", "_UnionGenericAlias") else (kind,)


def _converted(value: Any, kind: Any, *, alone: bool = False) -> Any:
    """A value of one kind that is no union.

    Raises:
        _WrongKindError: it is of another one.
    """
    origin = get_origin(kind) or kind
    if origin is collections.abc.Sequence:
        return _listed(value, get_args(kind)[0], alone=alone)
    if origin in _TAKES:
        return _TAKES[origin](value)
    if isinstance(origin, type) and origin is not object and not isinstance(value, origin):
        raise _WrongKindError
    return value


def _listed(value: Any, kind: Any, *, alone: bool) -> Sequence[Any]:
    """An iterable as a list, a tuple as one; sets and dicts have no order to go by, and of texts only one alone is a list."""
    if isinstance(value, (str, os.PathLike)) and alone:
        value = [value]
    if isinstance(value, (str, bytes, os.PathLike, Mapping, collections.abc.Set)) or not _is_iterable(value):
        raise _WrongKindError
    kinds, found = _alternatives(kind), []
    for item in value:
        for number, one in enumerate(kinds, 1):
            try:
                found.append(_converted(item, one))
                break
            except _WrongKindError:
                if number == len(kinds):
                    raise
    return tuple(found) if isinstance(value, tuple) else found


def _is_iterable(value: Any) -> bool:
    """Whether it can be gone through; an array of no dimension cannot, though it has the method."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongKindError
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, os.PathLike):
        raise _WrongKindError
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):  # numpy's have either name
        raise _WrongKindError
    return bool(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise _WrongKindError
    try:
        return index(value)
    except TypeError:
        raise _WrongKindError from None


def _number(value: Any) -> float:
    if isinstance(value, (bool, int)):
        return _whole(value)
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) or not hasattr(value, "__float__"):
        raise _WrongKindError
    return float(value)


def _nothing(value: Any) -> None:
    if value is not None:
        raise _WrongKindError


def _dict(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _WrongKindError
    return value


def _function(value: Any) -> Any:
    if not callable(value):
        raise _WrongKindError
    return value


_TAKES: dict[Any, Callable[[Any], Any]] = {
    Any: lambda value: value,
    str: _text,
    Path: _path,
    bool: _boolean,
    int: _whole,
    float: _number,
    NoneType: _nothing,
    None: _nothing,
    collections.abc.Mapping: _dict,
    collections.abc.Callable: _function,
}


def _words(kinds: Sequence[Any], *, many: bool = False) -> str:
    *first, last = [_word(kind, many=many) for kind in kinds]
    return f"{', '.join(first)} or {last}" if first else last


def _word(kind: Any, *, many: bool = False) -> str:
    """What a kind is called, one of it or ``many``."""
    origin = get_origin(kind) or kind
    if origin is collections.abc.Sequence:
        items = _alternatives(get_args(kind)[0])
        return "a list" if items == (Any,) else f"a list of {_words(items, many=True)}"
    word = WORDS.get(origin) or getattr(origin, "__name__", str(origin))
    return f"{word.removeprefix('a ')}s" if many and word.startswith("a ") else word


def _example(value: Any, kinds: Sequence[Any]) -> str:
    """What was meant, where it can be told: the number of a text, one text of several, the list of one thing."""
    if str in kinds and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return repr(",".join(value))
    for kind in (int, float):
        if kind in kinds and isinstance(value, str):
            try:
                return repr(kind(value))
            except ValueError:
                continue
    numbers = [_alternatives(get_args(kind)[0]) for kind in kinds if get_origin(kind) is collections.abc.Sequence]
    return f"[{value!r}]" if isinstance(value, (int, float)) and any(float in items for items in numbers) else ""

"""Arguments of Python's functions, checked against their annotations: a wrong kind is one sentence, before anything
is read."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import MISSING, replace
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from operator import index
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from isomerge.errors import IsomergeError
from isomerge.files import disk_errors, write_whole
from isomerge.observe.data.examples import Examples
from isomerge.options.option import COMMAND_LINE, NAMES, Given, Request
from isomerge.options.python_words import in_python
from isomerge.options.unused import is_noting, note_idle, notes, noting, with_notes
from isomerge.plug_ins.command import importing, with_used
from isomerge.progress import Observer, quiet
from isomerge.records import Json, Record, as_json
from isomerge.remembered import folder

R = TypeVar("R")
KNOWN = {**NAMES, "Examples": Examples}
"""What the annotations of options name, those of Python's door alone among them."""
REPORT = "dict[str, Any]"
"""What reports are annotated as."""
SHOWN = 80
"""How much of a wrong value a sentence shows."""


def checked(request: type[Request]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator: a function of a request becomes one of the request's arguments, options and groups. They are
    checked against their annotations, and handed on in Python's own kinds.

    Numbers of numpy and torch become Python's, iterables lists, and one text or path where a list is asked for a
    list of one. What is annotated as ``Any``, or by a name that is there for type checkers only, is not looked at.
    The function's attribute ``asked`` takes the request, as the command line makes it, and gives the record that
    the function itself returns, where the function of arguments gives a dict.

    Args:
        request: what is asked for. The function gets it, and behind it an observer where it has progress.

    Raises:
        IsomergeError: by the decorated function, of a wrong kind or of a keyword that does not exist.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        full = signature_of(request, signature(function), function.__globals__)

        def asked(given: Any, observer: Observer = quiet) -> R:
            return function(given, observer) if request.progress else function(given)

        @wraps(function)
        def call(*args: Any, **named: Any) -> R:
            outermost = not is_noting()
            try:
                return called(args, named, outermost)
            except IsomergeError as error:
                if outermost:  # else another door tells it
                    error.in_python = in_python(error.sentence, function.__name__, full.parameters.keys())
                raise

        def called(args: Any, named: Any, outermost: bool) -> R:
            kinds = _kinds(function, full)
            for name in named:
                if name not in kinds:
                    from isomerge.fusion.registry import is_parameter
                    from isomerge.options.nearest_names import nearest

                    near, way = nearest(name, kinds), f"there are {', '.join(kinds)}"
                    if near is None and "parameters" in kinds and is_parameter(name):
                        way = f"it is a parameter of merge methods: write parameters={{{name!r}: ...}}"
                    hint = way if near is None else f"did you mean {near}"
                    raise IsomergeError(f"{name}: {function.__name__} has no such argument; {hint}")
            try:
                bound = full.bind(*args, **named)
            except TypeError:
                raise IsomergeError(_call_text(function.__name__, full, args, named)) from None
            for name, value in bound.arguments.items():
                bound.arguments[name] = _as_kind(name, value, kinds[name])
            if isinstance(text := bound.arguments.get("spec"), str) and "\n" in text:
                bound.arguments["spec"] = written_spec(text)
            with importing(bound.arguments.get("imports")), noting():
                given = replace(request.of(bound.arguments), said=frozenset(bound.arguments))
                if request.settled:
                    note_idle(request, given.given(), request.defaults())
                result = as_report(asked(given, bound.arguments.get("observer", quiet)))
                if outermost and not _has_report(result):
                    for text in notes():
                        warnings.warn(text, stacklevel=3)
                return result

        call.__signature__ = full  # pyright: ignore[reportAttributeAccessIssue]
        call.__annotations__ = {name: parameter.annotation for name, parameter in full.parameters.items()}
        call.__doc__ = documented(function, request)
        call.asked = asked  # pyright: ignore[reportAttributeAccessIssue]
        return call

    return decorate


def signature_of(request: type[Request], own: Signature, names: Mapping[str, Any]) -> Signature:
    """How a function is called that is asked for this: arguments by their places, all else by name; a record that
    it returns, of those that its module ``names``, is a dict to who calls it."""
    parameters = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if about.positional else Parameter.KEYWORD_ONLY,
            default=Parameter.empty if declared.default is MISSING else declared.default,
            annotation=about.python or declared.type,
        )
        for name, (declared, about) in request.declared().items()
        if about.door != COMMAND_LINE
    ]
    if request.progress:
        parameters.append(Parameter("observer", Parameter.KEYWORD_ONLY, default=quiet, annotation="Observer"))
    kinds = [
        n for n, kind in names.items() if kind == Json or (isinstance(kind, type) and issubclass(kind, Record))
    ]
    record = rf"\b(?:{'|'.join(kinds)})\b(?:\[\w+\])?"
    returned = re.sub(rf"{record}(?: \| {record})*", REPORT, str(own.return_annotation)) if kinds else None
    parameters.sort(key=lambda parameter: parameter.kind)
    return own.replace(parameters=parameters, return_annotation=returned or own.return_annotation)


def written_spec(text: str) -> Path:
    """The file of a spec that was given as a text: kept where answers are (`isomerge.remembered`), as recipes name
    it, and of one name whenever it is the same text.

    Raises:
        IsomergeError: it cannot be written.
    """
    file = folder() / "specs" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.spec"
    with disk_errors(file, "writing"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode())
    return file


def as_report(result: Any) -> Any:
    """What a function of the API returns: its report, where it has one, as a dict that a notebook shows, with what
    was noted and the plug-ins that were used."""
    if isinstance(result, tuple):
        return tuple(map(as_report, result))
    if not isinstance(result, (Record, dict)):
        return result
    # what opens a checkpoint alone returns no report
    from isomerge.evidence.report.notebook import Report

    return Report(with_used(with_notes(as_json(result))))


def _has_report(result: Any) -> bool:
    return any(isinstance(part, dict) for part in (result if isinstance(result, tuple) else (result,)))


def documented(function: Callable[..., Any], request: type[Request]) -> str | None:
    """A function's docstring with what the arguments are of which it does not speak itself."""
    if function.__doc__ is None:
        return function.__doc__
    text = cleandoc(function.__doc__)
    said = {name for row in re.findall(r"^    (\w+(?:, \w+)*): ", text, re.MULTILINE) for name in row.split(", ")}
    rows = [
        f"    {name}: {about.help}"
        for name, (_, about) in request.declared().items()
        if name not in said and about.door != COMMAND_LINE
    ]
    rows += ["    observer: told of progress."] if request.progress and "observer" not in said else []
    return "\n".join([text, "", "Keyword Args:", *rows])


INSTEAD = {"fingerprint": "isomerge.similarity(ONE, TWO) compares two models"}
"""What was probably meant by a function that is called with too much."""


def _call_text(name: str, own: Signature, args: Sequence[Any], named: Mapping[str, Any]) -> str:
    """What is wrong with a call that lacks arguments or has too many, and how it is written."""
    parameters = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    plain = [p.name for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    needed = [p.name for p in parameters if p.default is Parameter.empty]
    written = ", ".join([word for word in plain if word in needed] + [f"{w}=..." for w in needed if w not in plain])
    twice = [word for word in plain[: len(args)] if word in named]
    lacking = [word for word in needed if word not in named and word not in plain[: len(args)]]
    hint = ""
    if len(args) > len(plain):
        what = (
            f"takes {len(plain)} argument{'s' * (len(plain) != 1)} without a name ({', '.join(plain)}), and "
            f"{len(args)} are given"
        )
        hint = (
            "; put the models into one list"
            if plain[:1] == ["models"]
            else f"; {INSTEAD[name]}"
            if name in INSTEAD
            else ""
        )
    elif twice:
        what = f"has {twice[0]} twice"
    else:
        what = f"needs {' and '.join(lacking)}"
    return f"{name} {what}: call it as isomerge.{name}({written}){hint}"


def _kinds(function: Callable[..., Any], full: Signature) -> Given:
    """A function's annotations, evaluated one by one: those that only type checkers know are ``Any``."""
    kinds: Given = {}
    for name, parameter in full.parameters.items():
        kind = parameter.annotation
        try:
            kinds[name] = eval(kind, {**KNOWN, **function.__globals__}) if isinstance(kind, str) else kind
        except NameError:
            kinds[name] = Any
    return kinds


def _as_kind(name: str, value: Any, kind: Any) -> Any:
    """A value as an annotation wants it."""
    kinds = _alternatives(kind)
    if isinstance(value, Iterator) and any(get_origin(each) is Sequence for each in kinds):
        value = list(value)  # it can be gone through only once, and more than one kind may be tried
    for alone in (False, True):  # one text is a list of one only where nothing else takes texts
        with suppress(TypeError):
            return _converted(value, kinds, alone=alone)
    shown = " ".join(repr(value).split())
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
    example = _example(value, kinds)
    tensors = "Examples" in _words(kinds) and (isinstance(value, Mapping) or _is_iterable(value))
    made = (
        "; isomerge.observe.data.examples.Examples(tensors, labelled) makes them of tensors by name, of all "
        "batches together"
    )
    raise IsomergeError(
        f"{name}={shown}: give {_words(kinds)}{example and f', such as {example}'}{made if tensors else ''}"
    )


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union; another kind alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _converted(value: Any, kinds: Sequence[Any], *, alone: bool = False) -> Any:
    """A value as the first kind that takes it.

    Raises:
        TypeError: none does.
    """
    if Path in kinds and isinstance(value, (str, Path)):  # no shell has read it, in a notebook
        value = type(value)(os.path.expanduser(value))
    for kind in kinds:
        origin = get_origin(kind) or kind
        with suppress(TypeError):
            if origin is Sequence:
                return _listed(value, _alternatives(get_args(kind)[0]), alone=alone)
            if origin in _KINDS:
                return _KINDS[origin][1](value)
            return value if origin is Any else _instance(origin)(value)
    raise TypeError


def _listed(value: Any, kinds: Sequence[Any], *, alone: bool) -> Sequence[Any]:
    """An iterable as a list, a tuple as one; sets and dicts have no order to go by, and of texts only one alone is
    a list."""
    if isinstance(value, (str, os.PathLike)) and alone:
        value = [value]
    if isinstance(value, (str, bytes, os.PathLike, Mapping, Set)) or not _is_iterable(value):
        raise TypeError
    items = [_converted(item, kinds) for item in value]
    return tuple(items) if isinstance(value, tuple) else items


def _is_iterable(value: Any) -> bool:
    """Whether it can be gone through; an array of no dimension cannot, though it has the method."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0


def _instance(kind: Any) -> Callable[[Any], Any]:
    """What takes instances of a class as they are."""

    def take(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return take


def _is_truth(value: Any) -> bool:
    """Whether it is True or False, of Python, numpy (which has called the type by two names) or torch."""
    return type(value).__name__ in ("bool", "bool_") or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _truth(value: Any) -> bool:
    if not _is_truth(value) or getattr(value, "ndim", 0):
        raise TypeError
    return bool(value)


def _whole(value: Any) -> int:
    if _is_truth(value):
        raise TypeError
    return index(value)


def _number(value: Any) -> float:
    if isinstance(value, int):
        return _whole(value)
    if _is_truth(value) or getattr(value, "ndim", 0) or not hasattr(value, "__float__"):
        raise TypeError
    return float(value)


def _dict(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return value


_KINDS: dict[Any, tuple[str, Callable[[Any], Any]]] = {
    str: ("a text", _instance(str)),
    Path: ("a path", _instance(os.PathLike)),
    bool: ("True or False", _truth),
    int: ("a whole number", _whole),
    float: ("a number", _number),
    NoneType: ("None", _instance(NoneType)),
    Mapping: ("a dict whose keys are texts", _dict),
    Callable: ("a function", _instance(Callable)),
}
"""What a kind is called, and what takes its values and raises a TypeError for others."""


def _words(kinds: Sequence[Any], *, many: bool = False) -> str:
    *first, last = [_word(kind, many=many) for kind in kinds]
    return f"{', '.join(first)} or {last}" if first else last


def _word(kind: Any, *, many: bool = False) -> str:
    """What a kind is called, one of it or ``many``."""
    origin = get_origin(kind) or kind
    if origin is Sequence:
        items = _alternatives(get_args(kind)[0])
        return "a list" if items == (Any,) else f"a list of {_words(items, many=True)}"
    word = _KINDS[origin][0] if origin in _KINDS else getattr(origin, "__name__", str(origin))
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
    numbers = [_alternatives(get_args(kind)[0]) for kind in kinds if get_origin(kind) is Sequence]
    return f"[{value!r}]" if isinstance(value, (int, float)) and any(float in items for items in numbers) else ""

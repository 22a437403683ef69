"""Expressions over a config: how a spec text reads sizes and conditions from ``config.json``.

Python's own syntax, evaluated over a whitelist of nodes: names are config keys (missing ones are ``None``),
``or`` chooses the first that is set, ``a.b`` is the key ``b`` of the group of keys ``a``, ``a[i]`` an entry of a
list, ``tensors["name"][0]`` the first length of a stored tensor's shape, arithmetic is on whole numbers; ``+`` also
writes a number and words one after the other (the name of a tensor of the layer behind the last). No calls: a spec
is data.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from isomerge.errors import IsomergeError

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.In: lambda a, b: b is not None and a in b,
    ast.NotIn: lambda a, b: b is None or a not in b,
}


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression, with ``names`` as its variables.

    Raises:
        IsomergeError: the text is no expression of the language, or the config lacks what it needs.
    """
    tree = _parsed(text)
    try:
        return _value(tree.body, names)
    except (TypeError, ZeroDivisionError):
        raise IsomergeError(
            f"config.json: the spec needs {text.strip()!r}, but {_wrong(tree, names)}; correct it"
        ) from None


@lru_cache(4096)  # every checkpoint of an architecture asks the same questions
def _parsed(text: str) -> ast.Expression:
    """An expression as a tree, which nobody changes."""
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        raise IsomergeError(
            f"expression {text!r} in the spec is not valid: use config keys, numbers and + - * //"
        ) from None


def _wrong(tree: ast.AST, names: Mapping[str, Any]) -> str:
    """Which names of an expression that cannot be computed are not there, or else what they are."""
    used = sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)})
    missing = [key for key in used if names.get(key) is None]
    strange = [key for key in used if type(names[key]) is not int] if not missing else []
    reasons = [f"{key} is missing" for key in missing] or [
        f"{key} is {names[key]!r:.80}" for key in strange or used
    ]
    return " and ".join(reasons) or "it has no value"


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names.get(node.id)
        case ast.Attribute():
            return _member(node, _value(node.value, names))
        case ast.Subscript():
            return _entry(node, _value(node.value, names), _value(node.slice, names))
        case ast.Tuple() | ast.List():
            return tuple(_value(item, names) for item in node.elts)
        case ast.BoolOp():
            settles = isinstance(node.op, ast.Or)
            for item in node.values[:-1]:
                if bool(computed := _value(item, names)) == settles:
                    return computed
            return _value(node.values[-1], names)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, names)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, names)
        case ast.BinOp() if type(node.op) in _BINARY:
            return _computed(node, _value(node.left, names), _value(node.right, names))
        case ast.Compare(ops=[only]) if type(only) in _COMPARE:
            return _COMPARE[type(only)](_value(node.left, names), _value(node.comparators[0], names))
        case ast.IfExp():
            return _value(node.body if _value(node.test, names) else node.orelse, names)
    raise IsomergeError(
        f"expression in the spec: {ast.unparse(node)!r} is not allowed: use keys, numbers and + - * //"
    )


def _member(node: ast.Attribute, group: Any) -> Any:
    """A key of a group of keys (``rope_parameters.partial_rotary_factor``); ``None`` where either is missing."""
    if group is None or isinstance(group, Mapping):
        return (group or {}).get(node.attr)
    raise IsomergeError(
        f"expression in the spec: {ast.unparse(node)!r} is not allowed: the first part is no group of keys"
    )


def _entry(node: ast.expr, group: Any, at: Any) -> Any:
    """An entry of a group of keys or of a list (a shape), of which ``-1`` is the last; ``None`` where either is
    missing. A number (true or false as well) stands for a list of it: configs give one for all or a list.

    A number is also the key that is written with it: keys of ``config.json`` are never numbers
    (``per_layer_config["05"]``).
    """
    if group is None or at is None:
        return None
    if isinstance(group, Mapping) and isinstance(at, str):
        return group.get(at)
    if isinstance(group, Mapping) and type(at) is int:
        return next((value for key, value in group.items() if str(key).isdecimal() and int(key) == at), None)
    if isinstance(group, int) and type(at) is int:
        return group
    if isinstance(group, list | tuple) and type(at) is int:
        return group[at] if -len(group) <= at < len(group) else None
    raise IsomergeError(
        f"expression in the spec: {ast.unparse(node)!r} is not allowed: names are for groups of keys, numbers "
        f"for lists"
    )


def _computed(node: ast.BinOp, left: Any, right: Any) -> int | str:
    """Arithmetic on whole numbers; a division that leaves a remainder is a config that does not fit.

    A whole number times a fraction is cut to a whole number, as transformers cuts the rotated part of a head. A sum
    with words in it is the words: ``"layers." + 46 + ".norm"``.
    """
    words = isinstance(left, str) or isinstance(right, str)
    if isinstance(node.op, ast.Add) and words and all(isinstance(v, str) or type(v) is int for v in (left, right)):
        return f"{left}{right}"
    if isinstance(node.op, ast.Mult) and isinstance(left, int) and isinstance(right, float):
        return int(left * right)
    if not isinstance(left, int) or not isinstance(right, int):
        raise TypeError
    if isinstance(node.op, ast.FloorDiv) and left % right:
        raise IsomergeError(f"config.json: {ast.unparse(node)} = {left} // {right} is not a whole number")
    return _BINARY[type(node.op)](left, right)

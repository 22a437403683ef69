"""Seeded mutations of bytes, of JSON documents, of safetensors files, and of recipes: other values, other bytes,
and bombs that YAML allows."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import yaml

TOKENS = [
    b"", b"\0", b"\xff\xfe", b"{", b"}", b"[", b"]", b'"', b",", b":", b"-", b"1e999", b"NaN", b"null", b"true",
    b"18446744073709551615", b"-9223372036854775808", b"\x1b[2J", b"\r\n", b"&a ", b"*a", b"<<: *a\n",
    b"!!python/object:os.system ", b"- ", b"? ", b"|\n", b"%YAML 9\n", b"\t", b"../", b"\xe2\x80\xae",
    b"2020-99-99", b"0o9", b"!!binary x", b"9" * 5000,
]  # fmt: skip
"""Pieces of bytes that parsers may trip over."""

NAMES = [
    "", "..", "/etc/passwd", "../x", "a\x1b[31mb", "\u202e", "x" * 300, "\ud800", "a\nb", "__metadata__",
    "wte.weight",
]  # fmt: skip
"""Strings that make trouble as names of files and tensors."""


def odd_value(rng: Random) -> Any:
    """A JSON value that nobody expects."""
    deep: Any = rng.randrange(3)
    for _ in range(rng.choice([3, 40, 2000])):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return rng.choice(
        [
            None, True, False, 0, 1, -1, 2, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 0.0, -0.0, 0.5, 1e308,
            1e-320, float("nan"), float("inf"), "", "0", [], {}, [[]], [0] * 50, [None], {"": {}}, deep,
            rng.choice(NAMES), rng.choice(NAMES), rng.randrange(-5, 200), rng.random() * 10,
            [rng.randrange(-2, 9) for _ in range(rng.randrange(5))],
        ],
    )  # fmt: skip


def mutate_bytes(raw: bytes, rng: Random, times: int | None = None) -> bytes:
    """A few flips, cuts, copies and insertions anywhere."""
    found = bytearray(raw)
    for _ in range(times or rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(len(found) + 1)
        end = min(len(found), at + rng.choice([1, 1, 2, 4, 8, 64, 4096]))
        kind = rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = rng.randrange(256)
        elif kind == 2:
            del found[at:end]
        elif kind == 3:
            found[at:at] = rng.choice(TOKENS)
        elif kind == 4:
            found[at:at] = found[at:end]
        else:
            found[at:end] = rng.choice(TOKENS)
    return bytes(found)


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document; documents of tests are small and shallow."""
    found: list[tuple[Any, Any]] = []
    todo = [document]
    while todo:
        here = todo.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        found += [(here, key) for key in keys]
        todo += [here[key] for key in keys]
    return found


def mutate_document(document: Any, rng: Random) -> Any:
    """A few values replaced, removed, renamed, exchanged or copied; ``document`` is changed."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = _places(document)
        if not places:
            return odd_value(rng)
        where, key = rng.choice(places)
        kind = rng.randrange(7)
        if kind <= 2:
            where[key] = odd_value(rng)
        elif kind == 3:
            del where[key]
        elif kind == 4 and isinstance(where, dict):
            where[rng.choice([*NAMES, str(key) + "x", str(key).upper()])] = where.pop(key)
        elif kind == 5:
            other, its = rng.choice(places)
            where[key], other[its] = json.loads(_text(other[its])), json.loads(_text(where[key]))
        elif isinstance(where[key], int) and not isinstance(where[key], bool):
            where[key] += rng.choice([-1, 1, 8, -8, 2**32, 2**62])
        else:
            where[key] = [where[key]] if rng.random() < 0.5 else str(where[key])
    return document


def _text(value: Any) -> str:
    return json.dumps(value)


def mutate_json(raw: bytes, rng: Random) -> bytes:
    """A JSON text with other values, sometimes with a key twice, sometimes with broken bytes."""
    kind = rng.random()
    if kind < 0.25:
        return mutate_bytes(raw, rng)
    if kind < 0.3:
        return _monster(rng)
    text = _text(mutate_document(json.loads(raw), rng)).encode()
    if kind < 0.36 and text.startswith(b"{") and len(text) > 2:
        return text[:-1] + b", " + text[1:]
    return text


def _monster(rng: Random) -> bytes:
    """Documents that are large or deep."""
    size = rng.choice([1000, 100_000, 1_000_000])
    return rng.choice(
        [
            lambda: b"[" * size,
            lambda: b'{"a":' * size + b"1" + b"}" * size,
            lambda: b"[" + b"[]," * size + b"[]]",
            lambda: b"{" + b",".join(b'"%d":0' % k for k in range(size // 10)) + b"}",
            lambda: b'{"model_type": "' + b"a" * size + b'"}',
            lambda: b"9" * size,
            lambda: b'"' + b"\\ud800" * size + b'"',
            lambda: b" " * size,
        ]
    )()


def split_safetensors(raw: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack("<Q", raw[:8])
    return raw[8 : 8 + length], raw[8 + length :]


def mutate_header(raw: bytes, rng: Random) -> bytes:
    """A safetensors file whose header says something else."""
    header, data = split_safetensors(raw)
    new = mutate_json(header, rng)
    length = (
        len(new) if rng.random() < 0.9 else rng.choice([0, 1, len(new) + 1, 2**31, 2**63, 2**64 - 1, 100_000_001])
    )
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)] + bytes(rng.randrange(9))
    return struct.pack("<Q", length) + new + data


NUMBERS = [
    b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", b"\x01\0\0\0", b"\0\0\0\x80",
    bytes(4), b"\xff" * 4,
]  # fmt: skip
"""NaN, infinities, the largest and smallest numbers, zeros, all ones: as float32."""


HALVES = [b"\x49\x71", b"\x49\xf1", b"\x80\x3f", b"\x7f\x7f", b"\x01\0", b"\0\x80", bytes(2)]
"""Numbers around 1e30, one, the largest and the smallest numbers, zeros: as bfloat16, all finite."""


def mutate_body(raw: bytes, rng: Random, numbers: Sequence[bytes] = NUMBERS) -> bytes:
    """A safetensors file with other numbers: one, many, or a whole stretch of them."""
    header, data = split_safetensors(raw)
    found, size = bytearray(data), len(numbers[0])
    for _ in range(rng.choice([1, 1, 5, 200])):
        at = rng.randrange(len(found) // size) * size
        count = rng.choice([1, 1, 16, 1000])
        patch = rng.choice(numbers) * count if rng.random() < 0.8 else rng.randbytes(size * count)
        found[at : at + size * count] = patch[: len(found) - at]
    return struct.pack("<Q", len(header)) + header + bytes(found)


def mutate_halves(raw: bytes, rng: Random) -> bytes:
    """A safetensors file of bfloat16 with other numbers, large ones among them that are finite."""
    return mutate_body(raw, rng, HALVES)


def mutate_metadata(raw: bytes, rng: Random) -> bytes:
    """A safetensors file of isomerge's own whose record, a JSON text in its metadata, says something else."""
    header, data = split_safetensors(raw)
    document = json.loads(header)
    record = mutate_json(document["__metadata__"]["isomerge"].encode(), rng)
    document["__metadata__"]["isomerge"] = record.decode("utf-8", "replace")
    new = _text(document).encode()
    return struct.pack("<Q", len(new)) + new + data


def mutate_own_file(raw: bytes, rng: Random) -> bytes:
    """A patch or statistics file: its header, its record, or its numbers."""
    return _one_of(rng, mutate_header, mutate_metadata, mutate_metadata, mutate_body)(raw, rng)


def _one_of(rng: Random, *choices: Callable[[bytes, Random], bytes]) -> Callable[[bytes, Random], bytes]:
    return rng.choice(choices)


def _merged(levels: int, times: int) -> str:
    """Merge keys of merge keys: ``times`` to the power of ``levels`` of them."""
    lines = ["m0: &m0 {k: 1}\n"]
    lines += [f"m{k}: &m{k} {{<<: [{', '.join([f'*m{k - 1}'] * times)}]}}\n" for k in range(1, levels)]
    return "".join(lines)


def mutate_recipe(raw: bytes, rng: Random) -> bytes:
    """A YAML text with other values or bytes, or one of the known bombs."""
    kind = rng.random()
    if kind < 0.4:
        return mutate_bytes(raw, rng)
    if kind < 0.45:
        size = rng.choice([10, 1000, 20_000])
        bombs = [
            "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [{f'*a{k - 1}, ' * 9}]\n" for k in range(1, 25)),
            "models: &m\n- *m\n", "[" * size, "{a: " * size, "- " * size + "1", "? " * size, "a:\n" * size,
            "&a " * size + "1", "'" + "x" * size, "".join(f"k{k}: 1\n" for k in range(size)),
            "models: [" + "{model: x}, " * size + "]\n", "a: !!float " + "9" * size,
            _merged(rng.randrange(2, 9), rng.choice([3, 30])),
            "models: [{model: a, parameters: {weight: !!binary aGk=}}, {model: b}]\nmerge_method: linear\n",
            "merge_method: linear\nparameters: " + "{a: " * min(size, 300) + "1" + "}" * min(size, 300),
        ]  # fmt: skip
        return rng.choice(bombs).encode() + (raw if rng.random() < 0.5 else b"")
    document = mutate_document(yaml.safe_load(raw), rng)
    try:
        return yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError):
        return mutate_bytes(raw, rng)

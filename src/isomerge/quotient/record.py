"""What a fingerprint holds, and its file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isomerge.checkpoint.document import read_object
from isomerge.errors import IsomergeError
from isomerge.files import write_whole
from isomerge.quotient.draws import salted
from isomerge.quotient.spectra import Spectrum
from isomerge.quotient.storage import Storage
from isomerge.quotient.stream_anchors import Table
from isomerge.records import Json

FORMAT = "isomerge-fingerprint-5"
OLDER = {
    "isomerge-fingerprint-1": "saw a model from 32 rows alone",
    "isomerge-fingerprint-3": "told nothing of some tensors",
    "isomerge-fingerprint-4": "told nothing of constants along the stream that a tied head reads",
}
"""Formats before this one, and why they do not compare."""
BASIS = "basis"
"""The draw of relations that tell the basis of a stream which the model gives out; their kind is the stream."""


@dataclass(frozen=True)
class Relation:
    """One relation of one layer, seen from one draw of anchors."""

    draw: str
    block: str
    """The canonical name of the first tensor in it."""
    stack: str
    layer: int | None
    kind: str
    data: Tensor
    """float32 [anchors, anchors], [anchors] or []; float64 where numbers are too large for it."""
    ends: tuple[str, ...] = ()
    """The stream whose anchors stand along every dimension."""


@dataclass(frozen=True)
class View:
    """One draw of anchors of one stream."""

    names: tuple[str, ...]
    gram: Tensor
    """Their Gram matrix, float32 [anchors, anchors]."""


@dataclass
class Fingerprint:
    """What a model is modulo symmetry, in brief."""

    model_type: str
    hash: str
    storage: Storage
    salt: str
    """What tells one salt from another (`isomerge.quotient.draws.salted`); empty where the draws are public."""
    config: Json
    """The model's config, without what no output depends on."""
    config_keys: tuple[str, ...]
    """The keys of it that change the function."""
    sizes: dict[str, int]
    """The sizes of the spec."""
    anchors: dict[str, dict[str, View]]
    """Every draw of anchors, of every residual stream."""
    tables: dict[str, Table]
    """The tables that they are from."""
    relations: list[Relation]
    spectra: dict[str, Spectrum] = field(default_factory=dict)
    """By element; float32."""
    entries: dict[str, Tensor] = field(default_factory=dict)
    """Some numbers of some tensors as they are stored, at places that are drawn; float32, by block."""
    ref: str = ""
    """What the user called the model."""

    def __repr__(self) -> str:
        return f"<fingerprint {self.hash} of {self.ref or 'a model'}: {self.model_type}, {self.dtype}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = (
            ("hash", self.hash),
            ("model", self.ref or "–"),
            ("architecture", self.model_type),
            ("dtype", self.dtype),
        )
        body = "".join(f"<tr><td>{name}</td><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table><caption>Fingerprint</caption><tbody>{body}</tbody></table>"

    @property
    def dtype(self) -> str:
        """The coarsest stored dtype of its tensors, as safetensors names it."""
        return self.storage.dtype

    def depths(self) -> dict[str, int]:
        """How many layers every stack has, of those that have relations or spectra."""
        depths: dict[str, int] = {}
        for part in (*self.relations, *self.spectra.values()):
            if part.layer is not None:
                depths[part.stack] = max(depths.get(part.stack, 0), part.layer + 1)
        return depths

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all. Raises IsomergeError when it cannot be written."""
        write_whole(path, (json.dumps(self.document(), indent=1) + "\n").encode())

    def document(self) -> Json:
        """The fingerprint as JSON; tensors are little-endian float32 (float64 where they are ``wide``) in base64,
        with their shapes."""
        return {
            "format": FORMAT,
            "hash": self.hash,
            "model_type": self.model_type,
            "model": self.ref,
            "salt": self.salt,
            "storage": asdict(self.storage),
            "config": self.config,
            "config_keys": list(self.config_keys),
            "sizes": self.sizes,
            "anchors": {
                draw: {s: {"names": list(v.names), "gram": _packed(v.gram)} for s, v in streams.items()}
                for draw, streams in self.anchors.items()
            },
            "tables": {key: {"rows": t.rows, "lengths": _packed(t.lengths)} for key, t in self.tables.items()},
            "relations": [
                {
                    "draw": r.draw,
                    "block": r.block,
                    "stack": r.stack,
                    "layer": r.layer,
                    "kind": r.kind,
                    "ends": list(r.ends),
                    **_packed(r.data),
                }
                for r in self.relations
            ],
            "spectra": {
                key: {"role": x.role, "stack": x.stack, "layer": x.layer, "count": x.count, **_packed(x.data)}
                for key, x in self.spectra.items()
            },
            "entries": {key: _packed(x) for key, x in self.entries.items()},
        }

    @staticmethod
    def from_document(record: Mapping[str, Any], ref: str) -> Fingerprint:
        """The inverse of `document`.

        Raises:
            IsomergeError: it is not a fingerprint, or one of an older format.
        """
        if record.get("format") in OLDER:
            raise IsomergeError(
                f"{ref} is a fingerprint of an older format ({record['format']}), which {OLDER[record['format']]} "
                f"and cannot be compared "
                f"with {FORMAT}: make it anew from the model with `isomerge fingerprint MODEL -o FILE`"
            )
        try:
            if record["format"] != FORMAT:
                raise KeyError(record["format"])
            return Fingerprint(
                model_type=_word(record["model_type"]),
                hash=_word(record["hash"]),
                storage=_storage(record["storage"]),
                salt=_word(record["salt"]),
                config=_object(record["config"]),
                config_keys=tuple(map(_word, record["config_keys"])),
                sizes={key: _number(n) for key, n in _object(record["sizes"]).items()},
                anchors={
                    draw: {s: _view(v) for s, v in _object(streams).items()}
                    for draw, streams in _object(record["anchors"]).items()
                },
                tables={
                    key: Table(_number(t["rows"]), _unpacked(t["lengths"]))
                    for key, t in _object(record["tables"]).items()
                },
                relations=[_relation(r) for r in record["relations"]],
                spectra={key: _spectrum(x) for key, x in _object(record["spectra"]).items()},
                entries={key: _unpacked(x).flatten() for key, x in _object(record["entries"]).items()},
                ref=ref,
            )
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
            raise IsomergeError(
                f"{ref} is not a fingerprint: expected a file that `isomerge fingerprint MODEL -o FILE` wrote"
            ) from None


def is_print_file(ref: str | Path) -> bool:
    """Whether a reference names a file that is read as a fingerprint: one that has no weights."""
    path = Path(os.path.expanduser(ref))
    return path.is_file() and path.suffix != ".safetensors"


def read_fingerprint(path: Path, *, salt: str | None = None) -> Fingerprint:
    """A fingerprint from its file.

    Args:
        path: the file.
        salt: what it must have been made with; None: anything.

    Raises:
        IsomergeError: it cannot be read, is not one, or was made with another salt.
    """
    record = read_object(
        path, remedy="give a checkpoint, or a file that `isomerge fingerprint MODEL -o FILE` wrote"
    )
    read = Fingerprint.from_document(record, str(path))
    if salt is not None and read.salt != salted(salt):
        how = "without a salt" if not read.salt else "with another salt"
        raise IsomergeError(f"{path} was made {how}: make it anew from its model with the same --salt")
    return read


def _relation(record: Mapping[str, Any]) -> Relation:
    data, ends = _unpacked(record), tuple(map(_word, record["ends"]))
    if len(ends) > data.ndim:
        raise ValueError(ends)
    draw, block, stack, kind = (_word(record[key]) for key in ("draw", "block", "stack", "kind"))
    return Relation(draw, block, stack, _layer(record["layer"]), kind, data, ends)


def _spectrum(record: Mapping[str, Any]) -> Spectrum:
    data = _unpacked(record)
    if data.ndim != 2 or not data.numel():
        raise ValueError(data.shape)
    role, stack = _word(record["role"]), _word(record["stack"])
    return Spectrum(role, stack, _layer(record["layer"]), data, _number(record["count"]))


def _view(record: Mapping[str, Any]) -> View:
    names = tuple(map(_word, record["names"]))
    return View(names, _unpacked(record["gram"]).reshape(len(names), len(names)))


def _storage(record: Mapping[str, Any]) -> Storage:
    bits = None if record["bits"] is None else _number(record["bits"])
    return Storage(_word(record["dtype"]), _word(record["precision"]), float(record["zeros"]), bits)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _layer(value: Any) -> int | None:
    return None if value is None else _number(value)


def _packed(x: Tensor) -> Json:
    """As float32; as float64 where that would overflow."""
    wide = not bool(x.float().isfinite().all())
    data = x.double().contiguous().numpy().astype("<f8" if wide else "<f4").tobytes()
    return {"shape": list(x.shape), "data": base64.b64encode(data).decode(), **({"wide": True} if wide else {})}


def _unpacked(record: Mapping[str, Any]) -> Tensor:

    wide = record.get("wide", False) is True
    kind = np.dtype("<f8" if wide else "<f4")
    flat = np.frombuffer(base64.b64decode(record["data"], validate=True), dtype=kind).astype(kind.newbyteorder("="))
    data = torch.from_numpy(flat).reshape(record["shape"])
    if not bool(data.isfinite().all()):
        raise ValueError(record["shape"])
    return data

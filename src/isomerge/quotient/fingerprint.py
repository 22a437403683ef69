"""A fingerprint of a checkpoint modulo symmetry: small, and the same for every disguise of a model.

It holds relations between fixed tokens (`isomerge.quotient.relations`) and spectra of circuits (`isomerge.quotient.spectra`), made
in one pass over the weights, a unit at a time. Two fingerprints tell whether two models are the same function, derived from one
base, or independent (`isomerge.quotient.similarity`); the hash is a name for the function.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.document import read_object
from isomerge.engine.canonical.frame import read_moved
from isomerge.engine.models import Model, coarsest_dtype, working_dtype
from isomerge.engine.plan import make_plan, unit_bytes
from isomerge.errors import IsomergeError
from isomerge.files import write_whole
from isomerge.matching.alternation import trees
from isomerge.matching.balance import canonical_gauge, fold_biases
from isomerge.matching.frame import folded_gains
from isomerge.progress import Observer, quiet
from isomerge.quotient.anchors import anchors_of
from isomerge.quotient.relations import Related, relations
from isomerge.quotient.spectra import spectra
from isomerge.symmetry.axes import leaf_atoms
from isomerge.symmetry.blocks import Block, layer_of
from isomerge.symmetry.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


FORMAT = "isomerge-fingerprint-1"
STEP = 1e-2
"""What a hash rounds to. Twins in float32 are some 1e-7 apart, so that one model in a thousand lies at an edge."""
SUMS = 8
"""Numbers per kind of relation in a hash: a change that leaves all of them within a step is rare."""


@dataclass(frozen=True)
class Relation:
    """One relation of one layer."""

    block: str
    """The canonical name of the first tensor in it."""
    stack: str
    layer: int | None
    kind: str
    data: Tensor
    """float32 [anchors, anchors], [anchors] or []."""
    ends: tuple[str, ...] = ()
    """The stream whose anchors stand along every dimension."""


@dataclass
class Fingerprint:
    """What a model is modulo symmetry, in brief."""

    model_type: str
    hash: str
    dtype: str
    """The coarsest stored dtype of its tensors, as safetensors names it."""
    anchors: dict[str, tuple[str, ...]]
    """The names of the anchors of every residual stream."""
    grams: dict[str, Tensor]
    """Their Gram matrices, float32 [anchors, anchors]."""
    relations: list[Relation]
    spectra: dict[str, Tensor] = field(default_factory=dict)
    """float32 [points], by element."""
    ref: str = ""
    """What the user called the model."""

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all. Raises IsomergeError when it cannot be written."""
        write_whole(path, (json.dumps(self.document(), indent=1) + "\n").encode())

    def document(self) -> dict[str, Any]:
        """The fingerprint as JSON; tensors are little-endian float32 in base64, with their shapes."""
        return {
            "format": FORMAT,
            "hash": self.hash,
            "model_type": self.model_type,
            "dtype": self.dtype,
            "model": self.ref,
            "anchors": {s: {"names": list(n), "gram": _packed(self.grams[s])} for s, n in self.anchors.items()},
            "relations": [
                {
                    "block": r.block,
                    "stack": r.stack,
                    "layer": r.layer,
                    "kind": r.kind,
                    "ends": list(r.ends),
                    **_packed(r.data),
                }
                for r in self.relations
            ],
            "spectra": {key: [float(f"{v:.7g}") for v in x.tolist()] for key, x in self.spectra.items()},
        }

    @staticmethod
    def from_document(found: Mapping[str, Any], ref: str) -> Fingerprint:
        """The inverse of `document`.

        Raises:
            IsomergeError: it is not a fingerprint.
        """
        import torch

        try:
            if found["format"] != FORMAT:
                raise KeyError(found["format"])
            anchors = {s: tuple(_word(n) for n in a["names"]) for s, a in found["anchors"].items()}
            grams = {s: _unpacked(a["gram"]).reshape(len(anchors[s]), -1) for s, a in found["anchors"].items()}
            relations = [_relation(r, tuple(anchors)) for r in found["relations"]]
            spectra = {key: torch.tensor(v, dtype=torch.float32) for key, v in found["spectra"].items()}
            model_type, name, dtype = _word(found["model_type"]), _word(found["hash"]), _word(found["dtype"])
            return Fingerprint(model_type, name, dtype, anchors, grams, relations, spectra, ref)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
            raise IsomergeError(
                f"{ref} is not a fingerprint: expected a file that `isomerge fingerprint MODEL -o FILE` wrote"
            ) from None


def _relation(found: Mapping[str, Any], streams: tuple[str, ...]) -> Relation:
    """One relation of a document; older ones do not tell ends, which are plain where there is one stream."""
    data = _unpacked(found)
    ends = found.get("ends", list(streams) * data.ndim if len(streams) == 1 else [])
    layer = _layer(found["layer"])
    return Relation(
        _word(found["block"]), _word(found["stack"]), layer, _word(found["kind"]), data, tuple(map(_word, ends))
    )


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _layer(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError(value)
    return value


def read_fingerprint(path: Path) -> Fingerprint:
    """A fingerprint from its file.

    Raises:
        IsomergeError: it cannot be read, or is not one.
    """
    found = read_object(path, remedy="give a checkpoint, or a file that `isomerge fingerprint MODEL -o FILE` wrote")
    return Fingerprint.from_document(found, str(path))


def fingerprint(model: Model, observer: Observer = quiet) -> Fingerprint:
    """The fingerprint of a model, in one pass over its weights and one more over its embeddings and gains.

    Memory: one unit (the tensors of a layer's attention, or of its MLP), or the table of embeddings, in float32 (in float64 for
    checkpoints of full precision).
    """
    import torch

    dtype = torch.float64 if working_dtype([model]) == torch.float64 or not _halves(model) else torch.float32
    local = make_plan(model, [], "default")
    shifts, spec = local.selection.spec, model.spec
    fold = folded_gains(spec, model.blocks, lambda block: model.assemble(block, dtype))
    anchors = anchors_of(model, dtype, fold)
    related: list[tuple[Block, str, Related]] = []
    told: dict[str, Tensor] = {}
    total, seen = sum(unit_bytes(model, unit) for unit in local.units), 0
    for unit in local.units:
        observer(unit.key, seen, total)
        seen += unit_bytes(model, unit)
        tensors = {block: read_moved(model, block, dtype, fold) for block in unit.blocks}
        floats = {block: t for block, t in tensors.items() if t.is_floating_point()}
        meet = trees(shifts, floats)
        (canonical_gauge if meet or _chained(shifts, floats) else fold_biases)(shifts, floats)
        first = {block.key: block for block in unit.blocks}
        related += [(first[key], kind, x) for (key, kind), x in relations(spec, floats, anchors).items()]
        here = spectra(shifts, floats)
        if meet:  # what reads a latent has no relation to the stream: spectra speak for it
            related += [
                (unit.blocks[0], f"{key.partition('[')[0]}:spectrum", Related(x, ())) for key, x in here.items()
            ]
        told |= here
    found = [
        Relation(block.key, *layer_of(block), kind, x.data.float(), x.ends)
        for block, kind, x in sorted(related, key=lambda r: (r[0].key, r[1]))
    ]
    return Fingerprint(
        spec.model_type,
        _hash(spec.model_type, related),
        coarsest_dtype(model),
        {s: a.names for s, a in anchors.items()},
        {s: (a.rows @ a.rows.mT).float() for s, a in anchors.items()},
        found,
        {key: x.float() for key, x in told.items()},
        model.ref,
    )


def _chained(spec: Spec, blocks: Iterable[Block]) -> bool:
    """Whether factors, or bases, meet over one axis of a tensor: in front of a convolution and behind it, say. The spectrum of each then
    depends on the gauge of the other."""
    loose = {name for name, space in spec.spaces.items() if not space.keeps_lengths}
    return any(len(loose & {a.name for a in leaf}) > 1 for block in blocks for leaf in leaf_atoms(block.axes or ()))


def _halves(model: Model) -> bool:
    """Whether every float tensor is stored in half precision or coarser."""
    kinds = {info.dtype for info in model.checkpoint.tensors.values()}
    return not kinds & {"F32", "F64"}


def _hash(model_type: str, related: list[tuple[Block, str, Related]]) -> str:
    """A name for the function: per kind of relation `SUMS` sums with fixed random signs, as shares of its norm, rounded to
    `STEP`."""
    sums: dict[str, list[float]] = {}
    squares: dict[str, float] = {}
    for block, kind, found in sorted(related, key=lambda r: (r[0].key, r[1])):
        x = found.data
        signed = _signed(f"{block.key}|{kind}", x)
        sums[kind] = [a + b for a, b in zip(sums.get(kind, [0.0] * SUMS), signed, strict=True)]
        squares[kind] = squares.get(kind, 0.0) + float(x.double().square().sum())
    values = {k: [round(v / max(squares[k], 1e-300) ** 0.5 / STEP) for v in sums[k]] for k in sorted(sums)}
    text = json.dumps([FORMAT, model_type, values])
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _signed(name: str, x: Tensor) -> list[float]:
    """`SUMS` sums of all entries, with signs that depend on the name and the place alone."""
    import torch

    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (SUMS, x.numel()), generator=rng).double() * 2 - 1
    return (signs @ x.double().flatten()).tolist()


def _packed(x: Tensor) -> dict[str, Any]:
    data = x.float().contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(x.shape), "data": base64.b64encode(data).decode()}


def _unpacked(found: Mapping[str, Any]) -> Tensor:
    import numpy as np
    import torch

    flat = np.frombuffer(base64.b64decode(found["data"], validate=True), dtype="<f4").astype("float32")
    return torch.from_numpy(flat).reshape(found["shape"])

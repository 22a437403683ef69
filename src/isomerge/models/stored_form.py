"""How tensors are stored in an output: under which names, in which dtypes, and where their pieces go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomerge.checkpoint.dtypes import FLOATS, STORED_FLOATS, torch_dtype
from isomerge.checkpoint.tensor_place import TensorPlace
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model, with_infinities
from isomerge.passes import fits
from isomerge.pieces import all_finite, wide_dtype
from isomerge.symmetry.blocks import Block


def out_code(stored: str, dtype: str | None) -> str:
    """The safetensors dtype that a tensor is written in; integers are kept."""
    return FLOATS[dtype] if dtype and stored in STORED_FLOATS else stored


def planned_tensors(donor: Model, dtype: str | None) -> list[OutTensor]:
    """The donor's tensors, as they will be written."""
    return [OutTensor(i.name, out_code(i.dtype, dtype), tuple(i.shape)) for i in donor.checkpoint.tensors.values()]


def coarse_note(models: Sequence[Model]) -> list[str]:
    """What to tell where the first model's weights are 8-bit floats without scales, as which the output is written,
    and another one's are not."""
    kinds = [{info.dtype for info in model.checkpoint.tensors.values()} for model in models]
    coarse = [next((code for code in sorted(codes) if code.startswith("F8")), None) for codes in kinds]
    finer = next((model.ref for model, code in zip(models, coarse, strict=True) if code is None), None)
    if coarse[0] is None or finer is None:
        return []
    return [
        f"weights are written as {coarse[0]}, as {models[0].ref} has them, and {finer} has finer ones: --dtype "
        "bfloat16 keeps more"
    ]


@dataclass(frozen=True)
class StoredForm:
    """How blocks are named and stored in the output."""

    donor: Model
    dtype: str | None
    writer: CheckpointWriter | None = field(default=None, compare=False, repr=False)
    """Into whose files blocks may go piece by piece; stays on the machine that has it."""

    def __reduce__(self) -> tuple[type[StoredForm], tuple[Model, str | None]]:
        return StoredForm, (self.donor, self.dtype)

    def written_dtype(self, block: Block) -> torch.dtype | None:
        """What a block of the donor is written in, where that is one dtype that weights are converted to."""
        donor = self.donor
        stored = {donor.checkpoint.tensors[donor.names[name]].dtype for name in block.canonical}
        first, *others = {out_code(code, self.dtype) for code in stored}
        return torch_dtype(first) if not others and first in FLOATS.values() else None

    def place(self, block: Block) -> TensorPlace | None:
        """Where a block of the donor goes, to be filled piece by piece, where it is one tensor of the output as it
        is."""
        if self.writer is None or block.lead or block.line.infinite or self.written_dtype(block) is None:
            return None
        return self.writer.place(self.donor.names[block.canonical[0]])

    def named(self, model: Model, blocks: Mapping[Block, Tensor]) -> dict[str, Tensor]:
        """Blocks under a model's names, in the output dtype, or in that in which the model stores them."""
        named = {}
        for block, tensor in blocks.items():
            for canonical, part in block.split(tensor):
                name = model.names[canonical]
                code = out_code(model.checkpoint.tensors[name].dtype, self.dtype)
                named[name] = cast(part, code, name)
                if block.line.infinite:
                    named[name] = with_infinities(model, name, named[name])
                elif part.dtype == named[name].dtype and part.is_floating_point() and not all_finite(part):
                    raise IsomergeError(
                        f"tensor {name} has NaN or infinite values once it is computed: the weights or the "
                        "parameters of this merge are too large; choose smaller ones"
                    )
        return named


def cast(tensor: Tensor, code: str, name: str) -> Tensor:
    """Convert to a stored dtype; a value that does not fit is an error, never an infinity."""
    if code not in STORED_FLOATS or tensor.dtype == torch_dtype(code):
        return tensor
    largest = float(tensor.to(wide_dtype([tensor])).abs().max()) if tensor.numel() else 0.0
    if not fits(largest, torch_dtype(code)):
        raise IsomergeError(
            f"tensor {name} does not fit into {code}: its largest value is {largest:.3g}; use --dtype float32"
        )
    return tensor.to(torch_dtype(code))

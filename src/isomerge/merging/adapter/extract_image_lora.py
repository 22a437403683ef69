"""A fine-tune of an image model as a LoRA in diffusers' form: of a pipeline, or of its U-Net or transformer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.dtypes import FLOATS
from isomerge.checkpoint.growing_file import GrowingFile
from isomerge.checkpoint.image_lora import IMAGE_WEIGHTS
from isomerge.checkpoint.output_folder import written_at_once
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.weights import of_diffusers
from isomerge.errors import IsomergeError
from isomerge.fusion.low_rank import factors, norm
from isomerge.merging.adapter.adapter_writer import Choice, Extracted, Extraction
from isomerge.models.recognised import recognise
from isomerge.models.references import is_assembled, open_assembled, open_model_ref

TEXT_LAYERS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
"""Layers of CLIP's towers that diffusers takes LoRAs of; of other text encoders it takes none."""


@dataclass(frozen=True)
class Part:
    """A model of a pipeline, tuned and not: both have the same weights."""

    start: str
    """How the names of its layers begin in the file."""
    finetuned: Checkpoint
    base: Checkpoint
    names: Mapping[str, str]
    """From the base's names of its weights to the fine-tune's, which other versions of a library may call
    otherwise."""

    def layer(self, name: str) -> str | None:
        """What the layer of a weight is called in the file; None where diffusers takes no LoRA of it."""
        module = name.removesuffix(".weight")
        if module == name or len(self.base.tensors[name].shape) < 2:
            return None
        if self.start in ("unet.", "transformer."):
            return self.start + module
        if not self.start.startswith("text_encoder") or not module.endswith(TEXT_LAYERS):
            return None
        return f"{self.start}{'' if module.startswith('text_model.') else 'text_model.'}{module}"


def are_image_models(finetuned: Any, base: Any, *, allow_pickle: bool = False) -> bool:
    """Whether these are pipelines, or models of diffusers, by their names."""
    if not all(isinstance(ref, str | Path) for ref in (finetuned, base)):
        return False
    return any(map(is_assembled, (finetuned, base))) or all(
        of_diffusers(open_model_ref(ref, allow_pickle=allow_pickle).config) for ref in (finetuned, base)
    )


def parts_of_two(finetuned: Any, base: Any, *, allow_pickle: bool = False) -> list[Part]:
    """The models in which two pipelines differ, or two of diffusers; empty where they are others.

    Raises:
        IsomergeError: one is a pipeline and the other none, pipelines do not differ, or models differ in tensors or
            shapes.
    """
    if not are_image_models(finetuned, base, allow_pickle=allow_pickle):
        return []
    whole = [is_assembled(ref) for ref in (finetuned, base)]
    if not any(whole):
        finetuned, base = (open_model_ref(ref, allow_pickle=allow_pickle) for ref in (finetuned, base))
        start = "transformer." if "Transformer" in str(base.config["_class_name"]) else "unet."
        return [_paired(start, finetuned, base)]
    if not all(whole):
        raise IsomergeError(
            f"{finetuned if whole[0] else base} is a pipeline, and the other is none: give two of a kind"
        )
    tuned, plain = open_assembled(finetuned), open_assembled(base)
    parts = []
    for name, component in plain.components.items():
        other = tuned.components.get(name)
        if not component.has_weights or other is None or component.equals(other, allow_pickle=allow_pickle):
            continue
        models = (open_model_ref(each.ref, allow_pickle=allow_pickle) for each in (other, component))
        parts.append(_paired(f"{name}.", *models))
    if not parts:
        raise IsomergeError(f"{tuned.ref} and {plain.ref}: no model differs: there is nothing to extract")
    return parts


def _paired(start: str, finetuned: Checkpoint, base: Checkpoint) -> Part:
    """A part, once both models have weights of the same names and shapes; buffers are no weights."""
    named = [_weights(model) for model in (finetuned, base)]
    if named[0].keys() != named[1].keys():
        with suppress(IsomergeError):  # of an architecture that no spec describes, or with a tensor that none has
            named = [
                {key: name for key, name in recognise(model, unmoved=True).names.items() if name in own}
                for model, own in zip((finetuned, base), named, strict=True)
            ]
    shapes = [{key: model.shapes[name] for key, name in names.items()} for names, model in
              zip(named, (finetuned, base), strict=True)]  # fmt: skip
    differing = (key for key in {**shapes[1], **shapes[0]} if shapes[0].get(key) != shapes[1].get(key))
    if (key := next(differing, None)) is not None:
        said = [list(each[key]) if key in each else "none" for each in shapes]
        raise IsomergeError(
            f"tensor {key} has shape {said[0]} in {finetuned.ref} and {said[1]} in {base.ref}: a LoRA needs equal "
            "shapes"
        )
    return Part(start, finetuned, base, {name: named[0][key] for key, name in named[1].items()})


def _weights(model: Checkpoint) -> dict[str, str]:
    return {name: name for name, info in model.tensors.items() if info.dtype in FLOATS.values()}


def extract_image_lora(parts: list[Part], choice: Choice, out: Path, *, overwrite: bool = False) -> Extraction:
    """Write the factors of the differences of linear layers and convolutions, each with a scaling of 1; the report
    of `isomerge.merging.adapter.extract_lora.extract_lora`.

    Raises:
        IsomergeError: nothing differs, or nothing that does would be kept, or ``out`` exists.
    """
    reads = [
        place for part in parts for model in (part.finetuned, part.base) for place in (*model.files, model.folder)
    ]
    rows: dict[str, Extracted] = {}
    with written_at_once(out, overwrite=overwrite, reads=reads) as folder:
        file = GrowingFile(folder.blobs / "tensors")
        for part, name, difference in _differences(parts):
            layer, size = part.layer(name), norm(difference)
            if layer is None or not choice.wants(layer):
                rows[part.start + name] = Extracted("lost", 0, size, size)
                continue
            b, a = factors(difference.flatten(1), choice.cut)
            file.add(f"{layer}.lora_A.weight", a.reshape(-1, *difference.shape[1:]))
            file.add(f"{layer}.lora_B.weight", b.reshape(*b.shape, *[1] * (difference.ndim - 2)))
            lost = norm(torch.addmm(difference.flatten(1), b, a, alpha=-1))
            rows[part.start + name] = Extracted("lora", len(a), size, lost)
        if not any(row.kept == "lora" for row in rows.values()):
            refs = " and ".join(
                dict.fromkeys(model.ref for part in parts[:1] for model in (part.finetuned, part.base))
            )
            said = "no layer that differs would be kept: choose others with --include and --exclude"
            raise IsomergeError(f"{refs}: {said if rows else 'weights are equal: there is nothing to extract'}")
        file.finish(folder.model / IMAGE_WEIGHTS)
    return Extraction.of(rows)


def _differences(parts: list[Part]) -> Iterator[tuple[Part, str, Tensor]]:
    """What is not equal, one tensor at a time."""
    for part in parts:
        for name, own in part.names.items():
            if {part.base.tensors[name].dtype, part.finetuned.tensors[own].dtype} <= {*FLOATS.values()}:
                tuned, stored = part.finetuned.read(own, exact=True), part.base.read(name, exact=True)
                work = torch.float64 if tuned.dtype == torch.float64 else torch.float32
                difference = tuned.to(work) - stored.to(work)
                if difference.any():
                    yield part, name, difference

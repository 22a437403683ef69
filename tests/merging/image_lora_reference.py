"""What diffusers makes of tiny pipelines by ``load_lora_weights`` and ``fuse_lora`` of the files of `image_loras`:
``python tests/merging/image_lora_reference.py`` in an environment with peft writes tests/merging/image_loras.json, which
the tests read, as peft is none of their requirements.

Of every tensor that changes there is one number: its change times fixed random numbers."""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
HERE = Path(__file__).with_name("image_loras.json")
NOTED = ("unet", "transformer", "text_encoder", "text_encoder_2")


def probe(name: str, change: torch.Tensor) -> float:
    """A change times random numbers of its name."""
    rng = torch.Generator().manual_seed(sum(map(ord, name)))
    return float((change.double() * torch.randn(change.shape, generator=rng, dtype=torch.float64)).sum())


def plain(name: str) -> str:
    """A name without what versions of transformers put before CLIP's layers, or do not."""
    return name.removeprefix("text_model.")


def probes(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> dict[str, float]:
    """Of tensors that changed."""
    changed = {plain(n): after[n].double() - x.double() for n, x in before.items() if not torch.equal(x, after[n])}
    return {name: probe(name, change) for name, change in changed.items()}


def of_tiny_flux() -> None:
    """diffusers knows one width of FLUX alone: let it know the tiny one's."""
    from diffusers.loaders import lora_conversion_utils as theirs
    from diffusers.loaders import lora_pipeline

    text = inspect.getsource(theirs._convert_kohya_flux_lora_to_diffusers)
    wide = "[3072, 3072, 3072, 12288]"
    assert text.count(wide) == 1
    known = dict(vars(theirs))
    exec(text.replace(wide, "[32, 32, 32, 128]"), known)
    vars(lora_pipeline)["_convert_kohya_flux_lora_to_diffusers"] = known["_convert_kohya_flux_lora_to_diffusers"]


def main() -> None:
    """All files of `FORMS`."""
    from image_loras import FORMS, lora, pipeline_of

    of_tiny_flux()
    results: dict[str, Any] = {}
    for name in FORMS:
        pipeline = pipeline_of(name)
        models = {part: model for part in NOTED if (model := getattr(pipeline, part, None)) is not None}
        before = {part: {n: x.clone() for n, x in model.state_dict().items()} for part, model in models.items()}
        tensors, metadata = lora(name, pipeline)
        with tempfile.TemporaryDirectory() as folder:
            save_file(tensors, Path(folder) / "pytorch_lora_weights.safetensors", metadata=metadata or None)
            pipeline.load_lora_weights(folder, weight_name="pytorch_lora_weights.safetensors")
        pipeline.fuse_lora(components=[part for part in NOTED if part in pipeline._lora_loadable_modules])
        pipeline.unload_lora_weights()
        results[name] = {part: probes(before[part], model.state_dict()) for part, model in models.items()}
        print(name, {part: len(values) for part, values in results[name].items()}, len(tensors))
    HERE.write_text(json.dumps(results, indent=0) + "\n")


if __name__ == "__main__":
    main()

"""Examples where there are no data: texts that language models write themselves, noise for models of images.

Data-free distillation by samples of the models themselves (Liu et al., LLM-QAT, 2023, section 3.1): texts are drawn token by
token from a model's own distribution, at temperature 1 and from all tokens, so that they look like what it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.data.inputs import Inputs
from isomerge.engine.accelerator import check_device
from isomerge.engine.models import Model
from isomerge.engine.run import Observer
from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COARSEST = 4
"""Cells along the shorter side of the coarsest noise."""


@dataclass(frozen=True)
class Generation:
    """What `isomerge generate` is told; see `isomerge.generate`."""

    out: Path
    count: int = 1024
    length: int = 128
    seed: int = 0
    batch_size: int = 64
    device: str = "cpu"
    force: bool = False
    observer: Observer = lambda what, done, total: None

    def check(self) -> None:
        """Refuse what cannot work before anything is read.

        Raises:
            IsomergeError: naming the option.
        """
        from isomerge.checkpoint.disk import check_file

        check_file(self.out, f"--out {self.out}", force=self.force)
        if self.out.suffix != ".safetensors":
            raise IsomergeError(f"--out {self.out}: the examples are written as safetensors: name it .safetensors")
        for name, value, least in (
            ("limit", self.count, 1),
            ("length", self.length, 2),
            ("batch-size", self.batch_size, 1),
        ):
            if value < least:
                raise IsomergeError(f"--{name} {value}: at least {least} is needed")
        check_device(self.device)


def run_generate(models: Sequence[Model], options: Generation) -> dict[str, Any]:
    """Make the examples and write them; returns the report.

    Raises:
        IsomergeError: models that neither write texts nor see images, or that cannot share examples; nothing is written.
    """
    from isomerge.checkpoint.disk import write_tensors

    if not models:
        raise IsomergeError("no model is given: name those that shall be matched")
    inputs = [Inputs(model.config) for model in models]
    if inputs[0].images:
        kind, tensors = "images", {"pixel_values": _noise(models[0], inputs, options)}
    else:
        kind, tensors = "texts", {"input_ids": _texts(models, inputs, options)}
    about = {
        "command": "generate", "models": [model.ref for model in models], "kind": kind,
        "examples": options.count, "seed": options.seed,
    }  # fmt: skip
    write_tensors(options.out, tensors, about)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {**about, "shapes": shapes, "bytes": options.out.stat().st_size}


def _noise(model: Model, inputs: Sequence[Inputs], options: Generation) -> Tensor:
    """Noise of several scales, one per picture in turn, through the first model's image processor.

    Normal about grey, cut at black and white, drawn on grids of the image's size, half of it, a quarter, ... and enlarged:
    pictures of the world vary slowly, and noise of single pixels alone tells less of a model than its weights do.
    ``pixel_values`` float32 [n, channels, height, width].
    """
    import torch
    from PIL import Image
    from torch.nn.functional import interpolate

    from isomerge.data.images import image_encoder

    channels, *size = shape = inputs[0].image_shape
    if any(not other.images or other.image_shape != shape for other in inputs):
        raise IsomergeError(
            f"{model.ref} sees images of {list(shape)} and another model does not: give models that can be merged"
        )
    encode, rng = image_encoder(model.checkpoint.folder, inputs[0]), torch.Generator().manual_seed(options.seed)
    scales = max(1, (min(size) // COARSEST).bit_length())
    pictures = []
    for number in range(options.count):
        options.observer("making images", number, options.count)
        grid = [max(1, side >> number % scales) for side in size]
        noise = interpolate(torch.randn(1, channels, *grid, generator=rng), size=size, mode="bilinear")[0]
        pixels = (127.5 + 127.5 * noise).clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
        picture = Image.fromarray(pixels.numpy() if channels > 1 else pixels[..., 0].numpy())
        pictures.append(encode(picture, f"image {number}"))
    return torch.stack(pictures)


def _texts(models: Sequence[Model], inputs: Sequence[Inputs], options: Generation) -> Tensor:
    """Token ids int64 [n, length], a text of each model in turn; shorter where the models read less."""
    import torch

    _check_writers(models, inputs)
    length = min([options.length, *(its.positions for its in inputs if its.positions)])
    share = -(-options.count // len(models))
    written = []
    for number, (model, its) in enumerate(zip(models, inputs, strict=True)):

        def tell(done: int, number: int = number, model: Model = model) -> None:
            options.observer(f"{model.ref} writes", number * share + done, len(models) * share)

        rng = torch.Generator().manual_seed(options.seed + number)
        first = _first_tokens(its, share, rng)
        written.append(_continued(model, first, length, options, rng, tell))
    return torch.stack(written, 1).flatten(0, 1)[: options.count].contiguous()


def _check_writers(models: Sequence[Model], inputs: Sequence[Inputs]) -> None:
    """Refuse models that do not write, or not the same tokens."""
    for model, its in zip(models, inputs, strict=True):
        if its.task != "causal" or its.images:
            raise IsomergeError(
                f"{model.ref} ({its.architecture or model.spec.model_type}) neither writes texts nor sees only images: "
                "without data of your own this works for causal language models and classifiers of images"
            )
        if its.vocabulary != inputs[0].vocabulary:
            raise IsomergeError(
                f"{model.ref} has {its.vocabulary} tokens, {models[0].ref} has {inputs[0].vocabulary}: give models of one vocabulary"
            )


def _first_tokens(inputs: Inputs, count: int, rng: torch.Generator) -> Tensor:
    """The token that begins texts; any, where the checkpoint has none: int64 [count, 1]."""
    import torch

    begin = inputs.token("bos_token_id")
    if begin is None:
        return torch.randint(inputs.vocabulary, (count, 1), generator=rng)
    return torch.full((count, 1), begin)


def _continued(
    model: Model, first: Tensor, length: int, options: Generation, rng: torch.Generator, tell: Callable[[int], None]
) -> Tensor:
    """Texts from their first tokens on: int64 [n, length]. The end of a text does not stop it: another one begins there."""
    import torch
    from transformers import GenerationConfig

    from isomerge.engine.live.modules import load_module

    module: Any = load_module(model, device=options.device)
    if not module.can_generate():
        raise IsomergeError(
            f"{model.ref}: transformers cannot let {type(module).__name__} write: give data of your own"
        )
    module.generation_config = GenerationConfig()  # not the checkpoint's temperature and penalties
    drawn = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=length - 1, pad_token_id=0
    )  # fmt: skip
    parts = []
    for start in range(0, len(first), options.batch_size):
        tell(start)
        batch = first[start : start + options.batch_size].to(options.device)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))
            try:
                found = module.generate(batch, attention_mask=torch.ones_like(batch), generation_config=drawn)
            except RuntimeError as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise IsomergeError(
                    f"{model.ref} cannot write ({reason[:160].rstrip('.')}): check its weights"
                ) from error
        parts.append(found.cpu())
    return torch.cat(parts)

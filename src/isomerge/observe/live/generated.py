"""Examples where there are no data: texts that language models write themselves, noise for models of images.

Data-free distillation by samples of the models themselves (Liu et al., LLM-QAT, 2023, section 3.1): texts are drawn
token by token from a model's own distribution, at temperature 1 and from all tokens, so that they look like what it
was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from isomerge.checkpoint.companion_folder import companion_folder
from isomerge.errors import IsomergeError, first_line
from isomerge.files import check_file, check_not_read, write_tensors
from isomerge.models.model_inputs import Inputs
from isomerge.models.recognised import Model
from isomerge.observe.live.accelerator import check_device
from isomerge.observe.read_files import files_read
from isomerge.options.unused import note
from isomerge.progress import Observer, quiet
from isomerge.records import Record, inline

COARSEST = 2
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
    overwrite: bool = False
    observer: Observer = quiet

    def check(self) -> None:
        """Refuse what cannot work before anything is read.

        Raises:
            IsomergeError: naming the option.
        """
        check_file(self.out, f"--out {self.out}", overwrite=self.overwrite)
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


def can_write(models: Sequence[Model]) -> bool:
    """Whether the models write texts that a match can be learned from.

    Noise does not count: what is learned from it may be worse than the match by weights
    (docs/lab/measured-barriers.md).
    """
    try:
        return not any(its.images for its in check_kinds(models))
    except IsomergeError:
        return False


def check_generate(models: Sequence[Model], options: Generation) -> list[Inputs]:
    """Refuse models that nothing can be made for, before one of them is loaded; returns what each of them reads.

    Raises:
        IsomergeError: see `run_generate`, or a file to write that is read.
    """
    if not models:
        raise IsomergeError("no model is given: name those that shall be matched")
    check_not_read(options.out, f"--out {options.out}", files_read(models))
    return check_kinds(models)


def check_kinds(models: Sequence[Model]) -> list[Inputs]:
    """What each model reads.

    Raises:
        IsomergeError: they do not share examples that can be made.
    """
    inputs = [Inputs(model.config) for model in models]
    if not inputs[0].images:
        writers = [_Writer(model, its) for model, its in zip(models, inputs, strict=True)]
        for writer in writers:
            writer.check(writers[0])
    elif any(not other.images or other.image_shape != inputs[0].image_shape for other in inputs):
        raise IsomergeError(
            f"{models[0].ref} sees images of {list(inputs[0].image_shape)} and another model does not: give "
            f"models that can be merged"
        )
    return inputs


class GeneratedFile(Record):
    """What a file of examples says of itself."""

    models: Sequence[str]
    kind: str
    """``texts`` or ``images``."""
    examples: int
    seed: int
    command: str = "generate"


class GenerateReport(Record):
    """What was made."""

    shapes: Mapping[str, Sequence[int]]
    bytes: int
    file: GeneratedFile = inline()


def run_generate(models: Sequence[Model], options: Generation) -> GenerateReport:
    """Make the examples and write them; returns the report.

    Raises:
        IsomergeError: models that neither write texts nor see images, or that cannot share examples; nothing is
            written.
    """
    inputs = check_generate(models, options)
    if inputs[0].images:
        for name, value in (("length", options.length), ("batch_size", options.batch_size)):
            if value != getattr(Generation, name):
                note(name, "it is of texts, and these models see images")
        kind, tensors = "images", {"pixel_values": _noise(models[0], inputs[0], options)}
    else:
        kind, tensors = "texts", {"input_ids": _texts(models, inputs, options)}
    about = GeneratedFile([model.ref for model in models], kind, options.count, options.seed)
    write_tensors(options.out, tensors, about.document())
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return GenerateReport(shapes, options.out.stat().st_size, file=about)


def _noise(model: Model, inputs: Inputs, options: Generation) -> Tensor:
    """Noise of all scales, through the first model's image processor.

    Normal about grey, cut at black and white: the sum of noise on grids of the image's size, half of it, a quarter,
    ..., enlarged. Pictures of the world vary slowly: independent pixels alone may tell less of a model than its
    weights do (`docs/lab/experiments.md`). ``pixel_values`` float32 [n, channels, height, width].
    """
    from PIL import Image

    channels, *size = inputs.image_shape
    rng = torch.Generator().manual_seed(options.seed)
    # whether models can make data is often asked, to advise it; that they make them is rare
    from isomerge.observe.data.images import image_encoder, white_of

    with companion_folder(model.checkpoint) as folder:
        encode, white = image_encoder(folder, inputs), white_of(folder)
    halvings = max(1, (min(size) // COARSEST).bit_length())
    grids = [[max(1, side >> k) for side in size] for k in range(halvings)]
    pictures = []
    for number in range(options.count):
        options.observer("making images", number, options.count)
        noise = torch.zeros(channels, *size)
        for grid in grids:
            drawn = torch.randn(1, channels, *grid, generator=rng)
            noise += interpolate(drawn, size=size, mode="bilinear")[0] / len(grids) ** 0.5
        pixels = ((noise + 1) / 2 * white).round().clamp(0, white).to(torch.uint8).permute(1, 2, 0)
        picture = Image.fromarray(pixels.numpy() if channels > 1 else pixels[..., 0].numpy())
        pictures.append(encode(picture, f"image {number}"))
    return torch.stack(pictures)


def _texts(models: Sequence[Model], inputs: Sequence[Inputs], options: Generation) -> Tensor:
    """Token ids int64 [n, length], a text of each model in turn; shorter where the models read less."""
    writers = [_Writer(model, its) for model, its in zip(models, inputs, strict=True)]
    length = min([options.length, *(its.positions for its in inputs if its.positions)])
    share = -(-options.count // len(models))
    written = [writer.write(number, len(writers), share, length, options) for number, writer in enumerate(writers)]
    return torch.stack(written, 1).flatten(0, 1)[: options.count].contiguous()


@dataclass(frozen=True)
class _Writer:
    """A causal language model that writes; in memory while it does."""

    model: Model
    inputs: Inputs

    def check(self, first: _Writer) -> None:
        """Refuse a model that does not write, or not the first one's tokens."""
        ref, its = self.model.ref, self.inputs
        if its.task != "causal" or its.images:
            raise IsomergeError(
                f"{ref} ({its.architecture or self.model.spec.model_type}) neither writes texts nor sees only "
                "images: without data of your own this works for causal language models and classifiers of images"
            )
        if its.vocabulary != first.inputs.vocabulary:
            raise IsomergeError(
                f"{ref} has {its.vocabulary} tokens, {first.model.ref} has {first.inputs.vocabulary}: give "
                f"models of one vocabulary"
            )

    def write(self, number: int, models: int, count: int, length: int, options: Generation) -> Tensor:
        """This model's share of the texts, int64 [count, length]; it is the one with this ``number`` of so many
        ``models``."""
        module = self._module(options.device)
        rng, parts = torch.Generator().manual_seed(options.seed + number), []
        for start in range(0, count, options.batch_size):
            options.observer(f"{self.model.ref} writes", number * count + start, models * count)
            first = self._begin(min(options.batch_size, count - start), rng).to(options.device)
            parts.append(self._continued(module, first, length, int(torch.randint(2**31, (), generator=rng))))
        return torch.cat(parts)

    def _continued(self, module: Any, first: Tensor, length: int, seed: int) -> Tensor:
        """Texts int64 [n, length] from their first tokens. The end of one does not stop it: another one begins
        there."""
        from transformers import GenerationConfig

        drawn = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=length - 1, pad_token_id=0,
            suppress_tokens=self._media() or None,
        )  # fmt: skip
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            try:
                texts = module.generate(first, attention_mask=torch.ones_like(first), generation_config=drawn)
            except RuntimeError as error:
                raise IsomergeError(
                    f"{self.model.ref} cannot write ({first_line(error)}): check its weights"
                ) from error
        return texts.cpu()

    def _module(self, device: str) -> Any:
        from transformers import GenerationConfig

        from isomerge.observe.live.modules import load_module

        module: Any = load_module(self.model, device=device)
        if not module.can_generate():
            raise IsomergeError(
                f"{self.model.ref}: transformers cannot let {type(module).__name__} write: give data of your own"
            )
        module.generation_config = GenerationConfig()  # not the checkpoint's temperature and penalties
        return module

    def _begin(self, count: int, rng: torch.Generator) -> Tensor:
        """The token that begins texts; any, where the checkpoint has none, or one beyond its vocabulary: int64
        [count, 1]."""
        begin = self.inputs.token("bos_token_id")
        if begin is None or begin >= self.inputs.vocabulary:
            return torch.randint(self.inputs.vocabulary, (count, 1), generator=rng)
        return torch.full((count, 1), begin)

    def _media(self) -> list[int]:
        """The tokens that stand for images, films and sounds: nothing is there to be put in their places."""
        ends = tuple(f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index"))
        tokens = (v for k, v in self.inputs.config.items() if k.endswith(ends) and isinstance(v, int))
        return sorted({token for token in tokens if 0 <= token < self.inputs.vocabulary})

"""Tiny randomised Hugging Face models, one or more per architecture: the oracles of the laws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from depth import EVERY
from diffusion_models import run
from families import IN_EVERY_RUN, INPUTS, TOYS
from isomerge.archs import spec_for
from isomerge.checkpoint.dtypes import dtype_code
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.weights import weights_name
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.evidence.law import MOVED, Law, randomly_moved
from isomerge.evidence.outputs import differences
from isomerge.models.tied_tensors import without_broken_ties
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.language.spec import Spec, by_canonical, coverage
from plain_models import load_plain, plain_outputs
from toy_inputs import place_images
from toy_runs import (
    in_default,
    in_double,
    in_width,
    says,
    seen_outputs,
    speaks,
    translates,
    with_caches_by_layer,
    without_chance,
    written,
)
from unet_models import run as run_unet

TRIED = list(TOYS if EVERY else IN_EVERY_RUN)
"""The toys of this run."""
THROUGH_EVERY_LAW = {
    "bert", "deberta-shared", "deberta-conv", "vit", "dinov2-swiglu", "gpt2", "gpt2-untied", "llama",
    "llama-mqa", "qwen3", "t5-gated", "mixtral", "gpt_neox", "whisper",
}  # fmt: skip
"""The toys that go through every law by default. The others, whose architectures combine what these have, are held to
soundness, recovery and verdicts alone; to all of it with ISOMERGE_ALL_TOYS=1 (`make test-all`)."""
SAMPLE = [n for n in TRIED if EVERY or n in THROUGH_EVERY_LAW]
ALONE_IN_EVERY_RUN = (
    *sorted(THROUGH_EVERY_LAW), "clip", "deepseek_v3", "falcon_h1", "bert-relu", "mbart", "llava", "deberta-unshared", "xlm-roberta",
    "electra", "electra-wide", "cohere-normed", "modernbert-biased", "deit",
)  # fmt: skip
"""The toys whose spaces go through the law one by one by default: they have every space that any toy of the run has, by its
name, group and place, and every form of shifts (`archs/test_law.py`)."""
EACH_SPACE_ALONE = TRIED if EVERY else list(ALONE_IN_EVERY_RUN)
THAT_COMBINE_MOST = ("deberta-shared", "gpt2-untied", "qwen3", "t5-gated", "mixtral")
"""Of these, for laws that take whole commands: norms behind and before layers, with constants and without, joint and
shared heads, norms of heads, two stacks, experts."""
FEW = SAMPLE if EVERY else list(THAT_COMBINE_MOST)

STREAMS_ALONE = {"mamba", "falcon_mamba", "mamba2"}
"""Toys of which nothing is matched block by block: all but the residual stream is left fixed."""
GAINS = ("norm", "ln_", "lambda")


def randomise(model: Any, seed: int) -> None:
    """Fill every parameter: matrices 0.15 N, vectors 0.3 N, gains around one, so that no term is vacuous."""
    rng = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        gain = p.ndim == 1 and "bias" not in name and any(word in name.lower() for word in GAINS)
        scale = 0.3 if p.ndim == 1 else 0.15
        p.data = torch.randn(p.shape, generator=rng, dtype=torch.float64).to(p.dtype) * scale + float(gain)
    for name, b in model.named_buffers():
        if "correction_bias" in name or "expert_bias" in name:  # of routers: a buffer that is trained, and stored
            b.copy_(torch.randn(b.shape, generator=rng, dtype=torch.float64) * 0.3)
        elif "balancing_biases" in name:  # of routers whose last class is to do nothing
            b[:-1] = torch.randn(b.shape, generator=rng, dtype=torch.float64)[:-1] * 0.03
        elif (
            "running_" in name
        ):  # what a norm over batches has seen: means of both signs, or ReLU hides all behind them
            low = -0.5 if "mean" in name else 0.5
            b.copy_(torch.rand(b.shape, generator=rng, dtype=torch.float64) + low)


def save_toy(name: str, folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Path:
    """A randomised toy, saved as Hugging Face saves it."""
    model = TOYS[name][0]().to(dtype).eval()
    randomise(model, seed)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    model.save_pretrained(folder)
    return folder


def inputs(config: Any) -> dict[str, torch.Tensor]:
    """Fixed inputs for a toy."""
    rng = torch.Generator().manual_seed(7)
    seen = getattr(config, "vision_config", config)
    found = {}
    if own := INPUTS.get(config.model_type):
        return own(config, rng)
    if hasattr(seen, "image_size"):
        shape = (3, getattr(seen, "num_channels", 3), seen.image_size, seen.image_size)
        found["pixel_values"] = torch.randn(shape, generator=rng, dtype=torch.float64)
    if hasattr(config, "num_mel_bins"):
        shape = (3, config.num_mel_bins, 2 * config.max_source_positions)
        found["input_features"] = torch.randn(shape, generator=rng, dtype=torch.float64)
    elif seen is not config or not found:
        found["input_ids"] = torch.randint(1, 60, (3, 11), generator=rng)
        if hasattr(config, "image_token_id"):
            place_images(config, found["input_ids"])
    if config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.randint(1, 60, (3, 7), generator=rng)
    return found


def outputs(folder: Path) -> torch.Tensor:
    """The logits of a saved toy, through ``from_pretrained``, in the stored dtype."""
    if (plain := load_plain(folder)) is not None:
        return plain_outputs(plain)
    if config_of(folder).get("_class_name") == "UNet2DConditionModel":
        return run_unet(config_of(folder), folder, next(iter(tensors(folder).values())).dtype)
    if "_class_name" in config_of(folder):
        return run(config_of(folder), tensors(folder))
    config = tf.AutoConfig.from_pretrained(folder)
    kind = getattr(tf, config.architectures[0])
    dtype = next(t.dtype for t in tensors(folder).values() if t.is_floating_point())
    experts = (
        {"experts_implementation": "eager"}
        if any(
            hasattr(getattr(config, "text_config", config), key)
            for key in ("num_experts_per_tok", "top_k_experts", "moe_topk")
        )
        else {}
    )
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs(config).items()}
    for speaking in (speaks, says, translates):
        if (said := speaking(folder, config, dtype, given)) is not None:
            return said
    model = in_width(kind.from_pretrained(folder, dtype=dtype, **experts), dtype).eval()
    with (
        torch.no_grad(),
        in_double(config),
        in_default(config),
        with_caches_by_layer(config),
        without_chance(config),
    ):
        found = model(**given)
    for seeing in (seen_outputs, written):
        if (seen := seeing(config.model_type, found)) is not None:
            return seen
    names = (
        "logits",
        "loss",
        "logits_per_image",
        "itm_score",
        "text_embeds",
        "image_embeds",
        "pooler_output",
        "start_logits",
        "last_hidden_state",
        "embeddings",
    )
    return next(found[name] for name in names if name in found)


def relative(new: torch.Tensor, old: torch.Tensor) -> float:
    """The largest change relative to the largest output; infinite where the new one is no number, or of another shape."""
    assert not old.isnan().any(), "what is compared with is no number"
    return differences({"": old}, {"": new})[""]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All stored tensors by name."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        if file.name != "alignment.safetensors":
            found |= load_file(file)
    return found


def overwrite(folder: Path, new: dict[str, torch.Tensor]) -> None:
    """Replace the weights of a single-file checkpoint."""
    save_file(new, folder / "model.safetensors", metadata={"format": "pt"})


def config_of(folder: Path | str) -> dict[str, Any]:
    """The parsed config.json."""
    return json.loads(Path(folder, "config.json").read_text())


def loaded(folder: Path | str) -> Any:
    """The module in float64, of whose weights nothing is missing or left over."""
    kind = getattr(tf, config_of(folder)["architectures"][0])
    module, info = kind.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return module.eval()


@dataclass(frozen=True)
class Toy:
    """A saved toy, read by the real reader and recognised by its spec."""

    name: str
    folder: Path
    spec: Spec
    blocks: list[Block]
    stored: dict[str, torch.Tensor]
    """The stored tensors by their own names."""
    names: dict[str, str]
    """From canonical names to stored ones."""

    @cached_property
    def reference(self) -> torch.Tensor:
        """The outputs of the saved toy."""
        return outputs(self.folder)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the stored tensors."""
        return {name: tuple(t.shape) for name, t in self.stored.items()}

    @property
    def tolerance(self) -> float:
        """The largest relative change of outputs that rounding explains."""
        return TOYS[self.name][1]

    def fresh(self) -> dict[Block, torch.Tensor]:
        """The blocks' tensors, each in memory of its own."""
        return {b: b.assemble(lambda n: self.stored[self.names[n]]).clone().contiguous() for b in self.blocks}

    def named(self, blocks: Mapping[Block, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The inverse of `fresh`: tensors by their stored names, contiguous."""
        return {
            self.names[n]: t.clone(memory_format=torch.contiguous_format)
            for block, x in blocks.items()
            for n, t in block.split(x)
        }

    def change(self, new: Mapping[str, torch.Tensor]) -> float:
        """The largest change of any stored number."""
        return max(float((new[k].double() - v.double()).abs().max()) for k, v in self.stored.items())

    def drawn(self, names: list[str] | None, condition: float = 4.0) -> dict[str, torch.Tensor]:
        """The weights moved by a random element, of which every space moves if it can."""
        seeds = range(1, 20)
        moved = randomly_moved(self.spec, self.blocks, self.fresh, seeds, names, condition=condition)
        return self.named(moved or self.fresh())

    def law(self, names: list[str] | None, folder: Path, condition: float = 4.0) -> Law:
        """What the law says of some spaces and shifts together (None: all), through the disk and ``from_pretrained``: of a
        toy that a wrong spec sees as well, whose outputs are the same."""
        moved = self.drawn(names, condition)
        still = self.change(moved) <= MOVED
        error = float("inf") if still else relative(outputs(write_toy(self, moved, folder)), self.reference)
        return Law(", ".join(names or ["all"]), "", "", (), error, self.tolerance * (1 if condition < 10 else 10))


def load_toy(name: str, folder: Path, spec: Spec | None = None) -> Toy:
    """Open a saved toy; with ``spec``, as that spec sees it."""
    opened = open_checkpoint(folder)
    shapes = {k: tuple(info.shape) for k, info in opened.tensors.items()}
    declared = spec or spec_for(opened.config, shapes=shapes)
    matches = coverage(declared, shapes)
    spec = spec or without_broken_ties(declared, by_canonical(matches), opened.config)
    stored = {k: opened.read(k) for k in opened.tensors}
    return Toy(name, folder, spec, gather_blocks(spec, matches), stored, by_canonical(matches))


def write_toy(toy: Toy, new: Mapping[str, torch.Tensor], out: Path, *, out_shard_size: int = 1 << 30) -> Path:
    """Write a checkpoint like the toy's with other weights, by the real writer."""
    plan = [OutTensor(n, dtype_code(t.dtype), tuple(t.shape)) for n, t in new.items()]
    name = weights_name(config_of(toy.folder))
    with CheckpointWriter(out, plan, key="toy", out_shard_size=out_shard_size, overwrite=True, name=name) as writer:
        for name, tensor in new.items():
            writer.write(name, tensor)
        return writer.finish({"config.json": toy.folder / "config.json"})
